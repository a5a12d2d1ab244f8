"""Eighteen months of real orders through the real store: ingest, worker and outbox on a clock that
the test moves say the same as `replay`, record for record."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import Instant, TimeDelta

from journeykit import demo
from journeykit_engine.replay import Line
from journeykit_engine.timing import write_instant
from journeykit_server import publishing
from journeykit_server.clock import VirtualClock, instant
from journeykit_server.database import Database
from journeykit_server.incoming import Incoming
from journeykit_server.runtime import Runtime
from journeykit_server.tables import deliveries, journal
from journeykit_server.verify import verify
from journeykit_server.worker import Worker

TENANT = 1
A_MOMENT = TimeDelta(microseconds=1)
EVERYBODY, SOMEBODY = 1, 8  # on SQLite all of them, on PostgreSQL one customer in so many


async def test_the_demo_lived_through_is_the_demo_replayed(database: Database) -> None:
    share = EVERYBODY if database.is_sqlite else SOMEBODY
    lines = [line for line in orders() if int(line.user_id[1:]) % share == 0]

    await live(database, lines)

    replayed = demo.win_back().replay(lines, until=demo.UNTIL)
    assert sorted(await told(database)) == sorted(map(written, replayed.journal))
    assert await delivered(database) == sorted(sent(replayed.journal))
    assert len(await delivered(database)) == replayed.summary["messages"]
    assert await verify(database) == []
    if share == EVERYBODY:
        assert len(await delivered(database)) == 46_954


def orders() -> list[Line]:
    return demo.lines(list(demo.orders()))


async def live(database: Database, lines: Sequence[Line]) -> None:
    """Publish the journey the day it begins, and live through its history."""
    clock = database.clock
    assert isinstance(clock, VirtualClock)
    clock.set(lines[0].at - A_MOMENT)
    draft = await publishing.save_draft(database, TENANT, demo.win_back().graph.to_value())
    runtime = Runtime(database)
    await runtime.publish(TENANT, draft.journey_id)
    worker = Worker(runtime)
    for at, together in groupby(lines, key=lambda line: line.at):
        await wait_until(worker, at - A_MOMENT)  # at one instant an event goes before a timer
        clock.set(at)
        await runtime.ingest(TENANT, [incoming(line) for line in together])
    await wait_until(worker, demo.UNTIL)


async def wait_until(worker: Worker, moment: Instant) -> None:
    """Let the worker do what is due, each thing at its own time."""
    clock = worker.runtime.database.clock
    assert isinstance(clock, VirtualClock)
    while (due := await worker.runtime.next_due()) is not None and due <= moment:
        clock.set(max(due, clock.now()))
        await worker.tick()
    clock.set(moment)


def incoming(line: Line) -> Incoming:
    return Incoming("track", line.user_id, line.event, line.properties, line.id)


async def told(database: Database) -> list[str]:
    """The journal as `replay` would write it."""

    async def read(connection: AsyncConnection) -> Sequence[Any]:
        columns = journal.c.user_id, journal.c.entry_count, journal.c.at, journal.c.trail
        return (await connection.execute(select(*columns))).all()

    return [
        written(
            {
                "at": write_instant(instant(at)),
                "user_id": user_id,
                "entry": entry_count,
                **json.loads(line),
            }
        )
        for user_id, entry_count, at, trail in await database.read(read)
        for line in trail.split("\n")[:-1]
    ]


def written(record: dict[str, Any]) -> str:
    return json.dumps(record, sort_keys=True)


def sent(records: Sequence[dict[str, Any]]) -> list[str]:
    return [record["message_id"] for record in records if "message_id" in record]


async def delivered(database: Database) -> list[str]:
    """The ids of what the log provider took, each offered once."""

    async def read(connection: AsyncConnection) -> Sequence[Any]:
        columns = deliveries.c.message_id, deliveries.c.times
        return (await connection.execute(select(*columns))).all()

    rows = await database.read(read)
    assert {times for _, times in rows} == {1}
    return sorted(message_id for message_id, _ in rows)
