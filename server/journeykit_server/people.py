"""Where one person is, how they came there, and what was sent to them on the way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import orjson
from sqlalchemy import ColumnElement, Row, Select, Table, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import Instant

from journeykit_engine.instance import ExitReason, Instance, Status
from journeykit_engine.strict_json import json_faults
from journeykit_engine.timing import write_instant
from journeykit_server.clock import instant, microseconds
from journeykit_server.database import Database
from journeykit_server.letters import timer_letter_id
from journeykit_server.rows import INSTANCE_COLUMNS, read_instance
from journeykit_server.tables import (
    NEVER,
    NEVER_BUCKET,
    dead_letters,
    deferred_sends,
    instances,
    journal,
    journeys,
    messages,
    outbox,
    profiles,
    timers,
)

MOST_STEPS = 1_000  # of one page of a timeline; a step tells a few hundred records at most
MOST_OUTGOING = 1_000  # of one page


State = Literal["queued", "deferred", "delivered", "suppressed", "dead"]


class NoSuchPerson(LookupError):
    """This tenant never heard of them; whether another one has is not told."""

    def __init__(self, user_id: str) -> None:
        super().__init__(f'There is no person "{user_id}".')


class Stuck(NamedTuple):
    """Why a person cannot walk on: their timer is a dead letter and waits for somebody to retry
    it."""

    letter_id: str
    code: str
    message: str
    since: Instant


class Whereabouts(NamedTuple):
    """The latest pass of a person through one journey.

    `since` is when they came to a stop at `node`: when the wait began, when the pass ended.
    `wake_at` and `waits_for` (names of events) say what would move them on; both are empty once
    the pass has ended. A paused person is still active or waiting.
    """

    journey_id: int
    name: str
    version: int
    entry_count: int
    status: Status
    node: str
    entered_at: Instant
    since: Instant
    wake_at: Instant | None
    waits_for: tuple[str, ...]
    variant: str
    is_holdout: bool
    exit_reason: ExitReason | Literal[""]
    paused_at: Instant | None
    stuck: Stuck | None


class Place(NamedTuple):
    """Where a page of a timeline ended: the moment in microseconds, and the key of the step."""

    at: int
    journey_id: int
    rev: int
    step: int


class Timeline(NamedTuple):
    """A page of it. `after` is what the next call is given, None where nothing follows."""

    records: list[dict[str, Any]]
    after: Place | None


class Outgoing(NamedTuple):
    """Something to be done outside, and how far it came.

    `state` is queued (to be tried at `at`), deferred (until `at`: quiet hours), delivered,
    suppressed, or dead (a dead letter); `at` is when that was, or will be; None for what is held
    because its journey stands still. `reason` says why it was suppressed or deferred, with what is
    missing behind a colon, or what went wrong the last time.
    """

    message_id: str
    journey_id: int
    version: int
    entry_count: int
    node_id: str
    kind: str
    channel: str
    state: State
    reason: str
    attempts: int
    created_at: Instant
    at: Instant | None

    @property
    def place(self) -> OutgoingPlace:
        """Where it stands in the list: what the next page comes after."""
        return self.created_at, self.message_id


OutgoingPlace = tuple[Instant, str]


async def where_is(database: Database, tenant_id: int, user_id: str) -> list[Whereabouts]:
    """Every journey this person is in or was in, in the order of the journeys' ids.
    Raises `NoSuchPerson`."""

    async def read(connection: AsyncConnection) -> list[Whereabouts]:
        await _know(connection, tenant_id, user_id)
        rows = (await connection.execute(_passes_of(tenant_id, user_id))).all()
        dead = [row.journey_id for row in rows if row.bucket == NEVER_BUCKET]
        stuck = await _stuck(connection, tenant_id, user_id, dead)
        return [_whereabouts(row, stuck.get(row.journey_id)) for row in rows]

    return await database.read(read)


async def timeline(
    database: Database,
    tenant_id: int,
    user_id: str,
    *,
    journey_id: int | None = None,
    after: Place | None = None,
    first: int = 200,
) -> Timeline:
    """What this person's journal tells, the oldest first: `first` steps of it (`MOST_STEPS` at
    most) from behind `after`, or all that one journey did.

    A record has `at`, `journey_id`, `version`, `entry`, `what` and `node_id`, then what `replay`
    tells of such an entry, then the `cause` of its step. Raises `NoSuchPerson`.
    """
    c = journal.c
    place = (c.at, c.journey_id, c.rev, c.step)
    steps = select(journal).where(*_of_person(journal, tenant_id, user_id, journey_id))
    if after is not None:
        steps = steps.where(tuple_(*place) > tuple_(*after))
    many = min(max(first, 1), MOST_STEPS)
    page = steps.order_by(*place).limit(many + 1)  # one more tells whether anything follows

    async def read(connection: AsyncConnection) -> Timeline:
        await _know(connection, tenant_id, user_id)
        found = (await connection.execute(page)).all()
        told = found[:many]
        records = [record for row in told for record in _records(row)]
        return Timeline(records, _place(told[-1]) if len(found) > many else None)

    return await database.read(read)


async def outgoing(
    database: Database,
    tenant_id: int,
    user_id: str,
    *,
    journey_id: int | None = None,
    after: OutgoingPlace | None = None,
    first: int = 200,
) -> list[Outgoing]:
    """What journeys want done outside for this person and how far it came, in the order in which it
    came up: `first` of them (`MOST_OUTGOING` at most) from behind `after`, the `place` of one.
    Raises `NoSuchPerson`."""
    many = min(max(first, 0), MOST_OUTGOING)

    async def read(connection: AsyncConnection) -> list[Outgoing]:
        await _know(connection, tenant_id, user_id)
        found: list[Outgoing] = []
        for table, tell in (
            (messages, _settled),
            (outbox, _queued),
            (deferred_sends, _deferred),
        ):
            query = select(table).where(*_of_person(table, tenant_id, user_id, journey_id))
            order = (table.c.created_at, table.c.message_id)
            if after is not None:
                query = query.where(tuple_(*order) > (microseconds(after[0]), after[1]))
            found += map(tell, await connection.execute(query.order_by(*order).limit(many)))
        dead = select(dead_letters).where(
            *_of_person(dead_letters, tenant_id, user_id, journey_id),
            dead_letters.c.kind == "effect",
        )
        found += _behind(map(_dead, await connection.execute(dead)), after)
        return sorted(found, key=lambda one: one.place)[:many]

    return await database.read(read)


async def _know(connection: AsyncConnection, tenant_id: int, user_id: str) -> None:
    """Raises `NoSuchPerson` where there is none."""
    if json_faults(user_id):  # what no database would take was never stored
        raise NoSuchPerson(user_id)
    query = select(profiles.c.user_id).where(*_of_person(profiles, tenant_id, user_id))
    if (await connection.execute(query)).one_or_none() is None:
        raise NoSuchPerson(user_id)


def _of_person(
    table: Table, tenant_id: int, user_id: str, journey_id: int | None = None
) -> list[ColumnElement[bool]]:
    theirs: list[ColumnElement[bool]] = [
        table.c.tenant_id == tenant_id,
        table.c.user_id == user_id,
    ]
    if journey_id is not None:
        theirs.append(table.c.journey_id == journey_id)
    return theirs


def _passes_of(tenant_id: int, user_id: str) -> Select[*tuple[Any, ...]]:
    """The columns of an instance, then the journey's name and where the timer lies."""
    c = instances.c
    named = (journeys.c.tenant_id == c.tenant_id) & (journeys.c.journey_id == c.journey_id)
    timed = (
        (timers.c.tenant_id == c.tenant_id)
        & (timers.c.user_id == c.user_id)
        & (timers.c.journey_id == c.journey_id)
    )
    return (
        select(*(c[column] for column in INSTANCE_COLUMNS), journeys.c.name, timers.c.bucket)
        .select_from(instances.outerjoin(journeys, named).outerjoin(timers, timed))
        .where(*_of_person(instances, tenant_id, user_id))
        .order_by(c.journey_id)
    )


