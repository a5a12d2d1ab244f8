"""E-mail over SMTP: one connection for an offer, one message after another.

What a server's answer means:

| answer | outcome |
| --- | --- |
| no connection, a time-out, a lost connection, any 4xx | fails and is tried again |
| user name, password or sender not taken | fails: it is the operator's to mend, not the person's |
| recipient: 550, 551, 553, or the reason 5.1.x or 5.2.1 | the person has no such mailbox |
| recipient: any other 5xx; message: any 5xx | refused for good |

SMTP knows no idempotency. Each acceptance is written into `deliveries` at once, in a transaction of
its own, and whatever is there already is not sent again: the one place where an offer costs more
statements the larger it is. What remains: a message goes out twice when this process dies between
the server's "250" and that commit, and when the "250" itself is lost on its way. Both copies carry
the same Message-ID, by which many mailboxes show only one.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from email.message import EmailMessage
from functools import partial
from typing import Literal, NamedTuple

import aiosmtplib
import orjson
from sqlalchemy.ext.asyncio import AsyncConnection

from journeykit_server.bulk import Select
from journeykit_server.circuit import Circuits
from journeykit_server.clock import microseconds
from journeykit_server.database import Database
from journeykit_server.delivery import (
    INSERT_DELIVERIES,
    Delivered,
    Failed,
    Item,
    Outcome,
    Refused,
    Unreachable,
)
from journeykit_server.mail import UTF8_POLICY, bare_address, clean_address, clean_sender, mail_of

log = logging.getLogger("journeykit")

Tls = Literal["starttls", "tls", "none"]
Outcomes = dict[tuple[int, str], Outcome]

COMMAND_SECONDS = 10.0  # for one answer of the server
BATCH_SECONDS = 20.0  # for an offer; what has no turn by then comes again
NO_MAILBOX = (550, 551, 553)  # where the server gives no reason of RFC 3463 beside it
NO_MAILBOX_REASONS = ("5.1.", "5.2.1")
REASON = re.compile(r"5\.\d{1,3}\.\d{1,3}")

NO_CONNECTION = 'The mail server "{server}" cannot be reached: {error}.'
LOST = 'The connection to the mail server "{server}" was lost: {error}.'
NOT_LET_IN = (
    'The mail server "{server}" does not take the user name and password ({code}). Mend them in '
    "JOURNEYKIT_SMTP_URL and start the worker again."
)
BAD_SENDER = (
    'The mail server "{server}" does not send for "{sender}" ({code}). Mend JOURNEYKIT_SMTP_FROM, '
    "or let the server send for it."
)
LATER = 'The mail server "{server}" will not take the message now ({code}).'
MAIL_REFUSED = 'The mail server "{server}" refused the message for good ({code}).'
NO_UTF8 = 'The mail server "{server}" takes no address with letters beyond ASCII before the "@".'
NO_TURN = 'The mail server "{server}" is too slow for all that goes to it; this waits for its turn.'
RESTS = 'The mail server "{server}" is left alone for {seconds:.0f} more seconds: it did not work.'

BAD_MAIL = (
    "No mail can be made of this message ({error}). See the texts of its template and the person's "
    "address, then retry."
)

SELECT_ACCEPTED = Select(
    (("tenant_id", "bigint"), ("message_id", "text")),
    "SELECT deliveries.tenant_id, deliveries.message_id FROM {given} JOIN deliveries "
    "ON deliveries.tenant_id = given.tenant_id AND deliveries.message_id = given.message_id",
)


class Mail(NamedTuple):
    """A message as it goes over the line."""

    item: Item
    recipient: str
    content: bytes

    @property
    def options(self) -> list[str]:
        return [] if self.recipient.isascii() else ["SMTPUTF8"]


class HungUp(Exception):
    """The server ended the connection before it took the message, and said so (421)."""


class SmtpProvider:
    """Sends e-mail through one server.

    `sender` is what people see, "Shop <shop@example.com>". `unsubscribe` is an https address with
    `{id}` in it. `tls` is "starttls" (never falls back to plain text), "tls" from the first byte,
    or "none". Raises `mail.BadAddress` for a sender that is none.
    """

    def __init__(
        self,
        database: Database,
        host: str,
        port: int,
        sender: str,
        *,
        username: str = "",
        password: str = "",
        tls: Tls = "starttls",
        tls_context: ssl.SSLContext | None = None,
        unsubscribe: str = "",
        command_seconds: float = COMMAND_SECONDS,
        batch_seconds: float = BATCH_SECONDS,
        circuits: Circuits | None = None,
    ) -> None:
        self.database = database
        self.server = f"{host}:{port}"
        self.sender = clean_sender(sender)
        self.unsubscribe = unsubscribe
        self.batch_seconds = batch_seconds
        self.circuits = circuits or Circuits(database.clock)
        self._host, self._port = host, port
        self._username, self._password = username or None, password or None
        self.tls, self._tls_context = tls, tls_context
        self._command_seconds = command_seconds

    async def deliver(self, items: Sequence[Item]) -> Sequence[Outcome]:
        outcomes = await self._accepted(items)
        mails: list[Mail] = []
        for item in items:
            if _key(item) not in outcomes:
                mail = self._mail(item)
                if isinstance(mail, Mail):
                    mails.append(mail)
                else:
                    outcomes[_key(item)] = mail
        if mails:
            await self._send_all(mails, outcomes)
        return [outcomes[_key(item)] for item in items]

    async def close(self) -> None:
        """Nothing is kept open between offers."""

    def _mail(self, item: Item) -> Mail | Refused | Unreachable:
        """The mail as it is sent. That none can be made of one is no reason to fail the others."""
        try:
            return self._written(item)
        except Exception as error:  # whatever the library for mails dies of, this mail is the cause
            log.warning("no mail can be made of an effect: %s", type(error).__name__)
            return Refused("BAD_MAIL", BAD_MAIL.format(error=type(error).__name__))

    def _written(self, item: Item) -> Mail | Refused | Unreachable:
        mail = mail_of(item, self.sender, self.database.clock.now(), self.unsubscribe)
        if not isinstance(mail, EmailMessage):
            return mail
        # Not as the header shows it, which is another grammar.
        recipient = clean_address(str(item.payload["address"]))
        policy = None if recipient.isascii() else UTF8_POLICY
        return Mail(item, recipient, mail.as_bytes(policy=policy))

    async def _send_all(self, mails: Sequence[Mail], outcomes: Outcomes) -> None:
        """Give every message an outcome."""
        if (rest := self.circuits.rest(self.server)) > 0:
            ended = Failed(RESTS.format(server=self.server, seconds=rest), rest)
        else:
            ended = await self._send_in_time(deque(mails), outcomes)
        for mail in mails:
            outcomes.setdefault(_key(mail.item), ended)

    async def _send_in_time(self, queue: deque[Mail], outcomes: Outcomes) -> Failed:
        """Send what there is time for, and say why the rest was not sent. A connection that ended
        is made anew only where it was of use: some servers take so many messages, then hang up."""
        try:
            async with asyncio.timeout(self.batch_seconds):
                ended, answered = await self._send_some(queue, outcomes)
                while queue and answered:
                    ended, answered = await self._send_some(queue, outcomes)
        except TimeoutError:
            return Failed(NO_TURN.format(server=self.server))
        return ended

    async def _send_some(self, queue: deque[Mail], outcomes: Outcomes) -> tuple[Failed, int]:
        """Send over one connection until it ends; why it did, and how many had an answer."""
        client = self._client()
        try:
            if (closed := await self._connect(client)) is not None:
                self.circuits.failed(self.server)
                return closed, 0
            answered = await self._send_over(client, queue, outcomes)
        finally:
            client.close()
        (self.circuits.worked if answered else self.circuits.failed)(self.server)
        return Failed(LOST.format(server=self.server, error="it hung up")), answered

    async def _connect(self, client: aiosmtplib.SMTP) -> Failed | None:
        """Why there is no connection; None where there is one."""
        try:
            await client.connect()
        except aiosmtplib.SMTPAuthenticationError as error:
            return Failed(NOT_LET_IN.format(server=self.server, code=error.code))
        except (aiosmtplib.SMTPException, OSError) as error:
            # Not its text, which may repeat what was sent.
            return Failed(NO_CONNECTION.format(server=self.server, error=type(error).__name__))
        return None

    async def _send_over(
        self, client: aiosmtplib.SMTP, queue: deque[Mail], outcomes: Outcomes
    ) -> int:
        answered = 0
        while queue and client.is_connected:
            _stop_if_cancelled()
            mail = queue.popleft()
            item = mail.item
            try:
                outcomes[_key(item)] = await self._send(client, mail)
            except HungUp:
                queue.appendleft(mail)
                return answered
            except (aiosmtplib.SMTPServerDisconnected, TimeoutError, OSError) as error:
                lost = LOST.format(server=self.server, error=type(error).__name__)
                outcomes[_key(item)] = Failed(lost)
                return answered
            if isinstance(outcomes[_key(item)], Delivered):
                await self.database.run(partial(self._keep, item=item))
            answered += 1
        with suppress(aiosmtplib.SMTPException, OSError):
            await client.quit()
        return answered

    async def _send(self, client: aiosmtplib.SMTP, mail: Mail) -> Outcome:
        sender = bare_address(self.sender)
        try:
            await client.sendmail(sender, [mail.recipient], mail.content, mail_options=mail.options)
        except aiosmtplib.SMTPRecipientsRefused as error:
            return self._answered(error.recipients[0])
        except aiosmtplib.SMTPResponseException as error:
            return self._answered(error)
        except aiosmtplib.SMTPNotSupported:
            return Refused("MAIL_REFUSED", NO_UTF8.format(server=self.server))
        return Delivered("email")

    def _answered(self, error: aiosmtplib.SMTPResponseException) -> Outcome:
        """What a refusal means. Raises `HungUp`."""
        match error:
            case aiosmtplib.SMTPResponseException(code=421):
                raise HungUp()
            case aiosmtplib.SMTPRecipientRefused():
                return self._recipient_refused(error)
            case aiosmtplib.SMTPSenderRefused():
                return self._sender_refused(error.code)
            case _:
                return self._refused(error.code)

    def _recipient_refused(self, error: aiosmtplib.SMTPRecipientRefused) -> Outcome:
        reason = REASON.match(error.message)
        no_mailbox = (
            reason[0].startswith(NO_MAILBOX_REASONS) if reason else error.code in NO_MAILBOX
        )
        return Unreachable("no_address") if no_mailbox else self._refused(error.code)

    def _sender_refused(self, code: int) -> Outcome:
        told = LATER if code < 500 else BAD_SENDER
        return Failed(told.format(server=self.server, sender=bare_address(self.sender), code=code))

    def _refused(self, code: int) -> Outcome:
        if code >= 500:
            return Refused("MAIL_REFUSED", MAIL_REFUSED.format(server=self.server, code=code))
        return Failed(LATER.format(server=self.server, code=code))

    def _client(self) -> aiosmtplib.SMTP:
        return aiosmtplib.SMTP(
            hostname=self._host,
            port=self._port,
            username=self._username,
            password=self._password,
            use_tls=self.tls == "tls",
            start_tls=self.tls == "starttls",
            tls_context=self._tls_context,
            timeout=self._command_seconds,
            # The library would ask the name service for it, and stand still meanwhile.
            local_hostname=bare_address(self.sender).rpartition("@")[2],
        )

    async def _accepted(self, items: Sequence[Item]) -> Outcomes:
        """What a server has taken already, at an attempt whose outcome could not be kept."""
        rows = await self.database.read(
            lambda connection: SELECT_ACCEPTED.run(connection, [_key(item) for item in items])
        )
        return {(row[0], row[1]): Delivered("email") for row in rows}

    async def _keep(self, connection: AsyncConnection, item: Item) -> None:
        now = microseconds(await self.database.now(connection))
        payload = orjson.dumps(item.payload).decode()
        row = (item.tenant_id, item.message_id, item.user_id, item.kind, payload, now, 1)
        await INSERT_DELIVERIES.run(connection, [row])


def _stop_if_cancelled() -> None:
    """Before Python 3.12 `wait_for`, by which the library waits, loses a cancellation that comes
    together with an answer; then nothing would end an offer in time."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError()


def _key(item: Item) -> tuple[int, str]:
    return item.tenant_id, item.message_id
