"""A connection to SQLite or PostgreSQL, and one way to change something: a whole transaction.

`Database.run` gives a function a connection inside a transaction, commits what it did, and runs it
again from its beginning where the database says that only the moment was bad. So what is given to
it must find out by itself what is done already: a commit whose answer was lost is repeated too.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar

import orjson
from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as NoFreeConnection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from whenever import Instant

from journeykit_server.clock import Chance, Clock, instant

SQLITE_BUSY_SECONDS = 5.0  # how long one statement waits for another process to finish writing
PATIENCE_SECONDS = 30.0  # how long a transaction is repeated before its caller hears of it
MOST_CONFLICTS = 5  # times that a transaction may lose against others (deadlock, serialization)
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 10.0
POOL_SIZE = 8  # connections: one for each of a worker's four loops, some for readers

POSTGRESQL_SETTINGS = {
    "application_name": "journeykit",
    "statement_timeout": "15s",
    "lock_timeout": "3s",
    "idle_in_transaction_session_timeout": "30s",  # a worker that hangs gives its locks back
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
    # Batches join a thousand given rows by key. By its defaults, made for spinning disks, the
    # planner reads whole tables for that; and a plan made once while a table was empty stays.
    "random_page_cost": "1.1",
    "plan_cache_mode": "force_custom_plan",
    # Compiling a statement takes longer than it saves in one that looks up a row a person.
    "jit": "off",
}

Trouble = Literal["conflict", "gone", "busy", "full", "refused", "unmigrated"]
T = TypeVar("T")
Work = Callable[[AsyncConnection], Awaitable[T]]


class BadUrl(ValueError):
    """The text is not the address of a database that can be used here."""


class Unavailable(Exception):
    """The database could not be reached, or not be written to, for `PATIENCE_SECONDS`."""


class StorageFull(Unavailable):
    """The disk is full or may not be written to; nothing of the transaction was kept."""


class Database:
    """One database and the clock that counts in it.

    On PostgreSQL, with a real clock, time is the server's own, so that workers on machines whose
    clocks differ agree on what is due; on SQLite there is one machine and its clock. `engine` is
    for tests that bring their own.
    """

    def __init__(
        self,
        url: str = "sqlite:///journeykit.db",
        *,
        clock: Clock | None = None,
        chance: Chance | None = None,
        engine: AsyncEngine | None = None,
    ) -> None:
        self.clock = clock or Clock()
        self.chance = chance or Chance()
        self.url = read_url(url)
        self.engine = engine or _engine(self.url)
        self.is_sqlite = self.engine.dialect.name == "sqlite"
        # SQLite has one writer: tasks of one process queue up here instead of at the file's lock.
        self.writer = asyncio.Lock() if self.is_sqlite else None
        self.running: set[asyncio.Task[Any]] = set()

    async def run(self, work: Work[T]) -> T:
        """Do `work` in one transaction that may write, and return what it returned.

        A caller that is cancelled leaves, the transaction ends as it would have: nobody learns of
        half a commit. Raises `Unavailable` and `StorageFull`; what `work` itself raises passes
        through, and nothing was kept then.
        """
        task = asyncio.ensure_future(self._patiently(work))
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        return await asyncio.shield(task)

    async def read(self, work: Work[T]) -> T:
        """Do `work`, which only reads, on one snapshot."""
        return await self._repeat(lambda: self._read_once(work), self.clock.monotonic())

    async def now(self, connection: AsyncConnection) -> Instant:
        """The time by the clock that counts."""
        if self.is_sqlite or not self.clock.is_real:
            return self.clock.now()
        told = await connection.exec_driver_sql(POSTGRESQL_NOW)
        return instant(told.scalar_one())

    async def close(self) -> None:
        """Let running transactions end and close every connection."""
        if self.running:
            await asyncio.gather(*self.running, return_exceptions=True)
        await self.engine.dispose()

    async def _patiently(self, work: Work[T]) -> T:
        began = self.clock.monotonic()  # who queues up here is waiting already
        if self.writer is None:
            return await self._repeat(lambda: self._write_once(work), began)
        async with self.writer:
            return await self._repeat(lambda: self._write_once(work), began)

    async def _write_once(self, work: Work[T]) -> T:
        options = {"sqlite_begin": "BEGIN IMMEDIATE"}
        async with self.engine.connect() as raw:
            connection = await raw.execution_options(**options)
            async with connection.begin():
                return await work(connection)

    async def _read_once(self, work: Work[T]) -> T:
        async with self.engine.connect() as raw:
            connection = raw if self.is_sqlite else await raw.execution_options(**SNAPSHOT)
            async with connection.begin():
                return await work(connection)

    async def _repeat(self, once: Callable[[], Awaitable[T]], began: float) -> T:
        """Until it works, for as long as waiting can help; `began` is monotonic, seconds."""
        conflicts, pause = 0, FIRST_PAUSE_SECONDS
        while True:
            try:
                return await once()
            except Exception as error:
                trouble = trouble_of(error)
                if trouble is None:
                    raise
                conflicts += trouble == "conflict"
                waited = self.clock.monotonic() - began
                hopeless = (
                    trouble in ("full", "refused", "unmigrated") or conflicts >= MOST_CONFLICTS
                )
                if hopeless or waited > PATIENCE_SECONDS:
                    raise _given_up(trouble, error) from error
            await self.clock.sleep(pause * (0.5 + self.chance.fraction() / 2))
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


POSTGRESQL_NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
SNAPSHOT = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
"""All that one reader reads is of one moment, as it is on SQLite by itself."""

FULL = "The database cannot be written to: {error}. Make room on its disk, or make it writable."
UNAVAILABLE = "The database does not answer: {error}. Is it running, and is the address right?"
REFUSES = (
    "The database cannot be used: {error}. Is the address right, and is there a database of ours?"
)
UNMIGRATED = "The database has not our tables: {error}. Run journeykit migrate on it first."
BUSY = "The database is held by somebody else: {error}. Which other program is writing to it?"


def _given_up(trouble: Trouble, error: Exception) -> Unavailable:
    words = _words(error)
    if trouble == "full":
        return StorageFull(FULL.format(error=words))
    texts = {"busy": BUSY, "conflict": BUSY, "refused": REFUSES, "unmigrated": UNMIGRATED}
    return Unavailable(texts.get(trouble, UNAVAILABLE).format(error=words))


def _words(error: Exception) -> str:
    """The database's own words, without the statement and its values."""
    inner: BaseException = getattr(error, "orig", None) or error
    inner = inner.__cause__ or inner  # what the driver said before it was translated
    words = str(inner).strip().partition("\n")[0].partition(" (Background on")[0]
    return words.rstrip(".") or type(inner).__name__


