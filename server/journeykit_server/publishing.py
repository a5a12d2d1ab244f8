"""From a draft to a version that people walk, and what can be read about either.

A draft may be as unfinished as it likes. `publish` is the gate: it judges what is stored, whatever
anybody judged before, and what it lets through never changes again.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Literal, NamedTuple, get_args

import orjson
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Row,
    Table,
    cast,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from journeykit_engine.behaviour import behaviour
from journeykit_engine.document import read_document
from journeykit_engine.graph import Graph
from journeykit_engine.shape import Problem
from journeykit_engine.strict_json import refuse_value
from journeykit_server import store
from journeykit_server.clock import microseconds
from journeykit_server.database import Database
from journeykit_server.doors import close_for
from journeykit_server.judging import judge_here
from journeykit_server.published import DOCUMENT_FORMAT
from journeykit_server.tables import drafts, instances, journeys, node_stats, versions

HIGHEST_ID = 2**63 - 1  # what a column holds; no journey and no version has a larger number


class Draft(NamedTuple):
    """What is being edited; `document` is the graph as JSON, with the id of its journey."""

    tenant_id: int
    journey_id: int
    name: str
    revision: int
    document: bytes


class Published(NamedTuple):
    """A version that people can enter; `sha256` is of the bytes of its document."""

    journey_id: int
    version: int
    sha256: str


class JourneyRow(NamedTuple):
    """A journey in a list: `version` is the published one, 0 before the first; `active` and
    `waiting` count the people inside by their status, whichever version they are in."""

    journey_id: int
    name: str
    status: str
    version: int
    active: int
    waiting: int


class NodeStats(NamedTuple):
    """Arrivals, passes that ended here, what was withheld here, and people parked here now."""

    entered: int = 0
    exited: int = 0
    suppressed: int = 0
    waiting: int = 0


class NoSuchJourney(LookupError):
    """This tenant has no journey of this id; whether another one has is not told."""

    def __init__(self, journey_id: int) -> None:
        super().__init__(f'There is no journey "{journey_id}".')


class NotPublishedYet(LookupError):
    """The journey exists and nobody could enter it so far."""

    def __init__(self) -> None:
        super().__init__("this journey has no published version yet")


class NoSuchVersion(LookupError):
    """The journey was published, but not as often."""

    def __init__(self, journey_id: int, version: int, latest: int) -> None:
        super().__init__(
            f'Journey "{journey_id}" has no version {version}; its latest is {latest}.'
        )


class RevisionConflict(Exception):
    """The draft is not the one the caller saw. Nothing was changed."""


class NotPublishable(Exception):
    """The journey is in a state in which nothing may be published."""


class NeedsReview(Exception):
    """Somebody else wrote this journey, and nobody has approved what its draft does now."""


class NotReady(Exception):
    """The draft has problems that keep it from being published: `problems` lists them all."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("This journey is not ready to publish yet")
        self.problems = problems


REVISION_CONFLICT = (
    'The draft of journey "{}" is at revision {}, expected {}. Read it again before you go on.'
)
PUBLISHED_ALREADY = (
    'Revision {1} of journey "{0}" is published already, as version {2}. '
    "Save a change before you publish it again."
)
NOT_PUBLISHABLE = {
    "archived": (
        'Journey "{}" is archived and cannot be published. Save its draft as a new journey.'
    ),
    "deleted": 'Journey "{}" is deleted and cannot be published. Restore it first.',
}
NEVER_REVIEWED = (
    'Journey "{0}" {1}, and nobody has reviewed it. Review revision {2} before it is published.'
)
CHANGED_SINCE = (
    'Journey "{0}" {1}, and it was changed after "{3}" had reviewed it. '
    "Review revision {2} before it is published."
)
BAD_ORIGIN = 'The origin "{}" is not known. Write own, library or suggestion.'
Origin = Literal["own", "library", "suggestion"]
CAME: Mapping[str, str] = {"library": "came from the library", "suggestion": "is a suggestion"}