async def _stuck(
    connection: AsyncConnection, tenant_id: int, user_id: str, journey_ids: Iterable[int]
) -> dict[int, Stuck]:
    """The dead letters of the timers that this person has in these journeys."""
    letter_ids = [timer_letter_id(journey_id, user_id) for journey_id in journey_ids]
    if not letter_ids:
        return {}
    query = select(dead_letters).where(
        dead_letters.c.tenant_id == tenant_id, dead_letters.c.letter_id.in_(letter_ids)
    )
    return {
        row.journey_id: Stuck(row.letter_id, row.code, row.message, instant(row.first_at))
        for row in await connection.execute(query)
    }


def _whereabouts(row: Row[Any], stuck: Stuck | None) -> Whereabouts:
    instance: Instance = read_instance(row[: len(INSTANCE_COLUMNS)])
    wait = instance.wait
    return Whereabouts(
        instance.journey_id,
        row.name or "",  # no journey: its row is gone and its people are still there
        instance.version,
        instance.entry_count,
        instance.status,
        instance.current_node,
        instance.entered_at,
        instance.updated_at if wait is None else wait.since,
        instance.wake_at,
        () if wait is None else wait.events,
        instance.variant,
        instance.is_holdout,
        instance.exit_reason,
        instance.paused_at,
        stuck,
    )


