"""What a journey does, as one fingerprint: who approved it has approved what is equal to it."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from journeykit_engine.graph import Graph
from journeykit_engine.strict_json import write_json

NOT_DONE = ("journey_id", "version")  # names of a graph: two that differ in them do the same
NOT_SEEN = ("x", "y", "label")  # of a node: for whoever looks at the drawing


def behaviour(graph: Graph) -> str:
    """SHA-256, in hex, of everything in a graph that makes a difference to a person: its nodes, how
    they are wired and configured, who comes in, who leaves, the settings. Where a node is drawn
    and what it is called makes none, nor does the order in which nodes are written down.

    >>> drawn = {"entry_id": "t", "nodes": [{"id": "t", "kind": "trigger", "label": "In", "x": 40}]}
    >>> plain = {"entry_id": "t", "nodes": [{"id": "t", "kind": "trigger"}]}
    >>> behaviour(Graph.parse(drawn)) == behaviour(Graph.parse(plain))
    True
    """
    value = graph.to_value()
    does = {name: part for name, part in value.items() if name not in NOT_DONE}
    does["nodes"] = sorted(map(_node, value.get("nodes", [])), key=write_json)
    return sha256(write_json(does).encode("utf-8", "surrogatepass")).hexdigest()


def _node(value: dict[str, Any]) -> dict[str, Any]:
    node = {name: part for name, part in value.items() if name not in NOT_SEEN}
    if wait := node.get("wait"):
        node["wait"] = _in_order(wait)
    if switch := node.get("switch"):
        node["switch"] = {**switch, "cases": list(map(_unnamed, switch.get("cases", [])))}
    return node


def _in_order(wait: dict[str, Any]) -> dict[str, Any]:
    """Of several events that one signal matches the first wins, so their order counts."""
    if wait.get("on") is None:
        return wait
    return {**wait, "on": list(map(list, wait["on"].items()))}


def _unnamed(case: dict[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in case.items() if name != "label"}
