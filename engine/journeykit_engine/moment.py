"""One date against one date operator: fixed days, windows around now, and anniversaries.

A moment is an instant (a timestamp with an offset, an event's arrival) or a date (text of the form
YYYY-MM-DD). Where either side of before, after or on_day is a date, both are compared as dates of
the account's zone. Windows measure elapsed time (a day is 24 hours, a week 168) and look at a date
as the first instant of that day in the account's zone. For any duration exactly one of
before_last, within_last, within_next and after_next holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from whenever import Date, Instant, TimeDelta, ZonedDateTime

from journeykit_engine import timing
from journeykit_engine.comparison import is_count, shown

Moment = Date | Instant
Takes = Literal["moment", "day", "duration", "days"]
MomentTest = Callable[[Moment | None, Instant, str], bool]

OPERATORS: Mapping[str, Takes] = MappingProxyType(
    {
        "before": "moment",
        "after": "moment",
        "on_day": "day",
        "within_last": "duration",
        "within_next": "duration",
        "before_last": "duration",
        "after_next": "duration",
        "days_until": "days",
        "days_since": "days",
    }
)
COUNTED = ("days_until", "days_since")
COMPARES = ("eq", "gt", "gte", "lt", "lte")


@dataclass(frozen=True, slots=True)
class Dated:
    """A date operator and its operand: text as written, or a whole number of days.

    `annual` and `compare` belong to days_until and days_since: count to or from the anniversary,
    and how the count relates to `value`. A date that has passed has no days until it, one to come
    has no days since it, unless they recur every year.
    """

    op: str
    value: str | int
    annual: bool = False
    compare: str = "eq"


def read_moment(value: object) -> Moment | None:
    """A trait as a moment, None for anything that is no date; a timestamp needs its offset.

    >>> read_moment("2026-06-01"), read_moment("2026-06-01T10:00:00"), read_moment(20260601)
    (Date("2026-06-01"), None, None)
    """
    if not isinstance(value, str):
        return None
    if len(value) == len("2026-06-01"):
        return timing.read_date(value)
    try:
        return timing.read_instant(value)
    except ValueError:
        return None


def compile_dated(dated: Dated) -> MomentTest:
    """The operator as a function of a moment, now, and the account's zone; it never raises.

    days_until and days_since want the date as it was written, see `read_for`.
    """
    match dated.op:
        case "before" | "after":
            return _before_or_after(dated.op == "before", read_moment(dated.value))
        case "on_day":
            return _on_day(timing.read_date(dated.value))
        case "days_until" | "days_since":
            return _days(dated)
        case _:
            return _window(dated.op, window_length(str(dated.value)))


def read_for(dated: Dated, value: object) -> Moment | None:
    """A trait as this operator looks at it.

    Days are counted to the date that is written, whatever the offset behind it: a birthday stored
    as midnight UTC is the same day in New York.
    """
    return timing.read_date(value) if dated.op in COUNTED else read_moment(value)


def window_length(text: str) -> TimeDelta:
    """The elapsed length of a window; a business day has none, `operand_fault` refuses it."""
    return TimeDelta(minutes=window_minutes(text))


def window_minutes(text: str) -> int:
    """The length of a window in whole minutes."""
    duration = timing.parse_duration(text)
    return duration.amount * timing.MINUTES_OF[duration.unit]


def _before_or_after(before: bool, operand: Moment | None) -> MomentTest:
    def holds(moment: Moment | None, now: Instant, zone: str) -> bool:
        if moment is None or operand is None:
            return False
        if isinstance(moment, Instant) and isinstance(operand, Instant):
            return moment < operand if before else moment > operand
        day, other = local_day(moment, zone), local_day(operand, zone)
        return day < other if before else day > other

    return holds


def _on_day(operand: Date | None) -> MomentTest:
    return lambda moment, now, zone: moment is not None and local_day(moment, zone) == operand


def _window(op: str, length: TimeDelta) -> MomentTest:
    def holds(moment: Moment | None, now: Instant, zone: str) -> bool:
        if moment is None:
            return False
        ago = now - first_instant(moment, zone)
        return _in_window(op, ago, length)

    return holds


def _in_window(op: str, ago: TimeDelta, length: TimeDelta) -> bool:
    """`ago` is negative for a moment to come. The windows are half-open, the older end outside."""
    match op:
        case "within_last":
            return NO_TIME <= ago < length
        case "before_last":
            return ago >= length
        case "within_next":
            return -length <= ago < NO_TIME
        case _:
            return ago < -length


NO_TIME = TimeDelta()


def _days(dated: Dated) -> MomentTest:
    count = _count_days(dated)
    relates, wanted = RELATIONS[dated.compare], int(dated.value)

    def holds(moment: Moment | None, now: Instant, zone: str) -> bool:
        if moment is None:
            return False
        days = count(local_day(moment, zone), local_day(now, zone))
        return days >= 0 and relates(days, wanted)

    return holds


def _count_days(dated: Dated) -> Callable[[Date, Date], int]:
    if dated.op == "days_since":
        return lambda day, today: timing.days_since(day, today, dated.annual)
    if dated.annual:
        return lambda day, today: timing.days_until(day, today, annual=True)
    # Counted backwards: the calendar's last day, a common stand-in for "never ends", cannot be
    # counted forwards.
    return lambda day, today: -timing.days_since(day, today, annual=False)


RELATIONS: Mapping[str, Callable[[Any, Any], bool]] = MappingProxyType(
    {
        "eq": lambda left, right: left == right,
        "gt": lambda left, right: left > right,
        "gte": lambda left, right: left >= right,
        "lt": lambda left, right: left < right,
        "lte": lambda left, right: left <= right,
    }
)


def local_clock(at: Instant, zone: str) -> ZonedDateTime:
    """The wall clock in a zone, in UTC where the zone does not exist or the calendar ends."""
    try:
        return at.to_tz(zone)
    except (ValueError, TypeError):
        return at.to_tz("UTC")


def local_day(moment: Moment, zone: str) -> Date:
    """The date itself, or the date on the wall calendar of `zone` at an instant."""
    return moment if isinstance(moment, Date) else local_clock(moment, zone).date()


def first_instant(moment: Moment, zone: str) -> Instant:
    """The moment itself, or where its day begins; the calendar's own ends begin at its ends."""
    if isinstance(moment, Instant):
        return moment
    try:
        return timing.day_start(moment, zone if timing.is_zone(zone) else "UTC")
    except (ValueError, OverflowError):
        return Instant.MIN if moment.year == 1 else Instant.MAX


