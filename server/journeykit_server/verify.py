"""The counters and what they count must say the same: a recount, and what differs.

Arrivals, ends and what a walk withheld are told in the journal; what was withheld at the last
moment, when it had left the outbox, in the delivery log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import orjson
from sqlalchemy import Table, func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from journeykit_server.database import Database
from journeykit_server.tables import instances, journal, messages, node_stats

PAGE = 5_000  # steps read at once: a few megabytes

Node = tuple[int, int, int, str]
"""Tenant, journey, version, node."""
Counts = dict[str, Counter[Node]]

COUNTED = {"visited": "entered", "exited": "exited", "suppressed": "suppressed"}
WORDS = ("entered", "exited", "suppressed", "waiting")


async def verify(database: Database, tenant_id: int | None = None) -> list[str]:
    """Recount every node's statistics from the journal and the delivery log, of one tenant or of
    all; a line for each counter that differs, none where all is well.

    Read on one snapshot, so it may run beside workers. It reads the whole journal in pages.
    """

    async def read(connection: AsyncConnection) -> list[str]:
        told = await _recount(connection, tenant_id)
        await _withheld(connection, tenant_id, told["suppressed"])
        kept = await _kept(connection, tenant_id)
        return list(_differences(told, kept))

    return await database.read(read)


def _differences(told: Counts, kept: Counts) -> Iterable[str]:
    for word in WORDS:
        for node in sorted({*told[word], *kept[word]}):
            if told[word][node] != kept[word][node]:
                yield DIFFERS.format(*node, word, kept[word][node], told[word][node])


DIFFERS = 'tenant {0} journey {1} version {2} node "{3}": {4} is {5}, the journal says {6}'


async def _recount(connection: AsyncConnection, tenant_id: int | None) -> Counts:
    counts: Counts = {word: Counter() for word in WORDS}
    place: tuple[Any, ...] | None = None
    while rows := await _page(connection, tenant_id, place):
        for row in rows:
            for line in row.trail.split("\n"):  # a text may hold other ends of lines
                if line:
                    journey = (row.tenant_id, row.journey_id, row.version)
                    _count(counts, journey, orjson.loads(line))
        place = tuple(rows[-1][:5])
    return counts


async def _withheld(
    connection: AsyncConnection, tenant_id: int | None, suppressed: Counter[Node]
) -> None:
    """Add what was withheld after it had been in the outbox; a walk's own has no attempt."""
    node = (messages.c.tenant_id, messages.c.journey_id, messages.c.version, messages.c.node_id)
    query = select(*node, func.count()).group_by(*node)
    query = query.where(messages.c.state == "suppressed", messages.c.attempts > 0)
    for *key, count in await connection.execute(_of(tenant_id, query, messages)):
        suppressed[tuple(key)] += count


def _count(counts: Counts, journey: tuple[int, int, int], record: dict[str, Any]) -> None:
    node, what = (*journey, record["node_id"]), record["what"]
    if what in COUNTED:
        counts[COUNTED[what]][node] += 1
    elif what == "waiting":
        counts["waiting"][node] += 1
    elif what == "woke":
        counts["waiting"][node] -= 1


async def _page(
    connection: AsyncConnection, tenant_id: int | None, place: tuple[Any, ...] | None
) -> Sequence[Any]:
    key = (
        journal.c.tenant_id,
        journal.c.user_id,
        journal.c.journey_id,
        journal.c.rev,
        journal.c.step,
    )
    query = select(*key, journal.c.version, journal.c.trail).order_by(*key).limit(PAGE)
    if tenant_id is not None:
        query = query.where(journal.c.tenant_id == tenant_id)
    if place is not None:
        query = query.where(_after(key, place))
    return (await connection.execute(query)).all()


def _after(key: tuple[Any, ...], place: tuple[Any, ...]) -> Any:
    return tuple_(*key) > place


async def _kept(connection: AsyncConnection, tenant_id: int | None) -> Counts:
    counts: Counts = {word: Counter() for word in WORDS}
    node = (
        node_stats.c.tenant_id,
        node_stats.c.journey_id,
        node_stats.c.version,
        node_stats.c.node_id,
    )
    sums = [func.sum(node_stats.c[word]) for word in WORDS[:3]]
    query = _of(tenant_id, select(*node, *sums).group_by(*node), node_stats)
    for *key, entered, exited, suppressed in await connection.execute(query):
        for word, count in zip(WORDS, (entered, exited, suppressed), strict=False):
            counts[word][tuple(key)] = int(count)
    where = (
        instances.c.tenant_id,
        instances.c.journey_id,
        instances.c.version,
        instances.c.current_node,
    )
    waiting = select(*where, func.count()).where(instances.c.status == "waiting").group_by(*where)
    for *key, count in await connection.execute(_of(tenant_id, waiting, instances)):
        counts["waiting"][tuple(key)] = count
    return counts


def _of(tenant_id: int | None, query: Any, table: Table) -> Any:
    return query if tenant_id is None else query.where(table.c.tenant_id == tenant_id)
