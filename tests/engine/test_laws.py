"""Laws of the replay, held against two slow ones: minute by minute in plain words, and everybody
alone by the doors of the walk, with every rule asked of everybody at every look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from whenever import Instant, TimeDelta

from journeykit_engine import graph as documents
from journeykit_engine import journal, replay, rule, timing, walk
from journeykit_engine.graph import RESERVED_EVENT, Graph
from journeykit_engine.instance import Happened, Instance, Pass, Person
from journeykit_engine.program import Program, compile_graph
from journeykit_engine.replay import Known, Line
from journeykit_engine.signal import Event
from journeykit_engine.trail import Refused
from journeykit_engine.walk import Step
from tests import graphs

Json = dict[str, Any]
START = Instant("2026-06-01T00:00:00Z")
HOUR = TimeDelta(hours=1)


# --- the first oracle: one simple journey in plain words, minute by minute

A_LONG_TIME = 10_000  # minutes


class Part(NamedTuple):
    """One node of the simple journey: a timed wait, an event wait or a message."""

    kind: str
    minutes: int = 0  # of a wait; 0 is an event wait without a time-out
    event: str = ""
    late: int = 0  # where an event wait goes when it is too late: an index of a part


class Happening(NamedTuple):
    minute: int
    user_id: str
    event: str


Told = tuple[int, str, str, str, str]  # minute, person, word, node, and what it says


@st.composite
def simple_parts(draw: st.DrawFn) -> list[Part]:
    count = draw(st.integers(1, 4))
    minutes = st.integers(1, 90)
    found = []
    for index in range(count):
        kind = draw(st.sampled_from(["wait", "for", "send"]))
        if kind == "wait":
            found.append(Part(kind, draw(minutes)))
        elif kind == "for":
            timeout = draw(st.one_of(st.just(0), minutes))
            late = draw(st.integers(index + 1, count))
            found.append(Part(kind, timeout, draw(st.sampled_from("ab")), late))
        else:
            found.append(Part(kind))
    return found


happenings = st.lists(
    st.builds(
        Happening, st.integers(0, 200), st.sampled_from(["u_1", "u_2"]), st.sampled_from("aabs")
    ),
    max_size=12,
).map(lambda found: sorted(found, key=lambda happening: happening.minute))


def simple_graph(parts: Sequence[Part], entry_rule: str, cooldown_hours: int) -> Graph:
    names = [f"n{i}" for i in range(len(parts))] + ["end"]
    trigger = {"kind": "event", "event": "a"}
    nodes: list[Json] = [{"id": "t", "kind": "trigger", "next": "n0", "trigger": trigger}]
    for index, part in enumerate(parts):
        node: Json = {"id": names[index], "next": names[index + 1]}
        if part.kind == "send":
            send = {"kind": "send", "channel": "push", "template_id": 1}
            nodes.append({**node, "kind": "action", "action": send})
        elif part.kind == "wait":
            timed = {"kind": "duration", "amount": part.minutes, "unit": "minute"}
            nodes.append({**node, "kind": "wait", "wait": timed})
        else:
            wait: Json = {"kind": "for_event", "event": part.event}
            if part.minutes:
                wait |= {"timeout": f"{part.minutes}m", "on_timeout": names[part.late]}
            nodes.append({**node, "kind": "wait", "wait": wait})
    nodes.append({"id": "end", "kind": "exit"})
    return Graph.parse(
        {
            "journey_id": 1,
            "version": 1,
            "entry_id": "t",
            "entry_rule": entry_rule,
            "cooldown_hours": cooldown_hours,
            "settings": {"exit_on": ["s"]},
            "nodes": nodes,
        }
    )


class Pedestrian:
    """Walks the simple journey as one would by hand."""

    def __init__(self, user_id: str, parts: Sequence[Part], entry_rule: str, cooldown: int) -> None:
        self.user_id = user_id
        self.parts = parts
        self.entry_rule = entry_rule
        self.cooldown = cooldown
        self.here: int | None = None  # the part that holds the person; None outside
        self.until = A_LONG_TIME
        self.ended_at: int | None = None
        self.told: list[Told] = []

    def tell(self, minute: int, what: str, node: str, saying: str = "") -> None:
        self.told.append((minute, self.user_id, what, node, saying))

    def takes(self, minute: int, event: str) -> None:
        if self.here is not None:
            part = self.parts[self.here]
            if event == "s":
                self.tell(minute, "woke", f"n{self.here}", "exit")
                self.leaves(minute, f"n{self.here}", "exit_criteria")
            elif part.kind == "for" and part.event == event:
                self.tell(minute, "woke", f"n{self.here}", event)
                self.goes_on(minute, self.here + 1)
        if event == "a":
            self.asks(minute)

    def asks(self, minute: int) -> None:
        if self.here is not None:
            self.tell(minute, "refused", "t", "already_inside")
        elif self.ended_at is not None and self.entry_rule == "once":
            self.tell(minute, "refused", "t", "once")
        elif self.ended_at is not None and minute < self.ended_at + 60 * self.cooldown:
            self.tell(minute, "refused", "t", "cooldown")
        else:
            self.tell(minute, "entered", "t")
            self.tell(minute, "visited", "t")
            self.goes_on(minute, 0)

    def goes_on(self, minute: int, index: int) -> None:
        for here in range(index, len(self.parts)):
            part = self.parts[here]
            self.tell(minute, "visited", f"n{here}")
            if part.kind == "send":
                self.tell(minute, "effect", f"n{here}", "send")
            else:
                self.here = here
                self.until = minute + part.minutes if part.minutes else A_LONG_TIME
                self.tell(minute, "waiting", f"n{here}")
                return
        self.tell(minute, "visited", "end")
        self.leaves(minute, "end", "completed")

    def leaves(self, minute: int, node: str, reason: str) -> None:
        self.here, self.until, self.ended_at = None, A_LONG_TIME, minute
        self.tell(minute, "exited", node, reason)

    def ticks(self, minute: int) -> None:
        while self.here is not None and self.until == minute:
            part = self.parts[self.here]
            self.tell(minute, "woke", f"n{self.here}", "timeout")
            self.goes_on(minute, part.late if part.kind == "for" else self.here + 1)


def in_short(record: Json) -> Told:
    since = Instant(record["at"]) - START
    saying = (
        record.get("branch") or record.get("reason") or record.get("effect", {}).get("kind", "")
    )
    minute = round(since.total("minutes"))
    return (minute, record["user_id"], record["what"], record["node_id"], saying)


@given(simple_parts(), happenings, st.sampled_from(["once", "every_time"]), st.integers(0, 2))
@settings(max_examples=150)
def test_a_replay_is_what_one_would_work_out_by_hand(
    parts: list[Part], history: list[Happening], entry_rule: str, cooldown: int
) -> None:
    last = 300
    by_hand: list[Told] = []
    for user_id in ("u_1", "u_2"):
        walker = Pedestrian(user_id, parts, entry_rule, cooldown)
        own = [happening for happening in history if happening.user_id == user_id]
        for minute in range(last + 1):
            for happening in own:
                if happening.minute == minute:
                    walker.takes(minute, happening.event)
            walker.ticks(minute)
        by_hand += walker.told

    lines = [Line("track", h.user_id, START.add(minutes=h.minute), h.event) for h in history]
    program = compile_graph(simple_graph(parts, entry_rule, cooldown))
    found = replay.replay(program, lines, until=START.add(minutes=last))
    short = [in_short(record) for record in found.journal]
    assert sorted(short, key=lambda told: told[1]) == by_hand
    assert [told[0] for told in short] == sorted(told[0] for told in short)


# --- the second oracle: any journey, one person alone, everything asked at every look


class Alone:
    """One person with nobody else in the world; times are found by asking, not by a queue."""

    def __init__(self, program: Program, known: Known, exists: bool) -> None:
        self.program = program
        self.history: dict[str, list[Happened]] = {}
        zone = known.timezone or known.traits.get("timezone")
        self.person = Person(known.user_id, known.traits, zone, self.history)
        self.exists = exists
        self.instance: Instance | None = None
        self.was_inside: bool | None = None
        self.unnamed = 0
        self.records: list[Json] = []
        self.write = journal.writer(self.records.append, journal.Sums(program.graph))

    def keep(self, *steps: Step) -> None:
        for step in steps:
            self.person = self.person._replace(
                traits=step.person.traits, segments=step.person.segments
            )
            self.instance = one = step.instance
            if one is not None:
                own = Pass(
                    one.journey_id, one.status, one.current_node, one.variant, one.is_holdout
                )
                self.person = self.person._replace(journeys={one.journey_id: own})
            self.write(step.at, self.person.user_id, one.entry_count if one else 0, step.trail)

    def knows(self, line: Line) -> Json | None:
        """Take a line into history and traits: the traits it changed, None for an event."""
        if line.type == "track":
            happened = Happened(line.at, line.properties, line.id)
            self.history.setdefault(line.event, []).append(happened)
            return None
        if line.type != "identify":
            return None
        traits = self.person.traits
        changed = {
            name: value
            for name, value in line.properties.items()
            if name not in traits or not rule.equal(traits[name], value)
        }
        zone = changed.get("timezone", self.person.timezone)
        self.person = self.person._replace(traits={**traits, **changed}, timezone=zone)
        return changed

    def named(self, line: Line) -> Line:
        """The line, with an id where an event has none: "#2" is the second such of the person."""
        if line.type != "track" or line.id:
            return line
        self.unnamed += 1
        return line._replace(id=f"#{self.unnamed}")

    def takes(self, line: Line) -> None:
        self.exists = True
        line = self.named(line)
        changed = self.knows(line)
        program, person, instance = self.program, self.person, self.instance
        if line.type == "track":
            event = Event(line.event, line.at, line.id, line.properties)
            self.keep(*walk.react(program, person, instance, event))
        elif line.type == "identify":
            if changed:
                event = Event("", line.at, line.id, line.properties, changed)
                self.keep(*walk.react(program, person, instance, event))
        elif line.type == "enter":
            self.is_asked_in(line)
        elif instance is not None and line.type == "pause":
            self.keep(walk.pause(person, instance, line.at))
        elif instance is not None and line.type == "resume":
            self.keep(walk.unpause(program, person, instance, line.at))
        elif instance is not None:
            self.keep(walk.leave(program, person, instance, line.at))

    def is_asked_in(self, line: Line) -> None:
        if isinstance(self.program.trigger, documents.ApiTrigger):
            self.enrols(line.at, line.id)
        else:
            refused = Refused(self.program.graph.entry_id, "not_api_trigger")
            self.keep(Step(self.instance, (refused,), self.person, line.at))

    def enrols(self, at: Instant, id: str = "") -> None:
        event = Event(RESERVED_EVENT, at, id, {"journey_id": self.program.journey_id})
        self.keep(*walk.react(self.program, self.person, self.instance, event))

    def ticks(self, at: Instant) -> None:
        """Every timer due by now, one after the other."""
        while True:
            one = self.instance
            if one is None or one.wake_at is None or one.wake_at > at or one.paused_at:
                return
            step = walk.resume(self.program, self.person, one, one.wake_at)
            self.keep(step)
            if step.failure:
                return

    def looked_at(self, at: Instant) -> None:
        inside = self.exists and self.holds(at)
        was, self.was_inside = self.was_inside, inside
        match self.program.trigger:
            case documents.SegmentEnter():
                asked = was is False and inside
            case documents.SegmentExit():
                asked = was is True and not inside
            case _:
                asked = inside
        if asked:
            self.enrols(at)

    def holds(self, at: Instant) -> bool:
        trigger, zone = self.program.trigger, self.program.zone
        definition = getattr(trigger, "definition", None) or {"root": {}}
        own, _ = timing.first_zone((self.person.timezone, zone))
        facts = rule.Snapshot(self.person, at, zone, own)
        if isinstance(trigger, documents.DateTrigger):
            day = timing.read_date(self.person.traits.get(trigger.trait))
            if day is None:
                return False
            wanted = at.to_tz(zone).date().add(days=trigger.offset_days)
            born = day if (day.month, day.day) != (2, 29) else day.replace(day=28)
            same = (born.month, born.day) == (wanted.month, wanted.day)
            if not (same if trigger.annual else day == wanted):
                return False
        return rule.matches(rule.parse(definition), facts)


def look_times(program: Program, since: Instant, until: Instant) -> list[Instant]:
    """Every look of the trigger, found by asking each half hour what the account's clock shows."""
    trigger = program.trigger
    if isinstance(trigger, documents.SegmentEnter | documents.SegmentExit):
        return list(spaced(since, until, HOUR))
    hours: Sequence[int] = ()
    if isinstance(trigger, documents.SegmentPeriodic):
        hours = trigger.hours
    elif isinstance(trigger, documents.DateTrigger):
        hours = (trigger.hour,)
    clocks = ((at, at.to_tz(program.zone)) for at in spaced(since, until, TimeDelta(minutes=30)))
    return [at for at, clock in clocks if clock.minute == 0 and clock.hour in hours]


