"""Time passes: whoever's time has come walks on, once, and nobody holds up anybody else."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from sqlalchemy import text, update
from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import TimeDelta

from journeykit_server import store
from journeykit_server.backoff import ATTEMPTS
from journeykit_server.clock import VirtualClock, instant, microseconds
from journeykit_server.database import Database
from journeykit_server.letters import retry
from journeykit_server.outbox import INSERT_OUTBOX, OutboxRow
from journeykit_server.runtime import LEASE, Runtime
from journeykit_server.tables import (
    NEVER_BUCKET,
    entries,
    instances,
    journal,
    outbox,
    timers,
    versions,
)
from journeykit_server.verify import verify
from journeykit_server.waking import Woken
from tests.databases import START
from tests.engine.journeys import chain
from tests.engine.walking import ADULT, END, ask, days, halves, send, wait_for, write
from tests.server.shop import DOWN, Moody, Shop, counted, later, track


@pytest.fixture
async def shop(database: Database) -> Shop:
    return Shop(database)


@pytest.fixture
async def moody(database: Database) -> Shop:
    """A shop whose evaluator fails for "ann"; her journey asks after a day."""
    shop = Shop(database, evaluator=Moody("ann"))
    await shop.opens(days(1, "if"), ask(ADULT, "yes", "no"), send("yes"), send("no"))
    return shop


async def timer(shop: Shop, user_id: str = "ann") -> Any:
    return next(row for row in await shop.rows(timers) if row.user_id == user_id)


# --- whose time has come


async def test_a_wait_ends_when_its_time_has_come_and_not_before(shop: Shop) -> None:
    await shop.opens(days(1, "a"), send("a", "end"), END)
    await shop.hears(track("ann", "signed_up"))

    assert await shop.wakes(later(days=1, seconds=-0.000001)) == Woken()
    assert await shop.where("ann") == "waiting w"

    assert await shop.wakes(later(days=1)) == Woken(claimed=1, advanced=1)
    assert await shop.where("ann") == "completed end"
    assert await shop.rows(timers) == []
    assert [row.message_id for row in await shop.rows(outbox)] == ["j1.v1.a.ann.e1"]
    assert (await shop.told("ann"))[-5:] == [
        *("woke w timeout", "visited a", "effect a send", "visited end", "exited end completed"),
    ]


async def test_the_next_wait_takes_the_place_of_the_last(shop: Shop) -> None:
    await shop.opens(days(1, "v"), days(2, own="v"))
    await shop.hears(track("ann", "signed_up"))

    await shop.wakes(later(days=1, hours=5))

    row = await timer(shop)
    assert len(await shop.rows(timers)) == 1
    assert (row.rev, row.attempts, row.lease_token) == (2, 0, None)
    assert instant(row.due) == instant(row.try_at) == later(days=3, hours=5)


async def test_those_whose_time_came_first_go_first(shop: Shop) -> None:
    await shop.opens(days(1, "a"), send("a"))
    for hour in range(5):
        shop.clock.set(later(hours=hour))
        await shop.hears(track(f"u{9 - hour}", "signed_up"))
    shop.clock.set(later(days=2))

    assert await shop.runtime.wake(limit=2) == Woken(claimed=2, advanced=2)
    assert await shop.runtime.wake(limit=2) == Woken(claimed=2, advanced=2)

    assert [row.user_id for row in await shop.rows(timers)] == ["u5"]


async def test_the_longest_stay_ends_a_pass_by_itself(shop: Shop) -> None:
    await shop.opens(wait_for("paid"), max_duration_days=3)
    await shop.hears(track("ann", "signed_up"))

    await shop.wakes(later(days=3))

    (entry,) = await shop.rows(entries)
    assert (entry.exit_reason, entry.exit_node) == ("max_duration", "w")
    assert instant(entry.ended_at) == later(days=3)


async def test_a_wait_without_an_end_has_no_timer(shop: Shop) -> None:
    await shop.opens(wait_for("paid"))
    await shop.hears(track("ann", "signed_up"))

    assert await shop.rows(timers) == []
    assert await shop.runtime.next_due() is None


async def test_one_person_wakes_in_several_journeys_at_once(shop: Shop) -> None:
    """The second knows what the first has just written."""
    await shop.opens(days(1, "tell"), write("tell", "age", 30))
    await shop.opens(days(1, "if"), ask(ADULT, "yes", "no"), send("yes"), send("no"))
    await shop.hears(track("ann", "signed_up"))

    assert await shop.wakes(later(days=1)) == Woken(claimed=2, advanced=2)

    assert await shop.where("ann", 2) == "completed yes"


async def test_people_wake_in_the_version_in_which_they_are(shop: Shop) -> None:
    """Also in a process that has never seen it."""
    await shop.opens(days(1, "a"), send("a"))
    await shop.hears(track("ann", "signed_up"))
    await shop.changes(1, send("b"))
    await shop.forgets()

    await shop.wakes(later(days=1))

    assert [row.message_id for row in await shop.rows(outbox)] == ["j1.v1.a.ann.e1"]


async def test_a_rule_asked_after_the_wait_sees_what_happened_meanwhile(shop: Shop) -> None:
    twice: Any = {"root": {"event": "paid", "op": "gte", "count": 2}}
    await shop.opens(days(1, "if"), ask(twice, "yes", "no"), send("yes"), send("no"))
    people = [track(user_id, "signed_up") for user_id in ("ann", "bob")]
    await shop.hears(track("ann", "paid"), *people, track("bob", "paid"), track("ann", "paid"))

    await shop.wakes(later(days=1))

    assert await shop.where("ann") == "completed yes"
    assert await shop.where("bob") == "completed no"


async def test_who_left_meanwhile_has_no_timer_to_take(shop: Shop) -> None:
    await shop.opens(days(1), settings={"exit_on": ["paid"]})
    await shop.hears(track("ann", "signed_up"))
    await shop.hears(track("ann", "paid"))

    assert await shop.wakes(later(days=1)) == Woken()


async def test_a_timer_of_another_step_is_dropped(shop: Shop) -> None:
    """As it would be if somebody had put back a timer that was taken."""
    await shop.opens(days(1, "v"), days(1, own="v"))
    await shop.hears(track("ann", "signed_up"))
    await shop.wakes(later(days=1))
    await shop.tampers(timers, 1, rev=1, bucket=0, due=0, try_at=0)

    assert await shop.wakes(later(days=1, minutes=1)) == Woken(claimed=1, superseded=1)
    assert await shop.where("ann") == "waiting v"
    assert await shop.rows(timers) == []


async def test_the_paused_are_left_where_they_are(shop: Shop) -> None:
    await shop.opens(days(1, "a"), send("a"))
    await shop.hears(track("ann", "signed_up"))
    await shop.pauses(1)

    assert await shop.wakes(later(days=2)) == Woken(claimed=1, superseded=1)

    (row,) = await shop.rows(instances)
    assert (row.status, row.current_node, row.rev) == ("waiting", "w", 1)
    assert instant(row.wake_at) == later(days=1)
    assert await shop.rows(outbox) == []


async def test_a_clock_that_goes_back_wakes_nobody_twice(shop: Shop) -> None:
    await shop.opens(days(1, "v"), days(1, own="v"))
    await shop.hears(track("ann", "signed_up"))
    await shop.wakes(later(days=1))

    assert await shop.wakes(later(hours=1)) == Woken()
    assert await shop.wakes(later(days=2)) == Woken(claimed=1, advanced=1)
    assert [row.rev for row in await shop.rows(journal)] == [1, 2, 3]


async def test_nothing_due_costs_one_look(shop: Shop) -> None:
    await shop.opens(days(1))
    await shop.hears(track("ann", "signed_up"))

    with counted(shop.database) as sent:
        assert await shop.runtime.wake() == Woken()

    assert len([text for text in sent if "timers" in text]) == 1
    assert [text for text in sent if "instances" in text] == []


async def test_one_timer_costs_as_many_statements_as_five_hundred(shop: Shop) -> None:
    rule: Any = {"root": {"all": [{"event": "seen"}, {"segment": 4}, {"journey": 1}]}}
    await shop.opens(
        days(1, "if"),
        ask(rule, "s", "s"),
        halves("s", "a", "b"),
        send("a", "v"),
        send("b", "v"),
        days(1, own="v"),
    )
    await shop.hears(track("ann", "signed_up"))
    shop.clock.set(later(hours=1))
    await shop.hears(*(track(f"u{i}", "signed_up") for i in range(500)))

    shop.clock.set(later(days=1))
    with counted(shop.database) as of_one:
        assert await shop.runtime.wake() == Woken(1, 1)
    shop.clock.set(later(days=1, hours=1))
    with counted(shop.database) as of_many:
        assert await shop.runtime.wake() == Woken(500, 500)

    assert [text[:40] for text in of_many] == [text[:40] for text in of_one]
    assert len(await shop.rows(outbox)) == 501
    assert await verify(shop.database) == []


# --- when something is to be done


async def test_what_is_due_next_is_a_timer_an_effect_or_an_event(shop: Shop) -> None:
    assert await shop.runtime.next_due() is None
    await shop.opens(days(1, "a"), send("a"))
    await shop.hears(track("ann", "signed_up"))
    assert await shop.runtime.next_due() == later(days=1)

    await shop.wakes(later(days=1, hours=1))
    assert await shop.runtime.next_due() == later(days=1, hours=1)
    await shop.runtime.deliver()
    assert await shop.runtime.next_due() is None


# --- a step that fails


async def test_one_person_who_fails_does_not_hold_up_the_others(moody: Shop) -> None:
    await moody.hears(*(track(user_id, "signed_up") for user_id in ("ann", "bob", "eve")))

    woken = await moody.wakes(later(days=1))

    assert woken == Woken(claimed=3, advanced=2, failed=1)
    assert await moody.where("ann") == "waiting w"
    assert await moody.where("bob") == await moody.where("eve") == "completed no"
    row = await timer(moody)
    assert (row.attempts, row.last_error, row.lease_token) == (1, DOWN, None)
    assert instant(row.failed_at) == later(days=1)
    assert later(days=1) <= instant(row.try_at) <= later(days=1, seconds=5)


async def test_a_batch_in_which_somebody_failed_is_one_line_that_names_nobody(
    moody: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    await moody.hears(*(track(user_id, "signed_up") for user_id in ("ann", "bob")))

    with caplog.at_level(logging.INFO, "journeykit"):
        await moody.wakes(later(days=1))

    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == ("WARNING", "woke")
    figures = vars(record)["figures"]
    assert figures == Woken(claimed=2, advanced=1, failed=1)._asdict()


async def test_what_failed_is_tried_again_and_works(moody: Shop) -> None:
    await moody.hears(track("ann", "signed_up"))
    await moody.wakes(later(days=1))
    evaluator = moody.runtime.published.evaluator
    assert isinstance(evaluator, Moody)
    evaluator.failing.clear()

    assert await moody.wakes(later(days=1, seconds=5)) == Woken(1, 1)

    assert await moody.where("ann") == "completed no"
    assert await moody.letters() == []
    (told,) = [row for row in await moody.rows(journal) if row.rev == 2]
    assert instant(told.at) == later(days=1, seconds=5)


async def test_other_journeys_of_the_same_person_go_on(moody: Shop) -> None:
    await moody.opens(days(1, "a"), send("a"))
    await moody.hears(track("ann", "signed_up"))

    assert await moody.wakes(later(days=1)) == Woken(claimed=2, advanced=1, failed=1)

    assert await moody.where("ann", 2) == "completed a"


async def test_what_fails_for_ever_is_given_up_and_somebody_can_try_it_again(
    moody: Shop,
) -> None:
    await moody.hears(track("ann", "signed_up"))

    tried = await moody.gives_up()

    assert tried == ATTEMPTS == 20
    assert moody.clock.now() < later(days=1, hours=5)
    (letter,) = await moody.letters()
    assert (letter.letter_id, letter.kind, letter.code, letter.message) == (
        *("timer:1:ann", "timer", "WALK_FAILED", DOWN),
    )
    assert (letter.node_id, letter.version, letter.attempts) == ("w", 1, 20)
    assert (letter.first_at, letter.last_at) == (later(days=1), moody.clock.now())
    assert await moody.where("ann") == "waiting w"
    assert (await timer(moody)).bucket == NEVER_BUCKET

    evaluator = moody.runtime.published.evaluator
    assert isinstance(evaluator, Moody)
    evaluator.failing.clear()
    await retry(moody.database, 1, letter.letter_id)
    assert await moody.wakes(later(days=9)) == Woken(1, 1)
    assert await moody.where("ann") == "completed no"
    assert await moody.letters() == []


async def test_a_step_without_an_end_is_given_up_at_once(shop: Shop) -> None:
    await shop.forces(days(1, "n0"), *chain(101))
    await shop.hears(track("ann", "signed_up"))

    assert await shop.wakes(later(days=1)) == Woken(claimed=1, dead=1)

    told = 'The walk passed 100 nodes without a wait and stopped before "n100". '
    told += "Put a wait into the path."
    (letter,) = await shop.letters()
    assert (letter.code, letter.node_id, letter.message) == ("STEP_LIMIT", "n100", told)
    assert letter.attempts == 1
    assert await shop.where("ann") == "waiting w"
    assert (await shop.told("ann"))[-1] == "error n100 STEP_LIMIT"
    assert [(row.rev, row.step) for row in await shop.rows(journal)] == [(1, -1), (1, 0)]
    assert await shop.runtime.next_due() is None
    assert await verify(shop.database) == []


async def test_an_event_frees_whoever_is_stuck_and_answers_the_letter(shop: Shop) -> None:
    await shop.forces(wait_for("paid", timeout="1d", on_timeout="n0") | {"next": ""}, *chain(101))
    await shop.hears(track("ann", "signed_up"))
    await shop.wakes(later(days=1))
    assert [letter.letter_id for letter in await shop.letters()] == ["timer:1:ann"]

    await shop.runtime.eject(1, 1, "ann")

    assert await shop.where("ann") == "exited w"
    assert await shop.letters() == []
    assert await shop.rows(timers) == []


# --- a version that cannot be walked


async def test_a_version_that_is_gone_is_a_dead_letter_until_it_is_back(shop: Shop) -> None:
    await shop.opens(days(1, "a"), send("a"))
    await shop.hears(track("ann", "signed_up"))
    lost = await shop.loses(versions, 1)

    assert await shop.wakes(later(days=1)) == Woken(claimed=1, dead=1)
    (letter,) = await shop.letters()
    assert (letter.code, letter.message) == (
        "GRAPH_MISSING",
        "The version 1 of journey 1 is not stored any more. "
        "Restore it from a backup and retry, or take its people out.",
    )
    assert await shop.where("ann") == "waiting w"

    await shop.restores(versions, lost)
    await retry(shop.database, 1, letter.letter_id)
    assert await shop.wakes(later(days=1, minutes=1)) == Woken(1, 1)
    assert await shop.where("ann") == "completed a"


async def test_a_version_that_was_changed_is_a_dead_letter(shop: Shop) -> None:
    await shop.opens(days(1, "a"), send("a"))
    await shop.hears(track("ann", "signed_up"))
    await shop.tampers(versions, 1, sha256="0" * 64)
    await shop.forgets()

    await shop.wakes(later(days=1))

    (letter,) = await shop.letters()
    assert (letter.code, letter.node_id, letter.message) == (
        "GRAPH_HASH",
        "w",
        "The stored version 1 of journey 1 is not what was published: its hash differs. "
        "Restore it from a backup and retry, or take its people out.",
    )


async def test_a_version_that_cannot_be_run_is_a_dead_letter(shop: Shop) -> None:
    await shop.opens(days(1, "a"), send("a"))
    await shop.hears(track("ann", "signed_up"))
    await shop.tampers(versions, 1, document='{"entry_id": "t", "nodes": []}')
    await shop.forgets()

    await shop.wakes(later(days=1))

    (letter,) = await shop.letters()
    assert letter.code == "CONFIG"
    assert letter.message == (
        'The version 1 of journey 1 cannot be run: There is no node "t" to enter by.'
    )


async def test_a_version_of_a_newer_release_waits_for_it(shop: Shop) -> None:
    """However long that takes: no attempt is counted, nobody is given up."""
    await shop.opens(days(1, "a"), send("a"))
    await shop.hears(track("ann", "signed_up"))
    await shop.tampers(versions, 1, format=2)
    await shop.forgets()

    for seconds in range(0, 30 * 25, 30):
        assert await shop.wakes(later(days=1, seconds=seconds)) == Woken(claimed=1, postponed=1)
    row = await timer(shop)
    assert (row.attempts, row.last_error) == (
        0,
        "The version 1 of journey 1 was published by a newer journeykit (document format 2, "
        "this one reads 1). Its people wait until this worker is upgraded.",
    )
    assert await shop.letters() == []

    await shop.tampers(versions, 1, format=1)
    await shop.forgets()
    assert await shop.wakes(later(days=1, minutes=30)) == Woken(1, 1)


# --- workers who die, and workers who are slow


async def test_what_a_dead_worker_had_claimed_is_taken_up_after_its_lease(shop: Shop) -> None:
    await shop.opens(days(1, "a"), send("a"))
    await shop.hears(track("ann", "signed_up"))
    shop.clock.set(later(days=1))
    await claims_and_dies(shop)

    assert await shop.wakes(later(days=1, seconds=29)) == Woken()
    assert await shop.wakes(later(days=1, seconds=35)) == Woken(1, 1)
    assert await shop.where("ann") == "completed a"


async def claims_and_dies(shop: Shop) -> None:
    """Somebody claims what is due now, and is never seen again."""
    now = shop.clock.now()
    query = update(timers).values(
        lease_token="of the dead",
        try_at=microseconds(now + LEASE),
        attempts=timers.c.attempts + 1,
    )
    query = query.where(timers.c.try_at <= microseconds(now))
    await shop.database.run(lambda connection: connection.execute(query))


async def test_somebody_whose_steps_kill_workers_is_given_up(shop: Shop) -> None:
    await shop.opens(days(1, "a"), send("a"))
    await shop.hears(track("ann", "signed_up"))
    for died in range(ATTEMPTS):
        shop.clock.set(later(days=1, minutes=died))
        await claims_and_dies(shop)

    assert await shop.wakes(later(days=2)) == Woken(claimed=1, dead=1)
    (letter,) = await shop.letters()
    assert letter.message == ("RuntimeError: a worker died while it walked this person, 21 times")


async def test_a_worker_gives_back_what_it_claimed_and_did_not_take(shop: Shop) -> None:
    await shop.opens(days(1, "a"), send("a"))
    await shop.hears(track("ann", "signed_up"))
    shop.clock.set(later(days=1))
    await claims_and_dies(shop)
    shop.runtime.leases["of the dead"] = None

    await shop.runtime.release()

    row = await timer(shop)
    assert (row.attempts, row.lease_token) == (0, None)
    assert await shop.wakes(later(days=1, seconds=1)) == Woken(1, 1)


async def test_what_is_given_back_is_found_by_its_minute(database: Database) -> None:
    """There may be millions of timers, and a token says nothing about where they lie."""
    if not database.is_sqlite:
        return  # which reads an empty table as a whole, whatever its indexes

    async def explain(connection: AsyncConnection) -> str:
        plan = text(f"EXPLAIN QUERY PLAN {store.RELEASE.text}")
        rows = await connection.execute(plan, {"token": "t", "minute": 1})
        return str([row.detail for row in rows])

    assert "SEARCH timers USING INDEX ix_timers_bucket" in await database.read(explain)


class Overtaken(Runtime):
    """A worker that is so slow between claim and walk that another claims the same."""

    shop: Shop

    async def unit(self, work: Any) -> Any:
        shop = self.shop
        shop.clock.set(shop.clock.now() + LEASE)
        await claims_and_dies(shop)
        return await super().unit(work)


async def test_a_worker_that_was_overtaken_writes_nothing(shop: Shop) -> None:
    await shop.opens(days(1, "a"), send("a"))
    await shop.hears(track("ann", "signed_up"))
    shop.clock.set(later(days=1))
    slow = Overtaken(shop.database)
    slow.shop = shop

    assert await slow.wake() == Woken(claimed=1, fenced=1)

    assert await shop.where("ann") == "waiting w"
    assert (await timer(shop)).lease_token == "of the dead"
    assert await shop.wakes(later(days=2)) == Woken(1, 1)


class Slow(Moody):
    """An evaluator that takes longer than a claim is good for."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self.clock = clock

    def __call__(self, definition: Any) -> Any:
        judge = super().__call__(definition)

        def holds(facts: Any) -> bool:
            self.clock.set(self.clock.now() + TimeDelta(seconds=21))
            return judge(facts)

        return holds


