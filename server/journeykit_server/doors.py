"""What a journey lets happen: whether it takes people in, moves them on, and lets messages out.

A door is read in the transaction that goes through it, with the journey locked against change, so
once a pause, an archiving or a deletion has been answered nothing comes through. What had been let
out by then and is being offered at that very moment still goes out. People are locked first, then
journeys, by everybody.

On PostgreSQL that lock is an advisory one, shared by whoever goes through and taken alone by who
changes the journey. It is fair: who comes later queues up behind who waits to close the door. A row
lock is not (a new `FOR SHARE` joins those that hold the row), and a busy journey, the very one that
somebody wants to stop, could be kept from being stopped for as long as events come in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from sqlalchemy.ext.asyncio import AsyncConnection

from journeykit_server.bulk import Select
from journeykit_server.tables import journeys

JourneyKey = tuple[int, int]
"""Tenant and journey."""
Outgoing = Literal["go", "hold", "cancel"]


class Door(NamedTuple):
    """`takes_in` people, `moves` those inside, and what becomes of effects that are on their way:
    they "go", are held until the journey goes on ("hold"), or are withheld for good ("cancel")."""

    status: str
    takes_in: bool
    moves: bool
    outgoing: Outgoing


OPEN = Door("published", True, True, "go")
ENTRIES_CLOSED = Door("paused", False, True, "go")
FROZEN = Door("paused", False, False, "hold")
NO_ROW = Door("deleted", False, True, "go")
"""A journey whose row is gone: whoever is inside can still be led out."""

DOORS: Mapping[tuple[str, str], Door] = {
    ("draft", ""): Door("draft", False, True, "go"),
    ("published", ""): OPEN,
    ("paused", ""): ENTRIES_CLOSED,
    ("paused", "entries"): ENTRIES_CLOSED,
    ("paused", "drain"): ENTRIES_CLOSED,
    ("paused", "freeze"): FROZEN,
    ("archived", ""): Door("archived", False, False, "cancel"),
    ("deleted", ""): Door("deleted", False, False, "cancel"),
}
"""By status and pause mode. Who is inside a journey that is archived or deleted stands still, so
that a restored one goes on as if nothing had been."""


async def doors(
    connection: AsyncConnection, keys: Iterable[JourneyKey], *, locks: bool = True
) -> dict[JourneyKey, Door]:
    """The doors of these journeys, every one of them; locked against change until the transaction
    ends unless `locks` is false (for what happens outside any transaction anyway)."""
    wanted = sorted(set(keys))
    if locks and connection.dialect.name == "postgresql":
        # A statement of its own: the one that reads has to see what the lock waited for.
        await PASS.run(connection, wanted)
    found = {tuple(row[:2]): DOORS[row[2], row[3]] for row in await READ.run(connection, wanted)}
    return {key: found.get(key, NO_ROW) for key in wanted}


async def close_for(connection: AsyncConnection, key: JourneyKey) -> None:
    """Wait until nobody goes through the journey's door, and let nobody in until this transaction
    ends. SQLite has one writer anyway."""
    if connection.dialect.name == "postgresql":
        await connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_NUMBER})", key)


_NUMBER = "hashtextextended('journey ' || $1::bigint || ' ' || $2::bigint, 0)"
_GIVEN = "hashtextextended('journey ' || g.tenant_id || ' ' || g.journey_id, 0)"
_KEY = [("tenant_id", "bigint"), ("journey_id", "bigint")]
PASS = Select(
    _KEY,
    # In one order for everybody, or two who come in and two who close would wait for each other.
    f"SELECT pg_advisory_xact_lock_shared({_GIVEN}) FROM "
    "(SELECT tenant_id, journey_id FROM {given} ORDER BY tenant_id, journey_id) g",
)
READ = Select(
    _KEY,
    f"SELECT j.tenant_id, j.journey_id, j.status, j.pause_mode FROM {{given}} JOIN {journeys.name} "
    "j ON j.tenant_id = given.tenant_id AND j.journey_id = given.journey_id "
    "ORDER BY j.tenant_id, j.journey_id",
)
