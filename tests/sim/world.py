"""Processes on one database, each with its own clock, and what can be done to them.

A process is what a real one is: a `Database`, a `Runtime`, a `Scanner` and a loop that wakes,
catches up, delivers, looks and tidies up; it also answers requests. A killed one is replaced by
another after a while.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from whenever import Instant

from journeykit_engine.program import Evaluator, evaluate
from journeykit_server import lifecycle
from journeykit_server.clock import Clock, SeededChance, instant, microseconds
from journeykit_server.database import Database, Unavailable
from journeykit_server.runtime import Runtime
from journeykit_server.scanner import Limits, Scanner
from journeykit_server.tables import HELD_BUCKET, NEVER
from tests.sim.faults import Faults
from tests.sim.loop import OUTSIDE, PROCESS, SimLoop
from tests.sim.outside import Outside
from tests.sim.sqlite_shim import Storage

T = TypeVar("T")

START = Instant("2026-06-01T10:00:00Z")
START_AT = microseconds(START)
SECOND = 1_000_000  # microseconds
LONG_POLL_SECONDS = 3 * 86_400.0  # a process that knows of nothing looks again so often
RESTART_SECONDS = (0.5, 5.0, 60.0)  # until a killed process is replaced
NUDGE_SECONDS = 1.0  # until a process hears of new work: its real poll, without the polling
SKEWS = (-600, -5, 5, 600)  # seconds that the clock of a process may be wrong by
SHARDS = 16
LONGEST_TRANSACTION_SECONDS = 600.0  # a paused process, a slow database
LOOK_SECONDS = (
    30_000.0  # between two looks at a segment, and until a scanner asks what is published
)
LIMITS = Limits(page=2, diff=5, sweep=5)  # of people; a seed has six at most
TIDY_SECONDS = 20_000.0  # until a worker looks whether a journey is drained
IDLE_CALLS = 0.02  # how often a process asks although it could know that there is nothing

Request = Callable[[Runtime], Awaitable[T]]


class Lost(Exception):
    """The process that was asked is gone; whether it did what it was asked nobody knows."""


class SimClock(Clock):
    """The loop's time, and how wrong this process reads it."""

    is_real = False

    def __init__(self, loop: SimLoop, skew_seconds: float = 0.0) -> None:
        self.loop = loop
        self.skew = skew_seconds
        self._before_jump = (0.0, 0)

    def now(self) -> Instant:
        return instant(START_AT + round((self.loop.time() + self.skew) * SECOND))

    def monotonic(self) -> float:
        return self.loop.time()

    def jump(self, seconds: float) -> None:
        self._before_jump = (self.loop.time(), self.latest())
        self.skew += seconds

    def latest(self) -> int:
        """The latest moment that a transaction which is still running can have read."""
        jumped, before = self._before_jump
        recent = self.loop.time() - jumped < LONGEST_TRANSACTION_SECONDS
        return max(microseconds(self.now()), before if recent else 0)


