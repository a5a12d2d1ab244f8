"""One value against one operator: the comparisons that traits and event properties share.

Types matter. Text compares with text, a number with a number (1 and 1.0 are one number), true and
false with themselves, and nothing is ever converted: "10" is not 10, true is not 1. Only numbers
are ordered. Text is compared code point by code point, so case matters. A value that is missing
(absent, null, or a number that is not finite) or of another type fails every positive operator;
a negative operator is the negation of its positive twin, hence true there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Literal

Scalar = str | int | float | bool
ValueTest = Callable[[Any], bool]
Takes = Literal["nothing", "scalar", "scalars", "number", "range", "text", "size"]

LARGEST_INTEGER = 2**63
"""Whole numbers of an operand lie below this, in either direction: both databases hold 64 bits."""

SHOWN_CHARACTERS = 60
"""A message quotes at most this much of a text, so that a fault stays one readable line."""

SHOWN_ITEMS = 20
"""An explanation shows at most this many items of a list, so that it stays readable."""

OPERATORS: Mapping[str, Takes] = MappingProxyType(
    {
        "eq": "scalar",
        "neq": "scalar",
        "in": "scalars",
        "not_in": "scalars",
        "gt": "number",
        "gte": "number",
        "lt": "number",
        "lte": "number",
        "between": "range",
        "exists": "nothing",
        "not_exists": "nothing",
        "contains": "text",
        "not_contains": "text",
        "starts_with": "text",
        "ends_with": "text",
        "is_true": "nothing",
        "is_false": "nothing",
        "includes": "scalar",
        "includes_any": "scalars",
        "includes_all": "scalars",
        "size_gt": "size",
        "size_eq": "size",
        "size_lt": "size",
    }
)

NEGATIONS: Mapping[str, str] = MappingProxyType(
    {"neq": "eq", "not_in": "in", "not_contains": "contains", "not_exists": "exists"}
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """An operator and its operand: None where it takes nothing, a tuple where it takes a list."""

    op: str
    value: Scalar | tuple[Scalar, ...] | None = None


def compile_comparison(comparison: Comparison) -> ValueTest:
    """The comparison as a function of one value, which may be anything and never raises.

    >>> adult = compile_comparison(Comparison("gte", 18))
    >>> [adult(age) for age in (8, 18, 100, "18", None, True)]
    [False, True, True, False, False, False]
    """
    positive = NEGATIONS.get(comparison.op)
    if positive is None:
        return _POSITIVE[comparison.op](comparison.value)
    holds = _POSITIVE[positive](comparison.value)
    return lambda value: not holds(value)


def is_number(value: object) -> bool:
    """True for whole and fractional numbers that are finite; true and false are no numbers."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def is_missing(value: object) -> bool:
    """True for None and for a number that is not finite (what a data frame puts for nothing)."""
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def identity(value: object) -> Hashable | None:
    """A key that is equal exactly where two scalars are the same value, None for all else.

    >>> identity(1) == identity(1.0), identity(1) == identity(True), identity(1) == identity("1")
    (True, False, False)
    """
    if isinstance(value, bool):
        return ("boolean", value)
    if isinstance(value, str) or is_number(value):
        return value
    return None


def _eq(operand: Any) -> ValueTest:
    if isinstance(operand, bool):
        return lambda value: value is operand
    if isinstance(operand, str):
        return lambda value: isinstance(value, str) and value == operand
    return lambda value: (
        isinstance(value, NUMBERS) and not isinstance(value, bool) and value == operand
    )


def _in(operand: Any) -> ValueTest:
    keys = frozenset(map(identity, operand))
    return lambda value: identity(value) in keys


# These are the innermost loop of every walk, so the type is asked in place and not by a function.
# A chained comparison with infinity refuses infinity and NaN without asking for them by name.

NUMBERS = (int, float)
INFINITY = math.inf


