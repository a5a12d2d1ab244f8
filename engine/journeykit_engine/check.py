"""What keeps a graph from being published, and what is worth knowing before it is.

`check` lists everything, not only the first fault, in document order: the fields of the graph, then
node by node. Every pass is linear in the graph and none recurses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from journeykit_engine import graph, paths, rule, timing
from journeykit_engine.check_nodes import (
    Place,
    duration_problems,
    event_problems,
    node_problems,
    place_of,
    rule_problems,
    wrong_and_fix,
)
from journeykit_engine.check_outside import Outside, outside_problems, outside_warnings
from journeykit_engine.check_warnings import Templates, all_warnings
from journeykit_engine.comparison import nearest, shown
from journeykit_engine.graph import Graph, Node, Port
from journeykit_engine.paths import MAX_STEPS
from journeykit_engine.shape import Problem
from journeykit_engine.strict_json import refuse_value

MAX_SUGGESTIONS = 10  # edges for which a like name is looked for: that is slow in a large graph
MAX_NAMED = 10  # nodes of a loop that a message names


class Report(NamedTuple):
    """The verdict on a graph. Problems block publishing, warnings never do."""

    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]

    @property
    def valid(self) -> bool:
        """Whether the graph may be published."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """`{"valid", "problems", "warnings"}` with plain objects inside, ready for JSON."""
        return {
            "valid": self.valid,
            "problems": [problem._asdict() for problem in self.problems],
            "warnings": [warning._asdict() for warning in self.warnings],
        }


def check(
    graph: Graph | Mapping[str, Any],
    others: Sequence[Graph] = (),
    account_timezone: str | None = None,
    templates: Templates | None = None,
    outside: Outside | None = None,
) -> Report:
    """Judge a graph; `others` are the published journeys it may overlap with.

    `templates` gives the texts of each template by its number and the text's name; without it
    nothing is said about what the texts use. `outside` tells which journeys and templates there
    are; without it what the graph names is taken to be there. A mapping with faults of shape is
    judged as far as the rest of it can be, without warnings, since what was set aside may be what
    they miss. A mapping that is no JSON value raises `strict_json.BadJson`.

    >>> check(Graph()).to_dict()["problems"][0]["code"]
    'NO_ENTRY'
    """
    if isinstance(graph, Graph):
        problems = _problems(graph, account_timezone)
        warnings = all_warnings(graph, others, templates)
        if outside is not None:
            problems += outside_problems(graph, outside)
            warnings += outside_warnings(graph, outside)
        return Report(_in_order(problems), _in_order(warnings))
    refuse_value(graph)
    rest, shape = Graph.salvage(graph)
    if rest is not None and not shape:
        return check(rest, others, account_timezone, templates, outside)
    found = [] if rest is None else _problems(rest, account_timezone)
    return Report(_in_order([*shape, *_not_of(shape, found)]), ())


_SAID_ELSEWHERE = {
    "NO_EVENT": ("on", "events"),
    "BAD_EVENT": ("event", "on", "events"),
    "NO_CHANNEL": ("channels",),
    "NO_TEMPLATE": ("channels",),
}
"""Fields that say the same as the one a problem misses: with one of them set aside, who knows."""


def _not_of(shape: Sequence[Problem], found: Iterable[Problem]) -> Iterator[Problem]:
    """Leaves out what only follows from a field that was set aside for its shape."""
    aside = [fault.path for fault in shape]
    for problem in found:
        if not any(_follows(problem, path) for path in aside):
            yield problem


def _follows(problem: Problem, aside: str) -> bool:
    if problem.code == "CYCLE":  # the timeout may be what would have let time pass
        return aside.endswith(".wait.timeout")
    if problem.code == "CONFIG_MISMATCH" and _lies_in(aside, problem.path):
        return True
    holder = problem.path.rpartition(".")[0]
    same = (f"{holder}.{field}" for field in _SAID_ELSEWHERE.get(problem.code, ()))
    return _lies_in(problem.path, aside) or any(_lies_in(aside, path) for path in same)


def _lies_in(path: str, outer: str) -> bool:
    return path == outer or path.startswith((f"{outer}.", f"{outer}["))


_PLACE = re.compile(r"nodes\[([0-9]+)\](?:\.(\w+))?|(\w+)")
_GRAPH_FIELDS = {name: rank for rank, name in enumerate(Graph.model_fields)}
_NODE_FIELDS = {name: rank for rank, name in enumerate(Node.model_fields)}


def _in_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Document order; what a node has at one field stays in the order it was found."""
    return tuple(sorted(problems, key=_rank))


