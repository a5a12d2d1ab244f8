"""One person through a graph, waits passed over, every decision told; nothing stored or sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from whenever import Instant

from journeykit_engine import check, walk
from journeykit_engine.graph import RESERVED_EVENT, EventTrigger, Graph
from journeykit_engine.instance import NOTHING, Instance, Person, Wait
from journeykit_engine.journal import effect_record
from journeykit_engine.paths import MAX_STEPS
from journeykit_engine.program import Evaluator, Program, compile_graph, evaluate
from journeykit_engine.rule import Facts, Predicate
from journeykit_engine.shape import Problem
from journeykit_engine.signal import Event
from journeykit_engine.trail import (
    EFFECTS,
    Assigned,
    Branched,
    Entry,
    Exited,
    Failed,
    Message,
    Noted,
    Suppressed,
    Visited,
)

StepKind = Literal["visited", "branch", "effect", "wait", "end", "error"]
CAUSE = "simulation"  # the id of every event that a simulation makes up


class SimulatedStep(NamedTuple):
    """One decision. `effect` is the effect as plain values (None for what is not one);
    `suggestion` says what to do where something is wrong."""

    node_id: str
    label: str
    kind: StepKind
    detail: str
    effect: Mapping[str, Any] | None = None
    suggestion: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `effect` and `suggestion` only where there is one."""
        fields = self._asdict()
        return {
            name: value
            for name, value in fields.items()
            if name not in ("effect", "suggestion") or value
        }


