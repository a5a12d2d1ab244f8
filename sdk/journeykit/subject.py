"""What a rule asks about, before it is compared: a trait, a property, a time, a total.

A comparison makes a rule of it (or, of a property, a filter). Mistakes are told where they are
made: a comparison that is missing, a value of the wrong type, a datetime without a timezone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from whenever import Date, Instant, OffsetDateTime, ZonedDateTime

from journeykit.mistake import JourneyError, plain, wrong_type

Body = dict[str, Any]
When: TypeAlias = "str | date | datetime | Date | Instant | OffsetDateTime | ZonedDateTime"
Compare = Literal["eq", "gt", "gte", "lt", "lte"]
Asked = TypeVar("Asked")
"""What a comparison gives: a rule, or a filter."""


class Subject(Generic[Asked]):
    """Something that is no rule yet, for it still has to be compared."""

    __slots__ = ("_body", "_name")

    def __init__(self, name: str, body: Body) -> None:
        self._name = name
        self._body = body

    def __repr__(self) -> str:
        return self._name

    def __bool__(self) -> bool:
        raise JourneyError(
            "NO_COMPARISON",
            f"{self._name} is no rule yet.",
            'Compare it, for example with == "premium" or .exists().',
        )

    def _uncompared(self, other: object) -> Asked:
        raise JourneyError(
            "NO_COMPARISON",
            f"{self._name} stands beside & or | without a comparison.",
            'Put each comparison between parentheses: (trait("a") == 1) & (trait("b") == 2).',
        )

    __and__ = __rand__ = __or__ = __ror__ = _uncompared

    def __invert__(self) -> Asked:
        return self._uncompared(None)

    def _ask(self, op: str, value: object = None, **more: object) -> Asked:
        tested = {"op": op} if value is None else {"op": op, "value": value}
        return self._asked({**self._body, **tested, **more})

    def _asked(self, body: Body) -> Asked:
        raise NotImplementedError


class Ordered(Subject[Asked]):
    """A subject that compares with numbers."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, value: object) -> Asked:  # type: ignore[override]
        return self._compare("eq", value)

    def __gt__(self, value: object) -> Asked:
        return self._compare("gt", value)

    def __ge__(self, value: object) -> Asked:
        return self._compare("gte", value)

    def __lt__(self, value: object) -> Asked:
        return self._compare("lt", value)

    def __le__(self, value: object) -> Asked:
        return self._compare("lte", value)

    def _compare(self, op: str, value: object) -> Asked:
        return self._ask(op, _value(self._name, value))


class Valued(Ordered[Asked]):
    """A subject that compares with any value: a trait, a property, a part of the local time."""

    __slots__ = ()
    __hash__ = None

    def __eq__(self, value: object) -> Asked:  # type: ignore[override]
        return self._compare("eq", value)

    def __ne__(self, value: object) -> Asked:  # type: ignore[override]
        return self._compare("neq", value)

    def is_in(self, values: Iterable[object]) -> Asked:
        """One of the values; false where it is missing."""
        return self._ask("in", _values(self._name, values))

    def not_in(self, values: Iterable[object]) -> Asked:
        """None of the values; true where it is missing."""
        return self._ask("not_in", _values(self._name, values))

    def between(self, low: float, high: float) -> Asked:
        """A number from `low` to `high`, both inside."""
        return self._ask("between", _values(self._name, (low, high)))


class Measured(Valued[Asked]):
    """A subject that may also be a text, true, false, or a list."""

    __slots__ = ()
    __hash__ = None

    def exists(self) -> Asked:
        """It has a value."""
        return self._ask("exists")

    def missing(self) -> Asked:
        """It has no value: absent or null."""
        return self._ask("not_exists")

    def contains(self, text: str) -> Asked:
        """A text with this text inside; case matters."""
        return self._ask("contains", text)

    def not_contains(self, text: str) -> Asked:
        """Not a text with this text inside; true where it is missing."""
        return self._ask("not_contains", text)

    def starts_with(self, text: str) -> Asked:
        """A text that begins so."""
        return self._ask("starts_with", text)

    def ends_with(self, text: str) -> Asked:
        """A text that ends so."""
        return self._ask("ends_with", text)

    def is_true(self) -> Asked:
        """It is true itself; 1 and "true" are not."""
        return self._ask("is_true")

    def is_false(self) -> Asked:
        """It is false itself; missing is not false."""
        return self._ask("is_false")

    def includes(self, value: object) -> Asked:
        """A list with this value among its items."""
        return self._ask("includes", _value(self._name, value))

    def includes_any(self, values: Iterable[object]) -> Asked:
        """A list with at least one of the values."""
        return self._ask("includes_any", _values(self._name, values))

    def includes_all(self, values: Iterable[object]) -> Asked:
        """A list with every one of the values."""
        return self._ask("includes_all", _values(self._name, values))

    def size(self) -> Size[Asked]:
        """The number of items of a list, to be compared with >, == or <."""
        return Size(self)


