"""A journey in words: the tree in a terminal, and what each node and each way out is called."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from journeykit.outline import (
    MAX_LINE_CHARACTERS,
    MAX_TREE_DEPTH,
    inline,
    outline,
    rule_said,
    said_of,
    ways_of,
)
from journeykit_engine.graph import Graph, Node


def node(kind: str, config: dict[str, Any] | None = None, **fields: Any) -> Node:
    given = {"id": "x", "kind": kind, **fields}
    return Node.model_validate(given if config is None else {**given, kind: config})


def test_a_journey_reads_as_a_tree() -> None:
    branches = [{"variant": "A", "next": "push"}, {"variant": "B", "next": "mail", "weight": 2}]
    split = {"branches": branches, "holdout_percent": 10, "on_holdout": "gone"}
    graph = Graph.parse(
        {
            "entry_id": "t",
            "nodes": [
                {"id": "t", "kind": "trigger", "trigger": {"kind": "api"}, "next": "again"},
                {
                    "id": "again",
                    "kind": "wait",
                    "label": "یک روز",
                    "wait": {"kind": "duration", "amount": 1, "unit": "day"},
                    "next": "test",
                },
                {"id": "test", "kind": "split", "split": split},
                {
                    "id": "push",
                    "kind": "action",
                    "action": {"kind": "send", "channel": "push", "template_id": 3},
                    "next": "again",
                },
                {
                    "id": "mail",
                    "kind": "action",
                    "action": {"kind": "send", "channel": "email", "template_id": 7},
                    "next": "goal",
                },
                {"id": "goal", "kind": "goal", "goal": {"event": "purchase"}, "next": "end"},
                {"id": "end", "kind": "exit"},
                {"id": "lost", "kind": "exit", "label": "nobody comes here"},
            ],
        }
    )

    assert outline(graph, "سبد").splitlines() == [
        "\u2068سبد\u2069 · 8 nodes",
        "▶ when called  't'",
        "○ \u2068یک روز\u2069 · wait 1 day  'again'",
        "◇ split in 2, 10 % held out  'test'",
        "├─ A 30 %",
        "│  ● send push · template 3  'push'",
        "│  → goes to 'again'",
        "├─ B 60 %",
        "│  ● send email · template 7  'mail'",
        "│  ★ goal: purchase  'goal'",
        "│  ├─ not reached",
        "│  │  ■ exit  'end'",
        "│  └─ reached: ends here",
        "└─ held out 10 %",
        "   → missing: 'gone'",
        "",
        "nothing leads to:",
        "■ nobody comes here · exit  'lost'",
    ]


def test_a_draft_without_an_entry_is_told_too() -> None:
    assert outline(Graph()) == "Journey · 0 nodes"
    assert outline(Graph(nodes=[node("action")])).splitlines() == [
        "Journey · 1 node",
        "",
        "nothing leads to:",
        "● action, not set up yet  'x'",
    ]
    assert "→ missing: 'gone'" in outline(Graph(entry_id="gone"))


@pytest.mark.parametrize("is_chain", [True, False])
def test_five_thousand_nodes_are_told_without_recursion(is_chain: bool) -> None:
    size = 5_000
    ids = [f"n{i}" for i in range(size)]
    kind: Any = "action" if is_chain else "goal"
    pairs = zip(ids, [*ids[1:], ""], strict=True)
    config = {} if is_chain else {"goal": {"event": "purchase"}}
    nodes = [{"id": a, "kind": kind, "next": b, **config} for a, b in pairs]
    limit = sys.getrecursionlimit()
    graph = Graph.parse({"entry_id": "n0", "nodes": nodes})

    sys.setrecursionlimit(150)
    try:
        lines = outline(graph).splitlines()
    finally:
        sys.setrecursionlimit(limit)

    assert sum(line.endswith("'") for line in lines) == size
    assert max(map(len, lines)) < 3 * MAX_TREE_DEPTH + 2 * MAX_LINE_CHARACTERS


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"kind": "event", "event": "purchase"}, "when purchase happens"),
        (
            {
                "kind": "event",
                "event": "purchase",
                "filter": [{"property": "amount", "op": "gt", "value": 50}],
            },
            "when purchase happens with amount > 50",
        ),
        ({"kind": "event"}, "when … happens"),
        ({"kind": "attribute_changed", "trait": "plan"}, "when plan changes"),
        (
            {"kind": "attribute_changed", "trait": "plan", "value": "pro"},
            'when plan changes to "pro"',
        ),
        ({"kind": "segment_enter", "definition": {"root": {}}}, "on becoming: everybody"),
        (
            {"kind": "segment_exit", "definition": {"root": {"segment": 4}}},
            "on ceasing: in segment 4",
        ),
        (
            {"kind": "segment_periodic", "definition": {"root": {}}, "hours": [11, 18]},
            "every day at 11:00, 18:00: everybody",
        ),
        (
            {"kind": "segment_periodic", "hours": [1, 2, 3, 4, 5]},
            "every day at 1:00, 2:00, 3:00, 4:00 …: …",
        ),
        ({"kind": "date", "trait": "birthday"}, "on birthday, at 9:00"),
        ({"kind": "date", "trait": "renewal", "offset_days": 3}, "3 days before renewal, at 9:00"),
        ({"kind": "api"}, "when called"),
    ],
)
def test_a_trigger_in_words(config: dict[str, Any], words: str) -> None:
    assert said_of(node("trigger", config)) == words


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"kind": "duration", "amount": 30, "unit": "day"}, "wait 30 days"),
        ({"kind": "duration", "amount": 1, "unit": "hour"}, "wait 1 hour"),
        ({"kind": "duration", "amount": 5, "unit": "business_day"}, "wait 5 business days"),
        ({"kind": "until_time", "hour": 9}, "wait until 9:00"),
        (
            {"kind": "until_time", "hour": 9, "minute": 5, "days": ["mon", "tue"]},
            "wait until 9:05 on mon, tue",
        ),
        ({"kind": "until_time"}, "wait until …"),
        ({"kind": "until_best_time", "fallback_hour": 10}, "wait for the best hour, else 10:00"),
        ({"kind": "for_event", "event": "purchase"}, "wait for purchase"),
        (
            {"kind": "for_event", "on": {"reply": "", "booked": ""}, "timeout": "5bd"},
            "wait for reply or booked, at most 5bd",
        ),
        (
            {"kind": "for_event", "on": dict.fromkeys("abcdef", "")},
            "wait for a or b or c or d or …",
        ),
    ],
)
def test_a_wait_in_words(config: dict[str, Any], words: str) -> None:
    assert said_of(node("wait", config)) == words


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"kind": "send", "channel": "email", "template_id": 7}, "send email · template 7"),
        ({"kind": "send"}, "send …"),
        (
            {
                "kind": "send",
                "channels": [
                    {"channel": "push", "template_id": 3},
                    {"channel": "sms", "template_id": 4},
                ],
            },
            "send push · template 3, else sms · template 4",
        ),
        (
            {
                "kind": "send",
                "channels": [{"channel": "push"}, {"channel": "sms"}],
                "channel_mode": "all",
            },
            "send push and sms",
        ),
        ({"kind": "update_trait", "trait": "plan", "value": "pro"}, 'set plan = "pro"'),
        ({"kind": "update_trait", "trait": "plan"}, "set plan = null"),
        ({"kind": "update_trait", "trait": "live", "value": True}, "set live = true"),
        ({"kind": "update_trait", "trait": "tags", "value": ["a", [1]]}, 'set tags = "a", …'),
        ({"kind": "add_to_segment", "segment_id": 4}, "add to segment 4"),
        ({"kind": "enter_journey", "journey_id": 9}, "enter journey 9"),
        ({"kind": "enter_journey"}, "enter journey …"),
        ({"kind": "task", "task": "call", "title": "Ask why"}, "task call: Ask why"),
        ({"kind": "task", "task": "linkedin_message"}, "task linkedin message"),
    ],
)
def test_an_action_in_words(config: dict[str, Any], words: str) -> None:
    assert said_of(node("action", config)) == words


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://user:pass@crm.example.com/hook?token=secret", "call crm.example.com"),
        ("", "call …"),
        ("http://[broken", "call …"),
    ],
)
def test_a_webhook_is_told_without_its_secrets(url: str, words: str) -> None:
    assert said_of(node("action", {"kind": "webhook", "url": url})) == words


def test_the_other_kinds_in_words() -> None:
    plan = {"root": {"trait": "plan", "op": "eq", "value": "premium"}}

    assert said_of(node("condition", {"definition": plan})) == 'if plan = "premium"'
    assert said_of(node("condition", {})) == "if …"
    assert said_of(node("switch", {"cases": [{}, {}]})) == "choose one of 3"
    assert said_of(node("split", {"branches": [{}, {}, {}]})) == "split in 3"
    assert said_of(node("goal", {"event": "purchase", "window_days": 7})) == (
        "goal: purchase within 7 days"
    )
    assert said_of(node("exit")) == "exit"


@pytest.mark.parametrize(
    ("root", "words"),
    [
        ({}, "everybody"),
        ({"all": []}, "…"),
        ({"trait": "age", "op": "gte", "value": 18}, "age ≥ 18"),
        ({"trait": "email", "op": "exists"}, "email exists"),
        ({"trait": "city", "op": "in", "value": ["a", "b"]}, 'city in "a", "b"'),
        ({"event": "purchase", "op": "gte", "count": 1}, "did purchase"),
        (
            {"event": "purchase", "op": "lt", "count": 2, "within": "30d"},
            "did purchase < 2 times within 30d",
        ),
        (
            {
                "event": "buy",
                "aggregate": "sum",
                "property": "amount",
                "op": "gt",
                "value": 5,
            },
            "did buy sum > 5",
        ),
        ({"journey": 7, "status": "completed"}, "in journey 7"),
        ({"bucket": {"salt": "x", "from": 0, "to": 5}}, "in a bucket"),
        ({"local": "hour", "op": "lt", "value": 9}, "local hour < 9"),
        ({"not": {"segment": 1}}, "not (in segment 1)"),
        ({"none": [{"segment": 1}, {"segment": 2}]}, "none of (in segment 1 or in segment 2)"),
        (
            {"all": [{"segment": 1}, {"any": [{"segment": 2}, {"segment": 3}]}]},
            "in segment 1 and in segment 2 or in segment 3",
        ),
        ({"not": {"not": {"not": {"not": {}}}}}, "not (not (not (…)))"),
        ({"trait": "x", "op": 7}, "x …"),
        ("nonsense", "…"),
    ],
)
def test_a_rule_in_words(root: Any, words: str) -> None:
    assert rule_said({"root": root}) == words


def test_the_ways_out_of_a_condition_a_switch_and_a_goal() -> None:
    condition = node("condition", {"on_true": "a"})
    switch = node("switch", {"cases": [{"label": "big", "next": "a"}, {}], "default": "b"})
    goal = node("goal", {"event": "purchase", "on_reached": "a"}, next="b")

    assert [way.words for way in ways_of(condition)] == ["yes", "no"]
    assert [way.words for way in ways_of(switch)] == ["big", "case 2", "else"]
    assert [(way.words, way.target) for way in ways_of(goal)] == [
        ("not reached", "b"),
        ("reached", "a"),
    ]


def test_the_ways_out_of_an_event_wait() -> None:
    def told(config: dict[str, Any]) -> list[tuple[str, str]]:
        wait = node("wait", {"kind": "for_event", **config}, next="n")
        return [(way.words, way.target) for way in ways_of(wait)]

    assert told({"event": "buy"}) == [("buy", "n")]
    assert told({"event": "buy", "timeout": "30d"}) == [("buy or after 30d", "n")]
    assert told({"event": "buy", "timeout": "30d", "on_timeout": "t"}) == [
        ("buy", "n"),
        ("after 30d", "t"),
    ]
    assert told({"on": {"reply": "r"}}) == [("reply", "r")]
    assert told({"on": {"reply": "r"}, "timeout": "5bd"}) == [("reply", "r"), ("after 5bd", "n")]
    assert told({"on": {"reply": "r"}, "on_timeout": "t"}) == [
        ("reply", "r"),
        ("on time-out", "t"),
    ]


def test_shares_are_of_all_who_come_and_add_up() -> None:
    def told(**config: Any) -> list[str]:
        return [way.words for way in ways_of(node("split", config))]

    thirds = [{"variant": name} for name in "ABC"]
    assert told(branches=thirds) == ["A 33.3 %", "B 33.3 %", "C 33.3 %"]
    assert told(branches=thirds[:2], holdout_percent=10) == ["A 45 %", "B 45 %", "held out 10 %"]
    assert told(branches=[{"weight": 0}, {"weight": 0}]) == ["branch 1", "branch 2"]
    assert told(branches=[{"weight": 1}, {"weight": -1}]) == ["branch 1 100 %", "branch 2 0 %"]
    assert told(holdout_percent=0.01) == ["held out < 0.1 %"]


def test_what_is_typed_cannot_break_or_turn_a_line() -> None:
    assert inline("one\r\n\ttwo \x1b[31m") == "one two �[31m"
    assert inline("سلام (hi)!") == "\u2068سلام (hi)!\u2069"
    assert inline("a\u202eb\u2069c") == "abc"
    assert inline("می\u200cخواهم") == "\u2068می\u200cخواهم\u2069"


def test_a_long_text_is_cut_and_never_between_a_letter_and_its_mark() -> None:
    assert inline("x" * 80) == "x" * 71 + "…"
    assert inline("x" * 72) == "x" * 72
    assert inline("e\u0301" * 40, 6) == "e\u0301e\u0301…"
    assert len(inline("\u0301" * 500, 10)) <= 10
