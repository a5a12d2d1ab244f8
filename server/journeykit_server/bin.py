"""What lay in the bin for long enough: its people are led out, then the journey is gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

from sqlalchemy import delete, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from journeykit_engine import walk
from journeykit_server.bulk import Delete
from journeykit_server.clock import microseconds
from journeykit_server.doors import JourneyKey, doors
from journeykit_server.letters import DELETE_LETTERS, letter_of, withheld
from journeykit_server.lifecycle import BIN, is_in_use
from journeykit_server.outbox import INSERT_MESSAGES, MessageRow
from journeykit_server.publishing import NoSuchJourney, is_journey, lock_journey
from journeykit_server.runtime import Runtime
from journeykit_server.steering import walkable_of
from journeykit_server.store import COUNT, UNQUEUE
from journeykit_server.tables import (
    audience,
    dead_letters,
    drafts,
    inbox,
    instances,
    journeys,
    looks,
    versions,
)

PEOPLE_A_PAGE = 500  # led out in one transaction
ROWS_A_PAGE = 5_000  # deleted in one transaction: well below a second
LETTERS_A_PAGE = 200  # the same of dead letters; a payload may have 100 kB
BELONGINGS = (drafts, versions, looks, audience, inbox, dead_letters, journeys)
"""What goes with a journey. Its journal, entries, messages and statistics stay: they happened. So
does what became of its effects: those that lay in dead letters count as suppressed, "deleted"."""
LEAVE = Delete(audience, ("tenant_id", "journey_id", "user_id"))


async def purge(runtime: Runtime) -> int:
    """Empty the bin of what lies there for `BIN_DAYS` days; how many journeys are gone. Whoever is
    still inside leaves with the reason "journey_deleted". An id is never given again."""
    now = microseconds(await runtime.database.read(runtime.database.now))
    gone = 0
    for key in await runtime.database.read(lambda connection: _expired(connection, now)):
        while await runtime.unit(partial(_lead_out, runtime, key)):
            pass
        for clear in (_clear_audience, _clear_inbox, _clear_letters):
            while await runtime.database.run(partial(_page_of, clear, runtime, key, now)):
                pass
        gone += await runtime.database.run(partial(_forget, runtime, key, now))
    return gone


async def _expired(connection: AsyncConnection, now: int) -> list[JourneyKey]:
    query = select(journeys.c.tenant_id, journeys.c.journey_id).where(
        journeys.c.status == "deleted", journeys.c.deleted_at <= now - BIN
    )
    return [(row[0], row[1]) for row in await connection.execute(query)]


async def _lead_out(runtime: Runtime, key: JourneyKey, connection: AsyncConnection) -> int:
    """A page of those inside; how many left."""
    _, journey_id = key
    inside = (
        select(instances.c.tenant_id, instances.c.user_id)
        .where(*is_journey(instances, *key), text("instances.status = 'waiting'"))
        .limit(PEOPLE_A_PAGE)
    )
    people = sorted((row[0], row[1]) for row in await connection.execute(inside))
    work, now = await runtime.begin(connection, people)
    if (await doors(connection, [key]))[key].status != "deleted":
        return 0
    await runtime.stand(connection, work, sorted(work.people))
    left = 0
    for standing in work.people.values():
        instance = standing.instances.get(journey_id)
        if instance is None or not instance.is_live:
            continue
        walkable = walkable_of(runtime, instance)
        at = max(now, instance.updated_at)
        step = walk.leave(walkable.program, standing.person, instance, at, reason="journey_deleted")
        work.take(standing, walkable, step, "", 0)
        left += 1
    await work.save(connection)
    return left


Clear = Callable[[Runtime, JourneyKey, AsyncConnection], Awaitable[int]]
"""Delete up to a page of what belongs to a journey; how much."""


async def _page_of(
    clear: Clear, runtime: Runtime, key: JourneyKey, now: int, connection: AsyncConnection
) -> int:
    return await clear(runtime, key, connection) if await _lock(connection, key, now) else 0


async def _lock(connection: AsyncConnection, key: JourneyKey, now: int) -> bool:
    """Whether the journey is still there to be cleared away; it stays locked."""
    try:
        journey = await lock_journey(connection, *key)
    except NoSuchJourney:  # another worker was faster
        return False
    return bool(journey.status == "deleted" and journey.deleted_at <= now - BIN)


async def _clear_audience(_: Runtime, key: JourneyKey, connection: AsyncConnection) -> int:
    query = select(*audience.primary_key).where(*is_journey(audience, *key)).limit(ROWS_A_PAGE)
    people = (await connection.execute(query)).all()
    return await LEAVE.run(connection, [(*key, row.user_id) for row in people])


async def _clear_inbox(_: Runtime, key: JourneyKey, connection: AsyncConnection) -> int:
    columns = (inbox.c.tenant_id, inbox.c.user_id, inbox.c.journey_id, inbox.c.number)
    query = select(*columns).where(*is_journey(inbox, *key)).limit(ROWS_A_PAGE)
    return await UNQUEUE.run(connection, (await connection.execute(query)).all())


async def _clear_letters(runtime: Runtime, key: JourneyKey, connection: AsyncConnection) -> int:
    query = select(dead_letters).where(*is_journey(dead_letters, *key)).limit(LETTERS_A_PAGE)
    # Locked: one that somebody retries just now is on its way again and not withheld.
    found = [letter_of(row) for row in await connection.execute(query.with_for_update())]
    effects = [letter for letter in found if letter.kind == "effect"]
    now = microseconds(await runtime.database.now(connection))
    rows = [MessageRow(**withheld(letter, "deleted", now)) for letter in effects]
    many = Counter((*key, letter.version, letter.node_id) for letter in effects)
    await INSERT_MESSAGES.run(connection, rows)
    counts = [(*node, runtime.shard, 0, 0, count) for node, count in sorted(many.items())]
    await COUNT.run(connection, counts)
    names = [(letter.tenant_id, letter.letter_id) for letter in found]
    return await DELETE_LETTERS.run(connection, names)


async def _forget(runtime: Runtime, key: JourneyKey, now: int, connection: AsyncConnection) -> bool:
    """Nothing is left of the journey itself, unless it has something on its way still: that is
    withheld first."""
    if not await _lock(connection, key, now) or await is_in_use(connection, *key):
        return False
    while await _clear_letters(runtime, key, connection):  # of those that have come meanwhile
        pass
    for table in BELONGINGS:
        await connection.execute(delete(table).where(*is_journey(table, *key)))
    return True
