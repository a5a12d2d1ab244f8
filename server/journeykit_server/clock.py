"""Time and chance as things that are given: the shell reads them here and nowhere else.

A worker is built with a `Clock` and a `Chance`; a test builds it with others, and the whole server
then lives in a time that the test moves.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time

from whenever import Instant, TimeDelta

TOKEN_BYTES = 12  # 96 random bits: two leases never share a token


class Clock:
    """The machine's clock: `now` for what is written, `monotonic` for how long something took."""

    is_real = True

    def now(self) -> Instant:
        """The time of day, to the microsecond: what a database can keep."""
        return instant(time.time_ns() // 1_000)

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Let others work for so long."""
        await asyncio.sleep(seconds)


class VirtualClock(Clock):
    """A clock that stands still until it is told to go on; sleeping moves it.

    >>> import asyncio
    >>> clock = VirtualClock(Instant("2026-06-01T10:00:00Z"))
    >>> asyncio.run(clock.sleep(90))
    >>> clock.now()
    Instant("2026-06-01 10:01:30Z")
    """

    is_real = False

    def __init__(self, start: Instant) -> None:
        self._now = instant(microseconds(start))
        self._passed = 0.0

    def now(self) -> Instant:
        return self._now

    def monotonic(self) -> float:
        return self._passed

    async def sleep(self, seconds: float) -> None:
        self.set(self._now + TimeDelta(seconds=seconds))
        await asyncio.sleep(0)

    def set(self, moment: Instant) -> None:
        """Jump to a moment, forth or back; `monotonic` stays where it is when time goes back."""
        before, self._now = self._now, instant(microseconds(moment))
        self._passed += max(0.0, (self._now - before).total("seconds"))


class Chance:
    """Names nobody can guess and waits nobody shares; what a person gets is never drawn here."""

    def token(self) -> str:
        """A name that no other call ever gets."""
        return secrets.token_hex(TOKEN_BYTES)

    def fraction(self) -> float:
        """A number in [0, 1)."""
        return random.random()


class SeededChance(Chance):
    """The same names and numbers on every run of a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def token(self) -> str:
        return self._random.randbytes(TOKEN_BYTES).hex()

    def fraction(self) -> float:
        return self._random.random()


def instant(microseconds: int) -> Instant:
    """The instant of a column: microseconds since 1970 in UTC."""
    return Instant.from_timestamp(microseconds * 1_000, unit="nanosecond")


def microseconds(moment: Instant) -> int:
    """A column of an instant. What is finer than a microsecond is cut off.

    >>> microseconds(Instant("1970-01-01T00:00:01.0000019Z"))
    1000001
    """
    return moment.timestamp(unit="nanosecond") // 1_000
