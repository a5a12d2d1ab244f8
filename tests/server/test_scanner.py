"""The scanner on a real store: who is found, when, how often, and what is written down of it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import pytest
from sqlalchemy import func, select
from whenever import Date, Instant, TimeDelta

from journeykit_engine.graph import Graph
from journeykit_engine.program import compile_graph
from journeykit_engine.replay import Known, Line, replay
from journeykit_server import lifecycle, rules_sql
from journeykit_server import scanner as scanning
from journeykit_server import segments as grouping
from journeykit_server.clock import instant, microseconds
from journeykit_server.database import Database
from journeykit_server.incoming import Incoming
from journeykit_server.publishing import save_draft
from journeykit_server.runtime import Runtime
from journeykit_server.scanner import Limits, Scan, Scanner, scans_of
from journeykit_server.segments import count_members, save_segment
from journeykit_server.tables import audience, entries, events, journeys, looks, scans, versions
from tests.databases import START
from tests.engine.journeys import Value, journey
from tests.server.shop import Shop, counted, later

Cases = Mapping[str, dict[str, Any]]
END: Value = {"id": "end", "kind": "exit"}
PREMIUM: Value = {"root": {"trait": "plan", "op": "eq", "value": "premium"}}
GOLD: Value = {"root": {"trait": "plan", "op": "eq", "value": "gold"}}
EVERYBODY: Value = {"root": {}}
ENTER: Value = {"kind": "segment_enter", "definition": PREMIUM}
LEAVE: Value = {"kind": "segment_exit", "definition": PREMIUM}
MINUTES = 60.0
FIVE = TimeDelta(minutes=5)  # between two looks


def sweep(*hours: int, definition: Value = EVERYBODY) -> Value:
    return {"kind": "segment_periodic", "definition": definition, "hours": list(hours)}


def birthday(offset_days: int = 0, **fields: Any) -> Value:
    return {"kind": "date", "trait": "birthday", "offset_days": offset_days, **fields}


class Lookout(Shop):
    """A shop with a scanner."""

    def __init__(self, database: Database, **given: Any) -> None:
        super().__init__(database)
        self.scanner = Scanner(self.runtime, **given)

    async def finds(self, trigger: Value, **fields: Any) -> int:
        """Publish a journey that lets everybody out at once, as often as they are found."""
        fields = {"entry_rule": "every_time", **fields}
        return await self.opens(END, trigger=trigger, **fields)

    async def finds_anew(self, journey_id: int, trigger: Value) -> int:
        return await self.changes(journey_id, END, trigger=trigger, entry_rule="every_time")

    async def looks(self, moment: Instant | None = None) -> int:
        """It is that late; take every step that is due. How many there were."""
        if moment is not None:
            self.clock.set(moment)
        steps = 0
        while await self.scanner.look_once():
            steps += 1
        return steps

    async def lives_until(self, moment: Instant) -> None:
        """Take every step at its own time."""
        while (due := await self.scanner.next_due()) is not None and due <= moment:
            await self.looks(max(due, self.clock.now()))
        self.clock.set(moment)

    async def closes(self, journey_id: int, mode: str = "entries") -> None:
        await self.tampers(journeys, journey_id, status="paused", pause_mode=mode)
        await self.runtime.reload()

    async def reopens(self, journey_id: int) -> None:
        await self.tampers(journeys, journey_id, status="published", pause_mode="")
        await self.runtime.reload()

    async def entered(self, journey_id: int = 1) -> list[tuple[str, str]]:
        """When who came in, in order."""
        rows = [row for row in await self.rows(entries) if row.journey_id == journey_id]
        return sorted((instant(row.entered_at).format_iso(), row.user_id) for row in rows)

    async def who_entered(self, journey_id: int = 1) -> list[str]:
        return [user_id for _, user_id in await self.entered(journey_id)]

    async def inside(self, journey_id: int = 1) -> list[str]:
        """Who was inside at the last look."""
        rows = await self.rows(audience)
        return [row.user_id for row in rows if row.journey_id == journey_id]

    async def scan(self, journey_id: int = 1) -> Scan:
        """The last look."""
        return (await scans_of(self.database, 1, journey_id))[0]


def names(many: int) -> list[str]:
    return [f"u_{number:03}" for number in range(many)]


# --- who comes into a segment, and who leaves it


async def test_the_first_look_enrols_nobody_and_records_everybody(
    database: Database, cases: Cases
) -> None:
    case = cases["sweep-first-scan"]
    shop = Lookout(database, limits=Limits(page=40))
    for user_id in names(100):
        await shop.learns(user_id, plan="premium")
    await shop.learns("of another plan", plan="free")
    await shop.finds(ENTER)

    await shop.looks()

    assert len(await shop.entered()) == case["expect"]["enrolled"] == 0
    assert await shop.inside() == names(100)
    assert await scans_of(database, 1, 1) == [
        Scan(START, 1, "segment_enter", True, 100, 0, 0, False, START, START)
    ]


async def test_who_comes_in_is_enrolled_at_the_next_look_and_only_there(
    database: Database,
) -> None:
    shop = Lookout(database)
    await shop.learns("was there", plan="premium")
    await shop.finds(ENTER)
    await shop.looks()

    await shop.learns("sara", plan="premium")
    assert await shop.looks(later(seconds=299)) == 0
    assert await shop.entered() == []
    await shop.looks(later(minutes=5))
    await shop.lives_until(later(minutes=20))

    assert await shop.entered() == [("2026-06-01T10:05:00Z", "sara")]
    assert [(scan.slot_at, scan.members, scan.found) for scan in await shop_scans(shop)] == [
        (later(minutes=20), 2, 0),
        (later(minutes=15), 2, 0),
        (later(minutes=10), 2, 0),
        (later(minutes=5), 2, 1),
        (START, 1, 0),
    ]


async def shop_scans(shop: Lookout) -> list[Scan]:
    return await scans_of(shop.database, 1, 1)


async def test_leaving_and_coming_back_counts_as_entering(database: Database, cases: Cases) -> None:
    case = cases["reentry-after-segment-flap"]
    shop = Lookout(database)
    await shop.learns("sara", plan="free")
    await shop.finds(ENTER)
    await shop.looks()
    for number, plan in enumerate(["premium", "free", "premium", "premium", "free", "premium"], 1):
        await shop.learns("sara", plan=plan)
        await shop.looks(later(minutes=5 * number))

    assert [at for at, _ in await shop.entered()] == [
        "2026-06-01T10:05:00Z",
        "2026-06-01T10:15:00Z",
        "2026-06-01T10:30:00Z",
    ]
    assert (await shop.rows(entries))[1].entry_count == case["expect"]["entry_count"]


async def test_in_and_out_between_two_looks_is_not_noticed(database: Database) -> None:
    shop = Lookout(database)
    await shop.finds(ENTER)
    await shop.looks()
    await shop.learns("sara", plan="premium")
    await shop.learns("sara", plan="free")
    await shop.lives_until(later(minutes=30))

    assert await shop.entered() == []


async def test_who_leaves_is_enrolled_at_the_next_look(database: Database) -> None:
    shop = Lookout(database)
    await shop.learns("sara", plan="premium")
    await shop.learns("stays", plan="premium")
    await shop.learns("never", plan="free")
    await shop.finds(LEAVE)
    await shop.looks()
    await shop.learns("sara", plan="free")
    await shop.lives_until(later(minutes=20))

    assert await shop.entered() == [("2026-06-01T10:05:00Z", "sara")]
    assert await shop.inside() == ["stays"]


async def test_somebody_leaves_because_time_passes(database: Database) -> None:
    shop = Lookout(database, every=10 * MINUTES)
    bought: Value = {"root": {"event": "purchase", "within": "3h"}}
    await shop.hears(Incoming("track", "sara", "purchase"))
    await shop.finds({"kind": "segment_exit", "definition": bought})
    await shop.lives_until(later(hours=9))

    assert await shop.entered() == [("2026-06-01T13:00:00Z", "sara")]


async def test_a_late_look_is_one_look_and_asks_about_the_moment_it_began(
    database: Database,
) -> None:
    shop = Lookout(database)
    await shop.finds(ENTER)
    await shop.looks()
    await shop.learns("sara", plan="premium")

    assert await shop.looks(later(hours=7, seconds=1)) == 2  # who came, who left
    assert await shop.entered() == [("2026-06-01T17:00:01Z", "sara")]
    assert await shop.scanner.next_due() == later(hours=7, minutes=5, seconds=1)


async def test_tenants_do_not_see_each_other(database: Database) -> None:
    shop = Lookout(database)
    for tenant_id in (1, 2):
        await shop.finds(ENTER, tenant_id=tenant_id)
    await shop.looks()
    await shop.learns("sara", plan="premium")
    await shop.looks(later(minutes=5))

    assert [(row.tenant_id, row.user_id) for row in await shop.rows(entries)] == [(1, "sara")]
    assert await scans_of(database, 2, 1) != []


# --- a new version


async def test_a_new_version_with_the_same_question_keeps_the_record(database: Database) -> None:
    shop = Lookout(database)
    await shop.learns("was there", plan="premium")
    journey_id = await shop.finds(ENTER)
    await shop.looks()
    await shop.learns("sara", plan="premium")
    same = {"root": {"all": [PREMIUM["root"], {"all": []}]}}

    assert await shop.finds_anew(journey_id, {**ENTER, "definition": same}) == 2
    assert await shop.looks(later(minutes=4)) == 0, "the next look is as far away as it was"
    await shop.looks(later(minutes=5))

    assert await shop.who_entered() == ["sara"]
    scan = await shop.scan()
    assert (scan.version, scan.is_first) == (2, False)


async def test_another_question_begins_with_a_first_look(database: Database) -> None:
    shop = Lookout(database, limits=Limits(page=2))
    for user_id in names(5):
        await shop.learns(user_id, plan="premium")
    await shop.learns("gold", plan="gold")
    journey_id = await shop.finds(ENTER)
    await shop.looks()
    assert await shop.inside() == names(5)

    await shop.finds_anew(journey_id, {**ENTER, "definition": GOLD})
    await shop.looks(later(minutes=1))
    assert await shop.inside() == ["gold"]
    scan = await shop.scan()
    assert (scan.slot_at, scan.is_first, scan.members) == (later(minutes=1), True, 1)

    await shop.learns(names(5)[0], plan="gold")
    await shop.looks(later(minutes=6))
    assert await shop.who_entered() == names(1)


async def test_a_question_that_changes_in_the_middle_of_a_look_ends_that_look(
    database: Database,
) -> None:
    shop = Lookout(database, limits=Limits(page=2))
    for user_id in names(5):
        await shop.learns(user_id, plan="premium")
    journey_id = await shop.finds(ENTER)
    assert await shop.scanner.look_once() == 1
    assert await shop.inside() == names(2)

    await shop.finds_anew(journey_id, {**ENTER, "definition": GOLD})
    await shop.looks(later(seconds=1))

    assert await shop.inside() == []
    assert [(scan.version, scan.members) for scan in await shop_scans(shop)] == [(2, 0)]


async def test_a_journey_that_has_nothing_to_look_for_any_more_leaves_no_trace(
    database: Database,
) -> None:
    shop = Lookout(database, limits=Limits(page=2))
    for user_id in names(5):
        await shop.learns(user_id, plan="premium")
    journey_id = await shop.finds(ENTER)
    await shop.looks()

    await shop.finds_anew(journey_id, {"kind": "event", "event": "signed_up"})
    await shop.looks()

    assert await shop.inside() == []
    assert await shop.rows(looks) == []
    assert await shop.scanner.next_due() is None


async def test_a_version_that_this_worker_does_not_know_yet_waits_for_one_that_does(
    database: Database,
) -> None:
    behind = Lookout(database)
    behind.clock.set(later(minutes=59, seconds=40))
    await behind.learns("sara", plan="premium")
    journey_id = await behind.finds(sweep(11))
    await behind.looks()
    ahead = Lookout(database)
    await ahead.runtime.reload()
    await ahead.finds_anew(journey_id, sweep(11, definition=GOLD))
    await ahead.looks()

    assert await behind.looks(later(hours=1)) == 1
    assert await behind.entered() == []
    assert (await behind.rows(looks))[0].last_error == (
        "This worker cannot look for journey 1 version 2, which it cannot read. "
        "It waits for a worker that can, or for an upgrade of this one."
    )
    assert await ahead.looks(later(hours=1, seconds=30)) == 1
    assert (await ahead.scan()).version == 2


# --- hours


@pytest.mark.parametrize("name", ["sweep-tehran", "sweep-gap-hour", "sweep-overlap-hour"])
async def test_sweeps_run_at_their_hours_of_the_accounts_day(
    database: Database, name: str, cases: Cases
) -> None:
    given, when = cases[name]["given"], cases[name]["when"]
    zone = given["account_tz"]
    shop = Lookout(database)
    noon = Instant(f"{when['local_date']}T12:00:00Z")
    shop.clock.set(noon - TimeDelta(hours=36))
    await shop.learns("sara", plan="free")
    await shop.finds(sweep(*given["trigger"]["hours"]), zone=zone)
    await shop.lives_until(noon + TimeDelta(hours=36))

    that_day = [
        at
        for at, _ in await shop.entered()
        if str(Instant(at).to_tz(zone).date()) == when["local_date"]
    ]
    assert that_day == cases[name]["expect"]["runs_utc"]


async def test_an_outage_costs_one_sweep(database: Database, cases: Cases) -> None:
    case = cases["sweep-missed-while-down"]
    given = case["given"]
    shop = Lookout(database)
    last_run = Instant(given["last_run_utc"])
    shop.clock.set(last_run)
    await shop.learns("sara", plan="free")
    await shop.finds(sweep(*given["hours"]), zone=given["account_tz"])
    await shop.looks()
    assert len(await shop_scans(shop)) == 1

    await shop.looks(Instant(case["when"]["scanner_starts_at_utc"]))

    runs = [scan.slot_at for scan in await shop_scans(shop)]
    assert len(runs) - 1 == case["expect"]["runs_started"]
    assert runs == [Instant("2026-11-30T14:30:00Z"), last_run]
    assert await shop.scanner.next_due() == Instant("2026-12-01T07:30:00Z")


async def test_publishing_again_without_other_hours_moves_nothing(database: Database) -> None:
    shop = Lookout(database)
    await shop.learns("sara", plan="gold")
    journey_id = await shop.finds(sweep(11, 18))
    await shop.looks(later(hours=1))
    await shop.finds_anew(journey_id, sweep(18, 11, 18, definition=GOLD))

    assert await shop.looks() == 0
    assert await shop.scanner.next_due() == later(hours=8)
    await shop.looks(later(hours=8))
    assert [at for at, _ in await shop.entered()] == [
        "2026-06-01T11:00:00Z",
        "2026-06-01T18:00:00Z",
    ]

    await shop.finds_anew(journey_id, sweep(20))
    assert await shop.looks() == 0
    assert await shop.scanner.next_due() == later(hours=10)


async def test_an_hour_between_publishing_and_the_first_scanner_is_not_missed(
    database: Database,
) -> None:
    shop = Lookout(database)
    await shop.learns("sara", plan="gold")
    shop.clock.set(later(minutes=59))
    await shop.finds(sweep(11))

    await shop.looks(later(hours=1, minutes=1))

    assert (await shop.scan()).slot_at == later(hours=1)
    assert await shop.entered() == [("2026-06-01T11:01:00Z", "sara")]


async def test_a_sweep_asks_about_its_hour_however_late_it_runs(database: Database) -> None:
    shop = Lookout(database, limits=Limits(page=1))
    recent = {"root": {"event": "purchase", "within": "1h"}}
    for user_id in ("ann", "bob"):
        await shop.hears(Incoming("track", user_id, "purchase"))
    await shop.finds(sweep(10, definition=recent))
    assert await shop.scanner.look_once() == 1
    await shop.looks(later(hours=3))

    assert await shop.who_entered() == ["ann", "bob"]


# --- dates

BIRTHDAYS = [
    "bday-leap-common-year",
    "bday-new-year-wrap",
    "bday-mar1-common",
    "bday-datetime-value",
]
DAY = TimeDelta(hours=24)


@pytest.mark.parametrize("name", BIRTHDAYS)
async def test_a_birthday_comes_on_its_day(database: Database, name: str, cases: Cases) -> None:
    given = cases[name]["given"]
    (expected,) = cases[name]["expect"]["fires_on"]
    zone = given.get("account_tz", "UTC")
    shop = Lookout(database)
    noon = Date(expected).at(Instant("2026-01-01T12:00:00Z").to_tz("UTC").time())
    fires = noon.assume_tz("UTC").to_instant()
    shop.clock.set(fires - 4 * DAY)
    await shop.learns("sara", birthday=given["trait"]["birthday"])
    await shop.finds(birthday(given["trigger"]["offset_days"]), zone=zone)
    await shop.lives_until(fires + 4 * DAY)

    days = [str(Instant(at).to_tz(zone).date()) for at, _ in await shop.entered()]
    assert days == cases[name]["expect"]["fires_on"]
    assert len(await shop_scans(shop)) == 8


async def test_the_day_of_a_date_is_the_accounts(database: Database, cases: Cases) -> None:
    case = cases["bday-day-is-the-accounts"]
    given = case["given"]
    shop = Lookout(database)
    before, after = map(Instant, case["when"]["scan_at_utc"])
    shop.clock.set(before - DAY)
    await shop.learns("sara", birthday=given["trait"]["birthday"])
    trigger = birthday(given["trigger"]["offset_days"], hour=0)
    await shop.finds(trigger, zone=given["account_tz"])

    fires = []
    for moment in (before, after):
        await shop.lives_until(moment)
        fires.append(bool(await shop.entered()))
    assert fires == case["expect"]["fires"]


async def test_unreadable_dates_enrol_nobody_and_are_counted(
    database: Database, cases: Cases
) -> None:
    case = cases["bday-bad-values"]
    shop = Lookout(database, limits=Limits(page=4))
    shop.clock.set(Instant("2026-02-26T00:00:00Z"))
    for number, value in enumerate(case["given"]["trait_values"]):
        await shop.learns(f"u_{number:02}", birthday=value)
    await shop.learns("has none", plan="free")
    for readable in ("1990-03-15", "1990-10-31", "0001-01-10", "1990-03-01T00:00:00+03:30"):
        await shop.learns(f"readable {readable}", birthday=readable)
    await shop.finds(birthday())
    await shop.lives_until(Instant("2026-02-28T23:00:00Z"))

    found = await shop_scans(shop)
    assert len(await shop.entered()) == case["expect"]["enrolled"] == 0
    assert [scan.skipped for scan in found] == [case["expect"]["skipped_recorded"]] * 3
    assert [row.last_error for row in await shop.rows(looks)] == [""]


async def test_a_date_in_a_trait_with_an_odd_name(database: Database) -> None:
    shop = Lookout(database)
    odd = 'a "b".c $[0] 🎂'
    await shop.hears(
        Incoming("identify", "sara", properties={odd: "1990-06-01"}),
        Incoming("identify", "bob", properties={odd: "soon"}),
    )
    await shop.finds(birthday(hour=11) | {"trait": odd})
    await shop.looks(later(hours=1))

    assert await shop.who_entered() == ["sara"]
    assert (await shop.scan()).skipped == 1


async def test_a_date_goes_together_with_a_definition(database: Database) -> None:
    shop = Lookout(database)
    await shop.learns("sara", birthday="1990-06-04", plan="premium")
    await shop.learns("bob", birthday="1990-06-04", plan="free")
    await shop.finds(birthday(3, hour=11, definition=PREMIUM))
    await shop.lives_until(later(days=9))

    assert await shop.entered() == [("2026-06-01T11:00:00Z", "sara")]


# --- limits


async def test_a_look_that_finds_too_many_takes_the_others_the_next_time(
    database: Database,
) -> None:
    shop = Lookout(database, limits=Limits(page=2, diff=3))
    await shop.finds(ENTER)
    await shop.looks()
    for user_id in names(5):
        await shop.learns(user_id, plan="premium")

    await shop.looks(later(minutes=5))
    assert await shop.who_entered() == names(3)
    scan = await shop.scan()
    assert (scan.found, scan.members, scan.is_truncated) == (3, 3, True)

    await shop.looks(later(minutes=10))
    assert await shop.who_entered() == names(5)
    scan = await shop.scan()
    assert (scan.found, scan.members, scan.is_truncated) == (2, 5, False)


async def test_people_who_leave_are_limited_too(database: Database) -> None:
    shop = Lookout(database, limits=Limits(page=2, diff=3))
    for user_id in names(5):
        await shop.learns(user_id, plan="premium")
    await shop.finds(LEAVE)
    await shop.looks()
    assert not (await shop.scan()).is_truncated, "a look that only records has no limit"
    for user_id in names(5):
        await shop.learns(user_id, plan="free")

    await shop.looks(later(minutes=5))
    assert await shop.who_entered() == names(3)
    assert (await shop.scan()).is_truncated
    await shop.looks(later(minutes=10))
    assert await shop.who_entered() == names(5)
    assert await shop.inside() == []


@pytest.mark.parametrize(("most", "is_truncated"), [(4, True), (5, False), (6, False)])
async def test_a_sweep_stops_at_its_limit_and_says_so(
    database: Database, most: int, is_truncated: bool, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Lookout(database, limits=Limits(page=2, sweep=most))
    for user_id in names(5):
        await shop.learns(user_id, plan="free")
    await shop.finds(sweep(11))
    await shop.looks(later(hours=1))

    assert await shop.who_entered() == names(min(most, 5))
    scan = await shop.scan()
    assert (scan.found, scan.is_truncated) == (min(most, 5), is_truncated)
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    told = ["looked for journey 1 (segment_periodic)"] if is_truncated else []
    assert [record.getMessage() for record in warned] == told


def test_the_limits_are_those_of_the_product() -> None:
    assert Limits() == Limits(page=5_000, diff=250_000, sweep=5_000_000)
    assert scanning.SCAN_SECONDS == 300


async def test_a_page_costs_the_same_number_of_statements_whatever_its_size(
    database: Database,
) -> None:
    shop = Lookout(database)
    await shop.finds(ENTER)
    await shop.finds(sweep(*range(24)))
    await shop.looks()
    costs = []
    for hour, many in enumerate([10, 10, 200], 1):
        await shop.hears(
            *(
                Incoming("identify", f"{hour} {number}", properties={"plan": "premium"})
                for number in range(many)
            )
        )
        shop.clock.set(later(hours=hour))
        await shop.runtime.reload()
        await shop.scanner.next_due()
        for _ in range(3):  # who came, who left, the sweep
            with counted(database) as sent:
                assert await shop.scanner.look_once() == 1
            costs.append(len(sent))
        assert await shop.looks() == 0

    assert costs[3:6] == costs[6:]
    assert len(await shop.entered(2)) == 10 + 20 + 220


# --- a journey that takes nobody in


@pytest.mark.parametrize("mode", ["entries", "freeze", "drain"])
async def test_who_comes_while_a_journey_is_paused_is_seen_and_not_enrolled(
    database: Database, mode: str
) -> None:
    shop = Lookout(database)
    journey_id = await shop.finds(ENTER)
    await shop.looks()
    await shop.closes(journey_id, mode)
    await shop.learns("in the pause", plan="premium")
    assert await shop.looks(later(hours=2)) == 0
    assert await shop.scanner.next_due() is None

    await shop.reopens(journey_id)
    await shop.looks(later(hours=3))
    scan = await shop.scan()
    assert (scan.slot_at, scan.is_first, scan.found) == (later(hours=3), True, 0)
    await shop.learns("after it", plan="premium")
    await shop.looks(later(hours=3, minutes=5))

    assert await shop.who_entered() == ["after it"]
    assert await shop.inside() == ["after it", "in the pause"]


async def in_the_middle_of_a_look(shop: Lookout, trigger: Value = ENTER) -> int:
    """Five people are to be found, and a page of two of them has been; the journey."""
    journey_id = await shop.finds(trigger)
    await shop.looks()
    for user_id in names(5):
        await shop.learns(user_id, plan="premium")
    shop.clock.set(later(minutes=5))
    assert await shop.scanner.look_once() == 1
    assert await shop.who_entered() == names(2)
    shop.clock.set(later(minutes=5, seconds=1))
    return journey_id


CUT_OFF = "a look for journey 1 was cut off; whom it had not reached it does not enrol"


@pytest.mark.parametrize("is_told", [True, False])
async def test_a_pause_in_the_middle_of_a_look_ends_it_and_is_recorded(
    database: Database, caplog: pytest.LogCaptureFixture, is_told: bool
) -> None:
    """A process that nobody tells of the pause asks at the door."""
    shop = Lookout(database, limits=Limits(page=2))
    journey_id = await in_the_middle_of_a_look(shop)
    await shop.tampers(journeys, journey_id, status="paused", pause_mode="entries")
    if is_told:
        await shop.runtime.reload()
    assert await shop.looks() == 0
    assert await shop.who_entered() == names(2)
    begun, ended = later(minutes=5), later(minutes=5, seconds=1)
    cut_off = Scan(begun, 1, "segment_enter", False, 2, 2, 0, True, begun, ended)
    assert await shop.scan() == cut_off
    assert caplog.messages == [CUT_OFF]

    await shop.reopens(journey_id)
    await shop.looks(later(minutes=6))
    assert await shop.who_entered() == names(2)
    assert await shop.inside() == names(5)
    assert [scan.is_truncated for scan in await shop_scans(shop)] == [False, True, False]


async def test_a_pause_in_the_middle_of_a_first_look_is_no_look_at_all(database: Database) -> None:
    shop = Lookout(database, limits=Limits(page=2))
    for user_id in names(5):
        await shop.learns(user_id, plan="premium")
    journey_id = await shop.finds(ENTER)
    assert await shop.scanner.look_once() == 1
    await shop.closes(journey_id)
    assert await shop.looks() == 0

    assert await shop_scans(shop) == []


async def test_a_pause_after_everybody_was_enrolled_loses_nobody(database: Database) -> None:
    """What was left of the look was to see who had left."""
    shop = Lookout(database, limits=Limits(page=2))
    journey_id = await in_the_middle_of_a_look(shop)
    for _ in range(2):
        assert await shop.scanner.look_once() == 1
    assert await shop.who_entered() == names(5)
    await shop.closes(journey_id)
    await shop.looks()

    scan = await shop.scan()
    assert (scan.slot_at, scan.found, scan.is_truncated) == (later(minutes=5), 5, False)


async def test_a_question_that_changes_in_the_middle_of_a_look_is_recorded_for_the_old_one(
    database: Database,
) -> None:
    shop = Lookout(database, limits=Limits(page=2))
    journey_id = await in_the_middle_of_a_look(shop)
    await shop.finds_anew(journey_id, {**ENTER, "definition": GOLD})
    await shop.looks(later(minutes=5, seconds=2))

    told = [(s.version, s.is_first, s.found, s.is_truncated) for s in await shop_scans(shop)]
    assert sorted(told) == [(1, False, 2, True), (1, True, 0, False), (2, True, 0, False)]


class Meanwhile(Runtime):
    """A process in which something happens between the finding of a page and its enrolment."""

    happens: Callable[[], Awaitable[object]] | None = None

    async def ingest(self, tenant_id: int, incoming: Sequence[Incoming]) -> Any:
        if self.happens is not None:
            happens, self.happens = self.happens, None
            await happens()
        return await super().ingest(tenant_id, incoming)


async def interrupted(shop: Lookout, happens: Callable[[], Awaitable[object]]) -> None:
    """A look is in its middle, and this happens in the next page of it."""
    runtime = Meanwhile(shop.database)
    await runtime.reload()
    shop.scanner = Scanner(runtime, limits=Limits(page=2))
    await shop.scanner.next_due()
    runtime.happens = happens
    assert await shop.scanner.look_once() == 1


async def test_people_whom_a_pause_keeps_out_while_they_are_enrolled_are_not_counted(
    database: Database,
) -> None:
    """Nor does the record say that they were seen."""
    shop = Lookout(database, limits=Limits(page=2))
    journey_id = await in_the_middle_of_a_look(shop)
    await interrupted(shop, lambda: lifecycle.pause(shop.runtime, 1, journey_id))

    assert await shop.who_entered() == await shop.inside() == names(2)
    scan = await shop.scan()
    assert (scan.slot_at, scan.found, scan.is_truncated) == (later(minutes=5), 2, True)
    assert await shop.looks() == 0


async def test_a_pause_that_is_over_before_its_page_is_told_too(database: Database) -> None:
    """Whether it kept anybody out cannot be seen any more."""
    shop = Lookout(database, limits=Limits(page=2))
    journey_id = await in_the_middle_of_a_look(shop)

    async def pause_and_resume() -> None:
        await lifecycle.pause(shop.runtime, 1, journey_id)
        await lifecycle.resume(shop.runtime, 1, journey_id)

    await interrupted(shop, pause_and_resume)
    await shop.looks()

    assert (await shop.scan()).is_truncated


@pytest.mark.parametrize("is_published", [True, False])
async def test_saving_and_publishing_in_the_middle_of_a_look_lose_nobody(
    database: Database, is_published: bool
) -> None:
    shop = Lookout(database, limits=Limits(page=2))
    journey_id = await in_the_middle_of_a_look(shop)

    async def save() -> None:
        document = journey(END, trigger=ENTER, entry_rule="every_time")
        await save_draft(database, 1, document, journey_id=journey_id)
        if is_published:
            await shop.runtime.publish(1, journey_id)

    await interrupted(shop, save)
    await shop.scanner.runtime.reload()
    await shop.looks(later(minutes=5, seconds=2))

    assert await shop.who_entered() == names(5)
    scan = await shop.scan()
    assert (scan.version, scan.is_truncated) == (1 + is_published, False)


async def test_a_sweep_that_a_pause_cuts_off_is_recorded(database: Database) -> None:
    shop = Lookout(database, limits=Limits(page=2))
    for user_id in names(5):
        await shop.learns(user_id, plan="free")
    journey_id = await shop.finds(sweep(11))
    await shop.looks()
    shop.clock.set(later(hours=1))
    assert await shop.scanner.look_once() == 1
    await shop.closes(journey_id)
    await shop.looks()

    scan = await shop.scan()
    assert (scan.kind, scan.slot_at) == ("segment_periodic", later(hours=1))
    assert (scan.found, scan.is_truncated) == (2, True)


async def test_hours_that_pass_during_a_pause_are_not_made_up_for(database: Database) -> None:
    shop = Lookout(database)
    await shop.learns("sara", plan="free")
    journey_id = await shop.finds(sweep(11, 18))
    await shop.looks()
    await shop.closes(journey_id)
    assert await shop.looks(later(hours=2)) == 0
    await shop.reopens(journey_id)
    assert await shop.looks(later(hours=3)) == 0
    await shop.lives_until(later(hours=9))

    assert await shop.entered() == [("2026-06-01T18:00:00Z", "sara")]


async def test_a_question_that_changes_during_a_pause_begins_with_a_first_look(
    database: Database,
) -> None:
    shop = Lookout(database)
    await shop.learns("premium", plan="premium")
    await shop.learns("gold", plan="gold")
    journey_id = await shop.finds(ENTER)
    await shop.looks()
    await shop.closes(journey_id)
    await shop.looks(later(minutes=1))
    await shop.finds_anew(journey_id, {**ENTER, "definition": GOLD})
    await shop.reopens(journey_id)
    await shop.looks(later(minutes=2))

    assert await shop.inside() == ["gold"]
    assert await shop.entered() == []


# --- what goes wrong


async def test_a_look_that_fails_is_set_aside_and_the_others_go_on(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Lookout(database)
    await shop.learns("sara", plan="gold")
    for definition in (PREMIUM, GOLD):
        await shop.finds(sweep(11, definition=definition))
    await shop.looks()
    whole = rules_sql.matching
    is_broken = True

    async def moody(connection: Any, tenant_id: int, rule: Any, **given: Any) -> rules_sql.Page:
        if is_broken and "premium" in repr(rule):
            raise RuntimeError("no such rule")
        return await whole(connection, tenant_id, rule, **given)

    monkeypatch.setattr(rules_sql, "matching", moody)
    shop.clock.set(later(hours=1))
    for _ in range(2):
        assert await shop.scanner.look_once() == 1

    assert await shop.who_entered(2) == ["sara"]
    failed = (await shop.rows(looks))[0]
    assert (failed.attempts, failed.last_error, failed.lease_token) == (
        1,
        "RuntimeError: no such rule",
        None,
    )
    assert START < instant(failed.try_at) <= later(hours=1, seconds=5)
    assert "journey 1 could not be looked at: RuntimeError: no such rule" in caplog.messages

    for _ in range(20):
        due = await shop.scanner.next_due()
        assert due is not None
        if due > later(hours=20):
            break
        await shop.looks(max(due, shop.clock.now()))
    tried = (await shop.rows(looks))[0]
    assert tried.attempts > 5, "it is never given up"
    assert tried.try_at - microseconds(shop.clock.now()) <= 900_000_000

    is_broken = False
    await shop.learns("ann", plan="premium")
    due = await shop.scanner.next_due()
    assert due is not None
    await shop.looks(max(due, shop.clock.now()))
    assert await shop.who_entered(1) == ["ann"]
    assert [(row.attempts, row.last_error) for row in await shop.rows(looks)] == [(0, "")] * 2


async def test_who_is_overtaken_writes_nothing(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """The first stands still after enrolling its page until the second has taken the look over."""
    shop = Lookout(database, limits=Limits(page=2))
    for user_id in names(3):
        await shop.learns(user_id, plan="free")
    await shop.finds(sweep(11))
    await shop.looks()
    second = Scanner(shop.runtime, limits=Limits(page=2))

    class Slow(Runtime):
        async def ingest(self, tenant_id: int, incoming: Sequence[Incoming]) -> Any:
            told = await super().ingest(tenant_id, incoming)
            shop.clock.set(shop.clock.now() + TimeDelta(seconds=31))
            while await second.look_once():
                pass
            return told

    slow = Slow(database)
    await slow.reload()
    shop.clock.set(later(hours=1))
    assert await Scanner(slow, limits=Limits(page=2)).look_once() == 1

    assert await shop.who_entered() == names(3)
    assert len(await shop.rows(events)) == 3 + 3
    assert [(scan.found, scan.members) for scan in await shop_scans(shop)] == [(3, 3)]
    assert caplog.messages == ["a look at journey 1 took too long; another worker goes on"]


async def test_a_long_step_keeps_its_claim(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "INGEST_BATCH", 1)
    shop = Lookout(database)
    for user_id in names(6):
        await shop.learns(user_id, plan="free")
    await shop.finds(sweep(11))
    await shop.looks()
    other = Scanner(shop.runtime)

    class Slow(Runtime):
        async def ingest(self, tenant_id: int, incoming: Sequence[Incoming]) -> Any:
            shop.clock.set(shop.clock.now() + TimeDelta(seconds=12))
            assert await other.look_once() == 0
            return await super().ingest(tenant_id, incoming)

    slow = Slow(database)
    await slow.reload()
    shop.clock.set(later(hours=1))
    assert await Scanner(slow).look_once() == 1
    assert len(await shop.entered()) == 6
    assert (await shop.scan()).found == 6


# --- segments that follow a rule


async def test_a_segment_of_a_rule_is_counted_in_the_same_turns(database: Database) -> None:
    shop = Lookout(database)
    await shop.learns("sara", plan="premium")
    segment = await save_segment(database, 1, name="Premium", definition=PREMIUM)
    await shop.finds({**ENTER, "definition": {"root": {"segment": segment.segment_id}}})
    await shop.looks()
    assert await shop.inside() == ["sara"]

    await shop.learns("bob", plan="premium")
    await shop.lives_until(later(minutes=11))
    assert await shop.who_entered() == ["bob"]


async def test_long_counts_and_long_looks_take_turns(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long a page of a segment takes, and however many segments wait."""
    monkeypatch.setattr(grouping, "REFRESH_PAGE", 1)
    shop = Lookout(database, limits=Limits(page=1))
    for user_id in names(4):
        await shop.learns(user_id, plan="premium")
    await shop.finds(sweep(11))
    await shop.looks()
    for name in "abc":
        await save_segment(database, 1, name=name, definition=PREMIUM)
    page = grouping.Refresh.page

    async def slow(refresh: grouping.Refresh) -> bool:
        shop.clock.set(shop.clock.now() + TimeDelta(seconds=40))
        turns.append(f"segment {refresh.segment_id}")
        return await page(refresh)

    monkeypatch.setattr(grouping.Refresh, "page", slow)
    shop.clock.set(later(hours=1))
    turns: list[str] = []
    while not await scans_of(database, 1, 1):
        entered = len(await shop.entered())
        assert await shop.scanner.look_once() == 1
        turns += ["look"] * (len(await shop.entered()) - entered)

    assert turns == ["look", "segment 1"] * 4
    assert (await shop.scan()).found == 4
    assert await count_members(database, 1, 1) == 4
    monkeypatch.setattr(grouping.Refresh, "page", page)
    await shop.looks()
    assert [await count_members(database, 1, number) for number in (2, 3)] == [4, 4]


