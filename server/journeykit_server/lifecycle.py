"""How a journey stops and goes on: paused, resumed, archived, put into the bin and taken out again.

Each call locks the journey's row, which whoever moves its people or lets its messages out holds
against change: it waits for what is under way, and once it is answered nothing comes through. What
a provider is being offered at that very moment still goes out: it is in other hands already, and no
call waits for it. A call that finds what it asks for changes nothing and is no error, so it can be
repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, get_args

from sqlalchemy import Row, and_, or_, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from journeykit_server import outbox
from journeykit_server.clock import microseconds
from journeykit_server.doors import JourneyKey, doors
from journeykit_server.publishing import NoSuchJourney, is_journey, lock_journey
from journeykit_server.runtime import Runtime
from journeykit_server.tables import (
    HELD_BUCKET,
    NEVER,
    dead_letters,
    deferred_sends,
    instances,
    journeys,
    timers,
)
from journeykit_server.tables import outbox as outgoing

BIN_DAYS = 30  # how long a deleted journey can be restored
BIN = BIN_DAYS * 86_400_000_000  # the same in microseconds
TIMERS_A_PAGE = 5_000  # held timers taken back in one transaction: well below a second

Mode = Literal["entries", "freeze", "drain"]
Decide = Callable[[Row[Any], int], Mapping[str, Any] | None]
"""What of a journey's row is to be changed at this moment (microseconds), None where nothing is."""


class WrongState(Exception):
    """The journey is in a state in which this cannot be done. Nothing was changed."""


UNKNOWN_MODE = 'The mode "{0}" is not known. Write entries, freeze or drain.'
WRONG_STATE = 'Journey "{0}" is {1} and cannot be {2}. {3}'
WORDS = {"draft": "a draft", "published": "running"}
WHAT_TO_DO: Mapping[tuple[str, str], str] = {
    ("paused", "draft"): "Nobody is inside; publish it first.",
    ("paused", "archived"): "It stands still for good.",
    ("paused", "deleted"): "Restore it first.",
    ("resumed", "draft"): "Publish it first.",
    ("resumed", "archived"): "Save what it does as a new journey and publish that.",
    ("resumed", "deleted"): "Restore it first.",
    ("archived", "draft"): "Nobody is inside; delete it.",
    ("archived", "deleted"): "Restore it first.",
    ("deleted", "published"): "Pause or archive it first.",
}
"""By what is asked for and the state the journey is in."""


async def pause(runtime: Runtime, tenant_id: int, journey_id: int, mode: Mode = "entries") -> str:
    """Nobody enters any more. "entries": those inside walk on. "freeze": they stand still, their
    messages too, except what a provider is being offered at the moment of the answer; an event may
    end a pass and nothing else, also when it is heard later. "drain": they walk on, and once the
    last has left and nothing is left to be done, dead letters neither, the journey is archived. A
    paused journey can be given another mode.

    The answer is the status, as of all these calls. Raises `NoSuchJourney` and `WrongState`.
    """
    if mode not in get_args(Mode):
        raise ValueError(UNKNOWN_MODE.format(mode))

    def decide(journey: Row[Any], at: int) -> Mapping[str, Any] | None:
        if (journey.status, journey.pause_mode) == ("paused", mode):
            return None
        _require(journey, "paused", "published", "paused")
        return {"status": "paused", "pause_mode": mode}

    return await _change(runtime, tenant_id, journey_id, decide)


async def resume(runtime: Runtime, tenant_id: int, journey_id: int) -> str:
    """A paused journey goes on: what came due while it stood still is done now, each thing once and
    the longest due first, to the minute. Another process may take nobody in by an event for up to
    `published.RELOAD_SECONDS` more. Raises `NoSuchJourney` and `WrongState`."""

    def decide(journey: Row[Any], at: int) -> Mapping[str, Any] | None:
        if journey.status == "published":
            return None
        _require(journey, "resumed", "paused")
        return {"status": "published", "pause_mode": ""}

    return await _change(runtime, tenant_id, journey_id, decide)


async def archive(runtime: Runtime, tenant_id: int, journey_id: int) -> str:
    """The journey ends for good: those inside stand still, what is on its way to them is withheld,
    except what a provider is being offered at the moment of the answer. Raises `NoSuchJourney` and
    `WrongState`."""

    def decide(journey: Row[Any], at: int) -> Mapping[str, Any] | None:
        if journey.status == "archived":
            return None
        _require(journey, "archived", "published", "paused")
        return {"status": "archived", "pause_mode": ""}

    return await _change(runtime, tenant_id, journey_id, decide)


