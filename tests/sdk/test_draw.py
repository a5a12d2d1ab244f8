"""A journey as a picture: what it shows, that nothing typed becomes markup, and what stands in
where nothing can draw."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journeykit.draw import (
    COLOURS,
    MAX_DRAWN_NODES,
    TOO_LARGE,
    draw,
)
from journeykit.drawing import NO_RENDERER, CannotDraw
from journeykit.mistake import JourneyError
from journeykit.outline import cleaned
from journeykit_engine.graph import KINDS, Graph, Node
from journeykit_engine.shape import Problem

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"
CART = {
    "journey_id": 1,
    "entry_id": "trigger",
    "nodes": [
        {
            "id": "trigger",
            "kind": "trigger",
            "label": "افزودن به سبد",
            "next": "wait",
            "trigger": {"kind": "event", "event": "product_added_to_cart"},
        },
        {
            "id": "wait",
            "kind": "wait",
            "label": "یک ساعت",
            "next": "test",
            "wait": {"kind": "duration", "amount": 1, "unit": "hour"},
        },
        {
            "id": "test",
            "kind": "split",
            "split": {
                "branches": [
                    {"weight": 1, "next": "push", "variant": "A"},
                    {"weight": 1, "next": "mail", "variant": "B"},
                ],
                "holdout_percent": 10,
                "on_holdout": "end",
            },
        },
        {
            "id": "push",
            "kind": "action",
            "label": "یادآوری (پوش)!",
            "next": "end",
            "action": {"kind": "send", "channel": "push", "template_id": 3},
        },
        {
            "id": "mail",
            "kind": "action",
            "next": "end",
            "action": {"kind": "send", "channel": "email", "template_id": 7},
        },
        {"id": "end", "kind": "exit"},
    ],
}
STATS = {
    "trigger": {"entered": 4210, "waiting": 0, "suppressed": 0, "exited": 0},
    "wait": {"entered": 4210, "waiting": 210, "suppressed": 0, "exited": 0},
    "test": {"entered": 4000, "waiting": 0, "suppressed": 0, "exited": 0},
    "push": {"entered": 1800, "waiting": 0, "suppressed": 120, "exited": 0},
    "mail": {"entered": 1790, "waiting": 0, "suppressed": 0, "exited": 0},
    "end": {"entered": 4000, "waiting": 0, "suppressed": 0, "exited": 4000},
}


@pytest.fixture
def cart() -> Graph:
    return Graph.parse(CART)


@pytest.fixture
def nothing_can_draw(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pygraphviz", None)


def exits(*labels: str) -> Graph:
    """Unconnected exits, one for each label."""
    nodes = [Node(id=f"e{i}", kind="exit", label=label) for i, label in enumerate(labels)]
    return Graph(nodes=nodes)


def texts(svg: str) -> list[str]:
    """Every text of the picture as a reader sees it, without the marks of direction."""
    found = ["".join(text.itertext()) for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    return [text.strip("\u2068\u2069").replace("\xa0", " ") for text in found]


def dot_of(graph: Graph, **options: Any) -> str:
    return draw(graph, format="dot", **options).dot


def svg_of(graph: Graph, **options: Any) -> str:
    svg = draw(graph, **options).svg
    assert svg is not None
    return svg


def dot_line(dot: str, beginning: str) -> str:
    (line,) = (line for line in dot.splitlines() if line.strip().startswith(beginning))
    return line


# What the picture shows.


def test_the_abandoned_cart_is_drawn_with_its_words(cart: Graph) -> None:
    shown = texts(svg_of(cart))

    assert {"افزودن به سبد", "یک ساعت", "یادآوری (پوش)!"} <= set(shown)
    assert {"wait 1 hour", "send push · template 3", "send email · template 7"} <= set(shown)
    assert {"A 45 %", "B 45 %", "held out 10 %"} <= set(shown)


def test_every_kind_has_colours_of_its_own() -> None:
    drafts = [Node.model_validate({"id": f"the {kind}", "kind": kind}) for kind in KINDS]
    dot = dot_of(Graph(nodes=drafts))

    fills = [re.search('fillcolor="([^"]+)"', dot_line(dot, f"n{i} [")) for i in range(len(KINDS))]
    assert len({fill[1] for fill in fills if fill}) == len(KINDS)


def test_the_edge_of_the_held_out_is_dashed(cart: Graph) -> None:
    dashed = [line for line in dot_of(cart).splitlines() if 'style="dashed"' in line]

    assert len(dashed) == 1
    assert dashed[0].startswith("  n2 -> n5 ")


def test_a_holdout_without_a_way_of_its_own_is_drawn_along_the_first_branch() -> None:
    branches = [{"next": "a", "variant": "A"}, {"next": "b", "variant": "B"}]
    split = {"id": "s", "kind": "split", "split": {"branches": branches, "holdout_percent": 5}}
    ends = [{"id": "a", "kind": "exit"}, {"id": "b", "kind": "exit"}]

    dot = dot_of(Graph.parse({"entry_id": "s", "nodes": [split, *ends]}))

    (dashed,) = (line for line in dot.splitlines() if 'style="dashed"' in line)
    assert dashed.startswith("  n0 -> n1 ")
    assert "held out 5 %" in dashed


def test_a_way_to_nowhere_is_red_and_names_what_is_missing() -> None:
    graph = Graph.parse({"nodes": [{"id": "a", "kind": "goal", "next": "<gone>"}]})

    dot = dot_of(graph)

    assert "missing: &lt;gone&gt;" in dot_line(dot, "m0 [")
    assert COLOURS["wrong line"][0] in dot_line(dot, "n0 -> m0")
    assert "missing: <gone>" in texts(svg_of(graph))


def test_a_node_with_a_problem_is_red_and_tells_it() -> None:
    graph = exits("fine", "bad")
    named = Problem("BAD_ID", "e1", "", 'The id "e1" is "bad".', "Change it.")
    placed = Problem("CONFIG_MISMATCH", "e0", "nodes[1].goal", "An exit has no goal.", "Remove it.")

    svg = svg_of(graph, problems=[named, placed], figure_id="bad")

    nodes = {g.get("id"): g for g in ElementTree.fromstring(svg).iter(f"{SVG}g")}
    assert COLOURS["wrong line"][0] in ElementTree.tostring(nodes["bad-n1"], "unicode")
    assert COLOURS["wrong line"][0] not in ElementTree.tostring(nodes["bad-n0"], "unicode")
    tip = 'The id "e1" is "bad". · An exit has no goal.'
    assert nodes["bad-n1"].findtext(f"{SVG}title") == tip
    assert 'BAD_ID: The id "e1" is "bad".' in texts(svg)


def test_a_long_list_of_problems_says_how_many_more_there_are() -> None:
    problems = [Problem("CYCLE", "", "", f"loop {i}", "") for i in range(11)]

    shown = texts(svg_of(exits("x"), problems=problems))

    assert "CYCLE: loop 7" in shown
    assert "CYCLE: loop 8" not in shown
    assert "… and 3 more" in shown


def test_statistics_are_a_funnel_on_the_nodes(cart: Graph) -> None:
    shown = texts(svg_of(cart, stats=STATS))

    assert {"4,210", "4,210 · 100 %", "1,800 · 42.8 %"} <= set(shown)
    assert {"210 waiting", "120 suppressed", "4,000 exited"} <= set(shown)


def test_a_bar_is_as_long_as_its_share_of_the_largest(cart: Graph) -> None:
    bar = re.compile(r'WIDTH="(\d+)" HEIGHT="5" BGCOLOR')
    dot = dot_of(cart, stats=STATS)

    assert bar.findall(dot_line(dot, "n0 [")) == ["110"]
    assert bar.findall(dot_line(dot, "n3 [")) == ["47", "63"]


def test_the_flow_is_told_where_the_figures_leave_no_choice(cart: Graph) -> None:
    dot = dot_of(cart, stats=STATS)

    assert "A 45 % · 1,800" in dot_line(dot, "n2 -> n3 ")
    assert 'penwidth="5.28"' in dot_line(dot, "n1 -> n2 ")  # 4,000 of 4,210
    held_out = dot_line(dot, "n2 -> n5 ")  # its target has other ways in: nobody can tell
    assert "held out 10 %<" in held_out
    assert 'penwidth="1"' in held_out


def test_a_node_without_figures_shows_none_instead_of_zero(cart: Graph) -> None:
    only = {"trigger": {"entered": 7}, "wait": {"waiting": 3}}

    shown = texts(svg_of(cart, stats=only))

    assert "7" in shown
    assert not any(re.match(r"0\b|3 waiting", text) for text in shown)


def test_figures_that_are_all_zero_draw_empty_bars(cart: Graph) -> None:
    dot = dot_of(cart, stats={"trigger": {"entered": 0}})

    assert re.findall(r'WIDTH="(\d+)" HEIGHT="5" BGCOLOR', dot) == ["110"]


def test_a_path_is_lit_and_the_rest_dimmed(cart: Graph) -> None:
    dot = dot_of(cart, path=["trigger", "wait", "test", "push", "end"])
    dim = COLOURS["dim line"][0]

    assert dim not in dot_line(dot, "n3 [")
    assert dim in dot_line(dot, "n4 [")
    assert dim not in dot_line(dot, "n2 -> n3")
    assert dim in dot_line(dot, "n2 -> n4")
    assert dim in dot_line(dot, "n2 -> n5"), "both its ends were visited, the edge was not walked"


def test_a_path_may_come_back_and_may_name_nodes_that_are_gone(cart: Graph) -> None:
    shown = texts(svg_of(cart, path=["trigger", "wait", "wait", "wait", "removed"]))

    assert "visited 3 times" in shown


def test_the_themes_differ_in_ink_and_dark_leaves_the_page_to_shine_through(cart: Graph) -> None:
    light, dark = dot_of(cart), dot_of(cart, theme="dark")

    assert COLOURS["paper"][0] in light
    assert 'bgcolor="transparent"' in dark
    assert not {pair[0] for pair in COLOURS.values()} & set(re.findall("#[0-9a-f]{6}", dark))


def test_auto_gives_every_light_colour_its_dark_twin(cart: Graph) -> None:
    svg = svg_of(cart, theme="auto", stats=STATS, figure_id="cart")

    body, style = re.sub("<style>.*</style>", "", svg, flags=re.S), svg
    for colour in set(re.findall('(?:fill|stroke)="(#[0-9a-f]{6})"', body)):
        assert f'#cart [fill="{colour}"]{{fill:' in style
    assert "@media (prefers-color-scheme:dark)" in style
    assert len({pair[0] for pair in COLOURS.values()}) == len(COLOURS)


def test_colours_have_six_digits() -> None:
    written = [colour for pair in COLOURS.values() for colour in pair]

    assert [colour for colour in written if not re.fullmatch("#[0-9a-f]{6}", colour)] == []


def test_the_direction_is_the_readers() -> None:
    assert 'rankdir="LR"' in dot_of(exits("x"), direction="LR")


def test_an_empty_journey_and_a_single_draft_draw_too() -> None:
    assert texts(svg_of(Graph())) == ["an empty journey"]
    assert "action, not set up yet" in texts(svg_of(Graph(nodes=[Node(id="a", kind="action")])))


def test_two_nodes_with_one_id_are_both_drawn_and_the_first_has_the_edges() -> None:
    nodes = [Node(id="a", kind="goal", next="b"), Node(id="b", kind="exit", label="first")]
    dot = dot_of(Graph(nodes=[*nodes, Node(id="b", kind="exit", label="second")]))

    assert "second" in dot_line(dot, "n2 [")
    assert " -> n1 " in dot
    assert " -> n2 " not in dot


# Nothing typed becomes markup.


def test_ids_with_colons_keep_their_edges(cases: Mapping[str, dict[str, Any]]) -> None:
    case = cases["render-colon-ids"]
    ids = case["given"]["ids"]
    after = [*ids[1:], ""]
    nodes = [Node(id=a, kind="goal", next=b) for a, b in zip(ids, after, strict=True)]

    svg = svg_of(Graph(nodes=nodes))

    groups = [group.get("class") for group in ElementTree.fromstring(svg).iter(f"{SVG}g")]
    assert groups.count("node") == case["expect"]["nodes"]
    assert groups.count("edge") == len(ids) - 1
    assert set(ids) <= set(texts(svg))


def test_labels_that_look_like_html_are_shown_literally(
    cases: Mapping[str, dict[str, Any]],
) -> None:
    labels = cases["render-html-like-label"]["given"]["labels"]

    assert set(labels) <= set(texts(svg_of(exits(*labels))))


HOSTILE = [
    r"\N \G \L \E \T \H",
    r"line\nbreak\lleft\rright",
    "back\\slash\\\\twice\\",
    'say "hi"; n0 -> n1',
    "</TD></TR></TABLE>>]; x",
    "&amp; &#92;N &lt;b&gt;",
    "<script>alert(1)</script>",
    "]]> -->",
    "{a|b} <port>",
    "javascript:alert(1)",
    "👩‍👩‍👧 日本語 العربية",
]


@pytest.mark.parametrize("label", HOSTILE)
def test_what_is_typed_is_what_is_read(label: str) -> None:
    svg = svg_of(exits(label))

    assert label in texts(svg)
    assert "<script" not in svg
    assert " href" not in svg


@pytest.mark.parametrize("label", HOSTILE)
def test_what_is_typed_is_harmless_in_every_place(label: str) -> None:
    """As a name, an id, a variant, a port, a target that is missing and a problem's message."""
    branches = [{"variant": label, "next": label + "?"}]
    cases_ = [{"label": label, "next": "e"}]
    nodes = [
        {"id": label, "kind": "split", "split": {"branches": branches}},
        {"id": "sw", "kind": "switch", "switch": {"cases": cases_, "default": label}},
        {"id": "e", "kind": "exit"},
    ]
    problems = [Problem("X", label, "", label, label)]

    graph = Graph.parse({"entry_id": label, "nodes": nodes})
    svg = svg_of(graph, name=label, problems=problems, path=[label])

    root = ElementTree.fromstring(svg)
    groups = {group.get("id"): group for group in root.iter(f"{SVG}g")}
    assert [group.get("class") for group in groups.values()].count("edge") == 3
    assert root.findtext(f"{SVG}title") == label
    tips = [group.findtext(f"{SVG}title") for group in groups.values()]
    assert label in tips, "the problem is the tooltip of its node"


