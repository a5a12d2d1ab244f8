"""A whole history through one journey on a virtual clock: nothing is stored, nothing is sent.

`replay` takes what happened, in order, lets the real entry rules, walk, waits and timers run, and
tells every visit, message and exit with its time. The same input gives the same output, to the
byte, and a person's journal does not depend on who else is replayed.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

from whenever import Instant, TimeDelta

from journeykit_engine import graph, journal, profile, walk
from journeykit_engine.instance import NOTHING, Happened, Instance, Pass, Person, Refusal
from journeykit_engine.looks import Looks
from journeykit_engine.nodes import new
from journeykit_engine.program import Program
from journeykit_engine.signal import Event
from journeykit_engine.trail import Entry, Message, Refused, Suppressed
from journeykit_engine.walk import Step

PROGRESS_EVERY = 1_000  # lines between two signs of life; a few milliseconds
SCAN_EVERY = TimeDelta(hours=1)  # between two looks at a segment, where nothing else is asked

LineType = Literal["track", "identify", "enter", "pause", "resume", "eject"]
PhoneZone = Callable[[Mapping[str, Any]], str | None]


class Unsent(NamedTuple):
    """Why a message cannot go: the reason, and the names of the values that its text misses."""

    reason: str
    missing: tuple[str, ...] = ()


Render = Callable[[Message, Person], Unsent | None]


class Line(NamedTuple):
    """One thing that happened. `id` is the message id; an empty one is never a repetition."""

    type: LineType
    user_id: str
    at: Instant
    event: str = ""
    properties: Mapping[str, Any] = NOTHING  # of a track; the traits of an identify
    id: str = ""


class Known(NamedTuple):
    """A person known before the history begins."""

    user_id: str
    traits: Mapping[str, Any] = NOTHING
    timezone: str | None = None


class Replayed(NamedTuple):
    """The journal, in time order, and its sums (`journal.Sums`)."""

    journal: list[dict[str, Any]]
    summary: dict[str, Any]


def no_phone_zone(traits: Mapping[str, Any]) -> str | None:
    """The zone of a person's telephone number where nobody can tell: none."""
    return None


def replay(
    program: Program,
    lines: Iterable[Line],
    people: Iterable[Known] = (),
    *,
    since: Instant | None = None,
    until: Instant | None = None,
    scan_every: TimeDelta = SCAN_EVERY,
    render: Render | None = None,
    phone_zone: PhoneZone = no_phone_zone,
) -> Replayed:
    """Replay a history and keep its journal in memory; `run` is the same with a sink."""
    records: list[dict[str, Any]] = []
    summary = run(
        program,
        lines,
        people,
        records.append,
        since=since,
        until=until,
        scan_every=scan_every,
        render=render,
        phone_zone=phone_zone,
    )
    return Replayed(records, summary)


def run(
    program: Program,
    lines: Iterable[Line],
    people: Iterable[Known],
    sink: journal.Sink,
    *,
    since: Instant | None = None,
    until: Instant | None = None,
    scan_every: TimeDelta = SCAN_EVERY,
    render: Render | None = None,
    phone_zone: PhoneZone = no_phone_zone,
    progress: Callable[[int], object] | None = None,
) -> dict[str, Any]:
    """Replay `lines`, which must be in time order, and return the summary.

    Each record of the journal goes to `sink`, or each line of it (`journal.Lines`). At one instant
    a line is handled before a timer, a
    timer before a look of the scanner. `since` is when the journey was published: the first look
    at a segment (which enrols nobody) is then, and earlier lines are only known, they enter
    nobody; where absent it is the time of the first line. `until` is the last instant to be lived
    through, where absent the time of the last line. `render` says why a message
    cannot go to a person; it is then suppressed. `phone_zone` reads a zone out of traits, for text
    messages. `progress` is called with the number of lines every `PROGRESS_EVERY` lines. Raises
    ValueError for lines out of order and for a `scan_every` that lets no time pass.
    """
    if scan_every <= TimeDelta.ZERO:
        raise ValueError(f'scan_every is "{scan_every}"; give a time longer than zero.')
    stage = _Stage(program, sink, render, phone_zone)
    for known in people:
        stage.know(known)
    last = None
    if since is not None:
        stage.begin(since, scan_every)
    for count, line in enumerate(lines, 1):
        at = line.at
        if until is not None and at > until:
            break
        if last is not None and at < last:
            raise ValueError(_out_of_order(count, line, last))
        if stage.looks is None:
            stage.begin(at, scan_every)
        if since is not None and at < since:
            stage.learn(line)
        else:
            if at is not last and at != last:  # at one instant nothing more is due before it
                stage.live_until(at, inclusive=False)
            stage.take(line)
        last = at
        if progress is not None and count % PROGRESS_EVERY == 0:
            progress(count)
    end = until or max((at for at in (since, last) if at is not None), default=None)
    if end is not None:
        stage.live_until(end, inclusive=True)
    return stage.sums.summary()


