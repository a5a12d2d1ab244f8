"""Journeys that send people to each other: a circle of them must come to an end."""

from __future__ import annotations

from collections.abc import Sequence

import orjson
from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import TimeDelta

from journeykit_engine.graph import RESERVED_EVENT
from journeykit_server.bulk import Select
from journeykit_server.clock import instant
from journeykit_server.delivery import Item, Refused
from journeykit_server.incoming import Incoming, entering
from journeykit_server.store import PASS, SAME_PASS

MOST_HOPS = 10  # from journey to journey without a rest; more is a circle, or as good as one
A_REST = TimeDelta(hours=24)  # a pass that took so long begins the count anew: slow loops are meant
SOURCE = "journey"  # of the events by which one journey sends people to another

TOO_MANY_HOPS = (
    'The person "{0}" was sent from journey to journey {1} times without a day\'s rest in any of '
    'them, so the node "{2}" of journey {3} does not send them on. '
    "Put a wait into the circle, or take the jump out."
)
BAD_ENTRY = 'What the node "{0}" says about whom it sends on cannot be stored: {1}'


async def count_hops(
    connection: AsyncConnection, tenant_id: int, items: Sequence[Item]
) -> list[int]:
    """For each of these effects, how often its person has been sent on by then, this time included.
    One statement."""
    asked = [(tenant_id, item.user_id, item.journey_id, item.entry_count) for item in items]
    rows = await SENT_BY.run(connection, sorted(set(asked)))
    sent = {tuple(row[:4]): (row[4], row[5]) for row in rows}
    return [_hops(item, sent.get(key)) for item, key in zip(items, asked, strict=True)]


SENT_BY = Select(
    [*PASS, ("entry_count", "bigint")],
    "SELECT n.tenant_id, n.user_id, n.journey_id, n.entry_count, n.entered_at, "
    f"e.properties::text FROM {{given}} JOIN entries n ON {SAME_PASS.format('n')} "
    "AND n.entry_count = given.entry_count "
    "JOIN events e ON e.tenant_id = n.tenant_id AND e.user_id = n.user_id "
    f"AND e.name = '{RESERVED_EVENT}' AND e.source = '{SOURCE}' AND e.event_id = n.entered_by",
)
"""When these passes began and the event that brought them about, of those sent by a journey."""


def _hops(item: Item, sent: tuple[int, str] | None) -> int:
    if sent is None:
        return 1
    entered_at, properties = sent
    has_rested = item.created_at - instant(entered_at) >= A_REST
    return 1 if has_rested else orjson.loads(properties).get("hops", 1) + 1


def sending(item: Item, hops: int) -> Incoming:
    """The event that takes a person in; it has the id of the effect, so that once is once."""
    asked = entering(item.payload["journey_id"], item.user_id, item.message_id, SOURCE)
    return asked._replace(properties={**asked.properties, "hops": hops})


def refusal(item: Item, hops: int, fault: str) -> Refused | None:
    """Why this person is not sent on: too often by now, or by an event that has this fault."""
    if hops > MOST_HOPS:
        told = TOO_MANY_HOPS.format(item.user_id, MOST_HOPS, item.node_id, item.journey_id)
        return Refused("HOPS", told)
    return Refused("BAD_ENTRY", BAD_ENTRY.format(item.node_id, fault)) if fault else None
