"""What the engine knows as a value comes back from its row as it was."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from sqlalchemy import select

from journeykit_engine.instance import Assignment, ExitReason, Instance, Status, Wait, WaitKind
from journeykit_server.clock import instant, microseconds
from journeykit_server.database import Database
from journeykit_server.rows import (
    INSTANCE_COLUMNS,
    bucket_of,
    has_timer,
    instance_key,
    instance_values,
    read_instance,
)
from journeykit_server.store import ADD_INSTANCES
from journeykit_server.tables import HELD_BUCKET, NEVER_BUCKET, instances
from tests.databases import START
from tests.graphs import ids, texts

FIRST, LAST = -62_135_596_800_000_000, 253_402_300_799_999_999  # years 1 to 9999
MINUTE = 60_000_000

moments = st.integers(FIRST, LAST).map(instant)
"""To the microsecond, which is what a store keeps."""
numbers = st.integers(1, 2**62)
STATUSES: tuple[Status, ...] = ("active", "waiting", "completed", "exited")
REASONS: tuple[ExitReason, ...] = ("completed", "no_next_node", "exit_criteria", "ejected")


def maybe(value: SearchStrategy[Any]) -> SearchStrategy[Any]:
    return st.none() | value


@st.composite
def waits(draw: DrawFn, since: Any, until: Any) -> Wait:
    """Mostly since the last step and until the person wakes, as it is stored most shortly."""
    kinds: tuple[WaitKind, ...] = ("timer", "event", "window")
    return Wait(
        draw(ids),
        draw(st.sampled_from(kinds)),
        draw(st.just(since) | moments),
        draw(st.just(until) | maybe(moments)),
        tuple(draw(st.lists(texts, max_size=3))),
    )


@st.composite
def passes(draw: DrawFn) -> Instance:
    status = draw(st.sampled_from(STATUSES))
    entered, wake_at = draw(moments), draw(maybe(moments))
    updated = draw(st.just(entered) | moments)
    arms = st.builds(Assignment, st.just("") | texts, st.booleans())
    return Instance(
        draw(numbers),
        draw(numbers),
        draw(numbers),
        draw(ids),
        draw(numbers),
        status,
        draw(ids),
        entered,
        updated,
        wake_at,
        draw(st.just("") | texts),
        draw(st.just("") | texts),
        draw(st.booleans()),
        "" if status in STATUSES[:2] else draw(st.sampled_from(REASONS)),
        draw(st.dictionaries(ids, arms, max_size=3)),
        draw(st.dictionaries(ids, st.integers(1, 99), max_size=3)),
        draw(maybe(waits(updated, wake_at))),
        draw(maybe(moments)),
    )


@given(passes(), numbers)
def test_any_pass_comes_back_from_its_row(instance: Instance, rev: int) -> None:
    row = (*instance_key(instance), *instance_values(instance, rev))

    assert dict(zip(INSTANCE_COLUMNS, row, strict=True))["rev"] == rev
    assert read_instance(row) == instance


STANDING = Instance(
    *(1, 2, 3, "ann\u2028آن", 4, "waiting", "w", START, instant(microseconds(START) + 1)),
    wake_at=instant(LAST),
    entered_by="m1",
    variant="B",
    is_holdout=True,
    assignments={"s": Assignment("B", True), "r": Assignment("", False)},
    visits={"s": 2, "a": 1},
    wait=Wait("w", "event", START, None, ("reply", "paid")),
    paused_at=instant(FIRST),
)


async def test_a_pass_comes_back_from_the_store(database: Database) -> None:
    row = (*instance_key(STANDING), *instance_values(STANDING, 7))
    await database.run(lambda connection: ADD_INSTANCES.run(connection, [row]))

    query = select(*(instances.c[name] for name in INSTANCE_COLUMNS))
    (stored,) = list(await database.read(lambda connection: connection.execute(query)))

    assert read_instance(stored) == STANDING
    assert stored.rev == 7


def test_who_neither_waits_nor_met_a_split_costs_two_letters() -> None:
    plain = STANDING._replace(assignments={}, visits={}, wait=None)

    assert dict(zip(INSTANCE_COLUMNS[3:], instance_values(plain, 1), strict=True))["state"] == "{}"


@pytest.mark.parametrize(
    "other",
    [
        {"wake_at": None},
        {"status": "completed", "exit_reason": "completed"},
        {"status": "exited", "exit_reason": "ejected"},
        {"paused_at": START},
    ],
)
def test_only_who_wakes_by_themselves_has_a_timer(other: dict[str, Any]) -> None:
    sleeping = STANDING._replace(paused_at=None)

    assert has_timer(sleeping)
    assert not has_timer(sleeping._replace(**other))
    assert not has_timer(None)


def test_a_timer_lies_in_a_minute_that_has_not_passed() -> None:
    now = microseconds(START)
    minute = now // MINUTE

    assert bucket_of(now, now) == minute
    assert bucket_of(now - 5 * MINUTE, now) == minute
    assert bucket_of(now + MINUTE, now) == minute + 1
    assert bucket_of(now + MINUTE - 1, now) == minute
    assert bucket_of(LAST, now) < NEVER_BUCKET
    assert bucket_of(2**62, now) == HELD_BUCKET - 1
