"""What happened, read from JSON lines or from rows: the input of a replay.

Lines have the shapes that the tracking clients of the field send:
`{"type": "track", "messageId", "userId", "event", "properties", "timestamp"}`,
`{"type": "identify", "userId", "traits", "timestamp"}`, and, with `userId` and `timestamp` alone,
the types "enter", "pause", "resume" and "eject"; people are `{"userId", "traits", "timezone"?}`.
Further fields are let be. A fault names the file, the line and the field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, get_args

import orjson
from whenever import Instant

from journeykit_engine import strict_json, template, timing
from journeykit_engine.allot import person_key
from journeykit_engine.comparison import shown
from journeykit_engine.graph import RESERVED_EVENT
from journeykit_engine.instance import NOTHING, Person
from journeykit_engine.nodes import new
from journeykit_engine.replay import Known, Line, LineType, Render, Unsent
from journeykit_engine.trail import Message

Row = TypeVar("Row")
Given = TypeVar("Given")
LINE_TYPES: tuple[str, ...] = get_args(LineType)
LIMIT = 2**63  # a number from here on may be an integer beyond 64 bits: the strict reader decides
MAX_LINE_BYTES = 1024 * 1024  # of one event, as everywhere; a longer one is a broken file
MAX_TEXTS_BYTES = 16 * 1024 * 1024  # of all templates of a journey; e-mails are long


class BadHistory(ValueError):
    """A line that cannot be used: `place` is like "events.jsonl line 7"."""

    def __init__(self, place: str, message: str, fix: str) -> None:
        self.place = place
        self.message = message
        self.fix = fix
        super().__init__(f"{place}: {message} {fix}".strip())


class _Fault(Exception):
    """What is wrong with a row, before it is known which row it is."""

    def __init__(self, message: str, fix: str = "") -> None:
        self.message = message
        self.fix = fix


def read_lines(path: str | Path) -> list[Line]:
    """The history in a file of JSON lines, in time order; equal times keep the file's order."""
    with Path(path).open("rb") as file:
        return lines_in(file, Path(path).name)


def read_people(path: str | Path) -> list[Known]:
    """The people of a file of JSON lines; two lines of one person are a fault."""
    with Path(path).open("rb") as file:
        return people_in(file, Path(path).name)


def lines_in(file: BinaryIO, name: str) -> list[Line]:
    """`read_lines` of an open file; `name` is what a fault calls it."""
    return in_time_order(_read(file, name, _Moments().line))


def people_in(file: BinaryIO, name: str) -> list[Known]:
    """`read_people` of an open file; `name` is what a fault calls it."""
    return _read(file, name, _Once().person)


def lines_of(rows: Iterable[Mapping[str, Any]], place: str = "row") -> list[Line]:
    """The history in rows (dicts as the lines have them), in time order."""
    return in_time_order(_taken(enumerate(rows, 1), place, _as_row(_Moments().line)))


def people_of(rows: Iterable[Mapping[str, Any]]) -> list[Known]:
    """The people in rows (dicts as the lines have them); two rows of one person are a fault."""
    return _taken(enumerate(rows, 1), "row", _as_row(_Once().person))


def person_of(row: Mapping[str, Any]) -> Known:
    """One person of one row."""
    return _taken([("", row)], "the person", _known)[0]


def in_time_order(lines: list[Line]) -> list[Line]:
    """Sorted by time where they are not; equal times keep their order."""
    in_order = all(one.at <= two.at for one, two in pairwise(lines))
    return lines if in_order else sorted(lines, key=lambda line: line.at)


def _read(file: BinaryIO, name: str, take: Callable[[Mapping[str, Any]], Row]) -> list[Row]:
    rows = []
    number = 0
    try:
        for number, text in enumerate(file, 1):  # noqa: B007 - read where a fault is told
            if not text.isspace():
                rows.append(take(_object(text)))
    except _Fault as fault:
        raise BadHistory(f"{name} line {number}", fault.message, fault.fix) from None
    return rows


def _as_row(take: Callable[[Mapping[str, Any]], Row]) -> Callable[[Any], Row]:
    def taken(row: Any) -> Row:
        if not isinstance(row, Mapping):
            raise _Fault(f"expected a dict, not {shown(row)}.", 'Give {"userId": …}.')
        return take(row)

    return taken


