"""A dead letter is there until somebody tries it again, or lets it go."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import Table, insert, select
from whenever import Instant

from journeykit_server.clock import VirtualClock, microseconds
from journeykit_server.database import Database
from journeykit_server.delivery import Delivered, Item, Outcome, Refused
from journeykit_server.letters import (
    DELETE_LETTERS,
    INSERT_LETTERS,
    CannotSkip,
    Letter,
    NoSuchLetter,
    event_letter_id,
    letter_row,
    list_letters,
    retry,
    skip,
    timer_letter_id,
)
from journeykit_server.outbox import INSERT_OUTBOX, Outbox, OutboxRow, Settled
from journeykit_server.tables import (
    NEVER_BUCKET,
    dead_letters,
    inbox,
    messages,
    node_stats,
    outbox,
    profiles,
    timers,
)
from journeykit_server.verify import verify
from tests.databases import START, open_database

AT = microseconds(START)
MINUTE = 60_000_000


def timer_letter(user_id: str = "ann", journey_id: int = 7, **given: Any) -> Letter:
    letter = Letter(
        1,
        timer_letter_id(journey_id, user_id),
        "timer",
        user_id,
        journey_id,
        version=2,
        node_id="pause",
        code="STEP_LIMIT",
        message="100 steps and no end",
        attempts=1,
        first_at=START,
        last_at=START,
        payload={},
    )
    return letter._replace(**given)


async def put(database: Database, *letters: Letter) -> None:
    rows = [letter_row(letter) for letter in letters]
    await database.run(lambda connection: INSERT_LETTERS.run(connection, rows))


async def read(database: Database, table: Table) -> list[Any]:
    query = select(table).order_by(*table.primary_key)
    return list(await database.read(lambda connection: connection.execute(query)))


async def add(database: Database, table: Table, **values: Any) -> None:
    await database.run(lambda connection: connection.execute(insert(table).values(values)))


def later(database: Database, seconds: int) -> Instant:
    assert isinstance(database.clock, VirtualClock)
    database.clock.set(database.clock.now().add(seconds=seconds))
    return database.clock.now()


async def nobody_enters(tenant_id: int, items: Sequence[Item]) -> Sequence[Outcome]:
    raise AssertionError("nothing here is an entry")


class Mailbox:
    """An address that is bad until it is put right."""

    def __init__(self) -> None:
        self.is_bad = True
        self.offered: list[str] = []

    async def deliver(self, items: Sequence[Item]) -> Sequence[Outcome]:
        self.offered += [item.message_id for item in items]
        bad = Refused("BAD_ADDRESS", "no such mailbox")
        return [bad if self.is_bad else Delivered() for _ in items]


async def die(database: Database, mailbox: Mailbox) -> Outbox:
    """Two effects of one pass, the first of which was just refused."""
    rows = [
        OutboxRow(
            1,
            name,
            "ann",
            journey_id=7,
            version=2,
            entry_count=1,
            rev=1,
            position=position,
            node_id="hello",
            kind="send",
            payload='{"kind":"send","channel":"email","template_id":3,"budget":"news"}',
            is_holdout=False,
            created_at=AT,
            try_at=AT,
        )
        for position, name in enumerate(["first", "second"])
    ]
    await database.run(lambda connection: INSERT_OUTBOX.run(connection, rows))
    worker = Outbox(database, mailbox, nobody_enters)
    assert await worker.deliver_once() == Settled(dead=1)
    return worker


# --- an effect


async def test_a_retried_effect_goes_out_under_its_own_id(database: Database) -> None:
    mailbox = Mailbox()
    worker = await die(database, mailbox)
    mailbox.is_bad = False
    now = later(database, 3_600)

    letter = await retry(database, 1, "effect:first")

    assert (letter.kind, letter.code, letter.attempts) == ("effect", "BAD_ADDRESS", 1)
    row = (await read(database, outbox))[0]
    assert (row.message_id, row.attempts, row.lease_token) == ("first", 0, None)
    assert (row.try_at, row.created_at) == (microseconds(now), AT)
    assert (row.last_error, row.failed_at) == ("", None)
    assert await read(database, dead_letters) == []
    while any(await worker.deliver_once()):
        pass
    assert mailbox.offered == ["first", "first", "second"]
    assert [(row.message_id, row.attempts) for row in await read(database, messages)] == [
        ("first", 1),
        ("second", 1),
    ]


async def test_what_dies_again_is_the_same_letter(database: Database) -> None:
    mailbox = Mailbox()
    worker = await die(database, mailbox)
    await retry(database, 1, "effect:first")

    assert await worker.deliver_once() == Settled(dead=1)

    assert [letter.letter_id for letter in await list_letters(database, 1)] == ["effect:first"]


async def test_a_skipped_effect_counts_as_suppressed(database: Database) -> None:
    mailbox = Mailbox()
    worker = await die(database, mailbox)
    mailbox.is_bad = False

    await skip(database, 1, "effect:first")
    await worker.deliver_once()

    assert await read(database, dead_letters) == []
    first, second = await read(database, messages)
    assert (first.message_id, first.state, first.reason) == ("first", "suppressed", "skipped")
    assert (first.channel, first.kind, first.attempts) == ("email", "send", 1)
    assert (first.node_id, first.entry_count, first.created_at) == ("hello", 1, AT)
    assert (first.template_id, first.budget) == (3, "news")
    assert (second.message_id, second.state) == ("second", "delivered")
    assert await verify(database) == [], "the counter of the node has it"
    assert [row.suppressed for row in await read(database, node_stats)] == [1]
    assert mailbox.offered == ["first", "second"]


# --- a timer


async def add_timer(database: Database, **given: Any) -> None:
    values = {
        "tenant_id": 1,
        "user_id": "ann",
        "journey_id": 7,
        "version": 2,
        "rev": 3,
        "due": AT,
        "bucket": NEVER_BUCKET,
        "try_at": AT,
        "attempts": 20,
        "lease_token": "old",
        "last_error": "100 steps and no end",
        "failed_at": AT,
    }
    await add(database, timers, **{**values, **given})


async def test_a_retried_timer_is_due_at_once(database: Database) -> None:
    await add_timer(database)
    await put(database, timer_letter())
    now = microseconds(later(database, 600))

    await retry(database, 1, "timer:7:ann")

    (row,) = await read(database, timers)
    assert (row.bucket, row.try_at, row.due) == (now // MINUTE, now, AT)
    assert (row.attempts, row.lease_token) == (0, None)
    assert (row.last_error, row.failed_at) == ("", None)
    assert await read(database, dead_letters) == []


async def test_a_timer_that_lives_again_is_left_alone(database: Database) -> None:
    due = AT + 60 * MINUTE
    await add_timer(database, bucket=due // MINUTE, due=due, try_at=due, attempts=0)
    await put(database, timer_letter())

    await retry(database, 1, "timer:7:ann")

    assert [(row.try_at, row.bucket) for row in await read(database, timers)] == [
        (due, due // MINUTE)
    ]
    assert await read(database, dead_letters) == []


async def test_a_timer_cannot_be_skipped(database: Database) -> None:
    await add_timer(database)
    await put(database, timer_letter())

    with pytest.raises(CannotSkip) as refused:
        await skip(database, 1, "timer:7:ann")

    assert str(refused.value) == (
        'The dead letter "timer:7:ann" is a timer and cannot be skipped: the person "ann" would '
        'stand at the node "pause" for ever. Retry it, or eject the person from the journey.'
    )
    assert [letter.letter_id for letter in await list_letters(database, 1)] == ["timer:7:ann"]


# --- an event


EVENT = timer_letter(
    letter_id=event_letter_id(7, "ann", 12),
    kind="event",
    payload={"name": "order", "number": 12, "changed": '{"plan":"gold"}'},
)


async def test_a_retried_event_is_handled_again(database: Database) -> None:
    await put(database, EVENT)
    now = microseconds(later(database, 600))

    await retry(database, 1, "event:7:ann:12")

    (row,) = await read(database, inbox)
    assert row._asdict() == {
        "tenant_id": 1,
        "user_id": "ann",
        "journey_id": 7,
        "number": 12,
        "name": "order",
        "changed": '{"plan":"gold"}',
        "try_at": now,
        "attempts": 0,
        "last_error": "100 steps and no end",
        "failed_at": AT,
    }
    assert await read(database, dead_letters) == []


async def test_a_skipped_event_is_dropped(database: Database) -> None:
    await put(database, EVENT)

    await skip(database, 1, "event:7:ann:12")

    assert await read(database, inbox) == []
    assert await read(database, dead_letters) == []


# --- finding them


@pytest.mark.parametrize("does", [retry, skip])
async def test_a_letter_of_nobody_or_of_another_tenant_is_not_there(
    database: Database, does: Any
) -> None:
    await put(database, EVENT._replace(tenant_id=2))

    with pytest.raises(NoSuchLetter):
        await does(database, 1, "no\0zero")
    with pytest.raises(NoSuchLetter) as missing:
        await does(database, 1, "event:7:ann:12")

    assert str(missing.value) == (
        'There is no dead letter "event:7:ann:12" here. Somebody may have retried or skipped it; '
        "list the letters again."
    )
    assert len(await list_letters(database, 2)) == 1


async def test_the_list_has_the_latest_first_and_goes_on_where_it_ended(
    database: Database,
) -> None:
    moments = {"ann": 3, "bob": 5, "cyd": 5, "dan": 1}
    letters = [
        timer_letter(name, last_at=START.add(seconds=second)) for name, second in moments.items()
    ]
    await put(database, *letters, timer_letter("eve", tenant_id=2))

    first = await list_letters(database, 1, first=2)
    rest = await list_letters(database, 1, after=first[-1].place)

    assert [letter.user_id for letter in first] == ["bob", "cyd"]
    assert [letter.user_id for letter in rest] == ["ann", "dan"]
    assert first[0] == letters[1]
    assert await list_letters(database, 1, first=-1) == []


async def test_the_list_can_be_of_one_journey(database: Database) -> None:
    await put(database, timer_letter("ann", 7), timer_letter("ann", 8), timer_letter("bob", 8))

    listed = await list_letters(database, 1, journey_id=8)

    assert [letter.letter_id for letter in listed] == ["timer:8:ann", "timer:8:bob"]


async def test_a_letter_that_is_written_again_keeps_when_it_began(database: Database) -> None:
    await put(database, timer_letter())
    again = timer_letter(
        code="NODE_MISSING",
        message="there is no such node",
        attempts=3,
        first_at=START.add(hours=1),
        last_at=START.add(hours=1),
    )
    await put(database, again)

    assert await list_letters(database, 1) == [again._replace(first_at=START)]


async def test_letters_of_people_who_walked_on_are_deleted(database: Database) -> None:
    await put(database, timer_letter("ann"), timer_letter("bob"))

    await database.run(
        lambda connection: DELETE_LETTERS.run(connection, [(1, timer_letter_id(7, "ann"))])
    )

    assert [letter.user_id for letter in await list_letters(database, 1)] == ["bob"]


# --- two at once


async def test_of_two_retries_one_finds_it_gone(database: Database) -> None:
    await put(database, EVENT)

    results = await asyncio.gather(
        *(retry(database, 1, "event:7:ann:12") for _ in range(4)), return_exceptions=True
    )

    assert sorted(type(result).__name__ for result in results) == [
        "Letter",
        "NoSuchLetter",
        "NoSuchLetter",
        "NoSuchLetter",
    ]
    assert len(await read(database, inbox)) == 1


async def test_a_retry_waits_for_who_moves_the_person(postgresql_url: str) -> None:
    database = open_database(postgresql_url)
    await add(
        database,
        profiles,
        tenant_id=1,
        user_id="ann",
        traits={},
        written_at="{}",
        created_at=AT,
        updated_at=AT,
    )
    await put(database, EVENT)
    ann = select(profiles.c.user_id).where(profiles.c.user_id == "ann").with_for_update()

    async with database.engine.begin() as mover:
        await mover.execute(ann)
        retrying = asyncio.create_task(retry(database, 1, "event:7:ann:12"))
        await somebody_waits_for_a_lock(database)
        assert len(await read(database, dead_letters)) == 1
    await retrying

    assert await read(database, dead_letters) == []
    await database.close()


async def somebody_waits_for_a_lock(database: Database) -> None:
    waiters = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    async with asyncio.timeout(60), database.engine.connect() as looking:
        while not (await looking.exec_driver_sql(waiters)).scalar_one():
            await looking.rollback()
            await asyncio.sleep(0.01)
