"""What a graph will do that its author may not expect. Warnings never block.

Each must be sure: a shape that is right now and then is mentioned, one that is usual is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from journeykit_engine import graph, paths, rule
from journeykit_engine.check_nodes import Place, place_of
from journeykit_engine.comparison import shown
from journeykit_engine.graph import ForEvent, Graph, Node
from journeykit_engine.shape import Problem
from journeykit_engine.strict_json import write_json
from journeykit_engine.template import BadTemplate, Missing, parse_template, render
from journeykit_engine.timing import MINUTES_OF, BadDuration, Duration, parse_duration

Templates = Mapping[int, Mapping[str, str]]
"""The texts of each template: its number, the text's name ("subject", "body"), the text."""

HOURS_A_DAY = 24
NO_EVENT = (
    graph.SegmentEnter
    | graph.SegmentExit
    | graph.SegmentPeriodic
    | graph.DateTrigger
    | graph.ApiTrigger
)
"""The triggers that bring people in without an event of their own."""


def all_warnings(
    document: Graph, others: Sequence[Graph], templates: Templates | None
) -> list[Problem]:
    """Every warning, in no particular order."""
    found = [*_unreachable(document), *_scanned(document, others), *_matches_all(document)]
    for index, node in enumerate(document.nodes):
        place = place_of(node, index)
        found += _split_warnings(node, place)
        found += _unused_ways(document, node, place)
        found += _too_long(node, place, document.max_duration_days)
    found += _self_loops(document)
    found += _endless(document)
    if templates is not None:
        found += _lost_values(document, templates)
    return found


def _unreachable(document: Graph) -> Iterator[Problem]:
    reached = paths.reachable(paths.ways(document), document.entry_id)
    for index, node in enumerate(document.nodes):
        if reached and node.id not in reached:
            message = "cannot be reached from the entry."
            fix = "Wire a node to it, or remove it."
            yield place_of(node, index).problem("UNREACHABLE", "", message, fix)


def _matches_all(document: Graph) -> Iterator[Problem]:
    """`{}` means no exit rule; a rule that comes to the same as `{}` means everybody."""
    definition = document.exit_criteria
    if not definition or not definition.get("root") or rule.faults(definition):
        return
    if rule.canonical(rule.parse(definition)) == rule.canonical(rule.Everybody()):
        message = "The exit rule holds for everybody: everyone leaves at the door."
        fix = 'Say in "exit_criteria" who should leave, or leave it out.'
        yield Problem("EXIT_MATCHES_ALL", "", "exit_criteria", message, fix)


def _scanned(document: Graph, others: Sequence[Graph]) -> Iterator[Problem]:
    """What concerns triggers that come back by themselves: sweeps and dates."""
    trigger = document.trigger
    if not isinstance(trigger, graph.SegmentPeriodic | graph.DateTrigger):
        return
    again = document.entry_rule == "every_time"
    if again and not document.cooldown_hours and not document.reentry_window:
        message = "People enter every time, with no gap between two entries."
        fix = 'Set "cooldown_hours", or "reentry_window" to "day".'
        yield Problem("NO_PACING", "", "entry_rule", message, fix)
    yield from _only_once(document, trigger)
    yield from _slipping(document, trigger)
    if not document.exit_criteria:
        message = "No exit rule: people stay in the flow after they did what it asks for."
        fix = 'Say in "exit_criteria" when somebody should leave.'
        yield Problem("NO_EXIT_RULE", "", "exit_criteria", message, fix)
    yield from _overlaps(document, others)


def _only_once(document: Graph, trigger: graph.Trigger) -> Iterator[Problem]:
    """A date that does not come back reaches people a single time anyway."""
    comes_back = isinstance(trigger, graph.SegmentPeriodic) or (
        isinstance(trigger, graph.DateTrigger) and trigger.annual
    )
    if document.entry_rule == "once" and comes_back:
        message = "The trigger comes back, but each person can enter a single time."
        fix = 'Set "entry_rule" to "every_time" if people should enter again.'
        yield Problem("ONLY_ONCE", "", "entry_rule", message, fix)


