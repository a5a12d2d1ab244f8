"""One unit of work: some people as they stand, the steps they take, and the rows of all that.

Everything between loading and saving happens in memory and without a pause, so a unit that fails
leaves nothing behind, neither in the database nor in the counters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson
from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import Instant

from journeykit_engine import phone, profile
from journeykit_engine.instance import NOTHING, Happened, Instance, Pass, Person, Wait
from journeykit_engine.trail import (
    AddToSegment,
    Assigned,
    Branched,
    CallWebhook,
    Entered,
    Entry,
    Exited,
    GiveTask,
    Message,
    StartJourney,
    Suppressed,
    Visited,
    Woke,
    WriteTrait,
)
from journeykit_engine.walk import Step
from journeykit_server import letters, outbox, store
from journeykit_server.clock import instant, microseconds
from journeykit_server.doors import JourneyKey
from journeykit_server.published import Walkable
from journeykit_server.rows import (
    bucket_of,
    has_timer,
    instance_key,
    instance_values,
    read_instance,
)
from journeykit_server.store import PassKey, PersonKey, StoredProfile

Row = tuple[Any, ...]
ALL_NUMBERS = 2**62  # above every number of an event


COUNTERS: Mapping[type[Entry], int] = {Visited: 0, Exited: 1, Suppressed: 2}
JOURNAL_ONLY = (Visited, Wait, Woke, Branched)  # by far the most entries of a trail


class Fenced(Exception):
    """Somebody else moved one of these people; the unit of work has to begin again."""


class Standing:
    """One person as they stand in this unit of work.

    `instances` has the latest pass in each journey that was loaded, `revs` its revision, `before`
    what both were when they were loaded.
    """

    __slots__ = (
        "before",
        "dead_timers",
        "instances",
        "keeps_passes",
        "key",
        "person",
        "profile",
        "revs",
        "stored",
        "written",
    )

    def __init__(self, stored: StoredProfile) -> None:
        traits = NOTHING if stored.traits == "{}" else orjson.loads(stored.traits)
        zone = profile.zone_trait(traits) if traits else None
        user_id = stored.user_id
        self.key: PersonKey = (stored.tenant_id, user_id)
        self.stored = stored
        self.person = Person(user_id, traits, zone, phone_timezone=stored.phone_timezone)
        self.profile: profile.Profile | None = None
        self.written = False
        self.instances: dict[int, Instance] = {}
        self.revs: dict[int, int] = {}
        self.before: dict[int, tuple[Instance, int]] = {}
        self.dead_timers: list[int] = []
        self.keeps_passes = False

    def stand(self, row: Sequence[Any]) -> Instance:
        """Take up the pass of a row of `INSTANCE_COLUMNS`."""
        read = read_instance(row)
        self.instances[read.journey_id], self.revs[read.journey_id] = read, row[5]
        self.before[read.journey_id] = read, row[5]
        return read

    def identify(
        self, traits: Mapping[str, Any], at: Instant
    ) -> tuple[profile.Profile, dict[str, Any]]:
        """What writing these traits would make of the profile, and what it would change."""
        return profile.write(self.known_profile(), traits, at)

    def known_profile(self) -> profile.Profile:
        """The traits with the moments they were written at, read when first asked for."""
        if self.profile is None:
            written = orjson.loads(self.stored.written_at)
            moments = {name: instant(at) for name, at in written.items()}
            self.profile = profile.Profile(self.person.traits, moments)
        return self.profile

    def write(self, made: profile.Profile, changed: Mapping[str, Any]) -> None:
        """Keep what an identify made."""
        self.profile, self.written = made, True
        person = self.person._replace(traits=made.traits)
        if "timezone" in changed:
            person = person._replace(timezone=profile.zone_trait(changed))
        if "phone" in changed:
            person = person._replace(phone_timezone=phone.phone_zone(changed))
        self.person = person


class _Begun(NamedTuple):
    """A pass that began in this unit, and how it ended if it did."""

    instance: Instance
    ended: Exited | None = None


class Work:
    """The people of one transaction, by key, and the rows that their steps make."""

    def __init__(self, now: Instant, shard: int) -> None:
        self.now = microseconds(now)
        self.shard = shard
        self.people: dict[PersonKey, Standing] = {}
        self.remembered: frozenset[str] = frozenset()  # names of events that some rule asks about
        self.moved: dict[PassKey, Standing] = {}
        self.told: list[Row] = []
        self.noted: list[Row] = []
        self.begun: dict[tuple[int, str, int, int], _Begun] = {}
        self.ended: dict[tuple[int, str, int, int], tuple[Instance, Exited]] = {}
        self.effects: list[Row] = []
        self.suppressed: list[Row] = []
        self.exposed: list[Row] = []
        self.joined: list[Row] = []
        self.letters: list[Row] = []
        self.counted: dict[Walkable, dict[str, list[int]]] = {}

    def stand(self, stored: Iterable[StoredProfile]) -> None:
        """Take up these people."""
        for row in stored:
            self.people[row.tenant_id, row.user_id] = Standing(row)

    def journeys(self, more: Iterable[Walkable] = ()) -> list[JourneyKey]:
        """The journeys that these people are inside of, and these."""
        inside = {
            (key[0], journey_id)
            for key, standing in self.people.items()
            for journey_id, instance in standing.instances.items()
            if instance.is_live
        }
        asked = {(each.program.tenant_id, each.program.journey_id) for each in more}
        return sorted(inside | asked)

    # --- what their walks may ask

    async def load_needs(
        self,
        connection: AsyncConnection,
        walkables: Iterable[Walkable],
        people: Sequence[PersonKey],
        before: int = ALL_NUMBERS,
    ) -> None:
        """Load all that these programs may ask about these people; of the history what came before
        a number."""
        needs = [walkable.program.needs for walkable in walkables]
        self.remembered = frozenset(name for need in needs for name in need.events)
        if self.remembered:
            names = sorted(self.remembered)
            asked = [(*key, name, before) for key in people for name in names]
            self._remember(await store.HISTORY.run(connection, asked), people)
        if any(need.segments for need in needs):
            self._belong(await store.SEGMENTS.run(connection, people))
        if any(need.journeys for need in needs):
            self._pass(await store.PASSES.run(connection, people), people)

    def _remember(self, rows: Iterable[Sequence[Any]], people: Sequence[PersonKey]) -> None:
        histories: dict[PersonKey, dict[str, list[Happened]]] = {key: {} for key in people}
        for tenant_id, user_id, name, at, event_id, properties in rows:
            happened = Happened(instant(at), orjson.loads(properties), event_id)
            histories[tenant_id, user_id].setdefault(name, []).append(happened)
        for key, history in histories.items():
            standing = self.people[key]
            standing.person = standing.person._replace(events=history)

    def _belong(self, rows: Iterable[Sequence[Any]]) -> None:
        members: dict[PersonKey, set[int]] = {}
        for tenant_id, user_id, segment_id in rows:
            members.setdefault((tenant_id, user_id), set()).add(segment_id)
        for key, segments in members.items():
            standing = self.people[key]
            standing.person = standing.person._replace(segments=frozenset(segments))

    def _pass(self, rows: Iterable[Sequence[Any]], people: Sequence[PersonKey]) -> None:
        passes: dict[PersonKey, dict[int, Pass]] = {key: {} for key in people}
        for tenant_id, user_id, journey_id, status, node_id, variant, held in rows:
            known = Pass(journey_id, status, node_id, variant, bool(held))
            passes[tenant_id, user_id][journey_id] = known
        for key, journeys in passes.items():
            standing = self.people[key]
            standing.keeps_passes = True
            standing.person = standing.person._replace(journeys=journeys)

    # --- a step is taken

    def take(
        self, standing: Standing, walkable: Walkable, step: Step, cause: str, note: int
    ) -> None:
        """Keep a step: where the person is now, what it told, what it wants done. `note` numbers
        the journal's row where the step moved nobody."""
        instance, journey_id = step.instance, walkable.program.journey_id
        prior = standing.instances.get(journey_id)
        rev, number = standing.revs.get(journey_id, 0), note
        has_moved = instance is not None and instance is not prior
        if has_moved:
            rev, number = rev + 1, 0
        if step.trail:  # first what could fail, then what is kept
            self._tell(standing, walkable, step, cause, rev, number)
        if instance is not None and has_moved:
            standing.instances[journey_id], standing.revs[journey_id] = instance, rev
            self.moved[instance_key(instance)] = standing
        if not step.trail:
            return
        if step.person is not standing.person:
            self._keep_writes(standing, step)
        if standing.keeps_passes and instance is not None:
            _keep_pass(standing, instance)
        if instance is not None and number == 0:
            was_held = prior is not None and prior.is_holdout
            self._sort_out(standing, instance, step, rev, was_held)

    def _tell(
        self,
        standing: Standing,
        walkable: Walkable,
        step: Step,
        cause: str,
        rev: int,
        number: int,
    ) -> None:
        ready, instance = walkable.program, step.instance
        trail = walkable.tell(step.trail).decode()
        entry_count = instance.entry_count if instance else 0
        at = microseconds(step.at)
        version = ready.version
        key = (*standing.key, ready.journey_id, rev, number)
        rows = self.noted if number else self.told
        rows.append((*key, version, entry_count, at, cause, trail))
        self._count(walkable, step.trail)

    def _count(self, walkable: Walkable, trail: Sequence[Entry]) -> None:
        """Add a trail to the counters of its nodes: entered, exited, suppressed."""
        nodes = self.counted.get(walkable)
        if nodes is None:
            nodes = self.counted[walkable] = {}
        for entry in trail:
            place = COUNTERS.get(type(entry))
            if place is not None:
                counts = nodes.get(entry.node_id)
                if counts is None:
                    counts = nodes[entry.node_id] = [0, 0, 0]
                counts[place] += 1

    def _sort_out(
        self, standing: Standing, instance: Instance, step: Step, rev: int, is_held: bool
    ) -> None:
        """What of a trail has rows of its own; `is_held` says how the person came into the step."""
        key = (*instance_key(instance), instance.entry_count)
        at = microseconds(step.at)
        told = self.told[-1][-1]
        for position, entry in enumerate(step.trail):
            if type(entry) in JOURNAL_ONLY:
                continue
            match entry:
                case Message() | CallWebhook() | StartJourney() | GiveTask():
                    payload = _effect_of(told.split("\n")[position])
                    place = (rev, position)
                    row = _effect_row(instance, entry, place, payload, is_held, at, self.now)
                    self.effects.append(row)
                case Assigned():
                    is_held = is_held or entry.holdout
                    arm = (entry.node_id, instance.version, entry.variant, entry.holdout, at)
                    self.exposed.append((*key, *arm))
                case Suppressed() if entry.message_id:
                    self.suppressed.append(_suppressed_row(instance, entry, at))
                case AddToSegment():
                    self.joined.append((*standing.key, entry.segment_id, at))
                case Entered():
                    is_held = False
                    self.begun[key] = _Begun(instance)
                case Exited():
                    if key in self.begun:
                        self.begun[key] = _Begun(instance, entry)
                    else:
                        self.ended[key] = instance, entry
                case _:
                    pass

    def _keep_writes(self, standing: Standing, step: Step) -> None:
        """The walk's own writes, of traits and of segments."""
        walked, person = step.person, standing.person
        written = {
            entry.trait: entry.value for entry in step.trail if isinstance(entry, WriteTrait)
        }
        if written:
            made, changed = standing.identify(written, step.at)
            standing.write(made, changed)
        if walked.segments != person.segments:
            standing.person = standing.person._replace(segments=walked.segments)

    def bury(self, letter: letters.Letter) -> None:
        """Keep what cannot be done as a dead letter."""
        self.letters.append(letters.letter_row(letter))

    # --- all of it becomes rows

    async def save(self, connection: AsyncConnection) -> None:
        """Write everything, in one order for everybody: passes, timers, effects, counters. Others
        wait for the counters, so nothing follows in the transaction. Raises `Fenced` where
        somebody else moved one of these people meanwhile."""
        changes = _Changes(self)
        await self._save_passes(connection, changes)
        await store.SCHEDULE.run(connection, changes.scheduled)
        if await store.RESCHEDULE.run(connection, changes.rescheduled) != len(changes.rescheduled):
            # A timer that should have been there was not; nobody may wait for ever because of it.
            rows = [(*row[-3:], *row[:-3]) for row in changes.rescheduled]
            await store.SCHEDULE.run(connection, rows)
        await store.UNSCHEDULE.run(connection, changes.unscheduled)
        await store.TELL.run(connection, self.told)
        await store.NOTE.run(connection, self.noted)
        await self._save_people(connection)
        await outbox.INSERT_OUTBOX.run(connection, self.effects)
        await outbox.LOG_SUPPRESSED.run(connection, self.suppressed)
        await letters.INSERT_LETTERS.run(connection, self.letters)
        await letters.DELETE_LETTERS.run(connection, changes.answered)
        await store.COUNT.run(connection, self._counts())

    def _counts(self) -> list[Row]:
        """In one order for everybody, or two transactions would wait for each other."""
        return sorted(
            (
                *(walkable.program.tenant_id, walkable.program.journey_id),
                *(walkable.program.version, node_id, self.shard, *counts),
            )
            for walkable, nodes in self.counted.items()
            for node_id, counts in nodes.items()
        )

    async def _save_passes(self, connection: AsyncConnection, changes: _Changes) -> None:
        added = await store.ADD_INSTANCES.run(connection, changes.added)
        moved = await store.MOVE_INSTANCES.run(connection, changes.moved)
        if added != len(changes.added) or moved != len(changes.moved):
            raise Fenced
        begun = [_begun_row(key, begun) for key, begun in self.begun.items()]
        ended = [_ended_row(key, *ended) for key, ended in self.ended.items()]
        await store.BEGIN_ENTRIES.run(connection, begun)
        await store.END_ENTRIES.run(connection, ended)
        await store.EXPOSE.run(connection, self.exposed)

    async def _save_people(self, connection: AsyncConnection) -> None:
        rows = [_person_row(person, self.now) for person in self.people.values() if person.written]
        await store.WRITE_PEOPLE.run(connection, rows)
        await store.JOIN_SEGMENTS.run(connection, self.joined)


