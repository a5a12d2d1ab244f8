"""A document judged where it is to run: with the account's other journeys and its templates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Row, and_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from journeykit_engine import graph
from journeykit_engine.check import Report, check
from journeykit_engine.check_nodes import place_of, url_fault
from journeykit_engine.check_outside import Neighbour, Outside
from journeykit_engine.graph import Graph
from journeykit_engine.shape import BadGraph, Problem
from journeykit_engine.strict_json import BadJson
from journeykit_server.database import Database
from journeykit_server.tables import drafts, journeys, template_versions, templates, versions


async def judge(
    database: Database,
    tenant_id: int,
    document: Graph | Mapping[str, Any],
    *,
    journey_id: int = 0,
    account_timezone: str | None = None,
) -> Report:
    """What keeps a document from being published in this account, and what is worth knowing.

    `journey_id` is the journey whose draft it is, 0 for a new one. What the account has besides is
    read as it is now: journeys that the document sends people to, journeys that ask the same at
    the door, templates and their texts. An account without any template keeps its texts elsewhere.
    """

    async def read(connection: AsyncConnection) -> Report:
        return await judge_here(
            connection,
            tenant_id,
            document,
            journey_id=journey_id,
            account_timezone=account_timezone,
        )

    return await database.read(read)


async def judge_here(
    connection: AsyncConnection,
    tenant_id: int,
    document: Graph | Mapping[str, Any],
    *,
    journey_id: int,
    account_timezone: str | None,
) -> Report:
    """`judge` inside a transaction: two statements."""
    around = _around(await connection.execute(_journeys_of(tenant_id, journey_id)))
    rows = (await connection.execute(_texts_of(tenant_id))).all()
    usable = [row for row in rows if row.archived_at is None]
    texts = {row.template_id: orjson.loads(row.texts) for row in usable}
    channels = {row.template_id: row.channel for row in usable}
    outside = Outside(around.journeys, channels if rows else None)
    report = check(document, around.published, account_timezone, texts if rows else None, outside)
    return report._replace(warnings=(*report.warnings, *_blocked_calls(document)))


def _blocked_calls(document: Graph | Mapping[str, Any]) -> Iterable[Problem]:
    """Webhooks that lead inside. A warning, since the operator may have opened that network."""
    known, _ = Graph.salvage(document) if isinstance(document, Mapping) else (document, ())
    for index, node in enumerate(known.nodes if known else ()):
        if not isinstance(node.action, graph.Webhook) or url_fault(node.action.url):
            continue
        from journeykit_server.dialler import Dialler  # slow to import, and seldom asked

        if (refused := Dialler().refusal(node.action.url)) is not None:
            what, _, fix = refused.message.partition(". ")
            place = place_of(node, index)
            where = place._replace(path=f"{place.path}.action")
            yield where.problem(refused.code, "url", f"calls an address: {what}.", fix)


class _Around(NamedTuple):
    journeys: dict[int, Neighbour]
    published: list[Graph]


def _journeys_of(tenant_id: int, journey_id: int) -> Any:
    """The other journeys that are not deleted, each with its published document or its draft."""
    j, v, d = journeys.c, versions.c, drafts.c
    is_published = and_(
        v.tenant_id == j.tenant_id,
        v.journey_id == j.journey_id,
        v.version == j.published_version,
    )
    is_draft = and_(d.tenant_id == j.tenant_id, d.journey_id == j.journey_id)
    return (
        select(j.journey_id, j.status, v.document, d.document.label("draft"))
        .select_from(journeys.outerjoin(versions, is_published).outerjoin(drafts, is_draft))
        .where(j.tenant_id == tenant_id, j.journey_id != journey_id, j.status != "deleted")
        .order_by(j.journey_id)
    )


def _texts_of(tenant_id: int) -> Any:
    t, v = templates.c, template_versions.c
    is_current = and_(
        v.tenant_id == t.tenant_id, v.template_id == t.template_id, v.version == t.version
    )
    return (
        select(t.template_id, t.channel, t.archived_at, v.texts)
        .select_from(templates.join(template_versions, is_current))
        .where(t.tenant_id == tenant_id)
    )


def _around(rows: Iterable[Row[Any]]) -> _Around:
    around = _Around({}, [])
    for row in rows:
        try:
            known = Graph.parse(orjson.loads(row.document or row.draft or "{}"))
        except (BadGraph, BadJson):  # a neighbour that cannot be read is its own owner's trouble
            around.journeys[row.journey_id] = Neighbour(row.status, "")
            continue
        around.journeys[row.journey_id] = _neighbour(row.status, known)
        if row.document is not None and row.status in ("published", "paused"):
            around.published.append(known)
    return around


def _neighbour(status: Any, known: Graph) -> Neighbour:
    trigger = known.trigger
    enters = frozenset(
        node.action.journey_id
        for node in known.nodes
        if isinstance(node.action, graph.EnterJourney) and node.action.journey_id is not None
    )
    return Neighbour(status, trigger.kind if trigger else "", enters)
