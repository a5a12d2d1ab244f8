"""Journeys that send people to each other come to an end, unless they take their time."""

from __future__ import annotations

import pytest

from journeykit_server.database import Database
from journeykit_server.hops import MOST_HOPS
from journeykit_server.tables import entries, events, outbox
from tests.engine.journeys import Value
from tests.engine.walking import END, days
from tests.server.shop import API, Shop, counted, later, track


def jump(journey_id: int, own: str = "j") -> Value:
    on = {"kind": "enter_journey", "journey_id": journey_id}
    return {"id": own, "kind": "action", "action": on, "next": "end"}


@pytest.fixture
async def shop(database: Database) -> Shop:
    """The first journey sends people to the second, which sends them back."""
    shop = Shop(database)
    await shop.opens(END, trigger=API)
    await shop.opens(jump(1), END, trigger=API, entry_rule="every_time")
    await shop.changes(1, jump(2), END, trigger=API, entry_rule="every_time")
    return shop


async def delivers_all(shop: Shop) -> int:
    turns = 0
    while any(await shop.runtime.deliver()):
        turns += 1
        assert turns < 50, "they go round for ever"
    return turns


async def test_a_circle_ends_after_ten_hops_as_a_dead_letter(shop: Shop) -> None:
    await shop.runtime.enter(1, 1, ["ann"])

    await delivers_all(shop)

    passes = [row.journey_id for row in await shop.rows(entries)]
    assert len(passes) == MOST_HOPS + 1 == 11
    (letter,) = await shop.letters()
    assert (letter.code, letter.journey_id, letter.node_id) == ("HOPS", 1, "j")
    assert letter.message == (
        'The person "ann" was sent from journey to journey 10 times without a day\'s rest in any '
        'of them, so the node "j" of journey 1 does not send them on. '
        "Put a wait into the circle, or take the jump out."
    )


async def test_each_hop_is_numbered(shop: Shop) -> None:
    await shop.runtime.enter(1, 1, ["ann"])
    await delivers_all(shop)

    sent = [row.properties for row in await shop.rows(events) if row.source == "journey"]
    assert [given["hops"] for given in sent] == list(range(1, 11))
    assert [given["journey_id"] for given in sent] == [2, 1] * 5


async def test_a_pass_of_a_day_begins_the_count_anew(shop: Shop) -> None:
    await shop.changes(1, days(1, "j"), jump(2), END, trigger=API, entry_rule="every_time")
    await shop.runtime.enter(1, 1, ["ann"])

    for day in range(1, 16):
        await delivers_all(shop)
        await shop.wakes(later(days=day))
    await delivers_all(shop)

    assert len([row for row in await shop.rows(entries) if row.journey_id == 2]) == 15
    assert await shop.letters() == []


async def test_who_has_gone_too_far_holds_nobody_else_up(shop: Shop) -> None:
    await shop.opens(jump(2), END)
    await shop.runtime.enter(1, 1, ["ann"])
    for _ in range(MOST_HOPS):
        await shop.runtime.deliver()
    await shop.hears(track("bob", "signed_up"))

    settled = await shop.runtime.deliver()

    assert (settled.delivered, settled.dead) == (1, 1)
    assert await shop.where("bob", 2) == "completed end"


async def test_who_cannot_be_sent_on_holds_nobody_else_up(shop: Shop) -> None:
    bad = await shop.opens(jump(2), END)
    await shop.opens(jump(2, "k"), END, trigger={"kind": "event", "event": "came"})
    await shop.hears(track("zoe", "signed_up"), track("bob", "came"))
    await shop.tampers(outbox, bad, payload='{"kind":"enter_journey","journey_id":"\\u0000"}')

    settled = await shop.runtime.deliver()

    assert (settled.delivered, settled.dead) == (1, 1)
    assert await shop.where("bob", 2) != ""
    (letter,) = await shop.letters()
    assert (letter.code, letter.user_id) == ("BAD_ENTRY", "zoe")
    assert letter.message == (
        'What the node "j" says about whom it sends on cannot be stored: '
        "A text at properties.journey_id holds the character U+0000."
    )


async def test_one_costs_as_many_statements_as_a_hundred(shop: Shop) -> None:
    await shop.runtime.deliver()  # once a day it also clears away
    await shop.runtime.enter(1, 1, ["ann"])
    with counted(shop.database) as of_one:
        await shop.runtime.deliver()
    await delivers_all(shop)
    await shop.runtime.enter(1, 1, [f"u{i}" for i in range(100)])
    with counted(shop.database) as of_many:
        await shop.runtime.deliver()

    assert [text[:60] for text in of_many] == [text[:60] for text in of_one]
