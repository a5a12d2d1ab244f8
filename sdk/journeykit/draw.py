"""A journey as a picture: Graphviz DOT text, and the SVG that a notebook shows.

The picture is a pure function of its arguments: the same graph gives the same bytes. Nodes have
names of our own (n0, n1, …) and every text that a person typed is escaped before it stands in DOT,
so no label can become markup, an escape of Graphviz, a port or a link.
"""

from __future__ import annotations

import hashlib
import re
import textwrap
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Literal, NamedTuple, TypedDict, get_args

from journeykit.drawing import FONT, NO_RENDERER, RENDERERS, Drawing, tidied
from journeykit.mistake import JourneyError
from journeykit.outline import Way, cleaned, isolated, outline, percent, said_of, shortened, ways_of
from journeykit_engine.comparison import shown
from journeykit_engine.graph import Graph, Kind, Node
from journeykit_engine.shape import Problem

Theme = Literal["light", "dark", "auto"]
Direction = Literal["TB", "LR"]
Stats = Mapping[str, Mapping[str, int]]


class Looks(TypedDict, total=False):
    """How a picture may be asked for; `draw` says what each means."""

    format: Literal["svg", "png", "dot"]
    stats: Stats | None
    path: Sequence[str]
    taken: Collection[tuple[str, str]]
    arms: Stats | None
    problems: Sequence[Problem]
    theme: Theme
    direction: Direction
    figure_id: str


MAX_LABEL_CHARACTERS = 160  # a label stays readable, and far below Graphviz' own limit of 16,384
MAX_TIP_CHARACTERS = 200  # browsers show a tooltip in one box, which must not hide the picture
MAX_PROBLEMS_LISTED = 8  # under the picture; the full list is the validation's
LINE_CHARACTERS = 30  # where a label is broken: boxes of like width make a calm picture
SLANTED_LINE_CHARACTERS = 22  # in a shape whose corners are cut off
ID_LINE_CHARACTERS = 40  # in the smallest type
EDGE_LINE_CHARACTERS = 24
MAX_DRAWN_NODES = 1_000  # Graphviz needs a few seconds there, minutes for a few thousand
BAR_POINTS = 110  # the width of a full funnel bar
MAX_FLOW_WIDTH = 5.5  # points, of the edge with the largest flow
EDGE_LABEL_PADDING = 3  # points, or the label touches its edge
TOO_LARGE = (
    f"The journey has more than {MAX_DRAWN_NODES:,} nodes, too many for a picture, so this is the "
    "journey as text."
)


def draw(
    graph: Graph,
    *,
    format: Literal["svg", "png", "dot"] = "svg",
    name: str = "",
    stats: Stats | None = None,
    path: Sequence[str] = (),
    taken: Collection[tuple[str, str]] = (),
    arms: Stats | None = None,
    problems: Sequence[Problem] = (),
    theme: Theme = "light",
    direction: Direction = "TB",
    figure_id: str = "",
) -> Drawing:
    """The journey as a picture that shows itself in a notebook; `format` says as what.

    `stats` gives people per node: {"send": {"entered": 3902, "waiting": 0, "suppressed": 391,
    "exited": 0}}; a node without figures shows none. `arms` gives people per arm of each split.
    `path` lists the ids of the nodes that one person visited, in order, `taken` the ports taken on
    it. `figure_id` begins every id of the SVG; without one it is made from the picture's content,
    so that two pictures on a page do not share ids. Without a renderer, and for a graph too large
    for one, it shows the outline and the DOT text with a hint, and raises nothing.

    >>> draw(Graph(), format="dot").dot.splitlines()[0]
    'digraph journey {'
    """
    for word, given, known in (("theme", theme, Theme), ("direction", direction, Direction)):
        if given not in get_args(known):
            words = " or ".join(f'"{each}"' for each in get_args(known))
            message = f"The {word} of a drawing is {shown(given)}."
            raise JourneyError("UNKNOWN_WORD", message, f"Write {words}.")
    figure = _Figure(
        graph,
        name,
        stats or {},
        tuple(path),
        frozenset(taken),
        arms or {},
        tuple(problems),
        theme,
        direction,
        figure_id,
    )
    dot, text = figure.dot(), outline(graph, name)
    if format == "dot":
        return Drawing(dot, text)
    if len(graph.nodes) > MAX_DRAWN_NODES:
        return Drawing(dot, text, hint=TOO_LARGE)
    for renderer in RENDERERS:
        raw = renderer.render(dot, "svg")
        if raw is not None:
            svg = tidied(raw, figure.id, figure.title, figure.summary, figure.style())
            return Drawing(dot, text, svg, renderer.name, format=format)
    return Drawing(dot, text, hint=NO_RENDERER)


