"""Journeys to be judged: short words for graphs, and the ones that are sound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from journeykit_engine.check import check
from journeykit_engine.graph import Graph

Value = dict[str, Any]


def journey(*nodes: Value, trigger: Value | None = None, **fields: Any) -> Value:
    """A trigger that leads to the first of these nodes."""
    first = {
        "id": "t",
        "kind": "trigger",
        "next": nodes[0]["id"] if nodes else "",
        "trigger": trigger or {"kind": "event", "event": "signed_up"},
    }
    return {"journey_id": 7, "entry_id": "t", "nodes": [first, *nodes], **fields}


def wait(**config: Any) -> Value:
    return {"id": "w", "kind": "wait", "wait": config}


def action(**config: Any) -> Value:
    return {"id": "a", "kind": "action", "action": config}


def split(**config: Any) -> Value:
    return {"id": "s", "kind": "split", "split": config}


def goes(target: str) -> Value:
    return action(kind="update_trait", trait="seen") | {"next": target}


def chain(length: int) -> list[Value]:
    """Nodes in a row with no wait between them."""
    ids = [f"n{i}" for i in range(length)]
    return [goes(after) | {"id": own} for own, after in zip(ids, [*ids[1:], ""], strict=True)]


SWEEP = {"kind": "segment_periodic", "definition": {"root": {}}, "hours": [11, 18]}
DAY = {"days": ["mon"], "from": "09:00", "to": "17:00"}
NIGHT = {"days": ["sat"], "from": "22:00", "to": "07:00"}

CART: Value = {
    "journey_id": 1,
    "entry_id": "trigger",
    "nodes": [
        {
            "id": "trigger",
            "kind": "trigger",
            "label": "added to cart",
            "next": "wait",
            "trigger": {"kind": "event", "event": "product_added_to_cart"},
        },
        {
            "id": "wait",
            "kind": "wait",
            "label": "one hour",
            "next": "send",
            "wait": {"kind": "duration", "amount": 1, "unit": "hour"},
        },
        {
            "id": "send",
            "kind": "action",
            "label": "reminder",
            "next": "end",
            "action": {"kind": "send", "channel": "push", "template_id": 3},
        },
        {"id": "end", "kind": "exit"},
    ],
}
TWICE_A_DAY: Value = {
    "journey_id": 1,
    "entry_id": "trigger",
    "entry_rule": "every_time",
    "cooldown_hours": 168,
    "exit_criteria": {"root": {}},
    "nodes": [
        {"id": "trigger", "kind": "trigger", "label": "sweep", "next": "send", "trigger": SWEEP},
        {
            "id": "send",
            "kind": "action",
            "label": "reminder",
            "next": "end",
            "action": {"kind": "send", "channel": "push", "template_id": 3},
        },
        {"id": "end", "kind": "exit"},
    ],
}


def everything() -> Value:
    """A sound journey with every kind of node in it."""
    everybody: Value = {"root": {}}
    message = {"kind": "send", "channels": [{"channel": "push", "template_id": 1}]}
    text = {"kind": "send", "channel": "sms", "template_id": 2, "priority": 0}
    document = journey(
        {"id": "half", "kind": "split", "split": {}},
        wait(kind="until_time", hour=0, minute=59, days=["sun"]) | {"next": "best"},
        wait(kind="until_best_time", fallback_hour=0) | {"id": "best", "next": "ask"},
        wait(kind="for_event", on={"reply": "end", "won": ""}, events=["won", "reply"])
        | {"id": "ask"},
        wait(kind="for_event", event="paid", timeout="5bd", on_timeout="half", filter=[])
        | {"id": "pay", "next": "switch"},
        {
            "id": "switch",
            "kind": "switch",
            "switch": {"cases": [{"definition": everybody, "next": "goal"}], "default": "end"},
        },
        {"id": "goal", "kind": "goal", "next": "hook", "goal": {"event": "x", "window_days": 7}},
        action(kind="webhook", url="http://10.0.0.1:80/a?b=%20", headers={"X-Key": "k\t1"})
        | {"id": "hook", "next": "text"},
        action(**text) | {"id": "text", "next": "push"},
        action(**message, channel_mode="all") | {"id": "push", "next": "call"},
        action(kind="task", task="call") | {"id": "call", "next": "jump"},
        action(kind="enter_journey", journey_id=8) | {"id": "jump", "next": "tag"},
        action(kind="add_to_segment", segment_id=1) | {"id": "tag", "next": ""},
        {"id": "end", "kind": "exit"},
        settings={
            "timezone": "Asia/Tehran",
            "send_window": {"days": ["fri"], "from": "20:00", "to": "02:00"},
            "jitter": "6h",
            "exit_on": ["opt_out"],
            "workweek": ["sat"],
        },
        max_duration_days=30,
        exit_criteria={"root": {"event": "purchase"}},
    )
    document["nodes"][1]["split"] = {
        "branches": [{"weight": 0, "next": "w"}, {"weight": 0.5, "next": "pay", "variant": "B"}],
        "holdout_percent": 0.5,
        "salt": "",
    }
    return document


def codes(document: Graph | Mapping[str, Any], **more: Any) -> list[str]:
    return [problem.code for problem in check(document, **more).problems]


def warned(document: Graph | Mapping[str, Any], **more: Any) -> list[str]:
    return [warning.code for warning in check(document, **more).warnings]