class Simulation(NamedTuple):
    """What would happen to one person.

    `reached` is True when the walk came to an end of the graph, False when the person was turned
    away at the door or the walk stopped early; `outcome` says so in words. `problems` are those
    that block publishing, so that a clean walk down one branch does not read as publishable.
    """

    steps: tuple[SimulatedStep, ...]
    reached: bool
    outcome: str
    sends: int
    simulated_waits: int
    problems: tuple[Problem, ...]
    user_id: str

    @property
    def path(self) -> tuple[str, ...]:
        """The ids of the nodes visited, in order."""
        return tuple(step.node_id for step in self.steps if step.kind in ("visited", "wait"))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as the simulate route answers them."""
        return {
            "steps": [step.to_dict() for step in self.steps],
            "reached": self.reached,
            "outcome": self.outcome,
            "sends": self.sends,
            "simulated_waits": self.simulated_waits,
            "problems": [problem._asdict() for problem in self.problems],
            "user_id": self.user_id,
        }


def simulate(
    graph: Graph,
    person: Person,
    now: Instant,
    *,
    account_timezone: str = "UTC",
    event: Mapping[str, Any] = NOTHING,
    answers: Mapping[str, str] = NOTHING,
    evaluator: Evaluator | None = evaluate,
) -> Simulation:
    """Walk one person through the graph from `now` on, whatever the trigger asks.

    Waits are passed over: the clock jumps to their end. An event wait takes the path of its first
    event, at once; `answers` may choose another by the wait's node id (an event's name, or
    "timeout"). `event` holds the properties of the event that enters. Exit criteria come first and
    the segment rules see the real person; a rule that fails is told as a branch not taken. At most
    100 nodes are visited in all. A draft is walked as far as it is sound.
    """
    return _Simulator(graph, person, account_timezone, evaluator).run(now, event, answers)


class _Simulator:
    def __init__(
        self, graph: Graph, person: Person, account_timezone: str, evaluator: Evaluator | None
    ) -> None:
        self.graph = graph
        self.person = person
        self.problems = check.check(graph).problems
        self.steps: list[SimulatedStep] = []
        self.waits = 0
        self.sends = 0
        self.visited = 0
        self.broken_rule = ""
        careful = None if evaluator is None else self.careful(evaluator)
        self.program = self.compiled(account_timezone, careful)

    def compiled(self, zone: str, evaluator: Evaluator | None) -> Program | None:
        broken = {problem.node_id: problem for problem in reversed(self.problems)}
        broken.pop("", None)
        for harmless in ("UNREACHABLE", "CYCLE", "PATH_TOO_LONG", "DANGLING_EDGE"):
            broken = {node: found for node, found in broken.items() if found.code != harmless}
        try:
            return compile_graph(self.graph, zone, 0, evaluator, broken)
        except (ValueError, KeyError, AssertionError):
            return None

    def careful(self, evaluator: Evaluator) -> Evaluator:
        """The evaluator, with a failure told as an answer of no."""

        def carefully(definition: Mapping[str, Any]) -> Predicate:
            holds = evaluator(definition)

            def ask(facts: Facts) -> bool:
                try:
                    return holds(facts)
                except Exception as error:
                    self.broken_rule = f"{type(error).__name__}: {error}"
                    return False

            return ask

        return carefully

    def run(self, now: Instant, event: Mapping[str, Any], answers: Mapping[str, str]) -> Simulation:
        if self.program is None:
            first = self.problems[0]
            self.add(first.node_id, "error", first.message, suggestion=first.fix)
            return self.ended(False, f"The journey cannot be walked: {first.message}")
        step = self.enter(self.program, now, event)
        while True:
            end = self.tell(step.trail)
            if end is not None:
                return end
            instance = step.instance
            assert instance is not None
            if self.visited >= MAX_STEPS:
                stop = f"The simulation stops after {MAX_STEPS} nodes; the journey goes on."
                self.add(instance.current_node, "end", stop)
                return self.ended(False, stop)
            if instance.wait is None or not self.can_go_on(instance, answers):
                stays = f'The person waits at "{instance.current_node}" without end.'
                self.add(instance.current_node, "end", stays)
                return self.ended(False, stays)
            step = self.pass_over(self.program, step, instance, answers)

    def enter(self, program: Program, now: Instant, properties: Mapping[str, Any]) -> walk.Step:
        trigger = program.trigger
        name = trigger.event if isinstance(trigger, EventTrigger) else RESERVED_EVENT
        return walk.enter(program, self.person, None, Event(name, now, CAUSE, properties))

    def can_go_on(self, instance: Instance, answers: Mapping[str, str]) -> bool:
        wait = instance.wait
        assert wait is not None
        return bool(wait.events) or instance.wake_at is not None

    def pass_over(
        self, program: Program, step: walk.Step, instance: Instance, answers: Mapping[str, str]
    ) -> walk.Step:
        """The wait is over: by its chosen event at once, or by its time."""
        self.waits += 1
        wait = instance.wait
        assert wait is not None
        answer = answers.get(wait.node_id, wait.events[0] if wait.events else "timeout")
        if answer in wait.events:
            event = Event(answer, step.at, CAUSE)
            return walk.answer(program, step.person, instance, event, answer)
        assert instance.wake_at is not None
        return walk.resume(program, step.person, instance, instance.wake_at)

    # --- telling

    def tell(self, trail: Sequence[Entry]) -> Simulation | None:
        """Write down what happened; the whole simulation once it is over."""
        for entry in trail:
            end = self.tell_one(entry)
            if end is not None:
                return end
        return None

    def tell_one(self, entry: Entry) -> Simulation | None:
        match entry:
            case Visited():
                self.visited += 1
                self.add(entry.node_id, "visited", self.graph.by_id[entry.node_id].kind)
            case Wait():
                self.steps.pop()  # the visit of the same node: a wait is told once
                self.add(entry.node_id, "wait", _waits(entry))
            case Branched():
                self.add(entry.node_id, "branch", self.told_port(entry.port))
            case Assigned():
                arm = "held out" if entry.holdout else f'arm "{entry.variant}"'
                self.add(entry.node_id, "branch", arm)
            case Suppressed():
                self.add(entry.node_id, "effect", f"{entry.kind} withheld: {entry.reason}")
            case Failed():
                self.add(entry.node_id, "error", entry.message, suggestion=self.fix(entry))
                return self.ended(False, f'Stopped at "{entry.node_id}": {entry.message}')
            case Noted():
                self.add(entry.node_id, "visited", f"{entry.note}: {entry.detail}")
            case Exited():
                return self.tell_exit(entry)
            case effect if isinstance(effect, EFFECTS):
                self.sends += isinstance(effect, Message)
                record = {**effect_record(effect), "node_id": effect.node_id}
                self.add(effect.node_id, "effect", effect.kind.replace("_", " "), record)
            case _:
                pass
        return None

    def told_port(self, port: str) -> str:
        if not self.broken_rule:
            return port
        told = f"{port}; branch not taken, the rule failed with {self.broken_rule}"
        self.broken_rule = ""
        return told

    def tell_exit(self, entry: Exited) -> Simulation:
        at_the_door = self.visited <= 1 and entry.reason == "exit_criteria"
        words = {
            "completed": f'The person completes the journey at "{entry.node_id}".',
            "no_next_node": f'The path ends at "{entry.node_id}".',
            "goal_reached": f'The goal "{entry.node_id}" is reached.',
            "exit_criteria": f'The exit rule holds: the person leaves at "{entry.node_id}".',
            "max_duration": f'The longest stay is over: the person leaves at "{entry.node_id}".',
        }
        outcome = words.get(entry.reason, entry.reason)
        if at_the_door:
            outcome = "The exit rule holds already: the person leaves at the door."
        self.add(entry.node_id, "end", entry.reason)
        return self.ended(not at_the_door, outcome)

    def fix(self, failed: Failed) -> str:
        fixes = [p.fix for p in self.problems if (p.node_id, p.code) == failed[:2]]
        return fixes[0] if fixes else "Put a wait into the path."

    def add(
        self,
        node_id: str,
        kind: StepKind,
        detail: str,
        effect: Mapping[str, Any] | None = None,
        suggestion: str = "",
    ) -> None:
        node = self.graph.by_id.get(node_id)
        label = node.label if node is not None else ""
        self.steps.append(SimulatedStep(node_id, label, kind, detail, effect, suggestion))

    def ended(self, reached: bool, outcome: str) -> Simulation:
        return Simulation(
            tuple(self.steps),
            reached,
            outcome,
            self.sends,
            self.waits,
            self.problems,
            self.person.user_id,
        )


def _waits(entry: Wait) -> str:
    until = f"until {entry.until}" if entry.until is not None else "without end"
    return f"for {', '.join(entry.events)}, {until}" if entry.events else until
