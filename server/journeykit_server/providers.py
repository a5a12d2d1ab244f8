"""Which provider brings what: one a channel, chosen by settings out of the environment."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from journeykit_engine.check_nodes import url_fault
from journeykit_server.database import Database
from journeykit_server.delivery import (
    OUTCOMES,
    Failed,
    Item,
    LogProvider,
    Outcome,
    Provider,
    Refused,
)
from journeykit_server.dialler import BadNetwork, Dialler
from journeykit_server.mail import BadAddress
from journeykit_server.signing import BadSecret, Signer
from journeykit_server.smtp import SmtpProvider, Tls
from journeykit_server.webhooks import GatewayProvider, WebhookProvider

log = logging.getLogger("journeykit")

WEBHOOK = "webhook"  # the channel of what is no message but a call
CHANNEL_SECONDS = 30  # less than an offer has: one that hangs must not cost the others theirs
SMTP_PORTS: dict[Tls, int] = {"starttls": 587, "tls": 465, "none": 25}
SMTP_SCHEMES: dict[str, Tls] = {"smtp": "starttls", "smtps": "tls", "smtp+plain": "none"}

TOO_SLOW = f'the channel "{{channel}}" gave no answer within {CHANNEL_SECONDS} seconds'
BAD_ANSWER = 'the channel "{channel}" gave {got} outcomes for {want} effects; it owes one each'


class BadSettings(ValueError):
    """A setting that cannot be used; the message names it, and repeats no secret."""


class Channels:
    """A provider that asks others: `by_channel` says who brings a channel, `default` brings the
    rest. The channel of a webhook node is "webhook".

    The channels are asked at once, and each has `CHANNEL_SECONDS`: one that hangs, raises or
    answers nonsense fails alone.
    """

    def __init__(self, default: Provider, by_channel: Mapping[str, Provider] | None = None) -> None:
        self.default = default
        self.by_channel = dict(by_channel or {})

    async def deliver(self, items: Sequence[Item]) -> Sequence[Outcome]:
        groups: dict[str, list[int]] = {}
        for place, item in enumerate(items):
            groups.setdefault(self._channel(item), []).append(place)
        answers = await asyncio.gather(
            *(
                self._ask(channel, [items[place] for place in places])
                for channel, places in groups.items()
            )
        )
        told = {
            place: outcome
            for places, outcomes in zip(groups.values(), answers, strict=True)
            for place, outcome in zip(places, outcomes, strict=True)
        }
        return [told[place] for place in range(len(items))]

    async def close(self) -> None:
        """Close every provider that can be closed, once."""
        for provider in dict.fromkeys((*self.by_channel.values(), self.default)):
            if (close := getattr(provider, "close", None)) is not None:
                await close()

    def _channel(self, item: Item) -> str:
        """A name in `by_channel`; "" where the default brings it."""
        if item.kind == WEBHOOK:
            return WEBHOOK if WEBHOOK in self.by_channel else ""
        channel = str(item.payload.get("channel") or "")
        return channel if channel in self.by_channel and channel != WEBHOOK else ""

    async def _ask(self, channel: str, items: Sequence[Item]) -> Sequence[Outcome]:
        provider = self.by_channel.get(channel, self.default)
        try:
            async with asyncio.timeout(CHANNEL_SECONDS) as limit:
                outcomes = await provider.deliver(items)
        except Exception as error:
            told = TOO_SLOW.format(channel=channel) if limit.expired() else str(error)
            return _all_failed(channel, items, f"{type(error).__name__}: {told}")
        known = [outcome for outcome in outcomes if isinstance(outcome, OUTCOMES)]
        if len(known) == len(outcomes) == len(items):
            return outcomes
        told = BAD_ANSWER.format(channel=channel, got=len(known), want=len(items))
        return _all_failed(channel, items, told)


class Nobody:
    """Brings nothing, and says so: what an installation that really sends has no provider for must
    not be told as delivered, and must not be lost for a setting that was forgotten. It becomes a
    dead letter; a channel that is meant to be off is switched off in the policy."""

    async def deliver(self, items: Sequence[Item]) -> Sequence[Outcome]:
        return [self._refused(item) for item in items]

    def _refused(self, item: Item) -> Refused:
        if item.kind != "send":
            return Refused("NO_PROVIDER", NO_SIGNER)
        return Refused("NO_PROVIDER", NO_PROVIDER.format(channel=item.payload.get("channel")))


NO_PROVIDER = (
    'Nothing brings messages by "{channel}". Set JOURNEYKIT_GATEWAY_URL and start the worker '
    'again, then retry; or name the channel in "channels_off" of the policy.'
)
NO_SIGNER = (
    "Webhooks are signed, and there is no secret to sign with. Set JOURNEYKIT_WEBHOOK_SECRET, "
    "start the worker again, then retry."
)


def _all_failed(channel: str, items: Sequence[Item], told: str) -> list[Outcome]:
    log.warning("channel failed channel=%s count=%d", channel or "default", len(items))
    return [Failed(told) for _ in items]


# -- settings ------------------------------------------------------------------------------------

SMTP_URL, SMTP_FROM = "JOURNEYKIT_SMTP_URL", "JOURNEYKIT_SMTP_FROM"
SMTP_UNSUBSCRIBE = "JOURNEYKIT_SMTP_UNSUBSCRIBE"
GATEWAY_URL = "JOURNEYKIT_GATEWAY_URL"
WEBHOOK_SECRET = "JOURNEYKIT_WEBHOOK_SECRET"
ALLOW_NETWORKS = "JOURNEYKIT_ALLOW_NETWORKS"

BAD_SMTP_URL = (
    f"{SMTP_URL} {{fault}}. Write smtp://user:password@host:587 (STARTTLS), smtps:// (TLS from the "
    "first byte) or smtp+plain:// (none), and percent-encode what is no letter or digit in it."
)
BAD_SMTP_FROM = f'{SMTP_FROM} is no sender. Write it as "Shop <shop@example.com>".'
NO_SMTP_FROM = f"{SMTP_URL} is set and {SMTP_FROM} is not. " + BAD_SMTP_FROM.partition(". ")[2]
BAD_UNSUBSCRIBE = (
    f"{SMTP_UNSUBSCRIBE} is no https address with {{id}} in it. Write it as "
    "https://example.com/unsubscribe?m={id}."
)
BAD_GATEWAY_URL = f"{GATEWAY_URL} is an address {{fault}}. {{fix}}"
NO_SECRET = f"{GATEWAY_URL} is set and {WEBHOOK_SECRET} is not: the gateway could trust no request."
OWN_WORDS = "{setting}: {error}"


def from_settings(database: Database, settings: Mapping[str, str]) -> Channels:
    """The providers that the settings (the environment) name. Without any, all goes to the log;
    with some, what they do not bring is not sent (`Nobody`).

    * `JOURNEYKIT_SMTP_URL`, `JOURNEYKIT_SMTP_FROM`, `JOURNEYKIT_SMTP_UNSUBSCRIBE`: e-mail
    * `JOURNEYKIT_WEBHOOK_SECRET`: webhook nodes; several secrets, with spaces between, sign all
    * `JOURNEYKIT_GATEWAY_URL`: messages of every other channel; it needs the secret too
    * `JOURNEYKIT_ALLOW_NETWORKS`: networks inside that webhooks may call, "10.1.0.0/16 fd00::/8"

    Raises `BadSettings`.
    """
    by_channel: dict[str, Provider] = {}
    default: Provider | None = None
    if signer := _signer(settings.get(WEBHOOK_SECRET, "")):
        dialler = _dialler(settings.get(ALLOW_NETWORKS, ""))
        by_channel[WEBHOOK] = WebhookProvider(database.clock, signer, dialler)
    if url := settings.get(GATEWAY_URL, "").strip():
        default = _gateway(database, url, signer)
    if url := settings.get(SMTP_URL, "").strip():
        by_channel["email"] = _smtp(database, url, settings)
    nobody = Nobody() if by_channel else LogProvider(database)
    channels = Channels(default or nobody, by_channel)
    log.info("providers %s", _told(channels))
    return channels


def _told(channels: Channels) -> str:
    named = {**channels.by_channel, "default": channels.default}
    return " ".join(f"{channel}={type(each).__name__}" for channel, each in named.items())


def _signer(told: str) -> Signer | None:
    try:
        return Signer(told.split()) if told.split() else None
    except BadSecret as error:
        raise BadSettings(OWN_WORDS.format(setting=WEBHOOK_SECRET, error=error)) from None


def _dialler(told: str) -> Dialler:
    try:
        return Dialler(told.replace(",", " ").split())
    except BadNetwork as error:
        raise BadSettings(OWN_WORDS.format(setting=ALLOW_NETWORKS, error=error)) from None


def _gateway(database: Database, url: str, signer: Signer | None) -> GatewayProvider:
    if (fault := url_fault(url)) is not None:
        raise BadSettings(BAD_GATEWAY_URL.format(fault=fault[0], fix=fault[1]))
    if signer is None:
        raise BadSettings(NO_SECRET)
    return GatewayProvider(url, database.clock, signer)


def _smtp(database: Database, url: str, settings: Mapping[str, str]) -> SmtpProvider:
    sender = settings.get(SMTP_FROM, "").strip()
    unsubscribe = settings.get(SMTP_UNSUBSCRIBE, "").strip()
    if not sender:
        raise BadSettings(NO_SMTP_FROM)
    if unsubscribe and not _is_unsubscribe(unsubscribe):
        raise BadSettings(BAD_UNSUBSCRIBE)
    try:
        return SmtpProvider(database, sender=sender, unsubscribe=unsubscribe, **_smtp_address(url))
    except BadAddress:
        raise BadSettings(BAD_SMTP_FROM) from None


def _is_unsubscribe(url: str) -> bool:
    return url.startswith("https://") and "{id}" in url and ">" not in url and not url_fault(url)


def _smtp_address(url: str) -> dict[str, Any]:
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError:
        raise BadSettings(BAD_SMTP_URL.format(fault="cannot be read")) from None
    if (tls := SMTP_SCHEMES.get(parts.scheme)) is None:
        raise BadSettings(BAD_SMTP_URL.format(fault="begins with no scheme that is known"))
    if not host or not _is_bare(parts):
        raise BadSettings(BAD_SMTP_URL.format(fault="is not a host and a port"))
    return {
        "host": host,
        "port": port or SMTP_PORTS[tls],
        "tls": tls,
        "username": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
    }


def _is_bare(parts: SplitResult) -> bool:
    """Nothing behind the port: what stands there is most likely a password with a slash in it."""
    return parts.path in ("", "/") and not parts.query and not parts.fragment
