"""The counters say what the journal says, or the recount tells where they differ."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import delete, update

from journeykit_server import verify as verifying
from journeykit_server.database import Database
from journeykit_server.publishing import NodeStats, stats
from journeykit_server.tables import instances, node_stats
from journeykit_server.verify import verify
from tests.engine.walking import END, days, halves, send, wait_for
from tests.server.shop import Shop, later, track

LOOP = (
    halves("s", "a", "b", percent=30),
    send("a", "w"),
    send("b", "w"),
    wait_for("paid", "end", timeout="1d", on_timeout="s"),
    END,
)


@pytest.fixture
async def shop(database: Database) -> Shop:
    shop = Shop(database)
    await shop.opens(*LOOP, entry_rule="every_time", settings={"exit_on": ["left"]})
    return shop


async def spoil(database: Database, statement: Any) -> None:
    await database.run(lambda connection: connection.execute(statement))


async def test_an_empty_store_is_sound(database: Database) -> None:
    assert await verify(database) == []


async def test_a_counter_that_differs_is_named(shop: Shop) -> None:
    await shop.hears(track("ann", "signed_up"), track("bob", "signed_up"))
    of_w = node_stats.c.node_id == "w"
    await spoil(shop.database, update(node_stats).where(of_w).values(entered=5, exited=1))

    assert await verify(shop.database) == [
        'tenant 1 journey 1 version 1 node "w": entered is 5, the journal says 2',
        'tenant 1 journey 1 version 1 node "w": exited is 1, the journal says 0',
    ]


async def test_a_counter_that_is_missing_is_named(shop: Shop) -> None:
    await shop.hears(track("ann", "signed_up"))
    await spoil(shop.database, delete(node_stats).where(node_stats.c.node_id == "t"))

    assert await verify(shop.database) == [
        'tenant 1 journey 1 version 1 node "t": entered is 0, the journal says 1',
    ]


async def test_people_who_stand_elsewhere_are_named(shop: Shop) -> None:
    await shop.hears(track("ann", "signed_up"))
    await spoil(shop.database, update(instances).values(current_node="v"))

    assert await verify(shop.database) == [
        'tenant 1 journey 1 version 1 node "v": waiting is 1, the journal says 0',
        'tenant 1 journey 1 version 1 node "w": waiting is 0, the journal says 1',
    ]


async def test_one_tenant_can_be_looked_at_alone(shop: Shop) -> None:
    await shop.opens(END, tenant_id=2)
    await shop.hears(track("ann", "signed_up"))
    await shop.hears(track("ann", "signed_up"), tenant_id=2)
    spoilt = update(node_stats).where(node_stats.c.tenant_id == 2).values(suppressed=9)
    await spoil(shop.database, spoilt)

    assert await verify(shop.database, 1) == []
    assert len(await verify(shop.database, 2)) == len(await verify(shop.database)) == 2


async def test_the_counters_of_several_workers_add_up(shop: Shop) -> None:
    await shop.hears(track("ann", "signed_up"))
    other = Shop(shop.database, shard=3)
    await other.hears(track("bob", "signed_up"))

    assert {row.shard for row in await shop.rows(node_stats)} == {0, 3}
    assert await verify(shop.database) == []
    assert (await stats(shop.database, 1, 1))["w"] == NodeStats(entered=2, waiting=2)


async def test_texts_with_strange_ends_of_line_are_read(shop: Shop) -> None:
    """JSON lets them stand as they are; only one of them ends a record."""
    odd = "\u2028 \u2029 \x85 \r \n"
    await shop.opens(send("a", "w"), days(1))

    await shop.hears(track("ann", "signed_up", "m1" + odd, note=odd))

    assert await verify(shop.database) == []


async def test_a_long_journal_is_read_in_pages(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "PAGE", 3)
    await shop.hears(*(track(f"u{i}", "signed_up") for i in range(4)))
    await shop.hears(*(track(f"u{i}", "paid") for i in range(3)))

    assert await verify(shop.database) == []


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_happens_the_counters_are_right(shop: Shop, seed: int) -> None:
    chance = shop.database.chance
    for _ in range(seed):
        chance.fraction()
    names = ("signed_up", "signed_up", "paid", "left", "opt_out", "nothing")
    for hour in range(0, 96, 8):
        await shop.wakes(later(hours=hour))
        people = [f"u{int(chance.fraction() * 6)}" for _ in range(8)]
        happened = [(user_id, names[int(chance.fraction() * 6)]) for user_id in people]
        await shop.hears(*(track(*one) for one in happened))
        if chance.fraction() < 0.3:
            await shop.runtime.eject(1, 1, people[0])

    assert await verify(shop.database) == []
    counted = await stats(shop.database, 1, 1)
    standing = [row for row in await shop.rows(instances) if row.status == "waiting"]
    assert sum(node.waiting for node in counted.values()) == len(standing)
