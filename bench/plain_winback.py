"""The figures of the win-back journey without journeykit: what one would write by hand for it.

python bench/plain_winback.py ORDERS.jsonl UNTIL
"""

import json
import sys
from datetime import datetime, timedelta

MONTH = timedelta(days=30)


def main(path: str, until_text: str) -> None:
    until = datetime.fromisoformat(until_text)
    orders: dict[str, list[datetime]] = {}
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            if row["type"] == "track" and row["event"] == "purchase":
                at = datetime.fromisoformat(row["timestamp"])
                if at <= until:
                    orders.setdefault(row["userId"], []).append(at)
    entries = closed = messages = waiting = 0
    for times in orders.values():
        times.sort()
        for index, at in enumerate(times):
            entries += 1
            if index + 1 < len(times) and times[index + 1] <= at + MONTH:
                closed += 1
            elif at + MONTH <= until:
                messages += 1
            else:
                waiting += 1
    figures = {
        "people": len(orders),
        "entries": entries,
        "messages": messages,
        "closed": closed,
        "waiting": waiting,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
