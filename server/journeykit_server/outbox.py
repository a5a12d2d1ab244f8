"""The outbox: what has to be done outside is claimed, offered to a provider, and settled.

A claim is a short transaction that leaves a written mark, the offer happens outside any
transaction, and settling believes the mark alone: who was too slow finds their effects taken over
and writes nothing. So an effect may be offered twice, always under the same id, and is settled
once. The effects of one pass go one after another; only the first of a pass, its head, is offered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple, assert_never

import orjson
from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import Instant

from journeykit_server.bulk import Delete, Insert, Select, Update
from journeykit_server.clock import instant, microseconds
from journeykit_server.database import Database
from journeykit_server.delivery import (
    OUTCOMES,
    Deferred,
    Delivered,
    Failed,
    Held,
    Item,
    Outcome,
    Provider,
    Refused,
    Suppressed,
    Unreachable,
)
from journeykit_server.letters import (
    INSERT_LETTERS,
    LetterRow,
    effect_letter_id,
    fit_to_keep,
)
from journeykit_server.tables import messages, outbox

log = logging.getLogger("journeykit")

LADDER_SECONDS = (0, 5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""The pause before each attempt, as the Standard Webhooks have it: ten attempts in 75 hours."""
JITTER = 0.1  # a pause is up to so much longer: what failed together does not come back together
BATCH = 200  # effects of one offer
OFFER_SECONDS = 30  # how long a provider may take
LEASE_SECONDS = 60  # offering, twice over, and settling
SWEEP_SECONDS = 30  # how often a poll looks behind its watermark; a dead worker left work there
SLACK_SECONDS = 5  # how late an ordinary transaction commits
SECOND = 1_000_000  # microseconds

Enter = Callable[[int, Sequence[Item]], Awaitable[object]]
"""Takes the people of these effects, all of one tenant, into the journeys they name."""


class OutboxRow(NamedTuple):
    """An effect as it is written: moments in microseconds, `payload` as JSON text.

    `rev` and `position` are its place in the order of its pass: the step, and which effect of it.
    """

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
    try_at: int
    attempts: int = 0
    lease_token: str | None = None
    last_error: str = ""
    failed_at: int | None = None


OUTBOX_COLUMNS = OutboxRow._fields
INSERT_OUTBOX = Insert(outbox, OUTBOX_COLUMNS)


class MessageRow(NamedTuple):
    """What became of an effect, as it is written: `state` is delivered or suppressed."""

    tenant_id: int
    message_id: str
    user_id: str
    journey_id: int
    version: int
    entry_count: int
    node_id: str
    kind: str
    channel: str
    state: str
    reason: str
    is_holdout: bool
    attempts: int
    created_at: int
    settled_at: int


INSERT_MESSAGES = Insert(messages, MessageRow._fields, "DO NOTHING")
LOG_SUPPRESSED = INSERT_MESSAGES
"""For what a walk withholds itself, so that it never was in the outbox."""


class Settled(NamedTuple):
    """How many effects ended how. `failed` come again; `lost` were no longer this worker's when it
    came to mark them: another has taken them over, or a commit is repeated that had worked."""

    delivered: int = 0
    suppressed: int = 0
    failed: int = 0
    dead: int = 0
    lost: int = 0


