"""Who may start again, and who is inside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from whenever import Instant

from journeykit_engine.instance import Instance, Reentry, Refusal, may_enter
from journeykit_engine.signal import Event
from journeykit_engine.timing import read_instant
from tests.engine.walking import END, START, Story, again, days, later, made

Cases = Mapping[str, dict[str, Any]]
TEHRAN = "Asia/Tehran"
RULE_CASES = [
    "reentry-day-tehran-before-midnight",
    "reentry-day-tehran-midnight",
    "reentry-day-measured-from-entry",
    "cooldown-second-before",
    "cooldown-from-last-update",
    "cooldown-zero",
    "reentry-both-fields",
]


def ended(entered_at: Instant, updated_at: Instant | None = None) -> Instance:
    return Instance(7, 12, 3, "u_1", 1, "completed", "end", entered_at, updated_at or entered_at)


@pytest.mark.parametrize("case_id", RULE_CASES)
def test_who_may_enter_again(case_id: str, cases: Cases) -> None:
    case = cases[case_id]
    given, prior = case["given"], case["given"]["prior"]
    updated = read_instant(prior.get("updated_at", prior.get("entered_at")))
    entered = read_instant(prior.get("entered_at", prior.get("updated_at")))
    reentry = Reentry("every_time", given.get("cooldown_hours", 0), given.get("reentry_window", ""))

    refusal = may_enter(
        reentry,
        ended(entered, updated),
        read_instant(case["when"]["trigger_at_utc"]),
        given.get("account_tz", "UTC"),
    )

    assert (refusal is None) is case["expect"]["allowed"]


def test_exactly_the_cooldown_after_the_last_update_may_enter() -> None:
    day = Reentry("every_time", 24)

    assert may_enter(day, ended(START), later(hours=24), "UTC") is None
    just_before = later(hours=24).subtract(nanoseconds=1)
    assert may_enter(day, ended(START), just_before, "UTC") == "cooldown"


def test_a_cohort_locks_to_its_hour_with_a_cooldown_and_not_with_a_day(cases: Cases) -> None:
    case = cases["cooldown-cohort-lock"]
    prior = case["given"]["prior"]
    sweeps = [read_instant(text) for text in case["when"]["sweeps_utc"]]
    both = (Reentry("every_time", case["given"]["cooldown_hours"]), Reentry("every_time", 0, "day"))
    allowed = []
    for reentry in both:
        last = ended(read_instant(prior["entered_at"]), read_instant(prior["updated_at"]))
        answers = []
        for sweep in sweeps:
            may = may_enter(reentry, last, sweep, TEHRAN) is None
            last = ended(sweep) if may else last
            answers.append(may)
        allowed.append(answers)

    assert allowed[0] == case["expect"]["allowed"]
    assert allowed[1] == case["expect"]["with_reentry_window_day_instead"]


def test_nobody_inside_is_entered_again_under_any_rule(cases: Cases) -> None:
    case = cases["reentry-while-waiting"]
    wake_at = read_instant(case["given"]["prior"]["wake_at"])
    trigger_at = read_instant(case["when"]["trigger_at_utc"])
    story = Story(again(days(1, "end"), END)).starts(wake_at - (later(days=1) - START))
    parked = story.now

    story.starts(trigger_at, "m2")

    assert story.told == ["refused t already_inside"]
    assert story.instance is parked
    assert story.now.entry_count == case["expect"]["entry_count"]
    assert story.now.wake_at == read_instant(case["expect"]["wake_at"])


def test_a_paused_person_is_inside() -> None:
    story = Story(again(days(1, "end"), END)).starts().pauses(later(hours=1))

    assert story.starts(later(days=3), "m2").told == ["refused t already_inside"]


@pytest.mark.parametrize(
    ("fields", "again_at", "reason"),
    [
        ({"entry_rule": "once"}, later(days=99), "once"),
        ({"cooldown_hours": 48}, later(hours=47), "cooldown"),
        ({"reentry_window": "day"}, later(hours=9), "same_day"),
    ],
)
def test_every_refusal_says_which_rule_said_no(
    fields: dict[str, Any], again_at: Instant, reason: Refusal
) -> None:
    story = Story(again(END, **fields)).starts()
    before = story.now

    assert story.starts(again_at, "m2").told == [f"refused t {reason}"]
    assert story.instance is before


def test_once_knows_of_an_entry_in_another_version() -> None:
    story = Story(made(END)).starts()
    story.program = made(END, version=4)

    assert story.starts(later(days=1), "m2").told == ["refused t once"]


def test_the_cooldown_counts_from_the_last_update_and_the_day_from_the_entry() -> None:
    slow = Story(again(days(2, "end"), END, cooldown_hours=24)).starts().wakes()
    daily = Story(again(days(2, "end"), END, reentry_window="day")).starts().wakes()

    assert slow.starts(later(days=2, hours=23), "m2").told == ["refused t cooldown"]
    assert daily.starts(later(days=2), "m2").now.entry_count == 2


def test_the_day_is_the_accounts() -> None:
    program = again(END, reentry_window="day", settings={"timezone": TEHRAN})
    evening = Instant("2026-06-01T20:29:59Z")  # a second before midnight in Tehran
    story = Story(program).starts()

    assert story.starts(evening, "m2").told == ["refused t same_day"]
    assert story.starts(evening.add(seconds=1), "m3").now.entry_count == 2


def test_who_left_a_segment_and_came_back_enters_where_the_rule_allows(cases: Cases) -> None:
    case = cases["reentry-after-segment-flap"]
    trigger = {"kind": case["given"]["trigger"], "definition": {"root": {"segment": 5}}}
    story = Story(again(END, trigger=trigger))

    for day in (0, 1):
        event = Event("journey_enter_requested", later(days=day), f"m{day}", {"journey_id": 12})
        story.reacts(event)

    assert story.now.entry_count == case["expect"]["entry_count"]


@pytest.mark.parametrize(
    ("status", "is_live"),
    [("active", True), ("waiting", True), ("completed", False), ("exited", False)],
)
def test_the_active_and_the_waiting_are_inside(status: Any, is_live: bool) -> None:
    assert ended(START)._replace(status=status).is_live is is_live
