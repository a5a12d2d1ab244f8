"""When: waits, windows, sweeps and dates as pure functions of a moment and a zone.

Instants are `whenever.Instant`, zones IANA names that `is_zone` accepts (another one raises
`whenever.TimeZoneNotFoundError`). The rules, for every function here:

* a local time that a clock change skips moves on by the length of the gap when a wait lands on it;
  an asked hour or an opening inside the gap is the first instant after it;
* a local time that comes twice is its first occurrence;
* a date that a zone skipped (Samoa had no 30 December 2011) is no day: nothing happens on it and
  nobody counts it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple, assert_never

from whenever import (
    Date,
    Instant,
    PlainDateTime,
    Time,
    TimeDelta,
    TimeZoneNotFoundError,
    ZonedDateTime,
)

from journeykit_engine.zone import EARLIEST as EARLIEST
from journeykit_engine.zone import LATEST as LATEST
from journeykit_engine.zone import ZONES as ZONES
from journeykit_engine.zone import first_zone as first_zone
from journeykit_engine.zone import is_zone as is_zone
from journeykit_engine.zone import shown, skipped_dates
from journeykit_engine.zone import tz_release as tz_release

Unit = Literal["minute", "hour", "day", "week", "business_day"]

MAX_AMOUNTS: Mapping[Unit, int] = MappingProxyType(
    {"minute": 5_256_000, "hour": 87_600, "day": 3_650, "week": 520, "business_day": 2_600}
)
"""About ten years in each unit: no journey is meant to wait longer, a slip of the key does."""

MINUTES_OF: Mapping[Unit, int] = MappingProxyType(
    {"minute": 1, "hour": 60, "day": 1_440, "week": 10_080, "business_day": 1_440}
)
"""The length of each unit where no clock changes; a business day counts as the day it is."""

SUFFIXES: Mapping[str, Unit] = MappingProxyType(
    {"m": "minute", "h": "hour", "d": "day", "w": "week", "bd": "business_day"}
)

DURATION = re.compile(r"([1-9][0-9]*)(m|h|d|w|bd)")
CLOCK = re.compile(r"(?:[01][0-9]|2[0-3]):[0-5][0-9]")

Days = frozenset[int]
"""Days of the week; 0 is Monday."""

DAY_NAMES = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MON_FRI = frozenset(range(5))
EVERY_DAY = frozenset(range(7))

FAR = Instant.from_utc(9980, 1, 1)  # no allowed duration leads from before this past LATEST

SEARCH_DAYS = 14
"""How far a search for an opening or a weekday looks: every week pattern shows itself in seven days
and once more should the first be the week in which a zone skipped a date."""

MINUTES_A_DAY = 24 * 60
MINUTES_A_WEEK = 7 * MINUTES_A_DAY
SHARE_BITS = 32  # a share is the first four bytes of a hash, as in `allot`


class BadDuration(ValueError):
    """A text that is not a duration; the message says what was expected."""


class BadInstant(ValueError):
    """A text that is not an instant; the message says what was expected."""


class Duration(NamedTuple):
    """An amount of one unit, at most `MAX_AMOUNTS`; as text "5bd"."""

    amount: int
    unit: Unit

    def __str__(self) -> str:
        suffix = next(suffix for suffix, unit in SUFFIXES.items() if unit == self.unit)
        return f"{self.amount}{suffix}"


class Window(NamedTuple):
    """The part of a week in which something may be sent, on the wall clock of `zone`.

    `opens` and `closes` are minutes after midnight: the first is inside, the second is not. A
    `closes` below `opens` crosses midnight and belongs to the day on which it opened.
    """

    zone: str
    days: Days
    opens: int
    closes: int


def after(now: Instant, duration: Duration, zone: str, workweek: Days = MON_FRI) -> Instant:
    """The end of a wait that begins `now`; `LATEST` when it would end later.

    The rule: minutes and hours are elapsed time. Days and weeks are days of the calendar, the time
    of day kept. Business days go from date to date and count those in `workweek` only.

    >>> noon = Instant.from_utc(2026, 3, 7, hour=17)  # in New York, the day before summer time
    >>> after(noon, Duration(24, "hour"), "America/New_York").to_tz("America/New_York").hour
    13
    >>> after(noon, Duration(1, "day"), "America/New_York").to_tz("America/New_York").hour
    12
    """
    try:
        until = _after(now, duration, zone, workweek)
    except TimeZoneNotFoundError:
        raise
    except ValueError:  # whenever's range has an end
        return LATEST
    return until if until < LATEST else LATEST


Adder = Callable[[Instant, str], Instant]


def adder(duration: Duration, workweek: Days = MON_FRI) -> Adder:
    """`after` for one duration, made once for the many times it is asked: (now, zone) -> end."""
    if duration.unit == "business_day":
        return lambda now, zone: after(now, duration, zone, workweek)
    elapsed = TimeDelta(minutes=duration.amount * MINUTES_OF[duration.unit])
    if duration.unit in ("minute", "hour"):
        return lambda now, zone: now + elapsed if now < FAR else after(now, duration, zone)
    return lambda now, zone: (  # in UTC a day is never longer or shorter
        now + elapsed if zone == "UTC" and now < FAR else after(now, duration, zone)
    )


def _after(now: Instant, duration: Duration, zone: str, workweek: Days) -> Instant:
    amount, unit = duration
    match unit:
        case "minute":
            return now.add(minutes=amount)
        case "hour":
            return now.add(hours=amount)
        case "day":
            return _after_days(now, amount, zone)
        case "week":
            return _after_days(now, 7 * amount, zone)
        case "business_day":
            return _after_business_days(now, amount, zone, workweek)
    assert_never(unit)


def _after_days(now: Instant, days: int, zone: str) -> Instant:
    if zone == "UTC":  # the short way: nothing is ever skipped or repeated there
        return now.add(hours=24 * days)
    local = now.to_tz(zone)
    today = local.date()
    for skipped in skipped_dates(zone):
        if today < skipped <= today.add(days=days):
            days += 1
    return _keep_time(today.add(days=days), local.time(), zone)


def _after_business_days(now: Instant, days: int, zone: str, workweek: Days) -> Instant:
    assert workweek and workweek <= EVERY_DAY, "a workweek without a day never ends"
    local = now.to_tz(zone)
    day, skipped = local.date(), skipped_dates(zone)
    if not skipped:  # any seven days in a row hold each day of the workweek once
        weeks = (days - 1) // len(workweek)
        day, days = day.add(days=7 * weeks), days - weeks * len(workweek)
    while days:
        day = day.next_day()
        if _weekday(day) in workweek and day not in skipped:
            days -= 1
    return _keep_time(day, local.time(), zone)


def _keep_time(day: Date, time: Time, zone: str) -> Instant:
    # ZonedDateTime.add would keep the offset of a time that comes twice: perhaps the second time's.
    return day.at(time).assume_tz(zone, disambiguation="compatible").to_instant()


def next_time(now: Instant, hour: int, minute: int, days: Days | None, zone: str) -> Instant:
    """The next time the clock in `zone` shows hour and minute on one of `days`, None for any day.

    Strictly after `now`, so that a loop through such a wait lets time pass. ValueError when `days`
    has no day: the graph's check has refused that.

    >>> gap = Instant.from_utc(2026, 3, 8, hour=5)  # at two, New York's clocks jump to three
    >>> next_time(gap, 2, 30, None, "America/New_York").format_iso()
    '2026-03-08T07:00:00Z'
    """
    day, skipped = local_date(now, zone), skipped_dates(zone)
    for _ in range(SEARCH_DAYS + 1):
        if day not in skipped and (days is None or _weekday(day) in days):
            moment = _clock_shows(day, Time(hour, minute), zone)
            if moment > now:
                return moment
        day = day.next_day()
    raise ValueError("The days of a time to wait for are empty; name at least one day.")


def jitter(
    base: Instant, longest: Duration, share: int, zone: str, workweek: Days = MON_FRI
) -> Instant:
    """`base` put off by a part of `longest`: `share` of 2**32, in whole seconds, rounded down.

    Never before `base`, always before `after(base, longest)`. The windows are for the caller to ask
    afterwards with `next_opening`.
    """
    span_seconds = after(base, longest, zone, workweek).timestamp() - base.timestamp()
    return base.add(seconds=span_seconds * share >> SHARE_BITS)


def is_open(windows: Sequence[Window], at: Instant) -> bool:
    """Whether the wall clock is inside all of `windows`; no window is always open."""
    for window in windows:  # noqa: SIM110 -- a generator would double the time of the usual call
        if not _is_inside(window, at):
            return False
    return True


def _is_inside(window: Window, at: Instant) -> bool:
    zone, days, opens, closes = window
    local = at.to_tz(zone)
    minute = local.hour * 60 + local.minute
    if opens < closes:
        return opens <= minute < closes and _weekday(local) in days
    if minute >= opens:
        return _weekday(local) in days
    if minute >= closes:
        return False
    opened = local.date().prev_day()
    while opened in skipped_dates(zone):
        opened = opened.prev_day()
    return _weekday(opened) in days


def next_opening(windows: Sequence[Window], at: Instant) -> Instant | None:
    """The earliest instant inside all of `windows`, `at` itself when it is.

    None when there is none within `SEARCH_DAYS`. A window that a clock change skips as a whole does
    not open that day; one that the clock runs through twice is open twice.
    """
    last = at.add(hours=24 * SEARCH_DAYS)
    while at <= last:
        closed = next((window for window in windows if not _is_inside(window, at)), None)
        if closed is None:
            return at
        at = _next_edge(closed, at)
    return None


def _next_edge(window: Window, at: Instant) -> Instant:
    """The first moment after `at` that may be inside a window now closed.

    Between two clock changes that is the opening, by plain counting; a change itself may lead in.
    """
    zone, days, opens, _ = window
    local = at.to_tz(zone)
    minute, weekday = local.hour * 60 + local.minute, _weekday(local)
    first = 0 if minute < opens else 1
    ahead = next((k for k in range(first, 8) if (weekday + k) % 7 in days), 7)
    opening = at.add(
        seconds=60 * (MINUTES_A_DAY * ahead + opens - minute) - local.second,
        nanoseconds=-local.nanosecond,
    )
    change = local.next_transition()
    return opening if change is None or opening < change else change.to_instant()


def never_meet(windows: Sequence[Window]) -> bool:
    """Whether no minute of the week is inside all of `windows`.

    Decided for windows of one zone; False for several, whose distance changes through the year.

    >>> never_meet([window("UTC", ["sat"], "05:00", "07:30"), sms_window("UTC")])
    True
    """
    if len({each.zone for each in windows}) > 1:
        return False
    common = (1 << MINUTES_A_WEEK) - 1
    for each in windows:
        common &= _week_minutes(each)
    return common == 0


def _week_minutes(window: Window) -> int:
    """A bit for each minute of the week, from Monday 00:00, that is inside."""
    length = (window.closes - window.opens) % MINUTES_A_DAY
    bits = 0
    for day in window.days:
        bits |= ((1 << length) - 1) << (MINUTES_A_DAY * day + window.opens)
    return bits | bits >> MINUTES_A_WEEK  # Sunday night goes on on Monday


def sms_window(zone: str) -> Window:
    """The fixed window of text messages: 08:00 to 21:00, every day, in the recipient's zone."""
    return Window(zone, EVERY_DAY, opens=8 * 60, closes=21 * 60)


