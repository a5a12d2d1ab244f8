"""What the doctor sees on a database, sound and unsound."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from sqlalchemy import Table

from journeykit_server import doctor
from journeykit_server.clock import Clock, microseconds
from journeykit_server.database import Database
from journeykit_server.doctor import Finding, examine
from journeykit_server.holder import Holder
from journeykit_server.migrate import migrate, shown
from journeykit_server.rows import bucket_of
from journeykit_server.tables import dead_letters, metadata, outbox, timers
from tests.databases import START, open_database, sqlite_address

NOW = microseconds(START)
SECOND = 1_000_000


@pytest.fixture
async def migrated(database: Database) -> Database:
    """With revisions, as a user's is, and no longer only with tables."""
    await database.run(lambda connection: connection.run_sync(metadata.drop_all))
    await migrate(database)
    return database


async def test_a_sound_database_is_told_so(migrated: Database) -> None:
    findings = await examine(migrated)

    assert [finding for finding in findings if finding.level == "bad"] == []
    assert Finding("ok", "The schema is current.") in findings
    assert Finding("ok", "No timer is late.") in findings
    assert Finding("ok", "The outbox has 0 effects, none of them late.") in findings
    assert Finding("ok", "There are no dead letters.") in findings
    server = "SQLite" if migrated.is_sqlite else "PostgreSQL"
    assert findings[0].what.startswith(server)
    assert findings[0].what.endswith("answers and can be written to.")


async def test_a_database_without_a_schema_is_told_how_to_get_one(database: Database) -> None:
    findings = await examine(database)

    fix = f"journeykit migrate --database-url {shown(database)}"
    assert Finding("bad", 'The schema lacks "0001", "0002".', fix) in findings
    assert "No timer is late." not in [finding.what for finding in findings]


@pytest.mark.parametrize(
    ("late", "level", "fix"),
    [
        (61, "warn", "The workers do not keep up; on PostgreSQL start another."),
        (3_600, "bad", "Nobody works: start a worker, or read what the running one logs."),
    ],
)
async def test_a_backlog_is_told_by_how_late_it_is(
    migrated: Database, late: int, level: doctor.Level, fix: str
) -> None:
    due = NOW - late * SECOND
    await put(migrated, timers, user_id="sara", due=due, try_at=due, bucket=bucket_of(due, due))
    await put(migrated, outbox, message_id="m", user_id="sara", kind="send", try_at=due)

    findings = await examine(migrated)

    assert Finding(level, f"The oldest due timer is {late:,} s late.", fix) in findings
    told = f"The outbox has 1 effects; the oldest is {late:,} s late."
    assert Finding(level, told, fix) in findings


async def test_what_is_parked_for_later_is_no_backlog(migrated: Database) -> None:
    due = NOW + 86_400 * SECOND
    await put(migrated, timers, user_id="sara", due=due, try_at=due, bucket=bucket_of(due, NOW))

    assert Finding("ok", "No timer is late.") in await examine(migrated)


async def test_dead_letters_are_counted(migrated: Database) -> None:
    await put(migrated, dead_letters, letter_id="l", user_id="sara", kind="timer")

    fix = "Read their reasons in the table dead_letters; then retry or skip them."
    assert Finding("warn", "Dead letters: 1.", fix) in await examine(migrated)


async def test_a_clock_apart_from_the_databases_is_told(postgresql_url: str) -> None:
    """The tests' clock stands in June; the server's does not."""
    database = open_database(postgresql_url)

    findings = await examine(database)
    await database.close()

    (told,) = [finding for finding in findings if "clock" in finding.what]
    assert told.level == "warn"
    assert told.what.startswith("This machine's clock is ")
    assert told.what.endswith("s behind the database's.") or told.what.endswith(
        "ahead of the database's."
    )
    assert told.fix == (
        "People move by the database's clock. Let both machines keep time (chrony, ntpd)."
    )


async def test_clocks_that_agree_are_told_so(postgresql_url: str) -> None:
    database = Database(postgresql_url)

    findings = await examine(database)
    await database.close()

    assert Finding("ok", "The clocks of this machine and the database agree.") in findings


async def test_who_works_on_a_file_and_who_may_open_it_are_told(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    database = open_database(sqlite_address(path))
    await migrate(database)
    path.chmod(0o644)
    open_to_all = await examine(database)
    path.chmod(0o600)
    holder = Holder(path)
    await holder.take(Clock())

    held = await examine(database)
    holder.release()
    await database.close()

    start = f"journeykit worker --database-url sqlite:///{path}"
    assert Finding("warn", f'No worker works on "{path}": nobody moves.', start) in open_to_all
    told = f'Every user of this machine can open "{path}" (mode 644).'
    assert Finding("warn", told, f'It holds people: chmod 600 "{path}"') in open_to_all
    assert Finding("ok", f'Process {os.getpid()} works on "{path}".') in held
    assert Finding("ok", f'"{path}" is closed to other users (mode 600).') in held


async def test_looking_makes_no_file(tmp_path: Path) -> None:
    missing, homeless = tmp_path / "none.db", tmp_path / "no" / "none.db"
    url = sqlite_address(missing)

    assert (await examine(Database(url)))[0] == Finding(
        "warn",
        f'There is no file "{missing}" yet.',
        f"The first worker makes it: journeykit worker --database-url {url}",
    )
    assert (await examine(Database(sqlite_address(homeless))))[0] == Finding(
        "bad", f'There is no folder "{homeless.parent}".', f'mkdir -p "{homeless.parent}"'
    )
    assert list(tmp_path.iterdir()) == []


async def test_an_old_library_and_a_file_without_a_log_are_told(tmp_path: Path) -> None:
    assert doctor._library((3, 34, 1)) == Finding(
        "bad", "SQLite 3.34.1 is too old.", "Use a Python with SQLite 3.35 or newer."
    )
    assert doctor._log_mode("delete") == Finding(
        "warn",
        'The file has no write-ahead log but "delete".',
        "Put the file on a local disk: a network's file system cannot share a write-ahead log.",
    )


async def test_without_a_renderer_it_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(doctor, "find_spec", lambda _: None)

    assert doctor._graphviz() == Finding(
        "warn", "Nothing here can draw a journey.", "pip install pygraphviz"
    )


async def put(database: Database, table: Table, **values: object) -> None:
    """A row with these values and nothing in the other columns."""
    nothing = {
        column.name: "" if column.type.python_type is str else 0
        for column in table.columns
        if not column.nullable
    }
    row = {**nothing, "tenant_id": 1, **values}
    await database.run(lambda connection: connection.execute(table.insert(), [row]))
