"""One JSON value against one operator as SQL, for both databases.

A condition is a pair: where `lower` is true the operator surely holds, where `upper` is false it
surely does not. What SQL says exactly has one text for both. Every condition is true or false,
never NULL, whatever lies in the document. Documents are as orjson writes them, so a fraction stands
there as the shortest decimal that reads as it.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import orjson

from journeykit_engine.comparison import NEGATIONS, Comparison
from journeykit_engine.moment import COUNTED, Dated
from journeykit_server.rules_days import Bounds, seconds_text

Dialect = Literal["sqlite", "postgresql"]

SAFE_INTEGER = 2**53
"""Below it a whole number is one double, and the decimals of two doubles are in their own order."""
NEIGHBOURS = 64
"""Doubles to either side of an operand of which SQLite has to show that it reads them well; with 15
digits, which it promises, it confuses nothing that lies further away."""
ROUNDING = 2.0**-45  # of a number: more than the last digits that a reading may get wrong
MOST_ITEMS_ASKED = 50  # of includes_all, each of which reads the list once


class Pair(NamedTuple):
    """The condition that surely means yes, and the one without which it is surely no."""

    lower: str
    upper: str

    @property
    def is_exact(self) -> bool:
        return self.lower == self.upper


TRUE, FALSE = "TRUE", "FALSE"
YES, NO, PERHAPS = Pair(TRUE, TRUE), Pair(FALSE, FALSE), Pair(FALSE, TRUE)


def exactly(condition: str) -> Pair:
    """A condition that says all; NULL counts as no."""
    return Pair(text := f"({condition}) IS TRUE", text)


def every(pairs: Sequence[Pair]) -> Pair:
    """All of them."""
    return Pair(_joined("AND", [p.lower for p in pairs]), _joined("AND", [p.upper for p in pairs]))


def some(pairs: Sequence[Pair]) -> Pair:
    """At least one of them."""
    return Pair(_joined("OR", [p.lower for p in pairs]), _joined("OR", [p.upper for p in pairs]))


def negation(pair: Pair) -> Pair:
    """What is surely not becomes what surely is."""
    return Pair(_negated(pair.upper), _negated(pair.lower))


def _joined(word: Literal["AND", "OR"], parts: Sequence[str]) -> str:
    neutral, final = (TRUE, FALSE) if word == "AND" else (FALSE, TRUE)
    kept = [part for part in parts if part != neutral]
    if final in kept:
        return final
    if len(kept) < 2:
        return kept[0] if kept else neutral
    return f"({f' {word} '.join(kept)})"


def _negated(condition: str) -> str:
    return {TRUE: FALSE, FALSE: TRUE}.get(condition, f"NOT ({condition})")


# --- constants


def is_storable(text: str) -> bool:
    """Whether a database can hold this text: if not, nothing stored is equal to it."""
    return "\0" not in text and not any("\ud800" <= each <= "\udfff" for each in text)


def quoted(text: str, dialect: Dialect) -> str:
    """A text as a constant, whatever it holds and however the server is set up."""
    doubled = text.replace("'", "''")
    if dialect == "sqlite":
        return f"'{doubled}'"
    return "E'" + doubled.replace("\\", "\\\\") + "'" if "\\" in text else f"'{doubled}'"


def constant(value: object, dialect: Dialect) -> str:
    """A JSON value as a constant: jsonb, and JSON text on SQLite."""
    text = quoted(orjson.dumps(value).decode(), dialect)
    return f"{text}::jsonb" if dialect == "postgresql" else text


def number(value: int | float | Decimal) -> str:
    """A number as a constant; in brackets where a sign could be taken for a part of a comment."""
    text = str(value) if isinstance(value, (int, Decimal)) else float.__repr__(value)
    return f"({text})" if text.startswith("-") else text


# --- where a value lies


class Place(NamedTuple):
    """A value inside a document. On SQLite `kind` is its type as json_type tells it and `value`
    the value itself, a list or an object as JSON text; on PostgreSQL `value` is jsonb and `kind`
    the same types by its own names."""

    dialect: Dialect
    kind: str
    value: str

    @property
    def text(self) -> str:
        """The value as text, to be looked at only where the value is one."""
        if self.dialect == "sqlite":
            return self.value
        return f"({self.value} #>> '{{}}')"

    @property
    def is_text(self) -> str:
        word = "text" if self.dialect == "sqlite" else "string"
        return f"{self.kind} = '{word}'"

    @property
    def is_number(self) -> str:
        if self.dialect == "sqlite":
            return f"{self.kind} IN ('integer', 'real')"
        return f"{self.kind} = 'number'"

    @property
    def is_scalar(self) -> str:
        """A text, a number, true or false."""
        if self.dialect == "sqlite":
            return f"{self.kind} IN ('text', 'integer', 'real', 'true', 'false')"
        return f"{self.kind} IN ('string', 'number', 'boolean')"


def place(document: str, name: str, dialect: Dialect) -> Place:
    """The value that a document (a column) has under a name; NULL where it has none."""
    if dialect == "postgresql":
        value = f"({document} -> {quoted(name, dialect)})"
        return Place(dialect, f"jsonb_typeof({value})", value)
    if _is_plain_label(name):
        path = quoted(f'$."{name}"', dialect)
        return Place(dialect, f"json_type({document}, {path})", f"json_extract({document}, {path})")
    # A path can neither be empty nor hold what JSON text escapes; the walk through all names can.
    rest = f"FROM json_each({document}) AS m WHERE m.key = {quoted(name, dialect)}"
    return Place(dialect, f"(SELECT m.type {rest})", f"(SELECT m.value {rest})")


def _is_plain_label(name: str) -> bool:
    return name != "" and not any(each in '"\\' or each < " " for each in name)


# --- comparisons


def compared(at: Place, comparison: Comparison) -> Pair:
    """The condition that a value passes a comparison."""
    positive = NEGATIONS.get(comparison.op)
    if positive is not None:
        return negation(_passes(at, positive, comparison.value))
    return _passes(at, comparison.op, comparison.value)


def _passes(at: Place, op: str, operand: Any) -> Pair:
    match op:
        case "eq":
            return _is_one_of(at, (operand,))
        case "in":
            return _is_one_of(at, operand)
        case "gt" | "gte" | "lt" | "lte":
            return _is_ordered(at, op, operand)
        case "between":
            low, high = operand
            return every([_is_ordered(at, "gte", low), _is_ordered(at, "lte", high)])
        case "exists":
            return exactly(f"{at.kind} <> 'null'")
        case "contains" | "starts_with" | "ends_with":
            return _has_text(at, op, operand)
        case "is_true" | "is_false":
            return _is_one_of(at, (op == "is_true",))
        case "includes":
            return _includes_any(at, (operand,))
        case "includes_any":
            return _includes_any(at, operand)
        case "includes_all":
            return _includes_all(at, operand)
        case _:
            return _has_size(at, op, operand)


def _is_one_of(at: Place, operands: Iterable[Any]) -> Pair:
    texts, numbers, others = _sorted_out(operands)
    if at.dialect == "postgresql":
        clean = [*texts, *(n for n in numbers if abs(n) < SAFE_INTEGER), *others]
        return some(
            [
                *([_is_in_jsonb(at, clean)] if clean else ()),
                *(_is_ordered(at, "eq", n) for n in numbers if abs(n) >= SAFE_INTEGER),
            ]
        )
    words = [exactly(f"{at.kind} = '{str(value).lower()}'") for value in others]
    kept = [*([_is_in_texts(at, texts)] if texts else ()), *words]
    return some([*kept, *_is_in_numbers(at, numbers)])


def _sorted_out(
    operands: Iterable[Any],
) -> tuple[list[str], list[int | float], list[bool]]:
    """Texts that can be stored, numbers, and true or false."""
    texts: dict[str, None] = {}
    numbers: dict[int | float, None] = {}
    others: dict[bool, None] = {}
    for value in operands:
        if isinstance(value, bool):
            others[value] = None
        elif isinstance(value, str):
            if is_storable(value):
                texts[value] = None
        else:
            numbers[value] = None
    return list(texts), list(numbers), list(others)


def _is_in_jsonb(at: Place, values: Sequence[Any]) -> Pair:
    if len(values) == 1:
        return exactly(f"{at.value} = {constant(values[0], at.dialect)}")
    # A query of its own is hashed once; the constants one by one would be compared one by one.
    given = f"SELECT jsonb_array_elements({constant(list(values), at.dialect)})"
    return exactly(f"{at.value} IN ({given})")


def _is_in_texts(at: Place, texts: Sequence[str]) -> Pair:
    constants = ", ".join(quoted(text, at.dialect) for text in texts)
    test = f"{at.value} = {constants}" if len(texts) == 1 else f"{at.value} IN ({constants})"
    if any(text.startswith(("[", "{")) for text in texts):  # a list is read as its JSON text
        test = f"{at.is_text} AND {test}"
    return exactly(test)


def _is_in_numbers(at: Place, numbers: Sequence[int | float]) -> list[Pair]:
    if len(numbers) > 1 and all(map(is_read_well, numbers)):
        return [exactly(f"{at.is_number} AND {at.value} IN ({', '.join(map(number, numbers))})")]
    return [_is_ordered(at, "eq", value) for value in numbers]


SIGNS = {"eq": "=", "gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
OPPOSITES = {"gt": "<=", "gte": "<", "lt": ">=", "lte": ">"}


def _is_ordered(at: Place, op: str, operand: int | float) -> Pair:
    value = at.value if at.dialect == "sqlite" else f"({at.value})::numeric"
    relation = ordered(value, op, operand, at.dialect)
    return Pair(*(_if_number(at, test) for test in relation))


def _if_number(at: Place, test: str) -> str:
    if at.dialect == "sqlite":
        return f"({at.is_number} AND {test}) IS TRUE"
    # Nothing promises that the halves of an AND are looked at in their order, and the cast may
    # fail.
    return f"(CASE WHEN {at.is_number} THEN {test} END) IS TRUE"


def ordered(value: str, op: str, operand: int | float, dialect: Dialect) -> Pair:
    """A number, an SQL expression, against an operand. NULL stays NULL."""
    if is_read_well(operand) if dialect == "sqlite" else abs(operand) < SAFE_INTEGER:
        return Pair(test := f"{value} {SIGNS[op]} {number(operand)}", test)
    low, high = _near(operand, dialect)
    if op == "eq":
        return Pair(FALSE, f"({value} BETWEEN {low} AND {high})")
    sure, near = (high, low) if op in ("gt", "gte") else (low, high)
    return Pair(f"{value} {SIGNS[op][0]} {sure}", f"{value} {SIGNS[op][0]}= {near}")


def _near(operand: int | float, dialect: Dialect) -> tuple[str, str]:
    """Bounds behind which no reading error takes a number to the other side of the operand."""
    if dialect == "postgresql":
        exact = Decimal(operand)
        width = abs(exact) * Decimal(ROUNDING)
        return number(exact - width), number(exact + width)
    width_read = abs(operand) * ROUNDING + 1e-290
    low, high = operand - width_read, operand + width_read
    largest = 1.7976931348623157e308
    return number(float(max(low, -largest))), number(float(min(high, largest)))


@lru_cache(maxsize=10_000)
def is_read_well(operand: int | float) -> bool:
    """Whether this machine's SQLite sees every decimal next to an operand on its right side; it is
    not bound to read the 16th digit well."""
    near = [middle := float(operand)]
    for end in (-math.inf, math.inf):
        step = middle
        for _ in range(NEIGHBOURS):
            near.append(step := math.nextafter(step, end))
    finite = [one for one in near if math.isfinite(one)]
    connection = sqlite3.connect(":memory:")
    try:
        query = f"SELECT value < {number(operand)}, value = {number(operand)} FROM json_each(?)"
        seen = connection.execute(query, (orjson.dumps(finite).decode(),)).fetchall()
    finally:
        connection.close()
    return seen == [(one < operand, one == operand) for one in finite]


def _has_text(at: Place, op: str, operand: str) -> Pair:
    if not is_storable(operand):
        return NO
    wanted, length = quoted(operand, at.dialect), len(operand)
    if at.dialect == "sqlite":
        test = {
            "contains": f"instr({at.value}, {wanted}) > 0",
            "starts_with": f"substr({at.value}, 1, {length}) = {wanted}",
            "ends_with": f"substr({at.value}, -{length}) = {wanted}",
        }[op]
    else:
        test = {
            "contains": f"strpos({at.text}, {wanted}) > 0",
            "starts_with": f"starts_with({at.text}, {wanted})",
            "ends_with": f"right({at.text}, {length}) = {wanted}",
        }[op]
    return exactly(f"{at.is_text} AND {test}")


# --- lists


def _items(at: Place) -> str:
    """The items of a list as a table `i`, none of what is no list."""
    if at.dialect == "sqlite":
        return f"json_each(CASE WHEN {at.kind} = 'array' THEN {at.value} ELSE '[]' END) AS i"
    return (
        f"jsonb_array_elements(CASE WHEN {at.kind} = 'array' THEN {at.value} "
        "ELSE '[]'::jsonb END) AS i (value)"
    )


def _item(dialect: Dialect) -> Place:
    kind = "i.type" if dialect == "sqlite" else "jsonb_typeof(i.value)"
    return Place(dialect, kind, "i.value")


def _includes_any(at: Place, operands: Sequence[Any]) -> Pair:
    found = _is_one_of(_item(at.dialect), operands)
    return Pair(*(_any_item(at, test) for test in found))


def _any_item(at: Place, test: str) -> str:
    return FALSE if test == FALSE else f"EXISTS (SELECT 1 FROM {_items(at)} WHERE {test})"


def _includes_all(at: Place, operands: Sequence[Any]) -> Pair:
    texts, numbers, others = _sorted_out(operands)
    if any(isinstance(value, str) and not is_storable(value) for value in operands):
        return NO
    wanted: list[Any] = [*texts, *numbers, *others]
    if at.dialect == "postgresql" and all(abs(n) < SAFE_INTEGER for n in numbers):
        contained = f"{at.value} @> {constant(wanted, at.dialect)}"
        return exactly(f"{at.kind} = 'array' AND {contained}")
    if len(wanted) > MOST_ITEMS_ASKED:
        return Pair(FALSE, exactly(f"{at.kind} = 'array'").upper)
    return every([_includes_any(at, (value,)) for value in wanted])


def _has_size(at: Place, op: str, operand: int) -> Pair:
    sign = SIGNS[op.removeprefix("size_")]
    length = "json_array_length" if at.dialect == "sqlite" else "jsonb_array_length"
    test = f"CASE WHEN {at.kind} = 'array' THEN {length}({at.value}) {sign} {operand} END"
    return exactly(test)


# --- dates


def dated(at: Place, test: Dated, limits: Bounds) -> Pair:
    """The condition that a date in text is within bounds. Days and instants of UTC are looked at
    here, other writings of an instant are left to whoever reads them well."""
    shapes = _SQLITE_SHAPES if at.dialect == "sqlite" else _POSTGRESQL_SHAPES
    text = at.text
    day = f"substr({text}, 1, 10)" if test.op in COUNTED else text
    is_day, is_instant, may_be = (shape.replace("{}", text) for shape in shapes)
    on_day = _on_day(day, limits, at.dialect)
    sure, near = (on_day, on_day) if test.op in COUNTED else _at_instant(text, limits, at.dialect)
    begun = f"(CASE WHEN NOT COALESCE({at.is_text}, FALSE) THEN FALSE WHEN {is_day} THEN {on_day}"
    return Pair(
        f"{begun} WHEN {is_instant} THEN {sure} ELSE FALSE END) IS TRUE",
        f"{begun} WHEN {is_instant} THEN {near} ELSE {may_be} END) IS TRUE",
    )


_TWO = "[0-9][0-9]"
_DAY_GLOB = f"{_TWO}{_TWO}-{_TWO}-{_TWO}"
_SQLITE_SHAPES = (
    f"({{}} GLOB '{_DAY_GLOB}' AND date({{}}, '+0 days') = {{}} AND {{}} >= '0001')",
    f"({{}} GLOB '{_DAY_GLOB}T{_TWO}:{_TWO}:{_TWO}*Z' AND {{}} >= '0003' AND {{}} < '9997' "
    "AND datetime(substr({}, 1, 19), '+0 days') = replace(substr({}, 1, 19), 'T', ' ') "
    "AND (length({}) = 20 OR (substr({}, 20, 1) = '.' AND length({}) BETWEEN 22 AND 30 "
    "AND substr({}, 21, length({}) - 21) NOT GLOB '*[^0-9]*')))",
    "{} GLOB '[0-9]*'",
)
"""A day, an instant in UTC, and what else may be a date: conditions over a text."""
_LEAP_YEAR = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"  # no 1900
_DAY_PATTERN = (
    "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    f"|02-(0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_POSTGRESQL_SHAPES = (
    f"({{}} ~ '^{_DAY_PATTERN}$' AND {{}} COLLATE \"C\" >= '0001')",
    f"({{}} ~ '^{_DAY_PATTERN}T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{{1,9}})?Z$' "
    "AND {} COLLATE \"C\" >= '0003' AND {} COLLATE \"C\" < '9997')",
    "{} ~ '^[0-9]'",
)
"""The same; a cast would fail at what is no date."""


def _on_day(day: str, limits: Bounds, dialect: Dialect) -> str:
    if limits.anniversaries is not None:
        days = ", ".join(f"'{each}'" for each in sorted(limits.anniversaries))
        return f"substr({day}, 6) IN ({days})" if days else FALSE
    return _between(day, limits.first_day, limits.end_day, dialect)


def _at_instant(text: str, limits: Bounds, dialect: Dialect) -> tuple[str, str]:
    start, end, second = limits.start, limits.end, f"substr({text}, 1, 19)"
    if start is None or end is None:
        return FALSE, TRUE
    sure = seconds_text(start.sure_after, True), seconds_text(end.sure_before, False)
    near = seconds_text(start.sure_before, False), seconds_text(end.sure_after, True)
    return _between(second, *sure, dialect), _between(second, *near, dialect)


def _between(text: str, first: str, end: str, dialect: Dialect) -> str:
    collated = f'{text} COLLATE "C"' if dialect == "postgresql" else text
    return f"({collated} >= '{first}' AND {collated} < '{end}')"
