"""Clocks that jump, differ, or change their laws. Rows C50 to C53."""

from __future__ import annotations

import pytest
from whenever import Instant, TimeDelta

import journeykit as jk
from journeykit_engine import timing, zone
from journeykit_server.clock import Clock, SeededChance, VirtualClock, instant
from journeykit_server.database import Database
from journeykit_server.incoming import Incoming
from journeykit_server.runtime import Runtime
from journeykit_server.tables import instances, journal, outbox, timers
from journeykit_server.waking import Woken
from tests.databases import START, open_database
from tests.reliability.faults import Interrupted, Skewed
from tests.reliability.laws import broken
from tests.reliability.stage import (
    DAY,
    PEOPLE,
    TENANT,
    asking,
    due_times,
    finish,
    happens,
    later,
    order,
    process,
    publish,
    read,
    reminder,
    steps,
    taken,
    where,
)

MINUTE = TimeDelta(minutes=1)
HOUR = TimeDelta(hours=1)


def twice() -> jk.Journey:
    return (
        jk.journey("Twice")
        .on_event("order")
        .wait("1d", id="rest")
        .send(email=1, id="one")
        .wait("1d", id="rest_again")
        .send(email=2, id="two")
        .exit()
    )


async def test_c50_three_days_later_all_is_done_once_the_oldest_first_and_no_wait_is_skipped(
    database: Database,
) -> None:
    runtime = await process(database, twice())
    for user_id in reversed(PEOPLE[:30]):
        await order(runtime, user_id)
        later(database, MINUTE)
    now = later(database, 3 * DAY)
    batches = []
    for _ in range(4):
        told = len(await read(database, journal))
        batches.append(await runtime.wake(limit=10))
        moved = {row.user_id for row in await read(database, journal) if row.rev == 2}
        assert len(moved) == told - 30 + batches[-1].advanced
        assert moved == set(PEOPLE[30 - len(moved) : 30])  # who came first

    assert batches == [Woken(claimed=10, advanced=10)] * 3 + [Woken()]
    assert {row.current_node for row in await read(database, instances)} == {"rest_again"}
    assert set(await due_times(database)) == {now + DAY}
    await finish(runtime, now + DAY)
    assert set((await taken(database)).values()) == {1}
    assert len(await taken(database)) == 60


async def test_c50_three_days_later_a_send_still_waits_for_its_hours(database: Database) -> None:
    journey = reminder().send_window(["mon", "tue", "wed", "thu", "fri"], "09:00", "17:00")
    runtime = await process(database, journey)
    await order(runtime, "ann")  # on a Monday, to be reminded on Tuesday
    later(database, 3 * DAY + 8 * HOUR)  # Thursday, 18:00

    await finish(runtime)
    assert await taken(database) == {}
    assert await due_times(database) == [Instant("2026-06-05T09:00:00Z")]

    await finish(runtime, Instant("2026-06-05T09:00:00Z"))
    assert await taken(database) == {"j1.v1.send_email_1.ann.e1": 1}


async def test_c51_an_hour_back_nothing_is_early_and_nothing_twice(database: Database) -> None:
    runtime = await process(database, asking())
    await order(runtime, "ann", "bob")
    (ann, bob) = await read(database, instances)
    later(database, -HOUR)

    assert await runtime.wake() == Woken()
    await runtime.ingest(TENANT, [happens("reply")])
    assert await where(database) == [(1, "completed", "exit", 2)]
    (left, _) = await read(database, instances)
    assert left.updated_at >= ann.updated_at

    # What came up in the hour that is lived twice goes out in it, not after it.
    await finish(runtime)
    assert await taken(database) == {"j1.v1.thank.ann.e1": 1}
    assert await due_times(database) == [START + 2 * DAY]
    await finish(runtime, START + 2 * DAY - TimeDelta(microseconds=1))
    assert await where(database, "bob") == [(1, "waiting", "ask", 1)]
    await finish(runtime, START + 2 * DAY)
    (_, late) = await read(database, instances)
    assert late.updated_at > bob.updated_at
    assert await steps(database, "bob", "woke") == ["woke ask"]


async def test_c51_a_clock_that_goes_back_after_the_poll_drops_no_timer(
    database: Database,
) -> None:
    """A worker remembers up to where it has looked; what is scheduled before that, by a clock
    that went back, is found by the next look at everything."""
    runtime = await process(database, reminder())
    later(database, 2 * DAY)
    assert await runtime.wake() == Woken()
    later(database, -2 * DAY)
    await order(runtime, "ann")

    later(database, DAY)
    assert await runtime.wake() == Woken(claimed=1, advanced=1)


