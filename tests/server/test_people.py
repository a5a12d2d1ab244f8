"""Where somebody is, how they came there, and what became of the messages on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from sqlalchemy import delete, insert
from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import Instant, TimeDelta

from journeykit_engine import journal as engine_journal
from journeykit_engine.graph import Graph
from journeykit_engine.instance import Assignment, Instance, Person, Wait
from journeykit_engine.program import Program, compile_graph
from journeykit_engine.signal import Event
from journeykit_engine.walk import Step, react
from journeykit_server import letters, outbox
from journeykit_server.clock import instant, microseconds
from journeykit_server.database import Database
from journeykit_server.delivery import (
    Deferred,
    Delivered,
    Failed,
    Held,
    Item,
    Outcome,
    Refused,
    Suppressed,
)
from journeykit_server.people import (
    NoSuchPerson,
    Outgoing,
    Place,
    Stuck,
    Whereabouts,
    outgoing,
    timeline,
    where_is,
)
from journeykit_server.publishing import publish, save_draft
from journeykit_server.rows import INSTANCE_COLUMNS, instance_key, instance_values
from journeykit_server.tables import NEVER_BUCKET, instances, journal, profiles, timers
from tests.databases import START
from tests.engine.journeys import Value, journey, wait

ANN = "ann"
DAY = TimeDelta(hours=24)
ASK = journey(
    {
        "id": "hello",
        "kind": "action",
        "next": "w",
        "action": {"kind": "send", "channel": "email", "template_id": 1},
    },
    wait(kind="for_event", event="paid", timeout="5d", on_timeout="end") | {"next": "end"},
    {"id": "end", "kind": "exit"},
)


# --- where somebody is


async def test_somebody_who_waits_is_where_they_wait(database: Database) -> None:
    program = await published(database, name="welcome")
    await meet(database, ANN)
    await keep(database, react(program, Person(ANN), None, Event("signed_up", START, "e1")))

    assert await where_is(database, 1, ANN) == [
        Whereabouts(
            journey_id=1,
            name="welcome",
            version=1,
            entry_count=1,
            status="waiting",
            node="w",
            entered_at=START,
            since=START,
            wake_at=START + 5 * DAY,
            waits_for=("paid",),
            variant="",
            is_holdout=False,
            exit_reason="",
            paused_at=None,
            stuck=None,
        )
    ]


async def test_somebody_who_went_through_is_where_they_ended(database: Database) -> None:
    program = await published(database)
    await meet(database, ANN)
    paid = START + DAY
    await go_through(database, program, paid)

    (found,) = await where_is(database, 1, ANN)

    assert (found.status, found.node, found.exit_reason) == ("completed", "end", "completed")
    assert (found.entered_at, found.since) == (START, paid)
    assert (found.wake_at, found.waits_for) == (None, ())


async def test_a_wait_is_told_from_when_it_began(database: Database) -> None:
    """A pause moves the person's last change, not the wait."""
    await meet(database, ANN)
    waits = Wait("w", "event", START, None, ("reply", "paid"))
    paused = START + DAY
    held = standing()._replace(wait=waits, updated_at=paused, paused_at=paused)
    await put(database, held._replace(variant="B", is_holdout=True))

    (found,) = await where_is(database, 1, ANN)

    assert (found.since, found.paused_at, found.wake_at) == (START, paused, None)
    assert found.waits_for == ("reply", "paid")
    assert (found.variant, found.is_holdout) == ("B", True)


async def test_every_journey_is_told_in_the_order_of_its_id(database: Database) -> None:
    for name in ("first", "second", "third"):
        await published(database, name=name)
    await meet(database, ANN)
    await meet(database, "bob")
    for journey_id in (3, 1):
        await put(database, standing()._replace(journey_id=journey_id))
    await put(database, standing()._replace(journey_id=2, user_id="bob"))

    found = await where_is(database, 1, ANN)

    assert [(one.journey_id, one.name) for one in found] == [(1, "first"), (3, "third")]


async def test_somebody_whose_timer_is_dead_is_stuck(database: Database) -> None:
    await meet(database, ANN)
    for journey_id in (1, 2):
        await put(database, standing()._replace(journey_id=journey_id))
    await schedule(database, journey_id=1, bucket=NEVER_BUCKET)
    await schedule(database, journey_id=2, bucket=1)
    for journey_id in (1, 2):  # of the second only the letter is left, its timer goes on
        await bury(database, journey_id)

    first, second = await where_is(database, 1, ANN)

    assert first.stuck == Stuck("timer:1:ann", "STEP_LIMIT", "It went in circles.", START)
    assert second.stuck is None


