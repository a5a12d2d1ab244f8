"""Every question that is asked of a message before it goes out, one by one and in their order."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Table, insert, update
from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import Instant

from journeykit_server.clock import instant, microseconds
from journeykit_server.database import Database
from journeykit_server.delivery import (
    Failed,
    Item,
    Outcome,
    Refused,
    Suppressed,
    Unreachable,
)
from journeykit_server.governance import Course, Governor, forget_days
from journeykit_server.letters import retry
from journeykit_server.outbox import LADDER_SECONDS, Settled, let_go
from journeykit_server.policy import save_policy
from journeykit_server.runtime import Runtime
from journeykit_server.subscriptions import subscribe
from journeykit_server.tables import (
    NEVER,
    budget_uses,
    dead_letters,
    deferred_sends,
    instances,
    journeys,
    messages,
    outbox,
    policies,
    tasks,
)
from journeykit_server.templates import archive_template, restore_template, save_template
from journeykit_server.verify import verify
from tests.databases import open_database
from tests.engine.journeys import action
from tests.engine.walking import END, days
from tests.server.post import Post, by, message
from tests.server.shop import counted, later, track

NIGHT = {"quiet_hours": {"from": "22:00", "to": "08:00"}}
ONE_A_DAY = {"caps": {"default": {"per_day": 1}}}


@pytest.fixture
async def post(database: Database) -> Post:
    """A journey of one e-mail, "Hi {{ name }}"."""
    post = Post(database)
    await post.writes()
    await post.opens(message("a", "end"), END)
    return post


async def changes(post: Post, table: Table, **values: Any) -> None:
    await post.database.run(lambda connection: connection.execute(update(table).values(values)))


# --- what goes out


async def test_a_message_goes_out_as_the_person_reads_it(post: Post) -> None:
    await post.signs_up("ann")

    assert await post.mails() == Settled(delivered=1)

    (item,) = post.office.got
    assert item.message_id == "j1.v1.a.ann.e1"
    assert item.payload == {
        "kind": "send",
        "message_id": "j1.v1.a.ann.e1",
        "event": {"rank": 4},
        "channel": "email",
        "template_id": 1,
        "template_version": 1,
        "category": "marketing",
        "priority": 50,
        "budget": "default",
        "address": "ann@x.org",
        "texts": {"subject": "Hello", "body": "Hi ann"},
    }
    (row,) = await post.rows(messages)
    assert (row.state, row.channel, row.category, row.budget) == (
        "delivered",
        "email",
        "marketing",
        "default",
    )
    assert (row.template_id, row.template_version, row.detail) == (1, 1, "")
    assert await post.places() == ["j1.v1.a.ann.e1"]


async def test_the_version_that_is_current_goes_out(post: Post) -> None:
    await post.signs_up("ann")
    await save_template(
        post.database,
        1,
        name="n",
        channel="email",
        texts={"body": "Dear {{ name }}"},
        template_id=1,
    )

    await post.mails()

    assert post.arrived() == ["email ann@x.org Dear ann"]
    assert [row.template_version for row in await post.rows(messages)] == [2]


async def test_an_account_without_a_template_sends_unrendered(database: Database) -> None:
    """The first journey of a newcomer runs before there is a text."""
    post = Post(database)
    await post.opens(message("a", "end"), END)
    await post.signs_up("ann", email="")

    assert await post.mails() == Settled(delivered=1)

    (item,) = post.office.got
    assert (item.payload["texts"], item.payload["address"]) == ({}, None)
    assert item.payload["template_version"] is None


# --- the journey


async def stands(post: Post, status: str, pause_mode: str = "") -> None:
    await changes(post, journeys, status=status, pause_mode=pause_mode)


@pytest.mark.parametrize("status", ["archived", "deleted"])
async def test_nothing_leaves_a_journey_that_was_put_away(post: Post, status: str) -> None:
    await post.signs_up("ann")
    await stands(post, status)

    assert await post.mails() == Settled(suppressed=1)

    assert await post.log() == [f"suppressed email {status}"]
    assert post.office.got == []
    assert await verify(post.database) == []


async def test_what_a_frozen_journey_sent_is_held_until_it_goes_on(post: Post) -> None:
    await post.signs_up("ann", "bob")
    await stands(post, "paused", "freeze")

    assert await post.mails() == Settled(held=2)
    post.clock.set(later(days=40))
    assert await post.mails() == Settled()
    assert await post.runtime.next_due() is None
    assert [(r.attempts, r.try_at) for r in await post.rows(outbox)] == [(0, NEVER)] * 2

    await stands(post, "published")
    now = post.clock.now()
    freed = await post.database.run(lambda connection: let_go(connection, 1, 1, now))

    assert freed == 2
    assert await post.mails() == Settled(delivered=2)
    assert [row.attempts for row in await post.rows(messages)] == [1, 1]


async def test_who_stands_behind_a_held_message_is_held_too(database: Database) -> None:
    post = Post(database)
    await post.opens(message("a", "b"), message("b", "end"), END)
    await post.signs_up("ann")
    await stands(post, "paused", "freeze")
    await post.mails()
    post.clock.set(later(minutes=5))
    await post.mails()
    await stands(post, "archived")

    await post.database.run(lambda connection: let_go(connection, 1, 1, post.clock.now()))

    assert await post.mails() == Settled(suppressed=2)


async def test_letting_go_touches_no_other_journey(post: Post) -> None:
    await post.signs_up("ann")
    await stands(post, "paused", "freeze")
    await post.mails()

    assert await post.database.run(lambda c: let_go(c, 1, 2, post.clock.now())) == 0
    assert await post.database.run(lambda c: let_go(c, 2, 1, post.clock.now())) == 0

    assert [row.try_at for row in await post.rows(outbox)] == [NEVER]


async def test_a_pause_for_newcomers_lets_messages_go(post: Post) -> None:
    await post.signs_up("ann")
    await stands(post, "paused", "entries")

    assert await post.mails() == Settled(delivered=1)


# --- the text


async def dead(post: Post) -> list[tuple[str, str]]:
    return [(row.code, row.message) for row in await post.rows(dead_letters)]


async def test_a_template_that_was_put_away_is_no_text(post: Post) -> None:
    await archive_template(post.database, 1, 1)
    await post.signs_up("ann")

    assert await post.mails() == Settled(dead=1)

    assert await dead(post) == [
        (
            "TEMPLATE_MISSING",
            'The template "1", which the node "a" sends, is not there, or archived. '
            "Save it, then retry.",
        )
    ]
    assert await post.places() == []


async def test_a_send_without_a_template_is_refused(post: Post) -> None:
    await post.signs_up("ann")
    payload = '{"kind":"send","channel":"email","template_id":null}'
    await changes(post, outbox, payload=payload)

    assert await post.mails() == Settled(dead=1)

    assert await dead(post) == [
        (
            "NO_TEMPLATE",
            'The send node "a" has no text to send. Give it a template and publish it again; '
            "for this message, skip it.",
        )
    ]


async def test_a_text_that_breaks_a_limit_is_refused(database: Database) -> None:
    post = Post(database)
    await post.writes(
        body="{% for a in (1..9999) %}{% for b in (1..9999) %}x{% endfor %}{% endfor %}"
    )
    await post.opens(message())
    await post.signs_up("ann")

    assert await post.mails() == Settled(dead=1)

    assert await dead(post) == [
        (
            "TEMPLATE_FAILED",
            'The template "1" cannot be sent. The text "body" cannot be rendered: '
            "it loops over 10000 times. Mend it there.",
        )
    ]


async def test_a_letter_is_tried_again_once_its_template_is_back(post: Post) -> None:
    await archive_template(post.database, 1, 1)
    await post.signs_up("ann")
    await post.mails()
    await restore_template(post.database, 1, 1)
    await retry(post.database, 1, "effect:j1.v1.a.ann.e1")

    assert await post.mails() == Settled(delivered=1)
    assert post.arrived() == ["email ann@x.org Hi ann"]


# --- what cannot be decided on


async def damages(post: Post, user_id: str) -> None:
    """What waits for this person names no message for its second channel."""
    payload = (
        '{"kind":"send","channel":"email","template_id":1,'
        '"fallback":[{"channel":"sms","template_id":1}]}'
    )
    change = update(outbox).where(outbox.c.user_id == user_id).values(payload=payload)
    await post.database.run(lambda connection: connection.execute(change))


async def test_a_message_that_cannot_be_asked_about_fails_alone(post: Post) -> None:
    await post.signs_up("ann", "bob", "cyd")
    await damages(post, "bob")

    assert await post.runtime.deliver() == Settled(delivered=2, failed=1)

    assert post.arrived() == ["email ann@x.org Hi ann", "email cyd@x.org Hi cyd"]
    (row,) = await post.rows(outbox)
    assert (row.user_id, row.attempts, row.last_error) == ("bob", 1, "KeyError: 'message_id'")
    assert await post.places() == ["j1.v1.a.ann.e1", "j1.v1.a.cyd.e1"]


async def test_the_others_are_decided_on_in_the_same_transaction(post: Post) -> None:
    await post.signs_up("ann", "bob")
    await damages(post, "bob")
    items = await post.runtime.outbox._claim(200, "token")
    governor = post.runtime.outbox.governor

    courses = await post.database.run(lambda connection: governor.govern(connection, items))

    assert [(len(course.ready), course.end) for course in courses] == [
        (1, None),
        (0, Failed("KeyError: 'message_id'")),
    ]


async def test_it_is_a_dead_letter_in_the_end(post: Post) -> None:
    await post.signs_up("ann")
    await damages(post, "ann")

    for _ in LADDER_SECONDS[1:]:
        assert await post.mails() == Settled(failed=1)
        (row,) = await post.rows(outbox)
        post.clock.set(instant(row.try_at))
    assert await post.mails() == Settled(dead=1)

    assert await dead(post) == [("DELIVERY_FAILED", "KeyError: 'message_id'")]


async def test_an_account_whose_policy_cannot_be_read_holds_up_no_other(post: Post) -> None:
    """A newer worker may have written what this one does not know."""
    await post.signs_up("ann", "bob")
    await changes(post, outbox, tenant_id=2)
    await post.signs_up("cyd", "dan", "eve")
    strange = {"tenant_id": 2, "version": 1, "document": "{]", "saved_at": 0, "saved_token": ""}
    await post.database.run(lambda connection: connection.execute(insert(policies), strange))

    assert await post.runtime.deliver() == Settled(delivered=3, failed=2)

    assert sorted(item.user_id for item in post.office.got) == ["cyd", "dan", "eve"]
    rows = await post.rows(outbox)
    assert [(row.user_id, row.attempts) for row in rows] == [("ann", 1), ("bob", 1)]
    assert {row.last_error.partition(":")[0] for row in rows} == {"BadPolicy"}


# --- the channel


async def test_a_channel_that_is_off_reaches_nobody(post: Post) -> None:
    await post.decides(channels_off=["email"])
    await post.signs_up("ann")

    assert await post.mails() == Settled(suppressed=1)
    assert await post.log() == ["suppressed email channel_off"]


@pytest.mark.parametrize("address", ["", "  ", None, 7])
async def test_somebody_without_an_address_is_not_reached(post: Post, address: Any) -> None:
    await post.signs_up("ann", email=address)

    assert await post.mails() == Settled(suppressed=1)
    assert await post.log() == ["suppressed email no_address"]


async def test_the_policy_says_which_trait_is_the_address(post: Post) -> None:
    await post.decides(addresses={"email": "work_mail"})
    await post.signs_up("ann", work_mail="ann@work.org")

    await post.mails()

    assert post.arrived() == ["email ann@work.org Hi ann"]


async def test_blanks_around_an_address_are_none_of_it(post: Post) -> None:
    await post.signs_up("ann", email=" ann@x.org\n")

    await post.mails()

    assert post.arrived() == ["email ann@x.org Hi ann"]


async def test_a_channel_that_is_not_named_needs_no_address(database: Database) -> None:
    post = Post(database)
    await post.writes("in_app")
    await post.opens(message(channel="in_app"))
    await post.signs_up("ann")

    await post.mails()

    assert post.arrived() == ["in_app None Hi ann"]


# --- the next channel


@pytest.fixture
async def chain(database: Database) -> Post:
    """Push, or else SMS, or else e-mail."""
    post = Post(database)
    await post.writes("push", body="push")
    await post.writes("sms", body="sms")
    await post.writes("email", body="email")
    await post.opens(message("a", "end", **by("push", "sms", "email")), END)
    return post


PHONE = {"phone": "+4915112345678"}
NAME = "j1.v1.a.ann.e1"


async def test_the_first_channel_that_reaches_the_person_is_used(chain: Post) -> None:
    await chain.signs_up("ann", **PHONE)

    assert await chain.mails() == Settled(delivered=1)

    (item,) = chain.office.got
    assert (item.message_id, item.payload["message_id"]) == (f"{NAME}.sms", f"{NAME}.sms")
    assert "fallback" not in item.payload
    (row,) = await chain.rows(messages)
    assert (row.message_id, row.channel, row.template_id) == (NAME, "sms", 2)


async def test_what_the_provider_cannot_reach_goes_on_in_the_same_offer(chain: Post) -> None:
    chain.office.script = {
        NAME: [Unreachable("device_gone")],
        f"{NAME}.sms": [Unreachable("no_such_number")],
    }
    await chain.signs_up("ann", push_token="t", **PHONE)

    assert await chain.runtime.deliver() == Settled(delivered=1)

    assert [item.message_id for item in chain.office.got] == [NAME, f"{NAME}.sms", f"{NAME}.email"]
    assert await chain.log() == ["delivered email"]
    assert await chain.places() == [NAME]


async def test_when_no_channel_is_left_the_first_reason_counts(chain: Post) -> None:
    chain.office.script = {
        NAME: [Unreachable("device_gone")],
        f"{NAME}.email": [Unreachable("bounced")],
    }
    await chain.signs_up("ann", push_token="t")

    assert await chain.mails() == Settled(suppressed=1)

    assert await chain.log() == ["suppressed push device_gone"]
    assert await chain.places() == []


async def test_without_any_address_the_first_reason_counts(chain: Post) -> None:
    await chain.decides(channels_off=["push"])
    await chain.signs_up("ann", email="")

    assert await chain.mails() == Settled(suppressed=1)
    assert await chain.log() == ["suppressed push channel_off"]


async def test_what_speaks_for_the_person_ends_the_node(chain: Post) -> None:
    await chain.signs_up("ann", **PHONE)
    await chain.refuses("ann", "sms")

    assert await chain.mails() == Settled(suppressed=1)

    assert await chain.log() == ["suppressed sms unsubscribed"]
    assert chain.office.got == []


async def test_a_refusal_behind_a_channel_that_failed_to_reach_ends_it_too(chain: Post) -> None:
    chain.office.script = {NAME: [Unreachable("device_gone")]}
    await chain.signs_up("ann", push_token="t", **PHONE)
    await chain.refuses("ann", "sms")

    assert await chain.mails() == Settled(suppressed=1)

    assert await chain.log() == ["suppressed sms unsubscribed"]
    assert await chain.places() == []


@pytest.mark.parametrize(
    ("answer", "settled"),
    [
        (Suppressed("complained"), Settled(suppressed=1)),
        (Refused("GONE", "gone"), Settled(dead=1)),
        (Failed("no answer"), Settled(failed=1)),
    ],
)
async def test_no_other_answer_leads_to_the_next_channel(
    chain: Post, answer: Outcome, settled: Settled
) -> None:
    chain.office.script = {NAME: [answer]}
    await chain.signs_up("ann", push_token="t", **PHONE)

    assert await chain.runtime.deliver() == settled
    assert [item.message_id for item in chain.office.got] == [NAME]


async def test_a_broadcast_asks_of_every_channel_by_itself(database: Database) -> None:
    post = Post(database)
    await post.writes("push", body="push")
    await post.writes("email", body="email")
    await post.opens(message("a", "end", **by("push", "email", mode="all")), END)
    await post.signs_up("ann", push_token="t")
    await post.refuses("ann", "push")

    assert await post.mails() == Settled(delivered=1, suppressed=1)
    assert await post.log() == ["suppressed push unsubscribed", "delivered email"]


# --- consent


async def test_who_unsubscribed_gets_nothing_and_walks_on(post: Post) -> None:
    await post.signs_up("ann")
    await post.refuses("ann", "email")

    assert await post.mails() == Settled(suppressed=1)

    assert await post.log() == ["suppressed email unsubscribed"]
    assert [row.status for row in await post.rows(instances)] == ["completed"]
    assert await verify(post.database) == []


async def test_a_channel_of_opt_in_needs_a_yes(post: Post) -> None:
    await post.decides(opt_in=["email"])
    await post.signs_up("ann", "bob")
    await subscribe(post.database, 1, "bob", "email", source="form")

    await post.mails()

    assert post.arrived() == ["email bob@x.org Hi bob"]


@pytest.mark.parametrize(
    ("refused", "category", "arrives"),
    [
        (("*", "marketing"), "transactional", True),
        (("email", "marketing"), "transactional", True),
        (("email", "*"), "transactional", False),
        (("*", "*"), "transactional", False),
        (("*", "marketing"), "marketing", False),
        (("email", "news"), "marketing", True),
        (("email", "news"), "news", False),
    ],
)
async def test_what_has_to_be_told_needs_no_consent_to_marketing(
    post: Post, refused: tuple[str, str], category: str, arrives: bool
) -> None:
    await post.opens(message("b", category=category), trigger={"kind": "event", "event": "paid"})
    await post.learns("ann", name="ann", email="ann@x.org")
    await post.hears(track("ann", "paid"))
    await post.refuses("ann", *refused)

    await post.mails()

    assert bool(post.office.got) == arrives


async def test_the_category_of_the_template_counts_before_the_nodes(database: Database) -> None:
    post = Post(database)
    await post.writes(category="transactional")
    await post.opens(message(category="marketing"))
    await post.signs_up("ann")
    await post.refuses("ann", "*", "marketing")

    assert await post.mails() == Settled(delivered=1)
    assert [row.category for row in await post.rows(messages)] == ["transactional"]


# --- caps


async def busy(database: Database, *sends: Any, zone: str = "UTC") -> Post:
    post = Post(database)
    await post.writes()
    for node in sends:
        await post.opens(node, zone=zone)
    return post


async def test_a_cap_counts_a_day_of_all_journeys(database: Database) -> None:
    post = await busy(database, message("a"), message("b"), message("c"))
    await post.decides(caps={"default": {"per_day": 2}})
    await post.signs_up("ann", "bob")

    assert await post.mails() == Settled(delivered=4, suppressed=2)

    assert {row.reason for row in await post.rows(messages)} == {"", "capped"}
    assert len(await post.places()) == 4


async def test_each_budget_has_its_cap_and_all_have_one_together(database: Database) -> None:
    nodes = [message(name, budget=name[0]) for name in ("a1", "a2", "b1", "c1")]
    post = await busy(database, *nodes)
    await post.decides(caps={"a": {"per_day": 1}, "*": {"per_day": 2}})
    await post.signs_up("ann")

    await post.mails()

    rows = {row.node_id: row.reason for row in await post.rows(messages)}
    assert rows == {"a1": "", "a2": "capped", "b1": "", "c1": "capped"}


async def test_what_has_to_be_told_neither_meets_a_cap_nor_fills_one(database: Database) -> None:
    post = await busy(database, *(message(f"t{n}", category="transactional") for n in range(3)))
    await post.opens(message("m"))
    await post.decides(**ONE_A_DAY)
    await post.signs_up("ann")

    assert await post.mails() == Settled(delivered=4)
    assert await post.places() == ["j4.v1.m.ann.e1"]


async def test_the_day_is_the_accounts(database: Database) -> None:
    """In Tehran midnight is at half past eight in the evening of UTC."""
    post = Post(database)
    await post.writes()
    await post.opens(message("a", "end"), END, zone="Asia/Tehran", entry_rule="every_time")
    await post.decides(**ONE_A_DAY)
    moments = ("10:00", "20:29", "20:30", "23:59")
    for moment in moments:
        post.clock.set(Instant(f"2026-06-01T{moment}:00Z"))
        await post.signs_up("ann")
        await post.mails()

    assert await post.log() == [
        "delivered email",
        "suppressed email capped",
        "delivered email",
        "suppressed email capped",
    ]


async def test_a_retry_of_the_same_message_counts_once(post: Post) -> None:
    await post.decides(**ONE_A_DAY)
    post.office.script = {NAME: [Failed("no answer"), Failed("no answer")]}
    await post.signs_up("ann")

    assert await post.runtime.deliver() == Settled(failed=1)
    assert await post.places() == [NAME]
    post.clock.set(later(minutes=1))
    assert await post.runtime.deliver() == Settled(failed=1)
    post.clock.set(later(minutes=10))
    assert await post.runtime.deliver() == Settled(delivered=1)

    assert await post.places() == [NAME]


async def test_what_is_tried_again_tomorrow_counts_tomorrow(post: Post) -> None:
    await post.opens(message("b"), trigger={"kind": "event", "event": "paid"})
    await post.decides(**ONE_A_DAY)
    post.clock.set(later(hours=13, minutes=59, seconds=58))
    post.office.script = {NAME: [Failed("no answer")]}
    await post.signs_up("ann")
    await post.runtime.deliver()
    post.clock.set(later(hours=14))
    await post.hears(track("ann", "paid"))
    await post.mails()
    post.clock.set(later(hours=15))

    assert await post.mails() == Settled(suppressed=1)

    assert await post.log() == ["delivered email", "suppressed email capped"]
    assert await post.places() == ["j2.v1.b.ann.e1"]


async def test_a_place_is_given_back_when_nothing_went_out(database: Database) -> None:
    post = await busy(database, message("a"), message("b"))
    await post.decides(**ONE_A_DAY)
    post.office.script = {"j1.v1.a.ann.e1": [Refused("BAD_ADDRESS", "no such mailbox")]}
    await post.signs_up("ann")
    await changes_of(post, "j2.v1.b.ann.e1", try_at=microseconds(later(minutes=1)))

    await post.mails()
    post.clock.set(later(minutes=1))

    assert await post.mails() == Settled(delivered=1)
    assert await post.places() == ["j2.v1.b.ann.e1"]


async def changes_of(post: Post, message_id: str, **values: Any) -> None:
    query = update(outbox).where(outbox.c.message_id == message_id).values(values)
    await post.database.run(lambda connection: connection.execute(query))


async def test_two_workers_at_once_never_pass_the_cap(postgresql_url: str) -> None:
    database = open_database(postgresql_url)
    post = await busy(database, *(message(f"a{n}") for n in range(6)))
    await post.decides(caps={"default": {"per_day": 2}})
    people = [f"u{n}" for n in range(20)]
    await post.signs_up(*people)
    workers = [Runtime(database, provider=post.office) for _ in range(2)]

    for _ in range(8):
        await asyncio.gather(*(worker.deliver(limit=15) for worker in workers))

    delivered: dict[str, int] = {}
    for item in post.office.got:
        delivered[item.user_id] = delivered.get(item.user_id, 0) + 1
    assert delivered == dict.fromkeys(people, 2)
    await database.close()


async def test_days_long_gone_are_forgotten(post: Post) -> None:
    await post.signs_up("ann")
    await post.mails()

    for day in (3, 4):
        now = later(days=day)
        assert await post.database.run(partial(forget_days, now=now)) == (day == 4)

    assert await post.rows(budget_uses) == []


# --- the hour


async def test_quiet_hours_put_a_message_off_and_the_person_walks_on(database: Database) -> None:
    post = Post(database)
    await post.writes(body="{{ name }} is {{ event.rank }}th")
    await post.opens(message("a", "end"), END)
    await post.decides(**NIGHT)
    post.clock.set(Instant("2026-06-01T22:00:00Z"))
    await post.signs_up("ann")

    assert await post.mails() == Settled(deferred=1)

    (row,) = await post.rows(deferred_sends)
    morning = Instant("2026-06-02T08:00:00Z")
    assert (row.message_id, row.reason, row.send_at) == (
        NAME,
        "quiet_hours",
        microseconds(morning),
    )
    assert await post.rows(outbox) == await post.rows(messages) == []
    assert await post.places() == []
    assert [row.status for row in await post.rows(instances)] == ["completed"]
    assert await post.runtime.next_due() == morning

    await post.forgets()  # the worker dies, another one begins
    post.runtime.outbox.provider = post.office
    post.clock.set(morning.subtract(seconds=1))
    assert await post.mails() == Settled()
    post.clock.set(morning)
    assert await post.mails() == Settled(delivered=1)
    assert post.arrived() == ["email ann@x.org ann is 4th"]
    assert await post.rows(deferred_sends) == []


@pytest.mark.parametrize(
    ("moment", "zone", "goes"),
    [
        ("2026-06-01T21:59:59Z", "UTC", True),
        ("2026-06-01T22:00:00Z", "UTC", False),
        ("2026-06-02T07:59:59Z", "UTC", False),
        ("2026-06-02T08:00:00Z", "UTC", True),
        ("2026-06-01T13:00:00Z", "Asia/Tokyo", False),
        ("2026-06-01T22:00:00Z", "America/New_York", True),
        ("2026-06-01T22:00:00Z", "Mars/Phobos", False),
    ],
)
async def test_the_hours_are_on_the_recipients_clock(
    post: Post, moment: str, zone: str, goes: bool
) -> None:
    await post.decides(**NIGHT)
    post.clock.set(Instant(moment))
    await post.signs_up("ann", timezone=zone)

    await post.mails()

    assert bool(post.office.got) == goes


async def test_without_a_zone_of_their_own_the_accounts_counts(database: Database) -> None:
    post = await busy(database, message("a"), zone="Asia/Tokyo")
    await post.decides(**NIGHT)
    post.clock.set(Instant("2026-06-01T13:00:00Z"))
    await post.signs_up("ann")

    assert await post.mails() == Settled(deferred=1)


async def test_what_has_to_be_told_is_told_at_night(post: Post) -> None:
    await post.opens(message("b", category="transactional"))
    await post.decides(**NIGHT)
    post.clock.set(Instant("2026-06-01T23:00:00Z"))
    await post.signs_up("ann")

    assert await post.mails() == Settled(delivered=1, deferred=1)


@pytest.mark.parametrize("category", ["marketing", "transactional"])
async def test_a_text_message_keeps_its_own_hours(database: Database, category: str) -> None:
    """It was made in the evening and is handled in the night, on the clock of the number."""
    post = Post(database)
    await post.writes("sms")
    await post.opens(message(channel="sms", category=category))
    post.clock.set(Instant("2026-06-01T18:59:59Z"))  # in Berlin one second before nine
    await post.signs_up("ann", **PHONE)
    post.clock.set(Instant("2026-06-01T19:00:00Z"))

    assert await post.mails() == Settled(deferred=1)

    (row,) = await post.rows(deferred_sends)
    assert (row.reason, row.send_at) == (
        "sms_window",
        microseconds(Instant("2026-06-02T06:00:00Z")),
    )


async def test_hours_that_never_meet_end_it(database: Database) -> None:
    post = Post(database)
    await post.writes("sms")
    await post.opens(message(channel="sms"))
    await post.decides(quiet_hours={"from": "07:00", "to": "22:00"})
    await post.signs_up("ann", **PHONE)

    assert await post.mails() == Settled(suppressed=1)
    assert await post.log() == ["suppressed sms window_never_opens"]


async def test_in_the_morning_every_question_is_asked_anew(post: Post) -> None:
    await post.decides(**NIGHT)
    post.clock.set(Instant("2026-06-01T23:00:00Z"))
    await post.signs_up("ann", "bob")
    await post.mails()
    await post.refuses("ann", "email")
    post.clock.set(Instant("2026-06-02T08:00:00Z"))

    assert await post.mails() == Settled(delivered=1, suppressed=1)

    assert await post.log() == ["suppressed email unsubscribed", "delivered email"]
    assert await verify(post.database) == []


async def test_a_night_does_not_begin_the_attempts_anew(post: Post) -> None:
    """Whoever fails by day and waits by night is given up after as many attempts as anybody."""
    await post.decides(**NIGHT)
    post.clock.set(Instant("2026-06-01T21:59:57Z"))
    post.office.script = {NAME: [Failed("no answer")] * 40}
    await post.signs_up("ann")
    nights = 0
    while not any((settled := await post.mails())[3:4]):
        nights += settled.deferred
        assert nights < 30, "it is never given up"
        soonest = await post.runtime.next_due()
        assert soonest is not None
        post.clock.set(soonest)

    (letter,) = await post.rows(dead_letters)
    assert nights > 1
    assert (len(post.office.got), letter.attempts) == (10, 10)
    assert letter.first_at == microseconds(Instant("2026-06-01T21:59:57Z"))
    assert {name for item in post.office.got for name in item.payload} == {
        *("kind", "message_id", "event", "channel", "template_id", "template_version"),
        *("category", "priority", "budget", "address", "texts"),
    }


async def test_a_crowd_comes_back_in_batches(post: Post) -> None:
    await post.decides(**NIGHT)
    post.clock.set(Instant("2026-06-01T23:00:00Z"))
    people = [f"u{n}" for n in range(7)]
    await post.signs_up(*people)
    assert await post.mails() == Settled(deferred=7)
    post.clock.set(Instant("2026-06-02T09:00:00Z"))

    assert await post.runtime.deliver(limit=3) == Settled(delivered=3)
    assert await post.mails() == Settled(delivered=4)

    assert sorted(item.user_id for item in post.office.got) == people


# --- the values


async def test_a_text_with_a_hole_is_not_sent(database: Database) -> None:
    post = Post(database)
    await post.writes(subject="{{ plan }}", body="{{ name }} {{ event.rival }}")
    await post.opens(message())
    await post.signs_up("ann", plan="")

    assert await post.mails() == Settled(suppressed=1)

    assert await post.log() == ["suppressed email missing_personalisation event.rival, plan"]
    assert await post.places() == []


# --- the order of the questions


ORDER = [
    "suppressed email archived",
    "dead TEMPLATE_MISSING",
    "suppressed email channel_off",
    "suppressed email no_address",
    "suppressed email unsubscribed",
    "suppressed email capped",
    "deferred quiet_hours",
    "suppressed email missing_personalisation event.rival",
    "delivered email",
]


async def test_the_first_thing_that_is_wrong_is_told(database: Database) -> None:
    """Everything is wrong at once; then one thing after the other is mended."""
    post = Post(database)
    await post.writes(body="{{ name }}")
    for text in ("{{ event.rival }}", "{{ name }}"):
        await post.writes(body=text)
    told = []
    for mended in range(len(ORDER)):
        told.append(await _outcome(post, f"u{mended}", mended))
    assert told == ORDER


async def _outcome(post: Post, user_id: str, mended: int) -> str:
    is_wrong = [mended <= step for step in range(len(ORDER) - 1)]
    put_away, unwritten, off, homeless, refused, full, quiet, hole = is_wrong
    template_id = 2 if unwritten else 3 if not hole else 2
    if hole and not unwritten:
        await save_template(
            post.database,
            1,
            name="hole",
            channel="email",
            texts={"body": "{{ event.rival }}"},
            template_id=1,
        )
        template_id = 1
    post.clock.set(Instant("2026-06-01T12:00:00Z").add(hours=24 * mended))
    await restore_template(post.database, 1, template_id)
    journey_id = await post.opens(
        message("a", template_id=template_id),
        trigger={"kind": "event", "event": f"go{mended}"},
    )
    if unwritten:  # it was there when the journey was published
        await archive_template(post.database, 1, template_id)
    await post.decides(
        channels_off=["email"] if off else [],
        caps={"default": {"per_day": 1}},
        **({"quiet_hours": {"from": "11:00", "to": "13:00"}} if quiet else {}),
    )
    await post.learns(user_id, name=user_id, email="" if homeless else "a@x.org")
    await post.hears(track(user_id, f"go{mended}"))
    if refused:
        await post.refuses(user_id, "email")
    if full:
        day = (Instant("2026-06-01T12:00:00Z").timestamp() // 86_400) + mended
        row = {"tenant_id": 1, "user_id": user_id, "message_id": "x", "budget": "default"}
        query = budget_uses.insert().values(row | {"day": day})
        await post.database.run(lambda connection: connection.execute(query))
    if put_away:
        await post.tampers(journeys, journey_id, status="archived")
    await post.mails()
    for table, word in ((messages, ""), (dead_letters, "dead "), (deferred_sends, "deferred ")):
        for row in await post.rows(table):
            if row.user_id == user_id:
                if not word:
                    said = (row.state, row.channel, row.reason, row.detail)
                    return " ".join(filter(None, said))
                return f"{word}{row.code if table is dead_letters else row.reason}"
    return "nothing"


# --- other effects


async def test_a_task_comes_onto_the_list_once(database: Database) -> None:
    post = Post(database)
    task = action(kind="task", task="call", title="Call Ann", connected_outcomes=["spoke"])
    await post.opens(task)
    await post.signs_up("ann")

    assert await post.mails() == Settled(delivered=1)

    (row,) = await post.rows(tasks)
    assert row._asdict() == {
        "tenant_id": 1,
        "task_id": "j1.v1.a.ann.e1",
        "user_id": "ann",
        "journey_id": 1,
        "version": 1,
        "entry_count": 1,
        "node_id": "a",
        "task": "call",
        "title": "Call Ann",
        "connected_outcomes": '["spoke"]',
        "status": "open",
        "outcome": "",
        "note": "",
        "completed_by": "",
        "created_at": microseconds(later()),
        "completed_at": None,
    }
    assert post.office.got == []


async def test_a_webhook_goes_as_it_is_whoever_unsubscribed(database: Database) -> None:
    post = Post(database)
    await post.writes()
    await post.opens(action(kind="webhook", url="https://x.org/a", body={"a": 1}))
    await post.signs_up("ann")
    await post.refuses("ann")

    assert await post.mails() == Settled(delivered=1)
    (item,) = post.office.got
    assert (item.kind, item.payload["body"]) == ("webhook", {"a": 1})


# --- what it costs


async def test_governing_costs_the_same_statements_whatever_the_batch(database: Database) -> None:
    post = Post(database)
    await post.writes()
    await post.writes()
    await post.opens(message("a", "end", **by("push", "email")), END)
    await post.opens(action(kind="task", task="call"))
    await post.decides(**NIGHT, **ONE_A_DAY)
    governor = Governor(database, post.runtime.published)
    sent = []
    for many in (2, 40):
        await post.signs_up(*(f"u{many}.{n}" for n in range(many)))
        items = await post.runtime.outbox._claim(200, f"token {many}")

        async def govern(connection: AsyncConnection, items: list[Item] = items) -> list[Course]:
            return await governor.govern(connection, items)

        with counted(database) as statements:
            assert len(await database.run(govern)) == 2 * many
        sent.append(statements)

    assert sent[0] == sent[1]
    # people, uses, doors, consent, policies, who has templates, templates; places, tasks;
    # SQLite begins, PostgreSQL locks the doors
    assert len(sent[1]) == 10


async def test_a_policy_of_another_account_changes_nothing(post: Post) -> None:
    await save_policy(post.database, 2, {"channels_off": ["email"]})
    await post.signs_up("ann")

    assert await post.mails() == Settled(delivered=1)


async def test_a_message_that_fails_late_waits_as_long_as_it_is_asked(post: Post) -> None:
    post.office.script = {NAME: [Failed("slow down", 3_600), Failed("closed", 10**9)]}
    await post.signs_up("ann")
    await post.mails()
    (row,) = await post.rows(outbox)
    assert row.try_at == microseconds(later(hours=1))
    post.clock.set(later(hours=1))
    await post.mails()
    (row,) = await post.rows(outbox)
    assert row.try_at == microseconds(later(hours=25))


async def test_a_journey_of_days_is_not_touched_by_its_messages(database: Database) -> None:
    post = Post(database)
    await post.writes()
    await post.opens(message("a", "w"), days(1, "end"), END)
    await post.signs_up("ann")
    await post.refuses("ann")
    await post.mails()

    assert await post.where("ann") == "waiting w"
