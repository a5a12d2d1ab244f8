"""A journey that could not hear an event hears it later, in order, or somebody is told."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from whenever import TimeDelta

from journeykit_server import lifecycle
from journeykit_server.backoff import ATTEMPTS, TOO_NEW_PAUSE
from journeykit_server.clock import instant
from journeykit_server.database import Database
from journeykit_server.incoming import Receipt
from journeykit_server.letters import retry
from journeykit_server.runtime import CATCH_UP_BATCH
from journeykit_server.tables import (
    entries,
    events,
    inbox,
    instances,
    journal,
    outbox,
    profiles,
    versions,
)
from journeykit_server.verify import verify
from journeykit_server.waking import Woken
from tests.databases import START
from tests.engine.journeys import chain
from tests.engine.walking import ADULT, ask, days, send, wait_for, write
from tests.server.shop import DOWN, Moody, Shop, counted, later, track

ASKS = (ask(ADULT, "yes", "no"), send("yes", "w"), send("no", "w"))


@pytest.fixture
async def shop(database: Database) -> Shop:
    """A shop whose evaluator fails for "ann"; its journey asks her before it waits for "paid"."""
    shop = Shop(database, evaluator=Moody("ann"))
    await shop.opens(*ASKS, wait_for("paid", "v", timeout="1d", on_timeout="v"), days(9, own="v"))
    return shop


def cheers_up(shop: Shop) -> None:
    evaluator = shop.runtime.published.evaluator
    assert isinstance(evaluator, Moody)
    evaluator.failing.clear()


async def test_an_event_that_could_not_be_heard_is_stored_and_waits(shop: Shop) -> None:
    receipt = await shop.hears(track("ann", "signed_up", "m1", plan="pro"))

    assert receipt == Receipt(accepted=1)
    assert len(await shop.rows(events)) == 1
    (queued,) = await shop.rows(inbox)
    assert (queued.user_id, queued.journey_id, queued.name, queued.attempts) == (
        *("ann", 1, "signed_up", 1),
    )
    assert (queued.last_error, instant(queued.failed_at)) == (DOWN, START)
    assert START <= instant(queued.try_at) <= later(seconds=5)
    assert await shop.rows(instances) == await shop.rows(journal) == []
    assert await shop.runtime.next_due() == instant(queued.try_at)


async def test_what_failed_is_told_and_nobody_is_named(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "journeykit"):
        await shop.hears(track("ann", "signed_up", "of-ann"))

    (queued,) = await shop.rows(inbox)
    told = f"journey 1 could not hear event number {queued.number} yet"
    assert caplog.messages == [told]


async def test_other_people_and_other_journeys_go_on(shop: Shop) -> None:
    await shop.opens(days(1))

    await shop.hears(track("ann", "signed_up"), track("bob", "signed_up"))

    assert [await shop.where(user_id, 1) for user_id in ("ann", "bob")] == ["", "waiting w"]
    assert [await shop.where(user_id, 2) for user_id in ("ann", "bob")] == ["waiting w"] * 2
    assert len(await shop.rows(inbox)) == 1


async def test_later_events_queue_up_behind_and_are_heard_in_order(shop: Shop) -> None:
    """Those of the same batch, and those that come when all is well again."""
    await shop.hears(track("ann", "signed_up", "m1"), track("ann", "paid", "m2"))
    cheers_up(shop)
    await shop.hears(track("ann", "signed_up", "m3"))
    behind = (await shop.rows(inbox))[1:]
    assert [(row.attempts, row.last_error) for row in behind] == [
        (0, "waits for an earlier event"),
        (0, "waits for an earlier event"),
    ]
    assert await shop.where("ann") == ""

    shop.clock.set(later(seconds=5))
    assert await shop.runtime.catch_up() == 3

    assert await shop.where("ann") == "waiting v"
    assert [row.cause for row in await shop.rows(journal)] == ["m1", "m2", "m3"]
    assert (await shop.told("ann"))[-1] == "refused t already_inside"
    assert await shop.rows(inbox) == []
    assert await verify(shop.database) == []


async def test_what_comes_late_happened_when_it_arrived(shop: Shop) -> None:
    """So that the outage of an evaluator moves nobody's deadline."""
    await shop.hears(track("ann", "signed_up", "m1"))
    cheers_up(shop)
    shop.clock.set(later(hours=2))
    await shop.hears(track("ann", "paid", "m2"))
    shop.clock.set(later(hours=3))

    await shop.runtime.catch_up()

    (entry,) = await shop.rows(entries)
    assert (entry.entered_by, instant(entry.entered_at)) == ("m1", START)
    assert await shop.due("ann") == later(days=9, hours=2)


