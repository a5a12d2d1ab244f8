"""What an event counts as, and which of several listed names wins."""

from __future__ import annotations

from typing import Any

import pytest

from journeykit_engine import signal
from journeykit_engine.signal import Event
from tests.engine.walking import START

LINKEDIN_REPLY = {"task": "linkedin_message", "outcome": "replied"}

STOPS = (
    *("STOP", "stop", "Stopall", "UNSUBSCRIBE", "cancel", "End", "quit", "Revoke", "OPTOUT"),
    *(
        " Stop. ",
        "STOP!!!",
        '"stop"',
        "Stop  all",
        "opt-out",
        "opt\nout",
        "\u200fلغو\u200f",
        "لغو.",
    ),
    *("STOPP", "Arrêt", "arre\u0302t", "Baja", "\uff33\uff34\uff2f\uff30", "stop \U0001f621"),
)


def names(name: str, properties: dict[str, Any]) -> tuple[str, ...]:
    """The names of an event; the outcome "spoke" of the task "ring" is a connected call."""
    return signal.names(Event(name, START, "s1", properties), {"ring": ("spoke",)})


@pytest.mark.parametrize(
    ("name", "properties", "expected"),
    [
        ("paid", {}, ("paid",)),
        ("reply_sent", {}, ("reply_sent",)),
        ("reply", {}, ("reply",)),
        ("reply", {"channel": "sms"}, ("reply", "reply:sms")),
        ("reply", {"channel": 5}, ("reply",)),
        ("reply:email", {}, ("reply", "reply:email")),
        ("reply:email", {"channel": "sms"}, ("reply", "reply:email")),
        ("inbound_email", {}, ("reply", "reply:email", "inbound_email")),
        ("inbound_sms", {}, ("reply", "reply:sms", "inbound_sms")),
        ("inbound_linkedin", {}, ("reply", "reply:linkedin", "inbound_linkedin")),
        ("call_connected", {}, ("call_connected", "reply")),
        ("meeting_booked", {}, ("meeting_booked",)),
        ("opt_out", {}, ("opt_out",)),
    ],
)
def test_a_report_answers_to_more_than_its_name(
    name: str, properties: dict[str, Any], expected: tuple[str, ...]
) -> None:
    assert names(name, properties) == expected
    assert signal.is_report(name) or expected == (name,)


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, ()),
        ({"outcome": "connected"}, ("call_connected", "reply")),
        ({"outcome": "connected", "task": "call"}, ("call_connected", "reply")),
        ({"outcome": "connected", "task": "custom"}, ()),
        ({"outcome": "voicemail", "task": "call"}, ()),
        (LINKEDIN_REPLY, ("reply", "reply:linkedin")),
        ({"task": "linkedin_message", "outcome": "sent"}, ()),
        ({"task": "linkedin_connect", "outcome": "accepted"}, ("connection_accepted",)),
        ({"task": "linkedin_connect", "outcome": "connected"}, ()),
        ({"outcome": "spoke", "node_id": "ring"}, ("call_connected", "reply")),
        ({"outcome": "spoke", "node_id": "ring", "task": "custom"}, ("call_connected", "reply")),
        ({"outcome": "connected", "node_id": "ring"}, ()),  # its own outcomes, not the usual ones
        ({"outcome": "spoke", "node_id": "another"}, ()),
        ({"outcome": ["spoke"], "node_id": ["ring"]}, ()),
    ],
)
def test_a_completed_task_counts_by_its_outcome(
    properties: dict[str, Any], expected: tuple[str, ...]
) -> None:
    assert names("task_completed", properties) == (*expected, "task_completed")


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"node_id": "ring", "journey_id": 7, "entry_count": 2}, ("task_completed:ring",)),
        ({"node_id": "ring"}, ("task_completed:ring",)),  # reported by hand
        ({}, ("task_completed:",)),
        ({"node_id": "ring", "journey_id": 8, "entry_count": 2}, ()),
        ({"node_id": "ring", "journey_id": 7, "entry_count": 1}, ()),
    ],
)
def test_only_the_pass_that_gave_a_task_hears_of_it_as_its_own(
    properties: dict[str, Any], expected: tuple[str, ...]
) -> None:
    event = Event("task_completed", START, "s1", properties)

    assert signal.names(event, {}, (7, 2)) == (*expected, "task_completed")
    assert signal.names(event) == ("task_completed",)
    assert signal.is_report("task_completed:ring")


def test_a_task_that_names_no_node_is_taken_for_whichever_is_waited_for() -> None:
    heard = signal.names(Event("task_completed", START), {}, (7, 2))

    assert signal.first(["task_completed:ring", "task_completed"], heard) == "task_completed:ring"
    assert signal.first(["reply"], heard) is None


@pytest.mark.parametrize("said", STOPS)
def test_a_text_message_that_is_only_a_stop_word_is_an_opt_out(said: str) -> None:
    assert names("inbound_sms", {"text": said})[0] == "opt_out"
    assert names("inbound_sms", {"body": said})[0] == "opt_out"
    assert "opt_out" not in names("inbound_email", {"text": said})


@pytest.mark.parametrize(
    "said",
    [
        *("don't stop", "stop by the office", "cancel my order", "the end", "stopwatch", "", "?!"),
        *("stop " * 20, "ends", "st op", None, 5, ["stop"]),
    ],
)
def test_a_text_message_that_says_more_is_a_reply(said: object) -> None:
    expected = ("reply", "reply:sms", "inbound_sms")
    assert names("inbound_sms", {"text": said}) == expected


def test_whoever_takes_a_message_in_may_know_that_it_is_an_opt_out() -> None:
    assert names("inbound_sms", {"text": "basta", "opt_out": True})[0] == "opt_out"
    assert names("inbound_email", {"opt_out": True})[0] == "opt_out"
    assert names("inbound_email", {"opt_out": "yes"})[0] == "reply"
    assert names("paid", {"opt_out": True}) == ("paid",)


def test_a_mail_outside_a_thread_of_ours_is_no_reply() -> None:
    assert names("inbound_email", {"in_thread": False}) == ("inbound_email",)
    assert names("inbound_email", {"in_thread": True})[0] == "reply"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        *(("START", "start"), ("unstop.", "start"), (" Yes! ", "yes"), ("STOP", "stop")),
        *(("yes please", ""), ("restart", ""), ("STOP" + " " * 100, "stop")),
    ],
)
def test_a_word_takes_a_stop_back(text: str, says: str) -> None:
    assert signal.said({"text": text}) == says


@pytest.mark.parametrize(
    ("listed", "heard", "wins"),
    [
        (["reply:email", "reply"], names("inbound_email", {}), "reply"),
        (["inbound_email", "reply:email"], names("inbound_email", {}), "inbound_email"),
        (["reply:email", "inbound_email"], names("inbound_email", {}), "reply:email"),
        (["reply", "call_connected"], names("call_connected", {}), "call_connected"),
        (["task_completed", "reply"], names("task_completed", LINKEDIN_REPLY), "task_completed"),
        (["reply:sms", "paid"], names("inbound_email", {}), None),
        ([], names("paid", {}), None),
    ],
)
def test_of_several_listed_names_the_first_in_the_order_wins(
    listed: list[str], heard: tuple[str, ...], wins: str | None
) -> None:
    assert signal.first(listed, heard) == wins
