"""The worker's two loops: what they do when, how they stop, and what they do when nothing goes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from whenever import Instant, TimeDelta

from journeykit_server import worker as working
from journeykit_server.database import Database, StorageFull, Unavailable
from journeykit_server.outbox import Settled
from journeykit_server.runtime import WAKE_BATCH, Runtime
from journeykit_server.scanner import Scanner
from journeykit_server.tables import deliveries, messages
from journeykit_server.upkeep import UPKEEP_SECONDS, Upkeep
from journeykit_server.waking import Woken
from journeykit_server.worker import Ticked, Worker
from tests.databases import START, open_database, sqlite_address
from tests.server.shop import Shop, track

HOUR = {"kind": "duration", "amount": 1, "unit": "hour"}
SEND = {"kind": "send", "channel": "email", "template_id": 1}


class Turns:
    """A runtime that only notes what it is asked, and when; `answers` says what a turn does."""

    def __init__(self, database: Database, stop: asyncio.Event, most: int = 20) -> None:
        self.database = database
        self.stop = stop
        self.most = most
        self.asked: list[tuple[str, float]] = []
        self.answers: dict[str, Callable[[int], Any]] = {}
        self.due: Instant | None = None
        self.looks_due: Instant | None = None

    def times(self, name: str) -> list[float]:
        """The seconds since the start at which this was asked for."""
        return [at for asked, at in self.asked if asked == name]

    async def _asked(self, name: str, otherwise: Any) -> Any:
        at = (self.database.clock.now() - START).total("seconds")
        self.asked.append((name, round(at, 3)))
        if len(self.asked) >= self.most:
            self.stop.set()
        answer = self.answers[name](len(self.times(name))) if name in self.answers else otherwise
        if isinstance(answer, Exception):
            raise answer
        return await answer if asyncio.iscoroutine(answer) else answer

    async def reload(self) -> None:
        await self._asked("reload", None)

    async def wake(self) -> Woken:
        return cast(Woken, await self._asked("wake", Woken()))

    async def catch_up(self) -> int:
        return cast(int, await self._asked("catch_up", 0))

    async def deliver(self) -> Settled:
        return cast(Settled, await self._asked("deliver", Settled()))

    @property
    def scanner(self) -> Scanner:
        return cast(Scanner, Lookings(self))

    @property
    def upkeep(self) -> Upkeep:
        return cast(Upkeep, Keeping(self))

    async def next_due(self) -> Instant | None:
        return self.due

    async def release(self) -> None:
        await self._asked("release", None)


class Keeping:
    """An upkeep that only notes what it is asked; unless a test answers, its first turn goes on
    until the worker stops."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns

    async def once(self) -> int:
        if "keep_up" not in self.turns.answers:
            await self.turns.stop.wait()
            return 0
        return cast(int, await self.turns._asked("keep_up", 0))


