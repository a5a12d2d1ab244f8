"""One node as the step that says it: which method, with which arguments and branches.

A step is only used where it is proven: the builder is asked to take it, and must give the same
node. What no step says exactly is written as `.node({…})`, so every document has its code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from keyword import iskeyword
from typing import Any, Literal, NamedTuple, assert_never

from journeykit.builder import Path
from journeykit.journeys import Journey
from journeykit.mistake import JourneyError
from journeykit.rule_source import filter_code, literal, rule_code
from journeykit.sketch import Document, Sketch, put, targets
from journeykit_engine import graph
from journeykit_engine.timing import SUFFIXES

SPLIT_WORDS = frozenset(("name", "arms", "weights", "holdout", "on_holdout", "salt", "id", "label"))
SEND_WORDS = frozenset(
    ("channel", "template", "channels", "mode", "category", "priority", "budget", "id", "label")
)


class Way(NamedTuple):
    """A branch of a step: its target, the code before and after it, and what the builder makes of
    a branch that is not given."""

    target: str
    before: str
    after: str = ""
    unset: Literal["open", "unwired", "must be given"] = "must be given"


class Spoken(NamedTuple):
    """A step: the code of its arguments around its branches, and `args` and `kwargs`, the same as
    values with None for every branch. `goes_on` where the step that follows is tied to it."""

    method: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = {}
    first: Sequence[str] = ()
    ways: Sequence[Way] = ()
    last: Sequence[str] = ()
    goes_on: bool = True
    base: str = ""


def spoken(node: graph.Node, is_entry: bool) -> Spoken | None:
    """The step that says this node, None where none does; `base` is the id that it would derive.

    A trigger has a step only where the journey begins.
    """
    step = _step(node)
    if step is None or (node.kind == "trigger") != is_entry or (node.next and not step.goes_on):
        return None
    begun: Journey | Path = Journey("", {}, Sketch()) if is_entry else Path()
    try:
        said = getattr(begun, step.method)(*step.args, **step.kwargs, label=node.label)
    except JourneyError:
        return None
    ((base, document),) = said._sketch.nodes.items()
    return step._replace(base=base) if _is_node(document, node) else None


def _is_node(said: Document, node: graph.Node) -> bool:
    same_id = graph.Node.model_validate({**said, "id": node.id})
    return _unwired(document_of(same_id)) == _unwired(document_of(node))


def document_of(node: graph.Node) -> Document:
    """The node as the document holds it, fields at their defaults left out, but without its place
    on the canvas, which no step says."""
    document = node.model_dump(by_alias=True, exclude_defaults=True)
    return {key: value for key, value in document.items() if key not in ("x", "y")}


def _unwired(document: Document) -> Document:
    for place, _ in targets(document):
        document = put(document, place, "")
    return document_of(graph.Node.model_validate(document))


def _step(node: graph.Node) -> Spoken | None:
    match node.config:
        case None:
            return Spoken("exit", goes_on=False) if node.kind == "exit" else None
        case graph.DurationWait() as wait:
            suffixes = (suffix for suffix, unit in SUFFIXES.items() if unit == wait.unit)
            return _plain("wait", f"{wait.amount}{next(suffixes, '')}")
        case graph.UntilTime() as wait:
            return _until_time(wait)
        case graph.UntilBestTime() as wait:
            return _plain("wait_best_time", fallback_hour=wait.fallback_hour)
        case graph.ForEvent() as wait:
            return _event_wait(wait)
        case graph.Condition() as condition:
            return _condition(condition)
        case graph.Switch() as switch:
            return _switch(switch)
        case graph.Split() as split:
            return _split(node.id, split)
        case graph.Goal() as goal:
            return _goal(goal)
        case graph.Send() as send:
            return _send(send)
        case (
            graph.UpdateTrait()
            | graph.AddToSegment()
            | graph.Webhook()
            | graph.EnterJourney()
            | graph.Task()
        ) as action:
            return _action(action)
        case trigger:
            return _trigger(trigger)


def _plain(method: str, *args: Any, **kwargs: Any) -> Spoken:
    """A step without branches whose arguments are written as they are."""
    code = [*map(literal, args), *(f"{name}={literal(value)}" for name, value in kwargs.items())]
    return Spoken(method, args, kwargs, code)


def _known(**fields: tuple[Any, Any]) -> dict[str, Any]:
    """The keyword arguments that differ from their defaults."""
    return {name: value for name, (value, default) in fields.items() if value != default}


def _until_time(wait: graph.UntilTime) -> Spoken:
    args = [wait.hour, wait.minute] if wait.minute else [wait.hour]
    return _plain("wait_until", *args, **_known(days=(wait.days, None)))


def _event_wait(wait: graph.ForEvent) -> Spoken:
    kwargs = _known(timeout=(wait.timeout, ""), events=(wait.events, None))
    code = [f"{name}={literal(value)}" for name, value in kwargs.items()]
    if wait.filter:
        kwargs["where"] = wait.filter
        code.insert(0, f"where={filter_code(wait.filter)}")
    late = Way(wait.on_timeout, "on_timeout=", unset="unwired")
    if wait.on is None:
        return Spoken("wait_for", [wait.event], kwargs, [literal(wait.event)], [late], code)
    goes_on = bool(wait.timeout) and not wait.on_timeout
    if wait.on_timeout:  # given or not decides whether the step goes on
        kwargs["on_timeout"] = Path().stop()
    if not wait.on:
        return Spoken("wait_for", [{}], kwargs, ["{}"], [late], code, goes_on)
    ways = _in_braces([(literal(event), target) for event, target in wait.on.items()])
    on = dict.fromkeys(wait.on)
    return Spoken("wait_for", [on], kwargs, (), [*ways, late], code, goes_on)


def _in_braces(entries: Sequence[tuple[str, str]]) -> list[Way]:
    """The branches of a dict: keys as code, with their targets."""
    last = len(entries) - 1
    return [
        Way(target, f"{'' if i else '{'}{key}: ", "" if i < last else "}")
        for i, (key, target) in enumerate(entries)
    ]


def _condition(condition: graph.Condition) -> Spoken | None:
    definition = condition.definition
    if definition is None:
        return None
    ways = (
        Way(condition.on_true, "yes=", unset="open"),
        Way(condition.on_false, "no=", unset="open"),
    )
    unset = {"yes": None, "no": None}
    return Spoken("when", [definition], unset, [rule_code(definition)], ways, goes_on=False)


def _switch(switch: graph.Switch) -> Spoken | None:
    cases = [(case.label, case.definition, None) for case in switch.cases]
    if any(definition is None for _, definition, _ in cases):
        return None
    ways = [
        Way(case.next, f"({literal(case.label)}, {rule_code(case.definition or {})}, ", ")")
        for case in switch.cases
    ]
    ways.append(Way(switch.default, "otherwise=", unset="open"))
    return Spoken("choose", cases, {"otherwise": None}, (), ways, goes_on=False)


def _split(node_id: str, split: graph.Split) -> Spoken | None:
    arms = [branch.variant for branch in split.branches]
    if len({*arms}) < len(arms):
        return None
    shares = {branch.variant: branch.weight for branch in split.branches if branch.weight != 1}
    kwargs = _known(
        holdout=(split.holdout_percent, 0), salt=(split.salt, None), weights=(shares, {})
    )
    code = [f"{name}={literal(value)}" for name, value in kwargs.items()]
    held = Way(split.on_holdout, "on_holdout=", unset="unwired")
    entries = [(branch.variant, branch.next) for branch in split.branches]
    args, unset = [node_id, dict.fromkeys(arms)], {**kwargs}
    if all(_is_name(arm, SPLIT_WORDS) for arm in arms):
        ways = [Way(target, f"{arm}=") for arm, target in entries]
        first = [literal(node_id), *code]
        return Spoken("split", args, unset, first, [*ways, held], goes_on=False)
    ways = _in_braces([(literal(arm), target) for arm, target in entries])
    return Spoken("split", args, unset, [literal(node_id)], [*ways, held], code, goes_on=False)


def _goal(goal: graph.Goal) -> Spoken:
    kwargs: dict[str, Any] = {"within": f"{goal.window_days}d"} if goal.window_days else {}
    code = [literal(goal.event), *(f"{name}={literal(text)}" for name, text in kwargs.items())]
    if goal.filter:
        kwargs["where"] = goal.filter
        code.append(f"where={filter_code(goal.filter)}")
    ways = (Way(goal.on_reached, "reached=", unset="unwired"),)
    return Spoken("goal", [goal.event], kwargs, code, ways)


def _send(send: graph.Send) -> Spoken:
    media = [(medium.channel, medium.template_id) for medium in send.media]
    names = [name for name, _ in media]
    is_plain = len({*names}) == len(names) and all(_is_name(name, SEND_WORDS) for name in names)
    if is_plain and (len(names) > 1 or not send.channels):
        kwargs: dict[str, Any] = dict(media)
    elif send.channels:
        kwargs = {"channels": media}
    else:
        kwargs = {"channel": send.channel, "template": send.template_id}
    kwargs |= _known(
        mode=(send.channel_mode, ""),
        category=(send.category, ""),
        priority=(send.priority, 50),
        budget=(send.budget, "default"),
    )
    code = [f"{name}={_pairs(value)}" for name, value in kwargs.items()]
    return Spoken("send", (), kwargs, code)


def _pairs(value: Any) -> str:
    if not isinstance(value, list):
        return literal(value)
    return "[" + ", ".join(f"({literal(a)}, {literal(b)})" for a, b in value) + "]"


def _is_name(name: str, reserved: frozenset[str]) -> bool:
    """True for what may stand before "=" in a call."""
    is_name = name.isidentifier() and name.isascii() and not iskeyword(name)
    return is_name and name not in reserved and name != "self"


def _action(
    action: graph.UpdateTrait
    | graph.AddToSegment
    | graph.Webhook
    | graph.EnterJourney
    | graph.Task,
) -> Spoken:
    match action:
        case graph.UpdateTrait():
            return _plain("set_trait", action.trait, action.value)
        case graph.AddToSegment():
            return _plain("add_to_segment", action.segment_id)
        case graph.Webhook():
            known = _known(headers=(action.headers, {}), body=(action.body, None))
            return _plain("webhook", action.url, **known)
        case graph.EnterJourney():
            return _plain("enter_journey", action.journey_id)
        case graph.Task():
            outcomes: tuple[Any, Any] = (action.connected_outcomes, [])
            known = _known(title=(action.title, ""), connected_outcomes=outcomes)
            return _plain("task", action.task, **known)
        case _:
            assert_never(action)


def _trigger(trigger: graph.Trigger) -> Spoken | None:
    match trigger:
        case graph.EventTrigger():
            where = {"where": trigger.filter} if trigger.filter else {}
            code = [literal(trigger.event)]
            code += [f"where={filter_code(trigger.filter)}"] if trigger.filter else []
            return Spoken("on_event", [trigger.event], where, code)
        case graph.AttributeChanged():
            value = [] if trigger.value is None else [trigger.value]
            return _plain("on_trait_change", trigger.trait, *value)
        case graph.SegmentEnter():
            return _people("on_segment_enter", {}, trigger.definition)
        case graph.SegmentExit():
            return _people("on_segment_exit", {}, trigger.definition)
        case graph.SegmentPeriodic():
            return _people("every_day_at", {"hours": trigger.hours}, trigger.definition)
        case graph.DateTrigger():
            return _date(trigger)
        case graph.ApiTrigger():
            return _plain("on_call")
        case _:
            assert_never(trigger)


def _people(method: str, more: dict[str, Any], definition: Document | None) -> Spoken | None:
    if definition is None:
        return None
    kwargs = {**more, "people": definition}
    code = [f"{name}={literal(value)}" for name, value in more.items()]
    rule = rule_code(definition)
    return Spoken(method, (), kwargs, [*code, f"people={rule}"] if more else [rule])


def _date(trigger: graph.DateTrigger) -> Spoken:
    kwargs = _known(
        days_before=(trigger.offset_days, 0), hour=(trigger.hour, 9), annual=(trigger.annual, True)
    )
    code = [literal(trigger.trait), *(f"{name}={value!r}" for name, value in kwargs.items())]
    if trigger.definition is not None:
        kwargs["people"] = trigger.definition
        code.append(f"people={rule_code(trigger.definition)}")
    return Spoken("on_date", [trigger.trait], kwargs, code)