class _Changes:
    """What became of the passes that moved: those that are new, those that were there, and their
    timers; `answered` are the dead letters of timers that are superseded now."""

    def __init__(self, work: Work) -> None:
        self.added: list[Row] = []
        self.moved: list[Row] = []
        self.scheduled: list[Row] = []
        self.rescheduled: list[Row] = []
        self.unscheduled: list[Row] = []
        self.answered: list[Row] = []
        for key, standing in work.moved.items():
            self._sort(key, standing, work.now)

    def _sort(self, key: PassKey, standing: Standing, now: int) -> None:
        journey_id = key[2]
        instance, rev = standing.instances[journey_id], standing.revs[journey_id]
        before = standing.before.get(journey_id)
        values = instance_values(instance, rev)
        if before is None:
            self.added.append((*key, *values))
        else:
            self.moved.append((*values, *key, before[1]))
        had = before is not None and has_timer(before[0])
        may_have = before is not None and before[0].is_live and before[0].wake_at is not None
        if has_timer(instance):
            due = values[7]
            row = (values[0], rev, due, bucket_of(due, now), due, 0, None, "", None)
            if had:
                self.rescheduled.append((*row, *key))
            else:
                self.scheduled.append((*key, *row))
        elif may_have:
            self.unscheduled.append(key)
        if journey_id in standing.dead_timers:
            self.answered.append((key[0], letters.timer_letter_id(journey_id, key[1])))


