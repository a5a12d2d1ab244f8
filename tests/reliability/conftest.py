"""Whatever a test here does to a database, the laws hold in it afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from journeykit_server.clock import SeededChance
from journeykit_server.database import Database
from tests import postgres as throwaway
from tests.databases import open_database, postgresql_address, sqlite_address
from tests.reliability.crowd import make_schema
from tests.reliability.laws import broken


@pytest.fixture
async def database(database: Database) -> AsyncIterator[Database]:
    """As everywhere, and looked at in the end: counters, timers, journal and effects agree."""
    yield database
    assert await broken(database) == []


@pytest.fixture
async def other(database: Database, database_url: str) -> AsyncIterator[Database]:
    """What another process sees of the same database: connections, queues and tokens of its own."""
    opened = open_database(database_url, clock=database.clock, chance=SeededChance(2))
    yield opened
    await opened.close()


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file to be copied, made by the revisions: the command looks which one a database has."""
    path = tmp_path_factory.mktemp("migrated") / "journeykit.db"
    asyncio.run(make_schema(sqlite_address(path)))
    return path


@pytest.fixture(scope="session")
def postgresql_template(postgres: Path) -> str:
    throwaway.tell(postgres, "CREATE DATABASE journeykit_migrated")
    asyncio.run(make_schema(postgresql_address(postgres, "journeykit_migrated")))
    return "journeykit_migrated"
