"""Each channel has its provider, and one in trouble costs the others nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest
from sqlalchemy import select

from journeykit_server import providers as module
from journeykit_server.database import Database
from journeykit_server.delivery import (
    Delivered,
    Failed,
    Item,
    Outcome,
    Refused,
)
from journeykit_server.offering import OFFER_SECONDS
from journeykit_server.providers import (
    CHANNEL_SECONDS,
    BadSettings,
    Channels,
    Nobody,
    from_settings,
)
from journeykit_server.smtp import SmtpProvider
from journeykit_server.tables import deliveries
from journeykit_server.webhooks import GatewayProvider, WebhookProvider
from tests.server.receiver import SECRET, Receiver, call, listening, send


class Named:
    """Delivers all, and says under which name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.closed = 0
        self.offers: list[list[str]] = []

    async def deliver(self, items: Sequence[Item]) -> Sequence[Outcome]:
        self.offers.append([item.message_id for item in items])
        return [Delivered(self.name) for _ in items]

    async def close(self) -> None:
        self.closed += 1


class Hanging(Named):
    async def deliver(self, items: Sequence[Item]) -> Sequence[Outcome]:
        await asyncio.Event().wait()
        return []


class Broken(Named):
    async def deliver(self, items: Sequence[Item]) -> Sequence[Outcome]:
        raise RuntimeError("no cable")


class Forgetful(Named):
    async def deliver(self, items: Sequence[Item]) -> Sequence[Outcome]:
        return [Delivered(self.name)]


async def test_outcomes_come_in_the_order_of_the_effects() -> None:
    mail, rest, hook = Named("mail"), Named("rest"), Named("hook")
    channels = Channels(rest, {"email": mail, "webhook": hook})
    task = send("")._replace(kind="task", payload={"task": "call"})

    told = await channels.deliver(
        [send("sms", "1"), send("email", "2"), call("http://x", "3"), task, send("email", "4")]
    )

    names = [each.channel for each in told if isinstance(each, Delivered)]
    assert names == ["rest", "mail", "hook", "rest", "mail"]
    assert mail.offers == [["2", "4"]]  # one offer a channel


async def test_a_message_whose_channel_is_called_webhook_is_no_webhook() -> None:
    hook, rest = Named("hook"), Named("rest")

    told = await Channels(rest, {"webhook": hook}).deliver([send("webhook"), call("http://x")])

    assert told == [Delivered("rest"), Delivered("hook")]


async def test_a_channel_that_hangs_does_not_hold_up_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "CHANNEL_SECONDS", 0.05)
    channels = Channels(Named("rest"), {"sms": Hanging(""), "push": Broken("")})

    told = await channels.deliver([send("sms"), send("email"), send("push"), send("sms")])

    hung = Failed('TimeoutError: the channel "sms" gave no answer within 30 seconds')
    assert told == [hung, Delivered("rest"), Failed("RuntimeError: no cable"), hung]
    assert sorted(caplog.messages) == [
        "channel failed channel=push count=1",
        "channel failed channel=sms count=2",
    ]


def test_a_channel_has_less_time_than_the_offer() -> None:
    assert CHANNEL_SECONDS < OFFER_SECONDS


async def test_a_channel_that_forgets_an_outcome_fails_alone() -> None:
    told = await Channels(Named("rest"), {"sms": Forgetful("")}).deliver(
        [send("sms"), send("sms"), send("email")]
    )

    owed = Failed('the channel "sms" gave 1 outcomes for 2 effects; it owes one each')
    assert told == [owed, owed, Delivered("rest")]


async def test_every_provider_is_closed_once() -> None:
    mail, rest = Named("mail"), Named("rest")

    await Channels(rest, {"email": mail, "newsletter": mail, "sms": rest}).close()

    assert (mail.closed, rest.closed) == (1, 1)


# -- settings ------------------------------------------------------------------------------------

MAIL = {
    "JOURNEYKIT_SMTP_URL": "smtp://shop:p%40ss%2Fword@mail.example:2525",
    "JOURNEYKIT_SMTP_FROM": "Shop <shop@example.com>",
}
GATEWAY = {
    "JOURNEYKIT_GATEWAY_URL": "http://gateway.internal/in",
    "JOURNEYKIT_WEBHOOK_SECRET": SECRET,
}


def kinds(channels: Channels) -> dict[str, type]:
    named = {**channels.by_channel, "default": channels.default}
    return {channel: type(provider) for channel, provider in named.items()}


async def test_without_settings_all_goes_to_the_log(database: Database) -> None:
    channels = from_settings(database, {})

    assert await channels.deliver([send("email", "m")]) == [Delivered("email")]
    rows = await database.read(
        lambda connection: connection.execute(select(deliveries.c.message_id))
    )
    assert [row.message_id for row in rows] == ["m"]
    await channels.close()


def refused_for_want_of_a_gateway(channel: str) -> Refused:
    return Refused(
        "NO_PROVIDER",
        f'Nothing brings messages by "{channel}". Set JOURNEYKIT_GATEWAY_URL and start the worker '
        'again, then retry; or name the channel in "channels_off" of the policy.',
    )


async def test_a_secret_sends_webhooks_out(database: Database) -> None:
    settings = {"JOURNEYKIT_WEBHOOK_SECRET": SECRET, "JOURNEYKIT_ALLOW_NETWORKS": "127.0.0.0/8"}
    channels = from_settings(database, settings)
    receiver = Receiver()

    async with listening(receiver) as url:
        told = await channels.deliver([call(url), send("sms")])
    await channels.close()

    assert kinds(channels) == {"webhook": WebhookProvider, "default": Nobody}
    assert told == [Delivered(), refused_for_want_of_a_gateway("sms")]
    assert len(receiver.heard) == 1