def spaced(since: Instant, until: Instant, step: TimeDelta) -> Iterator[Instant]:
    while since <= until:
        yield since
        since += step


def is_news(line: Line) -> bool:
    """A call about somebody before the journey was published tells nothing about them."""
    return line.type in ("track", "identify")


def walked_alone(
    program: Program,
    known: Known,
    exists: bool,
    lines: Sequence[Line],
    since: Instant,
    until: Instant,
) -> list[Json]:
    person = Alone(program, known, exists)
    looks = set(look_times(program, since, until))
    own = [line for line in lines if line.user_id == known.user_id]
    for line in own:
        if line.at < since and is_news(line):
            person.exists = True
            person.knows(person.named(line))
    for at in sorted(looks | {line.at for line in own if since <= line.at <= until}):
        person.ticks(at.subtract(nanoseconds=1))
        for line in own:
            if line.at == at:
                person.takes(line)
        person.ticks(at)
        if at in looks:
            person.looked_at(at)
    person.ticks(until)
    return person.records


USERS = ("u_1", "u.2%")
DAYS = 4
moments = st.integers(0, DAYS * 48).map(lambda n: START.add(minutes=30 * n))
traits = st.dictionaries(
    graphs.words | st.just("timezone"),
    graphs.scalars | st.sampled_from(["1990-06-03", "2026-06-02", "free", "pro"]),
    max_size=2,
).map(lambda found: {**found, "timezone": "Asia/Tehran"} if "timezone" in found else found)
properties = st.dictionaries(graphs.words, graphs.scalars, max_size=2)


