"""Databases for one test each: copies of an empty schema, and a `Database` on one of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from sqlalchemy import event
from whenever import Instant

from journeykit_server.clock import SeededChance, VirtualClock
from journeykit_server.database import Database
from journeykit_server.tables import metadata
from tests import postgres

START = Instant("2026-06-01T10:00:00Z")
TEMPLATE = "journeykit_template"


def open_database(url: str, **given: Any) -> Database:
    """The database at `url` on a clock that stands at `START`, with the chance of seed 1; `given`
    goes to `Database` before these. SQLite does not wait for the disk."""
    database = Database(url, **{"clock": VirtualClock(START), "chance": SeededChance(1), **given})
    if database.is_sqlite:
        event.listen(database.engine.sync_engine, "connect", _do_not_wait_for_the_disk)
    return database


def _do_not_wait_for_the_disk(connection: Any, _: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous = OFF")
    cursor.close()


def sqlite_address(path: Path) -> str:
    return f"sqlite:///{path}"


def postgresql_address(folder: Path, name: str) -> str:
    """The address of a database on the server whose socket is in `folder`."""
    return f"postgresql://postgres@/{name}?host={folder}"


def make_sqlite_template(path: Path) -> Path:
    """A file with the empty schema, to be copied."""
    asyncio.run(_make_schema(sqlite_address(path)))
    return path


def make_postgresql_template(folder: Path) -> str:
    """The name of a database with the empty schema, to be copied; nobody may stay connected."""
    postgres.tell(folder, f"CREATE DATABASE {TEMPLATE}")
    asyncio.run(_make_schema(postgresql_address(folder, TEMPLATE)))
    return TEMPLATE


async def _make_schema(url: str) -> None:
    database = open_database(url)
    await database.run(lambda connection: connection.run_sync(metadata.create_all))
    await database.close()