CONFLICTS = ("40001", "40P01", "55P03", "0A000")
"""Serialization, deadlock, lock not available, and a plan made before the schema changed."""
GONE = ("57P01", "57P02", "57P03", "25P03", "57014", "53300")
"""Shut down, crashed, starting up, idle too long in a transaction, too slow, too many clients."""
FULL_STATES = ("53100", "25006")  # disk full, read-only
REFUSED = ("3D000", "28000", "28P01")  # no such database, no such user, wrong password


def trouble_of(error: BaseException) -> Trouble | None:
    """What kind of bad moment this is; None where the statement itself is wrong.

    Only what the driver says counts: SQLAlchemy's own text quotes the statement and its values.

    >>> trouble_of(ConnectionRefusedError()), trouble_of(ValueError())
    ('gone', None)
    """
    said = error.orig if isinstance(error, DBAPIError) else error
    found = _sqlite_trouble(str(said)) if isinstance(said, sqlite3.Error) else _state_trouble(said)
    if found is not None:
        return found
    if isinstance(error, NoFreeConnection):
        return "busy"
    lost = isinstance(error, DBAPIError) and error.connection_invalidated
    return "gone" if lost or isinstance(error, OSError) else None


def _sqlite_trouble(text: str) -> Trouble | None:
    troubles: dict[str, Trouble] = {
        "database is locked": "busy",
        "database table is locked": "busy",
        "database or disk is full": "full",
        "readonly database": "full",
        "disk I/O error": "gone",
        "unable to open database file": "refused",
        "file is not a database": "refused",
        "database disk image is malformed": "refused",
        "no such table": "unmigrated",
    }
    return next((trouble for words, trouble in troubles.items() if words in text), None)


