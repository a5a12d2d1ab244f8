"""One worker a SQLite file, held by real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from journeykit_server.clock import Clock
from journeykit_server.holder import Held, Holder

ROOT = Path(__file__).parents[2]
HOLDS = """
import asyncio, sys
from pathlib import Path
from journeykit_server.clock import Clock
from journeykit_server.holder import Holder
holder = Holder(Path(sys.argv[1]))
asyncio.run(holder.take(Clock()))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "journeykit.db"


@pytest.fixture
def other(file: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of `file` until its input ends."""
    path = os.pathsep.join(str(ROOT / home) for home in ("engine", "server"))
    started = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert started.stdout and started.stdout.readline() == "held\n"
    yield started
    started.kill()
    started.communicate()


async def test_the_second_is_refused_and_told_who_holds(
    file: Path, other: subprocess.Popen[str]
) -> None:
    with pytest.raises(Held) as refused:
        await Holder(file).take(Clock())

    assert str(refused.value) == (
        f'A worker already works on "{file}": process {other.pid}. A SQLite file has one worker. '
        "Stop that one first, or use PostgreSQL, where any number share the work."
    )


async def test_it_is_the_same_lock_by_another_name(
    file: Path, other: subprocess.Popen[str], tmp_path: Path
) -> None:
    (tmp_path / "link.db").symlink_to(file)

    with pytest.raises(Held):
        await Holder(tmp_path / "link.db").take(Clock())


async def test_kill_9_lets_the_next_one_in(file: Path, other: subprocess.Popen[str]) -> None:
    other.kill()
    other.wait()
    left_behind = file.with_name("journeykit.db.worker")
    assert left_behind.read_text() == str(other.pid)

    await Holder(file).take(Clock())

    assert left_behind.read_text() == str(os.getpid())


def test_who_holds_can_be_asked(file: Path, other: subprocess.Popen[str]) -> None:
    assert Holder(file).pid() == other.pid

    other.kill()
    other.wait()

    assert Holder(file).pid() is None


async def test_after_a_release_nobody_holds(file: Path) -> None:
    assert Holder(file).pid() is None
    first = Holder(file)
    await first.take(Clock())
    assert Holder(file).pid() == os.getpid()

    first.release()

    assert Holder(file).pid() is None
    await Holder(file).take(Clock())


async def test_somebody_who_only_looks_keeps_nobody_out(file: Path) -> None:
    """The look takes the lock for an instant; a worker that starts just then tries again."""
    looking, starting = Holder(file), Holder(file)
    await looking.take(Clock())

    class Looked(Clock):
        async def sleep(self, seconds: float) -> None:
            looking.release()

    await starting.take(Looked())

    assert Holder(file).pid() == os.getpid()