def window(zone: str, days: Sequence[str], opens: str, closes: str) -> Window:
    """A window from what a graph says; ValueError with the first fault of `window_faults`."""
    if faults := window_faults(days, opens, closes):
        raise ValueError(faults[0][1])
    minutes = (int(text[:2]) * 60 + int(text[3:]) for text in (opens, closes))
    return Window(zone, weekdays(days), *minutes)


def window_faults(days: Sequence[str], opens: str, closes: str) -> list[tuple[str, str]]:
    """What is wrong with a window's texts, each with its field: "days", "from" or "to"."""
    faults = [("days", fault) for fault in day_faults(days)]
    for field, text in (("from", opens), ("to", closes)):
        if not CLOCK.fullmatch(text):
            expected = 'write a time from "00:00" to "23:59", as "09:30"'
            faults.append((field, f'"{field}" is {shown(text)}; {expected}.'))
    if opens == closes and CLOCK.fullmatch(opens):
        faults.append(("to", f'"from" and "to" are both {shown(opens)}; the window never opens.'))
    return faults


def weekdays(names: Sequence[str]) -> Days:
    """Day names as numbers, 0 is Monday; the names have passed `day_faults`."""
    return frozenset(map(DAY_NAMES.index, names))


def day_faults(names: Sequence[str]) -> list[str]:
    """What is wrong with a list of day names: none, an unknown one, one named twice.

    >>> day_faults(["mon", "Tue"])
    ['The day "Tue" is unknown; write one of mon, tue, wed, thu, fri, sat, sun.']
    """
    known = ", ".join(DAY_NAMES)
    if not names:
        return [f"No day is named; name at least one of {known}."]
    faults = []
    for name in dict.fromkeys(names):
        if name not in DAY_NAMES:
            faults.append(f"The day {shown(name)} is unknown; write one of {known}.")
        elif names.count(name) > 1:
            faults.append(f'The day "{name}" is named more than once; name it once.')
    return faults


