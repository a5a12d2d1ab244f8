"""What is saved again and again under one number: templates and segments.

Each has a row that names its version of now, and a row a version that never changes. A save that
is repeated, because its answer was lost, finds its own token there and saves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Row, Table, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from journeykit_engine.strict_json import refuse_value
from journeykit_server import store
from journeykit_server.clock import microseconds
from journeykit_server.database import Database
from journeykit_server.publishing import HIGHEST_ID

MOST_NAME_CHARACTERS = 200  # what fits into a line of a list
MOST_LISTED = 1_000  # of one page


class NotFound(LookupError):
    """This tenant has none of this number, or no such version of it; whether another tenant has is
    not told."""


class VersionConflict(Exception):
    """What is stored is not what the caller saw. Nothing was changed."""


class Archived(Exception):
    """It was put away, and is not saved, and not sent, until somebody restores it."""


class BadName(ValueError):
    """A name that is none."""


class Kept(NamedTuple):
    """A kind of thing that has versions: its noun, its two tables, the column of its number."""

    noun: str
    table: Table
    versions: Table
    number: str

    def of(self, table: Table, tenant_id: int, number: int) -> tuple[ColumnElement[bool], ...]:
        return table.c.tenant_id == tenant_id, table.c[self.number] == number

    def no_such(self, number: int) -> NotFound:
        return NotFound(f'There is no {self.noun} "{number}".')


class Save(NamedTuple):
    """A save that somebody asks for: of a new thing where `number` is None, `head` and `body` are
    the columns of its row and of its version."""

    kept: Kept
    tenant_id: int
    number: int | None
    expected_version: int | None
    head: Mapping[str, Any]
    body: Mapping[str, Any]


CONFLICT = '{} "{}" is at version {}, expected {}. Read it again before you go on.'
ARCHIVED = '{} "{}" is archived. Restore it before you save it.'
NEW_VERSION = "A new {} has no version {}. Leave it out."
NO_NAME = "The {} has no name. Give it one that is not blank."
LONG_NAME = "The name of the {} has {} characters, more than {}. Shorten it."


def refuse_name(noun: str, name: str) -> None:
    """Raises `BadName`, or `BadJson` for a text that no database takes."""
    refuse_value({"name": name})
    if not name.strip():
        raise BadName(NO_NAME.format(noun))
    if len(name) > MOST_NAME_CHARACTERS:
        raise BadName(LONG_NAME.format(noun, len(name), MOST_NAME_CHARACTERS))


async def save(database: Database, asked: Save) -> int:
    """Keep the next version of it; its number. Raises `NotFound`, `VersionConflict`, `Archived`."""
    kept, token = asked.kept, database.chance.token()
    if asked.number is None and asked.expected_version:
        raise VersionConflict(NEW_VERSION.format(kept.noun, asked.expected_version))
    number = asked.number
    if number is None:
        number = await _take_number(database, asked.tenant_id, kept.table.name)

    async def work(connection: AsyncConnection) -> int:
        at = microseconds(await database.now(connection))
        await _save(connection, asked, number, token, at)
        return number

    return await database.run(work)


async def _save(connection: AsyncConnection, asked: Save, number: int, token: str, at: int) -> None:
    kept, tenant_id = asked.kept, asked.tenant_id
    row = await _row(connection, kept, tenant_id, number, locks=True)
    if row is None and asked.number is not None:
        raise kept.no_such(number)
    version = 0 if row is None else row.version
    if version and await _token(connection, kept, tenant_id, number, version) == token:
        return  # the commit of the last try had arrived
    if row is not None:
        _refuse(asked, row)
    ids = {"tenant_id": tenant_id, kept.number: number}
    head = {**asked.head, "version": version + 1, "updated_at": at}
    if row is None:
        await connection.execute(insert(kept.table).values(**ids, **head, created_at=at))
    else:
        where = kept.of(kept.table, tenant_id, number)
        await connection.execute(update(kept.table).where(*where).values(head))
    body = {**asked.body, "version": version + 1, "saved_at": at, "saved_token": token}
    await connection.execute(insert(kept.versions).values(**ids, **body))


def _refuse(asked: Save, row: Row[Any]) -> None:
    noun, number = asked.kept.noun.capitalize(), asked.number
    if row.archived_at is not None:
        raise Archived(ARCHIVED.format(noun, number))
    if asked.expected_version not in (None, row.version):
        raise VersionConflict(CONFLICT.format(noun, number, row.version, asked.expected_version))


async def _take_number(database: Database, tenant_id: int, name: str) -> int:
    """The tenant's next number, in a transaction of its own: once taken it is never given again,
    whatever becomes of the save."""

    async def take(connection: AsyncConnection) -> int:
        return await store.take_number(connection, tenant_id, name)

    return await database.run(take)


async def _row(
    connection: AsyncConnection, kept: Kept, tenant_id: int, number: int, *, locks: bool = False
) -> Row[Any] | None:
    if not 0 < number <= HIGHEST_ID:
        return None
    query = select(kept.table).where(*kept.of(kept.table, tenant_id, number))
    return (await connection.execute(query.with_for_update() if locks else query)).one_or_none()


async def _token(
    connection: AsyncConnection, kept: Kept, tenant_id: int, number: int, version: int
) -> str:
    table = kept.versions
    query = select(table.c.saved_token).where(
        *kept.of(table, tenant_id, number), table.c.version == version
    )
    return str((await connection.execute(query)).scalar_one())


async def read(
    connection: AsyncConnection, kept: Kept, tenant_id: int, number: int, version: int = 0
) -> tuple[Row[Any], Row[Any]]:
    """Its row and that of a version, 0 for the one of now. Raises `NotFound`."""
    row = await _row(connection, kept, tenant_id, number)
    if row is None:
        raise kept.no_such(number)
    wanted = version or row.version
    query = select(kept.versions).where(
        *kept.of(kept.versions, tenant_id, number),
        kept.versions.c.version == min(max(wanted, 0), HIGHEST_ID),
    )
    found = (await connection.execute(query)).one_or_none()
    if found is None:
        told = NO_VERSION.format(kept.noun.capitalize(), number, version, row.version)
        raise NotFound(told)
    return row, found


NO_VERSION = '{} "{}" has no version {}; its latest is {}.'


async def listed(
    connection: AsyncConnection,
    kept: Kept,
    tenant_id: int,
    *,
    after: int,
    first: int,
    archived: bool,
) -> list[tuple[Row[Any], Row[Any]]]:
    """Those in use, or those put away, with their versions of now, in the order of their numbers:
    `first` of them (`MOST_LISTED` at most) from behind the number `after`."""
    table, versions = kept.table, kept.versions
    is_away = table.c.archived_at.is_not(None) if archived else table.c.archived_at.is_(None)
    rows = (
        await connection.execute(
            select(table)
            .where(table.c.tenant_id == tenant_id, table.c[kept.number] > after, is_away)
            .order_by(table.c[kept.number])
            .limit(min(max(first, 0), MOST_LISTED))
        )
    ).all()
    of_now = (
        (versions.c.tenant_id == table.c.tenant_id)
        & (versions.c[kept.number] == table.c[kept.number])
        & (versions.c.version == table.c.version)
    )
    last = rows[-1]._mapping[kept.number] if rows else after
    bodies = await connection.execute(
        select(versions)
        .join_from(versions, table, of_now)
        .where(table.c.tenant_id == tenant_id, table.c[kept.number].between(after, last))
    )
    found = {row._mapping[kept.number]: row for row in bodies}
    return [(row, found[row._mapping[kept.number]]) for row in rows]


async def put_away(
    database: Database, kept: Kept, tenant_id: int, number: int, *, away: bool
) -> bool:
    """Archive it or restore it; False where it already was. Raises `NotFound`."""
    done: list[bool] = []  # a try whose commit was in doubt may have been kept

    async def work(connection: AsyncConnection) -> bool:
        at = microseconds(await database.now(connection))
        row = await _row(connection, kept, tenant_id, number, locks=True)
        if row is None:
            raise kept.no_such(number)
        if (row.archived_at is not None) == away:
            return bool(done)
        done.append(True)
        values = {"archived_at": at if away else None, "updated_at": at}
        where = kept.of(kept.table, tenant_id, number)
        await connection.execute(update(kept.table).where(*where).values(values))
        return True

    return await database.run(work)
