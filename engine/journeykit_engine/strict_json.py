"""JSON without its soft spots: what is refused, and the exact place of the first fault.

Refused are, beyond broken JSON: NaN and infinity, whole numbers beyond 64 bits, a key that occurs
twice, U+0000, a lone surrogate, a byte order mark, too many bytes and too many levels. A good
document is read by the standard library's parser at full speed; only when it is refused does a
slower walk here read the text again to say where and why. Both take linear time and no recursion.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from math import isfinite
from typing import Any, NamedTuple

MAX_BYTES = 1024 * 1024
"""A graph of 5,000 nodes takes about half of it."""

MAX_DEPTH = 200
"""Levels of lists and objects; far below what any parser or database would choke on."""

MAX_FAULTS = 100
"""Faults told at once about a value; nobody reads further."""

MAX_VALUES = 500_000
"""Values looked at in one value; one that shares its parts could unfold to 2**200 of them."""

MAX_SHOWN = 80
"""Characters of a foreign text that a message repeats."""

LOWEST, HIGHEST = -(2**63), 2**63 - 1
"""The whole numbers both databases can store: 64 bits with a sign."""

MAX_DIGITS = len(str(LOWEST))
"""Longer whole numbers are refused unread: reading one takes time in the square of its length."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class BadJson(ValueError):
    """Why a text or a value is refused; `str()` is the message.

    `line` and `column` count characters from 1 and are None where there is no text; `path` is the
    place in the document (`nodes[3].split`), `""` for the document itself.
    """

    def __init__(
        self,
        code: str,
        message: str,
        fix: str,
        line: int | None = None,
        column: int | None = None,
        path: str = "",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.fix = fix
        self.line = line
        self.column = column
        self.path = path


def read_json(source: str | bytes, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH) -> Any:
    """The value a strict JSON text says; BadJson with the first fault otherwise.

    >>> read_json('{"weights": [1, 0.5]}')
    {'weights': [1, 0.5]}
    >>> read_json('{"weights": [1, NaN]}')  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    ...
    BadJson: The number NaN at weights[1] is no JSON number.
    """
    text = _text_of(source, max_bytes)
    if _may_hide_a_fault(text, max_depth) and (fault := _first_fault(text, max_depth)):
        raise fault
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as refused:
        told = _malformed(f"The document is no JSON: {refused}.", "Mend the JSON.")
        raise _first_fault(text, max_depth) or told from None


def write_json(value: object) -> str:
    """The one text of a strict value: keys sorted by code point, no spaces. For fingerprints.

    >>> write_json({"b": [1, True], "a": "é"})
    '{"a":"é","b":[1,true]}'
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def json_faults(value: object, path: str = "", max_depth: int = MAX_DEPTH) -> tuple[BadJson, ...]:
    """The same checks on a value that is already Python, outer before inner, 100 at most.

    `path` is where the value stands in the whole. A tuple counts as a list. Further codes:
    BAD_KEY for a key that is no text, BAD_TYPE for what JSON has no word for.

    >>> [str(fault) for fault in json_faults({"weights": [1, float("nan")]})]
    ['The number nan at weights[1] is no JSON number.']
    """
    faults: list[BadJson] = []
    for seen, fault in enumerate(_value_faults(value, _Place(None, path), max_depth)):
        if seen >= MAX_VALUES:
            return (*faults, _too_many_values(path))
        if fault:
            faults.append(fault)
        if len(faults) >= MAX_FAULTS:
            break
    return tuple(faults)


def refuse_value(value: object) -> None:
    """Raises the first of `json_faults`, if there is any."""
    if faults := json_faults(value):
        raise faults[0]


class _Place(NamedTuple):
    """A place in a document as its last step; only a fault spells the whole path out."""

    outer: _Place | None
    step: object
    """A key or an index; at the top the path of the whole."""

    def __str__(self) -> str:
        steps = []
        place = self
        while place.outer is not None:
            steps.append(place.step)
            place = place.outer
        return str(place.step) + "".join(map(_path_step, reversed(steps)))


_TOP = _Place(None, "")


def _path_of(place: _Place) -> str:
    return str(place).removeprefix(".")


def _path_step(step: object) -> str:
    if isinstance(step, str):
        return f".{step}" if _PLAIN_KEY.fullmatch(step) else f"[{_shown(step)}]"
    return f"[{step!r}]"


# --- a value that is already Python ---


def _value_faults(value: object, place: _Place, max_depth: int) -> Iterator[BadJson | None]:
    """One answer for each value and key, None for a good one, without recursion."""
    todo = [(value, place, 0)]
    while todo:
        value, place, depth = todo.pop()
        if not isinstance(value, (dict, list, tuple)):
            yield _scalar_fault(value, place)
        elif depth >= max_depth:
            yield _too_deep(max_depth, place)
        else:
            yield None
            if isinstance(value, dict):
                yield from (_key_fault(key, place) for key in value)
            inside = value.items() if isinstance(value, dict) else enumerate(value)
            todo += [(inner, _Place(place, step), depth + 1) for step, inner in inside][::-1]


def _scalar_fault(value: object, place: _Place) -> BadJson | None:
    match value:
        case None | bool():
            return None
        case str():
            return _text_fault(value, place)
        case int():
            return None if LOWEST <= value <= HIGHEST else _out_of_range(place)
        case float():
            return None if isfinite(value) else _no_number(str(value), place)
        case _:
            kind = type(value).__name__
            return _fault(
                "BAD_TYPE",
                place,
                f"The value {{at}} is of type {kind}, which JSON cannot say.",
                "Use texts, numbers, true, false, null, lists and dicts.",
            )


def _key_fault(key: object, place: _Place) -> BadJson | None:
    if isinstance(key, str):
        return _text_fault(key, place)
    return _fault(
        "BAD_KEY",
        place,
        f"A key {{at}} is of type {type(key).__name__}; expected a text.",
        "Write the key as a text.",
    )


def _text_fault(text: str, place: _Place) -> BadJson | None:
    if "\0" in text:
        return _nul(place)
    if text.isascii() or not (half := _SURROGATE.search(text)):
        return None
    where = f"U+{ord(half[0]):04X}, at character {half.start() + 1}"
    return _half_a_pair(where, place)


# --- where a text goes wrong ---


class _Token(NamedTuple):
    kind: str
    """One of `[ ] { } : ,`, or string, safe (a value without pitfalls), number, word, end."""
    text: str
    at: int


@dataclass(slots=True)
class _Level:
    """A list or an object that is open while a text is walked."""

    place: _Place
    closing: str
    index: int = 0
    key: str = ""
    keys: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Walk:
    """A walk over the tokens of one text; `expects` is a key of _EXPECTED."""

    text: str
    max_depth: int
    levels: list[_Level] = field(default_factory=list)
    expects: str = "value"

    def place(self) -> _Place:
        if not self.levels:
            return _TOP
        level = self.levels[-1]
        return _Place(level.place, level.key if level.closing == "}" else level.index)

    def value_ends(self) -> None:
        self.expects = "comma" if self.levels else "end"


def _first_fault(text: str, max_depth: int) -> BadJson | None:
    """The first fault of a text in reading order, None when it is strict JSON."""
    walk = _Walk(text, max_depth)
    for found in _TOKEN.finditer(text):
        kind = found.lastgroup or found[0]
        if kind == "space" or _plain_step(walk, kind):
            continue
        token = _Token("string" if kind == "plain" else kind, found[0], found.start())
        if fault := _step(walk, token):
            return _at(fault, walk, token)
    end = _Token("end", "", len(text))
    fault = _step(walk, end)
    return fault and _at(fault, walk, end)


def _at(fault: BadJson, walk: _Walk, token: _Token) -> BadJson:
    fault.line = walk.text.count("\n", 0, token.at) + 1
    fault.column = token.at - walk.text.rfind("\n", 0, token.at)
    return fault


def _plain_step(walk: _Walk, kind: str) -> bool:
    """Takes the tokens that most of a document is made of and that need no look inside."""
    expects = walk.expects
    if (kind == "safe" or kind == "plain") and expects in _VALUE_NEXT:
        walk.expects = "comma" if walk.levels else "end"
    elif kind == ":" and expects == "colon":
        walk.expects = "value"
    elif kind == "," and expects == "comma":
        level = walk.levels[-1]
        level.index += 1
        walk.expects = "key" if level.closing == "}" else "value"
    else:
        return False
    return True


_VALUE_NEXT = ("value", "first value")
_VALUE = ("[", "{", "string", "number", "word")
_EXPECTED: dict[str, tuple[tuple[str, ...], str]] = {
    "value": (_VALUE, "a value"),
    "first value": ((*_VALUE, "]"), "a value"),
    "key": (("string",), "a key in double quotes"),
    "first key": (("string", "}"), "a key in double quotes"),
    "colon": ((":",), "a colon"),
    "comma": ((",", "]", "}"), "a comma"),
    "end": (("end",), "nothing more"),
}
"""What may come next, as tokens and in words."""


def _step(walk: _Walk, token: _Token) -> BadJson | None:
    level = walk.levels[-1] if walk.levels else None
    if token.kind not in _EXPECTED[walk.expects][0]:
        return _unexpected(walk, token)
    match token.kind:
        case "[" | "{":
            return _open(walk, token)
        case "]" | "}" if level:
            if token.kind != level.closing:
                return _unexpected(walk, token)
            walk.levels.pop()
            walk.value_ends()
        case "string" if level and walk.expects.endswith("key"):
            walk.expects = "colon"
            return _string_fault(walk, token, level.place) or _take_key(level, token)
        case "string" | "number" | "word":
            walk.value_ends()
            return _literal_fault(walk, token)
        case _:
            assert token.kind == "end", "a colon and a comma are plain"
    return None


def _open(walk: _Walk, token: _Token) -> BadJson | None:
    if len(walk.levels) >= walk.max_depth:
        return _too_deep(walk.max_depth, walk.place())
    walk.levels.append(_Level(walk.place(), "]" if token.kind == "[" else "}"))
    walk.expects = "first value" if token.kind == "[" else "first key"
    return None


def _take_key(level: _Level, token: _Token) -> BadJson | None:
    text = token.text
    level.key = json.loads(text) if "\\" in text else text[1:-1]
    if level.key in level.keys:
        message = f"The key {_escaped(_shown(level.key))} occurs twice {{at}}."
        return _fault("DUPLICATE_KEY", level.place, message, "Keep one of them.")
    level.keys.add(level.key)
    return None


def _literal_fault(walk: _Walk, token: _Token) -> BadJson | None:
    if token.kind == "string":
        return _string_fault(walk, token, walk.place())
    if token.kind == "word":
        return _word_fault(token.text, walk.place())
    number = token.text
    if not _WHOLE_NUMBER.fullmatch(number):
        return None if isfinite(float(number)) else _no_number(number, walk.place())
    if len(number) > MAX_DIGITS or not LOWEST <= int(number) <= HIGHEST:
        return _out_of_range(walk.place())
    return None


def _word_fault(word: str, place: _Place) -> BadJson:
    if word in ("NaN", "Infinity", "-Infinity"):
        return _no_number(word, place)
    if word.startswith(_COMMENT_STARTS):
        return _malformed("There is a comment; JSON has none.", "Remove the comment.")
    if word.startswith("'"):
        return _malformed("A text is in single quotes.", 'Put texts in double quotes, like "a".')
    if word.startswith(("-", "+", ".", *"0123456789")):
        return _malformed(f"{_shown(word)} is no JSON number.", "Write it like 0.5, -1 or 1e6.")
    if word in _PYTHON_WORDS:
        return _malformed(f"{_shown(word)} is no JSON word.", f"Write {_PYTHON_WORDS[word]}.")
    return _malformed(f"{_shown(word)} is no JSON value.", "Put texts in double quotes.")


def _string_fault(walk: _Walk, token: _Token, place: _Place) -> BadJson | None:
    """Judges a string: its end, its escapes and what they stand for."""
    text = token.text
    if not _WHOLE_STRING.fullmatch(text):
        return _broken_string(text[1:], place)
    if "\\" not in text:
        return None
    if "\\u0000" in text and "\0" in json.loads(text):
        return _nul(place)
    if not _SUSPECT_ESCAPE.search(text):
        return None
    for escape in _ESCAPES.finditer(text):
        if escape["half"]:
            offset = len(walk.text[: token.at + escape.start()].encode())
            return _half_a_pair(f"{escape[0]}, at byte {offset}", place)
    return None


def _broken_string(inside: str, place: _Place) -> BadJson:
    rest = _STRING_INSIDE.sub("", inside, count=1)
    if rest.startswith("\0"):
        return _nul(place)
    if rest and rest[0] < " ":
        return _malformed(
            f"A text holds the bare control character U+{ord(rest[0]):04X}.",
            "Escape it: \\n for a new line, \\t for a tab.",
        )
    if rest.startswith("\\") and len(rest) > 1:
        return _malformed(
            f"A text holds {rest[:2]}, which is no JSON escape.", "Write a backslash as \\\\."
        )
    return _malformed("A text has no closing quote.", 'End the text with ".')


def _unexpected(walk: _Walk, token: _Token) -> BadJson:
    if token.text.startswith((*_COMMENT_STARTS, "'")):
        return _word_fault(token.text, _TOP)
    if walk.expects == "end":
        return _malformed("The document goes on after its end.", "Remove the text after the value.")
    if walk.expects in ("key", "value") and token.text in ("]", "}") and _after_comma(walk, token):
        return _malformed(f'There is a trailing comma before "{token.text}".', "Remove the comma.")
    expected = _EXPECTED[walk.expects][1]
    if walk.expects == "comma":
        expected += f' or "{walk.levels[-1].closing}"'
    if token.kind == "end":
        return _malformed(
            f"The document ends too early; expected {expected}.", "Send the whole document."
        )
    return _malformed(
        f"There is {_shown(token.text)}; expected {expected}.", "Mend the JSON at this place."
    )


def _after_comma(walk: _Walk, token: _Token) -> bool:
    return walk.text[: token.at].rstrip(" \t\n\r").endswith(",")


# --- what each fault says ---


def _fault(code: str, place: _Place, message: str, fix: str) -> BadJson:
    """`{at}` in the message becomes the place."""
    path = _path_of(place)
    return BadJson(code, message.format(at=f"at {path or 'the top'}"), fix, path=path)


def _malformed(message: str, fix: str) -> BadJson:
    return BadJson("MALFORMED_JSON", message, fix)


def _too_deep(max_depth: int, place: _Place) -> BadJson:
    message = f"The document is nested over {max_depth} levels deep."
    return BadJson("TOO_DEEP", message, "Flatten it.", path=_shortened(_path_of(place)))


def _too_many_values(path: str) -> BadJson:
    message = f"The value {{at}} holds more than {MAX_VALUES} values."
    return _fault("BODY_TOO_LARGE", _Place(None, path), message, "Send it in parts.")


def _no_number(number: str, place: _Place) -> BadJson:
    shown = _shortened(number)
    why = "is no JSON number" if number[-1] in "nNfy" else "is too large"
    return _fault("BAD_NUMBER", place, f"The number {shown} {{at}} {why}.", "Send a finite number.")


def _out_of_range(place: _Place) -> BadJson:
    message = f"The whole number {{at}} is outside {LOWEST} to {HIGHEST}."
    return _fault("BAD_NUMBER", place, message, "Send a smaller number, or an id as a text.")


def _nul(place: _Place) -> BadJson:
    return _fault("BAD_CHARACTER", place, "A text {at} holds the character U+0000.", "Remove it.")


def _half_a_pair(where: str, place: _Place) -> BadJson:
    message = f"A text {{at}} holds half a surrogate pair, {where}."
    return _fault("BAD_ENCODING", place, message, "Write whole characters.")


def _shown(text: str) -> str:
    return json.dumps(_shortened(text), ensure_ascii=not text.isprintable())


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


# --- from bytes to a text worth parsing ---


def _text_of(source: str | bytes, max_bytes: int) -> str:
    raw = source if isinstance(source, bytes) else _encoded(source)
    if len(raw) > max_bytes:
        message = f"The document has {len(raw)} bytes; at most {max_bytes} are read."
        raise BadJson("BODY_TOO_LARGE", message, "Send less, or in parts.")
    if not raw.strip():
        raise BadJson("EMPTY_BODY", "The request has no body.", "Send a JSON object.")
    if raw.startswith(BYTE_ORDER_MARK):
        fault = _malformed("The document begins with a byte order mark.", "Save it without one.")
        fault.line = fault.column = 1
        raise fault
    return source if isinstance(source, str) else _decoded(raw)


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise _bad_encoding("half a surrogate pair", len(text[: error.start].encode())) from None


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise _bad_encoding(f"0x{raw[error.start]:02X}", error.start) from None


def _bad_encoding(found: str, offset: int) -> BadJson:
    return BadJson(
        "BAD_ENCODING", f"The document is not UTF-8: {found} at byte {offset}.", "Send UTF-8."
    )


def _may_hide_a_fault(text: str, max_depth: int) -> bool:
    """True for what the parser would let pass or die of: escapes it is too kind to, and depth."""
    return bool(_SUSPECT_ESCAPE.search(text)) or _depth(text) > max_depth


def _depth(text: str) -> int:
    """How deep the brackets outside strings go; exact for JSON, a guess for anything else."""
    brackets = _NO_BRACKETS.sub("", _ANY_STRING.sub("", text))
    return max(accumulate(map(_LEVEL_STEP.__getitem__, brackets)), default=0)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _whole_number(number: str) -> int:
    if len(number) > MAX_DIGITS or not LOWEST <= (found := int(number)) <= HIGHEST:
        raise ValueError("beyond 64 bits")
    return found


def _finite_number(number: str) -> float:
    if not isfinite(found := float(number)):
        raise ValueError("not finite")
    return found


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON number")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique_keys,
    parse_int=_whole_number,
    parse_float=_finite_number,
    parse_constant=_no_constant,
)
_COMMENT_STARTS = ("//", "/*", "#")
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null", "undefined": "null"}
_LEVEL_STEP = {"[": 1, "{": 1, "]": -1, "}": -1}
_PLAIN_KEY = re.compile(r"[^\W\d][\w-]*")
_SURROGATE = re.compile("[\ud800-\udfff]")
_WHOLE_NUMBER = re.compile(r"-?[0-9]+")
# Possessive throughout (*+): a string without an end is tried once, not once for each quote in it.
_STRING_INSIDE = re.compile(
    r'[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+'
)
_WHOLE_STRING = re.compile(f'"{_STRING_INSIDE.pattern}"')
_ANY_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NO_BRACKETS = re.compile(r"[^\[\]{}]+")
_TOKEN = re.compile(
    rf"""(?P<space>[\ \t\n\r]++)
    |[\[\]{{}}:,]
    |(?P<safe>(?:-?(?:0|[1-9][0-9]{{0,14}})|true|false|null)(?![^\s\[\]{{}}:,"]))
    |(?P<plain>"[^"\\\x00-\x1f]*+")
    |(?P<string>{_ANY_STRING.pattern})
    |(?P<number>-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?(?![\w.+-]))
    |(?P<word>[^\s\[\]{{}}:,"]++|.)""",
    re.VERBOSE | re.DOTALL,
)
_SUSPECT_ESCAPE = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")
_ESCAPES = re.compile(
    r"""\\(?:
    u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}
    |(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})
    |.)""",
    re.VERBOSE | re.DOTALL,
)
