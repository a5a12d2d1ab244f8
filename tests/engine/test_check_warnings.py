"""What a journey will do that its author may not expect, word for word."""

from __future__ import annotations

import pytest

from journeykit_engine.check import Report, check
from journeykit_engine.check_warnings import trigger_fingerprint
from journeykit_engine.graph import Graph
from tests.engine.journeys import (
    CART,
    SWEEP,
    TWICE_A_DAY,
    Value,
    action,
    journey,
    split,
    wait,
    warned,
)

EVERYBODY: list[Value] = [
    {"all": []},
    {"none": []},
    {"any": [{}, {"trait": "x", "op": "exists"}]},
]
WARNINGS = [
    (
        journey({"id": "e", "kind": "exit"}, {"id": "orphan", "kind": "exit"}),
        "UNREACHABLE",
        "nodes[2]",
        'The exit node "orphan" cannot be reached from the entry.',
        "Wire a node to it, or remove it.",
    ),
    (
        journey(trigger=SWEEP, entry_rule="every_time", exit_criteria={"root": {}}),
        "NO_PACING",
        "entry_rule",
        "People enter every time, with no gap between two entries.",
        'Set "cooldown_hours", or "reentry_window" to "day".',
    ),
    (
        journey(trigger=SWEEP, entry_rule="every_time", cooldown_hours=168),
        "NO_EXIT_RULE",
        "exit_criteria",
        "No exit rule: people stay in the flow after they did what it asks for.",
        'Say in "exit_criteria" when somebody should leave.',
    ),
    *(
        (
            journey({"id": "e", "kind": "exit"}, exit_criteria={"root": everybody}),
            "EXIT_MATCHES_ALL",
            "exit_criteria",
            "The exit rule holds for everybody: everyone leaves at the door.",
            'Say in "exit_criteria" who should leave, or leave it out.',
        )
        for everybody in EVERYBODY
    ),
    (
        journey(trigger=SWEEP, exit_criteria={"root": {}}),
        "ONLY_ONCE",
        "entry_rule",
        "The trigger comes back, but each person can enter a single time.",
        'Set "entry_rule" to "every_time" if people should enter again.',
    ),
    (
        journey(trigger={"kind": "date", "trait": "birthday"}, exit_criteria={"root": {}}),
        "ONLY_ONCE",
        "entry_rule",
        "The trigger comes back, but each person can enter a single time.",
        'Set "entry_rule" to "every_time" if people should enter again.',
    ),
    (
        journey(
            trigger=SWEEP, entry_rule="every_time", cooldown_hours=24, exit_criteria={"root": {}}
        ),
        "COOLDOWN_SLIPS",
        "cooldown_hours",
        (
            "A cooldown of 24 hours on 2 sweeps a day ties people to the hour at which "
            "they first entered, and they miss whole days."
        ),
        'For once a day, set "reentry_window" to "day" and "cooldown_hours" to 0.',
    ),
    (
        journey(split(branches=[{"variant": "A"}, {"variant": "A"}])),
        "DUPLICATE_VARIANT",
        "nodes[1].split.branches[1].variant",
        'The split node "s" has two branches with the variant "A".',
        "Reports count them as one; give each a variant of its own to tell them apart.",
    ),
    (
        journey(split(branches=[{"next": "e"}], on_holdout="e"), {"id": "e", "kind": "exit"}),
        "HOLDOUT_PATH_UNUSED",
        "nodes[1].split.on_holdout",
        'The split node "s" has a way for the holdout, but holds nobody out.',
        'Set "holdout_percent", or remove "on_holdout".',
    ),
    (
        journey(wait(kind="duration", amount=1, unit="day") | {"next": "w"}),
        "SELF_LOOP",
        "nodes[1].next",
        'The edge "next" of wait "w" leads back to itself.',
        "Make sure that people should wait again and again.",
    ),
    (
        journey(
            action(kind="send", channel="sms", template_id=1) | {"next": "w"},
            wait(kind="duration", amount=7, unit="day") | {"next": "a"},
        ),
        "ENDLESS_SENDING",
        "nodes[1]",
        'The send node "a" sends again and again: nothing ever leads out of its loop.',
        'Add a way out, "exit_criteria" or "max_duration_days".',
    ),
    (
        journey(
            wait(kind="for_event", event="paid", on_timeout="e") | {"next": "e"},
            {"id": "e", "kind": "exit"},
        ),
        "TIMEOUT_PATH_UNUSED",
        "nodes[1].wait.on_timeout",
        'The wait node "w" has a way for the time-out, but no "timeout": it waits without end.',
        'Set "timeout", as "5d", or remove "on_timeout".',
    ),
    (
        journey({"id": "e", "kind": "exit", "next": "e"}),
        "NEXT_UNUSED",
        "nodes[1].next",
        'The exit node "e" has a "next", which an exit never takes.',
        'Remove "next".',
    ),
    (
        journey(split(branches=[{"next": "e"}]) | {"next": "e"}, {"id": "e", "kind": "exit"}),
        "NEXT_UNUSED",
        "nodes[1].next",
        'The split node "s" has a "next", which a split never takes.',
        'Remove "next"; its ways out stand in its configuration.',
    ),
    (
        journey(wait(kind="duration", amount=8, unit="day"), max_duration_days=7),
        "WAIT_LONGER_THAN_MAX",
        "nodes[1].wait.amount",
        'The wait node "w" waits "8d", longer than the 7 days anybody may stay.',
        'Shorten the wait, or raise "max_duration_days".',
    ),
    (
        journey(wait(kind="for_event", event="reply", timeout="2w"), max_duration_days=7),
        "WAIT_LONGER_THAN_MAX",
        "nodes[1].wait.timeout",
        'The wait node "w" waits "2w", longer than the 7 days anybody may stay.',
        'Shorten the wait, or raise "max_duration_days".',
    ),
]