async def test_where_something_is_really_sent_the_rest_is_not_called_delivered(
    database: Database,
) -> None:
    channels = from_settings(database, MAIL)

    told = await channels.deliver([send("push"), call("https://example.com/hook")])

    assert told == [
        refused_for_want_of_a_gateway("push"),
        Refused(
            "NO_PROVIDER",
            "Webhooks are signed, and there is no secret to sign with. Set "
            "JOURNEYKIT_WEBHOOK_SECRET, start the worker again, then retry.",
        ),
    ]
    await channels.close()


async def test_a_gateway_gets_every_channel_that_nobody_else_has(database: Database) -> None:
    assert kinds(from_settings(database, {**MAIL, **GATEWAY})) == {
        "webhook": WebhookProvider,
        "email": SmtpProvider,
        "default": GatewayProvider,
    }


async def test_the_gateway_may_lie_inside(database: Database) -> None:
    """The operator named it; nobody else can."""
    receiver = Receiver()
    async with listening(receiver) as url:
        channels = from_settings(database, {**GATEWAY, "JOURNEYKIT_GATEWAY_URL": url})
        assert await channels.deliver([send("sms")]) == [Delivered("sms")]
        await channels.close()


@pytest.mark.parametrize(
    ("url", "server", "tls"),
    [
        ("smtp://mail.example", "mail.example:587", "starttls"),
        ("smtps://mail.example", "mail.example:465", "tls"),
        ("smtp+plain://mail.example", "mail.example:25", "none"),
        ("smtp://u:p@mail.example:2525/", "mail.example:2525", "starttls"),
    ],
)
async def test_the_scheme_says_how_a_mail_server_is_called(
    database: Database, url: str, server: str, tls: str
) -> None:
    made = from_settings(database, {**MAIL, "JOURNEYKIT_SMTP_URL": url}).by_channel["email"]

    assert isinstance(made, SmtpProvider)
    assert (made.server, made.tls) == (server, tls)


HOW_SMTP = (
    " Write smtp://user:password@host:587 (STARTTLS), smtps:// (TLS from the first byte) or "
    "smtp+plain:// (none), and percent-encode what is no letter or digit in it."
)
HOW_FROM = 'Write it as "Shop <shop@example.com>".'


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {**MAIL, "JOURNEYKIT_SMTP_URL": "mail.example:587"},
            "JOURNEYKIT_SMTP_URL begins with no scheme that is known." + HOW_SMTP,
        ),
        (
            {**MAIL, "JOURNEYKIT_SMTP_URL": "smtp://u:canary/x@mail.example"},
            "JOURNEYKIT_SMTP_URL cannot be read." + HOW_SMTP,
        ),
        (
            {**MAIL, "JOURNEYKIT_SMTP_URL": "smtp://mail.example/canary"},
            "JOURNEYKIT_SMTP_URL is not a host and a port." + HOW_SMTP,
        ),
        (
            {**MAIL, "JOURNEYKIT_SMTP_URL": "smtp://u:canary@:587"},
            "JOURNEYKIT_SMTP_URL is not a host and a port." + HOW_SMTP,
        ),
        (
            {**MAIL, "JOURNEYKIT_SMTP_FROM": ""},
            f"JOURNEYKIT_SMTP_URL is set and JOURNEYKIT_SMTP_FROM is not. {HOW_FROM}",
        ),
        (
            {**MAIL, "JOURNEYKIT_SMTP_FROM": "Shop"},
            f"JOURNEYKIT_SMTP_FROM is no sender. {HOW_FROM}",
        ),
        (
            {**MAIL, "JOURNEYKIT_SMTP_UNSUBSCRIBE": "http://example.com/u"},
            "JOURNEYKIT_SMTP_UNSUBSCRIBE is no https address with {id} in it. Write it as "
            "https://example.com/unsubscribe?m={id}.",
        ),
        (
            {**GATEWAY, "JOURNEYKIT_GATEWAY_URL": "ftp://canary.example"},
            "JOURNEYKIT_GATEWAY_URL is an address which is no http or https address. Write an "
            'address that begins with "https://".',
        ),
        (
            {**GATEWAY, "JOURNEYKIT_WEBHOOK_SECRET": " "},
            "JOURNEYKIT_GATEWAY_URL is set and JOURNEYKIT_WEBHOOK_SECRET is not: the gateway "
            "could trust no request.",
        ),
        (
            {**GATEWAY, "JOURNEYKIT_ALLOW_NETWORKS": "10.0.0.0/8, inside"},
            'JOURNEYKIT_ALLOW_NETWORKS: "inside" is no network. Write it as "10.1.0.0/16", with '
            "no bit set behind the mask.",
        ),
    ],
)
async def test_a_setting_that_cannot_be_used_is_named(
    database: Database, settings: dict[str, str], told: str
) -> None:
    with pytest.raises(BadSettings) as error:
        from_settings(database, settings)

    assert str(error.value) == told
    assert "canary" not in str(error.value)


async def test_a_secret_that_is_none_names_its_setting(database: Database) -> None:
    with pytest.raises(BadSettings) as error:
        from_settings(database, {"JOURNEYKIT_WEBHOOK_SECRET": "canary"})

    assert str(error.value).startswith("JOURNEYKIT_WEBHOOK_SECRET: A webhook secret is ")
    assert "canary" not in str(error.value)


async def test_what_goes_where_is_told_without_a_secret(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    channels = from_settings(database, {**MAIL, **GATEWAY})

    assert caplog.messages == [
        "providers webhook=WebhookProvider email=SmtpProvider default=GatewayProvider"
    ]
    shown = caplog.text + repr(channels) + repr(channels.by_channel)
    assert "p@ss" not in shown and SECRET not in shown
