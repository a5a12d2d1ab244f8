"""One message as an e-mail: its headers, and an address that is safe to write into them."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from email import policy
from email.message import EmailMessage
from email.utils import format_datetime, formataddr, parseaddr

from whenever import Instant

from journeykit_server.delivery import Item, Refused, Unreachable

MOST_ADDRESS = 254  # characters, RFC 5321
MOST_LOCAL = 64  # characters before the @, RFC 5321
MOST_SUBJECT = 998  # characters of a line, RFC 5322

LOCAL = re.compile(r"[^\x00-\x20\x7f-\xa0\s()<>\[\]:;@\\,\"]+")
DOMAIN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")
ENCODED = "=?"  # the beginning of an encoded word, RFC 2047
BREAKS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
POLICY = policy.SMTP.clone(cte_type="7bit")  # no server needs to know more than ASCII
UTF8_POLICY = POLICY.clone(utf8=True)  # but for an address that cannot be written in it

NO_TEXT = 'The message has neither a "body" nor an "html" text. Write one into its template.'
BAD_REPLY_TO = (
    'The message\'s "reply_to" is no e-mail address. Write one into its template, as '
    '"help@example.com".'
)


class BadAddress(ValueError):
    """A text that is no e-mail address."""


def mail_of(
    item: Item, sender: str, now: Instant, unsubscribe: str = ""
) -> EmailMessage | Refused | Unreachable:
    """The e-mail of a send whose texts are rendered, or why there can be none.

    `unsubscribe` is an address with `{id}` where the message's own name goes; transactional mail
    does not have it. A retry gives the same Message-ID.
    """
    texts = _texts(item.payload.get("texts"))
    if not texts.get("body") and not texts.get("html"):
        return Refused("NO_TEXT", NO_TEXT)
    try:
        recipient = clean_address(str(item.payload.get("address") or ""))
    except BadAddress:
        return Unreachable("bad_address" if item.payload.get("address") else "no_address")
    mail = EmailMessage(policy=POLICY)
    mail["From"], mail["To"] = sender, recipient
    mail["Subject"] = one_line(texts.get("subject", ""))[:MOST_SUBJECT]
    mail["Date"] = format_datetime(now.to_stdlib())
    mail["Message-ID"] = f"<{mail_name(item)}@{_domain_of(sender)}>"
    mail["X-Journeykit-Message-Id"] = mail_name(item)
    if texts.get("reply_to"):
        try:
            mail["Reply-To"] = clean_address(texts["reply_to"].strip())
        except BadAddress:
            return Refused("BAD_REPLY_TO", BAD_REPLY_TO)
    if unsubscribe and item.payload.get("category") != "transactional":
        mail["List-Unsubscribe"] = f"<{unsubscribe.replace('{id}', mail_name(item))}>"
        mail["List-Unsubscribe-Post"] = "List-Unsubscribe=One-Click"
    _write_texts(mail, texts)
    return mail


def mail_name(item: Item) -> str:
    """The name of a message for mail servers, the same at every attempt and unlike any other's.

    Two tenants may have a message of the same id, so the tenant is part of it.
    """
    return name_for_mail(item.tenant_id, item.message_id)


def name_for_mail(tenant_id: int, message_id: str) -> str:
    digest = hashlib.sha256(f"{tenant_id}:{message_id}".encode()).digest()
    return base64.b32encode(digest).decode().rstrip("=").lower()


def clean_address(text: str) -> str:
    """An address with nothing around it, its domain in ASCII; raises `BadAddress`.

    Nothing that means something to a mail server or a header passes: no line break, space, comma,
    bracket or quote, so that one address can never become two; and no "=?", which begins a word
    that a reader of headers decodes into any of these.

    >>> clean_address("ann@bücher.example")
    'ann@xn--bcher-kva.example'
    """
    local, _, domain = text.rpartition("@")
    try:
        domain = domain.encode("idna").decode()
    except UnicodeError:
        raise BadAddress(text) from None
    fits = len(local) <= MOST_LOCAL and len(local) + len(domain) < MOST_ADDRESS
    if not fits or ENCODED in local or not LOCAL.fullmatch(local) or not DOMAIN.fullmatch(domain):
        raise BadAddress(text)
    return f"{local}@{domain}"


def clean_sender(text: str) -> str:
    """A sender as it stands in a header, "Shop <shop@example.com>" or the address alone; raises
    `BadAddress`."""
    name, address = parseaddr(text)
    if BREAKS.search(text) or not address:
        raise BadAddress(text)
    return formataddr((name, clean_address(address)))


def bare_address(sender: str) -> str:
    """The address out of what `clean_sender` gave."""
    return parseaddr(sender)[1]


def one_line(text: str) -> str:
    """A text without line breaks or control characters, as a header wants it."""
    return BREAKS.sub(" ", text).strip()


def _texts(told: object) -> dict[str, str]:
    return {str(k): str(v) for k, v in told.items()} if isinstance(told, Mapping) else {}


def _domain_of(sender: str) -> str:
    return bare_address(sender).rpartition("@")[2]


def _write_texts(mail: EmailMessage, texts: Mapping[str, str]) -> None:
    if body := texts.get("body"):
        mail.set_content(body)
    if html := texts.get("html"):
        (mail.add_alternative if body else mail.set_content)(html, subtype="html")