def _keep_pass(standing: Standing, instance: Instance) -> None:
    known = Pass(
        instance.journey_id,
        instance.status,
        instance.current_node,
        instance.variant,
        instance.is_holdout,
    )
    journeys = {**standing.person.journeys, instance.journey_id: known}
    standing.person = standing.person._replace(journeys=journeys)


EFFECT = '"effect":'  # a quote inside a text is escaped, so this stands before an effect only


def _effect_of(record: str) -> str:
    """The effect that a record of the journal tells, the last of its fields."""
    return record[record.index(EFFECT) + len(EFFECT) : -1]


def _effect_row(
    instance: Instance,
    effect: Message | CallWebhook | StartJourney | GiveTask,
    place: tuple[int, int],
    payload: str,
    is_held: bool,
    at: int,
    now: int,
) -> Row:
    """`place` is the revision and the position in its trail. A walk withholds by itself what is not
    for a holdout; `is_held` lets the table refuse what slips through."""
    return (
        instance.tenant_id,
        effect.message_id if isinstance(effect, Message) else effect.id,
        instance.user_id,
        instance.journey_id,
        instance.version,
        instance.entry_count,
        *place,
        effect.node_id,
        effect.kind,
        payload,
        is_held,
        at,
        min(at, now),
        0,
        None,
        "",
        None,
    )


