"""A journey is paused in three ways, resumed, archived, put into the bin and taken out again."""

from __future__ import annotations

from typing import Any

import pytest

from journeykit_server import lifecycle
from journeykit_server.database import Database
from journeykit_server.letters import skip
from journeykit_server.lifecycle import BIN_DAYS, Mode, WrongState
from journeykit_server.people import where_is
from journeykit_server.publishing import (
    NoSuchJourney,
    NotPublishable,
    list_journeys,
    publish,
    save_draft,
)
from journeykit_server.runtime import NotEnterable
from journeykit_server.tables import (
    HELD_BUCKET,
    NEVER,
    events,
    journal,
    journeys,
    messages,
    outbox,
    timers,
)
from journeykit_server.verify import verify
from journeykit_server.waking import Woken
from tests.engine.journeys import journey
from tests.engine.walking import END, days, send, wait_for
from tests.server.post import Post, message
from tests.server.shop import API, Shop, counted, later, track


@pytest.fixture
async def shop(database: Database) -> Shop:
    """A day's rest, a message, then "paid" is waited for; "stop" ends it."""
    shop = Shop(database)
    await shop.opens(
        days(1, "a"), send("a", "x"), wait_for("paid", own="x"), settings={"exit_on": ["stop"]}
    )
    await shop.hears(track("ann", "signed_up"), track("bob", "signed_up"))
    return shop


async def pause(shop: Shop, mode: Mode, journey_id: int = 1) -> None:
    assert await lifecycle.pause(shop.runtime, 1, journey_id, mode) == "paused"


async def resume(shop: Shop) -> None:
    assert await lifecycle.resume(shop.runtime, 1, 1) == "published"


async def state(shop: Shop) -> tuple[str, str]:
    (row,) = await shop.rows(journeys)
    return row.status, row.pause_mode


# --- nobody enters


@pytest.mark.parametrize("mode", ["entries", "freeze", "drain"])
async def test_a_paused_journey_takes_nobody_in_and_the_event_is_kept(
    shop: Shop, mode: Mode
) -> None:
    await pause(shop, mode)

    await shop.hears(track("zoe", "signed_up"))

    assert await shop.where("zoe") == ""
    assert "zoe" in {row.user_id for row in await shop.rows(events)}
    assert await state(shop) == ("paused", mode)
    await resume(shop)
    assert await shop.where("zoe") == ""
    await shop.hears(track("zoe", "signed_up"))
    assert await shop.where("zoe") == "waiting w"


async def test_a_process_that_has_not_heard_of_the_pause_takes_nobody_in_either(
    shop: Shop,
) -> None:
    other = Shop(shop.database)
    await other.runtime.reload()

    await pause(shop, "entries")
    await other.hears(track("zoe", "signed_up"))

    assert await shop.where("zoe") == ""


async def test_entries_only_is_what_a_pause_is_if_nothing_is_said(shop: Shop) -> None:
    await lifecycle.pause(shop.runtime, 1, 1)

    assert await state(shop) == ("paused", "entries")
    assert await shop.wakes(later(days=1)) == Woken(2, 2)
    await shop.hears(track("ann", "paid"))
    assert await shop.where("ann") == "completed x"


async def test_a_call_for_a_paused_journey_is_refused(shop: Shop) -> None:
    await shop.opens(days(1), trigger=API)
    await pause(shop, "entries", 2)
    for status, told in (
        ("paused", "The journey 2 is paused, so nobody can enter it. Resume it first."),
        (
            "archived",
            "The journey 2 is archived, so nobody can enter it. Publish a new one for them.",
        ),
    ):
        if status == "archived":
            await lifecycle.archive(shop.runtime, 1, 2)
        with pytest.raises(NotEnterable) as refused:
            await shop.runtime.enter(1, 2, ["zoe"])
        assert str(refused.value) == told
    assert await shop.where("zoe", 2) == ""


