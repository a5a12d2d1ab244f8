"""What one would write by hand for one journey: due timers in batches, without the engine.

The journey is "cart, a day, a message, a day, the end". Its rules stand in the code, its rows are
plain tuples and its records are texts with holes; a batch is claimed, loaded, worked out and
written in ONE transaction, with one statement a table. What it leaves in the database is what the
product leaves there, row for row, which is asserted before anything is measured. It knows no
leases, no failures, no second journey and no other worker's clock.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import orjson
from whenever import Instant

from journeykit_server.clock import microseconds

DAY = 86_400_000_000  # microseconds
MINUTE = 60_000_000
BATCH = 1_000  # as many timers as the product claims at once

Row = tuple[Any, ...]
Connection = Any  # of asyncpg, which publishes no types


class Written(NamedTuple):
    """The rows of one batch, a list a table. `ended` are keys of timers that have no next one."""

    instances: list[Row]
    journal: list[Row]
    timers: list[Row]
    ended: list[Row]
    outbox: list[Row]
    entries: list[Row]
    node_stats: list[Row]


def worked_out(due: Iterable[Sequence[Any]], now: int) -> Written:
    """The new rows of people whose timer is due. Who waits at the first node gets the message and
    waits on, who waits at the second has come to the end."""
    until = now + DAY
    until_text = Instant.from_timestamp(until // 1_000_000).format_iso()
    first_state = STATE % (now, until)
    first_trail = FIRST_TRAIL.replace("UNTIL", until_text)
    rows = Written([], [], [], [], [], [], [])
    instances, journal, timers, ended, outbox, entries, _ = rows
    for tenant, user, journey, rev, version, entry, node, _, _ in due:
        key = (tenant, user, journey)
        new = rev + 1
        if node == "wait_1d":
            who = user
            if "." in user or "%" in user:
                who = user.replace("%", "%25").replace(".", "%2E")
            name = f"j{journey}.v{version}.send_email_7.{who}.e{entry}"
            trail = first_trail.replace("NAME", name)
            moved: Row = ("waiting", "wait_1d_2", now, until, "", first_state)
            timers.append((new, until, until // MINUTE, until, *key))
            place = (*key, version, entry, new, EFFECT_PLACE, "send_email_7", "send")
            outbox.append((name, *place, PAYLOAD.replace("NAME", name), now))
        else:
            trail = LAST_TRAIL
            moved = ("completed", "exit", now, None, "completed", "{}")
            ended.append(key)
            entries.append((now, "completed", "exit", *key, entry))
        instances.append((new, *moved, *key, rev))
        journal.append((*key, new, 0, version, entry, now, CAUSE, trail))
    counts = {
        "send_email_7": (len(timers), 0),
        "wait_1d_2": (len(timers), 0),
        "exit": (len(ended), len(ended)),
    }
    rows.node_stats.extend((1, 1, 1, node, *sums) for node, sums in counts.items() if any(sums))
    return rows


CAUSE = ""  # the time
EFFECT_PLACE = 2  # in its trail
STATE = '{"wait":["wait_1d_2","timer",%d,%d,[]]}'
PAYLOAD = (
    '{"kind":"send","message_id":"NAME","channel":"email","template_id":7,'
    '"category":"marketing","priority":50,"budget":"default"}'
)
FIRST_TRAIL = (
    '{"what":"woke","node_id":"wait_1d","branch":"timeout","woken_by":null}\n'
    '{"what":"visited","node_id":"send_email_7"}\n'
    '{"what":"effect","node_id":"send_email_7","message_id":"NAME","effect":' + PAYLOAD + "}\n"
    '{"what":"visited","node_id":"wait_1d_2"}\n'
    '{"what":"waiting","node_id":"wait_1d_2","until":"UNTIL","events":[]}\n'
)
LAST_TRAIL = (
    '{"what":"woke","node_id":"wait_1d_2","branch":"timeout","woken_by":null}\n'
    '{"what":"visited","node_id":"exit"}\n'
    '{"what":"exited","node_id":"exit","reason":"completed"}\n'
)


# --- PostgreSQL, asyncpg: the rows travel as one array a column


async def wake_postgresql(connection: Connection, at: Instant) -> int:
    """One batch of timers that are due at this moment; how many there were."""
    now = microseconds(at)
    async with connection.transaction():
        claimed = await connection.fetch(CLAIM, now // MINUTE, now, BATCH)
        if claimed:
            due = await connection.fetch(LOAD, *columns(claimed))
            for statement, batch in zip(STATEMENTS, worked_out(due, now), strict=True):
                if batch:
                    await connection.execute(statement, *columns(batch))
    return len(claimed)


def columns(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return list(map(list, zip(*rows, strict=True)))


CLAIM = (
    "SELECT tenant_id, user_id, journey_id FROM timers WHERE bucket <= $1 AND try_at <= $2 "
    "ORDER BY bucket LIMIT $3 FOR UPDATE SKIP LOCKED"
)
LOAD = (
    "SELECT i.tenant_id, i.user_id, i.journey_id, i.rev, i.version, i.entry_count, i.current_node, "
    "i.state, p.traits "
    "FROM unnest($1::bigint[], $2::text[], $3::bigint[]) AS g (tenant_id, user_id, journey_id) "
    "JOIN instances i ON i.tenant_id = g.tenant_id AND i.user_id = g.user_id "
    "AND i.journey_id = g.journey_id "
    "JOIN profiles p ON p.tenant_id = g.tenant_id AND p.user_id = g.user_id"
)
KEYS = "t.tenant_id = g.tenant_id AND t.user_id = g.user_id AND t.journey_id = g.journey_id"
STATEMENTS = (
    "UPDATE instances t SET rev = g.rev, status = g.status, current_node = g.node, "
    "updated_at = g.now, wake_at = g.wake_at, exit_reason = g.reason, state = g.state "
    "FROM unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::text[], "
    "$7::text[], $8::bigint[], $9::text[], $10::bigint[], $11::bigint[]) "
    "AS g (rev, status, node, now, wake_at, reason, state, tenant_id, user_id, journey_id, was) "
    f"WHERE {KEYS} AND t.rev = g.was",
    "INSERT INTO journal (tenant_id, user_id, journey_id, rev, step, version, entry_count, at, "
    "cause, trail) SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], "
    "$5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::text[], $10::text[])",
    "UPDATE timers t SET rev = g.rev, due = g.due, bucket = g.bucket, try_at = g.try_at "
    "FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::bigint[], $5::bigint[], $6::text[], "
    "$7::bigint[]) AS g (rev, due, bucket, try_at, tenant_id, user_id, journey_id) "
    f"WHERE {KEYS}",
    "DELETE FROM timers t USING unnest($1::bigint[], $2::text[], $3::bigint[]) "
    f"AS g (tenant_id, user_id, journey_id) WHERE {KEYS}",
    "INSERT INTO outbox (message_id, tenant_id, user_id, journey_id, version, entry_count, rev, "
    "position, node_id, kind, payload, created_at, try_at, is_holdout, attempts, last_error) "
    "SELECT g.*, g.now, false, 0, '' FROM unnest($1::text[], $2::bigint[], $3::text[], "
    "$4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::text[], "
    "$10::text[], $11::text[], $12::bigint[]) "
    "AS g (a, b, c, d, e, f, h, i, j, k, l, now)",
    "UPDATE entries t SET ended_at = g.now, exit_reason = g.reason, exit_node = g.node "
    "FROM unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::bigint[], "
    "$7::bigint[]) AS g (now, reason, node, tenant_id, user_id, journey_id, entry_count) "
    f"WHERE {KEYS} AND t.entry_count = g.entry_count",
    "INSERT INTO node_stats AS t (tenant_id, journey_id, version, node_id, shard, entered, exited, "
    "suppressed) SELECT g.a, g.b, g.c, g.d, 0, g.e, g.f, 0 FROM unnest($1::bigint[], "
    "$2::bigint[], $3::bigint[], $4::text[], $5::bigint[], $6::bigint[]) AS g (a, b, c, d, e, f) "
    "ON CONFLICT (tenant_id, journey_id, version, node_id, shard) DO UPDATE SET "
    "entered = t.entered + excluded.entered, exited = t.exited + excluded.exited",
)


# --- SQLite, the standard library: the rows go one by one through a prepared statement


def wake_sqlite(connection: sqlite3.Connection, at: Instant) -> int:
    """One batch of timers that are due at this moment; how many there were."""
    now = microseconds(at)
    connection.execute("BEGIN IMMEDIATE")
    due = connection.execute(LOAD_SQLITE, (now // MINUTE, now, BATCH)).fetchall()
    if due:
        for statement, batch in zip(STATEMENTS_SQLITE, worked_out(due, now), strict=True):
            if batch:
                connection.executemany(statement, batch)
    connection.execute("COMMIT")
    return len(due)


def open_sqlite(path: object) -> sqlite3.Connection:
    """With the settings of the product."""
    connection = sqlite3.connect(str(path), isolation_level=None)
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")
    return connection


LOAD_SQLITE = (
    "SELECT i.tenant_id, i.user_id, i.journey_id, i.rev, i.version, i.entry_count, i.current_node, "
    "i.state, p.traits "
    "FROM (SELECT tenant_id, user_id, journey_id FROM timers WHERE bucket <= ? AND try_at <= ? "
    "ORDER BY bucket LIMIT ?) AS g "
    "JOIN instances i ON i.tenant_id = g.tenant_id AND i.user_id = g.user_id "
    "AND i.journey_id = g.journey_id "
    "JOIN profiles p ON p.tenant_id = g.tenant_id AND p.user_id = g.user_id"
)
KEYS_SQLITE = "tenant_id = ? AND user_id = ? AND journey_id = ?"
STATEMENTS_SQLITE = (
    "UPDATE instances SET rev = ?, status = ?, current_node = ?, updated_at = ?, wake_at = ?, "
    f"exit_reason = ?, state = ? WHERE {KEYS_SQLITE} AND rev = ?",
    "INSERT INTO journal (tenant_id, user_id, journey_id, rev, step, version, entry_count, at, "
    "cause, trail) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    f"UPDATE timers SET rev = ?, due = ?, bucket = ?, try_at = ? WHERE {KEYS_SQLITE}",
    f"DELETE FROM timers WHERE {KEYS_SQLITE}",
    "INSERT INTO outbox (message_id, tenant_id, user_id, journey_id, version, entry_count, rev, "
    "position, node_id, kind, payload, created_at, try_at, is_holdout, attempts, last_error) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?12, ?12, 0, 0, '')",
    "UPDATE entries SET ended_at = ?, exit_reason = ?, exit_node = ? "
    f"WHERE {KEYS_SQLITE} AND entry_count = ?",
    "INSERT INTO node_stats (tenant_id, journey_id, version, node_id, shard, entered, exited, "
    "suppressed) VALUES (?, ?, ?, ?, 0, ?, ?, 0) "
    "ON CONFLICT (tenant_id, journey_id, version, node_id, shard) DO UPDATE SET "
    "entered = entered + excluded.entered, exited = exited + excluded.exited",
)


# --- events, of which some were sent before


EVENT_COLUMNS = (
    "tenant_id, user_id, name, number, source, event_id, kind, at, occurred_at, properties"
)


async def insert_postgresql(connection: Connection, rows: Sequence[Row]) -> None:
    """One batch, one transaction; what is known already is left out."""
    async with connection.transaction():
        await connection.execute(INSERT, *columns(rows))


def insert_sqlite(connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(INSERT_SQLITE, rows)
    connection.execute("COMMIT")


def event_row(
    number: int, user: str, name: str, event_id: str, kind: str, at: int, properties: object
) -> Row:
    text = orjson.dumps(properties).decode()
    return (1, user, name, number, "api", event_id, kind, at, at, text)


INSERT = (
    f"INSERT INTO events ({EVENT_COLUMNS}) SELECT a, b, c, d, e, f, g, h, i, j::jsonb "
    "FROM unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::text[], "
    "$7::text[], $8::bigint[], $9::bigint[], $10::text[]) AS row (a, b, c, d, e, f, g, h, i, j) "
    "ON CONFLICT (tenant_id, source, event_id) DO NOTHING"
)
INSERT_SQLITE = (
    f"INSERT INTO events ({EVENT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (tenant_id, source, event_id) DO NOTHING"
)
