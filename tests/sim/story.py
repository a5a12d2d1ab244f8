"""One seed from its beginning to its end: forty days of events and faults, then peace.

In peace everything must come to its end by itself; then the referee and the oracle are asked.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import hashlib
import json
import logging
import random
import sqlite3
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from whenever import TimeDelta

from journeykit_engine import program
from journeykit_engine.facts import Predicate
from journeykit_engine.graph import Graph
from journeykit_server import letters, published, publishing, scanner
from journeykit_server.clock import SeededChance, microseconds
from journeykit_server.database import Database, Unavailable
from journeykit_server.delivery import Item
from journeykit_server.incoming import Incoming
from journeykit_server.published import DOCUMENT_FORMAT
from journeykit_server.runtime import NotEnterable, Runtime
from tests.sim import workload
from tests.sim.controls import Controls
from tests.sim.faults import Faults, swarm
from tests.sim.gates import Gates, store_policy
from tests.sim.invariants import Referee, Wrong, statements
from tests.sim.loop import OUTSIDE, SimLoop, Stalled
from tests.sim.oracle import Oracle
from tests.sim.sqlite_shim import Storage, templates
from tests.sim.workload import (
    CALLED,
    DAY,
    DAYS,
    JOURNEYS,
    LOOKED_FOR,
    REPUBLISHED,
    TENANT,
    Action,
    Workload,
)
from tests.sim.world import LOOK_SECONDS, Lost, SimClock, World

T = TypeVar("T")

PATIENCE_SECONDS = 90.0  # how long a client waits for an answer before it asks somebody else
LAST_LOOKS_SECONDS = 2.5 * LOOK_SECONDS  # at least one look begins and ends when all is said
PEACE_DAYS = 45  # the longest stay in a journey is 30 days
OCCASIONS = 8  # moments at which something may happen that nobody who walks has caused
GLANCE_EVERY = 40  # commits between two looks of the referee
NEWER_FORMAT = 99
COLLECT_EVERY = 8  # seeds; a collection takes a tenth of a seed's time
RELOAD_SECONDS = 3_600.0


class Told(NamedTuple):
    """What a seed did. `digest` is the same whenever it is run; `findings` is empty when all is
    well."""

    seed: int
    findings: str
    digest: str
    counts: Counter[str]
    calls: int
    turns: int


class Story:
    """A world, what is done in it, and who judges it."""

    def __init__(self, seed: int, path: Path, faults: Faults, work: Workload) -> None:
        self.seed = seed
        self.work = work
        self.faults = faults
        self.random = random.Random(f"{seed}:story")
        self.world = World(seed, path, faults, processes=2 + seed % 2)
        self.world.evaluator = self.evaluator
        self.world.storage.told.append(self._committed)
        self.gates = Gates(self.world.raw, work.policy)
        self.world.outside.may_go_out = self._may_go_out
        self.referee = Referee(self.world.raw, self.world.outside, self.gates)
        self.controls = Controls(self, work, faults, self.world.raw, seed)
        self.oracle = Oracle(self.world.raw)
        self.commits = 0
        self.deaf_until = 0.0
        self.sent: dict[str, Incoming] = {}
        self.asked: set[str] = set()
        self.busy: set[asyncio.Task[None]] = set()
        self.wrong: BaseException | None = None

    # --- the course of things

    async def run(self) -> None:
        self._choose_journeys()
        if self.work.policy is not None:
            store_policy(self.world.raw, TENANT, self.work.policy)
        self.world.scanning = self.work.scans
        self.world.start()
        self.faults.is_quiet = False
        self.begin(self._mischief())
        for action in self.work.actions:
            await self._until(action.at)
            self.begin(self._client(action))
        await self._until(DAYS * DAY)
        await self._restore_formats()
        self.world.heal()
        await self.controls.all_go_on()
        if set(self.work.journeys).intersection(LOOKED_FOR):
            self.world.scanning = (0.0, self.world.now() + LAST_LOOKS_SECONDS)
        self.world.nudge()
        await self._peace()
        await self._retry()
        await self._peace()
        self._judge()

    async def _until(self, at: float) -> None:
        await asyncio.sleep(max(at - self.world.now(), 0.0))
        if self.wrong:
            raise self.wrong
        if self.world.failures:
            raise Wrong(self.world.failures)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self.busy.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self.busy.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self.wrong = self.wrong or error

    async def _peace(self) -> None:
        """Until nothing is left that would happen by itself."""
        end = self.world.now() + PEACE_DAYS * DAY
        while self.busy or self.world.is_busy():
            if self.world.now() > end:
                self.referee.settle()
                raise Wrong(["26: not everything has come to its end"])
            await self._until(self.world.now() + (600.0 if self.busy else self.world.until_due()))

    def _judge(self) -> None:
        self.referee.settle()
        findings = self._lost_events() + self.oracle.findings()
        if findings:
            raise Wrong(findings)

    def _committed(self, process: str) -> None:
        self.commits += 1
        self.oracle.committed(self.world.now())
        living = self.world.living.get(process)
        clock = living.clock if living else self.world.clock
        self.referee.committed(process, clock.latest())
        if self.commits % GLANCE_EVERY == 0 and self.wrong is None:
            try:
                self.referee.glance()
            except Wrong as wrong:
                self.wrong = wrong

    def _may_go_out(self, process: str, item: Item) -> str:
        living = self.world.living.get(process)
        clock = living.clock if living else self.world.clock
        return self.gates.offered(process, item, microseconds(clock.now()))

    def _lost_events(self) -> list[str]:
        stored = {
            row["event_id"]: json.loads(row["properties"])
            for row in self.world.raw.execute("SELECT event_id, properties FROM events")
        }
        strangers = [
            f"17: event {event_id} is stored and was never sent under this id"
            for event_id in stored
            if event_id not in self.asked and event_id[:1] == "e"
        ]
        return strangers + [
            f"17: event {event_id}: stored {stored.get(event_id)}, sent {dict(event.properties)}"
            for event_id, event in self.sent.items()
            if stored.get(event_id) != dict(event.properties)
        ]

    # --- clients

    async def ask(self, request: Callable[[Runtime], Awaitable[T]]) -> T:
        """Ask processes until one answers; what is asked must bear being done twice."""
        while True:
            process = self.world.anybody()
            with suppress(Lost, Unavailable, TimeoutError, asyncio.CancelledError):
                if process is not None:
                    async with asyncio.timeout(PATIENCE_SECONDS):
                        return await process.ask(request)
            await asyncio.sleep(self.random.uniform(0.1, 5.0))

    async def _client(self, action: Action) -> None:
        chance = self.faults.chance
        if chance("event_delay"):
            await asyncio.sleep(self.random.uniform(0, 2 * DAY))
        if chance("event_reorder"):
            await asyncio.sleep(self.random.choice((0.01, 0.5, 30.0)))
        if action.entering:
            with suppress(NotEnterable):
                await self.ask(lambda runtime: runtime.enter(TENANT, CALLED, [action.entering]))
        events = list(action.events)
        if events and chance("event_burst"):
            events += [event._replace(id=f"{event.id}x{n}") for n in range(6) for event in events]
        if events and chance("event_duplicate"):
            self.begin(self._send(events))
        await self._send(events)
        if events and chance("event_conflict"):
            await self._conflict(events[0])
        self.world.nudge()

    async def _send(self, events: list[Incoming]) -> None:
        if events:
            self.asked.update(event.id for event in events)
            await self.ask(lambda runtime: runtime.ingest(TENANT, events))
            self.sent.update((event.id, event) for event in events)
            self.world.nudge()

    async def _conflict(self, event: Incoming) -> None:
        """Another event under an id that was used: it is told apart, and the first one stays."""
        other = event._replace(properties={"amount": -1})
        receipt = await self.ask(lambda runtime: runtime.ingest(TENANT, [other]))
        if receipt.conflicts != (event.id,):
            raise Wrong([f"17: {event.id} came with other content and was told {receipt}"])

    # --- what happens beside the events

    async def _mischief(self) -> None:
        """What people do who run journeys, and what breaks that is no call."""
        for _ in range(OCCASIONS):
            await asyncio.sleep(self.random.uniform(0, 2 * DAYS * DAY / OCCASIONS))
            if self.world.now() > DAYS * DAY:
                return
            if self.faults.chance("publish"):
                await self._publish()
            if self.faults.chance("eject"):
                await self._eject()
            if self.faults.chance("evaluator_error"):
                self.deaf_until = self.world.now() + self.random.uniform(60, 6 * DAY)
            if self.faults.chance("provider_down"):
                self.world.outside.down_until = self.world.now() + self.random.uniform(1, 5) * DAY
            if self.faults.chance("newer_format"):
                await self._newer_format()
            await self.controls.happen()

    async def _publish(self) -> None:
        able = [journey_id for journey_id in self.work.journeys if journey_id in REPUBLISHED]
        if not able:
            return
        journey_id = self.random.choice(able)
        document = self.random.choice(REPUBLISHED[journey_id])
        self.oracle.republished.add(journey_id)
        with suppress(publishing.NotPublishable, publishing.NoSuchJourney):
            await self.ask(
                lambda runtime: publishing.save_draft(
                    runtime.database, TENANT, document, journey_id=journey_id
                )
            )
            await self.ask(lambda runtime: publishing.publish(runtime.database, TENANT, journey_id))

    async def _eject(self) -> None:
        journey_id = self.random.choice(self.work.journeys)
        user_id = self.random.choice(self.work.people)
        await self.ask(lambda runtime: runtime.eject(TENANT, journey_id, user_id))
        self.world.nudge()

    async def _newer_format(self) -> None:
        """A newer journeykit publishes; these processes cannot walk what it wrote for a while."""
        journey_id = self.random.choice(self.work.journeys)
        self.oracle.republished.add(journey_id)
        await self._raw(lambda: self._store_newer(journey_id))
        await asyncio.sleep(self.random.uniform(60, 5 * DAY))
        await self._restore_formats()

    def _store_newer(self, journey_id: int) -> None:
        version, document = self.world.raw.execute(LATEST, (journey_id,)).fetchone()
        newer = {**json.loads(document), "version": 0}
        store_version(self.world.raw, journey_id, version + 1, newer, NEWER_FORMAT)

    async def _restore_formats(self) -> None:
        restore = "UPDATE versions SET format = ? WHERE format = ?"
        values = (DOCUMENT_FORMAT, NEWER_FORMAT)
        await self._raw(lambda: self.world.raw.execute(restore, values))

    async def _raw(self, write: Callable[[], object]) -> None:
        """Something done behind the back of the product, as soon as the file is free."""
        while True:
            try:
                write()
                return
            except sqlite3.OperationalError:
                await asyncio.sleep(0.05)

    def _choose_journeys(self) -> None:
        for journey_id in range(1, len(JOURNEYS) + 1):
            if journey_id not in self.work.journeys:
                self.world.raw.execute(
                    "UPDATE journeys SET status = 'archived' WHERE journey_id = ?", (journey_id,)
                )

    def evaluator(self, definition: Any) -> Predicate:
        """The real one; it fails while `deaf_until` is not past."""
        holds = program.evaluate(definition)

        def asked(walker: Any) -> bool:
            if self.world.now() < self.deaf_until and not self.faults.is_quiet:
                raise ConnectionError("nobody answers questions about people now")
            return holds(walker)

        return asked

    async def _retry(self) -> None:
        """Once all is well every dead letter is tried again, and the outside refuses nothing."""
        self.world.outside.refused.clear()
        for row in list(self.world.raw.execute("SELECT letter_id FROM dead_letters ORDER BY 1")):
            letter_id = row["letter_id"]
            with suppress(letters.NoSuchLetter):
                await self.ask(
                    lambda runtime, name=letter_id: letters.retry(runtime.database, TENANT, name)  # type: ignore[misc]
                )
        self.world.nudge()

    # --- the end

    def digest(self) -> str:
        """What happened, as one number: the turns taken, the offers made, the file as it is."""
        told = hashlib.sha256()
        world = self.world
        told.update(repr((world.loop.turns, world.storage.calls, world.outside.offers)).encode())
        told.update(repr(sorted(self.faults.counts.items())).encode())
        for table in ("instances", "journal", "messages", "events", "dead_letters", "sim_log"):
            for row in world.raw.execute(f"SELECT * FROM {table}"):
                told.update(repr(tuple(row)).encode())
        return told.hexdigest()[:16]

    def close(self) -> None:
        self.world.close()


@contextmanager
def prepared() -> Iterator[Callable[[str], Path]]:
    """A maker of databases in which every journey is published."""
    with templates(_furnish) as make:
        gc.freeze()  # what is there now is never garbage, and need not be looked at after seeds
        gc.disable()  # the collector would run the `finally` of the dead in the middle of a story
        try:
            yield make
        finally:
            with _undisturbed():
                gc.collect()
                gc.collect()  # what the first one has closed
            gc.enable()
            gc.unfreeze()


def _furnish(path: Path) -> None:
    loop = SimLoop("furnish")
    storage = Storage(path, loop, "furnish")
    clock = SimClock(loop)
    engine = storage.engine(OUTSIDE, contextvars.copy_context())
    database = Database(f"sqlite:///{path}", clock=clock, chance=SeededChance(0), engine=engine)
    loop.run_until_complete(_publish_all(database))
    loop.run_until_complete(database.close())
    loop.close()
    storage.close()
    raw = storage.raw()
    for journey_id, journey in enumerate(JOURNEYS, 1):
        if not journey.is_checked:
            store_version(raw, journey_id, 1, journey.document)
    for statement in statements():
        raw.execute(statement)
    raw.close()


async def _publish_all(database: Database) -> None:
    for journey_id, (name, document, _) in enumerate(JOURNEYS, 1):
        draft = await publishing.save_draft(database, TENANT, document, name=name)
        assert draft.journey_id == journey_id
    for journey_id in range(len(JOURNEYS), 0, -1):  # some send people to later ones
        if JOURNEYS[journey_id - 1].is_checked:
            await publishing.publish(database, TENANT, journey_id)


def store_version(
    raw: sqlite3.Connection,
    journey_id: int,
    version: int,
    document: Mapping[str, Any],
    document_format: int = DOCUMENT_FORMAT,
) -> None:
    """Publish behind the back of every check."""
    graph = Graph.parse(json.dumps(document))
    own = graph.model_copy(update={"journey_id": journey_id, "version": version})
    text = json.dumps(own.to_value())
    digest = hashlib.sha256(text.encode()).hexdigest()
    row = (TENANT, journey_id, version, text, digest, document_format)
    raw.execute("BEGIN IMMEDIATE")
    raw.execute(ADD_VERSION, row)
    raw.execute(PUBLISH_VERSION, (version, TENANT, journey_id))
    raw.execute("COMMIT")


ADD_VERSION = """
    INSERT INTO versions (tenant_id, journey_id, version, document, sha256, format,
        account_timezone, published_at, published_token) VALUES (?, ?, ?, ?, ?, ?, 'UTC', 0, '')"""
PUBLISH_VERSION = """
    UPDATE journeys SET published_version = ?,
        status = CASE status WHEN 'draft' THEN 'published' ELSE status END
    WHERE tenant_id = ? AND journey_id = ?"""
LATEST = "SELECT version, document FROM versions WHERE journey_id = ? ORDER BY version DESC LIMIT 1"


def play(
    seed: int,
    make: Callable[[str], Path],
    *,
    faults: Faults | None = None,
    work: Workload | None = None,
    trace: Callable[[str], None] | None = None,
) -> Told:
    """Run one seed; `faults` and `work` take the place of what the seed would have drawn."""
    faults = faults or Faults(swarm(seed), seed)
    path = make(f"seed{seed}")
    with _undisturbed():
        story = Story(seed, path, faults, work or workload.draw(seed))
        story.world.trace = trace
        findings = _findings(story)
        told = Told(
            seed,
            findings,
            story.digest(),
            faults.counts,
            story.world.storage.calls,
            story.world.loop.turns,
        )
        story.close()
        del story
        if seed % COLLECT_EVERY == 0:
            gc.collect()
    for tail in ("", "-wal", "-shm"):
        path.with_name(path.name + tail).unlink(missing_ok=True)
    return told


def _findings(story: Story) -> str:
    try:
        story.world.loop.run_until_complete(story.run())
    except (Wrong, Stalled) as wrong:
        return str(wrong)
    except Exception:
        return traceback.format_exc()
    return ""


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Without the complaints of the dead when they are collected. And where so little happens in an
    hour, half a minute is always over: looking for new versions would be most of the work."""
    hook, level = sys.unraisablehook, logging.root.manager.disable
    reload_seconds, published.RELOAD_SECONDS = published.RELOAD_SECONDS, RELOAD_SECONDS
    behind, scanner.BEHIND = scanner.BEHIND, TimeDelta(seconds=RELOAD_SECONDS)
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sys.unraisablehook = _silence
        try:
            yield
        finally:
            sys.unraisablehook = hook
            logging.disable(level)
            published.RELOAD_SECONDS, scanner.BEHIND = reload_seconds, behind


def _silence(unraisable: object) -> None:
    """A coroutine of the dead complains that it was closed."""
