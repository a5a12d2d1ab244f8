"""Workers share a database, and one of them dies, hangs, or is of another age. Rows C2, C4, C10,
C11, C13, C14, C15 and C63, with real processes."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text
from whenever import TimeDelta

import journeykit as jk
from journeykit_server import migrate as migrating
from journeykit_server.clock import Clock, microseconds
from journeykit_server.database import Database
from journeykit_server.runtime import LEASE, SWEEP_SECONDS, Runtime
from journeykit_server.tables import (
    dead_letters,
    instances,
    messages,
    outbox,
    timers,
)
from tests.databases import open_database
from tests.reliability.crowd import (
    CROWD,
    an_hour_ago,
    faults_of_log,
    faults_of_welcome,
    faults_outside,
    finished,
    gather_crowd,
    looked_at,
)
from tests.reliability.laws import broken
from tests.reliability.processes import crew
from tests.reliability.stage import (
    everything,
    execute,
    later,
    order,
    read,
    rows,
)
from tests.reliability.worker_process import Hurried, Outside

FEW = CROWD[:20]
MINUTE = TimeDelta(minutes=1)


# --- one of them dies


async def test_c02_the_claim_of_a_dead_worker_is_taken_over_when_its_lease_ends(
    database_url: str, tmp_path: Path
) -> None:
    await gather_crowd(database_url, FEW)
    async with looked_at(database_url) as database:
        with crew(database_url, tmp_path) as workers:
            dead = workers.start(halts={"claimed": "kill"})
            assert await dead.ends() == -signal.SIGKILL
            assert {row.attempts for row in await read(database, timers)} == {1}

            second = workers.start(halts={"claimed": "stop"}, lease_seconds=3)
            await second.halts("claimed")
            assert {row.attempts for row in await read(database, timers)} == {2}
            second.go_on()

            await finished(database, workers)
            await workers.stop()
        assert await faults_of_welcome(database, FEW) == []
        assert await faults_of_log(database) == []
    assert LEASE.total("seconds") + SWEEP_SECONDS <= 35


async def test_c10_what_a_killed_worker_wrote_is_delivered_by_the_next(
    database_url: str, tmp_path: Path
) -> None:
    await gather_crowd(database_url, FEW)
    async with looked_at(database_url) as database:
        with crew(database_url, tmp_path, most_effects=1) as workers:
            assert await workers.start(halts={"walked": "kill"}).ends() == -signal.SIGKILL
            written = {row.message_id for row in await read(database, outbox)}
            assert len(written) >= len(FEW)

            workers.start()
            await finished(database, workers)
            await workers.stop()
        assert written <= {row.message_id for row in await read(database, messages)}
        assert await faults_of_welcome(database, FEW) == []
        assert await faults_of_log(database) == []


async def test_c11_what_the_outside_has_when_a_worker_is_killed_it_gets_again_by_the_same_name(
    database_url: str, tmp_path: Path
) -> None:
    await gather_crowd(database_url, FEW)
    outside = str(tmp_path / "outside.db")
    async with looked_at(database_url) as database:
        with crew(database_url, tmp_path, outside=outside) as workers:
            assert await workers.start(halts={"offered": "kill"}).ends() == -signal.SIGKILL
            has = Outside(outside).taken()
            assert has
            assert await _delivered(database) == []

            workers.start()
            await finished(database, workers)
            await workers.stop()
        again = {name: times for name, _, times in Outside(outside).taken()}
        assert {again[name] for name, _, _ in has} == {2}
        assert await faults_of_welcome(database, FEW) == []
        assert await faults_outside(database, outside) == []


async def _delivered(database: Database) -> list[Any]:
    return [row for row in await read(database, messages) if row.state == "delivered"]


# --- they share the work


WAITS = 50


def many_waits(number: int) -> jk.Journey:
    """A minute, and a minute, and so on."""
    journey = jk.journey("Waits").on_event("order")
    for each in range(number):
        journey = journey.wait("1m", id=f"wait{each}")
    return journey.exit()


async def test_c04_of_1000_due_at_once_two_workers_take_each_once_50_times(
    postgresql_url: str,
) -> None:
    """Each takes up to half, so that whatever one misses or takes twice is missed."""
    people = [f"user {number:04}" for number in range(1_000)]
    await gather_crowd(postgresql_url, people, many_waits(WAITS))
    clock = an_hour_ago()
    one = open_database(postgresql_url, clock=clock)
    two = open_database(postgresql_url, clock=clock)
    workers = [Runtime(one, shard=1), Runtime(two, shard=2)]

    for round in range(1, WAITS + 1):
        later(one, MINUTE)
        both = await asyncio.gather(*[worker.wake(limit=500) for worker in workers])
        assert [woken.claimed for woken in both] == [500, 500], round
        assert [woken.advanced for woken in both] == [500, 500], round

    revisions = select(instances.c.rev, instances.c.status)
    found = Counter(tuple(row) for row in await rows(one, revisions))
    assert found == {(WAITS + 1, "completed"): 1_000}
    assert await broken(one) == []
    await one.close()
    await two.close()


async def test_c04_two_processes_take_each_once(postgresql_url: str, tmp_path: Path) -> None:
    """The same between processes, by a clock on which a minute is two seconds; a claim is smaller,
    so that each round has many of both."""
    rounds, people = 4, [f"user {number:04}" for number in range(500)]
    hurry = (30.0, microseconds(Clock().now()))
    await gather_crowd(postgresql_url, people, many_waits(rounds), clock=Hurried(*hurry))
    settings = {"lease_seconds": 3_600, "sweep_seconds": 2.0, "most_timers": 100, "hurry": hurry}
    async with looked_at(postgresql_url) as database:
        with crew(postgresql_url, tmp_path, **settings) as workers:
            both = [workers.start(), workers.start()]
            await finished(database, workers)
            await workers.stop()

        shares = [process.counted("advanced") for process in both]
        assert sum(shares) == rounds * len(people)
        assert min(shares) > 0
        assert [process.counted("claimed") for process in both] == shares
        assert {row.rev for row in await read(database, instances)} == {rounds + 1}
        assert await broken(database) == []


# --- one of them hangs for longer than its lease


async def test_c13_who_hangs_with_a_claim_finds_everything_done_and_writes_nothing(
    postgresql_url: str, tmp_path: Path
) -> None:
    """Everybody has moved on meanwhile and waits again, for something that is not due."""
    journey = jk.journey("Twice").on_event("order").wait("1m").send(email=1).wait("1d").exit()
    await gather_crowd(postgresql_url, FEW, journey)
    async with looked_at(postgresql_url) as database:
        with crew(postgresql_url, tmp_path) as workers:
            zombie = workers.start(halts={"claimed": "stop"})
            await zombie.halts("claimed")
            other = workers.start()
            await other.counts("advanced", len(FEW))
            await other.counts("delivered", len(FEW))
            before = await everything(database)

            zombie.go_on()
            await zombie.counts("fenced", len(FEW))

            await workers.stop()
        assert await everything(database) == before
        assert zombie.counted("advanced") == 0
        assert {row.rev for row in await read(database, instances)} == {2}
        assert await broken(database) == []


async def test_c14_who_hangs_in_its_transaction_loses_it_and_holds_up_nobody_for_long(
    postgresql_url: str, tmp_path: Path
) -> None:
    """PostgreSQL ends a session that stands still in a transaction, after 30 seconds in earnest and
    after two here. Who wakes up finds it gone, begins anew, and finds everything done."""
    await gather_crowd(postgresql_url, FEW)
    async with looked_at(postgresql_url) as database:
        with crew(postgresql_url, tmp_path) as workers:
            zombie = workers.start(halts={"written": "stop"}, idle_seconds=2)
            await zombie.halts("written")
            assert await rows(database, STANDING_STILL)
            workers.start()
            await finished(database, workers)
            before = await everything(database)

            zombie.go_on()
            await zombie.counts("fenced", len(FEW))

            await workers.stop()
        assert await everything(database) == before
        assert await faults_of_welcome(database, FEW) == []
        assert await faults_of_log(database) == []


STANDING_STILL = text(
    "SELECT pid FROM pg_stat_activity "
    "WHERE datname = current_database() AND state = 'idle in transaction'"
)


async def test_c15_who_hangs_before_the_mark_is_refused_it_and_the_outside_knows_the_name(
    postgresql_url: str, tmp_path: Path
) -> None:
    """The other one has taken the effects over and offered them too when the first wakes up."""
    await gather_crowd(postgresql_url, FEW)
    outside = str(tmp_path / "outside.db")
    async with looked_at(postgresql_url) as database:
        with crew(postgresql_url, tmp_path, outside=outside) as workers:
            zombie = workers.start(halts={"offered": "stop"})
            await zombie.halts("offered")
            other = workers.start(halts={"offered": "stop"}, lease_seconds=3_600)
            await other.halts("offered")
            before = await read(database, outbox)
            has = Outside(outside).taken()
            assert {times for _, _, times in has} == {2}

            zombie.go_on()
            await zombie.counts("lost", len(has))
            assert await read(database, outbox) == before
            assert await _delivered(database) == []

            other.go_on()
            await finished(database, workers)
            await workers.stop()
        twice = {row.message_id for row in await _delivered(database) if row.attempts == 2}
        assert twice == {name for name, _, _ in has}
        assert await faults_of_welcome(database, FEW) == []
        assert await faults_outside(database, outside) == []


# --- one of them is of another age


async def test_c63_what_a_newer_journeykit_published_is_left_to_newer_workers(
    database_url: str, tmp_path: Path
) -> None:
    await gather_crowd(database_url, FEW)
    async with looked_at(database_url) as database:
        await execute(database, "UPDATE versions SET format = 2 WHERE journey_id = 1")
        with crew(database_url, tmp_path) as workers:
            old = workers.start()
            await old.counts("postponed", len(FEW))
            assert {row.attempts for row in await read(database, timers)} <= {0, 1}
            assert {row.rev for row in await read(database, instances)} == {1}
            if database.is_sqlite:  # a file has one worker
                await workers.stop()
            assert {row.last_error for row in await read(database, timers)} == {TOO_NEW}

            workers.start(document_format=2)
            await finished(database, workers)
            await workers.stop()
        assert old.counted("advanced") == old.counted("failed") == 0
        assert await read(database, dead_letters) == []
        assert await faults_of_welcome(database, FEW) == []
        assert await faults_of_log(database) == []


TOO_NEW = (
    "The version 1 of journey 1 was published by a newer journeykit (document format 2, this one "
    "reads 1). Its people wait until this worker is upgraded."
)


async def test_c63_a_migration_beside_a_worker_only_adds_and_the_worker_goes_on(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker has used every statement before; the tables then get columns and an index."""
    (tmp_path / "0003_more.py").write_text(MORE)
    await gather_crowd(database_url, FEW)
    async with looked_at(database_url) as database:
        with crew(database_url, tmp_path) as workers:
            workers.start()
            await finished(database, workers)

            monkeypatch.setattr(migrating, "PLACES", [*migrating.PLACES, tmp_path])
            assert await migrating.migrate(database) == ["0003"]
            async with looked_at(database_url, an_hour_ago()) as before:
                await order(Runtime(before), *CROWD[20:])
            await finished(database, workers)
            await workers.stop()

            late = workers.start()
            assert await late.ends() == 1
            assert NEWER in late.said
        assert await faults_of_welcome(database) == []
        assert await faults_of_log(database) == []


NEWER = (
    'is of revision "0003", this journeykit knows none after "0002": a newer one migrated it. '
    "Install that one here too.\n"
)
MORE = """
import sqlalchemy as sa
from alembic import op

revision, down_revision = "0003", "0002"


def upgrade():
    for table in ("profiles", "events", "instances", "timers", "journal", "outbox", "messages"):
        op.add_column(table, sa.Column("more", sa.BigInteger, server_default="0", nullable=False))
    op.create_index("ix_instances_more", "instances", ["tenant_id", "more"])
"""
