"""What an event counts as: the names under which a wait or an `exit_on` may hear it.

A report from outside is one event, yet it may answer to several names: an inbound e-mail is a
`reply` and a `reply:email`. Where a wait lists several of them, `call_connected` goes before
`reply`, `reply` before `reply:<channel>`, and any other two go in the order of the document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from whenever import Instant

from journeykit_engine.instance import NOTHING

OPT_OUT = "opt_out"  # the person asks to be left alone: ends every pass, whatever it waits for
TASK_COMPLETED = "task_completed"
DEFAULT_CONNECTED = ("connected",)
INBOUND = {"inbound_email": "email", "inbound_sms": "sms", "inbound_linkedin": "linkedin"}


class Event(NamedTuple):
    """Something that arrived about one person.

    `at` is the instant of arrival, which decides all timing; `id` is the message id. `changed`
    holds the traits that an identify really wrote (None for any other event).
    """

    name: str
    at: Instant
    id: str = ""
    properties: Mapping[str, Any] = NOTHING
    changed: Mapping[str, Any] | None = None


def names(event: Event, connected: Mapping[str, tuple[str, ...]] = NOTHING) -> tuple[str, ...]:
    """Every name this event answers to.

    `connected` gives the outcomes that count as a connected call by the id of the task's node.

    >>> names(Event("inbound_email", Instant("2026-06-01T10:00:00Z")))
    ('reply', 'reply:email', 'inbound_email')
    """
    name = event.name
    if name == "reply" or name.startswith("reply:"):
        channel = name[6:] or event.properties.get("channel")
        return ("reply", f"reply:{channel}") if isinstance(channel, str) else ("reply",)
    if name in INBOUND:
        return ("reply", f"reply:{INBOUND[name]}", name)
    if name == "call_connected":
        return ("call_connected", "reply")
    if name == TASK_COMPLETED:
        return (*_names_of_task(event.properties, connected), name)
    return (name,)


def first(listed: Sequence[str], names: Sequence[str]) -> str | None:
    """The name of `listed` (in the order of the document) that wins, None where none is heard.

    >>> first(["reply:email", "reply"], ["reply", "reply:email", "inbound_email"])
    'reply'
    """
    heard = [name for name in listed if name in names]
    if "call_connected" in heard:
        heard = [name for name in heard if name.partition(":")[0] != "reply"]
    elif "reply" in heard:
        heard = [name for name in heard if not name.startswith("reply:")]
    return heard[0] if heard else None


def _names_of_task(
    properties: Mapping[str, Any], connected: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    outcome, task = properties.get("outcome"), properties.get("task")
    node_id = properties.get("node_id")
    listed = connected.get(node_id) if isinstance(node_id, str) else None
    if task == "linkedin_message" and outcome == "replied":
        return ("reply", "reply:linkedin")
    if task == "linkedin_connect" and outcome == "accepted":
        return ("connection_accepted",)
    if listed is None and task in ("call", None):
        listed = DEFAULT_CONNECTED
    return ("call_connected", "reply") if outcome in (listed or ()) else ()


def is_report(name: str) -> bool:
    """Whether an event of this name answers to more names than its own."""
    return name in (TASK_COMPLETED, "call_connected") or name in INBOUND or name.startswith("reply")
