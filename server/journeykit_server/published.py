"""The journeys that people walk, ready to run: those published now, and the older versions in
which somebody still is. A version is read once, its hash is verified, and it stays in memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import NamedTuple

import orjson
from sqlalchemy import Select as Query
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from journeykit_engine import graph, journal, program
from journeykit_engine.graph import Graph
from journeykit_engine.instance import Instance
from journeykit_engine.program import Evaluator, Program, compile_graph
from journeykit_engine.signal import Event, is_report
from journeykit_engine.strict_json import BadJson
from journeykit_engine.trail import Entry
from journeykit_server.bulk import Select
from journeykit_server.tables import journeys, versions

log = logging.getLogger("journeykit")

DOCUMENT_FORMAT = 1  # grows when documents can say what an older engine would misread
RELOAD_SECONDS = 30.0  # how long another process may not know what was published

Key = tuple[int, int, int]
"""Tenant, journey, version."""


class Unwalkable(NamedTuple):
    """A version that cannot be walked here, and why. With `for_now` a newer journeykit can: its
    people wait for one and no attempt is counted."""

    code: str
    message: str
    for_now: bool = False


class Walkable:
    """A program, and `tell`, which writes a trail down as lines of the journal."""

    __slots__ = ("hears_traits", "program", "tell")

    def __init__(self, ready: Program) -> None:
        self.program = ready
        sums = journal.Sums(ready.graph)  # counted by whoever keeps what is told
        self.tell: Callable[[tuple[Entry, ...]], bytes] = journal.tails(orjson.dumps, sums)
        self.hears_traits = isinstance(ready.trigger, graph.AttributeChanged) or bool(
            ready.exit_references.traits
        )


class Published:
    """The programs by version, and which of them hears what.

    `evaluator` makes a predicate of a definition, see `compile_graph`.
    """

    def __init__(self, evaluator: Evaluator | None = program.evaluate) -> None:
        self.evaluator = evaluator
        self.known: dict[Key, Walkable | Unwalkable] = {}
        self.current: dict[tuple[int, int], Walkable] = {}
        self.by_event: dict[tuple[int, str], list[Walkable]] = {}
        self.by_report: dict[int, list[Walkable]] = {}
        self.by_trait: dict[int, list[Walkable]] = {}
        self.loaded_at: float | None = None

    def is_stale(self, now: float) -> bool:
        """Whether it is time to look what was published elsewhere; `now` is monotonic, seconds."""
        return self.loaded_at is None or not 0 <= now - self.loaded_at < RELOAD_SECONDS

    async def reload(self, connection: AsyncConnection, now: float) -> None:
        """Read which versions are published now, and those not read before."""
        rows = (await connection.execute(CURRENT)).all()
        keys = [(row.tenant_id, row.journey_id, row.published_version) for row in rows]
        # What cannot be walked is tried again: a restored document, a newer journeykit. It stays
        # known meanwhile, since a unit of work that runs beside has looked it up.
        again = [key for key, found in self.known.items() if isinstance(found, Unwalkable)]
        await self._read(connection, {*again, *(key for key in keys if key not in self.known)})
        self._listen(keys)
        self.loaded_at = now

    async def load(self, connection: AsyncConnection, keys: Iterable[Key]) -> None:
        """Read these versions unless they are known, in one statement."""
        await self._read(connection, {key for key in keys if key not in self.known})

    async def _read(self, connection: AsyncConnection, keys: set[Key]) -> None:
        wanted = sorted(keys)
        found = {tuple(row[:3]): row for row in await VERSIONS.run(connection, wanted)}
        for key in wanted:
            # Somebody else may have read it meanwhile. Of two programs for one version both would
            # count, and a batch must not name a counter twice.
            if not isinstance(self.known.get(key), Walkable):
                self.known[key] = _made(key, found.get(key), self.evaluator)

    def hearing(self, tenant_id: int, event: Event) -> list[Walkable]:
        """The published journeys that this event can matter to, in the order of their ids."""
        if event.changed is not None:
            return self.by_trait.get(tenant_id, [])
        if event.name == graph.RESERVED_EVENT:
            asked = event.properties.get("journey_id")
            one = self.current.get((tenant_id, asked)) if isinstance(asked, int) else None
            return [one] if one else []
        named = self.by_event.get((tenant_id, event.name), [])
        reports = self.by_report.get(tenant_id)
        if not reports or not is_report(event.name):
            return named
        return sorted({*named, *reports}, key=lambda heard: heard.program.journey_id)

    def may_hear(self, key: Key, event: Event) -> bool:
        """Whether this event can matter inside a version that is known; one that cannot be walked
        cannot tell."""
        found = self.known[key]
        return isinstance(found, Unwalkable) or found.program.hears(event)

    def _listen(self, keys: Iterable[Key]) -> None:
        self.current, self.by_event, self.by_report, self.by_trait = {}, {}, {}, {}
        for key in sorted(keys):
            found = self.known[key]
            if isinstance(found, Unwalkable):
                log.error("journey %d version %d: %s", key[1], key[2], found.message)
                continue
            tenant_id, ready = key[0], found.program
            self.current[tenant_id, key[1]] = found
            for name in sorted(ready.hears_events):
                self.by_event.setdefault((tenant_id, name), []).append(found)
            if ready.hears_reports:
                self.by_report.setdefault(tenant_id, []).append(found)
            if found.hears_traits:
                self.by_trait.setdefault(tenant_id, []).append(found)


class CannotWalk(Exception):
    """The version in which somebody is cannot be walked."""

    def __init__(self, why: Unwalkable) -> None:
        super().__init__(why.message)
        self.why = why


def stand_in(tenant_id: int, journey_id: int, version: int) -> Walkable:
    """A program that can only be left: for people in a version that cannot be walked any more."""
    nodes = [{"id": "trigger", "kind": "trigger", "trigger": {"kind": "api"}}]
    value = {"journey_id": journey_id, "version": version, "entry_id": "trigger", "nodes": nodes}
    return Walkable(program.compile_graph(Graph.parse(value), "UTC", tenant_id))


def version_of(instance: Instance) -> tuple[int, int, int]:
    return instance.tenant_id, instance.journey_id, instance.version


CURRENT: Query[tuple[int, int, int]] = select(
    journeys.c.tenant_id, journeys.c.journey_id, journeys.c.published_version
).where(journeys.c.status == "published", journeys.c.published_version > 0)

VERSIONS = Select(
    [("tenant_id", "bigint"), ("journey_id", "bigint"), ("version", "bigint")],
    "SELECT v.tenant_id, v.journey_id, v.version, v.document, v.sha256, v.format, "
    f"v.account_timezone FROM {{given}} JOIN {versions.name} v ON v.tenant_id = given.tenant_id "
    "AND v.journey_id = given.journey_id AND v.version = given.version",
)


def _made(key: Key, row: object | None, evaluator: Evaluator | None) -> Walkable | Unwalkable:
    """The program of a stored version, or why there is none."""
    _, journey_id, version = key
    if row is None:
        return Unwalkable("GRAPH_MISSING", GRAPH_MISSING.format(journey_id, version))
    document, wanted, document_format, timezone = row[3:]  # type: ignore[index]
    if document_format > DOCUMENT_FORMAT:
        told = TOO_NEW.format(journey_id, version, document_format, DOCUMENT_FORMAT)
        return Unwalkable("DOCUMENT_FORMAT", told, for_now=True)
    if sha256(document.encode()).hexdigest() != wanted:
        return Unwalkable("GRAPH_HASH", GRAPH_HASH.format(journey_id, version))
    try:
        return Walkable(compile_graph(Graph.parse(document), timezone, key[0], evaluator))
    except (BadJson, ValueError) as error:
        return Unwalkable("CONFIG", CONFIG.format(journey_id, version, error))


GRAPH_MISSING = (
    "The version {1} of journey {0} is not stored any more. "
    "Restore it from a backup and retry, or take its people out."
)
GRAPH_HASH = (
    "The stored version {1} of journey {0} is not what was published: its hash differs. "
    "Restore it from a backup and retry, or take its people out."
)
CONFIG = "The version {1} of journey {0} cannot be run: {2}"
TOO_NEW = (
    "The version {1} of journey {0} was published by a newer journeykit (document format {2}, "
    "this one reads {3}). Its people wait until this worker is upgraded."
)
