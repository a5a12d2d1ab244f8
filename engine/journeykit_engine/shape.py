"""What is wrong with the shape of a document, in words: the node, the path and the fix."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

Document = TypeVar("Document", bound=BaseModel)

MAX_SHOWN = 60  # characters of a foreign text that a message repeats, so that it stays one line


class Problem(NamedTuple):
    """Something wrong with a graph, or worth knowing: which node, where in the document, what
    to do. `node_id` is "" for what concerns the whole graph, `path` is like `nodes[3].split`."""

    code: str
    node_id: str
    path: str
    message: str
    fix: str


class BadGraph(ValueError):
    """The document has not the shape of a graph. `problems` lists every fault, the first one is
    the message."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        first = problems[0]
        super().__init__(f"{first.path}: {first.message}" if first.path else first.message)


_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "number_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
_FIELD_CODES = {
    "amount": "BAD_DURATION",
    "unit": "BAD_DURATION",
    "timeout": "BAD_DURATION",
    "jitter": "BAD_DURATION",
    "hour": "BAD_HOUR",
    "minute": "BAD_HOUR",
    "fallback_hour": "BAD_HOUR",
    "holdout_percent": "BAD_HOLDOUT",
}
MAX_GUESSES = 50  # misspelt names that are guessed at in one document; a guess takes a while
SURE = 0.75  # how like a known name a misspelt one must be before it is guessed at
_MADE_BY_THE_SERVER = {"tenant_id"}


def salvage(
    model: type[Document], value: object, known: Sequence[str] = ()
) -> tuple[Document | None, list[Problem]]:
    """The document, and every fault of its shape; with faults, what is left of it once the faulty
    fields are set aside, or None where too little is left to be judged further. `known` are the
    field names that a misspelt one may have meant."""
    if not isinstance(value, Mapping):
        given = _given(value)
        return None, [
            Problem("WRONG_TYPE", "", "", f"The graph must be an object, not {given}.", "Send {…}.")
        ]
    try:
        return model.model_validate(value), []
    except ValidationError as error:
        details = error.errors(include_url=False)
    problems = [
        _named(_problem(detail, value, known if number < MAX_GUESSES else ()))
        for number, detail in enumerate(details)
    ]
    return _without(model, value, [_location(detail) for detail in details]), problems


def _without(
    model: type[Document], value: Mapping[str, Any], locations: list[tuple[str | int, ...]]
) -> Document | None:
    rest = _copy(value)
    for location in locations:
        holder: Any = rest
        for step in location[:-1]:
            holder = holder[step]
        if not isinstance(holder, dict) or not isinstance(location[-1], str):
            return None
        holder.pop(location[-1], None)
    try:
        return model.model_validate(rest)
    except ValidationError:
        return None


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list | tuple) else value


def _problem(detail: ErrorDetails, document: Mapping[str, Any], known: Sequence[str]) -> Problem:
    location = _location(detail)
    node_id, path, field = _node_id(document, location), _path(location), str(location[-1])
    if detail["type"] == "extra_forbidden":
        return Problem("UNKNOWN_FIELD", node_id, path, *_unknown_field(field, known))
    if detail["type"] in ("missing", "union_tag_not_found"):
        field = "kind" if detail["type"] == "union_tag_not_found" else field
        words = f'The field "{field}" is missing.', f'Add "{field}".'
        return Problem("MISSING_FIELD", node_id, path, *words)
    if detail["type"] in ("literal_error", "union_tag_invalid"):
        return _unknown_word(detail, node_id, path, field)
    expected = _EXPECTED.get(detail["type"], "something else")
    code = _FIELD_CODES.get(field, "WRONG_TYPE")
    what = f'"{field}"' if isinstance(location[-1], str) else f"Item {location[-1]}"
    message = f"{what} must be {expected}, not {_given(detail['input'])}."
    return Problem(code, node_id, path, message, f"Write {expected}.")


def _named(problem: Problem) -> Problem:
    if not problem.node_id:
        return problem
    message = f"Node {_quoted(problem.node_id)}: {problem.message}"
    return problem._replace(message=message)


def _unknown_word(detail: ErrorDetails, node_id: str, path: str, field: str) -> Problem:
    context = detail.get("ctx", {})
    expected = str(context.get("expected") or context.get("expected_tags", "")).replace("'", '"')
    given = detail["input"]
    if detail["type"] == "union_tag_invalid":
        path, field, given = f"{path}.kind", "kind", context.get("tag")
    if not isinstance(given, str):
        message = f'"{field}" must be one of {expected}, not {_given(given)}.'
        return Problem("WRONG_TYPE", node_id, path, message, f"Write one of {expected}.")
    code = "UNKNOWN_KIND" if field == "kind" else "UNKNOWN_WORD"
    close = difflib.get_close_matches(given, _words(expected) + _SYNONYMS.get(given, []), 1)
    close = _SYNONYMS.get(given, close)
    message = f'"{field}" is {_quoted(given)}; expected one of {expected}.'
    fix = f'Write "{close[0]}".' if close else f"Write one of {expected}."
    return Problem(code, node_id, path, message, fix)


_SYNONYMS = {"delay": ["wait"], "if": ["condition"], "end": ["exit"], "email": ["action"]}


def _words(expected: str) -> list[str]:
    return [word for word in expected.split('"') if word.strip(" ,") and word.strip() != "or"]


def _unknown_field(field: str, known: Sequence[str]) -> tuple[str, str]:
    message = f"The field {_quoted(field)} is not known here."
    if field in _MADE_BY_THE_SERVER:
        return message, "Leave it out, the server sets it."
    close = difflib.get_close_matches(field, [name for name in known if name != field], 1, SURE)
    return message, f'Did you mean "{close[0]}"?' if close else "Leave it out."


def _given(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return f"the text {_quoted(value)}"
        case int() | float():
            return f"the number {value!r}"
        case list() | tuple():
            return "a list"
        case Mapping():
            return "an object"
        case _:
            return f"a {type(value).__name__}"


def _quoted(text: str) -> str:
    """In double quotes, what would end the line or the quotes escaped."""
    short = text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"
    return json.dumps(short, ensure_ascii=False)


def _location(detail: ErrorDetails) -> tuple[str | int, ...]:
    """The place in the document: pydantic's own, without the tag of a union ("duration" in
    `nodes, 3, wait, duration, amount`)."""
    steps = detail["loc"]
    tagged = len(steps) > 3 and steps[0] == "nodes" and steps[2] in ("trigger", "wait", "action")
    return steps[:3] + steps[4:] if tagged else steps


def _path(location: tuple[str | int, ...]) -> str:
    text = ""
    for step in location:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text


def _node_id(document: Mapping[str, Any], location: tuple[str | int, ...]) -> str:
    if len(location) < 2 or location[0] != "nodes" or not isinstance(location[1], int):
        return ""
    node = document["nodes"][location[1]]
    found = node.get("id") if isinstance(node, Mapping) else None
    return found if isinstance(found, str) else ""