@pytest.mark.parametrize(("document", "code", "path", "message", "fix"), WARNINGS)
def test_a_warning_says_what_will_happen(
    document: Value, code: str, path: str, message: str, fix: str
) -> None:
    report = check(document)
    (warning,) = [each for each in report.warnings if each.code == code]

    assert report.valid
    assert warning[2:] == (path, message, fix)


def test_every_code_of_a_warning_has_its_words_above() -> None:
    assert {row[1] for row in WARNINGS} == {
        "UNREACHABLE",
        "NO_PACING",
        "NO_EXIT_RULE",
        "ONLY_ONCE",
        "COOLDOWN_SLIPS",
        "DUPLICATE_VARIANT",
        "HOLDOUT_PATH_UNUSED",
        "SELF_LOOP",
        "ENDLESS_SENDING",
        "WAIT_LONGER_THAN_MAX",
        "TIMEOUT_PATH_UNUSED",
        "NEXT_UNUSED",
        "EXIT_MATCHES_ALL",
    }


def test_another_journey_that_asks_the_same_is_mentioned() -> None:
    rule = {"all": [{"segment": 1}, {"segment": 2}]}
    swapped = {"all": [{"segment": 2}, {"segment": 1}]}
    first, *rest = TWICE_A_DAY["nodes"]
    first = first | {"trigger": SWEEP | {"definition": {"root": rule}}}
    own = TWICE_A_DAY | {"journey_id": 7, "nodes": [first, *rest]}
    trigger = {"kind": "segment_periodic", "definition": {"root": swapped}, "hours": [18, 11]}
    other = Graph.parse(journey(trigger=trigger) | {"journey_id": 8})
    elsewhere = Graph.parse(journey(trigger=trigger | {"hours": [3]}) | {"journey_id": 9})
    broken = Graph.parse(journey(trigger=SWEEP | {"definition": {"root": 5}}) | {"journey_id": 10})

    (warning,) = check(own, [other, elsewhere, broken, Graph()]).warnings

    assert warning.code == "OVERLAP"
    assert (warning.node_id, warning.path) == ("trigger", "nodes[0].trigger")
    assert warning.message == (
        'The trigger node "trigger" asks the same as the trigger of journey 8.'
    )
    assert check(own, [Graph.parse(own)]).warnings == ()
    assert trigger_fingerprint(Graph()) == trigger_fingerprint(broken) == ""


def test_an_event_trigger_is_not_told_about_pacing() -> None:
    assert warned(CART | {"entry_rule": "every_time"}) == []


def test_a_date_that_comes_once_may_be_entered_once() -> None:
    renewal = {"kind": "date", "trait": "renewal", "annual": False, "offset_days": 400}

    assert check(journey(trigger=renewal, exit_criteria={"root": {}})) == Report((), ())


@pytest.mark.parametrize(
    "way_out",
    [
        {"exit_criteria": {"root": {"event": "purchase"}}},
        {"max_duration_days": 30},
        {"settings": {"exit_on": ["reply"]}},
    ],
)
def test_a_loop_of_sends_that_something_ends_is_silent(way_out: Value) -> None:
    send = action(kind="send", channel="push", template_id=1) | {"next": "w"}
    pause = wait(kind="duration", amount=7, unit="day") | {"next": "a"}

    assert warned(journey(send, pause)) == ["ENDLESS_SENDING"]
    assert warned(journey(send, pause, **way_out)) == []


def test_a_value_of_the_event_is_lost_after_a_timer() -> None:
    def sends(*before: Value) -> Value:
        return journey(*before, action(kind="send", channel="push", template_id=3))

    pause = wait(kind="duration", amount=1, unit="day") | {"next": "a"}
    reply = wait(kind="for_event", event="reply", timeout="1d") | {"next": "a"}
    patient = wait(kind="for_event", event="reply") | {"next": "a"}
    ranked = {3: {"subject": "Hi {{ name }}", "body": "Now {{ event.rank }}"}}
    safe = {3: {"body": "Now {{ event.rank | default: 'new' }}"}}
    broken = {3: {"body": "{{ event.rank"}}

    (warning,) = check(sends(pause), templates=ranked).warnings

    assert (warning.code, warning.path) == (
        "EVENT_VALUE_LOST_AFTER_WAIT",
        "nodes[2].action.template_id",
    )
    assert warning.message == (
        'The send node "a" uses "event.rank", which nobody has who comes from a timer.'
    )
    assert warned(sends(reply), templates=ranked) == ["EVENT_VALUE_LOST_AFTER_WAIT"]
    assert warned(sends(patient), templates=ranked) == []
    assert warned(sends(), templates=ranked) == []
    assert warned(sends(pause), templates=safe) == []
    assert warned(sends(pause), templates=broken) == warned(sends(pause), templates={}) == []
