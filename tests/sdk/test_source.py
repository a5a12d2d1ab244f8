"""Code from journeys: it runs anywhere and gives the journey back."""

from __future__ import annotations

import ast
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


@given(graphs.valid_graphs())
def test_a_random_graph_is_valid(graph: Graph) -> None:
    assert check.check(graph).problems == ()


@settings(max_examples=100)
@given(graphs.valid_graphs(), st.sampled_from(["", "سبد", 'say "hi"\n']))
def test_the_code_of_a_valid_graph_builds_it_again(graph: Graph, name: str) -> None:
    same(jk.Journey.from_graph(graph, name))


@given(graphs.drafts())
def test_the_code_of_a_draft_builds_it_again(graph: Graph) -> None:
    same(jk.Journey.from_graph(graph))