async def test_a_timer_waits_for_the_event_that_came_before_it(database: Database) -> None:
    """She paid in time, the evaluator was down: the time-out must not be faster."""
    shop = Shop(database, evaluator=Moody())
    await shop.opens(
        wait_for("paid", "if", timeout="1d", on_timeout="late"),
        *(ask(ADULT, "yes", "no"), send("yes"), send("no"), send("late")),
    )
    await shop.hears(track("ann", "signed_up"))
    evaluator = shop.runtime.published.evaluator
    assert isinstance(evaluator, Moody)
    evaluator.failing.add("ann")
    shop.clock.set(later(hours=23))
    await shop.hears(track("ann", "paid"))

    assert await shop.wakes(later(days=1)) == Woken(claimed=1, postponed=1)
    cheers_up(shop)
    assert await shop.runtime.catch_up() == 1

    assert await shop.where("ann") == "completed no"
    assert await shop.wakes(later(days=2)) == Woken()


async def test_what_was_written_by_an_identify_is_known_when_it_is_heard(
    database: Database,
) -> None:
    shop = Shop(database, evaluator=Moody())
    await shop.opens(days(1), exit_criteria=ADULT)
    await shop.hears(track("ann", "signed_up"))
    evaluator = shop.runtime.published.evaluator
    assert isinstance(evaluator, Moody)
    evaluator.failing.add("ann")
    await shop.learns("ann", age=30, plan="pro")
    (queued,) = await shop.rows(inbox)
    assert queued.changed == '{"age":30,"plan":"pro"}'
    cheers_up(shop)

    shop.clock.set(later(seconds=5))
    assert await shop.runtime.catch_up() == 1

    assert await shop.where("ann") == "exited w"


async def test_what_a_late_walk_writes_does_not_overwrite_what_is_younger(shop: Shop) -> None:
    moves = (write("z", "timezone", "Asia/Tehran", "p"), write("p", "phone", "+982112345678"))
    came: Any = {"kind": "event", "event": "came"}
    await shop.opens(ask(ADULT, "z", "z"), *moves, trigger=came)
    await shop.hears(track("ann", "came"))
    shop.clock.set(later(minutes=1))
    await shop.learns("ann", phone="+493012345678", timezone="Europe/Berlin")
    cheers_up(shop)

    assert await shop.runtime.catch_up() == 1

    (row,) = await shop.rows(profiles)
    assert row.traits == {"phone": "+493012345678", "timezone": "Europe/Berlin"}
    assert row.phone_timezone == "Europe/Berlin"


async def test_what_is_not_to_be_tried_yet_is_left_alone(shop: Shop) -> None:
    await shop.hears(track("ann", "signed_up"))
    (queued,) = await shop.rows(inbox)
    cheers_up(shop)

    shop.clock.set(instant(queued.try_at - 1))
    assert await shop.runtime.catch_up() == 0
    shop.clock.set(instant(queued.try_at))
    assert await shop.runtime.catch_up() == 1


async def test_whoever_waits_behind_is_no_reason_to_look(shop: Shop) -> None:
    """Else those in line would be looked at again and again, and nobody behind them."""
    await shop.hears(track("ann", "signed_up"), track("ann", "paid"))
    head, _ = await shop.rows(inbox)

    assert await shop.runtime.next_due() == instant(head.try_at)


