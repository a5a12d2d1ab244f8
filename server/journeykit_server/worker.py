"""The worker: loops beside each other, which move people, deliver, look who is to be found, and do
what has to be done now and then.

The loops only loop. What a turn does is the runtime's; a turn that fails is told and tried again
after a pause, so that no loop ever ends before it is told to.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

from whenever import Instant

from journeykit_server.clock import Clock
from journeykit_server.database import StorageFull, Unavailable
from journeykit_server.runtime import WAKE_BATCH, Runtime
from journeykit_server.scanner import Scanner
from journeykit_server.upkeep import UPKEEP_SECONDS, Upkeep

log = logging.getLogger("journeykit")

POLL_SECONDS = 1.0  # the longest rest: how late somebody else's work may be seen
LEAST_REST_SECONDS = 0.01  # what is due and cannot be had: asked for half as often each time
MOST_DOUBLINGS = 20  # of a rest or a pause: hours, and longer than the longest
RELOAD_SECONDS = 30.0  # how late a worker learns of a publishing in another process
DRAIN_SECONDS = 30.0  # how long a stopped worker may take to end what it began
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 10.0  # after a database that does not answer
FULL_PAUSE_SECONDS = 30.0  # after a full disk: somebody has to make room
FAULT_PAUSE_SECONDS = 5.0  # after a fault of our own: it will be there again
CONNECT_SECONDS = 0.5  # between two tries while the database is away, both loops together


class Ticked(NamedTuple):
    """How much one pass of everything did."""

    woken: int
    caught_up: int
    delivered: int
    looked: int = 0
    kept_up: int = 0


class Worker:
    """`run` works until it is told to stop; `tick` is one pass of everything."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        scanner: Scanner | None = None,
        upkeep: Upkeep | None = None,
        poll_seconds: float = POLL_SECONDS,
        reload_seconds: float = RELOAD_SECONDS,
    ) -> None:
        self.runtime = runtime
        self.scanner = scanner or Scanner(runtime)
        self.upkeep = upkeep or Upkeep(runtime)
        self.clock: Clock = runtime.database.clock
        self.poll_seconds = poll_seconds
        self.reload_seconds = reload_seconds
        self._reload_at = float("-inf")  # monotonic
        self._may_connect_at = float("-inf")  # monotonic
        self._is_up = asyncio.Event()  # the database has answered once
        self._troubles: dict[str, str] = {}  # by loop
        self._in_vain: dict[str, int] = {}  # by loop: turns that did nothing of what is due

    @property
    def health(self) -> str:
        """ "green", or "red: " and why nothing moves."""
        return next((f"red: {trouble}" for trouble in self._troubles.values()), "green")

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop`; then begin nothing new, end what runs, and give back what is claimed.

        It returns `DRAIN_SECONDS` after `stop` at the latest; what has not ended by then is left
        to whoever claims it next.
        """
        loops = asyncio.gather(
            self._repeat("timers", self._move_people, stop),
            self._repeat("deliveries", self._deliver, stop),
            self._repeat_once_up("looks", self._look, stop),
            self._repeat_once_up("upkeep", self._keep_up, stop),
        )
        try:
            await _either(loops, stop.wait())
            if await _either(loops, self.clock.sleep(DRAIN_SECONDS)):
                await loops
            else:
                log.warning("what ran did not end within %g s and is left", DRAIN_SECONDS)
        finally:
            loops.cancel()
            await asyncio.gather(loops, return_exceptions=True)
        await self._give_back()

    async def tick(self) -> Ticked:
        """One pass of everything. Raises what `Database.run` raises."""
        await self._reload()
        woken = (await self.runtime.wake()).claimed
        caught_up = await self._catch_up()
        looked = await self.scanner.look_once()
        delivered = sum(await self.runtime.deliver())
        return Ticked(woken, caught_up, delivered, looked, await self.upkeep.once())

    # --- a turn of each loop; it answers how long to rest

    async def _move_people(self) -> float:
        await self._reload()
        woken = (await self.runtime.wake()).claimed
        caught_up = await self._catch_up()
        if woken >= WAKE_BATCH or caught_up:
            return 0
        return await self._seconds_to_next("timers", woken, self.runtime.next_due)

    async def _deliver(self) -> float:
        """Only the first effect of a pass is offered at a time: who gave one may give the next."""
        settled = sum(await self.runtime.deliver())
        if settled:
            return 0
        return await self._seconds_to_next("deliveries", settled, self.runtime.next_due)

    async def _look(self) -> float:
        looked = await self.scanner.look_once()
        return 0 if looked else await self._seconds_to_next("looks", 0, self.scanner.next_due)

    async def _keep_up(self) -> float:
        return 0 if await self.upkeep.once() else UPKEEP_SECONDS

    async def _reload(self) -> None:
        now = self.clock.monotonic()
        if now >= self._reload_at:
            await self.runtime.reload()
            self._reload_at = now + self.reload_seconds

    async def _catch_up(self) -> int:
        heard = await self.runtime.catch_up()
        if heard:
            log.info("caught up", extra={"figures": {"events": heard}})
        return heard

    async def _seconds_to_next(
        self, name: str, done: int, next_due: Callable[[], Awaitable[Instant | None]]
    ) -> float:
        database = self.runtime.database
        due = await next_due()
        if due is None:
            return self.poll_seconds
        rest: float = (due - await database.read(database.now)).total("seconds")
        if rest > 0 or done:
            self._in_vain[name] = 0
            return max(min(rest, self.poll_seconds), 0)
        self._in_vain[name] = self._in_vain.get(name, 0) + 1
        rest = math.ldexp(LEAST_REST_SECONDS, min(self._in_vain[name], MOST_DOUBLINGS))
        return min(rest, self.poll_seconds)

    # --- looping

    async def _repeat_once_up(
        self, name: str, turn: Callable[[], Awaitable[float]], stop: asyncio.Event
    ) -> None:
        """For what can wait: a database that is away is not asked by all loops at once."""
        answered = asyncio.ensure_future(self._is_up.wait())
        await _either(answered, stop.wait())
        answered.cancel()
        await self._repeat(name, turn, stop)

    async def _repeat(
        self, name: str, turn: Callable[[], Awaitable[float]], stop: asyncio.Event
    ) -> None:
        failures = 0
        while not stop.is_set():
            if name in self._troubles:
                await self._rest(self._seconds_to_connect(), stop)
                if stop.is_set():
                    return
            try:
                rest, failures, trouble = await turn(), 0, None
                self._is_up.set()
            except Unavailable as error:
                rest, trouble = self._pause(error, failures), str(error)
                failures += 1
            except Exception:
                log.exception("a turn of the %s failed; it goes on", name)
                rest, trouble = FAULT_PAUSE_SECONDS, self._troubles.get(name)
            self._tell(name, trouble)
            await self._rest(rest, stop)

    def _pause(self, error: Unavailable, failures: int) -> float:
        if isinstance(error, StorageFull):
            return FULL_PAUSE_SECONDS
        doubled = math.ldexp(FIRST_PAUSE_SECONDS, min(failures, MOST_DOUBLINGS))
        pause = min(doubled, LONGEST_PAUSE_SECONDS)
        return pause * (0.5 + self.runtime.database.chance.fraction() / 2)

    def _seconds_to_connect(self) -> float:
        """Takes the next free place among the tries, and says how far off it is."""
        now = self.clock.monotonic()
        place = max(now, self._may_connect_at)
        self._may_connect_at = place + CONNECT_SECONDS
        return place - now

    def _tell(self, name: str, trouble: str | None) -> None:
        """Log a change of health, once."""
        before = self.health
        if trouble is None:
            self._troubles.pop(name, None)
        else:
            self._troubles[name] = trouble
        if self.health != before:
            log.log(logging.ERROR if self._troubles else logging.WARNING, "health %s", self.health)

    async def _rest(self, seconds: float, stop: asyncio.Event) -> None:
        nap = asyncio.ensure_future(self.clock.sleep(seconds))
        await _either(nap, stop.wait())
        nap.cancel()

    async def _give_back(self) -> None:
        try:
            await self.runtime.release()
        except Unavailable as trouble:
            log.warning("what was claimed is free again when its lease ends: %s", trouble)


async def _either(future: asyncio.Future[Any], other: Coroutine[Any, Any, Any]) -> bool:
    """Wait for whichever is first; whether the future is done. The other is given up."""
    first = asyncio.get_running_loop().create_future()

    def tell(_: object) -> None:
        if not first.done():
            first.set_result(None)

    task = asyncio.ensure_future(other)
    future.add_done_callback(tell)
    task.add_done_callback(tell)
    try:
        await first
    finally:
        future.remove_done_callback(tell)
        task.cancel()
    return future.done()
