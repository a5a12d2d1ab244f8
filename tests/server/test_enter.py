"""Somebody is taken in by a call, and taken out by one."""

from __future__ import annotations

import pytest

from journeykit_server import lifecycle
from journeykit_server.clock import instant
from journeykit_server.database import Database
from journeykit_server.incoming import BadEvent
from journeykit_server.runtime import NotEnterable
from journeykit_server.tables import entries, events, instances, journal, outbox, timers, versions
from journeykit_server.verify import verify
from journeykit_server.waking import Woken
from tests.engine.walking import ADULT, END, days, send, wait_for
from tests.server.shop import API, Shop, counted, later, track

CROWD = [f"u{i}" for i in range(500)]


@pytest.fixture
async def shop(database: Database) -> Shop:
    shop = Shop(database)
    await shop.opens(send("a", "w"), days(1, "end"), END, trigger=API, entry_rule="every_time")
    return shop


async def inside(shop: Shop) -> list[str]:
    return [row.user_id for row in await shop.rows(instances)]


# --- in


async def test_people_are_taken_in_by_a_call(shop: Shop) -> None:
    assert await shop.runtime.enter(1, 1, ["ann", "bob"]) == 2

    assert await shop.where("ann") == await shop.where("bob") == "waiting w"
    (event, _) = await shop.rows(events)
    assert (event.kind, event.source, event.name) == ("enter", "enter", "journey_enter_requested")
    assert event.event_id == f"jenter-1-ann-{int(shop.clock.now().timestamp())}"
    entered = {row.user_id: row.entered_by for row in await shop.rows(entries)}
    assert entered["ann"] == event.event_id


async def test_blanks_and_repeats_are_dropped(shop: Shop) -> None:
    assert await shop.runtime.enter(1, 1, ["u1", "u1", " ", "u2", "", "u2"]) == 2

    assert await inside(shop) == ["u1", "u2"]


@pytest.mark.parametrize("nobody", [[], [""], [" ", "\t"]])
async def test_somebody_must_be_named(shop: Shop, nobody: list[str]) -> None:
    with pytest.raises(BadEvent) as refused:
        await shop.runtime.enter(1, 1, nobody)

    assert str(refused.value) == "user_id or user_ids is required"


async def test_five_hundred_pass_and_one_more_does_not(shop: Shop) -> None:
    with pytest.raises(BadEvent) as refused:
        await shop.runtime.enter(1, 1, [*CROWD, "zoe"])
    assert str(refused.value) == "at most 500 people per call"
    assert await shop.rows(events) == []

    assert await shop.runtime.enter(1, 1, CROWD) == 500
    assert len(await inside(shop)) == 500


async def test_five_hundred_and_one_with_a_repeat_are_five_hundred(shop: Shop) -> None:
    assert await shop.runtime.enter(1, 1, [*CROWD, "u7"]) == 500


async def test_a_journey_that_is_not_published_takes_nobody_in(shop: Shop) -> None:
    told = "The journey 2 has no published version, so nobody can enter it. Publish it first."
    with pytest.raises(NotEnterable) as refused:
        await shop.runtime.enter(1, 2, ["ann"])
    assert str(refused.value) == told

    with pytest.raises(NotEnterable, match="The journey 1 has no published version"):
        await shop.runtime.enter(2, 1, ["ann"])


async def test_a_deleted_journey_takes_nobody_in(shop: Shop) -> None:
    """Neither in a process that has not heard of it, nor in one that begins only now."""
    other = Shop(shop.database)
    await other.runtime.reload()
    await lifecycle.pause(shop.runtime, 1, 1)
    await lifecycle.delete(shop.runtime, 1, 1)
    told = "The journey 1 is deleted, so nobody can enter it. Restore it first."

    for late in (shop, other, Shop(shop.database)):
        with pytest.raises(NotEnterable) as refused:
            await late.runtime.enter(1, 1, ["ann"])
        assert str(refused.value) == told
    assert await shop.rows(events) == []

    await lifecycle.restore(shop.runtime, 1, 1)
    await lifecycle.resume(shop.runtime, 1, 1)
    await shop.runtime.enter(1, 1, ["ann"])
    assert await inside(shop) == ["ann"]


async def test_a_journey_that_was_just_resumed_elsewhere_takes_people_in(shop: Shop) -> None:
    await lifecycle.pause(shop.runtime, 1, 1)
    other = Shop(shop.database)
    await other.runtime.reload()
    await lifecycle.resume(shop.runtime, 1, 1)

    assert await other.runtime.enter(1, 1, ["ann"]) == 1

    assert await inside(shop) == ["ann"]


async def test_a_journey_with_another_trigger_takes_nobody_in(shop: Shop) -> None:
    journey_id = await shop.opens(END)

    with pytest.raises(NotEnterable) as refused:
        await shop.runtime.enter(1, journey_id, ["ann"])

    assert str(refused.value) == (
        "The journey 2 does not begin with an api trigger, so nobody can be entered by a call. "
        "Send the event that it listens for, or give it an api trigger."
    )
    assert await shop.rows(events) == []


async def test_nobody_comes_in_by_an_event(shop: Shop) -> None:
    await shop.hears(track("ann", "signed_up"))

    assert await inside(shop) == []


