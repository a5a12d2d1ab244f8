"""What comes in: one event as it is handed over, what is wrong with it, and its row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from math import isfinite
from typing import Any, Literal, NamedTuple

import orjson
from whenever import Instant

from journeykit_engine import graph, rule
from journeykit_engine.comparison import LARGEST_INTEGER, shown
from journeykit_engine.instance import NOTHING
from journeykit_engine.signal import Event
from journeykit_engine.strict_json import json_faults
from journeykit_server.clock import microseconds

MOST_ID_CHARACTERS = 200  # two of them fit into a key of PostgreSQL, 2,700 bytes at most


class Incoming(NamedTuple):
    """One thing that happened, as it comes in.

    A track has a `name` and `properties`; of an identify these are the traits. `id` is the message
    id: a second one of the same tenant, `source` and id is dropped; without one the event can
    never be taken for a repetition. `occurred_at` is the sender's own time: it decides only which
    of two values of a trait is the younger one.
    """

    kind: Literal["track", "identify", "enter"]
    user_id: str
    name: str = ""
    properties: Mapping[str, Any] = NOTHING
    id: str = ""
    source: str = "api"
    occurred_at: Instant | None = None


class Receipt(NamedTuple):
    """What became of a batch: stored and handled, seen before, or (by id) refused because another
    event has the same id. Of those stored, `unmatched` had no journey that listens for them."""

    accepted: int = 0
    duplicates: int = 0
    conflicts: tuple[str, ...] = ()
    unmatched: int = 0

    def and_also(self, more: Receipt) -> Receipt:
        """Of both batches."""
        accepted, duplicates = self.accepted + more.accepted, self.duplicates + more.duplicates
        unmatched = self.unmatched + more.unmatched
        return Receipt(accepted, duplicates, self.conflicts + more.conflicts, unmatched)


class BadEvent(ValueError):
    """An event that cannot be stored; nothing of its batch was."""


def event_fault(event: Incoming) -> str:
    """What makes an event impossible to store; "" where nothing does."""
    if _is_plain(event):
        return ""
    if fault := _type_fault(event):
        return fault
    if not event.user_id.strip():
        return 'it has no user id. Give "user_id" a text that is not blank.'
    for what, text in _named(event):
        if len(text) > MOST_ID_CHARACTERS:
            return f"its {what} has {len(text)} characters, more than {MOST_ID_CHARACTERS}."
    if event.kind == "track" and not event.name:
        return "it has no name. Say what happened."
    if event.kind == "track" and event.name == graph.RESERVED_EVENT:
        return f'"{graph.RESERVED_EVENT}" is reserved. Use the enter call to take people in.'
    if faults := json_faults({**dict(_named(event)), "properties": dict(event.properties)}):
        return str(faults[0])
    return ""


def _type_fault(event: Incoming) -> str:
    for what, text in _named(event):
        if not isinstance(text, str):
            return f"its {what} must be text, not {shown(text)}."
    if not isinstance(event.properties, Mapping):
        return f"its properties must be an object, not {shown(event.properties)}."
    if event.kind not in ("track", "identify", "enter"):
        return f"its kind {shown(event.kind)} is not known. Write track or identify."
    return ""


def _is_plain(event: Incoming) -> bool:
    """Whether it is one of the many without anything to look into: short names, and flat properties
    of plain values. It says the same as all that follows it, in a fifth of the time."""
    kind, user_id, name, properties, event_id, source, _ = event
    for text in (user_id, name, event_id, source):
        if type(text) is not str or len(text) > MOST_ID_CHARACTERS or not _is_plain_text(text):
            return False
    if not user_id.strip() or (kind != "identify" and not (kind == "track" and name)):
        return False
    if name == graph.RESERVED_EVENT or not (type(properties) is dict or properties is NOTHING):
        return False
    for key, value in properties.items():
        if type(key) is not str or not _is_plain_text(key) or not _is_plain_value(value):
            return False
    return True


def _is_plain_text(text: str) -> bool:
    return text.isascii() and "\0" not in text


def _is_plain_value(value: object) -> bool:
    kind = type(value)
    if kind is str:
        return _is_plain_text(value)  # type: ignore[arg-type]
    if kind is int:
        return -LARGEST_INTEGER <= value < LARGEST_INTEGER  # type: ignore[operator]
    return value is None or kind is bool or (kind is float and isfinite(value))  # type: ignore[arg-type]


def _named(event: Incoming) -> list[tuple[str, str]]:
    """Its texts that stand in keys; the id of an entry is made here, of parts that are short."""
    own = [] if event.kind == "enter" else [("id", event.id)]
    return [("user id", event.user_id), ("name", event.name), *own, ("source", event.source)]


def event_of(incoming: Incoming, at: Instant) -> Event:
    """The event that arrived at `at`; of an identify, before the profile is read, all its traits
    count as changed."""
    is_identify = incoming.kind == "identify"
    changed = incoming.properties if is_identify else None
    name = "" if is_identify else incoming.name
    return Event(name, at, incoming.id, incoming.properties, changed)


def entering(journey_id: int, user_id: str, event_id: str, source: str) -> Incoming:
    properties = {"journey_id": journey_id}
    return Incoming("enter", user_id, graph.RESERVED_EVENT, properties, event_id, source)


def named_after(*parts: str) -> str:
    """The id of an event that exists because of something else, made of its names: the same again
    whenever it is made again. Names that are too long for an id give their hash."""
    name = "-".join(parts)
    if len(name) <= MOST_ID_CHARACTERS:
        return name
    return f"{parts[0][: MOST_ID_CHARACTERS - 65]}-{sha256(name.encode()).hexdigest()}"


def event_row(tenant_id: int, number: int, event: Incoming, at: int) -> tuple[Any, ...]:
    """Its row in `events`; `at` is when it arrived, in microseconds."""
    name = "" if event.kind == "identify" else event.name
    occurred_at = at if event.occurred_at is None else microseconds(event.occurred_at)
    given = event.properties
    properties = orjson.dumps(given if type(given) is dict else dict(given)).decode()
    head = (tenant_id, event.user_id, name, number, event.source, event.id)
    return (*head, event.kind, at, occurred_at, properties)


def is_same(event: Incoming, stored: Sequence[Any]) -> bool:
    """Whether what comes again is what was stored under its id."""
    _, user_id, name, kind, properties = stored
    same_name = event.kind == "identify" or event.name == name
    return (
        (user_id, kind) == (event.user_id, event.kind)
        and same_name
        and rule.equal(orjson.loads(properties), event.properties)
    )
