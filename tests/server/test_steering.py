"""One person in one journey is held, let go on, and told about."""

from __future__ import annotations

import pytest

from journeykit_server import steering
from journeykit_server.database import Database
from journeykit_server.incoming import BadEvent, Receipt
from journeykit_server.people import where_is
from journeykit_server.steering import NotInside
from journeykit_server.tables import events, instances, journal, timers, versions
from journeykit_server.verify import verify
from journeykit_server.waking import Woken
from tests.engine.walking import days, send, wait_for
from tests.server.shop import Shop, later, track


@pytest.fixture
async def shop(database: Database) -> Shop:
    """A day's rest, then a message; "stop" ends it."""
    shop = Shop(database)
    await shop.opens(
        days(1, "a"), send("a", "x"), wait_for("paid", own="x"), settings={"exit_on": ["stop"]}
    )
    await shop.hears(track("ann", "signed_up"), track("bob", "signed_up"))
    return shop


async def revs(shop: Shop, user_id: str = "ann") -> list[int]:
    return [row.rev for row in await shop.rows(journal) if row.user_id == user_id]


# --- held


async def test_who_is_held_stays_while_the_others_walk_on(shop: Shop) -> None:
    assert await shop.runtime.pause_person(1, 1, "ann")

    assert await shop.wakes(later(days=2)) == Woken(1, 1)
    assert await shop.where("ann") == "waiting w"
    assert await shop.where("bob") == "waiting x"
    assert [row.user_id for row in await shop.rows(timers)] == []
    assert (await shop.told("ann"))[-1] == "paused w"
    assert await revs(shop) == [1, 2]
    assert await verify(shop.database) == []


async def test_where_somebody_is_says_since_when_they_are_held(shop: Shop) -> None:
    shop.clock.set(later(hours=1))
    await shop.runtime.pause_person(1, 1, "ann")

    (place,) = await where_is(shop.database, 1, "ann")

    assert (place.status, place.node, place.paused_at) == ("waiting", "w", later(hours=1))
    await shop.runtime.resume_person(1, 1, "ann")
    (place,) = await where_is(shop.database, 1, "ann")
    assert place.paused_at is None


async def test_a_time_that_passed_meanwhile_is_taken_once_who_was_held_goes_on(shop: Shop) -> None:
    await shop.runtime.pause_person(1, 1, "ann")
    shop.clock.set(later(days=3))
    await shop.runtime.wake()

    assert await shop.runtime.resume_person(1, 1, "ann")

    assert await shop.due("ann") == later(days=1)
    assert await shop.runtime.next_due() is not None
    assert await shop.runtime.wake() == Woken(1, 1)
    assert await shop.runtime.wake() == Woken()
    assert await shop.where("ann") == "waiting x"
    assert (await shop.told("ann"))[-7:] == [
        *("paused w", "resumed w", "woke w timeout", "visited a", "effect a send"),
        *("visited x", "waiting x"),
    ]
    assert await revs(shop) == [1, 2, 3, 4]
    assert await shop.effects() == ["j1.v1.a.bob.e1", "j1.v1.a.ann.e1"]


async def test_a_time_that_is_still_to_come_is_kept(shop: Shop) -> None:
    await shop.runtime.pause_person(1, 1, "ann")
    shop.clock.set(later(hours=2))
    await shop.runtime.resume_person(1, 1, "ann")

    assert await shop.due("ann") == later(days=1)
    assert await shop.wakes(later(hours=23)) == Woken()
    assert await shop.wakes(later(days=1)) == Woken(2, 2)


async def test_an_event_wakes_nobody_who_is_held_and_may_end_their_pass(shop: Shop) -> None:
    await shop.wakes(later(days=1))
    await shop.runtime.pause_person(1, 1, "ann")

    await shop.hears(track("ann", "paid"))
    assert await shop.where("ann") == "waiting x"
    await shop.hears(track("ann", "stop"))
    assert await shop.where("ann") == "exited x"
    assert not await shop.runtime.resume_person(1, 1, "ann")
    assert await verify(shop.database) == []


async def test_an_event_after_the_passed_time_finds_it_taken(shop: Shop) -> None:
    await shop.runtime.pause_person(1, 1, "ann")
    shop.clock.set(later(days=2))
    await shop.runtime.resume_person(1, 1, "ann")
    shop.clock.set(later(days=2, seconds=1))

    await shop.hears(track("ann", "paid"))

    assert await shop.where("ann") == "completed x"
    assert "effect a send" in await shop.told("ann")


