"""Laws of the walk, for any sound journey and anybody: it ends or waits, it touches nothing it was
given, it answers the same twice, and its trail is a path through the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from whenever import Instant

from journeykit_engine import walk
from journeykit_engine.graph import Graph
from journeykit_engine.instance import Happened, Instance, Person, Wait
from journeykit_engine.paths import MAX_STEPS
from journeykit_engine.program import Program, compile_graph
from journeykit_engine.signal import Event
from journeykit_engine.trail import Assigned, Entered, Entry, Exited, Noted, Refused, Visited, Woke
from journeykit_engine.walk import Step
from tests import graphs
from tests.engine.walking import START, later

ZONES = (None, "", "UTC", "Asia/Tehran", "America/New_York", "Pacific/Apia", "Mars/Phobos")
SIGNALS = ("purchase", "reply", "inbound_email", "meeting_booked", "opt_out", "task_completed")

traits = st.dictionaries(graphs.words, graphs.values, max_size=4)
happened = st.builds(Happened, st.integers(-9, 0).map(lambda day: later(days=day)), traits)


@st.composite
def people(draw: st.DrawFn) -> Person:
    return Person(
        draw(graphs.texts),
        draw(traits),
        draw(st.sampled_from(ZONES)),
        draw(st.dictionaries(graphs.events, st.lists(happened, max_size=3), max_size=3)),
        frozenset(draw(st.sets(st.integers(1, 99), max_size=3))),
        phone_timezone=draw(st.sampled_from(ZONES)),
    )


class Happening(NamedTuple):
    """After `hours` something happens: an event, a trait write ("identify"), the due timer or one
    that comes before its time ("timer", "early"), a pause or its end."""

    what: str
    hours: int
    traits: dict[str, Any]


happenings = st.builds(
    Happening,
    st.sampled_from((*SIGNALS, "identify", "timer", "timer", "timer", "early", "pause", "unpause")),
    st.integers(0, 99),
    traits,
)


def taken(program: Program, person: Person, now: Instance, what: Happening, at: Instant) -> Any:
    """The call that this happening makes."""
    match what.what:
        case "timer":
            return lambda: (walk.resume(program, person, now, max(now.wake_at or at, at)),)
        case "early":
            return lambda: (walk.resume(program, person, now, at),)
        case "pause":
            return lambda: (walk.pause(person, now, at),)
        case "unpause":
            return lambda: (walk.unpause(program, person, now, at),)
        case "identify":
            event = Event("", at, "m2", {}, what.traits)
        case name:
            event = Event(name, at, "m2", what.traits)
    return lambda: walk.react(program, person, now, event)


def twice(call: Callable[[], tuple[Step, ...]], *inputs: object) -> tuple[Step, ...]:
    """The answer, which is the same both times and leaves the inputs as they were."""
    before = repr(inputs)
    first, second = call(), call()
    assert repr(inputs) == before
    assert repr(first) == repr(second)
    return first


@given(graphs.valid_graphs(), people(), st.lists(happenings, max_size=6))
@settings(max_examples=60)
def test_any_walk_of_anybody_through_any_sound_journey(
    graph: Graph, person: Person, story: list[Happening]
) -> None:
    program = compile_graph(graph, "Europe/Berlin")
    document, at = graph.to_json(), START
    entering = Event("cart", START, "m1", {"amount": 5})
    steps = twice(lambda: (walk.enter(program, person, None, entering),), person, entering)
    for what in story:
        for step in steps:
            is_sound(program, step)
        if steps:
            person, now = steps[-1].person, steps[-1].instance
        assert now is not None
        at = max(at, now.updated_at).add(hours=what.hours)
        steps = twice(taken(program, person, now, what, at), person, now, what)
    for step in steps:
        is_sound(program, step)

    assert graph.to_json() == document


def is_sound(program: Program, step: Step) -> None:
    assert step.failure is None
    assert len(step.visits) <= MAX_STEPS
    assert set(step.visits) <= set(program.graph.by_id)
    told = [entry for entry in step.trail if not isinstance(entry, Noted)]
    if not told:
        return
    assert step.instance is not None
    if isinstance(told[0], Refused):
        assert len(told) == 1
        return
    assert step.instance.updated_at == step.at
    is_well_formed(told)
    is_a_path(program.graph, told)
    is_in_keeping(step.instance, told)


def is_well_formed(told: Sequence[Entry]) -> None:
    """Entered or woke first, parked or exited last, neither anywhere else."""
    assert isinstance(told[0], Entered | Woke)
    assert isinstance(told[-1], Wait | Exited)
    firsts = [entry for entry in told if isinstance(entry, Entered | Woke)]
    lasts = [entry for entry in told if isinstance(entry, Wait | Exited)]
    assert (len(firsts), len(lasts)) == (1, 1)


def is_a_path(graph: Graph, told: Iterable[Entry]) -> None:
    """Each visit is one edge from the node before; each entry is about the node it stands at."""
    stands = ""
    for entry in told:
        if isinstance(entry, Visited) and stands and entry.node_id != graph.entry_id:
            assert entry.node_id in [port.target for port in graph.by_id[stands].ports()] + [
                branch.next for branch in first_branch(graph, stands)
            ]
        if isinstance(entry, Visited | Entered | Woke):
            stands = entry.node_id
        assert entry.node_id == stands


def first_branch(graph: Graph, node_id: str) -> list[Any]:
    """Where an unwired holdout goes."""
    split = graph.by_id[node_id].split
    return [] if split is None else split.branches[:1]


def is_in_keeping(now: Instance, told: Sequence[Entry]) -> None:
    """The instance says what the trail says."""
    last = told[-1]
    assert now.current_node == last.node_id
    if isinstance(last, Exited):
        assert (now.exit_reason, now.wait, now.wake_at) == (last.reason, None, None)
        assert now.status in ("completed", "exited")
    else:
        assert (now.status, now.exit_reason, now.wait) == ("waiting", "", last)
        assert now.wake_at is None or now.wake_at > now.updated_at
    for entry in told:
        if isinstance(entry, Assigned):
            assert entry.node_id in now.assignments
            assert not entry.holdout or now.is_holdout


@given(graphs.valid_graphs(), people(), st.integers(0, 10**6))
@settings(max_examples=25)
def test_a_poll_that_comes_twice_takes_a_timer_once(
    graph: Graph, person: Person, late: int
) -> None:
    program = compile_graph(graph)
    entered = walk.enter(program, person, None, Event("cart", START, "m1"))
    now = entered.instance
    if now is None or now.wake_at is None:
        return
    at = now.wake_at.add(seconds=late)
    woke = walk.resume(program, entered.person, now, at)
    assert woke.trail
    assert woke.instance is not None

    assert walk.resume(program, woke.person, woke.instance, at).trail == ()


@given(graphs.valid_graphs(), people(), happenings)
@settings(max_examples=25)
def test_a_late_poller_takes_the_branch_of_a_punctual_one(
    graph: Graph, person: Person, what: Happening
) -> None:
    """An event after the time of a wait finds it closed by its time, polled before or not."""
    program = compile_graph(graph.model_copy(update={"exit_criteria": None}))
    entered = walk.enter(program, person, None, Event("cart", START, "m1"))
    now = entered.instance
    if now is None or now.wake_at is None or what.what not in SIGNALS:
        return
    event = Event(what.what, now.wake_at.add(milliseconds=400), "m2", what.traits)
    steps = walk.react(program, entered.person, now, event)
    if steps and program.graph.max_duration_days == 0:
        woke = steps[0].trail[0]
        assert not isinstance(woke, Woke) or woke == Woke(now.current_node, "timeout", "")
