"""One person's walk of nine visits, as a ratio to a bare loop over tuples in the same run.

The walk enters by an event, meets a condition, a split with a holdout, a message, a wait of a day,
is woken by its timer, and goes on through a switch, a message and a goal to the exit, with exit
criteria, the longest stay and the re-entry rule asked on the way. The bare loop is what one would
write by hand for this one journey: nodes, state and results are tuples, its rules stand in the
code; it visits the same nine nodes, asks the same questions, hashes the same keys, pauses and
wakes. `transitions` and SpiffWorkflow walk nine states, without any rule.

    python3 dev.py bench walk
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from hashlib import md5
from typing import Any

from whenever import Instant, TimeDelta

from journeykit_engine import walk
from journeykit_engine.graph import Graph
from journeykit_engine.instance import Happened, Person
from journeykit_engine.program import Program, compile_graph
from journeykit_engine.signal import Event

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


# --- the bare loop: nodes, state, visits and messages are tuples, every rule is written into it

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
LONGEST = TimeDelta(hours=24 * 30)


def bare_walk(person: Person, state: Bare, at: Instant) -> tuple[Bare, list[Bare]]:
    """From the node in `state` to the wait or the exit: the new state and what happened."""
    user, entry, node, entered_at, held, arm = state
    told: list[Bare] = []
    if person.events.get("purchase") or at >= entered_at + LONGEST:
        return (user, entry, "", entered_at, held, arm), [("exited", node)]
    while True:
        told.append(("visited", node))
        here = BARE[node]
        kind = here[0]
        if kind == "send":
            if not held:
                name = f"j12.v3.{node}.{user}.e{entry}"
                told.append(("send", node, name, here[2], here[3], "marketing", 50))
            node = here[1]
        elif kind == "condition":
            age = person.traits.get(here[3])
            node = here[1] if age is not None and age >= here[4] else here[2]
            told.append(("branched", node))
        elif kind == "switch":
            plan = person.traits.get(here[2])
            for case in here[3]:
                if plan == case:
                    told.append(("branched", case))
                    break
            node = here[1]
        elif kind == "split":
            name = user.encode()
            share = int.from_bytes(md5(name + here[2], usedforsecurity=False).digest()[:4], "big")
            held = share < here[4]
            if not held:
                digest = md5(name + here[3], usedforsecurity=False).digest()
                arm = "A" if int.from_bytes(digest[:4], "big") < here[5] else "B"
            told.append(("assigned", node, arm, held))
            node = here[1]
        elif kind == "wait":
            until = at + here[2]
            told.append(("waiting", node, until))
            return (user, entry, here[1], entered_at, held, arm, until), told
        elif kind == "goal":
            reached = person.events.get(here[2])
            told.append(("branched", "on_reached" if reached else "next"))
            node = here[1]
        elif kind == "exit":
            told.append(("exited", node))
            return (user, entry, "", entered_at, held, arm, None), told
        else:
            node = here[1]


def bare(crowd: Crowd) -> int:
    happened = 0
    for person, event in crowd:
        at = event.at
        state, told = bare_walk(person, (person.user_id, 1, "trigger", at, False, ""), at)
        _, later = bare_walk(person, state[:-1], DAY_LATER)
        happened += len(told) + len(later)
    return happened


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
    from SpiffWorkflow.specs.Simple import Simple
    from SpiffWorkflow.specs.WorkflowSpec import WorkflowSpec
    from SpiffWorkflow.workflow import Workflow

    spec = WorkflowSpec(name="nine", addstart=True)
    before = spec.start
    for name in list(BARE)[1:]:
        task = Simple(spec, name)
        before.connect(task)
        before = task

    def run() -> None:
        for _ in range(count):
            flow = Workflow(spec)
            flow.run_all()
            assert flow.is_completed()

    return run


def seconds(run: Callable[[], object]) -> float:
    """Of the processor, so that a neighbour on the machine counts as little as can be."""
    began = time.process_time()
    run()
    return time.process_time() - began


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description="One walk against a bare loop")
    parser.add_argument("--people", type=int, default=1_000, help="walked in each round")
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--peers", action="store_true", help="also transitions and SpiffWorkflow")
    given = parser.parse_args(words)
    program, crowd = compile_graph(Graph.parse(GRAPH)), people(given.people)
    ratios, ours_rate, bare_rate = [], [], []
    gc.collect()
    gc.freeze()
    for _ in range(given.rounds):
        mine = seconds(lambda: ours(program, crowd))
        base = seconds(lambda: bare(crowd))
        ratios.append(base / mine)
        ours_rate.append(len(crowd) / mine)
        bare_rate.append(len(crowd) / base)
    rate = statistics.median(ours_rate)
    print(f"walks a second: ours {rate:,.0f}, bare loop {statistics.median(bare_rate):,.0f}")
    print(f"ours / bare loop: {statistics.median(ratios):.2f} (goal 0.50)")
    if given.peers:
        few = 500
        for name, make, goal in (
            ("transitions", with_transitions, 8),
            ("SpiffWorkflow", with_spiff, 50),
        ):
            run = make(few)
            peer = few / min(seconds(run) for _ in range(3))
            print(f"{name}: {peer:,.0f} a second; ours / {name}: {rate / peer:.1f} (goal {goal})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
