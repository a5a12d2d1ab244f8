"""The cases worked out by hand that only a store, several workers or a restart can show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest
from sqlalchemy import select, update
from whenever import OffsetDateTime, TimeDelta

from journeykit_engine.graph import Graph
from journeykit_engine.instance import Person
from journeykit_engine.simulate import simulate
from journeykit_engine.timing import read_instant
from journeykit_server.clock import SeededChance, instant, microseconds
from journeykit_server.database import Database
from journeykit_server.delivery import Item, LogProvider, Outcome
from journeykit_server.incoming import Receipt
from journeykit_server.people import where_is
from journeykit_server.publishing import read_version
from journeykit_server.runtime import LEASE, Runtime
from journeykit_server.store import SCHEDULE
from journeykit_server.tables import (
    deliveries,
    entries,
    instances,
    journal,
    messages,
    metadata,
    outbox,
    timers,
)
from journeykit_server.verify import verify
from journeykit_server.waking import Woken
from tests.databases import START, open_database
from tests.engine.journeys import Value, journey
from tests.engine.walking import ADULT, END, ask, days, node, send, wait_for, write
from tests.server.shop import Moody, Shop, later, track

Cases = Mapping[str, dict[str, Any]]


@pytest.fixture
async def shop(database: Database) -> Shop:
    return Shop(database)


@pytest.fixture
async def other(database: Database, database_url: str) -> AsyncIterator[Shop]:
    """A second worker on the same store, whose clock is the same one."""
    opened = open_database(database_url, clock=database.clock, chance=SeededChance(2))
    yield Shop(opened)
    await opened.close()


def waits(amount: int, unit: str, then: str = "", own: str = "w") -> Value:
    return node(own, "wait", {"kind": "duration", "amount": amount, "unit": unit}, then)


async def enters(shop: Shop, at: str, user_id: str = "u1") -> None:
    shop.clock.set(read_instant(at))
    await shop.hears(track(user_id, "signed_up", f"of {user_id}"))


async def advances(shop: Shop) -> list[int]:
    """How often each person was moved by a timer."""
    moved: dict[str, int] = {}
    for row in await shop.rows(journal):
        if row.step == 0 and row.cause == "":
            moved[row.user_id] = moved.get(row.user_id, 0) + 1
    return sorted(moved.values())


async def sent_by(shop: Shop) -> list[str]:
    return [row.message_id for row in await shop.rows(outbox)]


# --- timers


async def test_two_pollers_take_each_timer_once(shop: Shop, other: Shop, cases: Cases) -> None:
    case = cases["timer-claim-once"]
    due = case["given"]["due"]
    await shop.opens(days(1, "a"), send("a"))
    await shop.hears(*(track(f"u{i}", "signed_up") for i in range(due)))
    await other.runtime.reload()
    shop.clock.set(later(days=1))

    both = await asyncio.gather(shop.runtime.wake(), other.runtime.wake(), shop.runtime.wake())

    assert sum(woken.advanced for woken in both) == case["expect"]["handled"]
    assert len(await advances(shop)) == due
    assert [many for many in await advances(shop) if many > 1] == []
    assert len(await sent_by(shop)) == due
    assert await verify(shop.database) == []


class Slow(Runtime):
    """A worker that takes some seconds over what it claimed; `looker` polls once a second
    meanwhile."""

    seconds = 0
    looker: Shop
    seen: list[Woken]

    async def unit(self, work: Any) -> Any:
        for _ in range(self.seconds):
            self.seen.append(
                await self.looker.wakes(self.looker.clock.now() + TimeDelta(seconds=1))
            )
        return await super().unit(work)


@pytest.mark.parametrize(
    "case_id", ["timer-lock-must-outlive-the-select", "timer-recovery-does-not-steal-live-work"]
)
async def test_a_claim_outlives_its_transaction_and_a_stale_one_writes_nothing(
    case_id: str, shop: Shop, other: Shop, cases: Cases
) -> None:
    """Within its lease nobody else gets the timer. A worker that is slower is taken for dead; its
    successor handles the timer, and it finds so itself."""
    case = cases[case_id]
    await shop.opens(days(1, "a"), send("a"))
    await shop.hears(track("ann", "signed_up"))
    slow = Slow(shop.database)
    slow.seconds, slow.looker, slow.seen = case["given"].get("works_s", 5), other, []
    shop.clock.set(later(days=1))

    own = await slow.wake()

    handled = own.advanced + sum(woken.advanced for woken in slow.seen)
    assert handled - 1 == case["expect"]["handled_twice"] == 0
    assert await sent_by(shop) == ["j1.v1.a.ann.e1"]
    assert await advances(shop) == [1]
    assert (own.fenced, own.advanced) == (
        (0, 1) if slow.seconds < LEASE.total("seconds") else (1, 0)
    )


async def schedules(database: Database, row: tuple[Any, ...]) -> None:
    await database.run(lambda connection: SCHEDULE.run(connection, [row]))


async def test_scheduling_again_leaves_one_timer(shop: Shop, cases: Cases) -> None:
    case = cases["timer-replace"]
    first, second = case["given"]["existing_wake_at"], case["when"]["schedule"]
    for rev, moment in enumerate((first, second), 1):
        due = microseconds(read_instant(moment))
        row = (1, "ann", 1, 1, rev, due, due // 60_000_000, due, 0, None, "", None)
        await schedules(shop.database, row)

    stored = await shop.rows(timers)
    assert len(stored) == case["expect"]["rows"]
    assert instant(stored[0].due) == read_instant(case["expect"]["wake_at"])
    assert stored[0].rev == 2


class Killed(BaseException):
    """The process is gone at this moment."""


class Dies(LogProvider):
    """Hands over, and is killed before anybody can write that down."""

    async def deliver(self, items: Sequence[Item]) -> Sequence[Outcome]:
        await super().deliver(items)
        raise Killed


@pytest.mark.parametrize("provider", [None, Dies])
async def test_a_crash_between_state_and_effects_loses_nothing_and_doubles_nothing(
    provider: type[LogProvider] | None, shop: Shop, cases: Cases
) -> None:
    """Killed before the send is handed over, and killed right after that."""
    expect = cases["timer-crash-between-state-and-effects"]["expect"]
    await shop.opens(days(1, "a"), send("a", "v"), days(1, own="v"))
    await shop.hears(track("ann", "signed_up"))
    await shop.wakes(later(days=1))
    if provider:
        with pytest.raises(Killed):
            await Runtime(shop.database, provider=provider(shop.database)).deliver()

    await shop.forgets()
    shop.clock.set(later(days=1, minutes=2))
    await shop.runtime.deliver()

    handed_over = await shop.rows(deliveries)
    assert len(handed_over) == expect["message_ids_distinct"]
    assert handed_over[0].times == (2 if provider else 1)
    assert len(await shop.rows(messages)) == expect["delivered"]
    assert await sent_by(shop) == []


async def test_one_bad_apple(database: Database, cases: Cases) -> None:
    case = cases["timer-one-bad-apple"]
    (bad,) = case["given"]["raises"]
    shop = Shop(database, evaluator=Moody(f"u{bad}"))
    await shop.opens(days(1, "if"), ask(ADULT, "yes", "no"), send("yes"), send("no"))
    for number in range(1, case["given"]["due"] + 1):
        shop.clock.set(later(seconds=number))
        await shop.hears(track(f"u{number}", "signed_up"))

    woken = await shop.wakes(later(days=1, minutes=1))

    left = await shop.rows(timers)
    assert woken.advanced == case["expect"]["handled"]
    assert [row.user_id for row in left] == [f"u{bad}"]
    assert len(left) == case["expect"]["left"]
    again = await shop.wakes(later(days=1, minutes=1, seconds=5))
    assert (again.claimed == 1) is case["expect"]["retried_next_poll"]


async def test_a_timer_that_always_raises_neither_blocks_nor_spins(
    database: Database, cases: Cases
) -> None:
    case = cases["timer-always-raises"]
    shop = Shop(database, evaluator=Moody("ann"))
    await shop.opens(days(1, "if"), ask(ADULT, "yes", "no"), send("yes"), send("no"))
    many = case["given"]["other_due"]
    await shop.hears(track("ann", "signed_up"), *(track(f"u{i}", "signed_up") for i in range(many)))

    polls = [await shop.wakes(later(days=1, minutes=10 * i)) for i in range(case["when"]["polls"])]

    assert sum(woken.advanced for woken in polls) == case["expect"]["others_handled"]
    assert sum(woken.failed + woken.dead for woken in polls) <= 20
    (here,) = await where_is(database, 1, "ann")
    assert here.status == "waiting"
    assert (here.stuck is not None) is case["expect"]["visible_as_stuck"]


async def test_a_dead_workers_claim_is_taken_up(shop: Shop, cases: Cases) -> None:
    case = cases["timer-claimed-by-a-dead-worker"]
    claimed = read_instant(case["given"]["claimed_at_utc"])
    await shop.opens(waits(1, "minute", "end"), END)
    shop.clock.set(claimed - TimeDelta(minutes=1))
    await shop.hears(track("ann", "signed_up"))
    mark = {"lease_token": "of the dead", "try_at": microseconds(claimed + LEASE), "attempts": 1}
    claim = update(timers).values(mark)
    await shop.database.run(lambda connection: connection.execute(claim))

    await shop.forgets()
    woken = await shop.wakes(read_instant(case["when"]["new_worker_starts_utc"]))

    assert (woken.advanced == 1) is case["expect"]["handled"]


async def test_a_timer_three_hours_overdue_is_found(shop: Shop, cases: Cases) -> None:
    case = cases["timer-past-bucket"]
    due = read_instant(case["given"]["wake_at"])
    await shop.opens(waits(1, "hour", "end"), END)
    shop.clock.set(due - TimeDelta(hours=1))
    await shop.hears(track("ann", "signed_up"))

    await shop.forgets()
    woken = await shop.wakes(read_instant(case["when"]["first_poll_after_outage_utc"]))

    assert (woken.advanced == 1) is case["expect"]["handled"]


async def test_an_aware_time_of_another_zone_is_the_same_instant(shop: Shop, cases: Cases) -> None:
    case = cases["timer-offset-input-sqlite"]
    due = OffsetDateTime(case["given"]["wake_at"])
    nine = node("w", "wait", {"kind": "until_time", "hour": due.hour}, "end")
    await shop.opens(nine, END, zone="America/Los_Angeles")
    shop.clock.set(due.to_instant() - TimeDelta(hours=8))
    await shop.hears(track("ann", "signed_up"))

    stored = await shop.due("ann")
    polls = [await shop.wakes(read_instant(moment)) for moment in case["when"]["polls_utc"]]

    assert stored == due.to_instant() == read_instant(case["expect"]["read_back_utc"])
    assert [woken.claimed == 1 for woken in polls] == case["expect"]["due"]


async def test_a_restart_keeps_the_deadline(shop: Shop, cases: Cases) -> None:
    case = cases["timer-restart-keeps-deadline"]
    await shop.opens(waits(30, "minute", "end"), END)
    await enters(shop, case["given"]["entered_utc"])

    shop.clock.set(read_instant(case["when"]["restart_utc"]))
    await shop.forgets()
    await shop.runtime.wake()

    day = case["given"]["entered_utc"][:10]
    wake_at = f"{day}T10:30:00Z"
    assert wake_at == case["expect"]["wake_at"]
    assert await shop.due("u1") == read_instant(wake_at)
    assert await shop.wakes(read_instant(wake_at)) == Woken(1, 1)


async def test_a_wake_up_goes_on_from_the_wait(shop: Shop, cases: Cases) -> None:
    case = cases["timer-resume-not-from-start"]
    await shop.opens(send("A", "w"), waits(1, "hour", "B"), send("B"))
    await shop.hears(track("u1", "signed_up"))
    await shop.runtime.deliver()

    await shop.wakes(later(hours=1))

    assert [f"send {row.node_id}" for row in await shop.rows(outbox)] == case["expect"]["effects"]


async def test_people_stay_in_their_version(shop: Shop, cases: Cases) -> None:
    case = cases["timer-version-pinned"]
    await shop.opens(days(1))
    await shop.changes(1, days(2))
    await shop.changes(1, days(1, "end"), END)
    await shop.hears(track("u1", "signed_up"))
    assert await shop.changes(1, send("a")) == case["given"]["published"]

    await shop.forgets()
    await shop.wakes(later(days=1))

    (row,) = await shop.rows(instances)
    assert row.version == case["expect"]["walks_version"] == case["given"]["person_version"]
    assert row.status == case["expect"]["status"]


async def test_a_wait_of_many_days_does_not_fire_at_once(shop: Shop, cases: Cases) -> None:
    case = cases["timer-thirty-day-wait"]
    for length in case["given"]["waits"]:
        await shop.opens(days(int(length.removesuffix("d"))))
    await enters(shop, case["given"]["entered_utc"])

    woken = await shop.wakes(read_instant(case["when"]["poll_utc"]))

    assert woken.claimed == case["expect"]["handled"] == 0
    assert len(await shop.rows(timers)) == 2


async def test_many_writers_of_one_file_never_find_it_locked(sqlite_url: str, cases: Cases) -> None:
    """Twenty, in four processes' worth of connections; nothing that one wrote is lost."""
    case = cases["timer-sqlite-many-writers"]
    rounds = 5
    opened = [open_database(sqlite_url) for _ in range(4)]
    row = (1, "ann", 1, 1, 1, 0, 0, 0, 0, None, "", None)
    await schedules(opened[0], row)

    async def add_one(connection: Any) -> None:
        attempts = (await connection.execute(select(timers.c.attempts))).scalar_one()
        await connection.execute(update(timers).values(attempts=attempts + 1))

    async def work(database: Database) -> None:
        for _ in range(rounds):
            await database.run(add_one)

    tasks = [work(opened[i % 4]) for i in range(case["given"]["tasks"])]
    failed = [error for error in await asyncio.gather(*tasks, return_exceptions=True) if error]

    (stored,) = await Shop(opened[0]).rows(timers)
    for database in opened:
        await database.close()
    assert len(failed) == case["expect"]["database_is_locked_errors"] == 0
    assert stored.attempts == case["given"]["tasks"] * rounds


