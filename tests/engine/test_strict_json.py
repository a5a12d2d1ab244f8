"""Bad JSON and the right answers; good JSON read back exactly."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeykit_engine.strict_json import (
    HIGHEST,
    LOWEST,
    MAX_BYTES,
    MAX_FAULTS,
    MAX_VALUES,
    BadJson,
    json_faults,
    read_json,
    write_json,
)

RANGE = "-9223372036854775808 to 9223372036854775807"
DEEPER_THAN_ANY_STACK = 100_000

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
STRICT = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(LOWEST, HIGHEST)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
)
# Pieces that look like JSON, so that garbage gets further than its first character.
PIECES = st.sampled_from(
    [
        *'[]{}:,"\\ \n0-+.eE/#*',
        "1",
        "12",
        "true",
        "null",
        "NaN",
        "\\u",
        "d800",
        '"a"',
        "\0",
        "'",
        "é",
    ]
)


# --- good JSON ---


@given(STRICT, st.booleans())
def test_whatever_is_strict_comes_back(value: object, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)

    assert read_json(text) == value
    assert read_json(text.encode()) == value
    assert json_faults(value) == ()


@given(STRICT)
def test_the_canonical_text_says_the_same_and_stays_the_same(value: object) -> None:
    text = write_json(value)

    assert read_json(text) == value
    assert write_json(read_json(text)) == text


def test_the_canonical_text_is_sorted_by_code_point_and_tight() -> None:
    assert write_json({"é": 1, "z": [True, None], "Z": {"b": 1.5, "a": "ب"}}) == (
        '{"Z":{"a":"ب","b":1.5},"z":[true,null],"é":1}'
    )


def test_types_survive() -> None:
    value = read_json('[1, 1.0, true, "1", null, -0.0]')

    assert [type(one) for one in value] == [int, float, bool, str, type(None), float]
    assert math.copysign(1, value[-1]) == -1


def test_whole_numbers_to_the_last_of_64_bits() -> None:
    assert read_json(f"[{LOWEST}, {HIGHEST}]") == [LOWEST, HIGHEST]


def test_two_hundred_levels_pass() -> None:
    text = "[" * 200 + "]" * 200

    assert write_json(read_json(text)) == text


def test_escapes_that_only_look_bad_pass() -> None:
    assert read_json(r'["\\ud800", "\ud83d\ude00", "\\u0000", "[[[[{"]', max_depth=1) == [
        "\\ud800",
        "😀",
        "\\u0000",
        "[[[[{",
    ]


def test_a_document_of_the_full_size_passes() -> None:
    text = '["' + "a" * (MAX_BYTES - 4) + '"]'

    assert len(read_json(text)[0]) == MAX_BYTES - 4


# --- bad JSON, row by row ---


@pytest.mark.parametrize("source", ["", b"", b" \n\t"])
def test_an_empty_body(source: str | bytes) -> None:
    fault = refused(source)

    assert fault.code == "EMPTY_BODY"
    assert str(fault) == "The request has no body."
    assert fault.fix == "Send a JSON object."


def test_a_document_that_was_cut() -> None:
    fault = refused('{"graph":')

    assert fault.code == "MALFORMED_JSON"
    assert (fault.line, fault.column) == (1, 10)
    assert str(fault) == "The document ends too early; expected a value."
    assert fault.fix == "Send the whole document."


@pytest.mark.parametrize(
    ("source", "place", "message", "fix"),
    [
        ('{"a":1,}', (1, 8), 'There is a trailing comma before "}".', "Remove the comma."),
        ("[1,\n]", (2, 1), 'There is a trailing comma before "]".', "Remove the comma."),
        ("{} // x", (1, 4), "There is a comment; JSON has none.", "Remove the comment."),
        ("[1, /* x */ 2]", (1, 5), "There is a comment; JSON has none.", "Remove the comment."),
        ("# x\n{}", (1, 1), "There is a comment; JSON has none.", "Remove the comment."),
        ("['a']", (1, 2), "A text is in single quotes.", 'Put texts in double quotes, like "a".'),
        ("{'a':1}", (1, 2), "A text is in single quotes.", 'Put texts in double quotes, like "a".'),
        (
            b"\xef\xbb\xbf{}",
            (1, 1),
            "The document begins with a byte order mark.",
            "Save it without one.",
        ),
        (
            "\ufeff{}",
            (1, 1),
            "The document begins with a byte order mark.",
            "Save it without one.",
        ),
        (
            "{} {}",
            (1, 4),
            "The document goes on after its end.",
            "Remove the text after the value.",
        ),
        ("[True]", (1, 2), '"True" is no JSON word.', "Write true."),
        ("[hello]", (1, 2), '"hello" is no JSON value.', "Put texts in double quotes."),
        ("[01]", (1, 2), '"01" is no JSON number.', "Write it like 0.5, -1 or 1e6."),
        ("[1.]", (1, 2), '"1." is no JSON number.', "Write it like 0.5, -1 or 1e6."),
        ("[+1]", (1, 2), '"+1" is no JSON number.', "Write it like 0.5, -1 or 1e6."),
        ('["a', (1, 2), "A text has no closing quote.", 'End the text with ".'),
        (
            '["a\nb"]',
            (1, 2),
            "A text holds the bare control character U+000A.",
            "Escape it: \\n for a new line, \\t for a tab.",
        ),
        (
            '["\\x"]',
            (1, 2),
            "A text holds \\x, which is no JSON escape.",
            "Write a backslash as \\\\.",
        ),
        ("[1 2]", (1, 4), 'There is "2"; expected a comma or "]".', "Mend the JSON at this place."),
        ("[1}", (1, 3), 'There is "}"; expected a comma or "]".', "Mend the JSON at this place."),
        ('{"a" 1}', (1, 6), 'There is "1"; expected a colon.', "Mend the JSON at this place."),
        (
            "{1:2}",
            (1, 2),
            'There is "1"; expected a key in double quotes.',
            "Mend the JSON at this place.",
        ),
        ("[,1]", (1, 2), 'There is ","; expected a value.', "Mend the JSON at this place."),
        ("]", (1, 1), 'There is "]"; expected a value.', "Mend the JSON at this place."),
    ],
)
def test_malformed_json_is_named_and_placed(
    source: str | bytes, place: tuple[int, int], message: str, fix: str
) -> None:
    fault = refused(source)

    assert fault.code == "MALFORMED_JSON"
    assert (str(fault), fault.fix) == (message, fix)
    assert (fault.line, fault.column) == place


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"\xff\xfe[\x00]\x00", "The document is not UTF-8: 0xFF at byte 0."),
        (b'["\xc0\xaf"]', "The document is not UTF-8: 0xC0 at byte 2."),
        (b'["\xed\xa0\x80"]', "The document is not UTF-8: 0xED at byte 2."),
        ('["é\ud800"]', "The document is not UTF-8: half a surrogate pair at byte 4."),
        (
            '{"a": ["é\\ud800"]}',
            "A text at a[0] holds half a surrogate pair, \\ud800, at byte 10.",
        ),
        ('["\\udc00\\ud800"]', "A text at [0] holds half a surrogate pair, \\udc00, at byte 2."),
        ('{"\\ud800": 1}', "A text at the top holds half a surrogate pair, \\ud800, at byte 2."),
    ],
)
def test_bad_encoding_names_the_byte(source: str | bytes, message: str) -> None:
    fault = refused(source)

    assert (fault.code, str(fault)) == ("BAD_ENCODING", message)


def test_a_document_over_one_mebibyte() -> None:
    fault = refused(b'"' + b"a" * MAX_BYTES)

    assert fault.code == "BODY_TOO_LARGE"
    assert str(fault) == "The document has 1048577 bytes; at most 1048576 are read."
    assert fault.fix == "Send less, or in parts."


def test_the_limit_counts_bytes_not_characters() -> None:
    assert read_json('"éé"', max_bytes=6) == "éé"
    assert refused('"ééa"', max_bytes=6).code == "BODY_TOO_LARGE"


@pytest.mark.parametrize(
    ("source", "message", "path"),
    [
        (
            '{"weights":[NaN,1],"holdout_percent":NaN}',
            "The number NaN at weights[0] is no JSON number.",
            "weights[0]",
        ),
        ("-Infinity", "The number -Infinity at the top is no JSON number.", ""),
        ('{"a b": Infinity}', 'The number Infinity at ["a b"] is no JSON number.', '["a b"]'),
        ("[1, -1e400]", "The number -1e400 at [1] is too large.", "[1]"),
        (f"[{2**64}]", f"The whole number at [0] is outside {RANGE}.", "[0]"),
        (f"[{2**63}]", f"The whole number at [0] is outside {RANGE}.", "[0]"),
        ("[-9223372036854775809]", f"The whole number at [0] is outside {RANGE}.", "[0]"),
        (
            '{"x":{"y":' + "9" * 5_000 + "}}",
            f"The whole number at x.y is outside {RANGE}.",
            "x.y",
        ),
    ],
)
def test_numbers_no_store_can_hold(source: str, message: str, path: str) -> None:
    fault = refused(source)

    assert (fault.code, str(fault), fault.path) == ("BAD_NUMBER", message, path)


@pytest.mark.parametrize(
    "case_id", ["json-nan-weight", "json-deep-nesting", "json-duplicate-keys", "json-nul-character"]
)
def test_the_cases_of_one_body(case_id: str, cases: Mapping[str, Any]) -> None:
    code = {
        "json-nan-weight": "BAD_NUMBER",
        "json-deep-nesting": "TOO_DEEP",
        "json-duplicate-keys": "DUPLICATE_KEY",
        "json-nul-character": "BAD_CHARACTER",
    }[case_id]
    given_ = cases[case_id]["given"]
    body = given_["body"] if "body" in given_ else json.dumps(given_["values"])
    if case_id == "json-deep-nesting":
        assert body == "'[' written 100000 times"
        body = "[" * DEEPER_THAN_ANY_STACK

    assert refused(body).code == code


def test_the_case_of_infinities(cases: Mapping[str, Any]) -> None:
    for value in cases["json-infinity"]["given"]["values"]:
        assert refused(f'{{"weight": {value}}}').code == "BAD_NUMBER"


def test_a_huge_amount_is_still_json(cases: Mapping[str, Any]) -> None:
    """10^12 days are a problem of the graph, told with 200, not of the JSON."""
    amounts = cases["json-huge-amount"]["given"]["amounts"]

    assert read_json(json.dumps(amounts)) == amounts


def test_depth_one_hundred_is_read_and_five_thousand_is_not(cases: Mapping[str, Any]) -> None:
    passes, refused_depth = cases["json-deep-definition"]["given"]["depth"]

    assert json_faults(read_json('{"not":' * passes + "{}" + "}" * passes)) == ()
    assert refused('{"not":' * refused_depth + "{}" + "}" * refused_depth).code == "TOO_DEEP"


def test_two_hundred_and_one_levels_are_refused_where_the_last_one_opens() -> None:
    fault = refused("[" * 201 + "]" * 201)

    assert (fault.code, fault.line, fault.column) == ("TOO_DEEP", 1, 201)
    assert str(fault) == "The document is nested over 200 levels deep."
    assert fault.fix == "Flatten it."


def test_a_key_that_occurs_twice_is_named_with_its_place() -> None:
    fault = refused('{"nodes": [{}, {"id": "a",\n "label": "x", "id": "b"}]}')

    assert fault.code == "DUPLICATE_KEY"
    assert str(fault) == 'The key "id" occurs twice at nodes[1].'
    assert fault.fix == "Keep one of them."
    assert (fault.line, fault.column, fault.path) == (2, 16, "nodes[1]")


def test_a_key_written_in_two_ways_is_the_same_key() -> None:
    assert refused('{"{a}": 1, "\\u007ba}": 2}').message == 'The key "{a}" occurs twice at the top.'


def test_ids_that_differ_by_a_space_or_case_stay_apart(cases: Mapping[str, Any]) -> None:
    ids = cases["json-whitespace-id"]["given"]["node_ids"]

    assert len(read_json(json.dumps(dict.fromkeys(ids)))) == 3


@pytest.mark.parametrize("inside", ["a\\u0000b", "a\0b"])
def test_the_character_nul_however_it_is_written(inside: str) -> None:
    in_value, in_key = refused(f'{{"label": "{inside}"}}'), refused(f'{{"{inside}": 1}}')

    assert (in_value.code, in_value.path) == ("BAD_CHARACTER", "label")
    assert str(in_value) == "A text at label holds the character U+0000."
    assert in_value.fix == "Remove it."
    assert (in_key.code, in_key.path) == ("BAD_CHARACTER", "")


# --- anything at all ---


@given(st.lists(PIECES).map("".join) | st.text() | st.binary())
def test_garbage_is_read_or_refused_as_the_plain_parser_would(source: str | bytes) -> None:
    try:
        value = read_json(source)
    except BadJson as fault:
        assert fault.code and fault.fix and str(fault) == fault.message
        assert fault.code != "MALFORMED_JSON" or (fault.line and fault.column)
    else:
        assert value == json.loads(source)
        assert json_faults(value) == ()


@given(STRICT, st.data())
def test_a_cut_or_patched_document_never_surprises(value: object, data: st.DataObject) -> None:
    text = json.dumps([value])
    at = data.draw(st.integers(0, len(text) - 1))
    patched = text[:at] + data.draw(PIECES) + text[at + 1 :]

    for source in (text[:at], patched):
        try:
            read = read_json(source)
        except BadJson:
            continue
        assert read == json.loads(source)


@pytest.mark.parametrize(
    "source",
    [
        "[" * DEEPER_THAN_ANY_STACK,
        '{"a":' * DEEPER_THAN_ANY_STACK,
        '"' + '\\"' * DEEPER_THAN_ANY_STACK,
        '"' * DEEPER_THAN_ANY_STACK,
        "-" * DEEPER_THAN_ANY_STACK,
        "[1," * DEEPER_THAN_ANY_STACK,
        "1" * DEEPER_THAN_ANY_STACK,
        '["\\ud83d\\ude00' + "\\\\" * DEEPER_THAN_ANY_STACK,
    ],
    ids=lambda source: source[:8],
)
def test_hostile_length_is_refused(source: str) -> None:
    refused(source)


# --- values that are already Python ---


def test_every_fault_of_a_value_is_told_with_its_path() -> None:
    value = {
        "weights": [1, math.nan, math.inf],
        1: "a key that is no text",
        "seen": {3},
        "label": "a\0b",
        "name": "ab\ud800",
        "id": 2**64,
    }

    assert [(fault.code, fault.path, str(fault)) for fault in json_faults(value, "graph")] == [
        ("BAD_KEY", "graph", "A key at graph is of type int; expected a text."),
        (
            "BAD_NUMBER",
            "graph.weights[1]",
            "The number nan at graph.weights[1] is no JSON number.",
        ),
        (
            "BAD_NUMBER",
            "graph.weights[2]",
            "The number inf at graph.weights[2] is no JSON number.",
        ),
        (
            "BAD_TYPE",
            "graph.seen",
            "The value at graph.seen is of type set, which JSON cannot say.",
        ),
        ("BAD_CHARACTER", "graph.label", "A text at graph.label holds the character U+0000."),
        (
            "BAD_ENCODING",
            "graph.name",
            "A text at graph.name holds half a surrogate pair, U+D800, at character 3.",
        ),
        ("BAD_NUMBER", "graph.id", f"The whole number at graph.id is outside {RANGE}."),
    ]


def test_a_value_that_holds_itself_is_too_deep() -> None:
    value: list[object] = []
    value.append(value)

    assert [fault.code for fault in json_faults(value)] == ["TOO_DEEP"]


def test_a_value_deeper_than_the_stack() -> None:
    value: object = 1
    for _ in range(DEEPER_THAN_ANY_STACK):
        value = [value]

    assert [fault.code for fault in json_faults(value)] == ["TOO_DEEP"]


def test_a_value_that_shares_its_parts_is_not_unfolded() -> None:
    value: object = 1
    for _ in range(100):
        value = [value, value]

    (fault,) = json_faults(value)

    assert fault.code == "BODY_TOO_LARGE"
    assert str(fault) == f"The value at the top holds more than {MAX_VALUES} values."


def test_nobody_reads_more_than_a_hundred_faults() -> None:
    assert len(json_faults([math.nan] * 1_000)) == MAX_FAULTS


# --- what the story needs ---


def refused(source: str | bytes, max_bytes: int = MAX_BYTES) -> BadJson:
    with pytest.raises(BadJson) as caught:
        read_json(source, max_bytes)
    return caught.value