async def delete(runtime: Runtime, tenant_id: int, journey_id: int) -> str:
    """Put a journey into the bin, where it stands still and can be restored for `BIN_DAYS` days;
    what is on its way to its people is withheld, except what a provider is being offered at the
    moment of the answer. One that lies there already counts as none. Raises `NoSuchJourney` and
    `WrongState`."""
    tried: list[int] = []  # of a commit whose answer was lost: then it is we who deleted it

    def decide(journey: Row[Any], at: int) -> Mapping[str, Any] | None:
        if journey.status == "deleted":
            if journey.deleted_at in tried:
                return None
            raise NoSuchJourney(journey_id)
        _require(journey, "deleted", "draft", "paused", "archived")
        tried.append(at)
        before = f"{journey.status} {journey.pause_mode}".strip()
        in_bin = {"status": "deleted", "pause_mode": "", "deleted_at": at}
        return {**in_bin, "status_before": before}

    return await _change(runtime, tenant_id, journey_id, decide)


async def restore(runtime: Runtime, tenant_id: int, journey_id: int) -> str:
    """Take a journey out of the bin, as it was when it was put there. Raises `NoSuchJourney`, also
    for one that lay there too long."""

    def decide(journey: Row[Any], at: int) -> Mapping[str, Any] | None:
        if journey.status != "deleted":
            return None
        if at - journey.deleted_at >= BIN:
            raise NoSuchJourney(journey_id)
        status, _, mode = journey.status_before.partition(" ")
        before = {"status": status, "pause_mode": mode}
        return {**before, "status_before": "", "deleted_at": None}

    return await _change(runtime, tenant_id, journey_id, decide)


def _require(journey: Row[Any], asked: str, *states: str) -> None:
    if journey.status not in states:
        words = WORDS.get(journey.status, journey.status)
        what_to_do = WHAT_TO_DO[asked, journey.status]
        raise WrongState(WRONG_STATE.format(journey.journey_id, words, asked, what_to_do))


async def _change(runtime: Runtime, tenant_id: int, journey_id: int, decide: Decide) -> str:
    """Change a journey's row, then let everybody know and what may go on go on."""

    async def work(connection: AsyncConnection) -> str:
        journey = await lock_journey(connection, tenant_id, journey_id)
        at = microseconds(await runtime.database.now(connection))
        changed = decide(journey, at)
        if changed is None:
            return str(journey.status)
        its_row = is_journey(journeys, tenant_id, journey_id)
        values = {**changed, "updated_at": at}
        await connection.execute(update(journeys).where(*its_row).values(values))
        return str(changed["status"])

    status = await runtime.database.run(work)
    await runtime.reload()
    await go_on(runtime, tenant_id, journey_id)
    return status


# --- what stood still goes on


async def go_on(runtime: Runtime, tenant_id: int, journey_id: int) -> int:
    """Take back what was put away while this journey stood still, as far as it goes on now: timers
    in pages, the longest due first; and effects, also those that are to be withheld for good. How
    many of both."""
    taken_back = 0
    while many := await runtime.database.run(lambda c: _timers(runtime, c, tenant_id, journey_id)):
        taken_back += many
        runtime.swept_at = None  # they lie in minutes that have passed
    return taken_back + await runtime.database.run(
        lambda c: _effects(runtime, c, tenant_id, journey_id)
    )


async def _timers(
    runtime: Runtime, connection: AsyncConnection, tenant_id: int, journey_id: int
) -> int:
    key = (tenant_id, journey_id)
    if not (await doors(connection, [key]))[key].moves:
        return 0
    is_sqlite = connection.dialect.name == "sqlite"
    statement = TIMERS_SQLITE if is_sqlite else TIMERS_POSTGRESQL
    done = await connection.exec_driver_sql(
        statement.format(held=HELD_BUCKET, many=TIMERS_A_PAGE), key
    )
    return done.rowcount


TIMERS_POSTGRESQL = """
    UPDATE timers SET bucket = due / 60000000, try_at = due
    WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM timers WHERE tenant_id = $1 AND journey_id = $2 AND bucket = {held}
        ORDER BY due LIMIT {many} FOR UPDATE SKIP LOCKED))"""
"""Back to the minutes in which they were due, since the earliest minutes are taken first; other
processes find them by their next sweep. One that is locked is on its way to somewhere else, or is
found by the next look."""
TIMERS_SQLITE = """
    UPDATE timers SET bucket = due / 60000000, try_at = due
    WHERE (tenant_id, user_id, journey_id) IN (
        SELECT tenant_id, user_id, journey_id FROM timers
        WHERE tenant_id = ? AND journey_id = ? AND bucket = {held} ORDER BY due LIMIT {many})"""


