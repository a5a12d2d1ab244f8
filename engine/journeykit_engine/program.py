"""A journey ready to run: the document compiled to linked nodes, each of which knows what to do.

`compile_graph` makes a `Program` once per published version; a walk then follows direct links,
looks nothing up and decides nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, assert_never

from whenever import TimeDelta

from journeykit_engine import allot, graph, paths, rule, timing
from journeykit_engine.facts import Predicate
from journeykit_engine.instance import NOTHING, Assignment, Reentry
from journeykit_engine.nodes import (
    OPENED_OR_CLICKED,
    AddToSegmentOp,
    BestTimeOp,
    BrokenOp,
    ChoiceOp,
    DurationOp,
    EventWaitOp,
    ExitOp,
    GoalOp,
    MessageOp,
    Op,
    Outbound,
    OutboundOp,
    SplitOp,
    Stop,
    UntilTimeOp,
    WriteTraitOp,
    part,
)
from journeykit_engine.shape import Problem
from journeykit_engine.signal import INBOUND, OPT_OUT, Event, is_opt_out, is_report
from journeykit_engine.trail import (
    AddToSegment,
    Assigned,
    Branched,
    CallWebhook,
    Failed,
    GiveTask,
    Medium,
    Message,
    StartJourney,
    WriteTrait,
)

Evaluator = Callable[[Mapping[str, Any]], Predicate]


class Needs(NamedTuple):
    """All that a walk may read of a person, so that it is loaded before the walk begins."""

    traits: frozenset[str]
    events: frozenset[str]
    segments: frozenset[int]
    journeys: frozenset[int]


class Unready(ValueError):
    """A graph that lacks something without which it cannot be run; `check` says all of it."""


class Program:
    """A journey ready to be walked. Made by `compile_graph`, never changed afterwards.

    `needs` names all that a walk may read of a person; `hears` tells whether an event can matter
    at all. `zone` is the account's: the settings' own, else the one given to `compile_graph`.
    """

    __slots__ = (
        "connected",
        "entry",
        "entry_event",
        "exit_on",
        "exit_references",
        "exit_rule",
        "filter",
        "graph",
        "hears_events",
        "hears_reports",
        "jitter",
        "journey_id",
        "longest",
        "needs",
        "nodes",
        "prefix",
        "reentry",
        "sender_clock",
        "tenant_id",
        "trigger",
        "version",
        "window",
        "workweek",
        "zone",
    )

    def __init__(self, document: graph.Graph, tenant_id: int, zone: str) -> None:
        settings = document.settings
        self.graph = document
        self.tenant_id = tenant_id
        self.journey_id = document.journey_id
        self.version = document.version
        self.zone, _ = timing.first_zone((settings.timezone, zone))
        self.sender_clock = settings.send_window is not None and settings.send_window.tz == "sender"
        self.reentry = Reentry(
            document.entry_rule, document.cooldown_hours, document.reentry_window
        )
        self.workweek = _days(settings.workweek) or timing.MON_FRI
        self.jitter = timing.parse_duration(settings.jitter) if settings.jitter else None
        self.window = _window(settings.send_window, self.zone)
        self.exit_on = frozenset(settings.exit_on)
        days = document.max_duration_days
        self.longest = TimeDelta(hours=24 * days) if days > 0 else None
        self.prefix = f"j{self.journey_id}.v{self.version}."
        self.connected = {
            node.id: tuple(node.action.connected_outcomes)
            for node in document.nodes
            if isinstance(node.action, graph.Task) and node.action.connected_outcomes
        }
        self.trigger = document.trigger
        self.entry_event = ""
        self.nodes: dict[str, Op] = {}
        self.entry: Op
        self.exit_rule: Predicate | None = None
        self.exit_references = rule.references(rule.parse({"root": {}}))
        self.filter: Callable[[Mapping[str, Any]], bool] | None = None
        self.hears_events: frozenset[str] = frozenset()
        self.hears_reports = False
        self.needs = Needs(frozenset(), frozenset(), frozenset(), frozenset())

    def hears(self, event: Event) -> bool:
        """False when this event can neither enter nor wake nor end anybody here."""
        return (
            event.name in self.hears_events
            or event.changed is not None
            or (self.hears_reports and is_report(event.name))
            or (event.name in INBOUND and is_opt_out(event))
        )


def _days(names: Sequence[str] | None) -> frozenset[int] | None:
    return None if not names else timing.weekdays(names)


def _window(window: graph.SendWindow | None, zone: str) -> timing.Window | None:
    if window is None:
        return None
    return timing.window(zone, window.days, window.from_, window.to)


def evaluate(definition: Mapping[str, Any]) -> Predicate:
    return rule.compile_rule(rule.parse(definition))


def compile_graph(
    document: graph.Graph,
    account_timezone: str = "UTC",
    tenant_id: int = 0,
    evaluator: Evaluator | None = evaluate,
    broken: Mapping[str, Problem] = NOTHING,
) -> Program:
    """Make a program of a graph that `check` finds no problem in.

    A graph with problems raises `Unready`, or another ValueError of the part that is wrong, here at
    the latest; drafts are judged by `check`, not by this. With `evaluator=None` (no segment
    evaluator is configured) a condition takes `on_false` and a switch `default`; an evaluator that
    raises is an error of that step.
    `broken` names nodes with a problem: they compile to a node that stops the walk and says why.
    """
    program = Program(document, tenant_id, account_timezone)
    for node in document.nodes:
        if node.id in broken:
            program.nodes[node.id] = _broken(node, broken[node.id])
        else:
            program.nodes[node.id] = _op(node, program, evaluator)
    for node_id in paths.on_a_loop(document):
        program.nodes[node_id].count_visits()
    stops = {node_id: op.stop for node_id, op in program.nodes.items()}
    for node in document.nodes:
        _link(program.nodes[node.id], node, stops)
    if document.entry_id not in program.nodes:
        raise Unready(f'There is no node "{document.entry_id}" to enter by.')
    program.entry = program.nodes[document.entry_id]
    if isinstance(program.trigger, graph.EventTrigger):
        _listen(program, program.trigger)
    if document.exit_criteria and not rule.is_empty(document.exit_criteria) and evaluator:
        program.exit_rule = evaluator(document.exit_criteria)
        program.exit_references = rule.references(rule.parse(document.exit_criteria))
    program.needs = _needs(document)
    program.hears_events = _hears(program)
    program.hears_reports = any(is_report(name) for name in program.hears_events) or (
        "connection_accepted" in program.hears_events
    )
    return program


def _listen(program: Program, trigger: graph.EventTrigger) -> None:
    """The reserved event is never listened for: it stands for every entry not by event."""
    if trigger.event != graph.RESERVED_EVENT:
        program.entry_event = trigger.event
    if trigger.filter:
        program.filter = rule.compile_filter(trigger.filter)


def _broken(node: graph.Node, problem: Problem) -> Op:
    op = BrokenOp(node)
    op.failed = Failed(node.id, problem.code, f"{problem.message} {problem.fix}".strip())
    return op


def _given(node: graph.Node, field: str, value: int | None) -> int:
    if value is None:
        raise Unready(f'The node "{node.id}" cannot be run: "{field}" is missing.')
    return value


def _op(node: graph.Node, program: Program, evaluator: Evaluator | None) -> Op:
    config = node.config
    match config:
        case None:
            return ExitOp(node)
        case graph.DurationWait():
            return _duration(DurationOp(node), config, program)
        case graph.UntilTime():
            until = UntilTimeOp(node)
            until.hour, until.minute = _given(node, "hour", config.hour), config.minute
            until.days = _days(config.days)
            return until
        case graph.UntilBestTime():
            best = BestTimeOp(node)
            best.fallback_hour = _given(node, "fallback_hour", config.fallback_hour)
            return best
        case graph.ForEvent():
            return _event_wait(EventWaitOp(node), config, program)
        case graph.Condition():
            return _choice(ChoiceOp(node), [config.definition], ["on_true"], "on_false", evaluator)
        case graph.Switch():
            labels = [port.name for port in node.ports()][:-1]
            definitions = [case.definition for case in config.cases]
            return _choice(ChoiceOp(node), definitions, labels, "default", evaluator)
        case graph.Split():
            return _split(SplitOp(node), config, program)
        case graph.Goal():
            return _goal(GoalOp(node), config)
        case (
            graph.Send()
            | graph.UpdateTrait()
            | graph.AddToSegment()
            | graph.Webhook()
            | graph.EnterJourney()
            | graph.Task()
        ):
            return _action(node, config, program)
        case (
            graph.EventTrigger()
            | graph.AttributeChanged()
            | graph.SegmentEnter()
            | graph.SegmentExit()
            | graph.SegmentPeriodic()
            | graph.DateTrigger()
            | graph.ApiTrigger()
        ):
            return Op(node)
        case _:
            assert_never(config)


def _duration(op: DurationOp, config: graph.DurationWait, program: Program) -> Op:
    fault = timing.duration_fault(config.amount, config.unit)
    if fault:
        raise Unready(f'The node "{op.id}" cannot be run. {fault}')
    duration = timing.Duration(config.amount, config.unit)  # type: ignore[arg-type]
    op.ends_at = timing.adder(duration, program.workweek)
    return op


def _event_wait(op: EventWaitOp, config: graph.ForEvent, program: Program) -> Op:
    op.timeout = None
    if config.timeout:
        op.timeout = timing.adder(timing.parse_duration(config.timeout), program.workweek)
    op.events = tuple(config.on) if config.on is not None else (config.event,)
    op.matches = rule.compile_filter(config.filter) if config.filter else None
    op.late = None
    return op


def _choice(
    op: ChoiceOp,
    definitions: Sequence[Mapping[str, Any] | None],
    labels: Sequence[str],
    otherwise: str,
    evaluator: Evaluator | None,
) -> Op:
    op.ways = []
    if evaluator is not None:
        for label, definition in zip(labels, definitions, strict=True):
            if definition is None:
                raise Unready(f'The node "{op.id}" cannot be run: "{label}" has no definition.')
            op.ways.append((evaluator(definition), Branched(op.id, label), None))
    op.otherwise = (Branched(op.id, otherwise), None)
    return op


def _split(op: SplitOp, config: graph.Split, program: Program) -> Op:
    salt = str(program.journey_id) if config.salt is None else config.salt
    weights = [branch.weight for branch in config.branches]
    op.draw = allot.drawer(allot.allotter(op.id, salt, config.holdout_percent, weights))
    op.arms = {
        arm: (Assigned(op.id, name, False), Assignment(name, False), None)
        for arm, name in enumerate(arm_names(config))
    }
    op.arms[allot.HELD_OUT] = (Assigned(op.id, "", True), Assignment("", True), None)
    op.withheld = {
        arm: (Assigned(op.id, name, True), Assignment(name, True), None)
        for arm, name in enumerate(arm_names(config))
    }
    return op


def arm_names(split: graph.Split) -> list[str]:
    """The arms as journals and reports name them: the variant, else "branch 1", "branch 2"."""
    return [branch.variant or f"branch {i + 1}" for i, branch in enumerate(split.branches)]


def _goal(op: GoalOp, config: graph.Goal) -> Op:
    op.event = config.event
    op.window = TimeDelta(hours=24 * config.window_days) if config.window_days else None
    op.matches = rule.compile_filter(config.filter) if config.filter else None
    op.reached, op.missed = Branched(op.id, "on_reached"), Branched(op.id, "next")
    return op


def _action(node: graph.Node, config: graph.Action, program: Program) -> Op:
    match config:
        case graph.UpdateTrait():
            write = WriteTraitOp(node)
            write.effect = WriteTrait(node.id, config.trait, config.value)
            return write
        case graph.AddToSegment():
            add = AddToSegmentOp(node)
            segment_id = _given(node, "segment_id", config.segment_id)
            add.effect = AddToSegment(node.id, segment_id)
            return add
        case graph.Send() if len(config.media) == 1:
            return _outbound(_message(MessageOp(node), config), config, program)
        case graph.Send() | graph.Webhook() | graph.EnterJourney() | graph.Task():
            return _outbound(OutboundOp(node), config, program)
        case _:
            assert_never(config)


def _message(op: MessageOp, config: graph.Send) -> MessageOp:
    (medium,) = config.media
    category, priority = config.category or "marketing", config.priority
    op.fields = (op.id, medium.channel, medium.template_id, category, priority, config.budget, ())
    return op


def _outbound(
    op: OutboundOp,
    config: graph.Send | graph.Webhook | graph.EnterJourney | graph.Task,
    program: Program,
) -> Op:
    op.action = config.kind
    op.prefix = f"{program.prefix}{part(op.id)}."
    op.is_text_message = isinstance(config, graph.Send) and any(
        medium.channel == "sms" for medium in config.media
    )
    outreach = isinstance(config, graph.Send | graph.Task)
    has_window = program.window is not None or program.jitter is not None
    op.has_window = op.is_text_message or (outreach and has_window)
    op.make = _maker(op.id, config)
    return op


Maker = Callable[[str, str, Mapping[str, Any]], Sequence[Outbound]]


def _maker(
    node_id: str, config: graph.Send | graph.Webhook | graph.EnterJourney | graph.Task
) -> Maker:
    """How this action builds its effects from a name, the visit's mark and the event's values."""
    match config:
        case graph.Send():
            return _messages(node_id, config)
        case graph.Webhook():
            return lambda name, mark, event: (
                CallWebhook(name + mark, node_id, config.url, config.headers, config.body, event),
            )
        case graph.EnterJourney():
            journey_id = config.journey_id or 0
            return lambda name, mark, event: (StartJourney(name + mark, node_id, journey_id),)
        case graph.Task():
            outcomes = tuple(config.connected_outcomes)
            return lambda name, mark, event: (
                GiveTask(name + mark, node_id, config.task, config.title, outcomes),
            )
        case _:
            assert_never(config)


def _messages(node_id: str, config: graph.Send) -> Maker:
    first, *others = config.media
    rest = (config.category or "marketing", config.priority, config.budget)

    def make(name: str, mark: str, event: Mapping[str, Any]) -> Sequence[Message]:
        lead = Medium(first.channel, first.template_id, name + mark)
        more = tuple(
            Medium(other.channel, other.template_id, f"{name}.{_channel_part(other.channel)}{mark}")
            for other in others
        )
        if config.channel_mode == "all":
            return [Message(m[2], event, node_id, m[0], m[1], *rest, ()) for m in (lead, *more)]
        return [Message(lead[2], event, node_id, lead[0], lead[1], *rest, more)]

    return make


def _channel_part(channel: str) -> str:
    """A channel that is called like a visit's mark ("n2") is encoded, so that its first message
    is not taken for the second one of another channel."""
    if channel[:1] == "n" and channel[1:].isdecimal():
        return f"%6E{channel[1:]}"
    return part(channel)


def _link(op: Op, node: graph.Node, stops: Mapping[str, Stop]) -> None:
    op.after = stops.get(node.next)
    targets = [stops.get(port.target) for port in node.ports()]
    match op:
        case EventWaitOp():
            assert isinstance(node.wait, graph.ForEvent)
            ways = node.wait.on if node.wait.on is not None else {node.wait.event: node.next}
            op.ways = {event: stops.get(target) for event, target in ways.items()}
            op.late = stops.get(node.wait.on_timeout) or op.after
        case ChoiceOp():
            op.ways = [(*way[:2], target) for way, target in zip(op.ways, targets, strict=False)]
            op.otherwise = (op.otherwise[0], targets[-1])
        case SplitOp():
            assert node.split is not None
            arms = dict(enumerate(targets))
            arms[allot.HELD_OUT] = stops.get(node.split.on_holdout) or arms[0]
            op.arms = {arm: (*told[:2], arms[arm]) for arm, told in op.arms.items()}
            op.withheld = {arm: (*told[:2], arms[arm]) for arm, told in op.withheld.items()}
        case GoalOp():
            assert node.goal is not None
            op.on_reached = stops.get(node.goal.on_reached)
        case _:
            pass


def _needs(document: graph.Graph) -> Needs:
    found = [rule.references(rule.parse(d)) for _, _, d in document.definitions() if d is not None]
    goals = {node.goal.event for node in document.nodes if node.goal is not None}
    best = any(isinstance(node.wait, graph.UntilBestTime) for node in document.nodes)
    events = {event for part in found for event in part.events}
    return Needs(
        frozenset(trait for part in found for trait in part.traits),
        frozenset(events | goals | (set(OPENED_OR_CLICKED) if best else set())),
        frozenset(segment for part in found for segment in part.segments),
        frozenset(journey for part in found for journey in part.journeys),
    )


def _hears(program: Program) -> frozenset[str]:
    """Every event name that can enter, wake or end somebody."""
    waits = [op for op in program.nodes.values() if isinstance(op, EventWaitOp)]
    listed = {event for wait in waits for event in wait.events}
    listed |= program.exit_on | program.exit_references.events
    if isinstance(program.trigger, graph.EventTrigger):
        listed.add(program.trigger.event)
    return frozenset(listed | {graph.RESERVED_EVENT, OPT_OUT})
