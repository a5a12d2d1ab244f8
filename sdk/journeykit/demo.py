"""The demonstration: a win-back journey over eighteen months of real orders, checked by hand.

Builds the journey, validates it, replays the CDNOW order history through it, prints the sums
beside the same figures computed from the file without journeykit, and writes the funnel as SVG
and HTML. Exit code 1 when the two disagree.
"""

from __future__ import annotations

import gzip
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from whenever import Date, Instant, TimeDelta

import journeykit as jk
from journeykit_engine.replay import Line

ORDERS = Path(__file__).parents[2] / "notebooks" / "data" / "cdnow_master.txt.gz"
OUTPUT = Path("build", "demo")  # in the folder where it is run
UNTIL = Instant("1998-07-31T00:00:00Z")  # 31 days after the last order: nobody waits any more
MONTH = TimeDelta(hours=24 * 30)
TIMES = "1997-01-01 to 1998-06-30"
MISSING = (
    'The order history "{}" is not there: it comes with the repository and not with the package. '
    "Run python3 dev.py demo in a checkout."
)


class Order(NamedTuple):
    """One order of the history: who, when (taken as noon UTC), how many CDs, how many dollars."""

    customer: str
    at: Instant
    quantity: int
    value: float


def orders(path: Path = ORDERS) -> Iterator[Order]:
    """The orders of the file, in its own order: customer, date, CDs, dollars in columns."""
    with gzip.open(path, "rt", encoding="ascii") as file:
        for text in file:
            fields = text.split()
            if len(fields) == 4 and fields[0].isdigit():
                customer, day, quantity, value = fields
                noon = Instant.from_utc(int(day[:4]), int(day[4:6]), int(day[6:]), hour=12)
                yield Order(f"c{customer:0>5}", noon, int(quantity), float(value))


def lines(history: list[Order]) -> list[Line]:
    """The orders as events of one day after the other, file order within a day."""
    told = (
        Line(
            "track",
            order.customer,
            order.at,
            "purchase",
            {"value": order.value, "quantity": order.quantity},
            f"order-{number}",
        )
        for number, order in enumerate(history, 1)
    )
    return sorted(told, key=lambda line: line.at)


def win_back() -> jk.Journey:
    """Whoever has bought nothing for 30 days after an order gets an e-mail."""
    return (
        jk.journey("Win back", journey_id=1, version=1)
        .on_event("purchase", id="bought", label="bought something")
        .reenter("every_time")
        .wait_for(
            {"purchase": lambda j: j.exit(id="came_back", label="bought again")},
            timeout="30d",
            on_timeout=lambda j: j.send(email=1, id="win_back", label="we miss you").exit(
                id="written"
            ),
            id="a_month",
            label="30 days without an order",
        )
    )


def by_hand(history: list[Order]) -> dict[str, int]:
    """The same figures without the engine: each order is closed by the customer's next one within
    30 days, or answered by a message 30 days after it."""
    days: dict[str, list[Instant]] = {}
    for order in history:
        days.setdefault(order.customer, []).append(order.at)
    figures = Counter(people=len(days), entries=len(history), closed=0, messages=0, waiting=0)
    for times in days.values():
        times.sort()
        for at, following in zip(times, [*times[1:], None], strict=True):
            if following is not None and following <= at + MONTH:
                figures["closed"] += 1
            elif at + MONTH > UNTIL:
                figures["waiting"] += 1
            else:
                figures["messages"] += 1
                figures[_month(at + MONTH)] += 1
    return figures


def _month(at: Instant) -> str:
    day: Date = at.to_tz("UTC").date()
    return f"{day.year}-{day.month:02}"


def by_replay(replayed: jk.Replay) -> dict[str, int]:
    """The figures of the replay under the names of `by_hand`."""
    nodes = replayed.summary["nodes"]
    months = Counter(record["at"][:7] for record in replayed.messages)
    return {
        "people": replayed.summary["people"],
        "entries": replayed.summary["entries"],
        "closed": nodes["came_back"]["entered"],
        "messages": replayed.summary["messages"],
        "waiting": sum(counts["waiting"] for counts in nodes.values()),
        **months,
    }


def main() -> int:
    """Run the demonstration; 0 when the engine and the plain computation agree."""
    if not ORDERS.is_file():
        print(MISSING.format(ORDERS), file=sys.stderr)
        return 1
    history = list(orders(ORDERS))
    journey = win_back()
    report = journey.validate()
    print(journey)
    print(f"\n{report}\n")
    if not report.valid:
        return 1
    print(
        f"replaying {len(history):,} orders of real customers, {TIMES} …",
        flush=True,
    )
    replayed = journey.replay(lines(history), until=UNTIL)
    mine, hand = by_replay(replayed), by_hand(history)
    print(f"\n{'':28}{'journeykit':>12}{'by hand':>12}")
    for name, words in WORDS.items():
        print(f"{words:28}{mine.get(name, 0):>12,}{hand.get(name, 0):>12,}")
    agree = all(mine.get(name, 0) == count for name, count in hand.items())
    print("\nthe two agree, month by month" if agree else "\nTHE TWO DISAGREE")
    write(journey, replayed)
    return 0 if agree else 1


WORDS = {
    "people": "people",
    "entries": "entries, one an order",
    "closed": "passes closed by an order",
    "messages": "messages sent",
    "1997-06": "  of them in June 1997",
    "1997-12": "  of them in December 1997",
    "waiting": "people still waiting",
}


def write(journey: jk.Journey, replayed: jk.Replay) -> None:
    """The funnel as a picture and as a page."""
    from journeykit.drawing import html_page

    OUTPUT.mkdir(parents=True, exist_ok=True)
    table = [{"node": node, **counts} for node, counts in replayed.summary["nodes"].items()]
    page = html_page(
        replayed.draw(theme="auto"),
        "Win back",
        table,
        f"The CDNOW order history, {TIMES}, replayed to 1998-07-31.",
    )
    (OUTPUT / "funnel.html").write_text(page, encoding="utf-8")
    for path in (replayed.draw().save(OUTPUT / "funnel.svg"), OUTPUT / "funnel.html"):
        print(f"wrote {path}")


if __name__ == "__main__":
    sys.exit(main())