def _state_trouble(said: BaseException | None) -> Trouble | None:
    """By the five letters of the SQL standard for what happened, which PostgreSQL sends along."""
    state = getattr(said, "sqlstate", None) or ""
    if state in CONFLICTS:
        return "conflict"
    if state in GONE or state.startswith("08"):
        return "gone"
    if state in FULL_STATES:
        return "full"
    if state == "42P01":  # no such table
        return "unmigrated"
    return "refused" if state in REFUSED else None


def read_url(text: str) -> URL:
    """The address with the driver that is used here.

    >>> read_url("postgres://localhost/app").drivername, read_url("sqlite:///a.db").drivername
    ('postgresql+asyncpg', 'sqlite+aiosqlite')
    """
    try:
        url = make_url(re.sub("^postgres://", "postgresql://", text))
    except (ArgumentError, ValueError):  # a port that is no number is a ValueError
        raise BadUrl(BAD_URL.format(shown=re.sub(r":[^:@/]*@", ":***@", text))) from None
    kind = url.get_backend_name()
    if kind not in ("sqlite", "postgresql"):
        raise BadUrl(BAD_URL.format(shown=url.render_as_string(hide_password=True)))
    if kind == "sqlite":
        if url.database in (None, "", ":memory:") or url.query.get("mode") == "memory":
            raise BadUrl(NO_FILE)
        return url.set(drivername="sqlite+aiosqlite")
    query = {"ssl" if name == "sslmode" else name: value for name, value in url.query.items()}
    return url.set(drivername="postgresql+asyncpg", query=query)


BAD_URL = (
    'The database address "{shown}" cannot be used. '
    "Write sqlite:///journeykit.db or postgresql://user:password@host/database."
)
NO_FILE = (
    "A journey has to outlive the process, so SQLite needs a file. Write sqlite:///journeykit.db."
)


def _engine(url: URL) -> AsyncEngine:
    if url.get_backend_name() == "sqlite":
        arguments: dict[str, Any] = {"timeout": SQLITE_BUSY_SECONDS}
    else:
        arguments = {"server_settings": POSTGRESQL_SETTINGS, "timeout": 10}
    engine = create_async_engine(
        url,
        connect_args=arguments,
        pool_size=POOL_SIZE,
        hide_parameters=True,  # an error is logged, and the values are people's
        json_serializer=lambda value: orjson.dumps(value).decode(),
        json_deserializer=orjson.loads,
    )
    if url.get_backend_name() == "sqlite":
        use_sqlite_well(engine)
    return engine


def use_sqlite_well(engine: AsyncEngine) -> None:
    """Write-ahead log, commits that survive a power cut, and our own BEGIN: the driver's would
    read first and lock later, so that of two writers one loses its work without an error."""

    @event.listens_for(engine.sync_engine, "connect")
    def on_connect(connection: Any, _: object) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        for name, value in SQLITE_PRAGMAS.items():
            cursor.execute(f"PRAGMA {name} = {value}")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def on_begin(connection: Any) -> None:
        begin = connection.get_execution_options().get("sqlite_begin", "BEGIN")
        connection.exec_driver_sql(begin)


SQLITE_PRAGMAS = {"journal_mode": "WAL", "synchronous": "FULL", "foreign_keys": "ON"}