class Process:
    """One process. `name` is never used twice; `base` is, by those who replace each other."""

    def __init__(self, world: World, name: str, base: str, shard: int, skew: float) -> None:
        self.world, self.name, self.base, self.shard = world, name, base, shard
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, name)
        self.clock = SimClock(world.loop, skew)
        self.chance = SeededChance(random.Random(f"{world.seed}:{name}").getrandbits(64))
        engine = world.storage.engine(name, self.context)
        url = f"sqlite:///{world.storage.path}"
        self.database = Database(url, clock=self.clock, chance=self.chance, engine=engine)
        self.runtime: Runtime = self.context.run(self._runtime)
        self.scanner = Scanner(self.runtime, every=LOOK_SECONDS, limits=LIMITS)
        self.asked_at = self.tidied_at = -LONG_POLL_SECONDS
        self.requests: dict[asyncio.Task[Any], asyncio.Future[Any]] = {}
        self.is_ending = False
        self.nudged = self.context.run(asyncio.Event)
        self.main = world.loop.create_task(self.live(), context=self.context)

    def _runtime(self) -> Runtime:
        world = self.world
        return Runtime(
            self.database,
            provider=world.outside,
            shard=self.shard,
            evaluator=world.evaluator,
        )

    async def live(self) -> None:
        """Until the process is told to end."""
        while not self.is_ending:
            try:
                if not await self.work():
                    await self.idle()
            except Unavailable:
                await self.clock.sleep(5.0)
            except asyncio.CancelledError:
                self.world.note("cancelled", self.name)
            except Exception:
                self.world.failed(self, traceback.format_exc())
                await self.clock.sleep(5.0)
        with suppress(Unavailable):
            await self.runtime.release()
        await self.database.close()
        self.world.ended(self)

    async def work(self) -> int:
        """One pass: how much there was to do. What would find nothing is mostly left out, for that
        is what the simulation would spend its time on."""
        runtime, done = self.runtime, 0
        timers, events, effects, looks = self.world.due(self.clock)
        if timers:
            done += sum(await runtime.wake())
        if events:
            done += await runtime.catch_up()
        if effects:
            done += sum(await runtime.deliver())
        return done + await self.look(is_due=looks) + await self.tidy()

    async def look(self, *, is_due: bool) -> int:
        now = self.world.now()
        if not (is_due or (self.world.scans() and now - self.asked_at >= LOOK_SECONDS)):
            return 0
        self.asked_at = now
        return await self.scanner.look_once()

    async def tidy(self) -> int:
        waits = self.world.now() - self.tidied_at < TIDY_SECONDS
        if not self.world.is_left() and (waits or not self.world.drains()):
            return 0
        self.tidied_at = self.world.now()
        return await lifecycle.tidy_once(self.runtime)

    async def idle(self) -> None:
        """Sleep until something is due or somebody says that there is something."""
        seconds = self.world.seconds_until_due(self.clock)
        if self.world.scans():
            seconds = min(seconds, max(self.asked_at + LOOK_SECONDS - self.world.now(), 1.0))
        elif self.world.now() < self.world.scanning[0]:
            seconds = min(seconds, self.world.scanning[0] - self.world.now())
        if self.world.drains():
            seconds = min(seconds, TIDY_SECONDS)
        self.nudged.clear()
        waker = self.world.loop.call_later(seconds, self.nudged.set, context=self.context)
        try:
            await self.nudged.wait()
        finally:
            waker.cancel()

    def ask(self, request: Request[T]) -> asyncio.Future[T]:
        """Have a request done here; the answer is `Lost` where the process does not live to give
        it."""
        answer: asyncio.Future[T] = self.world.loop.create_future()
        task = self.world.loop.create_task(_asked(request, self.runtime), context=self.context)
        self.requests[task] = answer
        task.add_done_callback(self._answer, context=self.world.context)
        return answer

    def _answer(self, task: asyncio.Task[Any]) -> None:
        answer = self.requests.pop(task, None)
        if answer is None or answer.done():
            return
        if task.cancelled():
            answer.set_exception(Lost())
        elif error := task.exception():
            answer.set_exception(error)
        else:
            answer.set_result(task.result())

    def lose(self) -> None:
        """Tell everybody who waits for an answer that there will be none."""
        for answer in self.requests.values():
            if not answer.done():
                answer.set_exception(Lost())
        self.requests.clear()


async def _asked(request: Request[T], runtime: Runtime) -> T:
    return await request(runtime)


