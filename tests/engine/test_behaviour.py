"""What a journey does has one fingerprint; how it is drawn and called has none."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeykit_engine.behaviour import behaviour
from journeykit_engine.graph import Graph
from tests.engine.journeys import Value, journey
from tests.engine.walking import ADULT, END, send, wait_for_any
from tests.graphs import drafts, texts


def base() -> Value:
    kinds = {"on": {"reply": "a", "call": "end"}, "timeout": "2d", "on_timeout": "end"}
    case = {"label": "grown up", "definition": ADULT, "next": "w"}
    switch = {"id": "s", "kind": "switch", "switch": {"cases": [case], "default": "end"}}
    return journey(
        switch,
        wait_for_any("w", **kinds),
        send("a", "end"),
        END,
        trigger={"kind": "event", "event": "signed_up"},
        exit_criteria=ADULT,
    )


def fingerprint(document: Value) -> str:
    return behaviour(Graph.parse(document))


def node(document: Value, own: str) -> Value:
    return next(found for found in document["nodes"] if found["id"] == own)


def drawn(document: Value) -> None:
    for number, found in enumerate(document["nodes"]):
        found.update(x=40 * number, y=7.5, label=f"step {number}")


def numbered(document: Value) -> None:
    document.update(journey_id=99, version=12)


def reordered(document: Value) -> None:
    document["nodes"].reverse()


def case_called_otherwise(document: Value) -> None:
    node(document, "s")["switch"]["cases"][0]["label"] = "adults"


def default_written_out(document: Value) -> None:
    document.update(entry_rule="once", cooldown_hours=0)


@pytest.mark.parametrize(
    "change", [drawn, numbered, reordered, case_called_otherwise, default_written_out]
)
def test_what_does_the_same_has_the_same_fingerprint(change: Any) -> None:
    changed = copy.deepcopy(base())
    change(changed)

    assert changed != base()
    assert fingerprint(changed) == fingerprint(base())


def text(document: Value) -> None:
    node(document, "a")["action"]["template_id"] = 4


def edge(document: Value) -> None:
    node(document, "a")["next"] = "w"


def another_id(document: Value) -> None:
    node(document, "end")["id"] = "over"
    node(document, "a")["next"] = "over"


def entry_rule(document: Value) -> None:
    document["entry_rule"] = "every_time"


def exit_rule(document: Value) -> None:
    del document["exit_criteria"]


def settings(document: Value) -> None:
    document["settings"] = {"exit_on": ["reply"]}


def order_of_events(document: Value) -> None:
    """Of two that a signal matches the first wins."""
    wait = node(document, "w")["wait"]
    wait["on"] = dict(reversed(wait["on"].items()))


def trigger(document: Value) -> None:
    node(document, "t")["trigger"]["event"] = "paid"


@pytest.mark.parametrize(
    "change",
    [text, edge, another_id, entry_rule, exit_rule, settings, order_of_events, trigger],
)
def test_what_does_something_else_has_another(change: Any) -> None:
    changed = copy.deepcopy(base())
    change(changed)

    assert fingerprint(changed) != fingerprint(base())


@given(drafts(), st.integers(-999, 999), texts)
def test_every_draft_has_one_that_no_drawing_changes(graph: Graph, x: int, label: str) -> None:
    value = graph.to_value()
    moved = {**value, "nodes": [{**one, "x": x, "label": label} for one in value.get("nodes", [])]}

    assert behaviour(Graph.parse(moved)) == behaviour(Graph.parse(value)) == behaviour(graph)
    assert len(behaviour(graph)) == 64
