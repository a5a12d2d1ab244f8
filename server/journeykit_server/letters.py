"""Dead letters: what could not be done and waits for somebody to try it again or to let it go.

A letter is a timer whose person cannot walk on, an effect that the outside did not take, or an
event that could not be handled. Nothing is ever dropped without one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson
from sqlalchemy import Row, and_, delete, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import Instant

from journeykit_engine.strict_json import json_faults
from journeykit_server.bulk import Delete, Insert
from journeykit_server.clock import instant, microseconds
from journeykit_server.database import Database
from journeykit_server.rows import bucket_of
from journeykit_server.store import COUNT
from journeykit_server.tables import (
    NEVER_BUCKET,
    dead_letters,
    inbox,
    messages,
    outbox,
    profiles,
    timers,
)

MOST_ERROR_CHARACTERS = 500  # of what a fault or a provider says
SHARD = 0  # of the counters that whoever skips a letter writes
MOST_LETTERS = 1_000  # of one page; a payload may have 100 kB

Place = tuple[Instant, str]


class NoSuchLetter(LookupError):
    """The tenant has no dead letter of this id, or no longer."""


class CannotSkip(ValueError):
    """Letting go of this letter would leave a person standing for ever."""


class Letter(NamedTuple):
    """`kind` is timer, effect or event; `first_at` and `last_at` are the first and last failure.

    `payload` is what a retry needs: of an effect its row of the outbox, of an event its `name`,
    `number` and `changed` (the traits it wrote, as JSON text).
    """

    tenant_id: int
    letter_id: str
    kind: str
    user_id: str
    journey_id: int
    version: int
    node_id: str
    code: str
    message: str
    attempts: int
    first_at: Instant
    last_at: Instant
    payload: dict[str, Any]

    @property
    def place(self) -> Place:
        """Where the letter stands in the list: what the next page comes after."""
        return self.last_at, self.letter_id


class LetterRow(NamedTuple):
    """A letter as it is written: moments in microseconds, `payload` as JSON text."""

    tenant_id: int
    letter_id: str
    kind: str
    user_id: str
    journey_id: int
    version: int
    node_id: str
    code: str
    message: str
    attempts: int
    first_at: int
    last_at: int
    payload: str


LETTER_COLUMNS = LetterRow._fields
INSERT_LETTERS = Insert(
    dead_letters,
    LETTER_COLUMNS,
    # What died again after a retry in doubt is the same letter: it keeps when that began.
    "(tenant_id, letter_id) DO UPDATE SET "
    + ", ".join(
        f"{name} = excluded.{name}"
        for name in LETTER_COLUMNS
        if name not in ("tenant_id", "letter_id", "kind", "user_id", "journey_id", "first_at")
    ),
)
DELETE_LETTERS = Delete(dead_letters, ("tenant_id", "letter_id"))


def letter_row(letter: Letter) -> LetterRow:
    """A letter as it is written."""
    return LetterRow(
        *letter[:10],  # the same names, up to the attempts
        first_at=microseconds(letter.first_at),
        last_at=microseconds(letter.last_at),
        payload=orjson.dumps(letter.payload).decode(),
    )


def timer_letter_id(journey_id: int, user_id: str) -> str:
    """
    >>> timer_letter_id(7, "ann")
    'timer:7:ann'
    """
    return f"timer:{journey_id}:{user_id}"


def event_letter_id(journey_id: int, user_id: str, number: int) -> str:
    """
    >>> event_letter_id(7, "ann", 12)
    'event:7:ann:12'
    """
    return f"event:{journey_id}:{user_id}:{number}"


def effect_letter_id(message_id: str) -> str:
    """The prefix keeps a message whose id begins with "timer:" apart from a timer."""
    return f"effect:{message_id}"


async def list_letters(
    database: Database,
    tenant_id: int,
    *,
    journey_id: int | None = None,
    after: Place | None = None,
    first: int = 100,
) -> list[Letter]:
    """The tenant's letters, the latest first: `first` of them (`MOST_LETTERS` at most), from behind
    `after`, which is the `place` of a letter."""
    letters = select(dead_letters).where(dead_letters.c.tenant_id == tenant_id)
    if journey_id is not None:
        letters = letters.where(dead_letters.c.journey_id == journey_id)
    if after is not None:
        last_at, letter_id = microseconds(after[0]), after[1]
        letters = letters.where(
            or_(
                dead_letters.c.last_at < last_at,
                and_(dead_letters.c.last_at == last_at, dead_letters.c.letter_id > letter_id),
            )
        )
    letters = letters.order_by(dead_letters.c.last_at.desc(), dead_letters.c.letter_id)
    page = letters.limit(min(max(first, 0), MOST_LETTERS))

    async def read(connection: AsyncConnection) -> list[Letter]:
        return [letter_of(row) for row in await connection.execute(page)]

    return await database.read(read)


async def retry(database: Database, tenant_id: int, letter_id: str) -> Letter:
    """Put what a letter is about back to where it is tried, as if it had never been, and delete the
    letter. An effect keeps its id. Raises `NoSuchLetter`."""
    taken: list[Letter] = []

    async def work(connection: AsyncConnection) -> Letter:
        letter = await _take(connection, tenant_id, letter_id)
        if letter is None:
            return _taken_before(taken, letter_id)
        now = microseconds(await database.now(connection))
        await _put_back(connection, letter, now)
        taken.append(letter)
        return letter

    return await database.run(work)


async def skip(database: Database, tenant_id: int, letter_id: str) -> Letter:
    """Let go of an effect, which then counts as suppressed with the reason `skipped`, or of an
    event. Raises `NoSuchLetter`, and `CannotSkip` for a timer."""
    taken: list[Letter] = []

    async def work(connection: AsyncConnection) -> Letter:
        letter = await _take(connection, tenant_id, letter_id)
        if letter is None:
            return _taken_before(taken, letter_id)
        if letter.kind == "timer":
            raise CannotSkip(
                CANNOT_SKIP.format(letter=letter_id, user=letter.user_id, node=letter.node_id)
            )
        if letter.kind == "effect":
            now = microseconds(await database.now(connection))
            await connection.execute(insert(messages).values(withheld(letter, "skipped", now)))
            node = (tenant_id, letter.journey_id, letter.version, letter.node_id)
            await COUNT.run(connection, [(*node, SHARD, 0, 0, 1)])
        taken.append(letter)
        return letter

    return await database.run(work)


NO_SUCH_LETTER = (
    'There is no dead letter "{letter}" here. Somebody may have retried or skipped it; '
    "list the letters again."
)
CANNOT_SKIP = (
    'The dead letter "{letter}" is a timer and cannot be skipped: the person "{user}" would stand '
    'at the node "{node}" for ever. Retry it, or eject the person from the journey.'
)


def _taken_before(taken: list[Letter], letter_id: str) -> Letter:
    """Work that is repeated because the answer to its commit was lost finds its letter gone."""
    if not taken:
        raise NoSuchLetter(NO_SUCH_LETTER.format(letter=letter_id))
    return taken[-1]


async def _take(connection: AsyncConnection, tenant_id: int, letter_id: str) -> Letter | None:
    """Delete a letter and return it as it was, with its person locked."""
    if json_faults(letter_id):  # what no database would take names no letter
        return None
    its_own = and_(dead_letters.c.tenant_id == tenant_id, dead_letters.c.letter_id == letter_id)
    person = select(profiles.c.user_id).where(
        profiles.c.tenant_id == tenant_id,
        profiles.c.user_id == select(dead_letters.c.user_id).where(its_own).scalar_subquery(),
    )
    await connection.execute(person.with_for_update())  # SQLite has locked everything by now
    gone = await connection.execute(delete(dead_letters).where(its_own).returning(dead_letters))
    row = gone.one_or_none()
    return None if row is None else letter_of(row)


async def _put_back(connection: AsyncConnection, letter: Letter, now: int) -> None:
    if letter.kind == "effect":
        again = {"try_at": now, "attempts": 0, "last_error": ""}
        await connection.execute(insert(outbox).values({**letter.payload, **again}))
    elif letter.kind == "event":
        waiting = {
            "tenant_id": letter.tenant_id,
            "user_id": letter.user_id,
            "journey_id": letter.journey_id,
            **letter.payload,
            "try_at": now,
            "attempts": 0,
            "last_error": letter.message,
            "failed_at": microseconds(letter.last_at),
        }
        await connection.execute(insert(inbox).values(waiting))
    else:
        await connection.execute(_timer_again(letter, now))


def _timer_again(letter: Letter, now: int) -> Any:
    """Only a timer that is dead still: a person who walked on has another by now, and not yet."""
    return (
        update(timers)
        .where(
            timers.c.tenant_id == letter.tenant_id,
            timers.c.user_id == letter.user_id,
            timers.c.journey_id == letter.journey_id,
            timers.c.bucket == NEVER_BUCKET,
        )
        .values(
            try_at=now,
            bucket=bucket_of(now, now),
            attempts=0,
            lease_token=None,
            last_error="",
            failed_at=None,
        )
    )


def withheld(letter: Letter, reason: str, now: int) -> dict[str, Any]:
    """The row of `messages` of an effect that is let go of for this reason."""
    names = ("message_id", "entry_count", "kind", "created_at")
    effect = orjson.loads(letter.payload["payload"])
    said = {name: effect.get(name) or "" for name in ("channel", "category", "budget")}
    return {
        **said,
        "template_id": effect.get("template_id"),
        **{name: letter.payload[name] for name in names},
        "tenant_id": letter.tenant_id,
        "user_id": letter.user_id,
        "journey_id": letter.journey_id,
        "version": letter.version,
        "node_id": letter.node_id,
        "state": "suppressed",
        "reason": reason,
        "is_holdout": False,
        "attempts": letter.attempts,
        "settled_at": now,
    }


def letter_of(row: Row[Any]) -> Letter:
    """A row of `dead_letters` as it is read."""
    read = Letter(**row._mapping)  # the names of the columns
    return read._replace(
        first_at=instant(row.first_at),
        last_at=instant(row.last_at),
        payload=orjson.loads(row.payload),
    )


def fit_to_keep(text: str) -> str:
    """What a fault says, short, and without what PostgreSQL does not keep in a text.

    >>> fit_to_keep("no\\0 zero")
    'no zero'
    """
    kept = text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")
    return kept[:MOST_ERROR_CHARACTERS]
