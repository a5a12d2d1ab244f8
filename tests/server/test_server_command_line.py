"""The server's commands as a person and a supervisor use them: real processes, real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from journeykit_server.migrate import shown
from tests import postgres as throwaway
from tests.databases import open_database, postgresql_address

ROOT = Path(__file__).parents[2]
PATH = os.pathsep.join(str(ROOT / home) for home in ("engine", "sdk", "server"))
PATIENCE_SECONDS = 60  # for a process on a slow machine to come as far as is waited for
NO_SERVER = """
import sys
sys.modules["sqlalchemy"] = None
from journeykit.__main__ import main
main()
"""
EXIT_SECONDS = 5  # from the last line of a script to its end, as the case has it
FORGETFUL = """
import asyncio
from journeykit_server.database import Database
from journeykit_server.migrate import migrate
from journeykit_server.publishing import list_journeys
async def look():
    database = Database()
    await migrate(database)
    print(await list_journeys(database, 1), flush=True)
asyncio.run(look())
"""


class Done(NamedTuple):
    """What a call came to."""

    code: int
    out: str
    err: str


class Shell:
    """Calls commands in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []

    def call(self, *words: str, **settings: str) -> Done:
        return self.python("-m", "journeykit", *words, **settings)

    def python(self, *words: str, **settings: str) -> Done:
        done = subprocess.run(
            [sys.executable, *words], timeout=PATIENCE_SECONDS, **self._how(settings)
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def worker(self, *words: str) -> subprocess.Popen[str]:
        """A worker that has said that it started."""
        command = [sys.executable, "-m", "journeykit", "worker", *words]
        started = subprocess.Popen(command, **self._how({}))
        self.started.append(started)
        assert started.stderr and "worker started" in started.stderr.readline()
        return started

    def _how(self, settings: dict[str, str]) -> dict[str, Any]:
        known = {name: value for name, value in os.environ.items() if "JOURNEYKIT" not in name}
        environment = {**known, "PYTHONPATH": PATH, "PYTHONUTF8": "1", **settings}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return {"cwd": self.folder, "env": environment, **streams}


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    opened = Shell(tmp_path)
    yield opened
    for process in opened.started:
        process.kill()
        process.communicate()


@pytest.fixture
def bare_postgresql(postgres: Path) -> Iterator[str]:
    """The address of a PostgreSQL with nothing in it."""
    throwaway.tell(postgres, "CREATE DATABASE bare_command_line")
    yield postgresql_address(postgres, "bare_command_line")
    throwaway.tell(postgres, "DROP DATABASE bare_command_line WITH (FORCE)")


def test_a_file_is_made_examined_and_verified(shell: Shell) -> None:
    assert shell.call("migrate") == Done(0, "applied 0001\napplied 0002\n", "")
    assert shell.call("migrate") == Done(0, "nothing to do\n", "")
    assert shell.call("verify") == Done(0, "every number is what the journal says\n", "")
    told = shell.call("doctor")
    assert (told.code, told.err) == (0, "")
    assert "ok    The schema is current.\n" in told.out


def test_the_address_may_come_from_the_environment(shell: Shell) -> None:
    shell.call("migrate", JOURNEYKIT_DATABASE_URL="sqlite:///shop.db")

    assert (shell.folder / "shop.db").is_file()
    assert not (shell.folder / "journeykit.db").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_is_told_to_stop_leaves_with_0(shell: Shell, number: int) -> None:
    worker = shell.worker()

    worker.send_signal(number)
    _, told = worker.communicate(timeout=PATIENCE_SECONDS)

    assert worker.returncode == 0
    assert f"INFO worker stopped pid={worker.pid} database=sqlite:///journeykit.db\n" in told


def test_a_second_signal_ends_it_at_once(shell: Shell) -> None:
    """Its first is not heard to the end: another process holds the file, so that nothing ends."""
    worker = shell.worker()
    lock = "import sqlite3, sys; c = sqlite3.connect('journeykit.db', isolation_level=None)\n"
    lock += "c.execute('BEGIN IMMEDIATE'); print('locked', flush=True); sys.stdin.read()"
    writer = subprocess.Popen([sys.executable, "-c", lock], stdin=subprocess.PIPE, **shell._how({}))
    shell.started.append(writer)
    assert writer.stdout and writer.stdout.readline() == "locked\n"
    threading.Event().wait(2)  # more than a poll: a transaction of the worker waits now

    worker.terminate()
    threading.Event().wait(0.5)
    assert worker.poll() is None
    worker.terminate()

    assert worker.wait(timeout=PATIENCE_SECONDS) == 128 + signal.SIGTERM


def test_a_second_worker_on_one_file_is_refused(shell: Shell) -> None:
    first = shell.worker()

    assert shell.call("worker") == Done(
        1,
        "",
        f'journeykit: A worker already works on "journeykit.db": process {first.pid}. A SQLite '
        "file has one worker. Stop that one first, or use PostgreSQL, where any number share the "
        "work.\n",
    )


def test_kill_9_leaves_nothing_that_keeps_the_next_one_out(shell: Shell) -> None:
    first = shell.worker()
    first.kill()
    first.wait()

    assert shell.worker().poll() is None


def test_on_postgresql_somebody_migrates_and_then_several_work(
    shell: Shell, bare_postgresql: str
) -> None:
    to_it = ("--database-url", bare_postgresql)
    address = shown(open_database(bare_postgresql))

    assert shell.call("worker", *to_it) == Done(
        1,
        "",
        'journeykit: The database is of revision none, this journeykit needs "0002". '
        f"Run: journeykit migrate --database-url {address}\n",
    )
    assert shell.call("doctor", *to_it).code == 1
    assert shell.call("migrate", *to_it) == Done(0, "applied 0001\napplied 0002\n", "")
    workers = [shell.worker(*to_it, "--log-format", "json") for _ in range(2)]
    for worker in workers:
        worker.terminate()
        told = worker.communicate(timeout=PATIENCE_SECONDS)[1]
        assert worker.returncode == 0
        assert '"level":"INFO","message":"worker stopped","pid":' in told


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (
            ("migrate", "--database-url", "mysql://db/app"),
            1,
            'journeykit: The database address "mysql://db/app" cannot be used. Write '
            "sqlite:///journeykit.db or postgresql://user:password@host/database.\n",
        ),
        (
            ("verify", "--database-url", "sqlite:///none.db"),
            1,
            'journeykit: There is no file "none.db". Name the database with --database-url.\n',
        ),
        (
            ("doctor", "--nonsense"),
            2,
            "Usage: journeykit doctor [OPTIONS]\nTry 'journeykit doctor -h' for help.\n\n"
            "Error: No such option: --nonsense\n",
        ),
    ],
    ids=["address", "file", "usage"],
)
def test_what_cannot_be_done_is_one_clear_line(
    shell: Shell, words: tuple[str, ...], code: int, complaint: str
) -> None:
    assert shell.call(*words) == Done(code, "", complaint)
    assert list(shell.folder.iterdir()) == []


