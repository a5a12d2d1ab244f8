"""One person through a graph, waits passed over, every decision told; nothing stored or sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, assert_never

from whenever import Instant

from journeykit_engine import check, walk
from journeykit_engine.graph import RESERVED_EVENT, EventTrigger, ForEvent, Graph, Node
from journeykit_engine.instance import NOTHING, Happened, Instance, Person, Wait
from journeykit_engine.journal import effect_record
from journeykit_engine.paths import MAX_STEPS
from journeykit_engine.program import Evaluator, Program, compile_graph, evaluate
from journeykit_engine.rule import Facts, Predicate
from journeykit_engine.shape import Problem
from journeykit_engine.signal import Event
from journeykit_engine.trail import (
    AddToSegment,
    Assigned,
    Branched,
    CallWebhook,
    Effect,
    Entered,
    Entry,
    Exited,
    Failed,
    GiveTask,
    Message,
    Noted,
    Paused,
    Refused,
    Resumed,
    StartJourney,
    Suppressed,
    Visited,
    Woke,
    WriteTrait,
)

StepKind = Literal["visited", "branch", "effect", "wait", "end", "error"]
MAY_STAND = frozenset({"UNREACHABLE", "CYCLE", "PATH_TOO_LONG", "DANGLING_EDGE", "BAD_VARIANT"})
"""Codes of problems with which a node can still be walked; at any other the walk stops and says so.
"""
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
    away at the door or the walk stopped early; `outcome` says so in words. `problems` are those of
    the whole graph that block publishing: one branch that works says nothing about the others.
    """

    steps: tuple[SimulatedStep, ...]
    reached: bool
    outcome: str
    sends: int
    simulated_waits: int
    problems: tuple[Problem, ...]
    user_id: str
    taken: tuple[tuple[str, str], ...] = ()
    """The ports taken, as (node id, port), where a node has more than one way out."""

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
    100 nodes are visited in all. A draft is walked as far as it is sound. ValueError for an answer
    that its wait does not know.
    """
    _refuse_answers(graph, answers)
    return _Simulator(graph, person, account_timezone, evaluator).run(now, event, answers)


def _refuse_answers(graph: Graph, answers: Mapping[str, str]) -> None:
    for node_id, answer in answers.items():
        node = graph.by_id.get(node_id)
        if node is None or not isinstance(node.wait, ForEvent):
            raise ValueError(
                f'"{node_id}" is no event wait of this journey; answers are by the id of one.'
            )
        events = list(node.wait.on) if node.wait.on is not None else [node.wait.event]
        if answer not in (*events, "timeout"):
            known = ", ".join(f'"{event}"' for event in events)
            raise ValueError(
                f'"{answer}" is no answer to the wait "{node_id}"; give {known} or "timeout".'
            )


class _Simulator:
    def __init__(
        self, graph: Graph, person: Person, account_timezone: str, evaluator: Evaluator | None
    ) -> None:
        self.graph = graph
        self.person = person
        self.problems = check.check(graph).problems
        self.steps: list[SimulatedStep] = []
        self.taken: list[tuple[str, str]] = []
        self.event_waits = {n.id for n in graph.nodes if isinstance(n.wait, ForEvent)}
        self.refused = ""  # why the trigger would not let this event enter, until it is told
        self.waits = 0
        self.sends = 0
        self.visited = 0
        self.failures: dict[str, str] = {}  # of rules, by the id of their node ("": the exit rule)
        self.owners = {id(d): node_id for node_id, _, d in graph.definitions()}
        careful = None if evaluator is None else self.careful(evaluator)
        self.program = self.compiled(account_timezone, careful)

    def compiled(self, zone: str, evaluator: Evaluator | None) -> Program | None:
        """The journey with every node that has a problem replaced by one that stops the walk."""
        standing = [p for p in self.problems if p.node_id and p.code not in MAY_STAND]
        broken = {problem.node_id: problem for problem in reversed(standing)}
        fields: dict[str, Any] = {name: getattr(self.graph, name) for name in Graph.model_fields}
        fields["nodes"] = [_sound_part(node, broken) for node in self.graph.nodes]
        if any(problem.path.startswith("exit_criteria") for problem in self.problems):
            fields["exit_criteria"] = None
        try:
            return compile_graph(Graph.model_construct(**fields), zone, 0, evaluator, broken)
        except ValueError:
            return None

    def careful(self, evaluator: Evaluator) -> Evaluator:
        """The evaluator, with a failure told as an answer of no."""

        def carefully(definition: Mapping[str, Any]) -> Predicate:
            node_id = self.owners.get(id(definition), "")
            try:
                holds = evaluator(definition)
            except Exception as error:
                told = _told_error(error)
                return lambda facts: self.fails(node_id, told)

            def ask(facts: Facts) -> bool:
                try:
                    return holds(facts)
                except Exception as error:
                    return self.fails(node_id, _told_error(error))

            return ask

        return carefully

    def fails(self, node_id: str, told: str) -> bool:
        self.failures[node_id] = told
        return False

    def run(self, now: Instant, event: Mapping[str, Any], answers: Mapping[str, str]) -> Simulation:
        if self.program is None:
            return self.unsound()
        step = self.enter(self.program, now, event)
        while True:
            end = self.tell(step.trail)
            if end is not None:
                return end
            instance = step.instance
            assert instance is not None and instance.wait is not None
            answer = self.answer(instance.wait, answers)
            if answer == "timeout" and instance.wake_at is None:
                stays = f'The person waits at "{instance.current_node}" without end.'
                self.add(instance.current_node, "end", stays)
                return self.ended(False, stays)
            step = self.pass_over(self.program, step, instance, answer)

    def unsound(self) -> Simulation:
        """The journey as a whole cannot be walked: there is no way in, for instance."""
        first = next((p for p in self.problems if not p.node_id), self.problems[0])
        self.add(first.node_id, "error", first.message, suggestion=first.fix)
        return self.ended(False, f"The journey cannot be walked: {first.message}")

    def enter(self, program: Program, now: Instant, properties: Mapping[str, Any]) -> walk.Step:
        trigger = program.trigger
        name = trigger.event if isinstance(trigger, EventTrigger) else RESERVED_EVENT
        event = Event(name, now, CAUSE, properties)
        if properties and not walk.triggers(program, event):
            self.refused = (
                "The trigger's filter does not hold for this event; in earnest it enters nobody."
            )
        self.person = _having(self.person, event)
        return walk.enter(program, self.person, None, event)

    def answer(self, wait: Wait, answers: Mapping[str, str]) -> str:
        return answers.get(wait.node_id, wait.events[0] if wait.events else "timeout")

    def pass_over(
        self, program: Program, step: walk.Step, instance: Instance, answer: str
    ) -> walk.Step:
        """The wait is over: by its chosen event at once, or by its time."""
        self.waits += 1
        if answer != "timeout":
            event = Event(answer, step.at, f"{CAUSE} {self.waits}")
            step = step._replace(person=_having(step.person, event))
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
            if "" in self.failures and self.steps:
                self.suggest(f"The exit rule failed with {self.failures.pop('')}; it did not hold.")
        if trail and isinstance(trail[-1], Failed):
            return self.ended(False, f'Stopped at "{trail[-1].node_id}": {trail[-1].message}')
        return None

    def tell_one(self, entry: Entry) -> Simulation | None:
        match entry:
            case Visited():
                if self.visited == MAX_STEPS:
                    return self.stopped(entry.node_id)
                self.visited += 1
                self.add(entry.node_id, "visited", self.graph.by_id[entry.node_id].kind)
                if self.refused:
                    self.suggest(self.refused)
                    self.refused = ""
            case Wait():
                self.tell_wait(entry)
            case Woke():
                self.take(entry.node_id, _port(self.graph, entry))
                self.tell_woke(entry)
            case Branched():
                self.take(entry.node_id, entry.port)
                self.add(entry.node_id, "branch", self.told_port(entry))
            case Assigned():
                self.take(entry.node_id, entry.variant or "on_holdout")
                self.add(entry.node_id, "branch", _arm(entry))
            case Suppressed():
                self.add(entry.node_id, "effect", f"{entry.kind} withheld: {entry.reason}")
            case Failed():
                self.add(entry.node_id, "error", entry.message, suggestion=self.fix(entry))
            case Noted():
                self.suggest(f"{entry.note}: {entry.detail}")
            case Exited():
                return self.tell_exit(entry)
            case (
                Message()
                | WriteTrait()
                | AddToSegment()
                | CallWebhook()
                | StartJourney()
                | GiveTask() as effect
            ):
                self.tell_effect(effect)
            case Entered() | Refused() | Paused() | Resumed():
                pass  # the trigger's visit tells the door, which refuses nobody; nobody is stopped
            case _:
                assert_never(entry)
        return None

    def tell_effect(self, effect: Effect) -> None:
        self.sends += isinstance(effect, Message)
        record = {**effect_record(effect), "node_id": effect.node_id}
        self.add(effect.node_id, "effect", effect.kind.replace("_", " "), record)

    def tell_wait(self, wait: Wait) -> None:
        """A wait is told once, in place of the visit of its node."""
        last = self.steps[-1]
        if (last.node_id, last.kind) == (wait.node_id, "visited"):
            self.steps[-1] = last._replace(kind="wait", detail=_waits(wait))
        else:
            self.add(wait.node_id, "wait", _waits(wait))

    def tell_woke(self, woke: Woke) -> None:
        """How a wait for events ended is told with it; a timed one can end in one way only."""
        last = self.steps[-1]
        if (last.node_id, last.kind) == (woke.node_id, "wait") and woke.node_id in self.event_waits:
            ended = "its time came" if woke.branch == "timeout" else f'"{woke.branch}" came'
            ended = "the exit rule ended it" if woke.branch == "exit" else ended
            self.steps[-1] = last._replace(detail=f"{last.detail}; {ended}")

    def told_port(self, branched: Branched) -> str:
        failure = self.failures.pop(branched.node_id, "")
        if not failure:
            return branched.port
        return f"{branched.port}; branch not taken, the rule failed with {failure}"

    def stopped(self, node_id: str) -> Simulation:
        stop = f'The simulation stops before "{node_id}": it visits at most {MAX_STEPS} nodes.'
        self.add(
            node_id, "error", stop, suggestion="Put an end into the loop, or shorten the path."
        )
        return self.ended(False, stop)

    def suggest(self, suggestion: str) -> None:
        """Something is wrong, yet the walk goes on: it is said at the step told last."""
        self.steps[-1] = self.steps[-1]._replace(suggestion=suggestion)

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
        if fixes:
            return fixes[0]
        return "Put a wait into the path." if failed.code == "STEP_LIMIT" else ""

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

    def take(self, node_id: str, port: str) -> None:
        self.taken.append((node_id, port))

    def ended(self, reached: bool, outcome: str) -> Simulation:
        return Simulation(
            tuple(self.steps),
            reached,
            outcome,
            self.sends,
            self.waits,
            self.problems,
            self.person.user_id,
            tuple(self.taken),
        )


def _arm(assigned: Assigned) -> str:
    if not assigned.variant:
        return "held out"
    already = ", already held out" if assigned.holdout else ""
    return f'arm "{assigned.variant}"{already}'


def _having(person: Person, event: Event) -> Person:
    """The person with this event in the history, where the walk will look for it."""
    before = person.events.get(event.name, ())
    happened = Happened(event.at, event.properties, event.id)
    return person._replace(events={**person.events, event.name: [*before, happened]})


def _port(graph: Graph, woke: Woke) -> str:
    """The port behind the branch on which a wait closed: a single event goes on to `next`, and so
    does a time-out that has no way of its own."""
    ports = [port.name for port in graph.by_id[woke.node_id].ports() if port.target]
    branch = "on_timeout" if woke.branch == "timeout" else woke.branch
    return branch if branch in ports else "next"


def _waits(entry: Wait) -> str:
    until = f"until {entry.until}" if entry.until is not None else "without end"
    if entry.kind == "window":
        return f"for its send window, {until}"
    return f"for {', '.join(entry.events)}, {until}" if entry.events else until


def _told_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _sound_part(node: Node, broken: Mapping[str, Problem]) -> Node:
    """The node, without the configuration that nothing can be made of."""
    return node.model_copy(update={node.kind: None}) if node.id in broken else node
