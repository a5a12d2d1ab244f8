"""One date operator as bounds: between which dates, and between which instants, it holds.

SQL knows neither zones nor leap days as the rules know them, so every question about them is
answered here, once for all people, by asking the engine's own comparison where its answer turns.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from datetime import date
from typing import NamedTuple

from whenever import Date, Instant, TimeDelta

from journeykit_engine import moment
from journeykit_engine.moment import COUNTED, Dated

FIRST_DAY, LAST_DAY = 1, date.max.toordinal()
BEFORE_ALL, BEHIND_ALL = "", ":"
"""Texts that are sorted before and behind every date."""
NANOSECONDS = 1_000_000_000  # of a second
AGES = 10**30
"""Nanoseconds from 1970 that no instant reaches, in either direction."""
LONGEST_CHANGE = TimeDelta(hours=26)
"""More than a clock was ever put back, and so what a day may show again after its end."""


class Cut(NamedTuple):
    """A turn of an answer, in nanoseconds since 1970: what is before `sure_before` lies before it,
    what is not before `sure_after` behind it. They differ only where a clock that is put back shows
    the day before once more."""

    sure_before: int
    sure_after: int


class Bounds(NamedTuple):
    """Where an operator holds, both halves open at their end.

    `first_day` and `end_day` are texts to compare with YYYY-MM-DD; with `anniversaries` (MM-DD) it
    is these that count. `start` and `end` bound instants; None where no two bounds can.
    """

    first_day: str
    end_day: str
    start: Cut | None
    end: Cut | None
    anniversaries: frozenset[str] | None = None


def bounds(dated: Dated, now: Instant, zone: str) -> Bounds:
    """The bounds of an operator as it answers at `now` for an account in `zone`."""
    if dated.annual and dated.op in COUNTED:
        return Bounds("", "", None, None, _anniversaries(dated, now, zone))
    if dated.op in COUNTED:
        first, end = _counted(dated, moment.local_day(now, zone))
        return _of_days(first, end, zone)
    if dated.op in ("before", "after", "on_day"):
        return _fixed(dated, zone)
    return _window(dated, now, zone)


def _anniversaries(dated: Dated, now: Instant, zone: str) -> frozenset[str]:
    """The year that is written plays no part, so a leap year shows every answer there is."""
    holds = moment.compile_dated(dated)
    first = date(2000, 1, 1).toordinal()
    days = (_day(first + number) for number in range(366))
    return frozenset(day[5:] for day in days if holds(Date.parse_iso(day), now, zone))


def _counted(dated: Dated, today: Date) -> tuple[int, int]:
    """The ordinals of the first day for which it holds and of the first behind those."""
    origin, wanted = _ordinal(today), int(dated.value)
    low, high = {
        "eq": (wanted, wanted),
        "gt": (wanted + 1, AGES),
        "gte": (wanted, AGES),
        "lt": (0, wanted - 1),
        "lte": (0, wanted),
    }[dated.compare]
    if dated.op == "days_since":
        return origin - high, origin - low + 1
    return origin + low, origin + high + 1


def _of_days(first: int, end: int, zone: str) -> Bounds:
    return Bounds(_day(first), _day(end), _midnight(first, zone), _midnight(end, zone))


def _fixed(dated: Dated, zone: str) -> Bounds:
    operand = moment.read_moment(dated.value)
    if operand is None:  # an operand that no check has seen: nothing is before or after it
        return _of_days(FIRST_DAY, FIRST_DAY, zone)
    day = _ordinal(moment.local_day(operand, zone))
    if dated.op == "on_day":
        return _of_days(day, day + 1, zone)
    found = _of_days(-AGES, day, zone) if dated.op == "before" else _of_days(day + 1, AGES, zone)
    if not isinstance(operand, Instant):
        return found
    at = nanoseconds(operand)
    if dated.op == "before":
        return found._replace(end=_exactly(at))
    return found._replace(start=_exactly(at + 1))


def _window(dated: Dated, now: Instant, zone: str) -> Bounds:
    """The first moment, as a day and as an instant, that lies less than each length ago."""
    length = moment.window_length(str(dated.value))
    older, newer, later = (_turn(now, by, zone) for by in (length, moment.NO_TIME, -length))
    never, ever = (_day(-AGES), _exactly(-AGES)), (_day(AGES), _exactly(AGES))
    (first, start), (end_day, end) = {
        "within_last": (older, newer),
        "before_last": (never, older),
        "within_next": (newer, later),
        "after_next": (later, ever),
    }[dated.op]
    return Bounds(first, end_day, start, end)


def _turn(now: Instant, ago: TimeDelta, zone: str) -> tuple[str, Cut]:
    """Where moments begin that are less than `ago` before now."""

    def is_younger(day: int) -> bool:
        return now - moment.first_instant(Date.parse_iso(_day(day)), zone) < ago

    days = range(FIRST_DAY, LAST_DAY + 1)
    first = FIRST_DAY + bisect_left(days, True, key=is_younger)
    return _day(first), _exactly(nanoseconds(now) - _nanoseconds_of(ago) + 1)


def _exactly(at: int) -> Cut:
    return Cut(at, at)


def _midnight(day: int, zone: str) -> Cut:
    """Where the clock in `zone` first shows this date."""
    if day < FIRST_DAY or day > LAST_DAY:
        return _exactly(-AGES if day < FIRST_DAY else AGES)
    wanted = Date.parse_iso(_day(day))
    at = moment.first_instant(wanted, zone)
    began = nanoseconds(at)
    change = moment.local_clock(at, zone).next_transition()
    if change is None or change.date() >= wanted or change.to_instant() - at > LONGEST_CHANGE:
        return _exactly(began)
    return Cut(began, began + 2 * _nanoseconds_of(LONGEST_CHANGE))


def _day(ordinal: int) -> str:
    if ordinal < FIRST_DAY:
        return BEFORE_ALL
    return BEHIND_ALL if ordinal > LAST_DAY else date.fromordinal(ordinal).isoformat()


def _ordinal(day: Date) -> int:
    return date(day.year, day.month, day.day).toordinal()


def nanoseconds(at: Instant) -> int:
    """Since 1970 in UTC."""
    return at.timestamp(unit="nanosecond")


def _nanoseconds_of(length: TimeDelta) -> int:
    return int(length.total("nanoseconds"))


def seconds_text(at: int, round_up: bool) -> str:
    """The second of an instant as UTC text without its zone: the one it lies in, or the first one
    that does not begin before it."""
    second = -(-at // NANOSECONDS) if round_up else at // NANOSECONDS
    return _clamped(second, lambda: Instant.from_timestamp(second).format_iso()[:19])


def _clamped(second: int, shown: Callable[[], str]) -> str:
    if second < _FIRST_SECOND:
        return BEFORE_ALL
    return BEHIND_ALL if second > _LAST_SECOND else shown()


_FIRST_SECOND, _LAST_SECOND = Instant.MIN.timestamp(), Instant.MAX.timestamp()


def microsecond(at: int) -> int:
    """The first whole microsecond that does not lie before `at`, within what a column holds."""
    return max(-(2**62), min(-(-at // 1_000), 2**62))
