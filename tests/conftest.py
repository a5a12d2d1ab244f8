"""What every test stands on: how long Hypothesis looks, the cases that were worked out by hand, and
an empty database of either kind.

The machine that runs the tests may be slow and shared, so nothing here is judged by the clock. What
only the server's tests need is imported when the first of them asks for it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncIterator, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests import postgres as throwaway

if TYPE_CHECKING:
    from journeykit_server.database import Database

CASES = Path(__file__).parent / "data" / "cases.json"

settings.register_profile(
    "default", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
# The same examples on every run: a build that fails must fail again when somebody looks.
settings.register_profile(
    "ci", parent=settings.get_profile("default"), derandomize=True, database=None
)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(scope="session")
def cases() -> Mapping[str, dict[str, Any]]:
    """Every case by its id; times are ISO 8601 text, a key ending in ``_utc`` an instant."""
    return {case["id"]: case for case in json.loads(CASES.read_text("utf-8"))}


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """An empty database at `database_url`, at 10:00 UTC on 1 June 2026 until the test moves its
    clock, with chance that draws the same on every run."""
    from tests.databases import open_database

    opened = open_database(database_url)
    yield opened
    await opened.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """The address of an empty database with the schema, on SQLite and again on PostgreSQL."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    from tests.databases import sqlite_address

    return sqlite_address(shutil.copyfile(sqlite_template, tmp_path / "journeykit.db"))


@pytest.fixture
def postgresql_url(postgres: Path, postgresql_template: str) -> Iterator[str]:
    from tests.databases import postgresql_address

    name = f"test_{next(NUMBERS)}"
    copied = f"TEMPLATE {postgresql_template} STRATEGY file_copy"
    throwaway.tell(postgres, f"CREATE DATABASE {name} {copied}")
    yield postgresql_address(postgres, name)
    throwaway.tell(postgres, f"DROP DATABASE {name} WITH (FORCE)")


NUMBERS = count(1)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.databases import make_sqlite_template

    return make_sqlite_template(tmp_path_factory.mktemp("template") / "journeykit.db")


@pytest.fixture(scope="session")
def postgresql_template(postgres: Path) -> str:
    from tests.databases import make_postgresql_template

    return make_postgresql_template(postgres)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Path]:
    """The socket's folder of a real server, one for the whole run. A build must have the binaries;
    a visitor's machine is told what it misses."""
    try:
        throwaway.find_binaries()
    except throwaway.NoPostgres as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"NOT TESTED ON POSTGRESQL: {missing}")
    with throwaway.server() as folder:
        yield folder
