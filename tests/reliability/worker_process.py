"""What runs in a process of a test: the real command `journeykit worker`.

Only its times are shorter, so that nobody waits for a lease of 30 seconds, and it may do something
to itself at a chosen place: stop as if the machine hung, be killed, or never come back.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import orjson
from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import Instant, TimeDelta

from journeykit_server import __main__ as journeykit_command
from journeykit_server import claiming, database, outbox, published, runtime, scanner, worker
from journeykit_server import waking as journeykit_waking
from journeykit_server.clock import Clock, instant
from journeykit_server.database import Database
from journeykit_server.delivery import Delivered, Item, LogProvider, Outcome, Provider
from journeykit_server.outbox import Settled
from journeykit_server.runtime import Runtime
from journeykit_server.waking import Woken
from journeykit_server.work import Work

T = TypeVar("T")

PLACES = ("claimed", "written", "walked", "offered")
"""Timers are claimed, their walk is written and not committed, it is committed, effects are with
the outside and not marked."""


class Plan(NamedTuple):
    """How a process works, and what happens to it where: `halts` has "stop", "kill", "nap" or
    "hang" by place, once each. Its last words go to the file `log`."""

    url: str
    log: str
    lease_seconds: int = 1
    most_timers: int = 1_000
    most_effects: int = 200
    halts: Mapping[str, str] = {}
    outside: str = ""
    document_format: int = published.DOCUMENT_FORMAT
    idle_seconds: int = 30
    drain_seconds: float = 30.0
    checkpoints: bool = True
    sweep_seconds: float = 0.25
    hurry: tuple[float, int] | None = None


def live(plan: Plan) -> None:
    """The whole life of the process."""
    log = os.open(plan.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    shorten(plan)
    journeykit_command.main(["worker", "--database-url", plan.url])


def shorten(plan: Plan) -> None:
    """Set the times of the product, and put this process's runtime and outside in place."""
    command: Any = journeykit_command  # what a module imports is not its own to give away
    waking: Any = journeykit_waking
    runtime.LEASE = TimeDelta(seconds=plan.lease_seconds)
    runtime.SWEEP_SECONDS = plan.sweep_seconds
    waking.TRUST_SECONDS = plan.lease_seconds * 2 / 3
    waking.TOO_NEW_PAUSE = TimeDelta(seconds=plan.lease_seconds)
    claiming.LEASE_SECONDS = plan.lease_seconds
    outbox.SWEEP_SECONDS = plan.lease_seconds
    scanner.LEASE = TimeDelta(seconds=plan.lease_seconds)
    worker.DRAIN_SECONDS = plan.drain_seconds
    published.DOCUMENT_FORMAT = plan.document_format
    database.POSTGRESQL_SETTINGS["idle_in_transaction_session_timeout"] = f"{plan.idle_seconds}s"
    if not plan.checkpoints:
        database.SQLITE_PRAGMAS["wal_autocheckpoint"] = "0"
    if plan.hurry:
        command.Database = partial(Database, clock=Hurried(*plan.hurry))
    runtime.Runtime = partial(Planned, plan)  # type: ignore[misc,assignment]


NAPS = {"nap": 0.5, "hang": 3_600.0}  # seconds


class Halts:
    """What happens to this process where; each thing once."""

    def __init__(self, halts: Mapping[str, str]) -> None:
        self.halts = dict(halts)

    async def at(self, place: str) -> None:
        what = self.halts.pop(place, "")
        if not what:
            return
        os.write(2, f"HALT {place}\n".encode())
        if what in NAPS:
            await asyncio.sleep(NAPS[what])
            return
        os.kill(os.getpid(), signal.SIGKILL if what == "kill" else signal.SIGSTOP)


class Planned(Runtime):
    """The product's runtime, with places where something may happen."""

    def __init__(self, plan: Plan, database: Database, *, provider: Provider, shard: int) -> None:
        self.plan = plan
        self.halts = Halts(plan.halts)
        outside = Outside(plan.outside) if plan.outside else LogProvider(database)
        super().__init__(database, provider=Offering(self.halts, outside), shard=shard)
        _halt_before_commit(self.halts)

    async def wake(self, limit: int = runtime.WAKE_BATCH) -> Woken:
        woken = await super().wake(min(limit, self.plan.most_timers))
        if woken.advanced:
            await self.halts.at("walked")
        return woken

    async def deliver(self, limit: int = outbox.BATCH) -> Settled:
        return await super().deliver(min(limit, self.plan.most_effects))

    async def unit(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        if self.leases:  # it is timers that are to be walked
            await self.halts.at("claimed")
        return await super().unit(work)


def _halt_before_commit(halts: Halts) -> None:
    save = Work.save

    async def save_and_halt(work: Work, connection: AsyncConnection) -> None:
        await save(work, connection)
        if work.moved:
            await halts.at("written")

    Work.save = save_and_halt  # type: ignore[assignment,method-assign]


class Offering:
    """A provider after which something may happen."""

    def __init__(self, halts: Halts, provider: Provider) -> None:
        self.halts = halts
        self.provider = provider

    async def deliver(self, items: Sequence[Item]) -> Sequence[Outcome]:
        outcomes = await self.provider.deliver(items)
        await self.halts.at("offered")
        return outcomes


class Outside:
    """A mailbox in a file of its own, which outlives processes and databases. It takes each name
    once, counts how often it was offered, and keeps the payloads that it was offered."""

    def __init__(self, path: str) -> None:
        self.connection = sqlite3.connect(path, timeout=30, isolation_level=None)
        self.connection.execute("PRAGMA synchronous = OFF")
        self.connection.execute(
            "CREATE TABLE IF NOT EXISTS taken (message_id TEXT, payload TEXT, times INTEGER, "
            "PRIMARY KEY (message_id, payload))"
        )

    async def deliver(self, items: Sequence[Item]) -> Sequence[Outcome]:
        offered = [
            (item.message_id, orjson.dumps(item.payload, option=orjson.OPT_SORT_KEYS).decode())
            for item in items
        ]
        self.connection.execute("BEGIN IMMEDIATE")
        self.connection.executemany(
            "INSERT INTO taken VALUES (?, ?, 1) ON CONFLICT DO UPDATE SET times = times + 1",
            offered,
        )
        self.connection.execute("COMMIT")
        return [Delivered() for _ in items]

    def taken(self) -> list[tuple[str, str, int]]:
        """Name, payload and how often, in the order of the names."""
        return self.connection.execute("SELECT * FROM taken ORDER BY message_id").fetchall()


class Hurried(Clock):
    """A clock that runs `rate` times as fast since the moment `since`, microseconds since 1970; all
    processes that have it agree."""

    is_real = False

    def __init__(self, rate: float, since: int) -> None:
        self.rate = rate
        self.since = since

    def now(self) -> Instant:
        passed = time.time_ns() // 1_000 - self.since
        return instant(self.since + round(passed * self.rate))
