"""What is old may go: rows that nothing counts, nothing repeats and nobody needs any more.

Everything is kept unless a number of days is given, kind by kind. Tables are gone through in pages
in the order of their keys, so a pass costs the same however much there is and needs no index.

What never goes: the journal and what is counted from it, passes and exposures, effects that are on
their way, deferred or dead, open tasks, the last word about a subscription, and whatever belongs to
somebody who is inside a journey.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Table, literal_column, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import TimeDelta

from journeykit_engine.comparison import shown
from journeykit_server import store
from journeykit_server.bulk import Delete
from journeykit_server.clock import microseconds
from journeykit_server.database import Database
from journeykit_server.tables import (
    deliveries,
    events,
    messages,
    scans,
    subscription_changes,
    tasks,
)

PAGE = 5_000  # rows that one pass looks at
SCAN_DAYS = 90  # a segment is looked at 288 times a day, and nobody reads further back
LEAST_DAYS = 30  # in which an event or a message may come again and must be known
MOST_DAYS = 36_500  # a hundred years; a moment before those of a calendar cannot be compared


class Retention(NamedTuple):
    """Days for which rows are kept, None for ever.

    `events`: what a rule counts is what is still there, so more days than any rule looks back.
    `messages`: the delivery log; without it an old mail that is answered begins no thread.
    `deliveries`: what the log provider took. `tasks`: closed ones. `scans`: looks that have ended.
    `subscription_changes`: earlier words; the last one and its proof stay.
    """

    events: int | None = None
    messages: int | None = None
    deliveries: int | None = None
    tasks: int | None = None
    scans: int | None = None
    subscription_changes: int | None = None


class BadRetention(ValueError):
    """Days that would make something happen twice, or that are none."""


class Place(NamedTuple):
    """Where a round stands: the table, and the key of the last row that was looked at."""

    kind: str = ""
    key: tuple[Any, ...] = ()


class Retained(NamedTuple):
    """What a pass did. `place` is what the next one is given, None at the end of a round."""

    kind: str
    looked_at: int
    deleted: int
    place: Place | None


async def retain_once(
    database: Database, retention: Retention, place: Place | None = None, limit: int = PAGE
) -> Retained:
    """Look at the next `limit` rows and delete those that may go, in one transaction; without a
    place a new round begins. Raises `BadRetention`."""
    _refuse(retention)
    kinds = [kind for kind in KINDS if getattr(retention, kind.name) is not None]
    found = [kind for kind in kinds if place is None or kind.name >= place.kind]
    if not found:
        return Retained("", 0, 0, None)
    kind, begins = found[0], place is None or found[0].name != place.kind
    after = () if begins or place is None else place.key
    days = getattr(retention, kind.name)

    async def work(connection: AsyncConnection) -> tuple[int, int, tuple[Any, ...]]:
        now = await database.now(connection)
        before = microseconds(now - TimeDelta(hours=24 * days))
        return await _pass(connection, kind, before, after, limit)

    looked_at, deleted, last = await database.run(work)
    if looked_at == limit:
        return Retained(kind.name, looked_at, deleted, Place(kind.name, last))
    following = [other for other in kinds if other.name > kind.name]
    rest = Place(following[0].name) if following else None
    return Retained(kind.name, looked_at, deleted, rest)


async def retain(database: Database, retention: Retention, limit: int = PAGE) -> dict[str, int]:
    """A whole round; how many rows of each kind were deleted."""
    told: dict[str, int] = {}
    place: Place | None = None
    while True:
        done = await retain_once(database, retention, place, limit)
        if done.kind:
            told[done.kind] = told.get(done.kind, 0) + done.deleted
        place = done.place
        if place is None:
            return told


def from_settings(settings: Mapping[str, str]) -> Retention:
    """What the settings (the environment) say: `JOURNEYKIT_KEEP_EVENTS_DAYS=400`, and so for every
    kind. Looks are kept for `SCAN_DAYS` where nothing is said, the rest for ever. Raises
    `BadRetention`.

    >>> from_settings({"JOURNEYKIT_KEEP_EVENTS_DAYS": "400"})[:2]
    (400, None)
    """
    days: dict[str, int | None] = {"scans": SCAN_DAYS}
    for kind in Retention._fields:
        name = SETTING.format(kind.upper())
        told = settings.get(name, "").strip()
        if told and not (told.isascii() and told.isdecimal() and len(told) <= MOST_DIGITS):
            raise BadRetention(NO_NUMBER.format(name, shown(told)))
        if told:
            days[kind] = int(told)
    retention = Retention(**days)
    _refuse(retention)
    return retention


SETTING = "JOURNEYKIT_KEEP_{}_DAYS"
MOST_DIGITS = 9  # of a setting; far more cannot even be read
NO_NUMBER = "{} is {}, which is no number of days. Write it as 400, or leave it out."


def _refuse(retention: Retention) -> None:
    for name, days in retention._asdict().items():
        if days is None:
            continue
        if type(days) is not int:
            raise BadRetention(NO_DAYS.format(name, shown(days)))
        if days < LEAST_DAYS:
            raise BadRetention(FEW_DAYS.format(name, days, LEAST_DAYS))
        if days > MOST_DAYS:
            raise BadRetention(MANY_DAYS.format(name, MOST_DAYS))


NO_DAYS = 'The retention of "{}" is {}; expected a whole number of days, or None.'
FEW_DAYS = (
    'The retention of "{}" is {} days, less than {}. '
    "What comes again within them must be known as a repetition."
)
MANY_DAYS = 'The retention of "{}" is more than {} days. Leave it out to keep the rows for ever.'


class _Kind(NamedTuple):
    """A table whose rows may go where `may_go` holds for a row `t` of it, before a moment."""

    name: str
    table: Table
    may_go: str

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.table.primary_key)

    @property
    def has_people(self) -> bool:
        return "user_id" in self.table.c


_NOTHING = (
    "NOT EXISTS (SELECT 1 FROM {} x WHERE x.tenant_id = t.tenant_id AND x.user_id = t.user_id{})"
)
OUTSIDE_ALL = _NOTHING.format("instances", " AND x.exit_reason = ''")
NOTHING_QUEUED = _NOTHING.format("inbox", "")
NOTHING_DEAD = _NOTHING.format("dead_letters", "")
NOTHING_LEAVING = _NOTHING.format("outbox", "")
NOTHING_DEFERRED = _NOTHING.format("deferred_sends", "")
NOT_THE_LAST = (
    "t.version < (SELECT s.version FROM subscriptions s WHERE s.tenant_id = t.tenant_id "
    "AND s.user_id = t.user_id AND s.channel = t.channel AND s.category = t.category)"
)


def _when(*conditions: str) -> str:
    return " AND ".join(conditions)


KINDS: tuple[_Kind, ...] = (  # by their names, which a place compares
    _Kind(
        "deliveries",
        deliveries,
        _when("t.accepted_at < {before}", NOTHING_LEAVING, NOTHING_DEFERRED, NOTHING_DEAD),
    ),
    _Kind(
        "events",
        events,
        # A letter or a place in the inbox names an event by its number, to be heard again.
        _when("t.at < {before}", OUTSIDE_ALL, NOTHING_QUEUED, NOTHING_DEAD),
    ),
    _Kind(
        "messages",
        messages,
        # What delivery withheld is counted at its node, and counted from here.
        _when(
            "t.settled_at < {before}",
            "NOT (t.state = 'suppressed' AND t.attempts > 0)",
            OUTSIDE_ALL,
        ),
    ),
    _Kind("scans", scans, "t.ended_at < {before}"),
    _Kind(
        "subscription_changes",
        subscription_changes,
        _when("t.changed_at < {before}", NOT_THE_LAST),
    ),
    _Kind(
        "tasks",
        tasks,
        _when("t.status <> 'open'", "t.completed_at < {before}", OUTSIDE_ALL),
    ),
)


async def _pass(
    connection: AsyncConnection, kind: _Kind, before: int, after: tuple[Any, ...], limit: int
) -> tuple[int, int, tuple[Any, ...]]:
    """Rows looked at, rows deleted, and the key of the last one. The people of those that may go
    are locked, and the question is asked again: one of them may just have come in."""
    width = len(kind.key)
    rows = await _page(connection, kind, before, after, limit)
    looked_at, last = len(rows), tuple(rows[-1][:width]) if rows else after
    going = [row for row in rows if row.may_go]
    if kind.has_people and going:
        people = {(row.tenant_id, row.user_id) for row in going}
        await store.lock(connection, sorted(people))
        rows = await _page(connection, kind, before, after, limit)
        going = [row for row in rows if row.may_go and (row.tenant_id, row.user_id) in people]
    gone = [tuple(row[:width]) for row in going]
    await Delete(kind.table, kind.key).run(connection, gone)
    return looked_at, len(gone), last


async def _page(
    connection: AsyncConnection, kind: _Kind, before: int, after: tuple[Any, ...], limit: int
) -> Sequence[Any]:
    """The next rows: their key, whose they are, and whether they may go."""
    t = kind.table.alias("t")
    key = [t.c[name] for name in kind.key]
    whose = [t.c.user_id] if kind.has_people and "user_id" not in kind.key else []
    may_go: ColumnElement[bool] = literal_column(f"({kind.may_go.format(before=before)})")
    query = select(*key, *whose, may_go.label("may_go")).order_by(*key).limit(limit)
    if after:
        query = query.where(tuple_(*key) > tuple_(*after))
    return (await connection.execute(query)).all()