async def save_draft(
    database: Database,
    tenant_id: int,
    document: str | bytes | Mapping[str, Any],
    *,
    journey_id: int | None = None,
    name: str = "",
    expected_revision: int | None = None,
    origin: Origin = "own",
) -> Draft:
    """Keep a document (whatever `read_document` takes) as the draft of a journey, a new one where
    no id is given.

    The name is `name`, else the document's, else the one that the journey has. The ids in the
    document are replaced by the journey's own and no version. A new journey is at revision 0
    before it is saved, and for ever of the `origin` that is given for it: what you did not write
    yourself has to be reviewed before it is published. Raises `BadJson`, `BadGraph`,
    `NoSuchJourney` and `RevisionConflict`.
    """
    given, graph = read_document(document)
    name = name or given
    refuse_value({"name": name})
    if origin not in get_args(Origin):
        raise ValueError(BAD_ORIGIN.format(origin))
    token = database.chance.token()
    is_new = journey_id is None
    if is_new and expected_revision:
        raise RevisionConflict(f"A new journey has no revision {expected_revision}. Leave it out.")
    number = await database.run(_next_id(tenant_id)) if journey_id is None else journey_id

    async def save(connection: AsyncConnection) -> Draft:
        at = microseconds(await database.now(connection))
        if is_new:
            await _make_journey(connection, tenant_id, number, origin, at)
        journey = await lock_journey(connection, tenant_id, number)
        stored = await draft_of(connection, tenant_id, number)
        if stored.saved_token == token:  # the commit of the last try had arrived
            return _read_draft(stored)
        if expected_revision not in (None, stored.revision):
            told = REVISION_CONFLICT.format(number, stored.revision, expected_revision)
            raise RevisionConflict(told)
        written = _written(graph, number, 0)
        kept = Draft(tenant_id, number, name or journey.name, stored.revision + 1, written)
        await _keep_draft(connection, kept, token, at)
        return kept

    return await database.run(save)


async def publish(
    database: Database,
    tenant_id: int,
    journey_id: int,
    *,
    expected_revision: int | None = None,
    account_timezone: str = "UTC",
    token: str | None = None,
) -> Published:
    """Make the draft the next version, for everybody who enters from now on; those inside stay in
    the version they entered on.

    Publishing what is published already, an unchanged draft in the same account's zone, answers
    the version that there is, so that pressing the button twice is no second version. With
    `expected_revision` exactly one caller gets a revision published, everybody else is told of
    the conflict. `token` names the request: a request repeated with its token answers what the
    first one published. A paused journey stays paused, its new version is for later.

    Raises `NoSuchJourney`, `NotPublishable`, `RevisionConflict`, `NotReady` with the problems, and
    `NeedsReview`.
    """
    this = (tenant_id, journey_id)
    asked = _Asked(expected_revision, account_timezone, token or database.chance.token())

    async def work(connection: AsyncConnection) -> Published:
        journey = await lock_journey(connection, *this)
        # A commit whose answer was lost is repeated: it finds here what it has published.
        if mine := await _published_by(connection, *this, asked.token):
            return mine
        if journey.status in NOT_PUBLISHABLE:
            raise NotPublishable(NOT_PUBLISHABLE[journey.status].format(journey_id))
        draft, latest = await draft_of(connection, *this), await _latest(connection, *this)
        if unchanged := _already(asked, draft, latest):
            return unchanged
        at = microseconds(await database.now(connection))
        version = 1 if latest is None else latest.version + 1
        return await _publish(connection, asked, journey, draft, version, at)

    return await database.run(work)


async def read_draft(database: Database, tenant_id: int, journey_id: int) -> Draft:
    """The draft as it was saved last. Raises `NoSuchJourney`."""
    return await database.read(lambda connection: _read_draft_of(connection, tenant_id, journey_id))


async def read_version(
    database: Database, tenant_id: int, journey_id: int, version: int = 0
) -> tuple[bytes, int]:
    """The document of a version and its number; version 0 is the one that is published now.
    Raises `NoSuchJourney`, `NotPublishedYet` and `NoSuchVersion`."""
    return await database.read(
        lambda connection: _version(connection, tenant_id, journey_id, version)
    )


async def list_journeys(database: Database, tenant_id: int) -> list[JourneyRow]:
    """Every journey that is not deleted, in the order of their ids, with who is inside."""

    async def read(connection: AsyncConnection) -> list[JourneyRow]:
        found = await connection.execute(
            select(journeys)
            .where(journeys.c.tenant_id == tenant_id, journeys.c.status != "deleted")
            .order_by(journeys.c.journey_id)
        )
        counted = await connection.execute(
            select(instances.c.journey_id, instances.c.status, func.count())
            .where(
                instances.c.tenant_id == tenant_id, instances.c.status.in_(("active", "waiting"))
            )
            .group_by(instances.c.journey_id, instances.c.status)
        )
        inside = {(journey_id, status): people for journey_id, status, people in counted}
        return [
            JourneyRow(
                row.journey_id,
                row.name,
                row.status,
                row.published_version,
                inside.get((row.journey_id, "active"), 0),
                inside.get((row.journey_id, "waiting"), 0),
            )
            for row in found
        ]

    return await database.read(read)


