"""Loops, reach and the longest path, compared with what a slow search finds."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from journeykit_engine import paths
from journeykit_engine.graph import Graph
from journeykit_engine.paths import Ways
from tests.engine.journeys import journey
from tests.engine.walking import END, ask, days, halves, send, wait_for_any

DEEP = 5_000


@st.composite
def any_ways(draw: st.DrawFn) -> dict[str, list[str]]:
    names = [str(number) for number in range(draw(st.integers(1, 7)))]
    targets = st.lists(st.sampled_from(names), max_size=3)
    return {name: draw(targets) for name in names}


def after(ways: Ways, start: str) -> set[str]:
    """Everything one or more edges away."""
    found: set[str] = set()
    todo = list(ways[start])
    while todo:
        target = todo.pop()
        if target not in found:
            found.add(target)
            todo += ways[target]
    return found


def test_the_ways_of_a_graph_are_its_ports_in_order_without_those_to_nowhere() -> None:
    nodes = (
        ask({"root": {}}, "test", ""),
        halves("test", "w", "gone", percent=5, on_holdout="end"),
        wait_for_any(on={"a": "s", "b": "end"}, timeout="1d", on_timeout="test"),
        send("s", "end"),
        END,
    )
    graph = Graph.parse(journey(*nodes))

    assert paths.ways(graph) == {
        "t": ["if"],
        "if": ["test"],
        "test": ["w", "end"],
        "w": ["s", "end", "test"],
        "s": ["end"],
        "end": [],
    }
    assert paths.on_a_loop(graph) == {"test", "w"}


def test_nothing_is_reached_from_a_node_that_is_not_there() -> None:
    assert paths.reachable({"a": []}, "b") == set()


@given(any_ways())
def test_what_is_reached_is_what_a_slow_search_finds(ways: dict[str, list[str]]) -> None:
    for start in ways:
        assert paths.reachable(ways, start) == {start} | after(ways, start)


@given(any_ways())
def test_a_knot_holds_all_that_reach_each_other(ways: dict[str, list[str]]) -> None:
    knots = paths.knots(ways)

    inside = [node for knot in knots for node in knot]
    assert sorted(inside) == sorted(node for node in ways if node in after(ways, node))
    for knot in knots:
        assert all(set(knot) <= after(ways, node) for node in knot)
    assert all(
        not (set(one) <= after(ways, other[0]) and set(other) <= after(ways, one[0]))
        for one, other in pairwise(knots)
    )


@given(any_ways())
def test_the_shortest_loop_is_a_loop_and_none_is_shorter(ways: dict[str, list[str]]) -> None:
    for knot in paths.knots(ways):
        loop = paths.shortest_loop(ways, knot)
        assert loop[0] == knot[0]
        assert all(target in ways[node] for node, target in pairwise([*loop, loop[0]]))
        reached, length = set(ways[knot[0]]), 1
        while knot[0] not in reached:
            reached, length = {target for node in reached for target in ways[node]}, length + 1
        assert len(loop) == length


def test_a_node_that_leads_to_itself_is_a_loop_of_one() -> None:
    assert paths.knots({"a": ["a", "b"], "b": []}) == [["a"]]
    assert paths.shortest_loop({"a": ["a", "b"], "b": []}, ["a"]) == ["a"]


@given(any_ways(), st.sets(st.sampled_from("0123456")))
def test_the_longest_path_is_the_one_a_slow_search_finds(
    ways: dict[str, list[str]], stops: set[str]
) -> None:
    going = {node: [] if node in stops else targets for node, targets in ways.items()}
    endless = {node for node in going if node in after(going, node)}

    def slow(node: str) -> int:
        return 1 + max((slow(target) for target in going[node]), default=0)

    assert paths.longest(ways, stops.__contains__) == {
        node: slow(node) for node in ways if not {node, *after(going, node)} & endless
    }


def test_a_path_ends_at_a_wait() -> None:
    graph = Graph.parse(journey(send("a", "w"), days(1, "b"), send("b", "c"), send("c")))

    lengths = paths.longest(paths.ways(graph), {"w"}.__contains__)

    assert lengths == {"c": 1, "b": 2, "w": 1, "a": 2, "t": 3}


def test_five_thousand_nodes_are_no_matter() -> None:
    chain = {str(n): [str(n + 1)] for n in range(DEEP)} | {str(DEEP): []}
    pairs = {str(n): [str(n - 1), str(n + 1)] for n in range(1, DEEP)}
    ladder = {str(n): [str(n + 1)] * 2 for n in range(DEEP)} | {str(DEEP): []}  # 2^5000 paths

    assert paths.longest(chain, {"x"}.__contains__)["0"] == DEEP + 1
    assert paths.longest(ladder, {"x"}.__contains__)["0"] == DEEP + 1
    assert paths.knots(chain) == []
    assert [len(knot) for knot in paths.knots(pairs | {"0": ["1"], str(DEEP): []})] == [DEEP]
    assert len(paths.reachable(ladder, "0")) == DEEP + 1