class Outbox:
    """One worker's view of the outbox.

    It remembers up to which moment it has seen everything (`low`), so that a poll does not wade
    through index entries of rows that are long gone, which PostgreSQL keeps for as long as somebody
    holds an old snapshot open. A transaction that commits later than `SLACK_SECONDS` after its own
    time may lie below, so every `SWEEP_SECONDS` a poll begins at the beginning.
    """

    def __init__(self, database: Database, provider: Provider, enter: Enter) -> None:
        self.database = database
        self.provider = provider
        self.enter = enter
        self.low = 0
        self.swept_at = 0

    async def deliver_once(self, limit: int = BATCH) -> Settled:
        """Offer what is due, `limit` at most, and keep what became of it. All zeros: nothing due.

        Raises what `Database.run` raises; a provider's own trouble is an outcome.
        """
        token = self.database.chance.token()
        items = await self._claim(limit, token)
        if not items:
            return Settled()
        try:
            outcomes = await self._offer(items)
        except asyncio.CancelledError:
            await self.database.run(
                lambda connection: release(self.database, connection, token, items)
            )
            raise
        settled = await self.database.run(
            lambda connection: settle(self.database, connection, token, items, outcomes)
        )
        log.info("delivered", extra={"figures": settled._asdict()})
        return settled

    async def next_try(self, connection: AsyncConnection) -> Instant | None:
        """When to look again; may lie in the past."""
        return await next_try(connection, self.low)

    async def _claim(self, limit: int, token: str) -> list[Item]:
        """Look on until there is something to offer, or nothing left that is due."""
        while True:
            claimed = await self._look(limit, token)
            if claimed.items or claimed.is_all:
                return claimed.items

    async def _look(self, limit: int, token: str) -> Claimed:
        async def work(connection: AsyncConnection) -> tuple[int, bool, Claimed]:
            now = await self.database.now(connection)
            at = microseconds(now)
            sweeps = self._is_behind(at)
            low = 0 if sweeps else self.low
            return at, sweeps, await claim(connection, now, limit, token, low=low)

        at, swept, claimed = await self.database.run(work)
        self.low = max(at - SLACK_SECONDS * SECOND, 0) if claimed.is_all else claimed.seen
        self.swept_at = at if swept else self.swept_at
        return claimed

    def _is_behind(self, at: int) -> bool:
        """Whether to look at everything: it is time, or the clock went back."""
        return at < self.low or not 0 <= at - self.swept_at < SWEEP_SECONDS * SECOND

    async def _offer(self, items: Sequence[Item]) -> list[Outcome]:
        """One outcome an item, in their order."""
        outcomes: dict[tuple[int, str], Outcome] = {}
        offered: list[Item] = []
        entering: list[Item] = []
        for item in items:
            if (refusal := _refusal(item)) is not None:
                outcomes[_key(item)] = refusal
            else:
                (entering if item.kind == "enter_journey" else offered).append(item)
        by_tenant = attrgetter("tenant_id")
        for tenant_id, group in groupby(sorted(entering, key=by_tenant), by_tenant):
            people = list(group)
            answers = await self._enter(tenant_id, people)
            outcomes.update(zip(map(_key, people), answers, strict=True))
        if offered:
            answers = await self._deliver(offered)
            outcomes.update(zip(map(_key, offered), answers, strict=True))
        return [outcomes[_key(item)] for item in items]

    async def _enter(self, tenant_id: int, items: Sequence[Item]) -> Sequence[Outcome]:
        try:
            await self.enter(tenant_id, items)
        except Exception as error:
            return _all_failed(items, error)
        return [Delivered() for _ in items]

    async def _deliver(self, items: Sequence[Item]) -> Sequence[Outcome]:
        try:
            async with asyncio.timeout(OFFER_SECONDS) as limit:
                outcomes = await self.provider.deliver(items)
        except Exception as error:
            return _all_failed(items, TimeoutError(TOO_SLOW) if limit.expired() else error)
        known = [outcome for outcome in outcomes if isinstance(outcome, OUTCOMES)]
        if len(known) == len(outcomes) == len(items):
            return outcomes
        return _all_failed(items, ValueError(BAD_ANSWER.format(got=len(known), want=len(items))))


TOO_SLOW = f"the provider gave no answer within {OFFER_SECONDS} seconds"
BAD_ANSWER = "the provider gave {got} outcomes for {want} effects; it owes one each"
HELD_OUT = "holdout"
NEVER_ANSWERED = (
    "It was offered {tries} times, and no worker lived to keep an answer. "
    "See whether a worker dies of it, then retry."
)


def _refusal(item: Item) -> Outcome | None:
    """Why an effect is not even offered. The table itself refuses what is for a holdout; this is
    the last door, for the day that somebody takes the constraint away."""
    if item.is_holdout:
        log.error("outbox holdout=1 journey_id=%d node_id=%s", item.journey_id, item.node_id)
        return Suppressed(HELD_OUT)
    if item.attempts > len(LADDER_SECONDS):
        return Refused("NEVER_ANSWERED", NEVER_ANSWERED.format(tries=item.attempts - 1))
    return None


def _all_failed(items: Sequence[Item], error: Exception) -> list[Outcome]:
    log.warning("outbox offer failed count=%d error=%s", len(items), type(error).__name__)
    return [Failed(f"{type(error).__name__}: {error}") for _ in items]


def _key(item: Item) -> tuple[int, str]:
    return item.tenant_id, item.message_id


# -- claim ---------------------------------------------------------------------------------------


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


async def next_try(connection: AsyncConnection, low: int = 0) -> Instant | None:
    """When there is something to look at next, from the moment `low` (microseconds) on: an effect
    is due, the lease of somebody else ends, or a place in a row has to be looked at again."""
    mark = "?" if connection.dialect.name == "sqlite" else "$1"
    found = await connection.exec_driver_sql(NEXT_TRY + mark, (low,))
    try_at = found.scalar_one()
    return None if try_at is None else instant(try_at)


NEXT_TRY = "SELECT min(try_at) FROM outbox WHERE try_at >= "
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


# -- settle --------------------------------------------------------------------------------------


async def settle(
    database: Database,
    connection: AsyncConnection,
    token: str,
    items: Sequence[Item],
    outcomes: Sequence[Outcome],
) -> Settled:
    """Write what became of the items that are still this token's, in six statements at most."""
    now = microseconds(await database.now(connection))
    mine = await _still_mine(connection, token, items)
    sorting = _Sorting(now, database.chance.fraction)
    for item, outcome in zip(items, outcomes, strict=True):
        if _key(item) in mine:
            sorting.add(item, outcome)
    await DELETE_OUTBOX.run(connection, [_key(item) for item in sorting.gone])
    await INSERT_MESSAGES.run(connection, sorting.messages)
    await INSERT_LETTERS.run(connection, sorting.letters)
    await TRY_AGAIN.run(connection, sorting.failed)
    await LET_NEXT.run(connection, [(now, *_pass_of(item)) for item in sorting.gone])
    return sorting.settled(lost=len(items) - len(mine))