def sweep_slots(day: Date, hours: Sequence[int], zone: str) -> list[Instant]:
    """When the sweeps of one date run, in order; [] for a date that the zone skipped.

    An hour inside a gap runs right after it, once with the hour that is there already.
    """
    if day in skipped_dates(zone):
        return []
    return sorted({_clock_shows(day, Time(hour), zone) for hour in hours})


def next_sweep(at: Instant, hours: Sequence[int], zone: str) -> Instant:
    """The first slot strictly after `at`; ValueError when `hours` is empty."""
    day = local_date(at, zone)
    for ahead in range(4):  # today's may be over, a date skipped, or begun before a clock went back
        for slot in sweep_slots(day.add(days=ahead), hours, zone):
            if slot > at:
                return slot
    raise ValueError("The hours of a sweep are empty; name at least one hour from 0 to 23.")


def catch_up(last: Instant, at: Instant, hours: Sequence[int], zone: str) -> Instant | None:
    """The latest slot after `last` and up to `at`, so that an outage costs one sweep; else None."""
    # A clock that goes back over midnight shows a date again whose morrow has begun, hence the +1.
    day = local_date(at, zone).next_day()
    while day >= local_date(last, zone):
        for slot in reversed(sweep_slots(day, hours, zone)):
            if slot <= at:
                return slot if slot > last else None
        day = day.prev_day()
    return None