async def test_a_paused_journey_is_not_entered_from_another_one(shop: Shop) -> None:
    await shop.opens(END, trigger=API)
    on = {"kind": "enter_journey", "journey_id": 2}
    jump = {"id": "j", "kind": "action", "action": on, "next": "end"}
    await shop.opens(jump, END, trigger={"kind": "event", "event": "go"})
    await pause(shop, "entries", 2)

    await shop.hears(track("zoe", "go"))
    await shop.runtime.deliver()

    assert await shop.where("zoe", 2) == ""
    assert [row.state for row in await shop.rows(messages)] == ["delivered"]


# --- frozen


async def test_in_a_frozen_journey_everybody_stands_still(shop: Shop) -> None:
    await pause(shop, "freeze")

    assert await shop.wakes(later(days=1)) == Woken(claimed=2, held=2)
    assert await shop.runtime.wake() == Woken()

    assert await shop.where("ann") == "waiting w"
    assert await shop.effects() == []
    assert await shop.due("ann") == later(days=1)
    held = await shop.rows(timers)
    assert {(row.bucket, row.try_at, row.attempts) for row in held} == {(HELD_BUCKET, NEVER, 0)}
    assert await shop.runtime.next_due() is None
    (place,) = await where_is(shop.database, 1, "ann")
    assert (place.wake_at, place.stuck) == (later(days=1), None)
    assert await verify(shop.database) == []


