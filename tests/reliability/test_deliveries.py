"""A provider that is slow, hangs, forgets or refuses; effects that lead on; nobody held out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError
from whenever import TimeDelta

import journeykit as jk
from journeykit_engine import nodes
from journeykit_server import claiming, offering, outbox, providers
from journeykit_server.claiming import LEASE_SECONDS
from journeykit_server.clock import microseconds
from journeykit_server.database import Database
from journeykit_server.delivery import Delivered, Item, LogProvider, Outcome, Refused
from journeykit_server.letters import list_letters, retry
from journeykit_server.outbox import INSERT_OUTBOX, OutboxRow, Settled
from journeykit_server.providers import Channels
from journeykit_server.runtime import Runtime
from journeykit_server.tables import dead_letters, events, instances, messages
from journeykit_server.tables import outbox as outbox_table
from journeykit_server.verify import verify
from tests.databases import open_database
from tests.engine.journeys import action
from tests.engine.walking import END, halves, write
from tests.reliability.faults import Crash, crash
from tests.reliability.stage import TENANT, later, order, process, read, steps, taken, where
from tests.server.post import Post, message
from tests.server.shop import API, track

A_LEASE = TimeDelta(seconds=LEASE_SECONDS)


def welcome(*channels: str) -> jk.Journey:
    """One message by each of these channels, for whoever orders."""
    made = jk.journey("Welcome").on_event("order")
    for channel in channels or ("email",):
        made = made.send(channel=channel, template=1, id=f"by_{channel}")
    return made.wait("1d", id="rest").send(email=2, id="thank").exit()


class Mailbox:
    """Keeps every id once, and how often it was offered; `answers` are for these ids."""

    def __init__(self, **answers: Outcome) -> None:
        self.answers = answers
        self.offered: list[str] = []

    async def deliver(self, items: Sequence[Item]) -> Sequence[Outcome]:
        self.offered += [item.message_id for item in items]
        return [self.answers.get(item.user_id, Delivered()) for item in items]


class Slow(Mailbox):
    """Takes its time: until somebody opens the door."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.door = asyncio.Event(), asyncio.Event()

    async def deliver(self, items: Sequence[Item]) -> Sequence[Outcome]:
        self.asked.set()
        await self.door.wait()
        return await super().deliver(items)


# --- C17, C18: slow, and for ever


async def test_c17_a_slow_provider_holds_up_no_timer_and_gets_nothing_twice(
    database: Database,
) -> None:
    slow = Slow()
    runtime = await process(database, welcome(), provider=slow)
    await order(runtime, "ann", "bob")
    delivering = asyncio.create_task(runtime.deliver())
    await slow.asked.wait()

    later(database, TimeDelta(seconds=offering.OFFER_SECONDS))
    other = Runtime(database, provider=slow)
    assert await other.deliver() == Settled()  # the lease outlasts the longest offer
    later(database, TimeDelta(hours=24) - TimeDelta(seconds=offering.OFFER_SECONDS))
    assert (await runtime.wake()).advanced == 2
    slow.door.set()

    assert await delivering == Settled(delivered=2)
    assert slow.offered == ["j1.v1.by_email.ann.e1", "j1.v1.by_email.bob.e1"]


def test_c17_a_claim_outlasts_what_an_offer_may_take() -> None:
    assert providers.CHANNEL_SECONDS == 30
    assert providers.CHANNEL_SECONDS < offering.OFFER_SECONDS < claiming.LEASE_SECONDS


class Hanging:
    async def deliver(self, items: Sequence[Item]) -> Sequence[Outcome]:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets that event")


async def test_c18_a_channel_that_hangs_fails_alone_and_comes_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(providers, "CHANNEL_SECONDS", 0.05)
    mailbox = Mailbox()
    channels = Channels(mailbox, {"sms": Hanging()})
    runtime = await process(database, welcome("sms"), welcome("email"), provider=channels)
    await order(runtime, "ann", "bob")

    assert await runtime.deliver() == Settled(delivered=2, failed=2)

    assert mailbox.offered == ["j2.v1.by_email.ann.e1", "j2.v1.by_email.bob.e1"]
    rows = await read(database, outbox_table)
    assert {(row.node_id, row.attempts) for row in rows} == {("by_sms", 1)}
    assert {row.last_error.partition(" within ")[0] for row in rows} == {
        'TimeoutError: the channel "sms" gave no answer'
    }
    channels.by_channel.clear()
    later(database, TimeDelta(minutes=1))
    assert await runtime.deliver() == Settled(delivered=2)


# --- C19: an answer twice, answers out of order


async def test_c19_only_the_worker_that_holds_an_effect_may_mark_it(database: Database) -> None:
    """Two workers offered the same; the later one is heard first, the earlier one no more."""
    slow = Slow()
    runtime = await process(database, welcome(), provider=slow)
    await order(runtime, "ann")
    delivering = asyncio.create_task(runtime.deliver())
    await slow.asked.wait()
    later(database, A_LEASE)
    other = Mailbox()

    assert await Runtime(database, provider=other).deliver() == Settled(delivered=1)
    slow.door.set()
    assert await delivering == Settled(lost=1)

    assert slow.offered == other.offered == ["j1.v1.by_email.ann.e1"]
    (row,) = await read(database, messages)
    assert (row.state, row.attempts) == ("delivered", 2)
    assert await verify(database) == []


