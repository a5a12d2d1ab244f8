"""A shop on a real store: it opens journeys, its customers do things, and time passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import orjson
from sqlalchemy import Table, delete, event, insert, select, update
from whenever import Instant, TimeDelta

from journeykit_engine import program
from journeykit_engine.facts import Facts, Predicate
from journeykit_server.clock import VirtualClock, instant, microseconds
from journeykit_server.database import Database
from journeykit_server.incoming import Incoming, Receipt
from journeykit_server.letters import Letter, list_letters
from journeykit_server.publishing import save_draft
from journeykit_server.runtime import Runtime
from journeykit_server.tables import instances, journal, outbox, profiles, timers, versions
from journeykit_server.waking import Woken
from tests.databases import START
from tests.engine.journeys import Value, journey

API: Value = {"kind": "api"}
DOWN = "RuntimeError: the segment evaluator is down"


def later(days: int = 0, hours: int = 0, minutes: int = 0, seconds: float = 0) -> Instant:
    """So long after the shop opened, which is `START`."""
    return START + TimeDelta(hours=24 * days + hours, minutes=minutes, seconds=seconds)


def track(user_id: str, name: str, id: str = "", /, **properties: Any) -> Incoming:
    return Incoming("track", user_id, name, properties, id)


class Moody:
    """An evaluator that works, except for the people in `failing`."""

    def __init__(self, *failing: str) -> None:
        self.failing = set(failing)

    def __call__(self, definition: Mapping[str, Any]) -> Predicate:
        judge = program.evaluate(definition)

        def holds(facts: Facts) -> bool:
            if facts.person.user_id in self.failing:
                raise RuntimeError("the segment evaluator is down")
            return judge(facts)

        return holds


class Shop:
    """Tenant 1 of a store, unless another one is named. `runtime` is its one worker."""

    def __init__(self, database: Database, **given: Any) -> None:
        self.database = database
        self.runtime = Runtime(database, **given)

    # --- what the shop does

    async def opens(
        self, *nodes: Value, tenant_id: int = 1, zone: str = "UTC", **fields: Any
    ) -> int:
        """Publish a new journey of a trigger "t", for "signed_up" if nothing else is said, and
        these nodes; its id."""
        draft = await save_draft(self.database, tenant_id, journey(*nodes, **fields))
        await self.runtime.publish(tenant_id, draft.journey_id, account_timezone=zone)
        return draft.journey_id

    async def changes(self, journey_id: int, *nodes: Value, **fields: Any) -> int:
        """Publish another version of a journey; its number."""
        document = journey(*nodes, **fields)
        await save_draft(self.database, 1, document, journey_id=journey_id)
        return (await self.runtime.publish(1, journey_id)).version

    async def forces(self, *nodes: Value, **stored: Any) -> int:
        """Put a version behind the back of publishing, which would have refused it."""
        journey_id = await self.opens({"id": "end", "kind": "exit"})
        document = orjson.dumps(journey(*nodes, journey_id=journey_id, version=1)).decode()
        await self.tampers(versions, journey_id, document=document, **stored)
        await self.forgets()
        return journey_id

    async def tampers(self, table: Table, journey_id: int, **values: Any) -> None:
        """Write into the rows of one journey by hand."""
        if "document" in values and "sha256" not in values:
            values["sha256"] = sha256(values["document"].encode()).hexdigest()
        query = update(table).where(table.c.journey_id == journey_id).values(values)
        await self.database.run(lambda connection: connection.execute(query))

    async def loses(self, table: Table, journey_id: int) -> list[dict[str, Any]]:
        """Delete the rows of one journey by hand; what they were."""
        lost = [row._asdict() for row in await self.rows(table) if row.journey_id == journey_id]
        query = delete(table).where(table.c.journey_id == journey_id)
        await self.database.run(lambda connection: connection.execute(query))
        await self.forgets()
        return lost

    async def restores(self, table: Table, rows: list[dict[str, Any]]) -> None:
        query = insert(table).values(rows)
        await self.database.run(lambda connection: connection.execute(query))
        await self.runtime.reload()

    async def forgets(self) -> None:
        """Start the worker anew."""
        evaluator = self.runtime.published.evaluator
        self.runtime = Runtime(self.database, evaluator=evaluator)
        await self.runtime.reload()

    # --- what its customers do

    async def hears(self, *incoming: Incoming, tenant_id: int = 1) -> Receipt:
        return await self.runtime.ingest(tenant_id, incoming)

    async def learns(
        self, user_id: str, *, occurred_at: Instant | None = None, **traits: Any
    ) -> Receipt:
        event = Incoming("identify", user_id, properties=traits, occurred_at=occurred_at)
        return await self.runtime.ingest(1, [event])

    # --- time passes

    @property
    def clock(self) -> VirtualClock:
        assert isinstance(self.database.clock, VirtualClock)
        return self.database.clock

    async def wakes(self, moment: Instant) -> Woken:
        """It is that late, and the worker polls once."""
        self.clock.set(moment)
        return await self.runtime.wake()

    async def gives_up(self) -> int:
        """Let the worker try again and again until nothing is left to try; how often it did."""
        for tried in range(100):
            due = await self.runtime.next_due()
            if due is None:
                return tried
            self.clock.set(max(due, self.clock.now()))
            await self.runtime.wake()
            await self.runtime.catch_up()
        raise AssertionError("it is tried for ever")

    # --- what is stored

    async def rows(self, table: Table) -> list[Any]:
        query = select(table).order_by(*table.primary_key)
        return list(await self.database.read(lambda connection: connection.execute(query)))

    async def where(self, user_id: str, journey_id: int = 1) -> str:
        """Where somebody is and how: "waiting w", "completed end"; "" who never was inside."""
        found = [
            f"{row.status} {row.current_node}"
            for row in await self.rows(instances)
            if (row.user_id, row.journey_id) == (user_id, journey_id)
        ]
        return "".join(found)

    async def due(self, user_id: str, journey_id: int = 1) -> Instant | None:
        """When their timer is due, None where there is none."""
        found = [
            instant(row.due)
            for row in await self.rows(timers)
            if (row.user_id, row.journey_id) == (user_id, journey_id)
        ]
        return found[0] if found else None

    async def told(self, user_id: str, journey_id: int = 1) -> list[str]:
        """What the journal says of them, a line for each record: "woke w timeout"."""
        return [
            _line(orjson.loads(record))
            for row in sorted(await self.rows(journal), key=lambda row: (row.at, row.rev, row.step))
            if (row.user_id, row.journey_id) == (user_id, journey_id)
            for record in row.trail.split("\n")
            if record
        ]

    async def effects(self) -> list[str]:
        """What is to be done outside, in the order in which it came up."""
        rows = await self.rows(outbox)
        in_order = sorted(rows, key=lambda row: (row.created_at, row.rev, row.position))
        return [row.message_id for row in in_order]

    async def profile(self, user_id: str) -> Any:
        return next(row for row in await self.rows(profiles) if row.user_id == user_id)

    async def letters(self) -> list[Letter]:
        return await list_letters(self.database, 1)

    async def pauses(self, journey_id: int) -> None:
        """Everybody inside this journey, by hand."""
        await self.tampers(instances, journey_id, paused_at=microseconds(self.clock.now()))


SAYS = ("reason", "branch", "port", "variant", "code", "note")


def _line(record: Mapping[str, Any]) -> str:
    effect = record.get("effect") or {}
    said = [str(record[name]) for name in SAYS if record.get(name)]
    more = [*said, *([effect["kind"]] if effect else [])]
    return " ".join([record["what"], record["node_id"], *more])


@contextmanager
def counted(database: Database) -> Iterator[list[str]]:
    """The texts of all statements that are sent meanwhile."""
    sent: list[str] = []

    def note(_: Any, __: Any, statement: str, *more: Any) -> None:
        sent.append(statement)

    engine = database.engine.sync_engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(engine, "before_cursor_execute", note)