def _taken(
    given: Iterable[tuple[object, Given]], place: str, take: Callable[[Given], Row]
) -> list[Row]:
    """Each thing taken; a fault is told with its place."""
    rows = []
    for number, thing in given:
        try:
            rows.append(take(thing))
        except _Fault as fault:
            raise BadHistory(f"{place} {number}".strip(), fault.message, fault.fix) from None
    return rows


def _object(text: bytes) -> Mapping[str, Any]:
    """One line as an object. What the fast reader lets pass and the strict one would not (a key
    twice, U+0000, an integer beyond 64 bits) is told apart by counting, and then read strictly."""
    try:
        value = orjson.loads(text)
        if isinstance(value, dict) and _is_plain(text, value):
            return value
    except orjson.JSONDecodeError:
        pass  # the strict reader says it better
    try:
        strict = strict_json.read_json(text.rstrip(b"\r\n"), MAX_LINE_BYTES)
    except strict_json.BadJson as bad:
        raise _Fault(bad.message, bad.fix) from None
    if not isinstance(strict, dict):
        raise _Fault(f"expected an object, not {shown(strict)}.", "Write {…}.")
    return strict


def _is_plain(text: bytes, value: dict[str, Any]) -> bool:
    """Whether the fast reader can be trusted: flat, as many colons as keys, no odd spelling. Every
    line of a history comes through here, so this is written for speed."""
    keys = len(value)
    for part in value.values():
        if type(part) is dict:
            keys += len(part)
            for inner in part.values():
                kind = type(inner)
                if kind is str or ((kind is float or kind is int) and -LIMIT < inner < LIMIT):
                    continue
                if inner is not None and kind is not bool:
                    return False
        elif type(part) is not str and part is not None and not _is_small(part):
            return False
    return (
        text.count(b'":') == keys
        and b" :" not in text  # nor does a key that ends so count, which could make up for a second
        and b"\t:" not in text
        and b"\r:" not in text
        and b"\\u0000" not in text
        and len(text) <= MAX_LINE_BYTES
    )


def _is_small(value: object) -> bool:
    return isinstance(value, int | float) and -LIMIT < value < LIMIT


class _Moments:
    """Reads lines; equal timestamps in a row, as exports have them, are read once."""

    def __init__(self) -> None:
        self.text: object = None
        self.at = Instant.MIN

    def line(self, row: Mapping[str, Any]) -> Line:
        user_id, kind, message_id = row.get("userId"), row.get("type"), row.get("messageId", "")
        timestamp = row.get("timestamp")
        if timestamp is None or (timestamp is not self.text and timestamp != self.text):
            self.at, self.text = _moment(timestamp), timestamp
        if not isinstance(user_id, str) or not user_id:
            user_id = _user_id(user_id)
        if not isinstance(message_id, str):
            message_id = _message_id(message_id)
        if kind == "track":
            event, properties = row.get("event"), row.get("properties", NOTHING)
            if not isinstance(event, str) or not event or event == RESERVED_EVENT:
                raise _bad_event(event)
            if type(properties) is not dict:  # asked first: isinstance of a Mapping takes long
                properties = _mapping("properties", properties)
            fields = ("track", user_id, self.at, event, properties, message_id)
            line: Line = new(Line, fields)
            return line
        if kind == "identify":
            traits = _mapping("traits", row.get("traits"))
            return Line("identify", user_id, self.at, "", traits, message_id)
        if not isinstance(kind, str) or kind not in LINE_TYPES:
            raise _bad_type(kind)
        return Line(kind, user_id, self.at, id=message_id)  # type: ignore[arg-type]


def _bad_type(kind: object) -> _Fault:
    if kind is None:
        return _Fault('"type" is missing.', 'Write "type": "track" for something that happened.')
    return _wrong("type", f"one of {', '.join(LINE_TYPES)}", kind, "Leave other lines out.")


class _Once:
    """Reads people, each of them once."""

    def __init__(self) -> None:
        self.met: set[str] = set()

    def person(self, row: Mapping[str, Any]) -> Known:
        person = _known(row)
        if person.user_id in self.met:
            raise _Fault(f'the person "{person.user_id}" is there already.', "Keep one of them.")
        self.met.add(person.user_id)
        return person


def _known(row: Mapping[str, Any]) -> Known:
    zone = row.get("timezone")
    if zone is not None and not isinstance(zone, str):
        raise _wrong("timezone", "a zone name", zone, 'Write it like "Asia/Tehran".')
    return Known(_user_id(row.get("userId")), _mapping("traits", row.get("traits")), zone)