async def test_many_who_fail_do_not_keep_others_waiting(database: Database) -> None:
    people = [f"u{i:03}" for i in range(CATCH_UP_BATCH)]
    shop = Shop(database, evaluator=Moody("zoe", *people))
    await shop.opens(*ASKS, wait_for("paid"))
    for name in ("signed_up", "paid"):
        await shop.hears(*(track(user_id, name) for user_id in people))
    shop.clock.set(later(minutes=1))
    await shop.runtime.catch_up()
    await shop.hears(track("zoe", "signed_up"))
    evaluator = shop.runtime.published.evaluator
    assert isinstance(evaluator, Moody)
    evaluator.failing.discard("zoe")

    zoe = next(row for row in await shop.rows(inbox) if row.user_id == "zoe")
    shop.clock.set(instant(zoe.try_at))
    await shop.runtime.catch_up()
    await shop.runtime.catch_up()

    assert await shop.where("zoe") == "waiting w"


async def test_an_event_that_is_never_heard_becomes_a_dead_letter(shop: Shop) -> None:
    await shop.hears(track("ann", "signed_up", "m1"))

    assert await shop.gives_up() == ATTEMPTS - 1

    (letter,) = await shop.letters()
    (event,) = await shop.rows(events)
    assert letter.letter_id == f"event:1:ann:{event.number}"
    assert (letter.kind, letter.code, letter.message) == ("event", "WALK_FAILED", DOWN)
    assert (letter.attempts, letter.first_at, letter.last_at) == (
        *(ATTEMPTS, START, shop.clock.now()),
    )
    assert letter.payload == {"name": "signed_up", "number": event.number, "changed": None}
    assert await shop.rows(inbox) == await shop.rows(instances) == []


async def test_a_dead_event_lets_the_next_ones_pass_and_can_be_tried_again(shop: Shop) -> None:
    await shop.hears(track("ann", "signed_up", "m1"))
    await shop.hears(track("ann", "signed_up", "m2"))
    await shop.gives_up()
    assert len(await shop.letters()) == 2
    cheers_up(shop)

    second, first = sorted(await shop.letters(), key=lambda letter: -letter.payload["number"])
    await retry(shop.database, 1, first.letter_id)
    assert await shop.runtime.catch_up() == 1
    assert [row.entered_by for row in await shop.rows(entries)] == ["m1"]

    await retry(shop.database, 1, second.letter_id)
    assert await shop.runtime.catch_up() == 1
    assert (await shop.told("ann"))[-1] == "refused t already_inside"
    assert await shop.letters() == []


async def test_a_step_without_an_end_is_a_dead_letter_of_its_event(shop: Shop) -> None:
    journey_id = await shop.forces(wait_for("paid", "n0"), *chain(101))
    await shop.hears(track("bob", "signed_up", "m1"))

    await shop.hears(track("bob", "paid", "m2"), track("bob", "signed_up", "m3"))

    (letter,) = await shop.letters()
    assert (letter.kind, letter.code, letter.node_id) == ("event", "STEP_LIMIT", "n100")
    assert (letter.journey_id, letter.version, letter.attempts) == (journey_id, 1, 1)
    assert await shop.where("bob", journey_id) == "waiting w"
    assert (await shop.told("bob", journey_id))[-2:] == [
        *("error n100 STEP_LIMIT", "refused t already_inside"),
    ]
    assert await shop.rows(inbox) == []

    await retry(shop.database, 1, letter.letter_id)
    assert await shop.runtime.catch_up() == 1
    assert [again.letter_id for again in await shop.letters()] == [letter.letter_id]
    assert await verify(shop.database) == []


async def test_an_entry_without_an_end_leaves_nobody_inside(shop: Shop) -> None:
    journey_id = await shop.forces(*chain(101))

    await shop.hears(track("bob", "signed_up", "m1"))

    (letter,) = await shop.letters()
    assert (letter.code, letter.node_id) == ("STEP_LIMIT", "n99")
    assert await shop.where("bob", journey_id) == ""
    assert await shop.told("bob", journey_id) == ["error n99 STEP_LIMIT"]


async def test_whoever_is_in_a_version_that_is_gone_hears_when_it_is_back(shop: Shop) -> None:
    await shop.hears(track("bob", "signed_up"))
    lost = await shop.loses(versions, 1)
    await shop.hears(track("bob", "paid", "m2"))
    assert await shop.where("bob") == "waiting w"

    shop.clock.set(later(seconds=5))
    await shop.runtime.catch_up()
    (letter,) = await shop.letters()
    assert (letter.code, letter.message) == (
        "GRAPH_MISSING",
        "The version 1 of journey 1 is not stored any more. "
        "Restore it from a backup and retry, or take its people out.",
    )

    await shop.restores(versions, lost)
    await retry(shop.database, 1, letter.letter_id)
    await shop.runtime.catch_up()
    assert await shop.where("bob") == "waiting v"