def dated_changes(dated: Dated, moment: Moment | None, now: Instant, zone: str) -> list[Instant]:
    """When the answer may turn, unordered, some perhaps already past; [] when it never does."""
    if moment is None or OPERATORS[dated.op] in ("moment", "day"):
        return []
    if dated.op in COUNTED:
        return next_local(now, zone, hours=24)
    at = first_instant(moment, zone)
    length = window_length(str(dated.value))
    edge = length if dated.op in ("within_last", "before_last") else -length
    return [at, *shifted(at, edge)]


def shifted(at: Instant, by: TimeDelta) -> list[Instant]:
    """The moved instant in a list, which is empty where it falls off the calendar."""
    try:
        return [at + by]
    except (ValueError, OverflowError):
        return []


def next_local(now: Instant, zone: str, hours: Literal[1, 24]) -> list[Instant]:
    """When the local hour or the local date turns next, in a list that is empty at the world's end.

    A change of the zone's offset counts as a turn: until then the offset is constant, so the
    distance to the full hour or to midnight is plain arithmetic.
    """
    clock = local_clock(now, zone)
    passed = TimeDelta(
        hours=clock.hour % hours,
        minutes=clock.minute,
        seconds=clock.second,
        nanoseconds=clock.nanosecond,
    )
    turns = shifted(now, TimeDelta(hours=hours) - passed)
    transition = clock.next_transition()
    return turns if transition is None else [*turns, transition.to_instant()]


def shown_moment(at: Moment | None) -> str | None:
    """A moment as text, None for none."""
    if at is None:
        return None
    return timing.write_instant(at) if isinstance(at, Instant) else at.format_iso()


def operand_fault(op: str, operand: object) -> tuple[str, str] | None:
    """What is wrong with an operand, and the fix; None when the operator of `OPERATORS` takes it.

    >>> operand_fault("within_last", "7 days")[0]
    'The operator "within_last" takes a duration in m, h, d or w, not "7 days".'
    """
    takes = OPERATORS[op]
    if _accepts(takes, operand):
        return None
    wanted, example = _WANTED[takes]
    message = f'The operator "{op}" takes {wanted}, not {shown(operand)}.'
    return message, _operand_fix(takes, operand) or f"Write for example {example}."


def _accepts(takes: Takes, operand: object) -> bool:
    match takes:
        case "moment":
            return read_moment(operand) is not None
        case "day":
            return isinstance(read_moment(operand), Date)
        case "duration":
            return is_window(operand)
        case "days":
            return is_count(operand)


def is_window(text: object) -> bool:
    """True for a duration of elapsed time: business days have no length all people share."""
    if not isinstance(text, str):
        return False
    try:
        return timing.parse_duration(text).unit != "business_day"
    except ValueError:
        return False


def _operand_fix(takes: Takes, operand: object) -> str:
    if not isinstance(operand, str):
        return ""
    if takes == "duration" and operand.endswith("bd"):
        return 'Business days are for waits; write calendar days, for example "7d".'
    if takes == "moment" and operand[10:11] in ("T", " "):
        return 'Write the offset too, for example "2026-06-01T10:00:00Z".'
    return ""


_WANTED: Mapping[Takes, tuple[str, str]] = MappingProxyType(
    {
        "moment": ("a date or a timestamp with its offset", '"2026-06-01"'),
        "day": ("a date", '"2026-06-01"'),
        "duration": ("a duration in m, h, d or w", '"7d"'),
        "days": ("a whole number of days from 0 up", "3"),
    }
)
