"""What lay in the bin for long enough is gone, page by page, and what happened stays told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Table, event, insert

from journeykit_server import lifecycle
from journeykit_server.bin import purge
from journeykit_server.database import Database
from journeykit_server.lifecycle import BIN_DAYS
from journeykit_server.publishing import save_draft
from journeykit_server.tables import (
    audience,
    drafts,
    entries,
    inbox,
    instances,
    journeys,
    messages,
    node_stats,
    timers,
    versions,
)
from journeykit_server.verify import verify
from tests.engine.journeys import journey
from tests.engine.walking import END, days, send, wait_for
from tests.server.post import Post, message
from tests.server.shop import Shop, later, track


@pytest.fixture
async def shop(database: Database) -> Shop:
    """A day's rest, a message, then "paid" is waited for."""
    shop = Shop(database)
    await shop.opens(days(1, "a"), send("a", "x"), wait_for("paid", own="x"))
    await shop.hears(track("ann", "signed_up"), track("bob", "signed_up"))
    return shop


async def test_the_bin_is_emptied_of_what_lay_there_for_thirty_days(shop: Shop) -> None:
    await shop.wakes(later(days=1))
    await lifecycle.pause(shop.runtime, 1, 1, "freeze")
    await lifecycle.delete(shop.runtime, 1, 1)
    await shop.runtime.deliver()
    shop.clock.set(later(days=BIN_DAYS))
    assert await purge(shop.runtime) == 0

    shop.clock.set(later(days=BIN_DAYS + 1))
    assert await purge(shop.runtime) == 1
    assert await purge(shop.runtime) == 0

    for table in (journeys, drafts, versions, timers):
        assert await shop.rows(table) == []
    assert {row.exit_reason for row in await shop.rows(instances)} == {"journey_deleted"}
    assert {row.exit_reason for row in await shop.rows(entries)} == {"journey_deleted"}
    assert (await shop.told("ann"))[-2:] == ["woke x exit", "exited x journey_deleted"]
    assert {row.reason for row in await shop.rows(messages)} == {"deleted"}
    assert await verify(shop.database) == []
    draft = await save_draft(shop.database, 1, journey(days(1)))
    assert draft.journey_id == 2


async def keep(shop: Shop, table: Table, rows: list[dict[str, Any]]) -> None:
    query = insert(table).values(rows)
    await shop.database.run(lambda connection: connection.execute(query))


@contextmanager
def deletions(database: Database, *tables: str) -> Iterator[Mapping[int, int]]:
    """How many rows of these tables each transaction deletes meanwhile."""
    engine, many, done = database.engine.sync_engine, Counter[int](), [0]

    def commit(_: Any) -> None:
        done[0] += 1

    def count(_: Any, cursor: Any, statement: str, *more: Any) -> None:
        if statement.startswith(tuple(f"DELETE FROM {table} " for table in tables)):
            many[done[0]] += cursor.rowcount

    heard = (("commit", commit), ("after_cursor_execute", count))
    for name, listener in heard:
        event.listen(engine, name, listener)
    try:
        yield many
    finally:
        for name, listener in heard:
            event.remove(engine, name, listener)


async def test_what_belongs_to_a_journey_goes_in_pages(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that no deletion is longer than a statement may take, or holds everybody up."""
    monkeypatch.setattr("journeykit_server.bin.ROWS_A_PAGE", 2)
    people = [{"tenant_id": 1, "journey_id": 1, "user_id": f"u{i}"} for i in range(5)]
    waiting = {"number": 7, "name": "paid", "try_at": 0, "attempts": 1, "failed_at": 0}
    waits = [{**person, **waiting, "last_error": "down"} for person in people]
    for table, rows in ((audience, people), (inbox, waits)):
        await keep(shop, table, rows)
    await lifecycle.archive(shop.runtime, 1, 1)
    await lifecycle.delete(shop.runtime, 1, 1)
    shop.clock.set(later(days=BIN_DAYS))

    with deletions(shop.database, "audience", "inbox") as deleted:
        assert await purge(shop.runtime) == 1

    assert await shop.rows(audience) == await shop.rows(inbox) == []
    assert [many for many in deleted.values() if many] == [2, 2, 1, 2, 2, 1]


async def test_what_became_of_dead_effects_is_told_when_their_journey_goes(
    database: Database,
) -> None:
    shop = Post(database)
    journey_id = await shop.opens(message("a", "end", template_id=9), END)
    await shop.writes()
    for user_id in ("ann", "bob"):
        await shop.learns(user_id, email="ann@x.org")
        await shop.hears(track(user_id, "signed_up"))
    assert (await shop.runtime.deliver()).dead == 2
    await lifecycle.archive(shop.runtime, 1, journey_id)
    await lifecycle.delete(shop.runtime, 1, journey_id)
    shop.clock.set(later(days=BIN_DAYS))

    assert await purge(shop.runtime) == 1

    assert await shop.letters() == []
    assert [(row.user_id, row.state, row.reason) for row in await shop.rows(messages)] == [
        ("ann", "suppressed", "deleted"),
        ("bob", "suppressed", "deleted"),
    ]
    counts = {row.node_id: row.suppressed for row in await shop.rows(node_stats)}
    assert counts["a"] == 2
    assert await verify(database) == []


async def test_people_are_led_out_page_by_page(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("journeykit_server.bin.PEOPLE_A_PAGE", 2)
    await shop.hears(*(track(f"u{i}", "signed_up") for i in range(3)))
    await lifecycle.archive(shop.runtime, 1, 1)
    await lifecycle.delete(shop.runtime, 1, 1)
    shop.clock.set(later(days=BIN_DAYS))

    assert await purge(shop.runtime) == 1

    assert {row.status for row in await shop.rows(instances)} == {"exited"}


async def test_what_has_something_on_its_way_stays_until_that_is_withheld(shop: Shop) -> None:
    await shop.wakes(later(days=1))
    await lifecycle.archive(shop.runtime, 1, 1)
    await lifecycle.delete(shop.runtime, 1, 1)
    shop.clock.set(later(days=BIN_DAYS + 1))

    assert await purge(shop.runtime) == 0
    await shop.runtime.deliver()
    assert await purge(shop.runtime) == 1
