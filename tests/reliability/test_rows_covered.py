"""Every way in which something can go wrong has a test that says what must hold afterwards.

A test belongs to the row whose number its name begins with: `test_c08_…` shows C8.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parent
NAME = re.compile(r"test_c(\d\d)_")

ROWS = {
    1: "a crash after due timers were read, before the claim is committed",
    2: "the claim is committed and the process dies",
    3: "the claim was committed and nobody told the worker",
    4: "two workers claim the same minute",
    5: "an exception in a walk",
    6: "an error that will always come again",
    7: "an error that should pass and does not",
    8: "a crash before the commit, at every statement",
    9: "a commit of which nobody knows whether it was",
    10: "a crash between walk and delivery",
    11: "a crash between delivery and its mark",
    12: "the mark was committed and nobody told the worker",
    13: "a worker that stands still for longer than its lease",
    14: "a worker that stands still inside its transaction",
    15: "a worker that stands still between delivery and mark",
    16: "a batch that takes longer than its claim can be trusted",
    17: "a provider that is slow",
    18: "a provider that never answers",
    19: "a success that is told twice, or too late",
    20: "one recipient who can never be reached",
    21: "an effect that is dead while its person walks on",
    22: "an event while the person is being parked",
    23: "an event and a time-out at the same moment",
    24: "an event between claim and walk",
    25: "one event, several times at once",
    26: "one id, two different events",
    27: "an event that is older than the wait",
    28: "events in another order",
    29: "an event of somebody unknown, or not inside",
    30: "a crash between storing an event and entering somebody",
    31: "two triggers at once",
    32: "coming back while leaving",
    33: "coming back while the old timer is claimed",
    34: "the same send again in a loop",
    35: "a publishing while somebody walks",
    36: "two publishings at once",
    37: "a pause while somebody is on the move",
    38: "an end while somebody is on the move, and a way back",
    39: "a published document that is gone or spoiled",
    40: "a PostgreSQL that crashes under load",
    41: "a PostgreSQL that crashes while workers start",
    42: "connections that are cut, again and again",
    43: "deadlock, serialization failure, lock time-out",
    44: "a database that cannot be reached",
    45: "a database that has lost its last commits",
    46: "an SQLite file that somebody else writes to",
    47: "a full disk, a file that may only be read",
    48: "two workers on one SQLite file",
    49: "an SQLite file that has lost the end of its log",
    50: "a clock three days ahead",
    51: "a clock an hour back",
    52: "machines whose clocks differ",
    53: "a change of the clock, or of its law",
    54: "somebody who does not wait for the answer",
    55: "a worker that is told to stop",
    56: "no memory",
    57: "a look at a segment that dies half-way",
    58: "people who come and go while a look is under way",
    59: "two scanners at one look",
    60: "effects for a holdout",
    61: "a crash between two journeys",
    62: "journeys that send people round in a circle",
    63: "an old and a new worker on one database",
    64: "histories of an earlier engine",
    65: "counters and what they count",
    66: "endpoints that are slow, gone, busy or elsewhere",
    67: "a history that grows",
    68: "a place for faults, forgotten in the product",
}
"""What is tried, by the number of its row; numbers that are missing belong to parts of the product
that do not exist yet."""


def shown() -> Iterator[tuple[int, str]]:
    """The row and the name of every test of this folder that has one."""
    for path in sorted(FOLDER.glob("test_*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found = NAME.match(node.name)
                if found:
                    yield int(found[1]), f"{path.name}::{node.name}"


def test_every_row_has_a_test() -> None:
    rows = {row for row, _ in shown()}
    missing = [f"C{row}: {what}" for row, what in ROWS.items() if row not in rows]
    assert missing == []


def test_every_test_belongs_to_a_row() -> None:
    assert [name for row, name in shown() if row not in ROWS] == []