async def test_a_segment_that_cannot_be_counted_keeps_nobody_waiting(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Lookout(database)
    await shop.learns("sara", plan="gold")
    await save_segment(database, 1, name="Premium", definition=PREMIUM)
    await save_segment(database, 1, name="Gold", definition=GOLD)
    whole = rules_sql.matching

    async def moody(connection: Any, tenant_id: int, rule: Any, **given: Any) -> rules_sql.Page:
        if "premium" in repr(rule):
            raise RuntimeError("no such rule")
        return await whole(connection, tenant_id, rule, **given)

    monkeypatch.setattr(rules_sql, "matching", moody)
    assert await shop.looks() == 2
    assert await count_members(database, 1, 2) == 1
    assert caplog.messages == ["segment 1 could not be counted: RuntimeError: no such rule"]
    assert await shop.scanner.next_due() == later(minutes=1)

    monkeypatch.setattr(rules_sql, "matching", whole)
    await shop.learns("ann", plan="premium")
    assert await shop.looks(later(minutes=1)) == 1
    assert await count_members(database, 1, 1) == 1


# --- the same as a replay

DAYS = TimeDelta(hours=24 * 4)
HALF_AN_HOUR = TimeDelta(minutes=30)
BOUGHT: Value = {"root": {"event": "purchase", "op": "gte", "count": 2, "within": "14h"}}
TRIGGERS: list[Value] = [
    {"kind": "segment_enter", "definition": BOUGHT},
    {"kind": "segment_exit", "definition": BOUGHT},
    sweep(2, 9, 17, definition={"root": {"all": [BOUGHT["root"], {"not": PREMIUM["root"]}]}}),
    birthday(2, hour=9, definition={"root": {"not": PREMIUM["root"]}}),
]


def history() -> list[Line]:
    """Four days of ten people: they buy, change their plans, and learn when they were born."""
    lines = []
    for number in range(150):
        at = START + TimeDelta(minutes=38 * number + 5 * (number % 3))
        user_id = f"u_{number * 7 % 10}"
        if number % 4 == 3:
            plan = ("premium", "free", "gold")[number * 5 % 3]
            born = f"19{number % 90 + 10}-06-{number % 3 + 4:02}"
            traits = {"plan": plan, "birthday": "soon" if number % 28 == 3 else born}
            lines.append(Line("identify", user_id, at, properties=traits))
        else:
            lines.append(Line("track", user_id, at, "purchase", id=f"e{number}"))
    return sorted((line for line in lines if line.at <= START + DAYS), key=lambda line: line.at)


@pytest.mark.parametrize("trigger", TRIGGERS, ids=lambda trigger: trigger["kind"])
async def test_the_store_finds_whom_a_replay_finds_and_at_the_same_instants(
    database: Database, trigger: Value
) -> None:
    zone = "America/New_York"
    shop = Lookout(database, every=HALF_AN_HOUR.total("seconds"), limits=Limits(page=3))
    people = [Known(f"u_{number}") for number in range(10)]
    wait = {"id": "w", "kind": "wait", "next": "end", "wait": HOURS}
    await shop.opens(wait, END, zone=zone, trigger=trigger, entry_rule="every_time")
    for at, together in groupby(history(), key=lambda line: line.at):
        await shop_lives_until(shop, at - TimeDelta(microseconds=1))
        shop.clock.set(at)
        await shop.hears(*(incoming(line) for line in together))
    await shop_lives_until(shop, START + DAYS)

    graph = await published_graph(shop)
    replayed = replay(
        compile_graph(Graph.parse(graph), zone),
        history(),
        people,
        since=START,
        until=START + DAYS,
        scan_every=HALF_AN_HOUR,
    )
    expected = sorted(
        (record["at"], record["user_id"])
        for record in replayed.journal
        if record["what"] == "entered"
    )
    assert len(expected) > 2
    assert await shop.entered() == expected


HOURS: Value = {"kind": "duration", "amount": 3, "unit": "hour"}


async def published_graph(shop: Lookout) -> str:
    return str((await shop.rows(versions))[0].document)


async def shop_lives_until(shop: Lookout, moment: Instant) -> None:
    """Timers and looks, each at its own time; of one moment the timer comes first."""
    while True:
        moments = [await shop.runtime.next_due(), await shop.scanner.next_due()]
        due = min((at for at in moments if at is not None), default=None)
        if due is None or due > moment:
            break
        await shop.wakes(max(due, shop.clock.now()))
        await shop.looks()
    shop.clock.set(moment)


def incoming(line: Line) -> Incoming:
    kind: Any = line.type
    return Incoming(kind, line.user_id, line.event, line.properties, line.id)


async def test_scans_are_told_the_youngest_first_and_so_many_as_asked(database: Database) -> None:
    shop = Lookout(database)
    await shop.finds(ENTER)
    await shop.lives_until(later(minutes=21))

    told = await scans_of(database, 1, 1, first=2)
    assert [scan.slot_at for scan in told] == [later(minutes=20), later(minutes=15)]
    count = select(func.count()).select_from(scans)
    assert (await database.read(lambda c: c.execute(count))).scalar_one() == 5
