"""An event loop in which a seed decides what runs next, and time passes only while everybody waits.

Every callback belongs to a process, told by `PROCESS` in its context. A process that was killed
never runs again, and nothing of it is cleaned up, as after a SIGKILL; one that is stopped keeps its
callbacks until it goes on, as after a SIGSTOP.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Coroutine, Generator
from contextlib import suppress
from contextvars import Context, ContextVar
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

OUTSIDE = "outside"  # what belongs to no process: the clients, the chaos, the referee
PROCESS: ContextVar[str] = ContextVar("process", default=OUTSIDE)

MOST_TURNS_AT_ONE_MOMENT = 20_000  # more callbacks than that without time passing is a livelock
MOST_TURNS = 200_000  # a seed takes some thousand


class Stalled(Exception):
    """Nothing will ever happen again, or things happen for ever and no time passes."""


class SimLoop(asyncio.BaseEventLoop):
    """Takes one ready callback a turn, chosen by the seed; `now` is in virtual seconds."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, seed: str) -> None:
        super().__init__()
        self.now = 0.0
        self.turns = 0
        self._turns_at_now = 0
        self._random = random.Random(seed).random
        self._dead: set[str] = set()
        self._stopped: dict[str, list[asyncio.Handle]] = {}
        self._tasks: WeakKeyDictionary[asyncio.Task[Any], str] = WeakKeyDictionary()
        self._grave: list[object] = []

    def time(self) -> float:
        return self.now

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
        **options: Any,
    ) -> asyncio.Task[T]:
        shown = None if name is None else str(name)
        task = super().create_task(coro, name=shown, context=context, **options)
        process = PROCESS.get() if context is None else context.get(PROCESS, OUTSIDE)
        self._tasks[task] = process
        return task

    def kill(self, process: str) -> None:
        """End a process at once: no `finally`, no `except`, no callback of it runs any more."""
        self._dead.add(process)
        self._grave += self._stopped.pop(process, [])
        self._grave += self.tasks_of(process)  # collected, they would run their `finally`

    def stop_process(self, process: str) -> None:
        """Let a process do nothing until `go_on`."""
        self._stopped.setdefault(process, [])

    def go_on(self, process: str) -> None:
        self._ready.extend(self._stopped.pop(process, []))

    def is_dead(self, process: str) -> bool:
        return process in self._dead

    def is_stopped(self, process: str) -> bool:
        return process in self._stopped

    def tasks_of(self, process: str) -> list[asyncio.Task[Any]]:
        """What a process has not finished, oldest first."""
        return [task for task, owner in self._tasks.items() if owner == process and not task.done()]

    def bury(self) -> None:
        """Forget the dead, when nothing they do can do any harm. The collector cannot see into a
        greenlet that waits, so what they wait in is closed by hand."""
        for task in list(self._tasks):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = task.get_coro()
            if not task.done() and isinstance(coroutine, Coroutine):
                with suppress(BaseException):
                    coroutine.close()
        self._grave.clear()
        self._stopped.clear()

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled
        if not ready:
            self._pass_time()
        while scheduled and scheduled[0].when() <= self.now:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False  # type: ignore[attr-defined]
            ready.append(handle)
        place = int(self._random() * len(ready)) if len(ready) > 1 else 0
        chosen = ready[place]
        del ready[place]
        if not chosen.cancelled():
            self._take(chosen)

    def _pass_time(self) -> None:
        scheduled = self._scheduled
        while scheduled and scheduled[0].cancelled():
            heapq.heappop(scheduled)._scheduled = False  # type: ignore[attr-defined]
        if not scheduled:
            raise Stalled(f"deadlock at {self.now:.3f} s: nothing is scheduled")
        if scheduled[0].when() > self.now:
            self.now = scheduled[0].when()
            self._turns_at_now = 0

    def _take(self, handle: asyncio.Handle) -> None:
        context: Context = handle._context  # type: ignore[attr-defined]
        process = context.get(PROCESS, OUTSIDE)
        if process in self._dead:
            self._grave.append(handle)
            return
        if process in self._stopped:
            self._stopped[process].append(handle)
            return
        self.turns += 1
        self._turns_at_now += 1
        if self._turns_at_now > MOST_TURNS_AT_ONE_MOMENT or self.turns > MOST_TURNS:
            raise Stalled(f"livelock at {self.now:.3f} s in {process}: {handle!r}")
        handle._run()

    def _process_events(self, event_list: Any) -> None:
        """There are no sockets."""

    def _write_to_self(self) -> None:
        """There are no threads to be woken by."""