def _slipping(document: Graph, trigger: graph.Trigger) -> Iterator[Problem]:
    hours = document.cooldown_hours
    if document.entry_rule != "every_time" or document.reentry_window:
        return
    if not isinstance(trigger, graph.SegmentPeriodic) or len(set(trigger.hours)) < 2:
        return
    if 0 < hours <= HOURS_A_DAY:
        message = (
            f"A cooldown of {hours} hours on {len(set(trigger.hours))} sweeps a day ties people to"
            " the hour at which they first entered, and they miss whole days."
        )
        fix = 'For once a day, set "reentry_window" to "day" and "cooldown_hours" to 0.'
        yield Problem("COOLDOWN_SLIPS", "", "cooldown_hours", message, fix)


def _overlaps(document: Graph, others: Sequence[Graph]) -> Iterator[Problem]:
    own = trigger_fingerprint(document)
    index = next(i for i, node in enumerate(document.nodes) if node.id == document.entry_id)
    place = place_of(document.nodes[index], index)
    for other in others:
        if own and other.journey_id != document.journey_id and trigger_fingerprint(other) == own:
            message = f"asks the same as the trigger of journey {other.journey_id}."
            fix = "Make sure that people should enter both."
            yield place.problem("OVERLAP", "trigger", message, fix)


def trigger_fingerprint(document: Graph) -> str:
    """What a trigger asks at the door, as one text: equal for definitions that differ in order
    only. "" where there is no trigger or its definition is no rule."""
    trigger = document.trigger
    if trigger is None:
        return ""
    asked = trigger.model_dump()
    if isinstance(trigger, graph.SegmentPeriodic):
        asked["hours"] = sorted(set(trigger.hours))
    try:
        if asked.get("definition") is not None:
            asked["definition"] = rule.fingerprint(rule.parse(asked["definition"]))
    except rule.BadRule:
        return ""
    return write_json(asked)


def _split_warnings(node: Node, place: Place) -> Iterator[Problem]:
    split = node.split
    if node.kind != "split" or split is None:
        return
    seen: set[str] = set()
    for i, branch in enumerate(split.branches):
        variant = branch.variant or f"branch {i + 1}"  # as journals and reports name it
        if variant in seen:
            message = f"has two branches with the variant {shown(variant)}."
            fix = "Reports count them as one; give each a variant of its own to tell them apart."
            path = f"split.branches[{i}].variant"
            yield place.problem("DUPLICATE_VARIANT", path, message, fix)
        seen.add(variant)
    if split.on_holdout and not split.holdout_percent:
        message = "has a way for the holdout, but holds nobody out."
        fix = 'Set "holdout_percent", or remove "on_holdout".'
        yield place.problem("HOLDOUT_PATH_UNUSED", "split.on_holdout", message, fix)


def _unused_ways(document: Graph, node: Node, place: Place) -> Iterator[Problem]:
    """What is wired and can never be taken."""
    wait = node.wait
    if isinstance(wait, ForEvent) and wait.on_timeout and not wait.timeout:
        message = 'has a way for the time-out, but no "timeout": it waits without end.'
        fix = 'Set "timeout", as "5d", or remove "on_timeout".'
        yield place.problem("TIMEOUT_PATH_UNUSED", "wait.on_timeout", message, fix)
    known = document.by_id
    if node.next in known and node.kind in ("condition", "switch", "split", "exit"):
        message = f'has a "next", which {_an(node.kind)} never takes.'
        fix = 'Remove "next"; its ways out stand in its configuration.'
        fix = 'Remove "next".' if node.kind == "exit" else fix
        yield place.problem("NEXT_UNUSED", "next", message, fix)


def _an(kind: str) -> str:
    return f"an {kind}" if kind == "exit" else f"a {kind}"


