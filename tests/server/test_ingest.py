"""Somebody did something: it is stored once, and everything that it does is done at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson
import pytest
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import Instant

from journeykit_engine import graph, nodes
from journeykit_server.clock import instant, microseconds
from journeykit_server.database import Database
from journeykit_server.incoming import BadEvent, Incoming, Receipt
from journeykit_server.published import Key, Published
from journeykit_server.tables import (
    entries,
    events,
    exposures,
    instances,
    journal,
    messages,
    node_stats,
    outbox,
    profiles,
    segment_members,
    timers,
)
from journeykit_server.verify import verify
from tests.databases import START
from tests.engine.journeys import Value
from tests.engine.walking import ADULT, END, ask, days, halves, send, wait_for, write
from tests.server.shop import Shop, counted, later, track

ONCE_MORE: Value = {"entry_rule": "every_time"}


@pytest.fixture
async def shop(database: Database) -> Shop:
    return Shop(database)


# --- an event is one event


async def test_an_event_enters_the_journey_that_listens_for_it(shop: Shop) -> None:
    await shop.opens(send("a", "w"), days(1, "b"), send("b", "end"), END)

    receipt = await shop.hears(track("ann", "signed_up", "m1", plan="pro"))

    assert receipt == Receipt(accepted=1)
    assert await shop.where("ann") == "waiting w"
    assert await shop.due("ann") == later(days=1)
    assert await shop.effects() == ["j1.v1.a.ann.e1"]
    assert await shop.told("ann") == [
        *("entered t", "visited t", "visited a", "effect a send", "visited w", "waiting w")
    ]


async def test_what_arrives_is_kept_as_history(shop: Shop) -> None:
    """The time that counts is that of the arrival; what the sender said stands beside it."""
    said = Instant("2026-05-30T08:00:00Z")
    await shop.hears(Incoming("track", "ann", "paid", {"amount": 7}, "m1", "till", said))

    (row,) = await shop.rows(events)
    assert (row.tenant_id, row.user_id, row.name, row.source, row.event_id, row.kind) == (
        *(1, "ann", "paid", "till", "m1", "track"),
    )
    assert (instant(row.at), instant(row.occurred_at)) == (START, said)
    assert row.properties == {"amount": 7}


async def test_an_event_that_comes_again_does_nothing(shop: Shop) -> None:
    await shop.opens(send("a", "end"), END, **ONCE_MORE)
    await shop.hears(track("ann", "signed_up", "m1", plan="pro"))
    shop.clock.set(later(days=1))

    again = await shop.hears(track("ann", "signed_up", "m1", plan="pro"))

    assert again == Receipt(duplicates=1)
    assert await shop.effects() == ["j1.v1.a.ann.e1"]
    assert len(await shop.rows(events)) == 1


async def test_an_event_twice_in_one_batch_is_one(shop: Shop) -> None:
    await shop.opens(send("a", "end"), END, **ONCE_MORE)
    same = track("ann", "signed_up", "m1")

    assert await shop.hears(same, same) == Receipt(accepted=1, duplicates=1)
    assert await shop.effects() == ["j1.v1.a.ann.e1"]


@pytest.mark.parametrize(
    "other",
    [
        track("ann", "signed_up", "m1", plan="free"),
        track("ann", "signed_up", "m1"),
        track("bob", "signed_up", "m1", plan=True),
        track("ann", "paid", "m1", plan=True),
        track("ann", "signed_up", "m1", plan=1),
        Incoming("identify", "ann", "", {"plan": True}, "m1"),
    ],
    ids=["value", "without", "person", "name", "one is not true", "kind"],
)
async def test_another_event_with_the_same_id_is_named_and_the_first_is_kept(
    shop: Shop, other: Incoming
) -> None:
    await shop.hears(track("ann", "signed_up", "m1", plan=True))

    assert await shop.hears(track("ann", "paid", "m2"), other) == Receipt(
        1, 0, ("m1",), unmatched=1
    )
    first, second = sorted(await shop.rows(events), key=lambda row: row.event_id)
    assert (first.user_id, first.name, first.properties) == ("ann", "signed_up", {"plan": True})
    assert second.event_id == "m2"


async def test_two_events_with_one_id_in_one_batch_are_a_conflict_too(shop: Shop) -> None:
    receipt = await shop.hears(track("ann", "signed_up", "m1"), track("bob", "signed_up", "m1"))

    assert receipt == Receipt(1, 0, ("m1",), unmatched=1)
    assert [row.user_id for row in await shop.rows(events)] == ["ann"]


async def test_one_number_written_in_two_ways_is_the_same_event(shop: Shop) -> None:
    await shop.hears(track("ann", "paid", "m1", amount=10, parts=[1, {"of": 2}]))

    again = await shop.hears(track("ann", "paid", "m1", parts=[1.0, {"of": 2}], amount=10.0))

    assert again == Receipt(duplicates=1)


async def test_the_same_id_from_another_source_or_tenant_is_another_event(shop: Shop) -> None:
    await shop.hears(track("ann", "paid", "m1"))

    by_till = track("ann", "paid", "m1")._replace(source="till")
    assert await shop.hears(by_till) == Receipt(accepted=1, unmatched=1)
    assert await shop.hears(track("ann", "paid", "m1"), tenant_id=2) == Receipt(
        accepted=1, unmatched=1
    )
    assert len(await shop.rows(events)) == 3


async def test_events_without_an_id_are_each_their_own(shop: Shop) -> None:
    receipt = await shop.hears(track("ann", "paid"), track("ann", "paid"))

    assert receipt == Receipt(accepted=2, unmatched=2)
    assert len({row.event_id for row in await shop.rows(events)}) == 2


async def test_nothing_is_sent_for_an_empty_batch(shop: Shop) -> None:
    await shop.runtime.reload()

    with counted(shop.database) as sent:
        assert await shop.hears() == Receipt()

    assert sent == []


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (track(" ", "paid"), 'it has no user id. Give "user_id" a text that is not blank.'),
        (Incoming("track", 7, "paid"), "its user id must be text, not 7."),  # type: ignore[arg-type]
        (Incoming("track", "ann", None), "its name must be text, not null."),  # type: ignore[arg-type]
        (
            Incoming("identify", "ann", properties=["plan"]),  # type: ignore[arg-type]
            "its properties must be an object, not a list.",
        ),
        (
            Incoming("page", "ann", "paid"),  # type: ignore[arg-type]
            'its kind "page" is not known. Write track or identify.',
        ),
        (track("a" * 201, "paid"), "its user id has 201 characters, more than 200."),
        (track("ann", ""), "it has no name. Say what happened."),
        (track("ann", "n" * 201), "its name has 201 characters, more than 200."),
        (track("ann", "paid", "m" * 201), "its id has 201 characters, more than 200."),
        (
            track("ann", "paid")._replace(source="s" * 201),
            "its source has 201 characters, more than 200.",
        ),
        (
            track("ann", graph.RESERVED_EVENT, journey_id=1),
            '"journey_enter_requested" is reserved. Use the enter call to take people in.',
        ),
        (
            track("ann", "paid", amount=float("nan")),
            "The number nan at properties.amount is no JSON number.",
        ),
        (track("ann", "pa\0id"), "A text at name holds the character U+0000."),
    ],
)
async def test_an_event_that_cannot_be_stored_is_refused_with_its_whole_batch(
    shop: Shop, bad: Incoming, told: str
) -> None:
    await shop.opens(END)

    with pytest.raises(BadEvent) as refused:
        await shop.hears(track("ann", "signed_up", "m1"), bad)

    assert str(refused.value) == f"Event 2: {told}"
    assert await shop.rows(events) == []
    assert await shop.rows(profiles) == []


async def test_ids_of_the_longest_kind_are_kept(shop: Shop) -> None:
    """Whatever letters they are made of."""
    longest = "".join(chr(0x10000 + 7 * i) for i in range(200))
    event = track(longest, longest, longest)._replace(source=longest)

    assert await shop.hears(event) == Receipt(accepted=1, unmatched=1)
    assert await shop.hears(event) == Receipt(duplicates=1)


# --- what an event does


async def test_the_events_of_one_batch_are_heard_in_their_order(shop: Shop) -> None:
    """Whoever pays and then signs up waits; whoever signs up and then pays is through."""
    await shop.opens(wait_for("paid", "end", timeout="1d", on_timeout="end"), END)

    await shop.hears(
        track("ann", "signed_up"),
        track("bob", "paid"),
        track("ann", "paid"),
        track("bob", "signed_up"),
    )

    assert await shop.where("ann") == "completed end"
    assert await shop.where("bob") == "waiting w"


async def test_one_event_ends_a_pass_and_starts_the_next(shop: Shop) -> None:
    await shop.opens(
        send("a", "w"), days(1, "end"), END, settings={"exit_on": ["signed_up"]}, **ONCE_MORE
    )
    await shop.hears(track("ann", "signed_up", "m1"))
    shop.clock.set(later(hours=1))
    await shop.hears(track("ann", "signed_up", "m2"))

    first, second = await shop.rows(entries)
    assert (first.entry_count, first.entered_by, first.exit_reason, first.exit_node) == (
        *(1, "m1", "exit_criteria", "w"),
    )
    assert instant(first.ended_at) == later(hours=1)
    assert (second.entry_count, second.entered_by, second.ended_at) == (2, "m2", None)
    assert await shop.effects() == ["j1.v1.a.ann.e1", "j1.v1.a.ann.e2"]
    assert [(row.rev, row.cause) for row in await shop.rows(journal)] == [
        *((1, "m1"), (2, "m2"), (3, "m2")),
    ]
    assert await shop.due("ann") == later(days=1, hours=1)


async def test_a_pass_that_begins_and_ends_in_one_batch_has_one_row(shop: Shop) -> None:
    await shop.opens(wait_for("paid", "end"), END)

    await shop.hears(track("ann", "signed_up", "m1"), track("ann", "paid", "m2"))

    (entry,) = await shop.rows(entries)
    assert (entry.entered_by, entry.exit_reason, entry.exit_node) == ("m1", "completed", "end")
    assert instant(entry.ended_at) == START
    assert await shop.rows(timers) == []


async def test_a_trait_that_is_written_ends_a_pass_at_once(shop: Shop) -> None:
    await shop.opens(days(1, "end"), END, exit_criteria=ADULT)
    await shop.hears(track("ann", "signed_up"), track("bob", "signed_up"))

    await shop.learns("ann", age=18)
    await shop.learns("bob", age=17)

    assert await shop.where("ann") == "exited w"
    assert await shop.due("ann") is None
    assert await shop.where("bob") == "waiting w"
    assert (await shop.told("ann"))[-2:] == ["woke w exit", "exited w exit_criteria"]


async def test_the_event_that_is_waited_for_wakes_at_once(shop: Shop) -> None:
    await shop.opens(wait_for("paid", "a", timeout="1d", on_timeout="end"), send("a", "end"), END)
    await shop.hears(track("ann", "signed_up"), track("bob", "signed_up"))

    await shop.hears(track("ann", "paid", "m2", amount=7))

    assert await shop.where("ann") == "completed end"
    assert await shop.due("ann") is None
    assert await shop.where("bob") == "waiting w"
    (sent,) = await shop.rows(outbox)
    assert orjson.loads(sent.payload)["event"] == {"amount": 7}


async def test_a_time_out_that_nobody_took_comes_before_a_later_event(shop: Shop) -> None:
    """However late the worker is: the answer came after the time was over."""
    await shop.opens(
        wait_for("paid", "a", timeout="1d", on_timeout="b"),
        send("a"),
        send("b", "v"),
        days(1, own="v"),
    )
    await shop.hears(track("ann", "signed_up"), track("bob", "signed_up"))

    shop.clock.set(later(days=1))
    await shop.hears(track("bob", "paid"))
    shop.clock.set(later(days=1, seconds=1))
    await shop.hears(track("ann", "paid"))

    assert await shop.where("ann") == "waiting v"
    assert await shop.where("bob") == "completed a"
    assert await shop.due("ann") == later(days=2, seconds=1)


async def test_people_hear_with_their_own_version_and_enter_by_the_published_one(
    shop: Shop,
) -> None:
    await shop.opens(wait_for("paid", "a"), send("a", "end"), END)
    await shop.hears(track("ann", "signed_up", "m1"))
    await shop.changes(1, wait_for("won", "b"), send("b", "end"), END, **ONCE_MORE)

    await shop.hears(track("bob", "signed_up", "m2"))
    await shop.hears(track("ann", "won"), track("bob", "paid"))
    assert await shop.where("ann") == await shop.where("bob") == "waiting w"

    await shop.hears(track("ann", "paid"), track("bob", "won"))
    assert await shop.effects() == ["j1.v1.a.ann.e1", "j1.v2.b.bob.e1"]

    await shop.hears(track("ann", "signed_up", "m9"))
    latest = {row.user_id: (row.version, row.entry_count) for row in await shop.rows(instances)}
    assert latest["ann"] == (2, 2)


async def test_somebody_inside_an_old_version_is_not_taken_in_again(shop: Shop) -> None:
    await shop.opens(days(1), **ONCE_MORE)
    await shop.hears(track("ann", "signed_up", "m1"))
    await shop.changes(1, days(2), **ONCE_MORE)

    await shop.hears(track("ann", "signed_up", "m2"))

    assert (await shop.told("ann"))[-1] == "refused t already_inside"
    refusal = (await shop.rows(journal))[-1]
    assert (refusal.version, refusal.rev, refusal.cause) == (2, 1, "m2")


async def test_an_event_that_only_the_new_version_knows_moves_nobody_in_the_old_one(
    shop: Shop,
) -> None:
    """Their time had passed; the poll walks them, with all that their version asks about."""
    bought: Any = {"root": {"event": "bought"}}
    await shop.opens(days(1, "if"), ask(bought, "yes", "no"), send("yes"), send("no"))
    await shop.hears(track("ann", "bought"), track("ann", "signed_up"))
    await shop.changes(1, END, trigger={"kind": "event", "event": "visited"})
    shop.clock.set(later(days=2))

    await shop.hears(track("ann", "visited"))
    assert (await shop.told("ann"))[-1] == "refused t already_inside"
    assert await shop.where("ann") == "waiting w"

    await shop.runtime.wake()
    assert await shop.where("ann") == "completed yes"


class Hasty(Published):
    """What was published elsewhere becomes known in the middle of a unit of work."""

    async def load(self, connection: AsyncConnection, keys: Iterable[Key]) -> None:
        await super().load(connection, keys)
        await self.reload(connection, 0)


async def test_a_version_that_becomes_known_meanwhile_is_for_the_next_event(shop: Shop) -> None:
    """What its rules ask about was not loaded for this one."""
    await shop.opens(days(1))
    await shop.hears(track("ann", "bought"))
    shop.runtime.published = Hasty()
    await shop.runtime.reload()
    bought: Any = {"root": {"event": "bought"}}
    await Shop(shop.database).changes(1, ask(bought, "yes", "no"), send("yes"), send("no"))

    await shop.hears(track("ann", "signed_up"))
    assert await shop.where("ann") == "waiting w"

    await shop.hears(track("bob", "signed_up"))
    assert await shop.where("bob") == "completed no"


async def test_every_refusal_is_told(shop: Shop) -> None:
    await shop.opens(END)

    await shop.hears(*(track("ann", "signed_up", f"m{i}") for i in range(3)))

    assert (await shop.told("ann"))[-2:] == ["refused t once", "refused t once"]
    assert [row.cause for row in await shop.rows(journal)] == ["m0", "m1", "m2"]
    assert len(await shop.rows(entries)) == 1


# --- all that a walk may ask is there


async def test_a_rule_sees_what_happened_before_and_nothing_twice(shop: Shop) -> None:
    twice: Any = {"root": {"event": "paid", "op": "eq", "count": 2}}
    await shop.opens(ask(twice, "yes", "no"), send("yes"), send("no"))
    await shop.hears(track("ann", "paid", "m1"), track("bob", "paid", "m2"))

    await shop.hears(
        track("ann", "paid", "m3"),
        track("ann", "paid", "m3"),
        track("ann", "signed_up", "m4"),
        track("ann", "paid", "m5"),
        track("bob", "signed_up", "m6"),
    )

    assert await shop.where("ann") == "completed yes"
    assert await shop.where("bob") == "completed no"


async def test_an_event_of_the_history_can_end_a_pass(shop: Shop) -> None:
    await shop.opens(days(1), exit_criteria={"root": {"event": "paid", "op": "gte", "count": 2}})
    await shop.hears(track("ann", "paid"), track("ann", "signed_up"))
    assert await shop.where("ann") == "waiting w"

    await shop.hears(track("ann", "paid"))
    assert await shop.where("ann") == "exited w"


async def test_what_a_walk_wrote_is_seen_later(shop: Shop) -> None:
    """By its own later steps, by other journeys, and by those that come after."""
    join: Any = {"id": "j", "kind": "action", "action": {"kind": "add_to_segment", "segment_id": 4}}
    await shop.opens(write("tell", "level", 3, "j"), join | {"next": "w"}, days(1))
    seen: Any = {"root": {"all": [{"trait": "level", "op": "eq", "value": 3}, {"segment": 4}]}}
    await shop.opens(ask(seen, "yes", "no"), send("yes"), send("no"))
    await shop.opens(
        ask(seen, "yes", "no"), send("yes"), send("no"), trigger={"kind": "event", "event": "paid"}
    )

    await shop.hears(track("ann", "signed_up"))
    await shop.hears(track("ann", "paid"), track("bob", "paid"))

    assert (await shop.profile("ann")).traits == {"level": 3}
    (member,) = await shop.rows(segment_members)
    assert (member.user_id, member.segment_id, instant(member.since_at)) == ("ann", 4, START)
    assert await shop.where("ann", 2) == "completed yes"
    assert await shop.where("ann", 3) == "completed yes"
    assert await shop.where("bob", 3) == "completed no"


async def test_a_rule_sees_where_the_person_is_in_other_journeys(shop: Shop) -> None:
    """Also what has just become of it, in the same batch."""
    await shop.opens(wait_for("paid", "end"), END)
    through: Any = {"root": {"journey": 1, "status": "completed"}}
    came: Any = {"kind": "event", "event": "came"}
    await shop.opens(ask(through, "yes", "no"), send("yes"), send("no"), trigger=came)

    await shop.hears(
        track("ann", "signed_up"),
        track("bob", "signed_up"),
        track("ann", "paid"),
        track("ann", "came"),
        track("bob", "came"),
        track("eve", "came"),
    )

    assert await shop.where("ann", 2) == "completed yes"
    assert await shop.where("bob", 2) == await shop.where("eve", 2) == "completed no"


async def test_every_wait_is_over_before_anybody_is_asked_in(shop: Shop) -> None:
    """The journey that is entered was there first, and still sees what the other has become."""
    through: Any = {"root": {"journey": 2, "status": "completed"}}
    paid: Any = {"kind": "event", "event": "paid"}
    await shop.opens(ask(through, "yes", "no"), send("yes"), send("no"), trigger=paid)
    await shop.opens(wait_for("paid"))

    await shop.hears(track("ann", "signed_up"), track("ann", "paid"))

    assert await shop.where("ann", 1) == "completed yes"


# --- what is written


async def test_effects_lie_in_the_order_in_which_they_were_made(shop: Shop) -> None:
    hook: Any = {"kind": "webhook", "url": "https://example.org/hook"}
    call: Any = {"id": "h", "kind": "action", "action": hook, "next": "b"}
    await shop.opens(send("a", "h"), call, send("b", "w"), wait_for("paid", "c"), send("c"))

    await shop.hears(track("ann", "signed_up"), track("ann", "paid"))

    rows = sorted(await shop.rows(outbox), key=lambda row: (row.rev, row.position))
    assert [(row.node_id, row.kind, row.rev) for row in rows] == [
        *(("a", "send", 1), ("h", "webhook", 1), ("b", "send", 1), ("c", "send", 2)),
    ]
    assert {(row.attempts, instant(row.try_at)) for row in rows} == {(0, START)}


async def test_a_split_is_an_exposure_and_a_holdout_gets_nothing(shop: Shop) -> None:
    await shop.opens(halves("s", "a", "b", percent=50), send("a"), send("b"))
    people = [f"u{i}" for i in range(40)]

    await shop.hears(*(track(user_id, "signed_up") for user_id in people))

    exposed = {row.user_id: row for row in await shop.rows(exposures)}
    held = {user_id for user_id, row in exposed.items() if row.is_holdout}
    assert set(exposed) == set(people)
    assert 0 < len(held) < 40
    assert {row.user_id for row in await shop.rows(outbox)} == set(people) - held
    withheld = await shop.rows(messages)
    assert {row.user_id for row in withheld} == held
    assert {(row.state, row.reason, row.is_holdout) for row in withheld} == {
        ("suppressed", "holdout", True)
    }
    arms = {row.user_id: (row.variant, row.is_holdout) for row in await shop.rows(entries)}
    assert arms == {name: (row.variant, row.is_holdout) for name, row in exposed.items()}
    assert await verify(shop.database) == []


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "after a wait"])
async def test_a_walk_that_forgets_its_holdouts_reaches_nobody(
    shop: Shop, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table refuses what is for them, and only that: what was sent before the split is sent."""
    run = nodes.MessageOp.run

    def forgets(self: nodes.MessageOp, walker: nodes.Walker) -> Any:
        held, walker.is_holdout = walker.is_holdout, False
        stop = run(self, walker)
        walker.is_holdout = held
        return stop

    monkeypatch.setattr(nodes.MessageOp, "run", forgets)
    after = [days(1, "late", own="a"), send("late")] if waits else [send("a")]
    held_out = halves("s", "a", "a", percent=100)
    await shop.opens(send("early", "s"), held_out, *after)
    if waits:
        await shop.hears(track("ann", "signed_up"))
        assert await shop.effects() == ["j1.v1.early.ann.e1"]
    shop.clock.set(later(days=1))

    if waits:  # the timer is set aside, and says why
        assert (await shop.runtime.wake()).failed == 1
        (timer,) = await shop.rows(timers)
        assert "nothing_for_a_holdout" in timer.last_error
        assert "ann" not in timer.last_error
    else:
        with pytest.raises(IntegrityError, match="ck_outbox_nothing_for_a_holdout"):
            await shop.hears(track("ann", "signed_up"))

    assert await shop.effects() == (["j1.v1.early.ann.e1"] if waits else [])


