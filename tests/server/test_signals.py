"""What wakes whom, on a real store: every row of the table of signals, and what comes before what.

Somebody waits in step "w"; things happen to them in the world; the journal tells what it did.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from whenever import Instant

from journeykit_server.database import Database
from journeykit_server.incoming import Incoming
from journeykit_server.people import timeline, where_is
from journeykit_server.steering import pause_person, resume_person
from journeykit_server.tables import instances, outbox
from journeykit_server.tasks import complete_task
from journeykit_server.verify import verify
from tests.engine.journeys import Value
from tests.engine.walking import END, days, node, send, wait_for_any
from tests.server.shop import Shop, later, track

CHANNELS = ("email", "sms", "linkedin")
ENDS: Value = {"id": "other", "kind": "exit"}


@pytest.fixture
async def shop(database: Database) -> Shop:
    return Shop(database)


def listens(*events: str, **config: Any) -> Value:
    """A wait that goes on to the end, whichever of these comes."""
    return wait_for_any(on=dict.fromkeys(events, "end"), **config)


async def waits(shop: Shop, *events: str, user_id: str = "ann", **fields: Any) -> None:
    """Somebody waits for these events, in a new journey."""
    await shop.opens(listens(*events), END, **fields)
    await shop.hears(track(user_id, "signed_up"))


async def gets_task(shop: Shop, kind: str, *outcomes: str) -> str:
    """Another journey asks for something to be done by hand for ann; the task's id."""
    asked = {"kind": "task", "task": kind, "title": "Do", "connected_outcomes": list(outcomes)}
    journey_id = await shop.opens(
        node("do", "action", asked, "r"), days(30, own="r"), trigger={"kind": "api"}
    )
    await shop.runtime.enter(1, journey_id, ["ann"])
    await shop.runtime.deliver()
    return f"j{journey_id}.v1.do.ann.e1"


async def branch(shop: Shop, user_id: str = "ann", journey_id: int = 1) -> str:
    """The branch on which the wait closed, "" while it is open."""
    told = await shop.told(user_id, journey_id)
    woke = [line.removeprefix("woke w ") for line in told if line.startswith("woke w ")]
    assert len(woke) <= 1
    return "".join(woke)


# --- who is woken by what

REPORTS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "an inbound e-mail": ("inbound_email", {"text": "Tell me more"}),
    "an inbound e-mail of a thread": ("inbound_email", {"in_thread": True}),
    "an inbound e-mail of no thread": ("inbound_email", {"in_thread": False}),
    "an inbound text": ("inbound_sms", {"text": "Who are you?"}),
    "an inbound message": ("inbound_linkedin", {"text": "Hi"}),
    "a reply you report": ("reply", {}),
    "a reply you report by its channel": ("reply", {"channel": "sms"}),
    "a reply to one channel": ("reply:email", {}),
    "a connected call you report": ("call_connected", {}),
    "a meeting you report": ("meeting_booked", {}),
    "something else": ("visited", {"channel": "email"}),
}
WAKES: Mapping[str, tuple[str, ...]] = {
    "an inbound e-mail": ("reply", "reply:email"),
    "an inbound e-mail of a thread": ("reply", "reply:email"),
    "an inbound e-mail of no thread": (),
    "an inbound text": ("reply", "reply:sms"),
    "an inbound message": ("reply", "reply:linkedin"),
    "a reply you report": ("reply",),
    "a reply you report by its channel": ("reply", "reply:sms"),
    "a reply to one channel": ("reply", "reply:email"),
    "a connected call you report": ("reply", "call_connected"),
    "a meeting you report": ("meeting_booked",),
    "something else": (),
}
LISTED = (
    "reply",
    *(f"reply:{channel}" for channel in CHANNELS),
    "call_connected",
    "connection_accepted",
    "meeting_booked",
)


@pytest.mark.parametrize("what", REPORTS)
async def test_a_report_wakes_exactly_those_who_wait_for_it(shop: Shop, what: str) -> None:
    """A journey for every event that may be listed, and somebody in each of them."""
    for event in LISTED:
        await shop.opens(listens(event), END)
    await shop.hears(track("ann", "signed_up"), track("bob", "signed_up"))
    name, properties = REPORTS[what]

    await shop.hears(Incoming("track", "ann", name, properties))

    woken = [
        event
        for journey_id, event in enumerate(LISTED, 1)
        if await branch(shop, "ann", journey_id) == event
    ]
    assert sorted(woken) == sorted(WAKES[what])
    assert {await shop.where("bob", i) for i in range(1, 8)} == {"waiting w"}
    assert await verify(shop.database) == []


