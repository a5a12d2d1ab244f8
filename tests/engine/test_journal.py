"""Every kind of entry as a record, word for word, and what the records add up to."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from whenever import Instant

from journeykit_engine import journal, trail
from journeykit_engine.graph import Graph
from journeykit_engine.instance import NOTHING, Wait
from journeykit_engine.trail import Entry, Medium

AT = Instant("2026-06-01T10:00:00Z")
GRAPH = Graph.parse(
    {
        "entry_id": "t",
        "nodes": [
            {"id": "t", "kind": "trigger", "trigger": {"kind": "api"}},
            {
                "id": "s",
                "kind": "split",
                "split": {"branches": [{"variant": "A"}, {"variant": ""}], "holdout_percent": 5},
            },
        ],
    }
)


def written(*entries: Entry) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The records of these entries and their sums."""
    records: list[dict[str, Any]] = []
    sums = journal.Sums(GRAPH)
    journal.writer(records.append, sums)(AT, "u_1", 2, entries)
    return records, sums.summary()


CASES: list[tuple[Entry, dict[str, Any]]] = [
    (trail.Paused("w"), {"what": "paused", "node_id": "w"}),
    (trail.Resumed("w"), {"what": "resumed", "node_id": "w"}),
    (trail.Entered("t", "m1"), {"what": "entered", "node_id": "t", "caused_by": "m1"}),
    (trail.Entered("t", ""), {"what": "entered", "node_id": "t", "caused_by": None}),
    (trail.Visited("t"), {"what": "visited", "node_id": "t"}),
    (
        Wait("w", "event", AT, AT.add(hours=1), ("reply", "won")),
        {
            "what": "waiting",
            "node_id": "w",
            "until": "2026-06-01T11:00:00Z",
            "events": ["reply", "won"],
        },
    ),
    (
        Wait("w", "event", AT, None, ("reply",)),
        {"what": "waiting", "node_id": "w", "until": None, "events": ["reply"]},
    ),
    (
        trail.Woke("w", "timeout", ""),
        {"what": "woke", "node_id": "w", "branch": "timeout", "woken_by": None},
    ),
    (
        trail.Woke("w", "reply", "m2"),
        {"what": "woke", "node_id": "w", "branch": "reply", "woken_by": "m2"},
    ),
    (trail.Branched("c", "on_true"), {"what": "branched", "node_id": "c", "port": "on_true"}),
    (
        trail.Assigned("s", "A", False),
        {"what": "assigned", "node_id": "s", "variant": "A", "holdout": False},
    ),
    (
        trail.Message("j1.v1.a.u_1.e2", NOTHING, "a", "push", 3, "marketing", 50, "default"),
        {
            "what": "effect",
            "node_id": "a",
            "message_id": "j1.v1.a.u_1.e2",
            "effect": {
                "kind": "send",
                "message_id": "j1.v1.a.u_1.e2",
                "channel": "push",
                "template_id": 3,
                "category": "marketing",
                "priority": 50,
                "budget": "default",
            },
        },
    ),
    (
        trail.Message(
            "x", {"rank": 4}, "a", "push", 3, "marketing", 0, "b", (Medium("sms", 4, "x.sms"),)
        ),
        {
            "what": "effect",
            "node_id": "a",
            "message_id": "x",
            "effect": {
                "kind": "send",
                "message_id": "x",
                "event": {"rank": 4},
                "channel": "push",
                "template_id": 3,
                "category": "marketing",
                "priority": 0,
                "budget": "b",
                "fallback": [{"channel": "sms", "template_id": 4, "message_id": "x.sms"}],
            },
        },
    ),
    (
        trail.WriteTrait("a", "vip", None),
        {
            "what": "effect",
            "node_id": "a",
            "effect": {"kind": "update_trait", "trait": "vip", "value": None},
        },
    ),
    (
        trail.AddToSegment("a", 4),
        {"what": "effect", "node_id": "a", "effect": {"kind": "add_to_segment", "segment_id": 4}},
    ),
    (
        trail.CallWebhook("x", "a", "https://example.org", {"X-Key": "1"}, None),
        {
            "what": "effect",
            "node_id": "a",
            "effect": {
                "kind": "webhook",
                "id": "x",
                "url": "https://example.org",
                "headers": {"X-Key": "1"},
                "body": None,
            },
        },
    ),
    (
        trail.StartJourney("x", "a", 8),
        {
            "what": "effect",
            "node_id": "a",
            "effect": {"kind": "enter_journey", "id": "x", "journey_id": 8},
        },
    ),
    (
        trail.GiveTask("x", "a", "call", "Ring them", ("won",)),
        {
            "what": "effect",
            "node_id": "a",
            "effect": {
                "kind": "task",
                "id": "x",
                "task": "call",
                "title": "Ring them",
                "connected_outcomes": ["won"],
            },
        },
    ),
    (
        trail.Suppressed("a", "holdout", "send", "x"),
        {
            "what": "suppressed",
            "node_id": "a",
            "reason": "holdout",
            "kind": "send",
            "message_id": "x",
        },
    ),
    (
        trail.Suppressed("a", "missing_personalisation", "send", "x", ("event.rank",)),
        {
            "what": "suppressed",
            "node_id": "a",
            "reason": "missing_personalisation",
            "kind": "send",
            "message_id": "x",
            "missing": ["event.rank"],
        },
    ),
    (
        trail.Noted("", "bad_timezone", "Mars"),
        {"what": "noted", "node_id": "", "note": "bad_timezone", "detail": "Mars"},
    ),
    (
        trail.Failed("a", "STEP_LIMIT", "Too far."),
        {"what": "error", "node_id": "a", "code": "STEP_LIMIT", "message": "Too far."},
    ),
    (
        trail.Exited("a", "goal_reached"),
        {"what": "exited", "node_id": "a", "reason": "goal_reached"},
    ),
    (trail.Refused("t", "once"), {"what": "refused", "node_id": "t", "reason": "once"}),
]


