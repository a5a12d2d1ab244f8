"""When things happen: waits, windows, sweeps and dates, through every trick a clock can play.

The cases were worked out by hand; the laws compare with the standard library's zoneinfo, which
reads the same files by another road.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from whenever import Date, Instant, TimeZoneNotFoundError

from journeykit_engine import timing
from journeykit_engine.timing import BadDuration, BadInstant, Duration, Window

ROOT = Path(__file__).resolve().parents[2]
CASES: dict[str, dict[str, Any]] = {
    case["id"]: case
    for case in json.loads((ROOT / "tests" / "data" / "cases.json").read_text("utf-8"))
}
ZONE_FILES = files("tzdata").joinpath("zoneinfo")
NEW_YORK = "America/New_York"
OFFICE = ["mon", "tue", "wed", "thu", "fri"]


def asked(operation: str) -> list[str]:
    """The ids of the cases that ask for one operation."""
    checks = {each: case.get("check") for each, case in CASES.items()}
    return [
        each
        for each, check in checks.items()
        if isinstance(check, dict) and check["op"] == operation
    ]


def at(text: str) -> Instant:
    return timing.read_instant(text)


def local(moment: Instant, zone: str) -> str:
    return moment.to_tz(zone).to_fixed_offset().format_iso()


def windows_of(check: dict[str, Any]) -> list[Window]:
    return [
        timing.window(each["zone"], each["days"], each["from"], each["to"])
        for each in check["windows"]
    ]


# Waits


@pytest.mark.parametrize("case_id", [each for each in CASES if CASES[each]["area"] == "wait"])
def test_a_wait_ends_where_the_case_says(case_id: str) -> None:
    case = CASES[case_id]
    given_, when, expect = case["given"], case["when"], case["expect"]
    contact = given_["contact_tz"] if given_["send_window_tz"] == "contact" else None
    zone, unusable = timing.first_zone([contact, given_.get("sender_tz")])

    until = timing.after(
        at(when["enter_wait_at_utc"]), timing.parse_duration(when["duration"]), zone
    )

    assert timing.write_instant(until) == expect["until_utc"]
    assert local(until, zone) == expect["until_local"]
    assert unusable == ()


def test_the_day_after_a_gap_returns_to_the_asked_time() -> None:
    entered = at("2026-03-07T07:30:00Z")  # 02:30 in New York; the next day has no 02:30

    two_days_on = timing.after(entered, Duration(2, "day"), NEW_YORK)

    assert local(two_days_on, NEW_YORK) == "2026-03-09T02:30:00-04:00"


@pytest.mark.parametrize(
    ("zone", "entered", "waited", "until"),
    [
        ("Pacific/Apia", "2011-12-29T22:00:00Z", "2d", "2012-01-01T12:00:00+14:00"),
        ("Pacific/Apia", "2011-12-25T22:00:00Z", "1w", "2012-01-02T12:00:00+14:00"),
        ("Pacific/Kwajalein", "1993-08-20T22:00:00Z", "1d", "1993-08-22T10:00:00+12:00"),
        ("Pacific/Kwajalein", "1993-08-19T22:00:00Z", "1bd", "1993-08-20T10:00:00-12:00"),
    ],
)
def test_a_date_the_zone_skipped_is_not_counted(
    zone: str, entered: str, waited: str, until: str
) -> None:
    assert local(timing.after(at(entered), timing.parse_duration(waited), zone), zone) == until


@pytest.mark.parametrize("waited", ["364d", "52w", "364bd"])
def test_a_time_that_comes_twice_is_its_first_even_from_a_second(waited: str) -> None:
    second_time = at("2025-10-26T02:30:00+01:00")

    until = timing.after(
        second_time, timing.parse_duration(waited), "Europe/Berlin", timing.EVERY_DAY
    )

    assert local(until, "Europe/Berlin") == "2026-10-25T02:30:00+02:00"


def test_a_workweek_of_its_own_counts_its_own_days() -> None:
    thursday = at("2026-12-03T06:30:00Z")
    sunday_to_thursday = timing.weekdays(["sun", "mon", "tue", "wed", "thu"])

    until = timing.after(thursday, Duration(1, "business_day"), "Asia/Tehran", sunday_to_thursday)

    assert local(until, "Asia/Tehran") == "2026-12-06T10:00:00+03:30"


def test_a_workweek_without_days_is_no_endless_wait() -> None:
    with pytest.raises(AssertionError, match="a workweek without a day never ends"):
        timing.after(at("2026-06-01T10:00:00Z"), Duration(1, "business_day"), "UTC", frozenset())


@pytest.mark.parametrize("unit", timing.MAX_AMOUNTS)
def test_a_wait_past_the_last_instant_ends_there(unit: timing.Unit) -> None:
    longest = Duration(timing.MAX_AMOUNTS[unit], unit)
    late = timing.LATEST.subtract(hours=1)

    assert timing.after(late, longest, "Asia/Tokyo") == timing.LATEST
    assert timing.after(late, Duration(7, "day"), "Asia/Tokyo") == timing.LATEST
    assert timing.after(timing.EARLIEST, longest, "Asia/Tokyo") < timing.LATEST


def test_an_unknown_zone_is_not_taken_for_a_far_away_end() -> None:
    with pytest.raises(TimeZoneNotFoundError):
        timing.after(at("2026-06-01T10:00:00Z"), Duration(1, "day"), "Mars/Phobos")


# A time to wait for


@pytest.mark.parametrize(
    "case_id", [each for each in CASES if "enter_until_time_at_utc" in CASES[each].get("when", {})]
)
def test_a_wait_for_a_time_ends_where_the_case_says(case_id: str) -> None:
    case = CASES[case_id]
    zone, when = case["given"]["contact_tz"], case["when"]

    until = timing.next_time(at(when["enter_until_time_at_utc"]), when["hour"], 0, None, zone)

    assert timing.write_instant(until) == case["expect"]["until_utc"]
    assert local(until, zone) == case["expect"]["until_local"]


@pytest.mark.parametrize(
    ("now", "until", "why"),
    [
        ("2026-03-08T05:00:00Z", "2026-03-08T03:00:00-04:00", "in the gap, the end of the gap"),
        ("2026-03-08T07:00:00Z", "2026-03-09T02:30:00-04:00", "the next day has its 02:30 again"),
    ],
)
def test_half_past_two_on_the_day_of_the_gap(now: str, until: str, why: str) -> None:
    assert local(timing.next_time(at(now), 2, 30, None, NEW_YORK), NEW_YORK) == until, why


def test_the_second_half_past_one_of_a_night_is_not_waited_for() -> None:
    between_the_two = at("2026-11-01T05:45:00Z")

    until = timing.next_time(between_the_two, 1, 30, None, NEW_YORK)

    assert local(until, NEW_YORK) == "2026-11-02T01:30:00-05:00"


def test_a_time_on_certain_days_waits_for_such_a_day_that_exists() -> None:
    friday = timing.weekdays(["fri"])

    until = timing.next_time(at("2011-12-24T10:00:00Z"), 9, 0, friday, "Pacific/Apia")

    assert local(until, "Pacific/Apia") == "2012-01-06T09:00:00+14:00"


def test_a_time_without_a_day_is_refused() -> None:
    with pytest.raises(ValueError) as refused:
        timing.next_time(at("2026-06-01T10:00:00Z"), 9, 0, frozenset(), "UTC")
    assert str(refused.value) == (
        "The days of a time to wait for are empty; name at least one day."
    )


# Windows


@pytest.mark.parametrize("case_id", asked("next_open"))
def test_a_send_goes_out_when_the_case_says(case_id: str) -> None:
    check, expect = CASES[case_id]["check"], CASES[case_id]["expect"]
    windows, now = windows_of(check), at(check["now"])

    opening = timing.next_opening(windows, now)

    asserted = check.get("only", ["inside", "send_at_utc"])
    if "inside" in asserted:
        assert timing.is_open(windows, now) is expect["inside"]
    if "send_at_utc" in asserted:
        assert (opening and timing.write_instant(opening)) == expect["send_at_utc"]


@pytest.mark.parametrize(
    ("case_id", "hopeless"),
    [
        ("sms-campaign-window-too-early", True),
        ("sms-windows-never-meet", False),  # two zones: told at run time
        ("sms-before-eight", False),
        ("win-overnight-midday", False),
    ],
)
def test_windows_that_can_never_meet_are_known_beforehand(case_id: str, hopeless: bool) -> None:
    assert timing.never_meet(windows_of(CASES[case_id]["check"])) is hopeless


def test_windows_of_two_zones_are_left_to_the_day_itself() -> None:
    dawn_in_berlin = timing.window("Europe/Berlin", timing.DAY_NAMES, "05:00", "07:30")

    assert not timing.never_meet([dawn_in_berlin, timing.sms_window("Asia/Tokyo")])


def test_an_opening_is_a_whole_minute() -> None:
    opening = timing.next_opening([timing.sms_window("UTC")], at("2026-06-01T07:59:59.4Z"))

    assert opening == at("2026-06-01T08:00:00Z")


def test_sunday_night_goes_on_on_monday() -> None:
    nights = timing.window("UTC", ["sun"], "22:00", "06:00")

    assert not timing.never_meet([nights, timing.window("UTC", ["mon"], "05:00", "07:00")])
    assert timing.never_meet([nights, timing.window("UTC", ["sun"], "05:00", "07:00")])
    assert timing.never_meet([nights, timing.window("UTC", ["mon"], "06:00", "07:00")])


def test_text_messages_go_from_eight_to_nine_in_the_evening() -> None:
    every_day = timing.window("Asia/Tokyo", timing.DAY_NAMES, "08:00", "21:00")

    assert timing.sms_window("Asia/Tokyo") == every_day


@pytest.mark.parametrize(
    ("opens", "closes", "opening", "why"),
    [
        ("02:30", "09:00", "2026-03-08T03:00:00-04:00", "opens in the gap: right after it"),
        ("02:00", "02:45", "2026-03-09T02:00:00-04:00", "wholly in the gap: not on that day"),
        ("23:00", "04:00", "2026-03-08T01:30:00-05:00", "already open since the night before"),
    ],
)
def test_windows_on_the_day_of_the_gap(opens: str, closes: str, opening: str, why: str) -> None:
    window = timing.window(NEW_YORK, timing.DAY_NAMES, opens, closes)

    found = timing.next_opening([window], at("2026-03-08T06:30:00Z"))

    assert found is not None and local(found, NEW_YORK) == opening, why


def test_a_window_the_clock_runs_through_twice_opens_twice() -> None:
    window = timing.window(NEW_YORK, timing.DAY_NAMES, "01:15", "01:30")

    found = timing.next_opening([window], at("2026-11-01T05:40:00Z"))

    assert found is not None and local(found, NEW_YORK) == "2026-11-01T01:15:00-05:00"


def test_a_night_belongs_to_the_last_day_there_was() -> None:
    thursday_night = timing.window("Pacific/Apia", ["thu"], "22:00", "06:00")
    friday_night = timing.window("Pacific/Apia", ["fri"], "22:00", "06:00")
    saturday_two_in_the_morning = at("2011-12-30T12:00:00Z")  # Thursday ended two hours ago

    assert timing.is_open([thursday_night], saturday_two_in_the_morning)
    assert not timing.is_open([friday_night], saturday_two_in_the_morning)


def test_no_window_is_always_open() -> None:
    now = at("2026-06-01T10:00:00Z")

    assert timing.is_open([], now)
    assert timing.next_opening([], now) == now
    assert not timing.never_meet([])


@pytest.mark.parametrize(
    ("days", "opens", "closes", "faults"),
    [
        (OFFICE, "09:00", "17:30", []),
        (OFFICE, "22:00", "00:00", []),
        (
            [],
            "9:00",
            "24:00",
            [
                (
                    "days",
                    "No day is named; name at least one of mon, tue, wed, thu, fri, sat, sun.",
                ),
                ("from", '"from" is "9:00"; write a time from "00:00" to "23:59", as "09:30".'),
                ("to", '"to" is "24:00"; write a time from "00:00" to "23:59", as "09:30".'),
            ],
        ),
        (
            ["mon", "Tue", "mon"],
            "09:00",
            "09:00",
            [
                ("days", 'The day "mon" is named more than once; name it once.'),
                (
                    "days",
                    'The day "Tue" is unknown; write one of mon, tue, wed, thu, fri, sat, sun.',
                ),
                ("to", '"from" and "to" are both "09:00"; the window never opens.'),
            ],
        ),
        (
            ["mon"],
            "٠٩:٠٠",
            "09:00\n",
            [
                ("from", '"from" is "٠٩:٠٠"; write a time from "00:00" to "23:59", as "09:30".'),
                ("to", '"to" is "09:00\\n"; write a time from "00:00" to "23:59", as "09:30".'),
            ],
        ),
    ],
)
def test_a_window_tells_all_its_faults(
    days: list[str], opens: str, closes: str, faults: list[tuple[str, str]]
) -> None:
    assert timing.window_faults(days, opens, closes) == faults


def test_a_faulty_window_is_not_built() -> None:
    with pytest.raises(ValueError) as refused:
        timing.window("UTC", ["mon"], "09:00", "09:00")
    assert str(refused.value) == '"from" and "to" are both "09:00"; the window never opens.'


# Jitter


def test_jitter_never_comes_early_and_never_outside_the_window() -> None:
    case = CASES["jitter-bounds-property"]
    base, longest = at(case["when"]["base_utc"]), timing.parse_duration(case["given"]["jitter"])
    office = [timing.window(NEW_YORK, OFFICE, "09:00", "17:00")]

    shares = [n * 2**32 // 10_000 for n in range(10_000)] + [2**32 - 1]
    delayed = [timing.jitter(base, longest, share, NEW_YORK) for share in shares]
    sent = {timing.next_opening(office, each) for each in delayed}

    assert delayed[0] == base
    assert delayed[-1] == base.add(minutes=44, seconds=59)
    assert delayed == sorted(delayed)
    tonight = {each for each in sent if each is not None and each < at("2026-03-05T22:00:00Z")}
    assert len(tonight) == 30 * 60
    assert sent - tonight == {at("2026-03-06T14:00:00Z")}


def test_jitter_of_a_day_spreads_over_the_day_that_is_an_hour_short() -> None:
    base = at("2026-03-07T17:00:00Z")

    half_way = timing.jitter(base, Duration(1, "day"), 2**31, NEW_YORK)

    assert half_way == base.add(hours=11, minutes=30)


# Sweeps


@pytest.mark.parametrize("case_id", asked("sweep"))
def test_sweeps_run_when_the_case_says(case_id: str) -> None:
    check = CASES[case_id]["check"]

    slots = timing.sweep_slots(Date.parse_iso(check["date"]), check["hours"], check["zone"])

    assert [timing.write_instant(each) for each in slots] == CASES[case_id]["expect"]["runs_utc"]


def test_two_hours_that_fall_on_one_instant_sweep_once() -> None:
    assert len(timing.sweep_slots(Date(2026, 3, 8), [3, 2], NEW_YORK)) == 1


def test_a_skipped_date_has_no_sweep() -> None:
    assert timing.sweep_slots(Date(2011, 12, 30), [0, 9], "Pacific/Apia") == []

    evening_before = at("2011-12-30T09:00:00Z")  # Thursday 23:00, the last hour of its date
    following = timing.next_sweep(evening_before, [9], "Pacific/Apia")

    assert local(following, "Pacific/Apia") == "2011-12-31T09:00:00+14:00"


def test_an_outage_costs_one_sweep() -> None:
    case = CASES["sweep-missed-while-down"]
    zone, hours = case["given"]["account_tz"], case["given"]["hours"]
    last, now = at(case["given"]["last_run_utc"]), at(case["when"]["scanner_starts_at_utc"])

    missed = timing.catch_up(last, now, hours, zone)

    assert missed is not None and local(missed, zone) == "2026-11-30T18:00:00+03:30"
    assert timing.catch_up(missed, now, hours, zone) is None
    assert timing.catch_up(last, timing.next_sweep(last, hours, zone), hours, zone) is not None


def test_midnight_comes_once_where_the_clock_goes_back_over_it() -> None:
    # St John's went from 00:01 back to 23:01, so the first minute of 4 November came twice.
    zone = "America/St_Johns"
    midnight = at("2007-11-04T02:30:00Z")
    an_hour_later_the_evening_before = at("2007-11-04T02:50:00Z")

    assert local(an_hour_later_the_evening_before, zone) == "2007-11-03T23:20:00-03:30"
    assert timing.day_start(Date(2007, 11, 4), zone) == midnight
    assert (
        timing.catch_up(midnight.subtract(hours=1), an_hour_later_the_evening_before, [0], zone)
        == midnight
    )
    following = timing.next_sweep(an_hour_later_the_evening_before, [0], zone)
    assert local(following, zone) == "2007-11-05T00:00:00-03:30"


def test_a_sweep_without_hours_is_refused() -> None:
    with pytest.raises(ValueError) as refused:
        timing.next_sweep(at("2026-06-01T10:00:00Z"), [], "UTC")
    assert str(refused.value) == (
        "The hours of a sweep are empty; name at least one hour from 0 to 23."
    )


# Dates


def days_of(year: int) -> list[Date]:
    first = Date(year, 1, 1)
    return [first.add(days=n) for n in range(366 if first.in_leap_year() else 365)]


@pytest.mark.parametrize("case_id", [*asked("birthday")])
def test_a_birthday_fires_on_the_days_of_the_case(case_id: str) -> None:
    case = CASES[case_id]
    born = timing.read_date(case["given"]["trait"]["birthday"])
    assert born is not None

    fires = [
        day.format_iso()
        for day in days_of(case["when"]["scan_every_day_of"])
        if timing.days_until(born, day, annual=True) == case["given"]["trigger"]["offset_days"]
    ]

    assert fires == case["expect"]["fires_on"]


def test_today_is_the_day_of_the_accounts_zone() -> None:
    case = CASES["bday-day-is-the-accounts"]
    zone, born = case["given"]["account_tz"], Date.parse_iso(case["given"]["trait"]["birthday"])

    scans = [timing.local_date(at(each), zone) for each in case["when"]["scan_at_utc"]]

    fires = [timing.days_until(born, today, annual=True) == 3 for today in scans]
    assert fires == case["expect"]["fires"]


@pytest.mark.parametrize("value", CASES["bday-bad-values"]["given"]["trait_values"], ids=repr)
def test_an_unreadable_date_is_none(value: object) -> None:
    assert timing.read_date(value) is None


@pytest.mark.parametrize(
    ("value", "day"),
    [
        ("2000-02-29", Date(2000, 2, 29)),
        ("1990-03-01T00:00:00+03:30", Date(1990, 3, 1)),
        ("1990-03-01T23:59:59Z", Date(1990, 3, 1)),
        ("1990-03-01 10:00", Date(1990, 3, 1)),
        ("2000-02-29 ", None),
        ("2000-02-29T", None),
        ("2000-02-29T25:00:00Z", None),
        ("20000229", None),
        ("2000-W01-1", None),
        (12.5, None),
    ],
)
def test_a_date_trait_keeps_the_date_that_is_written(value: object, day: Date | None) -> None:
    assert timing.read_date(value) == day


def test_days_to_and_from_a_date_of_its_own_year() -> None:
    renewal = Date(2026, 6, 10)

    assert timing.days_until(renewal, Date(2026, 6, 1), annual=False) == 9
    assert timing.days_until(renewal, Date(2027, 6, 10), annual=False) == -365
    assert timing.days_since(renewal, Date(2027, 6, 10), annual=False) == 365
    assert timing.days_since(renewal, Date(2026, 6, 1), annual=False) == -9


def test_days_since_an_anniversary_count_from_the_last_one() -> None:
    born = Date(2000, 2, 29)

    assert timing.days_since(born, Date(2026, 2, 28), annual=True) == 0
    assert timing.days_since(born, Date(2026, 2, 27), annual=True) == 364
    assert timing.days_since(born, Date(2028, 2, 28), annual=True) == 365
    assert timing.days_since(born, Date(2028, 2, 29), annual=True) == 0


@pytest.mark.parametrize("case_id", asked("same_day"))
def test_the_same_day_is_the_zones(case_id: str) -> None:
    case = CASES[case_id]
    check = case["check"]

    same = timing.same_day(at(check["prior_entered_at"]), at(check["at"]), check["zone"])

    assert same is not case["expect"]["allowed"]


@pytest.mark.parametrize(
    ("day", "zone", "start"),
    [
        (Date(2018, 11, 4), "America/Sao_Paulo", "2018-11-04T01:00:00-02:00"),  # no midnight
        (Date(2011, 12, 30), "Pacific/Apia", "2011-12-31T00:00:00+14:00"),  # no such day
        (Date(2026, 6, 1), "Asia/Tehran", "2026-06-01T00:00:00+03:30"),
    ],
)
def test_a_day_starts_with_its_first_instant(day: Date, zone: str, start: str) -> None:
    assert local(timing.day_start(day, zone), zone) == start


# Texts


@pytest.mark.parametrize(
    "duration",
    [Duration(1, "minute"), Duration(24, "hour"), Duration(5, "business_day")]
    + [Duration(most, unit) for unit, most in timing.MAX_AMOUNTS.items()],
    ids=str,
)
def test_a_duration_reads_what_it_writes(duration: Duration) -> None:
    assert timing.parse_duration(str(duration)) == duration
    assert timing.duration_fault(*duration) is None


@pytest.mark.parametrize(
    "text",
    ["", "5", "d", "0d", "05d", "-1d", "+5d", "1.5h", "5 d", " 5d", "5d\n", "5BD", "٥d", "5days"],
)
def test_a_duration_has_one_spelling(text: str) -> None:
    with pytest.raises(BadDuration, match="is not a duration"):
        timing.parse_duration(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "2 hours",
            '"2 hours" is not a duration; write a whole number from 1 and one of m, h, d, w or bd,'
            ' with nothing between them, as "5bd".',
        ),
        (
            5,
            "5 is not a duration; write a whole number from 1 and one of m, h, d, w or bd,"
            ' with nothing between them, as "5bd".',
        ),
        ("3651d", '"3651d" is too long; write at most "3650d", about ten years.'),
        ("9" * 30 + "h", f'"{"9" * 30}h" is too long; write at most "87600h", about ten years.'),
    ],
)
def test_a_bad_duration_says_what_was_expected(text: object, message: str) -> None:
    with pytest.raises(BadDuration) as refused:
        timing.parse_duration(text)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("amount", "unit", "fault"),
    [
        (0, "day", 'The amount is 0; write a whole number from 1 to 3650 for the unit "day".'),
        (-1, "week", 'The amount is -1; write a whole number from 1 to 520 for the unit "week".'),
        (
            True,
            "day",
            'The amount is True; write a whole number from 1 to 3650 for the unit "day".',
        ),
        (1.0, "day", 'The amount is 1.0; write a whole number from 1 to 3650 for the unit "day".'),
        ("1", "day", 'The amount is "1"; write a whole number from 1 to 3650 for the unit "day".'),
        (
            10**5000,
            "day",
            "The amount is a number of more than 64 bits; write a whole number from 1 to 3650"
            ' for the unit "day".',
        ),
        (
            1,
            "hr",
            'The unit is "hr"; write one of minute, hour, day, week, business_day.'
            ' Did you mean "hour"?',
        ),
        (1, None, "The unit is None; write one of minute, hour, day, week, business_day."),
        (1, "", 'The unit is ""; write one of minute, hour, day, week, business_day.'),
    ],
    ids=lambda value: str(value)[:20] if not isinstance(value, int) else "",
)
def test_the_fields_of_a_wait_tell_their_fault(amount: object, unit: object, fault: str) -> None:
    assert timing.duration_fault(amount, unit) == fault


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2026-06-01T10:00:00.4Z", "2026-06-01T10:00:00.4Z"),
        ("2026-06-01t10:00:00z", "2026-06-01T10:00:00Z"),
        ("2026-06-01T10:00:00+03:30", "2026-06-01T06:30:00Z"),
        ("2026-06-01 10:00:00+00:00", "2026-06-01T10:00:00Z"),
        ("2026-06-01 10:00:00+00", "2026-06-01T10:00:00Z"),
        ("2026-06-01T10:00:00-0230", "2026-06-01T12:30:00Z"),
        ("2026-06-01T10:00:00.123456789Z", "2026-06-01T10:00:00.123456789Z"),
    ],
)
def test_instants_are_read_as_others_write_them(text: str, instant: str) -> None:
    assert timing.write_instant(at(text)) == instant


NOT_AN_INSTANT = (
    " is not an instant; write an ISO 8601 timestamp of the years 2 to 9998 with Z or an offset,"
    ' as "2026-06-01T10:00:00Z" or "2026-06-01T10:00:00+02:00".'
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            CASES["timer-naive-input-refused"]["given"]["wake_at"],
            'NAIVE_DATETIME: "2026-03-09T09:00:00" does not say in which zone; attach one,'
            ' as "2026-03-09T09:00:00Z" for UTC or "2026-03-09T09:00:00+02:00".',
        ),
        ("2026-06-01", '"2026-06-01"' + NOT_AN_INSTANT),
        ("2026-06-01T24:00:00Z", '"2026-06-01T24:00:00Z"' + NOT_AN_INSTANT),
        ("2026-06-01T10:00:00+02:00[UTC]", '"2026-06-01T10:00:00+02:00[UTC]"' + NOT_AN_INSTANT),
        ("0001-01-01T00:00:00Z", '"0001-01-01T00:00:00Z"' + NOT_AN_INSTANT),
        ("9999-12-31T23:59:59Z", '"9999-12-31T23:59:59Z"' + NOT_AN_INSTANT),
        ("2026\x00", '"2026\\x00"' + NOT_AN_INSTANT),
        ("x" * 90, f'"{"x" * 60}…"' + NOT_AN_INSTANT),
        (1780308000, "1780308000" + NOT_AN_INSTANT),
        (None, "None" + NOT_AN_INSTANT),
    ],
    ids=lambda value: str(value)[:24],
)
def test_what_is_no_instant_is_refused(text: object, message: str) -> None:
    with pytest.raises(BadInstant) as refused:
        timing.read_instant(text)
    assert str(refused.value) == message


# Zones


@pytest.mark.parametrize("name", CASES["tz-bad-keys"]["given"]["contact_tz_values"], ids=ascii)
def test_a_broken_zone_name_gives_way_to_the_senders(name: object) -> None:
    case = CASES["tz-bad-keys"]

    zone, unusable = timing.first_zone([name, case["given"]["sender_tz"]])

    assert not timing.is_zone(name)
    assert zone == "Asia/Tehran"
    assert len(unusable) == (0 if name in (None, "") else 1)
    asked_for = case["given"]["send_window"]
    office = timing.window(zone, asked_for["days"], asked_for["from"], asked_for["to"])
    opening = timing.next_opening([office], at(case["when"]["now_utc"]))
    assert opening == at(case["expect"]["send_at_utc"])


def test_the_note_of_a_broken_name_can_be_stored() -> None:
    zone, unusable = timing.first_zone(["UTC\x00", "\ud800", "a" * 300, 5, [], "Asia/Tokyo", "x"])

    assert zone == "Asia/Tokyo"
    assert unusable == ("UTC\\x00", "\\ud800", "a" * 60 + "…", "5", "[]")


def test_the_last_resort_is_utc() -> None:
    assert timing.first_zone([]) == ("UTC", ())
    assert timing.first_zone([None, "", "posixrules"]) == ("UTC", ("posixrules",))


def test_every_listed_zone_tells_the_time() -> None:
    noon = at("2026-06-01T12:00:00Z")

    for name in timing.ZONES:
        shown = noon.to_tz(name).to_plain().to_stdlib()
        assert shown == datetime(2026, 6, 1, 12, tzinfo=UTC).astimezone(oracle(name)).replace(
            tzinfo=None
        ), name
    assert len(timing.ZONES) > 500


ASK_IN_A_FRESH_PROCESS = """
from journeykit_engine.timing import next_time, read_instant, tz_release
vancouver = next_time(read_instant("2026-11-30T20:00:00Z"), 9, 0, None, "America/Vancouver")
casablanca = next_time(read_instant("2026-10-14T20:00:00Z"), 9, 0, None, "Africa/Casablanca")
print(vancouver, casablanca, tz_release())
"""


@pytest.mark.parametrize("stale", [True, False])
def test_the_hosts_zone_files_do_not_matter(stale: bool, tmp_path: Path) -> None:
    if stale:  # as wrong as a file can be
        for name in ("America/Vancouver", "Africa/Casablanca"):
            (tmp_path / name).parent.mkdir()
            (tmp_path / name).write_bytes(ZONE_FILES.joinpath("Asia/Tokyo").read_bytes())

    answer = subprocess.run(
        [sys.executable, "-c", ASK_IN_A_FRESH_PROCESS],
        env={**os.environ, "PYTHONTZPATH": str(tmp_path), "PYTHONPATH": str(ROOT / "engine")},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()

    expect = CASES["tzdb-same-answer-on-stale-host"]["expect"]
    assert answer[:2] == expect["until_utc"]
    assert answer[2] >= expect["reported_tz_version_at_least"]


# Laws

RESTLESS = [
    NEW_YORK,
    "Europe/Berlin",
    "Australia/Lord_Howe",
    "America/Sao_Paulo",
    "America/St_Johns",
    "Africa/Casablanca",
    "Asia/Tehran",
    "Asia/Kathmandu",
    "Pacific/Apia",
    "UTC",
]
"""Zones with every kind of clock change, and some with none."""

zones = st.sampled_from(RESTLESS)
moments = st.integers(
    at("2005-01-01T00:00:00Z").timestamp(), at("2035-01-01T00:00:00Z").timestamp()
).map(Instant.from_timestamp)
workweeks = st.frozensets(st.integers(0, 6), min_size=1)
units: st.SearchStrategy[timing.Unit] = st.sampled_from(list(timing.MAX_AMOUNTS))
clocks = st.integers(0, 24 * 60 - 1)


@st.composite
def near_changes(draw: st.DrawFn) -> tuple[str, Instant]:
    """A zone and a moment within two hours of one of its clock changes, or a day or two off."""
    zone = draw(zones)
    change = draw(moments).to_tz(zone).next_transition()
    near = change.to_instant() if change else draw(moments)
    days, seconds = draw(st.sampled_from([0, 0, -1, -2, 1])), draw(st.integers(-7_200, 7_200))
    return zone, near.add(hours=24 * days, seconds=seconds)


@st.composite
def some_windows(draw: st.DrawFn, zones: st.SearchStrategy[str] = zones) -> Window:
    opens = draw(clocks)
    closes = draw(clocks.filter(lambda minute: minute != opens))
    return Window(draw(zones), draw(workweeks), opens, closes)


@cache
def oracle(zone: str) -> ZoneInfo:
    with ZONE_FILES.joinpath(*zone.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=zone)


def on_the_wall(moment: Instant, zone: str) -> datetime:
    """What the clock shows, by zoneinfo; `fold` is 1 the second time."""
    return moment.to_stdlib().astimezone(oracle(zone))


def never_existed(day: datetime, zone: str) -> bool:
    return (day.year, day.month, day.day, zone) == (2011, 12, 30, "Pacific/Apia")


def stepped(wall: datetime, days: int, zone: str, counts: Callable[[datetime], bool]) -> datetime:
    """`days` days on, one by one, counting those that exist and that `counts` wants."""
    while days:
        wall = wall.replace(fold=0) + timedelta(days=1)
        if not never_existed(wall, zone) and counts(wall):
            days -= 1
    return wall.astimezone(UTC)


@given(near_changes(), units, st.data())
def test_a_wait_ends_after_it_began(
    near: tuple[str, Instant], unit: timing.Unit, data: st.DataObject
) -> None:
    zone, now = near
    amount = data.draw(st.integers(1, timing.MAX_AMOUNTS[unit]))

    assert timing.after(now, Duration(amount, unit), zone) > now


@given(near_changes(), st.integers(1, 400))
def test_days_agree_with_zoneinfo(near: tuple[str, Instant], days: int) -> None:
    zone, end = near
    now = end.subtract(hours=24 * days)

    until = timing.after(now, Duration(days, "day"), zone)

    assert until.to_stdlib() == stepped(on_the_wall(now, zone), days, zone, lambda _: True)


@given(near_changes(), st.integers(1, 60), workweeks | st.just(timing.EVERY_DAY))
def test_business_days_agree_with_counting_them(
    near: tuple[str, Instant], days: int, workweek: timing.Days
) -> None:
    zone, end = near
    now = end.subtract(hours=24 * (days * 7 // len(workweek)))

    until = timing.after(now, Duration(days, "business_day"), zone, workweek)

    counted = stepped(on_the_wall(now, zone), days, zone, lambda day: day.weekday() in workweek)
    assert until.to_stdlib() == counted


@given(near_changes(), st.integers(0, 23), st.integers(0, 59), workweeks)
def test_a_time_to_wait_for_is_the_next_one(
    near: tuple[str, Instant], hour: int, minute: int, days: timing.Days
) -> None:
    zone, now = near

    until = timing.next_time(now, hour, minute, days, zone)

    assert until > now
    wall = on_the_wall(until, zone)
    before = on_the_wall(until.subtract(seconds=1), zone).replace(tzinfo=None)
    shown = wall.replace(tzinfo=None)
    asked_that_day = {
        shown.replace(hour=hour, minute=minute, second=0) - timedelta(days=back) for back in (0, 1)
    }
    assert any(before < each <= shown for each in asked_that_day)
    assert wall.fold == 0
    for skipped in range(1, (wall.date() - on_the_wall(now, zone).date()).days):
        between = on_the_wall(now, zone).date() + timedelta(days=skipped)
        exists = not never_existed(datetime(between.year, between.month, between.day), zone)
        assert between.weekday() not in days or not exists


@given(near_changes(), st.lists(some_windows(), min_size=1, max_size=3))
def test_an_opening_is_inside_every_window(
    near: tuple[str, Instant], windows: Sequence[Window]
) -> None:
    _, now = near

    opening = timing.next_opening(windows, now)

    if opening is not None:
        assert opening >= now
        assert timing.is_open(windows, opening)
        assert timing.next_opening(windows, opening) == opening


@settings(max_examples=40)
@given(near_changes(), st.data())
def test_no_minute_before_an_opening_is_inside(
    near: tuple[str, Instant], data: st.DataObject
) -> None:
    zone, now = near
    here = st.sampled_from([zone, NEW_YORK])
    windows = data.draw(st.lists(some_windows(here), min_size=1, max_size=2))

    opening = timing.next_opening(windows, now)

    end = opening or now.add(hours=24 * timing.SEARCH_DAYS)
    minute = now
    while minute < end:
        assert not all(shows_inside(each, minute) for each in windows)
        minute = minute.add(minutes=1)


def shows_inside(window: Window, moment: Instant) -> bool:
    """The rule read word for word, by zoneinfo."""
    wall = on_the_wall(moment, window.zone)
    minute, opened = wall.hour * 60 + wall.minute, wall
    if window.opens > window.closes and minute < window.closes:
        opened -= timedelta(days=1)
        if never_existed(opened, window.zone):
            opened -= timedelta(days=1)
        return opened.weekday() in window.days
    closes = window.closes if window.opens < window.closes else 24 * 60
    return window.opens <= minute < closes and wall.weekday() in window.days


@given(near_changes(), some_windows())
def test_the_wall_clock_decides_whether_a_window_is_open(
    near: tuple[str, Instant], window: Window
) -> None:
    _, now = near

    assert timing.is_open([window], now) is shows_inside(window, now)


@given(st.lists(some_windows(st.just("UTC")), min_size=1, max_size=3), moments)
def test_windows_of_one_zone_meet_or_never_do(windows: list[Window], now: Instant) -> None:
    assert timing.never_meet(windows) is (timing.next_opening(windows, now) is None)


@given(moments, st.integers(1, 90), st.integers(0, 2**32 - 1))
def test_jitter_stays_below_its_length(base: Instant, minutes: int, share: int) -> None:
    delayed = timing.jitter(base, Duration(minutes, "minute"), share, "UTC")

    assert base <= delayed < base.add(minutes=minutes)


@given(near_changes(), st.sets(st.integers(0, 23), min_size=1))
def test_sweeps_follow_one_another(near: tuple[str, Instant], hours: set[int]) -> None:
    zone, now = near

    slots = [now]
    for _ in range(6):
        slots.append(timing.next_sweep(slots[-1], sorted(hours), zone))

    assert slots == sorted(set(slots))
    for before, slot in pairwise(slots[1:]):
        assert timing.catch_up(before, slot, sorted(hours), zone) == slot
        assert timing.catch_up(before, slot.subtract(seconds=1), sorted(hours), zone) is None


@given(st.dates().map(Date), st.integers(1950, 2100))
def test_an_anniversary_comes_exactly_once_a_year(born: Date, year: int) -> None:
    fires = [day for day in days_of(year) if timing.days_until(born, day, annual=True) == 0]

    assert len(fires) == 1
    assert timing.days_since(born, fires[0], annual=True) == 0


@pytest.mark.parametrize("year", range(2019, 2033))
def test_somebody_born_on_29_february_has_a_birthday_every_year(year: int) -> None:
    born = Date(2000, 2, 29)

    fires = [day for day in days_of(year) if timing.days_until(born, day, annual=True) == 0]

    assert fires == [Date(year, 2, 29 if year in (2020, 2024, 2028, 2032) else 28)]


@given(moments)
def test_an_instant_is_read_as_it_was_written(moment: Instant) -> None:
    assert timing.read_instant(timing.write_instant(moment)) == moment


def test_days_are_counted_up_to_the_ends_of_the_calendar() -> None:
    today = Date(2026, 6, 1)

    assert timing.days_until(Date(9999, 12, 31), today, annual=False) == 2_912_291
    assert timing.days_until(Date(1, 1, 1), today, annual=False) == -739_767
