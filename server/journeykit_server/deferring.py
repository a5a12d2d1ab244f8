"""Messages that wait for a better hour: kept with the values they were made with, then sent back.

A deferred message has left the outbox, so that its person's next effects go on before it. When its
time has come it goes back there, and is asked every question anew. What had failed before goes on
counting, so that a night does not begin the ladder of attempts anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import orjson
from sqlalchemy import bindparam, func, select
from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import Instant

from journeykit_server.bulk import Delete, Insert
from journeykit_server.clock import instant, microseconds
from journeykit_server.delivery import Deferred, Item
from journeykit_server.tables import deferred_sends, outbox


class DeferredRow(NamedTuple):
    """A message as it waits: moments in microseconds, `payload` as JSON text, under `TRIED` with
    how often it was tried and when it failed first."""

    tenant_id: int
    message_id: str
    user_id: str
    journey_id: int
    version: int
    entry_count: int
    rev: int
    position: int
    node_id: str
    kind: str
    payload: str
    is_holdout: bool
    created_at: int
    send_at: int
    reason: str


def deferred_row(item: Item, outcome: Deferred) -> DeferredRow:
    """The row of a message that is put off."""
    return DeferredRow(
        *item[:6],  # the names of the columns, up to the count of entries
        rev=item.rev,
        position=item.position,
        node_id=item.node_id,
        kind=item.kind,
        payload=orjson.dumps({**item.payload, **_tried(item)}).decode(),
        is_holdout=item.is_holdout,
        created_at=microseconds(item.created_at),
        send_at=microseconds(outcome.until),
        reason=outcome.reason,
    )


TRIED = "tried"
"""Belongs to the wait and not to the message, which has no field of that name."""


def _tried(item: Item) -> dict[str, Any]:
    attempts = item.attempts - 1  # it was not offered this time
    if not attempts:
        return {}
    failed_at = None if item.failed_at is None else microseconds(item.failed_at)
    return {TRIED: [attempts, failed_at]}


async def defer(connection: AsyncConnection, rows: Iterable[DeferredRow]) -> None:
    """Keep these until their time comes."""
    await INSERT_DEFERRED.run(connection, list(rows))


async def release(connection: AsyncConnection, now: Instant, limit: int) -> int:
    """Put up to `limit` messages whose time has come back into the outbox; how many there were.
    One statement where there is none. Workers that do it at once take different ones."""
    at = microseconds(now)
    due = await connection.execute(_DUE, {"at": at, "many": limit})
    rows = [DeferredRow(*row) for row in due]
    await BACK.run(connection, [_back(row, at) for row in rows])
    await DELETE_DEFERRED.run(connection, [row[:2] for row in rows])
    return len(rows)


def _back(row: DeferredRow, at: int) -> tuple[Any, ...]:
    payload = orjson.loads(row.payload)
    attempts, failed_at = payload.pop(TRIED, (0, None))
    row = row._replace(payload=orjson.dumps(payload).decode())
    return (*row[:13], at, attempts, "", failed_at)


async def next_release(connection: AsyncConnection) -> Instant | None:
    """When the first of them is to be sent; may lie in the past."""
    send_at = (await connection.execute(select(func.min(deferred_sends.c.send_at)))).scalar_one()
    return None if send_at is None else instant(send_at)


_DUE = (
    select(*(deferred_sends.c[name] for name in DeferredRow._fields))
    .where(deferred_sends.c.send_at <= bindparam("at"))
    .order_by(deferred_sends.c.send_at)
    .limit(bindparam("many"))
    .with_for_update(skip_locked=True)  # SQLite has locked its whole file
)
INSERT_DEFERRED = Insert(deferred_sends, DeferredRow._fields)
DELETE_DEFERRED = Delete(deferred_sends, ("tenant_id", "message_id"))
BACK = Insert(outbox, (*DeferredRow._fields[:13], "try_at", "attempts", "last_error", "failed_at"))
