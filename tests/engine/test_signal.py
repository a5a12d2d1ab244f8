"""What an event counts as, and which of several listed names wins."""

from __future__ import annotations

from typing import Any

import pytest

from journeykit_engine import signal
from journeykit_engine.signal import Event
from tests.engine.walking import START

LINKEDIN_REPLY = {"task": "linkedin_message", "outcome": "replied"}


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
