"""The nodes of a journey, ready to run: one class a kind, each knows what its node does.

A node is run with a `Walker`, which carries one person through one step; it returns the node after
it, or None where the pass ends or the person is parked. Nothing here reads a clock or draws a lot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from whenever import Instant, TimeDelta

from journeykit_engine import allot, graph, signal, timing
from journeykit_engine.facts import Predicate
from journeykit_engine.instance import (
    NOTHING,
    Assignment,
    Happened,
    Person,
    Wait,
)
from journeykit_engine.profile import zone_trait
from journeykit_engine.signal import Event
from journeykit_engine.template import event_values
from journeykit_engine.trail import (
    AddToSegment,
    Assigned,
    Branched,
    CallWebhook,
    Entry,
    Exited,
    Failed,
    GiveTask,
    Medium,
    Message,
    Noted,
    StartJourney,
    Suppressed,
    Visited,
    Woke,
    WriteTrait,
)

if TYPE_CHECKING:
    from journeykit_engine.program import Program

BEST_TIME_DAYS = 90  # how far back opens and clicks count
BEST_TIME_LEAST = 5  # opens and clicks; fewer say nothing about a habit
OPENED_OR_CLICKED = (
    "message_opened",
    "message_clicked",
    "Email Opened",
    "Email Link Clicked",
    "Push Notification Tapped",
)


new: Callable[..., Any] = tuple.__new__  # a named tuple in half the time of its own call
Outbound = Message | CallWebhook | StartJourney | GiveTask


class Walker:
    """One person during one step; the only thing that changes while a walk runs.

    It answers the questions of a rule itself (`Facts`), so that a condition costs no snapshot.
    """

    __slots__ = (
        "assignments",
        "at",
        "entered_at",
        "entered_by",
        "entry_count",
        "event",
        "exited",
        "failed",
        "held_open",
        "is_holdout",
        "person",
        "program",
        "suffix",
        "trail",
        "variant",
        "visits",
        "wait",
        "zone_memo",
    )

    def __init__(
        self,
        program: Program,
        person: Person,
        at: Instant,
        event: Event | None,
        entry_count: int,
        entered_at: Instant,
        entered_by: str,
        variant: str = "",
        is_holdout: bool = False,
        assignments: Mapping[str, Assignment] = NOTHING,
        visits: Mapping[str, int] = NOTHING,
    ) -> None:
        self.program = program
        self.person = person
        self.at = at
        self.event = event
        self.entry_count = entry_count
        self.entered_at = entered_at
        self.entered_by = entered_by
        self.variant = variant
        self.is_holdout = is_holdout
        self.assignments = assignments
        self.visits = visits
        self.trail: list[Entry] = []
        self.wait: Wait | None = None
        self.exited: Exited | None = None  # why the pass ends, where a node says so
        self.held_open = False  # the step was held for its window, which has opened
        self.failed = False
        self.suffix = ""
        self.zone_memo = ""

    @property
    def account_zone(self) -> str:
        return self.program.zone

    @property
    def zone(self) -> str:
        """The zone whose clock counts for this person: theirs, or the account's where the
        settings say "sender" or the profile has none that exists."""
        timezone = self.person.timezone
        if timezone is None:
            return self.program.zone
        if not self.zone_memo:
            self.zone_memo = self.zone_of(timezone)
        return self.zone_memo

    def zone_of(self, timezone: str) -> str:
        program = self.program
        if program.sender_clock:
            return program.zone
        found, unusable = timing.first_zone((timezone, program.zone))
        self.note_zones(unusable)
        return found

    def note_zones(self, unusable: tuple[str, ...]) -> None:
        """Say once in a step that a zone name does not exist."""
        for name in unusable:
            note = Noted("", "bad_timezone", name)
            if note not in self.trail:
                self.trail.append(note)

    def named(self) -> str:
        """The end of every name that is made in this step: the person and the pass."""
        user_id = self.person.user_id
        if "." in user_id or "%" in user_id:
            user_id = part(user_id)
        self.suffix = f"{user_id}.e{self.entry_count}"
        return self.suffix

    def count(self, node_id: str) -> None:
        self.visits = {**self.visits, node_id: self.visits.get(node_id, 0) + 1}

    def visit_mark(self, node_id: str) -> str:
        """What tells the second and later visits of a node apart from the first."""
        seen = self.visits.get(node_id, 0)
        return f".n{seen}" if seen > 1 else ""

    def event_properties(self) -> Mapping[str, Any]:
        event = self.event
        return event_values(event.properties) if event and event.properties else NOTHING


def part(text: str) -> str:
    """A part of a message id: "." separates parts, so inside one it is percent-encoded."""
    if "." in text or "%" in text:
        return text.replace("%", "%25").replace(".", "%2E")
    return text


class Op:
    """A node ready to run. `run` does what the node does and returns the stop after it; None
    ends the pass, or parks the person where `walker.wait` was set."""

    __slots__ = ("after", "counted", "ends", "id", "stop", "timed_out", "visited")

    def __init__(self, node: graph.Node) -> None:
        self.id = node.id
        self.visited = Visited(node.id)
        self.ends = Exited(node.id, "no_next_node")
        self.timed_out = Woke(node.id, "timeout", "")
        self.counted = False
        self.stop: Stop = (self.visited, self.run, self)
        self.after: Stop | None = None

    def run(self, walker: Walker) -> Stop | None:
        return self.after

    def count_visits(self) -> None:
        """For a node on a loop, which may be met again in one entry."""
        self.counted = True
        self.stop = (self.visited, self.run_counted, self)

    def run_counted(self, walker: Walker) -> Stop | None:
        walker.count(self.id)
        return self.run(walker)


Stop = tuple[Visited, Callable[[Walker], "Stop | None"], Op]
"""A node as the walk meets it: what to tell, what to run, and the node. A plain tuple, because
taking it apart costs a third of asking a node, of one of many classes, for its parts."""


class BrokenOp(Op):
    """A node of a draft that cannot be run; it stops the walk with the reason."""

    __slots__ = ("failed",)
    failed: Failed

    def run(self, walker: Walker) -> Stop | None:
        walker.trail.append(self.failed)
        walker.failed = True
        return None


class ExitOp(Op):
    """The end of a path."""

    __slots__ = ()

    def __init__(self, node: graph.Node) -> None:
        super().__init__(node)
        self.ends = Exited(node.id, "completed")


class DurationOp(Op):
    """Waits a fixed time."""

    __slots__ = ("ends_at",)
    ends_at: timing.Adder

    def run(self, walker: Walker) -> Stop | None:
        at = walker.at
        zone = walker.program.zone if walker.person.timezone is None else walker.zone
        until = self.ends_at(at, zone)
        walker.wait = new(Wait, (self.id, "timer", at, until, ()))
        return None


class UntilTimeOp(Op):
    """Waits for a wall-clock time."""

    __slots__ = ("days", "hour", "minute")
    hour: int
    minute: int
    days: frozenset[int] | None

    def run(self, walker: Walker) -> Stop | None:
        until = timing.next_time(walker.at, self.hour, self.minute, self.days, walker.zone)
        walker.wait = Wait(self.id, "timer", walker.at, until)
        return None


class BestTimeOp(Op):
    """Waits for the hour in which the person opens most."""

    __slots__ = ("fallback_hour",)
    fallback_hour: int

    def run(self, walker: Walker) -> Stop | None:
        hour = best_hour(walker.person, walker.at, walker.zone)
        until = timing.next_time(
            walker.at, self.fallback_hour if hour is None else hour, 0, None, walker.zone
        )
        walker.wait = Wait(self.id, "timer", walker.at, until)
        return None


class EventWaitOp(Op):
    """Waits for events, each with its own way on."""

    __slots__ = ("events", "late", "matches", "timeout", "ways")
    ways: dict[str, Stop | None]
    events: tuple[str, ...]
    timeout: timing.Adder | None
    late: Stop | None
    matches: Callable[[Mapping[str, Any]], bool] | None

    def run(self, walker: Walker) -> Stop | None:
        until = None if self.timeout is None else self.timeout(walker.at, walker.zone)
        walker.wait = new(Wait, (self.id, "event", walker.at, until, self.events))
        return None

    def woken(self, branch: str) -> Stop | None:
        """The node after a wait that closed on this branch."""
        return self.late if branch == "timeout" else self.ways[branch]

    def branch_for(self, event: Event, names: tuple[str, ...]) -> str | None:
        """The listed event that this one answers, None where it answers none."""
        name = signal.first(self.events, names)
        if name is None or self.matches is None or self.matches(event.properties):
            return name
        return None


class ChoiceOp(Op):
    """A condition or a switch: the first predicate that holds decides, else the last way."""

    __slots__ = ("otherwise", "ways")
    ways: list[tuple[Predicate, Branched, Stop | None]]
    otherwise: tuple[Branched, Stop | None]

    def run(self, walker: Walker) -> Stop | None:
        for holds, branched, after in self.ways:
            if holds(walker):
                walker.trail.append(branched)
                return after
        branched, after = self.otherwise
        walker.trail.append(branched)
        return after


class SplitOp(Op):
    """Gives an arm by a hash of the person and the node; a holdout takes its own way, or walks
    the first branch with the sends withheld. Where no hash can be made nobody is treated.

    A person held out by an earlier split walks the arm of the hash and stays held out: `withheld`
    tells so, since the sends of that arm never reach them."""

    __slots__ = ("arms", "draw", "withheld")
    draw: Callable[[bytes], int]
    arms: dict[int, tuple[Assigned, Assignment, Stop | None]]
    withheld: dict[int, tuple[Assigned, Assignment, Stop | None]]

    def run(self, walker: Walker) -> Stop | None:
        try:
            arm = self.draw(walker.person.user_id.encode())
        except UnicodeEncodeError as error:
            arm = allot.HELD_OUT
            walker.trail.append(
                Failed(self.id, "ALLOCATION", f"The user id cannot be hashed: {error.reason}.")
            )
        if walker.is_holdout and arm != allot.HELD_OUT:
            assigned, assignment, after = self.withheld[arm]
        else:
            assigned, assignment, after = self.arms[arm]
            walker.is_holdout = arm == allot.HELD_OUT
        walker.variant = assignment.variant
        kept = walker.assignments
        walker.assignments = {**kept, self.id: assignment} if kept else {self.id: assignment}
        walker.trail.append(assigned)
        return after


class GoalOp(Op):
    """Asks whether the event happened between entry and the end of the goal's window."""

    __slots__ = ("event", "matches", "missed", "on_reached", "reached", "window")
    event: str
    window: TimeDelta | None
    matches: Callable[[Mapping[str, Any]], bool] | None
    on_reached: Stop | None
    reached: Branched
    missed: Branched

    def run(self, walker: Walker) -> Stop | None:
        happened = walker.person.events.get(self.event)
        if not happened or not any(self.counts(one, walker) for one in happened):
            walker.trail.append(self.missed)
            return self.after
        walker.trail.append(self.reached)
        if self.on_reached is None:
            walker.exited = Exited(self.id, "goal_reached")
        return self.on_reached

    def counts(self, happened: Happened, walker: Walker) -> bool:
        """At or after entry, within the window, not the event that caused the entry itself."""
        if happened.at < walker.entered_at:
            return False
        if self.window is not None and happened.at > walker.entered_at + self.window:
            return False
        if happened.id and happened.id == walker.entered_by:
            return False
        return self.matches is None or self.matches(happened.properties)


