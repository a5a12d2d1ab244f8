"""Events are stored, each once: what comes again under an id that is known is told apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import Instant

from journeykit_server import store
from journeykit_server.clock import microseconds
from journeykit_server.incoming import Incoming, Receipt, event_row, is_same


class Recorded(NamedTuple):
    """The first number of a batch of events, those that are new, and the receipt of all."""

    first: int
    fresh: list[tuple[int, Incoming]]
    receipt: Receipt


async def record(
    connection: AsyncConnection, tenant_id: int, incoming: Sequence[Incoming], now: Instant
) -> Recorded:
    """Store what is new, with numbers in the order of arrival."""
    first, at = await store.numbers(connection), microseconds(now)
    given: dict[tuple[str, str], tuple[int, Incoming]] = {}
    repeated: list[Incoming] = []
    for number, event in enumerate(incoming, first):
        if (event.source, event.id) in given:
            repeated.append(event)
        else:
            given[event.source, event.id] = (number, event)
    rows = [event_row(tenant_id, number, event, at) for number, event in given.values()]
    written = await store.RECORD.written(connection, rows)
    if written is not None and len(written) == len(incoming):
        return Recorded(first, list(given.values()), Receipt(len(rows)))
    twice = {(event.source, event.id) for event in repeated}
    doubtful = [
        (tenant_id, *key)
        for key, (number, _) in given.items()
        if written is None or number not in written or key in twice
    ]
    found = await store.RECORDED.run(connection, doubtful)
    stored = {(row[0], row[1]): row[2:] for row in found}
    fresh = [item for key, item in given.items() if key not in stored or stored[key][0] == item[0]]
    known = {number for number, _ in fresh}
    again = [item[1] for item in given.values() if item[0] not in known] + repeated
    other = [event.id for event in again if not is_same(event, stored[event.source, event.id])]
    receipt = Receipt(len(fresh), len(again) - len(other), tuple(other))
    return Recorded(first, fresh, receipt)
