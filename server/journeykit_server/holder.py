"""One worker a SQLite file: whoever works holds a lock beside the file for as long as it lives.

The operating system drops the lock with the process, however it ends; the lock's file stays behind
and is no obstacle. The file is never deleted: another process may be opening it just then.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from journeykit_server.clock import Clock

TRIES = 3  # somebody who only looks whether there is a holder has the lock for an instant
PAUSE_SECONDS = 0.05
PID_BYTES = 20  # more than any process id has digits


class Held(Exception):
    """Another process has the lock."""


class Holder:
    """The lock of one database file."""

    def __init__(self, database_file: Path) -> None:
        self.database_file = database_file
        real = Path(os.path.realpath(database_file))  # the same lock by whatever link one comes
        self.path = real.with_name(real.name + ".worker")
        self._descriptor: int | None = None

    async def take(self, clock: Clock) -> None:
        """Hold the lock until `release` or the end of the process. Raises `Held`."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        for last in (False,) * (TRIES - 1) + (True,):
            if _lock(descriptor):
                break
            if last:
                pid = _read(descriptor)
                os.close(descriptor)
                raise Held(self._refusal(pid))
            await clock.sleep(PAUSE_SECONDS)
        _write(descriptor, str(os.getpid()))
        self._descriptor = descriptor

    def release(self) -> None:
        """Let the next one work."""
        if self._descriptor is not None:
            _write(self._descriptor, "")
            os.close(self._descriptor)
            self._descriptor = None

    def pid(self) -> int | None:
        """The process that holds the lock, 0 where it is not known; None where nobody does."""
        try:
            descriptor = os.open(self.path, os.O_RDWR)
        except FileNotFoundError:
            return None
        try:
            return None if _lock(descriptor) else _read(descriptor)
        finally:
            os.close(descriptor)

    def _refusal(self, pid: int) -> str:
        who = f"process {pid}" if pid else "another process"
        return HELD.format(who=who, file=self.database_file)


HELD = (
    'A worker already works on "{file}": {who}. A SQLite file has one worker. '
    "Stop that one first, or use PostgreSQL, where any number share the work."
)


def _write(descriptor: int, text: str) -> None:
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, text.encode())


def _read(descriptor: int) -> int:
    os.lseek(descriptor, 0, os.SEEK_SET)
    text = os.read(descriptor, PID_BYTES)
    return int(text) if text.isdigit() else 0


if sys.platform == "win32":
    import msvcrt

    _FAR = 2**30  # a place behind the text: on Windows nobody else reads what is locked

    def _lock(descriptor: int) -> bool:
        os.lseek(descriptor, _FAR, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