# --- entries and answers


async def test_two_events_at_two_workers_are_one_entry(
    shop: Shop, other: Shop, cases: Cases
) -> None:
    case = cases["reentry-concurrent-triggers"]
    expect = case["expect"]
    await shop.opens(send("a", "w"), days(1), entry_rule=case["given"]["entry_rule"])
    await other.runtime.reload()
    shop.clock.set(read_instant(case["when"]["at_utc"]))
    first, second = case["when"]["events"]

    receipts = await asyncio.gather(
        shop.hears(track("ann", "signed_up", first)),
        other.hears(track("ann", "signed_up", second)),
    )

    assert list(receipts) == [Receipt(accepted=1)] * 2
    (row,) = await shop.rows(instances)
    assert (1, row.entry_count) == (expect["instances"], expect["entry_count"])
    assert len(await shop.rows(entries)) == expect["entry_count"]
    assert len(await sent_by(shop)) == expect["sends"]


async def test_a_redelivery_neither_enters_nor_answers(shop: Shop, cases: Cases) -> None:
    case = cases["ev-trigger-event-is-not-its-own-answer"]
    event = case["when"]["event"]
    await shop.opens(
        wait_for("paid", timeout="1d", on_timeout="end"),
        END,
        trigger={"kind": "event", "event": "paid"},
        entry_rule="every_time",
    )

    for _ in range(case["when"]["delivered"]):
        await shop.hears(track("u1", event["name"], event["message_id"]))

    (row,) = await shop.rows(instances)
    assert row.status == case["expect"]["status"]
    assert len(await shop.rows(entries)) == case["expect"]["entries"]