TASKS: Mapping[tuple[str, tuple[str, ...], str], tuple[str, ...]] = {
    ("call", (), "connected"): ("reply", "call_connected"),
    ("call", (), "no answer"): (),
    ("call", ("spoke",), "spoke"): ("reply", "call_connected"),
    ("call", ("spoke",), "connected"): (),
    ("linkedin_message", (), "replied"): ("reply", "reply:linkedin"),
    ("linkedin_message", (), "sent"): (),
    ("linkedin_connect", (), "accepted"): ("connection_accepted",),
    ("linkedin_connect", (), "ignored"): (),
    ("custom", (), "connected"): (),
}


@pytest.mark.parametrize(("kind", "outcomes", "outcome"), TASKS)
async def test_a_completed_task_wakes_exactly_those_who_wait_for_its_outcome(
    shop: Shop, kind: str, outcomes: tuple[str, ...], outcome: str
) -> None:
    for event in LISTED:
        await shop.opens(listens(event), END)
    await shop.hears(track("ann", "signed_up"))
    task_id = await gets_task(shop, kind, *outcomes)

    await complete_task(shop.runtime, 1, task_id, outcome)

    woken = [
        event
        for journey_id, event in enumerate(LISTED, 1)
        if await branch(shop, "ann", journey_id) == event
    ]
    assert sorted(woken) == sorted(TASKS[kind, outcomes, outcome])
    assert await verify(shop.database) == []


# --- which of several wins


@pytest.mark.parametrize(
    ("listed", "name", "properties", "wins"),
    [
        (["reply:email", "reply"], "inbound_email", {}, "reply"),
        (["reply:sms", "reply"], "inbound_sms", {"text": "ok"}, "reply"),
        (["reply:sms", "reply:email"], "inbound_sms", {"text": "ok"}, "reply:sms"),
        (["reply", "call_connected"], "call_connected", {}, "call_connected"),
        (["reply", "call_connected"], "task_completed", {"outcome": "connected"}, "call_connected"),
        (["reply", "task_completed"], "task_completed", {"outcome": "connected"}, "reply"),
        (["task_completed", "reply"], "task_completed", {"outcome": "connected"}, "task_completed"),
        (["meeting_booked", "reply"], "inbound_linkedin", {}, "reply"),
    ],
)
async def test_of_several_that_match_the_first_in_order_wins(
    shop: Shop, listed: list[str], name: str, properties: dict[str, Any], wins: str
) -> None:
    await waits(shop, *listed)

    await shop.hears(Incoming("track", "ann", name, properties))

    assert await branch(shop) == wins


# --- what ends a pass does not wake it

EXITS: Mapping[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "exit_on, by its name": ("meeting_booked", {}, {"settings": {"exit_on": ["meeting_booked"]}}),
    "exit_on, by what it counts as": ("inbound_sms", {}, {"settings": {"exit_on": ["reply"]}}),
    "exit_on, by its channel": ("inbound_email", {}, {"settings": {"exit_on": ["reply:email"]}}),
    "exit_on, by a task": (
        "task_completed",
        {"outcome": "connected"},
        {"settings": {"exit_on": ["call_connected"]}},
    ),
    "an opt-out": ("opt_out", {}, {}),
    "an opt-out in a text": ("inbound_sms", {"text": "Stop"}, {}),
    "the exit rule": (
        "reply",
        {},
        {"exit_criteria": {"root": {"event": "reply", "op": "gte", "count": 1}}},
    ),
}


