"""What people write back: whose it is, and the event that it becomes.

A message that came in is an event of its sender: `inbound_email`, `inbound_sms` or
`inbound_linkedin`, which wakes whoever waits for a reply. The sender is found by the message that
they answer, else by the address they write from, however that is written. An e-mail is a reply
only in a thread that we began with its sender; any other one is kept and answers nothing. What a
mail says that it answers can be written by anybody, so it alone makes no one its sender.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from email.utils import parseaddr
from typing import Any, Literal, NamedTuple, get_args

from sqlalchemy import Table, select
from sqlalchemy.ext.asyncio import AsyncConnection

from journeykit_engine import signal
from journeykit_engine.comparison import shown
from journeykit_server.bulk import Select
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
from journeykit_server.rules_values import Dialect, place, quoted
from journeykit_server.runtime import Runtime
from journeykit_server.store import PERSON
from journeykit_server.tables import deferred_sends, messages, outbox

log = logging.getLogger("journeykit")

MOST_TEXT_CHARACTERS = 10_000  # of a message that is kept; the rest is mostly what it answers
MOST_SHARING = 10_000  # people with one address who all get what came from it
MOST_ANSWERED = 20  # ids of the thread that are looked for
MOST_SENT = 1_000  # latest messages of those people among which an answered one is looked for

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
    own = {_word(word) for word in opt_out_words} - {""}
    properties: dict[str, Any] = {
        "text": text[:MOST_TEXT_CHARACTERS],
        "channel": inbound.channel,
        "sender": _kept(inbound.sender)[:MOST_ID_CHARACTERS],
    }
    if inbound.subject:
        properties["subject"] = _kept(inbound.subject)[:MOST_TEXT_CHARACTERS]
    if _word(text[:MOST_TEXT_CHARACTERS]) in own:
        properties["opt_out"] = True
    if inbound.channel == "email":
        properties["in_thread"] = found.answered is not None
    if found.answered is not None:
        properties["in_reply_to"] = found.answered.message_id
        properties["journey_id"] = found.answered.journey_id
        properties["node_id"] = found.answered.node_id
    return properties


def _word(text: str) -> str:
    """A text as it is compared with words; signs alone are compared as they are."""
    return signal.plain_words(text) or text.strip()


def _kept(text: str) -> str:
    """A text as a database takes it: from outside anything may come."""
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")


# --- whose it is


async def _find(connection: AsyncConnection, tenant_id: int, inbound: Inbound) -> _Found:
    """An e-mail in a thread is the person's to whom we wrote; anything else is everybody's who has
    that address."""
    names = [_kept(name) for name in re.split(r"[\s<>,]+", inbound.in_reply_to) if name]
    names = names[-MOST_ANSWERED:]  # of a long thread the latest
    people = await _people_at(connection, tenant_id, inbound)
    if inbound.channel == "email":
        answered = await _answered_mail(connection, tenant_id, people, names)
        return _Found(tuple(people) if answered is None else (answered.user_id,), answered)
    answered = await _answered(connection, tenant_id, names)
    if answered is None:
        return _Found(tuple(people), None)
    return _Found(tuple(sorted({answered.user_id, *people})), answered)


SENT = (messages, outbox, deferred_sends)


async def _answered(
    connection: AsyncConnection, tenant_id: int, names: Sequence[str]
) -> _Answered | None:
    """The message of ours that has one of these ids, which a carrier told."""
    for table in SENT if names else ():
        c = table.c
        query = select(c.user_id, c.message_id, c.journey_id, c.node_id).where(
            c.tenant_id == tenant_id, c.kind == "send", c.message_id.in_(names)
        )
        query = query.where(c.state == "delivered") if table is messages else query
        row = (await connection.execute(query.limit(1))).one_or_none()
        if row is not None:
            return _Answered(*row)
    return None


async def _answered_mail(
    connection: AsyncConnection, tenant_id: int, people: Sequence[str], names: Sequence[str]
) -> _Answered | None:
    """The message to one of these people that was answered, by its id or by its name for mail
    servers. Such a name cannot be read back, so it is made anew for the latest that were sent."""
    wanted = {*names, *(name.partition("@")[0].casefold() for name in names)}
    given = [(tenant_id, user_id) for user_id in people]
    for latest in LATEST if names else ():
        for row in await latest.run(connection, given):
            sent = _Answered(*row)
            if not wanted.isdisjoint((sent.message_id, name_for_mail(tenant_id, sent.message_id))):
                return sent
    return None


def _latest(table: Table) -> Select:
    """What was sent to people, or is on its way: a withheld message was seen by nobody."""
    delivered = " AND s.state = 'delivered'" if table is messages else ""
    return Select(
        PERSON,
        f"SELECT s.user_id, s.message_id, s.journey_id, s.node_id FROM {{given}} "
        f"JOIN {table.name} s ON s.tenant_id = given.tenant_id AND s.user_id = given.user_id "
        f"WHERE s.kind = 'send'{delivered} ORDER BY s.created_at DESC LIMIT {MOST_SENT}",
    )


LATEST = tuple(map(_latest, SENT))


async def _people_at(connection: AsyncConnection, tenant_id: int, inbound: Inbound) -> list[str]:
    """Everybody who has the sender's address, in the order of their ids. There is no index over
    addresses: every profile of the tenant is looked at, seconds for a million."""
    addresses = _addresses(inbound)
    if not addresses:
        return []
    policy = (await policies(connection, [tenant_id]))[tenant_id]
    trait = policy.addresses.get(inbound.channel, inbound.channel)
    dialect: Dialect = "sqlite" if connection.dialect.name == "sqlite" else "postgresql"
    known = _with_addresses(tenant_id, trait, inbound.channel, dialect)
    listed = ", ".join(quoted(address, dialect) for address in addresses)
    found = await connection.exec_driver_sql(
        f"{known} SELECT user_id FROM known WHERE n IN ({listed}) "
        f"ORDER BY user_id LIMIT {MOST_SHARING + 1}"
    )
    people = list(found.scalars())
    if len(people) > MOST_SHARING:
        log.warning(MANY_SHARING, MOST_SHARING, inbound.channel)
    return people[:MOST_SHARING]


MANY_SHARING = "more than %d people share the address of an inbound %s; the others do not get it"


def _addresses(inbound: Inbound) -> tuple[str, ...]:
    """The sender as it is compared: in small letters (of ASCII alone, as databases do it); a number
    as its digits from the country on, with the 00 that may be written before them."""
    sender = _kept(inbound.sender).strip()
    if inbound.channel == "sms":
        number = _digits(sender)
        return (number, f"00{number}") if number else ()
    if inbound.channel == "email":
        sender = parseaddr(sender)[1]
    return (sender.encode().lower().decode(),) if sender else ()


def _digits(number: str) -> str:
    """A number's digits without what says that they begin with the country; "" of a name.

    >>> _digits("tel:+44 (0) 7700 900-123"), _digits("00447700900123"), _digits("SHOP24")
    ('447700900123', '447700900123', '')
    """
    number = number.lower()
    for word in NO_DIGITS:
        number = number.replace(word, "")
    digits = [unicodedata.decimal(mark, None) for mark in number if mark not in BETWEEN]
    if None in digits:
        return ""
    return "".join(map(str, digits)).removeprefix("00")


NO_DIGITS = {"tel:": "", "(0)": ""}  # a link, and the 0 that is dialled at home alone
BETWEEN = " -()./+\t\u00a0\u202f\u2010\u2011\u2013\u200e\u200f\u202a\u202c\u2066\u2069"
"""What people write between the digits of a number, and the marks of direction copied with it."""
ZEROS = "٠۰०\uff10"
"""The zeros of other digits that numbers are kept in: Arabic, Persian, Devanagari, wide ones."""
OTHER_DIGITS = {chr(ord(zero) + n): str(n) for zero in ZEROS for n in range(10)}
BLANKS = " \t\n\r\x0b\x0c\u00a0"  # around an address


def _with_addresses(tenant_id: int, trait: str, channel: Channel, dialect: Dialect) -> str:
    """SQL up to a table `known` of who has which address, as addresses are compared. Steps after
    the first are for the few in which it has left something."""
    kept = place("p.traits", trait, dialect).text
    kept = f"lower({kept})" if dialect == "sqlite" else f'lower({kept} COLLATE "C")'
    tables = [
        f"k0 AS (SELECT p.user_id, {kept} AS n FROM profiles AS p WHERE p.tenant_id = {tenant_id})"
    ]
    steps = _steps(dialect) if channel == "sms" else [f"trim(n, {quoted(BLANKS, dialect)})"]
    for number, step in enumerate(steps):
        which = " WHERE n GLOB '*[^0-9]*'" if number == 1 else ""
        tables.append(f"k{number + 1} AS (SELECT user_id, {step} AS n FROM k{number}{which})")
    rest = f" UNION ALL SELECT * FROM k{len(steps)}" if len(steps) > 1 else ""
    return f"WITH {', '.join(tables)}, known AS (SELECT * FROM k1{rest})"


def _steps(dialect: Dialect) -> list[str]:
    """What makes the digits out of a number `n`, one step after the other."""
    if dialect == "postgresql":  # what has no counterpart is dropped
        marks = quoted("".join(OTHER_DIGITS) + BETWEEN, dialect)
        return [f"translate({_replaced(NO_DIGITS)}, {marks}, '{''.join(OTHER_DIGITS.values())}')"]
    usual = {**NO_DIGITS, **dict.fromkeys(filter(str.isascii, BETWEEN), "")}
    others = {**OTHER_DIGITS, **dict.fromkeys(BETWEEN, "")}
    names = [mark for mark in others if mark not in usual]
    pages = [names[i : i + CALLS_AT_ONCE] for i in range(0, len(names), CALLS_AT_ONCE)]
    return [_replaced(usual), *(_replaced({mark: others[mark] for mark in page}) for page in pages)]


CALLS_AT_ONCE = 20  # inside each other; SQLite's parser has no room for more than some 30


def _replaced(marks: Mapping[str, str]) -> str:
    called = "n"
    for mark, by in marks.items():
        called = f"replace({called}, '{mark}', '{by}')"
    return called