class Twice(LogProvider):
    """A gateway that takes every message two times."""

    async def deliver(self, items: Sequence[Item]) -> Sequence[Outcome]:
        await super().deliver(items)
        return await super().deliver(items)


async def test_c19_a_success_that_is_told_twice_is_one_delivery(database: Database) -> None:
    runtime = await process(database, welcome(), provider=Twice(database))
    await order(runtime, "ann", "bob")

    assert await runtime.deliver() == Settled(delivered=2)
    assert await runtime.deliver() == Settled()

    assert await taken(database) == {"j1.v1.by_email.ann.e1": 2, "j1.v1.by_email.bob.e1": 2}
    assert len(await read(database, messages)) == 2


# --- C20, C21: for good


async def test_c20_one_bad_address_is_dead_and_nobody_is_sent_to_twice(
    database: Database,
) -> None:
    mailbox = Mailbox(u7=Refused("BAD_ADDRESS", "no such mailbox"))
    runtime = await process(database, welcome(), provider=mailbox)
    people = [f"u{n}" for n in range(20)]
    await order(runtime, *people)

    assert await runtime.deliver() == Settled(delivered=19, dead=1)
    for _ in range(5):
        later(database, TimeDelta(hours=1))
        assert await runtime.deliver() == Settled()

    assert sorted(mailbox.offered) == sorted(f"j1.v1.by_email.{user}.e1" for user in people)
    (letter,) = await list_letters(database, TENANT)
    assert (letter.user_id, letter.code, letter.node_id) == ("u7", "BAD_ADDRESS", "by_email")


async def test_c21_the_person_walks_on_and_a_retry_keeps_the_name(database: Database) -> None:
    mailbox = Mailbox(ann=Refused("BAD_ADDRESS", "no such mailbox"))
    runtime = await process(database, welcome(), provider=mailbox)
    await order(runtime, "ann")
    assert await runtime.deliver() == Settled(dead=1)

    later(database, TimeDelta(hours=24))
    await runtime.wake()
    mailbox.answers.clear()
    assert await runtime.deliver() == Settled(delivered=1)
    assert await where(database) == [(1, "completed", "exit", 2)]
    await retry(database, TENANT, "effect:j1.v1.by_email.ann.e1")

    assert await runtime.deliver() == Settled(delivered=1)
    assert mailbox.offered == [
        "j1.v1.by_email.ann.e1",
        "j1.v1.thank.ann.e1",
        "j1.v1.by_email.ann.e1",
    ]
    assert await read(database, dead_letters) == []


# --- C61, C62: on into another journey


def sends_on(journey_id: int, target: int) -> jk.Journey:
    """Whoever comes in, by an order or by another journey, is sent on at once."""
    made = jk.journey(f"J{journey_id}").reenter("every_time")
    begun = made.on_event("order") if journey_id == 1 else made.on_call()
    return begun.enter_journey(target, id="on").exit()


async def test_c61_a_crash_between_outbox_and_entry_enters_once(database: Database) -> None:
    target = jk.journey("Target").on_call().wait("1d", id="in").exit()
    source = jk.journey("Source").on_event("order").enter_journey(2, id="on").exit()
    runtime = await process(database, source, target)
    await order(runtime, "ann")

    with crash(database, word="DELETE FROM outbox"), pytest.raises(Crash):
        await runtime.deliver()
    assert await where(database) == [(1, "completed", "exit", 1), (2, "waiting", "in", 1)]
    later(database, A_LEASE)
    assert await Runtime(database).deliver() == Settled(delivered=1)

    asked = [row for row in await read(database, events) if row.kind == "enter"]
    assert [row.event_id for row in asked] == ["j1.v1.on.ann.e1"]
    passes = await read(database, instances)
    assert [(row.journey_id, row.entry_count) for row in passes] == [(1, 1), (2, 1)]
    assert await steps(database, "ann", "entered") == ["entered trigger", "entered trigger"]


async def test_c61_a_crash_before_the_entry_enters_later(database: Database) -> None:
    target = jk.journey("Target").on_call().wait("1d", id="in").exit()
    source = jk.journey("Source").on_event("order").enter_journey(2, id="on").exit()
    runtime = await process(database, source, target)
    await order(runtime, "ann")

    with crash(database, word="INSERT INTO events"), pytest.raises(Crash):
        await runtime.deliver()
    assert await where(database) == [(1, "completed", "exit", 1)]
    later(database, A_LEASE)
    assert await Runtime(database).deliver() == Settled(delivered=1)

    assert await where(database) == [(1, "completed", "exit", 1), (2, "waiting", "in", 1)]


