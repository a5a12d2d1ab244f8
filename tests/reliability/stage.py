"""A scene for a fault: journeys that are published, people in them, and what can be seen of them
afterwards."""

from __future__ import annotations

from typing import Any

import orjson
from sqlalchemy import select
from whenever import Instant, TimeDelta

import journeykit as jk
from journeykit_engine.timing import write_instant
from journeykit_server import publishing
from journeykit_server.clock import VirtualClock, instant
from journeykit_server.database import Database
from journeykit_server.incoming import Incoming
from journeykit_server.runtime import LEASE, Runtime
from journeykit_server.tables import deliveries, instances, journal, metadata, timers

TENANT = 1
PEOPLE = [f"user {number:03}" for number in range(100)]
DAY = TimeDelta(hours=24)
A_LEASE = LEASE + TimeDelta(microseconds=1)


def reminder() -> jk.Journey:
    """A day after an order there is a message."""
    return jk.journey("Reminder").on_event("order").wait("1d").send(email=1).exit()


def patient() -> jk.Journey:
    """A wait, then a wait for an answer that may come too late."""
    return (
        jk.journey("Patient")
        .on_event("order")
        .wait("1d", id="rest")
        .wait_for(
            "reply",
            timeout="2d",
            on_timeout=jk.path().send(email=2, id="late").exit(id="over"),
            id="ask",
        )
        .send(email=1, id="thank")
        .exit()
    )


def asking() -> jk.Journey:
    """An answer within two days or another way; nobody waits before it."""
    return (
        jk.journey("Asking")
        .on_event("order")
        .wait_for(
            "reply",
            timeout="2d",
            on_timeout=jk.path().send(email=2, id="late").exit(id="over"),
            id="ask",
        )
        .send(email=1, id="thank")
        .exit()
    )


def choosy() -> jk.Journey:
    """A day after an order a rule is asked."""
    return (
        jk.journey("Choosy")
        .on_event("order")
        .wait("1d", id="rest")
        .when(
            jk.trait("plan") == "gold",
            yes=jk.path().send(email=2, id="gold").exit(id="over"),
            id="which",
        )
        .send(email=1, id="plain")
        .exit()
    )


async def publish(database: Database, *journeys: jk.Journey) -> None:
    """Each under the next free number, from 1 on. They may send people to each other."""
    drafts = [
        await publishing.save_draft(database, TENANT, journey.graph.to_value(), name=journey.name)
        for journey in journeys
    ]
    for draft in drafts:
        await publishing.publish(database, TENANT, draft.journey_id)


async def republish(database: Database, journey: jk.Journey, journey_id: int = 1) -> int:
    """The next version of a journey that is there."""
    document = journey.graph.to_value()
    await publishing.save_draft(database, TENANT, document, journey_id=journey_id)
    return (await publishing.publish(database, TENANT, journey_id)).version


async def process(database: Database, *journeys: jk.Journey, **given: Any) -> Runtime:
    """A process that has just started, once these journeys are published."""
    await publish(database, *journeys)
    runtime = Runtime(database, **given)
    await runtime.reload()
    return runtime


def happens(name: str, user_id: str = "ann", event_id: str = "", **properties: Any) -> Incoming:
    return Incoming("track", user_id, name, properties, event_id or f"{name} of {user_id}")


async def order(runtime: Runtime, *user_ids: str) -> None:
    """Each of them orders something, under an id of their own."""
    receipt = await runtime.ingest(TENANT, [happens("order", user_id) for user_id in user_ids])
    assert receipt.accepted == len(user_ids)


def later(database: Database, pause: TimeDelta) -> Instant:
    """So much time passes, or runs back."""
    assert isinstance(database.clock, VirtualClock)
    database.clock.set(database.clock.now() + pause)
    return database.clock.now()


async def finish(runtime: Runtime, until: Instant | None = None) -> None:
    """Do all that is due, and by `until` all that becomes due, each thing at its moment."""
    clock = runtime.database.clock
    assert isinstance(clock, VirtualClock)
    end = until or clock.now()
    while (due := await runtime.next_due()) is not None and due <= end:
        clock.set(max(due, clock.now()))
        woken, heard = await runtime.wake(), await runtime.catch_up()
        if not (woken.claimed or heard or any(await runtime.deliver())):
            later(runtime.database, TimeDelta(seconds=1))  # it is found by the next look at all
    clock.set(max(end, clock.now()))


# --- what can be seen


async def rows(database: Database, query: Any) -> list[Any]:
    return list(await database.read(lambda connection: connection.execute(query)))


async def read(database: Database, table: Any) -> list[Any]:
    return await rows(database, select(table).order_by(*table.primary_key))


async def execute(database: Database, statement: str) -> None:
    """Something that is done behind the back of the product."""
    await database.run(lambda connection: connection.exec_driver_sql(statement))


LEFT_BY_A_CLAIM = ("lease_token", "try_at", "attempts")


async def everything(database: Database) -> dict[str, list[Any]]:
    """Every row of every table, but for the mark that a claim leaves and the place under a cap that
    is kept for a message: they only permit to try."""
    told: dict[str, list[Any]] = {}
    for table in metadata.sorted_tables:
        if table.name == "budget_uses":
            continue
        found = [dict(row._mapping) for row in await read(database, table)]
        if table.name in ("timers", "outbox"):
            found = [{**row, **dict.fromkeys(LEFT_BY_A_CLAIM)} for row in found]
        told[table.name] = found
    return told


async def where(database: Database, user_id: str = "ann") -> list[tuple[int, str, str, int]]:
    """Journey, status, node and revision of every pass of a person."""
    c = instances.c
    query = select(c.journey_id, c.status, c.current_node, c.rev).where(c.user_id == user_id)
    return [tuple(row) for row in await rows(database, query.order_by(c.journey_id))]


async def told(database: Database, user_id: str = "ann") -> list[str]:
    """The journal of a person, as `replay` writes its lines."""
    c = journal.c
    order = (c.at, c.journey_id, c.rev, c.step)
    query = select(c.at, c.entry_count, c.trail).where(c.user_id == user_id).order_by(*order)
    lines = []
    for at, entry, trail in await rows(database, query):
        head = orjson.dumps({"at": write_instant(instant(at)), "user_id": user_id, "entry": entry})
        lines += [f"{head.decode()[:-1]},{line[1:]}" for line in trail.split("\n") if line]
    return lines


async def steps(database: Database, user_id: str = "ann", *names: str) -> list[str]:
    """What a person's journal says happened at which node, of these kinds or of all."""
    records = map(orjson.loads, await told(database, user_id))
    return [f"{r['what']} {r['node_id']}" for r in records if not names or r["what"] in names]


async def taken(database: Database) -> dict[str, int]:
    """What the outside took, by its id, with how often it was offered."""
    return {row.message_id: row.times for row in await read(database, deliveries)}


async def due_times(database: Database) -> list[Instant]:
    return [instant(row.due) for row in await rows(database, select(timers).order_by(timers.c.due))]
