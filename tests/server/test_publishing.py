"""A journey is drawn in a draft, goes out as a version, and a version never changes again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, TypeVar

import orjson
import pytest
from sqlalchemy import Engine, event, insert, select, update

from journeykit_engine.graph import Graph
from journeykit_engine.shape import BadGraph
from journeykit_engine.strict_json import BadJson
from journeykit_server.clock import SeededChance, VirtualClock, microseconds
from journeykit_server.database import Database, Work
from journeykit_server.publishing import (
    JourneyRow,
    NodeStats,
    NoSuchJourney,
    NoSuchVersion,
    NotPublishable,
    NotPublishedYet,
    NotReady,
    Published,
    RevisionConflict,
    list_journeys,
    publish,
    read_draft,
    read_version,
    save_draft,
    stats,
)
from journeykit_server.tables import instances, journeys, node_stats, versions
from tests.databases import START, open_database
from tests.engine.journeys import CART, Value, journey, wait

T = TypeVar("T")
NAME = "سبد رها شده"
ROUNDS = 10  # of two at once, on each database
PARKED = wait(kind="duration", amount=1, unit="day")
SOUND = journey(PARKED)


@pytest.fixture
async def other(database_url: str) -> AsyncIterator[Database]:
    """Another process on the same database."""
    opened = open_database(database_url, chance=SeededChance(2))
    yield opened
    await opened.close()


# --- drafts


async def test_a_new_journey_is_kept_under_the_next_id_of_its_tenant(database: Database) -> None:
    first = await save_draft(database, 1, CART, name=NAME)
    second = await save_draft(database, 1, json.dumps(SOUND))
    elsewhere = await save_draft(database, 2, SOUND)

    assert (first.journey_id, second.journey_id, elsewhere.journey_id) == (1, 2, 1)
    assert (first.tenant_id, first.name, first.revision) == (1, NAME, 1)
    assert await read_draft(database, 1, 1) == first
    assert await read_draft(database, 2, 1) == elsewhere


async def test_the_document_carries_the_id_of_its_journey_whatever_it_said(
    database: Database,
) -> None:
    saved = await save_draft(database, 1, SOUND | {"journey_id": 99, "version": 7})

    stored = Graph.parse(saved.document)
    assert (stored.journey_id, stored.version) == (1, 0)
    assert stored.nodes == Graph.parse(SOUND).nodes


async def test_a_draft_may_be_as_unfinished_as_it_likes(database: Database) -> None:
    await save_draft(database, 1, {"nodes": [{"id": "t", "kind": "trigger"}]})
    await save_draft(database, 1, {})

    assert orjson.loads((await read_draft(database, 1, 1)).document) == {
        "journey_id": 1,
        "nodes": [{"id": "t", "kind": "trigger"}],
    }
    assert (await read_draft(database, 1, 2)).document == b'{"journey_id":2}'


async def test_steps_and_envelopes_are_taken_too(database: Database) -> None:
    steps = {"pause": {"type": "wait", "params": {"duration": "2d"}, "next": {"then": "over"}}}
    document = {"name": NAME, "graph": {"steps": steps, "entry": "pause"}}

    saved = await save_draft(database, 1, document)

    assert saved.name == NAME
    assert [node.id for node in Graph.parse(saved.document).nodes] == ["trigger", "pause"]


async def test_the_events_of_a_wait_stay_in_the_order_of_the_document(database: Database) -> None:
    """An inbound e-mail is both: the one that stands first wins."""
    ways = {"reply": "b", "inbound_email": "a"}
    ends = [{"id": "a", "kind": "exit"}, {"id": "b", "kind": "exit"}]
    late = {"timeout": "5d", "on_timeout": "a"}
    await save_draft(database, 1, journey(wait(kind="for_event", on=ways, **late), *ends))
    await publish(database, 1, 1)

    document, _ = await read_version(database, 1, 1)

    heard = orjson.loads(document)["nodes"][1]["wait"]["on"]
    assert list(heard) == ["reply", "inbound_email"]


async def test_saving_again_goes_on_from_the_last_revision(database: Database) -> None:
    await save_draft(database, 1, SOUND, name="cart")

    again = await save_draft(database, 1, CART, journey_id=1, expected_revision=1)
    renamed = await save_draft(database, 1, CART, journey_id=1, name="basket")

    assert (again.revision, again.name) == (2, "cart")
    assert (renamed.revision, renamed.name) == (3, "basket")
    assert await read_draft(database, 1, 1) == renamed


async def test_whoever_saves_over_somebody_else_is_told(database: Database) -> None:
    saved = await save_draft(database, 1, SOUND)
    await save_draft(database, 1, CART, journey_id=1, expected_revision=saved.revision)

    with pytest.raises(RevisionConflict) as told:
        await save_draft(database, 1, SOUND, journey_id=1, expected_revision=saved.revision)

    assert str(told.value) == (
        'The draft of journey "1" is at revision 2, expected 1. Read it again before you go on.'
    )
    assert (await read_draft(database, 1, 1)).revision == 2


async def test_of_two_who_save_at_once_one_is_told(database: Database, other: Database) -> None:
    await save_draft(database, 1, SOUND)
    for revision in range(1, ROUNDS + 1):
        done = await asyncio.gather(
            save_draft(database, 1, CART, journey_id=1, expected_revision=revision),
            save_draft(other, 1, SOUND, journey_id=1, expected_revision=revision),
            return_exceptions=True,
        )

        assert sorted(type(one).__name__ for one in done) == ["Draft", "RevisionConflict"]
        assert (await read_draft(database, 1, 1)).revision == revision + 1


async def test_a_new_journey_has_no_revision_to_expect(database: Database) -> None:
    with pytest.raises(RevisionConflict) as told:
        await save_draft(database, 1, SOUND, expected_revision=3)

    assert str(told.value) == "A new journey has no revision 3. Leave it out."
    assert await list_journeys(database, 1) == []


async def test_what_is_no_journey_is_refused_and_takes_no_id(database: Database) -> None:
    with pytest.raises(BadJson):
        await save_draft(database, 1, '{"nodes": [}')
    with pytest.raises(BadGraph):
        await save_draft(database, 1, {"nodes": None})
    with pytest.raises(BadJson) as told:
        await save_draft(database, 1, SOUND, name="a\0b")

    assert str(told.value) == "A text at name holds the character U+0000."
    assert (await save_draft(database, 1, SOUND)).journey_id == 1


async def test_a_document_that_nobody_could_read_again_is_refused(database: Database) -> None:
    """A value has no size until it is written; what is stored is read as text."""
    with pytest.raises(BadJson) as told:
        await save_draft(database, 1, journey(PARKED | {"label": "x" * 2**20}))

    assert told.value.code == "BODY_TOO_LARGE"
    assert await list_journeys(database, 1) == []


async def test_an_id_is_never_given_twice(database: Database) -> None:
    await save_draft(database, 1, SOUND)
    await save_draft(database, 1, SOUND)

    async def forget(connection: Any) -> None:
        await connection.execute(journeys.delete().where(journeys.c.journey_id == 2))

    await database.run(forget)

    assert (await save_draft(database, 1, SOUND)).journey_id == 3


@pytest.mark.parametrize("journey_id", [0, -1, 2, 2**70])
async def test_there_is_nothing_under_an_id_that_was_never_given(
    database: Database, journey_id: int
) -> None:
    await save_draft(database, 1, SOUND)

    for asked in (
        read_draft(database, 1, journey_id),
        save_draft(database, 1, CART, journey_id=journey_id),
        publish(database, 1, journey_id),
        read_version(database, 1, journey_id),
        stats(database, 1, journey_id),
    ):
        with pytest.raises(NoSuchJourney) as told:
            await asked
        assert str(told.value) == f'There is no journey "{journey_id}".'


async def test_what_belongs_to_somebody_else_is_as_if_it_were_not(database: Database) -> None:
    await save_draft(database, 1, SOUND)
    await publish(database, 1, 1)

    for asked in (
        read_draft(database, 2, 1),
        save_draft(database, 2, CART, journey_id=1),
        publish(database, 2, 1),
        read_version(database, 2, 1),
        stats(database, 2, 1),
    ):
        with pytest.raises(NoSuchJourney) as told:
            await asked
        assert str(told.value) == 'There is no journey "1".'
    assert await list_journeys(database, 2) == []


# --- publishing


async def test_a_published_draft_is_a_version_of_its_own(database: Database) -> None:
    await save_draft(database, 1, SOUND)
    published = await publish(database, 1, 1, account_timezone="Asia/Tehran")

    (row,) = await rows(database, select(versions))
    document, version = await read_version(database, 1, 1)
    assert published == Published(1, 1, sha256(document).hexdigest())
    assert version == 1
    stored = Graph.parse(document)
    assert (stored.journey_id, stored.version) == (1, 1)
    assert (row.document.encode(), row.sha256) == (document, published.sha256)
    assert (row.format, row.account_timezone, row.revision) == (1, "Asia/Tehran", 1)
    assert row.published_at == microseconds(START)
    assert await list_journeys(database, 1) == [JourneyRow(1, "", "published", 1, 0, 0)]


async def test_the_next_version_leaves_the_first_one_alone(database: Database) -> None:
    await save_draft(database, 1, SOUND)
    await publish(database, 1, 1)
    first, _ = await read_version(database, 1, 1)
    await save_draft(database, 1, CART, journey_id=1)

    assert (await publish(database, 1, 1)).version == 2

    document, version = await read_version(database, 1, 1)
    assert (Graph.parse(document).nodes, version) == (Graph.parse(CART).nodes, 2)
    assert await read_version(database, 1, 1, 1) == (first, 1)


async def test_a_draft_with_problems_does_not_go_out(database: Database) -> None:
    await save_draft(database, 1, journey(PARKED | {"next": "nowhere"}))

    with pytest.raises(NotReady) as told:
        await publish(database, 1, 1)

    assert str(told.value) == "This journey is not ready to publish yet"
    assert [problem.code for problem in told.value.problems] == ["DANGLING_EDGE"]
    with pytest.raises(NotPublishedYet):
        await read_version(database, 1, 1)


async def test_an_account_in_a_zone_that_does_not_exist_publishes_nothing(
    database: Database,
) -> None:
    await save_draft(database, 1, SOUND)

    with pytest.raises(NotReady) as told:
        await publish(database, 1, 1, account_timezone="Asia/Theran")

    assert [problem.code for problem in told.value.problems] == ["BAD_TIMEZONE"]


async def test_a_draft_that_changed_since_it_was_looked_at_does_not_go_out(
    database: Database,
) -> None:
    await save_draft(database, 1, SOUND)
    await save_draft(database, 1, CART, journey_id=1)

    with pytest.raises(RevisionConflict) as told:
        await publish(database, 1, 1, expected_revision=1)

    assert str(told.value) == (
        'The draft of journey "1" is at revision 2, expected 1. Read it again before you go on.'
    )
    assert (await publish(database, 1, 1, expected_revision=2)).version == 1


async def test_pressing_the_button_twice_is_no_second_version(database: Database) -> None:
    await save_draft(database, 1, SOUND)

    first = await publish(database, 1, 1)
    assert await publish(database, 1, 1) == first
    assert (await publish(database, 1, 1, account_timezone="Asia/Tehran")).version == 2
    await save_draft(database, 1, SOUND, journey_id=1)
    assert (await publish(database, 1, 1)).version == 3


async def test_a_revision_is_published_for_one_of_those_who_expect_it(database: Database) -> None:
    await save_draft(database, 1, SOUND)
    await publish(database, 1, 1, expected_revision=1)

    with pytest.raises(RevisionConflict) as told:
        await publish(database, 1, 1, expected_revision=1)

    assert str(told.value) == (
        'Revision 1 of journey "1" is published already, as version 1. '
        "Save a change before you publish it again."
    )


async def test_a_request_repeated_with_its_token_answers_the_same(database: Database) -> None:
    await save_draft(database, 1, SOUND)
    first = await publish(database, 1, 1, expected_revision=1, token="mine")
    await save_draft(database, 1, CART, journey_id=1)
    await publish(database, 1, 1)

    assert await publish(database, 1, 1, expected_revision=1, token="mine") == first
    assert (await read_version(database, 1, 1))[1] == 2


async def test_of_two_who_publish_at_once_one_is_told(database: Database, other: Database) -> None:
    await save_draft(database, 1, SOUND)
    for version in range(1, ROUNDS + 1):
        done = await asyncio.gather(
            publish(database, 1, 1, expected_revision=version),
            publish(other, 1, 1, expected_revision=version),
            return_exceptions=True,
        )

        assert sorted(type(one).__name__ for one in done) == ["Published", "RevisionConflict"]
        assert (await read_version(database, 1, 1))[1] == version
        await save_draft(database, 1, SOUND, journey_id=1)


async def test_of_two_who_publish_whatever_is_there_both_get_it(
    database: Database, other: Database
) -> None:
    for version in range(1, ROUNDS + 1):
        await save_draft(database, 1, SOUND, journey_id=1 if version > 1 else None)

        one, two = await asyncio.gather(publish(database, 1, 1), publish(other, 1, 1))

        assert one == two
        assert one.version == version


@pytest.mark.parametrize(
    ("status", "fix"),
    [("archived", "Save its draft as a new journey."), ("deleted", "Restore it first.")],
)
async def test_a_journey_that_was_put_away_is_not_published(
    database: Database, status: str, fix: str
) -> None:
    await save_draft(database, 1, SOUND)
    await put(database, status)

    with pytest.raises(NotPublishable) as told:
        await publish(database, 1, 1)

    assert str(told.value) == f'Journey "1" is {status} and cannot be published. {fix}'
    assert await rows(database, select(versions)) == []


async def test_a_paused_journey_stays_paused(database: Database) -> None:
    await save_draft(database, 1, SOUND)
    await put(database, "paused")

    await publish(database, 1, 1)

    assert await list_journeys(database, 1) == [JourneyRow(1, "", "paused", 1, 0, 0)]


class LosesAnswers(Database):
    """A connection that breaks after every first commit, before its answer arrives."""

    async def _write_once(self, work: Work[T]) -> T:
        done = await super()._write_once(work)
        if self.answers_lost % 2 == 0:
            self.answers_lost += 1
            raise ConnectionResetError
        self.answers_lost += 1
        return done

    answers_lost = 0


async def test_a_commit_whose_answer_was_lost_is_not_done_twice(database_url: str) -> None:
    database = LosesAnswers(database_url, clock=VirtualClock(START), chance=SeededChance(3))

    saved = await save_draft(database, 1, SOUND, name="cart")
    again = await save_draft(database, 1, CART, journey_id=saved.journey_id, expected_revision=1)
    published = await publish(database, 1, saved.journey_id, expected_revision=2)

    assert (saved.revision, again.revision, published.version) == (1, 2, 1)
    assert await read_draft(database, 1, saved.journey_id) == again
    assert [row.name for row in await list_journeys(database, 1)] == ["cart"]
    assert len(await rows(database, select(versions))) == 1
    assert database.answers_lost == 8  # an id, two drafts and a version, each of them twice
    await database.close()


# --- reading


async def test_a_journey_that_never_went_out_is_no_missing_journey(database: Database) -> None:
    await save_draft(database, 1, SOUND)

    for asked in (read_version(database, 1, 1), stats(database, 1, 1)):
        with pytest.raises(NotPublishedYet) as told:
            await asked
        assert str(told.value) == "this journey has no published version yet"


@pytest.mark.parametrize("version", [2, -1, 2**70])
async def test_a_version_that_never_was_is_told_apart(database: Database, version: int) -> None:
    await save_draft(database, 1, SOUND)
    await publish(database, 1, 1)

    with pytest.raises(NoSuchVersion) as told:
        await read_version(database, 1, 1, version)

    assert str(told.value) == f'Journey "1" has no version {version}; its latest is 1.'


async def test_the_list_counts_who_is_inside_in_two_statements(database: Database) -> None:
    for _ in range(3):
        await save_draft(database, 1, SOUND)
    await publish(database, 1, 2)
    await put(database, "deleted", journey_id=3)
    await park(database, journey_id=2, people=("ann", "bob"))
    await park(database, journey_id=2, people=("cem",), status="active")
    await park(database, journey_id=2, people=("dan",), status="completed", exit_reason="completed")
    await park(database, journey_id=2, people=("eve",), tenant_id=2)

    with counted(database) as statements:
        found = await list_journeys(database, 1)

    assert found == [
        JourneyRow(1, "", "draft", 0, 0, 0),
        JourneyRow(2, "", "published", 1, 1, 2),
    ]
    assert len(statements) == 2


async def test_statistics_add_up_what_every_worker_counted(database: Database) -> None:
    await save_draft(database, 1, SOUND)
    await publish(database, 1, 1)
    for shard, entered in enumerate((3, 4)):
        await count(database, node_id="t", shard=shard, entered=entered)
    await count(database, node_id="w", shard=0, entered=5, exited=2, suppressed=1)
    await count(database, node_id="w", shard=0, entered=9, version=2)
    await park(database, people=("ann", "bob"), current_node="w")
    await park(database, people=("cem",), current_node="w", version=2)
    await park(database, people=("dan",), status="exited", exit_reason="ejected")

    found = await stats(database, 1, 1)

    assert found == {"t": NodeStats(7, 0, 0, 0), "w": NodeStats(5, 2, 1, 2)}
    assert list(found) == ["t", "w"]
    assert orjson.dumps(list(found["t"])) == b"[7,0,0,0]"


async def test_every_node_is_in_the_statistics_before_anybody_came(database: Database) -> None:
    await save_draft(database, 1, SOUND)
    await publish(database, 1, 1)

    assert await stats(database, 1, 1, 1) == {"t": NodeStats(), "w": NodeStats()}


# --- what these tests put there by hand


async def rows(database: Database, query: Any) -> list[Any]:
    async def read(connection: Any) -> list[Any]:
        return list((await connection.execute(query)).all())

    return await database.read(read)


async def put(database: Database, status: str, journey_id: int = 1) -> None:
    async def work(connection: Any) -> None:
        await connection.execute(
            update(journeys).where(journeys.c.journey_id == journey_id).values(status=status)
        )

    await database.run(work)


async def park(
    database: Database, *, people: tuple[str, ...], journey_id: int = 1, **fields: Any
) -> None:
    """People in a journey; `fields` are columns of `instances`."""
    at = microseconds(START)
    row: Value = {
        "tenant_id": 1,
        "journey_id": journey_id,
        "version": 1,
        "entry_count": 1,
        "rev": 1,
        "status": "waiting",
        "current_node": "t",
        "entered_at": at,
        "updated_at": at,
        "entered_by": "e1",
        "variant": "",
        "is_holdout": False,
        "exit_reason": "",
        "state": "{}",
    }
    given = [row | fields | {"user_id": user_id} for user_id in people]
    await database.run(lambda connection: connection.execute(insert(instances), given))


async def count(database: Database, **fields: Any) -> None:
    """A row of `node_stats` with these columns."""
    row: Value = {"tenant_id": 1, "journey_id": 1, "version": 1, "exited": 0, "suppressed": 0}
    await database.run(lambda connection: connection.execute(insert(node_stats), [row | fields]))


@contextmanager
def counted(database: Database) -> Iterator[list[str]]:
    """The statements that the database is given meanwhile, without those that begin or end."""
    told: list[str] = []
    engine: Engine = database.engine.sync_engine

    def hear(_: Any, __: Any, statement: str, *___: Any) -> None:
        if statement != "BEGIN":
            told.append(statement)

    event.listen(engine, "before_cursor_execute", hear)
    yield told
    event.remove(engine, "before_cursor_execute", hear)