async def test_asking_twice_in_one_second_is_asking_once(shop: Shop) -> None:
    await shop.runtime.enter(1, 1, ["ann"])
    shop.clock.set(later(seconds=0.9))
    assert await shop.runtime.enter(1, 1, ["ann"]) == 1
    assert len(await shop.rows(events)) == 1

    shop.clock.set(later(seconds=1))
    await shop.runtime.enter(1, 1, ["ann"])
    assert (await shop.told("ann"))[-1] == "refused t already_inside"


async def test_the_rules_of_the_journey_apply(shop: Shop) -> None:
    await shop.opens(days(1), trigger=API, exit_criteria=ADULT)
    await shop.learns("ann", age=30)

    await shop.runtime.enter(1, 2, ["ann", "bob"])

    assert await shop.where("ann", 2) == "exited t"
    assert await shop.where("bob", 2) == "waiting w"


async def test_people_with_the_longest_ids_can_be_taken_in(shop: Shop) -> None:
    longest = chr(0x1F600) * 200
    await shop.runtime.enter(1, 1, [longest])
    await shop.runtime.deliver()

    assert await shop.where(longest) == "waiting w"
    with pytest.raises(BadEvent) as refused:
        await shop.runtime.enter(1, 1, [longest + "!"])
    assert str(refused.value) == "Event 1: its user id has 201 characters, more than 200."


async def test_one_costs_as_many_statements_as_five_hundred(shop: Shop) -> None:
    with counted(shop.database) as of_one:
        await shop.runtime.enter(1, 1, ["zoe"])
    with counted(shop.database) as of_many:
        await shop.runtime.enter(1, 1, CROWD)

    assert len(of_many) == len(of_one)


async def test_one_journey_takes_people_into_another(shop: Shop) -> None:
    """Through the outbox, once, however often it is offered."""
    on = {"kind": "enter_journey", "journey_id": 1}
    jump = {"id": "j", "kind": "action", "action": on, "next": "end"}
    await shop.opens(jump, END)
    await shop.hears(track("ann", "signed_up"))
    assert await shop.where("ann", 1) == ""

    await shop.runtime.deliver()

    assert await shop.where("ann", 1) == "waiting w"
    (entry,) = [row for row in await shop.rows(entries) if row.journey_id == 1]
    assert entry.entered_by == "j2.v1.j.ann.e1"


# --- out


async def test_somebody_is_taken_out(shop: Shop) -> None:
    await shop.runtime.enter(1, 1, ["ann", "bob"])
    shop.clock.set(later(hours=1))

    assert await shop.runtime.eject(1, 1, "ann")

    assert await shop.where("ann") == "exited w"
    assert await shop.where("bob") == "waiting w"
    assert await shop.due("ann") is None
    assert (await shop.told("ann"))[-2:] == ["woke w exit", "exited w ejected"]
    entry, _ = await shop.rows(entries)
    assert (entry.exit_reason, instant(entry.ended_at)) == ("ejected", later(hours=1))
    assert await shop.wakes(later(days=1)) == Woken(1, 1)
    assert await verify(shop.database) == []


async def test_who_is_not_inside_is_not_taken_out(shop: Shop) -> None:
    assert not await shop.runtime.eject(1, 1, "nobody")
    await shop.runtime.enter(1, 1, ["ann"])
    assert not await shop.runtime.eject(1, 2, "ann")
    assert not await shop.runtime.eject(2, 1, "ann")
    assert await shop.runtime.eject(1, 1, "ann")

    assert not await shop.runtime.eject(1, 1, "ann")
    assert len(await shop.rows(journal)) == 2


async def test_who_was_taken_out_may_come_again(shop: Shop) -> None:
    await shop.runtime.enter(1, 1, ["ann"])
    await shop.runtime.eject(1, 1, "ann")
    shop.clock.set(later(minutes=1))

    await shop.runtime.enter(1, 1, ["ann"])

    assert [row.entry_count for row in await shop.rows(entries)] == [1, 2]
    assert [row.message_id for row in await shop.rows(outbox)] == [
        *("j1.v1.a.ann.e1", "j1.v1.a.ann.e2"),
    ]


async def test_the_paused_can_be_taken_out(shop: Shop) -> None:
    await shop.runtime.enter(1, 1, ["ann"])
    await shop.pauses(1)

    assert await shop.runtime.eject(1, 1, "ann")

    assert await shop.where("ann") == "exited w"
    assert await shop.rows(timers) == []


async def test_people_of_a_version_that_is_gone_can_be_taken_out(shop: Shop) -> None:
    """Their letter is answered by that."""
    await shop.runtime.enter(1, 1, ["ann"])
    await shop.loses(versions, 1)
    await shop.wakes(later(days=1))
    assert [letter.code for letter in await shop.letters()] == ["GRAPH_MISSING"]

    assert await shop.runtime.eject(1, 1, "ann")

    assert await shop.where("ann") == "exited w"
    assert await shop.letters() == []
    assert await shop.runtime.next_due() is not None  # the message of the first step
    assert await verify(shop.database) == []


async def test_a_clock_that_went_back_ends_no_pass_before_its_last_step(shop: Shop) -> None:
    await shop.opens(wait_for("paid"))
    await shop.hears(track("ann", "signed_up"))
    shop.clock.set(later(hours=-3))

    await shop.runtime.eject(1, 2, "ann")

    (entry,) = await shop.rows(entries)
    assert instant(entry.ended_at) == later()
