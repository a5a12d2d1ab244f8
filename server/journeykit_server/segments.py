"""Groups of people: lists that are kept by hand and by journeys, and rules that are counted anew.

A rule segment is refreshed when it is `REFRESH_SECONDS` old, or at once when its rule was changed:
whoever the rule holds for comes in, everybody else goes out, also somebody whom a journey added
meanwhile. What a walk asks about a segment is answered by who is in it at that moment; so a rule
that asks about another segment may be one refresh behind.

Days and hours of a rule are the account's: of the zone that the tenant gave when it last published
a journey, UTC before that. So a segment and the trigger of that journey mean the same by "today".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import orjson
from sqlalchemy import ColumnElement, Row, Select, case, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import Instant

from journeykit_engine import rule
from journeykit_engine.rule import Rule
from journeykit_engine.rule_faults import Fault, faults
from journeykit_engine.strict_json import json_faults, refuse_value
from journeykit_server import rules_sql, store, versioned
from journeykit_server.bulk import Delete
from journeykit_server.clock import instant, microseconds
from journeykit_server.database import Database
from journeykit_server.incoming import Incoming, event_fault
from journeykit_server.tables import (
    journeys,
    segment_members,
    segment_versions,
    segments,
    versions,
)
from journeykit_server.versioned import Archived, Kept, Save

REFRESH_SECONDS = 300.0  # so old is a rule segment when its members are counted anew
REFRESH_PAGE = 5_000  # people who come or go in one transaction of a refresh
LEASE_SECONDS = 60.0  # after it a count is anybody's again: its worker is taken for dead
MOST_MEMBERS = 5_000  # of one call, and of one page

KEPT = Kept("segment", segments, segment_versions, "segment_id")
Kind = Literal["list", "rule"]


class Segment(NamedTuple):
    """A version of a segment. `definition` is its rule, None for a list; `refreshed_at` is when its
    members were last counted, None where that is still to come or under way."""

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
        _counted_at(row.refreshed_at),
        None if row.archived_at is None else instant(row.archived_at),
    )


def _counted_at(refreshed_at: int | None) -> Instant | None:
    """Below zero it says until when somebody counts (`_DUE_AT`)."""
    return None if refreshed_at is None or refreshed_at < 0 else instant(refreshed_at)


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


def _behind(tenant_id: int, segment_id: int, after: str) -> Select[str]:
    c = segment_members.c
    return select(c.user_id).where(
        c.tenant_id == tenant_id, c.segment_id == segment_id, c.user_id > after
    )


# --- a rule is counted anew


async def refresh_once(database: Database) -> Refreshed | None:
    """Count one rule segment anew, the one that has waited longest; None where none is due."""
    refresh = await begin_refresh(database)
    if refresh is None:
        return None
    while await refresh.page():
        pass
    return refresh.told()


async def begin_refresh(database: Database) -> Refresh | None:
    """Take the rule segment that has waited longest, to count it page by page; None where none is
    due. Several workers may do this at once: each takes another segment. That of one that dies
    half-way is due again `LEASE_SECONDS` after its last page."""

    async def take(connection: AsyncConnection) -> _Taken | None:
        return await _take(connection, await database.now(connection))

    taken = await database.run(take)
    return None if taken is None else Refresh(database, taken)


async def next_refresh(database: Database) -> Instant | None:
    """When a segment is to be counted next; None where there is no rule segment."""
    query = select(func.min(_DUE_AT)).where(*_IS_RULE)

    async def work(connection: AsyncConnection) -> Instant | None:
        at = (await connection.execute(query)).scalar_one()
        return None if at is None else instant(int(at))

    return await database.read(work)


REFRESH = round(REFRESH_SECONDS * 1_000_000)  # microseconds
LEASE = round(LEASE_SECONDS * 1_000_000)
_IS_RULE: tuple[ColumnElement[bool], ...] = (
    segments.c.kind == "rule",
    segments.c.archived_at.is_(None),
)
_DUE_AT = case(
    (segments.c.refreshed_at.is_(None), 0),
    (segments.c.refreshed_at < 0, -segments.c.refreshed_at),
    else_=segments.c.refreshed_at + REFRESH,
)
"""When a segment is to be counted. While it is being counted its `refreshed_at` is minus the moment
until when it is left to whoever does so, who knows it for theirs by that number."""


class _Taken(NamedTuple):
    """A segment that this worker counts: the version of its rule, the moment that counts, and in
    which zone it does."""

    tenant_id: int
    segment_id: int
    version: int
    asked: Rule
    now: Instant
    zone: str
    mark: int


async def _take(connection: AsyncConnection, now: Instant) -> _Taken | None:
    """The segment that is most overdue, marked as being counted, so that nobody else takes it."""
    row = (
        await connection.execute(
            select(segments)
            .where(*_IS_RULE, microseconds(now) >= _DUE_AT)
            .order_by(_DUE_AT, *segments.primary_key)
            .limit(1)
            .with_for_update(skip_locked=True)
        )
    ).one_or_none()
    if row is None:
        return None
    this = (row.tenant_id, row.segment_id)
    mark = -(microseconds(now) + LEASE)
    await _mark(connection, this, mark)
    _, version = await versioned.read(connection, KEPT, *this)
    asked = rule.parse(orjson.loads(version.definition))
    zone = (await connection.execute(ZONE, {"tenant_id": row.tenant_id})).scalar() or "UTC"
    return _Taken(*this, row.version, asked, now, zone, mark)


async def _mark(connection: AsyncConnection, this: tuple[int, int], refreshed_at: int) -> None:
    query = update(segments).where(*KEPT.of(segments, *this))
    await connection.execute(query.values(refreshed_at=refreshed_at))


ZONE = text(
    f"SELECT v.account_timezone FROM {journeys.name} j JOIN {versions.name} v "
    "ON v.tenant_id = j.tenant_id AND v.journey_id = j.journey_id "
    "AND v.version = j.published_version WHERE j.tenant_id = :tenant_id "
    "ORDER BY v.published_at DESC, v.journey_id DESC LIMIT 1"
)
"""The account's, as it stood at the tenant's latest publishing."""


class _Stretch(NamedTuple):
    """Who came and who went up to the person `end`, in order; None where that is everybody."""

    joined: list[str]
    left: list[str]
    end: str | None


class Refresh:
    """One segment on its way through all people; `after` is the last one it has passed."""

    def __init__(self, database: Database, taken: _Taken) -> None:
        self.database = database
        self.taken = taken
        self.marks = [taken.mark]  # the last one, and those of tries whose answer was lost
        self.after = ""
        self.joined = self.left = 0
        self.is_whole = False

    @property
    def segment_id(self) -> int:
        return self.taken.segment_id

    async def page(self) -> bool:
        """Count a page; False where none follows. One that failed can be asked for again."""
        stretch = await self.database.read(self._look)
        if not await self.database.run(lambda c: self._keep(c, stretch)):
            return False  # somebody changed the rule, or took the segment over
        del self.marks[:-1]
        self.joined, self.left = self.joined + len(stretch.joined), self.left + len(stretch.left)
        self.is_whole = stretch.end is None
        self.after = stretch.end or self.after
        return not self.is_whole

    async def _look(self, connection: AsyncConnection) -> _Stretch:
        """Whom the rule holds for and who is inside, as far as both are known and as far as
        `REFRESH_PAGE` people come or go."""
        tenant_id, segment_id, _, asked, now, zone, _ = self.taken
        members = _behind(tenant_id, segment_id, self.after).order_by(segment_members.c.user_id)
        found = await connection.execute(members.limit(REFRESH_PAGE + 1))
        inside = list(found.scalars())
        up_to = inside[REFRESH_PAGE - 1] if len(inside) > REFRESH_PAGE else None
        page = await rules_sql.matching(
            connection,
            tenant_id,
            asked,
            now=now,
            account_zone=zone,
            after=self.after,
            limit=REFRESH_PAGE,
            up_to=up_to,
        )
        end = up_to if page.is_last else page.position
        holding = set(page.user_ids)
        was_inside = {user_id for user_id in inside if end is None or user_id <= end}
        changed = sorted(holding ^ was_inside)
        if len(changed) > REFRESH_PAGE:
            changed = changed[:REFRESH_PAGE]
            end = changed[-1]
        joined = [user_id for user_id in changed if user_id in holding]
        left = [user_id for user_id in changed if user_id in was_inside]
        return _Stretch(joined, left, end)

    async def _keep(self, connection: AsyncConnection, stretch: _Stretch) -> bool:
        """Write down who came and who went; False where the segment is not ours to count any more,
        and nothing was written."""
        tenant_id, segment_id, version, _, now, _, _ = self.taken
        this, at = (tenant_id, segment_id), microseconds(now)
        query = select(segments).where(*KEPT.of(segments, *this)).with_for_update()
        stands = (await connection.execute(query)).one()
        is_ours = stands.version == version and stands.refreshed_at in self.marks
        if not is_ours or stands.archived_at is not None:
            return False
        # Who has just been added or taken away is locked, as for any change of a person.
        joined, left = stretch.joined, stretch.left
        await store.lock(connection, [(tenant_id, user_id) for user_id in sorted([*joined, *left])])
        coming = [(tenant_id, user_id, segment_id, at) for user_id in joined]
        await store.JOIN_SEGMENTS.run(connection, coming)
        going = [(tenant_id, user_id, segment_id) for user_id in left]
        await LEAVE_SEGMENTS.run(connection, going)
        until = microseconds(await self.database.now(connection)) + LEASE
        self.marks.append(at if stretch.end is None else -until)
        await _mark(connection, this, self.marks[-1])
        return True

    def told(self) -> Refreshed:
        tenant_id, segment_id = self.taken[:2]
        return Refreshed(tenant_id, segment_id, self.joined, self.left, self.is_whole)
