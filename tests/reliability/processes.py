"""Worker processes of a test: started, killed, stopped, let go on, and asked what they said.

They are forked from one process that has imported everything, so that one more costs little.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from tests.reliability.worker_process import Plan, live

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(
    [
        "tests.reliability.worker_process",
        "journeykit_server.migrate",
        "journeykit_server.worker",
        "sqlalchemy.dialects.postgresql.asyncpg",
        "aiosqlite",
    ]
)
PATIENCE_SECONDS = 60.0  # until something that must happen is given up; the machine may be slow
LOOK_SECONDS = 0.02


class Process:
    """One worker."""

    def __init__(self, plan: Plan) -> None:
        self.log = Path(plan.log)
        self.process = FORKED.Process(target=live, args=(plan,), daemon=True)
        self.process.start()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def lives(self) -> bool:
        return self.process.is_alive()

    @property
    def said(self) -> str:
        """All that it has told so far."""
        return self.log.read_text() if self.log.exists() else ""

    def counted(self, figure: str) -> int:
        """The sum of a figure in all that it has told: of "fenced", say."""
        return sum(int(number) for number in re.findall(rf"\b{figure}=(\d+)", self.said))

    async def counts(self, figure: str, number: int) -> None:
        """Wait until it has told of so many."""
        told = f"{figure}={number} in all from a worker that said:\n"
        await until(lambda: self.counted(figure) == number, told, self)

    def kill(self) -> None:
        """It dies without a word."""
        self.process.kill()
        self.process.join()

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def ask_to_stop(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    async def halts(self, place: str) -> None:
        """Wait until it has stopped itself there."""
        await self.says(f"HALT {place}\n")
        await until(self._stands_still, f'a worker that stops at "{place}"')

    def _stands_still(self) -> bool:
        asked = ["ps", "-o", "state=", "-p", str(self.pid)]
        return subprocess.run(asked, capture_output=True, text=True).stdout.startswith("T")

    async def says(self, words: str) -> None:
        """Wait for these words."""
        await until(lambda: words in self.said, f'"{words}" from a worker that said:\n', self)

    async def ends(self) -> int:
        """Its exit code, once it has ended."""
        await until(lambda: not self.lives, "the end of a worker that said:\n", self)
        self.process.join()
        assert self.process.exitcode is not None
        return self.process.exitcode


async def until(happened: Callable[[], bool], what: str, process: Process | None = None) -> None:
    """Wait for something that must happen."""
    loop = asyncio.get_running_loop()
    end = loop.time() + PATIENCE_SECONDS
    while not happened():
        if loop.time() > end:
            said = process.said if process else ""
            raise AssertionError(f"waited {PATIENCE_SECONDS:g} s in vain for {what}{said}")
        await asyncio.sleep(LOOK_SECONDS)


class Crew:
    """The workers of one database; `plan` is what they have in common."""

    def __init__(self, url: str, folder: Path, **plan: Any) -> None:
        self.url = url
        self.folder = folder
        self.plan = plan
        self.numbers = count(1)
        self.all: list[Process] = []

    def start(self, **plan: Any) -> Process:
        """One more worker."""
        log = self.folder / f"worker-{next(self.numbers)}.log"
        started = Process(Plan(self.url, str(log), **{**self.plan, **plan}))
        self.all.append(started)
        return started

    @property
    def living(self) -> list[Process]:
        return [process for process in self.all if process.lives]

    def faults(self) -> list[str]:
        """What no worker may say, whatever happens to it."""
        said = [line for process in self.all for line in process.said.splitlines()]
        return [line for line in said if "Traceback" in line or "a turn of the" in line]

    async def stop(self) -> None:
        """Ask everybody to stop; all do, and none had a fault."""
        living = self.living
        for process in living:
            await process.says("worker started")  # before that, a signal is the end
            process.ask_to_stop()
        codes = [await process.ends() for process in living]
        assert codes == [0] * len(living)
        assert self.faults() == []


@contextmanager
def crew(url: str, folder: Path, **plan: Any) -> Iterator[Crew]:
    """Workers of this database, none of which outlives the block."""
    folder.mkdir(exist_ok=True)
    workers = Crew(url, folder, **plan)
    try:
        yield workers
    finally:
        for process in workers.living:
            process.kill()