async def test_whoever_is_in_a_version_of_a_newer_release_waits_for_it(shop: Shop) -> None:
    await shop.hears(track("bob", "signed_up"))
    await shop.tampers(versions, 1, format=2)
    await shop.forgets()
    await shop.hears(track("bob", "paid", "m2"))

    for _ in range(2 * ATTEMPTS):
        shop.clock.set(shop.clock.now() + TOO_NEW_PAUSE)
        assert await shop.runtime.catch_up() == 0
    assert await shop.letters() == []

    await shop.tampers(versions, 1, format=1)
    await shop.forgets()
    shop.clock.set(shop.clock.now() + TOO_NEW_PAUSE)
    assert await shop.runtime.catch_up() == 1
    assert await shop.where("bob") == "waiting v"


# --- while the journey stands still

STOPS: Any = {"settings": {"exit_on": ["stop"]}}


async def queue_paid(shop: Shop, *then: Any, **fields: Any) -> None:
    """Ann waits for "paid" in journey 2, and it came when she could not be asked her age."""
    evaluator = shop.runtime.published.evaluator
    assert isinstance(evaluator, Moody)
    evaluator.failing.clear()
    came: Any = {"kind": "event", "event": "came"}
    then = then or (ask(ADULT, "v", "v"), wait_for("ok", own="v"))
    await shop.opens(wait_for("paid", "if"), *then, trigger=came, **STOPS, **fields)
    await shop.hears(track("ann", "came"))
    evaluator.failing.add("ann")
    await shop.hears(track("ann", "paid"))
    evaluator.failing.clear()
    assert [row.name for row in await shop.rows(inbox)] == ["paid"]


async def freeze(shop: Shop) -> None:
    await lifecycle.pause(shop.runtime, 1, 2, "freeze")


async def goes_on(shop: Shop) -> None:
    await lifecycle.resume(shop.runtime, 1, 2)
    shop.clock.set(shop.clock.now() + TimeDelta(minutes=20))
    await shop.runtime.catch_up()
    assert await shop.rows(inbox) == []


async def test_what_waits_in_the_bin_is_heard_when_its_journey_goes_on(shop: Shop) -> None:
    await queue_paid(shop)
    await freeze(shop)
    await lifecycle.delete(shop.runtime, 1, 2)

    for hours in (1, 2):
        shop.clock.set(later(hours=hours))
        assert await shop.runtime.catch_up() == 0
    (queued,) = await shop.rows(inbox)
    assert (queued.last_error, queued.attempts) == ("its journey stands still", 1)

    await lifecycle.restore(shop.runtime, 1, 2)
    await goes_on(shop)
    assert await shop.where("ann", 2) == "waiting v"
    assert await verify(shop.database) == []


async def test_a_letter_that_is_retried_in_the_bin_waits_there(shop: Shop) -> None:
    await queue_paid(shop)
    evaluator = shop.runtime.published.evaluator
    assert isinstance(evaluator, Moody)
    evaluator.failing.add("ann")
    await shop.gives_up()
    evaluator.failing.clear()
    (letter,) = await shop.letters()
    await freeze(shop)
    await lifecycle.delete(shop.runtime, 1, 2)

    await retry(shop.database, 1, letter.letter_id)
    assert await shop.runtime.catch_up() == 0

    await lifecycle.restore(shop.runtime, 1, 2)
    await goes_on(shop)
    assert await shop.where("ann", 2) == "waiting v"


async def test_what_waits_in_an_archived_journey_is_done_with(shop: Shop) -> None:
    await queue_paid(shop)
    await lifecycle.archive(shop.runtime, 1, 2)
    shop.clock.set(later(minutes=20))

    assert await shop.runtime.catch_up() == 1

    assert await shop.where("ann", 2) == "waiting w"


