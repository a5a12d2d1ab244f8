"""People write back, from addresses that we know or not, to what we sent or not."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import insert

from journeykit_server import inbound
from journeykit_server.database import Database
from journeykit_server.inbound import MOST_TEXT_CHARACTERS, BadInbound, Inbound, receive
from journeykit_server.incoming import Incoming, Receipt
from journeykit_server.mail import name_for_mail
from journeykit_server.subscriptions import read_subscriptions
from journeykit_server.tables import events, policies
from tests.engine.walking import END, days, send, wait_for_any
from tests.server.shop import Shop, counted, track

HELLO = "j1.v1.hello.ann.e1"
ANN, BOB = "Ann <Ann@Example.com>", "bob@example.com"


@pytest.fixture
async def shop(database: Database) -> Shop:
    """Two people with addresses."""
    shop = Shop(database)
    await knows(shop, "ann", email="ann@example.com", phone="+44 7700 900-123")
    await knows(shop, "bob", email="BOB@example.com", phone="+447700900124")
    return shop


async def knows(shop: Shop, user_id: str, **traits: Any) -> None:
    await shop.hears(Incoming("identify", user_id, properties=traits))


async def writes(shop: Shop, *nodes: Any) -> None:
    """A journey that sends ann an e-mail and waits for an answer."""
    hello = send("hello", "w", channel="email", template_id=3)
    await shop.opens(hello, *(nodes or (wait_for_any(on={"reply": "end"}), END)))
    await shop.hears(track("ann", "signed_up"))
    await shop.runtime.deliver()


async def came(shop: Shop) -> list[Any]:
    return [row for row in await shop.rows(events) if row.name.startswith("inbound_")]


@pytest.mark.parametrize(
    "in_reply_to",
    [
        HELLO,
        f"<{name_for_mail(1, HELLO)}@shop.example>",
        f"<first@elsewhere> <{name_for_mail(1, HELLO).upper()}@shop.example>\r\n <last@elsewhere>",
    ],
)
async def test_an_answer_to_our_mail_is_a_reply(shop: Shop, in_reply_to: str) -> None:
    await writes(shop)

    told = await receive(
        shop.runtime, 1, Inbound("email", ANN, "Yes!", in_reply_to, "m1", "Re: Hello")
    )

    assert (told.event, told.user_ids, told.in_thread) == ("inbound_email", ("ann",), True)
    assert await shop.where("ann") == "completed end"
    (stored,) = await came(shop)
    assert (stored.event_id, stored.source) == ("m1-ann", "inbound_email")
    assert stored.properties == {
        "text": "Yes!",
        "channel": "email",
        "sender": ANN,
        "subject": "Re: Hello",
        "in_thread": True,
        "in_reply_to": HELLO,
        "journey_id": 1,
        "node_id": "hello",
    }


@pytest.mark.parametrize("name", [HELLO, f"<{name_for_mail(1, HELLO)}@shop.example>"])
@pytest.mark.parametrize(("sender", "whose"), [("eve@home.example", ()), (BOB, ("bob",)), ("", ())])
async def test_who_knows_the_id_of_a_mail_cannot_answer_for_its_receiver(
    shop: Shop, name: str, sender: str, whose: tuple[str, ...]
) -> None:
    """Ids can be guessed, and a mail may say that it answers whatever it likes."""
    await writes(shop)

    told = await receive(shop.runtime, 1, Inbound("email", sender, "STOP", name), ["stop"])

    assert (told.user_ids, told.in_thread) == (whose, False)
    assert await shop.where("ann") == "waiting w"
    assert await read_subscriptions(shop.database, 1, "ann") == {}


async def test_an_answer_by_our_own_id_may_come_from_an_unknown_profile(shop: Shop) -> None:
    """The carrier says what was answered, not the sender."""
    await writes(shop)

    told = await receive(shop.runtime, 1, Inbound("linkedin", "in/ann-at-work", "Yes!", HELLO))

    assert (told.user_ids, told.in_thread) == (("ann",), True)
    assert await shop.where("ann") == "completed end"


async def test_of_an_address_that_many_share_the_answered_mail_tells_who_it_was(
    shop: Shop,
) -> None:
    for number in range(30):
        await knows(shop, f"a{number:02}", email="ann@example.com")
    await writes(shop)
    answer = Inbound("email", ANN, "Yes!", f"<{name_for_mail(1, HELLO)}@shop.example>")

    with counted(shop.database) as sent:
        told = await receive(shop.runtime, 1, answer)

    assert (told.user_ids, told.in_thread) == (("ann",), True)
    assert len([each for each in sent if "s.message_id" in each]) == 1


@pytest.mark.parametrize("in_reply_to", ["", "<other@example.com>", name_for_mail(2, HELLO)])
async def test_a_mail_in_no_thread_of_ours_is_kept_and_answers_nothing(
    shop: Shop, in_reply_to: str
) -> None:
    await writes(shop)

    told = await receive(shop.runtime, 1, Inbound("email", ANN, "Hello?", in_reply_to))

    assert (told.user_ids, told.in_thread) == (("ann",), False)
    assert [row.properties["in_thread"] for row in await came(shop)] == [False]
    assert await shop.where("ann") == "waiting w"


async def test_a_message_that_was_withheld_begins_no_thread(shop: Shop) -> None:
    """A held-out person, to whom nothing was sent."""
    split = {"branches": [{"weight": 1, "next": "hello"}], "holdout_percent": 100}
    await shop.opens(
        {"id": "s", "kind": "split", "split": split},
        send("hello", "w", channel="email", template_id=3),
        wait_for_any(on={"reply": "end"}),
        END,
    )
    await shop.hears(track("ann", "signed_up"))

    told = await receive(shop.runtime, 1, Inbound("email", ANN, "Yes!", HELLO))

    assert (told.user_ids, told.in_thread) == (("ann",), False)


async def test_a_mail_may_be_answered_before_we_know_that_it_was_delivered(shop: Shop) -> None:
    hello = send("hello", "w", channel="email", template_id=3)
    await shop.opens(hello, wait_for_any(on={"reply": "end"}), END)
    await shop.hears(track("ann", "signed_up"))

    told = await receive(shop.runtime, 1, Inbound("email", ANN, "Quick!", HELLO))

    assert told.in_thread


@pytest.mark.parametrize(
    ("channel", "sender", "user_ids"),
    [
        ("email", "bob@EXAMPLE.com", ("bob",)),
        ("email", '"Bob, the Builder" <bob@example.com>', ("bob",)),
        ("email", "bobby@example.com", ()),
        ("sms", "+447700900123", ("ann",)),
        ("sms", "00447700900124", ("bob",)),
        ("sms", "+44 (7700) 900.124", ("bob",)),
        ("sms", "7700900124", ()),
        ("linkedin", "in/ann", ()),
        ("email", "' OR 1=1 --@x", ()),
        ("sms", "\\' OR '1'='1", ()),
        ("sms", "447700900123", ("ann",)),
        ("sms", "tel:+44-7700-900123", ("ann",)),
        ("sms", "+44 (0) 7700 900123", ("ann",)),
        ("sms", "+۴۴۷۷۰۰۹۰۰۱۲۳", ("ann",)),
        ("sms", "+44\u00a07700\u2011900\u2011123\u202c", ("ann",)),
        ("sms", "ann447700900123", ()),
        ("sms", "00", ()),
        ("sms", "+", ()),
    ],
)
async def test_the_sender_is_found_by_the_address(
    shop: Shop, channel: Any, sender: str, user_ids: tuple[str, ...]
) -> None:
    told = await receive(shop.runtime, 1, Inbound(channel, sender, "Hi"))

    assert told.user_ids == user_ids
    assert [row.user_id for row in await came(shop)] == list(user_ids)
    assert (await receive(shop.runtime, 2, Inbound(channel, sender, "Hi"))).user_ids == ()


@pytest.mark.parametrize(
    "kept",
    [
        "+989123456789",
        "+98 912 345-6789",
        "00989123456789",
        "00 98 (912) 345.67.89",
        "989123456789",
        "+98 (0) 912 345 6789",
        "+۹۸۹۱۲۳۴۵۶۷۸۹",
        "٠٠٩٨٩١٢٣٤٥٦٧٨٩",
        "+९८९१२३४५६७८९",
        "+９８９１２３４５６７８９",
        "tel:+98-912-345-6789",
        "TEL:00989123456789",
        "\u202a+98\u00a0912\u2011345\u20136789\u202c",
        "\t+98/912/3456789 ",
    ],
)
async def test_a_stop_finds_a_number_however_it_is_written(shop: Shop, kept: str) -> None:
    await knows(shop, "mina", phone=kept)
    await knows(shop, "none", phone="")
    await knows(shop, "home", phone="09123456789")
    await knows(shop, "mark", phone="+98912345678x9")

    for n, sender in enumerate(("+989123456789", "00989123456789", "989123456789")):
        told = await receive(shop.runtime, 1, Inbound("sms", sender, "STOP", id=f"m{n}"))
        assert told.user_ids == ("mina",)

    states = await read_subscriptions(shop.database, 1, "mina")
    assert states == {("sms", "*"): "unsubscribed"}


@pytest.mark.parametrize("kept", [" eve@x.example", "Eve@X.example\n", "\t\u00a0eve@x.example "])
async def test_an_address_with_blanks_around_it_is_found(shop: Shop, kept: str) -> None:
    await knows(shop, "eve", email=kept)

    told = await receive(shop.runtime, 1, Inbound("email", "eve@x.example", "Hi"))

    assert told.user_ids == ("eve",)


async def test_of_too_many_with_one_number_the_log_tells(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(inbound, "MOST_SHARING", 1)
    await knows(shop, "cyd", phone="+447700900123")

    told = await receive(shop.runtime, 1, Inbound("sms", "+447700900123", "Hi"))

    assert told.user_ids == ("ann",)
    assert [record.getMessage() for record in caplog.records] == [
        "more than 1 people share the address of an inbound sms; the others do not get it"
    ]


async def test_the_account_names_the_trait_that_holds_an_address(shop: Shop) -> None:
    document = '{"addresses": {"linkedin": "l\'in \\"k\\"", "email": "work.mail"}}'
    row = {"tenant_id": 1, "version": 1, "document": document, "saved_at": 0, "saved_token": "t"}
    await shop.database.run(lambda c: c.execute(insert(policies).values(row)))
    await knows(shop, "cyd", **{"work.mail": "cyd@example.com"})

    told = await receive(shop.runtime, 1, Inbound("email", "cyd@example.com", "Hi"))

    assert told.user_ids == ("cyd",)
    assert (await receive(shop.runtime, 1, Inbound("email", BOB, "Hi"))).user_ids == ()
    assert (await receive(shop.runtime, 1, Inbound("linkedin", "in/ann", "Hi"))).user_ids == ()


async def test_a_stop_holds_for_everybody_with_that_number(shop: Shop) -> None:
    await knows(shop, "cyd", phone="+447700900123")
    await shop.opens(days(3))
    await shop.hears(*(track(user_id, "signed_up") for user_id in ("ann", "bob", "cyd")))

    told = await receive(shop.runtime, 1, Inbound("sms", "+447700900123", "Stop.", id="m1"))

    assert (told.user_ids, told.is_opt_out) == (("ann", "cyd"), True)
    assert [await shop.where(user_id) for user_id in ("ann", "bob", "cyd")] == [
        *("exited w", "waiting w", "exited w")
    ]
    for user_id in told.user_ids:
        states = await read_subscriptions(shop.database, 1, user_id)
        assert states == {("sms", "*"): "unsubscribed"}


async def test_an_account_may_have_words_of_its_own(shop: Shop) -> None:
    message = Inbound("sms", "+447700900123", " Basta! ")

    assert not (await receive(shop.runtime, 1, message)).is_opt_out
    assert (await receive(shop.runtime, 1, message, ["BASTA"])).is_opt_out
    states = await read_subscriptions(shop.database, 1, "ann")
    assert states == {("sms", "*"): "unsubscribed"}


@pytest.mark.parametrize(
    ("text", "is_opt_out"), [(" 🛑 ", True), ("👍", False), ("?", False), ("", False), ("-", False)]
)
async def test_a_word_of_signs_alone_is_itself_and_no_other(
    shop: Shop, text: str, is_opt_out: bool
) -> None:
    told = await receive(shop.runtime, 1, Inbound("sms", "+447700900123", text), ["🛑", "--", " "])

    assert told.is_opt_out == is_opt_out


async def test_a_second_delivery_of_a_message_changes_nothing(shop: Shop) -> None:
    message = Inbound("sms", "+447700900123", "Hello", id="m1")

    first = await receive(shop.runtime, 1, message)
    again = await receive(shop.runtime, 1, message)

    assert [told.receipt[:2] for told in (first, again)] == [(1, 0), (0, 1)]
    assert len(await came(shop)) == 1


async def test_what_nobody_known_sent_is_told_and_not_kept(shop: Shop) -> None:
    told = await receive(shop.runtime, 1, Inbound("sms", "+15550100", "STOP"))

    assert told == ("inbound_sms", (), False, False, Receipt())
    assert await came(shop) == []


async def test_any_text_can_be_kept(shop: Shop) -> None:
    text = "a\0b\ud800" + "x" * MOST_TEXT_CHARACTERS

    told = await receive(shop.runtime, 1, Inbound("sms", "+447700900123", text, "a\0 \ud800"))

    assert told.user_ids == ("ann",)
    (stored,) = await came(shop)
    assert stored.properties["text"] == "ab?" + "x" * (MOST_TEXT_CHARACTERS - 3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            Inbound("fax", "1", "Hi"),  # type: ignore[arg-type]
            'The channel of the message is "fax"; expected "email", "sms" or "linkedin".',
        ),
        (
            Inbound("sms", " ", "Hi"),
            "The message names neither its sender nor what it answers. Give one of the two.",
        ),
        (
            Inbound("sms", "1", "Hi", id="m" * 201),
            "The id of the message has 201 characters, more than 200. Give its hash.",
        ),
    ],
)
async def test_what_is_no_message_is_refused(shop: Shop, given: Inbound, message: str) -> None:
    with pytest.raises(BadInbound) as refused:
        await receive(shop.runtime, 1, given)
    assert str(refused.value) == message