@pytest.mark.parametrize("why", EXITS)
async def test_what_ends_a_pass_closes_its_wait_on_the_exit_branch(shop: Shop, why: str) -> None:
    """Though the wait lists everything that happens here."""
    name, properties, fields = EXITS[why]
    listed = ("reply", "reply:email", "call_connected", "meeting_booked", "opt_out", "inbound_sms")
    await waits(shop, *listed, **fields)

    await shop.hears(Incoming("track", "ann", name, properties, "s1"))

    assert await branch(shop) == "exit"
    (left,) = await where_is(shop.database, 1, "ann")
    assert (left.status, left.exit_reason, left.node) == ("exited", "exit_criteria", "w")
    closed = [r for r in (await timeline(shop.database, 1, "ann")).records if r["what"] == "woke"]
    assert [(each["branch"], each["woken_by"]) for each in closed] == [("exit", "s1")]
    assert await shop.due("ann") is None


async def test_an_opt_out_ends_every_journey_and_what_waits_for_a_time_too(shop: Shop) -> None:
    await waits(shop, "reply")
    await shop.opens(days(5))
    await shop.hears(track("ann", "signed_up", "again"))

    await shop.hears(track("ann", "opt_out"))

    assert [await shop.where("ann", i) for i in (1, 2)] == ["exited w", "exited w"]


async def test_what_ends_a_pass_may_begin_the_next(shop: Shop) -> None:
    """The signal is heard by those inside first, then at the doors."""
    await waits(shop, "reply", settings={"exit_on": ["meeting_booked"]})
    await shop.opens(days(1), trigger={"kind": "event", "event": "meeting_booked"})

    await shop.hears(track("ann", "meeting_booked", "m1"))

    assert await shop.where("ann", 1) == "exited w"
    assert await shop.where("ann", 2) == "waiting w"


# --- paused people


async def test_a_signal_for_somebody_paused_wakes_nobody_and_is_not_kept_for_later(
    shop: Shop,
) -> None:
    await waits(shop, "reply")
    await shop.hears(track("bob", "signed_up"))
    await pause_person(shop.runtime, 1, 1, "ann")

    await shop.hears(track("ann", "inbound_email"), track("bob", "inbound_email"))
    assert (await branch(shop), await branch(shop, "bob")) == ("", "reply")

    await resume_person(shop.runtime, 1, 1, "ann")
    assert await shop.where("ann") == "waiting w"

    await shop.hears(track("ann", "inbound_email"))
    assert await branch(shop) == "reply"


async def test_a_pause_holds_one_journey_of_one_person(shop: Shop) -> None:
    await waits(shop, "reply")
    await shop.opens(listens("reply"), END)
    await shop.hears(track("ann", "signed_up", "again"))
    await pause_person(shop.runtime, 1, 1, "ann")

    await shop.hears(track("ann", "reply"))

    assert [await branch(shop, "ann", i) for i in (1, 2)] == ["", "reply"]


async def test_somebody_paused_leaves_where_a_signal_ends_the_pass(shop: Shop) -> None:
    await waits(shop, "reply")
    await pause_person(shop.runtime, 1, 1, "ann")

    await shop.hears(track("ann", "inbound_sms", text="STOP"))

    assert await shop.where("ann") == "exited w"


async def test_a_timeout_that_passes_during_a_pause_is_taken_once_on_resume(shop: Shop) -> None:
    await shop.opens(listens("reply", timeout="2d", on_timeout="a"), send("a", "other"), ENDS, END)
    await shop.hears(track("ann", "signed_up"))
    await pause_person(shop.runtime, 1, 1, "ann")

    await shop.wakes(later(days=3))
    assert await shop.where("ann") == "waiting w"

    await resume_person(shop.runtime, 1, 1, "ann")
    await shop.runtime.wake()
    assert (await branch(shop), await shop.where("ann")) == ("timeout", "completed other")
    assert len(await shop.rows(outbox)) == 1


# --- time-outs


@pytest.mark.parametrize(
    ("timeout", "until"),
    [
        ("5bd", later(days=7)),
        ("36h", later(hours=36)),
        ("2d", later(days=2)),
        ("1w", later(days=7)),
    ],
)
async def test_a_wait_without_an_answer_goes_on_at_its_timeout(
    shop: Shop, timeout: str, until: Instant
) -> None:
    await shop.opens(listens("reply", timeout=timeout, on_timeout="other"), ENDS, END)
    await shop.hears(track("ann", "signed_up"))
    assert await shop.due("ann") == until

    await shop.wakes(until)

    assert (await branch(shop), await shop.where("ann")) == ("timeout", "completed other")


