"""Every statement of a unit of work: lock the people, read all that their walks may ask, write all
that came of them. Each takes a whole batch; none decides anything.

What is read and written elsewhere: drafts and versions in `publishing`, effects in `outbox`, dead
letters in `letters`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from journeykit_server.bulk import Delete, Insert, Select, Update
from journeykit_server.rows import INSTANCE_COLUMNS, INSTANCE_KEY, INSTANCE_VALUES, MINUTE
from journeykit_server.tables import (
    NUMBERS_A_BLOCK,
    entries,
    events,
    exposures,
    inbox,
    instances,
    journal,
    node_stats,
    profiles,
    segment_members,
    timers,
)

PersonKey = tuple[int, str]
"""Tenant and user."""
PassKey = tuple[int, str, int]
"""Tenant, user, journey."""

PERSON = [("tenant_id", "bigint"), ("user_id", "text")]
PASS = [*PERSON, ("journey_id", "bigint")]
SAME_PERSON = "{0}.tenant_id = given.tenant_id AND {0}.user_id = given.user_id"
SAME_PASS = SAME_PERSON + " AND {0}.journey_id = given.journey_id"


class StoredProfile(NamedTuple):
    """A row of `profiles`; the two documents are JSON text."""

    tenant_id: int
    user_id: str
    traits: str
    written_at: str
    phone_timezone: str | None


# --- people

LOCK_PEOPLE = Select(
    PERSON,
    "SELECT p.tenant_id, p.user_id, p.traits::text, p.written_at, p.phone_timezone FROM {given} "
    f"JOIN profiles p ON {SAME_PERSON.format('p')} "
    # One order for everybody, or two transactions would wait for each other.
    "ORDER BY p.tenant_id, p.user_id",
    locks="p",
)
ADD_PEOPLE = Insert(
    profiles,
    ("tenant_id", "user_id", "traits", "written_at", "phone_timezone", "created_at", "updated_at"),
    "(tenant_id, user_id) DO NOTHING",
)
WRITE_PEOPLE = Update(
    profiles,
    ("traits", "written_at", "phone_timezone", "updated_at"),
    ("tenant_id", "user_id"),
)


async def lock(
    connection: AsyncConnection, people: Sequence[PersonKey]
) -> dict[PersonKey, StoredProfile]:
    """Lock these people until the transaction ends; those not known yet are not in the answer."""
    rows = await LOCK_PEOPLE.run(connection, sorted(people))
    return {(row[0], row[1]): StoredProfile(*row) for row in rows}


async def add(
    connection: AsyncConnection, missing: Sequence[PersonKey], at: int
) -> dict[PersonKey, StoredProfile]:
    """Make these people known, and lock them."""
    rows = [(*key, "{}", "{}", None, at, at) for key in sorted(missing)]
    if await ADD_PEOPLE.run(connection, rows) == len(missing):
        return {key: StoredProfile(*key, "{}", "{}", None) for key in missing}
    return await lock(connection, missing)  # somebody else has just made one of them known


# --- what a walk may ask

INSTANCES_OF_PEOPLE = Select(
    PERSON,
    f"SELECT {', '.join(f'i.{c}' for c in INSTANCE_COLUMNS)}, l.letter_id FROM {{given}} "
    f"JOIN instances i ON {SAME_PERSON.format('i')} "
    "LEFT JOIN dead_letters l ON l.tenant_id = i.tenant_id AND l.user_id = i.user_id "
    "AND l.journey_id = i.journey_id AND l.kind = 'timer' "
    "ORDER BY i.tenant_id, i.user_id, i.journey_id",
)
"""Every pass of these people, the latest of each journey, in the order of the journeys; the last
column is the dead letter of its timer, if that is dead."""

HISTORY = Select(
    [*PERSON, ("name", "text"), ("before", "bigint")],
    f"SELECT e.tenant_id, e.user_id, e.name, e.at, e.event_id, e.properties::text FROM {{given}} "
    f"JOIN events e ON {SAME_PERSON.format('e')} AND e.name = given.name "
    "AND e.number < given.before AND e.kind = 'track' "
    "ORDER BY e.tenant_id, e.user_id, e.name, e.number",
)
"""The events of these names before a number, in the order of arrival."""

SEGMENTS = Select(
    PERSON,
    "SELECT m.tenant_id, m.user_id, m.segment_id FROM {given} JOIN segment_members m ON "
    + SAME_PERSON.format("m"),
)
PASSES = Select(
    PERSON,
    "SELECT i.tenant_id, i.user_id, i.journey_id, i.status, i.current_node, i.variant, "
    f"i.is_holdout FROM {{given}} JOIN instances i ON {SAME_PERSON.format('i')}",
)
QUEUED = Select(
    PERSON,
    "SELECT q.tenant_id, q.user_id, q.journey_id, min(q.try_at) FROM {given} JOIN inbox q ON "
    + SAME_PERSON.format("q")
    + " GROUP BY q.tenant_id, q.user_id, q.journey_id",
)
"""The journeys that have still to hear something about these people, and when they try again."""

# --- timers

CLAIM_POSTGRESQL = """
    UPDATE timers SET lease_token = $4, try_at = $5, attempts = attempts + 1
    WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM timers
        WHERE bucket BETWEEN $1 AND $2 AND try_at <= $3
        ORDER BY bucket LIMIT {many} FOR UPDATE SKIP LOCKED))
    RETURNING tenant_id, user_id, journey_id, bucket"""
"""By the place of the row, which needs no join: the planner would read the whole table for one. A
row that moved between being found and being locked is left for the next poll."""
CLAIM_SQLITE = """
    UPDATE timers SET lease_token = ?, try_at = ?, attempts = attempts + 1
    WHERE (tenant_id, user_id, journey_id) IN (
        SELECT tenant_id, user_id, journey_id FROM timers
        WHERE bucket BETWEEN ? AND ? AND try_at <= ?
        ORDER BY bucket LIMIT {many})
    RETURNING tenant_id, user_id, journey_id, bucket"""

CLAIMED = Select(
    [*PASS, ("lease_token", "text")],
    "SELECT t.rev AS scheduled_rev, t.due, t.attempts, t.version AS timer_version, t.failed_at, "
    f"{', '.join(f'i.{c}' for c in INSTANCE_COLUMNS)} FROM {{given}} "
    f"JOIN timers t ON {SAME_PASS.format('t')} AND t.lease_token = given.lease_token "
    f"JOIN instances i ON {SAME_PASS.format('i')}",
)
"""The timers still ours and the passes they belong to: five columns of the timer, then those of
`INSTANCE_COLUMNS`."""

_SCHEDULED = (
    *("version", "rev", "due", "bucket", "try_at", "attempts"),
    *("lease_token", "last_error", "failed_at"),
)
SCHEDULE = Insert(
    timers,
    ("tenant_id", "user_id", "journey_id", *_SCHEDULED),
    "(tenant_id, user_id, journey_id) DO UPDATE SET "
    + ", ".join(f"{column} = excluded.{column}" for column in _SCHEDULED),
)
"""A new timer; it takes the place of another one of the same person in the same journey."""
RESCHEDULE = Update(timers, _SCHEDULED, ("tenant_id", "user_id", "journey_id"))
UNSCHEDULE = Delete(timers, ("tenant_id", "user_id", "journey_id"))
POSTPONE = Update(
    timers,
    ("bucket", "try_at", "attempts", "last_error", "failed_at", "lease_token"),
    ("tenant_id", "user_id", "journey_id"),
    only="timers.lease_token = given.token",
    extra=(("token", "lease_token"),),
)
"""Let a claimed timer go, to be tried later; one that somebody else holds now is left alone."""

NEXT_TIMER = text("""
    SELECT min(try_at) FROM (
        SELECT try_at FROM timers WHERE bucket < :held ORDER BY bucket LIMIT 1000) AS first""")
RELEASE = text("""
    UPDATE timers SET lease_token = NULL, try_at = due, attempts = attempts - 1
    WHERE bucket <= :minute AND lease_token = :token AND attempts > 0""")
"""A claim leaves its timers in their minutes, none of which lies ahead; it is by the minutes that
they are found among millions."""


async def claim(
    connection: AsyncConnection, *, low: int, now: int, lease_until: int, many: int, token: str
) -> Sequence[Row[Any]]:
    """Mark up to `many` due timers as ours: keys and buckets, the earliest minutes first."""
    # The limit stands in the text: PostgreSQL would plan an unknown one for a tenth of the table.
    due, leased = (low, now // MINUTE, now), (token, lease_until)
    is_sqlite = connection.dialect.name == "sqlite"
    statement = CLAIM_SQLITE if is_sqlite else CLAIM_POSTGRESQL
    values: tuple[Any, ...] = (*leased, *due) if is_sqlite else (*due, *leased)
    return (await connection.exec_driver_sql(statement.format(many=int(many)), values)).all()


async def release(connection: AsyncConnection, token: str, now: int) -> None:
    """Give back what is claimed under this token, as if it had never been."""
    await connection.execute(RELEASE, {"token": token, "minute": now // MINUTE})


# --- steps

ADD_INSTANCES = Insert(instances, INSTANCE_COLUMNS, "(tenant_id, user_id, journey_id) DO NOTHING")
MOVE_INSTANCES = Update(
    instances,
    INSTANCE_VALUES,
    INSTANCE_KEY,
    only="instances.rev = given.was",
    extra=(("was", "rev"),),
)
"""Rows: `INSTANCE_VALUES`, `INSTANCE_KEY`, and the revision that was read. One that has another
revision by now stays as it is, which is the fence."""
_TOLD = (
    *("tenant_id", "user_id", "journey_id", "rev", "step"),
    *("version", "entry_count", "at", "cause", "trail"),
)
TELL = Insert(journal, _TOLD)
"""Steps that moved somebody: the key lets nobody take one twice."""
NOTE = Insert(journal, _TOLD, "(tenant_id, user_id, journey_id, rev, step) DO NOTHING")
"""Steps that moved nobody; what is tried again and says the same is there already."""
BEGIN_ENTRIES = Insert(
    entries,
    (
        *("tenant_id", "user_id", "journey_id", "entry_count", "version", "entered_at"),
        *("entered_by", "ended_at", "exit_reason", "exit_node", "variant", "is_holdout"),
    ),
)
END_ENTRIES = Update(
    entries,
    ("ended_at", "exit_reason", "exit_node", "variant", "is_holdout"),
    ("tenant_id", "user_id", "journey_id", "entry_count"),
)
EXPOSE = Insert(
    exposures,
    (
        *("tenant_id", "user_id", "journey_id", "entry_count", "node_id"),
        *("version", "variant", "is_holdout", "at"),
    ),
    "(tenant_id, user_id, journey_id, entry_count, node_id) DO NOTHING",
)
COUNT = Insert(
    node_stats,
    (
        *("tenant_id", "journey_id", "version", "node_id", "shard"),
        *("entered", "exited", "suppressed"),
    ),
    "(tenant_id, journey_id, version, node_id, shard) DO UPDATE SET "
    "entered = node_stats.entered + excluded.entered, "
    "exited = node_stats.exited + excluded.exited, "
    "suppressed = node_stats.suppressed + excluded.suppressed",
)
JOIN_SEGMENTS = Insert(
    segment_members,
    ("tenant_id", "user_id", "segment_id", "since_at"),
    "(tenant_id, user_id, segment_id) DO NOTHING",
)

# --- events

RECORD = Insert(
    events,
    (
        *("tenant_id", "user_id", "name", "number", "source", "event_id"),
        *("kind", "at", "occurred_at", "properties"),
    ),
    "(tenant_id, source, event_id) DO NOTHING",
    named="number",
)
RECORDED = Select(
    [("tenant_id", "bigint"), ("source", "text"), ("event_id", "text")],
    "SELECT e.source, e.event_id, e.number, e.user_id, e.name, e.kind, e.properties::text "
    "FROM {given} JOIN events e ON e.tenant_id = given.tenant_id "
    "AND e.source = given.source AND e.event_id = given.event_id",
)
"""What is stored under these ids."""
QUEUE = Insert(
    inbox,
    (
        *("tenant_id", "user_id", "journey_id", "number", "name", "changed"),
        *("try_at", "attempts", "last_error", "failed_at"),
    ),
)
UNQUEUE = Delete(inbox, ("tenant_id", "user_id", "journey_id", "number"))
REQUEUE = Update(
    inbox,
    ("try_at", "attempts", "last_error"),
    ("tenant_id", "user_id", "journey_id", "number"),
)
# Who stands behind another is never due: their moment comes with whoever is first in their line.
DUE_IN_INBOX = text("""
    SELECT DISTINCT tenant_id, user_id FROM inbox WHERE try_at <= :now
    ORDER BY tenant_id, user_id LIMIT :many""")
NEXT_IN_INBOX = text("SELECT min(try_at) FROM inbox WHERE try_at < :never")

QUEUED_EVENTS = Select(
    PERSON,
    "SELECT q.tenant_id, q.user_id, q.journey_id, q.number, q.name, q.changed, q.try_at, "
    "q.attempts, q.failed_at, e.at, e.event_id, e.properties::text FROM {given} JOIN inbox q ON "
    + SAME_PERSON.format("q")
    + " JOIN events e ON e.tenant_id = q.tenant_id AND e.user_id = q.user_id "
    "AND e.name = q.name AND e.number = q.number "
    "ORDER BY q.tenant_id, q.user_id, q.journey_id, q.number",
)


async def take_number(connection: AsyncConnection, tenant_id: int, name: str) -> int:
    """The tenant's next number under this name, from 1 on: for what is made once in a while."""
    taken = await connection.execute(TAKE_NUMBER, {"tenant_id": tenant_id, "name": name})
    return int(taken.scalar_one())


TAKE_NUMBER = text("""
    INSERT INTO counters (tenant_id, name, value) VALUES (:tenant_id, :name, 1)
    ON CONFLICT (tenant_id, name) DO UPDATE SET value = counters.value + 1 RETURNING value""")


async def numbers(connection: AsyncConnection) -> int:
    """The first of `NUMBERS_A_BLOCK` numbers that nobody else gets."""
    if connection.dialect.name == "sqlite":
        given = await connection.execute(SQLITE_NUMBERS, {"block": NUMBERS_A_BLOCK})
        return int(given.scalar_one()) - NUMBERS_A_BLOCK + 1
    return int((await connection.execute(POSTGRESQL_NUMBERS)).scalar_one())


POSTGRESQL_NUMBERS = text("SELECT nextval('event_numbers')")
SQLITE_NUMBERS = text("""
    INSERT INTO counters (tenant_id, name, value) VALUES (0, 'events', :block)
    ON CONFLICT (tenant_id, name) DO UPDATE SET value = counters.value + :block RETURNING value""")


def distinct_people(keys: Iterable[tuple[Any, ...]]) -> list[PersonKey]:
    """The people of rows that begin with tenant and user, each once, sorted."""
    return sorted({(key[0], key[1]) for key in keys})
