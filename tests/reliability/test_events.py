"""Events that come at a bad moment, twice, in another order, or to nobody. Rows C22, C23 and C25 to
C32."""

from __future__ import annotations

import asyncio
from itertools import permutations

import pytest
from sqlalchemy import func, select
from whenever import TimeDelta

import journeykit as jk
from journeykit_engine.program import compile_graph
from journeykit_engine.replay import Line, replay
from journeykit_server.database import Database
from journeykit_server.incoming import Receipt
from journeykit_server.runtime import Runtime
from journeykit_server.tables import entries, events, inbox, instances, journal, profiles
from tests.databases import START
from tests.reliability.faults import Crash, crash, hold_before_commit
from tests.reliability.stage import (
    A_LEASE,
    DAY,
    PEOPLE,
    TENANT,
    asking,
    choosy,
    finish,
    happens,
    later,
    order,
    patient,
    process,
    read,
    reminder,
    rows,
    steps,
    taken,
    told,
    where,
)
from tests.reliability.test_crashes import Outage

A_MICROSECOND = TimeDelta(microseconds=1)
A_BREATH = 0.05  # seconds; enough to come to a lock, and right also if it was not


# --- an event and a wait


@pytest.mark.parametrize("first", ["the wait", "the event"])
async def test_c22_an_event_beside_the_step_into_its_wait_is_never_torn(
    database: Database, other: Database, first: str
) -> None:
    """Who locks the person first comes first. There is no looking back: an event that was stored
    before the wait began never answers it (domain.md, section 4), one that stood at the lock while
    the wait was being written answers it at once."""
    worker, door = await process(database, patient()), Runtime(other)
    await order(worker, "ann")
    await door.reload()
    later(database, DAY)

    async def wake() -> object:
        return await worker.wake()

    async def hear() -> object:
        return await door.ingest(TENANT, [happens("reply")])

    calls = [wake, hear] if first == "the wait" else [hear, wake]
    with hold_before_commit() as held:
        leading = asyncio.ensure_future(calls[0]())
        await held.stands.wait()
        following = asyncio.ensure_future(calls[1]())
        await asyncio.sleep(A_BREATH)
        assert not following.done()
        held.go_on.set()
        await asyncio.gather(leading, following)

    await finish(worker, database.clock.now() + A_LEASE)
    if first == "the wait":
        assert await where(database) == [(1, "completed", "exit", 3)]
    else:
        assert await where(database) == [(1, "waiting", "ask", 2)]


@pytest.mark.parametrize(
    ("arrives", "handled_first", "branch"),
    [
        (-A_MICROSECOND, "event", "thank"),
        (TimeDelta(), "event", "thank"),
        (A_MICROSECOND, "event", "late"),
        (TimeDelta(), "timeout", "late"),
        (A_MICROSECOND, "timeout", "late"),
        (TimeDelta(hours=5), "event", "late"),
        (TimeDelta(hours=5), "timeout", "late"),
    ],
)
async def test_c23_of_event_and_timeout_one_is_taken(
    database: Database, arrives: TimeDelta, handled_first: str, branch: str
) -> None:
    """Up to the last moment the event wins, after it the timeout, also where the poll is late; a
    wait that is closed stays closed. Before the last moment there is no timeout to handle."""
    runtime = await process(database, asking())
    await order(runtime, "ann")
    until = START + 2 * DAY
    later(database, 2 * DAY + arrives)
    if handled_first == "event":
        await runtime.ingest(TENANT, [happens("reply")])
    await runtime.wake()
    if handled_first == "timeout":
        await runtime.ingest(TENANT, [happens("reply")])
    await finish(runtime, until + DAY)

    assert await steps(database, "ann", "woke", "effect") == ["woke ask", f"effect {branch}"]
    assert await taken(database) == {f"j1.v1.{branch}.ann.e1": 1}


async def test_c23_of_event_and_timeout_at_once_one_is_taken(
    database: Database, other: Database
) -> None:
    """Two processes at the very moment, again and again: either, never both."""
    worker, door = await process(database, asking()), Runtime(other)
    await order(worker, *PEOPLE[:10])
    later(database, 2 * DAY)

    await asyncio.gather(
        worker.wake(),
        *(door.ingest(TENANT, [happens("reply", user_id)]) for user_id in PEOPLE[:10]),
    )
    later(database, A_LEASE)
    await finish(worker)

    for user_id in PEOPLE[:10]:
        assert await steps(database, user_id, "woke") == ["woke ask"]
    assert len(await taken(database)) == 10


# --- the same event again


async def test_c25_the_same_event_eight_times_at_once_is_one(
    database: Database, other: Database
) -> None:
    """Two processes, four clients each; all are told that it is stored."""
    one, two = await process(database, asking()), Runtime(other)
    await order(one, "ann")

    receipts = await asyncio.gather(
        *(each.ingest(TENANT, [happens("reply", price=5)]) for each in [one, two] * 4)
    )

    assert sorted(receipts) == [Receipt(duplicates=1)] * 7 + [Receipt(accepted=1)]
    assert [row.event_id for row in await read(database, events)] == [
        "order of ann",
        "reply of ann",
    ]
    assert await steps(database, "ann", "woke") == ["woke ask"]


