"""A whole batch in one statement: what it writes, leaves alone and answers, on both databases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import orjson
import pytest
from sqlalchemy import Table, event, select
from sqlalchemy.exc import IntegrityError

from journeykit_server import store
from journeykit_server.bulk import Delete, Insert, Select, Update
from journeykit_server.database import Database
from journeykit_server.tables import (
    NEVER_BUCKET,
    counters,
    kind_of,
    metadata,
    profiles,
    timers,
)

COUNT = Insert(counters, ("tenant_id", "name", "value"))
COUNT_UP = Insert(
    counters,
    ("tenant_id", "name", "value"),
    "(tenant_id, name) DO UPDATE SET value = counters.value + excluded.value",
)
ADD_PERSON = Insert(
    profiles,
    ("tenant_id", "user_id", "traits", "written_at", "phone_timezone", "created_at", "updated_at"),
)
NAMES = ["علی", "Zoë", "u'); DROP TABLE counters; --", '{"$":1}', "a\\b\t\n", "🧭", ""]


async def test_rows_are_written_and_counted(database: Database) -> None:
    assert await write(database, COUNT, [(1, "b", 2), (1, "a", -(2**63))]) == 2
    assert await counted(database) == [(1, "a", -(2**63)), (1, "b", 2)]


async def test_an_id_is_kept_letter_for_letter(database: Database) -> None:
    await write(database, COUNT, [(1, name, place) for place, name in enumerate(NAMES)])

    assert {name: value for _, name, value in await counted(database)} == {
        name: place for place, name in enumerate(NAMES)
    }
    found = await ask(database, VALUES, [(1, name) for name in reversed(NAMES)])
    assert sorted(found) == sorted((name, place) for place, name in enumerate(NAMES))
    assert await write(database, Delete(counters, ("tenant_id", "name")), [(1, n) for n in NAMES])
    assert await counted(database) == []


async def test_a_row_that_breaks_a_law_keeps_the_whole_batch_out(database: Database) -> None:
    with pytest.raises(IntegrityError):
        await write(database, COUNT, [(1, "a", 1), (1, "a", 2)])
    assert await counted(database) == []


async def test_a_conflict_is_passed_over_and_not_counted(database: Database) -> None:
    insert = Insert(counters, ("tenant_id", "name", "value"), "(tenant_id, name) DO NOTHING")

    assert await write(database, insert, [(1, "a", 1)]) == 1
    assert await write(database, insert, [(1, "a", 9), (1, "b", 2)]) == 1
    assert await counted(database) == [(1, "a", 1), (1, "b", 2)]


async def test_a_conflict_may_add_up(database: Database) -> None:
    await write(database, COUNT_UP, [(1, "a", 1), (1, "b", 10)])
    assert await write(database, COUNT_UP, [(1, "b", 5), (2, "b", 7)]) == 2
    assert await counted(database) == [(1, "a", 1), (1, "b", 15), (2, "b", 7)]


async def test_an_update_reaches_the_rows_of_its_keys(database: Database) -> None:
    await write(database, COUNT, [(1, "a", 1), (1, "b", 2), (2, "a", 3)])
    update = Update(counters, ("value",), ("tenant_id", "name"))

    assert await write(database, update, [(10, 1, "a"), (30, 2, "a"), (40, 2, "nobody")]) == 2
    assert await counted(database) == [(1, "a", 10), (1, "b", 2), (2, "a", 30)]


async def test_an_update_leaves_alone_what_its_condition_does_not_hold_for(
    database: Database,
) -> None:
    await write(database, COUNT, [(1, "a", 1), (1, "b", 2), (1, "c", 3)])
    update = Update(
        counters,
        ("value",),
        ("tenant_id", "name"),
        # A given value may be named twice, and one whose name begins like another's.
        only="counters.value = given.was AND given.was <> given.was_not AND given.value > 10",
        extra=(("was_not", "value"), ("was", "value")),
    )

    rows = [(11, 1, "a", 0, 1), (12, 1, "b", 0, 99), (13, 1, "c", 3, 3)]
    assert await write(database, update, rows) == 1
    assert await counted(database) == [(1, "a", 11), (1, "b", 2), (1, "c", 3)]


async def test_a_lease_is_settled_by_its_token_alone(database: Database) -> None:
    columns = [column.name for column in timers.columns]
    mine, others = ("u_1", "mine"), ("u_2", "others")
    rows = [(1, user, 7, 1, 1, 60, 1, 90, 1, token, "", None) for user, token in (mine, others)]
    await write(database, Insert(timers, columns), rows)
    settle = Update(
        timers,
        ("bucket", "lease_token", "failed_at"),
        ("tenant_id", "user_id", "journey_id"),
        only="timers.lease_token = given.token",
        extra=(("token", "lease_token"),),
    )

    given = [(NEVER_BUCKET, None, 95, 1, user, 7, "mine") for user in ("u_1", "u_2")]
    assert await write(database, settle, given) == 1

    asked = select(timers.c.user_id, timers.c.bucket, timers.c.lease_token, timers.c.failed_at)
    assert await told(database, asked.order_by(timers.c.user_id)) == [
        ("u_1", NEVER_BUCKET, None, 95),
        ("u_2", 1, "others", None),
    ]


async def test_a_delete_takes_the_rows_of_its_keys(database: Database) -> None:
    await write(database, COUNT, [(1, "a", 1), (1, "b", 2), (2, "a", 3)])
    delete = Delete(counters, ("tenant_id", "name"))

    assert await write(database, delete, [(1, "a"), (2, "a"), (2, "nobody")]) == 2
    assert await counted(database) == [(1, "b", 2)]


async def test_a_document_is_kept_as_its_values(database: Database) -> None:
    traits = {"city": "تهران", "n": 1, "x": 0.5, "vip": True, "none": None, "tags": ["a", {"b": 2}]}
    await write(database, ADD_PERSON, [person("u_1", traits), person("u_2", {})])

    asked = select(profiles.c.user_id, profiles.c.traits).order_by(profiles.c.user_id)
    assert await told(database, asked) == [("u_1", traits), ("u_2", {})]

    change = Update(profiles, ("traits", "updated_at"), ("tenant_id", "user_id"))
    document = orjson.dumps({"city": "Yazd"}).decode()
    assert await write(database, change, [(document, 2, 1, "u_2")]) == 1
    assert await told(database, asked) == [("u_1", traits), ("u_2", {"city": "Yazd"})]


async def test_a_query_joins_the_rows_it_is_given(database: Database) -> None:
    await write(database, COUNT, [(1, "a", 1), (1, "b", 2), (2, "a", 3)])
    query = Select(
        [("tenant_id", "bigint"), ("name", "text"), ("least", "bigint"), ("big", "boolean")],
        "SELECT c.tenant_id, c.name, given.big FROM {given} JOIN counters c "
        "ON c.tenant_id = given.tenant_id AND c.name = given.name "
        "AND (given.least IS NULL OR c.value >= given.least) ORDER BY c.tenant_id, c.name",
    )

    rows = [(2, "a", None, True), (1, "a", 2, True), (1, "b", 2, False), (3, "a", None, True)]
    assert await ask(database, query, rows) == [(1, "b", False), (2, "a", True)]


async def test_a_query_has_the_words_of_its_database(database: Database) -> None:
    """A document comes as text from both, and rows are locked where the file is not."""
    person = (1, "ann", '{"plan": "pro"}', "{}", None, 0, 0)
    await database.run(lambda connection: store.ADD_PEOPLE.run(connection, [person]))
    query = Select(
        [("tenant_id", "bigint")],
        "SELECT p.traits::text FROM {given} JOIN profiles p ON p.tenant_id = given.tenant_id",
        locks="p",
    )

    (row,) = await database.run(lambda connection: query.run(connection, [(1,)]))

    assert tuple(row) == ('{"plan": "pro"}',)
    assert query.postgresql.endswith(" FOR UPDATE OF p")
    assert "FOR UPDATE" not in query.sqlite and "::" not in query.sqlite


async def test_no_rows_are_no_statement(database: Database) -> None:
    with statements(database) as sent:
        for whole in BATCHES:
            assert await write(database, whole, []) == 0
        assert list(await ask(database, VALUES, [])) == []
    assert sent == []


async def test_a_thousand_rows_are_as_many_statements_as_one(database: Database) -> None:
    async def all_four(names: Sequence[str]) -> list[str]:
        with statements(database) as sent:
            assert await write(database, COUNT_UP, [(1, name, 1) for name in names]) == len(names)
            update = [(5, 1, name, 1) for name in names]
            assert await write(database, BATCHES[1], update) == len(names)
            assert len(await ask(database, VALUES, [(1, name) for name in names])) == len(names)
            assert await write(database, BATCHES[2], [(1, n) for n in names]) == len(names)
        return sent

    one = await all_four(["a"])
    assert len(one) == 4
    assert await all_four([f"c_{number}" for number in range(1_000)]) == one


@pytest.mark.parametrize("table", metadata.sorted_tables, ids=lambda table: table.name)
async def test_every_column_of_every_table_goes_in_and_comes_back(
    database: Database, table: Table
) -> None:
    kinds = [kind_of(column.type) for column in table.columns]
    columns = [column.name for column in table.columns]
    row = [
        LAWFUL.get((table.name, name), SAMPLES[kind])
        for name, kind in zip(columns, kinds, strict=True)
    ]

    assert await write(database, Insert(table, columns), [row]) == 1

    (kept,) = await told(database, select(table))
    read = [orjson.loads(v) if k == "jsonb" else v for v, k in zip(row, kinds, strict=True)]
    assert kept == tuple(read)


VALUES = Select(
    [("tenant_id", "bigint"), ("name", "text")],
    "SELECT c.name, c.value FROM {given} JOIN counters c "
    "ON c.tenant_id = given.tenant_id AND c.name = given.name",
)
BATCHES = (
    COUNT_UP,
    Update(
        counters,
        ("value",),
        ("tenant_id", "name"),
        only="counters.value = given.was",
        extra=(("was", "value"),),
    ),
    Delete(counters, ("tenant_id", "name")),
)
SAMPLES: dict[str, Any] = {
    "bigint": 2**53 + 1,
    "integer": 1,
    "text": "é",
    "boolean": False,
    "jsonb": '{"a": 1}',
}
LAWFUL = {
    ("journeys", "status"): "draft",
    ("journeys", "pause_mode"): "",
    ("journeys", "origin"): "own",
    ("segments", "kind"): "list",
    ("subscriptions", "state"): "subscribed",
    ("tasks", "status"): "completed",
    ("events", "kind"): "track",
    ("instances", "status"): "waiting",
    ("instances", "exit_reason"): "",
    ("outbox", "kind"): "send",
    ("messages", "state"): "delivered",
    ("dead_letters", "kind"): "timer",
}


def person(user_id: str, traits: dict[str, Any]) -> tuple[Any, ...]:
    return (1, user_id, orjson.dumps(traits).decode(), "{}", None, 1, 1)


async def write(database: Database, whole: Insert | Update | Delete, rows: Sequence[Any]) -> int:
    return await database.run(lambda connection: whole.run(connection, rows))


async def ask(database: Database, query: Select, rows: Sequence[Any]) -> Sequence[Any]:
    return await database.read(lambda connection: query.run(connection, rows))


async def told(database: Database, query: Any) -> list[Any]:
    async def read(connection: Any) -> list[Any]:
        return [tuple(row) for row in await connection.execute(query)]

    return await database.read(read)


async def counted(database: Database) -> list[Any]:
    return await told(database, select(counters).order_by(*counters.primary_key))


@contextmanager
def statements(database: Database) -> Iterator[list[str]]:
    """What is sent meanwhile, but for the beginnings of transactions."""
    sent: list[str] = []

    def on_execute(_: Any, __: Any, statement: str, *___: Any) -> None:
        if not statement.startswith("BEGIN"):
            sent.append(statement)

    event.listen(database.engine.sync_engine, "before_cursor_execute", on_execute)
    try:
        yield sent
    finally:
        event.remove(database.engine.sync_engine, "before_cursor_execute", on_execute)
