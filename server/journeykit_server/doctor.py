"""What keeps people from moving, and what to do about it: looked for, never mended."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import Instant

from journeykit_engine.zone import tz_release
from journeykit_server.clock import instant, microseconds
from journeykit_server.database import POSTGRESQL_NOW, Database, Unavailable
from journeykit_server.holder import Holder
from journeykit_server.migrate import WrongRevision, pending, shown
from journeykit_server.rows import MINUTE
from journeykit_server.tables import dead_letters, outbox, timers

Level = Literal["ok", "warn", "bad"]

OLDEST_SQLITE = (3, 35)  # the first with RETURNING
OLDEST_POSTGRESQL = 130_000  # 13: older ones get no security fixes
SKEW_SECONDS = 5.0  # of this machine's clock against the database's
LATE_SECONDS = 60.0  # a due timer, an effect: the workers do not keep up
VERY_LATE_SECONDS = 600.0  # nobody works
OTHERS_MAY = 0o007  # what a file's mode allows to every user of the machine


class Finding(NamedTuple):
    """One thing that was looked at; `fix` says what to do unless it is ok."""

    level: Level
    what: str
    fix: str = ""


async def examine(database: Database) -> list[Finding]:
    """Everything that can be looked at from here; never raises for what is wrong there."""
    machine = [_zones(), _graphviz()]
    missing = _file_missing(database)
    if missing is not None:
        return [missing, *machine]
    try:
        reached = await _reach(database)
    except Unavailable as trouble:
        return [Finding("bad", str(trouble), f"Look at the database {shown(database)}"), *machine]
    schema = await _schema(database)
    found = [*reached, schema, await _clock(database), *machine]
    if database.is_sqlite:
        found.append(_holder(database))
    if schema.level == "ok":
        found += [await database.read(_reading(database, look)) for look in LOOKS]
    return found


def _file_missing(database: Database) -> Finding | None:
    path = Path(database.url.database or "")
    if not database.is_sqlite or path.exists():
        return None
    if not path.absolute().parent.is_dir():
        return Finding("bad", f'There is no folder "{path.parent}".', f'mkdir -p "{path.parent}"')
    return Finding(
        "warn",
        f'There is no file "{path}" yet.',
        f"The first worker makes it: journeykit worker --database-url {shown(database)}",
    )


async def _reach(database: Database) -> list[Finding]:
    """Raises `Unavailable` where it does not answer or cannot be written to."""
    if database.is_sqlite:
        return await _reach_sqlite(database)

    async def ask(connection: AsyncConnection) -> tuple[str, int]:
        name = await connection.exec_driver_sql("SHOW server_version")
        number = await connection.exec_driver_sql("SHOW server_version_num")
        return name.scalar_one(), int(number.scalar_one())

    name, number = await database.run(ask)
    what = f"PostgreSQL {name} answers and can be written to."
    if number < OLDEST_POSTGRESQL:
        return [Finding("warn", what, "It is old: upgrade to a PostgreSQL that is maintained.")]
    return [Finding("ok", what)]


async def _reach_sqlite(database: Database) -> list[Finding]:
    async def ask(connection: AsyncConnection) -> str:
        told = await connection.exec_driver_sql("PRAGMA journal_mode")
        mode: str = told.scalar_one()
        return mode

    mode = await database.run(ask)
    found = [_library(sqlite3.sqlite_version_info), _log_mode(mode)]
    return [*found, _file_mode(Path(database.url.database or ""))]


def _library(version: tuple[int, ...]) -> Finding:
    told = f"SQLite {'.'.join(map(str, version))}"
    if version < OLDEST_SQLITE:
        needed = ".".join(map(str, OLDEST_SQLITE))
        return Finding("bad", f"{told} is too old.", f"Use a Python with SQLite {needed} or newer.")
    return Finding("ok", f"{told} answers and can be written to.")


def _log_mode(mode: str) -> Finding:
    if mode == "wal":
        return Finding("ok", "The file has a write-ahead log.")
    fix = "Put the file on a local disk: a network's file system cannot share a write-ahead log."
    return Finding("warn", f'The file has no write-ahead log but "{mode}".', fix)


def _file_mode(path: Path) -> Finding:
    mode = path.stat().st_mode & 0o777
    if mode & OTHERS_MAY:
        return Finding(
            "warn",
            f'Every user of this machine can open "{path}" (mode {mode:o}).',
            f'It holds people: chmod 600 "{path}"',
        )
    return Finding("ok", f'"{path}" is closed to other users (mode {mode:o}).')


async def _schema(database: Database) -> Finding:
    fix = f"journeykit migrate --database-url {shown(database)}"
    try:
        lacking = await pending(database)
    except WrongRevision as wrong:
        return Finding(
            "bad", str(wrong), "Install the journeykit that migrated it, or a newer one."
        )
    if not lacking:
        return Finding("ok", "The schema is current.")
    told = ", ".join(f'"{revision}"' for revision in lacking)
    return Finding("bad", f"The schema lacks {told}.", fix)


async def _clock(database: Database) -> Finding:
    if database.is_sqlite:
        return Finding("ok", "The clock is this machine's.")

    async def ask(connection: AsyncConnection) -> int:
        told = await connection.exec_driver_sql(POSTGRESQL_NOW)
        at: int = told.scalar_one()
        return at

    at = await database.read(ask)
    skew = (microseconds(database.clock.now()) - at) / 1_000_000
    if abs(skew) > SKEW_SECONDS:
        way = "ahead of" if skew > 0 else "behind"
        return Finding(
            "warn",
            f"This machine's clock is {abs(skew):,.0f} s {way} the database's.",
            "People move by the database's clock. Let both machines keep time (chrony, ntpd).",
        )
    return Finding("ok", "The clocks of this machine and the database agree.")


def _zones() -> Finding:
    try:
        Instant.from_utc(2026, 7, 1).to_tz("Asia/Tehran")
    except Exception as error:  # whatever a broken installation raises
        return Finding(
            "bad", f"Zone data cannot be read: {error}", "pip install --force-reinstall tzdata"
        )
    return Finding("ok", f"Zone data are of release {tz_release()}.")


def _graphviz() -> Finding:
    if shutil.which("dot"):
        return Finding("ok", 'Journeys are drawn by "dot".')
    if find_spec("pygraphviz"):
        return Finding("ok", 'Journeys are drawn by "pygraphviz".')
    return Finding("warn", "Nothing here can draw a journey.", "pip install pygraphviz")


def _holder(database: Database) -> Finding:
    path = Path(database.url.database or "")
    pid = Holder(path).pid()
    if pid is None:
        fix = f"journeykit worker --database-url {shown(database)}"
        return Finding("warn", f'No worker works on "{path}": nobody moves.', fix)
    return Finding("ok", f'Process {pid} works on "{path}".')


# --- what lies in the tables


async def _due_timers(connection: AsyncConnection, now: Instant) -> Finding:
    minute = microseconds(now) // MINUTE
    due = select(func.min(timers.c.try_at)).where(timers.c.bucket <= minute)
    oldest = (await connection.execute(due)).scalar_one()
    late = _seconds_since(oldest, now)
    return _lateness("The oldest due timer", "No timer is late.", late)


async def _outbox(connection: AsyncConnection, now: Instant) -> Finding:
    asked = select(func.count(), func.min(outbox.c.try_at))
    depth, oldest = (await connection.execute(asked)).one()
    late = _seconds_since(oldest, now)
    told = f"The outbox has {depth:,} effects; the oldest"
    return _lateness(told, f"The outbox has {depth:,} effects, none of them late.", late)


async def _letters(connection: AsyncConnection, now: Instant) -> Finding:
    many = (await connection.execute(select(func.count()).select_from(dead_letters))).scalar_one()
    if many:
        fix = "Read their reasons in the table dead_letters; then retry or skip them."
        return Finding("warn", f"Dead letters: {many:,}.", fix)
    return Finding("ok", "There are no dead letters.")


Look = Callable[[AsyncConnection, Instant], Awaitable[Finding]]
LOOKS: tuple[Look, ...] = (_due_timers, _outbox, _letters)


def _reading(database: Database, look: Look) -> Callable[[AsyncConnection], Awaitable[Finding]]:
    async def read(connection: AsyncConnection) -> Finding:
        return await look(connection, await database.now(connection))

    return read


def _seconds_since(moment: int | None, now: Instant) -> float:
    return 0.0 if moment is None else (now - instant(moment)).total("seconds")


def _lateness(told: str, else_told: str, late: float) -> Finding:
    if late < LATE_SECONDS:
        return Finding("ok", else_told)
    what = f"{told} is {late:,.0f} s late."
    if late < VERY_LATE_SECONDS:
        return Finding("warn", what, "The workers do not keep up; on PostgreSQL start another.")
    return Finding("bad", what, "Nobody works: start a worker, or read what the running one logs.")
