"""The real SQLite without its threads: a call runs where it is made, some virtual time later.

aiosqlite gives each connection a thread and a queue of calls. Here the queue runs the calls itself
on the simulation's loop, in their order, so that nothing depends on the machine; the product does
not notice. Before and after a call the `Faults` may strike.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

import aiosqlite
import orjson
from sqlalchemy import create_engine, event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from journeykit_server.database import use_sqlite_well
from journeykit_server.tables import metadata
from tests.sim.loop import SimLoop

MEMORY = Path("/dev/shm")  # files that cost no disk, where there is such a place
SLOWER = 100  # times, when the database is slow
DELAYS = (0.0, 0.0, 0.001, 0.01)  # seconds that a call takes

Call = Callable[[], Any]
CALLS = ("connect", "begin", "read", "write", "commit", "rollback", "close")
"""What a fault can strike at; everything else (making cursors, fetching) is no call to speak of."""


class Faults(Protocol):
    """Who decides what goes wrong; `struck` may also kill the process."""

    def before(self, process: str, call: str) -> str:
        """What happens in the place of the call: "" (nothing, do it), "killed", or a fault."""

    def after(self, process: str, call: str) -> str:
        """What happens between the call and its answer."""


class Gone(Exception):
    """The process was killed in the middle of a call."""


class Connection(sqlite3.Connection):
    """One that knows its cursors: an open one keeps its lock when the connection is closed."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.cursors: WeakSet[sqlite3.Cursor] = WeakSet()
        self.is_lost = False

    def cursor(self, *arguments: Any, **options: Any) -> Any:
        cursor = super().cursor(*arguments, **options)
        self.cursors.add(cursor)
        return cursor

    def drop(self) -> None:
        """Close it as the end of its process would: what was not committed is not there."""
        if self.is_lost:
            return
        self.is_lost = True
        self.close_cursors()
        with suppress(sqlite3.ProgrammingError):  # the process itself had closed it
            self.rollback()
        self.close()

    def close_cursors(self) -> None:
        with suppress(sqlite3.ProgrammingError):
            for cursor in list(self.cursors):
                cursor.close()


class _AsyncConnection(aiosqlite.Connection):
    """Without a thread, and silent when a killed process leaves it behind."""

    def __del__(self) -> None:
        self._connection = None


class _NoThread:
    daemon = True

    def start(self) -> None:
        """The calls are run by `_Queue`."""


class Storage:
    """One database file and every connection to it, by process."""

    def __init__(self, path: Path, loop: SimLoop, seed: str) -> None:
        self.path = path
        self.loop = loop
        self.random = random.Random(seed)
        self.faults: Faults | None = None
        self.slow_until = 0.0
        self.opened: dict[str, list[Connection]] = {}
        self.calls = 0
        self.told: list[Callable[[str], None]] = []
        """Called with the process after each commit."""

    def engine(self, process: str, context: Context) -> AsyncEngine:
        """An engine for `Database(url, engine=…)` whose calls belong to this process."""
        engine = create_async_engine(
            "sqlite+aiosqlite:///" + str(self.path),
            async_creator=lambda *_, **__: self._connection(process, context),
            pool_size=5,
            json_serializer=lambda value: orjson.dumps(value).decode(),
            json_deserializer=orjson.loads,
        )
        use_sqlite_well(engine)
        event.listen(engine.sync_engine, "connect", _need_no_disk)
        return engine

    def raw(self) -> sqlite3.Connection:
        """A connection of the referee's own, on which nothing ever fails."""
        connection = sqlite3.connect(self.path, timeout=0, isolation_level=None)
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    def drop(self, process: str) -> None:
        """Close what a process had open."""
        for connection in self.opened.pop(process, []):
            connection.drop()

    def close(self) -> None:
        for process in list(self.opened):
            self.drop(process)

    def _connection(self, process: str, context: Context) -> aiosqlite.Connection:
        def connect() -> sqlite3.Connection:
            connection = sqlite3.connect(
                self.path, timeout=0, check_same_thread=False, factory=Connection
            )
            self.opened.setdefault(process, []).append(connection)
            return connection

        made = _AsyncConnection(connect, 64)
        made._thread = _NoThread()  # type: ignore[assignment]
        made._tx = _Queue(self, process, context)  # type: ignore[assignment]
        return made


class _Asked(NamedTuple):
    future: asyncio.Future[Any] | None
    function: Call
    name: str