@pytest.mark.parametrize(("entry", "told"), CASES, ids=lambda case: type(case).__name__)
def test_an_entry_as_a_record(entry: Entry, told: dict[str, Any]) -> None:
    records, _ = written(entry)
    assert records == [{"at": "2026-06-01T10:00:00Z", "user_id": "u_1", "entry": 2, **told}]


def test_every_kind_of_entry_is_told_under_its_own_word() -> None:
    assert set(journal.TELLERS) == set(get_args(Entry))
    assert {type(entry) for entry, _ in CASES} == set(journal.TELLERS)


def test_a_message_is_told_alike_by_both_doors() -> None:
    for entry, told in CASES:
        if isinstance(entry, trail.Message):
            assert journal.effect_record(entry) == journal.message_record(entry) == told["effect"]


def test_lines_are_the_records_and_the_sums_are_the_same() -> None:
    entries = tuple(entry for entry, _ in CASES) * 3
    records, summary = written(*entries)
    lines: list[bytes] = []
    sums = journal.Sums(GRAPH)
    sink = journal.Lines(lambda record: json.dumps(record).encode(), lines.append)

    journal.writer(sink, sums)(AT, "u_1", 2, entries)

    assert [json.loads(line) for line in b"".join(lines).splitlines()] == records
    assert sums.summary() == summary
    assert sums.summary() == summary  # asked twice, nothing is counted twice


def test_tails_are_the_lines_without_what_a_step_shares() -> None:
    entries = tuple(entry for entry, _ in CASES) * 3
    sums = journal.Sums(GRAPH)

    told = journal.tails(lambda record: json.dumps(record).encode(), sums)(entries)

    assert told.endswith(b"}\n")
    assert [json.loads(line) for line in told.splitlines()] == [record for _, record in CASES] * 3
    assert [list(json.loads(line))[:2] for line in told.splitlines()] == (
        [["what", "node_id"]] * 3 * len(CASES)
    )
    assert sums.summary() == written(*entries)[1]


def test_a_step_that_wrote_nothing_has_no_tails() -> None:
    tails_of = journal.tails(lambda record: json.dumps(record).encode(), journal.Sums(GRAPH))
    assert tails_of(()) == b""


def test_the_sums_of_every_kind_of_entry() -> None:
    _, summary = written(*(entry for entry, _ in CASES))
    assert summary == {
        "people": 0,
        "events": 0,
        "entries": 2,
        "messages": 2,
        "nodes": {
            "t": {"entered": 1, "exited": 0, "suppressed": 0, "waiting": 0},
            "s": {"entered": 0, "exited": 0, "suppressed": 0, "waiting": 0},
        },
        "exits": {"goal_reached": 1},
        "arms": {"s": {"A": 1, "branch 2": 0, "holdout": 0}},
    }


def test_a_held_out_person_is_counted_as_such_and_not_under_an_arm() -> None:
    _, summary = written(trail.Assigned("s", "", True), trail.Assigned("s", "branch 2", False))
    assert summary["arms"] == {"s": {"A": 0, "branch 2": 1, "holdout": 1}}
