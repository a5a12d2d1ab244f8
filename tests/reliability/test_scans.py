"""A look at a segment dies in the middle, people come and go meanwhile, two scanners do the same:
everybody is enrolled once for each look. Rows C57, C58 and C59."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from whenever import TimeDelta

from journeykit_server import lifecycle
from journeykit_server.clock import Clock
from journeykit_server.database import Database
from journeykit_server.incoming import Incoming
from journeykit_server.publishing import save_draft
from journeykit_server.runtime import Runtime
from journeykit_server.scanner import Limits, Scanner, scans_of
from journeykit_server.tables import audience, entries, events, instances, journal, looks
from tests.engine.journeys import Value, journey
from tests.reliability.crowd import an_hour_ago, looked_at
from tests.reliability.faults import Crash, crash, lost_answer
from tests.reliability.laws import broken
from tests.reliability.processes import LOOK_SECONDS, PATIENCE_SECONDS, Crew, crew
from tests.reliability.stage import TENANT, later, read

PREMIUM: Value = {"root": {"trait": "plan", "op": "eq", "value": "premium"}}
ENTER: Value = {"kind": "segment_enter", "definition": PREMIUM}
LEAVE: Value = {"kind": "segment_exit", "definition": PREMIUM}
DAY = TimeDelta(hours=24)  # between two looks: longer than all deaths of one together
A_LEASE = TimeDelta(seconds=31)
PAGES = Limits(page=3)
PEOPLE = [f"user {number}" for number in range(8)]
SWEEP: Value = {"kind": "segment_periodic", "definition": PREMIUM, "hours": [9]}
BIRTHDAY: Value = {"kind": "date", "trait": "born", "hour": 9, "definition": PREMIUM}
TRIGGERS = {"enter": ENTER, "exit": LEAVE, "sweep": SWEEP, "date": BIRTHDAY}


async def opened(database: Database, trigger: Value) -> Runtime:
    """A process that has published a journey with this trigger, which everybody leaves at once."""
    runtime = Runtime(database)
    document = journey({"id": "end", "kind": "exit"}, trigger=trigger, entry_rule="every_time")
    draft = await save_draft(database, TENANT, document)
    await runtime.publish(TENANT, draft.journey_id)
    return runtime


def scanner_of(runtime: Runtime) -> Scanner:
    return Scanner(runtime, every=DAY.total("seconds"), limits=PAGES)


async def again(database: Database) -> Scanner:
    """Another process, which has just started."""
    runtime = Runtime(database)
    await runtime.reload()
    return scanner_of(runtime)


def plan(user_id: str, name: str) -> Incoming:
    return Incoming("identify", user_id, properties={"plan": name, "born": "1990-06-02"})


async def plans(runtime: Runtime, name: str, people: Sequence[str] = PEOPLE) -> None:
    await runtime.ingest(TENANT, [plan(user_id, name) for user_id in people])


async def finish(scanner: Scanner) -> int:
    """Take every step that is due; how many."""
    steps = 0
    while await scanner.look_once():
        steps += 1
    return steps


async def entered(database: Database) -> list[str]:
    return sorted(row.user_id for row in await read(database, entries))


async def a_look_is_due(database: Database, kind: str) -> Scanner:
    """Everybody will be found by it."""
    runtime = await opened(database, TRIGGERS[kind])
    await plans(runtime, "premium" if kind == "exit" else "free")
    scanner = scanner_of(runtime)
    await finish(scanner)
    await plans(runtime, "free" if kind == "exit" else "premium")
    later(database, DAY)
    await runtime.reload()
    return scanner


# --- C57: it dies in the middle


@pytest.mark.parametrize("kind", TRIGGERS)
async def test_c57_a_look_that_dies_at_any_call_enrols_everybody_once(
    database: Database, other: Database, kind: str
) -> None:
    """At every call in turn: each death takes one step of the clock's lease and nothing else."""
    scanner = await a_look_is_due(database, kind)
    deaths, at = 0, 1
    while True:
        with crash(database, at=at) as calls:
            try:
                done = await scanner.look_once()
            except Crash:
                deaths += 1
                assert len(set(await entered(other))) == len(await entered(other))
                later(database, A_LEASE)
                scanner = await again(database)
                at += 1
                continue
        if len(calls.made) < at:
            at = 1
        if not done:
            break

    assert deaths > 30
    assert await entered(database) == PEOPLE
    (scan, *_) = await scans_of(database, TENANT, 1)
    assert scan.found == len(PEOPLE)