async def release(
    database: Database, connection: AsyncConnection, token: str, items: Sequence[Item]
) -> None:
    """Give back what was claimed and not offered to the end: it is due at once, for anybody."""
    now = microseconds(await database.now(connection))
    mine = await _still_mine(connection, token, items)
    back = [(None, now, item.attempts - 1, *_key(item)) for item in items if _key(item) in mine]
    await MARK.run(connection, back)


async def _still_mine(
    connection: AsyncConnection, token: str, items: Iterable[Item]
) -> set[tuple[int, str]]:
    found = await STILL_MINE.run(connection, [(*_key(item), token) for item in items])
    return {(row.tenant_id, row.message_id) for row in found}


STILL_MINE = Select(
    (("tenant_id", "bigint"), ("message_id", "text"), ("token", "text")),
    "SELECT o.tenant_id, o.message_id FROM {given} JOIN outbox o ON o.tenant_id = given.tenant_id "
    "AND o.message_id = given.message_id AND o.lease_token = given.token "
    "ORDER BY o.tenant_id, o.message_id",
    locks="o",
)
DELETE_OUTBOX = Delete(outbox, ("tenant_id", "message_id"))
TRY_AGAIN = Update(
    outbox,
    ("try_at", "last_error", "failed_at", "lease_token"),
    ("tenant_id", "message_id"),
)
LET_NEXT = Update(
    outbox,
    ("try_at",),
    ("tenant_id", "user_id", "journey_id"),
    only="outbox.lease_token IS NULL "
    f"AND outbox.message_id = (SELECT e.message_id {OF_PASS.format(row='outbox')})",
)
"""Who stood behind an effect that has left is due from now on: above every worker's watermark."""


class _Sorting:
    """The rows that a batch of outcomes writes."""

    def __init__(self, now: int, fraction: Callable[[], float]) -> None:
        self.now = now
        self.fraction = fraction
        self.gone: list[Item] = []
        self.messages: list[MessageRow] = []
        self.letters: list[LetterRow] = []
        self.failed: list[tuple[int, str, int, None, int, str]] = []

    def add(self, item: Item, outcome: Outcome) -> None:
        match outcome:
            case Delivered(channel):
                self._leave(item, "delivered", channel=channel)
            case Suppressed(reason=reason) | Unreachable(reason=reason):
                self._leave(item, "suppressed", reason=reason)
            case Refused(code, message):
                self._die(item, code, message)
            case Failed(message=message) if item.attempts >= len(LADDER_SECONDS):
                self._die(item, "DELIVERY_FAILED", message)
            case Failed(message=message):
                self._come_again(item, message)
            case Deferred() | Held():
                raise NotImplementedError
            case _:
                assert_never(outcome)

    def settled(self, lost: int) -> Settled:
        delivered = sum(row.state == "delivered" for row in self.messages)
        suppressed = len(self.messages) - delivered
        return Settled(delivered, suppressed, len(self.failed), len(self.letters), lost)

    def _leave(self, item: Item, state: str, *, channel: str = "", reason: str = "") -> None:
        self.gone.append(item)
        channel = channel or str(item.payload.get("channel") or "")
        self.messages.append(
            MessageRow(
                *item[:8],  # the names of the columns, up to the kind
                channel=fit_to_keep(channel),
                state=state,
                reason=fit_to_keep(reason),
                is_holdout=item.is_holdout,
                attempts=item.attempts,
                created_at=microseconds(item.created_at),
                settled_at=self.now,
            )
        )

    def _die(self, item: Item, code: str, message: str) -> None:
        self.gone.append(item)
        self.letters.append(
            LetterRow(
                item.tenant_id,
                effect_letter_id(item.message_id),
                "effect",
                item.user_id,
                item.journey_id,
                item.version,
                item.node_id,
                fit_to_keep(code),
                fit_to_keep(message),
                item.attempts,
                self._first_failure(item),
                self.now,
                orjson.dumps(_row_of(item, self.now)._asdict()).decode(),
            )
        )

    def _come_again(self, item: Item, message: str) -> None:
        pause = LADDER_SECONDS[item.attempts] * (1 + JITTER * self.fraction())
        try_at = self.now + round(pause * SECOND)
        self.failed.append(
            (try_at, fit_to_keep(message), self._first_failure(item), None, *_key(item))
        )

    def _first_failure(self, item: Item) -> int:
        return self.now if item.failed_at is None else microseconds(item.failed_at)


def _row_of(item: Item, now: int) -> OutboxRow:
    """The row an item was read from; of what retrying resets, anything."""
    return OutboxRow(
        *item[:6],  # the names of the columns, up to the count of entries
        rev=item.rev,
        position=item.position,
        node_id=item.node_id,
        kind=item.kind,
        payload=orjson.dumps(item.payload).decode(),
        is_holdout=item.is_holdout,
        created_at=microseconds(item.created_at),
        try_at=now,
        attempts=item.attempts,
    )


def _pass_of(item: Item) -> tuple[int, str, int]:
    return item.tenant_id, item.user_id, item.journey_id