# Light and dark, by what is painted. The light values differ from each other: in a picture that
# follows the reader's theme a style sheet turns each into its dark twin.
COLOURS: Mapping[str, tuple[str, str]] = {
    "paper": ("#fefefe", "#12161d"),
    "ink": ("#1c2530", "#e9eef4"),
    "soft": ("#556170", "#aeb9c6"),
    "faint": ("#8791a0", "#7f8b9a"),
    "edge": ("#7a8696", "#8c98a8"),
    "trigger": ("#e2f5e8", "#14352a"),
    "trigger line": ("#2f9e5b", "#43c27c"),
    "wait": ("#eef1f5", "#262e39"),
    "wait line": ("#8d9aab", "#8494a8"),
    "condition": ("#e5effd", "#152d4d"),
    "condition line": ("#3b7dd8", "#5f9df1"),
    "switch": ("#def4f6", "#0f373d"),
    "switch line": ("#1b97a6", "#3bb9c7"),
    "split": ("#efe8fd", "#2c2249"),
    "split line": ("#7c52d6", "#a487f0"),
    "action": ("#fde9f1", "#43192e"),
    "action line": ("#d1457f", "#ee74a6"),
    "goal": ("#fff2cc", "#3d310f"),
    "goal line": ("#cf970b", "#e2b232"),
    "exit": ("#4b5664", "#c3ccd7"),
    "exit line": ("#3c4653", "#dbe2ea"),
    "exit ink": ("#fbfcfd", "#171d25"),
    "exit soft": ("#d9dfe7", "#3f4a58"),
    "wrong": ("#fdebe9", "#46191b"),
    "wrong line": ("#d32f2f", "#ff6f67"),
    "dim": ("#f8f9fa", "#181d25"),
    "dim line": ("#d6dbe1", "#38414e"),
    "dim ink": ("#a8b1bc", "#626e7d"),
    "bar": ("#4a78b8", "#6f9fe0"),
    "bar rest": ("#d3dae4", "#3b4553"),
}
DARK_PAPER = "transparent"  # the page behind it is dark already
_SHAPES: Mapping[Kind, str] = {
    "trigger": 'shape="box" style="filled,rounded" peripheries="2" margin="0.2,0.09"',
    "wait": 'shape="box" style="filled,rounded" margin="0.2,0.09"',
    "condition": 'shape="hexagon" margin="0.08,0.04"',
    "switch": 'shape="hexagon" peripheries="2" margin="0.08,0.04"',
    "split": 'shape="polygon" sides="4" distortion="-0.25" margin="0,0.04"',
    "action": 'shape="box" margin="0.2,0.09"',
    "goal": 'shape="octagon" margin="0.1,0.06"',
    "exit": 'shape="box" style="filled,rounded" margin="0.2,0.07"',
}
_SLANTED = ("condition", "switch")


class _Edge(NamedTuple):
    source: int
    target: str  # a name in DOT
    way: Way