async def test_what_came_in_a_freeze_behind_another_event_wakes_nobody_later(shop: Shop) -> None:
    await queue_paid(shop)
    await freeze(shop)
    await shop.hears(track("ann", "ok"))
    _, behind = await shop.rows(inbox)
    assert behind.last_error == "came while it could only end a pass; waits for an earlier event"

    await goes_on(shop)

    assert await shop.where("ann", 2) == "waiting v"
    await shop.hears(track("ann", "ok"))
    assert await shop.where("ann", 2) == "completed v"
    assert await verify(shop.database) == []


async def test_what_came_in_a_freeze_behind_another_event_ends_the_pass_at_once(
    shop: Shop,
) -> None:
    await queue_paid(shop)
    await freeze(shop)

    await shop.hears(track("ann", "stop"))

    assert await shop.where("ann", 2) == "exited w"
    await goes_on(shop)
    assert await shop.where("ann", 2) == "exited w"
    assert await verify(shop.database) == []


async def test_what_fails_in_a_freeze_can_only_end_a_pass_however_often_it_is_tried(
    shop: Shop,
) -> None:
    """Also as a dead letter that somebody tries again when the journey has long gone on."""
    await queue_paid(shop)
    await goes_on(shop)
    await shop.tampers(versions, 2, format=2)
    await shop.forgets()
    await freeze(shop)
    await shop.hears(track("ann", "ok"))
    shop.clock.set(shop.clock.now() + TOO_NEW_PAUSE)
    assert await shop.runtime.catch_up() == 0
    lost = await shop.loses(versions, 2)
    shop.clock.set(shop.clock.now() + TOO_NEW_PAUSE)
    assert await shop.runtime.catch_up() == 1
    (letter,) = await shop.letters()
    assert letter.message.startswith("came while it could only end a pass; The version 1 of")

    await shop.restores(versions, [{**row, "format": 1} for row in lost])
    await shop.forgets()
    await lifecycle.resume(shop.runtime, 1, 2)
    await retry(shop.database, 1, letter.letter_id)
    assert await shop.runtime.catch_up() == 1
    assert await shop.where("ann", 2) == "waiting v"


async def test_what_came_in_a_pause_behind_another_event_takes_nobody_in_later(
    shop: Shop,
) -> None:
    """Nor would it have, had it been heard when it came."""
    await queue_paid(shop, ask(ADULT, "v", "v"), days(9, own="v"), entry_rule="every_time")
    await shop.hears(track("ann", "stop"))
    await lifecycle.pause(shop.runtime, 1, 2)
    await shop.hears(track("ann", "came"))
    behind = (await shop.rows(inbox))[-1]
    assert behind.last_error == "came while it could take nobody in; waits for an earlier event"

    await goes_on(shop)

    assert await shop.where("ann", 2) == "exited v"


async def test_what_came_while_somebody_was_held_wakes_them_not_later_either(shop: Shop) -> None:
    await queue_paid(shop)
    await shop.runtime.pause_person(1, 2, "ann")
    await shop.hears(track("ann", "ok"))
    _, behind = await shop.rows(inbox)
    assert behind.last_error == "came while it could wake nobody; waits for an earlier event"
    await shop.runtime.resume_person(1, 2, "ann")
    shop.clock.set(later(minutes=20))

    assert await shop.runtime.catch_up() == 2

    assert await shop.where("ann", 2) == "waiting v"


async def test_one_costs_as_many_statements_as_a_hundred_to_catch_up(shop: Shop) -> None:
    cheers_up(shop)
    evaluator = shop.runtime.published.evaluator
    assert isinstance(evaluator, Moody)
    sent = []
    for crowd in (["u0"], [f"u{i}" for i in range(1, 101)]):
        evaluator.failing.update(crowd)
        await shop.hears(*(track(user_id, "signed_up") for user_id in crowd))
        evaluator.failing.clear()
        shop.clock.set(shop.clock.now() + TimeDelta(minutes=20))
        with counted(shop.database) as texts:
            assert await shop.runtime.catch_up() == len(crowd)
        sent.append([text[:60] for text in texts])

    assert sent[0] == sent[1]


async def test_nothing_to_catch_up_with(shop: Shop) -> None:
    await shop.hears(track("bob", "signed_up"))

    assert await shop.runtime.catch_up() == 0
    assert len(await shop.rows(outbox)) == 1