def _place(row: Row[Any]) -> Place:
    return Place(row.at, row.journey_id, row.rev, row.step)


def _records(row: Row[Any]) -> Iterable[dict[str, Any]]:
    """The records of a step. A text in them may hold what `splitlines` takes for an end of line."""
    step = {
        "at": write_instant(instant(row.at)),
        "journey_id": row.journey_id,
        "version": row.version,
        "entry": row.entry_count,
    }
    for line in row.trail.split("\n"):
        if line:
            yield {**step, **orjson.loads(line), "cause": row.cause}


def _behind(found: Iterable[Outgoing], after: OutgoingPlace | None) -> list[Outgoing]:
    return [one for one in found if after is None or one.place > after]


def _settled(row: Row[Any]) -> Outgoing:
    reason = f"{row.reason}: {row.detail}" if row.detail else row.reason
    return _outgoing(row._mapping, row.channel, row.state, reason, row.settled_at)


def _queued(row: Row[Any]) -> Outgoing:
    at = None if row.try_at == NEVER else row.try_at
    return _outgoing(row._mapping, _channel_of(row.payload), "queued", row.last_error, at)


def _deferred(row: Row[Any]) -> Outgoing:
    was = {**row._mapping, "attempts": 0}
    return _outgoing(was, _channel_of(row.payload), "deferred", row.reason, row.send_at)


def _dead(row: Row[Any]) -> Outgoing:
    """The payload of a letter is the row that the outbox had."""
    was = orjson.loads(row.payload) | {"attempts": row.attempts}
    return _outgoing(
        was, _channel_of(was["payload"]), "dead", f"{row.code}: {row.message}", row.last_at
    )


def _channel_of(effect: str) -> str:
    """The medium of a message, "" for what is none."""
    return str(orjson.loads(effect).get("channel") or "")


def _outgoing(
    row: Mapping[Any, Any], channel: str, state: State, reason: str, at: int | None
) -> Outgoing:
    return Outgoing(
        row["message_id"],
        row["journey_id"],
        row["version"],
        row["entry_count"],
        row["node_id"],
        row["kind"],
        channel,
        state,
        reason,
        row["attempts"],
        instant(row["created_at"]),
        None if at is None else instant(at),
    )
