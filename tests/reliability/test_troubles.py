"""A database that refuses, is busy, is full or is away: whole transactions are done again, for a
bounded time, and nothing is half there. Rows C43, C44, C46 and C47."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from whenever import TimeDelta

from journeykit_server import database as database_module
from journeykit_server.backoff import ATTEMPTS
from journeykit_server.clock import SeededChance
from journeykit_server.database import (
    MOST_CONFLICTS,
    PATIENCE_SECONDS,
    Database,
    StorageFull,
    Unavailable,
    use_sqlite_well,
)
from journeykit_server.incoming import Receipt
from journeykit_server.runtime import Runtime
from journeykit_server.tables import counters, events, journal, timers
from journeykit_server.waking import Woken
from journeykit_server.worker import Worker
from tests.databases import START, open_database
from tests.reliability.faults import LetsGo, strike
from tests.reliability.laws import broken
from tests.reliability.stage import (
    A_LEASE,
    DAY,
    PEOPLE,
    TENANT,
    everything,
    execute,
    finish,
    happens,
    later,
    order,
    process,
    publish,
    read,
    reminder,
    taken,
    where,
)

# --- PostgreSQL says no


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions opened from now on wait for no lock and look for a deadlock at once."""
    settings = database_module.POSTGRESQL_SETTINGS
    monkeypatch.setitem(settings, "lock_timeout", "60ms")
    monkeypatch.setitem(settings, "deadlock_timeout", "20ms")


LOCK_ANN = "SELECT 1 FROM profiles WHERE user_id = 'ann' FOR UPDATE"


@pytest.mark.usefixtures("hasty")
async def test_c43_a_lock_that_is_not_to_be_had_costs_no_attempt(postgresql_url: str) -> None:
    """55P03, five times over: the caller hears of it. However often that comes, the next claim
    takes the last one back: nobody has walked."""
    database = open_database(postgresql_url)
    other = open_database(postgresql_url, chance=SeededChance(2))
    runtime = await process(database, reminder())
    await order(runtime, "ann")
    later(database, DAY)

    async def meanwhile(connection: AsyncConnection) -> None:
        await connection.exec_driver_sql(LOCK_ANN)
        for _ in range(3):
            with pytest.raises(Unavailable) as raised:
                await runtime.wake()
            assert str(raised.value) == (
                "The database is held by somebody else: canceling statement due to lock timeout. "
                "Which other program is writing to it?"
            )
            later(database, TimeDelta(seconds=5))

    await other.run(meanwhile)

    (timer,) = await read(database, timers)
    assert (timer.attempts, timer.last_error) == (1, "")
    assert await runtime.wake() == Woken(claimed=1, advanced=1)
    assert await broken(database) == []
    await other.close()
    await database.close()


@pytest.mark.usefixtures("hasty")
async def test_c43_a_lock_that_comes_free_is_waited_for(postgresql_url: str) -> None:
    """Between two tries the other one lets go."""
    gone = asyncio.Event()
    database = open_database(postgresql_url, clock=LetsGo(START + DAY, gone.set))
    other = open_database(postgresql_url, chance=SeededChance(2))
    await publish(other, reminder())
    await order(Runtime(other), "ann")

    async def hold(connection: AsyncConnection) -> None:
        await connection.exec_driver_sql(LOCK_ANN)
        holds.set()
        await gone.wait()

    holds = asyncio.Event()
    holding = asyncio.ensure_future(other.run(hold))
    await holds.wait()
    woken = await Runtime(database).wake()
    await holding

    assert woken == Woken(claimed=1, advanced=1)
    assert [row.rev for row in await read(database, journal)] == [1, 2]
    assert await broken(database) == []
    await other.close()
    await database.close()


@pytest.mark.usefixtures("hasty")
async def test_c43_the_loser_of_a_deadlock_begins_again(postgresql_url: str) -> None:
    """40P01: somebody locks the same two people in the other order. The product's own
    transactions never do, they have one order."""
    database = open_database(postgresql_url)
    other = open_database(postgresql_url, chance=SeededChance(2))
    runtime = await process(database, reminder())
    await order(runtime, "ann", "bob")
    later(database, DAY)
    seen: list[str] = []

    def on_error(context: Any) -> None:
        seen.append(context.original_exception.sqlstate)

    event.listen(database.engine.sync_engine, "handle_error", on_error)

    async def crosswise(connection: AsyncConnection) -> Woken:
        await connection.exec_driver_sql("SET LOCAL deadlock_timeout = '10s'")
        await connection.exec_driver_sql("SET LOCAL lock_timeout = '10s'")
        await connection.exec_driver_sql(LOCK_ANN.replace("ann", "bob"))
        waking = asyncio.ensure_future(runtime.wake())
        while not await waits_for_a_lock(connection):
            await asyncio.sleep(0.001)
        await connection.exec_driver_sql(LOCK_ANN)
        return waking  # type: ignore[return-value]

    waking: Any = await other.run(crosswise)

    assert await waking == Woken(claimed=2, advanced=2)
    assert seen and set(seen) <= {"40P01", "55P03"}
    assert seen[0] == "40P01"
    assert [row.rev for row in await read(database, journal)] == [1, 2, 1, 2]
    assert await broken(database) == []
    await other.close()
    await database.close()