class Lookings:
    """A scanner that only notes what it is asked; unless a test answers, its first step goes on
    until the worker stops, so that its rests do not move the clock."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns

    async def look_once(self) -> int:
        if "look" not in self.turns.answers:
            await self.turns.stop.wait()
            return 0
        return cast(int, await self.turns._asked("look", 0))

    async def next_due(self) -> Instant | None:
        return self.turns.looks_due


@pytest.fixture
async def alone(tmp_path: Path) -> AsyncIterator[Database]:
    """A database that is only asked for its clock."""
    opened = open_database(sqlite_address(tmp_path / "alone.db"))
    yield opened
    await opened.close()


@pytest.fixture
def stop() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
def turns(alone: Database, stop: asyncio.Event) -> Turns:
    return Turns(alone, stop)


@pytest.fixture
def worker(turns: Turns) -> Worker:
    return Worker(cast(Runtime, turns), scanner=turns.scanner, upkeep=turns.upkeep)


async def test_a_tick_is_one_pass_of_everything_and_counts(turns: Turns, worker: Worker) -> None:
    turns.answers = {
        "wake": lambda _: Woken(claimed=7, advanced=6, failed=1),
        "catch_up": lambda _: 2,
        "deliver": lambda _: Settled(delivered=3, dead=1),
        "look": lambda _: 1,
        "keep_up": lambda _: 5,
    }

    assert await worker.tick() == Ticked(woken=7, caught_up=2, delivered=4, looked=1, kept_up=5)
    assert [name for name, _ in turns.asked] == [
        *("reload", "wake", "catch_up", "look", "deliver", "keep_up")
    ]


async def test_the_published_set_is_read_again_when_it_is_30_seconds_old(
    turns: Turns, worker: Worker
) -> None:
    turns.answers |= {"look": lambda _: 0, "keep_up": lambda _: 0}
    for _ in range(62):
        await worker.tick()
        await turns.database.clock.sleep(1)

    assert turns.times("reload") == [0, 30, 60]


async def test_a_full_batch_is_followed_by_the_next_without_a_rest(
    turns: Turns, worker: Worker, stop: asyncio.Event
) -> None:
    turns.answers["wake"] = lambda time: Woken(claimed=WAKE_BATCH if time < 3 else 5)
    turns.answers["deliver"] = lambda _: resting(turns.database)

    await worker.run(stop)

    assert turns.times("wake")[:3] == [0, 0, 0]


async def resting(database: Database) -> Settled:
    """A provider that takes its time, so that only the other loop moves the clock."""
    while database.clock.now() < START + TimeDelta(minutes=1):
        await asyncio.sleep(0)
    return Settled()


async def test_a_worker_with_nothing_due_looks_once_a_second(
    turns: Turns, worker: Worker, stop: asyncio.Event
) -> None:
    turns.answers["deliver"] = lambda _: resting(turns.database)

    await worker.run(stop)

    assert turns.times("wake")[:4] == [0, 1, 2, 3]


async def test_a_worker_wakes_at_the_moment_something_is_due(
    turns: Turns, worker: Worker, stop: asyncio.Event
) -> None:
    turns.due = START + TimeDelta(milliseconds=1_300)
    turns.answers["deliver"] = lambda _: resting(turns.database)

    await worker.run(stop)

    assert turns.times("wake")[:3] == [0, 1, 1.3]


async def test_what_is_due_and_cannot_be_had_is_asked_for_less_and_less(
    turns: Turns, worker: Worker, stop: asyncio.Event
) -> None:
    turns.most = 40
    turns.due = START
    turns.answers["deliver"] = lambda _: resting(turns.database)

    await worker.run(stop)

    asked = turns.times("wake")
    gaps = [round(b - a, 3) for a, b in pairwise(asked)]
    assert gaps[:8] == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1, 1]


async def test_a_look_is_gone_on_with_without_a_rest_and_begun_when_it_is_due(
    turns: Turns, worker: Worker, stop: asyncio.Event
) -> None:
    worker._is_up.set()
    turns.looks_due = START + TimeDelta(milliseconds=1_300)
    turns.answers = {
        "look": lambda time: 1 if time < 3 else 0,
        "wake": lambda _: waiting(stop),
        "deliver": lambda _: waiting(stop),
    }

    await worker.run(stop)

    assert turns.times("look")[:5] == [0, 0, 0, 1, 1.3]


async def test_upkeep_goes_on_while_there_is_something_to_do_and_then_rests(
    turns: Turns, worker: Worker, stop: asyncio.Event
) -> None:
    worker._is_up.set()
    turns.most = 8
    turns.answers = {
        "keep_up": lambda time: 7 if time < 3 else 0,
        "wake": lambda _: waiting(stop, Woken()),
        "deliver": lambda _: waiting(stop),
    }

    await worker.run(stop)

    assert turns.times("keep_up")[:4] == [0, 0, 0, UPKEEP_SECONDS]


async def waiting(stop: asyncio.Event, answer: Any = Settled()) -> Any:  # noqa: B008 - a constant
    """A turn that goes on until the worker stops."""
    await stop.wait()
    return answer


async def test_a_fault_is_logged_with_where_it_was_and_the_loop_goes_on(
    turns: Turns, worker: Worker, stop: asyncio.Event, caplog: pytest.LogCaptureFixture
) -> None:
    turns.answers["wake"] = lambda time: ZeroDivisionError("one") if time == 1 else Woken()
    turns.answers["deliver"] = lambda _: resting(turns.database)

    await worker.run(stop)

    (record,) = [record for record in caplog.records if record.exc_info]
    assert record.getMessage() == "a turn of the timers failed; it goes on"
    assert turns.times("wake")[:3] == [0, 5, 6]
    assert worker.health == "green"


async def test_a_database_that_is_away_is_told_once_and_asked_twice_a_second_at_most(
    turns: Turns, worker: Worker, stop: asyncio.Event, caplog: pytest.LogCaptureFixture
) -> None:
    turns.most = 60
    seen = []

    def away(_: int) -> Any:
        seen.append(worker.health)
        return Unavailable("The database does not answer.")

    def back(time: int) -> Any:
        return away(time) if time < 12 else Woken()

    turns.answers = {"wake": back, "deliver": lambda time: away(time) if time < 12 else Settled()}

    with caplog.at_level(logging.INFO):
        await worker.run(stop)

    tries = sorted(turns.times("wake")[1:12] + turns.times("deliver")[1:12])
    assert all(later - at >= 0.499 for at, later in zip(tries, tries[2:], strict=False))
    assert tries[-1] > 20, "the pauses grow"
    assert set(seen[2:]) == {"red: The database does not answer."}
    told = [r.getMessage() for r in caplog.records if r.getMessage().startswith("health")]
    assert told == ["health red: The database does not answer.", "health green"]


async def test_a_full_disk_is_tried_again_every_30_seconds(
    turns: Turns, worker: Worker, stop: asyncio.Event
) -> None:
    worker._is_up.set()
    turns.most = 8
    turns.answers["wake"] = lambda _: StorageFull("The database cannot be written to.")
    turns.answers["deliver"] = lambda _: forever()

    await worker.run(stop)

    asked = turns.times("wake")
    assert [round(b - a) for a, b in pairwise(asked)][:3] == [30, 30, 30]
    assert worker.health == "red: The database cannot be written to."


async def forever() -> Settled:
    await asyncio.Event().wait()
    raise AssertionError


async def test_a_stopped_worker_ends_what_runs_begins_nothing_and_gives_back(
    tmp_path: Path, stop: asyncio.Event
) -> None:
    """By the real clock: time must not jump while the batch runs."""
    database = Database(sqlite_address(tmp_path / "real.db"))
    turns = Turns(database, stop, most=1_000)
    ended = []

    async def batch() -> Woken:
        stop.set()
        await asyncio.sleep(0.2)
        ended.append("batch")
        return Woken(claimed=WAKE_BATCH)

    turns.answers["wake"] = lambda _: batch()

    await Worker(cast(Runtime, turns), scanner=turns.scanner, upkeep=turns.upkeep).run(stop)
    await database.close()

    assert ended == ["batch"]
    assert len(turns.times("wake")) == 1
    assert turns.asked[-1][0] == "release"


async def test_a_batch_that_does_not_end_is_left_after_the_time_to_drain(
    tmp_path: Path,
    stop: asyncio.Event,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(working, "DRAIN_SECONDS", 0.1)
    database = Database(sqlite_address(tmp_path / "real.db"))
    turns = Turns(database, stop, most=1_000)
    turns.answers["deliver"] = lambda _: forever()
    asyncio.get_running_loop().call_later(0.05, stop.set)

    await Worker(cast(Runtime, turns), scanner=turns.scanner, upkeep=turns.upkeep).run(stop)
    await database.close()

    assert "what ran did not end within 0.1 s and is left" in caplog.messages
    assert turns.asked[-1][0] == "release"


def made_to_rest(turns: Turns) -> Worker:
    return Worker(
        cast(Runtime, turns), scanner=turns.scanner, upkeep=turns.upkeep, poll_seconds=3_600
    )


async def test_a_stop_ends_a_rest(tmp_path: Path, stop: asyncio.Event) -> None:
    database = Database(sqlite_address(tmp_path / "real.db"))
    turns = Turns(database, stop, most=1_000)
    asyncio.get_running_loop().call_later(0.05, stop.set)

    await asyncio.wait_for(made_to_rest(turns).run(stop), 60)
    await database.close()

    assert len(turns.times("wake")) == 1


async def test_a_real_worker_moves_people_and_delivers(
    database: Database, stop: asyncio.Event
) -> None:
    shop = Shop(database)
    await shop.opens(
        {"id": "w", "kind": "wait", "wait": HOUR, "next": "s"},
        {"id": "s", "kind": "action", "next": "end", "action": SEND},
        {"id": "end", "kind": "exit"},
    )
    await shop.hears(track("sara", "signed_up"))
    rested_since = database.clock.now()

    async def stop_when_delivered() -> None:
        while not await shop.rows(messages):
            await asyncio.sleep(0.01)
        stop.set()

    await asyncio.gather(Worker(shop.runtime, poll_seconds=900).run(stop), stop_when_delivered())

    assert database.clock.now() >= rested_since + TimeDelta(hours=1)
    assert [row.times for row in await shop.rows(deliveries)] == [1]
    assert await Worker(shop.runtime).tick() == Ticked(0, 0, 0)