def local_date(at: Instant, zone: str) -> Date:
    """The date on the calendar of `zone`."""
    return at.to_tz(zone).date()


def same_day(a: Instant, b: Instant, zone: str) -> bool:
    """Whether two instants bear the same date in `zone`."""
    return a.to_tz(zone).date() == b.to_tz(zone).date()


def day_start(day: Date, zone: str) -> Instant:
    """The first instant of a date; of a date that the zone skipped, the first one after it."""
    return _clock_shows(day, Time(), zone)


def days_until(day: Date, today: Date, annual: bool) -> int:
    """Days from `today` to `day`, negative when it is over.

    `annual` counts to the next anniversary instead, 0 on the day itself; the year of `day` plays no
    part. The rule: 29 February counts as 28 February in common years.

    >>> days_until(Date(2000, 2, 29), Date(2026, 2, 25), annual=True)
    3
    """
    if annual:
        this_year = _anniversary(day, today.year)
        day = this_year if this_year >= today else _anniversary(day, today.year + 1)
    return -int(today.since(day, total="days"))  # the other way fails at the calendar's ends


def days_since(day: Date, today: Date, annual: bool) -> int:
    """Days from `day` to `today`, negative when it is still to come.

    `annual` counts from the last anniversary instead, 0 on the day itself.
    """
    if annual:
        this_year = _anniversary(day, today.year)
        day = this_year if this_year <= today else _anniversary(day, today.year - 1)
    return int(today.since(day, total="days"))


def _anniversary(day: Date, year: int) -> Date:
    try:
        return day.replace(year=year)
    except ValueError:
        return Date(year, 2, 28)


def read_date(value: object) -> Date | None:
    """A date trait: "2000-02-29", or an ISO 8601 timestamp, whose written date is kept.

    None for everything else; a timestamp is not moved to another zone first.

    >>> read_date("1990-03-01T00:00:00+03:30")
    Date("1990-03-01")
    >>> read_date("29/02/2000")
    """
    if isinstance(value, str) and value[4:5] == "-":
        for form in (Date, PlainDateTime, Instant):
            try:
                form.parse_iso(value)
                return Date.parse_iso(value[: len("2000-02-29")])
            except ValueError:
                continue
    return None