async def test_a_duplicate_is_known_after_a_day_and_a_restart(shop: Shop, cases: Cases) -> None:
    case = cases["ev-duplicate-late"]
    await shop.opens(END, entry_rule="every_time")
    again = track("u1", "signed_up", case["given"]["message_id"])
    shop.clock.set(read_instant(case["given"]["first_at_utc"]))
    await shop.hears(again)

    await shop.forgets()
    shop.clock.set(read_instant(case["when"]["second_at_utc"]))
    assert await shop.hears(again) == Receipt(duplicates=1)

    assert len(await shop.rows(entries)) == case["expect"]["entries"]


@pytest.mark.parametrize(
    "case_id",
    [
        "ev-same-instant-as-timeout",
        "ev-just-after-timeout-before-poll",
        "ev-right-after-wait-starts",
    ],
)
async def test_the_arrival_decides_between_an_answer_and_a_time_out(
    case_id: str, shop: Shop, cases: Cases
) -> None:
    """The poll comes a second after both."""
    case = cases[case_id]
    until = case["given"].get("until_utc", "2026-06-01T11:00:00Z")
    await shop.opens(
        wait_for("paid", "paid", timeout="1h", on_timeout="timeout"), send("paid"), send("timeout")
    )
    shop.clock.set(read_instant(until) - TimeDelta(hours=1))
    await shop.hears(track("u1", "signed_up"))

    arrived = read_instant(case["when"]["event_at_utc"])
    shop.clock.set(arrived)
    await shop.hears(track("u1", "paid"))
    await shop.wakes(max(arrived, read_instant(until)) + TimeDelta(seconds=1))

    assert [row.node_id for row in await shop.rows(outbox)] == [case["expect"]["branch"]]