async def test_what_came_due_meanwhile_is_done_once_in_its_order(shop: Shop) -> None:
    shop.clock.set(later(hours=1))
    await shop.hears(track("zoe", "signed_up"))
    await pause(shop, "freeze")
    await shop.wakes(later(days=3))

    await resume(shop)

    minutes = {int(due.timestamp()) // 60 for due in (later(days=1), later(days=1, hours=1))}
    assert {row.bucket for row in await shop.rows(timers)} == minutes
    assert await shop.due("zoe") == later(days=1, hours=1)
    assert await shop.runtime.wake() == Woken(3, 3)
    assert await shop.runtime.wake() == Woken()
    assert sorted(await shop.effects()) == [f"j1.v1.a.{who}.e1" for who in ("ann", "bob", "zoe")]
    assert {row.cause for row in await shop.rows(journal) if row.rev == 2} == {""}
    assert await verify(shop.database) == []


async def test_the_longest_due_are_taken_first(shop: Shop) -> None:
    for minute, user_id in enumerate(["u3", "u2", "u1"], 1):
        shop.clock.set(later(minutes=minute))
        await shop.hears(track(user_id, "signed_up"))
    await pause(shop, "freeze")
    await shop.wakes(later(days=2))

    await resume(shop)

    assert (await shop.runtime.wake(2)).advanced == 2
    assert [await shop.where(user_id) for user_id in ("ann", "bob")] == ["waiting x"] * 2
    for user_id in ("u3", "u2", "u1"):
        assert await shop.where(user_id) == "waiting w"
        await shop.runtime.wake(1)
        assert await shop.where(user_id) == "waiting x"


async def test_what_is_not_due_yet_keeps_its_time(shop: Shop) -> None:
    await pause(shop, "freeze")
    await shop.wakes(later(hours=5))
    await resume(shop)

    assert await shop.wakes(later(hours=23)) == Woken()
    assert await shop.wakes(later(days=1)) == Woken(2, 2)


async def test_an_event_may_end_a_pass_in_a_frozen_journey_and_wakes_nobody(shop: Shop) -> None:
    await shop.wakes(later(days=1))
    await shop.runtime.deliver()
    await pause(shop, "freeze")

    await shop.hears(track("ann", "paid"), track("bob", "stop"))

    assert await shop.where("ann") == "waiting x"
    assert await shop.where("bob") == "exited x"
    await resume(shop)
    assert await shop.where("ann") == "waiting x"
    await shop.hears(track("ann", "paid"))
    assert await shop.where("ann") == "completed x"
    assert await verify(shop.database) == []


async def test_who_leaves_a_frozen_journey_takes_their_held_timer_along(shop: Shop) -> None:
    await pause(shop, "freeze")
    await shop.wakes(later(days=2))

    await shop.hears(track("ann", "stop"))
    await shop.runtime.eject(1, 1, "bob")

    assert await shop.rows(timers) == []
    await resume(shop)
    assert await shop.effects() == []


async def test_who_is_let_go_on_in_a_frozen_journey_waits_for_the_journey(shop: Shop) -> None:
    await shop.runtime.pause_person(1, 1, "ann")
    await pause(shop, "freeze")
    shop.clock.set(later(days=2))

    await shop.runtime.resume_person(1, 1, "ann")

    assert await shop.runtime.wake() == Woken(claimed=2, held=2)
    assert await shop.where("ann") == "waiting w"
    await resume(shop)
    assert await shop.runtime.wake() == Woken(2, 2)


async def test_a_frozen_journey_that_only_takes_nobody_in_moves_again(shop: Shop) -> None:
    await pause(shop, "freeze")
    await shop.wakes(later(days=1))

    await pause(shop, "entries")

    assert await shop.runtime.wake() == Woken(2, 2)
    assert await state(shop) == ("paused", "entries")


async def test_messages_of_a_frozen_journey_go_when_it_goes_on(shop: Shop) -> None:
    await shop.wakes(later(days=1))
    await pause(shop, "freeze")
    await shop.runtime.deliver()
    assert {row.try_at for row in await shop.rows(outbox)} == {NEVER}

    await resume(shop)

    assert (await shop.runtime.deliver()).delivered == 2
    assert await shop.rows(outbox) == []


async def test_one_timer_of_a_frozen_journey_costs_as_many_statements_as_five_hundred(
    shop: Shop,
) -> None:
    await pause(shop, "freeze")
    with counted(shop.database) as of_two:
        assert (await shop.wakes(later(days=1))).held == 2
    await resume(shop)
    await shop.hears(*(track(f"u{i}", "signed_up") for i in range(500)))
    await pause(shop, "freeze")
    await shop.runtime.wake()
    with counted(shop.database) as of_many:
        assert (await shop.wakes(later(days=2))).held == 500

    assert len(of_many) == len(of_two)


async def test_held_timers_are_taken_back_in_pages(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "TIMERS_A_PAGE", 2)
    await shop.hears(*(track(f"u{i}", "signed_up") for i in range(5)))
    await pause(shop, "freeze")
    await shop.wakes(later(days=1))

    with counted(shop.database) as sent:
        await resume(shop)

    assert len([text for text in sent if "UPDATE timers" in text]) == 5  # the last finds none
    assert await shop.runtime.wake() == Woken(7, 7)


async def test_what_a_process_that_died_did_not_take_back_is_taken_back(shop: Shop) -> None:
    await pause(shop, "freeze")
    await shop.wakes(later(days=1))
    await shop.tampers(journeys, 1, status="published", pause_mode="")
    assert await shop.runtime.wake() == Woken()

    assert await lifecycle.tidy_once(shop.runtime) == 2

    assert await shop.runtime.wake() == Woken(2, 2)
    assert await lifecycle.tidy_once(shop.runtime) == 0


async def test_a_frozen_journey_is_left_as_it_is_by_whoever_tidies(shop: Shop) -> None:
    await pause(shop, "freeze")
    await shop.wakes(later(days=1))

    assert await lifecycle.tidy_once(shop.runtime) == 0
    assert {row.bucket for row in await shop.rows(timers)} == {HELD_BUCKET}


# --- drained


async def test_a_drained_journey_archives_itself_when_the_last_has_left(shop: Shop) -> None:
    await pause(shop, "drain")
    await shop.wakes(later(days=1))
    await shop.hears(track("ann", "paid"))
    assert await lifecycle.drained_once(shop.runtime) == 0

    await shop.hears(track("bob", "paid"))
    assert await lifecycle.drained_once(shop.runtime) == 0  # their messages are still to go
    assert (await shop.runtime.deliver()).delivered == 2

    assert await lifecycle.tidy_once(shop.runtime) == 1
    assert await state(shop) == ("archived", "")
    assert await lifecycle.drained_once(shop.runtime) == 0


async def test_a_drained_journey_waits_for_its_dead_letters(database: Database) -> None:
    """In an archived one a retry could only withhold them."""
    shop = Post(database)
    journey_id = await shop.opens(message("a", "end", template_id=9), END)
    await shop.writes()
    await shop.learns("ann", email="ann@x.org")
    await shop.hears(track("ann", "signed_up"))
    assert (await shop.runtime.deliver()).dead == 1
    await pause(shop, "drain", journey_id)

    assert await lifecycle.drained_once(shop.runtime) == 0
    (letter,) = await shop.letters()
    await skip(database, 1, letter.letter_id)
    assert await lifecycle.drained_once(shop.runtime) == 1


async def test_a_drained_journey_that_is_busy_is_locked_by_nobody(shop: Shop) -> None:
    await pause(shop, "drain")

    with counted(shop.database) as sent:
        assert await lifecycle.drained_once(shop.runtime) == 0

    locks = ("advisory", "FOR UPDATE", "BEGIN IMMEDIATE")
    assert [text for text in sent if any(lock in text for lock in locks)] == []


async def test_only_a_journey_that_is_to_be_drained_is(shop: Shop) -> None:
    await shop.runtime.eject(1, 1, "ann")
    await shop.runtime.eject(1, 1, "bob")
    await pause(shop, "entries")

    assert await lifecycle.drained_once(shop.runtime) == 0
    assert await state(shop) == ("paused", "entries")


# --- archived, deleted, restored


async def test_in_an_archived_journey_everybody_stands_still_for_good(shop: Shop) -> None:
    assert await lifecycle.archive(shop.runtime, 1, 1) == "archived"

    assert await shop.wakes(later(days=1)) == Woken(claimed=2, held=2)
    await shop.hears(track("zoe", "signed_up"), track("bob", "stop"))

    assert await shop.where("ann") == "waiting w"
    assert await shop.where("bob") == "exited w"
    assert await shop.where("zoe") == ""


async def test_what_was_on_its_way_from_an_archived_journey_is_withheld(shop: Shop) -> None:
    """Also what had been held because the journey stood still."""
    await shop.wakes(later(days=1))
    await pause(shop, "freeze")
    await shop.runtime.deliver()

    await lifecycle.archive(shop.runtime, 1, 1)
    await shop.runtime.deliver()

    assert [(row.state, row.reason) for row in await shop.rows(messages)] == [
        ("suppressed", "archived")
    ] * 2
    assert await shop.rows(outbox) == []


async def test_a_deleted_journey_is_gone_from_the_list_and_comes_back(shop: Shop) -> None:
    await pause(shop, "freeze")
    await shop.wakes(later(days=1))
    assert await lifecycle.delete(shop.runtime, 1, 1) == "deleted"

    assert await list_journeys(shop.database, 1) == []
    shop.clock.set(later(days=1 + BIN_DAYS) - (later(seconds=1) - later()))
    assert await lifecycle.restore(shop.runtime, 1, 1) == "paused"

    assert await state(shop) == ("paused", "freeze")
    (row,) = await shop.rows(journeys)
    assert (row.status_before, row.deleted_at) == ("", None)
    assert {row.bucket for row in await shop.rows(timers)} == {HELD_BUCKET}
    await resume(shop)
    assert await shop.runtime.wake() == Woken(2, 2)


@pytest.mark.parametrize("before", ["draft", "paused", "archived"])
async def test_what_is_restored_is_what_was_deleted(database: Database, before: str) -> None:
    shop = Shop(database)
    await save_draft(database, 1, journey(days(1)))
    if before != "draft":
        await shop.runtime.publish(1, 1)
        await pause(shop, "drain")
    if before == "archived":
        await lifecycle.archive(shop.runtime, 1, 1)
    (was,) = await shop.rows(journeys)
    await lifecycle.delete(shop.runtime, 1, 1)

    assert await lifecycle.restore(shop.runtime, 1, 1) == before
    (row,) = await shop.rows(journeys)

    assert row == was
    assert await lifecycle.restore(shop.runtime, 1, 1) == before


async def test_after_thirty_days_nothing_comes_back(shop: Shop) -> None:
    await lifecycle.archive(shop.runtime, 1, 1)
    await lifecycle.delete(shop.runtime, 1, 1)
    shop.clock.set(later(days=BIN_DAYS))

    with pytest.raises(NoSuchJourney) as refused:
        await lifecycle.restore(shop.runtime, 1, 1)

    assert str(refused.value) == 'There is no journey "1".'


async def test_deleting_twice_is_deleting_what_is_not_there(shop: Shop) -> None:
    await pause(shop, "entries")
    await lifecycle.delete(shop.runtime, 1, 1)

    for journey_id in (1, 2, 0, 2**70):
        with pytest.raises(NoSuchJourney):
            await lifecycle.delete(shop.runtime, 1, journey_id)


# --- what cannot be done


async def reach(shop: Shop, status: str) -> None:
    await save_draft(shop.database, 1, journey(days(1)))
    if status != "draft":
        await publish(shop.database, 1, 1)
    if status in ("archived", "deleted"):
        await lifecycle.archive(shop.runtime, 1, 1)
    if status == "deleted":
        await lifecycle.delete(shop.runtime, 1, 1)


WRONG = {
    ("pause", "draft"): "is a draft and cannot be paused. Nobody is inside; publish it first.",
    ("pause", "archived"): "is archived and cannot be paused. It stands still for good.",
    ("pause", "deleted"): "is deleted and cannot be paused. Restore it first.",
    ("resume", "draft"): "is a draft and cannot be resumed. Publish it first.",
    ("resume", "archived"): "is archived and cannot be resumed. "
    "Save what it does as a new journey and publish that.",
    ("resume", "deleted"): "is deleted and cannot be resumed. Restore it first.",
    ("archive", "draft"): "is a draft and cannot be archived. Nobody is inside; delete it.",
    ("archive", "deleted"): "is deleted and cannot be archived. Restore it first.",
    ("delete", "published"): "is running and cannot be deleted. Pause or archive it first.",
}


@pytest.mark.parametrize(("action", "status"), WRONG)
async def test_a_journey_in_another_state_stays_as_it_is(
    database: Database, action: str, status: str
) -> None:
    shop = Shop(database)
    await reach(shop, status)
    call: Any = getattr(lifecycle, action)

    with pytest.raises(WrongState) as refused:
        await call(shop.runtime, 1, 1)

    assert str(refused.value) == f'Journey "1" {WRONG[action, status]}'
    assert (await state(shop))[0] == status


async def test_asking_for_what_is_so_already_is_no_error(shop: Shop) -> None:
    await resume(shop)
    await pause(shop, "freeze")
    (was,) = await shop.rows(journeys)
    shop.clock.set(later(minutes=1))

    await pause(shop, "freeze")

    assert await shop.rows(journeys) == [was]
    for _ in range(2):
        assert await lifecycle.archive(shop.runtime, 1, 1) == "archived"


async def test_a_journey_of_somebody_else_is_none(shop: Shop) -> None:
    for action in ("pause", "resume", "archive", "delete", "restore"):
        call: Any = getattr(lifecycle, action)
        with pytest.raises(NoSuchJourney, match='There is no journey "1"'):
            await call(shop.runtime, 2, 1)


async def test_a_mode_must_be_one_of_three(shop: Shop) -> None:
    with pytest.raises(ValueError, match="mode") as refused:
        await lifecycle.pause(shop.runtime, 1, 1, "stop")  # type: ignore[arg-type]

    assert str(refused.value) == 'The mode "stop" is not known. Write entries, freeze or drain.'


async def test_a_paused_journey_is_published_for_later(shop: Shop) -> None:
    await pause(shop, "entries")
    await shop.changes(1, END)

    await shop.hears(track("zoe", "signed_up"))
    assert await shop.where("zoe") == ""
    await resume(shop)
    await shop.hears(track("zoe", "signed_up"))
    assert await shop.where("zoe") == "completed end"

    await lifecycle.archive(shop.runtime, 1, 1)
    with pytest.raises(NotPublishable):
        await shop.changes(1, days(1))
