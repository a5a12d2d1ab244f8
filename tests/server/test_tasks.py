"""Journeys ask people to call and to write; what came of it moves their customers on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from journeykit_engine.steps import from_steps
from journeykit_server.database import Database
from journeykit_server.incoming import MOST_ID_CHARACTERS
from journeykit_server.publishing import save_draft
from journeykit_server.runtime import Runtime
from journeykit_server.tables import events, tasks
from journeykit_server.tasks import (
    BadOutcome,
    NoSuchTask,
    Task,
    TaskClosed,
    cancel_task,
    complete_task,
    list_tasks,
    read_task,
)
from journeykit_server.verify import verify
from tests.databases import START
from tests.engine.journeys import Value
from tests.engine.walking import END, days, node, wait_for_any
from tests.server.shop import Shop, later, track

RING = "j1.v1.ring.ann.e1"


@pytest.fixture
async def shop(database: Database) -> Shop:
    return Shop(database)


def task(own: str, then: str = "", kind: str = "call", **config: Any) -> Value:
    return node(own, "action", {"kind": "task", "task": kind, "title": "Ring", **config}, then)


async def gives(shop: Shop, *nodes: Value, user_id: str = "ann") -> None:
    """A journey of these nodes gives somebody its first tasks."""
    await shop.opens(*nodes)
    await shop.hears(track(user_id, "signed_up"))
    await shop.runtime.deliver()


async def says(shop: Shop, steps: Value) -> int:
    """Publish a journey in steps, entered by a call."""
    document = from_steps({"steps": steps, "entry": next(iter(steps))}).to_value()
    draft = await save_draft(shop.database, 1, document)
    await shop.runtime.publish(1, draft.journey_id)
    return draft.journey_id


async def test_a_task_is_on_the_list_once_its_journey_has_given_it(shop: Shop) -> None:
    await gives(shop, task("ring", "w", connected_outcomes=["spoke"]), days(3))

    listed = await list_tasks(shop.database, 1)

    assert listed == [
        Task(
            *(RING, "ann", 1, 1, 1, "ring", "call", "Ring", ("spoke",)),
            *("open", "", "", "", START, None),
        )
    ]
    assert await read_task(shop.database, 1, RING) == listed[0]
    assert await list_tasks(shop.database, 2) == []


async def test_a_completed_task_is_one_event_and_off_the_list(shop: Shop) -> None:
    await gives(shop, task("ring", "w"), days(3))
    shop.clock.set(later(hours=2))

    done = await complete_task(shop.runtime, 1, RING, "no_answer", "sam", "rang twice")

    assert (done.status, done.outcome, done.note) == ("completed", "no_answer", "rang twice")
    assert (done.completed_by, done.completed_at) == ("sam", later(hours=2))
    assert await list_tasks(shop.database, 1) == []
    (told,) = [row for row in await shop.rows(events) if row.name == "task_completed"]
    assert (told.event_id, told.source, told.user_id) == (f"task-{RING}", "task", "ann")
    assert told.properties == {
        "task_id": RING,
        "task": "call",
        "outcome": "no_answer",
        "connected": False,
        "journey_id": 1,
        "version": 1,
        "entry_count": 1,
        "node_id": "ring",
    }


@pytest.mark.parametrize(
    ("kind", "outcomes", "outcome", "way"),
    [
        ("call", [], "connected", "call_connected"),
        ("call", [], "voicemail", ""),
        ("call", ["spoke", "called back"], "called back", "call_connected"),
        ("call", ["spoke"], "connected", ""),
        ("custom", ["spoke"], "spoke", "call_connected"),
        ("linkedin_message", [], "replied", "reply:linkedin"),
        ("linkedin_message", [], "sent", ""),
        ("linkedin_connect", [], "accepted", "connection_accepted"),
        ("linkedin_connect", [], "declined", ""),
    ],
)
async def test_an_outcome_wakes_who_waits_for_what_it_means(
    shop: Shop, kind: str, outcomes: list[str], outcome: str, way: str
) -> None:
    on = dict.fromkeys(("call_connected", "reply:linkedin", "connection_accepted"), "end")
    ring = task("ring", "w", kind, connected_outcomes=outcomes)
    await gives(shop, ring, wait_for_any(on=on, timeout="5d"), END)

    await complete_task(shop.runtime, 1, RING, outcome)

    told = await shop.told("ann")
    assert [line for line in told if line.startswith("woke")] == ([f"woke w {way}"] if way else [])
    assert await shop.where("ann") == ("completed end" if way else "waiting w")


async def test_another_journeys_connected_call_counts_by_its_own_outcomes(shop: Shop) -> None:
    """Both have a task "ring"; only in the second one "spoke" is a connected call."""
    heard = {"call_connected": "end"}
    await gives(shop, task("ring", "w"), wait_for_any(on=heard), END)
    await gives(shop, task("ring", "w", connected_outcomes=["spoke"]), days(9), user_id="bob")
    await shop.hears(track("ann", "signed_up", "again"))
    await shop.runtime.deliver()

    await complete_task(shop.runtime, 1, "j2.v1.ring.ann.e1", "spoke")

    assert (await shop.told("ann", 1))[-3] == "woke w call_connected"
    assert await shop.where("ann", 2) == "waiting w"


async def test_the_wait_behind_a_task_is_closed_by_its_own_task_alone(shop: Shop) -> None:
    """Two journeys with the same steps, in one of them a second task of the same person."""
    steps: Value = {
        "ring": {"type": "call", "params": {"title": "Ring"}, "next": {"then": "write"}},
        "write": {"type": "linkedin_message", "params": {"title": "Write"}},
    }
    for _ in range(2):
        await shop.runtime.enter(1, await says(shop, steps), ["ann"])
    await shop.runtime.deliver()

    await complete_task(shop.runtime, 1, "j2.v1.ring.ann.e1", "voicemail")

    assert await shop.where("ann", 1) == "waiting ring:done"
    assert await shop.where("ann", 2) == "waiting write:done"

    await shop.runtime.deliver()
    await complete_task(shop.runtime, 1, RING, "voicemail")
    assert await shop.where("ann", 1) == "waiting write:done"
    assert await shop.where("ann", 2) == "waiting write:done"


async def test_a_task_of_an_earlier_pass_does_not_close_the_wait_of_the_next(shop: Shop) -> None:
    steps: Value = {"ring": {"type": "call", "params": {"timeout": "1d"}}}
    document = from_steps({"steps": steps, "entry": "ring", "entry_rule": "every_time"})
    draft = await save_draft(shop.database, 1, document.to_value())
    await shop.runtime.publish(1, draft.journey_id)
    await shop.runtime.enter(1, 1, ["ann"])
    await shop.runtime.deliver()
    await shop.wakes(later(days=1))
    await shop.runtime.enter(1, 1, ["ann"])
    await shop.runtime.deliver()

    listed = await list_tasks(shop.database, 1)
    assert [(each.task_id[-2:], each.pass_ended) for each in listed] == [
        *(("e1", True), ("e2", False))
    ]
    late = await complete_task(shop.runtime, 1, RING, "connected")
    assert (late.status, await shop.where("ann")) == ("completed", "waiting ring:done")

    await complete_task(shop.runtime, 1, "j1.v1.ring.ann.e2", "connected")
    assert (await shop.where("ann")).startswith("completed")


async def test_the_list_tells_which_tasks_nobody_waits_for(shop: Shop) -> None:
    """Somebody who said STOP is not to be called, and bob, who is still inside, is."""
    await gives(shop, task("ring", "w"), days(3))
    await shop.hears(track("bob", "signed_up"))
    await shop.runtime.deliver()
    assert [each.pass_ended for each in await list_tasks(shop.database, 1)] == [False, False]

    await shop.hears(track("ann", "inbound_sms", text="STOP"))

    told = {each.user_id: each.pass_ended for each in await list_tasks(shop.database, 1)}
    assert told == {"ann": True, "bob": False}
    assert (await read_task(shop.database, 1, RING)).pass_ended
    assert not (await complete_task(shop.runtime, 1, RING, "done")).pass_ended
    closed = await read_task(shop.database, 1, RING)
    assert (closed.status, closed.pass_ended) == ("completed", False)


async def test_a_task_whose_pass_has_ended_is_kept_and_wakes_nobody(shop: Shop) -> None:
    await gives(shop, task("ring", "end"), END)
    before = await shop.told("ann")

    assert (await complete_task(shop.runtime, 1, RING, "connected")).status == "completed"

    assert await shop.told("ann") == before
    assert await verify(shop.database) == []


async def test_completing_again_gives_the_same_and_another_outcome_is_refused(shop: Shop) -> None:
    await gives(shop, task("ring", "w"), days(3))
    first = await complete_task(shop.runtime, 1, RING, "connected", "sam")
    shop.clock.set(later(days=1))

    assert await complete_task(shop.runtime, 1, RING, "connected", "joe", "me too") == first
    with pytest.raises(TaskClosed) as refused:
        await complete_task(shop.runtime, 1, RING, "voicemail", "joe")

    assert str(refused.value) == f'The task "{RING}" was completed with "connected" already.'
    assert await read_task(shop.database, 1, RING) == first


class Dies(Runtime):
    """A process that is gone once the event has done all that it does, before the commit."""

    async def receive(self, *given: Any) -> Any:
        await super().receive(*given)
        raise RuntimeError("the process is gone")


async def test_after_a_crash_the_task_is_open_and_nobody_has_heard_of_it(shop: Shop) -> None:
    await gives(shop, task("ring", "w"), wait_for_any(on={"call_connected": "end"}), END)
    with pytest.raises(RuntimeError):
        await complete_task(Dies(shop.database), 1, RING, "voicemail", "sam")
    assert (await read_task(shop.database, 1, RING)).status == "open"
    assert [row for row in await shop.rows(events) if row.name == "task_completed"] == []

    done = await complete_task(shop.runtime, 1, RING, "connected", "sam")

    assert (done.status, done.completed_by) == ("completed", "sam")
    assert await shop.where("ann") == "completed end"


async def test_a_completion_whose_answer_was_lost_is_one_event(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    await gives(shop, task("ring", "w"), wait_for_any(on={"call_connected": "end"}), END)
    run = shop.database.run

    async def twice(work: Any) -> Any:
        await run(work)
        return await run(work)

    monkeypatch.setattr(shop.database, "run", twice)
    done = await complete_task(shop.runtime, 1, RING, "connected", "sam")

    assert (done.status, done.completed_by) == ("completed", "sam")
    assert len([row for row in await shop.rows(events) if row.name == "task_completed"]) == 1


async def test_of_many_who_complete_it_at_once_one_outcome_counts(shop: Shop) -> None:
    await gives(shop, task("ring", "w"), days(3))

    told = await asyncio.gather(
        *(complete_task(shop.runtime, 1, RING, f"said {i % 2}", f"p{i}") for i in range(6)),
        return_exceptions=True,
    )

    done = await read_task(shop.database, 1, RING)
    assert [type(one) for one in told].count(Task) == 3
    assert [type(one) for one in told].count(TaskClosed) == 3
    assert {one.outcome for one in told if isinstance(one, Task)} == {done.outcome}
    assert len([row for row in await shop.rows(events) if row.name == "task_completed"]) == 1


async def test_a_cancelled_task_wakes_nobody_and_cannot_be_completed(shop: Shop) -> None:
    await gives(shop, task("ring", "w"), wait_for_any(on={"task_completed": "end"}), END)

    gone = await cancel_task(shop.database, 1, RING, "sam", "not needed")
    assert (gone.status, gone.note, gone.completed_at) == ("cancelled", "not needed", START)
    assert await cancel_task(shop.database, 1, RING) == gone

    with pytest.raises(TaskClosed) as refused:
        await complete_task(shop.runtime, 1, RING, "connected")
    assert str(refused.value) == (
        f'The task "{RING}" is cancelled. Nothing more can be said of it.'
    )
    assert await shop.where("ann") == "waiting w"


async def test_a_completed_task_is_not_cancelled(shop: Shop) -> None:
    await gives(shop, task("ring", "w"), days(3))
    await complete_task(shop.runtime, 1, RING, "connected")

    with pytest.raises(TaskClosed) as refused:
        await cancel_task(shop.database, 1, RING)
    assert str(refused.value) == f'The task "{RING}" was completed with "connected" already.'


async def test_a_task_that_does_not_exist_is_told(shop: Shop) -> None:
    await gives(shop, task("ring", "w"), days(3))

    for tenant_id, task_id, shown in (
        (1, "x", '"x"'),
        (2, RING, f'"{RING}"'),
        (1, "\0", r'"\u0000"'),
    ):
        with pytest.raises(NoSuchTask) as refused:
            await complete_task(shop.runtime, tenant_id, task_id, "connected")
        assert str(refused.value) == f"There is no task {shown}."
    assert (await read_task(shop.database, 1, RING)).status == "open"


@pytest.mark.parametrize(
    ("outcome", "by", "note", "message"),
    [
        (
            *(" ", "sam", ""),
            'The task has no outcome. Say what came of it, as "connected" or "no_answer".',
        ),
        ("o" * 201, "", "", "The outcome has 201 characters, more than 200. Shorten it."),
        (
            *("done", "b" * 201, ""),
            "The name of who did it has 201 characters, more than 200. Shorten it.",
        ),
        ("done", "", "n" * 10_001, "The note has 10001 characters, more than 10000. Shorten it."),
    ],
)
async def test_an_outcome_that_says_nothing_is_refused(
    shop: Shop, outcome: str, by: str, note: str, message: str
) -> None:
    with pytest.raises(BadOutcome) as refused:
        await complete_task(shop.runtime, 1, RING, outcome, by, note)
    assert str(refused.value) == message


async def test_a_task_of_the_longest_names_can_be_completed(shop: Shop) -> None:
    """Its id is longer than an event's may be."""
    name, user_id = "n." * 100, "u." * 100
    await gives(
        shop, task(name, "w"), wait_for_any(on={"call_connected": "end"}), END, user_id=user_id
    )
    (given,) = await list_tasks(shop.database, 1)

    await complete_task(shop.runtime, 1, given.task_id, "connected")

    assert len(given.task_id) > MOST_ID_CHARACTERS
    assert await shop.where(user_id) == "completed end"


async def test_tasks_are_listed_page_by_page(shop: Shop) -> None:
    await shop.opens(task("ring", "write"), task("write", "w", "linkedin_message"), days(3))
    for number, user_id in enumerate(("ann", "bob", "cyd")):
        shop.clock.set(later(minutes=number))
        await shop.hears(track(user_id, "signed_up"))
        await shop.runtime.deliver()
        await shop.runtime.deliver()
    await complete_task(shop.runtime, 1, "j1.v1.ring.bob.e1", "connected")

    page = await list_tasks(shop.database, 1, first=3)
    rest = await list_tasks(shop.database, 1, after=page[-1].place)

    names = [each.task_id.removeprefix("j1.v1.").removesuffix(".e1") for each in (*page, *rest)]
    assert names == ["ring.ann", "write.ann", "write.bob", "ring.cyd", "write.cyd"]
    assert len(await list_tasks(shop.database, 1, status=None)) == 6
    assert len(await list_tasks(shop.database, 1, user_id="bob", status="completed")) == 1
    assert await list_tasks(shop.database, 1, user_id="bob\0") == []
    assert await list_tasks(shop.database, 1, journey_id=2) == []
    assert len(await shop.rows(tasks)) == 6