async def test_the_first_exposure_of_a_pass_counts(shop: Shop) -> None:
    await shop.opens(halves("s", "w", "w"), wait_for("paid", "", timeout="1d", on_timeout="s"))
    await shop.hears(track("ann", "signed_up"))
    await shop.wakes(later(days=1))

    (exposed,) = await shop.rows(exposures)
    assert (exposed.node_id, instant(exposed.at)) == ("s", START)
    assert (await shop.told("ann")).count("visited s") == 2


async def test_tenants_never_mix(shop: Shop) -> None:
    await shop.opens(wait_for("paid", "a"), send("a"), exit_criteria=ADULT)
    await shop.opens(wait_for("paid", "b"), send("b"), tenant_id=2)
    await shop.hears(track("ann", "signed_up"))
    await shop.hears(track("ann", "signed_up"), tenant_id=2)

    await shop.learns("ann", age=30)
    await shop.hears(track("ann", "paid"), tenant_id=3)
    places = {row.tenant_id: row.status for row in await shop.rows(instances)}
    assert places == {1: "exited", 2: "waiting"}

    await shop.hears(track("ann", "paid"), tenant_id=2)
    assert [(row.tenant_id, row.node_id) for row in await shop.rows(outbox)] == [(2, "b")]
    assert [(row.tenant_id, row.traits) for row in await shop.rows(profiles)] == [
        *((1, {"age": 30}), (2, {}), (3, {})),
    ]


