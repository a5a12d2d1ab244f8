"""Where the scanner stands with each journey: the rows of `looks`, and how they move on.

A journey whose trigger nobody tells us about has one row. It begins a look when its time has come,
goes through the stages of that look page by page, and ends it as a row of `scans`. What a row
becomes is decided here by pure functions; the transaction that keeps it is the caller's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sqlalchemy import ColumnElement, Table, exists, select, update
from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import Instant, TimeDelta

from journeykit_engine import graph, rule, timing
from journeykit_engine.looks import question
from journeykit_engine.program import Program
from journeykit_engine.rule import Not, Rule
from journeykit_server.bulk import Delete, Insert, Select, Update
from journeykit_server.clock import instant, microseconds
from journeykit_server.doors import JourneyKey, doors
from journeykit_server.tables import NEVER, audience, drafts, journeys, looks, scans, versions

log = logging.getLogger("journeykit")

A_MICROSECOND = 1


class Look(NamedTuple):
    """A row of `looks`; every moment in microseconds.

    `next_at` is NEVER while the journey takes nobody in, `slot_at` None between two looks.
    """

    tenant_id: int
    journey_id: int
    version: int
    asks: str
    next_at: int
    slot_at: int | None = None
    stage: str = ""
    position: str = ""
    is_first: bool = True
    members: int = 0
    found: int = 0
    skipped: int = 0
    is_truncated: bool = False
    started_at: int | None = None
    try_at: int = NEVER
    attempts: int = 0
    lease_token: str | None = None
    last_error: str = ""

    @property
    def key(self) -> JourneyKey:
        return self.tenant_id, self.journey_id

    @property
    def kind(self) -> str:
        """Of the trigger that asks."""
        return self.asks.partition(" ")[0]

    @property
    def may_still_enrol(self) -> bool:
        """Of a look under way: whether there may be somebody whom it has not come to yet."""
        return not self.is_first and (self.kind, self.stage) not in ENROLLED


class Stage(NamedTuple):
    """A walk through everybody for whom `rule` holds and `extra` (SQL over a row `p` of profiles)
    too. `enrols` says that the trigger takes these people, `joins` and `leaves` that they are
    written into the audience or out of it."""

    name: str
    rule: Rule
    extra: str = ""
    enrols: bool = False
    joins: bool = False
    leaves: bool = False


FORGET = "forget"
"""The stage in which the audience of an earlier question is deleted."""
COMPARING = ("segment_enter ", "segment_exit ")  # how a question begins that needs an audience
DATES = Stage("dates", rule.Everybody())
"""The stage in which dates that cannot be read are counted."""
ENROLLED = (("segment_enter", "left"), ("date", DATES.name))
"""By kind, the stages in which everybody has been enrolled who is enrolled at all."""


class Question(NamedTuple):
    """What a version has looked for; `asks` is "" where its trigger needs no looks.

    `asks` tells questions apart: of segments it names the definition, since their audience is of no
    use to another one; of sweeps and dates only the hours, since they remember nobody.
    """

    version: int
    kind: str
    asks: str
    zone: str
    hours: tuple[int, ...]
    trait: str
    stages: tuple[Stage, ...]

    @property
    def compares(self) -> bool:
        """Whether a look is held against the one before it."""
        return not self.hours

    def stage(self, name: str) -> Stage:
        return next(stage for stage in self.stages if stage.name == name)

    def after(self, name: str) -> Stage | None:
        """The stage that follows; None after the last one."""
        names = [stage.name for stage in self.stages]
        return dict(zip(names, self.stages[1:], strict=False)).get(name)


def question_of(program: Program) -> Question:
    """What the scanner is asked by a program."""
    trigger, zone = program.trigger, program.zone
    definition = question(trigger)
    if trigger is None or definition is None:
        return Question(program.version, "", "", zone, (), "", ())
    kind, asked = trigger.kind, rule.parse(definition)
    match trigger:
        case graph.SegmentPeriodic():
            hours, stages = tuple(sorted(set(trigger.hours))), (_sweep(asked),)
            return Question(program.version, kind, _at(kind, hours, zone), zone, hours, "", stages)
        case graph.DateTrigger():
            hours, dated = (trigger.hour,), (_sweep(asked), DATES)
            asks = _at(kind, hours, zone)
            return Question(program.version, kind, asks, zone, hours, trigger.trait, dated)
    compared = _compared(kind, asked, program.journey_id)
    asks = f"{kind} {rule.fingerprint(asked)}"
    return Question(program.version, kind, asks, zone, (), "", compared)


def _at(kind: str, hours: Iterable[int], zone: str) -> str:
    return f"{kind} at {','.join(map(str, hours))} {zone}"


def _sweep(asked: Rule) -> Stage:
    return Stage("sweep", asked, enrols=True)


def _compared(kind: str, asked: Rule, journey_id: int) -> tuple[Stage, ...]:
    inside = (
        "EXISTS (SELECT 1 FROM audience a WHERE a.tenant_id = p.tenant_id "
        f"AND a.journey_id = {journey_id} AND a.user_id = p.user_id)"
    )
    came = Stage("came", asked, f"NOT {inside}", enrols=kind == "segment_enter", joins=True)
    left = Stage("left", Not(asked), inside, enrols=kind == "segment_exit", leaves=True)
    return came, left


# --- a look begins, goes on and ends


def begun(look: Look, asked: Question, now: int) -> Look:
    """A look begins. That of a sweep is of the latest hour that has passed, however many have; that
    of a segment is of this moment."""
    slot_at, members = now, look.members
    if asked.hours:
        before = instant(look.next_at - A_MICROSECOND)
        slot = timing.catch_up(before, instant(now), asked.hours, asked.zone)
        slot_at, members = look.next_at if slot is None else microseconds(slot), 0
    return look._replace(
        slot_at=slot_at,
        stage=asked.stages[0].name,
        position="",
        is_first=look.is_first and asked.compares,
        members=members,
        found=0,
        skipped=0,
        is_truncated=False,
        started_at=now,
    )


def gone_on(look: Look, asked: Question, every: TimeDelta, now: int) -> Look:
    """A stage has ended: the next one begins, or the look ends with it."""
    following = asked.after(look.stage)
    if following is not None:
        return look._replace(stage=following.name, position="", try_at=now)
    assert look.slot_at is not None
    slot = instant(look.slot_at)
    if asked.hours:
        next_at = microseconds(timing.next_sweep(slot, asked.hours, asked.zone))
    else:
        next_at = microseconds(slot + every)
    ended = look._replace(slot_at=None, stage="", position="", is_first=False, started_at=None)
    return ended._replace(next_at=next_at, try_at=next_at)


def parked(look: Look) -> Look:
    """Its journey takes nobody in: it waits, and what it was in the middle of is given up. Finished
    later, that would bring in people who came in the pause."""
    return look._replace(
        next_at=NEVER,
        slot_at=None,
        stage=look.stage if look.stage == FORGET else "",
        position="",
        is_first=True,
        started_at=None,
        try_at=NEVER,
        attempts=0,
        lease_token=None,
        last_error="",
    )


def _first(key: JourneyKey, asked: Question, published_at: int, now: int) -> Look:
    """The row of a journey that had none. An hour counts from the moment of publishing on, at which
    perhaps no scanner was awake."""
    next_at = now
    if asked.hours:
        since = instant(published_at) - TimeDelta(nanoseconds=1)
        next_at = microseconds(timing.next_sweep(since, asked.hours, asked.zone))
    return Look(*key, asked.version, asked.asks, next_at, try_at=next_at)


def _asked_anew(look: Look, asked: Question, published_at: int, now: int) -> Look:
    """Another question: what was recorded for the old one is deleted first, in pages."""
    fresh = _first(look.key, asked, published_at, now)
    compared = look.asks.startswith(COMPARING) or look.stage == FORGET
    if compared or not asked.asks:
        return fresh._replace(stage=FORGET, try_at=now)
    return fresh


def _unparked(look: Look, asked: Question, now: int) -> Look:
    next_at = now
    if asked.hours:
        next_at = microseconds(timing.next_sweep(instant(now), asked.hours, asked.zone))
    try_at = now if look.stage == FORGET else next_at
    return look._replace(next_at=next_at, try_at=try_at)


async def record_cut_off(connection: AsyncConnection, cut_off: Iterable[Look], now: int) -> None:
    """Write down the looks that are given up in the middle, and which of them may have missed
    somebody. First looks are left out: they enrol nobody, and begin again."""
    known = [look for look in cut_off if look.slot_at is not None and not look.is_first]
    told = [look._replace(is_truncated=look.is_truncated or look.may_still_enrol) for look in known]
    await RECORD.run(connection, [scan_row(look, now) for look in told])
    for look in told:
        if look.is_truncated:
            log.warning(CUT_OFF, look.journey_id)


CUT_OFF = "a look for journey %d was cut off; whom it had not reached it does not enrol"


def scan_row(look: Look, now: int) -> tuple[object, ...]:
    """The row of `scans` of a look that ends now, as it stood before it ended."""
    told = (look.is_first, look.members, look.found, look.skipped, look.is_truncated)
    return (*look.key, look.slot_at, look.version, look.kind, *told, look.started_at, now)


# --- what the published journeys ask for


async def agree(
    connection: AsyncConnection, asked: Mapping[JourneyKey, Question], now: Instant
) -> None:
    """Let every published journey that has to be looked for have its row, and no other one.

    `asked` has the questions of the journeys that are published here, also of those that need no
    looks. A row that a younger version asked for is left alone, and so is one of a journey that
    cannot be walked here.
    """
    query = select(looks).order_by(looks.c.tenant_id, looks.c.journey_id).with_for_update()
    rows = {(row[0], row[1]): Look(*row) for row in await connection.execute(query)}
    needed = {key for key, found in asked.items() if found.asks}
    keys = sorted(needed | set(rows))
    open_doors = await doors(connection, keys, locks=False)
    versioned = [(*key, asked[key].version) for key in keys if key in asked]
    published = {(row[0], row[1]): row[2] for row in await PUBLISHED_AT.run(connection, versioned)}
    fresh, changed, cut_off = [], [], []
    for key in keys:
        look, takes_in = rows.get(key), open_doors[key].takes_in
        at = published.get(key, microseconds(now))
        become = _agreed(look, asked.get(key), takes_in, at, microseconds(now), key)
        if look is None and become is not None:
            fresh.append(become)
        elif become is not None and become != look:
            changed.append((*become[2:], *key))
            cut_off += [look] if look is not None and become.slot_at is None else []
    await record_cut_off(connection, cut_off, microseconds(now))
    await ADD.run(connection, fresh)
    await CHANGE.run(connection, changed)


def _agreed(
    look: Look | None,
    asked: Question | None,
    takes_in: bool,
    published_at: int,
    now: int,
    key: JourneyKey,
) -> Look | None:
    if not takes_in:
        return parked(look) if look is not None and look.next_at != NEVER else look
    if asked is None or (look is not None and look.version > asked.version):
        return look
    if look is None:
        return _first(key, asked, published_at, now)
    if look.asks != asked.asks:
        return _asked_anew(look, asked, published_at, now)
    if look.next_at == NEVER:
        look = _unparked(look, asked, now)
    return look._replace(version=asked.version)


# --- a claim


async def claim(connection: AsyncConnection, now: int, lease_until: int, token: str) -> Look | None:
    """The most overdue look, ours until `lease_until`; None where none is due. Those whose journey
    takes nobody in are parked instead."""
    query = (
        select(looks)
        .where(looks.c.try_at <= now)
        .order_by(looks.c.try_at, looks.c.tenant_id, looks.c.journey_id)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    while (row := (await connection.execute(query)).first()) is not None:
        look = Look(*row)
        door = (await doors(connection, [look.key], locks=False))[look.key]
        if door.takes_in:
            claimed = look._replace(
                try_at=lease_until, attempts=look.attempts + 1, lease_token=token
            )
            await CHANGE.run(connection, [(*claimed[2:], *look.key)])
            return claimed
        await park(connection, look, now)
    return None


async def park(connection: AsyncConnection, look: Look, now: int) -> None:
    """Let it wait until its journey takes people in again."""
    await record_cut_off(connection, [look], now)
    await CHANGE.run(connection, [(*parked(look)[2:], *look.key)])


async def may_have_stopped(connection: AsyncConnection, look: Look) -> bool:
    """Whether the journey may have been paused and resumed since this look began. One that was last
    changed by a save or a publishing was not."""
    key = look.key
    was_saved = exists().where(*_its(drafts, key), drafts.c.saved_at == journeys.c.updated_at)
    was_published = exists().where(
        *_its(versions, key),
        versions.c.version == journeys.c.published_version,
        versions.c.published_at == journeys.c.updated_at,
    )
    query = select(journeys.c.updated_at).where(
        *_its(journeys, key), journeys.c.updated_at >= look.started_at, ~was_saved, ~was_published
    )
    return (await connection.execute(query)).first() is not None


def _its(table: Table, key: JourneyKey) -> tuple[ColumnElement[bool], ...]:
    return table.c.tenant_id == key[0], table.c.journey_id == key[1]


async def is_held(connection: AsyncConnection, look: Look) -> bool:
    """Whether the claim is still ours; its row is locked then."""
    query = (
        select(looks.c.lease_token)
        .where(looks.c.tenant_id == look.tenant_id, looks.c.journey_id == look.journey_id)
        .with_for_update()
    )
    return (await connection.execute(query)).scalar() == look.lease_token


async def hold(connection: AsyncConnection, look: Look, lease_until: int) -> bool:
    """Make the claim last longer; False where it is not ours any more."""
    if not await is_held(connection, look):
        return False
    key = (looks.c.tenant_id == look.tenant_id, looks.c.journey_id == look.journey_id)
    await connection.execute(update(looks).where(*key).values(try_at=lease_until))
    return True


async def give_back(connection: AsyncConnection, look: Look) -> None:
    """Keep how far the look has come and end the claim; what publishing says of it stays."""
    await KEEP.run(connection, [(*look[4:16], None, look.last_error, *look.key)])


COLUMNS = list(Look._fields)
KEYS = COLUMNS[:2]
ADD = Insert(looks, COLUMNS, "DO NOTHING")
CHANGE = Update(looks, COLUMNS[2:], KEYS)
KEEP = Update(looks, COLUMNS[4:], KEYS)
REMOVE = Delete(looks, KEYS)
JOIN = Insert(audience, ["tenant_id", "journey_id", "user_id"], "DO NOTHING")
LEAVE = Delete(audience, ["tenant_id", "journey_id", "user_id"])
RECORD = Insert(scans, [column.name for column in scans.columns], "DO NOTHING")
PUBLISHED_AT = Select(
    [("tenant_id", "bigint"), ("journey_id", "bigint"), ("version", "bigint")],
    f"SELECT v.tenant_id, v.journey_id, v.published_at FROM {{given}} JOIN {versions.name} v ON "
    "v.tenant_id = given.tenant_id AND v.journey_id = given.journey_id "
    "AND v.version = given.version",
)
