"""What a graph is told before it may go out: every problem at once, in document order."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journeykit_engine.check import Report, check
from journeykit_engine.graph import Graph
from journeykit_engine.paths import MAX_STEPS
from journeykit_engine.program import compile_graph
from journeykit_engine.strict_json import BadJson
from tests.engine.journeys import (
    CART,
    DAY,
    TWICE_A_DAY,
    Value,
    action,
    chain,
    codes,
    everything,
    goes,
    journey,
    split,
    wait,
)

PROBLEMS = [
    (
        journey(entry_id=""),
        "NO_ENTRY",
        "entry_id",
        'The graph has no entry: "entry_id" is empty.',
        'Set "entry_id" to "t".',
    ),
    (
        journey(entry_id="T1"),
        "NO_ENTRY",
        "entry_id",
        'The entry "T1" is no node of this graph.',
        'Set "entry_id" to "t".',
    ),
    (
        {"nodes": []},
        "NO_ENTRY",
        "entry_id",
        'The graph has no entry: "entry_id" is empty.',
        'Add a trigger node and name it in "entry_id".',
    ),
    (
        journey({"id": "end", "kind": "exit"}, entry_id="end"),
        "ENTRY_NOT_TRIGGER",
        "entry_id",
        'The entry "end" is a node of the kind "exit"; people enter by a trigger.',
        'Set "entry_id" to "t".',
    ),
    (
        journey(
            {"id": "e", "kind": "exit"}, {"id": "t2", "kind": "trigger", "trigger": {"kind": "api"}}
        ),
        "SECOND_TRIGGER",
        "nodes[2].kind",
        'The trigger node "t2" is a second way in; "t" is the entry.',
        "Remove it: a journey has one trigger.",
    ),
    (
        journey({"id": "e", "kind": "exit"}, {"id": "e", "kind": "exit"}),
        "DUPLICATE_ID",
        "nodes[2].id",
        'The id "e" is given to nodes[1] and again to nodes[2].',
        "Give one of the two another id.",
    ),
    (
        journey({"id": "e", "kind": "exit", "next": "nowhere"}),
        "DANGLING_EDGE",
        "nodes[1].next",
        'The edge "next" of node "e" leads to "nowhere", which does not exist.',
        "Wire it to a node that exists.",
    ),
    (
        journey(goes("done"), {"id": "dune", "kind": "exit"}),
        "DANGLING_EDGE",
        "nodes[1].next",
        'The edge "next" of node "a" leads to "done", which does not exist.',
        'Did you mean "dune"?',
    ),
    (
        journey(goes("nowhere at all")),
        "DANGLING_EDGE",
        "nodes[1].next",
        'The edge "next" of node "a" leads to "nowhere at all", which does not exist.',
        "Wire it to a node that exists.",
    ),
    (
        journey(wait(kind="duration", amount=1, unit="hour") | {"next": "t"}),
        "TRIGGER_HAS_INCOMING",
        "nodes[1].next",
        (
            'The edge "next" of node "w" leads into the trigger "t"; people come in there'
            " only from outside."
        ),
        "Wire it to the node after the trigger.",
    ),
    (
        journey(goes("b"), {"id": "b", "kind": "goal", "next": "a", "goal": {"event": "x"}}),
        "CYCLE",
        "nodes[1]",
        'The loop "a" > "b" lets no time pass: it has no wait.',
        "Put a wait into the loop, or a way out.",
    ),
    (
        journey(wait(kind="for_event", event="reply") | {"next": "w"}),
        "CYCLE",
        "nodes[1]",
        'The loop "w" lets no time pass: its wait for an event has no timeout.',
        "Give the wait a timeout.",
    ),
    (
        journey(*chain(100)),
        "PATH_TOO_LONG",
        "nodes[0]",
        (
            'The path that begins at node "t" visits 101 nodes without a wait; a walk '
            "visits at most 100."
        ),
        "Put a wait into the path.",
    ),
    (
        journey(settings={"jitter": "0m"}),
        "BAD_DURATION",
        "settings.jitter",
        'The jitter: "0m" is not a duration.',
        (
            "Write a whole number from 1 and one of m, h, d, w or bd, with nothing "
            'between them, as "5bd".'
        ),
    ),
    (
        journey(cooldown_hours=-1),
        "BAD_DURATION",
        "cooldown_hours",
        '"cooldown_hours" is -1; expected a whole number from 0 to 87600.',
        "Write a number from 0, for none, to 87600.",
    ),
    (
        journey(max_duration_days=-1),
        "BAD_DURATION",
        "max_duration_days",
        '"max_duration_days" is -1; expected a whole number from 0 to 3650.',
        "Write a number from 0, for none, to 3650.",
    ),
    (
        journey(exit_criteria={"root": {"all": 5}}),
        "BAD_SEGMENT",
        "exit_criteria.root.all",
        ('The exit rule has a bad segment definition: "all" takes a list of rules, not 5.'),
        "Put the rules between [ and ].",
    ),
    (
        journey(settings={"exit_on": [" "]}),
        "NO_EVENT",
        "settings.exit_on[0]",
        'The setting "exit_on" has no event to listen for.',
        "Name the event.",
    ),
    (
        journey(entry_rule="every_time", cooldown_hours=24, reentry_window="day"),
        "TWO_GAPS",
        "reentry_window",
        ('The graph has both "cooldown_hours" and "reentry_window": two answers to one question.'),
        ('Keep one: "reentry_window" for once a day, "cooldown_hours" for a length of time.'),
    ),
    (
        journey(settings={"timezone": "Asia/Tehrn"}),
        "BAD_TIMEZONE",
        "settings.timezone",
        'The time zone "Asia/Tehrn" is unknown.',
        'Did you mean "Asia/Tehran"?',
    ),
    (
        journey(settings={"timezone": "GMT+3:30"}),
        "BAD_TIMEZONE",
        "settings.timezone",
        'The time zone "GMT+3:30" is unknown.',
        'Did you mean "GMT+0"?',
    ),
    (
        journey(settings={"send_window": {"days": ["mon"], "from": "09:00", "to": "09:00"}}),
        "BAD_WINDOW",
        "settings.send_window.to",
        'The send window: "from" and "to" are both "09:00".',
        "Write two different times.",
    ),
    (
        journey(settings={"send_window": {"days": [], "from": "09:00", "to": "17:00"}}),
        "BAD_WINDOW",
        "settings.send_window.days",
        "The send window: no day is named.",
        "Name at least one of mon, tue, wed, thu, fri, sat, sun.",
    ),
    (
        journey(settings={"workweek": []}),
        "BAD_WINDOW",
        "settings.workweek",
        "The workweek: no day is named.",
        "Name at least one of mon, tue, wed, thu, fri, sat, sun.",
    ),
    (
        journey(settings={"send_window": DAY, "jitter": "9h"}),
        "JITTER_EXCEEDS_WINDOW",
        "settings.jitter",
        'The jitter "9h" is longer than the send window is open.',
        'Write at most "480m", or widen the window.',
    ),
    (
        journey(tenant_id=5),
        "UNKNOWN_FIELD",
        "tenant_id",
        'The field "tenant_id" is not known here.',
        "Leave it out, the server sets it.",
    ),
    (
        journey({"id": "w", "kind": "delay"}),
        "UNKNOWN_KIND",
        "nodes[1].kind",
        (
            'Node "w": "kind" is "delay"; expected one of "trigger", "wait", "condition",'
            ' "switch", "split", "action", "goal" or "exit".'
        ),
        'Write "wait".',
    ),
    (
        journey(entry_rule="twice"),
        "UNKNOWN_WORD",
        "entry_rule",
        '"entry_rule" is "twice"; expected one of "once" or "every_time".',
        'Write one of "once" or "every_time".',
    ),
    (
        {"entry_id": "t", "nodes": [{"id": "t"}]},
        "MISSING_FIELD",
        "nodes[0].kind",
        'Node "t": The field "kind" is missing.',
        'Add "kind".',
    ),
    (
        journey(action(kind="add_to_segment", segment_id="12")),
        "WRONG_TYPE",
        "nodes[1].action.segment_id",
        'Node "a": "segment_id" must be a whole number, not the text "12".',
        "Write a whole number.",
    ),
    (
        journey(action(kind="add_to_segment", segment_id='1\n2"')),
        "WRONG_TYPE",
        "nodes[1].action.segment_id",
        'Node "a": "segment_id" must be a whole number, not the text "1\\n2\\"".',
        "Write a whole number.",
    ),
    (
        journey(wait(kind="duration", amount=1.5, unit="hour")),
        "BAD_DURATION",
        "nodes[1].wait.amount",
        'Node "w": "amount" must be a whole number, not the number 1.5.',
        "Write a whole number.",
    ),
]


@pytest.mark.parametrize(("document", "code", "path", "message", "fix"), PROBLEMS)
def test_a_problem_says_what_is_wrong_where_and_what_to_do(
    document: Value, code: str, path: str, message: str, fix: str
) -> None:
    (problem,) = check(document).problems

    assert (problem.code, problem.path) == (code, path)
    assert (problem.message, problem.fix) == (message, fix)


def test_every_code_of_a_graph_has_its_words_above() -> None:
    assert {row[1] for row in PROBLEMS} == {
        "NO_ENTRY",
        "ENTRY_NOT_TRIGGER",
        "SECOND_TRIGGER",
        "DUPLICATE_ID",
        "DANGLING_EDGE",
        "TRIGGER_HAS_INCOMING",
        "CYCLE",
        "PATH_TOO_LONG",
        "BAD_DURATION",
        "BAD_SEGMENT",
        "NO_EVENT",
        "TWO_GAPS",
        "BAD_TIMEZONE",
        "BAD_WINDOW",
        "JITTER_EXCEEDS_WINDOW",
        "UNKNOWN_FIELD",
        "UNKNOWN_KIND",
        "UNKNOWN_WORD",
        "MISSING_FIELD",
        "WRONG_TYPE",
    }


@pytest.mark.parametrize("document", [CART, TWICE_A_DAY, CART | {"journey_id": 0}, everything()])
def test_a_complete_journey_is_told_nothing(document: Value) -> None:
    assert check(document) == Report((), ())
    assert check(document).to_dict() == {"valid": True, "problems": [], "warnings": []}


def test_problems_come_in_document_order_the_graph_first() -> None:
    bad_send = {"kind": "send", "priority": 101}
    document = journey(
        action(**bad_send) | {"next": "x"},
        {"id": "w", "kind": "wait", "wait": {"kind": "until_time", "hour": 24, "minute": 60}},
        trigger={"kind": "event"},
        settings={"timezone": ""},
        cooldown_hours=-1,
    )

    assert codes(document) == [
        "BAD_DURATION",
        "BAD_TIMEZONE",
        "NO_EVENT",
        "DANGLING_EDGE",
        "NO_CHANNEL",
        "NO_TEMPLATE",
        "BAD_PRIORITY",
        "BAD_HOUR",
        "BAD_HOUR",
    ]


def test_every_planted_problem_is_found_at_once() -> None:
    document = journey(
        goes("nowhere"),
        wait(kind="until_time", hour=24),
        {"id": "which", "kind": "switch", "switch": {"cases": [{"definition": {"root": {}}}]}},
        split(branches=[{"weight": 0}, {"weight": 0}], holdout_percent=101),
        {"id": "g", "kind": "goal", "goal": {}},
        action(kind="enter_journey", journey_id=7) | {"id": "self"},
        wait(kind="until_best_time") | {"id": "best"},
    )

    assert codes(document) == [
        "DANGLING_EDGE",
        "BAD_HOUR",
        "NO_DEFAULT",
        "ZERO_WEIGHTS",
        "BAD_HOLDOUT",
        "NO_EVENT",
        "ENTERS_ITSELF",
        "NO_FALLBACK_HOUR",
    ]


def test_faults_of_shape_and_what_is_left_are_told_together() -> None:
    document = journey(
        wait(kind="duration", amount="1", unit="hour") | {"next": "nowhere"},
        wait(kind="for_event", on=5) | {"id": "w2"},
        action(kind="send", channel="sms", priority="high"),
    )

    report = check(document)

    assert [(problem.code, problem.path) for problem in report.problems] == [
        ("DANGLING_EDGE", "nodes[1].next"),
        ("BAD_DURATION", "nodes[1].wait.amount"),
        ("WRONG_TYPE", "nodes[2].wait.on"),
        ("WRONG_TYPE", "nodes[3].action.priority"),
        ("NO_TEMPLATE", "nodes[3].action.template_id"),
    ]
    assert report.warnings == ()


@pytest.mark.parametrize("nodes", [None, [None], 5, {}])
def test_nodes_that_are_none_are_problems_too(nodes: object) -> None:
    assert "WRONG_TYPE" in codes({"nodes": nodes})


def test_a_timeout_set_aside_for_its_shape_makes_no_loop() -> None:
    lost = wait(kind="for_event", event="reply", timeout=5) | {"next": "w"}

    assert codes(journey(lost)) == ["BAD_DURATION"]


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(BadJson, match="no JSON number"):
        check({"cooldown_hours": float("nan")})


def test_a_loop_does_not_hide_other_problems() -> None:
    document = journey(goes("b"), goes("a") | {"id": "b"}, {"id": "w", "kind": "wait"})

    assert codes(document) == ["CYCLE", "CONFIG_MISMATCH"]


def test_each_loop_is_told_once() -> None:
    document = journey(
        {"id": "fork", "kind": "condition", "condition": {"definition": {"root": {}}}},
        goes("b"),
        goes("a") | {"id": "b"},
        goes("c") | {"id": "c"},
    )
    document["nodes"][1]["condition"] |= {"on_true": "a", "on_false": "c"}

    assert codes(document) == ["CYCLE", "CYCLE"]


def test_a_loop_through_a_wait_lets_time_pass() -> None:
    send = action(kind="send", channel="push", template_id=1) | {"next": "w"}
    for config in (
        {"kind": "duration", "amount": 7, "unit": "day"},
        {"kind": "until_time", "hour": 9},
        {"kind": "until_best_time", "fallback_hour": 9},
        {"kind": "for_event", "event": "reply", "timeout": "5d"},
    ):
        assert codes(journey(send, wait(**config) | {"next": "a"})) == []


def test_a_loop_through_an_event_wait_without_timeout_is_a_cycle() -> None:
    send = action(kind="send", channel="push", template_id=1) | {"next": "w"}

    assert codes(journey(send, wait(kind="for_event", on={"reply": "a"}))) == ["CYCLE"]


def test_a_loop_through_a_task_that_is_waited_for_lets_time_pass() -> None:
    done = wait(kind="for_event", on={"task_completed": "a"})

    assert codes(journey(action(kind="task", task="call") | {"next": "w"}, done)) == []
    assert codes(journey(action(kind="task", task="call") | {"next": "a"})) == ["CYCLE"]


def test_a_long_loop_names_its_first_nodes_only() -> None:
    nodes = chain(30)
    nodes[-1]["next"] = "n0"
    (problem,) = check(journey(*nodes)).problems

    assert problem.message.startswith('The loop "n0" > "n1" > "n2" >')
    assert problem.message.endswith('> "n9" and 20 more lets no time pass: it has no wait.')


@pytest.mark.parametrize(
    ("length", "found"), [(99, []), (100, []), (101, ["PATH_TOO_LONG"]), (150, ["PATH_TOO_LONG"])]
)
def test_a_walk_of_more_than_a_hundred_nodes_is_told(length: int, found: list[str]) -> None:
    assert MAX_STEPS == 100
    assert codes(journey(*chain(length - 1))) == found


def test_a_wait_begins_a_new_walk() -> None:
    """The wait is the last node of the walk before it and no part of the one after it."""
    pause = wait(kind="duration", amount=1, unit="hour")
    before = [*chain(98), pause | {"next": "m0"}]
    before[-2]["next"] = "w"
    after = [node | {"id": f"m{i}", "next": f"m{i + 1}"} for i, node in enumerate(chain(101))]
    after[-1]["next"] = ""

    assert codes(journey(*before, *after[:100])) == ["DANGLING_EDGE"]
    (problem,) = check(journey(*before, *after)).problems
    assert (problem.code, problem.node_id) == ("PATH_TOO_LONG", "m0")


def test_five_thousand_nodes_and_no_recursion() -> None:
    assert sys.getrecursionlimit() < 5000

    assert codes(journey(*chain(5000))) == ["PATH_TOO_LONG"]


def test_two_to_the_fortieth_paths_are_one_look() -> None:
    everybody: Value = {"root": {}}
    nodes = []
    for i in range(40):
        ways = {"definition": everybody, "on_true": f"x{i}", "on_false": f"y{i}"}
        nodes.append({"id": f"n{i}", "kind": "condition", "condition": ways})
        nodes += [goes(f"n{i + 1}") | {"id": f"{side}{i}"} for side in "xy"]
    nodes.append({"id": "n40", "kind": "exit"})

    assert codes(journey(*nodes)) == []


def test_ids_that_differ_by_space_or_case_are_three() -> None:
    exits = [{"id": name, "kind": "exit"} for name in ("send", "send ", "Send")]

    assert codes(journey(*exits)) == []


def test_of_two_entries_by_name_the_second_is_a_second_way_in() -> None:
    document = journey()
    document["nodes"] *= 2

    assert codes(document) == ["DUPLICATE_ID", "SECOND_TRIGGER"]


def test_a_rule_a_hundred_deep_is_one_problem() -> None:
    rule: Value = {}
    for _ in range(90):
        rule = {"not": rule}
    document = journey(
        {"id": "c", "kind": "condition", "condition": {"definition": {"root": rule}}}
    )

    assert codes(document) == ["BAD_SEGMENT"]
    assert codes(journey(exit_criteria={"root": None})) == ["BAD_SEGMENT"]
    assert codes(journey(exit_criteria={})) == []


def test_windows_without_a_reading_are_problems(cases: Mapping[str, Any]) -> None:
    windows = cases["win-refused-shapes"]["given"]["send_windows"]

    for window in windows:
        assert "BAD_WINDOW" in codes(journey(settings={"send_window": window})), window


def test_the_accounts_zone_is_asked_only_where_the_journey_names_none() -> None:
    (problem,) = check(journey(), account_timezone="Mars/Phobos").problems

    assert (problem.code, problem.path) == ("BAD_TIMEZONE", "account_timezone")
    zoned = journey(settings={"timezone": "UTC"})
    assert codes(zoned, account_timezone="Mars/Phobos") == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@st.composite
def damaged(draw: st.DrawFn) -> Value:
    """A sound journey with some of its values replaced, removed or added."""
    document = json.loads(json.dumps(draw(st.sampled_from([CART, TWICE_A_DAY, everything()]))))
    for _ in range(draw(st.integers(1, 3))):
        holder: Any = document
        while True:
            keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(holder[key], dict | list) and draw(st.integers(0, 3)):
                holder = holder[key]
                continue
            holder[key] = draw(JSON)
            break
    return document  # type: ignore[no-any-return]


@given(damaged())
@settings(max_examples=150)
def test_no_value_makes_it_raise_and_what_is_sound_compiles(document: Value) -> None:
    try:
        report = check(document)
    except BadJson:  # a control character U+0000 or a lone half of a pair
        return
    assert json.loads(json.dumps(report.to_dict()))["valid"] is report.valid
    assert all(problem.message and problem.fix for problem in report.problems)
    if report.valid:
        assert compile_graph(Graph.parse(document)).entry is not None