def test_without_the_server_its_commands_say_what_to_install(shell: Shell) -> None:
    assert shell.python("-c", NO_SERVER, "worker") == Done(
        1,
        "",
        'journeykit: The command "worker" needs the server: pip install "journeykit[server]".\n',
    )


def test_help_does_not_wait_for_the_server(shell: Shell) -> None:
    helped = "import sys\nfrom journeykit.__main__ import app\n"
    helped += "try: app(['--help'])\nexcept SystemExit: pass\n"
    helped += "print([name for name in sys.modules if name.split('.')[0] in "
    helped += "('sqlalchemy', 'alembic', 'journeykit_server')])"

    assert shell.python("-c", helped).out.endswith("\n[]\n")


def test_importing_opens_nothing_and_starts_no_thread(shell: Shell) -> None:
    """The case timer-import-has-no-side-effects."""
    importing = "import threading, journeykit_server.runtime, journeykit_server.worker\n"
    importing += "import journeykit_server.migrate, journeykit_server.__main__\n"
    importing += "print(threading.active_count())"

    assert shell.python("-c", importing) == Done(0, "1\n", "")
    assert list(shell.folder.iterdir()) == []


def test_a_script_that_forgets_to_close_still_ends(shell: Shell) -> None:
    """The case timer-process-exits."""
    script = subprocess.Popen([sys.executable, "-c", FORGETFUL], **shell._how({}))
    shell.started.append(script)
    assert script.stdout and script.stdout.readline() == "[]\n"

    assert script.wait(timeout=EXIT_SECONDS) == 0
    assert script.stderr and script.stderr.read() == ""