# --- messages


async def test_messages_that_look_alike_are_both_delivered(shop: Shop, cases: Cases) -> None:
    case = cases["msgid-dot-collision"]
    pairs = {(pair["node"], pair["user"]) for pair in case["given"]["pairs"]}
    await shop.opens(*(send(own, then) for own, then in (("a.b", "a"), ("a", ""))))
    await shop.hears(*(track(user_id, "signed_up") for _, user_id in sorted(pairs)))

    for _ in range(2):  # the messages of one pass go one after the other
        await shop.runtime.deliver()

    alike = [row for row in await shop.rows(messages) if (row.node_id, row.user_id) in pairs]
    assert {row.message_id for row in alike} == {"j1.v1.a%2Eb.c.e1", "j1.v1.a.b%2Ec.e1"}
    assert len(alike) == case["expect"]["delivered"] == case["expect"]["distinct_ids"]
    assert len(await shop.rows(deliveries)) == 4


async def test_a_weekly_loop_delivers_every_message(shop: Shop, cases: Cases) -> None:
    case = cases["msgid-loop-collision"]
    await shop.opens(send("s", "w"), days(7, "s"))
    await shop.hears(track("u1", "signed_up"))

    for day in range(case["when"]["run_days"]):
        await shop.wakes(later(days=day))
        await shop.runtime.deliver()

    stored = [row.message_id for row in await shop.rows(messages)]
    assert len(stored) == len(set(stored)) == case["expect"]["sends_expected"]
    assert len(stored) == case["expect"]["distinct_ids"]


