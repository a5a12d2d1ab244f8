"""Somebody looks at what a journey does that they did not write, and says yes."""

from __future__ import annotations

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection

from journeykit_engine.behaviour import behaviour
from journeykit_engine.graph import Graph
from journeykit_engine.strict_json import refuse_value
from journeykit_server.clock import microseconds
from journeykit_server.database import Database
from journeykit_server.publishing import (
    REVISION_CONFLICT,
    RevisionConflict,
    draft_of,
    is_journey,
    lock_journey,
)
from journeykit_server.tables import journeys

NO_REVIEWER = "A review needs a reviewer. Say who looked at it."


async def review(
    database: Database, tenant_id: int, journey_id: int, *, reviewer: str, revision: int
) -> str:
    """Approve what the draft does at this revision; the answer is its fingerprint. Whoever changes
    anything but how the draft looks needs another review.

    The first who approves it stays its reviewer. Raises `NoSuchJourney`, and `RevisionConflict`
    where the draft is not the one that was looked at.
    """
    if not reviewer.strip():
        raise ValueError(NO_REVIEWER)
    refuse_value({"reviewer": reviewer})

    async def work(connection: AsyncConnection) -> str:
        journey = await lock_journey(connection, tenant_id, journey_id)
        draft = await draft_of(connection, tenant_id, journey_id)
        if draft.revision != revision:
            told = REVISION_CONFLICT.format(journey_id, draft.revision, revision)
            raise RevisionConflict(told)
        fingerprint = behaviour(Graph.parse(draft.document))
        if journey.reviewed != fingerprint:
            at = microseconds(await database.now(connection))
            approved = {"reviewed": fingerprint, "reviewed_by": reviewer, "reviewed_at": at}
            its_row = is_journey(journeys, tenant_id, journey_id)
            await connection.execute(update(journeys).where(*its_row).values(approved))
        return fingerprint

    return await database.run(work)
