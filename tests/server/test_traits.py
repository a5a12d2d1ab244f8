"""What somebody is like: the youngest value of each trait, and what follows from it."""

from __future__ import annotations

import orjson
import pytest
from whenever import Instant

from journeykit_server.clock import instant
from journeykit_server.database import Database
from tests.databases import START
from tests.engine.walking import END, send
from tests.server.shop import Shop, later, track


@pytest.fixture
async def shop(database: Database) -> Shop:
    return Shop(database)


async def test_an_identify_writes_the_traits(shop: Shop) -> None:
    await shop.learns("ann", plan="pro", age=30)
    shop.clock.set(later(hours=1))
    await shop.learns("ann", plan="free", tags=["a", None])

    row = await shop.profile("ann")
    assert row.traits == {"plan": "free", "age": 30, "tags": ["a", None]}
    hours = {name: instant(at) for name, at in orjson.loads(row.written_at).items()}
    assert hours == {"plan": later(hours=1), "age": START, "tags": later(hours=1)}


async def test_an_identify_older_than_the_stored_value_does_not_overwrite_it(shop: Shop) -> None:
    await shop.learns("ann", plan="pro")
    await shop.learns("ann", plan="free", age=30, occurred_at=later(hours=-1))

    assert (await shop.profile("ann")).traits == {"plan": "pro", "age": 30}


async def test_a_clock_that_runs_ahead_does_not_make_a_value_last(shop: Shop) -> None:
    await shop.learns("ann", plan="pro", occurred_at=later(days=9))
    shop.clock.set(later(hours=1))
    await shop.learns("ann", plan="free")

    assert (await shop.profile("ann")).traits == {"plan": "free"}


async def test_writing_the_value_that_is_stored_changes_nothing(shop: Shop) -> None:
    trigger = {"kind": "attribute_changed", "trait": "plan", "value": "pro"}
    await shop.opens(send("a", "end"), END, trigger=trigger, entry_rule="every_time")

    await shop.learns("ann", plan="pro")
    await shop.learns("ann", plan="pro")
    await shop.learns("ann", plan="free")
    await shop.learns("ann", plan="pro", age=30)

    assert await shop.effects() == ["j1.v1.a.ann.e1", "j1.v1.a.ann.e2"]


async def test_a_zone_moves_the_clock_of_its_person(shop: Shop) -> None:
    """Nine o'clock is asked for; it is noon in Berlin when the traits are first known."""
    nine = {"id": "w", "kind": "wait", "wait": {"kind": "until_time", "hour": 9}, "next": "end"}
    await shop.opens(nine, END)

    await shop.learns("ann", timezone="America/New_York")
    await shop.learns("bob", timezone="Europe/Berlin")
    await shop.learns("bob", timezone="Asia/Tehran", occurred_at=later(hours=-1))
    await shop.hears(
        track("ann", "signed_up"), track("bob", "signed_up"), track("eve", "signed_up")
    )

    assert await shop.due("ann") == Instant("2026-06-01T13:00:00Z")
    assert await shop.due("bob") == Instant("2026-06-02T07:00:00Z")
    assert await shop.due("eve") == Instant("2026-06-02T09:00:00Z")


async def test_a_number_says_when_a_text_message_may_come(shop: Shop) -> None:
    """In Tehran it is half past nine in the evening, in Berlin eight."""
    shop.clock.set(Instant("2026-06-01T18:00:00Z"))
    await shop.opens(send("a", "end", channel="sms", template_id=1), END)

    await shop.learns("ann", phone="+982112345678")
    await shop.hears(track("ann", "signed_up"), track("bob", "signed_up"))
    assert (await shop.profile("ann")).phone_timezone == "Asia/Tehran"
    assert await shop.where("ann") == "waiting a"
    assert await shop.where("bob") == "completed end"

    await shop.learns("ann", phone="nobody knows")
    assert (await shop.profile("ann")).phone_timezone is None


async def test_a_clock_that_went_back_loses_no_trait(shop: Shop) -> None:
    """Where the sender says no time of their own, the order of arrival counts."""
    await shop.learns("ann", plan="free")
    shop.clock.set(later(hours=-1))

    await shop.learns("ann", plan="pro")

    assert (await shop.profile("ann")).traits == {"plan": "pro"}