async def waits_for_a_lock(connection: AsyncConnection) -> bool:
    found = await connection.exec_driver_sql("SELECT count(*) FROM pg_locks WHERE NOT granted")
    return bool(found.scalar_one())


async def test_c43_what_cannot_be_put_in_order_is_begun_again(postgresql_url: str) -> None:
    """40001, for real: what this transaction has seen was changed before it wrote."""
    database = open_database(postgresql_url)
    other = open_database(postgresql_url, chance=SeededChance(2))
    await execute(database, "INSERT INTO counters VALUES (1, 'a', 1)")
    read_value = "SELECT value FROM counters"
    runs = []

    async def add_one(connection: AsyncConnection) -> None:
        await connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        value = (await connection.exec_driver_sql(read_value)).scalar_one()
        runs.append(value)
        if len(runs) < MOST_CONFLICTS:
            await execute(other, "UPDATE counters SET value = value + 10")
        await connection.execute(counters.update().values(value=value + 1))

    await database.run(add_one)

    assert runs == [1, 11, 21, 31, 41]
    assert [row.value for row in await read(database, counters)] == [42]
    await other.close()
    await database.close()


# --- there is nobody


@contextmanager
def counted_connects(database: Database) -> Iterator[list[float]]:
    """When the process tried to connect, by its own clock."""
    tries: list[float] = []
    engine = database.engine.sync_engine

    def on_connect(*_: Any) -> None:
        tries.append(database.clock.monotonic())

    event.listen(engine, "do_connect", on_connect)
    yield tries
    event.remove(engine, "do_connect", on_connect)


def at_most_two_a_second(tries: list[float]) -> bool:
    """Over any ten seconds, since the first pauses are a tenth of a second."""
    return all(sum(at <= other < at + 10 for other in tries) <= 20 for at in tries)


async def test_c44_a_port_where_nobody_listens_is_told_after_half_a_minute(
    postgresql_url: str,
) -> None:
    database = open_database("postgresql://postgres@127.0.0.1:1/app")

    with counted_connects(database) as tries, pytest.raises(Unavailable) as raised:
        await database.read(lambda connection: connection.exec_driver_sql("SELECT 1"))

    told = str(raised.value)
    assert told.startswith("The database does not answer: ")
    assert told.endswith(". Is it running, and is the address right?")
    assert "Connect call failed ('127.0.0.1', 1)" in told
    assert PATIENCE_SECONDS < (database.clock.now() - START).total("seconds") < 45
    pauses = [after - before for before, after in pairwise(tries)]
    for number, pause in enumerate(pauses):
        longest = min(0.1 * 2**number, 10)
        assert longest / 2 <= pause <= longest
    assert at_most_two_a_second(tries)
    await database.close()


async def test_c44_a_worker_without_its_database_is_red_and_goes_on_when_it_is_back(
    postgresql_url: str, postgres: Path, tmp_path: Path
) -> None:
    """The way to the server is gone, and comes back an hour later: both loops together ask no
    more than twice a second."""
    real = open_database(postgresql_url)
    await publish(real, reminder())
    await order(Runtime(real), "ann")
    way = postgresql_url.replace(str(postgres), str(tmp_path))
    away = open_database(way, clock=real.clock, chance=SeededChance(2))
    worker, stop = Worker(Runtime(away)), asyncio.Event()
    later(real, DAY)

    with counted_connects(away) as tries:
        running = asyncio.ensure_future(worker.run(stop))
        began = away.clock.monotonic()
        while away.clock.monotonic() < began + 3_600:
            await asyncio.sleep(0)
        assert worker.health == (
            "red: The database does not answer: [Errno 2] No such file or directory. "
            "Is it running, and is the address right?"
        )
        assert await where(real) == [(1, "waiting", "wait_1d", 1)]
        assert 100 < len(tries) < 7_200
        assert at_most_two_a_second(tries)

    (tmp_path / ".s.PGSQL.5432").symlink_to(postgres / ".s.PGSQL.5432")
    while not await taken(real):
        await asyncio.sleep(0.01)
    assert worker.health == "green"
    stop.set()
    await running
    assert await where(real) == [(1, "completed", "exit", 2)]
    assert await broken(real) == []
    await away.close()
    await real.close()