@st.composite
def histories(draw: st.DrawFn, trigger_events: tuple[str, ...]) -> list[Line]:
    user_ids = st.sampled_from(USERS)
    events = graphs.events | st.sampled_from(trigger_events) if trigger_events else graphs.events
    line = st.one_of(
        st.builds(
            lambda u, a, e, p: Line("track", u, a, e, p), user_ids, moments, events, properties
        ),
        st.builds(lambda u, a, p: Line("identify", u, a, "", p), user_ids, moments, traits),
        st.builds(
            lambda u, a, kind: Line(kind, u, a),
            user_ids,
            moments,
            st.sampled_from(["enter", "pause", "resume", "eject"]),
        ),
    )
    found = draw(st.lists(line, max_size=12))
    return sorted(found, key=lambda one: one.at)


@st.composite
def replays(draw: st.DrawFn, graph: st.SearchStrategy[Graph]) -> tuple[Any, ...]:
    document = draw(graph)
    trigger = document.trigger
    entering = (trigger.event,) if isinstance(trigger, documents.EventTrigger) else ()
    known = [Known(USERS[0], draw(traits), draw(st.sampled_from([None, "America/New_York"])))]
    since = START.add(hours=draw(st.sampled_from([0, 1, 30])))
    return compile_graph(document), known, draw(histories(entering)), since