def _moment(value: object) -> Instant:
    """An instant of a text, or of an aware datetime (pandas' own included)."""
    if isinstance(value, Instant):
        return value
    if value is None:
        raise _Fault('"timestamp" is missing.', 'Say when it was, as "2026-06-01T10:00:00Z".')
    stdlib = getattr(value, "isoformat", None)
    try:
        return timing.read_instant(stdlib() if stdlib is not None else value)
    except timing.BadInstant as bad:
        raise _Fault(f'"timestamp": {bad}') from None


def _user_id(given: object) -> str:
    if given is None:
        raise _Fault('"userId" is missing.', 'Say who it was, as "7".')
    try:
        return person_key(given)
    except ValueError as bad:
        raise _Fault(f'"userId": {bad}') from None


def _message_id(given: object) -> str:
    if given is None:
        return ""
    raise _wrong("messageId", "text", given, "Write it between quotes.")


def _bad_event(event: object) -> _Fault:
    if event == RESERVED_EVENT:
        message = f'the event "{event}" is reserved: it is made when somebody is entered.'
        return _Fault(message, 'Write a line of the type "enter".')
    if event is None:
        return _Fault('"event" is missing.', 'Say what happened, as "purchase".')
    return _wrong("event", "a name", event, 'Say what happened, as "purchase".')


def _mapping(field: str, value: object) -> Mapping[str, Any]:
    if value is None:
        return NOTHING
    if not isinstance(value, Mapping):
        raise _wrong(field, "an object", value, "Write {…}.")
    return value


def _wrong(field: str, wanted: str, given: object, fix: str) -> _Fault:
    return _Fault(f'"{field}" must be {wanted}, not {shown(given)}.', fix)


def read_templates(path: str | Path) -> Render:
    """The texts of a file `{"3": "Hi {{ name }}", "4": {"subject": …, "body": …}}` by template id,
    as the question that a replay asks of each message: which values does its text miss?"""
    with Path(path).open("rb") as file:
        return templates_in(file, Path(path).name)


def templates_in(file: BinaryIO, name: str) -> Render:
    """`read_templates` of an open file; `name` is what a fault calls it."""
    value = value_in(file, name)
    if not isinstance(value, Mapping):
        raise BadHistory(name, f"expected an object, not {shown(value)}.", 'Write {"3": "…"}.')
    return renderer(value, f"{name} template")


def value_in(file: BinaryIO, name: str) -> Any:
    """The value of an open file of JSON; a fault names the file, the line and the column."""
    text = file.read()
    if not text.strip():
        raise BadHistory(name, "there is nothing in it.", "Write JSON.")
    try:
        return strict_json.read_json(text, MAX_TEXTS_BYTES)
    except strict_json.BadJson as bad:
        place = name if bad.line is None else f"{name} line {bad.line}, column {bad.column}"
        raise BadHistory(place, bad.message, bad.fix) from None


def renderer(texts: Mapping[str, Any], place: str = "template") -> Render:
    """The question of `read_templates`, for texts that are at hand."""
    parsed = {number: _template(f'{place} "{number}"', number, texts[number]) for number in texts}

    def judge(message: Message, person: Person) -> Unsent | None:
        found = parsed.get(str(message.template_id))
        if found is None:
            return None
        try:
            outcome = template.render(found, person.traits, message.event or None)
        except template.BadTemplate:  # by this person's values: the others' messages go
            return Unsent("template_failed")
        if isinstance(outcome, template.Missing):
            return Unsent("missing_personalisation", outcome.names)
        return None

    return judge


def _template(place: str, number: str, given: object) -> template.Template:
    if not (number.isascii() and number.isdecimal()):
        raise BadHistory(place, "a template's id is a whole number.", 'Write it like "3".')
    texts = {"body": given} if isinstance(given, str) else given
    if not isinstance(texts, Mapping) or not all(isinstance(t, str) for t in texts.values()):
        message = f"expected a text or an object of texts, not {shown(given)}."
        raise BadHistory(place, message, 'Write "…" or {"subject": "…", "body": "…"}.')
    words = {name: text for name, text in texts.items() if name != "category"}
    try:
        return template.parse_template(words)
    except template.BadTemplate as bad:
        raise BadHistory(place, str(bad), "") from None
