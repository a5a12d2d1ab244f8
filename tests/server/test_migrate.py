"""The revisions lead to exactly what tables.py says, on both databases, and lose nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, select
from sqlalchemy.exc import IntegrityError

from journeykit_server import migrate as migrating
from journeykit_server.database import Database
from journeykit_server.migrate import WrongRevision, draft, migrate, pending, require_current
from journeykit_server.tables import counters, metadata, outbox
from tests import postgres as throwaway
from tests.databases import open_database, postgresql_address, sqlite_address

NUMBERS = count(1)
SECOND = """
from alembic import op
import sqlalchemy as sa

revision, down_revision = "0003", "0002"

def upgrade():
    with op.batch_alter_table("counters") as table:
        table.add_column(sa.Column("step", sa.BigInteger, nullable=False, server_default="1"))
"""
ON_SQLITE = "SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'alembic%' ORDER BY name"
ON_POSTGRESQL = (
    "SELECT table_name, column_name, data_type, collation_name, is_nullable, column_default "
    "FROM information_schema.columns WHERE table_schema = 'public' ORDER BY 1, ordinal_position",
    "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint "
    "WHERE connamespace = 'public'::regnamespace ORDER BY 1, 2",
    "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1",
    "SELECT sequencename, start_value, increment_by, cache_size FROM pg_sequences ORDER BY 1",
)


@pytest.fixture(params=["sqlite", "postgresql"])
def bare_url(request: pytest.FixtureRequest) -> str:
    """The address of a database with nothing in it."""
    url: str = request.getfixturevalue(f"bare_{request.param}_url")
    return url


@pytest.fixture
def bare_sqlite_url(tmp_path: Path) -> str:
    return sqlite_address(tmp_path / "bare.db")


@pytest.fixture
def bare_postgresql_url(postgres: Path) -> Iterator[str]:
    name = f"bare_{next(NUMBERS)}"
    throwaway.tell(postgres, f"CREATE DATABASE {name}")
    yield postgresql_address(postgres, name)
    throwaway.tell(postgres, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
async def bare(bare_url: str) -> AsyncIterator[Database]:
    opened = open_database(bare_url)
    yield opened
    await opened.close()


@pytest.fixture
def told_url(bare_url: str, request: pytest.FixtureRequest) -> str:
    """The address of a database of the same kind, made from tables.py."""
    url: str = request.getfixturevalue(f"{bare_url.split(':')[0]}_url")
    return url


@pytest.fixture
def with_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a revision after the first, as a later journeykit would have it."""
    folder = tmp_path / "later"
    folder.mkdir()
    (folder / "0003_third.py").write_text(SECOND)
    monkeypatch.setattr(migrating, "PLACES", [*migrating.PLACES, folder])
    return folder


async def test_an_empty_database_lacks_every_revision_and_a_migrated_one_none(
    bare: Database,
) -> None:
    assert await pending(bare) == ["0001", "0002"]
    assert await migrate(bare) == ["0001", "0002"]
    assert await pending(bare) == []
    await require_current(bare)


async def test_migrating_twice_does_nothing_the_second_time(bare: Database) -> None:
    await migrate(bare)
    before = await schema(bare)

    assert await migrate(bare) == []
    assert await schema(bare) == before


async def test_of_two_who_migrate_at_once_one_does_it(bare: Database, bare_url: str) -> None:
    other = open_database(bare_url)

    applied = await asyncio.gather(migrate(bare), migrate(other))
    await other.close()

    assert sorted(applied) == [[], ["0001", "0002"]]


async def test_the_revisions_lead_to_what_the_tables_say(bare: Database, told_url: str) -> None:
    """Compared as each database tells its own schema: columns, collations, checks, indexes."""
    told = open_database(told_url)

    await migrate(bare)
    by_revisions, by_tables = await schema(bare), await schema(told)
    await told.close()

    assert by_revisions == by_tables
    assert "counters" in str(by_tables)


async def test_a_comparison_finds_nothing_to_draft(bare: Database) -> None:
    await migrate(bare)

    def differences(connection: Connection) -> list[Any]:
        found: list[Any] = compare_metadata(MigrationContext.configure(connection), metadata)
        return found

    assert await bare.read(lambda connection: connection.run_sync(differences)) == []