async def test_asking_twice_changes_nothing(shop: Shop) -> None:
    assert await shop.runtime.pause_person(1, 1, "ann")
    assert await shop.runtime.pause_person(1, 1, "ann")
    assert await revs(shop) == [1, 2]

    assert await shop.runtime.resume_person(1, 1, "ann")
    assert await shop.runtime.resume_person(1, 1, "ann")
    assert await revs(shop) == [1, 2, 3]


async def test_who_is_not_inside_cannot_be_held(shop: Shop) -> None:
    for call in (shop.runtime.pause_person, shop.runtime.resume_person):
        assert not await call(1, 1, "nobody")
        assert not await call(1, 2, "ann")
        assert not await call(2, 1, "ann")
    await shop.runtime.eject(1, 1, "ann")
    assert not await shop.runtime.pause_person(1, 1, "ann")


async def test_people_of_a_version_that_is_gone_can_be_held(shop: Shop) -> None:
    await shop.loses(versions, 1)

    assert await shop.runtime.pause_person(1, 1, "ann")
    assert await shop.runtime.resume_person(1, 1, "ann")

    assert (await shop.wakes(later(days=1))).dead == 2


async def test_a_clock_that_went_back_pauses_nobody_before_their_last_step(shop: Shop) -> None:
    shop.clock.set(later(hours=-5))
    await shop.runtime.pause_person(1, 1, "ann")

    ann = next(row for row in await shop.rows(instances) if row.user_id == "ann")
    assert ann.paused_at == ann.updated_at == ann.entered_at


# --- told about


async def test_a_signal_wakes_who_waits_for_it(shop: Shop) -> None:
    await shop.wakes(later(days=1))

    receipt = await steering.signal(shop.runtime, 1, 1, "ann", "paid", {"amount": 5}, "s1")

    assert receipt == Receipt(accepted=1)
    assert await shop.where("ann") == "completed x"
    (sent,) = [row for row in await shop.rows(events) if row.name == "paid"]
    assert (sent.source, sent.event_id, sent.properties) == ("signal", "s1", {"amount": 5})


async def test_a_signal_that_comes_twice_is_dropped_though_its_person_has_left(shop: Shop) -> None:
    await shop.wakes(later(days=1))
    await steering.signal(shop.runtime, 1, 1, "ann", "paid", {}, "s1")

    again = await steering.signal(shop.runtime, 1, 1, "ann", "paid", {}, "s1")
    other = await steering.signal(shop.runtime, 1, 1, "ann", "paid", {"amount": 1}, "s1")

    assert again == Receipt(duplicates=1)
    assert other == Receipt(conflicts=("s1",))


async def test_a_signal_without_an_id_is_each_time_another(shop: Shop) -> None:
    for _ in range(2):
        await steering.signal(shop.runtime, 1, 1, "ann", "seen")

    sent = [row.event_id for row in await shop.rows(events) if row.name == "seen"]
    assert len(set(sent)) == 2
    assert all(sent)


async def test_a_signal_about_somebody_who_is_not_inside_is_refused(shop: Shop) -> None:
    await shop.runtime.eject(1, 1, "bob")
    for user_id, journey_id in (("nobody", 1), ("bob", 1), ("ann", 2)):
        with pytest.raises(NotInside) as refused:
            await steering.signal(shop.runtime, 1, journey_id, user_id, "paid", {}, "s1")
        assert str(refused.value) == (
            f'The person "{user_id}" is not inside journey "{journey_id}", so there is nobody to '
            "tell it about. See where they are, or send an ordinary event."
        )
    assert {row.name for row in await shop.rows(events)} == {"signed_up"}


async def test_an_id_that_was_used_for_somebody_else_takes_nobody_for_inside(shop: Shop) -> None:
    await steering.signal(shop.runtime, 1, 1, "ann", "seen", {}, "s1")

    with pytest.raises(NotInside):
        await steering.signal(shop.runtime, 1, 1, "nobody", "seen", {}, "s1")


async def test_a_signal_must_be_an_event_that_can_be_stored(shop: Shop) -> None:
    with pytest.raises(BadEvent) as refused:
        await steering.signal(shop.runtime, 1, 1, "ann", "")

    assert str(refused.value) == "The signal cannot be stored: it has no name. Say what happened."


async def test_a_signal_for_somebody_who_is_held_wakes_nobody(shop: Shop) -> None:
    await shop.wakes(later(days=1))
    await shop.runtime.pause_person(1, 1, "ann")

    await steering.signal(shop.runtime, 1, 1, "ann", "paid")

    assert await shop.where("ann") == "waiting x"
