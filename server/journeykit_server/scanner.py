"""The scanner: who came into a segment, who left it, whose hour or date it is.

It looks at the segment of a journey every `SCAN_SECONDS`, at a sweep or a date at its hours of the
account's day. The first look at a segment enrols nobody and records who is inside; every later one
is held against that record. While a journey takes nobody in it is not looked at, and the first look
after that only brings the record up to date: who came or left meanwhile is seen and not enrolled,
and the hours of sweeps that passed meanwhile are not made up for. A look that is cut off in its
middle, because its journey takes nobody in any more or asks something else, is recorded as
truncated. It is not finished later, when nobody can tell any more who had come before. A pause that
is over before the next page does not cut it off, but may have kept people of the last page out, and
is recorded likewise.

A look goes page by page. The people of a page are enrolled first, as events whose ids name the
journey, the look and the person; then it is written down that the page is done. So whoever takes a
page again after a death enrols nobody twice, and two scanners at the same page absorb each other.
All pages of one look ask about one moment: the hour of a sweep, the beginning of another look. A
new version with the same question takes over in the middle, between two pages.

Segments that follow a rule are counted by the same scanner, in turn with the looks: neither keeps
the other waiting for longer than a page takes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import Instant, TimeDelta

from journeykit_engine import timing
from journeykit_server import looks, rules_sql, segments
from journeykit_server.backoff import backoff, words_of
from journeykit_server.clock import instant, microseconds
from journeykit_server.database import Database, Unavailable
from journeykit_server.doors import JourneyKey, doors
from journeykit_server.incoming import entering
from journeykit_server.looks import DATES, FORGET, Look, Question, Stage
from journeykit_server.published import Walkable
from journeykit_server.runtime import INGEST_BATCH, Runtime
from journeykit_server.tables import NEVER, audience, scans
from journeykit_server.tables import looks as looks_table

log = logging.getLogger("journeykit")

SCAN_SECONDS = 300.0  # between two looks at a segment
PAGE = 5_000  # people of one step: some megabytes, some seconds
MOST_OF_A_DIFF = 250_000  # people that one look enrols because they came or left
MOST_OF_A_SWEEP = 5_000_000  # people that one sweep enrols
LEASE = TimeDelta(seconds=30)  # after it a claim is anybody's again: its worker is taken for dead
HOLD_SECONDS = 10.0  # a claim that is older is made to last longer
REFRESH_LOOK_SECONDS = 10.0  # how often it is asked, between the pages of looks, what is to count
BEHIND = TimeDelta(seconds=30)  # until a look is tried again whose version this worker cannot walk


class Overtaken(Exception):
    """The claim ended before its step did, and somebody else has taken it."""


class Limits(NamedTuple):
    """The most people of a page, of a comparison and of a sweep."""

    page: int = PAGE
    diff: int = MOST_OF_A_DIFF
    sweep: int = MOST_OF_A_SWEEP


class Scanner:
    """Looks for a runtime; `every` is in seconds. `look_once` is one step."""

    def __init__(
        self, runtime: Runtime, *, every: float = SCAN_SECONDS, limits: Limits | None = None
    ) -> None:
        self.runtime = runtime
        self.database = runtime.database
        self.every = TimeDelta(seconds=every)
        self.limits = limits or Limits()
        self.questions: dict[JourneyKey, Question] = {}
        self.refresh: segments.Refresh | None = None  # the segment that is being counted
        self.refresh_at = float("-inf")  # monotonic: when another one is asked for during a look
        self.has_looked = True  # in the last turn; the segments come first in this one
        self.agreed: object = None  # the published set that the rows of `looks` agree with

    async def look_once(self) -> int:
        """One page, or another small step, of the most overdue look; 0 where none is due.

        A page of a segment that is counted anew is such a step too: as long as there is something
        to do of both kinds, they take turns. Raises what `Database.run` raises. A look that fails,
        or a count, is set aside for a while and is counted as done.
        """
        is_their_turn = self.has_looked and self._may_refresh()
        if is_their_turn and await self._refresh():
            return 1
        self.has_looked = bool(await self._look())
        return int(self.has_looked or (not is_their_turn and await self._refresh()))

    def _may_refresh(self) -> bool:
        return self.refresh is not None or self.runtime.clock.monotonic() >= self.refresh_at

    async def _refresh(self) -> bool:
        """Count a page of a rule segment; False where none is due."""
        if self.refresh is None:
            self.refresh = await segments.begin_refresh(self.database)
        if self.refresh is None:
            self.refresh_at = self.runtime.clock.monotonic() + REFRESH_LOOK_SECONDS
            return False
        self.has_looked = False
        try:
            goes_on = await self.refresh.page()
        except Unavailable:
            raise  # the same page comes next
        except Exception as fault:
            segment_id, goes_on = self.refresh.segment_id, False
            log.error("segment %d could not be counted: %s", segment_id, words_of(fault))
        if not goes_on:
            self.refresh = None
        return True

    async def _look(self) -> int:
        await self._agree()
        token = self.runtime.chance.token()
        look = await self.database.run(lambda c: self._claim(c, token))
        if look is None:
            return 0
        began = self.runtime.clock.monotonic()
        try:
            await self._step(look, began)
        except Overtaken:
            log.warning("a look at journey %d took too long; another worker goes on", look.key[1])
        except Unavailable:
            raise  # nothing is wrong with this look; its claim ends by itself
        except Exception as fault:
            await self._set_aside(look, fault)
        return 1

    async def next_due(self) -> Instant | None:
        """When the next step can be taken; None where nothing is ever looked for."""
        await self._agree()
        query = select(func.min(looks_table.c.try_at)).where(looks_table.c.try_at < NEVER)

        async def read(connection: AsyncConnection) -> int | None:
            at: int | None = (await connection.execute(query)).scalar_one()
            return at

        at = await self.database.read(read)
        refresh = await segments.next_refresh(self.database)
        due = [refresh, None if at is None else instant(at)]
        return min((moment for moment in due if moment is not None), default=None)

    # --- what is there to look at

    async def _agree(self) -> None:
        """Bring the rows of `looks` up to date where the published set was read anew."""
        published = self.runtime.published
        if published.is_stale(self.runtime.clock.monotonic()):
            await self.runtime.reload()
        current = published.current
        if self.agreed is current:
            return
        before = self.questions
        questions = {key: _kept(before.get(key), found) for key, found in current.items()}

        async def work(connection: AsyncConnection) -> None:
            await looks.agree(connection, questions, await self.database.now(connection))

        await self.database.run(work)
        self.questions, self.agreed = questions, current

    async def _claim(self, connection: AsyncConnection, token: str) -> Look | None:
        """Claim a look, and begin it where it stands between two: the moment that all its pages ask
        about is kept before the first of them."""
        now = await self.database.now(connection)
        at = microseconds(now)
        look = await looks.claim(connection, at, microseconds(now + LEASE), token)
        asked = self._asked(look) if look is not None else None
        if look is None or asked is None or look.stage or not asked.asks:
            return look
        begun = looks.begun(look, asked, at)
        await looks.CHANGE.run(connection, [(*begun[2:], *begun.key)])
        return begun

    def _asked(self, look: Look) -> Question | None:
        """What this look asks; None where another version is published than is known here."""
        asked = self.questions.get(look.key)
        return asked if asked is not None and asked.version == look.version else None

    # --- a step

    async def _step(self, look: Look, began: float) -> None:
        asked = self._asked(look)
        if asked is None:
            await self._fall_behind(look)
        elif look.stage == FORGET or not asked.asks:
            await self._forget(look, asked)
        elif look.stage == DATES.name:
            await self._count_unreadable(look, asked)
        else:
            await self._take_page(look, asked, asked.stage(look.stage), began)

    async def _take_page(self, look: Look, asked: Question, stage: Stage, began: float) -> None:
        enrols = stage.enrols and not look.is_first
        most = self.limits.diff if asked.compares else self.limits.sweep
        room = most - look.found if enrols else self.limits.page
        page = await self._page(look, asked, stage, min(max(room, 1), self.limits.page))
        people: Sequence[str] = page.user_ids
        is_over = page.is_last
        if people and room <= 0:  # there is somebody left for whom there is no room
            look, people, is_over = look._replace(is_truncated=True), (), True
        if people and enrols:
            await self._enrol(look, people, began)
            look = look._replace(found=look.found + len(people))
        if not asked.compares:
            look = look._replace(members=look.members + len(people))
        look = look._replace(position=page.position)
        await self._keep(look, asked, stage, people, is_over=is_over)

    async def _page(self, look: Look, asked: Question, stage: Stage, limit: int) -> rules_sql.Page:
        assert look.slot_at is not None
        at = instant(look.slot_at)

        async def read(connection: AsyncConnection) -> rules_sql.Page:
            return await rules_sql.matching(
                connection,
                look.tenant_id,
                stage.rule,
                now=at,
                account_zone=asked.zone,
                after=look.position,
                limit=limit,
                extra=stage.extra,
            )

        return await self.database.read(read)

    async def _enrol(self, look: Look, people: Sequence[str], began: float) -> None:
        """Ask the journey to take these people in; its own rules still apply to each."""
        prefix = f"scan-{look.journey_id}-{look.slot_at}-"
        for start in range(0, len(people), INGEST_BATCH):
            if self.runtime.clock.monotonic() - began > HOLD_SECONDS:
                began = self.runtime.clock.monotonic()
                await self._hold(look)
            part = people[start : start + INGEST_BATCH]
            events = [entering(look.journey_id, each, prefix + each, "scan") for each in part]
            await self.runtime.ingest(look.tenant_id, events)

    async def _hold(self, look: Look) -> None:
        async def work(connection: AsyncConnection) -> bool:
            until = await self.database.now(connection) + LEASE
            return await looks.hold(connection, look, microseconds(until))

        if not await self.database.run(work):
            raise Overtaken

    async def _keep(
        self,
        look: Look,
        asked: Question,
        stage: Stage,
        people: Sequence[str] = (),
        *,
        is_over: bool,
    ) -> None:
        """Write down that a page is done, and whom it found."""
        were_asked_in = bool(people) and stage.enrols and not look.is_first
        rows = [(*look.key, user_id) for user_id in people]

        async def work(connection: AsyncConnection) -> Look | None:
            if not await looks.is_held(connection, look):
                return None
            now = microseconds(await self.database.now(connection))
            if were_asked_in and not await self._takes_in(connection, look):
                # The pause may have come before any of them: the page counts as not done.
                before = look._replace(found=look.found - len(people))
                await looks.park(connection, before, now)
                return looks.parked(before)
            members, is_truncated = look.members, look.is_truncated
            if were_asked_in:  # a pause that is over already may have kept some of them out
                is_truncated |= await looks.may_have_stopped(connection, look)
            if stage.joins:
                members += await looks.JOIN.run(connection, rows)
            if stage.leaves:
                members -= await looks.LEAVE.run(connection, rows)
            done = look._replace(members=members, is_truncated=is_truncated)
            kept = done._replace(attempts=0, last_error="", try_at=now)
            if is_over:
                kept = looks.gone_on(kept, asked, self.every, now)
            if is_over and not kept.stage:
                await looks.RECORD.run(connection, [looks.scan_row(done, now)])
            await looks.give_back(connection, kept)
            return kept

        kept = await self.database.run(work)
        if kept is None:
            raise Overtaken
        if kept.slot_at is None and kept.next_at != NEVER:
            _tell(kept)

    async def _takes_in(self, connection: AsyncConnection, look: Look) -> bool:
        return (await doors(connection, [look.key], locks=False))[look.key].takes_in

    async def _count_unreadable(self, look: Look, asked: Question) -> None:
        """Count, of one page of those that have the trait, who has no date in it."""
        limit = self.limits.page

        async def read(connection: AsyncConnection) -> Sequence[tuple[str, str | None]]:
            query = DOUBTFUL_DATES[connection.dialect.name]
            given = {"tenant": look.tenant_id, "trait": asked.trait}
            rows = await connection.execute(query, {**given, "after": look.position, "many": limit})
            return [(row[0], row[1]) for row in rows]

        found = await self.database.read(read)
        skipped = sum(timing.read_date(written) is None for _, written in found)
        position = found[-1][0] if found else look.position
        look = look._replace(position=position, skipped=look.skipped + skipped)
        await self._keep(look, asked, DATES, is_over=len(found) < limit)

    async def _forget(self, look: Look, asked: Question) -> None:
        """Delete a page of the audience of an earlier question, and the row itself in the end where
        no question has followed."""
        query = (
            select(audience.c.user_id)
            .where(audience.c.tenant_id == look.tenant_id)
            .where(audience.c.journey_id == look.journey_id)
            .order_by(audience.c.user_id)
            .limit(self.limits.page)
        )

        async def work(connection: AsyncConnection) -> None:
            if not await looks.is_held(connection, look):
                return
            people = (await connection.execute(query)).scalars().all()
            await looks.LEAVE.run(connection, [(*look.key, user_id) for user_id in people])
            now = microseconds(await self.database.now(connection))
            kept = look._replace(attempts=0, last_error="", try_at=now)
            if len(people) < self.limits.page:
                kept = kept._replace(stage="", members=0, try_at=max(now, look.next_at))
            if kept.stage or asked.asks:
                await looks.give_back(connection, kept)
            else:
                await looks.REMOVE.run(connection, [look.key])

        await self.database.run(work)

    # --- a step that cannot be taken

    async def _fall_behind(self, look: Look) -> None:
        """Leave a look to whoever can walk its version, and ask again what is published."""
        self.agreed = None
        known = self.questions.get(look.key)
        look = look._replace(attempts=look.attempts - 1)
        if known is not None and known.version > look.version:  # its row is brought up to date next
            await self._postpone(look, TimeDelta.ZERO)
            return
        told = BEHIND_TEXT.format(look.journey_id, look.version)
        await self._postpone(look._replace(last_error=told), BEHIND)

    async def _set_aside(self, look: Look, fault: Exception) -> None:
        words = words_of(fault)
        log.error("journey %d could not be looked at: %s", look.journey_id, words)
        pause = backoff(look.attempts, self.runtime.chance)
        await self._postpone(look._replace(last_error=words), pause)

    async def _postpone(self, look: Look, pause: TimeDelta) -> None:
        async def work(connection: AsyncConnection) -> None:
            if await looks.is_held(connection, look):
                try_at = microseconds(await self.database.now(connection) + pause)
                await looks.give_back(connection, look._replace(try_at=try_at))

        await self.database.run(work)


BEHIND_TEXT = (
    "This worker cannot look for journey {0} version {1}, which it cannot read. "
    "It waits for a worker that can, or for an upgrade of this one."
)

DOUBTFUL_DATES = {
    "postgresql": text(
        "SELECT p.user_id, CASE WHEN jsonb_typeof(p.traits -> CAST(:trait AS text)) = 'string' "
        "THEN p.traits ->> CAST(:trait AS text) END FROM profiles p "
        "WHERE p.tenant_id = :tenant AND p.user_id > :after "
        "AND jsonb_exists(p.traits, CAST(:trait AS text)) "
        "AND NOT (jsonb_typeof(p.traits -> CAST(:trait AS text)) = 'string' "
        "AND p.traits ->> CAST(:trait AS text) "
        "~ '^(?!0000)[0-9]{4}-(0[1-9]|1[0-2])-([01][1-9]|10|2[0-8])$') "
        "ORDER BY p.user_id LIMIT :many"
    ),
    "sqlite": text(
        "SELECT p.user_id, CASE WHEN t.type = 'text' THEN t.value END "
        "FROM profiles p JOIN json_each(p.traits) t "
        "WHERE p.tenant_id = :tenant AND p.user_id > :after AND t.key = :trait "
        "AND NOT (t.type = 'text' "
        "AND t.value GLOB '[0-9][0-9][0-9][0-9]-[01][0-9]-[0-2][0-9]' AND t.value >= '0001' "
        "AND substr(t.value, 6, 2) BETWEEN '01' AND '12' "
        "AND substr(t.value, 9, 2) BETWEEN '01' AND '28') "
        "ORDER BY p.user_id LIMIT :many"
    ),
}
"""Who has the trait and perhaps no date in it, with what is written there if it is text. Plain days
that every month has are left out; there are many of them."""


def _kept(before: Question | None, found: Walkable) -> Question:
    """The question of a program, which is not read twice."""
    if before is not None and before.version == found.program.version:
        return before
    return looks.question_of(found.program)


# --- what was found


class Scan(NamedTuple):
    """A look that came to its end.

    `members` is for how many people the question holds, `found` how many of them the trigger took
    (or, of a comparison, how many came or left), `skipped` how many had a date that cannot be read.
    `is_first` says that it only recorded; `is_truncated` that it may not have come to everybody.
    Either there were more than one look may take: those of a comparison come at the next look,
    those of a sweep at the next hour. Or the journey was paused, archived or deleted meanwhile, or
    asked something else: whom the look did not ask in before that, it does not enrol any more.
    """

    slot_at: Instant
    version: int
    kind: str
    is_first: bool
    members: int
    found: int
    skipped: int
    is_truncated: bool
    started_at: Instant
    ended_at: Instant


def _tell(look: Look) -> None:
    figures = {"found": look.found, "members": look.members, "skipped": look.skipped}
    level = logging.WARNING if look.is_truncated else logging.INFO
    told = (look.journey_id, look.kind)
    log.log(level, "looked for journey %d (%s)", *told, extra={"figures": figures})


async def scans_of(
    database: Database, tenant_id: int, journey_id: int, first: int = 50
) -> list[Scan]:
    """The latest looks of a journey, the youngest first."""
    query = (
        select(*(scans.c[name] for name in Scan._fields))
        .where(scans.c.tenant_id == tenant_id, scans.c.journey_id == journey_id)
        .order_by(scans.c.slot_at.desc())
        .limit(first)
    )

    async def read(connection: AsyncConnection) -> list[Scan]:
        return [_scan(Scan(*row)) for row in await connection.execute(query)]

    return await database.read(read)


def _scan(row: Scan) -> Scan:
    """With its moments as instants, which the columns keep as numbers."""
    at: list[int] = [row.slot_at, row.started_at, row.ended_at]  # type: ignore[list-item]
    slot_at, started_at, ended_at = map(instant, at)
    return row._replace(slot_at=slot_at, started_at=started_at, ended_at=ended_at)
