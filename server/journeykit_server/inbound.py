"""What people write back: whose it is, and the event that it becomes.

A message that came in is an event of its sender: `inbound_email`, `inbound_sms` or
`inbound_linkedin`, which wakes whoever waits for a reply. The sender is found by the message that
they answer, else by the address they write from. An e-mail is a reply only in a thread that we
began; any other one is kept and answers nothing.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Sequence
from email.utils import parseaddr
from typing import Any, Literal, NamedTuple, get_args

from sqlalchemy import Table, select
from sqlalchemy.ext.asyncio import AsyncConnection

from journeykit_engine import signal
from journeykit_engine.comparison import shown
from journeykit_server.clock import instant
from journeykit_server.incoming import (
    MOST_ID_CHARACTERS,
    Incoming,
    Receipt,
    event_of,
    named_after,
)
from journeykit_server.mail import name_for_mail
from journeykit_server.policy import policies
from journeykit_server.rules_values import place, quoted
from journeykit_server.runtime import Runtime
from journeykit_server.tables import deferred_sends, messages, outbox

log = logging.getLogger("journeykit")

MOST_TEXT_CHARACTERS = 10_000  # of a message that is kept; the rest is mostly what it answers
MOST_SHARING = 10_000  # people with one address who all get what came from it
MOST_ANSWERED = 20  # ids of the thread that are looked for
MOST_SENT = 1_000  # latest messages of a person among which an answered one is looked for

Channel = Literal["email", "sms", "linkedin"]


class Inbound(NamedTuple):
    """A message that came in by a channel.

    `sender` is an address ("Ann <ann@example.com>"), a number or a profile. `in_reply_to` names
    what it answers: ids of ours, or of a mail's `In-Reply-To` and `References`, with spaces between
    them. `id` is the message's own, by which a second delivery of it is known.
    """

    channel: Channel
    sender: str
    text: str
    in_reply_to: str = ""
    id: str = ""
    subject: str = ""


class Received(NamedTuple):
    """What became of it: the event, and whose it is; nobody's is not kept. `receipt` counts the
    people for whom it was new."""

    event: str
    user_ids: tuple[str, ...]
    in_thread: bool
    is_opt_out: bool
    receipt: Receipt


class BadInbound(ValueError):
    """Not a message that can be taken in."""


async def receive(
    runtime: Runtime, tenant_id: int, inbound: Inbound, opt_out_words: Collection[str] = ()
) -> Received:
    """Take a message in. Everybody with the sender's address gets it: where several share a number,
    a STOP holds for each of them. `opt_out_words` are the account's own, beside the usual ones.
    Raises `BadInbound`."""
    _refuse(inbound)
    found = await runtime.database.read(lambda c: _find(c, tenant_id, inbound))
    event = EVENTS[inbound.channel]
    properties = _properties(inbound, found, opt_out_words)
    events = [
        Incoming(
            "track",
            user_id,
            event,
            properties,
            named_after(inbound.id, user_id) if inbound.id else "",
            f"inbound_{inbound.channel}",
        )
        for user_id in found.user_ids
    ]
    if not events:
        log.info("an inbound %s is from nobody known", inbound.channel)
        return Received(event, (), False, False, Receipt())
    is_opt_out = signal.is_opt_out(event_of(events[0], NO_MOMENT))
    receipt = await runtime.ingest(tenant_id, events)
    return Received(event, found.user_ids, found.answered is not None, is_opt_out, receipt)


EVENTS = {channel: name for name, channel in signal.INBOUND.items()}
NO_MOMENT = instant(0)  # when it came says nothing about what it says


class _Answered(NamedTuple):
    """A message of ours that was answered."""

    user_id: str
    message_id: str
    journey_id: int
    node_id: str


class _Found(NamedTuple):
    user_ids: tuple[str, ...]
    answered: _Answered | None


def _refuse(inbound: Inbound) -> None:
    if inbound.channel not in get_args(Channel):
        raise BadInbound(BAD_CHANNEL.format(shown(inbound.channel)))
    if not (inbound.sender.strip() or inbound.in_reply_to.strip()):
        raise BadInbound(NO_SENDER)
    if len(inbound.id) > MOST_ID_CHARACTERS:
        raise BadInbound(LONG_ID.format(len(inbound.id), MOST_ID_CHARACTERS))


BAD_CHANNEL = 'The channel of the message is {}; expected "email", "sms" or "linkedin".'
NO_SENDER = "The message names neither its sender nor what it answers. Give one of the two."
LONG_ID = "The id of the message has {} characters, more than {}. Give its hash."


def _properties(inbound: Inbound, found: _Found, opt_out_words: Collection[str]) -> dict[str, Any]:
    text = _kept(inbound.text)
    own = {signal.plain_words(word) for word in opt_out_words}
    properties: dict[str, Any] = {
        "text": text[:MOST_TEXT_CHARACTERS],
        "channel": inbound.channel,
        "sender": _kept(inbound.sender)[:MOST_ID_CHARACTERS],
    }
    if inbound.subject:
        properties["subject"] = _kept(inbound.subject)[:MOST_TEXT_CHARACTERS]
    if signal.plain_words(text[:MOST_TEXT_CHARACTERS]) in own:
        properties["opt_out"] = True
    if inbound.channel == "email":
        properties["in_thread"] = found.answered is not None
    if found.answered is not None:
        properties["in_reply_to"] = found.answered.message_id
        properties["journey_id"] = found.answered.journey_id
        properties["node_id"] = found.answered.node_id
    return properties


def _kept(text: str) -> str:
    """A text as a database takes it: from outside anything may come."""
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")


# --- whose it is


async def _find(connection: AsyncConnection, tenant_id: int, inbound: Inbound) -> _Found:
    """An e-mail in a thread is the person's to whom we wrote; anything else is everybody's who has
    that address."""
    names = [_kept(name) for name in re.split(r"[\s<>,]+", inbound.in_reply_to) if name]
    names = names[-MOST_ANSWERED:]  # of a long thread the latest
    answered = await _answered(connection, tenant_id, names)
    people = await _people_at(connection, tenant_id, inbound)
    if answered is None and names:
        answered = await _answered_mail(connection, tenant_id, people, names)
    if answered is None:
        return _Found(tuple(people), None)
    if inbound.channel == "email":
        return _Found((answered.user_id,), answered)
    return _Found(tuple(sorted({answered.user_id, *people})), answered)


SENT = (messages, outbox, deferred_sends)


async def _answered(
    connection: AsyncConnection, tenant_id: int, names: Sequence[str]
) -> _Answered | None:
    """The message of ours that has one of these ids."""
    for table in SENT if names else ():
        query = _sends(table, tenant_id).where(table.c.message_id.in_(names))
        row = (await connection.execute(query.limit(1))).one_or_none()
        if row is not None:
            return _Answered(*row)
    return None


async def _answered_mail(
    connection: AsyncConnection, tenant_id: int, people: Iterable[str], names: Sequence[str]
) -> _Answered | None:
    """The message to one of these people whose name for mail servers was answered. Such a name
    cannot be read back, so it is made anew for the latest that were sent."""
    wanted = {name.partition("@")[0].casefold() for name in names}
    for user_id in people:
        for table in SENT:
            latest = (
                _sends(table, tenant_id)
                .where(table.c.user_id == user_id)
                .order_by(table.c.created_at.desc())
                .limit(MOST_SENT)
            )
            for row in await connection.execute(latest):
                if name_for_mail(tenant_id, row.message_id) in wanted:
                    return _Answered(*row)
    return None


def _sends(table: Table, tenant_id: int) -> Any:
    """What was sent, or is on its way: a withheld message was seen by nobody."""
    c = table.c
    query = select(c.user_id, c.message_id, c.journey_id, c.node_id).where(
        c.tenant_id == tenant_id, c.kind == "send"
    )
    return query.where(c.state == "delivered") if table is messages else query


async def _people_at(connection: AsyncConnection, tenant_id: int, inbound: Inbound) -> list[str]:
    """Everybody who has the sender's address, in the order of their ids."""
    address = _address(inbound)
    if not address:
        return []
    policy = (await policies(connection, [tenant_id]))[tenant_id]
    trait = policy.addresses.get(inbound.channel, inbound.channel)
    dialect: Literal["sqlite", "postgresql"]
    dialect = "sqlite" if connection.dialect.name == "sqlite" else "postgresql"
    kept = place("p.traits", trait, dialect).text
    bytewise = "" if dialect == "sqlite" else ' COLLATE "C"'
    kept = _digits_of(kept) if inbound.channel == "sms" else f"lower({kept}{bytewise})"
    found = await connection.exec_driver_sql(
        f"SELECT p.user_id FROM profiles AS p WHERE p.tenant_id = {tenant_id} "
        f"AND {kept} = {quoted(address, dialect)} ORDER BY p.user_id LIMIT {MOST_SHARING}"
    )
    return list(found.scalars())


def _address(inbound: Inbound) -> str:
    """The sender as it is compared: small letters (of ASCII alone, as databases do it), of a number
    its digits and the plus."""
    sender = _kept(inbound.sender).strip()
    if inbound.channel == "sms":
        number = sender.translate(BETWEEN_DIGITS)
        return f"+{number[2:]}" if number.startswith("00") else number
    if inbound.channel == "email":
        sender = parseaddr(sender)[1]
    return sender.encode().lower().decode()


BETWEEN = " -()./"  # what people write between the digits of a number
BETWEEN_DIGITS = str.maketrans("", "", BETWEEN)


def _digits_of(column: str) -> str:
    for mark in BETWEEN:
        column = f"replace({column}, '{mark}', '')"
    return column
