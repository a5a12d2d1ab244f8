"""The outbox: what has to be done outside is claimed, governed, offered to a provider, and settled.

A claim leaves a written mark, governing decides what may go out, the offer happens outside any
transaction, and settling believes the mark alone: who was too slow finds their effects taken over
and writes nothing. So an effect may be offered twice, always under the same id, and is settled
once. The effects of one pass go one after another; only the first of a pass, its head, is offered.

A journey that is stopped holds back what is claimed afterwards, and the further channels of what
was claimed before; what has been decided on and is being offered at that very moment still goes
out. An effect that cannot be decided on, or not be written, has failed by itself: the others of its
batch go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar, assert_never

import orjson
from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import Instant

from journeykit_server import deferring, store
from journeykit_server.backoff import words_of
from journeykit_server.bulk import Delete, Insert, Select, Update
from journeykit_server.claiming import (
    LEASE_SECONDS as LEASE_SECONDS,
)
from journeykit_server.claiming import (
    MARK,
    OF_PASS,
    SECOND,
    Claimed,
    claim,
    hold,
    next_try,
)
from journeykit_server.clock import microseconds
from journeykit_server.database import Database, Unavailable
from journeykit_server.delivery import (
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
from journeykit_server.doors import doors
from journeykit_server.governance import (
    GIVE_BACK,
    Course,
    Governor,
    failed,
    forget_days,
    withheld,
)
from journeykit_server.letters import (
    INSERT_LETTERS,
    LetterRow,
    effect_letter_id,
    fit_to_keep,
)
from journeykit_server.offering import OFFER_SECONDS as OFFER_SECONDS
from journeykit_server.offering import Answer, Enter, Offer
from journeykit_server.published import Published
from journeykit_server.tables import NEVER, messages, outbox

log = logging.getLogger("journeykit")

T = TypeVar("T")
R = TypeVar("R")

LADDER_SECONDS = (0, 5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""The pause before each attempt, as the Standard Webhooks have it: ten attempts in 75 hours."""
JITTER = 0.1  # a pause is up to so much longer: what failed together does not come back together
BATCH = 200  # effects of one offer
LONGEST_PAUSE_SECONDS = 86_400  # that a provider may ask for
SWEEP_SECONDS = 30  # how often a poll looks behind its watermark; a dead worker left work there
SLACK_SECONDS = 5  # how late an ordinary transaction commits


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
    detail: str = ""
    category: str = ""
    budget: str = ""
    template_id: int | None = None
    template_version: int | None = None


INSERT_MESSAGES = Insert(messages, MessageRow._fields, "DO NOTHING")
LOG_SUPPRESSED = Insert(messages, MessageRow._fields[:15], "DO NOTHING")
"""For what a walk withholds itself, so that it never was in the outbox."""


class Settled(NamedTuple):
    """How many effects ended how. `failed` come again, `deferred` ones when their hour has come,
    `held` ones when their journey goes on; `lost` were no longer this worker's when it
    came to mark them: another has taken them over, or a commit is repeated that had worked; or
    nothing at all could be written about them, and they come again when their lease ends."""

    delivered: int = 0
    suppressed: int = 0
    failed: int = 0
    dead: int = 0
    lost: int = 0
    deferred: int = 0
    held: int = 0


