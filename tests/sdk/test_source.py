"""Code from journeys: it runs anywhere and gives the journey back."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import journeykit as jk
from journeykit_engine import check
from journeykit_engine.graph import Graph
from tests import graphs


def rebuilt(code: str) -> jk.Journey:
    """The journey that the code builds, by itself."""
    names: dict[str, Any] = {}
    exec(code, names)
    built = names["journey"]
    assert isinstance(built, jk.Journey)
    return built


def same(journey: jk.Journey) -> None:
    """The code gives the same name and the same document, node for node in the same order."""
    again = rebuilt(journey.to_python())

    assert again.name == journey.name
    assert again.graph.to_json() == journey.graph.to_json()


@settings(max_examples=50)
@given(graphs.valid_graphs())
def test_a_random_graph_is_valid(graph: Graph) -> None:
    assert check.check(graph).problems == ()


@settings(max_examples=70)
@given(graphs.valid_graphs(), st.sampled_from(["", "سبد", 'say "hi"\n']))
def test_the_code_of_a_valid_graph_builds_it_again(graph: Graph, name: str) -> None:
    same(jk.Journey.from_graph(graph, name))


@settings(max_examples=50)
@given(graphs.drafts())
def test_the_code_of_a_draft_builds_it_again(graph: Graph) -> None:
    same(jk.Journey.from_graph(graph))


def test_code_reads_as_somebody_would_write_it() -> None:
    cart = (
        jk.journey("Abandoned cart")
        .on_event("product_added_to_cart", where=jk.prop("value") > 20)
        .exit_when(jk.did("purchase", within="1d"))
        .wait("1h", label="one hour")
        .split("test", holdout=10, A=lambda j: j.send(push=3), B=lambda j: j.send(email=7))
        .goal("purchase", within="7d")
        .exit()
    )

    assert cart.to_python() == (
        "import journeykit as jk\n"
        "\n"
        "journey = (\n"
        '    jk.journey("Abandoned cart")\n'
        '    .on_event("product_added_to_cart", where=jk.prop("value") > 20)\n'
        '    .exit_when(jk.did("purchase", within="1d"))\n'
        '    .wait("1h", label="one hour")\n'
        '    .split("test", holdout=10, A=lambda j: j.send(push=3), B=lambda j: j.send(email=7))\n'
        '    .goal("purchase", within="7d")\n'
        "    .exit()\n"
        ")\n"
    )


def test_a_loop_and_an_early_exit_stay_readable() -> None:
    journey = (
        jk.journey()
        .on_call()
        .wait_for("reply", timeout="5bd", on_timeout=lambda j: j.send(push=3).go_to("again"))
        .wait("1d", id="again")
        .when(jk.did("purchase"), yes=lambda j: j.send(email=1).exit())
        .choose(("pro", jk.trait("plan") == "pro", ...), otherwise=jk.go_to("again"))
        .stop()
    )

    assert journey.to_python() == (
        "import journeykit as jk\n"
        "\n"
        "journey = (\n"
        "    jk.journey()\n"
        "    .on_call()\n"
        '    .wait_for("reply", on_timeout=lambda j: j.send(push=3), timeout="5bd")\n'
        '    .wait("1d", id="again")\n'
        '    .when(jk.did("purchase"), yes=lambda j: j.send(email=1).exit())\n'
        '    .choose(("pro", jk.trait("plan") == "pro", None), otherwise=jk.go_to("again"))\n'
        ")\n"
    )


def test_what_no_step_says_is_written_as_the_node_itself() -> None:
    bare = {"id": "w", "kind": "wait", "next": "x", "wait": {"kind": "duration", "unit": "hr"}}
    journey = jk.journey().on_call().node(bare).part(lambda j: j.exit(id="x"))

    assert journey.to_python() == (
        "import journeykit as jk\n"
        "\n"
        "journey = (\n"
        "    jk.journey()\n"
        "    .on_call()\n"
        "    .node(\n"
        '        {"id": "w", "kind": "wait", "next": "x", '
        '"wait": {"kind": "duration", "unit": "hr"}},\n'
        "    )\n"
        '    .part(lambda j: j.exit(id="x"))\n'
        ")\n"
    )


def test_two_nodes_with_one_id_are_written_as_the_document() -> None:
    nodes = [{"id": "x", "kind": "exit"}, {"id": "x", "kind": "exit", "label": "again"}]
    journey = jk.Journey.from_graph(Graph.parse({"entry_id": "x", "nodes": nodes}), "twice")

    assert "jk.Journey.from_json(" in journey.to_python()
    same(journey)


def asks(number: int, yes: str, no: str) -> dict[str, Any]:
    condition = {"definition": {"root": {"segment": 1}}, "on_true": yes, "on_false": no}
    return {"id": f"c{number}", "kind": "condition", "condition": condition}


def waits(node_id: str, target: str) -> dict[str, Any]:
    wait = {"kind": "duration", "amount": 1, "unit": "day"}
    return {"id": node_id, "kind": "wait", "next": target, "wait": wait}


def long(nodes: list[dict[str, Any]]) -> jk.Journey:
    trigger = {
        "id": "trigger",
        "kind": "trigger",
        "next": nodes[0]["id"],
        "trigger": {"kind": "api"},
    }
    value = {"entry_id": "trigger", "nodes": [trigger, *nodes, {"id": "end", "kind": "exit"}]}
    return jk.Journey.from_graph(Graph.parse(value))


def test_a_path_of_five_thousand_nodes_becomes_statements() -> None:
    same(long([waits(f"w{i}", f"w{i + 1}" if i < 4_997 else "w0") for i in range(4_998)]))


def test_branches_inside_branches_become_parts() -> None:
    deep = [asks(i, f"c{i + 1}" if i < 499 else "end", f"w{i}") for i in range(500)]
    tree = [asks(i, f"c{2 * i + 1}", f"c{2 * i + 2}") for i in range(255)]
    leaves = [waits(f"c{i}", "") for i in range(255, 511)]

    same(long([*deep, *(waits(f"w{i}", "") for i in range(500))]))
    same(long([*tree, *leaves]))


def test_a_row_of_joins_is_one_path() -> None:
    rows = [
        [asks(i, f"a{i}", f"b{i}"), waits(f"a{i}", f"c{i + 1}"), waits(f"b{i}", f"c{i + 1}")]
        for i in range(100)
    ]
    journey = long([*(node for row in rows for node in row), waits("c100", "end")])

    assert ".part(" not in journey.to_python()
    same(journey)