class World:
    """Everything there is in one seed."""

    def __init__(self, seed: int, path: Path, faults: Faults, processes: int) -> None:
        self.seed = seed
        self.loop = SimLoop(f"{seed}:loop")
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, OUTSIDE)
        self.storage = Storage(path, self.loop, f"{seed}:storage")
        self.random = random.Random(f"{seed}:world")
        self.faults = faults
        self.storage.faults = faults
        faults.world = self
        self.clock = SimClock(self.loop)
        self.outside = Outside(self.loop, faults, f"{seed}:outside")
        self.raw = self.storage.raw()
        self.bases = [f"p{number}" for number in range(processes)]
        self.living: dict[str, Process] = {}
        self.remains: list[Process] = []
        self.born = 0
        self.failures: list[str] = []
        self.loop.set_exception_handler(lambda loop, told: self.note(told["message"]))
        self.trace: Callable[[str], None] | None = None
        self.evaluator: Evaluator = evaluate
        self.scanning = (0.0, 0.0)

    # --- time

    def now(self) -> float:
        return self.loop.time()

    def note(self, *words: object) -> None:
        """A line of the trace, where one is asked for."""
        if self.trace is not None:
            self.trace(f"{self.clock.now()} " + " ".join(map(str, words)))

    def seconds_until_due(self, clock: SimClock) -> float:
        """How long a process with this clock may sleep."""
        times = [at for at in self._next_of_each() if at is not None]
        if not times:
            return LONG_POLL_SECONDS
        wait = (min(times) - microseconds(clock.now())) / SECOND
        return min(max(wait, 0.05), LONG_POLL_SECONDS)

    def due(self, clock: SimClock) -> list[bool]:
        """Whether there are timers, events, effects and looks to be handled by whoever has this
        clock."""
        now = microseconds(clock.now())
        *others, look = self._next_of_each()
        due = [(at is not None and at <= now) or self.random.random() < IDLE_CALLS for at in others]
        return [*due, look is not None and look <= now]

    def _next_of_each(self) -> tuple[int | None, ...]:
        """The last one is that of the looks; once the scanners rest only those that have begun."""
        *others, look, begun = tuple(self.raw.execute(NEXT_OF_EACH).fetchone())
        return (*others, look if self.scans() else begun)

    def scans(self) -> bool:
        begin, end = self.scanning
        return begin <= self.now() < end

    def drains(self) -> bool:
        return self._is(DRAINS)

    def is_left(self) -> bool:
        """Whether something was put away that nobody has taken back."""
        return self._is(LEFT)

    def _is(self, query: str) -> bool:
        return bool(self.raw.execute(query).fetchone()[0])

    # --- processes

    def start(self) -> None:
        for base in self.bases:
            self.spawn(base)

    def spawn(self, base: str, shard: int | None = None) -> None:
        """A process begins, with a clock of its own."""
        self.born += 1
        skew = self.random.choice(SKEWS) if self.faults.chance("skew") else 0.0
        number = self.bases.index(base) if shard is None else shard
        process = Process(self, f"{base}.{self.born}", base, number, skew)
        self.living[process.name] = process
        self.note("born", process.name, f"skew {skew:+}")

    def anybody(self) -> Process | None:
        """Some process that is not ending."""
        able = [process for process in self.living.values() if not process.is_ending]
        return self.random.choice(able) if able else None

    def nudge(self) -> None:
        """Somebody has work for everybody: they hear of it within a poll."""
        for process in self.living.values():
            self.loop.call_later(
                self.random.random() * NUDGE_SECONDS, process.nudged.set, context=process.context
            )

    def ended(self, process: Process) -> None:
        """A process has ended by itself; another one takes its place."""
        self.loop.kill(process.name)  # whatever it had not finished ends with it
        process.lose()
        self.storage.drop(process.name)
        self._replace(process)

    def _replace(self, process: Process) -> None:
        self.living.pop(process.name, None)
        self.remains.append(process)
        shard = process.shard
        if self.faults.chance("restart_other"):
            shard = (self.born + len(self.bases)) % SHARDS
        delay = self.random.choice(RESTART_SECONDS)
        self.loop.call_later(delay, partial(self.spawn, process.base, shard), context=self.context)

    def failed(self, process: Process, told: str) -> None:
        """The product raised what it should not."""
        self.note("failed", process.name, told)
        self.failures.append(f"{process.name} raised:\n{told}")

    # --- what faults do

    def kill(self, name: str) -> None:
        self.note("kill", name)
        process = self.living[name]
        self.loop.kill(name)
        self.storage.drop(name)
        process.lose()
        self._replace(process)

    def kill_all(self) -> None:
        for name in list(self.living):
            self.kill(name)

    def stop(self, name: str) -> None:
        self.note("stop", name)
        process = self.living[name]
        process.is_ending = True
        process.nudged.set()

    def cancel(self, name: str, *, everything: bool) -> None:
        self.note("cancel", name, "everything" if everything else "")
        tasks = self.loop.tasks_of(name) if everything else [self.living[name].main]
        for task in tasks:
            task.cancel()

    def pause(self, name: str, seconds: float) -> None:
        if self.loop.is_stopped(name):
            return
        self.note("pause", name, f"{seconds:.1f} s")
        self.loop.stop_process(name)
        self.loop.call_later(seconds, self.loop.go_on, name, context=self.context)

    def jump(self, name: str, seconds: float) -> None:
        self.note("jump", name, f"{seconds:+} s")
        self.living[name].clock.jump(seconds)

    def slow_down(self, seconds: float) -> None:
        self.note("slow", f"{seconds:.1f} s")
        self.storage.slow_until = self.now() + seconds

    def heal(self) -> None:
        """No fault from now on: clocks are right, nobody is stopped."""
        self.note("heal")
        self.faults.is_quiet = True
        self.storage.slow_until = 0.0
        for process in self.living.values():
            process.clock.skew = 0.0
            process.nudged.set()

    def is_busy(self) -> bool:
        """Whether something will happen by itself."""
        return self.scans() or self.is_left() or any(self._next_of_each())

    def until_due(self) -> float:
        """How long the referee may look away."""
        return max(self.seconds_until_due(self.clock), 60.0)

    def close(self) -> None:
        """The end of the world: files are closed, and all that lived may be collected."""
        self.raw.close()
        self.storage.close()
        for process in [*self.remains, *self.living.values()]:
            dialect: Any = process.database.engine.sync_engine.dialect
            # The pool would begin to close what it finds lost, on a loop that is over.
            dialect.do_terminate = dialect.do_close = dialect.do_rollback = lambda connection: None
        self.loop.bury()
        self.loop.close()


