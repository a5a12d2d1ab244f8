"""An effect is offered until the outside has it, in its order, under one name, and settled once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import orjson
import pytest
from sqlalchemy import Table, event, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import Instant, TimeDelta

from journeykit_server import offering
from journeykit_server.claiming import LEASE_SECONDS, claim
from journeykit_server.clock import SeededChance, VirtualClock, microseconds
from journeykit_server.database import Database
from journeykit_server.delivery import (
    Delivered,
    Failed,
    Item,
    LogProvider,
    Outcome,
    Provider,
    Refused,
    Suppressed,
)
from journeykit_server.governance import Course, Governor
from journeykit_server.offering import Answer
from journeykit_server.outbox import (
    INSERT_OUTBOX,
    LADDER_SECONDS,
    SLACK_SECONDS,
    SWEEP_SECONDS,
    Outbox,
    OutboxRow,
    Settled,
    _Sorting,
    settle,
)
from journeykit_server.tables import dead_letters, deliveries, messages, outbox
from tests.databases import START, open_database

AT = microseconds(START)


def effect(message_id: str, user_id: str = "ann", **given: Any) -> OutboxRow:
    row = OutboxRow(
        1,
        message_id,
        user_id,
        journey_id=7,
        version=2,
        entry_count=1,
        rev=1,
        position=0,
        node_id="hello",
        kind="send",
        payload='{"kind":"send","channel":"email"}',
        is_holdout=False,
        created_at=AT,
        try_at=AT,
    )
    return row._replace(**given)


async def put(database: Database, *rows: OutboxRow) -> None:
    await database.run(lambda connection: INSERT_OUTBOX.run(connection, rows))


async def read(database: Database, table: Table) -> list[Any]:
    query = select(table).order_by(*table.primary_key)
    return list(await database.read(lambda connection: connection.execute(query)))


async def waiting(database: Database) -> list[str]:
    return [row.message_id for row in await read(database, outbox)]


class Channel:
    """Takes everything, except where it was told what to answer to an effect, time after time."""

    def __init__(self, script: Mapping[str, Sequence[Outcome]] | None = None) -> None:
        self.script = {name: list(outcomes) for name, outcomes in (script or {}).items()}
        self.offered: list[list[str]] = []

    async def deliver(self, items: Sequence[Item]) -> Sequence[Outcome]:
        self.offered.append([item.message_id for item in items])
        return [self.answer(item) for item in items]

    def answer(self, item: Item) -> Outcome:
        left = self.script.get(item.message_id)
        return left.pop(0) if left else Delivered()


class Gate:
    """Takes people into other journeys: here it only keeps who was to enter."""

    def __init__(self) -> None:
        self.entered: list[tuple[int, list[str]]] = []

    async def __call__(self, tenant_id: int, items: Sequence[Item]) -> Sequence[Outcome]:
        self.entered.append((tenant_id, [item.message_id for item in items]))
        return [Delivered() for _ in items]


def worker(database: Database, provider: Provider | None = None) -> Outbox:
    return Outbox(database, provider or Channel(), Gate())


class Steady(SeededChance):
    """Pauses without jitter, so that they can be told to the microsecond."""

    def fraction(self) -> float:
        return 0.0


@pytest.fixture
async def steady(database_url: str) -> AsyncIterator[Database]:
    opened = open_database(database_url, chance=Steady(1))
    yield opened
    await opened.close()


def advance(database: Database, seconds: float) -> Instant:
    assert isinstance(database.clock, VirtualClock)
    database.clock.set(database.clock.now() + TimeDelta(seconds=seconds))
    return database.clock.now()


# --- the order


async def test_what_was_delivered_moves_to_the_log(database: Database) -> None:
    await put(database, effect("m1"))
    advance(database, 2)

    settled = await worker(database).deliver_once()

    assert settled == Settled(delivered=1)
    assert await waiting(database) == []
    (row,) = await read(database, messages)
    assert row._asdict() == {
        "tenant_id": 1,
        "message_id": "m1",
        "user_id": "ann",
        "journey_id": 7,
        "version": 2,
        "entry_count": 1,
        "node_id": "hello",
        "kind": "send",
        "channel": "email",
        "state": "delivered",
        "reason": "",
        "is_holdout": False,
        "attempts": 1,
        "created_at": AT,
        "settled_at": AT + 2_000_000,
        "detail": "",
        "category": "marketing",
        "budget": "",
        "template_id": None,
        "template_version": None,
    }


async def test_the_effects_of_a_pass_go_one_after_another(database: Database) -> None:
    channel = Channel()
    await put(
        database,
        effect("ann.3", rev=2),
        effect("ann.1"),
        effect("ann.2", position=1),
        effect("bob.1", "bob"),
        effect("ann.other", journey_id=8, rev=5),
    )
    ready = worker(database, channel)

    while any(await ready.deliver_once()):
        pass

    assert channel.offered == [["ann.1", "ann.other", "bob.1"], ["ann.2"], ["ann.3"]]


async def test_nothing_overtakes_what_has_failed(database: Database) -> None:
    channel = Channel({"first": [Failed("no answer")]})
    await put(database, effect("first"), effect("second", position=1))
    ready = worker(database, channel)

    assert await ready.deliver_once() == Settled(failed=1)
    assert await ready.deliver_once() == Settled()
    advance(database, 6)
    await ready.deliver_once()
    await ready.deliver_once()

    assert channel.offered == [["first"], ["first"], ["second"]]


async def test_what_is_due_longest_goes_first(database: Database) -> None:
    channel = Channel()
    await put(database, *(effect(f"m{n}", f"u{n}", try_at=AT - n) for n in range(5)))

    await worker(database, channel).deliver_once(limit=2)

    assert channel.offered == [["m4", "m3"]]


async def test_an_item_is_told_whole(database: Database) -> None:
    await put(database, effect("m1", rev=4, position=3, try_at=AT - 1))

    (item,), _, _ = await database.run(lambda connection: claim(connection, START, 10, "mine"))

    assert item == Item(
        1,
        "m1",
        "ann",
        7,
        2,
        1,
        "hello",
        "send",
        {"kind": "send", "channel": "email"},
        START,
        attempts=1,
        rev=4,
        position=3,
        due_at=START.subtract(microseconds=1),
    )


# --- two workers


async def test_claimers_never_share_an_effect(database: Database) -> None:
    names = {f"m{n:02}" for n in range(30)}
    await put(database, *(effect(name, user_id=name) for name in names))

    async def claims_as(token: str) -> list[Item]:
        claimed = await database.run(lambda connection: claim(connection, START, 12, token))
        return claimed.items

    claims = await asyncio.gather(*map(claims_as, ("a", "b", "c", "d")))

    claimed = [item.message_id for items in claims for item in items]
    assert sorted(claimed) == sorted(names)
    assert all(len(items) <= 12 for items in claims)


async def test_a_claim_does_not_wait_for_another(postgresql_url: str) -> None:
    database = open_database(postgresql_url)
    await put(database, *(effect(f"m{n}", f"u{n}", try_at=AT + n - 9) for n in range(4)))

    async with database.engine.begin() as first, database.engine.begin() as second:
        one = await claim(first, START, 2, "one")
        two = await claim(second, START, 9, "two")

    assert [item.message_id for item in one.items] == ["m0", "m1"]
    assert [item.message_id for item in two.items] == ["m2", "m3"]
    await database.close()


async def test_a_mark_that_comes_too_late_is_refused(database: Database) -> None:
    await put(database, effect("m1"))
    slow = await database.run(lambda connection: claim(connection, START, 1, "slow"))
    now = advance(database, LEASE_SECONDS)
    quick = await database.run(lambda connection: claim(connection, now, 1, "quick"))

    async def mark(token: str, items: list[Item], outcome: Outcome) -> Settled:
        return await database.run(
            lambda connection: settle(
                database, connection, token, items, [Answer(outcome, items[0])]
            )
        )

    assert await mark("slow", slow.items, Refused("GONE", "no such address")) == Settled(lost=1)
    assert await mark("slow", slow.items, Failed("no answer")) == Settled(lost=1)
    assert await waiting(database) == ["m1"]
    assert await mark("quick", quick.items, Delivered()) == Settled(delivered=1)
    assert await mark("slow", slow.items, Suppressed("no_consent")) == Settled(lost=1)
    assert [(row.state, row.attempts) for row in await read(database, messages)] == [
        ("delivered", 2)
    ]
    assert await read(database, dead_letters) == []


# --- a crash


class Died(BaseException):
    """The process is gone."""


class DiesAfterwards(LogProvider):
    """The outside has accepted, and the worker does not live to hear it."""

    async def deliver(self, items: Sequence[Item]) -> Sequence[Outcome]:
        await super().deliver(items)
        raise Died


async def test_after_a_crash_the_same_id_is_offered_again(database: Database) -> None:
    await put(database, effect("m1"))
    with pytest.raises(Died):
        await worker(database, DiesAfterwards(database)).deliver_once()

    successor = worker(database, LogProvider(database))
    advance(database, LEASE_SECONDS - 1)
    assert await successor.deliver_once() == Settled()
    advance(database, 1)
    assert await successor.deliver_once() == Settled(delivered=1)

    assert [(row.message_id, row.times) for row in await read(database, deliveries)] == [("m1", 2)]
    assert [row.attempts for row in await read(database, messages)] == [2]


async def test_what_kills_every_worker_is_dead_after_ten(database: Database) -> None:
    await put(database, effect("m1"))
    for _ in LADDER_SECONDS:
        with pytest.raises(Died):
            await worker(database, DiesAfterwards(database)).deliver_once()
        advance(database, LEASE_SECONDS)
    channel = Channel()

    assert await worker(database, channel).deliver_once() == Settled(dead=1)

    assert channel.offered == []
    (letter,) = await read(database, dead_letters)
    assert (letter.code, letter.message) == (
        "NEVER_ANSWERED",
        "It was offered 10 times, and no worker lived to keep an answer. "
        "See whether a worker dies of it, then retry.",
    )


async def test_a_worker_that_is_told_to_stop_gives_back_what_it_holds(database: Database) -> None:
    class Waiting:
        async def deliver(self, items: Sequence[Item]) -> Sequence[Outcome]:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError("nobody sets that event")

    asked = asyncio.Event()
    await put(database, effect("m1"))
    stopping = asyncio.create_task(worker(database, Waiting()).deliver_once())
    await asked.wait()

    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping

    channel = Channel()
    assert await worker(database, channel).deliver_once() == Settled(delivered=1)
    assert [row.attempts for row in await read(database, messages)] == [1]


async def test_told_to_stop_while_a_batch_is_taken_apart_it_gives_back_all(
    database: Database,
) -> None:
    ready = worker(database)
    stuck, door = asyncio.Event(), asyncio.Event()

    class Poisoned(Governor):
        async def govern(self, connection: AsyncConnection, items: Sequence[Item]) -> list[Course]:
            if any(item.message_id == "m2" for item in items):
                raise ValueError("no sense in it")
            if items[0].message_id == "m3":
                stuck.set()
                await door.wait()
            return await super().govern(connection, items)

    ready.governor = Poisoned(database, ready.governor.published)
    await put(database, *(effect(f"m{n}", f"u{n}") for n in range(4)))
    stopping = asyncio.create_task(ready.deliver_once())
    await asyncio.wait_for(stuck.wait(), 30)

    stopping.cancel()
    door.set()  # a transaction that has begun is ended
    with pytest.raises(asyncio.CancelledError):
        await stopping

    rows = await read(database, outbox)
    assert [(row.lease_token, row.attempts, row.try_at) for row in rows] == [(None, 0, AT)] * 4


# --- failing


async def test_the_pauses_are_the_ladder(steady: Database) -> None:
    channel = Channel({"m1": [Failed(f"no answer {n}") for n in range(10)]})
    await put(steady, effect("m1"))
    ready = worker(steady, channel)
    pauses = []
    while await ready.deliver_once() == Settled(failed=1):
        (row,) = await read(steady, outbox)
        now = microseconds(steady.clock.now())
        pauses.append((row.try_at - now) / 1_000_000)
        advance(steady, pauses[-1] - 0.000001)
        assert await ready.deliver_once() == Settled(), "tried before its time"
        advance(steady, 0.000001)

    minute, hour = 60, 3_600
    assert pauses == [
        5,
        5 * minute,
        30 * minute,
        2 * hour,
        5 * hour,
        10 * hour,
        14 * hour,
        20 * hour,
        24 * hour,
    ]
    assert len(channel.offered) == 10
    (letter,) = await read(steady, dead_letters)
    row = effect("m1", attempts=10, try_at=letter.last_at)
    assert {**letter._asdict(), "payload": orjson.loads(letter.payload)} == {
        "tenant_id": 1,
        "letter_id": "effect:m1",
        "kind": "effect",
        "user_id": "ann",
        "journey_id": 7,
        "version": 2,
        "node_id": "hello",
        "code": "DELIVERY_FAILED",
        "message": "no answer 9",
        "attempts": 10,
        "first_at": AT,
        "last_at": AT + round(sum(pauses)) * 1_000_000,
        "payload": row._asdict(),
    }


class Halfway(SeededChance):
    def fraction(self) -> float:
        return 0.5


async def test_a_pause_is_up_to_a_tenth_longer(database_url: str) -> None:
    database = open_database(database_url, chance=Halfway(1))
    await put(database, effect("m1"))

    await worker(database, Channel({"m1": [Failed("no answer")]})).deliver_once()

    (row,) = await read(database, outbox)
    assert row.try_at == AT + 5_250_000
    assert (row.attempts, row.last_error, row.failed_at) == (1, "no answer", AT)
    assert row.lease_token is None
    await database.close()


async def test_one_bad_address_does_not_hold_up_the_others(database: Database) -> None:
    channel = Channel(
        {"m1": [Refused("BAD_ADDRESS", "no such mailbox")], "m2": [Suppressed("no_consent")]}
    )
    await put(database, *(effect(f"m{n}", f"u{n}") for n in range(1, 4)))
    await put(database, effect("m1.next", "u1", position=1))
    ready = worker(database, channel)

    assert await ready.deliver_once() == Settled(delivered=1, suppressed=1, dead=1)
    assert await ready.deliver_once() == Settled(delivered=1)

    assert channel.offered == [["m1", "m2", "m3"], ["m1.next"]]
    rows = {row.message_id: (row.state, row.reason) for row in await read(database, messages)}
    assert rows == {
        "m1.next": ("delivered", ""),
        "m2": ("suppressed", "no_consent"),
        "m3": ("delivered", ""),
    }
    (letter,) = await read(database, dead_letters)
    assert (letter.letter_id, letter.code, letter.message, letter.attempts) == (
        "effect:m1",
        "BAD_ADDRESS",
        "no such mailbox",
        1,
    )


class Broken:
    async def deliver(self, items: Sequence[Item]) -> Sequence[Outcome]:
        raise ConnectionError("the gateway\0 is down \ud800")


class Forgetful:
    async def deliver(self, items: Sequence[Item]) -> Sequence[Outcome]:
        return [Delivered()]


class Endless:
    async def deliver(self, items: Sequence[Item]) -> Sequence[Outcome]:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets that event")


class Excuse(NamedTuple):
    provider: Provider
    words: str


@pytest.mark.parametrize(
    "excuse",
    [
        Excuse(Broken(), "ConnectionError: the gateway is down ?"),
        Excuse(
            Forgetful(),
            "ValueError: the provider gave 1 outcomes for 2 effects; it owes one each",
        ),
        Excuse(Endless(), "TimeoutError: the provider gave no answer within 0.01 seconds"),
    ],
)
async def test_a_provider_that_fails_has_failed_for_all(
    database: Database, excuse: Excuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offering, "OFFER_SECONDS", 0.01)
    await put(database, effect("m1"), effect("m2", "bob"))

    assert await worker(database, excuse.provider).deliver_once() == Settled(failed=2)

    assert [row.last_error for row in await read(database, outbox)] == [excuse.words] * 2


@pytest.mark.parametrize("many", [1, 7])
async def test_what_cannot_be_written_fails_alone(database: Database, many: int) -> None:
    odd: Any = 7
    channel = Channel({"m0": [Delivered(odd)] * 40})
    await put(database, *(effect(f"m{n}", f"u{n}") for n in range(many)))
    ready = worker(database, channel)

    assert await ready.deliver_once() == Settled(delivered=many - 1, failed=1)

    (row,) = await read(database, outbox)
    assert (row.message_id, row.attempts, row.lease_token) == ("m0", 1, None)
    assert row.last_error == "AttributeError: 'int' object has no attribute 'replace'"
    for pause in LADDER_SECONDS[1:]:
        advance(database, 1.1 * pause + 1)
        settled = await ready.deliver_once()
    assert settled == Settled(dead=1)
    assert await waiting(database) == []


async def test_what_cannot_even_fail_comes_again_and_holds_up_nobody(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    come_again = _Sorting._come_again

    def refuses(sorting: _Sorting, item: Item, message: str, retry_after_seconds: float) -> None:
        if item.message_id == "m1":
            raise ValueError("no sense in it")
        come_again(sorting, item, message, retry_after_seconds)

    monkeypatch.setattr(_Sorting, "_come_again", refuses)
    await put(database, *(effect(f"m{n}", f"u{n}") for n in range(3)))
    failing = {f"m{n}": [Failed("no answer")] for n in range(3)}

    assert await worker(database, Channel(failing)).deliver_once() == Settled(failed=2, lost=1)

    assert "outbox cannot settle journey_id=7 node_id=hello error=ValueError" in caplog.text
    monkeypatch.undo()
    advance(database, LEASE_SECONDS)
    assert await worker(database).deliver_once() == Settled(delivered=3)
    assert [row.attempts for row in await read(database, messages)] == [2, 2, 2]


# --- into another journey


async def test_who_enters_another_journey_is_handed_on_by_tenant(database: Database) -> None:
    channel, gate = Channel(), Gate()
    move = {"kind": "enter_journey", "payload": '{"kind":"enter_journey","journey_id":9}'}
    await put(
        database,
        effect("e1", "ann", **move),
        effect("e2", "ann", tenant_id=2, **move),
        effect("e3", "bob", **move),
        effect("m1", "cyd"),
    )

    assert await Outbox(database, channel, gate).deliver_once() == Settled(delivered=4)

    assert gate.entered == [(1, ["e1", "e3"]), (2, ["e2"])]
    assert channel.offered == [["m1"]]


async def test_an_entry_that_fails_is_tried_again(database: Database) -> None:
    async def shut(tenant_id: int, items: Sequence[Item]) -> Sequence[Outcome]:
        raise RuntimeError("the database is away")

    await put(database, effect("e1", kind="enter_journey"), effect("m1", "bob"))

    settled = await Outbox(database, Channel(), shut).deliver_once()

    assert settled == Settled(delivered=1, failed=1)
    (row,) = await read(database, outbox)
    assert (row.message_id, row.last_error) == ("e1", "RuntimeError: the database is away")


# --- nobody who is held out is ever reached


async def test_the_table_refuses_an_effect_for_a_holdout(database: Database) -> None:
    with pytest.raises(IntegrityError, match="ck_outbox_nothing_for_a_holdout"):
        await put(database, effect("m1", is_holdout=True))

    assert await waiting(database) == []


async def test_without_that_law_the_dispatcher_refuses_it(database: Database) -> None:
    channel = Channel()
    await put(database, effect("m1"), effect("m2", "bob"))
    await break_the_law(database, "m1")

    assert await worker(database, channel).deliver_once() == Settled(delivered=1, suppressed=1)

    assert channel.offered == [["m2"]]
    row = (await read(database, messages))[0]
    assert (row.message_id, row.state, row.reason, row.is_holdout) == (
        "m1",
        "suppressed",
        "holdout",
        True,
    )


async def break_the_law(database: Database, message_id: str) -> None:
    """Mark an effect as for a holdout, past the constraint."""
    without = (
        "PRAGMA ignore_check_constraints = ON"
        if database.is_sqlite
        else "ALTER TABLE outbox DROP CONSTRAINT ck_outbox_nothing_for_a_holdout"
    )
    async with database.engine.connect() as raw:
        await raw.exec_driver_sql(without)
        await raw.execute(
            update(outbox).where(outbox.c.message_id == message_id).values(is_holdout=True)
        )
        await raw.commit()
        await raw.invalidate()  # on SQLite the constraints are off on this connection alone


# --- what a poll costs and what it sees


@contextmanager
def statements(database: Database) -> Iterator[list[str]]:
    """The statements that are sent meanwhile."""
    sent: list[str] = []

    def note(_: object, __: object, statement: str, *rest: object) -> None:
        sent.append(statement)

    event.listen(database.engine.sync_engine, "before_cursor_execute", note)
    yield sent
    event.remove(database.engine.sync_engine, "before_cursor_execute", note)


async def test_a_batch_costs_the_same_statements_whatever_its_size(database: Database) -> None:
    script: dict[str, list[Outcome]] = {}
    kinds: list[Callable[[], Outcome]] = [
        Delivered,
        lambda: Suppressed("no_consent"),
        lambda: Failed("no answer"),
        lambda: Refused("BAD_ADDRESS", "no such mailbox"),
    ]
    for n in range(204):
        script[f"m{n:03}"] = [kinds[n % 4]()]
    await put(database, effect("v"), *(effect(name, name) for name in script))
    ready = worker(database, Channel(script))
    await ready.deliver_once(limit=1)  # reads the version once and for all

    with statements(database) as few:
        assert await ready.deliver_once(limit=4) == Settled(1, 1, 1, 1)
    with statements(database) as many:
        assert await ready.deliver_once(limit=200) == Settled(50, 50, 50, 50)

    assert few == [text.replace("LIMIT 200", "LIMIT 4") for text in many]
    claiming = 3 if database.is_sqlite else 2  # what was deferred, find, mark
    # people, uses, doors, consent, policies, who has templates; reserve; PostgreSQL locks the doors
    governing = 7 if database.is_sqlite else 8
    settling = 8  # whose they are, delete, unused places, log, letters, failures, next, counters
    beginning = 3 if database.is_sqlite else 0
    assert len(many) == claiming + governing + settling + beginning


async def test_a_late_commit_is_found_by_the_sweep(database: Database) -> None:
    ready = worker(database)
    await ready.deliver_once()
    advance(database, 10)
    await ready.deliver_once()
    await put(database, effect("late", try_at=AT + 10_000_000 - SLACK_SECONDS * 1_000_000 - 1))
    await put(
        database, effect("in time", "bob", try_at=AT + 10_000_000 - SLACK_SECONDS * 1_000_000)
    )

    assert await ready.deliver_once() == Settled(delivered=1)
    assert await waiting(database) == ["late"]
    advance(database, SWEEP_SECONDS - 10 - 1)
    assert await ready.deliver_once() == Settled()
    advance(database, 1)
    assert await ready.deliver_once() == Settled(delivered=1)


async def test_who_stood_behind_need_not_wait_for_the_sweep(database: Database) -> None:
    channel = Channel({"first": [Failed("no answer")]})
    await put(database, effect("first"), effect("second", position=1))
    ready = worker(database, channel)
    await ready.deliver_once()
    advance(database, 20)
    await ready.deliver_once()

    assert await ready.deliver_once() == Settled(delivered=1)
    assert channel.offered == [["first"], ["first"], ["second"]]
    assert ready.swept_at == AT


@pytest.mark.parametrize("back", [30, 3_600])
async def test_a_clock_that_goes_back_hides_nothing(database: Database, back: int) -> None:
    ready = worker(database)
    await ready.deliver_once()
    advance(database, SWEEP_SECONDS - 10)
    await ready.deliver_once()
    now = microseconds(advance(database, -back))
    await put(database, effect("m1", created_at=now, try_at=now))

    assert await ready.deliver_once() == Settled(delivered=1)


async def test_a_backlog_is_not_looked_through_again_and_again(database: Database) -> None:
    await put(database, *(effect(f"m{n}", f"u{n}", try_at=AT + n - 9) for n in range(5)))
    ready = worker(database)

    lows = []
    while any(await ready.deliver_once(limit=2)):
        lows.append(ready.low)

    assert lows == [AT - 8, AT - 6, AT - SLACK_SECONDS * 1_000_000]


async def test_who_stands_behind_waits_as_long_as_the_head(steady: Database) -> None:
    failing = [Failed("no answer"), Failed("no answer")]
    ready = worker(steady, Channel({"first": failing}))
    await put(steady, effect("first"), effect("second", position=1))
    await ready.deliver_once()
    advance(steady, LEASE_SECONDS)
    assert await ready.deliver_once() == Settled(failed=1)
    advance(steady, LEASE_SECONDS)

    assert await ready.deliver_once() == Settled()

    first, second = await read(steady, outbox)
    assert first.try_at == second.try_at == AT + (LEASE_SECONDS + 300) * 1_000_000
    assert (second.attempts, second.lease_token) == (0, None)


async def test_those_who_stand_in_a_row_hide_nobody_behind_them(database: Database) -> None:
    later = AT + 3_600_000_000
    blocked = [effect(f"b{n}", position=n + 1, try_at=AT - 9) for n in range(10)]
    await put(database, effect("head", try_at=later), *blocked, effect("ready", "bob"))
    channel = Channel()
    ready = worker(database, channel)

    assert await ready.deliver_once(limit=4) == Settled(delivered=1)
    assert channel.offered == [["ready"]]
    with statements(database) as sent:
        assert await ready.deliver_once(limit=4) == Settled()
    assert len(sent) == (3 if database.is_sqlite else 2)  # begin, what was deferred, find


async def test_the_next_moment_is_when_there_is_something_to_look_at(database: Database) -> None:
    ready = worker(database)

    async def upcoming() -> Instant | None:
        return await database.read(ready.next_try)

    assert await upcoming() is None
    await put(database, effect("first", try_at=AT + 30_000_000))
    assert await upcoming() == START.add(seconds=30)
    now = advance(database, 30)
    await database.run(lambda connection: claim(connection, now, 1, "somebody"))
    assert await upcoming() == now.add(seconds=LEASE_SECONDS)
