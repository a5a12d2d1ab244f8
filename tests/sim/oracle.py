"""History is sufficient: what is stored, walked again by the pure engine, gives what is stored.

The triggers in the file have logged events and steps in the order in which they were written, and
`committed` marks where one transaction ended and the next began. So the oracle knows what each step
could have known, and takes it again: the same trail, the same moment, the same pass afterwards.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import orjson
from whenever import Instant

from journeykit_engine import journal, profile, walk
from journeykit_engine.graph import Graph
from journeykit_engine.instance import Happened, Instance, Person
from journeykit_engine.program import Program, compile_graph
from journeykit_engine.signal import Event
from journeykit_engine.trail import AddToSegment, Entry, WriteTrait
from journeykit_engine.walk import Step
from journeykit_server import published
from journeykit_server.clock import instant, microseconds
from journeykit_server.rows import INSTANCE_COLUMNS, read_instance
from tests.sim.workload import TENANT

MOST_FINDINGS = 20  # of one seed; the first one tells the most

Row = sqlite3.Row


class Readied(NamedTuple):
    """A version of a journey, and how its trails are written down."""

    program: Program
    tell: Callable[[tuple[Entry, ...]], bytes]


class Oracle:
    """Remembers where transactions end; judges when all is over.

    `republished` are the journeys of which there was more than one version: which of them a process
    knew at a moment is its own affair.
    """

    def __init__(self, raw: sqlite3.Connection) -> None:
        self.raw = raw
        self.marks: list[tuple[int, float]] = [(0, 0.0)]
        self.republished: set[int] = set()

    def committed(self, now: float) -> None:
        (last,) = self.raw.execute("SELECT max(seq) FROM sim_log").fetchone()
        if last is not None and last > self.marks[-1][0]:
            self.marks.append((last, now))

    def findings(self) -> list[str]:
        again = _Again(self.raw, self.republished)
        for (low, _), (high, now) in zip(self.marks, self.marks[1:], strict=False):
            again.transact(self.raw.execute(LOG, (low, high)).fetchall(), now)
            if len(again.findings) > MOST_FINDINGS:
                return again.findings
        return again.findings + again.differences(self.raw)


LOG = "SELECT * FROM sim_log WHERE seq > ? AND seq <= ? ORDER BY seq"


class Door(NamedTuple):
    """What a journey lets happen, and since when (virtual seconds)."""

    moves: bool
    takes_in: bool
    since: float


OPEN = Door(True, True, -math.inf)


class _Known:
    """A person as the oracle knows them."""

    def __init__(self, user_id: str) -> None:
        self.person = Person(user_id)
        self.profile = profile.Profile()
        self.instances: dict[int, Instance] = {}
        self.revs: dict[int, int] = {}

    def receive(self, row: Row) -> Event:
        """An event goes into the profile or the history; what the journeys hear of it."""
        at, properties = instant(row["at"]), json.loads(row["properties"])
        event = Event(row["name"], at, row["event_id"], properties)
        if row["kind"] == "identify":
            written_at = self.profile.written_at  # arrival counts, where the clock went back too
            at = max([at, *(written_at[name] for name in properties if name in written_at)])
            self.profile, changed = profile.write(self.profile, properties, at)
            self.person = self.person._replace(traits=self.profile.traits)
            return event._replace(changed=changed)
        if row["kind"] == "track":
            before = self.person.events.get(event.name, ())
            told = [*before, Happened(at, properties, event.id)]
            self.person = self.person._replace(events={**self.person.events, event.name: told})
        return event

    def take(self, journey_id: int, step: Step) -> None:
        """The person after a step."""
        writes = {e.trait: e.value for e in step.trail if isinstance(e, WriteTrait)}
        if writes:
            self.profile, _ = profile.write(self.profile, writes, step.at)
            self.person = self.person._replace(traits=self.profile.traits)
        joined = {entry.segment_id for entry in step.trail if isinstance(entry, AddToSegment)}
        self.person = self.person._replace(segments=self.person.segments | joined)
        if step.instance is not None and step.instance is not self.instances.get(journey_id):
            self.instances[journey_id] = step.instance
            self.revs[journey_id] = self.revs.get(journey_id, 0) + 1


class _Again:
    """Everything once more, transaction by transaction."""

    def __init__(self, raw: sqlite3.Connection, republished: set[int]) -> None:
        self.events = {row["number"]: row for row in raw.execute("SELECT * FROM events")}
        self.steps = {
            (row["user_id"], row["journey_id"], row["rev"], row["step"]): row
            for row in raw.execute("SELECT * FROM journal")
        }
        self.versions = {
            (row["journey_id"], row["version"]): row["document"]
            for row in raw.execute("SELECT * FROM versions")
        }
        known = raw.execute("SELECT journey_id FROM journeys ORDER BY journey_id")
        self.steady = [j for (j,) in known.fetchall() if j not in republished]
        self.doors: dict[int, Door] = {}
        self.queued: set[tuple[str, int, int]] = set()
        self.waiting: dict[tuple[str, int], set[int]] = {}
        self.numbers = {row["event_id"]: number for number, row in self.events.items()}
        self.heard: dict[str, Event] = {}
        self.people: dict[str, _Known] = {}
        self.now = 0.0
        self.findings: list[str] = []

    def known(self, user_id: str) -> _Known:
        return self.people.setdefault(user_id, _Known(user_id))

    def program(self, journey_id: int, version: int) -> Readied:
        return _readied(self.versions[journey_id, version])

    def transact(self, log: Sequence[Row], now: float) -> None:
        """One transaction: what arrived in it, and the steps that were taken."""
        self.now = now
        steps: dict[tuple[str, int, str], list[Row]] = {}
        for row in log:
            if row["what"] == "door":
                door = Door(bool(row["number"]), bool(row["step"]), now)
                self.doors[row["journey_id"]] = door
            if row["what"] == "heard":
                self.waiting[row["user_id"], row["journey_id"]].discard(row["number"])
            if row["what"] == "queued":
                self.queued.add((row["user_id"], row["journey_id"], row["number"]))
                waiting = self.waiting.setdefault((row["user_id"], row["journey_id"]), set())
                waiting.add(row["number"])
            if row["what"] == "step":
                told = self.steps[row["user_id"], row["journey_id"], row["number"], row["step"]]
                group = (told["user_id"], told["journey_id"], told["cause"])
                steps.setdefault(group, []).append(told)
        for number in sorted(row["number"] for row in log if row["what"] == "event"):
            self._arrive(self.events[number], steps)
        for (user_id, journey_id, cause), told in steps.items():
            self._again(self.known(user_id), journey_id, self.heard.get(cause), told)

    def _arrive(self, row: Row, steps: dict[tuple[str, int, str], list[Row]]) -> None:
        known = self.known(row["user_id"])
        event = known.receive(row)
        self.heard[event.id] = event
        mine = [key for key in steps if key[0] == row["user_id"] and key[2] == event.id]
        for key in mine:
            self._again(known, key[1], event, steps.pop(key))
        if event.changed is not None and not event.changed:
            return
        deaf = {key[1] for key in mine}
        for journey_id in self.steady:
            queued = (row["user_id"], journey_id, row["number"]) in self.queued
            if journey_id not in deaf and not queued:
                self._nothing_expected(known, journey_id, event)

    def _nothing_expected(self, known: _Known, journey_id: int, event: Event) -> None:
        current = self.program(journey_id, 1).program
        if not current.hears(event):
            return
        instance = known.instances.get(journey_id)
        event = _no_earlier(event, instance)
        steps: Sequence[Step] = ()
        if instance is not None and instance.is_live:
            standing = self._standing(instance, event)
            steps = [s for s in walk.hear(current, known.person, standing, event) if s.trail]
        if steps or (self._is_known_open(journey_id) and walk.triggers(current, event)):
            self._wrong(17, known, journey_id, f"never heard {event.name} {event.id}")

    def _standing(self, instance: Instance, event: Event) -> Instance:
        """The pass as an event finds it: in a journey that stands still it is as if paused."""
        door = self.doors.get(instance.journey_id, OPEN)
        if door.moves or instance.paused_at:
            return instance
        return instance._replace(paused_at=event.at)

    def _is_known_open(self, journey_id: int) -> bool:
        """Whether the journey takes people in and every process has heard of it by now."""
        door = self.doors.get(journey_id, OPEN)
        return door.takes_in and self.now - door.since > published.RELOAD_SECONDS

    def _again(
        self, known: _Known, journey_id: int, event: Event | None, told: Sequence[Row]
    ) -> None:
        """Take steps again that one event, or one timer, has caused in one journey."""
        taken = 0
        instance = known.instances.get(journey_id)
        self._nobody_overtaken(known, journey_id, event, told[0])
        if event is not None and instance is not None and instance.is_live:
            inside = self.program(journey_id, instance.version)
            event = _no_earlier(event, instance)
            standing = self._standing(instance, event)
            steps = walk.hear(inside.program, known.person, standing, event)
            for step, row in zip([step for step in steps if step.trail], told, strict=False):
                if row["version"] == instance.version and not _is_entry(row):
                    self._compare(known, journey_id, inside, step, row)
                    taken += 1
        for row in told[taken:]:
            ready = self.program(journey_id, row["version"])
            single = self._one(ready.program, known, journey_id, event, row)
            if single is not None:
                self._compare(known, journey_id, ready, single, row)

    def _nobody_overtaken(
        self, known: _Known, journey_id: int, event: Event | None, row: Row
    ) -> None:
        """An event that waits to be heard is heard before later ones, and before a timer."""
        waiting = self.waiting.get((known.person.user_id, journey_id))
        if not waiting or _first(row) in ("paused", "resumed") or _is_ejection(row):
            return
        number = math.inf if event is None else self.numbers[event.id]
        if min(waiting) < number:
            told = f"event {number}" if event else "a timer"
            self._wrong(17, known, journey_id, f"{told} came before event {min(waiting)}")

    def _one(
        self, program: Program, known: _Known, journey_id: int, event: Event | None, row: Row
    ) -> Step | None:
        instance, person = known.instances.get(journey_id), known.person
        if event is not None:
            return walk.enter(program, person, instance, _no_earlier(event, instance))
        if instance is None:
            self._wrong(27, known, journey_id, f"moved at rev {row['rev']} and was nowhere")
            return None
        at = instant(row["at"])
        if _is_ejection(row):
            return walk.leave(program, person, instance, at)
        if _first(row) == "paused":
            return walk.pause(person, instance, at)
        if _first(row) == "resumed":
            return _let_go(program, person, instance, at)
        return walk.resume(program, person, instance, at)

    def _compare(
        self, known: _Known, journey_id: int, ready: Readied, step: Step, row: Row
    ) -> None:
        before = known.instances.get(journey_id)
        rev = known.revs.get(journey_id, 0)
        moved = step.instance is not None and step.instance is not before
        count = step.instance.entry_count if step.instance else 0
        mine = (rev + moved, count, microseconds(step.at), ready.tell(step.trail).decode())
        theirs = (row["rev"], row["entry_count"], row["at"], row["trail"])
        if mine != theirs or moved != (row["step"] == 0):
            self._wrong(27, known, journey_id, f"stored {theirs}, the engine says {mine}")
        known.take(journey_id, step)

    def differences(self, raw: sqlite3.Connection) -> list[str]:
        """What is stored in the end and is not what the engine says."""
        stored = {}
        for row in raw.execute(f"SELECT {', '.join(INSTANCE_COLUMNS)} FROM instances"):
            stored[row["user_id"], row["journey_id"]] = (read_instance(tuple(row)), row["rev"])
        mine = {
            (user_id, journey_id): (instance, known.revs[journey_id])
            for user_id, known in self.people.items()
            for journey_id, instance in known.instances.items()
        }
        findings = [
            f"27: {key}: stored {stored.get(key)}, the engine says {mine.get(key)}"
            for key in sorted(stored.keys() | mine.keys())
            if stored.get(key) != mine.get(key)
        ]
        for row in raw.execute("SELECT user_id, traits FROM profiles"):
            traits = dict(self.known(row["user_id"]).person.traits)
            if json.loads(row["traits"]) != traits:
                findings.append(f"27: {row['user_id']}: stored {row['traits']}, knows {traits}")
        return findings

    def _wrong(self, law: int, known: _Known, journey_id: int, told: str) -> None:
        self.findings.append(f"{law}: {known.person.user_id} in {journey_id}: {told}")


def _no_earlier(event: Event, instance: Instance | None) -> Event:
    """Nothing happens to somebody before what happened to them last."""
    return event if instance is None else event._replace(at=max(event.at, instance.updated_at))


def _let_go(program: Program, person: Person, instance: Instance, at: Instant) -> Step:
    """A person who was held goes on; a time that has passed is left to its timer."""
    step = walk.unpause(program, person, instance._replace(wake_at=None), at)
    assert step.instance is not None
    return step._replace(instance=step.instance._replace(wake_at=instance.wake_at))


def _first(row: Row) -> str:
    """What a step begins with."""
    return str(json.loads(row["trail"].partition("\n")[0])["what"])


def _is_entry(row: Row) -> bool:
    return _first(row) in ("entered", "refused")


def _is_ejection(row: Row) -> bool:
    return bool(row["trail"].rstrip().endswith('"reason":"ejected"}'))


@lru_cache(maxsize=200)
def _readied(document: str) -> Readied:
    graph = Graph.parse(document)
    program = compile_graph(graph, "UTC", TENANT)
    return Readied(program, journal.tails(orjson.dumps, journal.Sums(graph)))