class Size(Generic[Asked]):
    """The number of items of a list."""

    __slots__ = ("_subject",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, subject: Measured[Asked]) -> None:
        self._subject = subject

    def __gt__(self, count: int) -> Asked:
        return self._subject._ask("size_gt", plain(count))

    def __eq__(self, count: object) -> Asked:  # type: ignore[override]
        return self._subject._ask("size_eq", plain(count))

    def __lt__(self, count: int) -> Asked:
        return self._subject._ask("size_lt", plain(count))


class Dated(Subject[Asked]):
    """A subject with date operators. Dates are dates of the account's zone; a moment needs its
    offset, durations are elapsed time in m, h, d or w."""

    __slots__ = ()

    def before(self, when: When) -> Asked:
        """Earlier than this date or moment."""
        return self._ask("before", _moment(self._name, when))

    def after(self, when: When) -> Asked:
        """Later than this date or moment."""
        return self._ask("after", _moment(self._name, when))

    def on_day(self, day: When) -> Asked:
        """On this date."""
        return self._ask("on_day", _moment(self._name, day))

    def within_last(self, duration: str) -> Asked:
        """In the last such time, now inside: (now - duration, now]."""
        return self._ask("within_last", duration)

    def within_next(self, duration: str) -> Asked:
        """In the next such time."""
        return self._ask("within_next", duration)

    def before_last(self, duration: str) -> Asked:
        """Longer ago than this."""
        return self._ask("before_last", duration)

    def after_next(self, duration: str) -> Asked:
        """Further ahead than this."""
        return self._ask("after_next", duration)

    def days_until(self, days: int, *, annual: bool = False, compare: Compare = "eq") -> Asked:
        """So many days to go; `annual` counts to the next anniversary."""
        return self._ask("days_until", plain(days), **_counted(annual, compare))

    def days_since(self, days: int, *, annual: bool = False, compare: Compare = "eq") -> Asked:
        """So many days gone; `annual` counts from the last anniversary."""
        return self._ask("days_since", plain(days), **_counted(annual, compare))


def _counted(annual: bool, compare: str) -> Body:
    more: Body = {"annual": True} if annual else {}
    return more if compare == "eq" else {**more, "compare": compare}


def _value(name: str, value: object) -> object:
    value = plain(value)
    if isinstance(value, Subject):
        fix = "Write a text, a number, true or false."
        raise JourneyError("WRONG_TYPE", f"{name} compares with a value, not {value!r}.", fix)
    if isinstance(value, date):
        _moment(name, value)
        fix = "Use .before(…), .after(…) or .on_day(…)."
        raise JourneyError("WRONG_TYPE", f"{name} does not compare with a date this way.", fix)
    if value is None:
        fix = "Use .missing() or .exists()."
        raise JourneyError("WRONG_TYPE", f"{name} does not compare with None.", fix)
    return value


def _values(name: str, values: Iterable[object]) -> list[object]:
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise wrong_type(f"The values for {name}", "a list", values, 'Write ["free", "trial"].')
    return [_value(name, value) for value in values]


def _moment(name: str, when: object) -> str:
    """A date as YYYY-MM-DD, a moment with its offset; what is text already is judged later."""
    match when:
        case str():
            return when
        case datetime() if when.utcoffset() is None:
            raise JourneyError(
                "NAIVE_DATETIME",
                f"{name}: {when.isoformat()} has no timezone.",
                'Attach a timezone, for example datetime(…, tzinfo=ZoneInfo("Europe/Berlin")).',
            )
        case datetime():
            return OffsetDateTime(when).format_iso()
        case date():
            return when.isoformat()
        case Date() | Instant() | OffsetDateTime():
            return when.format_iso()
        case ZonedDateTime():
            return when.to_instant().format_iso()
        case _:
            raise wrong_type(name, "a date or a moment", when, 'Write for example "2026-06-01".')


def quoted(name: object) -> str:
    """A name as it is written in code: never shortened, since it stands in the subject's repr."""
    return json.dumps(name, ensure_ascii=False) if isinstance(name, str) else repr(name)
