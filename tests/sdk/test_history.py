"""Histories read from files and rows: what is understood, and what a fault says word for word."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from whenever import Instant

from journeykit import history
from journeykit.history import BadHistory
from journeykit_engine.instance import Person
from journeykit_engine.replay import Known, Line, Unsent
from journeykit_engine.strict_json import BadJson, read_json
from journeykit_engine.trail import Message

TEN = "2026-06-01T10:00:00Z"
ADDED = {"type": "track", "userId": "ann", "event": "added", "timestamp": TEN}


def lines(*texts: str | bytes) -> list[Line]:
    raw = b"\n".join(text.encode() if isinstance(text, str) else text for text in texts)
    return history.lines_in(io.BytesIO(raw), "events.jsonl")


def line(**changes: Any) -> str:
    """The line of ADDED with other fields; None takes one away."""
    fields = {name: value for name, value in {**ADDED, **changes}.items() if value is not None}
    return json.dumps(fields)


def fault(*texts: str | bytes) -> str:
    with pytest.raises(BadHistory) as caught:
        lines(*texts)
    return str(caught.value)


# What is understood.


def test_every_shape_of_line_is_read() -> None:
    bought = line(messageId="m1", event="bought", properties={"value": 20.5})
    moved = {"type": "identify", "userId": "ann", "traits": {"city": "قم"}, "timestamp": TEN}
    others = [
        {"type": kind, "userId": "ann", "timestamp": TEN}
        for kind in ("enter", "pause", "resume", "eject")
    ]

    read = lines(bought, *map(json.dumps, [moved, *others]))

    at = Instant(TEN)
    assert read[0] == Line("track", "ann", at, "bought", {"value": 20.5}, "m1")
    assert read[1] == Line("identify", "ann", at, "", {"city": "قم"}, "")
    assert [one.type for one in read[2:]] == ["enter", "pause", "resume", "eject"]
    assert {(one.user_id, one.at, one.event) for one in read[2:]} == {("ann", at, "")}


def test_lines_are_put_in_order_and_equal_times_keep_the_files() -> None:
    times = {"c": "2026-06-01T12:00:00Z", "a": TEN, "b": TEN, "d": "2026-06-01T12:00:00Z"}

    read = lines(*(line(event=event, timestamp=at) for event, at in times.items()))

    assert [one.event for one in read] == ["a", "b", "c", "d"]


def test_an_offset_is_another_way_to_write_the_same_instant() -> None:
    read = lines(line(timestamp="2026-06-01T13:30:00+03:30"), line(timestamp=TEN))

    assert [one.at for one in read] == [Instant(TEN), Instant(TEN)]


def test_a_number_and_its_text_are_one_person() -> None:
    assert {one.user_id for one in lines(line(userId=7), line(userId="7"))} == {"7"}


@pytest.mark.parametrize(
    "raw",
    [
        f"{line()}\n{line()}",
        f"{line()}\r\n{line()}\r\n",
        f"\n  \n{line()}\n\n{line()}\n\n",
    ],
    ids=["no newline at the end", "CRLF", "blank lines"],
)
def test_line_ends_do_not_matter(raw: str) -> None:
    assert lines(raw) == lines(line(), line())


def test_an_empty_file_is_an_empty_history(tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").touch()

    assert history.read_lines(tmp_path / "none.jsonl") == []
    assert history.read_people(tmp_path / "none.jsonl") == []


def test_further_fields_are_let_be() -> None:
    assert lines(line(context={"ip": "::1", "library": {"name": "x"}}, anonymousId=[1])) == lines(
        line()
    )


def test_null_is_as_good_as_absent() -> None:
    given = {**ADDED, "messageId": None, "properties": None}

    assert lines(json.dumps(given)) == lines(line())


def test_people_are_read_with_their_zone() -> None:
    file = io.BytesIO(b'{"userId":7,"timezone":"Asia/Tehran"}\n{"userId":"b","traits":{"x":1}}')

    assert history.people_in(file, "people.jsonl") == [
        Known("7", {}, "Asia/Tehran"),
        Known("b", {"x": 1}, None),
    ]


# What a fault says.

OUT_OF_RANGE = (
    "The whole number at {} is outside -9223372036854775808 to 9223372036854775807. "
    "Send a smaller number, or an id as a text."
)
NO_USER_ID = '"userId": The user id is {}; expected a text or a whole number. '
NO_USER_ID += 'Send the id as a text, for example "7".'


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"event": None}, '"event" is missing. Say what happened, as "purchase".'),
        ({"event": ""}, '"event" must be a name, not "". Say what happened, as "purchase".'),
        ({"event": 3}, '"event" must be a name, not 3. Say what happened, as "purchase".'),
        (
            {"event": "journey_enter_requested"},
            'the event "journey_enter_requested" is reserved: it is made when somebody is entered. '
            'Write a line of the type "enter".',
        ),
        ({"userId": None}, '"userId" is missing. Say who it was, as "7".'),
        ({"userId": ""}, NO_USER_ID.format("empty")),
        ({"userId": True}, NO_USER_ID.format("True, a bool")),
        ({"userId": 7.0}, NO_USER_ID.format("7.0, a float")),
        ({"userId": 2**63}, OUT_OF_RANGE.format("userId")),
        ({"userId": 2**80}, OUT_OF_RANGE.format("userId")),
        ({"messageId": 7}, '"messageId" must be text, not 7. Write it between quotes.'),
        ({"properties": [1]}, '"properties" must be an object, not a list. Write {…}.'),
        ({"properties": {"value": 2**63}}, OUT_OF_RANGE.format("properties.value")),
        (
            {"properties": {"value": float("nan")}},
            "The number NaN at properties.value is no JSON number. Send a finite number.",
        ),
        (
            {"properties": {"name": "a\0b"}},
            "A text at properties.name holds the character U+0000. Remove it.",
        ),
        (
            {"timestamp": None},
            '"timestamp" is missing. Say when it was, as "2026-06-01T10:00:00Z".',
        ),
        (
            {"timestamp": "2026-06-01T10:00:00"},
            '"timestamp": NAIVE_DATETIME: "2026-06-01T10:00:00" does not say in which zone; '
            'attach one, as "2026-06-01T10:00:00Z" for UTC or "2026-06-01T10:00:00+02:00".',
        ),
        (
            {"timestamp": 1780308000},
            '"timestamp": 1780308000 is not an instant; write an ISO 8601 timestamp of the years '
            '2 to 9998 with Z or an offset, as "2026-06-01T10:00:00Z" or '
            '"2026-06-01T10:00:00+02:00".',
        ),
        ({"type": None}, '"type" is missing. Write "type": "track" for something that happened.'),
        (
            {"type": "page"},
            '"type" must be one of track, identify, enter, pause, resume, eject, not "page". '
            "Leave other lines out.",
        ),
    ],
)
def test_a_line_that_cannot_be_used_is_told(changes: dict[str, Any], told: str) -> None:
    assert fault(line(), "", line(**changes)) == f"events.jsonl line 3: {told}"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[1]", "expected an object, not a list. Write {…}."),
        ("7", "expected an object, not 7. Write {…}."),
        (
            '{"type":',
            "The document ends too early; expected a value. Send the whole document.",
        ),
        (
            b"\xef\xbb\xbf" + line().encode(),
            "The document begins with a byte order mark. Save it without one.",
        ),
        (line().encode("utf-16"), "The document is not UTF-8: 0xFF at byte 0. Send UTF-8."),
        (b"\x1f\x8b\x08\x00", "The document is not UTF-8: 0x8B at byte 1. Send UTF-8."),
        ('{"v": 1e400}', "The number 1e400 at v is too large. Send a finite number."),
        (
            '{"a":' * 201 + "1" + "}" * 201,
            "The document is nested over 200 levels deep. Flatten it.",
        ),
    ],
    ids=["list", "number", "cut", "BOM", "UTF-16", "gzip", "infinite", "deep"],
)
def test_a_file_that_is_no_json_lines_is_told(text: str | bytes, told: str) -> None:
    assert fault(text) == f"events.jsonl line 1: {told}"


@pytest.mark.parametrize("colon", [":", " :", "\t:", "\t :", " \t:", "\r:"])
def test_a_key_twice_is_found_however_its_colon_stands(colon: str) -> None:
    text = f'{{"userId"{colon}"ann","userId":"bob"}}'

    assert fault(text) == (
        'events.jsonl line 1: The key "userId" occurs twice at the top. Keep one of them.'
    )


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"b":{"c":null,"d":true,"e":"x","f":-1.5}}',
        '{"a":"with \\":\\" inside"}',
        '{"a\\"":1, "a":2}',
        '{"a":{"a":1,"a":2}}',
        '{"a":{"b":{"c":1,"c":2}}}',
        '{"a":[1,{"b":9223372036854775808}]}',
        '{"a":9223372036854775807}',
        '{"a":-9223372036854775809}',
        '{"a":1e999}',
        '{"a":"\\u0000"}',
        '{"a":"\\ud800"}',
        '{"a":NaN}',
    ],
)
def test_the_fast_way_of_reading_agrees_with_the_strict_one(text: str) -> None:
    try:
        expected = read_json(text)
    except BadJson as bad:
        with pytest.raises(history._Fault) as caught:
            history._object(text.encode())
        assert caught.value.message == bad.message
    else:
        assert history._object(text.encode()) == expected


def test_a_line_over_the_limit_is_told() -> None:
    text = line(properties={"text": "x" * history.MAX_LINE_BYTES})

    assert fault(text) == (
        f"events.jsonl line 1: The document has {len(text)} bytes; at most 1048576 are read. "
        "Send less, or in parts."
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            '{"userId":7}\n{"userId":"7"}',
            'line 2: the person "7" is there already. Keep one of them.',
        ),
        ('{"userId":"a","traits":3}', 'line 1: "traits" must be an object, not 3. Write {…}.'),
        (
            '{"userId":"a","timezone":3}',
            'line 1: "timezone" must be a zone name, not 3. Write it like "Asia/Tehran".',
        ),
        ("{}", 'line 1: "userId" is missing. Say who it was, as "7".'),
    ],
)
def test_a_person_that_cannot_be_used_is_told(text: str, told: str) -> None:
    with pytest.raises(BadHistory) as caught:
        history.people_in(io.BytesIO(text.encode()), "people.jsonl")

    assert str(caught.value) == f"people.jsonl {told}"


def test_a_row_is_told_by_its_number() -> None:
    with pytest.raises(BadHistory) as caught:
        history.lines_of([ADDED, {**ADDED, "userId": ""}])

    assert caught.value.place == "row 2"


def test_a_row_that_is_no_row_is_told() -> None:
    with pytest.raises(BadHistory) as caught:
        history.lines_of([("ann", "added")])  # type: ignore[list-item]

    assert str(caught.value) == 'row 1: expected a dict, not a list. Give {"userId": …}.'


def test_an_instant_is_a_timestamp() -> None:
    assert history.lines_of([{**ADDED, "timestamp": Instant(TEN)}]) == lines(line())


# Templates.


def message(template_id: int) -> Message:
    return Message(
        message_id="j1.v1.s.ann.e1",
        event={},
        node_id="s",
        channel="email",
        template_id=template_id,
        category="marketing",
        priority=50,
        budget="default",
    )


LACKING = "missing_personalisation"


def test_a_template_tells_which_values_it_misses(tmp_path: Path) -> None:
    path = tmp_path / "texts.json"
    path.write_text('{"3": "Hi {{ name }}", "4": {"subject": "{{ a }}", "body": "{{ b }}"}}')
    missing = history.read_templates(path)

    assert missing(message(3), Person("ann", {"name": "Ann"})) is None
    assert missing(message(3), Person("ann", {"name": ""})) == Unsent(LACKING, ("name",))
    assert missing(message(4), Person("ann")) == Unsent(LACKING, ("a", "b"))
    assert missing(message(5), Person("ann")) is None


def test_one_persons_values_stop_one_message() -> None:
    judge = history.renderer({"3": "{% if x > 5 %}many{% endif %}"})

    assert judge(message(3), Person("ann", {"x": 10})) is None
    assert judge(message(3), Person("bob", {"x": "abc"})) == Unsent("template_failed")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "texts.json: there is nothing in it. Write JSON."),
        ("[]", 'texts.json: expected an object, not a list. Write {"3": "…"}.'),
        (
            '{"3":',
            "texts.json line 1, column 6: The document ends too early; expected a value. "
            "Send the whole document.",
        ),
        (
            '{"3": 3}',
            'texts.json template "3": expected a text or an object of texts, not 3. '
            'Write "…" or {"subject": "…", "body": "…"}.',
        ),
        (
            '{"three": "Hi"}',
            'texts.json template "three": a template\'s id is a whole number. Write it like "3".',
        ),
        (
            '{"3": "{{ name"}',
            'texts.json template "3": The text "body" is no Liquid template: '
            "expected '}}', found end of file, on line 1. Mend it there.",
        ),
    ],
)
def test_templates_that_cannot_be_used_are_told(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "texts.json").write_text(text)

    with pytest.raises(BadHistory) as caught:
        history.read_templates(tmp_path / "texts.json")

    assert str(caught.value) == told
