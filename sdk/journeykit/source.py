"""A journey as the code that builds it: what a person would write for a small one, and code that
runs for any.

The steps are written in the order in which people walk them. A node that several others lead to
is written once, after the branching whose branches meet in it where there is one, else at its first
mention, and the others go to it by its id. Long paths are cut into statements and deep branches
into parts, since a Python parser gives up on calls nested too far.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from textwrap import indent
from typing import Any, NamedTuple

from journeykit import sketch
from journeykit.journeys import Journey, journey
from journeykit.mistake import JourneyError
from journeykit.rule_source import literal, rule_code
from journeykit.sketch import Document
from journeykit.step_source import Spoken, Way, document_of, spoken
from journeykit_engine import rule
from journeykit_engine.graph import Graph, Node

LINE_CHARACTERS = 88  # of a call that stays on one line; a lambda inside has some room left
CALLS_A_STATEMENT = 40  # longer paths are cut; the parser's limit is some hundred
CALLS_A_BRANCH = 20  # a longer branch goes to a part
MAX_BRANCH_DEPTH = 6  # lambdas in lambdas; past it nobody reads on
LOOK_AHEAD = 40  # nodes looked at from each branch for the place where branches meet
SHORT_END = 4  # nodes of a branch that is told as an aside, for it only leads to an exit
TRIGGER_METHODS = (".on_", ".every_day_at")

Setting = tuple[str, Sequence[Any], dict[str, Any]]


def journey_code(graph: Graph, name: str = "") -> str:
    """Python that gives the variable `journey` this graph and name, exactly.

    >>> graph = Graph.parse({"entry_id": "trigger", "nodes": [
    ...     {"id": "trigger", "kind": "trigger", "next": "exit", "trigger": {"kind": "api"}},
    ...     {"id": "exit", "kind": "exit"}]})
    >>> print(journey_code(graph))
    import journeykit as jk
    <BLANKLINE>
    journey = jk.journey().on_call().exit()
    <BLANKLINE>
    """
    begun = _begun(graph, name)
    if begun is None or not _has_good_ids(graph):
        value = literal(Journey.from_graph(graph, name).to_value())
        return f"import journeykit as jk\n\njourney = jk.Journey.from_json({value})\n"
    opening, *settings = begun
    entrance, *steps = [*_Writer(graph).calls()] or [""]
    is_trigger = entrance.startswith(TRIGGER_METHODS)
    ordered = [entrance, *settings] if is_trigger else [*settings, entrance]
    calls = [call for call in (opening, *ordered, *steps) if call]
    return "import journeykit as jk\n\n" + "".join(_statements(calls))


def _has_good_ids(graph: Graph) -> bool:
    taken: Document = {}
    for node in graph.nodes:
        try:
            taken[sketch.given_id(node.id, taken)] = None
        except JourneyError:
            return False
    return True


def _statements(calls: list[str]) -> Iterator[str]:
    first = calls[0] + "".join(calls[1:])
    if len(first) <= LINE_CHARACTERS and "\n" not in first:
        yield f"journey = {first}\n"
        return
    for start in range(0, len(calls), CALLS_A_STATEMENT):
        lines = calls[start : start + CALLS_A_STATEMENT]
        body = "\n".join(lines if start == 0 else ["journey", *lines])
        yield f"journey = (\n{indent(body, '    ')}\n)\n"


def _begun(graph: Graph, name: str) -> list[str] | None:
    """The calls for all that is not a node; None where they do not give these fields."""
    numbers = {"journey_id": graph.journey_id, "version": graph.version}
    given: dict[str, Any] = {field: number for field, number in numbers.items() if number}
    settings = [*_settings(graph)]
    try:
        begun = journey(name, **given)
        for method, values, kwargs in settings:
            begun = getattr(begun, method)(*values, **kwargs)
    except JourneyError:
        return None
    bare = graph.model_copy(update={"nodes": [], "entry_id": ""})
    if begun.graph != bare:
        return None
    opening = _call("jk.journey", _arguments([name] if name else [], given))
    return [opening, *(_call(f".{setting[0]}", _setting_code(setting)) for setting in settings)]


def _setting_code(setting: Setting) -> list[str]:
    method, args, kwargs = setting
    if method == "exit_when" and not rule.is_empty(args[0]):
        return [rule_code(args[0])]
    return _arguments(args, kwargs)


def _arguments(args: Sequence[Any], kwargs: dict[str, Any]) -> list[str]:
    return [*map(literal, args), *(f"{name}={literal(value)}" for name, value in kwargs.items())]


def _settings(graph: Graph) -> Iterator[Setting]:
    gap = {"cooldown_hours": graph.cooldown_hours, "window": graph.reentry_window}
    if graph.entry_rule != "once" or any(gap.values()):
        yield "reenter", [graph.entry_rule], {name: value for name, value in gap.items() if value}
    if graph.exit_criteria is not None:
        yield "exit_when", [graph.exit_criteria], {}
    if graph.settings.exit_on:
        yield "exit_on", graph.settings.exit_on, {}
    if graph.max_duration_days:
        yield "at_most", [graph.max_duration_days], {}
    if window := graph.settings.send_window:
        hours = {"days": window.days, "from_": window.from_, "to": window.to}
        yield "send_window", [], hours if window.tz == "contact" else {**hours, "tz": window.tz}
    if graph.settings.jitter:
        yield "jitter", [graph.settings.jitter], {}
    if graph.settings.workweek is not None:
        yield "workweek", graph.settings.workweek, {}
    if graph.settings.timezone is not None:
        yield "timezone", [graph.settings.timezone], {}


class _Chain(NamedTuple):
    """The calls of a path, and whether its end is open for the step that follows."""

    calls: list[str]
    is_open: bool


class _Writer:
    """Writes every node once. `written` holds the ids so far, in the builder's own order, so that
    an id is only spelled out where the builder would derive another one; `awaited` the ids that a
    step around the present one will write; `parts` those that nobody around will."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.written: dict[str, Any] = {}
        self.awaited: list[str] = []
        self.parts: deque[str] = deque()

    def calls(self) -> Iterator[str]:
        yield from self.main()
        for node in self.graph.nodes:
            self.parts.append(node.id)
            while self.parts:
                node_id = self.parts.popleft()
                if node_id not in self.written:
                    yield _call(".part", [_function(self.chain(node_id, "", 1).calls)])
        if list(self.written) != [node.id for node in self.graph.nodes]:
            yield _call(".in_order", [literal([node.id for node in self.graph.nodes])])
        if places := {node.id: (node.x, node.y) for node in self.graph.nodes if _is_placed(node)}:
            spots = (f"{literal(node_id)}: {spot!r}" for node_id, spot in places.items())
            yield _call(".place", ["{" + ", ".join(spots) + "}"])

    def main(self) -> list[str]:
        """The path from the entry; an entry that begins no journey is a part to go to."""
        entry = self.graph.by_id.get(self.graph.entry_id)
        if not self.graph.entry_id:
            return []
        if entry is None or entry.kind != "trigger":
            return [_call(".go_to", [literal(self.graph.entry_id)])]
        return self.chain(entry.id, "", 0).calls

    def chain(self, target: str, follow: str, depth: int) -> _Chain:
        """The path from `target` to `follow`, which the caller writes; "" is the end."""
        calls: list[str] = []
        while target != follow:
            if not target:
                return _Chain([*calls, ".stop()"], False)
            if not self.is_free(target) or (depth and len(calls) >= CALLS_A_BRANCH):
                return _Chain([*calls, f".{self.jump(target)}"], False)
            call, target, is_open = self.step(self.graph.by_id[target], follow, depth)
            calls.append(call)
            if not is_open:
                return _Chain(calls, False)
        return _Chain(calls, True)

    def is_free(self, node_id: str) -> bool:
        is_known = node_id in self.graph.by_id and node_id not in self.written
        return is_known and node_id not in self.awaited

    def jump(self, target: str) -> str:
        if self.is_free(target):
            self.parts.append(target)
        return f"go_to({literal(target)})"

    def step(self, node: Node, follow: str, depth: int) -> tuple[str, str, bool]:
        """The call for a node, the node that follows it, and whether an end is open for that."""
        step = spoken(node, not self.written and node.id == self.graph.entry_id)
        if step is None:
            return self.raw(node), "", False
        extra = self.own_name(node, step)
        self.written[node.id] = None
        after = node.next if step.goes_on else self.meeting(step.ways, follow)
        arguments, is_open = self.branches(step, after, depth)
        if after != follow and not is_open and self.is_free(after):
            self.parts.append(after)
        return (
            _call(f".{step.method}", [*step.first, *arguments, *step.last, *extra]),
            after,
            is_open,
        )

    def raw(self, node: Node) -> str:
        self.written[node.id] = None
        document = document_of(node)
        self.parts.extend(target for _, target in sketch.targets(document))
        return _call(".node", [literal(document)])

    def own_name(self, node: Node, step: Spoken) -> list[str]:
        names = {"label": node.label} if node.label else {}
        if sketch.free_id(step.base, self.written) != node.id:
            names = {"id": node.id, **names}
        return [f"{name}={literal(text)}" for name, text in names.items()]

    def branches(self, step: Spoken, after: str, depth: int) -> tuple[list[str], bool]:
        arguments, is_open = [], step.goes_on
        self.awaited.append(after)
        for way in step.ways:
            code, stays_open = self.branch(way, after, depth + 1)
            is_open = is_open or stays_open
            if code:
                arguments.append(f"{way.before}{code}{way.after}")
        self.awaited.pop()
        return arguments, is_open

    def branch(self, way: Way, after: str, depth: int) -> tuple[str, bool]:
        """The code of a branch, "" where it may be left out, and whether its end is open."""
        if way.target == after and (way.target or way.unset == "open"):
            return "" if way.unset == "open" else "...", True
        if not way.target:
            return "" if way.unset == "unwired" else "None", False
        if depth > MAX_BRANCH_DEPTH or not self.is_free(way.target):
            return f"jk.{self.jump(way.target)}", False
        chain = self.chain(way.target, after, depth)
        return _function(chain.calls), chain.is_open

    def meeting(self, ways: Sequence[Way], follow: str) -> str:
        """The node that best follows a branching: where most branches meet, or where the only
        branch goes that does not soon end; else what follows anyway."""
        heads = [way.target for way in ways if way.target]
        seen = [self.ahead(head, follow) for head in heads]
        counts: dict[str, int] = {}
        for node_id in (node_id for ahead in seen for node_id in ahead):
            counts[node_id] = counts.get(node_id, 0) + 1
        best = max(counts, key=counts.__getitem__, default="")
        if best and counts[best] > 1:
            return best
        longer = [head for head in heads if not self.soon_ends(head, follow)]
        is_alone = len(longer) == 1 and longer[0] != follow and self.is_free(longer[0])
        return longer[0] if is_alone else follow

    def ahead(self, head: str, follow: str) -> dict[str, None]:
        """The free nodes that a branch leads to, the nearest first."""
        found: dict[str, None] = {}
        waiting = deque([head])
        while waiting and len(found) < LOOK_AHEAD:
            node_id = waiting.popleft()
            if node_id != follow and node_id not in found and self.is_free(node_id):
                found[node_id] = None
                waiting.extend(port.target for port in self.graph.by_id[node_id].ports())
        return found

    def soon_ends(self, head: str, follow: str) -> bool:
        for _ in range(SHORT_END):
            if head == follow or not head:
                return False
            if not self.is_free(head) or self.graph.by_id[head].kind == "exit":
                return True
            ports = self.graph.by_id[head].ports()
            if len(ports) != 1:
                return False
            head = ports[0].target
        return False


def _is_placed(node: Node) -> bool:
    return node.x is not None or node.y is not None


def _function(calls: list[str]) -> str:
    line = "j" + "".join(calls)
    is_short = len(line) <= (LINE_CHARACTERS * 3 // 4 if len(calls) == 1 else LINE_CHARACTERS // 2)
    if is_short and "\n" not in line:
        return f"lambda j: {line}"
    return "lambda j: (\n" + indent("\n".join(["j" + calls[0], *calls[1:]]), "    ") + "\n)"


def _call(method: str, arguments: Sequence[str]) -> str:
    line = f"{method}({', '.join(arguments)})"
    if len(line) <= LINE_CHARACTERS and "\n" not in line:
        return line
    return (
        f"{method}(\n" + indent("".join(f"{argument},\n" for argument in arguments), "    ") + ")"
    )
