"""A process dies, or never hears what its database answered: afterwards everything has happened
once or not at all. Rows C1, C3, C5 to C12, C16, C54, C56 and C65."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import Any

import pytest
from sqlalchemy import select
from whenever import TimeDelta

from journeykit_engine import program, walk
from journeykit_engine.facts import Facts, Predicate
from journeykit_server import letters, people
from journeykit_server.backoff import ATTEMPTS
from journeykit_server.clock import instant
from journeykit_server.database import Database
from journeykit_server.delivery import Delivered, Item, LogProvider, Outcome
from journeykit_server.incoming import Receipt
from journeykit_server.outbox import LEASE_SECONDS, Settled
from journeykit_server.runtime import Runtime
from journeykit_server.tables import (
    NEVER_BUCKET,
    dead_letters,
    deliveries,
    instances,
    journal,
    messages,
    outbox,
    timers,
)
from journeykit_server.verify import verify
from journeykit_server.waking import TRUST_SECONDS, Woken
from tests.databases import open_database
from tests.reliability.faults import (
    RACING,
    Crash,
    Half,
    cancelled_at,
    crash,
    ended_at_commit,
    lost_answer,
)
from tests.reliability.laws import broken
from tests.reliability.stage import (
    A_LEASE,
    DAY,
    PEOPLE,
    TENANT,
    asking,
    choosy,
    everything,
    execute,
    finish,
    happens,
    later,
    order,
    process,
    read,
    reminder,
    rows,
    steps,
    taken,
    where,
)

A_CLAIMED_EFFECT = TimeDelta(seconds=LEASE_SECONDS + 1)
REMINDED = "j1.v1.send_email_1.ann.e1"


async def reminded(database: Database, *user_ids: str, **given: Any) -> Runtime:
    """A process at the moment at which these people are to be reminded."""
    runtime = await process(database, reminder(), **given)
    await order(runtime, *(user_ids or ("ann",)))
    later(database, DAY)
    return runtime


# --- timers


async def test_c01_a_crash_before_the_claim_is_committed_leaves_it_to_the_next_poll(
    database: Database,
) -> None:
    runtime = await reminded(database)
    await runtime.reload()
    (before,) = await read(database, timers)

    with crash(database, word="COMMIT"), pytest.raises(Crash):
        await runtime.wake()

    assert await read(database, timers) == [before]
    assert await Runtime(database).wake() == Woken(claimed=1, advanced=1)
    assert await where(database) == [(1, "completed", "exit", 2)]


async def test_c03_a_claim_that_never_learned_of_its_commit_moves_nobody_twice(
    database: Database,
) -> None:
    """The repeated claim finds the timer taken, by itself, and leaves it to the end of the
    lease."""
    runtime = await reminded(database)
    await runtime.reload()

    with lost_answer(database, commit=1):
        assert await runtime.wake() == Woken()

    assert await where(database) == [(1, "waiting", "wait_1d", 1)]
    later(database, A_LEASE)
    assert await runtime.wake() == Woken(claimed=1, advanced=1)
    assert await steps(database, "ann", "woke") == ["woke wait_1d"]


def fails_for(user_id: str, error: BaseException) -> program.Evaluator:
    """An evaluator in which the question about one person goes wrong."""

    def evaluator(definition: Any) -> Predicate:
        holds = program.evaluate(definition)

        def asked(facts: Facts) -> bool:
            if facts.person.user_id == user_id:
                raise error
            return holds(facts)

        return asked

    return evaluator


async def test_c05_one_of_a_hundred_whose_walk_fails_holds_up_nobody(database: Database) -> None:
    runtime = await process(
        database, choosy(), evaluator=fails_for("user 042", ZeroDivisionError("division by zero"))
    )
    await order(runtime, *PEOPLE)
    later(database, DAY)

    assert await runtime.wake() == Woken(claimed=100, advanced=99, failed=1)

    (left,) = await read(database, timers)
    assert (left.user_id, left.attempts) == ("user 042", 1)
    assert left.last_error == "ZeroDivisionError: division by zero"
    assert await where(database, "user 042") == [(1, "waiting", "rest", 1)]
    assert len(await read(database, outbox)) == 99


async def put_behind_the_compiler(database: Database, nodes: list[dict[str, Any]]) -> None:
    """Replace what is published by a graph that no check would let pass."""
    graph = {"journey_id": 1, "version": 1, "entry_id": "trigger", "nodes": nodes}
    document = json.dumps(graph)
    digest = sha256(document.encode()).hexdigest()
    await execute(database, f"UPDATE versions SET document = '{document}', sha256 = '{digest}'")


TRIGGER = {"id": "trigger", "kind": "trigger", "trigger": {"kind": "event", "event": "order"}}
A_DAY = {"kind": "duration", "amount": 1, "unit": "day"}
REST = {"id": "rest", "kind": "wait", "wait": A_DAY}
SET = {"kind": "update_trait", "trait": "seen", "value": True}


async def test_c06_a_walk_without_end_is_dead_at_once_and_its_person_is_stuck(
    database: Database,
) -> None:
    """Also of a node that is not there: the compiler of a stored graph has ended such a path, so
    there is no code NODE_MISSING; what cannot be compiled at all has the code CONFIG."""
    await process(database, reminder())
    await put_behind_the_compiler(
        database,
        [
            {**TRIGGER, "next": "rest"},
            {**REST, "next": "one"},
            {"id": "one", "kind": "action", "action": SET, "next": "two"},
            {"id": "two", "kind": "action", "action": SET, "next": "one"},
        ],
    )
    runtime = Runtime(database)
    await order(runtime, "ann")
    later(database, DAY)

    assert await runtime.wake() == Woken(claimed=1, dead=1)

    (letter,) = await letters.list_letters(database, TENANT)
    assert (letter.kind, letter.code, letter.node_id) == ("timer", "STEP_LIMIT", "one")
    assert letter.message == (
        'The walk passed 100 nodes without a wait and stopped before "one". '
        "Put a wait into the path."
    )
    (place,) = await people.where_is(database, TENANT, "ann")
    assert place.stuck is not None
    assert (place.node, place.stuck.code) == ("rest", "STEP_LIMIT")
    later(database, 100 * DAY)
    assert await Runtime(database).wake() == Woken()
    (timer,) = await read(database, timers)
    assert timer.bucket == NEVER_BUCKET


class Outage:
    """An evaluator that nobody answers until it is over."""

    def __init__(self) -> None:
        self.is_over = False

    def __call__(self, definition: Any) -> Predicate:
        holds = program.evaluate(definition)

        def asked(facts: Facts) -> bool:
            if not self.is_over:
                raise ConnectionError("nobody answers")
            return holds(facts)

        return asked


async def test_c07_what_fails_for_ever_is_left_alone_for_longer_and_in_the_end_for_good(
    database_url: str,
) -> None:
    database = open_database(database_url, chance=Half(1))
    outage = Outage()
    runtime = await process(database, choosy(), evaluator=outage)
    await order(runtime, "ann")
    later(database, DAY)
    pauses = []
    while (await runtime.wake()).dead == 0:
        (timer,) = await read(database, timers)
        pauses.append((instant(timer.try_at) - database.clock.now()).total("seconds"))
        later(database, TimeDelta(seconds=pauses[-1] + 1e-6))

    assert pauses == [2.5 * 2**n for n in range(8)] + [450.0] * 11
    assert len(pauses) == ATTEMPTS - 1
    (letter,) = await letters.list_letters(database, TENANT)
    assert (letter.code, letter.message) == ("WALK_FAILED", "ConnectionError: nobody answers")
    assert (letter.attempts, letter.node_id) == (ATTEMPTS, "rest")

    outage.is_over = True
    await letters.retry(database, TENANT, letter.letter_id)
    await finish(runtime)
    assert await where(database) == [(1, "completed", "exit", 2)]
    assert await broken(database) == []
    await database.close()


# --- a crash before the commit, at every statement


async def nth_call(
    database: Database,
    work: Callable[[], Awaitable[object]],
    recover: Callable[[], Awaitable[object]],
) -> list[str]:
    """Let the process die at its first call, its second and so on until it lives: each time
    nothing was written. The calls of the run that lived."""
    before = await everything(database)
    for number in range(1, 100):
        with crash(database, at=number) as calls:
            try:
                await work()
            except Crash:
                assert await everything(database) == before
                await recover()
            else:
                return calls.made
    raise AssertionError("it never lives")


async def test_c08_a_crash_before_the_commit_leaves_the_timer(database: Database) -> None:
    """At any statement of claim and walk; every time the lease ends and a new process comes."""
    await reminded(database, "ann", "bob")

    async def wake() -> Woken:
        woken = await Runtime(database).wake()
        assert woken == Woken(claimed=2, advanced=2)
        return woken

    async def nobody_lives() -> None:
        later(database, A_LEASE)
        await execute(database, "UPDATE timers SET attempts = 0")  # or it would be given up

    made = await nth_call(database, wake, nobody_lives)

    assert len(made) > 12
    assert made.count("COMMIT") == 3  # what is published, the claim, the walk
    assert await where(database, "bob") == [(1, "completed", "exit", 2)]
    assert [row.rev for row in await read(database, journal)] == [1, 2, 1, 2]
    await finish(Runtime(database))
    assert await taken(database) == {REMINDED: 1, REMINDED.replace("ann", "bob"): 1}


async def test_c08_a_crash_before_the_commit_leaves_the_event(database: Database) -> None:
    """The client hears of no answer and sends again, until it does: then it was heard once."""
    runtime = await process(database, asking())
    await order(runtime, "ann")
    reply, bought = happens("reply"), happens("order", "bob", source_of_truth="shop")

    async def ingest() -> None:
        receipt = await Runtime(database).ingest(TENANT, [reply, bought])
        assert (receipt.accepted, receipt.duplicates) == (2, 0)

    async def nobody_lives() -> None:
        pass

    await nth_call(database, ingest, nobody_lives)

    assert await where(database) == [(1, "completed", "exit", 2)]
    assert await where(database, "bob") == [(1, "waiting", "ask", 1)]
    assert [row.message_id for row in await read(database, outbox)] == ["j1.v1.thank.ann.e1"]


async def test_c08_a_crash_before_the_mark_leaves_the_effect(database: Database) -> None:
    """Whatever the outside takes meanwhile, it takes under one name."""
    runtime = await reminded(database)
    await runtime.wake()
    mailbox = Mailbox()

    async def deliver() -> None:
        settled = await Runtime(database, provider=mailbox).deliver()
        assert settled == Settled(delivered=1)

    async def nobody_lives() -> None:
        later(database, A_CLAIMED_EFFECT)
        await execute(database, "UPDATE outbox SET attempts = 0")

    await nth_call(database, deliver, nobody_lives)

    assert set(mailbox.offered) == {REMINDED}
    assert [row.state for row in await read(database, messages)] == ["delivered"]
    assert await read(database, outbox) == []


# --- a commit of which nobody knows whether it was


@pytest.mark.parametrize("commit", [1, 2, 3])
async def test_c09_a_commit_in_doubt_is_one_step(database: Database, commit: int) -> None:
    """The answer to reading what is published, to the claim, or to the walk is lost."""
    runtime = await reminded(database)

    with lost_answer(database, commit=commit) as asked:
        await runtime.wake()

    assert len(asked) >= commit
    later(database, A_LEASE)
    await finish(runtime)
    assert await where(database) == [(1, "completed", "exit", 2)]
    assert [row.rev for row in await read(database, journal)] == [1, 2]
    assert await taken(database) == {REMINDED: 1}


async def test_c09_an_event_in_doubt_is_heard_once(database: Database) -> None:
    """The work is done again and finds its own event stored, as it would find a repetition."""
    runtime = await process(database, asking())
    await order(runtime, "ann")

    with lost_answer(database, commit=1):
        receipt = await runtime.ingest(TENANT, [happens("reply")])

    assert receipt == Receipt(duplicates=1)
    assert await steps(database, "ann", "woke") == ["woke ask"]
    assert await where(database) == [(1, "completed", "exit", 2)]


async def test_c09_an_ejection_in_doubt_is_answered_as_it_went(database: Database) -> None:
    runtime = await process(database, asking())
    await order(runtime, "ann")

    with lost_answer(database, commit=1):
        assert await runtime.eject(TENANT, 1, "ann") is True

    assert await runtime.eject(TENANT, 1, "ann") is False
    assert await where(database) == [(1, "exited", "ask", 2)]
    assert await steps(database, "ann", "exited") == ["exited ask"]


async def test_c09_a_session_that_ends_right_at_its_commit_is_one_step(
    postgresql_url: str,
) -> None:
    database = open_database(postgresql_url)
    killer = open_database(postgresql_url)
    runtime = await reminded(database, *PEOPLE[:9])
    await runtime.reload()
    for _ in range(9):
        with ended_at_commit(database, killer, commit=2):
            await runtime.wake(limit=1)
        await asyncio.gather(*RACING)
        later(database, TimeDelta(seconds=6))
    later(database, A_LEASE)

    await finish(runtime)

    ended = [row.status for row in await read(database, instances)]
    assert ended == ["completed"] * 9
    assert [row.rev for row in await read(database, journal)] == [1, 2] * 9
    assert set((await taken(database)).values()) == {1}
    assert await broken(database) == []
    await killer.close()
    await database.close()


# --- after the walk


async def test_c10_what_a_dead_process_wrote_is_delivered_by_the_next_under_its_id(
    database: Database,
) -> None:
    runtime = await reminded(database)
    await runtime.wake()
    (written,) = await read(database, outbox)

    assert await Runtime(database).deliver() == Settled(delivered=1)

    assert written.message_id == REMINDED
    assert await taken(database) == {REMINDED: 1}
    assert await Runtime(database).deliver() == Settled()


async def test_c11_a_crash_after_the_outside_has_it_offers_it_again_under_its_id(
    database: Database,
) -> None:
    runtime = await reminded(database)
    await runtime.wake()

    with crash(database, word="DELETE FROM outbox"), pytest.raises(Crash):
        await runtime.deliver()

    assert await taken(database) == {REMINDED: 1}
    assert await Runtime(database).deliver() == Settled()  # the dead one still holds it
    later(database, A_CLAIMED_EFFECT)
    assert await Runtime(database).deliver() == Settled(delivered=1)
    (kept,) = await read(database, deliveries)
    assert (kept.message_id, kept.times) == (REMINDED, 2)
    (message,) = await read(database, messages)
    assert (message.state, message.attempts) == ("delivered", 2)


async def test_c12_a_mark_whose_answer_was_lost_is_not_offered_again(database: Database) -> None:
    runtime = await reminded(database)
    await runtime.wake()

    # after the claim, the decision, and what the provider keeps
    with lost_answer(database, commit=4) as asked:
        assert await runtime.deliver() == Settled(lost=1)

    assert len(asked) == 5
    later(database, A_CLAIMED_EFFECT)
    assert await Runtime(database).deliver() == Settled()
    assert await taken(database) == {REMINDED: 1}
    assert [row.state for row in await read(database, messages)] == ["delivered"]


# --- a walk that takes too long


async def test_c16_a_slow_batch_stops_where_its_claim_cannot_be_trusted(
    database: Database,
) -> None:
    """A second for each person: after twenty the rest is given back, long before the lease ends,
    and is taken by the next batches. No heartbeat is needed for that."""

    def evaluator(definition: Any) -> Predicate:
        holds = program.evaluate(definition)

        def asked(facts: Facts) -> bool:
            later(database, TimeDelta(seconds=1))
            return holds(facts)

        return asked

    runtime = await process(database, choosy(), evaluator=evaluator)
    await order(runtime, *PEOPLE)
    later(database, DAY)
    batches = []
    while (woken := await runtime.wake()).claimed:
        batches.append(woken)
        assert {row.attempts for row in await read(database, timers)} <= {0}  # not tried
        later(database, TimeDelta(seconds=6))

    walked = int(TRUST_SECONDS) + 1
    assert batches[0] == Woken(claimed=100, advanced=walked, postponed=100 - walked)
    assert sum(batch.advanced for batch in batches) == 100
    assert {batch.fenced for batch in batches} == {0}
    assert [row.status for row in await read(database, instances)] == ["completed"] * 100
    assert [row.rev for row in await read(database, journal)] == [1, 2] * 100
    assert len(await read(database, outbox)) == 100


# --- whoever asked is gone


class Mailbox:
    """Takes everything and keeps what it was offered."""

    def __init__(self) -> None:
        self.offered: list[str] = []

    async def deliver(self, items: Sequence[Item]) -> Sequence[Outcome]:
        self.offered += [item.message_id for item in items]
        await asyncio.sleep(0)
        return [Delivered() for _ in items]


@pytest.mark.parametrize("call", ["wake", "ingest", "deliver", "catch_up"])
async def test_c54_whoever_asked_may_leave_at_any_moment(database: Database, call: str) -> None:
    """A transaction that has begun ends as it would have; what follows it is done by the next."""
    runtime = await reminded(database, *PEOPLE[:3])
    if call in ("deliver", "catch_up"):
        await runtime.wake()
    calls: dict[str, Callable[[Runtime], Awaitable[object]]] = {
        "wake": lambda asked: asked.wake(limit=1),
        "ingest": lambda asked: asked.ingest(TENANT, [happens("order", "zoe")]),
        "deliver": lambda asked: asked.deliver(limit=1),
        "catch_up": lambda asked: asked.catch_up(),
    }

    cancelled = 0
    for pause in range(1, 60):
        leaving = asyncio.ensure_future(
            cancelled_at(calls[call](Runtime(database)), pause)  # one that reads all anew
        )
        await asyncio.wait([leaving])
        await asyncio.gather(*database.running, return_exceptions=True)
        assert await broken(database) == []
        if not leaving.cancelled():
            break
        cancelled += 1
        later(database, A_CLAIMED_EFFECT)

    assert cancelled >= 2
    leaving.result()
    await finish(runtime)
    assert [row.status for row in await read(database, instances)][:3] == ["completed"] * 3
    names = [f"j1.v1.send_email_1.{user_id}.e1" for user_id in PEOPLE[:3]]
    assert sorted(await taken(database)) == names
    assert len(await rows(database, select(journal).where(journal.c.user_id == "zoe"))) == (
        call == "ingest"
    )


async def test_c54_what_has_begun_when_its_caller_leaves_is_done(database: Database) -> None:
    runtime = await process(database, reminder())
    leaving = asyncio.ensure_future(
        cancelled_at(runtime.ingest(TENANT, [happens("order")]), 1)  # its only pause is the work
    )
    await asyncio.wait([leaving])
    assert leaving.cancelled()
    await asyncio.gather(*database.running)

    assert await runtime.ingest(TENANT, [happens("order")]) == Receipt(duplicates=1)
    assert await where(database) == [(1, "waiting", "wait_1d", 1)]


async def test_c56_a_row_that_has_no_memory_left_is_tried_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed process is C2 and C8; here only one walk is too large, once."""
    runtime = await reminded(database, "ann", "bob")
    resume, failed = walk.resume, list[str]()

    def too_large(ready: Any, person: Any, *given: Any) -> walk.Step:
        if person.user_id == "ann" and not failed:
            failed.append("ann")
            raise MemoryError
        return resume(ready, person, *given)

    monkeypatch.setattr(walk, "resume", too_large)

    assert await runtime.wake() == Woken(claimed=2, advanced=1, failed=1)
    (left,) = await read(database, timers)
    assert (left.user_id, left.last_error) == ("ann", "MemoryError: ")
    later(database, A_LEASE)
    assert await runtime.wake() == Woken(claimed=1, advanced=1)
    assert await where(database) == [(1, "completed", "exit", 2)]


