"""Short words for a walk: a journey made ready, one person's story, and what a step told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whenever import Instant, TimeDelta

from journeykit_engine import journal, profile, walk
from journeykit_engine.check import check
from journeykit_engine.graph import Graph
from journeykit_engine.instance import Happened, Instance, Person
from journeykit_engine.program import Evaluator, Program, compile_graph, evaluate
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
    Refused,
    Suppressed,
    Woke,
)
from journeykit_engine.walk import Step
from tests.engine.journeys import Value, journey

START = Instant("2026-06-01T10:00:00Z")  # a Monday
ADULT: Value = {"root": {"trait": "age", "op": "gte", "value": 18}}
PAID: Value = {"root": {"event": "paid", "since": "entry"}}
END: Value = {"id": "end", "kind": "exit"}


def later(days: int = 0, hours: int = 0, minutes: int = 0) -> Instant:
    """So long after `START`; a day is 24 hours."""
    return START + TimeDelta(hours=24 * days + hours, minutes=minutes)


def node(own: str, kind: str, config: Mapping[str, Any], then: str = "") -> Value:
    return {"id": own, "kind": kind, kind: dict(config), "next": then}


def send(own: str, then: str = "", **config: Any) -> Value:
    text = {"kind": "send", "channel": "push", "template_id": 3}
    return node(own, "action", {**(config or text), "kind": "send"}, then)


def days(amount: int, then: str = "", own: str = "w") -> Value:
    return node(own, "wait", {"kind": "duration", "amount": amount, "unit": "day"}, then)


def wait_for(event: str, then: str = "", own: str = "w", **config: Any) -> Value:
    return node(own, "wait", {"kind": "for_event", "event": event, **config}, then)


def wait_for_any(own: str = "w", **config: Any) -> Value:
    return node(own, "wait", {"kind": "for_event", **config})


def ask(definition: Value, yes: str, no: str, own: str = "if") -> Value:
    return node(own, "condition", {"definition": definition, "on_true": yes, "on_false": no})


def write(own: str, trait: str, value: Any, then: str = "") -> Value:
    return node(own, "action", {"kind": "update_trait", "trait": trait, "value": value}, then)


def halves(own: str, *targets: str, percent: float = 0, **config: Any) -> Value:
    branches = [
        {"weight": 1, "next": target, "variant": "AB"[i]} for i, target in enumerate(targets)
    ]
    return node(own, "split", {"branches": branches, "holdout_percent": percent, **config})


def made(
    *nodes: Value,
    zone: str = "UTC",
    evaluator: Evaluator | None = evaluate,
    stored_anyway: bool = False,
    **fields: Any,
) -> Program:
    """Journey 12, version 3: a trigger "t" for "signed_up" that leads to the first node."""
    document = Graph.parse(journey(*nodes, **{"journey_id": 12, "version": 3, **fields}))
    assert stored_anyway or check(document).problems == ()
    return compile_graph(document, zone, 7, evaluator)


def again(*nodes: Value, **fields: Any) -> Program:
    """The same, for people who may enter every time."""
    return made(*nodes, **{"entry_rule": "every_time", **fields})


class Story:
    """One person and one journey, told as a store would live it: what arrives is remembered first,
    then the journey reacts. `steps` are those of the latest happening, `all` every one."""

    def __init__(self, program: Program, user_id: str = "u_1", **traits: Any) -> None:
        self.program = program
        self.person = Person(user_id, traits)
        self.instance: Instance | None = None
        self.steps: tuple[Step, ...] = ()
        self.all: list[Step] = []

    def starts(self, at: Instant = START, id: str = "m1", **properties: Any) -> Story:
        return self.hears("signed_up", at, id, **properties)

    def hears(self, name: str, at: Instant, id: str = "", **properties: Any) -> Story:
        events = dict(self.person.events)
        events[name] = [*events.get(name, ()), Happened(at, properties, id)]
        self.person = self.person._replace(events=events)
        return self.reacts(Event(name, at, id, properties))

    def learns(self, at: Instant, **traits: Any) -> Story:
        """An identify arrives."""
        known = profile.Profile(self.person.traits)
        written, changed = profile.write(known, traits, at)
        self.person = self.person._replace(traits=written.traits)
        return self.reacts(Event("", at, "", {}, changed))

    def reacts(self, event: Event) -> Story:
        return self.took(*walk.react(self.program, self.person, self.instance, event))

    def wakes(self, at: Instant | None = None) -> Story:
        """The timer runs, at its time or later."""
        assert self.instance is not None
        moment = at or self.instance.wake_at
        assert moment is not None
        return self.took(walk.resume(self.program, self.person, self.instance, moment))

    def pauses(self, at: Instant) -> Story:
        assert self.instance is not None
        return self.took(walk.pause(self.person, self.instance, at))

    def goes_on(self, at: Instant) -> Story:
        assert self.instance is not None
        return self.took(walk.unpause(self.program, self.person, self.instance, at))

    def took(self, *steps: Step) -> Story:
        self.steps = steps
        self.all += steps
        if steps:
            self.instance, self.person = steps[-1].instance, steps[-1].person
        return self

    @property
    def now(self) -> Instance:
        assert self.instance is not None
        return self.instance

    @property
    def told(self) -> list[str]:
        """What the latest happening led to, a line for each entry."""
        return [line(entry) for step in self.steps for entry in step.trail]

    @property
    def sent(self) -> list[Message]:
        """Every message of the whole story."""
        effects = [effect for step in self.all for effect in step.effects]
        return [effect for effect in effects if isinstance(effect, Message)]


def line(entry: Entry) -> str:
    """An entry of a trail as a line: "woke w timeout"."""
    match entry:
        case Woke():
            more = f"{entry.branch} {entry.woken_by}".strip()
        case Branched():
            more = entry.port
        case Assigned():
            more = "holdout" if entry.holdout else entry.variant
        case Suppressed():
            more = f"{entry.kind} {entry.reason}"
        case Exited() | Refused():
            more = entry.reason
        case Failed():
            more = entry.code
        case Noted():
            more = f"{entry.note} {entry.detail}"
        case effect if isinstance(effect, EFFECTS):
            more = effect.kind
        case _:
            more = ""
    return f"{journal.TELLERS[type(entry)][0]} {entry.node_id} {more}".replace("  ", " ").strip()