def _too_long(node: Node, place: Place, most_days: int) -> Iterator[Problem]:
    """Everybody is out before such a wait is over; a day of 23 hours changes nothing about it."""
    length, field = _length(node)
    if length is None or most_days <= 0:
        return
    if length.amount * MINUTES_OF[length.unit] > MINUTES_OF["day"] * most_days:
        message = f'waits "{length}", longer than the {most_days} days anybody may stay.'
        fix = 'Shorten the wait, or raise "max_duration_days".'
        yield place.problem("WAIT_LONGER_THAN_MAX", f"wait.{field}", message, fix)


def _length(node: Node) -> tuple[Duration | None, str]:
    wait = node.wait
    if node.kind == "wait" and isinstance(wait, graph.DurationWait) and wait.unit in MINUTES_OF:
        return Duration(wait.amount, wait.unit), "amount"  # type: ignore[arg-type]
    if node.kind == "wait" and isinstance(wait, graph.ForEvent) and wait.timeout:
        try:
            return parse_duration(wait.timeout), "timeout"
        except BadDuration:
            return None, ""
    return None, ""


def _self_loops(document: Graph) -> Iterator[Problem]:
    """On a wait that takes time; on any other node it is a problem."""
    for node, port in document.edges():
        endless = isinstance(node.wait, graph.ForEvent) and not node.wait.timeout
        if node.id == port.target and node.kind == "wait" and not endless:
            message = f"The edge {shown(port.name)} of wait {shown(node.id)} leads back to itself."
            fix = "Make sure that people should wait again and again."
            yield Problem("SELF_LOOP", node.id, port.path, message, fix)


def _endless(document: Graph) -> Iterator[Problem]:
    """A send in a loop that nothing leads out of: no edge, no exit rule, no longest stay."""
    limited = document.max_duration_days or document.settings.exit_on
    if limited or not rule.is_empty(document.exit_criteria):
        return
    index = {node.id: i for i, node in reversed(list(enumerate(document.nodes)))}
    for knot in paths.knots(paths.ways(document)):
        inside = set(knot)
        nodes = [document.by_id[node_id] for node_id in knot]
        if any(port.target not in inside for node in nodes for port in node.ports()):
            continue
        sends = sorted((index[n.id], n) for n in nodes if isinstance(n.action, graph.Send))[:1]
        for at, node in sends:
            message = "sends again and again: nothing ever leads out of its loop."
            fix = 'Add a way out, "exit_criteria" or "max_duration_days".'
            yield place_of(node, at).problem("ENDLESS_SENDING", "", message, fix)


def _lost_values(document: Graph, templates: Templates) -> Iterator[Problem]:
    """Values of an event that a text uses where a person may come without one."""
    without = _without_event(document)
    for index, node in enumerate(document.nodes):
        if node.id not in without or not isinstance(node.action, graph.Send):
            continue
        for i, medium in enumerate(node.action.media):
            at = f"channels[{i}].template_id" if node.action.channels else "template_id"
            for name in _used_values(templates.get(medium.template_id or 0, {})):
                message = f'uses "{name}", which nobody has who comes from a timer.'
                fix = "Give the placeholder a default, or send before the wait."
                place = place_of(node, index)
                yield place.problem("EVENT_VALUE_LOST_AFTER_WAIT", f"action.{at}", message, fix)


def _used_values(texts: Mapping[str, str]) -> list[str]:
    """The values that the texts cannot do without, as "event.rank". A text that is no template
    uses none: that is told where templates are saved."""
    try:
        rendered = render(parse_template(texts), {}, None)
    except BadTemplate:
        return []
    names = rendered.names if isinstance(rendered, Missing) else ()
    return [name for name in names if name.startswith("event.")]


def _without_event(document: Graph) -> set[str]:
    """The nodes that a step which no event caused can visit."""
    ways = paths.ways(document)
    still = {i: [] if document.by_id[i].kind == "wait" else targets for i, targets in ways.items()}
    starts: list[str] = []
    if isinstance(document.trigger, NO_EVENT):
        starts.append(document.entry_id)
    for node in document.by_id.values():
        if isinstance(node.wait, graph.ForEvent):
            late = node.wait.on_timeout or node.next
            starts += [late] if node.wait.timeout else []
        elif node.kind == "wait":
            starts += ways[node.id]
    return paths.reachable(still, *starts)