NEXT_OF_EACH = f"""
    SELECT (SELECT min(try_at) FROM timers WHERE bucket < {HELD_BUCKET}) AS timers,
        (SELECT min(try_at) FROM inbox q WHERE NOT EXISTS (
            SELECT 1 FROM inbox e WHERE e.tenant_id = q.tenant_id AND e.user_id = q.user_id
            AND e.journey_id = q.journey_id AND e.number < q.number)) AS events,
        (SELECT min(at) FROM (
            SELECT min(try_at) AS at FROM outbox WHERE try_at < {NEVER}
            UNION ALL SELECT min(send_at) FROM deferred_sends)) AS effects,
        (SELECT min(try_at) FROM looks WHERE try_at < {NEVER}) AS looks,
        (SELECT min(try_at) FROM looks WHERE try_at < {NEVER} AND slot_at IS NOT NULL) AS begun"""
"""When there is something to do next, for whoever has the right time."""
LEFT = f"""
    SELECT EXISTS (SELECT 1 FROM timers JOIN journeys j USING (tenant_id, journey_id)
            WHERE bucket = {HELD_BUCKET} AND pause_mode <> 'freeze'
            AND j.status IN ('published', 'paused'))
        OR EXISTS (SELECT 1 FROM outbox JOIN journeys USING (tenant_id, journey_id)
            WHERE try_at = {NEVER} AND pause_mode <> 'freeze')"""
DRAINS = "SELECT EXISTS (SELECT 1 FROM journeys WHERE pause_mode = 'drain')"