async def test_somebody_known_who_is_nowhere_has_nothing_to_tell(database: Database) -> None:
    await meet(database, ANN)

    assert await where_is(database, 1, ANN) == []
    assert await timeline(database, 1, ANN) == ([], None)
    assert await outgoing(database, 1, ANN) == []


@pytest.mark.parametrize("user_id", ["bob", "an", "ann\0", "\ud800", ""])
async def test_nobody_is_found_who_was_never_heard_of(database: Database, user_id: str) -> None:
    await meet(database, ANN)

    await nobody(database, 1, user_id)


async def test_the_people_of_another_tenant_are_as_if_they_were_not(database: Database) -> None:
    await meet(database, ANN)
    await put(database, standing())

    await nobody(database, 2, ANN)


async def nobody(database: Database, tenant_id: int, user_id: str) -> None:
    for asked in (where_is, timeline, outgoing):
        with pytest.raises(NoSuchPerson) as told:
            await asked(database, tenant_id, user_id)
        assert str(told.value) == f'There is no person "{user_id}".'


# --- how they came there


async def test_the_timeline_tells_every_step_and_its_cause(database: Database) -> None:
    program = await published(database)
    await meet(database, ANN)
    await go_through(database, program, START + DAY)

    records, after = await timeline(database, 1, ANN)

    step = {"journey_id": 1, "version": 1, "entry": 1}
    first = {"at": "2026-06-01T10:00:00Z", "cause": "e1"} | step
    second = {"at": "2026-06-02T10:00:00Z", "cause": "e2"} | step
    message_id = "j1.v1.hello.ann.e1"
    effect = {
        "kind": "send",
        "message_id": message_id,
        "channel": "email",
        "template_id": 1,
        "category": "marketing",
        "priority": 50,
        "budget": "default",
    }
    sent = {"what": "effect", "node_id": "hello", "message_id": message_id, "effect": effect}
    waits = {"what": "waiting", "until": "2026-06-06T10:00:00Z", "events": ["paid"]}
    assert records == [
        first | {"what": "entered", "node_id": "t", "caused_by": "e1"},
        first | {"what": "visited", "node_id": "t"},
        first | {"what": "visited", "node_id": "hello"},
        first | sent,
        first | {"what": "visited", "node_id": "w"},
        first | waits | {"node_id": "w"},
        second | {"what": "woke", "node_id": "w", "branch": "paid", "woken_by": "e2"},
        second | {"what": "visited", "node_id": "end"},
        second | {"what": "exited", "node_id": "end", "reason": "completed"},
    ]
    assert after is None


async def test_a_timeline_is_turned_page_by_page(database: Database) -> None:
    """Two journeys at the same moments: no step is told twice, and none is left out."""
    programs = [await published(database), await published(database)]
    await meet(database, ANN)
    for program in programs:
        await go_through(database, program, START + DAY)
    everything, _ = await timeline(database, 1, ANN)

    page = await timeline(database, 1, ANN, first=1)
    pages = [page.records]
    while page.after is not None and len(pages) < 9:  # or a wrong turn would never end
        page = await timeline(database, 1, ANN, after=page.after, first=1)
        pages.append(page.records)

    assert [page[0]["journey_id"] for page in pages] == [1, 2, 1, 2]
    assert [record for page in pages for record in page] == everything


async def test_a_page_says_where_the_next_one_begins(database: Database) -> None:
    program = await published(database)
    await meet(database, ANN)
    await go_through(database, program, START + DAY)

    first = await timeline(database, 1, ANN, first=0)  # a page has one step at least
    second = await timeline(database, 1, ANN, after=first.after)

    assert first.after == Place(microseconds(START), 1, 1, 0)
    assert [record["what"] for record in second.records] == ["woke", "visited", "exited"]


async def test_a_timeline_may_be_of_one_journey(database: Database) -> None:
    programs = [await published(database), await published(database)]
    await meet(database, ANN)
    for program in programs:
        await go_through(database, program, START + DAY)

    records, _ = await timeline(database, 1, ANN, journey_id=2)

    assert {record["journey_id"] for record in records} == {2}
    assert len(records) == 9


async def test_what_moved_nobody_stands_beside_what_did(database: Database) -> None:
    """At one revision: two attempts that failed, the step, and an entry that was refused."""
    await meet(database, ANN)
    for step, what in ((7, "refused"), (0, "visited"), (-1, "error"), (-2, "error")):
        line = orjson.dumps({"what": what, "node_id": str(step)}).decode()
        await tell(database, step=step, trail=f"{line}\n")

    records, _ = await timeline(database, 1, ANN)

    assert [record["node_id"] for record in records] == ["-2", "-1", "0", "7"]


