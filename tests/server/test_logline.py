"""What a process tells about its running: one line a record, and nobody's data in it."""

from __future__ import annotations

import logging

import orjson
import pytest
from sqlalchemy import insert
from sqlalchemy.exc import IntegrityError

from journeykit_server.database import Database
from journeykit_server.logline import JsonLine, TextLine
from journeykit_server.tables import counters

ROW = {"tenant_id": 1, "name": "canary@example.com", "value": 1}


def record(message: str, *, fault: BaseException | None = None) -> logging.LogRecord:
    told = None if fault is None else (type(fault), fault, fault.__traceback__)
    made = logging.LogRecord("journeykit", logging.INFO, "", 0, message, (), told)
    made.created = 1_780_308_000.5
    return made


def test_figures_follow_the_message() -> None:
    woke = record("woke")
    woke.__dict__["figures"] = {"claimed": 3, "failed": 1}

    assert TextLine().format(woke) == "2026-06-01T10:00:00.500Z INFO woke claimed=3 failed=1"
    assert orjson.loads(JsonLine().format(woke)) == {
        "at": "2026-06-01T10:00:00.500Z",
        "level": "INFO",
        "message": "woke",
        "claimed": 3,
        "failed": 1,
    }


async def test_a_row_that_was_refused_is_not_quoted(database: Database) -> None:
    """PostgreSQL tells its key in a line of its own."""
    twice = insert(counters).values(ROW)
    await database.run(lambda connection: connection.execute(twice))

    with pytest.raises(IntegrityError) as refused:
        await database.run(lambda connection: connection.execute(twice))

    for style in (TextLine(), JsonLine()):
        line = style.format(record("it failed", fault=refused.value))
        assert "IntegrityError" in line
        assert "canary" not in line