WINDOWED: list[Json] = [
    {"event": "purchase", "within": "2h"},
    {"none": [{"event": "purchase", "within": "5h"}]},
    {"event": "purchase", "within": "90m", "op": "gte", "count": 2},
    {"all": [{"trait": "plan", "op": "eq", "value": "pro"}, {"event": "purchase", "within": "1d"}]},
    {"local": "hour", "op": "between", "value": [9, 17]},
    {"trait": "plan", "op": "neq", "value": "pro"},
    {"trait": "birthday", "op": "days_until", "value": 1, "annual": True},
    {"event": "purchase", "aggregate": "last_at", "op": "before_last", "value": "3h"},
    {"journey": 7, "status": "completed"},
    {"segment": 4},
]


@st.composite
def scanned_graphs(draw: st.DrawFn) -> Graph:
    """Triggers of the scanner over rules that time alone turns, and a walk that writes."""
    body = draw(st.sampled_from(WINDOWED))
    body = {"not": body} if draw(st.booleans()) else body
    kind = draw(st.sampled_from(["segment_enter", "segment_exit", "segment_periodic", "date"]))
    trigger: Json = {"kind": kind, "definition": {"root": body}}
    if kind == "segment_periodic":
        trigger["hours"] = draw(st.lists(st.integers(0, 23), min_size=1, max_size=4, unique=True))
    elif kind == "date":
        trigger |= {"trait": "birthday", "offset_days": draw(st.integers(0, 2))}
        trigger |= {"annual": draw(st.booleans()), "hour": draw(st.integers(0, 23))}
    write = draw(
        st.sampled_from(
            [
                {"kind": "update_trait", "trait": "plan", "value": "pro"},
                {"kind": "add_to_segment", "segment_id": 4},
                {"kind": "send", "channel": "sms", "template_id": 1},
            ]
        )
    )
    minutes = draw(st.sampled_from([30, 60, 100]))
    nodes = [
        {"id": "t", "kind": "trigger", "next": "a", "trigger": trigger},
        {"id": "a", "kind": "action", "next": "w", "action": write},
        {
            "id": "w",
            "kind": "wait",
            "next": "end",
            "wait": {"kind": "duration", "amount": minutes, "unit": "minute"},
        },
        {"id": "end", "kind": "exit"},
    ]
    return Graph.parse(
        {
            "journey_id": 7,
            "entry_id": "t",
            "entry_rule": "every_time",
            "reentry_window": draw(st.sampled_from(["", "day"])),
            "settings": {"timezone": draw(st.sampled_from(["UTC", "Asia/Tehran"]))},
            "nodes": nodes,
        }
    )