async def test_a_text_in_a_record_may_hold_any_end_of_line(database: Database) -> None:
    await meet(database, ANN)
    text = "a\u2028b\u0085c\nd"
    lines = [{"what": "noted", "node_id": "w", "note": text}, {"what": "visited", "node_id": "w"}]
    await tell(database, trail="".join(f"{orjson.dumps(line).decode()}\n" for line in lines))

    records, _ = await timeline(database, 1, ANN)

    assert [record.get("note") for record in records] == [text, None]


# --- what was sent to them


class Answers:
    """A provider that has an answer for each message."""

    def __init__(self, answers: dict[str, Outcome]) -> None:
        self.answers = answers

    async def deliver(self, items: Sequence[Item]) -> list[Outcome]:
        return [self.answers[item.message_id] for item in items]


async def nobody_enters(tenant_id: int, items: Sequence[Item]) -> Sequence[Outcome]:
    raise AssertionError("no effect here enters a journey")


async def test_every_message_is_told_with_what_became_of_it(database: Database) -> None:
    await meet(database, ANN)
    answers: dict[str, Outcome] = {
        "m1": Delivered("sms"),
        "m2": Suppressed("unsubscribed"),
        "m3": Refused("NO_TEMPLATE", "There is no template 9."),
        "m4": Failed("503"),
        "m6": Suppressed("missing_personalisation", "event.rank, name"),
        "m7": Deferred(START + TimeDelta(hours=8), "quiet_hours"),
        "m8": Held(),
    }
    for journey_id, message_id in enumerate(answers, 1):
        await want(database, message_id, journey_id=journey_id, position=0)
    await want(database, "m5", journey_id=4, position=1)
    await outbox.Outbox(database, Answers(answers), nobody_enters).deliver_once()

    found = await outgoing(database, 1, ANN)

    assert [(one.message_id, one.state, one.reason, one.attempts) for one in found] == [
        ("m1", "delivered", "", 1),
        ("m2", "suppressed", "unsubscribed", 1),
        ("m3", "dead", "NO_TEMPLATE: There is no template 9.", 1),
        ("m4", "queued", "503", 1),
        ("m5", "queued", "", 0),
        ("m6", "suppressed", "missing_personalisation: event.rank, name", 1),
        ("m7", "deferred", "quiet_hours", 0),
        ("m8", "queued", found[7].reason, 0),
    ]
    assert [one.channel for one in found] == ["sms", *["email"] * 7]
    assert (found[6].at, found[7].at) == (START + TimeDelta(hours=8), None)
    assert found[0] == Outgoing(
        message_id="m1",
        journey_id=1,
        version=1,
        entry_count=1,
        node_id="hello",
        kind="send",
        channel="sms",
        state="delivered",
        reason="",
        attempts=1,
        created_at=START,
        at=START,
    )
    assert found[2] == found[0]._replace(
        message_id="m3", journey_id=3, channel="email", state="dead", reason=found[2].reason
    )
    assert found[3].at is not None and found[3].at > START  # when it is tried again


async def test_messages_are_turned_page_by_page(database: Database) -> None:
    await meet(database, ANN)
    answers: dict[str, Outcome] = {
        "m4": Delivered(),
        "m2": Suppressed("capped"),
        "m1": Refused("NO_TEMPLATE", "There is no template 9."),
        "m3": Failed("503"),
    }
    for journey_id, message_id in enumerate(answers, 1):
        await want(database, message_id, journey_id=journey_id, position=0)
    await outbox.Outbox(database, Answers(answers), nobody_enters).deliver_once()
    later = microseconds(START) + 1
    await want(database, "m0", journey_id=9, position=0, created_at=later)

    told = await outgoing(database, 1, ANN, first=2)
    for _ in range(3):
        told += await outgoing(database, 1, ANN, first=2, after=told[-1].place)

    assert [one.message_id for one in told] == ["m1", "m2", "m3", "m4", "m0"]
    assert told[-1].created_at == instant(later)
    assert await outgoing(database, 1, ANN, first=-1) == []


async def test_messages_may_be_of_one_journey(database: Database) -> None:
    await meet(database, ANN)
    for journey_id, message_id in ((1, "m1"), (2, "m2")):
        await want(database, message_id, journey_id=journey_id, position=0)

    found = await outgoing(database, 1, ANN, journey_id=2)

    assert [one.message_id for one in found] == ["m2"]


# --- what these tests put there by hand


