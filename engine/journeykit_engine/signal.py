"""What an event counts as: the names under which a wait or an `exit_on` may hear it.

A report from outside is one event, yet it may answer to several names: an inbound e-mail is a
`reply` and a `reply:email`. Where a wait lists several of them, `call_connected` goes before
`reply`, `reply` before `reply:<channel>`, and any other two go in the order of the document.

A task that was completed answers to `task_completed` everywhere, and to `task_completed:<node>` in
the pass that asked for it. A text message that says nothing but STOP is an opt-out.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from whenever import Instant

from journeykit_engine.instance import NOTHING

OPT_OUT = "opt_out"  # the person asks to be left alone: ends every pass, whatever it waits for
TASK_COMPLETED = "task_completed"
OWN_TASK = "task_completed:"  # and the id of the task's node
DEFAULT_CONNECTED = ("connected",)
INBOUND = {"inbound_email": "email", "inbound_sms": "sms", "inbound_linkedin": "linkedin"}
STOP_WORDS = frozenset(
    (
        *("stop", "stopall", "stop all", "unsubscribe", "cancel", "end", "quit", "revoke"),
        *("optout", "opt out", "opt-out", "stopp", "arret", "arrêt", "baja", "لغو"),
    )
)
"""What a whole text message says that wants no more: the words that carriers prescribe, and those
usual in German, French, Spanish and Persian."""
START_WORDS = frozenset(("start", "unstop"))
YES_WORDS = frozenset(("yes",))  # takes a STOP back, but is no consent by itself: to what, then?


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


Hearer = tuple[int, int]
"""The pass that hears an event: the ids of its journey and of its entry."""
ANYBODY: Hearer = (0, 0)


def names(
    event: Event, connected: Mapping[str, tuple[str, ...]] = NOTHING, hearer: Hearer = ANYBODY
) -> tuple[str, ...]:
    """Every name this event answers to, for the pass that hears it.

    `connected` gives the outcomes that count as a connected call by the id of the task's node,
    for a completion that does not say itself whether it was one.

    >>> names(Event("inbound_email", Instant("2026-06-01T10:00:00Z")))
    ('reply', 'reply:email', 'inbound_email')
    """
    name = event.name
    if name == "reply" or name.startswith("reply:"):
        channel = name[6:] or event.properties.get("channel")
        return ("reply", f"reply:{channel}") if isinstance(channel, str) else ("reply",)
    if name in INBOUND:
        return _names_of_inbound(event)
    if name == "call_connected":
        return ("call_connected", "reply")
    if name == TASK_COMPLETED:
        own = _own_task(event.properties, hearer)
        return (*_names_of_task(event.properties, connected), *own, name)
    return (name,)


def _names_of_inbound(event: Event) -> tuple[str, ...]:
    """An e-mail that answers nothing that was sent (`in_thread` is false) is no reply."""
    if event.properties.get("in_thread") is False:
        return (event.name,)
    heard = ("reply", f"reply:{INBOUND[event.name]}", event.name)
    return (OPT_OUT, *heard) if is_opt_out(event) else heard


def is_opt_out(event: Event) -> bool:
    """Whether the person asks to be left alone: the event of that name, a text message that says
    so, or something inbound of which whoever took it in says so (`opt_out` is true)."""
    name = event.name
    if name not in INBOUND:
        return name == OPT_OUT
    if event.properties.get("opt_out") is True:
        return True
    return name == "inbound_sms" and said(event.properties) == "stop"


def said(properties: Mapping[str, Any]) -> Literal["stop", "start", "yes", ""]:
    """What a text message says about further ones, if it says nothing else: its `text` (or `body`)
    is one of the words, in whatever case, with whatever spaces and punctuation around it.

    >>> said({"text": " Stop!! "}), said({"text": "stop by the office"})
    ('stop', '')
    """
    text = properties.get("text")
    if not isinstance(text, str):
        text = properties.get("body")
    if not isinstance(text, str) or len(text.strip()) > LONGEST_WORD_MESSAGE:
        return ""
    words = plain_words(text)
    if words in STOP_WORDS:
        return "stop"
    return "start" if words in START_WORDS else "yes" if words in YES_WORDS else ""


LONGEST_WORD_MESSAGE = 80  # characters; a longer one has more to say than a word


def plain_words(text: str) -> str:
    """A text in small letters with single spaces, without the marks around it.

    >>> plain_words('"Opt  OUT".')
    'opt out'
    """
    known = unicodedata.normalize("NFKC", text)
    shown = "".join(mark for mark in known if unicodedata.category(mark) != "Cf")
    first, last = 0, len(shown)
    while first < last and not shown[first].isalnum():
        first += 1
    while last > first and not shown[last - 1].isalnum():
        last -= 1
    return " ".join(shown[first:last].casefold().split())


def first(listed: Sequence[str], names: Sequence[str]) -> str | None:
    """The name of `listed` (in the order of the document) that wins, None where none is heard.

    >>> first(["reply:email", "reply"], ["reply", "reply:email", "inbound_email"])
    'reply'
    """
    any_task = OWN_TASK in names
    heard = [name for name in listed if name in names or (any_task and name.startswith(OWN_TASK))]
    if "call_connected" in heard:
        heard = [name for name in heard if name.partition(":")[0] != "reply"]
    elif "reply" in heard:
        heard = [name for name in heard if not name.startswith("reply:")]
    return heard[0] if heard else None


def _names_of_task(
    properties: Mapping[str, Any], connected: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    outcome, task = properties.get("outcome"), properties.get("task")
    if task == "linkedin_message" and outcome == "replied":
        return ("reply", "reply:linkedin")
    if task == "linkedin_connect" and outcome == "accepted":
        return ("connection_accepted",)
    spoke = properties.get("connected")
    if not isinstance(spoke, bool):
        node_id = properties.get("node_id")
        listed = connected.get(node_id) if isinstance(node_id, str) else None
        spoke = is_connected(task, outcome, listed or ())
    return ("call_connected", "reply") if spoke else ()


def is_connected(task: object, outcome: object, connected_outcomes: Sequence[str]) -> bool:
    """Whether a task with this outcome was a connected call; a call that lists no outcomes for it
    was, where the outcome is "connected"."""
    if not connected_outcomes and task in ("call", None):
        connected_outcomes = DEFAULT_CONNECTED
    return outcome in connected_outcomes


def _own_task(properties: Mapping[str, Any], hearer: Hearer) -> tuple[str, ...]:
    """The name under which only the pass that asked for the task hears of it. Who reports one by
    hand may leave out whose it was; then every pass may take it for its own."""
    journey_id, entry_count = hearer
    of_journey = properties.get("journey_id", journey_id)
    of_entry = properties.get("entry_count", entry_count)
    if hearer == ANYBODY or (of_journey, of_entry) != hearer:
        return ()
    node_id = properties.get("node_id")
    return (OWN_TASK + (node_id if isinstance(node_id, str) else ""),)


def is_report(name: str) -> bool:
    """Whether an event of this name answers to more names than its own."""
    return (
        name in INBOUND
        or name.startswith("reply")
        or name == "call_connected"
        or name.partition(":")[0] == TASK_COMPLETED
    )
