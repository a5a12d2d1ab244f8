"""What lay in the bin for long enough: its people are led out, then the journey is gone."""

from __future__ import annotations

from functools import partial

from sqlalchemy import delete, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from journeykit_engine import walk
from journeykit_server.clock import microseconds
from journeykit_server.doors import JourneyKey, doors
from journeykit_server.lifecycle import BIN, is_in_use
from journeykit_server.publishing import NoSuchJourney, is_journey, lock_journey
from journeykit_server.runtime import Runtime
from journeykit_server.steering import walkable_of
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
BELONGINGS = (drafts, versions, looks, audience, inbox, dead_letters, journeys)
"""What goes with a journey. Its journal, entries, messages and statistics stay: they happened."""


async def purge(runtime: Runtime) -> int:
    """Empty the bin of what lies there for `BIN_DAYS` days; how many journeys are gone. Whoever is
    still inside leaves with the reason "journey_deleted". An id is never given again."""
    now = microseconds(await runtime.database.read(runtime.database.now))
    gone = 0
    for key in await runtime.database.read(lambda connection: _expired(connection, now)):
        while await runtime.unit(partial(_lead_out, runtime, key)):
            pass
        gone += await runtime.database.run(partial(_forget, key, now))
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


async def _forget(key: JourneyKey, now: int, connection: AsyncConnection) -> bool:
    """Nothing is left of the journey itself, unless it has something on its way still: that is
    withheld first."""
    try:
        journey = await lock_journey(connection, *key)
    except NoSuchJourney:  # another worker was faster
        return False
    if journey.status != "deleted" or journey.deleted_at > now - BIN:
        return False
    if await is_in_use(connection, *key):
        return False
    for table in BELONGINGS:
        await connection.execute(delete(table).where(*is_journey(table, *key)))
    return True