async def test_c25_an_event_twice_in_one_batch_is_one(database: Database) -> None:
    runtime = await process(database, asking())

    receipt = await runtime.ingest(TENANT, [happens("order")] * 3)

    assert receipt == Receipt(accepted=1, duplicates=2)
    assert await where(database) == [(1, "waiting", "ask", 1)]


async def test_c26_another_event_under_a_used_id_is_refused_and_the_first_one_stays(
    database: Database,
) -> None:
    runtime = await process(database, asking())
    await runtime.ingest(TENANT, [happens("order", price=5)])

    others = [
        happens("order", price=6),
        happens("order", "bob", "order of ann", price=5),
        happens("reply", event_id="order of ann", price=5),
    ]
    told_off = [(await runtime.ingest(TENANT, [other])).conflicts for other in others]

    assert told_off == [("order of ann",)] * 3
    (kept,) = await read(database, events)
    assert (kept.user_id, kept.name) == ("ann", "order")
    assert await where(database, "bob") == []


# --- the order of events


async def test_c27_an_event_older_than_the_wait_is_none_of_its_answers(
    database: Database,
) -> None:
    """Arrival decides, not the sender's own time (domain.md, section 4): what arrived before the
    wait began is in the history and answers nothing; what arrives after it answers, however old
    it says it is. The journal does not tell of events that answered nothing."""
    runtime = await process(database, patient())
    await order(runtime, "ann", "bob")
    await runtime.ingest(TENANT, [happens("reply", "ann")])
    later(database, DAY)
    await runtime.wake()

    assert await where(database) == [(1, "waiting", "ask", 2)]
    long_ago = happens("reply", "bob")._replace(occurred_at=START - 30 * DAY)
    await runtime.ingest(TENANT, [long_ago])
    assert await where(database, "bob") == [(1, "completed", "exit", 3)]


def in_turn() -> jk.Journey:
    return (
        jk.journey("In turn")
        .on_event("order")
        .wait_for("a", timeout="9d", id="for_a")
        .wait_for("b", timeout="9d", id="for_b")
        .wait_for("c", timeout="9d", id="for_c")
        .send(email=1)
        .exit()
    )


async def test_c28_events_in_any_order_do_what_replay_says(database: Database) -> None:
    """Each wait takes its own; nothing is kept for a wait that has not begun. Every order of five
    events is one person's life, and goes as with the engine alone."""
    journey = in_turn()
    runtime = await process(database, journey)
    lives = {
        f"user {number:03}": ("order", *others)
        for number, others in enumerate(sorted(set(permutations(["a", "b", "c", "b"]))))
    }
    lines = [
        Line("track", user_id, START + TimeDelta(hours=hour), name, {}, f"{user_id} {hour}")
        for hour in range(5)
        for user_id, name in ((user_id, life[hour]) for user_id, life in lives.items())
    ]
    for line in lines:
        later(database, line.at - database.clock.now())
        event = happens(line.event, line.user_id, line.id)
        await runtime.ingest(TENANT, [event])

    expected: dict[str, list[str]] = {user_id: [] for user_id in lives}
    numbered = compile_graph(journey.numbered(1, 1).graph, "UTC", TENANT)
    for record in replay(numbered, lines).journal:
        expected[record["user_id"]].append(f"{record['what']} {record['node_id']}")
    for user_id in lives:
        assert await steps(database, user_id) == expected[user_id]
    assert len({tuple(each) for each in expected.values()}) > 2


# --- events of nobody


async def test_c29_an_event_of_somebody_unknown_is_kept_and_may_enter(
    database: Database,
) -> None:
    runtime = await process(database, reminder())

    receipt = await runtime.ingest(
        TENANT, [happens("order"), happens("visit"), happens("order", "bob")]
    )

    assert receipt == Receipt(accepted=3, unmatched=1)
    assert [row.user_id for row in await read(database, profiles)] == ["ann", "bob"]
    assert len(await read(database, events)) == 3
    assert await where(database, "bob") == [(1, "waiting", "wait_1d", 1)]
    receipt = await runtime.ingest(TENANT, [happens("visit", "zoe")])
    assert receipt == Receipt(accepted=1, unmatched=1)
    assert await where(database, "zoe") == []


async def test_c29_an_event_of_somebody_who_has_left_does_nothing_and_is_kept(
    database: Database,
) -> None:
    runtime = await process(database, asking())
    await order(runtime, "ann")
    await runtime.eject(TENANT, 1, "ann")
    before = await told(database)

    await runtime.ingest(TENANT, [happens("reply")])

    assert await told(database) == before
    assert len(await read(database, events)) == 2


