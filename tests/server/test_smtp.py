"""E-mail through a real mail server in this process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

import pytest
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session
from sqlalchemy import select
from whenever import TimeDelta

from journeykit_server.clock import VirtualClock
from journeykit_server.database import Database
from journeykit_server.delivery import Delivered, Failed, Item, Outcome, Refused, Unreachable
from journeykit_server.mail import BadAddress, clean_address, clean_sender
from journeykit_server.smtp import SmtpProvider
from journeykit_server.tables import deliveries
from tests.databases import START

SENDER = "Shop <shop@example.com>"
OK = "250 OK"


@dataclass
class Post:
    """A mail server that takes everything, but for what a test tells it."""

    port: int = 0
    rcpt: dict[str, str] = field(default_factory=dict)  # by address
    mail: str = OK
    data: list[str] = field(default_factory=list)  # one answer a message; "hang up" gives none
    pause_seconds: float = 0.0
    most_a_connection: int = 1_000
    login: tuple[str, str] | None = None
    logins: list[tuple[str, str]] = field(default_factory=list)
    got: list[EmailMessage] = field(default_factory=list)
    envelopes: list[Envelope] = field(default_factory=list)
    connections: int = 0

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def subjects(self) -> list[str]:
        return [str(mail["Subject"]) for mail in self.got]

    def make(self) -> SMTP:
        self.connections += 1
        taken = 0

        class Handler:
            async def handle_MAIL(
                _, server: SMTP, session: Session, envelope: Envelope, address: str, options: object
            ) -> str:
                if taken >= self.most_a_connection:
                    return "421 4.7.0 enough for one connection"
                if self.mail == OK:
                    envelope.mail_from = address
                return self.mail

            async def handle_RCPT(
                _, server: SMTP, session: Session, envelope: Envelope, address: str, options: object
            ) -> str:
                answer = self.rcpt.get(address, OK)
                if answer == OK:
                    envelope.rcpt_tos.append(address)
                return answer

            async def handle_DATA(_, server: SMTP, session: Session, envelope: Envelope) -> str:
                nonlocal taken
                await asyncio.sleep(self.pause_seconds)
                answer = self.data.pop(0) if self.data else OK
                content = envelope.content
                assert isinstance(content, bytes)
                if answer in (OK, "hang up"):
                    mail = message_from_bytes(content, policy=policy.default)
                    assert isinstance(mail, EmailMessage)
                    self.got.append(mail)
                    self.envelopes.append(envelope)
                taken += 1
                if answer == "hang up":
                    assert isinstance(server.transport, asyncio.Transport)
                    server.transport.abort()
                return answer

        return SMTP(
            Handler(),
            enable_SMTPUTF8=True,
            authenticator=self.check,
            auth_require_tls=False,
            hostname="mail.example",
        )

    def check(self, _: object, __: object, ___: object, ____: object, given: object) -> AuthResult:
        assert isinstance(given, LoginPassword)
        told = (given.login.decode(), given.password.decode())
        self.logins.append(told)
        return AuthResult(success=told == self.login, handled=False)


@asynccontextmanager
async def running(post: Post) -> AsyncIterator[Post]:
    server = await asyncio.get_running_loop().create_server(post.make, "127.0.0.1", post.port)
    post.port = server.sockets[0].getsockname()[1]
    try:
        yield post
    finally:
        server.close()


@pytest.fixture
async def post() -> AsyncIterator[Post]:
    async with running(Post()) as started:
        yield started


def letter(name: str = "a", address: str | None = "ann@example.org", **texts: str) -> Item:
    told = {
        "channel": "email",
        "address": address,
        "texts": {"subject": name, "body": f"Dear {name}", **texts},
        "category": "marketing",
    }
    return Item(1, f"j7.v1.{name}.ann.e1", "ann", 7, 1, 1, name, "send", told, START, 1)


def smtp(database: Database, post: Post, **more: object) -> SmtpProvider:
    settings = {"tls": "none", "command_seconds": 5, **more}
    return SmtpProvider(database, "127.0.0.1", post.port, SENDER, **settings)  # type: ignore[arg-type]


async def outcome(database: Database, post: Post, item: Item, **more: object) -> Outcome:
    return (await smtp(database, post, **more).deliver([item]))[0]


async def accepted(database: Database) -> list[str]:
    query = select(deliveries.c.message_id).order_by(deliveries.c.message_id)
    rows = await database.read(lambda connection: connection.execute(query))
    return [row.message_id for row in rows]


# -- what arrives --------------------------------------------------------------------------------


async def test_a_message_arrives_as_it_was_written(database: Database, post: Post) -> None:
    item = letter(subject="سلام آن، سفارش شما رسید", body="آن عزیز،\nسفارش شما رسید.\n")

    assert await outcome(database, post, item) == Delivered("email")

    (mail,), (envelope,) = post.got, post.envelopes
    assert mail["Subject"] == "سلام آن، سفارش شما رسید"
    assert mail.get_content().replace("\r\n", "\n") == "آن عزیز،\nسفارش شما رسید.\n"
    assert (mail["From"], mail["To"]) == (SENDER, "ann@example.org")
    assert (envelope.mail_from, envelope.rcpt_tos) == ("shop@example.com", ["ann@example.org"])
    assert mail["Date"] == "Mon, 01 Jun 2026 10:00:00 +0000"
    assert mail["X-Journeykit-Message-Id"] in mail["Message-ID"]
    assert mail["Message-ID"].endswith("@example.com>")


async def test_a_page_goes_beside_its_plain_text(database: Database, post: Post) -> None:
    await outcome(database, post, letter(html="<p>سلام</p>", reply_to="help@example.com"))

    (mail,) = post.got
    kinds = [part.get_content_type() for part in mail.walk()]
    assert kinds == ["multipart/alternative", "text/plain", "text/html"]
    page = mail.get_body(("html",))
    assert page is not None and page.get_content().strip() == "<p>سلام</p>"
    assert mail["Reply-To"] == "help@example.com"


async def test_a_page_alone_is_enough(database: Database, post: Post) -> None:
    await outcome(database, post, letter(body="", html="<p>Hi</p>"))

    assert post.got[0].get_content_type() == "text/html"


async def test_only_what_is_no_receipt_can_be_unsubscribed_from(
    database: Database, post: Post
) -> None:
    address = "https://example.com/u?m={id}"
    receipt = letter("b")
    receipt = receipt._replace(payload={**receipt.payload, "category": "transactional"})

    await smtp(database, post, unsubscribe=address).deliver([letter("a"), receipt])

    one, two = post.got
    name = one["X-Journeykit-Message-Id"]
    assert one["List-Unsubscribe"] == f"<https://example.com/u?m={name}>"
    assert one["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
    assert two["List-Unsubscribe"] is None


async def test_a_whole_offer_goes_over_one_connection(database: Database, post: Post) -> None:
    names = ["c", "a", "b"]

    told = await smtp(database, post).deliver([letter(name) for name in names])

    assert told == [Delivered("email")] * 3
    assert post.subjects == names
    assert post.connections == 1


async def test_a_name_beyond_ascii_needs_a_server_that_takes_it(
    database: Database, post: Post
) -> None:
    told = await smtp(database, post).deliver(
        [letter("a", "زهرا@example.org"), letter("b", "ann@bücher.example")]
    )

    assert told == [Delivered("email")] * 2
    assert [each.rcpt_tos for each in post.envelopes] == [
        ["زهرا@example.org"],
        ["ann@xn--bcher-kva.example"],
    ]


# -- once ----------------------------------------------------------------------------------------


async def test_what_was_accepted_is_not_sent_again(database: Database, post: Post) -> None:
    """The worker died before it could keep the outcome; another offers all of it again."""
    await smtp(database, post).deliver([letter("a"), letter("b")])

    told = await smtp(database, post).deliver([letter("a"), letter("b"), letter("c")])

    assert told == [Delivered("email")] * 3
    assert post.subjects == ["a", "b", "c"]
    assert await accepted(database) == ["j7.v1.a.ann.e1", "j7.v1.b.ann.e1", "j7.v1.c.ann.e1"]


async def test_the_same_id_of_another_tenant_is_another_message(
    database: Database, post: Post
) -> None:
    await smtp(database, post).deliver([letter("a"), letter("a")._replace(tenant_id=2)])

    assert len({mail["Message-ID"] for mail in post.got}) == 2


async def test_a_lost_acknowledgement_sends_twice_under_one_name(
    database: Database, post: Post
) -> None:
    """What cannot be closed: the server has it and could not say so."""
    post.data = ["hang up"]
    told = await outcome(database, post, letter())
    assert told == Failed(
        f'The connection to the mail server "{post.name}" was lost: SMTPServerDisconnected.'
    )
    assert await accepted(database) == []

    assert await outcome(database, post, letter()) == Delivered("email")

    one, two = post.got
    assert one["Message-ID"] == two["Message-ID"]


async def test_who_is_stopped_in_the_middle_keeps_what_was_accepted(
    database: Database, post: Post
) -> None:
    post.pause_seconds = 0.1
    offer = asyncio.ensure_future(
        smtp(database, post).deliver([letter(name) for name in "abcdefgh"])
    )
    while not await accepted(database):
        await asyncio.sleep(0)
    offer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await offer

    await smtp(database, post).deliver([letter("a")])
    assert post.subjects.count("a") == 1


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("550 no such user", Unreachable("no_address")),
        ("551 moved", Unreachable("no_address")),
        ("553 bad mailbox name", Unreachable("no_address")),
        ("550 5.1.1 no such user", Unreachable("no_address")),
        ("554 5.1.2 no such domain", Unreachable("no_address")),
        ("550 5.2.1 mailbox disabled", Unreachable("no_address")),
    ],
)
async def test_a_mailbox_that_is_not_there_cannot_be_reached(
    database: Database, post: Post, answer: str, told: Outcome
) -> None:
    post.rcpt = {"gone@example.org": answer}

    assert await outcome(database, post, letter(address="gone@example.org")) == told


@pytest.mark.parametrize("answer", ["550 5.7.1 relaying denied", "554 policy", "552 5.2.2 full"])
async def test_a_refusal_of_something_else_is_final(
    database: Database, post: Post, answer: str
) -> None:
    post.rcpt = {"ann@example.org": answer}

    assert await outcome(database, post, letter()) == Refused(
        "MAIL_REFUSED",
        f'The mail server "{post.name}" refused the message for good ({answer[:3]}).',
    )


async def test_a_text_that_a_server_will_not_have_is_final(database: Database, post: Post) -> None:
    post.data = ["554 5.7.1 spam"]

    assert await outcome(database, post, letter()) == Refused(
        "MAIL_REFUSED", f'The mail server "{post.name}" refused the message for good (554).'
    )


@pytest.mark.parametrize("answer", ["450 4.2.1 later", "451 greylisted", "452 full"])
async def test_not_now_is_tried_again(database: Database, post: Post, answer: str) -> None:
    later = Failed(f'The mail server "{post.name}" will not take the message now ({answer[:3]}).')

    post.rcpt = {"ann@example.org": answer}
    assert await outcome(database, post, letter()) == later
    post.rcpt, post.data = {}, [answer]
    assert await outcome(database, post, letter()) == later
    assert await outcome(database, post, letter()) == Delivered("email")


async def test_one_bad_recipient_leaves_the_others_alone(database: Database, post: Post) -> None:
    post.rcpt = {"gone@example.org": "550 no such user"}
    items = [letter("a"), letter("b", "gone@example.org"), letter("c", None), letter("d")]

    told = await smtp(database, post).deliver(items)

    sent, unreachable = Delivered("email"), Unreachable("no_address")
    assert told == [sent, unreachable, unreachable, sent]
    assert post.subjects == ["a", "d"]


async def test_a_sender_that_is_not_taken_is_the_operator_s_to_mend(
    database: Database, post: Post
) -> None:
    post.mail = "553 not yours"

    assert await outcome(database, post, letter()) == Failed(
        f'The mail server "{post.name}" does not send for "shop@example.com" (553). Mend '
        "JOURNEYKIT_SMTP_FROM, or let the server send for it."
    )


async def test_a_message_without_a_text_is_not_sent(database: Database, post: Post) -> None:
    item = letter()

    assert await outcome(
        database, post, item._replace(payload={**item.payload, "texts": {}})
    ) == Refused(
        "NO_TEXT",
        'The message has neither a "body" nor an "html" text. Write one into its template.',
    )


# -- nothing can be smuggled in ------------------------------------------------------------------


BAD_ADDRESSES = [
    "ann@example.org\r\nBcc: all@example.org",
    "ann@example.org\nX: 1",
    "ann@example.org, bob@example.org",
    "ann@example.org;bob@example.org",
    "ann@example.org>",
    "<ann@example.org>",
    "Ann <ann@example.org>",
    '"ann"@example.org',
    "ann @example.org",
    "ann@@example.org",
    "ann@example.org\x00",
    "ann@[127.0.0.1]",
    "ann@-example.org",
    "ann@example..org",
    "ann",
    "@example.org",
    "ann@",
    "a" * 65 + "@example.org",
    "ann@" + "a." * 125 + "org",
    " ",
    "=?utf-8?q?=0A?=@example.org",
    "=?utf-8?q?a=40b?=@example.org",
]


@pytest.mark.parametrize("address", BAD_ADDRESSES)
async def test_an_address_is_one_address_or_none(sqlite_url: str, post: Post, address: str) -> None:
    with pytest.raises(BadAddress):
        clean_address(address)


async def test_a_bad_address_is_never_offered(database: Database, post: Post) -> None:
    items = [letter(str(n), address) for n, address in enumerate(BAD_ADDRESSES)]

    assert set(await smtp(database, post).deliver(items)) == {Unreachable("bad_address")}
    assert post.connections == 0


async def test_a_mail_that_cannot_be_made_fails_nobody_else(database: Database, post: Post) -> None:
    items = [letter("good", "ann@example.org"), letter("bad", "bob@example.org", body="\ud800")]

    assert await smtp(database, post).deliver(items) == [
        Delivered("email"),
        Refused(
            "BAD_MAIL",
            "No mail can be made of this message (UnicodeEncodeError). See the texts of its "
            "template and the person's address, then retry.",
        ),
    ]


async def test_a_subject_stays_one_line(database: Database, post: Post) -> None:
    subject = "Hello\r\nBcc: all@example.org\r\n\r\n<p>Text\u2028more\x00"

    assert await outcome(database, post, letter(subject=subject)) == Delivered("email")

    (mail,) = post.got
    assert mail["Subject"] == "Hello Bcc: all@example.org <p>Text more"
    assert mail["Bcc"] is None
    assert post.envelopes[0].rcpt_tos == ["ann@example.org"]


async def test_a_reply_to_that_is_none_is_told(database: Database, post: Post) -> None:
    assert await outcome(database, post, letter(reply_to="a@b.example\r\nX: 1")) == Refused(
        "BAD_REPLY_TO",
        'The message\'s "reply_to" is no e-mail address. Write one into its template, as '
        '"help@example.com".',
    )


async def test_a_line_with_a_dot_does_not_end_a_message(database: Database, post: Post) -> None:
    body = "one\n.\nMAIL FROM:<x@example.org>\n.two\n"

    await outcome(database, post, letter(body=body))

    assert post.got[0].get_content().replace("\r\n", "\n") == body


@pytest.mark.parametrize(
    "address", ["a..b@example.org", ".a@example.org", "o'neil+x=y?@example.org", "a|b%c@e-x.org"]
)
async def test_an_address_that_is_odd_is_taken_as_it_is(
    database: Database, post: Post, address: str
) -> None:
    assert await outcome(database, post, letter(address=address)) == Delivered("email")

    assert post.envelopes[0].rcpt_tos == [address]


@pytest.mark.parametrize("sender", ["", "Shop", "a@b.example\r\nX: 1", "a@b@c", "Shop <>"])
def test_a_sender_that_is_none_is_refused_at_the_start(sender: str) -> None:
    with pytest.raises(BadAddress):
        clean_sender(sender)


# -- servers in trouble --------------------------------------------------------------------------


async def test_a_server_that_is_not_there_is_a_failure_and_then_left_alone(
    database: Database, post: Post
) -> None:
    async with running(Post()) as gone:
        pass
    provider = smtp(database, gone)

    told = [await provider.deliver([letter(str(n)), letter(f"{n}b")]) for n in range(6)]

    name = gone.name
    away = Failed(f'The mail server "{name}" cannot be reached: SMTPConnectError.')
    assert told[:5] == [[away, away]] * 5
    rests = f'The mail server "{name}" is left alone for 30 more seconds: it did not work.'
    assert told[5] == [Failed(rests, 30)] * 2

    clock = database.clock
    assert isinstance(clock, VirtualClock)
    clock.set(START + TimeDelta(seconds=30))
    async with running(gone):
        assert await provider.deliver([letter("x")]) == [Delivered("email")]


async def test_a_server_that_has_had_enough_is_called_again(database: Database, post: Post) -> None:
    """Many take so many messages over one connection; what they declined costs no attempt."""
    post.most_a_connection = 3

    told = await smtp(database, post).deliver([letter(name) for name in "abcdefgh"])

    assert told == [Delivered("email")] * 8
    assert post.subjects == list("abcdefgh")
    assert post.connections == 3


async def test_a_server_that_has_had_enough_at_once_is_left(database: Database, post: Post) -> None:
    post.most_a_connection = 0

    told = await smtp(database, post).deliver([letter(name) for name in "abc"])

    assert (
        told
        == [Failed(f'The connection to the mail server "{post.name}" was lost: it hung up.')] * 3
    )
    assert post.connections == 1


async def test_a_lost_connection_is_made_anew_where_it_was_of_use(
    database: Database, post: Post
) -> None:
    post.data = [OK, "hang up", OK]

    told = await smtp(database, post).deliver([letter(name) for name in "abc"])

    assert [type(each) for each in told] == [Delivered, Failed, Delivered]
    assert post.connections == 2


async def test_a_server_that_hangs_up_at_once_is_not_called_for_each(
    database: Database, post: Post
) -> None:
    post.data = ["hang up"] * 50

    told = await smtp(database, post).deliver([letter(f"m{n}") for n in range(50)])

    assert all(isinstance(each, Failed) for each in told)
    assert post.connections == 1


async def test_a_slow_server_costs_only_what_had_no_turn(database: Database, post: Post) -> None:
    post.pause_seconds = 0.1

    told = await smtp(database, post, batch_seconds=0.5).deliver(
        [letter(f"m{n}") for n in range(20)]
    )

    assert told[0] == Delivered("email")
    assert told[-1] == Failed(
        f'The mail server "{post.name}" is too slow for all that goes to it; this waits for its '
        "turn."
    )
    assert len(await accepted(database)) >= told.count(Delivered("email"))


async def test_a_cancellation_that_the_library_loses_still_ends_the_offer(
    database: Database, post: Post
) -> None:
    """It comes together with an answer, and the answer is what is seen."""

    class Losing(SmtpProvider):
        async def _send(self, *given: Any) -> Outcome:
            answer = asyncio.ensure_future(super()._send(*given))
            try:
                return await asyncio.shield(answer)
            except asyncio.CancelledError:
                return await answer

    post.pause_seconds = 0.3
    provider = Losing(database, "127.0.0.1", post.port, SENDER, tls="none", batch_seconds=0.2)

    told = await provider.deliver([letter("a"), letter("b")])

    assert [type(each) for each in told] == [Delivered, Failed]


async def test_a_server_that_never_answers_is_a_failure(database: Database, post: Post) -> None:
    post.pause_seconds = 5

    assert await outcome(database, post, letter(), command_seconds=0.2) == Failed(
        f'The connection to the mail server "{post.name}" was lost: SMTPReadTimeoutError.'
    )


# -- being let in --------------------------------------------------------------------------------


async def test_user_name_and_password_are_given(database: Database, post: Post) -> None:
    post.login = ("shop", "pa ss:wörd")

    provider = smtp(database, post, username="shop", password="pa ss:wörd")

    assert await provider.deliver([letter()]) == [Delivered("email")]
    assert post.logins == [("shop", "pa ss:wörd")]


async def test_a_wrong_password_is_told_and_not_repeated(
    database: Database, post: Post, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "journeykit")
    post.login = ("shop", "right")
    provider = smtp(database, post, username="shop", password="canary")

    told = await provider.deliver([letter("a"), letter("b")])

    refused = Failed(
        f'The mail server "{post.name}" does not take the user name and password (535). Mend them '
        "in JOURNEYKIT_SMTP_URL and start the worker again."
    )
    assert told == [refused] * 2
    assert "canary" not in caplog.text + repr(provider) + repr(told)


async def test_a_server_without_tls_gets_nothing_in_plain_text(
    database: Database, post: Post
) -> None:
    """Neither the password nor a message, unless the operator said so."""
    told = await outcome(
        database, post, letter(), tls="starttls", username="shop", password="canary"
    )

    assert isinstance(told, Failed)
    assert told.message.startswith(f'The mail server "{post.name}" cannot be reached: SMTP')
    assert post.got == []
