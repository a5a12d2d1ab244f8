"""People say what they want to get, and the proof of it is kept."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeykit_server.database import Database
from journeykit_server.incoming import Incoming
from journeykit_server.subscriptions import (
    BadSubscription,
    Change,
    Changed,
    State,
    allows,
    change,
    changes_of,
    history,
    of_people,
    read_subscriptions,
    subscribe,
    unsubscribe,
)
from journeykit_server.tables import profiles, subscription_changes, subscriptions
from tests.databases import START
from tests.engine.walking import days
from tests.server.shop import Shop, counted, later, track

YES, NO = "subscribed", "unsubscribed"
States = dict[tuple[str, str], str]


@pytest.fixture
async def shop(database: Database) -> Shop:
    return Shop(database)


async def said_by(shop: Shop, user_id: str) -> States:
    return await read_subscriptions(shop.database, 1, user_id)


# --- may a message go out?


@pytest.mark.parametrize(
    ("states", "channel", "category", "allowed"),
    [
        ({}, "email", "marketing", True),
        ({("email", "marketing"): NO}, "email", "marketing", False),
        ({("email", "marketing"): NO}, "sms", "marketing", True),
        ({("email", "marketing"): NO}, "email", "transactional", True),
        ({("email", "marketing"): NO}, "email", "news", False),
        ({("email", "marketing"): NO, ("email", "news"): YES}, "email", "news", True),
        ({("email", "news"): NO}, "email", "marketing", True),
        ({("email", "news"): NO}, "email", "news", False),
        ({("*", "news"): NO, ("email", "*"): YES}, "email", "news", False),
        ({("*", "news"): NO, ("email", "news"): YES}, "email", "news", True),
        ({("*", "marketing"): NO}, "push", "marketing", False),
        ({("*", "marketing"): NO, ("push", "marketing"): YES}, "push", "marketing", True),
        ({("*", "marketing"): NO}, "push", "transactional", True),
        ({("sms", "*"): NO}, "sms", "transactional", False),
        ({("sms", "*"): NO, ("sms", "marketing"): YES}, "sms", "marketing", False),
        ({("sms", "*"): NO}, "email", "marketing", True),
        ({("*", "*"): NO}, "email", "transactional", False),
        ({("*", "*"): NO, ("email", "news"): YES}, "email", "news", False),
        ({("*", "*"): NO, ("email", "*"): YES}, "email", "transactional", True),
        ({("*", "*"): NO, ("email", "*"): YES}, "sms", "transactional", False),
        ({("sms", "*"): NO}, " SMS", "transactional", False),
        ({("email", "transactional"): NO}, "email", "transactional", True),
    ],
)
def test_the_most_specific_word_counts_and_a_no_to_the_channel_always(
    states: States, channel: str, category: str, allowed: bool
) -> None:
    assert allows(states, channel, category, opted_in_needed=False) == allowed


@pytest.mark.parametrize(
    ("states", "category", "allowed"),
    [
        ({}, "marketing", False),
        ({}, "transactional", True),
        ({("sms", "*"): YES}, "marketing", True),
        ({("*", "*"): YES}, "news", True),
        ({("*", "*"): NO, ("sms", "*"): YES}, "news", True),
        ({("sms", "marketing"): YES}, "news", True),
        ({("sms", "news"): YES}, "marketing", False),
        ({("email", "*"): YES}, "marketing", False),
    ],
)
def test_where_an_opt_in_is_needed_silence_is_a_no(
    states: States, category: str, allowed: bool
) -> None:
    assert allows(states, "sms", category, opted_in_needed=True) == allowed


WORDS = st.tuples(st.sampled_from(["*", "sms", "email"]), st.sampled_from(["*", "marketing", "x"]))


@given(st.dictionaries(WORDS, st.sampled_from([YES, NO])), st.sampled_from(["marketing", "x"]))
def test_an_opt_in_that_is_needed_never_lets_more_out(states: States, category: str) -> None:
    assert allows(states, "sms", category, False) or not allows(states, "sms", category, True)


@given(st.dictionaries(WORDS, st.sampled_from([YES, NO])), WORDS, st.booleans())
def test_whoever_gets_marketing_gets_what_is_transactional(
    states: States, word: tuple[str, str], needed: bool
) -> None:
    channel, category = word
    assert allows(states, channel, "transactional", needed) or not allows(
        states, channel, category, needed
    )


# --- what is kept


async def test_a_change_is_kept_with_who_told_us_and_why(database: Database, shop: Shop) -> None:
    assert await unsubscribe(database, 1, "ann", "email", "news", source="page", cause="c1")
    shop.clock.set(later(days=1))
    assert await subscribe(database, 1, "ann", "email", "news", source="panel")
    assert not await subscribe(database, 1, "ann", "email", "news", source="again")

    assert await said_by(shop, "ann") == {("email", "news"): YES}
    assert await history(database, 1, "ann") == [
        Changed("email", "news", 2, "subscribed", "panel", "", later(days=1)),
        Changed("email", "news", 1, "unsubscribed", "page", "c1", START),
    ]
    assert await history(database, 2, "ann") == []
    assert [row.user_id for row in await shop.rows(profiles)] == ["ann"]


async def test_a_call_whose_answer_was_lost_is_one_change(
    database: Database, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = database.run

    async def twice(work: Any) -> Any:
        await run(work)
        return await run(work)

    monkeypatch.setattr(database, "run", twice)
    assert await unsubscribe(database, 1, "ann", source="panel")
    assert len(await shop.rows(subscription_changes)) == 1


async def test_a_no_to_marketing_takes_back_what_was_asked_for_before(
    database: Database, shop: Shop
) -> None:
    for channel, category in (
        *(("email", "news"), ("sms", "news"), ("email", "transactional"), ("push", "*")),
        *(("*", "club"), ("email", "marketing")),
    ):
        await subscribe(database, 1, "ann", channel, category, source="page")

    await unsubscribe(database, 1, "ann", "email", "marketing", source="page")
    assert [key for key, state in sorted((await said_by(shop, "ann")).items()) if state == NO] == [
        *(("email", "marketing"), ("email", "news"))
    ]

    await unsubscribe(database, 1, "ann", "*", "marketing", source="page")
    assert [key for key, state in sorted((await said_by(shop, "ann")).items()) if state == YES] == [
        *(("email", "transactional"), ("push", "*"))
    ]
    assert not allows(await said_by(shop, "ann"), "push", "marketing", False)


OPT_OUT: dict[str, Any] = {"event": "opt_out"}
AGAIN: dict[str, Any] = {"event": "subscription_changed", "state": YES}


def event_of(said: dict[str, Any]) -> Incoming:
    return track("ann", said["event"], **{k: v for k, v in said.items() if k != "event"})


@pytest.mark.parametrize(
    ("no", "yes", "gets", "gets_not"),
    [
        (OPT_OUT, AGAIN, "email sms push", ""),
        (OPT_OUT, AGAIN | {"category": "marketing"}, "email sms push", ""),
        (OPT_OUT, AGAIN | {"channel": "email"}, "email", "sms push"),
        (OPT_OUT, {"event": "inbound_sms", "text": "START"}, "sms", "email push"),
        (OPT_OUT, {"event": "inbound_sms", "text": "YES"}, "", "email sms push"),
        (OPT_OUT | {"channel": "Email"}, AGAIN | {"channel": "EMAIL "}, "email sms push", ""),
        (OPT_OUT | {"channel": "email"}, AGAIN, "sms push", "email"),
        (AGAIN | {"state": NO}, AGAIN, "email sms push", ""),
        (AGAIN | {"state": NO}, AGAIN | {"channel": "email"}, "email", "sms push"),
        (AGAIN | {"state": NO}, {"event": "inbound_sms", "text": "YES"}, "", "email sms push"),
        (AGAIN | {"state": NO}, {"event": "inbound_sms", "text": "START"}, "sms", "email push"),
        ({"event": "inbound_sms", "text": "STOP"}, AGAIN, "email push", "sms"),
    ],
)
async def test_whoever_comes_back_gets_messages_again(
    shop: Shop, no: dict[str, Any], yes: dict[str, Any], gets: str, gets_not: str
) -> None:
    """Whatever they had asked for before."""
    news = {"channel": "email", "category": "news"}
    for asked in ({}, {"channel": "email"}, {"channel": "sms"}, news):
        await shop.hears(event_of(AGAIN | asked))
    for days_on, said in enumerate((no, yes), 1):
        shop.clock.set(later(days=days_on))
        await shop.hears(event_of(said))

    states = await said_by(shop, "ann")
    for category in ("marketing", "news"):
        allowed = {c for c in ("email", "sms", "push") if allows(states, c, category, True)}
        assert allowed == set(gets.split()), (category, states)
        assert allowed.isdisjoint(gets_not.split())


async def test_a_yes_to_everything_leaves_what_was_refused_by_name(
    database: Database, shop: Shop
) -> None:
    """The categories that went with an opt-out come back with it, twice too; others do not."""

    async def says(yes: bool, channel: str = "*", category: str = "*") -> None:
        shop.clock.set(shop.clock.now().add(hours=1))
        by = subscribe if yes else unsubscribe
        await by(database, 1, "ann", channel, category, source="page")

    await says(False, "email", "club")
    await says(True, "email", "news")
    await says(False, "*", "marketing")
    await says(True, "sms", "tips")
    await says(False, "*", "marketing")
    await says(True)

    assert await said_by(shop, "ann") == {
        ("email", "club"): NO,
        ("email", "news"): YES,
        ("sms", "tips"): YES,
        ("*", "marketing"): YES,
        ("*", "*"): YES,
    }


async def test_a_yes_by_one_channel_leaves_the_others_refused(
    database: Database, shop: Shop
) -> None:
    for channel, category in (("*", "news"), ("*", "club"), ("email", "club")):
        await subscribe(database, 1, "ann", channel, category, source="page")
    await unsubscribe(database, 1, "ann", "email", "club", source="page")
    shop.clock.set(later(days=1))
    await unsubscribe(database, 1, "ann", "*", "marketing", source="page")
    shop.clock.set(later(days=2))

    assert await subscribe(database, 1, "ann", " Email", source="page", cause="c9")

    states = await said_by(shop, "ann")
    assert allows(states, "email", "news", True)
    assert not allows(states, "email", "club", False)
    assert not allows(states, "sms", "news", False)
    proofs = {row[:2] for row in await history(database, 1, "ann") if row.cause == "c9"}
    assert proofs == {("email", "*"), ("email", "marketing"), ("email", "news")}


async def test_a_batch_of_changes_costs_three_statements_and_keeps_their_order(
    database: Database, shop: Shop
) -> None:
    await shop.hears(*(track(f"u{i}", "seen") for i in range(100)))
    states: list[State] = ["unsubscribed", "subscribed", "unsubscribed"]
    said = [
        Change(1, f"u{i}", "sms", "*", state, "api", f"e{n}")
        for n, state in enumerate(states)
        for i in range(100)
    ]

    with counted(database) as sent:
        kept = await database.run(lambda connection: change(connection, said, 5))

    assert kept == 300
    assert len([statement for statement in sent if "subscription" in statement]) == 3
    rows = await shop.rows(subscriptions)
    assert {(row.state, row.version, row.changed_at) for row in rows} == {(NO, 3, 5)}
    proofs = await shop.rows(subscription_changes)
    assert [(row.version, row.state, row.cause) for row in proofs][:3] == [
        *((1, NO, "e0"), (2, YES, "e1"), (3, NO, "e2"))
    ]


async def test_nothing_said_costs_no_statement(database: Database) -> None:
    async def nothing(connection: Any) -> None:
        assert await change(connection, [], 5) == 0
        assert await of_people(connection, []) == {}

    with counted(database) as sent:
        await database.run(nothing)

    assert [statement for statement in sent if "subscription" in statement] == []


@pytest.mark.parametrize(
    ("user_id", "channel", "category", "message"),
    [
        (
            *("", "sms", "*"),
            "The subscription cannot be kept: it has no user id. "
            'Give "user_id" a text that is not blank.',
        ),
        (
            *("ann", "", "*"),
            'The channel of a subscription is ""; expected a name of 1 to 200 characters. '
            'Write "*" for every channel.',
        ),
        (
            *("ann", " ", "*"),
            'The channel of a subscription is " "; expected a name of 1 to 200 characters. '
            'Write "*" for every channel.',
        ),
        (
            *("ann", "sms", ""),
            'The category of a subscription is ""; expected a name of 1 to 200 characters. '
            'Write "*" for every category.',
        ),
    ],
)
async def test_a_subscription_to_nothing_is_refused(
    database: Database, user_id: str, channel: str, category: str, message: str
) -> None:
    with pytest.raises(BadSubscription) as refused:
        await subscribe(database, 1, user_id, channel, category, source="panel")
    assert str(refused.value) == message


# --- what events say


@pytest.mark.parametrize(
    ("name", "properties", "said"),
    [
        ("opt_out", {}, [("*", "marketing", NO)]),
        ("opt_out", {"channel": "email"}, [("email", "*", NO)]),
        ("opt_out", {"channel": 5}, [("*", "marketing", NO)]),
        ("subscription_changed", {"state": NO}, [("*", "*", NO)]),
        (
            "subscription_changed",
            {"state": YES, "channel": " email ", "category": "news"},
            [("email", "news", YES)],
        ),
        (
            "subscription_changed",
            {"state": YES, "channel": None, "category": None},
            [("*", "*", YES)],
        ),
        ("subscription_changed", {"state": YES, "channel": ["sms"]}, []),
        ("subscription_changed", {"state": YES, "channel": 5}, []),
        ("subscription_changed", {"state": YES, "channel": "  "}, []),
        ("subscription_changed", {"state": YES, "channel": "c" * 201}, []),
        ("subscription_changed", {"state": YES, "channel": "sms", "category": {}}, []),
        ("subscription_changed", {"state": YES, "category": "n" * 201}, []),
        ("subscription_changed", {"state": NO, "channel": ["sms"]}, [("*", "*", NO)]),
        ("subscription_changed", {"state": NO, "channel": "SMS"}, [("sms", "*", NO)]),
        (
            "subscription_changed",
            {"state": NO, "channel": "sms", "category": False},
            [("sms", "*", NO)],
        ),
        ("opt_out", {"channel": "Email "}, [("email", "*", NO)]),
        ("subscription_changed", {"state": "maybe"}, []),
        ("subscription_changed", {"state": ["subscribed"]}, []),
        ("inbound_sms", {"text": "STOP"}, [("sms", "*", NO)]),
        ("inbound_sms", {"body": "لغو"}, [("sms", "*", NO)]),
        ("inbound_sms", {"text": "Start"}, [("sms", "*", YES)]),
        ("inbound_sms", {"text": "please stop"}, []),
        ("inbound_sms", {"text": "No more, thanks", "opt_out": True}, [("sms", "*", NO)]),
        ("inbound_email", {"text": "STOP"}, []),
        ("inbound_email", {"text": "leave me", "opt_out": True}, [("email", "*", NO)]),
        ("purchase", {"text": "STOP", "state": NO}, []),
    ],
)
def test_an_event_says_what_somebody_wants(
    name: str, properties: dict[str, Any], said: list[tuple[str, str, str]]
) -> None:
    changes = changes_of(1, Incoming("track", "ann", name, properties, "e1", "twilio"))

    assert [each[2:5] for each in changes] == said
    assert {each[:2] + each[5:7] for each in changes} <= {(1, "ann", "twilio", "e1")}


async def test_a_text_message_that_says_stop_ends_every_pass_and_blocks_the_channel(
    shop: Shop,
) -> None:
    """Journeys that never asked for texts too, in the transaction of the event."""
    for _ in range(2):
        await shop.opens(days(1))
    await shop.hears(track("ann", "signed_up"), track("bob", "signed_up"))

    await shop.hears(track("ann", "inbound_sms", "m1", text=" Stop. "))

    assert [await shop.where("ann", journey_id) for journey_id in (1, 2)] == ["exited w"] * 2
    assert (await shop.told("ann"))[-2:] == ["woke w exit", "exited w exit_criteria"]
    assert await shop.where("bob") == "waiting w"
    assert await said_by(shop, "ann") == {("sms", "*"): NO}
    proof = (await history(shop.database, 1, "ann"))[0]
    assert (proof.source, proof.cause) == ("api", "m1")

    await shop.hears(track("ann", "inbound_sms", "m1", text=" Stop. "))  # again
    await shop.hears(track("ann", "inbound_sms", "m2", text="stopp"))
    assert len(await history(shop.database, 1, "ann")) == 1


async def test_start_takes_a_stop_back_and_yes_only_where_there_was_one(shop: Shop) -> None:
    await shop.hears(track("ann", "inbound_sms", text="YES"))
    assert await said_by(shop, "ann") == {}

    await shop.hears(
        track("ann", "inbound_sms", text="STOP"),
        track("ann", "inbound_sms", text="yes"),
        track("bob", "inbound_sms", text="UNSTOP"),
    )

    assert await said_by(shop, "ann") == {("sms", "*"): YES}
    assert await said_by(shop, "bob") == {("sms", "*"): YES}


async def test_an_event_that_is_refused_changes_no_subscription(shop: Shop) -> None:
    """The same id with another text: the first one counts."""
    await shop.hears(track("ann", "inbound_sms", "m1", text="hello"))
    receipt = await shop.hears(track("ann", "inbound_sms", "m1", text="STOP"))

    assert receipt.conflicts == ("m1",)
    assert await said_by(shop, "ann") == {}