async def stats(
    database: Database, tenant_id: int, journey_id: int, version: int = 0
) -> dict[str, NodeStats]:
    """What happened at each node of a version, in the order of the document. Nodes where nothing
    happened are there too. Raises what `read_version` raises."""

    async def read(connection: AsyncConnection) -> dict[str, NodeStats]:
        document, number = await _version(connection, tenant_id, journey_id, version)
        this = (tenant_id, journey_id, number)
        found = {node["id"]: NodeStats() for node in orjson.loads(document)["nodes"]}
        for node_id, *counted in await connection.execute(_counters_of(*this)):
            found[node_id] = NodeStats(*counted)
        for node_id, people in await connection.execute(_parked_in(*this)):
            found[node_id] = found[node_id]._replace(waiting=people)
        return found

    return await database.read(read)


def _written(graph: Graph, journey_id: int, version: int) -> bytes:
    """The bytes that are stored. Their keys are not sorted: of several events that a wait listens
    for, the first one wins. What a later reader would refuse, for its size, is refused now."""
    own = graph.model_copy(update={"journey_id": journey_id, "version": version})
    written = orjson.dumps(own.to_value())
    Graph.parse(written)
    return written


class _Asked(NamedTuple):
    """What somebody wants published, and the name of their request."""

    expected_revision: int | None
    account_timezone: str
    token: str


def _already(asked: _Asked, draft: Row[Any], latest: Row[Any] | None) -> Published | None:
    """The version that this draft is already, None where it is to be published."""
    expected, journey_id, revision = asked.expected_revision, draft.journey_id, draft.revision
    if expected not in (None, revision):
        raise RevisionConflict(REVISION_CONFLICT.format(journey_id, revision, expected))
    if latest is None or latest.revision != revision:
        return None
    if latest.account_timezone != asked.account_timezone:
        return None
    if expected is not None:
        raise RevisionConflict(PUBLISHED_ALREADY.format(journey_id, revision, latest.version))
    return Published(journey_id, latest.version, latest.sha256)


async def _publish(
    connection: AsyncConnection,
    asked: _Asked,
    journey: Row[Any],
    draft: Row[Any],
    version: int,
    at: int,
) -> Published:
    graph = await _ready(connection, draft, asked.account_timezone)
    _refuse_unreviewed(journey, draft, graph)
    document = _written(graph, journey.journey_id, version)
    digest = sha256(document).hexdigest()
    await connection.execute(
        insert(versions).values(
            tenant_id=journey.tenant_id,
            journey_id=journey.journey_id,
            version=version,
            document=document.decode(),
            sha256=digest,
            format=DOCUMENT_FORMAT,
            account_timezone=asked.account_timezone,
            published_at=at,
            published_token=asked.token,
            revision=draft.revision,
        )
    )
    status = "published" if journey.status == "draft" else journey.status
    await connection.execute(
        update(journeys)
        .where(*is_journey(journeys, journey.tenant_id, journey.journey_id))
        .values(status=status, published_version=version, updated_at=at)
    )
    return Published(journey.journey_id, version, digest)


async def _ready(connection: AsyncConnection, draft: Row[Any], account_timezone: str) -> Graph:
    """The graph of a draft that may be published; `NotReady` for any other one."""
    value = orjson.loads(draft.document)
    tenant_id, journey_id = draft.tenant_id, draft.journey_id
    report = await judge_here(
        connection, tenant_id, value, journey_id=journey_id, account_timezone=account_timezone
    )
    if report.problems:
        raise NotReady(report.problems)
    return Graph.parse(value)


def _refuse_unreviewed(journey: Row[Any], draft: Row[Any], graph: Graph) -> None:
    """Raises `NeedsReview` unless this very behaviour was reviewed, or the journey is our own."""
    if journey.origin == "own" or journey.reviewed == behaviour(graph):
        return
    told = CHANGED_SINCE if journey.reviewed else NEVER_REVIEWED
    came = CAME[journey.origin]
    raise NeedsReview(told.format(journey.journey_id, came, draft.revision, journey.reviewed_by))


def _next_id(tenant_id: int) -> Any:
    """The work that takes the tenant's next id. It is a transaction of its own, so that an id once
    taken is never given again, whatever becomes of its journey."""

    async def take(connection: AsyncConnection) -> int:
        return await store.take_number(connection, tenant_id, "journeys")

    return take


async def _make_journey(
    connection: AsyncConnection, tenant_id: int, journey_id: int, origin: Origin, at: int
) -> None:
    """The row of a new journey with an empty draft, unless an earlier try has made them."""
    if await _journey(connection, tenant_id, journey_id) is not None:
        return
    ids = {"tenant_id": tenant_id, "journey_id": journey_id}
    made = {"name": "", "status": "draft", "published_version": 0, "origin": origin}
    await connection.execute(insert(journeys).values(**ids, **made, created_at=at, updated_at=at))
    await connection.execute(insert(drafts).values(**ids, revision=0, document="{}", saved_at=at))


