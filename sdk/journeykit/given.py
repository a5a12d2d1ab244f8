"""What callers hand in: people, moments, tables of rows, each in any of its usual forms."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from math import isnan
from pathlib import Path
from typing import Any, TypeGuard

from whenever import Instant, TimeDelta

from journeykit import history
from journeykit.mistake import JourneyError, plain
from journeykit_engine import timing
from journeykit_engine.allot import person_key
from journeykit_engine.comparison import shown
from journeykit_engine.instance import Happened, Person
from journeykit_engine.phone import phone_zone
from journeykit_engine.profile import zone_trait
from journeykit_engine.replay import Known, Line

OTHER_NAMES = {"user_id": "userId", "message_id": "messageId"}  # as frames say and lines say it


def person_of(given: Person | Mapping[str, Any] | str) -> Person:
    """A person of `{"user_id", "traits"?, "timezone"?, "events"?, "segments"?}`, or of a bare id.

    `events` is a list of `{"event", "properties"?, "timestamp"}`; `segments` a list of numbers. The
    traits `timezone` and `phone` say the zone where nothing else does, as in a replay.
    """
    if isinstance(given, Person):
        return given
    if not isinstance(given, Mapping):
        given = {"user_id": person_key(plain(given))}
    row = _named(given)
    found = history.person_of(row)
    events: dict[str, list[Happened]] = {}
    for line in _events_of(found.user_id, row.get("events", ())):
        events.setdefault(line.event, []).append(Happened(line.at, line.properties, line.id))
    zone = found.timezone or zone_trait(found.traits)
    phone = phone_zone(found.traits)
    return Person(
        found.user_id, found.traits, zone, events, _segments_of(row), phone_timezone=phone
    )


def _events_of(user_id: str, given: object) -> list[Line]:
    if not _is_list(given) or not all(isinstance(one, Mapping) for one in given):
        message = f'"events" of the person must be a list of objects, not {shown(given)}.'
        fix = 'Write [{"event": "purchase", "timestamp": "2026-06-01T10:00:00Z"}].'
        raise JourneyError("WRONG_TYPE", message, fix)
    rows = [{**_named(one), "type": "track", "userId": user_id} for one in given]
    return history.lines_of(rows, "the person's event")


def _segments_of(row: Mapping[str, Any]) -> frozenset[int]:
    given = row.get("segments", ())
    numbers = [plain(one) for one in given] if _is_list(given) else [given]
    if not _is_list(given) or not all(type(number) is int for number in numbers):
        message = f'"segments" of the person must be a list of whole numbers, not {shown(given)}.'
        raise JourneyError("WRONG_TYPE", message, "Write [4, 7].")
    return frozenset(numbers)


def _is_list(given: object) -> TypeGuard[Collection[Any]]:
    return isinstance(given, Collection) and not isinstance(given, str | bytes | Mapping)


def span_of(
    since: object, until: object, *, dashes: str = ""
) -> tuple[Instant | None, Instant | None]:
    """Both ends of a replay, None where they are the data's; `dashes` stand before their names."""
    begins = None if since is None else moment_of(f"{dashes}since", since)
    ends = None if until is None else moment_of(f"{dashes}until", until)
    if begins is not None and ends is not None and ends < begins:
        message = f'"{dashes}until" is {ends}, before "{dashes}since", {begins}.'
        raise JourneyError("BAD_SPAN", message, "Give a later end, or leave one of them out.")
    return begins, ends


def moment_of(name: str, given: object) -> Instant:
    """An instant of an aware datetime, an ISO text with an offset, or an Instant."""
    if isinstance(given, Instant):
        return given
    stdlib = getattr(given, "isoformat", None)
    text = stdlib() if stdlib is not None else given
    try:
        return timing.read_instant(text)
    except timing.BadInstant as bad:
        is_naive = str(bad).startswith("NAIVE_DATETIME")
    if is_naive:
        message = f'"{name}" is {shown(text)}, which does not say in which zone.'
        raise JourneyError("NAIVE_DATETIME", message, f'Attach a timezone, as "{text}Z" for UTC.')
    message = f'"{name}" is {shown(text)}, which is no instant.'
    raise JourneyError("BAD_INSTANT", message, 'Write it like "2026-06-01T10:00:00Z".')


def interval_of(text: str, name: str = "scan_every") -> TimeDelta:
    """The time between two looks at a segment: a duration in minutes or hours."""
    try:
        duration = timing.parse_duration(text)
    except timing.BadDuration:
        duration = None
    if duration is None or duration.unit not in ("minute", "hour"):
        message = f'"{name}" is {shown(text)}, which is no time between two looks.'
        raise JourneyError("BAD_DURATION", message, 'Write minutes or hours: "30m", "1h", "24h".')
    minutes = duration.amount * (60 if duration.unit == "hour" else 1)
    return TimeDelta(minutes=minutes)


def lines_from(events: Any) -> list[Line]:
    if isinstance(events, str | Path):
        return history.read_lines(events)
    rows = list(_rows(events))
    if rows and all(isinstance(row, Line) for row in rows):
        return history.in_time_order(rows)
    return history.lines_of(_tracked(row) for row in rows)


def people_from(people: Any) -> list[Known]:
    if isinstance(people, str | Path):
        return history.read_people(people)
    return history.people_of(_named(row) for row in _rows(people))


def _rows(table: Any) -> Iterable[Any]:
    """The rows of a list, or of a pandas or Polars frame."""
    if hasattr(table, "to_dicts"):
        return list(table.to_dicts())
    if hasattr(table, "to_dict") and hasattr(table, "columns"):
        return list(table.to_dict("records"))
    if isinstance(table, Mapping):
        message = "Expected rows, not a single object."
        raise JourneyError("WRONG_TYPE", message, "Give a list of rows or a frame.")
    if not isinstance(table, Iterable):
        message = f"Expected rows, not {shown(table)}."
        raise JourneyError("WRONG_TYPE", message, "Give a list of rows, a frame or a file's path.")
    return list(table)


def _tracked(row: Any) -> Any:
    named = _named(row)
    return {"type": "track", **named} if isinstance(named, dict) else row


def _named(row: Any) -> Any:
    """A row with the names of the lines, without the cells that a frame has but does not fill; what
    is no row is let be, for the reader to tell."""
    if not isinstance(row, Mapping):
        return row
    named = {OTHER_NAMES.get(name, name): _cell(value) for name, value in row.items()}
    return {name: value for name, value in named.items() if value is not None}


def _cell(value: Any) -> Any:
    """A cell's value as plain Python, None where the frame says that it has none."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return {
            name: _dated(cell)
            for name, inner in value.items()
            if (cell := _cell(inner)) is not None or inner is None
        }
    found = plain(value)
    is_nan = isinstance(found, float) and isnan(found)
    return None if is_nan or type(found).__name__ in ("NaTType", "NAType") else found


def _dated(value: Any) -> Any:
    """A date or a datetime as the text that rules read."""
    return value.isoformat() if hasattr(value, "isoformat") else value
