"""What can go wrong between a process and its database, done on purpose and at a chosen moment.

Nothing of the product is replaced: faults strike where SQLAlchemy lets anybody listen, at the
driver's commit, and between two of the product's own transactions.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar
from unittest import mock

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.util import await_only
from whenever import Instant, TimeDelta

from journeykit_server.clock import Clock, SeededChance, VirtualClock
from journeykit_server.database import Database
from journeykit_server.runtime import Runtime
from journeykit_server.work import Work

T = TypeVar("T")


class Crash(BaseException):
    """The process died here: nobody tidies up, nobody tries again, nothing catches it."""


class Calls:
    """What a process asked its database: statements and commits, in their order."""

    def __init__(self) -> None:
        self.made: list[str] = []


@contextmanager
def strike(
    database: Database, fault: BaseException, *, at: int = 0, word: str = ""
) -> Iterator[Calls]:
    """The call number `at`, or the first statement that has this word, raises `fault` instead of
    being made. A commit is a call too: the last moment before it."""
    calls = Calls()
    struck: list[str] = []

    def called(statement: str) -> None:
        calls.made.append(statement)
        if len(calls.made) == at or (word and word in statement and not struck):
            struck.append(statement)
            raise fault

    def on_statement(
        _: Any, cursor: Any, statement: str, values: Any, context: Any, many: bool
    ) -> None:
        called(statement)

    def on_commit(_: Any) -> None:
        called("COMMIT")

    engine = database.engine.sync_engine
    event.listen(engine, "before_cursor_execute", on_statement)
    event.listen(engine, "commit", on_commit)
    try:
        yield calls
    finally:
        event.remove(engine, "before_cursor_execute", on_statement)
        event.remove(engine, "commit", on_commit)


def crash(database: Database, *, at: int = 0, word: str = "") -> AbstractContextManager[Calls]:
    """The process dies at this call, see `strike`."""
    return strike(database, Crash(), at=at, word=word)


@contextmanager
def lost_answer(database: Database, commit: int) -> Iterator[list[int]]:
    """The commit of this number is done, and the process never learns of it. Yields the numbers of
    the commits that were asked for."""
    dialect = database.engine.sync_engine.dialect
    really, asked = dialect.do_commit, list[int]()

    def do_commit(connection: Any) -> None:
        really(connection)
        asked.append(len(asked) + 1)
        if len(asked) == commit:
            raise _silence(database)

    with mock.patch.object(dialect, "do_commit", do_commit):
        yield asked


def _silence(database: Database) -> Exception:
    """What a driver says when the other side is gone."""
    if database.is_sqlite:
        return sqlite3.OperationalError("disk I/O error")
    return ConnectionResetError("Connection reset by peer")


@contextmanager
def ended_at_commit(database: Database, killer: Database, commit: int) -> Iterator[None]:
    """PostgreSQL ends the session while it is asked for the commit of this number: whether the
    commit or the end comes first is up to the two of them."""
    dialect = database.engine.sync_engine.dialect
    really, asked = dialect.do_commit, list[int]()

    def do_commit(connection: Any) -> None:
        asked.append(1)
        if len(asked) == commit:
            await_only(_race(connection, killer))
        really(connection)

    with mock.patch.object(dialect, "do_commit", do_commit):
        yield


async def _race(connection: Any, killer: Database) -> None:
    """Let the end be on its way when the commit sets off."""
    pid = connection.driver_connection.get_server_pid()
    ending = asyncio.ensure_future(killer.read(_end(pid)))
    RACING.append(ending)
    await asyncio.sleep(0.002 * (len(RACING) % 3))


def _end(pid: int) -> Callable[[AsyncConnection], Awaitable[object]]:
    return lambda connection: connection.exec_driver_sql(f"SELECT pg_terminate_backend({pid})")


RACING: list[asyncio.Future[object]] = []


class Interrupted(Runtime):
    """A process in which something happens between its claim of timers and their walk."""

    meanwhile: Callable[[], Awaitable[object]] | None = None

    async def unit(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        if self.meanwhile is not None:
            happens, self.meanwhile = self.meanwhile, None
            await happens()
        return await super().unit(work)


class Held:
    """A transaction that has written everything and stands before its commit."""

    def __init__(self) -> None:
        self.stands = asyncio.Event()
        self.go_on = asyncio.Event()
        self.used = False


@contextmanager
def hold_before_commit() -> Iterator[Held]:
    """The next unit of work stands before its commit until it is told to go on."""
    held, save = Held(), Work.save

    async def save_and_stand(work: Work, connection: AsyncConnection) -> None:
        await save(work, connection)
        if not held.used:
            held.used = True
            held.stands.set()
            await held.go_on.wait()

    with mock.patch.object(Work, "save", save_and_stand):
        try:
            yield held
        finally:
            held.go_on.set()


class CancelledAt:
    """Awaits a coroutine; its task is cancelled at the pause of this number. `pauses` counts."""

    def __init__(self, work: Awaitable[T], number: int) -> None:
        self.work = work
        self.number = number
        self.pauses = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        inner: Any = self.work.__await__()
        error: BaseException | None = None
        while True:
            try:
                paused = inner.send(None) if error is None else inner.throw(error)
            except StopIteration as done:
                return done.value
            error = None
            self.pauses += 1
            if self.pauses == self.number:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                yield paused
            except BaseException as raised:  # the cancellation goes to where the work stands
                error = raised


async def cancelled_at(work: Awaitable[T], number: int) -> T:
    result: T = await CancelledAt(work, number)
    return result


class Half(SeededChance):
    """Every wait is half of the longest, so that it can be told."""

    def fraction(self) -> float:
        return 0.5


class Skewed(Clock):
    """The clock of a machine that is wrong by so much."""

    def __init__(self, by: TimeDelta) -> None:
        self.by = by

    def now(self) -> Instant:
        return super().now() + self.by


class LetsGo(VirtualClock):
    """A clock on which the first sleep ends what stands in the way."""

    def __init__(self, start: Instant, let_go: Callable[[], object]) -> None:
        super().__init__(start)
        self.let_go = let_go
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) == 1:
            self.let_go()
        await super().sleep(seconds)