def _rank(problem: Problem) -> tuple[int, int]:
    match = _PLACE.match(problem.path)
    if match is None:
        return -2, 0
    index, field, top = match.groups()
    if index is None:
        return -1, _GRAPH_FIELDS.get(top, len(_GRAPH_FIELDS))
    return int(index), _NODE_FIELDS.get(field, len(_NODE_FIELDS))


def _problems(document: Graph, account_timezone: str | None) -> list[Problem]:
    found = [*_entry_problems(document), *_gap_problems(document)]
    found += _exit_problems(document)
    found += _settings_problems(document.settings, account_timezone)
    for index, node in enumerate(document.nodes):
        found += node_problems(document, node, index)
    found += _duplicate_problems(document)
    found += _trigger_problems(document)
    found += _edge_problems(document)
    found += _path_problems(document)
    return found


def _top(code: str, path: str, message: str, fix: str) -> Problem:
    return Problem(code, "", path, message, fix)


def _triggers(document: Graph) -> list[str]:
    return [node.id for node in document.nodes if node.kind == "trigger"]


def _entry_problems(document: Graph) -> Iterator[Problem]:
    entry, triggers = document.entry_id, _triggers(document)
    fix = 'Add a trigger node and name it in "entry_id".'
    if triggers:
        fix = f'Set "entry_id" to {shown(triggers[0])}.'
    node = document.by_id.get(entry)
    if not entry:
        yield _top("NO_ENTRY", "entry_id", 'The graph has no entry: "entry_id" is empty.', fix)
    elif node is None:
        message = f"The entry {shown(entry)} is no node of this graph."
        yield _top("NO_ENTRY", "entry_id", message, fix)
    elif node.kind != "trigger":
        message = f"The entry {shown(entry)} is a node of the kind {shown(node.kind)}; people enter"
        problem = _top("ENTRY_NOT_TRIGGER", "entry_id", f"{message} by a trigger.", fix)
        yield problem._replace(node_id=entry)


def _gap_problems(document: Graph) -> Iterator[Problem]:
    yield from _time_problems("cooldown_hours", document.cooldown_hours, "hour")
    if document.cooldown_hours and document.reentry_window:
        message = 'The graph has both "cooldown_hours" and "reentry_window": two answers to one'
        fix = 'Keep one: "reentry_window" for once a day, "cooldown_hours" for a length of time.'
        yield _top("TWO_GAPS", "reentry_window", f"{message} question.", fix)
    yield from _time_problems("max_duration_days", document.max_duration_days, "day")


def _time_problems(field: str, amount: int, unit: timing.Unit) -> Iterator[Problem]:
    most = timing.MAX_AMOUNTS[unit]
    if not 0 <= amount <= most:
        message = f'"{field}" is {shown(amount)}; expected a whole number from 0 to {most}.'
        yield _top("BAD_DURATION", field, message, f"Write a number from 0, for none, to {most}.")


def _exit_problems(document: Graph) -> Iterator[Problem]:
    """`{}` is no exit rule at all, everything else must be a sound definition."""
    if document.exit_criteria:
        faults = rule.faults(document.exit_criteria)
        place = Place("", "exit_criteria", "The exit rule")
        for problem in rule_problems(faults, place, "-"):
            yield problem._replace(path=f"exit_criteria{problem.path[len('exit_criteria.-') :]}")