def _gt(operand: Any) -> ValueTest:
    return lambda value: (
        isinstance(value, NUMBERS) and not isinstance(value, bool) and operand < value < INFINITY
    )


def _gte(operand: Any) -> ValueTest:
    return lambda value: (
        isinstance(value, NUMBERS) and not isinstance(value, bool) and operand <= value < INFINITY
    )


def _lt(operand: Any) -> ValueTest:
    return lambda value: (
        isinstance(value, NUMBERS) and not isinstance(value, bool) and -INFINITY < value < operand
    )


def _lte(operand: Any) -> ValueTest:
    return lambda value: (
        isinstance(value, NUMBERS) and not isinstance(value, bool) and -INFINITY < value <= operand
    )


def _between(operand: Any) -> ValueTest:
    low, high = operand
    return lambda value: (
        isinstance(value, NUMBERS) and not isinstance(value, bool) and low <= value <= high
    )


def _exists(_: Any) -> ValueTest:
    return lambda value: not is_missing(value)


def _contains(operand: Any) -> ValueTest:
    return lambda value: isinstance(value, str) and operand in value


def _starts_with(operand: Any) -> ValueTest:
    return lambda value: isinstance(value, str) and value.startswith(operand)


def _ends_with(operand: Any) -> ValueTest:
    return lambda value: isinstance(value, str) and value.endswith(operand)


def _is_true(_: Any) -> ValueTest:
    return lambda value: value is True


def _is_false(_: Any) -> ValueTest:
    return lambda value: value is False


def _includes(operand: Any) -> ValueTest:
    return _includes_any((operand,))


def _includes_any(operand: Any) -> ValueTest:
    keys = frozenset(map(identity, operand))
    return lambda value: _is_list(value) and any(identity(item) in keys for item in value)


def _includes_all(operand: Any) -> ValueTest:
    keys = frozenset(map(identity, operand))
    return lambda value: _is_list(value) and keys <= set(map(identity, value))


def _size_gt(operand: Any) -> ValueTest:
    return lambda value: _is_list(value) and len(value) > operand


def _size_eq(operand: Any) -> ValueTest:
    return lambda value: _is_list(value) and len(value) == operand


def _size_lt(operand: Any) -> ValueTest:
    return lambda value: _is_list(value) and len(value) < operand


def _is_list(value: object) -> bool:
    return isinstance(value, (list, tuple))


_POSITIVE: Mapping[str, Callable[[Any], ValueTest]] = MappingProxyType(
    {
        "eq": _eq,
        "in": _in,
        "gt": _gt,
        "gte": _gte,
        "lt": _lt,
        "lte": _lte,
        "between": _between,
        "exists": _exists,
        "contains": _contains,
        "starts_with": _starts_with,
        "ends_with": _ends_with,
        "is_true": _is_true,
        "is_false": _is_false,
        "includes": _includes,
        "includes_any": _includes_any,
        "includes_all": _includes_all,
        "size_gt": _size_gt,
        "size_eq": _size_eq,
        "size_lt": _size_lt,
    }
)


def operand_fault(op: str, operand: object) -> tuple[str, str] | None:
    """What is wrong with an operand, and the fix; None when the operator of `OPERATORS` takes it.

    >>> operand_fault("gt", "10")[0]
    'The operator "gt" takes a number, not "10".'
    """
    takes = OPERATORS[op]
    if _accepts(takes, operand):
        return None
    wanted, example = _WANTED[takes]
    message = f'The operator "{op}" takes {wanted}, not {shown(operand)}.'
    return message, _operand_fix(op, takes, operand) or f"Write for example {example}."


def _accepts(takes: Takes, operand: object) -> bool:
    match takes:
        case "nothing":
            return operand is None
        case "scalar":
            return is_operand_scalar(operand)
        case "scalars":
            return _is_list_of_scalars(operand)
        case "number":
            return is_operand_number(operand)
        case "range":
            return is_operand_range(operand)
        case "text":
            return isinstance(operand, str) and operand != ""
        case "size":
            return is_count(operand)