async def test_a_drafted_revision_can_be_run(
    bare: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As somebody changes the schema: a table that the metadata has and the database has not."""
    await migrate(bare)
    await bare.run(lambda connection: connection.exec_driver_sql("DROP TABLE profiles"))
    monkeypatch.setattr(migrating, "PLACES", [*migrating.PLACES, tmp_path])

    written = await draft(bare, "bring the people back", tmp_path)

    assert await migrate(bare) == [written.name.split("_")[0]]
    await bare.read(lambda connection: connection.execute(select(metadata.tables["profiles"])))


async def test_rows_outlive_an_upgrade(bare: Database, request: pytest.FixtureRequest) -> None:
    await migrate(bare)
    await bare.run(
        lambda connection: connection.execute(
            counters.insert(), [{"tenant_id": 1, "name": "journeys", "value": 41}]
        )
    )
    request.getfixturevalue("with_second")

    assert await pending(bare) == ["0003"]
    assert await migrate(bare) == ["0003"]
    assert await rows(bare, "SELECT tenant_id, name, value, step FROM counters") == [
        (1, "journeys", 41, 1)
    ]


async def test_an_upgrade_that_fails_leaves_the_database_as_it_was(
    bare: Database, with_second: Path
) -> None:
    (with_second / "0003_third.py").write_text(SECOND + "    raise RuntimeError('half way')\n")

    with pytest.raises(RuntimeError, match="half way"):
        await migrate(bare)

    assert await pending(bare) == ["0001", "0002", "0003"]
    assert not any(await schema(bare))


async def test_a_database_that_is_behind_is_refused_with_what_to_do(
    bare_sqlite_url: str, request: pytest.FixtureRequest
) -> None:
    database = open_database(bare_sqlite_url)

    with pytest.raises(WrongRevision) as never:
        await require_current(database)
    await migrate(database)
    request.getfixturevalue("with_second")
    with pytest.raises(WrongRevision) as behind:
        await require_current(database)
    await database.close()

    assert str(never.value) == (
        'The database is of revision none, this journeykit needs "0002". '
        f"Run: journeykit migrate --database-url {bare_sqlite_url}"
    )
    assert str(behind.value) == (
        'The database is of revision "0002", this journeykit needs "0003". '
        f"Run: journeykit migrate --database-url {bare_sqlite_url}"
    )


async def test_a_database_that_is_ahead_is_refused(bare: Database, bare_url: str) -> None:
    await migrate(bare)
    ahead = "UPDATE alembic_version SET version_num = '0007'"
    await bare.run(lambda connection: connection.exec_driver_sql(ahead))

    for ask in (migrate, pending, require_current):
        with pytest.raises(WrongRevision) as refused:
            await ask(bare)
        assert str(refused.value) == (
            f'The database {migrating.shown(bare)} is of revision "0007", this journeykit knows '
            'none after "0002": a newer one migrated it. Install that one here too.'
        )


def test_an_address_is_shown_without_its_password() -> None:
    database = Database("postgres://sara:secret@db.example/app")

    assert migrating.shown(database) == "postgresql://sara:***@db.example/app"


async def test_the_checks_hold_in_a_migrated_database(bare: Database) -> None:
    await migrate(bare)
    holdout = {column.name: 0 for column in outbox.columns} | {
        "message_id": "m",
        "user_id": "sara",
        "node_id": "s",
        "kind": "send",
        "payload": "{}",
        "last_error": "",
        "lease_token": None,
        "failed_at": None,
        "is_holdout": True,
    }

    with pytest.raises(IntegrityError, match="ck_outbox_nothing_for_a_holdout"):
        await bare.run(lambda connection: connection.execute(outbox.insert(), [holdout]))


async def schema(database: Database) -> list[list[tuple[Any, ...]]]:
    """What the database says of itself, the table of revisions left out."""
    if database.is_sqlite:
        told = await rows(database, ON_SQLITE)
        return [[(name, _parts(sql)) for name, sql in told if sql]]
    found = [await rows(database, query) for query in ON_POSTGRESQL]
    return [[row for row in part if "alembic_version" not in str(row)] for part in found]


def _parts(sql: str) -> list[str]:
    """A statement without regard to the order of its constraints and to line ends."""
    return sorted(line.strip().rstrip(",") for line in sql.splitlines())


async def rows(database: Database, query: str) -> list[tuple[Any, ...]]:
    found = await database.read(lambda connection: connection.exec_driver_sql(query))
    return [tuple(row) for row in found.all()]


async def test_a_new_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "journeys.db"
    database = Database(sqlite_address(path))

    await migrate(database)

    assert path.stat().st_mode & 0o777 == 0o600
    await database.close()
