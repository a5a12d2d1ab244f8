"""Signatures after the Standard Webhooks: a receiver can tell that a request is ours, is fresh, and
is the one it had before."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence

from whenever import Instant

PREFIX = "whsec_"
LEAST_BYTES, MOST_BYTES = 24, 64  # of a secret, as the Standard Webhooks want it

BAD_SECRET = (
    f'A webhook secret is "{PREFIX}" and {LEAST_BYTES} to {MOST_BYTES} random bytes in base64; '
    "this one {fault}. Make one with: "
    "python -c \"import base64, secrets; print('whsec_' + "
    'base64.b64encode(secrets.token_bytes(32)).decode())"'
)


class BadSecret(ValueError):
    """A secret that is none; the message does not repeat it."""


class Signer:
    """Signs with every secret it has, so that a receiver can change to a new one when it likes."""

    def __init__(self, secrets: Sequence[str]) -> None:
        """Raises `BadSecret`."""
        if not secrets:
            raise BadSecret(BAD_SECRET.format(fault="is empty"))
        self._keys = tuple(map(_key, secrets))

    def headers(self, tenant_id: int, message_id: str, now: Instant, body: bytes) -> dict[str, str]:
        """The three headers of a request; `now` is the time of this attempt."""
        name, seconds = webhook_id(tenant_id, message_id), now.timestamp()
        signed = b"%s.%d.%s" % (name.encode(), seconds, body)
        return {
            "webhook-id": name,
            "webhook-timestamp": str(seconds),
            "webhook-signature": " ".join(_signature(key, signed) for key in self._keys),
        }


def webhook_id(tenant_id: int, message_id: str) -> str:
    """The name of an effect towards the outside, the same at every attempt and unlike that of any
    other account. The readable id has dots in it, which a signature does not allow.

    >>> webhook_id(1, "j1.v1.hook.ann.e1")
    'PIGOFPSC6ZVVDO6KJKGO3SLMUPXA2ELSSI7Z6JNEL2YP2JAA2WMQ'
    """
    digest = hashlib.sha256(f"{tenant_id}:{message_id}".encode()).digest()
    return base64.b32encode(digest).decode().rstrip("=")


def _signature(key: bytes, signed: bytes) -> str:
    return "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode()


def _key(secret: str) -> bytes:
    if not secret.startswith(PREFIX):
        raise BadSecret(BAD_SECRET.format(fault=f'does not begin with "{PREFIX}"'))
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise BadSecret(BAD_SECRET.format(fault="is no base64")) from None
    if not LEAST_BYTES <= len(key) <= MOST_BYTES:
        raise BadSecret(BAD_SECRET.format(fault=f"has {len(key)} bytes"))
    return key