def _suppressed_row(instance: Instance, entry: Suppressed, at: int) -> Row:
    return (
        instance.tenant_id,
        entry.message_id,
        instance.user_id,
        instance.journey_id,
        instance.version,
        instance.entry_count,
        entry.node_id,
        entry.kind,
        "",
        "suppressed",
        entry.reason,
        instance.is_holdout,
        0,
        at,
        at,
    )


def _begun_row(key: tuple[int, str, int, int], begun: _Begun) -> Row:
    instance, ended = begun
    entered_at = microseconds(instance.entered_at)
    end = (microseconds(instance.updated_at), *ended[::-1]) if ended else (None, "", "")
    arm = (instance.variant, instance.is_holdout)
    return (*key, instance.version, entered_at, instance.entered_by, *end, *arm)


def _ended_row(key: tuple[int, str, int, int], instance: Instance, ended: Exited) -> Row:
    node_id, reason = ended
    arm = (instance.variant, instance.is_holdout)
    return (microseconds(instance.updated_at), reason, node_id, *arm, *key)


def _person_row(standing: Standing, now: int) -> Row:
    made = standing.known_profile()
    written = {name: microseconds(at) for name, at in made.written_at.items()}
    return (
        orjson.dumps(dict(made.traits)).decode(),
        orjson.dumps(written).decode(),
        standing.person.phone_timezone,
        now,
        *standing.key,
    )