async def _keep_draft(connection: AsyncConnection, draft: Draft, token: str, at: int) -> None:
    tenant_id, journey_id, name, revision, document = draft
    await connection.execute(
        update(drafts)
        .where(*is_journey(drafts, tenant_id, journey_id))
        .values(revision=revision, document=document.decode(), saved_at=at, saved_token=token)
    )
    await connection.execute(
        update(journeys)
        .where(*is_journey(journeys, tenant_id, journey_id))
        .values(name=name, updated_at=at)
    )


def is_journey(table: Table, tenant_id: int, journey_id: int) -> tuple[ColumnElement[bool], ...]:
    return table.c.tenant_id == tenant_id, table.c.journey_id == journey_id


async def _journey(
    connection: AsyncConnection, tenant_id: int, journey_id: int, *, lock: bool = False
) -> Row[Any] | None:
    if not 0 < journey_id <= HIGHEST_ID:
        return None
    query = select(journeys).where(*is_journey(journeys, tenant_id, journey_id))
    return (await connection.execute(query.with_for_update() if lock else query)).one_or_none()


async def lock_journey(connection: AsyncConnection, tenant_id: int, journey_id: int) -> Row[Any]:
    """The journey's row, which nobody else changes until this transaction ends. What belongs to it
    is read by later statements: a join would show what it was before the lock was had."""
    if 0 < journey_id <= HIGHEST_ID:
        await close_for(connection, (tenant_id, journey_id))
    found = await _journey(connection, tenant_id, journey_id, lock=True)
    if found is None:
        raise NoSuchJourney(journey_id)
    return found


async def draft_of(connection: AsyncConnection, tenant_id: int, journey_id: int) -> Row[Any]:
    """The draft's row with the journey's name."""
    if not 0 < journey_id <= HIGHEST_ID:
        raise NoSuchJourney(journey_id)
    of = (drafts.c.tenant_id == journeys.c.tenant_id) & (
        drafts.c.journey_id == journeys.c.journey_id
    )
    query = (
        select(drafts, journeys.c.name)
        .join_from(drafts, journeys, of)
        .where(*is_journey(drafts, tenant_id, journey_id))
    )
    found = (await connection.execute(query)).one_or_none()
    if found is None:
        raise NoSuchJourney(journey_id)
    return found


def _read_draft(row: Row[Any]) -> Draft:
    return Draft(row.tenant_id, row.journey_id, row.name, row.revision, row.document.encode())


async def _read_draft_of(connection: AsyncConnection, tenant_id: int, journey_id: int) -> Draft:
    return _read_draft(await draft_of(connection, tenant_id, journey_id))


async def _published_by(
    connection: AsyncConnection, tenant_id: int, journey_id: int, token: str
) -> Published | None:
    query = select(versions.c.journey_id, versions.c.version, versions.c.sha256).where(
        *is_journey(versions, tenant_id, journey_id),
        versions.c.published_token == token,
    )
    found = (await connection.execute(query)).one_or_none()
    return None if found is None else Published(*found)


async def _latest(connection: AsyncConnection, tenant_id: int, journey_id: int) -> Row[Any] | None:
    query = (
        select(versions)
        .where(*is_journey(versions, tenant_id, journey_id))
        .order_by(versions.c.version.desc())
        .limit(1)
    )
    return (await connection.execute(query)).one_or_none()


async def _version(
    connection: AsyncConnection, tenant_id: int, journey_id: int, version: int
) -> tuple[bytes, int]:
    journey = await _journey(connection, tenant_id, journey_id)
    if journey is None:
        raise NoSuchJourney(journey_id)
    latest = journey.published_version
    if latest == 0:
        raise NotPublishedYet
    wanted = version or latest
    query = select(versions.c.document).where(
        *is_journey(versions, tenant_id, journey_id),
        versions.c.version == min(max(wanted, 0), HIGHEST_ID),
    )
    document = (await connection.execute(query)).scalar_one_or_none()
    if document is None:
        raise NoSuchVersion(journey_id, version, latest)
    return document.encode(), wanted


def _counters_of(tenant_id: int, journey_id: int, version: int) -> Any:
    """Per node, the counters of all shards added up."""
    names = ("entered", "exited", "suppressed")
    total = [cast(func.sum(node_stats.c[name]), BigInteger) for name in names]
    return (
        select(node_stats.c.node_id, *total)
        .where(*is_journey(node_stats, tenant_id, journey_id), node_stats.c.version == version)
        .group_by(node_stats.c.node_id)
    )


def _parked_in(tenant_id: int, journey_id: int, version: int) -> Any:
    return (
        select(instances.c.current_node, func.count())
        .where(
            *is_journey(instances, tenant_id, journey_id),
            instances.c.version == version,
            instances.c.status == "waiting",
        )
        .group_by(instances.c.current_node)
    )