@pytest.mark.parametrize("kind", TRIGGERS)
async def test_c57_a_commit_whose_answer_is_lost_is_no_second_look(
    database: Database, kind: str
) -> None:
    scanner = await a_look_is_due(database, kind)
    commit = 1
    while True:
        with lost_answer(database, commit) as asked:
            done = await scanner.look_once()
        if len(asked) < commit:
            commit = 0
        commit += 1
        if not done and commit == 1:
            break
        if not done:
            later(database, A_LEASE)

    assert await entered(database) == PEOPLE
    (scan, *_) = await scans_of(database, TENANT, 1)
    assert scan.found == len(PEOPLE)


MANY = [f"user {number:04}" for number in range(3_000)]


async def test_c57_kill_9_of_a_worker_that_looks_enrols_everybody_once(
    database_url: str, tmp_path: Path
) -> None:
    """Workers are killed whenever they have enrolled some more."""
    this_hour = Clock().now().to_tz("UTC").hour
    async with looked_at(database_url, an_hour_ago()) as before:
        runtime = await opened(before, {**SWEEP, "hours": [this_hour]})
        await plans(runtime, "premium", MANY)
    async with looked_at(database_url) as database:
        with crew(database_url, tmp_path) as workers:
            for death in range(4):
                worker = workers.start()
                await enrolled(database, 1 + 600 * death, workers)
                worker.kill()
            workers.start()
            await enrolled(database, len(MANY), workers)
            await looked(database, workers)
            await workers.stop()

        assert await entered(database) == MANY
        assert await broken(database) == []
        (scan,) = await scans_of(database, TENANT, 1)
        assert (scan.found, scan.members, scan.is_truncated) == (len(MANY), len(MANY), False)


async def enrolled(database: Database, many: int, workers: Crew) -> None:
    """Wait until so many have been enrolled."""
    await wait_for(lambda found: found >= many, database, workers)


async def looked(database: Database, workers: Crew) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + PATIENCE_SECONDS
    while not await scans_of(database, TENANT, 1):
        assert loop.time() < end, workers.all[-1].said
        await asyncio.sleep(LOOK_SECONDS)


async def wait_for(happened: Any, database: Database, workers: Crew) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + PATIENCE_SECONDS
    while not happened(len(await read(database, instances))):
        assert loop.time() < end, workers.all[-1].said
        await asyncio.sleep(LOOK_SECONDS)


STOPPED = {"enter": ENTER, "exit": LEAVE, "sweep": SWEEP}


@pytest.mark.parametrize("goes_on", ["soon", "later"])
@pytest.mark.parametrize("kind", STOPPED)
async def test_c57_a_pause_at_any_moment_of_a_look_loses_nobody_silently(
    database: Database, other: Database, kind: str, goes_on: str
) -> None:
    """Before every transaction in turn, for one transaction or for longer: who was not enrolled is
    told of by a truncated look."""
    scanner = await a_look_is_due(database, kind)
    controls = Runtime(other)
    before, after = ("premium", "free") if kind == "exit" else ("free", "premium")
    lost, number, made, under_way = 0, 0, [0], list[bool]()

    async def stop() -> None:
        under_way.extend([row.slot_at is not None for row in await read(other, looks)])
        await lifecycle.pause(controls, TENANT, 1)

    async def go_on() -> None:
        if goes_on == "soon":
            await lifecycle.resume(controls, TENANT, 1)

    while len(made) > number:
        number += 1
        entered_before, began = len(await entered(database)), database.clock.now()
        under_way.clear()
        with before_transactions(database, {number: stop, number + 1: go_on}) as made:
            await finish(scanner)
        found = len(await entered(database)) - entered_before
        told = [scan for scan in await scans_of(database, TENANT, 1) if scan.started_at >= began]
        is_lost = found < len(PEOPLE) and any(under_way)
        assert any(scan.is_truncated for scan in told) >= is_lost, number
        lost += is_lost

        later(database, TimeDelta(seconds=1))
        await lifecycle.resume(controls, TENANT, 1)
        for name in (before, after):
            await scanner.runtime.reload()
            await finish(scanner)
            await plans(scanner.runtime, name)
            later(database, DAY)
        await scanner.runtime.reload()

    assert number > 15
    assert lost > 1