async def _effects(
    runtime: Runtime, connection: AsyncConnection, tenant_id: int, journey_id: int
) -> int:
    key = (tenant_id, journey_id)
    if (await doors(connection, [key]))[key].outgoing == "hold":
        return 0
    now = await runtime.database.now(connection)
    return await outbox.let_go(connection, tenant_id, journey_id, now)


# --- what nobody asks for


async def tidy_once(runtime: Runtime) -> int:
    """What is left to do of what somebody asked for; how much was done. For a worker, to call every
    few seconds: journeys that are drained are archived, and where the process that let a journey
    go on did not live to see it through, what is still put away is taken back."""
    left = await runtime.database.read(_left)
    taken_back = [await go_on(runtime, *key) for key in left]
    return sum(taken_back) + await drained_once(runtime)


async def _left(connection: AsyncConnection) -> list[JourneyKey]:
    found = {tuple(row) for query in LEFT for row in await connection.execute(query)}
    return sorted(found)


_FROZEN = and_(journeys.c.status == "paused", journeys.c.pause_mode == "freeze")
_MOVES = and_(journeys.c.status.in_(("published", "paused")), journeys.c.pause_mode != "freeze")
_KEY = (journeys.c.tenant_id, journeys.c.journey_id)
LEFT = (
    # In the words of the index that has these timers alone.
    select(*_KEY).where(
        _MOVES,
        select(timers.c.due)
        .where(
            timers.c.tenant_id == journeys.c.tenant_id,
            timers.c.journey_id == journeys.c.journey_id,
            text(f"timers.bucket = {HELD_BUCKET}"),
        )
        .exists(),
    ),
    select(*_KEY)
    .distinct()
    .join_from(
        outgoing,
        journeys,
        and_(
            outgoing.c.tenant_id == journeys.c.tenant_id,
            outgoing.c.journey_id == journeys.c.journey_id,
        ),
    )
    .where(outgoing.c.try_at == NEVER, ~_FROZEN),
)
"""Journeys that do not stand still and have something put away."""


async def drained_once(runtime: Runtime) -> int:
    """Archive the journeys that were to be drained and are empty: nobody is inside, nothing is on
    its way, and no dead letter could still be tried again. How many."""
    ended = 0
    for key in await runtime.database.read(_drained):
        ended += await runtime.database.run(partial(_archive_if_empty, runtime, *key))
    return ended


async def _drained(connection: AsyncConnection) -> list[JourneyKey]:
    """As it looks from outside: those that are busy still are locked by nobody for this."""
    draining = [(row[0], row[1]) for row in (await connection.execute(DRAINING)).all()]
    return [key for key in draining if not await _has_work(connection, *key)]


DRAINING = select(*_KEY).where(journeys.c.status == "paused", journeys.c.pause_mode == "drain")


async def _archive_if_empty(
    runtime: Runtime, tenant_id: int, journey_id: int, connection: AsyncConnection
) -> bool:
    journey = await lock_journey(connection, tenant_id, journey_id)
    if (journey.status, journey.pause_mode) != ("paused", "drain"):
        return False
    if await _has_work(connection, tenant_id, journey_id):
        return False
    at = microseconds(await runtime.database.now(connection))
    its_row = is_journey(journeys, tenant_id, journey_id)
    archived = {"status": "archived", "pause_mode": "", "updated_at": at}
    await connection.execute(update(journeys).where(*its_row).values(archived))
    return True


async def _has_work(connection: AsyncConnection, tenant_id: int, journey_id: int) -> bool:
    """Whether it is in use, or somebody may still retry something: an archived one withholds it."""
    if await is_in_use(connection, tenant_id, journey_id):
        return True
    letter = select(1).where(*is_journey(dead_letters, tenant_id, journey_id)).exists()
    return bool((await connection.execute(select(letter))).scalar_one())


async def is_in_use(connection: AsyncConnection, tenant_id: int, journey_id: int) -> bool:
    """Whether somebody is inside this journey, or something of it is still to be done outside.
    Between two steps everybody inside is waiting."""
    parts = [
        select(1).where(*is_journey(table, tenant_id, journey_id), *more).exists()
        for table, more in (
            (instances, [text("instances.status = 'waiting'")]),
            (outgoing, []),
            (deferred_sends, []),
        )
    ]
    return bool((await connection.execute(select(or_(*parts)))).scalar_one())