async def test_c51_an_hour_back_in_the_middle_keeps_a_pass_in_order(database: Database) -> None:
    """A step is never before the one it follows: the later waits count from there."""
    runtime = await process(database, twice())
    await order(runtime, "ann")
    later(database, DAY)
    await runtime.wake()
    later(database, -HOUR)
    await runtime.deliver()
    assert await runtime.wake() == Woken()

    await finish(runtime, START + 2 * DAY)
    at = [row.at for row in await read(database, journal)]
    assert at == sorted(at)
    assert len(await taken(database)) == 2


async def test_c52_a_machine_whose_clock_is_wrong_by_ten_minutes_changes_nothing(
    postgresql_url: str,
) -> None:
    """What is due and how long a claim holds is the database's to say. On SQLite there is one
    machine and its clock."""
    real = Clock().now()
    past = open_database(postgresql_url, clock=VirtualClock(real - DAY - MINUTE))
    await publish(past, reminder())
    await order(Runtime(past), "due since a minute")
    later(past, 6 * MINUTE)
    await order(Runtime(past), "due in five minutes")
    fast = open_database(postgresql_url, clock=Skewed(10 * MINUTE), chance=SeededChance(2))
    slow = open_database(postgresql_url, clock=Skewed(-10 * MINUTE), chance=SeededChance(3))
    first, second = Interrupted(slow), Runtime(fast)

    async def somebody_else_looks() -> None:
        assert await second.wake() == Woken()

    first.meanwhile = somebody_else_looks
    assert await first.wake() == Woken(claimed=1, advanced=1)
    assert await second.wake() == Woken()

    assert await where(past, "due since a minute") == [(1, "completed", "exit", 2)]
    (left,) = await read(past, timers)
    assert (left.user_id, left.attempts) == ("due in five minutes", 0)
    (_, woken) = [row for row in await read(past, journal) if row.user_id != left.user_id]
    assert abs(instant(woken.at) - Clock().now()) < MINUTE
    assert (await second.deliver()).delivered == 1
    assert await read(past, outbox) == []
    assert await broken(past) == []
    for database in (past, fast, slow):
        await database.close()


NEW_YORK = "America/New_York"


@pytest.mark.parametrize(
    ("entered", "due"),
    [
        # 2:30 does not exist on the 8th of March 2026, and 1:30 comes twice on the 1st of November.
        ("2026-03-07T07:30:00Z", "2026-03-08T07:30:00Z"),
        ("2026-10-31T05:30:00Z", "2026-11-01T05:30:00Z"),
        ("2026-10-31T16:00:00Z", "2026-11-01T17:00:00Z"),
    ],
    ids=["into the gap", "into the hour that comes twice", "over the end of summer"],
)
async def test_c53_a_stored_moment_holds_whatever_the_law_says_later(
    database_url: str, monkeypatch: pytest.MonkeyPatch, entered: str, due: str
) -> None:
    """Reckoned once, when the wait begins: neither a new law of the zone nor a person who moves
    away touches it."""
    database = open_database(database_url, clock=VirtualClock(Instant(entered)))
    runtime = await process(database, reminder())
    zoned = Incoming("identify", "ann", properties={"timezone": NEW_YORK}, id="moved in")
    await runtime.ingest(TENANT, [zoned, happens("order")])
    assert await due_times(database) == [Instant(due)]

    monkeypatch.setattr(timing, "_after", no_law)
    monkeypatch.setattr(zone, "ZONES", frozenset())
    moved = zoned._replace(properties={"timezone": "Asia/Tokyo"}, id="moved away")
    await runtime.ingest(TENANT, [moved])
    again = Runtime(database)
    await finish(again, Instant(due) - TimeDelta(microseconds=1))
    assert await where(database) == [(1, "waiting", "wait_1d", 1)]
    await finish(again, Instant(due))
    assert await where(database) == [(1, "completed", "exit", 2)]
    assert [instant(row.at) for row in await read(database, journal)] == [
        Instant(entered),
        Instant(due),
    ]
    await database.close()


def no_law(*_: object) -> Instant:
    raise AssertionError("a wait that has begun is not reckoned again")