async def test_a_timeout_that_leads_nowhere_completes(shop: Shop) -> None:
    await shop.opens(listens("reply", timeout="1d"), END)
    await shop.hears(track("ann", "signed_up"))

    await shop.wakes(later(days=1))

    (left,) = await where_is(shop.database, 1, "ann")
    assert (left.status, left.node, left.exit_reason) == ("completed", "w", "no_next_node")


async def test_without_a_timeout_it_waits_until_something_comes(shop: Shop) -> None:
    await waits(shop, "reply")
    assert await shop.due("ann") is None

    await shop.wakes(later(days=3_650))
    assert await shop.where("ann") == "waiting w"

    await shop.hears(track("ann", "reply"))
    assert await branch(shop) == "reply"


async def test_a_closed_wait_never_opens_again(shop: Shop) -> None:
    await shop.opens(listens("reply", timeout="1d", on_timeout="x"), days(9, own="x"), END)
    await shop.hears(track("ann", "signed_up"))
    await shop.wakes(later(days=1))

    await shop.hears(track("ann", "inbound_email"))

    assert (await branch(shop), await shop.where("ann")) == ("timeout", "waiting x")


# --- what a wait records


async def test_a_wait_records_what_it_waits_for_and_what_closed_it(shop: Shop) -> None:
    await shop.opens(
        listens("reply", "meeting_booked", timeout="5bd", on_timeout="other"), ENDS, END
    )
    await shop.hears(track("ann", "signed_up"))

    (stands,) = await where_is(shop.database, 1, "ann")
    assert (stands.wake_at, stands.waits_for) == (later(days=7), ("reply", "meeting_booked"))

    await shop.hears(track("ann", "meeting_booked", "calendar-7"))

    told = {r["what"]: r for r in (await timeline(shop.database, 1, "ann")).records}
    assert told["waiting"]["until"] == "2026-06-08T10:00:00Z"
    assert told["waiting"]["events"] == ["reply", "meeting_booked"]
    assert (told["woke"]["branch"], told["woke"]["woken_by"]) == ("meeting_booked", "calendar-7")


async def test_a_task_that_wakes_is_named_by_its_event(shop: Shop) -> None:
    await waits(shop, "reply:linkedin")
    task_id = await gets_task(shop, "linkedin_message")

    await complete_task(shop.runtime, 1, task_id, "replied")

    woke = [r for r in (await timeline(shop.database, 1, "ann")).records if r["what"] == "woke"]
    assert [each["woken_by"] for each in woke] == [f"task-{task_id}"]


# --- windows


async def test_a_task_outside_the_window_is_given_at_the_next_opening(shop: Shop) -> None:
    """10:00 on a Monday is before the window of that day; who replies meanwhile is not held."""
    window = {"days": ["mon"], "from": "12:00", "to": "14:00"}
    asked = {"kind": "task", "task": "call", "title": "Ring"}
    await shop.opens(
        node("ring", "action", asked, "w"),
        listens("call_connected"),
        END,
        settings={"send_window": window, "exit_on": ["reply"]},
    )
    await shop.hears(track("ann", "signed_up"), track("bob", "signed_up"))
    assert await shop.where("ann") == "waiting ring"
    assert await shop.due("ann") == later(hours=2)

    await shop.hears(track("bob", "inbound_email"))
    await shop.wakes(later(hours=2))

    assert await shop.where("bob") == "exited ring"
    assert await shop.effects() == ["j1.v1.ring.ann.e1"]
    assert [row.status for row in await shop.rows(instances)] == ["waiting", "exited"]


async def test_a_window_that_closed_meanwhile_holds_the_step_again(shop: Shop) -> None:
    window = {"days": ["mon"], "from": "12:00", "to": "14:00"}
    await shop.opens(send("a", "end"), END, settings={"send_window": window})
    await shop.hears(track("ann", "signed_up"))

    await shop.wakes(later(hours=4))  # 14:00 is outside

    assert (await shop.effects(), await shop.due("ann")) == ([], later(days=7, hours=2))
    await shop.wakes(later(days=7, hours=2))
    assert await shop.effects() == ["j1.v1.a.ann.e1"]
