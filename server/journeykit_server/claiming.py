"""Claims: the effects that are due are marked as one worker's for a while, heads of passes only.

Only the first effect of a pass, its head, is offered; who stands behind it is sent back until that
one may be tried again. A claim is permission to try and nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson
from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import Instant

from journeykit_server import deferring
from journeykit_server.bulk import Update
from journeykit_server.clock import instant, microseconds
from journeykit_server.delivery import Item
from journeykit_server.tables import NEVER, outbox

LEASE_SECONDS = 60  # governing, one round of an offer (`offering.OFFER_SECONDS`), and settling
SECOND = 1_000_000  # microseconds


class Claimed(NamedTuple):
    """What a claim got, longest due first. Everything due up to `seen` (microseconds) was looked
    at; `is_all` where that was everything."""

    items: list[Item]
    seen: int
    is_all: bool


async def claim(
    connection: AsyncConnection, now: Instant, limit: int, token: str, *, low: int = 0
) -> Claimed:
    """Look at the `limit` rows longest due, from the moment `low` (microseconds) on: mark the heads
    as this token's for `LEASE_SECONDS`, and send who stands behind another back until that one may
    be tried again, so that nobody has to look at them before.

    The mark is permission to try and nothing more: `settle` asks whether it is still there.
    """
    at = microseconds(now)
    lease_end = at + LEASE_SECONDS * SECOND
    if connection.dialect.name == "sqlite":
        found = await connection.exec_driver_sql(SQLITE_LOOK, (low, at, limit))
        rows = found.all()
        await MARK.run(connection, [_mark(row, token, lease_end) for row in rows])
    else:
        # The limit stands in the text: the planner takes an unknown one for a tenth of the table.
        statement = POSTGRESQL_CLAIM.replace("{limit}", str(int(limit)))
        found = await connection.exec_driver_sql(statement, (low, at, token, lease_end))
        rows = found.all()
    items = sorted((_item(row) for row in rows if row.is_head), key=_since)
    is_all = len(rows) < limit
    return Claimed(items, at if is_all else max(row.try_at for row in rows), is_all)


async def hold(
    connection: AsyncConnection, now: Instant, token: str, items: Sequence[Item]
) -> None:
    """Begin the lease of what is still this token's anew."""
    end = microseconds(now) + LEASE_SECONDS * SECOND
    await HOLD.run(connection, [(end, item.tenant_id, item.message_id, token) for item in items])


async def next_try(connection: AsyncConnection, low: int = 0) -> Instant | None:
    """When there is something to look at next, from the moment `low` (microseconds) on: an effect
    is due, the lease of somebody else ends, a place in a row has to be looked at again, or the hour
    of a deferred message has come."""
    marks = ("?", "?") if connection.dialect.name == "sqlite" else ("$1", "$2")
    found = await connection.exec_driver_sql(NEXT_TRY.format(*marks), (low, NEVER))
    times = [instant(at) for at in (found.scalar_one(),) if at is not None]
    deferred = await deferring.next_release(connection)
    return min([*times, deferred] if deferred else times, default=None)


NEXT_TRY = "SELECT min(try_at) FROM outbox WHERE try_at >= {} AND try_at < {}"
ITEM_COLUMNS = (
    "o.tenant_id, o.message_id, o.user_id, o.journey_id, o.version, o.entry_count, o.node_id, "
    "o.kind, o.payload, o.created_at, o.rev, o.position, o.is_holdout, o.failed_at"
)
OF_PASS = (
    "FROM outbox e WHERE e.tenant_id = {row}.tenant_id AND e.user_id = {row}.user_id "
    "AND e.journey_id = {row}.journey_id ORDER BY e.rev, e.position LIMIT 1"
)
"""The head of the pass of a row: one look into the index."""
SQLITE_LOOK = (
    f"SELECT {ITEM_COLUMNS}, o.attempts + 1 AS attempts, o.try_at, h.try_at AS head_at, "
    "h.message_id = o.message_id AS is_head FROM outbox o JOIN outbox h "
    "ON h.tenant_id = o.tenant_id "
    f"AND h.message_id = (SELECT e.message_id {OF_PASS.format(row='o')}) "
    "WHERE o.try_at BETWEEN ? AND ? ORDER BY o.try_at LIMIT ?"
)
POSTGRESQL_CLAIM = (
    "WITH near AS MATERIALIZED ("
    "SELECT o.tenant_id, o.message_id, o.user_id, o.journey_id, o.try_at FROM outbox o "
    "WHERE o.try_at BETWEEN $1 AND $2 ORDER BY o.try_at LIMIT {limit} FOR UPDATE SKIP LOCKED"
    "), seen AS MATERIALIZED ("
    "SELECT n.tenant_id, n.message_id, n.try_at, h.try_at AS head_at, "
    "h.message_id = n.message_id AS is_head FROM near n "
    f"CROSS JOIN LATERAL (SELECT e.message_id, e.try_at {OF_PASS.format(row='n')}) h"
    ") UPDATE outbox o SET lease_token = CASE WHEN seen.is_head THEN $3 END, "
    "try_at = CASE WHEN seen.is_head THEN $4 ELSE greatest($4, seen.head_at) END, "
    "attempts = o.attempts + seen.is_head::int FROM seen "
    "WHERE o.tenant_id = seen.tenant_id AND o.message_id = seen.message_id "
    f"RETURNING {ITEM_COLUMNS}, o.attempts, seen.try_at, seen.is_head"
)
HOLD = Update(
    outbox,
    ("try_at",),
    ("tenant_id", "message_id"),
    only="outbox.lease_token = given.token",
    extra=[("token", "lease_token")],
)
MARK = Update(outbox, ("lease_token", "try_at", "attempts"), ("tenant_id", "message_id"))


def _mark(row: Any, token: str, lease_end: int) -> tuple[Any, ...]:
    key = (row.tenant_id, row.message_id)
    if row.is_head:
        return (token, lease_end, row.attempts, *key)
    return (None, max(lease_end, row.head_at), row.attempts - 1, *key)


def _item(row: Any) -> Item:
    return Item(
        row.tenant_id,
        row.message_id,
        row.user_id,
        row.journey_id,
        row.version,
        row.entry_count,
        row.node_id,
        row.kind,
        payload=orjson.loads(row.payload),
        created_at=instant(row.created_at),
        attempts=row.attempts,
        rev=row.rev,
        position=row.position,
        is_holdout=bool(row.is_holdout),
        due_at=instant(row.try_at),
        failed_at=None if row.failed_at is None else instant(row.failed_at),
    )


def _since(item: Item) -> tuple[Instant, int, str]:
    return item.due_at, item.tenant_id, item.message_id