async def test_c30_a_crash_between_storing_and_entering_stores_nothing(
    database: Database,
) -> None:
    """One transaction: the client is not answered, sends again, and enters once."""
    runtime = await process(database, reminder())

    with crash(database, word="INSERT INTO instances"), pytest.raises(Crash):
        await runtime.ingest(TENANT, [happens("order")])

    assert await read(database, events) == []
    assert await runtime.ingest(TENANT, [happens("order")]) == Receipt(accepted=1)
    assert await runtime.ingest(TENANT, [happens("order")]) == Receipt(duplicates=1)
    assert await where(database) == [(1, "waiting", "wait_1d", 1)]


async def test_c30_an_event_that_a_journey_could_not_hear_is_heard_later_once(
    database: Database,
) -> None:
    """Stored and not yet handled: a process that takes over finds it, and what came after it."""
    outage = Outage()
    journey = choosy().exit_when(jk.trait("closed").is_true())
    runtime = await process(database, journey, evaluator=outage)
    assert await runtime.ingest(TENANT, [happens("order")]) == Receipt(accepted=1)
    assert await runtime.ingest(TENANT, [happens("order", event_id="2")]) == Receipt(accepted=1)
    assert [row.last_error for row in await read(database, inbox)] == [
        "ConnectionError: nobody answers",
        "waits for an earlier event",
    ]
    assert await where(database) == []

    outage.is_over = True
    later(database, A_LEASE)
    await finish(Runtime(database))

    assert await where(database) == [(1, "waiting", "rest", 1)]
    assert await steps(database, "ann", "entered", "refused") == [
        "entered trigger",
        "refused trigger",
    ]
    assert await read(database, inbox) == []


# --- entering at once


async def test_c31_two_triggers_at_once_are_one_pass(database: Database, other: Database) -> None:
    """Sixteen events of one person in two processes; the others are told that they are inside."""
    one, two = await process(database, reminder().reenter("every_time")), Runtime(other)
    rounds = 5

    for number in range(rounds):
        user_id = f"user {number}"
        orders = [happens("order", user_id, f"{number}-{order}") for order in range(16)]
        await asyncio.gather(
            *([one, two][at % 2].ingest(TENANT, [event]) for at, event in enumerate(orders))
        )
        assert (await steps(database, user_id, "entered", "refused")) == (
            ["entered trigger"] + ["refused trigger"] * 15
        )

    assert [row.rev for row in await read(database, instances)] == [1] * rounds
    assert len(await read(database, entries)) == rounds
    assert await rows(database, select(func.count()).select_from(journal)) == [(16 * rounds,)]


async def test_c31_two_journeys_entered_at_once_are_two(database: Database) -> None:
    runtime = await process(database, reminder(), asking())

    await asyncio.gather(
        *(runtime.ingest(TENANT, [happens("order", event_id=str(n))]) for n in range(8))
    )

    assert await where(database) == [(1, "waiting", "wait_1d", 1), (2, "waiting", "ask", 1)]


async def test_c32_coming_back_while_the_old_pass_ends_asks_the_pass_as_it_ended(
    database: Database, other: Database
) -> None:
    """The cooldown runs from the committed end: the event stands at the lock until it is known."""
    journey = reminder().reenter("every_time", cooldown_hours=1)
    worker, door = await process(database, journey), Runtime(other)
    await order(worker, "ann")
    await door.reload()
    ended = later(database, DAY)

    with hold_before_commit() as held:
        ending = asyncio.ensure_future(worker.wake())
        await held.stands.wait()
        coming = asyncio.ensure_future(door.ingest(TENANT, [happens("order", event_id="too soon")]))
        await asyncio.sleep(A_BREATH)
        assert not coming.done()
        held.go_on.set()
        await asyncio.gather(ending, coming)
    assert await where(database) == [(1, "completed", "exit", 2)]

    for number, since in enumerate([TimeDelta(hours=1) - A_MICROSECOND, TimeDelta(hours=1)]):
        later(database, ended + since - database.clock.now())
        await door.ingest(TENANT, [happens("order", event_id=f"again {number}")])
    assert await steps(database, "ann", "entered", "refused", "exited") == [
        "entered trigger",
        "exited exit",
        "refused trigger",
        "refused trigger",
        "entered trigger",
    ]
    assert len(await read(database, instances)) == 1


async def test_c32_leaving_and_coming_back_at_once_is_never_two_passes(
    database: Database, other: Database
) -> None:
    worker, door = await process(database, reminder().reenter("every_time")), Runtime(other)
    people = PEOPLE[:8]
    await order(worker, *people)
    later(database, DAY)

    await asyncio.gather(
        worker.wake(),
        *(door.ingest(TENANT, [happens("order", who, f"back {who}")]) for who in people),
    )
    later(database, A_LEASE)
    await finish(worker)

    for user_id in people:
        begun = await steps(database, user_id, "entered", "refused", "exited")
        assert begun in (
            ["entered trigger", "exited exit", "entered trigger"],
            ["entered trigger", "refused trigger", "exited exit"],
        )
    assert len(await read(database, instances)) == 8