class WriteTraitOp(Op):
    """Writes a trait; later conditions of the same walk see it."""

    __slots__ = ("effect",)
    effect: WriteTrait

    def run(self, walker: Walker) -> Stop | None:
        traits = {**walker.person.traits, self.effect.trait: self.effect.value}
        walker.person = walker.person._replace(traits=traits)
        if self.effect.trait == "timezone":
            walker.person = walker.person._replace(timezone=zone_trait(traits))
            walker.zone_memo = ""
        walker.trail.append(self.effect)
        return self.after


class AddToSegmentOp(Op):
    """Adds to a segment; later conditions of the same walk see it."""

    __slots__ = ("effect",)
    effect: AddToSegment

    def run(self, walker: Walker) -> Stop | None:
        segments = walker.person.segments | {self.effect.segment_id}
        walker.person = walker.person._replace(segments=segments)
        walker.trail.append(self.effect)
        return self.after


class OutboundOp(Op):
    """Something that leaves the house: withheld from held-out people, and for outreach held at
    the step until the send window opens. `make` builds the effects from their name."""

    __slots__ = ("action", "has_window", "is_text_message", "make", "prefix")
    action: str
    prefix: str
    make: Callable[[str, str, Mapping[str, Any]], Sequence[Outbound]]
    is_text_message: bool
    has_window: bool

    def run(self, walker: Walker) -> Stop | None:
        if self.has_window and not self.may_go(walker):
            return None if walker.wait is not None else self.after
        mark = walker.visit_mark(self.id) if self.counted else ""
        name = self.prefix + (walker.suffix or walker.named())
        effects = self.make(name, mark, walker.event_properties())
        if walker.is_holdout:
            for effect in effects:
                walker.trail.append(Suppressed(self.id, "holdout", self.action, effect[0]))
        else:
            walker.trail.extend(effects)
        return self.after

    def may_go(self, walker: Walker) -> bool:
        """False when the step must wait for its window (parked) or can never go (suppressed).
        The jitter is added once, when the step is met, to the moment it could go at the earliest
        (else all who come at night would go at the opening); when it runs the window is asked
        again."""
        windows, jitter = self.windows(walker), walker.program.jitter
        opening = timing.next_opening(windows, walker.at)
        if opening is not None and jitter is not None and not walker.held_open:
            share = allot.jitter_share(walker.person.user_id, self.id, walker.entry_count)
            later = timing.jitter(opening, jitter, share, walker.zone, walker.program.workweek)
            opening = timing.next_opening(windows, later)
        walker.held_open = False
        if opening is None:
            walker.trail.append(Suppressed(self.id, "window_never_opens", self.action))
            return False
        if opening > walker.at:
            walker.wait = Wait(self.id, "window", walker.at, opening)
            return False
        return True

    def windows(self, walker: Walker) -> list[timing.Window]:
        program, person = walker.program, walker.person
        if not self.is_text_message:
            window = program.window
            return [] if window is None else [window._replace(zone=walker.zone)]
        own = (person.timezone, person.phone_timezone, program.zone)
        recipients, unusable = timing.first_zone(own)
        walker.note_zones(unusable)
        found = [timing.sms_window(recipients)]
        if program.window is not None:
            zone = program.zone if program.sender_clock else recipients
            found.append(program.window._replace(zone=zone))
        return found