# --- the counters


async def test_c65_counters_are_what_the_journal_says_after_every_fault(
    database: Database,
) -> None:
    """Steps that were rolled back, done again or in doubt are counted once; every test of this
    folder ends in the same look, and the look sees a counter that is off by one."""
    runtime = await reminded(database, *PEOPLE[:5])
    with crash(database, word="INSERT INTO node_stats"), pytest.raises(Crash):
        await runtime.wake()
    later(database, A_LEASE)
    with lost_answer(database, commit=3):
        await runtime.wake()
    with lost_answer(database, commit=1):
        await runtime.ingest(TENANT, [happens("order", "zoe")])
    later(database, A_LEASE)
    await finish(runtime, database.clock.now() + DAY)
    assert await verify(database) == []

    await execute(database, "UPDATE node_stats SET entered = entered + 1 WHERE node_id = 'exit'")
    assert await verify(database) == [
        'tenant 1 journey 1 version 1 node "exit": entered is 7, the journal says 6'
    ]
    await execute(database, "UPDATE node_stats SET entered = entered - 1 WHERE node_id = 'exit'")


async def test_c65_the_provider_that_logs_counts_each_offer(database: Database) -> None:
    """What stands behind C11 and C12: a second offer is the same delivery."""
    runtime = await reminded(database, provider=LogProvider(database))
    await runtime.wake()
    await runtime.deliver()

    assert [(row.state, row.attempts) for row in await read(database, messages)] == [
        ("delivered", 1)
    ]
    assert await read(database, dead_letters) == []