async def test_a_slow_batch_leaves_to_others_what_it_can_no_longer_vouch_for(
    database: Database,
) -> None:
    assert isinstance(database.clock, VirtualClock)
    shop = Shop(database, evaluator=Slow(database.clock))
    await shop.opens(days(1, "if"), ask(ADULT, "yes", "no"), send("yes"), send("no"))
    await shop.hears(track("ann", "signed_up"), track("bob", "signed_up"))

    assert await shop.wakes(later(days=1)) == Woken(claimed=2, advanced=1, postponed=1)

    assert (await timer(shop, "bob")).attempts == 0
    assert await shop.wakes(later(days=2)) == Woken(1, 1)


async def test_a_late_step_happened_when_it_was_taken(shop: Shop) -> None:
    await shop.opens(days(1, "v"), days(1, own="v"))
    await shop.hears(track("ann", "signed_up"))
    await shop.wakes(later(days=1, hours=2))

    (row,) = await shop.rows(instances)
    assert instant(row.entered_at) == START
    assert instant(row.updated_at) == later(days=1, hours=2)


async def test_one_whose_rows_are_refused_is_set_aside_and_everybody_else_moves_on(
    shop: Shop,
) -> None:
    """Not the walk fails but the writing of it: the batch is halved until that person is alone."""
    await shop.opens(days(1, "a"), send("a", "end"), END)
    await shop.hears(*[track(f"u{i}", "signed_up") for i in range(20)])
    key = (1, "j1.v1.a.u7.e1", "zoe", 1, 1, 1, 9, 0, "a", "send", "{}", False, 0, 0)
    in_the_way = OutboxRow(*key)
    await shop.database.run(lambda c: INSERT_OUTBOX.run(c, [in_the_way]))
    shop.clock.set(later(days=1))

    woken = await shop.runtime.wake()

    assert (woken.claimed, woken.advanced, woken.failed) == (20, 19, 1)
    waiting = await timer(shop, "u7")
    assert waiting.attempts == 1
    assert waiting.last_error.startswith("IntegrityError: ")
    assert len(await shop.rows(timers)) == 1
    assert len(await shop.rows(outbox)) == 20  # the one that stood in the way, and nineteen