# --- simulation


async def everything(shop: Shop) -> dict[str, list[Any]]:
    return {table.name: await shop.rows(table) for table in metadata.sorted_tables}


async def test_a_simulation_stores_and_sends_nothing(shop: Shop, cases: Cases) -> None:
    expect = cases["sim-no-side-effects"]["expect"]
    hook = {"kind": "webhook", "url": "https://example.org/hook"}
    await shop.opens(
        write("tell", "seen", True, "h"), node("h", "action", hook, "a"), send("a", "end"), END
    )
    document, _ = await read_version(shop.database, 1, 1)
    before = await everything(shop)

    found = simulate(Graph.parse(document), Person("u1"), START)

    after = await everything(shop)
    assert after == before
    assert after["outbox"] == [] and expect["rows_written"] == expect["outbound_calls"] == 0
    assert found.sends == expect["sends"]


def test_a_simulation_passes_waits_and_counts_them(cases: Cases) -> None:
    expect = cases["sim-waits-counted"]["expect"]
    late = {"timeout": "5d", "on_timeout": "end"}
    document = journey(
        *(waits(1, "hour", "v"), days(400, "p", own="v"), wait_for("paid", "a", own="p", **late)),
        *(send("a", "end"), END),
    )

    found = simulate(Graph.parse(document), Person("u1"), START)

    assert (found.simulated_waits, found.sends) == (expect["simulated_waits"], expect["sends"])
    told = {step.node_id: step.detail for step in found.steps if step.kind == "wait"}
    assert expect["path_through_wait_for"] == "event arrived"
    assert told["p"].endswith('; "paid" came')
