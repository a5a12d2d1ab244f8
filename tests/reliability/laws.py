"""What holds in every database at any moment between two transactions, whatever went wrong."""

from __future__ import annotations

from collections import Counter

import orjson
from sqlalchemy import select, text

from journeykit_server.database import Database
from journeykit_server.tables import dead_letters, deferred_sends, journal, messages, outbox
from journeykit_server.verify import verify
from tests.reliability.stage import rows

EMPTY_IS_RIGHT = {
    "a timer and its person do not agree": """
        SELECT i.user_id, i.journey_id, i.rev, t.rev FROM instances i
        LEFT JOIN timers t ON t.tenant_id = i.tenant_id AND t.user_id = i.user_id
            AND t.journey_id = i.journey_id
        WHERE (i.status = 'waiting' AND i.wake_at IS NOT NULL AND i.paused_at IS NULL)
            <> (t.rev IS NOT NULL) OR t.rev <> i.rev OR t.due <> i.wake_at""",
    "a timer of nobody": """
        SELECT t.user_id, t.journey_id FROM timers t WHERE NOT EXISTS (
            SELECT 1 FROM instances i WHERE t.tenant_id = i.tenant_id
            AND t.user_id = i.user_id AND t.journey_id = i.journey_id)""",
    "the journal lacks a step, or has one too many": """
        SELECT i.user_id, i.journey_id, i.rev, count(j.rev), max(j.rev) FROM instances i
        LEFT JOIN journal j ON j.tenant_id = i.tenant_id AND j.user_id = i.user_id
            AND j.journey_id = i.journey_id AND j.step = 0
        GROUP BY i.tenant_id, i.user_id, i.journey_id, i.rev
        HAVING count(j.rev) <> i.rev OR max(j.rev) <> i.rev""",
    "an effect of no step": """
        SELECT o.message_id FROM outbox o WHERE NOT EXISTS (
            SELECT 1 FROM journal j WHERE j.tenant_id = o.tenant_id AND j.user_id = o.user_id
            AND j.journey_id = o.journey_id AND j.rev = o.rev AND j.step = 0)""",
    "an entry is not what the pass is": """
        SELECT i.user_id, i.journey_id FROM instances i
        LEFT JOIN entries e ON e.tenant_id = i.tenant_id AND e.user_id = i.user_id
            AND e.journey_id = i.journey_id AND e.entry_count = i.entry_count
        WHERE e.version IS DISTINCT FROM i.version OR e.entered_at IS DISTINCT FROM i.entered_at
            OR e.exit_reason IS DISTINCT FROM i.exit_reason""",
    "an event waits that was never stored": """
        SELECT q.user_id, q.number FROM inbox q WHERE NOT EXISTS (
            SELECT 1 FROM events e WHERE e.tenant_id = q.tenant_id AND e.user_id = q.user_id
            AND e.name = q.name AND e.number = q.number)""",
}
OUTSIDE = ("send", "webhook", "enter_journey", "task")


async def broken(database: Database) -> list[str]:
    """Every law that does not hold; a line each."""
    found = await verify(database)
    for law, query in EMPTY_IS_RIGHT.items():
        if database.is_sqlite:
            query = query.replace("IS DISTINCT FROM", "IS NOT")
        found += [f"{law}: {tuple(row)}" for row in await rows(database, text(query))]
    return found + await _effects(database)


async def _effects(database: Database) -> list[str]:
    """Each effect that a walk wanted is in one place: waiting, put off, settled, or dead."""
    wanted: Counter[str] = Counter()
    for (trail,) in await rows(database, select(journal.c.trail)):
        for record in map(orjson.loads, filter(None, trail.split("\n"))):
            effect = record.get("effect", {})
            if effect.get("kind") in OUTSIDE:
                wanted[effect.get("message_id") or effect["id"]] += 1
            elif record["what"] == "suppressed" and record.get("message_id"):
                wanted[record["message_id"]] += 1
    kept: Counter[str] = Counter()
    for table in (outbox, deferred_sends, messages):
        kept.update(name for (name,) in await rows(database, select(table.c.message_id)))
    dead = select(dead_letters.c.letter_id).where(dead_letters.c.kind == "effect")
    kept.update(name.removeprefix("effect:") for (name,) in await rows(database, dead))
    return [
        f"the journal tells the effect {name} {wanted[name]} times, it is kept {kept[name]} times"
        for name in sorted(wanted | kept)
        if wanted[name] != kept[name]
    ]
