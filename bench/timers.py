"""Due timers a second, as a ratio to a bare loop over the same rows, and what a tick costs.

The people of "cart, a day, a message, a day, the end" are woken twice: the first time each gets a
message and waits on, the second time each comes to the end. A whole unit of work is measured, with
journal, outbox and statistics, committed to the disk.

    python3 dev.py bench timers
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from operator import truediv
from statistics import median
from typing import Any

from whenever import Instant, TimeDelta

import journeykit as jk
from bench import bare, queue_peer
from bench.ground import (
    DAY,
    START,
    TENANT,
    Ground,
    PostgreSQL,
    SQLite,
    calm_down,
    create_tables,
    grounds,
    opened,
    publish,
    ready,
    rows_of,
    say,
    say_ratio,
    seconds,
    set_clock,
    statements,
)
from journeykit_server.clock import microseconds
from journeykit_server.incoming import Incoming
from journeykit_server.runtime import Runtime

GOALS = {"PostgreSQL": 0.4, "SQLite": 0.35}  # of the bare loop
PEER_GOAL = 4.0
PARKED_GOAL, SNAPSHOT_GOAL = 1.3, 1.5  # what a tick may cost, as a multiple

FIRST, SECOND = START + DAY + TimeDelta(hours=1), START + 2 * DAY + TimeDelta(hours=2)
MINUTE = TimeDelta(minutes=1)
BATCH = bare.BATCH
ALONE = 200  # jobs for the peer that does the same work, whose rate does not depend on it
TICKS = 200
FEW, GROUPS = 10, 20  # timers that are due together where few are, and how often that is tried


def journey() -> Any:
    return jk.journey("two days").on_event("cart").wait("1d").send(email=7).wait("1d").exit()


# --- who is parked


async def park(ground: Ground, base: str, crowd: int) -> None:
    """A database in which everybody waits for the end of their first day."""
    await create_tables(ground, base)
    async with opened(ground, base) as database:
        await publish(database, [journey()])
        runtime = await ready(database)
        for minute, users in arrivals(crowd):
            set_clock(database, START + TimeDelta(minutes=minute))
            for i in range(0, len(users), BATCH):
                await runtime.ingest(TENANT, [came(user) for user in users[i : i + BATCH]])
    await ground.settle(base)


def arrivals(crowd: int) -> list[tuple[int, list[str]]]:
    """Who comes in which minute: groups of `FEW`, the crowd, and groups again."""
    early = [(i, [f"early_{i}_{j}" for j in range(FEW)]) for i in range(GROUPS)]
    late = [(2 * GROUPS + i, [f"late_{i}_{j}" for j in range(FEW)]) for i in range(GROUPS)]
    return [*early, (GROUPS, [f"u_{i:06}" for i in range(crowd)]), *late]


def came(user: str) -> Incoming:
    return Incoming(kind="track", user_id=user, name="cart", properties={}, id=f"m_{user}")


async def add_parked(ground: Ground, base: str, count: int) -> None:
    """So many timers more, due in one of the next thirty days."""
    first = microseconds(START + DAY) // bare.MINUTE + MINUTES_A_DAY
    source = "generate_series(1, {0}) AS s (i)"
    if isinstance(ground, SQLite):
        source = "(WITH RECURSIVE s (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < {0}) "
        source += "SELECT i FROM s WHERE i <= {0})"
    async with opened(ground, base) as database, database.engine.begin() as connection:
        if not database.is_sqlite:
            await connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        await connection.exec_driver_sql(PARK.format(first, source.format(count)))
    await ground.settle(base)


MINUTES_A_DAY = 1_440
PARK = """
    INSERT INTO timers (tenant_id, user_id, journey_id, version, rev, due, bucket, try_at, attempts,
        last_error)
    SELECT 1, 'p' || i, 1, 1, 1, bucket * 60000000, bucket, bucket * 60000000, 0, ''
    FROM (SELECT i, {0} + CAST(i AS BIGINT) * 7919 % 43200 AS bucket FROM {1}) AS parked"""


# --- waking them


Wake = Callable[[Instant], Awaitable[int]]
"""Takes one batch of the timers that are due at a moment, and says how many there were."""


@asynccontextmanager
async def ours(ground: Ground, base: str, like: str) -> AsyncIterator[Wake]:
    """The product on a fresh copy."""
    await ground.create(base, like)
    async with opened(ground, base) as database:
        runtime = await ready(database)
        yield partial(wake_batch, runtime)
    await ground.drop(base)


@asynccontextmanager
async def by_hand(ground: Ground, base: str, like: str) -> AsyncIterator[Wake]:
    """The bare loop on a fresh copy."""
    await ground.create(base, like)
    if isinstance(ground, SQLite):
        plain = bare.open_sqlite(ground.path(base))

        async def wake(at: Instant) -> int:
            return bare.wake_sqlite(plain, at)

        yield wake
        plain.close()
    else:
        connection = await ground.connect(base)
        yield partial(bare.wake_postgresql, connection)
        await connection.close()
    await ground.drop(base)


async def wake_batch(runtime: Runtime, at: Instant) -> int:
    set_clock(runtime.database, at)
    return (await runtime.wake(BATCH)).claimed


async def wake_all(wake: Wake, at: Instant) -> int:
    """Until nobody is due; how many were woken."""
    woken = 0
    while done := await wake(at):
        woken += done
    return woken


async def rates(sides: Sequence[Wake], at: Instant) -> list[float]:
    """Timers a second of each, all that are due at this moment. They take their batches in turn, so
    that what slows the machine slows all of them."""
    took, woken = [0.0] * len(sides), [0] * len(sides)
    while True:
        before = sum(woken)
        for i, wake in enumerate(sides):
            began = time.perf_counter()
            woken[i] += await wake(at)
            took[i] += time.perf_counter() - began
        if sum(woken) == before:
            return [count / taken for count, taken in zip(woken, took, strict=True)]


# --- what is measured


async def assert_same(ground: Ground) -> None:
    """Both leave the same rows: all of them, every value."""
    await park(ground, "few", 300)
    left = []
    for base, side in (("few_by_hand", by_hand), ("few_ours", ours)):
        async with side(ground, base, "few") as wake:
            for at in (FIRST, SECOND):
                await wake_all(wake, at)
                async with opened(ground, base) as database:
                    left.append({table: await rows_of(database, table) for table in KEPT})
    for one, other in zip(left[:2], left[2:], strict=True):
        for table in KEPT:
            assert len(one[table]) == len(other[table]), f"{table}: not as many rows"
            for row, same in zip(one[table], other[table], strict=True):
                assert row == same, f"{table}: by hand {row}, ours {same}"
    assert len(left[3]["journal"]) == 3 * len(left[3]["instances"])


KEPT = ("instances", "journal", "entries", "timers", "node_stats", "outbox")


async def measure_rates(ground: Ground, rounds: int) -> list[float]:
    """Against the bare loop; returns our rates of the first wake."""
    told: list[list[list[float]]] = []
    for i in range(rounds):
        async with (
            ours(ground, f"ours_{i}", "parked") as mine,
            by_hand(ground, f"by_hand_{i}", "parked") as base,
        ):
            assert await mine(START) == await base(START) == 0  # connects
            told.append([await rates([mine, base], at) for at in (FIRST, SECOND)])
    for i, what in enumerate(("send and wait on", "come to the end")):
        mine_s, base_s = zip(*(one[i] for one in told), strict=True)
        say(f"{ground.name}, {what}, timers a second", {"ours": mine_s, "bare loop": base_s})
        ratio = median(map(truediv, mine_s, base_s))
        say_ratio("ours / bare loop", ratio, GOALS[ground.name])
    return [one[0][0] for one in told]


async def measure_peer(ground: PostgreSQL, crowd: int, mine: list[float]) -> None:
    await ground.create("peer", "parked")
    users = [f"u_{i:06}" for i in range(crowd)]
    narrow, wide, nothing = queue_peer.DEFAULT_BATCH, queue_peer.WIDE_BATCH, queue_peer.nothing
    same = queue_peer.moving_on(microseconds(FIRST))
    for what, few, batch, work in (
        (f"empty, its own batch of {narrow},", users, narrow, nothing),
        (f"empty, a batch of {wide},", users, wide, nothing),
        ("that do the same work", users[:ALONE], wide, same),
    ):
        peer = await queue_peer.drained(ground, "peer", few, batch, work)
        say("pgqueuer, jobs a second", {what: [peer]})
        say_ratio("ours / pgqueuer", median(mine) / peer, PEER_GOAL)
    await ground.drop("peer")


async def measure_parked(ground: Ground, count: int) -> None:
    """Ticks that find nothing, in turn with nobody and with many parked."""
    for base, parked in (("few_parked", 0), ("many_parked", count)):
        await create_tables(ground, base)
        await add_parked(ground, base, parked)
    async with (
        ours(ground, "nobody", "few_parked") as nobody,
        ours(ground, "many", "many_parked") as many,
    ):
        times = await ticks({nobody: START + DAY, many: START + DAY})
    say(
        f"{ground.name}, a tick with nothing due, µs",
        {"nobody parked": times[0], f"{count:,} parked": times[1]},
    )
    say_ratio("many / nobody", median(times[1]) / median(times[0]), PARKED_GOAL, at_most=True)
    for base in ("few_parked", "many_parked"):
        await ground.drop(base)


async def ticks(moments: Mapping[Wake, Instant]) -> list[list[float]]:
    """Microseconds of ticks that find nothing, of each in turn."""
    for wake, at in moments.items():
        assert await wake(at) == 0
    times: list[list[float]] = [[] for _ in moments]
    for _ in range(TICKS):
        for (wake, at), taken in zip(moments.items(), times, strict=True):
            taken.append(1e6 * await seconds(partial(wake, at)))
    return times


async def measure_snapshot(ground: PostgreSQL) -> None:
    """Ticks after a crowd was woken while somebody looks at an old state, in turn with ticks of a
    copy where neither was."""
    began = START + DAY
    crowd = began + GROUPS * MINUTE
    async with ours(ground, "calm", "parked") as calm, ours(ground, "held", "parked") as held:
        reader = await ground.connect("held")
        await reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await reader.fetchval("SELECT count(*) FROM timers")
        await wake_all(held, crowd)
        soon = await ticks({calm: began - MINUTE, held: crowd})
        later = await ticks({calm: began - MINUTE, held: crowd + 2 * MINUTE})
        few = await wake_groups({calm: began, held: began + 2 * GROUPS * MINUTE})
        await reader.close()
    for what, (before, after) in (
        ("nothing due", later),
        (f"{FEW} timers due", few),
        ("nothing due, within the minute of the crowd", soon),
    ):
        figures = {"before": before, "after": after}
        say(f"PostgreSQL, an old snapshot, a tick with {what}, µs", figures)
        say_ratio("after / before", median(after) / median(before), SNAPSHOT_GOAL, at_most=True)


async def wake_groups(moments: Mapping[Wake, Instant]) -> list[list[float]]:
    """Microseconds of each tick that finds the few of one minute, of each in turn."""
    times: list[list[float]] = [[] for _ in moments]
    for minute in range(GROUPS):
        for (wake, first), taken in zip(moments.items(), times, strict=True):
            began = time.perf_counter()
            woken = await wake(first + minute * MINUTE)
            taken.append(1e6 * (time.perf_counter() - began))
            assert woken == FEW, f"{woken} timers were due, not {FEW}"
    return times


async def count_statements(ground: Ground) -> None:
    """A batch costs as many statements as another one, whatever its size."""
    counts = {}
    for size in (10, 100, 500):
        await ground.create("counted", "parked")
        async with opened(ground, "counted") as database:
            runtime = await ready(database)
            set_clock(database, FIRST)
            await runtime.wake(limit=1)
            with statements(database) as sent:
                await runtime.wake(limit=size)
            counts[size] = len(sent)
        await ground.drop("counted")
    assert len(set(counts.values())) == 1, f"statements by size of the batch: {counts}"
    print(f"{ground.name}: {counts[10]} statements a batch, whatever its size", flush=True)


async def measure(given: argparse.Namespace) -> None:
    with grounds() as (postgresql, sqlite):
        for ground in (postgresql, sqlite):
            await assert_same(ground)
            await park(ground, "parked", given.timers)
            await count_statements(ground)
        calm_down()
        await measure_rates(sqlite, given.rounds)
        mine = await measure_rates(postgresql, given.rounds)
        await measure_peer(postgresql, given.timers, mine)
        await measure_snapshot(postgresql)
        for ground in (postgresql, sqlite):
            await measure_parked(ground, given.parked)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Due timers against a bare loop")
    parser.add_argument("--timers", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--parked", type=int, default=1_000_000, help="while a tick is timed")
    asyncio.run(measure(parser.parse_args(words)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