async def test_c44_a_pool_without_a_free_connection_is_waited_for(postgresql_url: str) -> None:
    """One connection, and it is taken: told as busy, and done as soon as it is back."""
    back = asyncio.Event()
    engine = create_async_engine(
        database_module.read_url(postgresql_url), pool_size=1, max_overflow=0, pool_timeout=0.02
    )
    database = open_database(postgresql_url, clock=LetsGo(START, back.set), engine=engine)

    async def keep(connection: AsyncConnection) -> None:
        taken_now.set()
        await back.wait()

    taken_now = asyncio.Event()
    keeping = asyncio.ensure_future(database.read(keep))
    await taken_now.wait()
    await execute(database, "INSERT INTO counters VALUES (1, 'a', 1)")
    await keeping

    assert [row.value for row in await read(database, counters)] == [1]
    await database.close()


# --- another program has the file


WRITER = """
import sqlite3, sys
held = sqlite3.connect(sys.argv[1], isolation_level=None)
held.execute("BEGIN IMMEDIATE")
print("holds", flush=True)
sys.stdin.readline()
"""


def impatient(database: Database) -> Database:
    """SQLite itself waits for no lock, so that the product's own waiting is seen."""

    def on_connect(connection: Any, _: object) -> None:
        with closing(connection.cursor()) as cursor:
            cursor.execute("PRAGMA busy_timeout = 0")

    event.listen(database.engine.sync_engine, "connect", on_connect)
    return database