class MessageOp(OutboundOp):
    """A message by one channel, by far the most frequent thing that leaves the house."""

    __slots__ = ("fields",)
    fields: tuple[str, str, int | None, str, int, str, tuple[Medium, ...]]

    def run(self, walker: Walker) -> Stop | None:
        if self.has_window and not self.may_go(walker):
            return None if walker.wait is not None else self.after
        name = self.prefix + (walker.suffix or walker.named())
        if self.counted:
            name += walker.visit_mark(self.id)
        if walker.is_holdout:
            walker.trail.append(new(Suppressed, (self.id, "holdout", "send", name, ())))
        else:
            fields = (name, walker.event_properties()) + self.fields  # noqa: RUF005 - unpacking takes twice as long
            walker.trail.append(new(Message, fields))
        return self.after


def best_hour(person: Person, now: Instant, zone: str) -> int | None:
    """The hour of the day, in this zone, with the most opens and clicks of the last 90 days; of
    equal hours the earlier. None with fewer than five: that is no habit yet."""
    since = now - TimeDelta(hours=24 * BEST_TIME_DAYS)
    hours = [
        happened.at.to_tz(zone).hour
        for name in OPENED_OR_CLICKED
        for happened in person.events.get(name, ())
        if since < happened.at <= now
    ]
    if len(hours) < BEST_TIME_LEAST:
        return None
    return max(sorted(set(hours)), key=hours.count)
