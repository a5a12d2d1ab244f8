"""A crowd whose time has come: what workers find when they start, and what must have become of it
when they are done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson
from sqlalchemy import Table, func, select
from whenever import TimeDelta

import journeykit as jk
from journeykit_server.clock import Clock, VirtualClock
from journeykit_server.database import Database
from journeykit_server.migrate import migrate
from journeykit_server.runtime import INGEST_BATCH, Runtime
from journeykit_server.tables import (
    dead_letters,
    inbox,
    instances,
    journal,
    outbox,
    timers,
)
from tests.databases import open_database
from tests.reliability.laws import broken
from tests.reliability.processes import LOOK_SECONDS, PATIENCE_SECONDS, Crew
from tests.reliability.stage import order, publish, read, rows, taken
from tests.reliability.worker_process import Outside

CROWD = [f"user {number:03}" for number in range(300)]


def welcome() -> jk.Journey:
    """The first journey: a wait, two messages one after the other, and on into the second. Every
    tenth person is held out of everything."""
    return (
        jk.journey("Welcome")
        .on_event("order")
        .wait("1m", id="rest")
        .split("arm", holdout=10, a=jk.path().send(email=1, id="hello"), b=jk.path())
        .send(email=2, id="news")
        .enter_journey(2, id="on")
        .exit()
    )


def thanks() -> jk.Journey:
    """The second one, into which only the first leads."""
    return jk.journey("Thanks").on_call().send(email=3, id="thanks").exit()


def straight() -> jk.Journey:
    """Who visits is greeted at once."""
    return jk.journey("Straight").on_event("visit").send(email=1, id="greet").exit()


@asynccontextmanager
async def looked_at(url: str, clock: Clock | None = None) -> AsyncIterator[Database]:
    """The database of workers, as this process sees it."""
    opened = open_database(url, clock=clock or Clock())
    try:
        yield opened
    finally:
        await opened.close()


async def make_schema(url: str) -> None:
    """The schema as `journeykit migrate` makes it, for commands that look at its revision."""
    async with looked_at(url) as database:
        await migrate(database)


def an_hour_ago() -> VirtualClock:
    """What is put off by less than an hour now, is due when a worker starts."""
    return VirtualClock(Clock().now() - TimeDelta(hours=1))


async def gather_crowd(
    url: str, people: Sequence[str] = CROWD, *journeys: jk.Journey, clock: Clock | None = None
) -> None:
    """Publish the journeys, `welcome` and `thanks` if none is named; all ordered an hour ago."""
    async with looked_at(url, clock or an_hour_ago()) as database:
        await publish(database, *(journeys or (welcome(), thanks())))
        runtime = Runtime(database)
        for start in range(0, len(people), INGEST_BATCH):
            await order(runtime, *people[start : start + INGEST_BATCH])


# --- the end


async def open_ends(database: Database) -> dict[str, int]:
    """How much is still to be done, by table."""
    waiting = select(func.count()).where(instances.c.status == "waiting")
    asked = {"waiting": waiting}
    for table in (timers, inbox, outbox):
        asked[table.name] = select(func.count()).select_from(table)
    return {name: (await rows(database, query))[0][0] for name, query in asked.items()}


async def finished(database: Database, crew: Crew) -> None:
    """Wait until the workers have nothing to do."""
    loop = asyncio.get_running_loop()
    end = loop.time() + PATIENCE_SECONDS
    while any((left := await open_ends(database)).values()):
        if loop.time() > end or not crew.living:
            told = "\n\n".join(process.said[-2_000:] for process in crew.all)
            raise AssertionError(f"left undone after {PATIENCE_SECONDS:g} s: {left}\n{told}")
        await asyncio.sleep(LOOK_SECONDS)


async def faults_of_welcome(database: Database, people: Sequence[str] = CROWD) -> list[str]:
    """What is wrong about people who are through `welcome` and `thanks`: nobody is lost, nobody is
    in two places, nothing is left, everything was taken under one name."""
    found = await broken(database)
    found += [f"left: {name} {left}" for name, left in (await open_ends(database)).items() if left]
    found += [f"dead: {letter}" for letter in await read(database, dead_letters)]
    passes = await _revisions(database, instances)
    held = await _held_out(database)
    wanted = [(user_id, 1, 2) for user_id in people]
    wanted += [(user_id, 2, 1) for user_id in people if user_id not in held]
    found += _differences("a pass", passes, wanted)
    wanted += [(user_id, 1, 1) for user_id in people]
    return found + _differences("a step", await _revisions(database, journal), wanted)


async def _revisions(database: Database, table: Table) -> list[tuple[str, int, int]]:
    c = table.c
    query = select(c.user_id, c.journey_id, c.rev).where(c.journey_id <= 2)
    return [tuple(row) for row in await rows(database, query)]


async def faults_of_log(database: Database) -> list[str]:
    """What is wrong with what the log provider took: each message of the journal, once."""
    return _differences("a delivery", list(await taken(database)), await _told(database))


async def faults_outside(database: Database, path: str) -> list[str]:
    """The same about the outside of a file, where another content would be another row."""
    names = [name for name, _, _ in Outside(path).taken()]
    return _differences("outside", names, await _told(database))


async def _told(database: Database) -> list[str]:
    """The names of all messages that the journal tells of."""
    told = []
    for (trail,) in await rows(database, select(journal.c.trail)):
        effects = [orjson.loads(line).get("effect", {}) for line in trail.split("\n") if line]
        told += [each["message_id"] for each in effects if each.get("kind") == "send"]
    return told


async def _held_out(database: Database) -> set[str]:
    query = select(instances.c.user_id).where(instances.c.is_holdout)
    return {user_id for (user_id,) in await rows(database, query)}


def _differences(what: str, found: Sequence[Any], wanted: Sequence[Any]) -> list[str]:
    """What there is too much of, or too little."""
    differing = sorted(set(found) ^ set(wanted))
    twice = len(found) - len(set(found))
    return [f"{what}: {key}" for key in differing] + [f"{what} twice"] * twice
