"""One transaction that is whole or not there, and what is told when a database cannot be used."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, select
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import Instant, TimeDelta

from journeykit_server.bulk import Insert
from journeykit_server.clock import Clock, VirtualClock
from journeykit_server.database import (
    MOST_CONFLICTS,
    POOL_SIZE,
    BadUrl,
    Database,
    StorageFull,
    Unavailable,
    read_url,
    trouble_of,
)
from journeykit_server.tables import counters
from tests.databases import START, open_database, sqlite_address

COUNT = Insert(counters, ("tenant_id", "name", "value"))
VALUE = "SELECT value FROM counters WHERE name = '{}'"
LOCKED = "UPDATE counters SET value = value + 1 WHERE name = '{}'"


# --- whole or not there


async def test_what_work_returns_is_returned_and_what_it_wrote_is_kept(database: Database) -> None:
    async def work(connection: AsyncConnection) -> str:
        await COUNT.run(connection, [(1, "a", 1)])
        return "done"

    assert await database.run(work) == "done"
    assert await values(database) == {"a": 1}


async def test_work_that_raises_leaves_nothing_and_is_not_repeated(database: Database) -> None:
    runs = []

    async def work(connection: AsyncConnection) -> None:
        runs.append(1)
        await COUNT.run(connection, [(1, "a", 1)])
        raise KeyError("a mistake of ours")

    with pytest.raises(KeyError, match="a mistake of ours"):
        await database.run(work)
    assert (runs, await values(database)) == ([1], {})


async def test_a_statement_that_is_wrong_is_not_repeated(database: Database) -> None:
    runs = []

    async def work(connection: AsyncConnection) -> None:
        runs.append(1)
        await COUNT.run(connection, [(1, "database is locked", 1)] * 2)

    with pytest.raises(IntegrityError) as raised:
        await database.run(work)
    assert (runs, await values(database)) == ([1], {})
    assert "database is locked" not in str(raised.value)  # values are people's and stay out of logs


async def test_ten_at_once_that_read_and_then_write_lose_nothing(database: Database) -> None:
    await put(database, a=0)

    async def work(connection: AsyncConnection) -> None:
        lock = "" if database.is_sqlite else " FOR UPDATE"
        value = await scalar(connection, VALUE.format("a") + lock)
        await asyncio.sleep(0)
        await connection.execute(counters.update().values(value=value + 1))

    await asyncio.gather(*(database.run(work) for _ in range(10)))
    assert await values(database) == {"a": 10}


async def test_two_processes_that_read_and_then_write_lose_nothing(
    database: Database, database_url: str
) -> None:
    """Two pools and two queues: only the database itself can keep them apart."""
    await put(database, a=0)
    other = open_database(database_url)

    async def work(connection: AsyncConnection) -> None:
        lock = "" if database.is_sqlite else " FOR UPDATE"
        value = await scalar(connection, VALUE.format("a") + lock)
        await asyncio.sleep(0)
        await connection.execute(counters.update().values(value=value + 1))

    await asyncio.gather(*(each.run(work) for each in [database, other] * 5))
    await other.close()
    assert await values(database) == {"a": 10}


async def test_a_reader_sees_one_moment(database: Database, database_url: str) -> None:
    await put(database, a=1)
    other = open_database(database_url)

    async def work(connection: AsyncConnection) -> list[int]:
        seen = [await scalar(connection, VALUE.format("a"))]
        await other.run(lambda own: own.execute(counters.update().values(value=2)))
        return [*seen, await scalar(connection, VALUE.format("a"))]

    assert await database.read(work) == [1, 1]
    assert await values(database) == {"a": 2}
    await other.close()


async def test_a_caller_who_leaves_leaves_a_whole_transaction(database: Database) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def work(connection: AsyncConnection) -> None:
        await COUNT.run(connection, [(1, "a", 1)])
        begun.set()
        await go_on.wait()
        await COUNT.run(connection, [(1, "b", 2)])

    caller = asyncio.create_task(database.run(work))
    await begun.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert len(database.running) == 1

    go_on.set()
    await asyncio.gather(*database.running)
    assert await values(database) == {"a": 1, "b": 2}


async def test_closing_waits_for_what_runs(database: Database, database_url: str) -> None:
    begun = asyncio.Event()

    async def work(connection: AsyncConnection) -> None:
        begun.set()
        await asyncio.sleep(0.01)
        await COUNT.run(connection, [(1, "a", 1)])

    running = asyncio.create_task(database.run(work))
    await begun.wait()
    await database.close()
    await running

    again = open_database(database_url)
    assert await values(again) == {"a": 1}
    await again.close()


async def test_more_at_once_than_there_are_connections_take_turns(database: Database) -> None:
    await put(database, a=0)

    async def work(connection: AsyncConnection) -> None:
        await connection.exec_driver_sql(LOCKED.format("a"))

    await asyncio.gather(*(database.run(work) for _ in range(POOL_SIZE * 5)))
    assert await values(database) == {"a": POOL_SIZE * 5}


# --- bad moments that pass


class LetsGo(VirtualClock):
    """A clock on which the first sleep ends what stands in the way."""

    def __init__(self, let_go: Callable[[], object]) -> None:
        super().__init__(START)
        self.let_go = let_go
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.let_go()
        await super().sleep(seconds)


@pytest.fixture
def holder(sqlite_url: str) -> Iterator[sqlite3.Connection]:
    """Another program that is writing to the file of `sqlite_url`."""
    with closing(sqlite3.connect(path_of(sqlite_url), isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield connection


async def test_sqlite_is_tried_again_when_another_program_is_done(
    sqlite_url: str, holder: sqlite3.Connection
) -> None:
    clock = LetsGo(holder.rollback)
    database = impatient(open_database(sqlite_url, clock=clock))

    await put(database, a=1)

    assert await values(database) == {"a": 1}
    assert len(clock.slept) == 1
    assert 0.05 <= clock.slept[0] < 0.1
    await database.close()


async def test_sqlite_takes_the_lock_before_it_reads(sqlite_url: str) -> None:
    database = open_database(sqlite_url)

    async def can_write(_: AsyncConnection) -> bool:
        with closing(sqlite3.connect(path_of(sqlite_url), timeout=0)) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                assert str(error) == "database is locked"
                return False
            return True

    assert await database.run(can_write) is False
    assert await database.read(can_write) is True
    await database.close()


async def test_a_deadlock_is_resolved_and_both_are_done(postgresql_url: str) -> None:
    database = open_database(postgresql_url)
    await put(database, a=0, b=0)
    both_hold = asyncio.Barrier(2)
    runs: list[str] = []

    def crosswise(first: str, second: str) -> Callable[[AsyncConnection], Awaitable[None]]:
        async def work(connection: AsyncConnection) -> None:
            runs.append(first)
            await connection.exec_driver_sql("SET LOCAL deadlock_timeout = '20ms'")
            await connection.exec_driver_sql(LOCKED.format(first))
            if runs.count(first) == 1:
                await both_hold.wait()
            await connection.exec_driver_sql(LOCKED.format(second))

        return work

    await asyncio.gather(database.run(crosswise("a", "b")), database.run(crosswise("b", "a")))

    assert sorted(runs) in (["a", "a", "b"], ["a", "b", "b"])
    assert await values(database) == {"a": 2, "b": 2}
    await database.close()


async def test_a_connection_that_was_cut_is_replaced(postgresql_url: str) -> None:
    database, other = open_database(postgresql_url), open_database(postgresql_url)
    runs: list[int] = []

    async def work(connection: AsyncConnection) -> None:
        runs.append(await scalar(connection, "SELECT pg_backend_pid()"))
        await COUNT.run(connection, [(1, f"run {len(runs)}", 1)])
        if len(runs) == 1:
            await other.read(lambda own: scalar(own, f"SELECT pg_terminate_backend({runs[0]})"))

    await database.run(work)

    assert len(set(runs)) == 2
    assert await values(database) == {"run 2": 1}
    await database.close()
    await other.close()


# --- bad moments that do not pass


async def test_sqlite_that_stays_locked_is_told(
    sqlite_url: str, holder: sqlite3.Connection
) -> None:
    database = impatient(open_database(sqlite_url))

    with pytest.raises(Unavailable) as raised:
        await put(database, a=1)

    assert str(raised.value) == (
        "The database is held by somebody else: database is locked. "
        "Which other program is writing to it?"
    )
    assert TimeDelta(seconds=30) < database.clock.now() - START < TimeDelta(seconds=45)
    await database.close()


async def test_a_transaction_that_loses_again_and_again_is_told(postgresql_url: str) -> None:
    database = open_database(postgresql_url)
    runs = []

    async def work(connection: AsyncConnection) -> None:
        runs.append(1)
        state = "RAISE EXCEPTION 'could not serialize access' USING ERRCODE = '40001'"
        await connection.exec_driver_sql(f"DO $$ BEGIN {state}; END $$")

    with pytest.raises(Unavailable) as raised:
        await database.run(work)

    assert str(raised.value) == (
        "The database is held by somebody else: could not serialize access. "
        "Which other program is writing to it?"
    )
    assert len(runs) == MOST_CONFLICTS
    await database.close()


async def test_a_server_that_is_not_there_is_told(tmp_path: Path) -> None:
    database = open_database(f"postgresql://postgres@/app?host={tmp_path}")

    with pytest.raises(Unavailable) as raised:
        await put(database, a=1)

    assert str(raised.value) == (
        "The database does not answer: [Errno 2] No such file or directory. "
        "Is it running, and is the address right?"
    )
    assert database.clock.now() - START > TimeDelta(seconds=30)
    await database.close()


async def test_a_database_that_is_not_there_is_told_at_once(postgresql_url: str) -> None:
    database = open_database(postgresql_url.replace("/test_", "/no_test_"))
    name = database.url.database

    with pytest.raises(Unavailable) as raised:
        await values(database)

    assert str(raised.value) == (
        f'The database cannot be used: database "{name}" does not exist. '
        "Is the address right, and is there a database of ours?"
    )
    assert database.clock.now() == START
    await database.close()


async def test_a_folder_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    database = open_database(sqlite_address(tmp_path / "none" / "journeykit.db"))

    with pytest.raises(Unavailable) as raised:
        await values(database)

    assert str(raised.value) == (
        "The database cannot be used: unable to open database file. "
        "Is the address right, and is there a database of ours?"
    )
    assert database.clock.now() == START
    await database.close()


async def test_a_file_that_is_no_database_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("no database " * 100)
    database = open_database(sqlite_address(tmp_path / "notes.db"))

    with pytest.raises(Unavailable) as raised:
        await values(database)

    assert str(raised.value) == (
        "The database cannot be used: file is not a database. "
        "Is the address right, and is there a database of ours?"
    )
    await database.close()


async def test_a_database_without_our_tables_is_told_what_to_do(database_url: str) -> None:
    database = open_database(database_url)
    await database.run(lambda c: c.exec_driver_sql("DROP TABLE counters"))

    with pytest.raises(Unavailable, match="Run journeykit migrate on it first") as raised:
        await database.read(lambda c: c.exec_driver_sql("SELECT * FROM counters"))

    assert str(raised.value).startswith("The database has not our tables: ")
    await database.close()


async def test_a_full_disk_is_told_and_nothing_is_half_written(sqlite_url: str) -> None:
    database = open_database(sqlite_url)
    limit = "PRAGMA max_page_count = 1"  # SQLite takes this as: no page more than there are
    event.listen(database.engine.sync_engine, "connect", lambda own, _: told(own, limit))

    async def work(connection: AsyncConnection) -> None:
        await COUNT.run(connection, [(1, "small", 1)])
        await COUNT.run(connection, [(1, "big" * 100_000, 1)])

    with pytest.raises(StorageFull) as raised:
        await database.run(work)

    assert str(raised.value) == (
        "The database cannot be written to: database or disk is full. "
        "Make room on its disk, or make it writable."
    )
    assert database.clock.now() == START
    assert await values(database) == {}

    await put(database, small=1)  # as soon as there is room, it goes on
    assert await values(database) == {"small": 1}
    await database.close()


async def test_a_file_that_may_not_be_written_to_is_told(sqlite_url: str) -> None:
    database = open_database(sqlite_url)
    event.listen(
        database.engine.sync_engine, "connect", lambda own, _: told(own, "PRAGMA query_only = ON")
    )

    with pytest.raises(StorageFull) as raised:
        await put(database, a=1)

    assert str(raised.value) == (
        "The database cannot be written to: attempt to write a readonly database. "
        "Make room on its disk, or make it writable."
    )
    await database.close()


async def test_a_postgresql_that_only_reads_is_told(postgresql_url: str) -> None:
    database = open_database(postgresql_url)

    async def work(connection: AsyncConnection) -> None:
        await connection.exec_driver_sql("SET LOCAL transaction_read_only = on")
        await COUNT.run(connection, [(1, "a", 1)])

    with pytest.raises(StorageFull) as raised:
        await database.run(work)

    assert str(raised.value) == (
        "The database cannot be written to: cannot execute INSERT in a read-only transaction. "
        "Make room on its disk, or make it writable."
    )
    await database.close()


@pytest.mark.parametrize(
    ("said", "trouble"),
    [
        (sqlite3.OperationalError("database is locked"), "busy"),
        (sqlite3.OperationalError("database table is locked: counters"), "busy"),
        (sqlite3.OperationalError("disk I/O error"), "gone"),
        (sqlite3.OperationalError("no such table: counters"), "unmigrated"),
        (sqlite3.DatabaseError("file is not a database"), "refused"),
        (sqlite3.IntegrityError("UNIQUE constraint failed: counters.name"), None),
        (TimeoutError(), "gone"),
        (ConnectionResetError(), "gone"),
        (LookupError("database is locked"), None),
    ],
)
def test_a_trouble_is_known_by_what_the_driver_said(said: Exception, trouble: str | None) -> None:
    quoted = DBAPIError("INSERT INTO t VALUES ('database is locked')", (), said)

    assert trouble_of(said) == trouble
    if isinstance(said, sqlite3.Error):
        assert trouble_of(quoted) == trouble


# --- the address


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("sqlite:///journeykit.db", "sqlite+aiosqlite:///journeykit.db"),
        ("sqlite:////data/j.db", "sqlite+aiosqlite:////data/j.db"),
        ("postgres://u:p@h:5433/app", "postgresql+asyncpg://u:p@h:5433/app"),
        ("postgresql://h/app", "postgresql+asyncpg://h/app"),
        ("postgresql+psycopg://h/app", "postgresql+asyncpg://h/app"),
        ("postgresql://h/app?sslmode=require", "postgresql+asyncpg://h/app?ssl=require"),
    ],
)
def test_an_address_is_read_as_hosts_write_it(text: str, read: str) -> None:
    assert read_url(text).render_as_string(hide_password=False) == read


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("journeykit.db", "journeykit.db"),
        ("mysql://u:secret@h/app", "mysql://u:***@h/app"),
        ("postgresql:/u:secret@h/app", "postgresql:/u:***@h/app"),
        ("postgresql://u:secret@h:port/app", "postgresql://u:***@h:port/app"),
    ],
)
def test_an_address_that_cannot_be_used_is_shown_without_its_password(
    text: str, shown: str
) -> None:
    with pytest.raises(BadUrl) as raised:
        Database(text)
    assert str(raised.value) == (
        f'The database address "{shown}" cannot be used. '
        "Write sqlite:///journeykit.db or postgresql://user:password@host/database."
    )


@pytest.mark.parametrize(
    "text", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=memory&uri=true"]
)
def test_sqlite_wants_a_file(text: str) -> None:
    with pytest.raises(BadUrl) as raised:
        Database(text)
    assert str(raised.value) == (
        "A journey has to outlive the process, so SQLite needs a file. "
        "Write sqlite:///journeykit.db."
    )


# --- how a connection is set


async def test_postgresql_ends_what_hangs(postgresql_url: str) -> None:
    database = open_database(postgresql_url)
    expected = {
        "application_name": "journeykit",
        "statement_timeout": "15s",
        "lock_timeout": "3s",
        "idle_in_transaction_session_timeout": "30s",
        "transaction_isolation": "read committed",
    }

    async def work(connection: AsyncConnection) -> dict[str, Any]:
        return {name: await scalar(connection, f"SHOW {name}") for name in expected}

    assert await database.run(work) == expected
    reading = {"transaction_isolation": "repeatable read"}
    assert await database.read(work) == {**expected, **reading}
    assert await database.run(work) == expected  # the same connection, writing again
    await database.close()


async def test_sqlite_survives_a_power_cut(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    expected = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 5_000}

    async def work(connection: AsyncConnection) -> dict[str, Any]:
        return {name: await scalar(connection, f"PRAGMA {name}") for name in expected}

    assert await database.run(work) == expected
    await database.close()


# --- the clock that counts


async def test_a_test_tells_the_time(database: Database) -> None:
    assert await database.run(database.now) == START

    later = Instant("2026-06-09T00:00:00Z")
    assert isinstance(database.clock, VirtualClock)
    database.clock.set(later)
    assert await database.run(database.now) == later


class OffByAYear(Clock):
    def now(self) -> Instant:
        return Clock().now() - TimeDelta(hours=8_760)


async def test_the_time_is_the_servers_where_there_is_one(database_url: str) -> None:
    database = open_database(database_url, clock=OffByAYear())
    before = Clock().now()
    told = await database.run(database.now)
    after = Clock().now()

    if database.is_sqlite:
        assert before <= told + TimeDelta(hours=8_760) <= after
    else:  # the server of the test runs on this machine
        assert before <= told <= after
    await database.close()


async def test_time_goes_on_within_a_transaction(postgresql_url: str) -> None:
    database = open_database(postgresql_url, clock=Clock())

    async def work(connection: AsyncConnection) -> tuple[Instant, Instant]:
        return await database.now(connection), await database.now(connection)

    first, second = await database.run(work)
    assert first < second
    await database.close()


# --- how the tests ask


async def put(database: Database, **values: int) -> None:
    rows = [(1, name, value) for name, value in values.items()]
    assert await database.run(lambda connection: COUNT.run(connection, rows)) == len(rows)


async def values(database: Database) -> dict[str, int]:
    async def work(connection: AsyncConnection) -> dict[str, int]:
        rows = await connection.execute(select(counters.c.name, counters.c.value))
        return {row.name: row.value for row in rows}

    return await database.read(work)


async def scalar(connection: AsyncConnection, statement: str) -> Any:
    return (await connection.exec_driver_sql(statement)).scalar_one()


def impatient(database: Database) -> Database:
    """SQLite that does not wait for a lock: the whole transaction is repeated instead."""
    event.listen(
        database.engine.sync_engine, "connect", lambda own, _: told(own, "PRAGMA busy_timeout = 0")
    )
    return database


def told(connection: Any, pragma: str) -> None:
    cursor = connection.cursor()
    cursor.execute(pragma)
    cursor.close()


def path_of(sqlite_url: str) -> str:
    return sqlite_url.removeprefix("sqlite:///")
