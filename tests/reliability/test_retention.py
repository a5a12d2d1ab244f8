"""Old rows go in small batches, and nothing that is still needed goes with them. Row C67."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import insert

from journeykit_engine.comparison import SHOWN_CHARACTERS
from journeykit_server.clock import microseconds
from journeykit_server.database import Database
from journeykit_server.delivery import Suppressed
from journeykit_server.retention import (
    BadRetention,
    Retention,
    from_settings,
    retain,
    retain_once,
)
from journeykit_server.subscriptions import history, subscribe, unsubscribe
from journeykit_server.tables import (
    deferred_sends,
    deliveries,
    events,
    inbox,
    messages,
    outbox,
    scans,
    subscription_changes,
    tasks,
)
from journeykit_server.tasks import complete_task
from journeykit_server.verify import verify
from tests.databases import open_database
from tests.engine.walking import ADULT, END, ask, days, node, send
from tests.server.shop import Moody, Shop, counted, later, track

ALL = Retention(*[30] * 6)
CALL = {"kind": "task", "task": "call", "title": "Ring"}


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """Not looked at by the laws of this folder: they ask for every message that ever was."""
    opened = open_database(database_url)
    yield opened
    assert await verify(opened) == []
    await opened.close()


@pytest.fixture
async def shop(database: Database) -> Shop:
    return Shop(database)


async def settle(shop: Shop) -> None:
    while sum((await shop.runtime.deliver())[:1]):
        pass


async def names(shop: Shop, table: Any, column: str = "user_id") -> list[str]:
    return sorted({getattr(row, column) for row in await shop.rows(table)})


async def test_c67_old_rows_go_in_small_batches_and_the_counters_stay_true(shop: Shop) -> None:
    await shop.opens(send("hello", "ring"), node("ring", "action", CALL, "end"), END)
    people = [f"u{i:03}" for i in range(60)]
    await shop.hears(*(track(user_id, "signed_up") for user_id in people))
    await settle(shop)
    await settle(shop)
    for user_id in people[:50]:
        await complete_task(shop.runtime, 1, f"j1.v1.ring.{user_id}.e1", "done")
    shop.clock.set(later(days=31))
    await shop.hears(*(track(user_id, "visited") for user_id in people[:5]))
    assert len(await shop.rows(messages)) == 120

    place, passes, deleted = None, 0, 0
    while passes == 0 or place:
        done = await retain_once(shop.database, ALL, place, limit=7)
        assert done.looked_at <= 7 and done.deleted <= 7
        place, passes, deleted = done.place, passes + 1, deleted + done.deleted

    assert passes > 50
    assert deleted == 60 + 50 + 120 + 60 + 50
    assert await names(shop, events, "name") == ["visited"]
    assert (await shop.rows(messages), await shop.rows(deliveries)) == ([], [])
    assert await names(shop, tasks, "status") == ["open"]
    assert await verify(shop.database) == []
    assert sum((await retain(shop.database, ALL)).values()) == 0


async def test_c67_what_is_on_its_way_never_goes(shop: Shop) -> None:
    """Undelivered, deferred, dead, unheard: however old it is."""
    await shop.opens(send("hello", "end"), END)
    await shop.hears(*(track(user_id, "signed_up") for user_id in ("ann", "bob", "cyd", "dan")))
    rows = {row.user_id: row._asdict() for row in await shop.rows(outbox)}
    put_off = rows["bob"]
    for name in ("try_at", "attempts", "lease_token", "last_error", "failed_at"):
        del put_off[name]
    put_off |= {"message_id": "later", "send_at": microseconds(later(days=90)), "reason": "quiet"}
    await shop.restores(deferred_sends, [put_off])
    shop.clock.set(later(days=60))
    before = len(await shop.rows(events))

    assert sum((await retain(shop.database, ALL)).values()) == before
    assert len(await shop.rows(outbox)) == 4
    assert len(await shop.rows(deferred_sends)) == 1

    await shop.runtime.deliver()
    assert await names(shop, messages) == ["ann", "bob", "cyd", "dan"]
    shop.clock.set(later(days=120))
    told = await retain(shop.database, ALL)
    assert (told["messages"], told["deliveries"]) == (4, 3)
    assert await names(shop, deliveries) == ["bob"]  # for whom something is still to come


async def test_c67_an_event_that_a_journey_has_still_to_hear_stays(database: Database) -> None:
    shop = Shop(database, evaluator=Moody("ann"))
    await shop.opens(ask(ADULT, "end", "end"), END)
    await shop.hears(track("ann", "signed_up"), track("bob", "signed_up"))
    assert len(await shop.rows(inbox)) == 1
    shop.clock.set(later(days=31))

    assert (await retain(database, ALL))["events"] == 1
    assert await names(shop, events) == ["ann"]

    await shop.gives_up()  # and as a dead letter it is kept for whoever tries again
    shop.clock.set(later(days=99))
    assert (await retain(database, ALL))["events"] == 0


async def test_c67_whoever_is_inside_keeps_everything(shop: Shop) -> None:
    await shop.opens(send("hello", "ring"), node("ring", "action", CALL, "w"), days(90), END)
    await shop.hears(track("ann", "visited"), track("ann", "signed_up"), track("bob", "visited"))
    await settle(shop)
    await settle(shop)
    await complete_task(shop.runtime, 1, "j1.v1.ring.ann.e1", "done")
    shop.clock.set(later(days=60))

    assert await retain(shop.database, ALL) == {
        "deliveries": 1,
        "events": 1,
        "messages": 0,
        "scans": 0,
        "subscription_changes": 0,
        "tasks": 0,
    }
    assert await names(shop, events) == ["ann"]

    await shop.wakes(later(days=90))
    told = await retain(shop.database, ALL)
    assert (told["events"], told["messages"], told["tasks"]) == (3, 2, 1)


class Withholds:
    async def deliver(self, items: Any) -> Any:
        return [Suppressed("no_consent") for _ in items]


async def test_c67_what_delivery_withheld_is_counted_and_stays(database: Database) -> None:
    shop = Shop(database, provider=Withholds())
    await shop.opens(send("hello", "end"), END)
    await shop.hears(track("ann", "signed_up"))
    await shop.runtime.deliver()
    shop.clock.set(later(days=60))

    await retain(database, ALL)

    assert await names(shop, messages, "state") == ["suppressed"]
    assert await verify(database) == []


async def test_c67_the_last_word_about_a_subscription_stays_with_its_proof(shop: Shop) -> None:
    for _ in range(3):
        await unsubscribe(shop.database, 1, "ann", "sms", source="page")
        await subscribe(shop.database, 1, "ann", "sms", source="page")
    shop.clock.set(later(days=60))
    await unsubscribe(shop.database, 1, "ann", "email", source="page")

    told = await retain(shop.database, Retention(subscription_changes=30))

    assert told == {"subscription_changes": 5}
    kept = await history(shop.database, 1, "ann")
    assert [(each.channel, each.version, each.state) for each in kept] == [
        *(("email", 1, "unsubscribed"), ("sms", 6, "subscribed"))
    ]
    assert len(await shop.rows(subscription_changes)) == 2


async def test_c67_looks_that_have_ended_go_by_their_age(shop: Shop) -> None:
    ended = [later(days=day) for day in (0, 1, 40)]
    counts = {"version": 1, "kind": "date", "is_first": False, "is_truncated": False}
    counts |= {"members": 1, "found": 1, "skipped": 0, "tenant_id": 1, "journey_id": 1}
    rows = [
        {**counts, "slot_at": microseconds(at), "started_at": 0, "ended_at": microseconds(at)}
        for at in ended
    ]
    await shop.database.run(lambda c: c.execute(insert(scans), rows))
    shop.clock.set(later(days=41))

    assert await retain(shop.database, Retention(scans=40)) == {"scans": 1}
    assert len(await shop.rows(scans)) == 2


async def test_c67_nothing_goes_that_nobody_gave_days_for(shop: Shop) -> None:
    await shop.opens(END)
    await shop.hears(track("ann", "signed_up"))
    shop.clock.set(later(days=9_999))

    with counted(shop.database) as sent:
        assert await retain(shop.database, Retention()) == {}

    assert sent == []
    assert len(await shop.rows(events)) == 1


@pytest.mark.parametrize(
    ("days", "told"),
    [
        (36_501, "more than 36500 days. Leave it out to keep the rows for ever."),
        (10**4_000, "more than 36500 days. Leave it out to keep the rows for ever."),
        (float("nan"), "nan; expected a whole number of days, or None."),
        (400.0, "400.0; expected a whole number of days, or None."),
        ("400", '"400"; expected a whole number of days, or None.'),
        (True, "true; expected a whole number of days, or None."),
    ],
)
async def test_c67_days_that_cannot_be_counted_are_refused(
    shop: Shop, days: Any, told: str
) -> None:
    with pytest.raises(BadRetention) as refused:
        await retain(shop.database, Retention(messages=days))
    assert str(refused.value) == f'The retention of "messages" is {told}'


async def test_c67_a_hundred_years_can_be_counted(shop: Shop) -> None:
    assert await retain(shop.database, Retention(messages=36_500)) == {"messages": 0}


@pytest.mark.parametrize("days", [29, 0, -1])
async def test_c67_what_may_come_again_must_be_known(shop: Shop, days: int) -> None:
    with pytest.raises(BadRetention) as refused:
        await retain(shop.database, Retention(events=days))
    assert str(refused.value) == (
        f'The retention of "events" is {days} days, less than 30. '
        "What comes again within them must be known as a repetition."
    )


async def test_c67_a_batch_costs_the_same_however_much_there_is(shop: Shop) -> None:
    costs = []
    for many in (5, 400):
        await shop.hears(*(track(f"{many}.{i}", "visited") for i in range(many)))
        shop.clock.set(later(days=31 + many))
        with counted(shop.database) as sent:
            assert (await retain(shop.database, Retention(events=30)))["events"] == many
        costs.append(len(sent))

    assert costs[0] == costs[1]


def test_c67_days_come_from_settings_and_looks_go_by_themselves() -> None:
    assert from_settings({}) == Retention(scans=90)
    told = {"JOURNEYKIT_KEEP_EVENTS_DAYS": " 400 ", "JOURNEYKIT_KEEP_SCANS_DAYS": "30"}
    assert from_settings(told) == Retention(events=400, scans=30)


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (
            "a year",
            'JOURNEYKIT_KEEP_TASKS_DAYS is "a year", which is no number of days. Write it as 400, '
            "or leave it out.",
        ),
        (
            "9" * 5_000,
            f'JOURNEYKIT_KEEP_TASKS_DAYS is "{"9" * SHOWN_CHARACTERS}…", which is no number of '
            "days. Write it as 400, or leave it out.",
        ),
        (
            "7",
            'The retention of "tasks" is 7 days, less than 30. What comes again within them must '
            "be known as a repetition.",
        ),
    ],
)
def test_c67_a_setting_that_is_no_number_of_days_is_refused(told: str, why: str) -> None:
    with pytest.raises(BadRetention) as refused:
        from_settings({"JOURNEYKIT_KEEP_TASKS_DAYS": told})
    assert str(refused.value) == why