@dataclass(frozen=True)
class _Figure:
    graph: Graph
    name: str
    stats: Stats
    path: tuple[str, ...]
    taken: frozenset[tuple[str, str]]
    arms: Stats
    problems: tuple[Problem, ...]
    theme: Theme
    direction: Direction
    asked_id: str

    def dot(self) -> str:
        return "\n".join([*self.head(), *self.node_lines(), *self.edge_lines(), "}", ""])

    @cached_property
    def id(self) -> str:
        if self.asked_id:
            if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,99}", self.asked_id):
                expected = "expected a letter, then letters, digits, - or _, at most 100 in all"
                raise ValueError(f'figure_id "{shortened(self.asked_id, 60)}": {expected}.')
            return self.asked_id
        figures = [
            sorted((node, sorted(counts.items())) for node, counts in table.items())
            for table in (self.stats, self.arms)
        ]
        drawn = (self.path, sorted(self.taken), self.problems, self.theme, self.direction)
        said = repr((self.graph.to_value(), self.name, figures, drawn))
        shape = said.encode("utf-8", "backslashreplace")
        return f"journey-{hashlib.sha256(shape).hexdigest()[:10]}"

    @property
    def title(self) -> str:
        return shortened(cleaned(self.name), MAX_LABEL_CHARACTERS) or "Journey"

    @property
    def summary(self) -> str:
        """What a screen reader says in place of the picture."""
        count = len(self.graph.nodes)
        return f"{self.title}: {count} node{'' if count == 1 else 's'}"

    def colour(self, role: str) -> str:
        return COLOURS[role][self.theme == "dark"]

    def head(self) -> Iterator[str]:
        paper = self.colour("paper") if self.theme == "light" else DARK_PAPER
        yield "digraph journey {"
        yield (
            f'  graph [id="{self.id}" bgcolor="{paper}" rankdir="{self.direction}" pad="0.2" '
            f'nodesep="0.35" ranksep="0.42" fontname="{FONT}" fontsize="11" '
            f'fontcolor="{self.colour("ink")}"{self.caption()}];'
        )
        yield f'  node [fontname="{FONT}" fontsize="12" style="filled" penwidth="1.3"];'
        yield (
            f'  edge [fontname="{FONT}" fontsize="10" fontcolor="{self.colour("soft")}" '
            f'color="{self.colour("edge")}" arrowsize="0.7"];'
        )

    def caption(self) -> str:
        """The problems in words under the picture."""
        if not self.problems:
            return ""
        said = [f"{problem.code}: {problem.message}" for problem in self.problems]
        rest = len(said) - MAX_PROBLEMS_LISTED
        said = said[:MAX_PROBLEMS_LISTED] + ([f"… and {rest} more"] if rest > 0 else [])
        rows = "".join(self.row(text, "wrong line", 10, width=90, align="LEFT") for text in said)
        return f' labelloc="b" labeljust="l" label=<{_table(rows)}>'

    def node_lines(self) -> Iterator[str]:
        if not self.graph.nodes:
            label = self.row("an empty journey", "faint", 12)
            yield f'  empty [shape="plaintext" style="" label=<{_table(label)}>];'
        for index, node in enumerate(self.graph.nodes):
            yield f"  n{index} [{self.node_attributes(index, node)}];"
        for target, missing in self.missing.items():
            rows = self.row(f"missing: {target}", "wrong line", 11)
            yield (
                f'  {missing} [id="{self.id}-{missing}" shape="box" style="filled,dashed" '
                f'fillcolor="{self.colour("wrong")}" color="{self.colour("wrong line")}" '
                f'margin="0.15,0.07" label=<{_table(rows)}>];'
            )

    def node_attributes(self, index: int, node: Node) -> str:
        fill, line, width = str(node.kind), f"{node.kind} line", ""
        if self.is_dimmed(node.id):
            fill, line = "dim", "dim line"
        elif node.id in self.visits:
            width = ' penwidth="2.6"'
        if index in self.faults:
            fill, line, width = "wrong", "wrong line", ' penwidth="2.2"'
        return (
            f'id="{self.id}-n{index}" {_SHAPES[node.kind]} fillcolor="{self.colour(fill)}" '
            f'color="{self.colour(line)}"{width} tooltip={_quoted(self.tip(index, node))} '
            f"label=<{self.label(index, node)}>"
        )

    def label(self, index: int, node: Node) -> str:
        said = cleaned(said_of(node))
        title = cleaned(node.label) or said
        ink, soft, faint = self.inks(index, node)
        width = SLANTED_LINE_CHARACTERS if node.kind in _SLANTED else LINE_CHARACTERS
        rows = [self.row(title, ink, 12, is_bold=True, width=width)]
        if title != said:
            rows.append(self.row(said, soft, 10, width=width + 4))
        if cleaned(node.id) not in (title, said):
            rows.append(self.row(node.id, faint, 8, width=ID_LINE_CHARACTERS))
        if self.visits.get(node.id, 0) > 1:
            rows.append(self.row(f"visited {self.visits[node.id]} times", soft, 9))
        return _table("".join([*rows, *self.funnel(node, ink, soft)]))

    def inks(self, index: int, node: Node) -> tuple[str, str, str]:
        """The colours of the title, of what stands under it, and of the id."""
        if self.is_dimmed(node.id):
            return "dim ink", "dim ink", "dim ink"
        if node.kind == "exit" and index not in self.faults:
            return "exit ink", "exit soft", "exit soft"
        return "ink", "soft", "faint"

    def row(
        self,
        text: str,
        role: str,
        size: int,
        *,
        is_bold: bool = False,
        width: int = LINE_CHARACTERS,
        align: str = "CENTER",
    ) -> str:
        lines = "<BR/>".join(map(_markup, _lines(text, width)))
        words = f"<B>{lines}</B>" if is_bold else lines
        return (
            f'<TR><TD ALIGN="{align}"><FONT POINT-SIZE="{size}" COLOR="{self.colour(role)}">'
            f"{words}</FONT></TD></TR>"
        )

    def tip(self, index: int, node: Node) -> str:
        said = [problem.message for problem in self.faults.get(index, ())]
        said = said or [node.label or said_of(node), node.id]
        return shortened(cleaned(" · ".join(said)), MAX_TIP_CHARACTERS)

    def funnel(self, node: Node, ink: str, soft: str) -> Iterator[str]:
        """How many came here, as a number, a share of those who entered and a bar; then where
        they are now."""
        entered = self.entered(node.id)
        if entered is None:
            return
        first = self.entered(self.graph.entry_id)
        share = f" · {percent(100 * entered / first)}" if first and node.kind != "trigger" else ""
        yield self.row(f"{entered:,}{share}", ink, 11, is_bold=True)
        yield self.bar(entered / self.most if self.most else 0.0)
        others = [
            f"{count:,} {what}"
            for what in ("waiting", "suppressed", "exited")
            if (count := self.stats[node.id].get(what))
        ]
        if others:
            yield self.row(" · ".join(others), soft, 9, width=ID_LINE_CHARACTERS)

    def entered(self, node_id: str) -> int | None:
        return self.stats.get(node_id, {}).get("entered")

    def bar(self, share: float) -> str:
        full = round(BAR_POINTS * min(max(share, 0.0), 1.0))
        cells = "".join(
            f'<TD FIXEDSIZE="TRUE" WIDTH="{points}" HEIGHT="5" BGCOLOR="{self.colour(role)}"></TD>'
            for points, role in ((full, "bar"), (BAR_POINTS - full, "bar rest"))
            if points
        )
        table = (
            f'<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0" CELLPADDING="0" FIXEDSIZE="TRUE" '
            f'WIDTH="{BAR_POINTS}" HEIGHT="5">'
        )
        return f"<TR><TD>{table}<TR>{cells}</TR></TABLE></TD></TR>"

    def edge_lines(self) -> Iterator[str]:
        for i, edge in enumerate(self.edges):
            yield f'  n{edge.source} -> {edge.target} [id="{self.id}-e{i}"{self.ink(i, edge)}];'

    def ink(self, i: int, edge: _Edge) -> str:
        source = self.graph.nodes[edge.source]
        is_lit = self.is_lit(source.id, edge.way)
        colour, words = "", edge.way.words
        if edge.way.target in self.missing:
            colour = self.colour("wrong line")
        elif self.path and not is_lit:
            colour = self.colour("dim line")
        elif is_lit:
            colour = self.colour(f"{source.kind} line")
        flow = self.flows.get(i)
        if flow is not None and words:
            words = f"{words} · {flow:,}"
        role = "dim ink" if self.path and not is_lit else "soft"
        row = self.row(words, role, 10, width=EDGE_LINE_CHARACTERS)
        label = _table(row, EDGE_LABEL_PADDING) if words else ""
        return "".join(
            (
                f" label=<{label}>" if label else "",
                f' color="{colour}"' if colour else "",
                ' style="dashed"' if edge.way.is_held_out else "",
                f' penwidth="{self.width(flow, is_lit)}"' if self.stats or is_lit else "",
            )
        )

    def is_lit(self, node_id: str, way: Way) -> bool:
        if (node_id, way.target) not in self.steps:
            return False
        return (node_id, way.port) in self.taken or node_id not in self.chose

    @cached_property
    def chose(self) -> frozenset[str]:
        """The nodes of which it is known which way was taken."""
        return frozenset(node_id for node_id, _ in self.taken)

    def width(self, flow: int | None, is_lit: bool) -> str:
        if flow is None:
            return "2.6" if is_lit else "1"
        return f"{1 + (MAX_FLOW_WIDTH - 1) * min(flow / max(self.most, 1), 1):.2f}"

    def is_dimmed(self, node_id: str) -> bool:
        return bool(self.path) and node_id not in self.visits

    @cached_property
    def visits(self) -> Counter[str]:
        return Counter(self.path)

    @cached_property
    def steps(self) -> set[tuple[str, str]]:
        return set(zip(self.path, self.path[1:], strict=False))

    @cached_property
    def most(self) -> int:
        return max((self.entered(node_id) or 0 for node_id in self.stats), default=0)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The place of each id in the document; of two with one id the first, as in the engine."""
        return {node.id: i for i, node in reversed(list(enumerate(self.graph.nodes)))}

    @cached_property
    def ways(self) -> list[list[Way]]:
        return [[way for way in ways_of(node) if way.target] for node in self.graph.nodes]

    @cached_property
    def missing(self) -> dict[str, str]:
        """The names in DOT of the nodes that edges point to and the document does not have."""
        targets = (way.target for ways in self.ways for way in ways)
        wanted = dict.fromkeys(target for target in targets if target not in self.numbers)
        return {target: f"m{i}" for i, target in enumerate(wanted)}

    @cached_property
    def edges(self) -> list[_Edge]:
        return [
            _Edge(source, self.missing.get(way.target) or f"n{self.numbers[way.target]}", way)
            for source, ways in enumerate(self.ways)
            for way in ways
        ]

    @cached_property
    def faults(self) -> dict[int, list[Problem]]:
        """The problems of each node, by their path, or by the id where the path names none."""
        found: dict[int, list[Problem]] = {}
        for problem in self.problems:
            place = re.match(r"nodes\[(\d+)\]", problem.path)
            index = int(place[1]) if place else self.numbers.get(problem.node_id)
            if index is not None:
                found.setdefault(index, []).append(problem)
        return found

    @cached_property
    def flows(self) -> dict[int, int]:
        """People along each edge, where the nodes' figures leave no choice: everybody who came to
        a node with one way in used it, everybody who went on from a node with one way out too."""
        ins = Counter(edge.target for edge in self.edges)
        found = {}
        for i, edge in enumerate(self.edges):
            there = self.entered(edge.way.target)
            if ins[edge.target] > 1 or edge.way.target == self.graph.entry_id:
                there = self.gone_on(edge.source)
            arms = self.arms.get(self.graph.nodes[edge.source].id)
            if arms is not None:
                there = arms.get("holdout" if edge.way.is_held_out else edge.way.port, there)
            if there is not None:
                found[i] = max(there, 0)
        return found

    def gone_on(self, index: int) -> int | None:
        """How many left a node by its only way out; None where it has several or no figures."""
        node = self.graph.nodes[index]
        entered = self.entered(node.id)
        if entered is None or len(ways_of(node)) != 1:
            return None
        figures = self.stats[node.id]
        return entered - (figures.get("waiting") or 0) - (figures.get("exited") or 0)

    def style(self) -> str:
        """The dark twin of every colour, for a reader whose page is dark."""
        if self.theme != "auto":
            return ""
        rules = "".join(
            f'#{self.id} [{what}="{light}"]{{{what}:{dark}}}'
            for light, dark in COLOURS.values()
            for what in ("fill", "stroke")
        )
        return f"@media (prefers-color-scheme:dark){{{rules}}}"


def _table(rows: str, padding: int = 1) -> str:
    start = '<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0"'
    return f'{start} CELLPADDING="{padding}">{rows}</TABLE>'


def _lines(text: str, width: int) -> list[str]:
    text = shortened(cleaned(text), MAX_LABEL_CHARACTERS)
    return [isolated(line) for line in textwrap.wrap(text, width, break_on_hyphens=False)] or [" "]


def _markup(text: str) -> str:
    """Text inside an HTML-like label. A backslash begins an escape there too, even one that is
    written as an entity; two of them are one that is shown."""
    return escape(text, quote=True).replace("\\", "\\\\")


def _quoted(text: str) -> str:
    """A tooltip as a DOT string that shows exactly this text: Graphviz undoes escapes twice in it,
    so it takes four backslashes to show one."""
    plain = text.replace("&", "&amp;").replace("\\", "\\" * 4).replace('"', '\\"')
    return f'"{plain}"'
