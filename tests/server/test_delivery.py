"""The log provider takes every effect once, and says how often it was offered."""

from __future__ import annotations

import logging

import orjson
import pytest
from sqlalchemy import select
from whenever import Instant

from journeykit_server.clock import microseconds
from journeykit_server.database import Database
from journeykit_server.delivery import Delivered, Item, LogProvider
from journeykit_server.tables import deliveries
from tests.databases import START


def item(message_id: str, *, kind: str = "send", user_id: str = "ann", **payload: object) -> Item:
    return Item(1, message_id, user_id, 7, 1, 1, "hello", kind, payload, START, 1)


async def taken(database: Database) -> dict[str, int]:
    rows = await database.read(
        lambda connection: connection.execute(select(deliveries.c.message_id, deliveries.c.times))
    )
    return {row.message_id: row.times for row in rows}


async def test_an_effect_that_is_offered_again_is_kept_once(database: Database) -> None:
    provider = LogProvider(database)

    await provider.deliver([item("a"), item("b")])
    await provider.deliver([item("b"), item("c")])

    assert await taken(database) == {"a": 1, "b": 2, "c": 1}


async def test_what_was_taken_can_be_read(database: Database) -> None:
    await LogProvider(database).deliver([item("a", channel="email", template_id=3)])

    row = (await database.read(lambda connection: connection.execute(select(deliveries)))).one()
    assert (row.tenant_id, row.message_id, row.user_id, row.kind) == (1, "a", "ann", "send")
    assert orjson.loads(row.payload) == {"channel": "email", "template_id": 3}
    assert row.accepted_at == microseconds(Instant("2026-06-01T10:00:00Z"))


async def test_outcomes_come_in_the_order_of_the_items(database: Database) -> None:
    items = [item("b", channel="sms"), item("a", kind="task"), item("c", channel="email")]

    outcomes = await LogProvider(database).deliver(items)

    assert outcomes == [Delivered("sms"), Delivered(""), Delivered("email")]


async def test_one_line_tells_of_a_batch_and_names_nobody(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "journeykit")
    items = [
        item("m.ann", channel="email"),
        item("m.bob", channel="email", user_id="bob"),
        item("t.ann", kind="task", title="call ann"),
    ]

    await LogProvider(database).deliver(items)

    assert caplog.messages == ["deliveries count=3 email=2 task=1"]
