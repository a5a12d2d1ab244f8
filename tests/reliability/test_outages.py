"""PostgreSQL goes away and comes back while workers and a client are busy. Rows C40, C41 and C42,
with real processes and a server of their own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import select

from journeykit_server.database import Database
from journeykit_server.runtime import Runtime
from journeykit_server.tables import instances
from tests import postgres as throwaway
from tests.databases import postgresql_address
from tests.reliability.crowd import (
    CROWD,
    faults_of_log,
    faults_of_welcome,
    finished,
    gather_crowd,
    looked_at,
    make_schema,
    straight,
    thanks,
    welcome,
)
from tests.reliability.processes import crew
from tests.reliability.stage import TENANT, happens, rows

SETTINGS = {**throwaway.SETTINGS, "synchronous_commit": "on"}
"""What is committed outlives the server."""
NUMBERS = count(1)


@pytest.fixture(scope="module")
def fragile() -> Iterator[Path]:
    """The folder of a server that may be brought down."""
    with throwaway.server(SETTINGS) as folder:
        yield folder


@pytest.fixture
async def fragile_url(fragile: Path) -> str:
    """A crowd whose time has come, on that server."""
    name = f"outage_{next(NUMBERS)}"
    throwaway.tell(fragile, f"CREATE DATABASE {name}")
    url = postgresql_address(fragile, name)
    await make_schema(url)
    await gather_crowd(url, CROWD, welcome(), thanks(), straight())
    return url


CALM = {"most_timers": 40, "most_effects": 20}
"""Small bites, so that an outage finds much undone."""


@asynccontextmanager
async def down(folder: Path) -> AsyncIterator[None]:
    """The server of `folder` is away for the block, and answers again after it."""
    await asyncio.to_thread(throwaway.crash, folder)
    try:
        yield
    finally:
        await asyncio.to_thread(throwaway.start, folder)


class Visitors:
    """A client that sends events all the time and is told of each that it is stored."""

    def __init__(self, database: Database) -> None:
        self.runtime = Runtime(database)
        self.people: list[str] = []

    async def come(self) -> None:
        while True:
            many = [f"visitor {len(self.people) + each:05}" for each in range(5)]
            events = [happens("visit", user_id) for user_id in many]
            receipt = await self.runtime.ingest(TENANT, events)
            assert receipt.accepted + receipt.duplicates == len(many)
            self.people += many
            await asyncio.sleep(0.02)


@asynccontextmanager
async def visitors(database: Database) -> AsyncIterator[Visitors]:
    """Visitors come during the block; afterwards each of them is inside once."""
    visitors = Visitors(database)
    coming = asyncio.ensure_future(visitors.come())
    try:
        yield visitors
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
    assert coming.cancelled(), coming.exception()
    await asyncio.gather(*database.running)  # what it had begun
    query = select(instances.c.user_id).where(instances.c.journey_id == 3)
    inside = {user_id for (user_id,) in await rows(database, query)}
    assert set(visitors.people) <= inside
    assert len(visitors.people) >= 20


async def test_c40_a_server_that_crashes_under_load_costs_nothing(
    fragile: Path, fragile_url: str, tmp_path: Path
) -> None:
    chance = random.Random(40)
    async with looked_at(fragile_url) as database:
        with crew(fragile_url, tmp_path, **CALM) as workers:
            workers.start()
            workers.start()
            async with visitors(database):
                for _ in range(4):
                    await asyncio.sleep(chance.uniform(0.1, 0.8))
                    async with down(fragile):
                        await asyncio.sleep(chance.uniform(0, 0.3))
            await finished(database, workers)
            await workers.stop()
        assert await faults_of_welcome(database) == []
        assert await faults_of_log(database) == []


async def test_c41_a_server_that_crashes_while_workers_start_lets_them_start(
    fragile: Path, fragile_url: str, tmp_path: Path
) -> None:
    """They start while it is away; it comes, and goes again while they look at the schema."""
    chance = random.Random(41)
    async with looked_at(fragile_url) as database:
        with crew(fragile_url, tmp_path, **CALM) as workers:
            async with down(fragile):
                workers.start()
                await asyncio.sleep(chance.uniform(0, 0.5))
            for _ in range(2):
                workers.start()
                await asyncio.sleep(chance.uniform(0, 0.3))
                async with down(fragile):
                    pass
            await finished(database, workers)
            for process in workers.all:
                await process.says("worker started")
            await workers.stop()
        assert await faults_of_welcome(database) == []
        assert await faults_of_log(database) == []


async def test_c42_connections_that_are_cut_again_and_again_cost_nothing(
    fragile: Path, fragile_url: str, tmp_path: Path
) -> None:
    async with looked_at(fragile_url) as database:
        with crew(fragile_url, tmp_path, **CALM) as workers:
            workers.start()
            workers.start()
            async with visitors(database):
                cut = 0
                for _ in range(16):
                    await asyncio.sleep(0.25)
                    cut += len(await asyncio.to_thread(throwaway.rows, fragile, CUT_ONE))
            await finished(database, workers)
            await workers.stop()
        assert cut > 8
        assert await faults_of_welcome(database) == []
        assert await faults_of_log(database) == []


CUT_ONE = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE application_name = 'journeykit' ORDER BY random() LIMIT 1"""