def _out_of_order(count: int, line: Line, last: Instant) -> str:
    return (
        f'Line {count} (user "{line.user_id}") is of {line.at}, the line before it of {last}. '
        "Sort the lines by time."
    )


class _Stage:
    """Everybody's place, the timers, and the scanner's looks, at one virtual moment."""

    def __init__(
        self,
        program: Program,
        sink: journal.Sink,
        render: Render | None,
        phone_zone: PhoneZone,
    ) -> None:
        self.program = program
        self.render = render
        self.sums = journal.Sums(program.graph)
        self.write = journal.writer(sink, self.sums)
        self.people: dict[str, Person] = {}
        self.history: dict[str, dict[str, list[Happened]]] = {}
        self.profiles: dict[str, profile.Profile] = {}
        self.instances: dict[str, Instance] = {}
        self.timers: dict[Instant, list[str]] = {}
        self.instants: list[Instant] = []
        self.seen: set[tuple[str, str]] = set()
        self.unnamed: Counter[str] = Counter()
        self.phone_zone = phone_zone
        self.kept = program.needs.events
        self.looks: Looks | None = None
        self.keeps_passes = program.journey_id in program.needs.journeys

    # --- time passes

    def begin(self, at: Instant, scan_every: TimeDelta) -> None:
        """The journey is published: from here on people can enter it."""
        self.looks = Looks(self.program, at, scan_every)
        self.sums.skipped_dates = self.looks.skipped_dates
        for person in self.people.values():
            self.looks.changed(person)

    def live_until(self, moment: Instant, *, inclusive: bool) -> None:
        """Take every timer and look before this moment (and at it), in order."""
        instants, looks = self.instants, self.looks
        while True:
            look = looks.next_at if looks is not None else None
            is_timer = bool(instants) and (look is None or instants[0] <= look)
            due = instants[0] if is_timer else look
            if due is None or due > moment or (due == moment and not inclusive):
                return
            if is_timer:
                self.fire(heapq.heappop(instants))
            elif looks is not None:
                self.enrol(looks)

    def schedule(self, wake_at: Instant, user_id: str) -> None:
        """Timers of one instant stand together, in the order they were set: histories have many."""
        there = self.timers.get(wake_at)
        if there is None:
            self.timers[wake_at] = [user_id]
            heapq.heappush(self.instants, wake_at)
        else:
            there.append(user_id)

    def fire(self, due: Instant) -> None:
        for user_id in self.timers.pop(due):
            instance = self.instances[user_id]
            if instance.wake_at == due:  # else they have moved on since; nobody takes a timer back
                step = walk.resume(self.program, self.people[user_id], instance, due)
                self.settle(user_id, step)

    def enrol(self, looks: Looks) -> None:
        at, found = looks.look()
        self.sums.skipped_dates = looks.skipped_dates
        for user_id in found:
            self.react(user_id, Event(graph.RESERVED_EVENT, at, "", self.entry_properties))

    # --- things happen

    @property
    def entry_properties(self) -> Mapping[str, Any]:
        return {"journey_id": self.program.journey_id}

    def know(self, known: Known) -> None:
        zone = known.timezone or profile.zone_trait(known.traits)
        person = self.person(known.user_id)
        phone = self.phone_zone(known.traits)
        self.people[known.user_id] = person._replace(
            traits=known.traits, timezone=zone, phone_timezone=phone
        )
        self.profiles[known.user_id] = profile.Profile(known.traits)

    def person(self, user_id: str) -> Person:
        found = self.people.get(user_id)
        if found is None:
            history = self.history[user_id] = {}
            found = self.people[user_id] = Person(user_id, NOTHING, None, history)
            self.sums.people.add(user_id)
            self.is_news(found)
        return found

    def learn(self, line: Line) -> None:
        """Something that happened before the journey was published: history, no more."""
        if self.is_new(line.user_id, line.id):
            if line.type == "track":
                self.remember(line, line.id or self.name(line.user_id))
            elif line.type == "identify":
                self.write_traits(line)

    def take(self, line: Line) -> None:
        kind, user_id, at, event, properties, line_id = line[:]  # a plain tuple is taken apart fast
        if not self.is_new(user_id, line_id):
            return
        if kind == "track" and event == graph.RESERVED_EVENT:
            self.refuse(line, "reserved_event")
        elif kind == "track":
            line_id = line_id or self.name(user_id)
            self.remember(line, line_id)
            self.react(user_id, new(Event, (event, at, line_id, properties, None)))
        elif kind == "identify":
            changed = self.write_traits(line)
            if changed:
                self.react(user_id, Event("", at, line_id, properties, changed))
        else:
            self.steer(line)

    def is_new(self, user_id: str, line_id: str) -> bool:
        """False for a message id that this person had before; another's does not count."""
        if not line_id:
            return True
        if (user_id, line_id) in self.seen:
            return False
        self.seen.add((user_id, line_id))
        return True

    def name(self, user_id: str) -> str:
        """An id for an event that has none: "#2" is the second such of this person."""
        self.unnamed[user_id] += 1
        return f"#{self.unnamed[user_id]}"

    def remember(self, line: Line, line_id: str) -> None:
        self.sums.events += 1
        person = self.person(line.user_id)
        if line.event in self.kept:
            happened = Happened(line.at, line.properties, line_id)
            self.history[line.user_id].setdefault(line.event, []).append(happened)
            self.is_news(person)

    def write_traits(self, line: Line) -> dict[str, Any]:
        self.sums.events += 1
        person = self.person(line.user_id)
        stored = self.profiles.get(line.user_id, profile.Profile())
        self.profiles[line.user_id], changed = profile.write(stored, line.properties, line.at)
        if changed:
            self.change(person, changed)
        return changed

    def change(self, person: Person, changed: Mapping[str, Any]) -> None:
        """These traits have other values now; the zone of the profile is one of them."""
        zone, phone = person.timezone, person.phone_timezone
        if "timezone" in changed:
            zone = profile.zone_trait(changed)
        if "phone" in changed:
            phone = self.phone_zone(changed)
        traits = {**person.traits, **changed}
        person = person._replace(traits=traits, timezone=zone, phone_timezone=phone)
        self.people[person.user_id] = person
        self.is_news(person)

    def is_news(self, person: Person) -> None:
        if self.looks is not None:
            self.looks.changed(person)

    def steer(self, line: Line) -> None:
        person, instance = self.person(line.user_id), self.instances.get(line.user_id)
        if line.type == "enter":
            if not isinstance(self.program.trigger, graph.ApiTrigger):
                self.refuse(line, "not_api_trigger")
            else:
                event = Event(graph.RESERVED_EVENT, line.at, line.id, self.entry_properties)
                self.react(line.user_id, event)
        elif instance is None:
            return
        elif line.type == "pause":
            self.settle(line.user_id, walk.pause(person, instance, line.at))
        elif line.type == "resume":
            self.settle(line.user_id, walk.unpause(self.program, person, instance, line.at))
        else:
            self.settle(line.user_id, walk.leave(self.program, person, instance, line.at))

    def refuse(self, line: Line, reason: Refusal) -> None:
        prior = self.instances.get(line.user_id)
        refused: tuple[Entry, ...] = (Refused(self.program.graph.entry_id, reason),)
        self.settle(line.user_id, Step(prior, refused, self.person(line.user_id), line.at))

    def react(self, user_id: str, event: Event) -> None:
        person, instance = self.people[user_id], self.instances.get(user_id)
        for step in walk.react(self.program, person, instance, event):
            self.settle(user_id, step)

    # --- a step is taken

    def settle(self, user_id: str, step: Step) -> None:
        """Keep what a step changed, schedule its timer, write its trail down."""
        instance, trail, person, at = step[:]
        prior = self.instances.get(user_id)
        if person is not self.people[user_id]:
            self.keep_writes(user_id, person, at)
        if instance is not None and instance is not prior:
            self.instances[user_id] = instance
            wake_at = instance.wake_at
            if wake_at is not None and (prior is None or prior.wake_at != wake_at):
                self.schedule(wake_at, user_id)
            if self.keeps_passes:
                self.keep_pass(user_id, instance)
        if self.render is not None:
            trail = self.rendered(step)
        self.write(at, user_id, instance.entry_count if instance else 0, trail)

    def keep_writes(self, user_id: str, walked: Person, at: Instant) -> None:
        """The walk's own writes, of traits and of segments."""
        person = self.people[user_id]
        if walked.segments != person.segments:
            person = person._replace(segments=walked.segments)
        if walked.traits is not person.traits:
            stored = self.profiles.get(user_id, profile.Profile())
            known, nothing = person.traits, object()
            written = {
                name: value
                for name, value in walked.traits.items()
                if known.get(name, nothing) is not value
            }
            self.profiles[user_id], _ = profile.write(stored, written, at)
            self.change(person, written)
        elif person is not self.people[user_id]:
            self.people[user_id] = person
            self.is_news(person)

    def keep_pass(self, user_id: str, instance: Instance) -> None:
        now = Pass(
            instance.journey_id,
            instance.status,
            instance.current_node,
            instance.variant,
            instance.is_holdout,
        )
        person = self.people[user_id]
        self.people[user_id] = person._replace(
            journeys={**person.journeys, instance.journey_id: now}
        )
        self.is_news(self.people[user_id])

    def rendered(self, step: Step) -> tuple[Entry, ...]:
        return tuple(self.judged(entry, step.person) for entry in step.trail)

    def judged(self, entry: Entry, person: Person) -> Entry:
        """The entry, or its suppression where the message's text misses a value."""
        if not isinstance(entry, Message) or self.render is None:
            return entry
        unsent = self.render(entry, person)
        if unsent is None:
            return entry
        return Suppressed(entry.node_id, unsent.reason, "send", entry.message_id, unsent.missing)
