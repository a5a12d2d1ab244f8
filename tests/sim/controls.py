"""What people do who run journeys: stop one and let it go on, hold somebody, tell about them.

What was stopped for a while goes on by itself, and all of it in the end; only what was archived
stays so.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol, get_args

from journeykit_server import lifecycle, steering
from journeykit_server.lifecycle import Mode, WrongState
from journeykit_server.publishing import NoSuchJourney
from journeykit_server.runtime import Runtime
from journeykit_server.steering import NotInside
from tests.sim.faults import Faults
from tests.sim.workload import DAY, TENANT, Workload

SHORT_DAYS, LONG_DAYS = (0.01, 0.2), (0.5, 4.0)  # how long something stands still
LOOKS_FOR_A_MOMENT, BETWEEN_SECONDS = 30, 7_000.0
TOLD = ("purchase", "unsubscribe", "opt_out", "signup")

Request = Callable[[Runtime], Awaitable[Any]]


class Client(Protocol):
    """Has a request answered, by whichever process lives."""

    async def ask(self, request: Request) -> Any: ...
    def begin(self, work: Coroutine[Any, Any, None]) -> None: ...


class Controls:
    """Does what the faults say, to journeys and people of this workload."""

    def __init__(
        self, client: Client, work: Workload, faults: Faults, raw: sqlite3.Connection, seed: int
    ) -> None:
        self.client, self.work, self.faults, self.raw = client, work, faults, raw
        self.random = random.Random(f"{seed}:controls")
        self.told = 0

    async def happen(self) -> None:
        """One occasion."""
        if self.faults.chance("journey_pause"):
            self.client.begin(self._pause())
        if self.faults.chance("journey_archive"):
            self.client.begin(self._archive())
        if self.faults.chance("journey_delete"):
            self.client.begin(self._delete())
        if self.faults.chance("person_pause"):
            await self._hold()
        if self.faults.chance("signal"):
            await self._signal()

    async def all_go_on(self) -> None:
        """Nothing stands still any more but what was archived."""
        for (journey_id,) in list(self.raw.execute(STOPPED)):
            await self._restore(journey_id)
        for user_id, journey_id in list(self.raw.execute(HELD)):
            await self.client.ask(
                lambda runtime, j=journey_id, u=user_id: runtime.resume_person(TENANT, j, u)  # type: ignore[misc]
            )

    def _journey(self) -> int:
        """Rather one of which something is on its way, or in which somebody is."""
        busy = [row[0] for query in (ON_ITS_WAY, INSIDE) for row in self.raw.execute(query)][:3]
        return int(self.random.choice([*busy, *busy, *self.work.journeys]))

    def _somebody(self) -> tuple[str, int]:
        """Who is inside which journey now; anybody where nobody is."""
        inside = [(row[1], row[0]) for row in self.raw.execute(INSIDE)]
        anybody = (self.random.choice(self.work.people), self._journey())
        return self.random.choice(inside or [anybody])

    async def _lifecycle(self, call: Callable[..., Awaitable[str]], journey_id: int) -> None:
        """A call that is repeated finds it done by the one before, of which nobody heard."""
        with suppress(WrongState, NoSuchJourney):
            await self.client.ask(lambda runtime: call(runtime, TENANT, journey_id))

    async def _moment(self) -> int:
        """A journey of which something is on its way, if that comes to pass soon."""
        for _ in range(LOOKS_FOR_A_MOMENT):
            if self.raw.execute(ON_ITS_WAY).fetchone() is not None:
                break
            await asyncio.sleep(BETWEEN_SECONDS)
        return self._journey()

    async def _archive(self) -> None:
        await self._lifecycle(lifecycle.archive, await self._moment())

    async def _pause(self) -> None:
        journey_id = await self._moment()
        mode: Mode = self.random.choice(get_args(Mode))
        with suppress(WrongState, NoSuchJourney):
            await self.client.ask(
                lambda runtime: lifecycle.pause(runtime, TENANT, journey_id, mode)
            )
        self._later(self._lifecycle(lifecycle.resume, journey_id))

    async def _delete(self) -> None:
        journey_id = await self._moment()
        with suppress(WrongState, NoSuchJourney):
            await self.client.ask(
                lambda runtime: lifecycle.pause(runtime, TENANT, journey_id, "entries")
            )
        await self._lifecycle(lifecycle.delete, journey_id)
        self._later(self._restore(journey_id))

    async def _restore(self, journey_id: int) -> None:
        await self._lifecycle(lifecycle.restore, journey_id)
        await self._lifecycle(lifecycle.resume, journey_id)

    async def _hold(self) -> None:
        user_id, journey_id = self._somebody()
        await self.client.ask(lambda runtime: runtime.pause_person(TENANT, journey_id, user_id))
        self._later(self._let_go(journey_id, user_id))

    async def _let_go(self, journey_id: int, user_id: str) -> None:
        await self.client.ask(lambda runtime: runtime.resume_person(TENANT, journey_id, user_id))

    async def _signal(self) -> None:
        user_id, journey_id = self._somebody()
        name, self.told = self.random.choice(TOLD), self.told + 1
        signal_id = f"s{self.told}"
        with suppress(NotInside):
            await self.client.ask(
                lambda runtime: steering.signal(
                    runtime, TENANT, journey_id, user_id, name, {"amount": 5}, signal_id
                )
            )

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        days = self.random.choice((SHORT_DAYS, LONG_DAYS))
        self.client.begin(_after(self.random.uniform(*days) * DAY, work))


async def _after(seconds: float, work: Coroutine[Any, Any, None]) -> None:
    await asyncio.sleep(seconds)
    await work


ON_ITS_WAY = "SELECT journey_id FROM outbox ORDER BY 1"
INSIDE = "SELECT journey_id, user_id FROM instances WHERE status = 'waiting' ORDER BY 1, 2"
STOPPED = "SELECT journey_id FROM journeys WHERE status IN ('paused', 'deleted') ORDER BY 1"
HELD = "SELECT user_id, journey_id FROM instances WHERE paused_at IS NOT NULL"