@contextmanager
def before_transactions(
    database: Database, happens: Mapping[int, Callable[[], Awaitable[None]]]
) -> Iterator[list[int]]:
    """Something happens right before this process's transactions of these numbers. Yields 0 and the
    numbers of all that it makes."""
    made = [0]

    def watched(really: Callable[[Any], Awaitable[Any]]) -> Any:
        async def one(work: Any) -> Any:
            made.append(len(made))
            if made[-1] in happens:
                await happens[made[-1]]()
            return await really(work)

        return one

    with (
        mock.patch.object(database, "run", watched(database.run)),
        mock.patch.object(database, "read", watched(database.read)),
    ):
        yield made


# --- C58: people come and go meanwhile


@pytest.mark.parametrize("kind", ["enter", "sweep"])
async def test_c58_who_comes_or_goes_during_a_look_is_enrolled_once_for_it_at_most(
    database: Database, kind: str
) -> None:
    """Between any two pages one goes, one comes back, and one is new."""
    scanner = await a_look_is_due(database, kind)
    runtime = scanner.runtime
    step = 0
    while await scanner.look_once():
        who = PEOPLE[step % len(PEOPLE)]
        await plans(runtime, "free", [who, PEOPLE[-1]])
        await plans(runtime, "premium", [PEOPLE[-1], f"new {step}"])
        step += 1
    assert max(Counter(await entered(database)).values()) == 1

    later(database, DAY)
    await plans(runtime, "premium", [f"new {number}" for number in range(step)])
    await finish(scanner)
    by_slot = Counter(
        (row.user_id, row.event_id.removesuffix(row.user_id))
        for row in await read(database, events)
        if row.source == "scan"
    )
    assert set(by_slot.values()) == {1}
    assert {f"new {number}" for number in range(step)} <= set(await entered(database))


async def test_c58_who_leaves_between_the_page_and_the_end_of_the_look_is_noticed(
    database: Database,
) -> None:
    """The record is of the look's own moment, and what changed after it is the next look's."""
    scanner = await a_look_is_due(database, "enter")
    assert await scanner.look_once() == 1
    await plans(scanner.runtime, "free", PEOPLE[:1])
    await finish(scanner)
    assert PEOPLE[0] not in {row.user_id for row in await read(database, audience)}

    await plans(scanner.runtime, "premium", PEOPLE[:1])
    later(database, DAY)
    await finish(scanner)
    assert Counter(await entered(database))[PEOPLE[0]] == 2


# --- C59: two scanners


@pytest.mark.parametrize("kind", TRIGGERS)
async def test_c59_two_scanners_at_one_page_absorb_each_other(
    database: Database, other: Database, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The first stands still after its page is found until the second has done the whole look; then
    it enrols the same people for the same look."""
    await a_look_is_due(database, kind)
    second = await again(other)

    class Stalled(Runtime):
        async def ingest(self, tenant_id: int, incoming: Sequence[Incoming]) -> Any:
            later(database, A_LEASE)
            await finish(second)
            return await super().ingest(tenant_id, incoming)

    stalled = Stalled(database)
    await stalled.reload()
    await finish(scanner_of(stalled))
    await finish(second)

    assert await entered(database) == PEOPLE
    scan_events = [row for row in await read(database, events) if row.source == "scan"]
    assert len(scan_events) == len(PEOPLE)
    (scan, *_) = await scans_of(database, TENANT, 1)
    assert scan.found == len(PEOPLE)
    assert "a look at journey 1 took too long; another worker goes on" in caplog.messages


async def test_c59_many_scanners_at_once_share_the_looks(
    database: Database, database_url: str
) -> None:
    runtimes = [await opened(database, trigger) for trigger in [ENTER, SWEEP, SWEEP, BIRTHDAY]]
    await plans(runtimes[0], "free")
    for runtime in runtimes:
        await runtime.reload()
    await finish(await again(database))
    await plans(runtimes[0], "premium")
    later(database, DAY)

    scanners = [await again(database) for _ in range(4)]
    await asyncio.gather(*(finish(scanner) for scanner in scanners))
    await finish(scanners[0])

    found = Counter((row.journey_id, row.user_id) for row in await read(database, entries))
    assert found == Counter((number, each) for number in range(1, 5) for each in PEOPLE)
    assert len(await read(database, journal)) == sum(found.values())
