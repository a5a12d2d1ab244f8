"""Where both sides of a measurement stand: databases that are copies of each other.

PostgreSQL runs as it comes (a commit is on the disk before it is answered), SQLite with a
write-ahead log and `synchronous=FULL`, as the product uses it.
"""

from __future__ import annotations

import contextlib
import gc
import shutil
import tempfile
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from pathlib import Path
from statistics import median
from typing import Any

import asyncpg  # type: ignore[import-untyped]
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import Instant, TimeDelta

from journeykit_server import publishing, tables
from journeykit_server.clock import SeededChance, VirtualClock
from journeykit_server.database import Database
from journeykit_server.runtime import Runtime
from tests import postgres

START = Instant("2026-06-01T10:00:00Z")
DAY = TimeDelta(hours=24)
TENANT = 1


class PostgreSQL:
    """Databases of one server; a copy is made by the server itself."""

    name = "PostgreSQL"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def url(self, base: str) -> str:
        return f"postgresql://postgres@/{base}?host={self.folder}"

    async def connect(self, base: str) -> Any:
        return await asyncpg.connect(host=str(self.folder), user="postgres", database=base)

    def pool(self, base: str, size: int) -> Any:
        options = {"min_size": size, "max_size": size}
        return asyncpg.create_pool(host=str(self.folder), user="postgres", database=base, **options)

    async def create(self, base: str, like: str = "template1") -> None:
        await self._tell("postgres", f"CREATE DATABASE {base} TEMPLATE {like}")

    async def drop(self, base: str) -> None:
        await self._tell("postgres", f"DROP DATABASE {base}")

    async def settle(self, base: str) -> None:
        """What a server does by itself within minutes: statistics, and pages on the disk."""
        await self._tell(base, "VACUUM ANALYZE")
        await self._tell(base, "CHECKPOINT")

    async def _tell(self, base: str, statement: str) -> None:
        connection = await self.connect(base)
        await connection.execute(statement)
        await connection.close()


class SQLite:
    """Files of one folder."""

    name = "SQLite"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, base: str) -> Path:
        return self.folder / f"{base}.db"

    def url(self, base: str) -> str:
        return f"sqlite:///{self.path(base)}"

    async def create(self, base: str, like: str = "") -> None:
        if like:
            shutil.copyfile(self.path(like), self.path(base))

    async def drop(self, base: str) -> None:
        for path in self.folder.glob(f"{base}.db*"):
            path.unlink()

    async def settle(self, base: str) -> None:
        """Nothing may be left in the log: only the file is copied."""
        async with opened(self, base) as database, database.engine.connect() as connection:
            await connection.exec_driver_sql("ANALYZE")
            await connection.commit()
            await connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")


Ground = PostgreSQL | SQLite


@contextlib.contextmanager
def grounds() -> Iterator[tuple[PostgreSQL, SQLite]]:
    """Both, for as long as a measurement takes."""
    with postgres.server(postgres.DURABLE) as server, tempfile.TemporaryDirectory() as folder:
        yield PostgreSQL(server), SQLite(Path(folder))


@contextlib.asynccontextmanager
async def opened(ground: Ground, base: str, at: Instant = START) -> AsyncIterator[Database]:
    """The product's own access to a database, on a clock that stands at `at`."""
    database = Database(ground.url(base), clock=VirtualClock(at), chance=SeededChance(1))
    try:
        yield database
    finally:
        await database.close()


async def create_tables(ground: Ground, base: str) -> None:
    await ground.create(base)
    async with opened(ground, base) as database, database.engine.begin() as connection:
        await connection.run_sync(tables.metadata.create_all)


async def publish(database: Database, journeys: Iterable[Any]) -> None:
    """Make these journeys ones that people enter."""
    for number, journey in enumerate(journeys, 1):
        await publishing.save_draft(database, TENANT, journey.to_json(), journey_id=None)
        await publishing.publish(database, TENANT, number)


async def ready(database: Database) -> Runtime:
    """A runtime that has read what is published."""
    runtime = Runtime(database)
    await runtime.reload()
    return runtime


def set_clock(database: Database, moment: Instant) -> None:
    assert isinstance(database.clock, VirtualClock)
    database.clock.set(moment)


async def rows_of(database: Database, table: str, columns: str = "*") -> list[tuple[Any, ...]]:
    """Every row of a table, in an order that depends on the rows alone."""

    async def read(connection: AsyncConnection) -> list[tuple[Any, ...]]:
        found = await connection.exec_driver_sql(f"SELECT {columns} FROM {table}")
        return sorted(map(tuple, found.all()), key=repr)

    return await database.read(read)


@contextlib.contextmanager
def statements(database: Database) -> Iterator[list[str]]:
    """What is sent to the database meanwhile."""
    sent: list[str] = []

    def note(_: Any, __: Any, statement: str, *rest: Any) -> None:
        sent.append(statement)

    event.listen(database.engine.sync_engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(database.engine.sync_engine, "before_cursor_execute", note)


def calm_down() -> None:
    """What is there to stay is not looked at again by the garbage collector, as in a worker."""
    gc.collect()
    gc.freeze()


async def seconds(run: Callable[[], Awaitable[object]]) -> float:
    """On the wall: the database works in another process, and the disk counts too."""
    began = time.perf_counter()
    await run()
    return time.perf_counter() - began


def say(what: str, figures: Mapping[str, Sequence[float]]) -> None:
    """Rates side by side, the median of the rounds."""
    told = ", ".join(f"{name} {median(rates):,.0f}" for name, rates in figures.items())
    print(f"{what}: {told}", flush=True)


def say_ratio(what: str, ratio: float, goal: float, at_most: bool = False) -> None:
    print(f"  {what}: {ratio:.2f} (goal {'at most ' if at_most else ''}{goal:.2f})", flush=True)
