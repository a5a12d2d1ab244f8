"""What is published is what people walk, and each event finds the journeys it matters to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import Instant

from journeykit_engine.signal import Event
from journeykit_server.database import Database
from journeykit_server.published import (
    RELOAD_SECONDS,
    Key,
    Published,
    Unwalkable,
    Walkable,
    stand_in,
)
from journeykit_server.runtime import Runtime
from journeykit_server.tables import journeys, versions
from tests.databases import START
from tests.engine.walking import ADULT, END, ask, days, send, wait_for
from tests.server.shop import API, Shop, counted, later, track


@pytest.fixture
async def shop(database: Database) -> Shop:
    return Shop(database)


def heard(shop: Shop, name: str, tenant_id: int = 1, **properties: Any) -> list[int]:
    """The ids of the journeys that such an event can matter to."""
    event = Event(name, START, "", properties)
    found = shop.runtime.published.hearing(tenant_id, event)
    return [walkable.program.journey_id for walkable in found]


def learnt(shop: Shop, tenant_id: int = 1) -> list[int]:
    event = Event("", START, "", {}, {"plan": "pro"})
    found = shop.runtime.published.hearing(tenant_id, event)
    return [walkable.program.journey_id for walkable in found]


async def test_an_event_finds_the_journeys_of_its_tenant_in_the_order_of_their_ids(
    shop: Shop,
) -> None:
    await shop.opens(wait_for("paid"))
    await shop.opens(END, trigger={"kind": "event", "event": "paid"})
    await shop.opens(END, settings={"exit_on": ["paid"]})
    await shop.opens(END)
    await shop.opens(wait_for("paid"), tenant_id=2)

    assert heard(shop, "paid") == [1, 2, 3]
    assert heard(shop, "signed_up") == [1, 3, 4]
    assert heard(shop, "paid", 2) == [1]
    assert heard(shop, "paid", 3) == heard(shop, "nothing") == []


async def test_an_opt_out_matters_to_every_journey(shop: Shop) -> None:
    await shop.opens(END)
    await shop.opens(days(1))

    assert heard(shop, "opt_out") == [1, 2]


async def test_a_report_finds_whoever_waits_for_any_of_its_names(shop: Shop) -> None:
    await shop.opens(wait_for("paid"))
    await shop.opens(wait_for("inbound_email"))
    await shop.opens(wait_for("reply:email"))
    await shop.opens(wait_for("reply"))

    assert heard(shop, "inbound_email") == [2, 3, 4]
    assert {3, 4} <= set(heard(shop, "reply:email"))


async def test_an_identify_finds_whoever_enters_or_leaves_by_a_trait(shop: Shop) -> None:
    await shop.opens(ask(ADULT, "end", "end"), END)
    await shop.opens(END, trigger={"kind": "attribute_changed", "trait": "plan"})
    await shop.opens(END, exit_criteria=ADULT)

    assert learnt(shop) == [2, 3]
    assert learnt(shop, 2) == []


async def test_the_reserved_event_finds_the_journey_it_names(shop: Shop) -> None:
    await shop.opens(END, trigger=API)
    await shop.opens(END, trigger=API)

    reserved = "journey_enter_requested"
    assert heard(shop, reserved, journey_id=2) == [2]
    assert heard(shop, reserved, journey_id=9) == heard(shop, reserved, journey_id="2") == []
    assert heard(shop, reserved, 2, journey_id=2) == []


async def test_what_is_published_elsewhere_is_known_after_half_a_minute(shop: Shop) -> None:
    """Here it is known at once."""
    other = Shop(shop.database)
    await other.runtime.reload()
    await shop.opens(END)
    assert heard(shop, "signed_up") == [1]

    shop.clock.set(later(seconds=RELOAD_SECONDS - 1))
    await other.hears(track("ann", "signed_up"))
    assert await shop.where("ann") == ""

    shop.clock.set(later(seconds=RELOAD_SECONDS))
    await other.hears(track("bob", "signed_up"))
    assert await shop.where("bob") == "completed end"


@pytest.mark.parametrize(
    ("status", "inside"),
    [("paused", "completed w"), ("archived", "waiting w"), ("deleted", "waiting w")],
)
async def test_only_a_published_journey_takes_people_in(
    shop: Shop, status: str, inside: str
) -> None:
    """Those inside stay; in a journey that is put away they stand still."""
    await shop.opens(wait_for("paid"))
    await shop.hears(track("ann", "signed_up"))
    await shop.tampers(journeys, 1, status=status)
    await shop.runtime.reload()

    await shop.hears(track("bob", "signed_up"), track("ann", "paid"))

    assert await shop.where("bob") == ""
    assert await shop.where("ann") == inside


async def test_a_version_is_read_once(shop: Shop) -> None:
    await shop.opens(days(1))
    first = shop.runtime.published.current[1, 1]

    with counted(shop.database) as sent:
        await shop.runtime.reload()

    assert shop.runtime.published.current[1, 1] is first
    assert [text for text in sent if "document" in text] == []


async def test_a_version_that_is_no_longer_published_stays_for_those_inside(shop: Shop) -> None:
    await shop.opens(days(1))
    await shop.changes(1, days(2))

    known = shop.runtime.published.known
    assert sorted(known) == [(1, 1, 1), (1, 1, 2)]
    assert shop.runtime.published.current[1, 1].program.version == 2


async def test_what_cannot_be_walked_is_looked_at_again(shop: Shop) -> None:
    await shop.opens(days(1))
    await shop.tampers(versions, 1, format=2)
    await shop.forgets()
    found = shop.runtime.published.known[1, 1, 1]
    assert isinstance(found, Unwalkable) and found.for_now
    assert heard(shop, "signed_up") == []

    await shop.tampers(versions, 1, format=1)
    await shop.runtime.reload()

    assert isinstance(shop.runtime.published.known[1, 1, 1], Walkable)
    assert heard(shop, "signed_up") == [1]


class Overtaken(Published):
    """While it reads a version, somebody else in the same process has read it too."""

    async def _read(self, connection: AsyncConnection, keys: set[Key]) -> None:
        await super()._read(connection, keys)
        self.first = dict(self.known)
        await super()._read(connection, keys)


async def test_a_version_that_two_read_at_once_is_one_program(shop: Shop) -> None:
    """Each counts what it tells, and a batch names no counter twice."""
    await shop.opens(days(1))
    published = Overtaken()

    await shop.database.read(lambda connection: published.load(connection, [(1, 1, 1)]))

    assert published.known[1, 1, 1] is published.first[1, 1, 1]


class Looking(Published):
    """It notes what others find in it while it reads."""

    async def _read(self, connection: AsyncConnection, keys: set[Key]) -> None:
        self.found = list(self.known)
        await super()._read(connection, keys)


async def test_what_cannot_be_walked_stays_known_while_it_is_looked_at_again(shop: Shop) -> None:
    """A unit of work that runs beside has looked it up."""
    await shop.opens(days(1))
    await shop.tampers(versions, 1, document="{")
    published = shop.runtime.published = Looking()
    await shop.runtime.reload()

    await shop.runtime.reload()

    assert published.found == [(1, 1, 1)]


async def test_many_who_find_the_versions_stale_read_them_once(shop: Shop) -> None:
    await shop.opens(days(1))
    shop.clock.set(later(seconds=RELOAD_SECONDS))

    with counted(shop.database) as sent:
        await asyncio.gather(*(shop.hears(track(f"u{i}", "seen")) for i in range(5)))

    assert len([text for text in sent if "FROM journeys" in text]) == 1


async def test_one_version_that_cannot_be_walked_does_not_hide_the_others(shop: Shop) -> None:
    await shop.opens(days(1))
    await shop.opens(days(1))
    await shop.tampers(versions, 1, document="{")
    await shop.forgets()

    await shop.hears(track("ann", "signed_up"))

    found = shop.runtime.published.known[1, 1, 1]
    assert isinstance(found, Unwalkable) and found.code == "CONFIG"
    assert await shop.where("ann", 2) == "waiting w"


async def test_a_document_that_was_changed_is_not_walked(shop: Shop) -> None:
    await shop.opens(days(1))
    spoilt = update(versions).values(document=versions.c.document + " ")
    await shop.database.run(lambda connection: connection.execute(spoilt))
    await shop.forgets()

    found = shop.runtime.published.known[1, 1, 1]
    assert isinstance(found, Unwalkable) and found.code == "GRAPH_HASH" and not found.for_now


async def test_the_accounts_zone_of_the_day_of_publishing_counts(shop: Shop) -> None:
    nine: Any = {"id": "w", "kind": "wait", "wait": {"kind": "until_time", "hour": 9}}
    await shop.opens(nine, zone="Asia/Tehran")

    await shop.hears(track("ann", "signed_up"))

    assert await shop.due("ann") == Instant("2026-06-02T05:30:00Z")


async def test_without_an_evaluator_a_condition_takes_its_other_way(database: Database) -> None:
    shop = Shop(database, evaluator=None)
    await shop.opens(ask({"root": {}}, "yes", "no"), send("yes"), send("no"))

    await shop.hears(track("ann", "signed_up"))

    assert await shop.where("ann") == "completed no"


async def test_a_set_that_was_never_read_is_stale(database: Database) -> None:
    published = Published()
    assert published.is_stale(0)

    await database.read(lambda connection: published.reload(connection, 100))

    assert [published.is_stale(now) for now in (100, 129.9, 130, 99)] == [
        *(False, False, True, True),
    ]


def test_a_stand_in_can_be_left() -> None:
    """It stands for a version that is gone, and has its name."""
    ready = stand_in(1, 2, 3).program

    assert (ready.tenant_id, ready.journey_id, ready.version) == (1, 2, 3)


async def test_a_runtime_reads_what_is_published_before_its_first_event(database: Database) -> None:
    await Shop(database).opens(END)

    await Runtime(database).ingest(1, [track("ann", "signed_up")])

    assert await Shop(database).where("ann") == "completed end"
