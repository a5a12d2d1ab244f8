"""One statement for a whole batch, on both databases.

PostgreSQL takes the rows as one array a column and reads them with `unnest`; SQLite, which is in
the same process, takes them one by one from a prepared statement, or as one JSON text where a
query has to join them. Both cost a fixed number of statements whatever the size of the batch, and
none where it is empty. A batch that writes names no key twice: PostgreSQL refuses or picks one.
The statements are made from the tables and from texts written here, never from anybody's input.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

import orjson
from sqlalchemy import CursorResult, Table
from sqlalchemy.ext.asyncio import AsyncConnection

from journeykit_server.tables import kind_of

Values = Sequence[Any]


class Insert:
    """`INSERT … ON CONFLICT …` of many rows; `run` says how many were written.

    `conflict` is what follows ON CONFLICT ("" for none), the same text on both databases; `named`
    is the column by which `written` names rows.
    """

    def __init__(
        self, table: Table, columns: Sequence[str], conflict: str = "", named: str = ""
    ) -> None:
        names = ", ".join(columns)
        tail = f" ON CONFLICT {conflict}" if conflict else ""
        marks = ", ".join("?" * len(columns))
        casts, places = _places(table, columns)
        self.sqlite = f"INSERT INTO {table.name} ({names}) VALUES ({marks}){tail}"
        self.postgresql = (
            f"INSERT INTO {table.name} ({names}) "
            f"SELECT {casts} FROM unnest({places}) AS given ({names}){tail}"
        )
        self.place = columns.index(named) if named else -1
        self.telling = f"{self.postgresql} RETURNING {named}"

    async def run(self, connection: AsyncConnection, rows: Sequence[Values]) -> int:
        return await _run(connection, self.sqlite, self.postgresql, rows)

    async def written(self, connection: AsyncConnection, rows: Sequence[Values]) -> set[Any] | None:
        """The names of the rows that were written, of those that met no conflict. None where only
        their number is known: SQLite takes row by row, and this time not all of them."""
        if rows and connection.dialect.name != "sqlite":
            told = await connection.exec_driver_sql(self.telling, _columns(rows))
            return set(told.scalars())
        all_are = await self.run(connection, rows) == len(rows)
        return {row[self.place] for row in rows} if all_are else None


class Update:
    """`UPDATE … SET column = given` of many rows by their keys; a row that the extra condition
    `only` does not hold for stays as it is. `run` says how many were written.

    `only` names the given values as `given.column`; rows are given as columns, then keys, then
    what else `only` names (`extra`: a name and the column whose type it has).
    """

    def __init__(
        self,
        table: Table,
        columns: Sequence[str],
        keys: Sequence[str],
        only: str = "",
        extra: Sequence[tuple[str, str]] = (),
    ) -> None:
        given = [*columns, *keys, *(name for name, _ in extra)]
        typed = [*columns, *keys, *(column for _, column in extra)]
        test = f" AND {only}" if only else ""
        _, places = _places(table, typed)
        names = ", ".join(given)
        # SQLite knows the given values by their order only; `only` may name one again.
        named = re.findall(GIVEN, only)
        self.order = itemgetter(*map(given.index, [*columns, *keys, *named]))
        self.sqlite = (
            f"UPDATE {table.name} SET {', '.join(f'{c} = ?' for c in columns)} "
            f"WHERE {' AND '.join(f'{k} = ?' for k in keys)}{re.sub(GIVEN, '?', test)}"
        )
        cast = {c: "::jsonb" if kind_of(table.c[c].type) == "jsonb" else "" for c in columns}
        self.postgresql = (
            f"UPDATE {table.name} SET {', '.join(f'{c} = given.{c}{cast[c]}' for c in columns)} "
            f"FROM unnest({places}) AS given ({names}) "
            f"WHERE {' AND '.join(f'{table.name}.{k} = given.{k}' for k in keys)}{test}"
        )

    async def run(self, connection: AsyncConnection, rows: Sequence[Values]) -> int:
        if connection.dialect.name == "sqlite":
            rows = [self.order(row) for row in rows]
        return await _run(connection, self.sqlite, self.postgresql, rows)


GIVEN = r"\bgiven\.(\w+)"


class Delete:
    """`DELETE` of many rows by their keys."""

    def __init__(self, table: Table, keys: Sequence[str]) -> None:
        _, places = _places(table, keys)
        names = ", ".join(keys)
        self.sqlite = f"DELETE FROM {table.name} WHERE {' AND '.join(f'{k} = ?' for k in keys)}"
        self.postgresql = (
            f"DELETE FROM {table.name} USING unnest({places}) AS given ({names}) "
            f"WHERE {' AND '.join(f'{table.name}.{k} = given.{k}' for k in keys)}"
        )

    async def run(self, connection: AsyncConnection, rows: Sequence[Values]) -> int:
        return await _run(connection, self.sqlite, self.postgresql, rows)


class Select:
    """A query that joins the rows it is given, as a table called `given` with these columns.

    `query` has the mark `{given}` where that table stands. `::text` after a document makes both
    databases give it as text, as which SQLite keeps it anyway. `locks` is the table whose rows are
    locked until the transaction ends, in the order of the query; SQLite has locked its whole file.
    """

    def __init__(self, columns: Sequence[tuple[str, str]], query: str, *, locks: str = "") -> None:
        names = ", ".join(name for name, _ in columns)
        fields = ", ".join(
            f"json_extract(value, '$[{i}]') AS {name}" for i, (name, _) in enumerate(columns)
        )
        places = ", ".join(f"${i}::{kind}[]" for i, (_, kind) in enumerate(columns, 1))
        table = f"(SELECT {fields} FROM json_each(?)) AS given"
        lock = f" FOR UPDATE OF {locks}" if locks else ""
        self.sqlite = query.replace("::text", "").replace("{given}", table)
        self.postgresql = query.replace("{given}", f"unnest({places}) AS given ({names})") + lock

    async def run(self, connection: AsyncConnection, rows: Sequence[Values]) -> Sequence[Any]:
        if not rows:
            return ()
        if connection.dialect.name == "sqlite":
            given = orjson.dumps(rows).decode()
            return (await connection.exec_driver_sql(self.sqlite, (given,))).all()
        return (await connection.exec_driver_sql(self.postgresql, _columns(rows))).all()


async def _run(
    connection: AsyncConnection, sqlite: str, postgresql: str, rows: Sequence[Values]
) -> int:
    if not rows:
        return 0
    done: CursorResult[Any]
    if connection.dialect.name == "sqlite":
        given = [row if isinstance(row, tuple) else tuple(row) for row in rows]
        done = await connection.exec_driver_sql(sqlite, given)
    else:
        done = await connection.exec_driver_sql(postgresql, _columns(rows))
    return done.rowcount


def _columns(rows: Iterable[Values]) -> tuple[list[Any], ...]:
    return tuple(map(list, zip(*rows, strict=True)))


def _places(table: Table, columns: Sequence[str]) -> tuple[str, str]:
    """What is selected from the arrays, and the arrays; a document travels as text."""
    kinds = [kind_of(table.c[name].type) for name in columns]
    casts = [
        f"{name}::jsonb" if kind == "jsonb" else name
        for name, kind in zip(columns, kinds, strict=True)
    ]
    places = [f"${i}::{'text' if kind == 'jsonb' else kind}[]" for i, kind in enumerate(kinds, 1)]
    return ", ".join(casts), ", ".join(places)
