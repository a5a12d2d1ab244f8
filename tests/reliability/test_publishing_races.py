"""Journeys change, or their documents go bad, while people are in them. Rows C34 to C36 and C39."""

from __future__ import annotations

import asyncio
from hashlib import sha256

import pytest
from sqlalchemy import select
from whenever import TimeDelta

import journeykit as jk
from journeykit_server import letters, people, publishing
from journeykit_server.database import Database
from journeykit_server.publishing import Published, RevisionConflict
from journeykit_server.runtime import Runtime
from journeykit_server.tables import instances, journal, messages, timers, versions
from journeykit_server.waking import Woken
from tests.databases import START
from tests.reliability.faults import Interrupted
from tests.reliability.stage import (
    A_LEASE,
    DAY,
    TENANT,
    execute,
    finish,
    happens,
    later,
    order,
    process,
    publish,
    read,
    reminder,
    republish,
    rows,
    taken,
    where,
)


async def test_c34_a_loop_that_comes_by_the_same_send_sends_each_time(database: Database) -> None:
    """Weekly, for 22 days: four messages under four ids."""
    journey = (
        jk.journey("Weekly").on_event("order").send(email=1, id="hello").wait("1w").go_to("hello")
    )
    runtime = await process(database, journey)
    await order(runtime, "ann")

    await finish(runtime, START + 22 * DAY)

    first = "j1.v1.hello.ann.e1"
    assert await taken(database) == {first: 1, f"{first}.n2": 1, f"{first}.n3": 1, f"{first}.n4": 1}
    assert len(await read(database, messages)) == 4


def greeting(template: int) -> jk.Journey:
    return (
        jk.journey("Greeting")
        .on_event("order")
        .wait("1d", id="rest")
        .send(email=template, id="hello")
        .exit()
    )


async def versions_walked(database: Database) -> dict[str, list[int]]:
    walked: dict[str, list[int]] = {}
    for row in await read(database, journal):
        walked.setdefault(row.user_id, []).append(row.version)
    return walked


async def test_c35_who_is_inside_ends_on_the_version_they_entered(
    database: Database, other: Database
) -> None:
    """Published between claim and walk, and again while others wait; a process that starts
    afterwards reads each version once and verifies its hash."""
    runtime = await process(database, greeting(1))
    await order(runtime, "ann")
    late = Interrupted(other)
    late.meanwhile = lambda: republish(database, greeting(2))
    later(database, DAY)
    assert await late.wake() == Woken(claimed=1, advanced=1)

    await late.reload()
    await order(late, "bob")
    assert await republish(database, greeting(3)) == 3
    fresh = Runtime(database)
    await order(fresh, "zoe")
    await finish(fresh, database.clock.now() + DAY)

    assert await versions_walked(database) == {"ann": [1, 1], "bob": [2, 2], "zoe": [3, 3]}
    assert sorted(await taken(database)) == [
        "j1.v1.hello.ann.e1",
        "j1.v2.hello.bob.e1",
        "j1.v3.hello.zoe.e1",
    ]
    for row in await read(database, versions):
        assert sha256(row.document.encode()).hexdigest() == row.sha256


async def test_c36_of_two_who_publish_one_draft_at_once_one_is_told_of_the_other(
    database: Database, other: Database
) -> None:
    await publish(database, reminder())
    for number in range(2, 7):
        draft = await publishing.save_draft(
            database, TENANT, greeting(number).graph.to_value(), journey_id=1
        )
        answers = await asyncio.gather(
            *(
                publishing.publish(each, TENANT, 1, expected_revision=draft.revision)
                for each in (database, other)
            ),
            return_exceptions=True,
        )
        done = [answer for answer in answers if isinstance(answer, Published)]
        assert [answer.version for answer in done] == [number]
        (refused,) = [answer for answer in answers if isinstance(answer, BaseException)]
        assert isinstance(refused, RevisionConflict)
        assert str(refused) == (
            f'Revision {number} of journey "1" is published already, as version {number}. '
            "Save a change before you publish it again."
        )

    assert [row.version for row in await read(database, versions)] == [1, 2, 3, 4, 5, 6]


async def test_c36_two_who_only_want_it_published_get_the_same_version(
    database: Database, other: Database
) -> None:
    await publish(database, reminder())
    for number in range(2, 5):
        document = greeting(number).graph.to_value()
        await publishing.save_draft(database, TENANT, document, journey_id=1)
        one, two = await asyncio.gather(
            *(publishing.publish(each, TENANT, 1) for each in (database, other))
        )
        assert one == two
        assert one.version == number


SPOILED = {
    "GRAPH_MISSING": (
        "DELETE FROM versions WHERE journey_id = 1",
        "The version 1 of journey 1 is not stored any more. "
        "Restore it from a backup and retry, or take its people out.",
    ),
    "GRAPH_HASH": (
        "UPDATE versions SET document = replace(document, 'hello', 'hallo') WHERE journey_id = 1",
        "The stored version 1 of journey 1 is not what was published: its hash differs. "
        "Restore it from a backup and retry, or take its people out.",
    ),
}


@pytest.mark.parametrize("code", SPOILED)
async def test_c39_a_document_that_is_gone_or_spoiled_is_a_dead_letter_and_no_loop(
    database: Database, code: str
) -> None:
    """People of other journeys are not held up; once the document is restored a retry suffices."""
    before = await process(database, greeting(1), reminder())
    await order(before, "ann")
    kept = (await rows(database, select(versions).where(versions.c.journey_id == 1)))[0]
    spoil, message = SPOILED[code]
    await execute(database, spoil)
    runtime = Runtime(database)
    later(database, DAY)

    assert await runtime.wake() == Woken(claimed=2, advanced=1, dead=1)
    later(database, A_LEASE)
    assert await runtime.wake() == Woken()

    (letter,) = await letters.list_letters(database, TENANT)
    assert (letter.code, letter.message, letter.node_id) == (code, message, "rest")
    assert (letter.attempts, letter.version) == (1, 1)
    (place, _) = await people.where_is(database, TENANT, "ann")
    assert place.stuck is not None and place.stuck.code == code

    await database.run(lambda c: c.execute(versions.delete().where(versions.c.journey_id == 1)))
    await database.run(lambda c: c.execute(versions.insert().values(kept._asdict())))
    await letters.retry(database, TENANT, letter.letter_id)
    await finish(Runtime(database))
    assert await where(database) == [
        (1, "completed", "exit", 2),
        (2, "completed", "exit", 2),
    ]


async def test_c39_an_event_for_somebody_in_a_spoiled_version_is_kept_for_later(
    database: Database,
) -> None:
    """It is stored and told as a dead letter; taking the person out needs no document at all."""
    before = await process(database, greeting(1))
    await order(before, "ann")
    await execute(database, SPOILED["GRAPH_MISSING"][0])
    runtime = Runtime(database)

    receipt = await runtime.ingest(TENANT, [happens("anything")])
    assert receipt.accepted == 1
    later(database, A_LEASE)
    await finish(runtime)
    (letter,) = await letters.list_letters(database, TENANT)
    assert (letter.kind, letter.code) == ("event", "GRAPH_MISSING")

    assert await runtime.eject(TENANT, 1, "ann")
    assert await where(database) == [(1, "exited", "rest", 2)]
    assert await read(database, timers) == []
    assert [row.exit_reason for row in await read(database, instances)] == ["ejected"]
    await letters.skip(database, TENANT, letter.letter_id)
    assert later(database, TimeDelta()) < START + DAY
