"""A worker is asked to stop, is not let in, or finds a database of yesterday. Rows C45, C48, C49
and C55, with real processes."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import make_url

from journeykit_server import worker
from journeykit_server.database import Database
from journeykit_server.runtime import Runtime
from journeykit_server.tables import outbox, timers
from tests import postgres as throwaway
from tests.databases import sqlite_address
from tests.reliability.crowd import (
    CROWD,
    an_hour_ago,
    faults_of_log,
    faults_of_welcome,
    faults_outside,
    finished,
    gather_crowd,
    looked_at,
    straight,
    thanks,
    welcome,
)
from tests.reliability.processes import crew, until
from tests.reliability.stage import TENANT, happens, read
from tests.reliability.worker_process import Outside

ROOT = Path(__file__).parents[2]
FEW = CROWD[:20]


# --- a worker is stopped


async def test_c55_a_worker_that_is_stopped_ends_its_batch_and_leaves_with_0(
    database_url: str, tmp_path: Path
) -> None:
    await gather_crowd(database_url, FEW)
    async with looked_at(database_url) as database:
        with crew(database_url, tmp_path) as workers:
            stopped = workers.start(halts={"claimed": "nap"})
            await stopped.says("HALT claimed")
            stopped.ask_to_stop()
            assert await stopped.ends() == 0
            assert workers.faults() == []

        assert "worker stopped" in stopped.said
        assert stopped.counted("advanced") == len(FEW)
        assert await read(database, timers) == []
        assert {row.lease_token for row in await read(database, outbox)} <= {None}


async def test_c55_what_does_not_end_in_time_is_given_back_and_anybodys_at_once(
    database_url: str, tmp_path: Path
) -> None:
    """Timers that are claimed, and effects whose provider gives no answer: no attempt is counted,
    and the next worker need not wait for any lease, which is an hour here."""
    await gather_crowd(database_url, FEW, welcome(), thanks(), straight())
    async with looked_at(database_url, an_hour_ago()) as before:
        visits = [happens("visit", user_id) for user_id in FEW]
        await Runtime(before).ingest(TENANT, visits)
    async with looked_at(database_url) as database:
        with crew(database_url, tmp_path, lease_seconds=3_600) as workers:
            stuck = workers.start(halts={"claimed": "hang", "offered": "hang"}, drain_seconds=0.2)
            await stuck.says("HALT claimed")
            await stuck.says("HALT offered")
            assert len(await leases(database)) == 2
            stuck.ask_to_stop()
            assert await stuck.ends() == 0
            assert "what ran did not end within 0.2 s and is left" in stuck.said
            assert await leases(database) == set()
            rows = [*await read(database, timers), *await read(database, outbox)]
            assert {row.attempts for row in rows} == {0}
            assert len(rows) == 2 * len(FEW)

            workers.start()
            await finished(database, workers)
            await workers.stop()
        assert await faults_of_welcome(database, FEW) == []
        assert await faults_of_log(database) == []
    assert worker.DRAIN_SECONDS <= 30


async def leases(database: Database) -> set[str]:
    """Whose claims there are."""
    rows = [*await read(database, timers), *await read(database, outbox)]
    return {row.lease_token for row in rows} - {None}


# --- a second one on a SQLite file


@contextmanager
def real_command(url: str) -> Iterator[subprocess.Popen[str]]:
    """`python -m journeykit_server worker`, as somebody types it."""
    path = os.pathsep.join(str(ROOT / home) for home in ("engine", "server"))
    command = [sys.executable, "-m", "journeykit_server", "worker", "--database-url", url]
    environment = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


async def test_c48_a_second_worker_on_a_sqlite_file_is_refused_and_told_who_works_there(
    sqlite_url: str,
) -> None:
    with real_command(sqlite_url) as first:
        assert first.stderr
        assert "worker started" in await asyncio.to_thread(first.stderr.readline)

        with real_command(sqlite_url) as second:
            _, told = await asyncio.to_thread(second.communicate)
        assert (second.returncode, told) == (1, HELD.format(sqlite_url[10:], first.pid))

        first.send_signal(signal.SIGTERM)
        _, told = await asyncio.to_thread(first.communicate)
        assert first.returncode == 0
        assert "worker stopped" in told


HELD = (
    'journeykit: A worker already works on "{}": process {}. A SQLite file has one worker. '
    "Stop that one first, or use PostgreSQL, where any number share the work.\n"
)


# --- the database is one of an earlier time


async def test_c45_an_older_database_under_a_living_worker_says_everything_again_by_the_same_names(
    postgresql_url: str, postgres: Path, tmp_path: Path
) -> None:
    """A failover that lost the last commits: the worker has seen them, the outside too."""
    name, outside = make_url(postgresql_url).database, str(tmp_path / "outside.db")
    await gather_crowd(postgresql_url)
    with crew(postgresql_url, tmp_path, outside=outside, most_effects=50) as workers:
        workers.start(halts={"offered": "kill"})
        await until(lambda: not workers.living, "its death")
        # A copy cannot be made while somebody is connected.
        throwaway.tell(postgres, f"CREATE DATABASE {name}_older TEMPLATE {name}")
        workers.start()
        async with looked_at(postgresql_url) as database:
            await finished(database, workers)
            assert await faults_outside(database, outside) == []
        newer = {name: times for name, _, times in Outside(outside).taken()}

        assert await asyncio.to_thread(put_in_place, postgres, name)

        async with looked_at(postgresql_url) as database:
            assert len(await read(database, outbox)) + len(await read(database, timers)) > 100
            await finished(database, workers)
            await workers.stop()
            assert await faults_of_welcome(database) == []
            assert await faults_outside(database, outside) == []
    again = {name: times for name, _, times in Outside(outside).taken()}
    assert again.keys() == newer.keys()
    assert sum(again.values()) > sum(newer.values()) + 500
    throwaway.tell(postgres, f"DROP DATABASE {name}_newer WITH (FORCE)")


def put_in_place(postgres: Path, name: str | None) -> bool:
    """Let the older database take the place of the newer one, between two tries of those who are
    connected all the time."""
    for _ in range(100):
        try:
            throwaway.tell(
                postgres,
                "SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity "
                f"WHERE datname = '{name}';\n"
                f"ALTER DATABASE {name} RENAME TO {name}_newer;\n"
                f"ALTER DATABASE {name}_older RENAME TO {name}",
            )
        except subprocess.CalledProcessError:
            continue  # one of them was quicker
        return True
    return False


async def test_c49_a_sqlite_file_that_lost_the_end_of_its_log_says_the_rest_again(
    sqlite_url: str, tmp_path: Path
) -> None:
    """A power cut on a disk that lied about what it had written: of the write-ahead log nothing is
    left, or a part that ends anywhere."""
    outside = str(tmp_path / "outside.db")
    await gather_crowd(sqlite_url)
    with crew(sqlite_url, tmp_path, outside=outside, checkpoints=False) as workers:
        done = workers.start()
        async with looked_at(sqlite_url) as database:
            await finished(database, workers)
        done.kill()
    names = [name for name, _, _ in Outside(outside).taken()]

    for part in (0.0, 0.1, 0.37, 0.71, 0.98):
        url = cut_copy(sqlite_url, tmp_path / f"part {part}", part)
        with crew(url, tmp_path / f"part {part}", outside=outside) as workers:
            workers.start()
            async with looked_at(url) as database:
                await finished(database, workers)
                await workers.stop()
                assert await faults_of_welcome(database) == []
                assert await faults_outside(database, outside) == []

    taken = Outside(outside).taken()
    assert [name for name, _, _ in taken] == names
    counts = {times for _, _, times in taken}
    assert min(counts) >= 2  # where nothing was left of the log, everything is said again
    assert len(counts) > 1  # and where more was left, less


def cut_copy(url: str, folder: Path, part: float) -> str:
    """A copy of a file with so much of its write-ahead log; its address."""
    file, copy = Path(url.removeprefix("sqlite:///")), folder / "journeykit.db"
    folder.mkdir()
    shutil.copyfile(file, copy)
    log = Path(f"{file}-wal").read_bytes()
    assert len(log) > 100_000
    Path(f"{copy}-wal").write_bytes(log[: int(len(log) * part)])
    return sqlite_address(copy)