class Outbox:
    """One worker's view of the outbox.

    It remembers up to which moment it has seen everything (`low`), so that a poll does not wade
    through index entries of rows that are long gone, which PostgreSQL keeps for as long as somebody
    holds an old snapshot open. A transaction that commits later than `SLACK_SECONDS` after its own
    time may lie below, so every `SWEEP_SECONDS` a poll begins at the beginning.
    """

    def __init__(
        self,
        database: Database,
        provider: Provider,
        enter: Enter,
        published: Published | None = None,
        *,
        shard: int = 0,
    ) -> None:
        self.database = database
        self.provider = provider
        self.enter = enter
        self.governor = Governor(database, published or Published())
        self.shard = shard
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
            answers = await self._offer(items, token)
        except (asyncio.CancelledError, Exception):  # a process that dies gives nothing back
            await self.database.run(
                lambda connection: release(self.database, connection, token, items)
            )
            raise
        settled = await self._settle(list(zip(items, answers, strict=True)), token)
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
            await deferring.release(connection, now, limit)
            if sweeps:
                await forget_days(connection, now)
            return at, sweeps, await claim(connection, now, limit, token, low=low)

        at, swept, claimed = await self.database.run(work)
        self.low = max(at - SLACK_SECONDS * SECOND, 0) if claimed.is_all else claimed.seen
        self.swept_at = at if swept else self.swept_at
        return claimed

    def _is_behind(self, at: int) -> bool:
        """Whether to look at everything: it is time, or the clock went back."""
        return at < self.low or not 0 <= at - self.swept_at < SWEEP_SECONDS * SECOND

    async def _offer(self, items: Sequence[Item], token: str) -> list[Answer]:
        """One answer an item, in their order."""
        refused = [_refusal(item) for item in items]
        asked = [item for item, no in zip(items, refused, strict=True) if no is None]
        courses = iter(await self._govern(asked))
        offer = Offer(self.provider, self.enter, lambda offered: self._hold(token, items, offered))
        return await offer.make(
            [
                next(courses) if no is None else Course((), no, item)
                for item, no in zip(items, refused, strict=True)
            ]
        )

    async def _govern(self, items: Sequence[Item]) -> list[Course]:
        async def together(items: Sequence[Item]) -> list[Course]:
            return await self.database.run(lambda c: self.governor.govern(c, items))

        async def alone(item: Item, fault: Exception) -> list[Course]:
            return [failed(item, fault)]

        return await _apart(items, together, alone)

    async def _settle(self, answered: Sequence[tuple[Item, Answer]], token: str) -> Settled:
        async def together(answered: Sequence[tuple[Item, Answer]]) -> list[Settled]:
            items, answers = zip(*answered, strict=True)
            return [
                await self.database.run(
                    lambda c: settle(self.database, c, token, items, answers, shard=self.shard)
                )
            ]

        async def unkept(answered: tuple[Item, Answer], fault: Exception) -> list[Settled]:
            told = (answered[0].journey_id, answered[0].node_id, type(fault).__name__)
            log.error("outbox cannot settle journey_id=%d node_id=%s error=%s", *told)
            return [Settled(lost=1)]

        async def alone(answered: tuple[Item, Answer], fault: Exception) -> list[Settled]:
            item, _ = answered
            instead = (item, Answer(Failed(words_of(fault)), item))
            return await _apart([instead], together, unkept)

        return Settled(*map(sum, zip(*await _apart(answered, together, alone), strict=True)))

    async def _hold(
        self, token: str, items: Sequence[Item], offered: Sequence[Item]
    ) -> list[Outcome | None]:
        """Begin the lease of the batch anew, and ask at their doors whether these may still go."""

        async def work(connection: AsyncConnection) -> list[Outcome | None]:
            await hold(connection, await self.database.now(connection), token, items)
            keys = [(item.tenant_id, item.journey_id) for item in offered]
            found = await doors(connection, keys, locks=False)  # they go out after it has ended
            return [withheld(found[key]) for key in keys]

        return await self.database.run(work)


async def _apart(
    batch: Sequence[T],
    together: Callable[[Sequence[T]], Awaitable[list[R]]],
    alone: Callable[[T, Exception], Awaitable[list[R]]],
) -> list[R]:
    """Do something with these together. Where it cannot be done, halve the batch until the one that
    it fails for is `alone`: nobody is held up by another."""
    if not batch:
        return []
    try:
        return await together(batch)
    except Unavailable:
        raise
    except Exception as error:
        if len(batch) == 1:
            return await alone(batch[0], error)
    middle = len(batch) // 2
    first = await _apart(batch[:middle], together, alone)
    return first + await _apart(batch[middle:], together, alone)


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


def _key(item: Item) -> tuple[int, str]:
    return item.tenant_id, item.message_id


# -- settle --------------------------------------------------------------------------------------


async def settle(
    database: Database,
    connection: AsyncConnection,
    token: str,
    items: Sequence[Item],
    answers: Sequence[Answer],
    *,
    shard: int = 0,
) -> Settled:
    """Write what became of the items that are still this token's, in ten statements at most. The
    counters come last: others wait for them."""
    now = microseconds(await database.now(connection))
    mine = await _still_mine(connection, token, items)
    sorting = _Sorting(now, database.chance.fraction)
    for item, answer in zip(items, answers, strict=True):
        if _key(item) in mine:
            sorting.add(item, answer)
    await DELETE_OUTBOX.run(connection, [_key(item) for item in sorting.gone])
    await GIVE_BACK.run(connection, sorted(sorting.unused))
    await INSERT_MESSAGES.run(connection, sorting.messages)
    await deferring.defer(connection, sorting.deferred)
    await INSERT_LETTERS.run(connection, sorting.letters)
    await TRY_AGAIN.run(connection, sorting.failed)
    await MARK.run(connection, sorting.held)
    await LET_NEXT.run(connection, [(now, *_pass_of(item)) for item in sorting.gone])
    await store.COUNT.run(connection, sorting.counts(shard))
    return sorting.settled(lost=len(items) - len(mine))