async def published(database: Database, name: str = "") -> Program:
    """The next journey, which asks for a payment, with its first version."""
    saved = await save_draft(database, 1, ASK, name=name)
    await publish(database, 1, saved.journey_id)
    own = {"journey_id": saved.journey_id, "version": 1}
    return compile_graph(Graph.parse(ASK | own), "UTC", tenant_id=1)


async def go_through(database: Database, program: Program, paid: Instant) -> None:
    """Ann signs up at `START` and pays later."""
    entered = react(program, Person(ANN), None, Event("signed_up", START, "e1"))
    await keep(database, entered)
    inside = entered[-1].instance
    await keep(database, react(program, Person(ANN), inside, Event("paid", paid, "e2")), rev=2)


async def keep(database: Database, steps: Sequence[Step], rev: int = 1) -> None:
    """Store the one step that an event led to."""
    (step,) = steps
    assert step.instance is not None
    sums = engine_journal.Sums(Graph())
    trail = engine_journal.tails(orjson.dumps, sums)(step.trail).decode()
    await put(database, step.instance, rev)
    own = {"journey_id": step.instance.journey_id, "rev": rev, "cause": f"e{rev}"}
    await tell(database, **own, at=microseconds(step.at), trail=trail)


def standing() -> Instance:
    """Somebody who waits at "w" since `START`."""
    return Instance(
        tenant_id=1,
        journey_id=1,
        version=1,
        user_id=ANN,
        entry_count=1,
        status="waiting",
        current_node="w",
        entered_at=START,
        updated_at=START,
        assignments={"s": Assignment("A", False)},
        wait=Wait("w", "timer", START, None),
    )


async def put(database: Database, instance: Instance, rev: int = 1) -> None:
    """Where somebody is now, in the place of where they were."""
    key, values = instance_key(instance), instance_values(instance, rev)
    row = dict(zip(INSTANCE_COLUMNS, (*key, *values), strict=True))

    async def work(connection: AsyncConnection) -> None:
        here = [instances.c[name] == row[name] for name in ("tenant_id", "user_id", "journey_id")]
        await connection.execute(delete(instances).where(*here))
        await connection.execute(insert(instances), [row])

    await database.run(work)


async def meet(database: Database, user_id: str) -> None:
    row: Value = {"tenant_id": 1, "user_id": user_id, "traits": {}, "written_at": "{}"}
    row |= {"created_at": microseconds(START), "updated_at": microseconds(START)}
    await database.run(lambda c: c.execute(insert(profiles), [row]))


async def tell(database: Database, **fields: Any) -> None:
    """A row of the journal; `fields` are its columns."""
    row: Value = {"journey_id": 1, "rev": 1, "step": 0, "version": 1, "entry_count": 1}
    row |= {"tenant_id": 1, "user_id": ANN, "at": microseconds(START), "cause": ""} | fields
    await database.run(lambda c: c.execute(insert(journal), [row]))


async def schedule(database: Database, *, journey_id: int, bucket: int) -> None:
    row: Value = {"tenant_id": 1, "user_id": ANN, "journey_id": journey_id, "version": 1}
    row |= {"rev": 1, "due": 0, "bucket": bucket, "try_at": 0, "attempts": 1, "last_error": ""}
    await database.run(lambda c: c.execute(insert(timers), [row]))


async def bury(database: Database, journey_id: int) -> None:
    """The dead letter of ann's timer in a journey."""
    letter = letters.Letter(
        tenant_id=1,
        letter_id=letters.timer_letter_id(journey_id, ANN),
        kind="timer",
        user_id=ANN,
        journey_id=journey_id,
        version=1,
        node_id="w",
        code="STEP_LIMIT",
        message="It went in circles.",
        attempts=1,
        first_at=START,
        last_at=START + DAY,
        payload={},
    )
    await database.run(lambda c: letters.INSERT_LETTERS.run(c, [letters.letter_row(letter)]))


async def want(
    database: Database,
    message_id: str,
    *,
    journey_id: int,
    position: int,
    created_at: int = microseconds(START),
) -> None:
    """A message to ann that is still to be sent."""
    row = outbox.OutboxRow(
        tenant_id=1,
        message_id=message_id,
        user_id=ANN,
        journey_id=journey_id,
        version=1,
        entry_count=1,
        rev=1,
        position=position,
        node_id="hello",
        kind="send",
        payload='{"channel":"email"}',
        is_holdout=False,
        created_at=created_at,
        try_at=created_at,
    )
    await database.run(lambda c: outbox.INSERT_OUTBOX.run(c, [row]))
