"""Time and chance: the machine's own, and those a test gives instead."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from whenever import Instant, TimeDelta

from journeykit_server.clock import (
    Chance,
    Clock,
    SeededChance,
    VirtualClock,
    instant,
    microseconds,
)

TEN = Instant("2026-06-01T10:00:00Z")
FIRST, LAST = microseconds(Instant.MIN), microseconds(Instant.MAX)


def test_the_clock_tells_the_time_a_database_can_keep() -> None:
    before = time.time_ns() // 1_000
    now = Clock().now()
    after = time.time_ns() // 1_000

    assert before <= microseconds(now) <= after
    assert instant(microseconds(now)) == now
    assert Clock().monotonic() <= Clock().monotonic()


async def test_sleeping_on_the_machines_clock_takes_time() -> None:
    clock = Clock()
    began = clock.monotonic()
    await clock.sleep(0.01)
    assert clock.monotonic() - began >= 0.009  # timers of a loop may round down


async def test_a_virtual_clock_stands_still_until_somebody_sleeps_or_moves_it() -> None:
    clock = VirtualClock(TEN)
    assert clock.now() == clock.now() == TEN

    await clock.sleep(86_400)
    assert clock.now() == Instant("2026-06-02T10:00:00Z")

    clock.set(TEN)
    assert clock.now() == TEN


async def test_a_clock_that_goes_back_does_not_shorten_what_has_passed() -> None:
    clock = VirtualClock(TEN)
    began = clock.monotonic()

    clock.set(TEN + TimeDelta(seconds=90))
    clock.set(TEN)
    assert clock.monotonic() - began == 90

    await clock.sleep(0.5)
    assert clock.monotonic() - began == 90.5


async def test_a_virtual_clock_too_tells_whole_microseconds() -> None:
    clock = VirtualClock(Instant("2026-06-01T10:00:00.0000009Z"))
    assert clock.now() == TEN

    await clock.sleep(0.000_001_9)
    assert clock.now() == Instant("2026-06-01T10:00:00.000001Z")


async def test_sleeping_lets_others_work() -> None:
    heard: list[str] = []

    async def other() -> None:
        heard.append("other")

    task = asyncio.create_task(other())
    await VirtualClock(TEN).sleep(5)

    assert heard == ["other"]
    await task


def test_chance_gives_names_nobody_shares() -> None:
    chance = Chance()
    tokens = {chance.token() for _ in range(1_000)}

    assert len(tokens) == 1_000
    assert {len(token) for token in tokens} == {24}
    assert all(0 <= chance.fraction() < 1 for _ in range(1_000))


def test_a_seed_gives_the_same_on_every_run() -> None:
    assert [SeededChance(1).token() for _ in range(2)] == ["f5b165224a58b791df6af1d8"] * 2
    assert SeededChance(1).token() != SeededChance(2).token()

    one, other = SeededChance(7), SeededChance(7)
    drawn = [(one.token(), one.fraction()) for _ in range(5)]
    assert drawn == [(other.token(), other.fraction()) for _ in range(5)]
    assert len(set(drawn)) == 5
    assert all(0 <= fraction < 1 for _, fraction in drawn)


@given(st.integers(FIRST, LAST))
def test_a_column_and_its_instant_are_the_same_moment(column: int) -> None:
    assert microseconds(instant(column)) == column


@pytest.mark.parametrize(
    ("moment", "column"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2026-06-01T10:00:00Z", 1_780_308_000_000_000),
        ("1970-01-01T00:00:00.000001999Z", 1),
        ("1969-12-31T23:59:59.999999Z", -1),
        ("1969-12-31T23:59:59.9999999Z", -1),  # cut off towards the past, as after 1970
    ],
)
def test_the_column_of_a_moment(moment: str, column: int) -> None:
    assert microseconds(Instant(moment)) == column