def parse_duration(text: object) -> Duration:
    """A duration as written in a graph, in exactly one spelling; BadDuration for any other text.

    >>> parse_duration("5bd")
    Duration(amount=5, unit='business_day')
    """
    match = DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise BadDuration(
            f"{shown(text)} is not a duration; write a whole number from 1 and one of"
            ' m, h, d, w or bd, with nothing between them, as "5bd".'
        )
    digits, suffix = match.groups()
    unit = SUFFIXES[suffix]
    if len(digits) > len(str(MAX_AMOUNTS[unit])) or int(digits) > MAX_AMOUNTS[unit]:
        most = f"{MAX_AMOUNTS[unit]}{suffix}"
        raise BadDuration(f'{shown(text)} is too long; write at most "{most}", about ten years.')
    return Duration(int(digits), unit)


def duration_fault(amount: object, unit: object) -> str | None:
    """What is wrong with the two fields of a wait; None when they make a `Duration`.

    >>> duration_fault(0, "hour")
    'The amount is 0; write a whole number from 1 to 87600 for the unit "hour".'
    """
    known = next((name for name in MAX_AMOUNTS if name == unit), None)
    if known is None:
        return f"The unit is {shown(unit)}; write one of {', '.join(MAX_AMOUNTS)}.{_meant(unit)}"
    most = MAX_AMOUNTS[known]
    if type(amount) is int and 1 <= amount <= most:
        return None
    expected = f'write a whole number from 1 to {most} for the unit "{known}"'
    return f"The amount is {shown(amount)}; {expected}."


def _meant(unit: object) -> str:
    """The unit with the same first letter, which tells all five apart: "hr" means hour."""
    first = unit[:1].lower() if isinstance(unit, str) else ""
    meant = [name for name in MAX_AMOUNTS if first and name.startswith(first)]
    return f' Did you mean "{meant[0]}"?' if meant else ""


def read_instant(text: object) -> Instant:
    """An ISO 8601 timestamp with Z or an offset; BadInstant for any other text.

    As datetime, JavaScript and PostgreSQL write them: T or a space between date and time, either
    case, up to nine digits of a second. A second 60 is read as 59, which is what a Unix clock
    shows. A zone name in brackets is refused, since it could contradict the offset.

    >>> read_instant("2026-06-01 10:00:00.4+03:30")
    Instant("2026-06-01 06:30:00.4Z")
    """
    try:
        if isinstance(text, str) and "[" not in text:
            instant = Instant.parse_iso(text)
            if EARLIEST <= instant <= LATEST:
                return instant
    except ValueError:
        pass  # the message below says more
    raise BadInstant(_instant_fault(text))


def _instant_fault(text: object) -> str:
    if isinstance(text, str) and _is_naive(text):
        return (
            f"NAIVE_DATETIME: {shown(text)} does not say in which zone; attach one,"
            f' as "{text}Z" for UTC or "{text}+02:00".'
        )
    return (
        f"{shown(text)} is not an instant; write an ISO 8601 timestamp of the years 2 to 9998"
        ' with Z or an offset, as "2026-06-01T10:00:00Z" or "2026-06-01T10:00:00+02:00".'
    )


def _is_naive(text: str) -> bool:
    try:
        PlainDateTime.parse_iso(text)
    except ValueError:
        return False
    return True


def write_instant(at: Instant) -> str:
    """UTC with Z, as "2026-06-01T10:00:00Z"; a fraction of a second only when there is one."""
    return at.format_iso()


def _clock_shows(day: Date, time: Time, zone: str) -> Instant:
    """The first instant at which the clock shows `time`; in a gap, the first one after it."""
    asked = day.at(time)
    # "earlier" steps back over a gap, so that the next change is the end of this very gap.
    moment = asked.assume_tz(zone, disambiguation="earlier")
    if moment.to_plain() == asked:
        return moment.to_instant()
    change = moment.next_transition()
    assert change is not None, "a skipped time lies before a change of the clock"
    return change.to_instant()


def _weekday(day: Date | ZonedDateTime) -> int:
    """0 is Monday. `_value_` is what `value` returns, ten times as fast."""
    number: int = day.day_of_week()._value_
    return number - 1
