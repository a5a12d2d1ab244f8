"""The schema of a database and its revisions: which it has, which it lacks, and bringing it here.

A change of the schema begins in tables.py. `draft` then writes the revision that leads there, to be
read and mended by hand: it sees no checks, no sequences and no collations.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection

from journeykit_server.database import Database

HOME = Path(__file__).parent / "migrations"
PLACES = [HOME / "versions"]
LOCK_NUMBER = 7_305_790_141  # of the advisory lock on PostgreSQL; any number nobody else takes
LONGEST_STATEMENT = "15min"  # a large table may be copied or indexed
LONGEST_WAIT = "15min"  # for another process that migrates, or a reader that holds a table


class WrongRevision(Exception):
    """The database is not of the revision that this journeykit works with."""


async def migrate(database: Database) -> list[str]:
    """Bring the database here in one transaction; the revisions applied, oldest first.

    Several processes may do this at once: the first does it, the others find nothing to do. A new
    SQLite file is for its owner alone: it will hold people. Raises `WrongRevision` where the
    database is newer than this journeykit.
    """
    if database.is_sqlite:
        _touch(database)

    async def work(connection: AsyncConnection) -> list[str]:
        if not database.is_sqlite:
            await _wait_for_turn(connection)
        return await connection.run_sync(_apply, shown(database))

    return await database.run(work)


def _touch(database: Database) -> None:
    """Make the file, unless it is there or its folder is not (which the first statement tells)."""
    with contextlib.suppress(OSError):
        Path(database.url.database or "").touch(mode=0o600)


async def pending(database: Database) -> list[str]:
    """The revisions that the database lacks, oldest first. Raises as `migrate` does."""
    address = shown(database)
    return await database.read(lambda connection: connection.run_sync(_lacking, address))


async def require_current(database: Database) -> None:
    """Raises `WrongRevision`, with what to do, unless the database is of the newest revision."""
    lacking = await pending(database)
    if lacking:
        has = await database.read(lambda connection: connection.run_sync(_revision))
        told = f'"{has}"' if has else "none"
        raise WrongRevision(OLDER.format(has=told, needs=lacking[-1], address=shown(database)))


OLDER = (
    'The database is of revision {has}, this journeykit needs "{needs}". '
    "Run: journeykit migrate --database-url {address}"
)
NEWER = (
    'The database {address} is of revision "{has}", this journeykit knows none after "{knows}": '
    "a newer one migrated it. Install that one here too."
)


def shown(database: Database) -> str:
    """The address as somebody types it, with the password hidden."""
    kind = database.url.get_backend_name()
    return database.url.set(drivername=kind).render_as_string(hide_password=True)


async def draft(database: Database, message: str, place: Path) -> Path:
    """Write the revision from a migrated database to tables.py into the folder `place`, which has
    to be one of `PLACES`; its file."""

    def work(connection: Connection) -> Path:
        config = _config(connection)
        script = command.revision(config, message, autogenerate=True, version_path=str(place))
        assert isinstance(script, Script)  # several come only from several heads
        return Path(script.path)

    return await database.read(lambda connection: connection.run_sync(work))


async def _wait_for_turn(connection: AsyncConnection) -> None:
    await connection.exec_driver_sql(f"SET LOCAL statement_timeout = '{LONGEST_STATEMENT}'")
    await connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LONGEST_WAIT}'")
    await connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK_NUMBER})")


def _apply(connection: Connection, address: str) -> list[str]:
    lacking = _lacking(connection, address)
    if lacking:
        command.upgrade(_config(connection), "head")
    return lacking


def _lacking(connection: Connection, address: str) -> list[str]:
    scripts = ScriptDirectory.from_config(_config(connection))
    known = [script.revision for script in scripts.walk_revisions()][::-1]
    has = _revision(connection)
    if has is None:
        return known
    if has not in known:
        raise WrongRevision(NEWER.format(address=address, has=has, knows=known[-1]))
    return known[known.index(has) + 1 :]


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _config(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", _plain(HOME))
    config.set_main_option("path_separator", "newline")
    config.set_main_option("version_locations", "\n".join(map(_plain, PLACES)))
    config.attributes["connection"] = connection
    return config


def _plain(path: Path) -> str:
    """A path as the configuration takes it, where % begins a reference."""
    return str(path).replace("%", "%%")
