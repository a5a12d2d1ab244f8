"""A journey may be handed over bare, in an envelope, or in steps: one door reads them all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeykit_engine.check import Report
from journeykit_engine.document import Document, judge, read_document
from journeykit_engine.graph import Graph
from journeykit_engine.shape import BadGraph
from journeykit_engine.strict_json import BadJson
from tests.engine.journeys import CART, TWICE_A_DAY, Value

STEPS: Value = {
    "steps": {"pause": {"type": "wait", "params": {"duration": "2d"}, "next": {"then": "over"}}},
    "entry": "pause",
}
NAME = "سبد رها شده"


@pytest.mark.parametrize("source", [CART, json.dumps(CART), json.dumps(CART).encode()])
def test_a_bare_graph_has_no_name(source: Any) -> None:
    assert read_document(source) == Document("", Graph.parse(CART))


def test_an_envelope_has_a_name() -> None:
    text = json.dumps({"name": NAME, "graph": CART, "id": 12}, ensure_ascii=False)

    assert read_document(text) == Document(NAME, Graph.parse(CART))


def test_steps_are_read_bare_and_in_an_envelope() -> None:
    name, graph = read_document({"name": NAME, "graph": STEPS})

    assert name == NAME
    assert graph == read_document(STEPS).graph
    assert [node.id for node in graph.nodes] == ["trigger", "pause"]


def test_a_draft_of_one_node_is_read() -> None:
    assert read_document({"nodes": [{"id": "t", "kind": "trigger"}]}).graph.nodes[0].id == "t"
    assert read_document({}) == Document("", Graph())


@pytest.mark.parametrize(
    ("source", "code", "path", "message", "fix"),
    [
        (
            {"graph": None},
            "NO_GRAPH",
            "graph",
            "graph is required",
            'Send the graph in "graph".',
        ),
        (
            {"name": "cart"},
            "NO_GRAPH",
            "graph",
            "graph is required",
            'Send the graph in "graph".',
        ),
        (
            {"graph": "{}"},
            "GRAPH_NOT_OBJECT",
            "graph",
            '"graph" must be an object, not "{}".',
            "Send {…}, not text.",
        ),
        (
            {"graph": CART, "name": 5},
            "WRONG_TYPE",
            "name",
            '"name" must be text, not 5.',
            "Write text.",
        ),
        (
            {"graph": CART, "nmae": "cart"},
            "UNKNOWN_FIELD",
            "nmae",
            'The field "nmae" is not known here.',
            'Did you mean "name"?',
        ),
        (
            {"grpah": CART},
            "UNKNOWN_FIELD",
            "grpah",
            'The field "grpah" is not known here.',
            'Did you mean "graph"?',
        ),
        (
            "[]",
            "WRONG_TYPE",
            "",
            "The document must be an object, not a list.",
            'Send {"name": …, "graph": {…}}.',
        ),
    ],
)
def test_a_document_without_a_graph_is_refused(
    source: Any, code: str, path: str, message: str, fix: str
) -> None:
    for read in (read_document, judge):
        with pytest.raises(BadGraph) as refused:
            read(source)
        assert refused.value.problems[0] == (code, "", path, message, fix)


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"graph":',
        '{"entry_id": "t",}',
        '{"nodes": [], "nodes": []}',
        '{"cooldown_hours": NaN}',
        '{"cooldown_hours": 1e400}',
        '{"journey_id": 18446744073709551616}',
        '{"entry_id": "a\\u0000b"}',
        "[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_what_is_no_json_is_refused_by_both(text: str | bytes) -> None:
    for read in (read_document, judge):
        with pytest.raises(BadJson):
            read(text)


def test_values_that_json_cannot_hold_are_refused_too(cases: Mapping[str, Any]) -> None:
    assert cases["json-nan-weight"]["expect"] == {"http_status": 400}

    with pytest.raises(BadJson):
        judge({"graph": {"cooldown_hours": float("inf")}})


def test_a_rule_nested_too_deep_is_a_problem_and_then_refused(cases: Mapping[str, Any]) -> None:
    shallow, deep = cases["json-deep-definition"]["given"]["depth"]

    def nested(depth: int) -> str:
        rule = '{"not":' * depth + "{}" + "}" * depth
        return f'{{"exit_criteria": {{"root": {rule}}}}}'

    problems = judge(nested(shallow)).problems
    assert [problem.code for problem in problems] == ["NO_ENTRY", "BAD_SEGMENT"]
    with pytest.raises(BadJson):
        judge(nested(deep))


@pytest.mark.parametrize("source", [CART, {"name": "x", "graph": TWICE_A_DAY}])
def test_a_sound_journey_is_judged_sound(source: Value) -> None:
    assert judge(source) == judge(json.dumps(source)) == Report((), ())


@pytest.mark.parametrize("graph", [{"nodes": None}, {"nodes": [None]}, {"tenant_id": 7}])
def test_a_fault_of_shape_is_a_problem_where_reading_refuses_it(graph: Value) -> None:
    assert not judge({"graph": graph}).valid
    with pytest.raises(BadGraph):
        read_document({"graph": graph})


def test_a_graph_that_reading_refuses_says_the_same_first() -> None:
    document = {"nodes": [{"id": "a", "kind": "delay"}]}

    with pytest.raises(BadGraph) as refused:
        read_document(document)

    assert set(refused.value.problems) <= set(judge(document).problems)


def test_the_problems_of_steps_are_told_in_steps() -> None:
    assert [(problem.code, problem.path) for problem in judge(STEPS).problems] == [
        ("DANGLING_EDGE", "steps.pause.next.then")
    ]
    lost = STEPS | {"entry": "puase"}
    assert [(problem.path, problem.fix) for problem in judge(lost).problems] == [
        ("entry", 'Did you mean "pause"?'),
        ("steps.pause.next.then", "Wire it to a node that exists."),
    ]


def test_amounts_in_steps_are_judged(cases: Mapping[str, Any]) -> None:
    for amount in cases["timer-zero-and-negative"]["given"]["amounts"]:
        step = {"type": "wait", "params": {"duration": amount}}
        report = judge({"steps": {"pause": step}, "entry": "pause"})
        assert [problem.code for problem in report.problems] == ["BAD_DURATION"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["a", "wait", "next", "end"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["nodes", "steps", "entry", "a", "type", "params", "next", "graph"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["graph", "name", "steps", "entry", "nodes"]), VALUES))
def test_any_value_is_judged_or_refused_in_words(value: Value) -> None:
    try:
        report = judge(value)
    except BadGraph as bad:
        assert bad.problems
        return
    if report.valid:
        read_document(value)
