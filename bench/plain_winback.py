"""The summary of the win-back replay without journeykit: what one would write by hand for it.

python bench/plain_winback.py ORDERS.jsonl UNTIL
"""

import json
import sys
from datetime import datetime, timedelta

MONTH = timedelta(days=30)


def main(path: str, until_text: str) -> None:
    until = datetime.fromisoformat(until_text)
    orders: dict[str, list[datetime]] = {}
    seen = set()
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            if row["type"] == "track" and row["messageId"] not in seen:
                seen.add(row["messageId"])
                at = datetime.fromisoformat(row["timestamp"])
                if at <= until and row["event"] == "purchase":
                    orders.setdefault(row["userId"], []).append(at)
    closed = messages = waiting = 0
    for times in orders.values():
        times.sort()
        for at, following in zip(times, [*times[1:], None], strict=True):
            if following is not None and following <= at + MONTH:
                closed += 1
            elif at + MONTH <= until:
                messages += 1
            else:
                waiting += 1
    entries = closed + messages + waiting

    def node(entered: int, exited: int = 0, parked: int = 0) -> dict[str, int]:
        return {"entered": entered, "exited": exited, "suppressed": 0, "waiting": parked}

    summary = {
        "people": len(orders),
        "events": len(seen),
        "entries": entries,
        "messages": messages,
        "nodes": {
            "bought": node(entries),
            "a_month": node(entries, parked=waiting),
            "came_back": node(closed, closed),
            "win_back": node(messages),
            "written": node(messages, messages),
        },
        "exits": {"completed": closed + messages},
        "arms": {},
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main(*sys.argv[1:])