async def test_c62_a_circle_of_journeys_ends_in_a_dead_letter(database: Database) -> None:
    runtime = await process(database, sends_on(1, 2), sends_on(2, 3), sends_on(3, 2))
    await order(runtime, "ann")

    turns = 0
    while any(await runtime.deliver()):
        turns += 1
        assert turns < 50, "they go round for ever"

    (letter,) = await list_letters(database, TENANT)
    assert (letter.code, letter.kind, letter.user_id) == ("HOPS", "effect", "ann")
    assert turns == 11


# --- C60: nobody who is held out is ever reached

CROWD = 10_000
OUTBOUND = {"send", "webhook", "enter_journey"}


async def held_out(database: Database) -> Post:
    """A shop that holds everybody out before it sends, calls, and sends on to another journey."""
    post = Post(database)
    await post.writes()
    await post.opens(END, trigger=API)
    await post.opens(
        halves("half", "mail", "mail", percent=100),
        message("mail", "call"),
        action(kind="webhook", url="https://example.org/hook") | {"id": "call", "next": "on"},
        action(kind="enter_journey", journey_id=1) | {"id": "on", "next": "tag"},
        write("tag", "seen", True, "end"),
        END,
    )
    return post


def the_walk_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (nodes.MessageOp, nodes.OutboundOp):
        monkeypatch.setattr(kind, "run", _forgetting(kind.run))


def _forgetting(run: Callable[[Any, nodes.Walker], Any]) -> Callable[[Any, nodes.Walker], Any]:
    def forgets(self: Any, walker: nodes.Walker) -> Any:
        held, walker.is_holdout = walker.is_holdout, False
        stop = run(self, walker)
        walker.is_holdout = held
        return stop

    return forgets


async def the_tables_allow_it(database: Database) -> None:
    """Take the constraints away; SQLite lets each connection do without."""
    if database.is_sqlite:
        event.listen(database.engine.sync_engine, "connect", _unchecked)
        await database.engine.dispose()
        return
    async with database.engine.begin() as connection:
        for table in ("outbox", "messages", "deferred_sends"):
            constraint = f"ck_{table}_nothing_for_a_holdout"
            await connection.exec_driver_sql(f"ALTER TABLE {table} DROP CONSTRAINT {constraint}")


def _unchecked(connection: Any, _: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA ignore_check_constraints = ON")
    cursor.close()


def the_dispatcher_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = outbox._refusal
    monkeypatch.setattr(outbox, "_refusal", lambda item: refusal(item._replace(is_holdout=False)))


async def everybody_orders(post: Post, many: int) -> int:
    """How many of them could be taken in."""
    people = [f"u{n}" for n in range(many)]
    taken_in = 0
    for start in range(0, many, 500):
        batch = people[start : start + 500]
        with suppress(IntegrityError):
            await post.hears(*(track(user_id, "signed_up") for user_id in batch))
            taken_in += len(batch)
    return taken_in


LAYERS = ("the walk", "the table", "the dispatcher")


@pytest.mark.parametrize("removed", LAYERS)
async def test_c60_with_any_layer_gone_nothing_leaves_for_a_holdout(
    database: Database, removed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if removed == "the walk":
        the_walk_forgets(monkeypatch)
    post = await held_out(database)
    if removed == "the table":
        await the_tables_allow_it(database)
    elif removed == "the dispatcher":
        the_dispatcher_forgets(monkeypatch)

    taken_in = await everybody_orders(post, CROWD)
    await post.mails()

    assert taken_in == (0 if removed == "the walk" else CROWD)
    assert post.office.got == []
    assert await post.rows(outbox_table) == []
    withheld = await post.rows(messages)
    assert len(withheld) == 3 * taken_in
    if taken_in:
        assert {(row.kind, row.state, row.reason) for row in withheld} == {
            (kind, "suppressed", "holdout") for kind in OUTBOUND
        }
        assert {row.status for row in await post.rows(instances)} == {"completed"}
        assert (await post.profile("u9999")).traits == {"seen": True}
    assert await verify(database) == []


async def test_c60_the_dispatcher_alone_stops_ten_thousand(database_url: str) -> None:
    """Neither the walk nor the table have held them back: the last door has to."""
    database = open_database(database_url)
    await the_tables_allow_it(database)
    post = Post(database)
    at = microseconds(database.clock.now())
    rows = [
        OutboxRow(
            1, f"m{n}", f"u{n}", 7, 1, 1, 1, 0, "mail", "send", '{"kind":"send"}', True, at, at
        )
        for n in range(CROWD)
    ]
    await database.run(lambda connection: INSERT_OUTBOX.run(connection, rows))

    settled = Settled()
    while any(now := await post.runtime.deliver(limit=2_000)):
        settled = Settled(*map(sum, zip(settled, now, strict=True)))

    assert settled == Settled(suppressed=CROWD)
    assert post.office.got == []
    assert await verify(database) == []
    await database.close()


async def test_c60_without_all_three_a_message_would_leave(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So each of the three has something to stop."""
    the_walk_forgets(monkeypatch)
    post = await held_out(database)
    await the_tables_allow_it(database)
    the_dispatcher_forgets(monkeypatch)
    await post.learns("u0", name="u0", email="u0@x.org")

    assert await everybody_orders(post, 1) == 1
    await post.mails()

    assert [item.kind for item in post.office.got] == ["send", "webhook"]