async def test_c46_a_file_that_another_process_writes_to_is_waited_for(sqlite_url: str) -> None:
    before = open_database(sqlite_url, chance=SeededChance(2))
    await publish(before, reminder())
    await before.close()
    holder = subprocess.Popen(
        [sys.executable, "-c", WRITER, sqlite_url.removeprefix("sqlite:///")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert await asyncio.to_thread(holder.stdout.readline) == "holds\n"
    clock = LetsGo(START, lambda: holder.communicate("go\n"))
    database = impatient(open_database(sqlite_url, clock=clock))

    await order(Runtime(database), "ann")

    assert len(clock.slept) == 1
    assert await where(database) == [(1, "waiting", "wait_1d", 1)]
    assert await broken(database) == []
    await database.close()


@pytest.mark.parametrize("call", range(1, 12))
async def test_c46_a_lock_that_is_lost_midway_repeats_the_whole(sqlite_url: str, call: int) -> None:
    """At BEGIN, at any statement, at COMMIT: nothing of the first run is left, the second is
    whole."""
    database = open_database(sqlite_url)
    runtime = await process(database, reminder())

    with strike(database, sqlite3.OperationalError("database is locked"), at=call) as calls:
        await order(runtime, "ann")

    assert calls.made.count("BEGIN IMMEDIATE") == 2
    assert await where(database) == [(1, "waiting", "wait_1d", 1)]
    assert [row.number % 1_000 for row in await read(database, events)] == [1]
    assert await broken(database) == []
    await database.close()


async def test_c46_a_file_that_stays_locked_is_told_after_half_a_minute(sqlite_url: str) -> None:
    """Nothing was done, no attempt was spent, and it goes on when the other one ends."""
    database = impatient(open_database(sqlite_url))
    runtime = await process(database, reminder())
    await order(runtime, "ann")
    now = later(database, DAY)
    before = await everything(database)

    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as held:
        held.execute("BEGIN IMMEDIATE")
        for asked in (runtime.wake, runtime.deliver):
            began = database.clock.now()
            with pytest.raises(Unavailable) as raised:
                await asked()
            assert str(raised.value) == (
                "The database is held by somebody else: database is locked. "
                "Which other program is writing to it?"
            )
            waited = (database.clock.now() - began).total("seconds")
            assert PATIENCE_SECONDS < waited < PATIENCE_SECONDS + 15

    assert await everything(database) == before
    assert (await read(database, timers))[0].attempts == 0
    assert database.clock.now() > now
    await finish(runtime)
    assert await where(database) == [(1, "completed", "exit", 2)]
    await database.close()


async def test_c46_who_queues_up_for_a_locked_file_waits_no_longer_than_the_first(
    sqlite_url: str,
) -> None:
    """Tasks of one process take turns; the half minute counts from when each of them asked."""
    database = impatient(open_database(sqlite_url))
    runtime = await process(database, reminder())
    began = database.clock.now()

    async def ask(user_id: str) -> float:
        with pytest.raises(Unavailable):
            await runtime.ingest(TENANT, [happens("order", user_id)])
        waited: float = (database.clock.now() - began).total("seconds")
        return waited

    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as held:
        held.execute("BEGIN IMMEDIATE")
        waited = await asyncio.gather(*map(ask, PEOPLE[:5]))

    assert PATIENCE_SECONDS < min(waited) <= max(waited) < PATIENCE_SECONDS + 15
    await database.close()


# --- no room


class Disk:
    """SQLite's disk: with no room it takes not one page more than there are."""

    def __init__(self, database: Database) -> None:
        self.is_full = False
        event.listen(database.engine.sync_engine, "checkout", self._on_checkout)

    def _on_checkout(self, connection: Any, *_: object) -> None:
        pages = 1 if self.is_full else 1_073_741_823
        with closing(connection.cursor()) as cursor:
            cursor.execute(f"PRAGMA max_page_count = {pages}")
            cursor.fetchall()


async def test_c47_a_full_disk_keeps_nothing_of_a_transaction_and_all_goes_on_with_room(
    sqlite_url: str,
) -> None:
    database = open_database(sqlite_url)
    disk = Disk(database)
    runtime = await process(database, reminder())
    await order(runtime, *PEOPLE)
    later(database, DAY)
    disk.is_full = True
    large = [happens("order", f"new {n}", note="x" * 10_000) for n in range(20)]
    attempts: list[Callable[[], Awaitable[object]]] = [
        lambda: runtime.ingest(TENANT, large),
        runtime.wake,
    ]
    before = await everything(database)

    for attempt in attempts:
        with pytest.raises(StorageFull) as raised:
            await attempt()
        assert str(raised.value) == (
            "The database cannot be written to: database or disk is full. "
            "Make room on its disk, or make it writable."
        )
        assert await everything(database) == before
    assert database.clock.now() == START + DAY  # waiting helps nobody

    disk.is_full = False
    assert await runtime.ingest(TENANT, large) == Receipt(accepted=20)
    later(database, A_LEASE)
    await finish(runtime)
    assert len(await taken(database)) == 100
    assert await broken(database) == []
    await database.close()


async def test_c47_people_are_not_given_up_however_long_the_disk_is_full(
    sqlite_url: str,
) -> None:
    """A claim needs no room, the walk does: what was claimed in vain is no attempt."""
    database = open_database(sqlite_url)
    disk = Disk(database)
    runtime = await process(database, reminder())
    await order(runtime, *PEOPLE)
    later(database, DAY)
    disk.is_full = True
    for _ in range(ATTEMPTS + 5):
        with pytest.raises(StorageFull):
            await runtime.wake()
        later(database, A_LEASE)
    assert {row.attempts for row in await read(database, timers)} == {1}

    disk.is_full = False
    assert await runtime.wake() == Woken(claimed=100, advanced=100)
    assert await broken(database) == []
    await database.close()


async def test_c47_a_file_that_may_only_be_read_is_told(sqlite_url: str) -> None:
    """Opened read-only, whoever runs it: reading goes on, and nothing is lost."""
    writable = open_database(sqlite_url)
    await publish(writable, reminder())
    await order(Runtime(writable), "bob")
    later(writable, DAY)
    await Runtime(writable).wake()  # what is to be delivered to bob
    await order(Runtime(writable), "ann")
    later(writable, DAY)
    path = sqlite_url.removeprefix("sqlite:///")
    engine = create_async_engine(f"sqlite+aiosqlite:///file:{path}?mode=ro&uri=true")
    use_sqlite_well(engine)
    clock = writable.clock
    database = open_database(sqlite_url, clock=clock, engine=engine, chance=SeededChance(2))
    runtime = Runtime(database)
    before = await everything(writable)

    for attempt in (runtime.wake, runtime.deliver, lambda: order(runtime, "zoe")):
        with pytest.raises(StorageFull) as raised:
            await attempt()
        assert str(raised.value) == (
            "The database cannot be written to: attempt to write a readonly database. "
            "Make room on its disk, or make it writable."
        )

    assert await everything(database) == before
    await finish(Runtime(writable))
    assert len(await taken(database)) == 2
    assert await where(database) == [(1, "completed", "exit", 2)]
    await database.close()
    await writable.close()