UNTIL = START.add(hours=24 * (DAYS + 2))


def replayed(drawn: tuple[Any, ...]) -> tuple[replay.Replayed, dict[str, list[Json]]]:
    """The replay of everybody, and each person's walk alone."""
    program, known, lines, since = drawn
    found = replay.replay(program, lines, known, since=since, until=UNTIL)
    alone = {
        user_id: walked_alone(
            program,
            next((one for one in known if one.user_id == user_id), Known(user_id)),
            user_id == USERS[0],
            lines,
            since,
            UNTIL,
        )
        for user_id in USERS
    }
    return found, alone


def by_person(found: replay.Replayed) -> dict[str, list[Json]]:
    return {user: [r for r in found.journal if r["user_id"] == user] for user in USERS}


@given(replays(scanned_graphs()))
@settings(max_examples=60)
def test_the_scanner_finds_whom_asking_everybody_every_time_finds(drawn: tuple[Any, ...]) -> None:
    found, alone = replayed(drawn)
    assert by_person(found) == alone


@given(replays(graphs.valid_graphs(max_nodes=8)))
@settings(max_examples=40)
def test_any_replay_is_everybodys_walk_alone(drawn: tuple[Any, ...]) -> None:
    """So a person's journal depends on nobody else, and `needs` names all that a walk reads."""
    found, alone = replayed(drawn)
    assert by_person(found) == alone
    times = [Instant(record["at"]) for record in found.journal]
    assert times == sorted(times)


@given(replays(graphs.valid_graphs(max_nodes=8)))
@settings(max_examples=20)
def test_the_summary_is_a_recount_of_the_journal(drawn: tuple[Any, ...]) -> None:
    program, known, lines, since = drawn
    found = replay.replay(program, lines, known, since=since, until=UNTIL)
    count = Counter((record["what"], record["node_id"]) for record in found.journal)
    words = Counter(record["what"] for record in found.journal)
    arms: dict[str, Counter[str]] = {}
    for record in found.journal:
        if record["what"] == "assigned":
            arm = "holdout" if record["holdout"] else record["variant"]
            arms.setdefault(record["node_id"], Counter())[arm] += 1
    summary = found.summary
    assert summary["entries"] == words["entered"]
    assert summary["messages"] == sum(
        record["what"] == "effect" and record["effect"]["kind"] == "send"
        for record in found.journal
    )
    assert summary["events"] == sum(is_news(line) for line in lines)
    assert summary["people"] == len(
        {USERS[0], *(line.user_id for line in lines if is_news(line) or line.at >= since)}
    )
    assert summary["exits"] == Counter(
        record["reason"] for record in found.journal if record["what"] == "exited"
    )
    assert list(summary["nodes"]) == [node.id for node in program.graph.nodes]
    for node_id, sums in summary["nodes"].items():
        assert sums == {
            "entered": count["visited", node_id],
            "exited": count["exited", node_id],
            "suppressed": count["suppressed", node_id],
            "waiting": count["waiting", node_id] - count["woke", node_id],
        }
    for node_id, sums in summary["arms"].items():
        assert sums == {name: arms.get(node_id, Counter())[name] for name in sums}
        assert sum(sums.values()) == count["assigned", node_id]


@given(replays(graphs.valid_graphs(max_nodes=8)))
@settings(max_examples=20)
def test_a_replay_changes_nothing_it_was_given_and_can_be_repeated(drawn: tuple[Any, ...]) -> None:
    program, known, lines, since = drawn
    before = repr((known, lines))
    first = replay.replay(program, lines, known, since=since, until=UNTIL)
    assert replay.replay(program, lines, known, since=since, until=UNTIL) == first
    assert repr((known, lines)) == before


@given(replays(graphs.valid_graphs(max_nodes=8)), st.integers(0, DAYS * 48))
@settings(max_examples=20)
def test_a_replay_that_stops_earlier_is_the_beginning_of_the_longer_one(
    drawn: tuple[Any, ...], half_hours: int
) -> None:
    program, known, lines, since = drawn
    until = START.add(minutes=30 * half_hours)
    whole = replay.replay(program, lines, known, since=since, until=UNTIL)
    part = replay.replay(program, lines, known, since=since, until=until)
    assert part.journal == [r for r in whole.journal if Instant(r["at"]) <= until]
