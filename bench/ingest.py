"""Events a second through the whole pipeline, as a ratio to a bare insert that drops duplicates.

Of every ten events two take somebody in, one ends somebody's wait, one writes a trait, five matter
to no journey, and one was sent before; a hundred journeys are published. The bare insert writes the
same rows of `events`, in batches of the same size with the same driver, and does nothing else.

    python3 dev.py bench ingest
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from operator import truediv
from statistics import median
from typing import Any

from whenever import TimeDelta

import journeykit as jk
from bench import bare
from bench.ground import (
    START,
    TENANT,
    Ground,
    SQLite,
    calm_down,
    create_tables,
    grounds,
    opened,
    publish,
    ready,
    rows_of,
    say,
    say_ratio,
    seconds,
    set_clock,
    statements,
)
from journeykit_server.clock import microseconds
from journeykit_server.incoming import Incoming

GOAL = 0.2  # of the bare insert
JOURNEYS = 100
BATCH = 500
LATER = START + TimeDelta(hours=1)


def journeys() -> list[Any]:
    """Half of them send after a day, half wait for an event."""
    made = []
    for i in range(JOURNEYS):
        begun = jk.journey(f"journey {i}").on_event(f"came_{i}")
        waits = begun.wait_for(f"paid_{i}", timeout="7d") if is_awaiting(i) else begun.wait("1d")
        made.append(waits.send(email=1).exit())
    return made


def is_awaiting(i: int) -> bool:
    return i % 2 == 1


# --- what comes in


def before(count: int) -> list[Incoming]:
    """Those who wait for an event when the measurement begins, one for every ten events."""
    return [track(f"w_{i:06}", f"came_{awaited(i)}", f"before_{i}") for i in range(count // 10)]


def awaited(i: int) -> int:
    return 2 * i % JOURNEYS + 1


def stream(count: int) -> list[Incoming]:
    """The events, any ten of them alike; the one that was sent before is of the ten before it."""
    chance, events = random.Random(1), list[Incoming]()
    for i in range(count // 10):
        one = chance.sample(known := [f"w_{(i + j) % (count // 10):06}" for j in range(7)], 6)
        ten = [
            *(
                track(f"n_{2 * i + j}", f"came_{(2 * i + j) % JOURNEYS}", f"e_{i}_{j}")
                for j in (0, 1)
            ),
            track(f"w_{i:06}", f"paid_{awaited(i)}", f"e_{i}_2"),
            Incoming("identify", one[0], properties={"plan": f"p{i}"}, id=f"e_{i}_3"),
            *(track(one[j], "page_viewed", f"e_{i}_{3 + j}") for j in range(1, 6)),
            events[-chance.randrange(1, 11)] if events else track(known[0], "page_viewed", "e_0_9"),
        ]
        events += chance.sample(ten, len(ten))
    return events


def track(user_id: str, name: str, event_id: str) -> Incoming:
    properties = {"amount": 25.5, "currency": "EUR", "path": "/shoes/42"}
    return Incoming("track", user_id, name, properties, event_id)


def batches(events: list[Incoming], size: int = BATCH) -> Iterable[list[Incoming]]:
    return (events[i : i + size] for i in range(0, len(events), size))


# --- both sides


async def prepare(ground: Ground, base: str, count: int) -> None:
    await create_tables(ground, base)
    async with opened(ground, base) as database:
        await publish(database, journeys())
        runtime = await ready(database)
        for batch in batches(before(count)):
            await runtime.ingest(TENANT, batch)
    await ground.settle(base)


Take = Callable[[list[Incoming]], Awaitable[object]]
"""Stores one batch."""


@asynccontextmanager
async def ours(ground: Ground, base: str, like: str) -> AsyncIterator[Take]:
    """The product on a fresh copy."""
    await ground.create(base, like)
    async with opened(ground, base) as database:
        runtime = await ready(database)
        set_clock(database, LATER)
        yield partial(runtime.ingest, TENANT)
    await ground.drop(base)


@asynccontextmanager
async def by_hand(ground: Ground, base: str, like: str) -> AsyncIterator[Take]:
    """The bare insert on a fresh copy."""
    await ground.create(base, like)
    numbers, at = itertools.count(NUMBER), microseconds(LATER)

    def row(event: Incoming) -> bare.Row:
        kept = (event.user_id, event.name, event.id, event.kind)
        return bare.event_row(next(numbers), *kept, at, event.properties)

    if isinstance(ground, SQLite):
        plain = bare.open_sqlite(ground.path(base))

        async def insert(events: list[Incoming]) -> None:
            bare.insert_sqlite(plain, [row(event) for event in events])

        yield insert
        plain.close()
    else:
        connection = await ground.connect(base)
        yield lambda events: bare.insert_postgresql(connection, [row(event) for event in events])
        await connection.close()
    await ground.drop(base)


NUMBER = 1_000_000_000  # above those that the product has given out


async def rates(sides: Sequence[Take], events: list[Incoming]) -> list[float]:
    """Events a second of each. They take their batches in turn, so that what slows the machine
    slows all of them."""
    took = [0.0] * len(sides)
    for batch in batches(events):
        for i, take in enumerate(sides):
            took[i] += await seconds(partial(take, batch))
    return [len(events) / taken for taken in took]


# --- what is measured


async def assert_same(ground: Ground, count: int) -> None:
    """Both store the same events, and the product has done with them what they ask for."""
    told = []
    for base, side in (("by_hand", by_hand), ("ours", ours)):
        async with side(ground, base, "few") as take:
            for batch in batches(stream(count)):
                await take(batch)
            async with opened(ground, base) as database:
                told.append(await rows_of(database, "events", EVENT))
                instances = await rows_of(database, "instances", "status, entered_by")
    assert told[0] == told[1], "they have not stored the same events"
    entered, woken = 2 * count // 10, count // 10
    assert sum(by.startswith("e_") for _, by in instances) == entered
    assert sum(status == "completed" for status, _ in instances) == woken


EVENT = "user_id, name, source, event_id, kind, occurred_at, properties"


async def count_statements(ground: Ground, count: int) -> None:
    """A batch costs as many statements as another one, whatever its size."""
    counts = {}
    events = stream(count)
    for size in (10, 100, 500):
        await ground.create("counted", "few")
        async with opened(ground, "counted") as database:
            runtime = await ready(database)
            await runtime.ingest(TENANT, events[:10])
            with statements(database) as sent:
                await runtime.ingest(TENANT, events[10 : 10 + size])
            counts[size] = len(sent)
        await ground.drop("counted")
    assert len(set(counts.values())) == 1, f"statements by size of the batch: {counts}"
    print(f"{ground.name}: {counts[10]} statements a batch, whatever its size", flush=True)


async def measure_rates(ground: Ground, count: int, rounds: int) -> None:
    events, told = stream(count), []
    for i in range(rounds):
        async with (
            ours(ground, f"ours_{i}", "many") as mine,
            by_hand(ground, f"by_hand_{i}", "many") as base,
        ):
            await rates([mine, base], events[:BATCH])  # connects
            told.append(await rates([mine, base], events[BATCH:]))
    mine_s, base_s = zip(*told, strict=True)
    say(f"{ground.name}, events a second", {"ours": mine_s, "bare insert": base_s})
    say_ratio("ours / bare insert", median(map(truediv, mine_s, base_s)), GOAL)


async def measure(given: argparse.Namespace) -> None:
    with grounds() as all_grounds:
        for ground in all_grounds:
            await prepare(ground, "few", 1_000)
            await assert_same(ground, 1_000)
            await count_statements(ground, 1_000)
            await prepare(ground, "many", given.events)
            calm_down()
            await measure_rates(ground, given.events, given.rounds)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description="The pipeline of events against a bare insert")
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    asyncio.run(measure(parser.parse_args(words)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
