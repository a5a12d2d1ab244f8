"""One person's walk of nine visits, as a ratio to a bare loop over tuples in the same run.

The walk enters by an event, meets a condition, a split with a holdout, a message, a wait of a day,
is woken by its timer, and goes on through a switch, a message and a goal to the exit, with exit
criteria, the longest stay and the re-entry rule asked on the way. The bare loop is what one would
write by hand for this one journey and for people without a zone of their own: nodes, states and
what happened are tuples, its rules stand in the code. It says the same of everybody, entry for
entry, which is asserted before anything is measured. SpiffWorkflow walks these nodes with their
three choices and the pause, `transitions` nine states in a row; neither tells what happened.

    python3 dev.py bench walk
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable
from math import inf
from operator import truediv
from statistics import median
from typing import Any

from whenever import Instant, TimeDelta

from journeykit_engine import walk
from journeykit_engine.allot import md5
from journeykit_engine.graph import Graph
from journeykit_engine.instance import NOTHING, Happened, Person
from journeykit_engine.journal import TELLERS
from journeykit_engine.program import Program, compile_graph
from journeykit_engine.signal import Event
from journeykit_engine.template import event_values

START = Instant("2026-06-01T10:00:00Z")
DAY_LATER = Instant("2026-06-02T10:00:00Z")
GRAPH = {
    "journey_id": 12,
    "version": 3,
    "entry_id": "trigger",
    "entry_rule": "every_time",
    "cooldown_hours": 24,
    "max_duration_days": 30,
    "exit_criteria": {"root": {"event": "purchase", "op": "gte", "count": 1, "since": "entry"}},
    "nodes": [
        {
            "id": "trigger",
            "kind": "trigger",
            "next": "grown_up",
            "trigger": {"kind": "event", "event": "cart"},
        },
        {
            "id": "grown_up",
            "kind": "condition",
            "condition": {
                "definition": {"root": {"trait": "age", "op": "gte", "value": 18}},
                "on_true": "test",
                "on_false": "end",
            },
        },
        {
            "id": "test",
            "kind": "split",
            "split": {
                "branches": [
                    {"weight": 1, "variant": "A", "next": "first"},
                    {"weight": 1, "variant": "B", "next": "first"},
                ],
                "holdout_percent": 10,
            },
        },
        {
            "id": "first",
            "kind": "action",
            "next": "day",
            "action": {"kind": "send", "channel": "push", "template_id": 3},
        },
        {
            "id": "day",
            "kind": "wait",
            "next": "plan",
            "wait": {"kind": "duration", "amount": 1, "unit": "day"},
        },
        {
            "id": "plan",
            "kind": "switch",
            "switch": {
                "cases": [
                    {
                        "label": "free",
                        "definition": {"root": {"trait": "plan", "op": "eq", "value": "free"}},
                        "next": "second",
                    },
                    {
                        "label": "premium",
                        "definition": {"root": {"trait": "plan", "op": "eq", "value": "premium"}},
                        "next": "second",
                    },
                ],
                "default": "second",
            },
        },
        {
            "id": "second",
            "kind": "action",
            "next": "bought",
            "action": {"kind": "send", "channel": "email", "template_id": 7},
        },
        {
            "id": "bought",
            "kind": "goal",
            "next": "end",
            "goal": {"event": "purchase", "window_days": 7},
        },
        {"id": "end", "kind": "exit"},
    ],
}
VISITS = 9
Crowd = list[tuple[Person, Event]]


def people(count: int) -> Crowd:
    traits = {"age": 30, "plan": "premium"}
    before = {"cart": [Happened(START, {}, "m0")]}
    return [
        (Person(f"u_{i}", traits, None, before), Event("cart", START, f"m{i}"))
        for i in range(count)
    ]


def ours(program: Program, crowd: Crowd) -> int:
    visits = 0
    for person, event in crowd:
        (entered,) = walk.react(program, person, None, event)
        assert entered.instance is not None
        ended = walk.resume(program, person, entered.instance, DAY_LATER)
        visits += len(entered.trail) + len(ended.trail)
    return visits


# --- the bare loop: nodes, states and what happened are tuples, every rule is written into it

Bare = tuple[Any, ...]
BARE: dict[str, Bare] = {
    "trigger": ("trigger", "grown_up"),
    "grown_up": ("condition", "test", "end", "age", 18),
    "test": ("split", "first", b"\x1f12:test", b"\x1f12:test:branch", 429496729, 2147483648),
    "first": ("send", "day", "push", 3),
    "day": ("wait", "plan", TimeDelta(hours=24)),
    "plan": ("switch", "second", "plan", ("free", "premium")),
    "second": ("send", "bought", "email", 7),
    "bought": ("goal", "end", "purchase"),
    "end": ("exit",),
}
LONGEST, COOLDOWN, GOAL_WINDOW = (TimeDelta(hours=24 * days) for days in (30, 1, 7))


def bare_enter(person: Person, state: Bare | None, event: Event) -> tuple[Bare | None, list[Bare]]:
    """Start a pass, where the event asks for one and the rule of re-entry lets it."""
    at = event.at
    if event.name != "cart" or event.changed is not None:
        return state, []
    if state is not None and state[2] == "waiting":
        return state, [("refused", "trigger", "already_inside")]
    if state is not None and at < state[5] + COOLDOWN:
        return state, [("refused", "trigger", "cooldown")]
    entry = 1 if state is None else state[1] + 1
    kept = (person.user_id, entry, "active", "trigger", at, at, None, event.id, "", False, "", None)
    return bare_walk(person, kept, at, event, [("entered", "trigger", event.id)])


def bare_wake(person: Person, state: Bare, at: Instant) -> tuple[Bare, list[Bare]]:
    """Take the timer of a parked person, where it is due."""
    if state[6] is None or at < state[6]:
        return state, []
    return bare_walk(person, state, at, None, [])


def bare_walk(  # noqa: C901 - one loop that knows everything is what it is to be compared with
    person: Person, state: Bare, at: Instant, event: Event | None, told: list[Bare]
) -> tuple[Bare, list[Bare]]:
    """From the place in `state` to the wait or the end: the new state and what happened."""
    user, entry, _, node, entered_at, _, _, cause, arm, held, _, _ = state
    ended = ""
    for one in person.events.get("purchase", ()):
        if one.at >= entered_at and (not one.id or one.id != cause):
            ended = "exit_criteria"
    if event is None:
        if not ended and at >= entered_at + LONGEST:
            ended = "max_duration"
        told.append(("woke", node, "exit" if ended else "timeout", ""))
        start = BARE[node][1]
    else:
        start = node
    while not ended:
        node = start
        told.append(("visited", node))
        here = BARE[node]
        kind = here[0]
        if kind == "send":
            who = user
            if "." in user or "%" in user:
                who = user.replace("%", "%25").replace(".", "%2E")
            name = f"j12.v3.{node}.{who}.e{entry}"
            if held:
                told.append(("suppressed", node, "holdout", "send", name, ()))
            else:
                data = event_values(event.properties) if event and event.properties else NOTHING
                sent = (
                    "effect",
                    name,
                    data,
                    node,
                    here[2],
                    here[3],
                    "marketing",
                    50,
                    "default",
                    (),
                )
                told.append(sent)
            start = here[1]
        elif kind == "condition":
            age = person.traits.get(here[3])
            if isinstance(age, (int, float)) and age is not True and here[4] <= age < inf:
                told.append(("branched", node, "on_true"))
                start = here[1]
            else:
                told.append(("branched", node, "on_false"))
                start = here[2]
        elif kind == "switch":
            plan = person.traits.get(here[2])
            for case in here[3]:
                if plan == case:
                    told.append(("branched", node, case))
                    break
            else:
                told.append(("branched", node, "default"))
            start = here[1]
        elif kind == "split":
            name = user.encode()
            share = int.from_bytes(md5(name + here[2], usedforsecurity=False).digest()[:4], "big")
            held = share < here[4]
            if not held:
                digest = md5(name + here[3], usedforsecurity=False).digest()
                arm = "A" if int.from_bytes(digest[:4], "big") < here[5] else "B"
            told.append(("assigned", node, arm, held))
            start = here[1]
        elif kind == "wait":
            until = at + here[2]
            told.append(("waiting", node, "timer", at, until, ()))
            wake = entered_at + LONGEST
            wake = until if until < wake else wake
            state = (
                user,
                entry,
                "waiting",
                node,
                entered_at,
                at,
                wake,
                cause,
                arm,
                held,
                "",
                until,
            )
            return state, told
        elif kind == "goal":
            reached = False
            for one in person.events.get(here[2], ()):
                if entered_at <= one.at <= entered_at + GOAL_WINDOW:
                    reached = reached or not one.id or one.id != cause
            told.append(("branched", node, "on_reached" if reached else "next"))
            start = here[1]
            if reached:
                ended = "goal_reached"
        elif kind == "exit":
            ended = "completed"
        else:
            start = here[1]
    told.append(("exited", node, ended))
    status = "completed" if ended in ("completed", "goal_reached") else "exited"
    state = (user, entry, status, node, entered_at, at, None, cause, arm, held, ended, None)
    return state, told


def bare(crowd: Crowd) -> int:
    happened = 0
    for person, event in crowd:
        state, told = bare_enter(person, None, event)
        assert state is not None
        _, later = bare_wake(person, state, DAY_LATER)
        happened += len(told) + len(later)
    return happened


def assert_same(program: Program, crowd: Crowd) -> None:
    """Both say the same of everybody, entry for entry and field for field."""
    for person, event in crowd:
        (entered,) = walk.react(program, person, None, event)
        assert entered.instance is not None
        ended = walk.resume(program, person, entered.instance, DAY_LATER)
        state, told = bare_enter(person, None, event)
        assert state is not None
        assert (state, told) == as_bare(entered)
        assert bare_wake(person, state, DAY_LATER) == as_bare(ended)


def as_bare(step: walk.Step) -> tuple[Bare, list[Bare]]:
    """A step as the bare loop would tell it."""
    now = step.instance
    assert now is not None
    place = (now.user_id, now.entry_count, now.status, now.current_node, now.entered_at)
    times = (now.updated_at, now.wake_at, now.entered_by, now.variant, now.is_holdout)
    end = (now.exit_reason, now.wait.until if now.wait else None)
    return place + times + end, [(TELLERS[type(entry)][0], *entry) for entry in step.trail]


# --- the peers


def with_transitions(count: int) -> Callable[[], object]:
    from transitions import Machine

    names = list(BARE)

    class Passer:
        state: str
        visits: int

        def arrived(self) -> None:
            self.visits += 1

    machine = Machine(states=names, initial=names[0], after_state_change="arrived", model=None)
    machine.add_ordered_transitions(trigger="go", loop=False)

    def run() -> None:
        for _ in range(count):
            passer = Passer()
            passer.visits = 1
            machine.add_model(passer)
            while passer.visits < VISITS:
                passer.go()  # type: ignore[attr-defined]
            machine.remove_model(passer)

    return run


def with_spiff(count: int) -> Callable[[], object]:
    from SpiffWorkflow import TaskState
    from SpiffWorkflow.workflow import Workflow

    spec = spiff_journey()

    def run() -> None:
        for _ in range(count):
            flow = Workflow(spec)
            flow.task_tree.children[0].set_data(age=30, plan="premium", purchases=0)
            flow.run_all(halt_on_manual=True)
            (parked,) = flow.get_tasks(state=TaskState.READY)
            assert parked.task_spec.name == "day"
            parked.run()
            flow.run_all()
            assert flow.is_completed()

    return run


def spiff_journey() -> Any:
    """The same journey as far as its core can say it: the condition, the switch and the goal are
    choices, the wait is a task that halts."""
    from SpiffWorkflow.operators import Attrib, Equal, GreaterThan
    from SpiffWorkflow.specs.ExclusiveChoice import ExclusiveChoice
    from SpiffWorkflow.specs.Simple import Simple
    from SpiffWorkflow.specs.WorkflowSpec import WorkflowSpec

    spec = WorkflowSpec(name="nine", addstart=True)
    grown_up, plan, bought = (ExclusiveChoice(spec, name) for name in SPIFF_CHOICES)
    day = Simple(spec, "day", manual=True)
    test, first, second, end = (Simple(spec, name) for name in SPIFF_SIMPLE)
    spec.start.connect(grown_up)
    grown_up.connect_if(GreaterThan(Attrib("age"), 17), test)
    grown_up.connect(end)
    for before, after in ((test, first), (first, day), (day, plan), (second, bought)):
        before.connect(after)
    plan.connect_if(Equal(Attrib("plan"), "free"), second)
    plan.connect(second)
    bought.connect_if(GreaterThan(Attrib("purchases"), 0), end)
    bought.connect(end)
    return spec


SPIFF_CHOICES = ("grown_up", "plan", "bought")
SPIFF_SIMPLE = ("test", "first", "second", "end")


def seconds(run: Callable[[], object]) -> float:
    """Of the processor, so that a neighbour on the machine counts as little as can be."""
    began = time.process_time()
    run()
    return time.process_time() - began


def rates(
    one: Callable[[], object], two: Callable[[], object], walks: int, others: int, rounds: int
) -> tuple[list[float], list[float]]:
    """Walks a second of both, in turn, so that what slows the machine slows both."""
    pairs = [(walks / seconds(one), others / seconds(two)) for _ in range(rounds)]
    return [first for first, _ in pairs], [second for _, second in pairs]


PEERS = (("transitions", with_transitions, 8), ("SpiffWorkflow", with_spiff, 50))


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description="One walk against a bare loop")
    parser.add_argument("--people", type=int, default=1_000, help="walked in each round")
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--peers", action="store_true", help="also transitions and SpiffWorkflow")
    given = parser.parse_args(words)
    program, crowd = compile_graph(Graph.parse(GRAPH)), people(given.people)
    assert_same(program, crowd)
    gc.collect()
    gc.freeze()
    mine, base = rates(
        lambda: ours(program, crowd), lambda: bare(crowd), len(crowd), len(crowd), given.rounds
    )
    print(f"walks a second: ours {median(mine):,.0f}, bare loop {median(base):,.0f}")
    print(f"ours / bare loop: {median(map(truediv, mine, base)):.2f} (goal 0.50)")
    for name, make, goal in PEERS if given.peers else ():
        few, run = given.people // 10, make(given.people // 10)
        mine, peer = rates(lambda: ours(program, crowd), run, len(crowd), few, given.rounds // 5)
        ratio = median(map(truediv, mine, peer))
        print(f"{name}: {median(peer):,.0f} a second; ours / {name}: {ratio:.1f} (goal {goal})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
