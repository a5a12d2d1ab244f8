"""The scanner: who comes, who leaves, at which hours, and whom a date enrols."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from whenever import Instant, TimeDelta

from journeykit_engine import replay
from journeykit_engine.graph import Graph
from journeykit_engine.instance import Person
from journeykit_engine.looks import Looks
from journeykit_engine.program import Program, compile_graph
from journeykit_engine.replay import Known, Line, Replayed

Json = dict[str, Any]
Cases = Mapping[str, dict[str, Any]]
HOUR = TimeDelta(hours=1)
START = Instant("2026-06-01T00:00:00Z")
PREMIUM: Json = {"root": {"trait": "plan", "op": "eq", "value": "premium"}}


def program(trigger: Json, zone: str = "UTC", **fields: Any) -> Program:
    """Straight from the trigger to the exit."""
    nodes = [
        {"id": "t", "kind": "trigger", "next": "end", "trigger": trigger},
        {"id": "end", "kind": "exit"},
    ]
    graph = {"journey_id": 7, "entry_id": "t", "entry_rule": "every_time", "nodes": nodes}
    return compile_graph(Graph.parse({**graph, **fields}), zone)


def becomes(plan: str, at: Instant, user_id: str = "u_1") -> Line:
    return Line("identify", user_id, at, properties={"plan": plan})


def entries(found: Replayed) -> list[tuple[str, str]]:
    return [(r["at"], r["user_id"]) for r in found.journal if r["what"] == "entered"]


def entry_times(found: Replayed) -> list[str]:
    return [at for at, _ in entries(found)]


# --- segments that are entered and left

ENTER = {"kind": "segment_enter", "definition": PREMIUM}
LEAVE = {"kind": "segment_exit", "definition": PREMIUM}


def test_the_first_look_enrols_nobody_and_records_everybody(cases: Cases) -> None:
    case = cases["sweep-first-scan"]
    people = [Person(f"u_{i}", {"plan": "premium"}) for i in range(100)]
    looks = Looks(program(ENTER), START, HOUR)
    for person in people:
        looks.changed(person)
    _, found = looks.look()
    assert len(found) == case["expect"]["enrolled"] == 0
    assert sum(looks.inside.values()) == len(people)


def test_who_stays_inside_is_never_enrolled_again(cases: Cases) -> None:
    case = cases["reentry-no-restart-after-natural-exit"]
    looked = START + HOUR * (case["given"]["scans"] - 1)
    found = replay.replay(
        program(ENTER), [], [Known("u_1", {"plan": "premium"})], since=START, until=looked
    )
    assert found.summary["entries"] == case["expect"]["entries"] == 0


def test_leaving_and_coming_back_counts_as_entering(cases: Cases) -> None:
    case = cases["reentry-after-segment-flap"]
    at = [START + HOUR * i for i in range(6)]
    changes = ["premium", "free", "premium", "free", "premium"]
    lines = [becomes(plan, time) for plan, time in zip(changes, at[1:], strict=False)]
    found = replay.replay(program(ENTER), lines, [Known("u_1")], since=START, until=at[5])
    assert entry_times(found) == [
        "2026-06-01T01:00:00Z",
        "2026-06-01T03:00:00Z",
        "2026-06-01T05:00:00Z",
    ]
    counts = [r["entry"] for r in found.journal if r["what"] == "entered"]
    assert counts[:2] == [1, case["expect"]["entry_count"]]


def test_a_person_first_seen_after_the_first_look_came_in() -> None:
    lines = [becomes("premium", START + HOUR * 2)]
    found = replay.replay(program(ENTER), lines, since=START, until=START + HOUR * 9)
    assert entry_times(found) == ["2026-06-01T02:00:00Z"]


def test_a_newcomer_of_whom_nothing_asked_for_is_known_is_asked_about_too() -> None:
    never = {"kind": "segment_enter", "definition": {"root": {"none": [{"event": "purchase"}]}}}
    lines = [Line("track", "u_1", START + HOUR * 2, "seen")]
    found = replay.replay(program(never), lines, since=START, until=START + HOUR * 9)
    assert entry_times(found) == ["2026-06-01T02:00:00Z"]


def test_in_and_out_between_two_looks_is_not_noticed() -> None:
    lines = [becomes("premium", START.add(minutes=61)), becomes("free", START.add(minutes=119))]
    found = replay.replay(
        program(ENTER), lines, [Known("u_1")], since=START, until=START.add(hours=9)
    )
    assert found.journal == []


def test_leaving_a_segment_is_noticed_at_the_next_look() -> None:
    lines = [becomes("free", START.add(minutes=61)), becomes("free", START.add(minutes=200))]
    people = [Known("u_1", {"plan": "premium"}), Known("u_2", {"plan": "premium"})]
    found = replay.replay(program(LEAVE), lines, people, since=START, until=START.add(hours=9))
    assert entries(found) == [("2026-06-01T02:00:00Z", "u_1")]


def test_a_window_runs_out_by_itself() -> None:
    lapsed: Json = {"root": {"none": [{"event": "purchase", "within": "3h"}]}}
    lines = [Line("track", "u_1", START, "purchase")]
    trigger = {"kind": "segment_enter", "definition": lapsed}
    found = replay.replay(
        program(trigger),
        lines,
        since=START,
        until=START.add(hours=9),
        scan_every=TimeDelta(minutes=10),
    )
    assert entry_times(found) == ["2026-06-01T03:00:00Z"]


def test_an_event_at_the_time_of_the_look_is_seen_by_it() -> None:
    found = replay.replay(
        program(ENTER), [becomes("premium", START + HOUR)], [Known("u_1")], since=START
    )
    assert entry_times(found) == ["2026-06-01T01:00:00Z"]
    found = replay.replay(
        program(ENTER), [becomes("premium", START)], [Known("u_1")], since=START, until=START + HOUR
    )
    assert found.journal == []


def test_the_walks_own_writes_are_seen_by_the_next_look() -> None:
    """Each pass takes the person out of the segment that let them in."""
    graph = {
        "journey_id": 7,
        "entry_id": "t",
        "entry_rule": "every_time",
        "nodes": [
            {"id": "t", "kind": "trigger", "next": "a", "trigger": ENTER},
            {
                "id": "a",
                "kind": "action",
                "action": {"kind": "update_trait", "trait": "plan", "value": "free"},
            },
        ],
    }
    lines = [becomes("premium", START + HOUR * i) for i in (1, 3, 4)]
    found = replay.replay(
        compile_graph(Graph.parse(graph)),
        lines,
        [Known("u_1")],
        since=START,
        until=START + HOUR * 9,
    )
    assert entry_times(found) == ["2026-06-01T01:00:00Z", "2026-06-01T03:00:00Z"]
    # The third came an hour after the second: no look fell between, so nobody saw them outside.


# --- sweeps

EVERYBODY: Json = {"root": {}}


def sweep(*hours: int, definition: Json = EVERYBODY) -> Json:
    return {"kind": "segment_periodic", "definition": definition, "hours": list(hours)}


@pytest.mark.parametrize("name", ["sweep-tehran", "sweep-gap-hour", "sweep-overlap-hour"])
def test_sweeps_run_at_their_hours_of_the_accounts_day(name: str, cases: Cases) -> None:
    given, when = cases[name]["given"], cases[name]["when"]
    zone = given["account_tz"]
    noon = Instant(f"{when['local_date']}T12:00:00Z")
    found = replay.replay(
        program(sweep(*given["trigger"]["hours"]), zone),
        [],
        [Known("u_1")],
        since=noon.subtract(hours=36),
        until=noon.add(hours=36),
    )
    that_day = [
        at for at in entry_times(found) if str(Instant(at).to_tz(zone).date()) == when["local_date"]
    ]
    assert that_day == cases[name]["expect"]["runs_utc"]


def test_a_sweep_does_not_run_before_the_journey_is_published() -> None:
    late = Instant("2026-06-01T11:00:00.5Z")
    found = replay.replay(
        program(sweep(11)), [], [Known("u_1")], since=late, until=late.add(hours=24)
    )
    assert entry_times(found) == ["2026-06-02T11:00:00Z"]
    on_time = Instant("2026-06-01T11:00:00Z")
    found = replay.replay(program(sweep(11)), [], [Known("u_1")], since=on_time, until=late)
    assert entry_times(found) == ["2026-06-01T11:00:00Z"]


@pytest.mark.parametrize(
    ("gap", "expected"),
    [
        ({"cooldown_hours": 24}, "allowed"),
        ({"reentry_window": "day"}, "with_reentry_window_day_instead"),
    ],
)
def test_a_cohort_locks_to_its_hour_unless_the_gap_is_a_day(
    gap: Json, expected: str, cases: Cases
) -> None:
    """They first come in by a sweep at 19:00, which asks for them on that one evening only."""
    case = cases["cooldown-cohort-lock"]
    prior = Instant(case["given"]["prior"]["entered_at"])
    new_here = {"trait": "stage", "op": "eq", "value": "new"}
    not_at_19 = {"not": {"local": "hour", "op": "eq", "value": 19}}
    hours = [*case["given"]["hours"], 19]
    journey = program(
        sweep(*hours, definition={"root": {"any": [new_here, not_at_19]}}),
        case["given"]["account_tz"],
        **gap,
    )
    found = replay.replay(
        journey,
        [Line("identify", "u_1", prior.add(hours=1), properties={"stage": "known"})],
        [Known("u_1", {"stage": "new"})],
        since=prior,
        until=Instant(case["when"]["sweeps_utc"][-1]),
    )
    asked = {r["at"]: r["what"] for r in found.journal if r["what"] in ("entered", "refused")}
    assert asked.pop(case["given"]["prior"]["entered_at"]) == "entered"
    told = {True: "entered", False: "refused"}
    assert asked == dict(
        zip(case["when"]["sweeps_utc"], map(told.get, case["expect"][expected]), strict=True)
    )


def test_a_timer_due_at_the_time_of_a_sweep_comes_first() -> None:
    """The pass of the 10:00 sweep ends in time for the one at 11:00."""
    hour = {"kind": "duration", "amount": 1, "unit": "hour"}
    nodes = [
        {"id": "t", "kind": "trigger", "next": "w", "trigger": sweep(10, 11)},
        {"id": "w", "kind": "wait", "wait": hour},
    ]
    graph = {"journey_id": 7, "entry_id": "t", "entry_rule": "every_time", "nodes": nodes}
    journey = compile_graph(Graph.parse(graph))
    found = replay.replay(journey, [], [Known("u_1")], since=START, until=START.add(hours=11))
    assert entry_times(found) == ["2026-06-01T10:00:00Z", "2026-06-01T11:00:00Z"]


# --- dates


def birthdays(offset: int, **more: Any) -> Json:
    return {"kind": "date", "trait": "birthday", "offset_days": offset, **more}


@pytest.mark.parametrize(
    "name",
    ["bday-leap-common-year", "bday-new-year-wrap", "bday-mar1-common", "bday-datetime-value"],
)
def test_a_birthday_comes_once_a_year(name: str, cases: Cases) -> None:
    case = cases[name]
    zone = case["given"].get("account_tz", "UTC")
    found = replay.replay(
        program(birthdays(case["given"]["trigger"]["offset_days"]), zone),
        [],
        [Known("u_1", case["given"]["trait"])],
        since=Instant("2026-01-01T00:00:00Z"),
        until=Instant("2026-12-31T20:00:00Z"),
    )
    days = [str(Instant(at).to_tz(zone).date()) for at in entry_times(found)]
    assert days == case["expect"]["fires_on"]
    assert {Instant(at).to_tz(zone).hour for at in entry_times(found)} == {9}


def test_today_is_the_accounts_day(cases: Cases) -> None:
    case = cases["bday-day-is-the-accounts"]
    before, after = map(Instant, case["when"]["scan_at_utc"])
    offset, zone = case["given"]["trigger"]["offset_days"], case["given"]["account_tz"]
    found = replay.replay(
        program(birthdays(offset, hour=0), zone),
        [],
        [Known("u_1", case["given"]["trait"])],
        since=before.subtract(hours=48),
        until=after.add(hours=48),
    )
    assert [Instant(at) for at in entry_times(found)] == [after]


def test_unreadable_dates_enrol_nobody_and_are_counted(cases: Cases) -> None:
    case = cases["bday-bad-values"]
    values = case["given"]["trait_values"]
    people = [Known(f"u_{i}", {"birthday": value}) for i, value in enumerate(values)]
    found = replay.replay(
        program(birthdays(3)),
        [],
        [*people, Known("none at all")],
        since=Instant("2026-01-01T00:00:00Z"),
        until=Instant("2026-12-31T23:00:00Z"),
    )
    assert found.summary["entries"] == case["expect"]["enrolled"]
    assert found.summary["skipped_dates"] == case["expect"]["skipped_recorded"]


def test_a_date_that_becomes_unreadable_later_is_counted_too() -> None:
    line = Line("identify", "u_1", START.add(hours=30), properties={"birthday": "soon"})
    people = [Known("u_1", {"birthday": "1990-06-20"})]
    found = replay.replay(
        program(birthdays(0)), [line], people, since=START, until=START.add(hours=24 * 30)
    )
    assert found.summary["skipped_dates"] == 1
    assert found.journal == []


def test_a_date_is_asked_together_with_its_definition_and_at_its_hour() -> None:
    people = [
        Known("u_1", {"birthday": "1990-06-03", "plan": "premium"}),
        Known("u_2", {"birthday": "1990-06-03", "plan": "free"}),
        Known("u_3", {"birthday": "1990-06-04", "plan": "premium"}),
    ]
    found = replay.replay(
        program(birthdays(1, hour=0, definition=PREMIUM), "Asia/Tehran"),
        [],
        people,
        since=START,
        until=START.add(hours=48),
    )
    assert entries(found) == [("2026-06-01T20:30:00Z", "u_1"), ("2026-06-02T20:30:00Z", "u_3")]


def test_a_date_that_is_not_annual_comes_once() -> None:
    trip = {"kind": "date", "trait": "trip", "annual": False}
    people = [Known("u_1", {"trip": "2026-06-03"}), Known("u_2", {"trip": "2025-06-03"})]
    found = replay.replay(
        program(trip), [], people, since=START, until=Instant("2028-01-01T00:00:00Z")
    )
    assert entries(found) == [("2026-06-03T09:00:00Z", "u_1")]


def test_a_journey_without_a_scanned_trigger_is_never_looked_at() -> None:
    looks = Looks(program({"kind": "api"}), START, HOUR)
    looks.changed(Person("u_1"))
    assert (looks.next_at, looks.people, looks.skipped_dates) == (None, {}, None)