def _operand_fix(op: str, takes: Takes, operand: object) -> str:
    if takes in ("number", "range") and isinstance(operand, str):
        return 'Write the number without quotes; for dates use "before" or "after".'
    if operand is None and takes != "nothing":
        return 'Write a value; to ask for a missing one use "not_exists".'
    if takes == "range" and isinstance(operand, list) and len(operand) == 2:
        return "Write the lower number first; both ends are inside."
    return 'Remove "value".' if takes == "nothing" else ""


_WANTED: Mapping[Takes, tuple[str, str]] = MappingProxyType(
    {
        "nothing": ("no value", ""),
        "scalar": ("a text, a number, true or false", '"premium" or 10'),
        "scalars": ("a list of texts, numbers, true or false", '["free", "trial"]'),
        "number": ("a number", "10"),
        "range": ("two numbers, the lower first", "[18, 65]"),
        "text": ("a text of at least one character", '"example.org"'),
        "size": ("a whole number from 0 up", "3"),
    }
)


def is_operand_number(operand: object) -> bool:
    """True for a finite number that 64 bits hold."""
    if isinstance(operand, int):
        return not isinstance(operand, bool) and -LARGEST_INTEGER <= operand < LARGEST_INTEGER
    return is_number(operand)


def is_operand_scalar(operand: object) -> bool:
    """True for text, true, false, and a number as `is_operand_number` wants it."""
    return isinstance(operand, (str, bool)) or is_operand_number(operand)


def is_count(operand: object) -> bool:
    """True for a whole number from 0 up that 64 bits hold."""
    return isinstance(operand, int) and is_operand_number(operand) and operand >= 0


def is_operand_range(operand: object) -> bool:
    """True for a list of two numbers of which the first is not the larger."""
    if not isinstance(operand, list) or len(operand) != 2:
        return False
    low, high = operand
    return is_operand_number(low) and is_operand_number(high) and low <= high


def _is_list_of_scalars(operand: object) -> bool:
    return isinstance(operand, list) and bool(operand) and all(map(is_operand_scalar, operand))


def nearest(word: object, known: list[str]) -> str:
    """The known word that somebody who wrote `word` is likely to have meant, "" for none."""
    if not isinstance(word, str) or len(word) > SHOWN_CHARACTERS:
        return ""
    return next(iter(get_close_matches(word.lower(), known, n=1)), "")


def shown(value: object) -> str:
    """A value as a message may quote it: short, on one line, and of no use as markup or bytes.

    >>> shown("two\\nlines"), shown(True), shown([1]), shown({})
    ('"two\\\\nlines"', 'true', 'a list', 'an object')
    """
    if isinstance(value, str):
        short = value if len(value) <= SHOWN_CHARACTERS else value[:SHOWN_CHARACTERS] + "…"
        text = json.dumps(short, ensure_ascii=False)
        return text.encode("utf-8", "backslashreplace").decode("utf-8")
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, int):
        return str(value) if abs(value) < LARGEST_INTEGER * 2 else "a number beyond 64 bits"
    if isinstance(value, (list, tuple)):
        return "a list"
    return "an object" if isinstance(value, dict) else f"a {type(value).__name__}"


def shown_value(value: object) -> Any:
    """A value that JSON can hold: scalars and short lists as they are, anything else named."""
    if isinstance(value, (list, tuple)):
        rest = [f"and {len(value) - SHOWN_ITEMS} more"] if len(value) > SHOWN_ITEMS else []
        return [*map(_shown_scalar, value[:SHOWN_ITEMS]), *rest]
    return _shown_scalar(value)


def _shown_scalar(value: object) -> Any:
    plain = value is None or isinstance(value, (bool, str)) or is_operand_number(value)
    return value if plain else shown(value)
