"""What is wrong with one node, word for word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from journeykit_engine.check import check
from tests.engine.journeys import (
    NIGHT,
    Value,
    action,
    codes,
    journey,
    split,
    wait,
)

PROBLEMS = [
    (
        journey({"id": "", "kind": "exit"}),
        "BAD_ID",
        "nodes[1].id",
        "The node at position 1, counted from 0, has an empty id.",
        "Give the node a name of its own.",
    ),
    (
        journey({"id": "x" * 201, "kind": "exit"}),
        "BAD_ID",
        "nodes[1].id",
        (
            "The exit node "
            '"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…" has an id of'
            " 201 characters; at most 200 fit."
        ),
        "Shorten the id.",
    ),
    (
        journey({"id": "a\tb", "kind": "exit"}),
        "BAD_ID",
        "nodes[1].id",
        'The exit node "a\\tb" has a control character in its id.',
        "Remove it.",
    ),
    (
        journey({"id": "s:branch", "kind": "exit"}),
        "RESERVED_ID",
        "nodes[1].id",
        (
            'The exit node "s:branch" has an id that ends in ":branch", which would share'
            " a hash with another node."
        ),
        "Choose another ending.",
    ),
    (
        journey({"id": "w", "kind": "wait"}),
        "CONFIG_MISMATCH",
        "nodes[1].wait",
        'The wait node "w" has no "wait" object, which says what the node does.',
        'Add "wait": {…}.',
    ),
    (
        journey({"id": "e", "kind": "exit", "goal": {"event": "x"}}),
        "CONFIG_MISMATCH",
        "nodes[1].goal",
        ('The exit node "e" has a "goal" object, which belongs to a node of the kind "goal".'),
        'Remove "goal".',
    ),
    (
        journey(wait(kind="duration", amount=0, unit="hour")),
        "BAD_DURATION",
        "nodes[1].wait.amount",
        'The wait node "w": the amount is 0.',
        'Write a whole number from 1 to 87600 for the unit "hour".',
    ),
    (
        journey(wait(kind="duration", amount=1, unit="hr")),
        "BAD_DURATION",
        "nodes[1].wait.unit",
        'The wait node "w": the unit is "hr".',
        'Write one of minute, hour, day, week, business_day. Did you mean "hour"?',
    ),
    (
        journey(wait(kind="for_event", event="reply", timeout="5 days")),
        "BAD_DURATION",
        "nodes[1].wait.timeout",
        'The wait node "w": "5 days" is not a duration.',
        (
            "Write a whole number from 1 and one of m, h, d, w or bd, with nothing "
            'between them, as "5bd".'
        ),
    ),
    (
        journey(wait(kind="for_event", event="reply", timeout="5; bd")),
        "BAD_DURATION",
        "nodes[1].wait.timeout",
        'The wait node "w": "5; bd" is not a duration.',
        (
            "Write a whole number from 1 and one of m, h, d, w or bd, with nothing "
            'between them, as "5bd".'
        ),
    ),
    (
        journey({"id": "g", "kind": "goal", "goal": {"event": "x", "window_days": -1}}),
        "BAD_DURATION",
        "nodes[1].goal.window_days",
        'The goal node "g" has the window in days -1; expected 0 to 3650.',
        "Write a number from 0 to 3650.",
    ),
    (
        journey(wait(kind="until_time")),
        "BAD_HOUR",
        "nodes[1].wait.hour",
        'The wait node "w" has no hour to wait for.',
        'Write "hour", a number from 0 to 23.',
    ),
    (
        journey(wait(kind="until_time", hour=24)),
        "BAD_HOUR",
        "nodes[1].wait.hour",
        'The wait node "w" has the hour 24; expected 0 to 23.',
        "Write a number from 0 to 23.",
    ),
    (
        journey(wait(kind="until_time", hour=9, minute=60)),
        "BAD_HOUR",
        "nodes[1].wait.minute",
        'The wait node "w" has the minute 60; expected 0 to 59.',
        "Write a number from 0 to 59.",
    ),
    (
        journey(wait(kind="until_time", hour=9, days=["Mon"])),
        "BAD_HOUR",
        "nodes[1].wait.days",
        'The wait node "w": the day "Mon" is unknown.',
        "Write one of mon, tue, wed, thu, fri, sat, sun.",
    ),
    (
        journey(wait(kind="until_best_time", fallback_hour=24)),
        "BAD_HOUR",
        "nodes[1].wait.fallback_hour",
        'The wait node "w" has the hour 24; expected 0 to 23.',
        "Write a number from 0 to 23.",
    ),
    (
        journey(trigger={"kind": "segment_periodic", "definition": {"root": {}}, "hours": [9, 24]}),
        "BAD_HOUR",
        "nodes[0].trigger.hours[1]",
        'The trigger node "t" has the hour 24; expected 0 to 23.',
        "Write a number from 0 to 23.",
    ),
    (
        journey(wait(kind="until_best_time")),
        "NO_FALLBACK_HOUR",
        "nodes[1].wait.fallback_hour",
        'The wait node "w" has no hour for people of whom too little is known.',
        'Write "fallback_hour", a number from 0 to 23.',
    ),
    (
        journey({"id": "c", "kind": "condition", "condition": {}}),
        "BAD_SEGMENT",
        "nodes[1].condition.definition",
        'The condition node "c" has no segment definition.',
        'Add "definition": {"root": {…}}; {"root": {}} is everybody.',
    ),
    (
        journey(
            {
                "id": "c",
                "kind": "condition",
                "condition": {"definition": {"root": {"trait": "plan", "op": "regex"}}},
            }
        ),
        "BAD_SEGMENT",
        "nodes[1].condition.definition.root.op",
        ('The condition node "c" has a bad segment definition: There is no operator "regex" here.'),
        (
            'Write one of "eq", "neq", "in", "not_in", "gt", "gte", "lt", "lte", '
            '"between", "exists", "not_exists", "contains", "not_contains", '
            '"starts_with", "ends_with", "is_true", "is_false", "includes", '
            '"includes_any", "includes_all", "size_gt", "size_eq", "size_lt", "before", '
            '"after", "on_day", "within_last", "within_next", "before_last", '
            '"after_next", "days_until", "days_since".'
        ),
    ),
    (
        journey(trigger={"kind": "event", "event": "x", "filter": [{"op": "gt", "value": 1}]}),
        "BAD_SEGMENT",
        "nodes[0].trigger.filter[0].property",
        'The trigger node "t" has a bad filter: "property" is missing.',
        'Write "property" with a name.',
    ),
    (
        journey({"id": "s", "kind": "switch", "switch": {"cases": [{"definition": {"root": {}}}]}}),
        "NO_DEFAULT",
        "nodes[1].switch.default",
        (
            'The switch node "s" has no default, so people who match no case would leave '
            "the journey here."
        ),
        'Wire "default" to a node, for example to an exit.',
    ),
    (
        journey(
            {"id": "s", "kind": "switch", "switch": {"default": "t2"}}, {"id": "t2", "kind": "exit"}
        ),
        "NO_BRANCHES",
        "nodes[1].switch.cases",
        'The switch node "s" has no cases.',
        "Add at least one case, or wire the default straight to the node before.",
    ),
    (
        journey(split()),
        "NO_BRANCHES",
        "nodes[1].split.branches",
        'The split node "s" has no branches.',
        'Add at least one branch, as {"weight": 1, "next": "…"}.',
    ),
    (
        journey(
            {
                "id": "s",
                "kind": "switch",
                "switch": {"cases": [{"definition": {"root": {}}}] * 51, "default": "e"},
            },
            {"id": "e", "kind": "exit"},
        ),
        "TOO_MANY_CASES",
        "nodes[1].switch.cases",
        'The switch node "s" has 51 cases; at most 50 are allowed.',
        "Split it into two switches.",
    ),
    (
        journey(
            {
                "id": "s",
                "kind": "switch",
                "switch": {
                    "cases": [{"label": "vip", "definition": {"root": {}}}] * 2,
                    "default": "e",
                },
            },
            {"id": "e", "kind": "exit"},
        ),
        "DUPLICATE_LABEL",
        "nodes[1].switch.cases[1].label",
        'The switch node "s" has two cases with the label "vip".',
        "Give each case a label of its own: reports tell the ways apart by it.",
    ),
    (
        journey(split(branches=[{"weight": -1}, {"weight": 2}])),
        "NEGATIVE_WEIGHT",
        "nodes[1].split.branches[0].weight",
        'The split node "s" has a branch of the weight -1; a share cannot be negative.',
        "Write 0 or more; 0 gives the branch nobody.",
    ),
    (
        journey(split(branches=[{"weight": 0}, {"weight": 0.0}])),
        "ZERO_WEIGHTS",
        "nodes[1].split.branches",
        ('The split node "s" has weights that sum to 0, so nobody could be given a branch.'),
        "Give at least one branch a weight above 0.",
    ),
    (
        journey(split(branches=[{"weight": 1e308}, {"weight": 1}])),
        "BAD_NUMBER",
        "nodes[1].split.branches[0].weight",
        ('The split node "s" has a branch of the weight 1e+308; no share needs to be that large.'),
        "Write small numbers such as 1 and 2.",
    ),
    (
        journey(split(branches=[{"weight": 1}], holdout_percent=101)),
        "BAD_HOLDOUT",
        "nodes[1].split.holdout_percent",
        'The split node "s" has the holdout percentage 101; expected 0 to 100.',
        "Write a number from 0 to 100.",
    ),
    (
        journey(trigger={"kind": "event"}),
        "NO_EVENT",
        "nodes[0].trigger.event",
        'The trigger node "t" has no event to listen for.',
        "Name the event.",
    ),
    (
        journey(wait(kind="for_event")),
        "NO_EVENT",
        "nodes[1].wait.event",
        'The wait node "w" has no event to wait for.',
        'Name one event in "event", or several in "on", each with the node it leads to.',
    ),
    (
        journey(wait(kind="for_event", on={}, events=["reply"])),
        "BAD_EVENT",
        "nodes[1].wait.events[0]",
        'The wait node "w" lists the event "reply", which leads nowhere.',
        'Wire "reply" to a node, or take it off the list.',
    ),
    (
        journey(wait(kind="for_event", on={"reply": ""}, events=[])),
        "BAD_EVENT",
        "nodes[1].wait.events",
        'The wait node "w" wires the event "reply", which its list "events" leaves out.',
        'Add "reply" to "events", or remove the list.',
    ),
    (
        journey(wait(kind="for_event", event="reply", on={"reply": ""})),
        "BAD_EVENT",
        "nodes[1].wait.event",
        ('The wait node "w" has both "event" and "on"; they are two ways to say one thing.'),
        'Keep "on" and remove "event".',
    ),
    (
        journey(wait(kind="for_event", on={"timeout": ""})),
        "BAD_EVENT",
        "nodes[1].wait.on.timeout",
        (
            'The wait node "w" waits for an event called "timeout", which is how a wait '
            "ends without one."
        ),
        "Give the event another name.",
    ),
    (
        journey(wait(kind="for_event", event="exit")),
        "BAD_EVENT",
        "nodes[1].wait.event",
        (
            'The wait node "w" waits for an event called "exit", which is how a wait ends'
            " without one."
        ),
        "Give the event another name.",
    ),
    (
        journey(trigger={"kind": "event", "event": "a\nb"}),
        "BAD_EVENT",
        "nodes[0].trigger.event",
        ('The trigger node "t" listens for the event "a\\nb", which holds a control character.'),
        "Remove the character.",
    ),
    (
        journey(trigger={"kind": "event", "event": "x" * 300}),
        "EVENT_TOO_LONG",
        "nodes[0].trigger.event",
        'The trigger node "t" listens for an event of 300 characters; at most 200 fit.',
        "Shorten the name.",
    ),
    (
        journey(trigger={"kind": "event", "event": "journey_enter_requested"}),
        "RESERVED_EVENT",
        "nodes[0].trigger.event",
        (
            'The trigger node "t" listens for "journey_enter_requested", which is '
            "reserved for entries."
        ),
        ("Listen for an event of your own; to enter people by a call, use an api trigger."),
    ),
    (
        journey(trigger={"kind": "attribute_changed"}),
        "NO_TRAIT",
        "nodes[0].trigger.trait",
        'The trigger node "t" names no trait.',
        'Name the trait in "trait".',
    ),
    (
        journey(action(kind="update_trait", value=1)),
        "NO_TRAIT",
        "nodes[1].action.trait",
        'The update_trait node "a" names no trait.',
        'Name the trait in "trait".',
    ),
    (
        journey(action(kind="update_trait", trait="event", value=1)),
        "TRAIT_RESERVED",
        "nodes[1].action.trait",
        (
            'The update_trait node "a" writes the trait "event", a name that texts use for '
            "what happened."
        ),
        "Choose another name for the trait.",
    ),
    (
        journey(action(kind="update_trait", trait="essay", value="é" * 32_768)),
        "VALUE_TOO_LARGE",
        "nodes[1].action.value",
        'The update_trait node "a" writes a value of 65538 bytes; at most 65536 fit.',
        "Keep long texts elsewhere, and write where they lie.",
    ),
    (
        journey(trigger={"kind": "segment_periodic", "definition": {"root": {}}}),
        "NO_HOURS",
        "nodes[0].trigger.hours",
        'The trigger node "t" has no hours, so it never sweeps.',
        'Write for example "hours": [11, 18].',
    ),
    (
        journey(trigger={"kind": "date", "trait": "birthday", "offset_days": -3}),
        "NEGATIVE_OFFSET",
        "nodes[0].trigger.offset_days",
        ('The trigger node "t" starts -3 days before the date; an offset only runs before it.'),
        "Write 0 or more; for a time after the date, use a wait node.",
    ),
    (
        journey(trigger={"kind": "date", "trait": "birthday", "offset_days": 400}),
        "OFFSET_TOO_LARGE",
        "nodes[0].trigger.offset_days",
        ('The trigger node "t" starts 400 days before the date; at most 365 are possible.'),
        "Write a smaller number.",
    ),
    (
        journey(action(kind="webhook")),
        "NO_URL",
        "nodes[1].action.url",
        'The webhook node "a" has no address to call.',
        'Write the address in "url", as "https://example.com/hook".',
    ),
    (
        journey(action(kind="webhook", url="ftp://example.com")),
        "BAD_URL",
        "nodes[1].action.url",
        (
            'The webhook node "a" has the address "ftp://example.com", which is no http '
            "or https address."
        ),
        'Write an address that begins with "https://".',
    ),
    (
        journey(action(kind="webhook", url="https://me:secret@example.com")),
        "BAD_URL",
        "nodes[1].action.url",
        ('The webhook node "a" has the address "https://…@example.com", which holds a user name.'),
        'Send credentials in a header, as "Authorization".',
    ),
    (
        journey(action(kind="webhook", url="https://")),
        "BAD_URL",
        "nodes[1].action.url",
        'The webhook node "a" has the address "https://", which names no host.',
        'Write an address such as "https://example.com/hook".',
    ),
    (
        journey(action(kind="webhook", url="https://example.com:port")),
        "BAD_URL",
        "nodes[1].action.url",
        ('The webhook node "a" has the address "https://example.com:port", which cannot be read.'),
        'Write an address such as "https://example.com/hook".',
    ),
    (
        journey(action(kind="webhook", url="https://example.com/a b")),
        "BAD_URL",
        "nodes[1].action.url",
        (
            'The webhook node "a" has the address "https://example.com/a b", which holds '
            "a space, a backslash or a control character."
        ),
        "Percent-encode it.",
    ),
    (
        journey(action(kind="webhook", url="https://example.com", headers={"X": "a\r\nb"})),
        "BAD_HEADER",
        "nodes[1].action.headers.X",
        'The webhook node "a" has a line break or control character in the header "X".',
        "Write it on one line.",
    ),
    (
        journey(action(kind="webhook", url="https://example.com", headers={"X Y": "a"})),
        "BAD_HEADER",
        "nodes[1].action.headers.X Y",
        ('The webhook node "a" has a header with the name "X Y", which HTTP does not allow.'),
        "Use letters, digits and hyphens.",
    ),
    (
        journey(action(kind="add_to_segment")),
        "NO_SEGMENT",
        "nodes[1].action.segment_id",
        'The add_to_segment node "a" names no segment.',
        'Write the number of the segment in "segment_id".',
    ),
    (
        journey(action(kind="enter_journey")),
        "NO_JOURNEY",
        "nodes[1].action.journey_id",
        'The enter_journey node "a" names no journey to enter.',
        'Write the number of the journey in "journey_id".',
    ),
    (
        journey(action(kind="enter_journey", journey_id=7)),
        "ENTERS_ITSELF",
        "nodes[1].action.journey_id",
        'The enter_journey node "a" enters its own journey, 7.',
        "Name another journey; to repeat this one, lead back to a node before a wait.",
    ),
    (
        journey({"id": "send", "kind": "action", "action": {"kind": "send", "channel": "push"}}),
        "NO_TEMPLATE",
        "nodes[1].action.template_id",
        'The send node "send" has no text to send',
        'Choose a template and write its number in "template_id".',
    ),
    (
        journey(action(kind="send", template_id=3)),
        "NO_CHANNEL",
        "nodes[1].action.channel",
        'The send node "a" has no channel to send by.',
        'Name it in "channel", for example "email".',
    ),
    (
        journey(
            action(
                kind="send",
                channel="push",
                template_id=1,
                channels=[{"channel": "sms", "template_id": 2}],
            )
        ),
        "CONFIG_MISMATCH",
        "nodes[1].action.channel",
        (
            'The send node "a" has "channels", and a "channel" or "template_id" beside them that '
            "is lost."
        ),
        'Move them into "channels", or remove "channels".',
    ),
    (
        journey(split(branches=[{"variant": "holdout"}, {"variant": "A"}])),
        "BAD_VARIANT",
        "nodes[1].split.branches[0].variant",
        (
            'The split node "s" has a branch of the variant "holdout", the word under which '
            "held-out people are counted."
        ),
        "Give the variant another name.",
    ),
    (
        journey(action(kind="send", channels=[{"channel": "sms", "template_id": 1}] * 2)),
        "DUPLICATE_CHANNEL",
        "nodes[1].action.channels[1].channel",
        'The send node "a" names the channel "sms" twice.',
        "Keep one of the two: their messages would share an id.",
    ),
    *(
        (
            journey(action(kind="send", channel=channel, template_id=1)),
            "BAD_CHANNEL",
            "nodes[1].action.channel",
            f'The send node "a" names the channel "{told}", which is no plain name.',
            "Write it in small letters without spaces around, 50 at most.",
        )
        for channel, told in (("SMS", "SMS"), (" sms", " sms"), ("*", "*"))
    ),
    (
        journey(action(kind="send", channel="sms", template_id=1, priority=101)),
        "BAD_PRIORITY",
        "nodes[1].action.priority",
        'The send node "a" has the priority 101; expected 0 to 100.',
        "Write a number from 0 to 100.",
    ),
    (
        journey(action(kind="send", channel="sms", template_id=1), settings={"send_window": NIGHT}),
        "WINDOW_NEVER_OPENS",
        "nodes[1].action.channel",
        (
            'The send node "a" can never send: the send window has no minute between '
            "08:00 and 21:00."
        ),
        "Text messages go out from 08:00 to 21:00 only; widen the send window.",
    ),
]


@pytest.mark.parametrize(("document", "code", "path", "message", "fix"), PROBLEMS)
def test_a_problem_says_what_is_wrong_where_and_what_to_do(
    document: Value, code: str, path: str, message: str, fix: str
) -> None:
    (problem,) = check(document).problems

    assert (problem.code, problem.path) == (code, path)
    assert (problem.message, problem.fix) == (message, fix)


def test_every_code_of_a_node_has_its_words_above() -> None:
    assert {row[1] for row in PROBLEMS} == {
        "BAD_ID",
        "RESERVED_ID",
        "CONFIG_MISMATCH",
        "BAD_DURATION",
        "BAD_HOUR",
        "NO_FALLBACK_HOUR",
        "BAD_SEGMENT",
        "NO_DEFAULT",
        "NO_BRANCHES",
        "TOO_MANY_CASES",
        "DUPLICATE_LABEL",
        "NEGATIVE_WEIGHT",
        "ZERO_WEIGHTS",
        "BAD_NUMBER",
        "BAD_HOLDOUT",
        "NO_EVENT",
        "BAD_EVENT",
        "EVENT_TOO_LONG",
        "RESERVED_EVENT",
        "NO_TRAIT",
        "TRAIT_RESERVED",
        "VALUE_TOO_LARGE",
        "NO_HOURS",
        "NEGATIVE_OFFSET",
        "OFFSET_TOO_LARGE",
        "NO_URL",
        "BAD_URL",
        "BAD_HEADER",
        "NO_SEGMENT",
        "NO_JOURNEY",
        "ENTERS_ITSELF",
        "NO_TEMPLATE",
        "NO_CHANNEL",
        "BAD_CHANNEL",
        "DUPLICATE_CHANNEL",
        "BAD_VARIANT",
        "BAD_PRIORITY",
        "WINDOW_NEVER_OPENS",
    }


def test_empty_texts_are_each_a_problem() -> None:
    document = journey(
        action(kind="webhook", url=""),
        {"id": "", "kind": "exit"},
        action(kind="update_trait", trait="") | {"id": "u"},
        trigger={"kind": "event", "event": ""},
    )

    assert codes(document) == ["NO_EVENT", "NO_URL", "BAD_ID", "NO_TRAIT"]


def test_amounts_that_are_none_are_problems(cases: Mapping[str, Any]) -> None:
    amounts = cases["timer-zero-and-negative"]["given"]["amounts"]
    amounts += cases["json-huge-amount"]["given"]["amounts"]

    for amount in amounts:
        config = wait(kind="duration", amount=amount, unit="day")
        text = wait(kind="for_event", event="reply", timeout=amount)
        assert codes(journey(config)) == ["BAD_DURATION"], amount
        assert codes(journey(text)) == ["BAD_DURATION"], amount


def test_every_wait_of_the_cases_is_accepted(cases: Mapping[str, Any]) -> None:
    durations = {case["when"]["duration"] for case in cases.values() if case["area"] == "wait"}

    assert durations
    for duration in durations:
        assert codes(journey(wait(kind="for_event", event="reply", timeout=duration))) == []


def test_a_text_message_may_use_any_minute_of_the_day_that_both_windows_share() -> None:
    text = action(kind="send", channel="sms", template_id=1)
    edge = {"days": ["mon"], "from": "20:59", "to": "21:30"}

    assert codes(journey(text, settings={"send_window": edge})) == []
    late = edge | {"from": "21:00"}
    assert codes(journey(text, settings={"send_window": late})) == ["WINDOW_NEVER_OPENS"]
    sender = late | {"tz": "sender"}
    assert codes(journey(text, settings={"send_window": sender})) == []


def test_an_unsaved_journey_enters_no_one_elses_zero() -> None:
    jump = action(kind="enter_journey", journey_id=7)

    assert codes(journey(jump) | {"journey_id": 0}) == []
