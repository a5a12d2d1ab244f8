"""Groups of people: lists that are kept by hand and by journeys, and rules that are counted anew.

A rule segment is refreshed when it is `REFRESH_SECONDS` old, or at once when its rule was changed:
whoever the rule holds for comes in, everybody else goes out, also somebody whom a journey added
meanwhile. What a walk asks about a segment is answered by who is in it at that moment; so a rule
that asks about another segment may be one refresh behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import orjson
from sqlalchemy import ColumnElement, Row, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import Instant, TimeDelta

from journeykit_engine import rule
from journeykit_engine.rule import Rule
from journeykit_engine.rule_faults import Fault, faults
from journeykit_engine.strict_json import json_faults, refuse_value
from journeykit_server import rules_sql, store, versioned
from journeykit_server.bulk import Delete
from journeykit_server.clock import instant, microseconds
from journeykit_server.database import Database
from journeykit_server.incoming import Incoming, event_fault
from journeykit_server.tables import segment_members, segment_versions, segments
from journeykit_server.versioned import Archived, Kept, Save

REFRESH_SECONDS = 300.0  # so old is a rule segment when its members are counted anew
REFRESH_PAGE = 5_000  # people in one transaction of a refresh
MOST_MEMBERS = 5_000  # of one call, and of one page

KEPT = Kept("segment", segments, segment_versions, "segment_id")
Kind = Literal["list", "rule"]


class Segment(NamedTuple):
    """A version of a segment. `definition` is its rule, None for a list; `refreshed_at` is when its
    members were last counted, None where that is still to come."""

    tenant_id: int
    segment_id: int
    name: str
    kind: Kind
    version: int
    definition: dict[str, Any] | None
    saved_at: Instant
    refreshed_at: Instant | None
    archived_at: Instant | None


class Members(NamedTuple):
    """A page of them, in the order of their ids. `after` is what the next call is given, None where
    nobody follows."""

    user_ids: list[str]
    after: str | None


class Refreshed(NamedTuple):
    """A rule segment whose members were counted: how many came in and how many went out.
    `is_whole` is false where its rule was changed meanwhile; then it is counted again."""

    tenant_id: int
    segment_id: int
    joined: int
    left: int
    is_whole: bool


class BadSegment(ValueError):
    """A segment that cannot be kept as asked; `faults` lists what is wrong with its rule."""

    def __init__(self, message: str, faults: Iterable[Fault] = ()) -> None:
        super().__init__(message)
        self.faults = tuple(faults)


async def save_segment(
    database: Database,
    tenant_id: int,
    *,
    name: str,
    definition: Mapping[str, Any] | None = None,
    segment_id: int | None = None,
    expected_version: int | None = None,
) -> Segment:
    """Keep the next version of a segment, a new one where no number is given: a list without a
    `definition`, with one (`{"root": …}`) a rule. A list stays a list and a rule a rule.

    Raises `BadSegment`, `BadName`, `BadJson`, and `NotFound`, `VersionConflict`, `Archived`.
    """
    versioned.refuse_name(KEPT.noun, name)
    kind: Kind = "list" if definition is None else "rule"
    if definition is not None:
        _refuse_rule(definition, segment_id)
    if segment_id is not None:
        stored = await read_segment(database, tenant_id, segment_id)
        if stored.kind != kind:
            raise BadSegment(OTHER_KIND.format(segment_id, stored.kind))
    written = "" if definition is None else orjson.dumps(dict(definition)).decode()
    head = {"name": name, "kind": kind, "refreshed_at": None}
    asked = Save(KEPT, tenant_id, segment_id, expected_version, head, {"definition": written})
    number = await versioned.save(database, asked)
    return await read_segment(database, tenant_id, number)


async def read_segment(
    database: Database, tenant_id: int, segment_id: int, version: int = 0
) -> Segment:
    """A version of a segment, 0 for the one of now. Raises `NotFound`."""

    async def work(connection: AsyncConnection) -> Segment:
        return _segment(*await versioned.read(connection, KEPT, tenant_id, segment_id, version))

    return await database.read(work)


async def list_segments(
    database: Database,
    tenant_id: int,
    *,
    after: int = 0,
    first: int = 200,
    archived: bool = False,
) -> list[Segment]:
    """Those in use (or those put away), in the order of their numbers: `first` of them
    (`versioned.MOST_LISTED` at most) from behind the number `after`."""

    async def work(connection: AsyncConnection) -> list[Segment]:
        found = await versioned.listed(
            connection, KEPT, tenant_id, after=after, first=first, archived=archived
        )
        return [_segment(*each) for each in found]

    return await database.read(work)


async def archive_segment(database: Database, tenant_id: int, segment_id: int) -> bool:
    """Put a segment away. Its members stay as they are, so that rules which ask about it go on
    answering as they did. False where it was away already. Raises `NotFound`."""
    return await versioned.put_away(database, KEPT, tenant_id, segment_id, away=True)


async def restore_segment(database: Database, tenant_id: int, segment_id: int) -> bool:
    """Take a segment back into use; False where it was. Raises `NotFound`."""
    return await versioned.put_away(database, KEPT, tenant_id, segment_id, away=False)


def _refuse_rule(definition: Mapping[str, Any], segment_id: int | None) -> None:
    refuse_value({"definition": dict(definition)})
    if found := faults(dict(definition)):
        first = found[0]
        place = f" at {first.path}" if first.path else ""
        raise BadSegment(BAD_RULE.format(place, first.message, first.fix), found)
    if segment_id in rule.references(rule.parse(dict(definition))).segments:
        raise BadSegment(OF_ITSELF.format(segment_id))


BAD_RULE = "The rule of the segment is not sound{}: {} {}"
OF_ITSELF = 'The rule of segment "{0}" asks about segment "{0}". Ask about another one.'
OTHER_KIND = 'Segment "{}" is a {} and stays one. Make a new segment.'


def _segment(row: Row[Any], version: Row[Any]) -> Segment:
    return Segment(
        row.tenant_id,
        row.segment_id,
        row.name,
        row.kind,
        version.version,
        orjson.loads(version.definition) if version.definition else None,
        instant(version.saved_at),
        None if row.refreshed_at is None else instant(row.refreshed_at),
        None if row.archived_at is None else instant(row.archived_at),
    )


# --- who is in it


async def members(
    database: Database, tenant_id: int, segment_id: int, *, after: str = "", first: int = 200
) -> Members:
    """`first` members (`MOST_MEMBERS` at most) from behind the id `after`. Raises `NotFound`."""
    many = min(max(first, 1), MOST_MEMBERS)
    behind = "" if json_faults(after) else after
    query = _behind(tenant_id, segment_id, behind).order_by(segment_members.c.user_id)

    async def work(connection: AsyncConnection) -> Members:
        await versioned.read(connection, KEPT, tenant_id, segment_id)
        found = list((await connection.execute(query.limit(many + 1))).scalars())
        return Members(found[:many], found[many - 1] if len(found) > many else None)

    return await database.read(work)


async def count_members(database: Database, tenant_id: int, segment_id: int) -> int:
    """How many there are. Raises `NotFound`."""

    async def work(connection: AsyncConnection) -> int:
        await versioned.read(connection, KEPT, tenant_id, segment_id)
        query = select(func.count()).select_from(_behind(tenant_id, segment_id, "").subquery())
        return int((await connection.execute(query)).scalar_one())

    return await database.read(work)


async def add_members(
    database: Database, tenant_id: int, segment_id: int, user_ids: Iterable[str]
) -> int:
    """Put these people (`MOST_MEMBERS` at most) on a list; how many were not on it. People not
    known yet become known. Raises `NotFound`, `Archived`, `BadSegment`."""
    people = _people(tenant_id, user_ids)
    added: list[int] = []  # a try whose commit was in doubt may have been kept

    async def work(connection: AsyncConnection) -> int:
        await _refuse_list(connection, tenant_id, segment_id)
        found = await store.lock(connection, people)
        at = microseconds(await database.now(connection))
        await store.add(connection, [key for key in people if key not in found], at)
        rows = [(*key, segment_id, at) for key in people]
        added.append(await store.JOIN_SEGMENTS.run(connection, rows))
        return max(added)

    return await database.run(work)


async def remove_members(
    database: Database, tenant_id: int, segment_id: int, user_ids: Iterable[str]
) -> int:
    """Take these people off a list; how many were on it. Raises as `add_members` does."""
    people = _people(tenant_id, user_ids)
    removed: list[int] = []

    async def work(connection: AsyncConnection) -> int:
        await _refuse_list(connection, tenant_id, segment_id)
        await store.lock(connection, people)
        rows = [(*key, segment_id) for key in people]
        removed.append(await LEAVE_SEGMENTS.run(connection, rows))
        return max(removed)

    return await database.run(work)


LEAVE_SEGMENTS = Delete(segment_members, ("tenant_id", "user_id", "segment_id"))


def _people(tenant_id: int, user_ids: Iterable[str]) -> list[store.PersonKey]:
    given = sorted(dict.fromkeys(user_ids))
    if len(given) > MOST_MEMBERS:
        raise BadSegment(MANY_MEMBERS.format(len(given), MOST_MEMBERS))
    for user_id in given:
        if fault := event_fault(Incoming("identify", user_id)):
            raise BadSegment(f"A member cannot be kept: {fault}")
    return [(tenant_id, user_id) for user_id in given]


MANY_MEMBERS = "The call names {} people, more than {}. Make several calls of it."


async def _refuse_list(connection: AsyncConnection, tenant_id: int, segment_id: int) -> None:
    row, _ = await versioned.read(connection, KEPT, tenant_id, segment_id)
    if row.kind != "list":
        raise BadSegment(BY_RULE.format(segment_id))
    if row.archived_at is not None:
        raise Archived(versioned.ARCHIVED.format("Segment", segment_id))


BY_RULE = 'The members of segment "{}" follow its rule. Change the rule, or use a list.'


def _behind(tenant_id: int, segment_id: int, after: str, up_to: str | None = None) -> Any:
    c = segment_members.c
    query = select(c.user_id).where(
        c.tenant_id == tenant_id, c.segment_id == segment_id, c.user_id > after
    )
    return query if up_to is None else query.where(c.user_id <= up_to)


# --- a rule is counted anew


async def refresh_once(database: Database, account_timezone: str = "UTC") -> Refreshed | None:
    """Count one rule segment anew, the one that has waited longest; None where none is due.

    Several workers may do this at once: each takes another segment. One that dies half-way leaves
    its segment to the next refresh. People come and go in pages, each a transaction of its own.
    """

    async def take(connection: AsyncConnection) -> _Taken | None:
        return await _take(connection, await database.now(connection))

    taken = await database.run(take)
    if taken is None:
        return None
    refresh = _Refresh(database, taken, account_timezone)
    while await refresh.page():
        pass
    return refresh.told()


async def next_refresh(database: Database) -> Instant | None:
    """When a segment is to be counted next; None where there is no rule segment."""
    oldest = select(func.count(), func.min(func.coalesce(segments.c.refreshed_at, 0)))

    async def work(connection: AsyncConnection) -> Instant | None:
        many, at = (await connection.execute(oldest.where(*_IS_RULE))).one()
        return instant(int(at)) + REFRESH if many else None

    return await database.read(work)


REFRESH = TimeDelta(seconds=REFRESH_SECONDS)
_IS_RULE: tuple[ColumnElement[bool], ...] = (
    segments.c.kind == "rule",
    segments.c.archived_at.is_(None),
)


class _Taken(NamedTuple):
    """A segment that this worker counts: the version of its rule, and the moment that counts."""

    tenant_id: int
    segment_id: int
    version: int
    asked: Rule
    now: Instant


async def _take(connection: AsyncConnection, now: Instant) -> _Taken | None:
    """The segment that is most overdue, marked as counted now, so that nobody else takes it."""
    table, at = segments.c, microseconds(now)
    is_due = or_(table.refreshed_at.is_(None), table.refreshed_at <= microseconds(now - REFRESH))
    row = (
        await connection.execute(
            select(segments)
            .where(*_IS_RULE, is_due)
            .order_by(table.refreshed_at.is_not(None), table.refreshed_at, *segments.primary_key)
            .limit(1)
            .with_for_update(skip_locked=True)
        )
    ).one_or_none()
    if row is None:
        return None
    this = (row.tenant_id, row.segment_id)
    await connection.execute(
        update(segments).where(*KEPT.of(segments, *this)).values(refreshed_at=at)
    )
    _, version = await versioned.read(connection, KEPT, *this)
    asked = rule.parse(orjson.loads(version.definition))
    return _Taken(*this, row.version, asked, now)


class _Refresh:
    """One segment on its way through all people; `after` is the last one it has passed."""

    def __init__(self, database: Database, taken: _Taken, account_timezone: str) -> None:
        self.database = database
        self.taken = taken
        self.account_timezone = account_timezone
        self.after = ""
        self.joined = self.left = 0
        self.is_whole = False

    async def page(self) -> bool:
        """Count a page; False where none follows."""
        page, inside = await self.database.read(self._look)
        joined = sorted(set(page.user_ids) - inside)
        left = sorted(inside.difference(page.user_ids))
        if joined or left:
            if not await self.database.run(lambda c: self._keep(c, joined, left)):
                return False  # somebody changed the rule
            self.joined, self.left = self.joined + len(joined), self.left + len(left)
        self.after, self.is_whole = page.position, page.is_last
        return not page.is_last

    async def _look(self, connection: AsyncConnection) -> tuple[rules_sql.Page, set[str]]:
        """Whom the rule holds for, and who is inside, on one stretch of people."""
        tenant_id, segment_id, _, asked, now = self.taken
        page = await rules_sql.matching(
            connection,
            tenant_id,
            asked,
            now=now,
            account_zone=self.account_timezone,
            after=self.after,
            limit=REFRESH_PAGE,
        )
        up_to = None if page.is_last else page.position
        inside = await connection.execute(_behind(tenant_id, segment_id, self.after, up_to))
        return page, set(inside.scalars())

    async def _keep(
        self, connection: AsyncConnection, joined: Sequence[str], left: Sequence[str]
    ) -> bool:
        tenant_id, segment_id, version, _, now = self.taken
        query = select(segments.c.version, segments.c.archived_at).where(
            *KEPT.of(segments, tenant_id, segment_id)
        )
        stands = (await connection.execute(query.with_for_update(read=True))).one()
        if stands.version != version or stands.archived_at is not None:
            return False
        # Who has just been added or taken away is locked, as for any change of a person.
        await store.lock(connection, [(tenant_id, user_id) for user_id in sorted([*joined, *left])])
        at = microseconds(now)
        coming = [(tenant_id, user_id, segment_id, at) for user_id in joined]
        await store.JOIN_SEGMENTS.run(connection, coming)
        going = [(tenant_id, user_id, segment_id) for user_id in left]
        await LEAVE_SEGMENTS.run(connection, going)
        return True

    def told(self) -> Refreshed:
        taken = self.taken
        return Refreshed(taken.tenant_id, taken.segment_id, self.joined, self.left, self.is_whole)