def _settings_problems(settings: graph.Settings, account_timezone: str | None) -> Iterator[Problem]:
    if settings.timezone is not None:
        yield from _zone_problems(settings.timezone, "settings.timezone")
    elif account_timezone:
        yield from _zone_problems(account_timezone, "account_timezone")
    if settings.send_window is not None:
        window = settings.send_window
        for field, fault in timing.window_faults(window.days, window.from_, window.to):
            yield _window_problem(f"settings.send_window.{field}", "The send window", fault)
    yield from duration_problems(settings.jitter, Place("", "settings", "The jitter"), "jitter")
    yield from _jitter_problems(settings)
    place = Place("", "settings", 'The setting "exit_on"')
    for i, event in enumerate(settings.exit_on):
        yield from event_problems(event, place, f"exit_on[{i}]")
    if settings.workweek is not None:
        for fault in timing.day_faults(settings.workweek):
            yield _window_problem("settings.workweek", "The workweek", fault)


def _zone_problems(name: str, path: str) -> Iterator[Problem]:
    if not timing.is_zone(name):
        close = _like(name, sorted(timing.ZONES))
        fix = f'Did you mean "{close}"?' if close else 'Write an IANA name such as "Asia/Tehran".'
        yield _top("BAD_TIMEZONE", path, f"The time zone {shown(name)} is unknown.", fix)


def _like(word: str, known: Sequence[str]) -> str:
    """The known name, as it is written, that this one is like; "" for none."""
    lowered = {name.lower(): name for name in known}
    return lowered.get(nearest(word, list(lowered)), "")


def _window_problem(path: str, noun: str, fault: str) -> Problem:
    wrong, fix = wrong_and_fix(fault)
    fix = "Write two different times." if fix.startswith("The window") else fix
    return _top("BAD_WINDOW", path, f"{noun}: {wrong[:1].lower()}{wrong[1:]}.", fix)


def _jitter_problems(settings: graph.Settings) -> Iterator[Problem]:
    """A delay longer than the window would move half the people to another day."""
    window = settings.send_window
    if window is None or timing.window_faults(window.days, window.from_, window.to):
        return
    try:
        longest = timing.parse_duration(settings.jitter)
    except timing.BadDuration:
        return
    opened = timing.window("UTC", window.days, window.from_, window.to)
    minutes = (opened.closes - opened.opens) % timing.MINUTES_A_DAY
    if longest.amount * timing.MINUTES_OF[longest.unit] > minutes:
        message = f'The jitter "{settings.jitter}" is longer than the send window is open.'
        fix = f'Write at most "{minutes}m", or widen the window.'
        yield _top("JITTER_EXCEEDS_WINDOW", "settings.jitter", message, fix)


def _duplicate_problems(document: Graph) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for index, node in enumerate(document.nodes):
        if first.setdefault(node.id, index) != index:
            message = f"The id {shown(node.id)} is given to nodes[{first[node.id]}] and again to"
            fix = "Give one of the two another id."
            where = f"nodes[{index}]"
            yield Problem("DUPLICATE_ID", node.id, f"{where}.id", f"{message} {where}.", fix)


def _trigger_problems(document: Graph) -> Iterator[Problem]:
    """One way in: the entry's trigger, or the first one where no entry is named rightly."""
    triggers = _triggers(document)
    entry = document.entry_id if document.entry_id in triggers else next(iter(triggers), "")
    seen = False
    for index, node in enumerate(document.nodes):
        if node.kind != "trigger":
            continue
        if node.id != entry or seen:
            message = f"is a second way in; {shown(entry)} is the entry."
            fix = "Remove it: a journey has one trigger."
            yield place_of(node, index).problem("SECOND_TRIGGER", "kind", message, fix)
        seen = seen or node.id == entry


