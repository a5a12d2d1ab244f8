"""The port to the outside: what a provider is given, and what it may answer."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import orjson
from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import Instant

from journeykit_server.bulk import Insert
from journeykit_server.clock import microseconds
from journeykit_server.database import Database
from journeykit_server.tables import deliveries

log = logging.getLogger("journeykit")


class Item(NamedTuple):
    """An effect that is to be done outside.

    `payload` holds its fields as the journal tells them: `kind` and, by kind, `message_id` or `id`,
    `channel`, `template_id`, `event`, `url`, `headers`, `body` and so on. Of a message it is one
    medium, ready to go out: `message_id` is its name there, and the payload has the `address` (None
    where the channel needs none), the rendered `texts` by name, `template_version` and the
    `category` that counts; `texts` is empty for an account that has no template yet.

    `attempts` counts this time too, so the first is 1. What follows it is the outbox's own: the
    place in the order of the pass, since when it could be offered, when it failed first.
    """

    tenant_id: int
    message_id: str
    user_id: str
    journey_id: int
    version: int
    entry_count: int
    node_id: str
    kind: str
    payload: Mapping[str, Any]
    created_at: Instant
    attempts: int
    rev: int = 0
    position: int = 0
    is_holdout: bool = False
    due_at: Instant = Instant.MIN
    failed_at: Instant | None = None


class Delivered(NamedTuple):
    """The outside has it; `channel` is the one it went by, where the effect had a choice."""

    channel: str = ""


class Suppressed(NamedTuple):
    """It must not go out, and that is final: no consent, a cap, a missing value. `detail` says
    more, as the names that had no value."""

    reason: str
    detail: str = ""


class Refused(NamedTuple):
    """It can never go out: a bad address, a template that is gone. `code` in capitals."""

    code: str
    message: str


class Failed(NamedTuple):
    """It did not go out this time. `retry_after_seconds` is the least that the outside asks for."""

    message: str
    retry_after_seconds: float = 0.0


class Unreachable(NamedTuple):
    """This channel cannot reach the person (no device, no number, a dead address): the next channel
    of the message may be tried. `reason` is a word like "no_address"."""

    reason: str


class Deferred(NamedTuple):
    """It must not go out now, and may at `until`: quiet hours. The journey goes on meanwhile."""

    until: Instant
    reason: str


class Held(NamedTuple):
    """Its journey stands still; it waits until the journey goes on."""


Outcome = Delivered | Suppressed | Refused | Failed | Unreachable | Deferred | Held
OUTCOMES = (Delivered, Suppressed, Refused, Failed, Unreachable, Deferred, Held)


class Provider(Protocol):
    """What brings effects to the outside.

    The same effect is offered again, with the same `message_id`, whenever its outcome could not be
    kept: the worker died, or was slower than its lease. So a provider, or what stands behind it,
    takes each pair of `tenant_id` and `message_id` once for at least 30 days; the last attempt
    comes 84 hours after the first at most, or some two weeks where quiet hours come between. It may
    be asked by several workers at once, and it is cancelled when it takes longer than
    `offering.OFFER_SECONDS`.
    """

    async def deliver(self, items: Sequence[Item]) -> Sequence[Outcome]:
        """One outcome an item, in the order of the items. Raising means that all have failed."""
        ...


class LogProvider:
    """Delivers nothing: tells in one log line how many there were, and keeps each in `deliveries`.

    The table has every effect once, and how often it was offered.
    """

    def __init__(self, database: Database) -> None:
        self.database = database

    async def deliver(self, items: Sequence[Item]) -> Sequence[Outcome]:
        await self.database.run(lambda connection: self._keep(connection, items))
        log.info("deliveries count=%d %s", len(items), _kinds(items))
        return [Delivered(str(item.payload.get("channel") or "")) for item in items]

    async def _keep(self, connection: AsyncConnection, items: Sequence[Item]) -> None:
        now = microseconds(await self.database.now(connection))
        await INSERT_DELIVERIES.run(
            connection,
            [
                (
                    item.tenant_id,
                    item.message_id,
                    item.user_id,
                    item.kind,
                    orjson.dumps(item.payload).decode(),
                    now,
                    1,
                )
                for item in items
            ],
        )


INSERT_DELIVERIES = Insert(
    deliveries,
    ("tenant_id", "message_id", "user_id", "kind", "payload", "accepted_at", "times"),
    "(tenant_id, message_id) DO UPDATE SET times = deliveries.times + 1",
)


def _kinds(items: Sequence[Item]) -> str:
    kinds = Counter(str(item.payload.get("channel") or item.kind) for item in items)
    return " ".join(f"{kind}={count}" for kind, count in sorted(kinds.items()))