class _Queue:
    """The calls of one connection, one after the other."""

    def __init__(self, storage: Storage, process: str, context: Context) -> None:
        self.storage, self.process, self.context = storage, process, context
        self.asked: deque[_Asked] = deque()

    def put_nowait(self, item: tuple[asyncio.Future[Any] | None, Call]) -> None:
        asked = _Asked(*item, _name(item[1]))
        if not self.asked and not asked.name:
            self._do(asked)
            return
        self.asked.append(asked)
        if len(self.asked) == 1:
            self._later()

    def _later(self) -> None:
        storage = self.storage
        delay = storage.random.choice(DELAYS)
        if storage.loop.time() < storage.slow_until:
            delay = SLOWER * (delay + 0.001)
        storage.loop.call_later(delay, self._next, context=self.context)

    def _next(self) -> None:
        with suppress(Gone):
            self._do(self.asked[0])
            self.asked.popleft()
            if self.asked:
                self._later()

    def _do(self, asked: _Asked) -> None:
        future = asked.future
        try:
            result = self._result(asked)
        except Gone:
            raise
        except BaseException as error:
            if future and not future.done():
                future.set_exception(error)
        else:
            if future and not future.done():
                future.set_result(result)

    def _result(self, asked: _Asked) -> Any:
        storage, name = self.storage, asked.name
        if not name:
            return asked.function()
        storage.calls += 1
        if storage.faults is None:
            return self._called(asked)
        self._strike(storage.faults.before(self.process, name), asked)
        result = self._called(asked)
        self._strike(storage.faults.after(self.process, name), asked)
        return result

    def _called(self, asked: _Asked) -> Any:
        connection = _connection_of(asked.function)
        if connection is not None and connection.is_lost and asked.name != "close":
            raise sqlite3.OperationalError(ERRORS["drop"])
        if asked.name == "close" and connection is not None:
            # An open cursor would keep the transaction open until the collector finds it, which in
            # here never comes.
            connection.close_cursors()
        result = asked.function()
        if asked.name == "commit":
            for tell in self.storage.told:
                tell(self.process)
        return result

    def _strike(self, fault: str, asked: _Asked) -> None:
        if fault == "killed":
            raise Gone
        if fault == "drop":
            connection = _connection_of(asked.function)
            if connection is not None:
                connection.drop()
        if fault:
            raise sqlite3.OperationalError(ERRORS[fault])


ERRORS = {
    "busy": "database is locked",
    "io_error": "disk I/O error",
    "error_before_commit": "disk I/O error",
    "lost_ack": "disk I/O error",
    "disk_full": "database or disk is full",
    "drop": "no active connection",
}
"""The words of SQLite (and of its driver) for each."""

_WRITES = ("INSERT", "UPDATE", "DELETE")


def _name(function: Call) -> str:
    """What kind of call this is, "" for what takes no time and cannot fail."""
    if not isinstance(function, partial):
        return "connect" if function.__name__ == "connect" else ""
    inner = function.func.__name__
    if inner in ("execute", "executemany"):
        sql: str = function.args[0]
        word = sql[:6].upper()
        if word == "BEGIN " or word == "BEGIN":
            return "begin"
        if word == "PRAGMA":
            return ""
        return "write" if word in _WRITES else "read"
    connection = _connection_of(function)
    if connection is None or isinstance(_owner(function), sqlite3.Cursor):
        return ""
    if inner == "rollback" and not connection.is_lost and not connection.in_transaction:
        return ""  # nothing to do: the pool makes sure
    return inner if inner in CALLS else ""


def _connection_of(function: Call) -> Connection | None:
    """The connection that a call is made on."""
    owner = _owner(function)
    found = owner.connection if isinstance(owner, sqlite3.Cursor) else owner
    return found if isinstance(found, Connection) else None


def _owner(function: Call) -> object:
    """The connection or the cursor whose method this is."""
    return getattr(function.func, "__self__", None) if isinstance(function, partial) else None


def _need_no_disk(connection: Any, _: object) -> None:
    """No power is cut here: the processes die, the machine goes on."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous = OFF")
    cursor.close()


@contextmanager
def templates(furnish: Callable[[Path], object]) -> Iterator[Callable[[str], Path]]:
    """A maker of databases by name, each a fresh copy of one that was made once: the schema, and
    what `furnish` put into it."""
    place = MEMORY if MEMORY.is_dir() else None
    with TemporaryDirectory(prefix="journeykit-sim-", dir=place) as folder:
        template = Path(folder) / "template.db"
        engine = create_engine(f"sqlite:///{template}")
        metadata.create_all(engine)
        engine.dispose()
        furnish(template)
        yield partial(_copied, template)


def _copied(template: Path, name: str) -> Path:
    for tail in ("", "-wal", "-shm"):
        template.with_name(f"{name}.db{tail}").unlink(missing_ok=True)
    return Path(shutil.copyfile(template, template.with_name(f"{name}.db")))