def _edge_problems(document: Graph) -> Iterator[Problem]:
    names, suggestions = list(document.by_id), 0
    for node, port in _edges(document):
        target = document.by_id.get(port.target)
        edge = f"The edge {shown(port.name)} of node {shown(node.id)}"
        if target is None:
            suggestions += 1
            close = _like(port.target, names) if suggestions <= MAX_SUGGESTIONS else ""
            fix = f"Did you mean {shown(close)}?" if close else "Wire it to a node that exists."
            message = f"{edge} leads to {shown(port.target)}, which does not exist."
            yield Problem("DANGLING_EDGE", node.id, port.path, message, fix)
        elif target.kind == "trigger":
            message = f"{edge} leads into the trigger {shown(target.id)}; people come in there only"
            fix = "Wire it to the node after the trigger."
            yield Problem(
                "TRIGGER_HAS_INCOMING", node.id, port.path, f"{message} from outside.", fix
            )


def _edges(document: Graph) -> Iterator[tuple[Node, Port]]:
    """Every wired edge, and a `next` that its node never takes (a warning) but that must exist."""
    for index, node in enumerate(document.nodes):
        ports = node.ports(f"nodes[{index}]")
        unused = node.next and all(port.path != f"nodes[{index}].next" for port in ports)
        if unused and node.next not in document.by_id:
            ports = [Port("next", node.next, f"nodes[{index}].next"), *ports]
        yield from ((node, port) for port in ports if port.target)


def _path_problems(document: Graph) -> Iterator[Problem]:
    ways = paths.ways(document)
    index: dict[str, int] = {}
    for at, node in enumerate(document.nodes):
        index.setdefault(node.id, at)
    yield from _loop_problems(document, ways, index)
    lengths = paths.longest(ways, lambda node_id: document.by_id[node_id].kind == "wait")
    for start in _starts(document, ways):
        length = lengths.get(start, 0)
        if length > MAX_STEPS:
            message = (
                f"The path that begins at node {shown(start)} visits {length} nodes without a wait;"
                f" a walk visits at most {MAX_STEPS}."
            )
            where = f"nodes[{index[start]}]"
            yield Problem("PATH_TOO_LONG", start, where, message, "Put a wait into the path.")


def _starts(document: Graph, ways: paths.Ways) -> list[str]:
    """Where a walk can set out: the entry, and what follows each wait that people can reach."""
    reached = paths.reachable(ways, document.entry_id) or set(ways)
    starts = dict.fromkeys([document.entry_id] if document.entry_id in ways else ways)
    for node_id in ways:
        if node_id in reached and document.by_id[node_id].kind == "wait":
            starts.update(dict.fromkeys(ways[node_id]))
    return list(starts)


def _loop_problems(
    document: Graph, ways: paths.Ways, index: Mapping[str, int]
) -> Iterator[Problem]:
    restless = {node_id: _at_once(document, node_id, ways[node_id]) for node_id in ways}
    for knot in paths.knots(restless):
        first = min(knot, key=index.__getitem__)
        loop = paths.shortest_loop(restless, [first, *knot])
        named = [shown(node_id) for node_id in loop[:MAX_NAMED]]
        more = f" and {len(loop) - MAX_NAMED} more" if len(loop) > MAX_NAMED else ""
        message = f"The loop {' > '.join(named)}{more} lets no time pass"
        waits = any(document.by_id[node_id].kind == "wait" for node_id in loop)
        message += ": its wait for an event has no timeout." if waits else ": it has no wait."
        fix = "Give the wait a timeout." if waits else "Put a wait into the loop, or a way out."
        yield Problem("CYCLE", first, f"nodes[{index[first]}]", message, fix)


def _at_once(document: Graph, node_id: str, targets: Sequence[str]) -> Sequence[str]:
    """The nodes that may follow without time passing. A wait takes time, for an event only with a
    timeout; a task that is waited for takes the time of the person who does it."""
    node = document.by_id[node_id]
    if node.kind == "wait" and not (
        isinstance(node.wait, graph.ForEvent) and not node.wait.timeout
    ):
        return ()
    if isinstance(node.action, graph.Task):
        known = document.by_id
        return [each for each in targets if not isinstance(known[each].wait, graph.ForEvent)]
    return targets