async def test_one_person_costs_as_many_statements_as_five_hundred(shop: Shop) -> None:
    rule: Any = {"root": {"all": [{"event": "seen"}, {"segment": 4}, {"journey": 1}]}}
    await shop.opens(
        ask(rule, "a", "s"), halves("s", "a", "b"), send("a", "w"), send("b", "w"), days(1)
    )
    await shop.hears(track("zoe", "signed_up"))

    with counted(shop.database) as of_one:
        await shop.hears(track("ann", "signed_up"))
    with counted(shop.database) as of_many:
        await shop.hears(*(track(f"u{i}", "signed_up") for i in range(500)))

    assert len(await shop.rows(instances)) == 502
    assert [text[:40] for text in of_many] == [text[:40] for text in of_one]
    assert await verify(shop.database) == []


async def test_others_wait_for_the_counters_so_they_come_last(shop: Shop) -> None:
    await shop.opens(days(1))
    with counted(shop.database) as sent:
        await shop.hears(track("ann", "signed_up"))
    assert "INTO node_stats" in sent[-1]

    shop.clock.set(later(days=1))
    with counted(shop.database) as sent:
        await shop.runtime.wake()
    assert "INTO node_stats" in sent[-1]


async def test_more_than_one_transaction_takes_is_taken_in_several(shop: Shop) -> None:
    await shop.opens(wait_for("paid"))
    crowd = [track(f"u{i % 300}", ("signed_up", "paid")[i // 300], f"m{i}") for i in range(600)]

    assert await shop.hears(*crowd) == Receipt(accepted=600)
    assert await shop.hears(*crowd) == Receipt(duplicates=600)
    assert {row.status for row in await shop.rows(instances)} == {"completed"}


async def test_an_event_that_concerns_nobody_is_history_alone(shop: Shop) -> None:
    await shop.opens(END)

    assert await shop.hears(track("ann", "nothing")) == Receipt(accepted=1, unmatched=1)

    assert len(await shop.rows(events)) == 1
    assert await shop.rows(instances) == await shop.rows(journal) == []
    assert await shop.rows(node_stats) == []


async def test_a_clock_that_goes_back_hurts_nobody(shop: Shop) -> None:
    await shop.opens(wait_for("paid", "v"), days(1, own="v"))
    await shop.hears(track("ann", "signed_up"))

    shop.clock.set(later(hours=-2))
    await shop.hears(track("ann", "paid"))

    (row,) = await shop.rows(instances)
    assert (row.current_node, instant(row.updated_at)) == ("v", START)
    assert row.wake_at == microseconds(later(days=1))