@given(st.text(max_size=25))
@settings(max_examples=60)
def test_any_label_is_read_as_it_was_typed(label: str) -> None:
    shown = texts(svg_of(exits(label)))

    assert cleaned(label).replace("\xa0", " ") in [*shown, ""]


def test_control_characters_and_turning_marks_do_not_reach_the_picture() -> None:
    graph = exits("a\x00b\x1bc\ud800d\ufffee", "one\n\ttwo", "safe\u202etxt.exe")

    assert texts(svg_of(graph))[0] == "a�b�c�d�e"
    assert {"one two", "safetxt.exe"} <= set(texts(svg_of(graph)))


def test_right_to_left_text_keeps_its_direction_to_itself(cart: Graph) -> None:
    svg = svg_of(cart)

    assert "\u2068یادآوری (پوش)!\u2069" in svg
    assert "\u2068wait" not in svg


def test_a_very_long_label_is_shortened(cases: Mapping[str, dict[str, Any]]) -> None:
    case = cases["render-very-long-label"]
    length, most = case["given"]["length"], case["expect"]["label_shortened_to_at_most"]
    unbroken, words = "x" * length, "سلام دنیا " * (length // 10)

    dot = dot_of(exits(unbroken, words))

    assert max(map(len, re.findall("x+", dot))) <= most
    _, label = dot_line(dot, "n0 [").split(" label=")
    assert 100 < label.count("x") <= most
    assert len(dot) < 5_000
    assert draw(exits(unbroken, words)).svg is not None


def test_a_label_is_broken_into_lines() -> None:
    shown = texts(svg_of(exits("one two three four five six seven eight nine ten")))

    assert shown[:2] == ["one two three four five six", "seven eight nine ten"]


# The same picture, and pictures side by side.


def test_the_same_graph_gives_the_same_text_in_every_process(
    cases: Mapping[str, dict[str, Any]], cart: Graph
) -> None:
    seeds = cases["render-stable"]["given"]["PYTHONHASHSEED"]
    program = (
        "import sys; from journeykit.draw import draw; "
        "from journeykit_engine.graph import Graph; "
        "sys.stdout.buffer.write(draw(Graph.parse(sys.stdin.buffer.read()), format='dot', "
        "stats={'push': {'exited': 1, 'entered': 5}, 'wait': {'entered': 9}}, "
        "path=['trigger', 'wait']).dot.encode())"
    )
    source = os.pathsep.join(str(ROOT / part) for part in ("engine", "sdk"))
    runs = [
        subprocess.run(
            [sys.executable, "-c", program],
            input=cart.to_json().encode(),
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": source},
            capture_output=True,
            check=True,
        ).stdout
        for seed in seeds
    ]

    assert runs[0] == runs[1]
    assert runs[0].startswith(b"digraph journey {")


def test_the_order_of_the_statistics_does_not_matter(cart: Graph) -> None:
    turned = {node: dict(reversed(figures.items())) for node, figures in reversed(STATS.items())}

    assert dot_of(cart, stats=turned) == dot_of(cart, stats=STATS)


def test_two_pictures_on_a_page_share_no_id(cart: Graph) -> None:
    ids = [
        re.findall(r'\bid="([^"]*)"', svg_of(cart, **options))
        for options in ({}, {"theme": "dark"}, {"stats": STATS}, {"figure_id": "mine"})
    ]

    assert all(len(set(one)) == len(one) for one in ids)
    assert len({each for one in ids for each in one}) == sum(map(len, ids))
    assert ids[3] == ["mine", "mine-all", *ids[3][2:]]


def test_a_figure_id_that_is_no_id_is_refused(cart: Graph) -> None:
    with pytest.raises(ValueError) as refusal:
        dot_of(cart, figure_id='x" onload="y')
    assert str(refusal.value) == (
        'figure_id "x" onload="y": expected a letter, then letters, digits, - or _, '
        "at most 100 in all."
    )


def test_five_thousand_nodes_are_written_without_recursion() -> None:
    size = 5_000
    ids = [f"n{i}" for i in range(size)]
    nodes = [Node(id=a, kind="goal", next=b) for a, b in zip(ids, [*ids[1:], "gone"], strict=True)]
    limit = sys.getrecursionlimit()
    graph = Graph(entry_id="n0", nodes=nodes)

    sys.setrecursionlimit(150)
    try:
        dot = dot_of(graph)
    finally:
        sys.setrecursionlimit(limit)

    assert dot.count(" -> ") == size


# The picture inside a page, a notebook, a file.


def test_the_svg_fits_into_a_page(cart: Graph) -> None:
    svg = svg_of(cart, name="سبد <b>")

    root = ElementTree.fromstring(svg)
    assert svg.startswith("<svg ")
    assert root.get("role") == "img"
    assert root.get("aria-label") == "سبد <b>: 6 nodes"
    assert root[0].tag == f"{SVG}title"
    assert root[0].text == "سبد <b>"
    assert "xlink" not in svg
    assert not re.search(">n[0-9]+(-&gt;n[0-9]+)?</title>", svg), "our names are no tooltips"


def test_texts_stand_in_the_middle_of_their_node_whatever_the_readers_font(cart: Graph) -> None:
    root = ElementTree.fromstring(svg_of(cart))
    nodes = [group for group in root.iter(f"{SVG}g") if group.get("class") == "node"]

    anchors = {text.get("text-anchor") for node in nodes for text in node.iter(f"{SVG}text")}
    assert anchors == {"middle"}
    assert len({text.get("x") for text in nodes[1].iter(f"{SVG}text")}) == 1


def test_a_notebook_gets_the_picture_and_a_terminal_the_outline(cart: Graph) -> None:
    drawing = draw(cart, name="Cart")
    bundle = drawing._repr_mimebundle_()

    assert set(bundle) == {"image/svg+xml", "text/plain"}
    assert bundle["image/svg+xml"] == drawing.svg
    assert bundle["text/plain"] == repr(drawing) == drawing.outline
    assert drawing.outline.startswith("Cart · 6 nodes\n▶ ")


def test_a_picture_may_be_shown_as_png_or_as_dot(cart: Graph) -> None:
    assert draw(cart, format="png")._repr_mimebundle_()["image/png"].startswith(b"\x89PNG")
    assert draw(cart, format="dot")._repr_mimebundle_()["text/plain"].endswith(dot_of(cart))


@pytest.mark.parametrize(
    ("name", "beginning"),
    [
        ("cart.svg", b"<svg "),
        ("cart.png", b"\x89PNG"),
        ("cart.PDF", b"%PDF"),
        ("cart.dot", b"digraph journey {"),
        ("cart.html", b"<!DOCTYPE html>"),
    ],
)
def test_a_drawing_is_saved_as_its_suffix_says(
    cart: Graph, tmp_path: Path, name: str, beginning: bytes
) -> None:
    assert draw(cart).save(tmp_path / name).read_bytes().startswith(beginning)


def test_another_suffix_is_refused(cart: Graph, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as refusal:
        draw(cart).save(tmp_path / "cart.doc")
    assert str(refusal.value) == (
        'A drawing cannot be saved as ".doc": expected .svg, .png, .pdf, .dot or .html.'
    )


# Where nothing can draw.


@pytest.mark.usefixtures("nothing_can_draw")
def test_without_a_renderer_the_journey_is_shown_as_text(
    cases: Mapping[str, dict[str, Any]], cart: Graph
) -> None:
    expect = cases["render-no-dot-binary"]["expect"]
    drawing = draw(cart)
    shown = drawing._repr_mimebundle_()["text/plain"]

    assert drawing.svg is expect["exception"] is None
    assert shown == "\n\n".join([NO_RENDERER, drawing.outline, dot_of(cart)])
    assert NO_RENDERER == (
        "No Graphviz renderer was found, so this is the journey as text. To draw it, install "
        'the package "pygraphviz" (pip install pygraphviz) or Graphviz itself (the program "dot").'
    )


@pytest.mark.usefixtures("nothing_can_draw")
def test_without_a_renderer_text_is_saved_and_a_picture_is_refused(
    cart: Graph, tmp_path: Path
) -> None:
    drawing = draw(cart, name="Cart")

    assert "digraph" in drawing.save(tmp_path / "cart.dot").read_text("utf-8")
    assert "Cart · 6 nodes" in drawing.save(tmp_path / "cart.html").read_text("utf-8")
    for name in ("cart.svg", "cart.png", "cart.pdf"):
        with pytest.raises(CannotDraw) as refusal:
            drawing.save(tmp_path / name)
        assert str(refusal.value) == NO_RENDERER
        assert not (tmp_path / name).exists()


@pytest.mark.skipif(os.name == "nt", reason="the broken program is a shell script")
def test_a_dot_that_fails_is_passed_over(
    cart: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "dot"
    broken.write_text("#!/bin/sh\nexit 1\n", "utf-8")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert draw(cart).renderer == "pygraphviz"


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed here")
def test_a_dot_on_the_path_is_preferred(cart: Graph) -> None:
    drawing = draw(cart)

    assert drawing.renderer == "dot"
    assert "یک ساعت" in texts(drawing.svg or "")


def test_a_journey_too_large_for_a_picture_is_shown_as_text() -> None:
    nodes = [Node(id=f"n{i}", kind="exit") for i in range(MAX_DRAWN_NODES + 1)]
    drawing = draw(Graph(entry_id="n0", nodes=nodes))

    assert drawing.svg is None
    assert repr(drawing).startswith(TOO_LARGE)
    with pytest.raises(CannotDraw) as refusal:
        drawing.png()
    assert str(refusal.value) == (
        "The journey has more than 1,000 nodes, too many for a picture, so this is the journey "
        "as text."
    )


@pytest.mark.parametrize(
    ("looks", "words"),
    [
        ({"theme": "blue"}, 'The theme of a drawing is "blue". Write "light" or "dark" or "auto".'),
        ({"direction": "XX"}, 'The direction of a drawing is "XX". Write "TB" or "LR".'),
    ],
)
def test_a_look_that_does_not_exist_is_refused(looks: dict[str, Any], words: str) -> None:
    with pytest.raises(JourneyError) as refused:
        draw(Graph(), **looks)

    assert str(refused.value) == words
