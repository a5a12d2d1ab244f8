"""Several workers want the same timers, and the world goes on between a claim and its walk. Rows
C4, C24 and C33."""

from __future__ import annotations

import asyncio

from whenever import TimeDelta

import journeykit as jk
from journeykit_server import letters
from journeykit_server.database import Database
from journeykit_server.runtime import Runtime
from journeykit_server.tables import instances, journal, timers
from journeykit_server.waking import Woken
from tests.reliability.faults import Interrupted
from tests.reliability.stage import (
    A_LEASE,
    DAY,
    PEOPLE,
    TENANT,
    asking,
    due_times,
    execute,
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


def daily() -> jk.Journey:
    return (
        jk.journey("Daily")
        .on_event("order")
        .wait("1d", id="rest")
        .send(email=1, id="hello")
        .go_to("rest")
    )


async def test_c04_two_workers_share_a_minute_and_take_nobody_twice(
    database: Database, other: Database
) -> None:
    """Round after round of a loop: disjoint claims, none larger than asked for, nobody left."""
    one, two = await process(database, daily()), Runtime(other)
    await order(one, *PEOPLE)

    for _ in range(5):
        later(database, DAY)
        left = 100
        while left:
            batch = await asyncio.gather(one.wake(limit=40), two.wake(limit=40))
            assert max(woken.claimed for woken in batch) <= 40
            assert all(woken.claimed == woken.advanced for woken in batch)
            left -= sum(woken.claimed for woken in batch)
        assert left == 0
        assert [*await asyncio.gather(one.wake(), two.wake())] == [Woken(), Woken()]

    assert [row.rev for row in await read(database, instances)] == [6] * 100
    assert len(await read(database, journal)) == 600


async def test_c24_an_event_that_comes_between_claim_and_walk_takes_the_timer_away(
    database: Database, other: Database
) -> None:
    """The worker finds its mark gone: fenced, nothing written, no dead letter."""
    worker = await process(database, asking())
    await order(worker, "ann", "bob")
    late = Interrupted(other)
    late.meanwhile = lambda: worker.ingest(TENANT, [happens("reply")])
    later(database, 2 * DAY)

    assert await late.wake() == Woken(claimed=2, advanced=1, fenced=1)

    assert await where(database) == [(1, "completed", "exit", 2)]
    assert await steps(database, "ann", "woke") == ["woke ask"]
    assert await where(database, "bob") == [(1, "completed", "over", 2)]
    assert await letters.list_letters(database, TENANT) == []


async def test_c24_a_timer_of_an_earlier_step_is_dropped(database: Database) -> None:
    """Such a row can only be left by something that wrote around the product."""
    runtime = await process(database, reminder())
    await order(runtime, "ann")
    await runtime.eject(TENANT, 1, "ann")
    await execute(
        database,
        "INSERT INTO timers (tenant_id, user_id, journey_id, version, rev, due, bucket, try_at, "
        "attempts, last_error) VALUES (1, 'ann', 1, 1, 1, 0, 0, 0, 0, '')",
    )

    assert await runtime.wake() == Woken(claimed=1, superseded=1)

    assert await read(database, timers) == []
    assert await letters.list_letters(database, TENANT) == []
    assert await where(database) == [(1, "exited", "wait_1d", 2)]


async def test_c33_a_timer_claimed_in_one_pass_does_nothing_to_the_next(
    database: Database, other: Database
) -> None:
    """Between claim and walk the person leaves and comes back: the new pass keeps its own time."""
    journey = reminder().reenter("every_time").exit_on("bought")
    worker = await process(database, journey)
    await order(worker, "ann")
    late = Interrupted(other)

    async def leave_and_come_back() -> None:
        again = happens("order", event_id="second order")
        await worker.ingest(TENANT, [happens("bought"), again])

    late.meanwhile = leave_and_come_back
    now = later(database, DAY)

    assert await late.wake() == Woken(claimed=1, fenced=1)

    assert await where(database) == [(1, "waiting", "wait_1d", 3)]
    assert await due_times(database) == [now + DAY]
    later(database, A_LEASE)
    assert await late.wake() == Woken()
    await finish(worker, now + DAY)
    assert await taken(database) == {"j1.v1.send_email_1.ann.e2": 1}


async def test_c33_a_worker_that_was_away_beyond_its_lease_finds_it_taken_over(
    database: Database, other: Database
) -> None:
    """The same without a person who does anything: only the other worker was faster."""
    await publish(database, daily())
    worker, late = Runtime(database), Interrupted(other)
    await order(worker, "ann")
    later(database, DAY)

    async def the_lease_ends() -> None:
        later(database, A_LEASE)
        assert await worker.wake() == Woken(claimed=1, advanced=1)

    late.meanwhile = the_lease_ends

    assert await late.wake() == Woken(claimed=1, fenced=1)

    assert await where(database) == [(1, "waiting", "rest", 2)]
    assert await due_times(database) == [database.clock.now() + DAY]
    later(database, TimeDelta(hours=23))
    assert await late.wake() == Woken()