async def let_go(connection: AsyncConnection, tenant_id: int, journey_id: int, now: Instant) -> int:
    """What was held because this journey stood still is due from now on; how many effects."""
    marks = ("?",) * 4 if connection.dialect.name == "sqlite" else ("$1", "$2", "$3", "$4")
    given = (microseconds(now), NEVER, tenant_id, journey_id)
    return (await connection.exec_driver_sql(LET_GO.format(*marks), given)).rowcount


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


LET_GO = (
    "UPDATE outbox SET try_at = {} WHERE try_at = {} AND tenant_id = {} AND journey_id = {} "
    "AND lease_token IS NULL"
)


class _Sorting:
    """The rows that a batch of answers writes."""

    def __init__(self, now: int, fraction: Callable[[], float]) -> None:
        self.now = now
        self.fraction = fraction
        self.gone: list[Item] = []
        self.unused: list[tuple[int, str, str]] = []
        self.messages: list[MessageRow] = []
        self.deferred: list[deferring.DeferredRow] = []
        self.letters: list[LetterRow] = []
        self.failed: list[tuple[int, str, int, None, int, str]] = []
        self.held: list[tuple[None, int, int, int, str]] = []

    def add(self, item: Item, answer: Answer) -> None:
        outcome, sent = answer
        keeps_place = False
        match outcome:
            case Delivered(channel):
                keeps_place = True
                self._leave(item, sent, "delivered", channel=channel)
            case Suppressed(reason, detail):
                self._leave(item, sent, "suppressed", reason=reason, detail=detail)
            case Unreachable(reason):
                self._leave(item, sent, "suppressed", reason=reason)
            case Refused(code, message):
                self._die(item, code, message)
            case Failed(message=message) if item.attempts >= len(LADDER_SECONDS):
                self._die(item, "DELIVERY_FAILED", message)
            case Failed(message, retry_after_seconds):
                keeps_place = True
                self._come_again(item, message, retry_after_seconds)
            case Deferred():
                self.gone.append(item)
                self.deferred.append(deferring.deferred_row(item, outcome))
            case Held():
                self.held.append((None, NEVER, item.attempts - 1, *_key(item)))
            case _:
                assert_never(outcome)
        if item.kind == "send" and not keeps_place:
            self.unused.append((item.tenant_id, item.user_id, item.message_id))

    def settled(self, lost: int) -> Settled:
        delivered = sum(row.state == "delivered" for row in self.messages)
        suppressed = len(self.messages) - delivered
        ended = (delivered, suppressed, len(self.failed), len(self.letters), lost)
        return Settled(*ended, len(self.deferred), len(self.held))

    def counts(self, shard: int) -> list[tuple[int, int, int, str, int, int, int, int]]:
        """What was withheld at each node, in one order for everybody."""
        withheld = Counter(
            (row.tenant_id, row.journey_id, row.version, row.node_id)
            for row in self.messages
            if row.state == "suppressed"
        )
        return [(*node, shard, 0, 0, many) for node, many in sorted(withheld.items())]

    def _leave(
        self,
        item: Item,
        sent: Item,
        state: str,
        *,
        channel: str = "",
        reason: str = "",
        detail: str = "",
    ) -> None:
        self.gone.append(item)
        said = sent.payload
        self.messages.append(
            MessageRow(
                *item[:8],  # the names of the columns, up to the kind
                channel=fit_to_keep(channel or str(said.get("channel") or "")),
                state=state,
                reason=fit_to_keep(reason),
                is_holdout=item.is_holdout,
                attempts=item.attempts,
                created_at=microseconds(item.created_at),
                settled_at=self.now,
                detail=fit_to_keep(detail),
                category=str(said.get("category") or ""),
                budget=str(said.get("budget") or ""),
                template_id=said.get("template_id"),
                template_version=said.get("template_version"),
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

    def _come_again(self, item: Item, message: str, retry_after_seconds: float) -> None:
        pause = LADDER_SECONDS[item.attempts] * (1 + JITTER * self.fraction())
        pause = max(pause, min(retry_after_seconds, LONGEST_PAUSE_SECONDS))
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
