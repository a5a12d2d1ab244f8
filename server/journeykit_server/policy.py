"""What an account allows: when its messages may go out, how many a person gets, and by what.

A policy is a document with versions; the latest counts for every send, also for those that were
decided on before it was saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import orjson
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from journeykit_engine import timing
from journeykit_engine.strict_json import BadJson, read_json, refuse_value, write_json
from journeykit_engine.zone import shown
from journeykit_server import store
from journeykit_server.bulk import Select
from journeykit_server.clock import microseconds
from journeykit_server.database import Database
from journeykit_server.tables import policies as table

ANY = "*"
"""Stands for all budgets together."""
MOST_A_DAY = 10_000  # messages of one person; a cap above it is a slip of the key
MOST_NAMES = 200  # of budgets or channels; a document is read for every batch
ADDRESSES: Mapping[str, str] = MappingProxyType(
    {"email": "email", "sms": "phone", "whatsapp": "phone", "push": "push_token"}
)
"""The trait that holds the address of a channel, where the policy does not name another."""


class BadPolicy(ValueError):
    """The document is no policy; the message names the place, what is wrong and what to write."""


@dataclass(frozen=True, slots=True)
class Policy:
    """`allowed` has the minutes of the day (from, to) between which a recipient may be reached,
    None at any time; `caps` is messages a day by budget. Without a document nothing is limited."""

    allowed: tuple[int, int] | None = None
    caps: Mapping[str, int] = field(default_factory=dict)
    opt_in: frozenset[str] = frozenset()
    channels_off: frozenset[str] = frozenset()
    addresses: Mapping[str, str] = field(default_factory=lambda: ADDRESSES)

    @staticmethod
    def parse(document: str | bytes | Mapping[str, Any]) -> Policy:
        """A document as JSON text or as plain values, where null is as if it were left out;
        `BadPolicy` names its first fault.

        >>> Policy.parse('{"quiet_hours": {"from": "22:00", "to": "08:00"}}').allowed
        (480, 1320)
        """
        given = _object(_plain(document), "The policy", FIELDS)
        given = {name: value for name, value in given.items() if value is not None}
        own = _texts_by_name(given.get("addresses", {}), "addresses")
        return Policy(
            _allowed(given.get("quiet_hours")),
            _caps(given.get("caps", {})),
            _names(given.get("opt_in", []), "opt_in"),
            _names(given.get("channels_off", []), "channels_off"),
            {**ADDRESSES, **own},
        )

    def window(self, zone: str) -> timing.Window | None:
        """When somebody in this zone may be reached; None at any time."""
        return self.allowed and timing.Window(zone, timing.EVERY_DAY, *self.allowed)


def _plain(document: str | bytes | Mapping[str, Any]) -> Any:
    try:
        if isinstance(document, str | bytes):
            return read_json(document)
        refuse_value(document)
    except BadJson as error:
        raise BadPolicy(f"The policy is no JSON that can be kept: {error}") from error
    return document


FIELDS = ("quiet_hours", "caps", "opt_in", "channels_off", "addresses")


def _allowed(quiet: object) -> tuple[int, int] | None:
    if quiet is None:
        return None
    given = _object(quiet, "quiet_hours", ("from", "to"))
    begins, ends = given.get("from"), given.get("to")
    for name, clock in (("from", begins), ("to", ends)):
        if not isinstance(clock, str) or not timing.CLOCK.fullmatch(clock):
            raise BadPolicy(BAD_CLOCK.format(name, _told(clock)))
    if begins == ends:
        raise BadPolicy(ALWAYS_QUIET.format(_told(begins)))
    return _minute(ends), _minute(begins)


def _minute(clock: Any) -> int:
    return int(clock[:2]) * 60 + int(clock[3:])


def _caps(value: object) -> dict[str, int]:
    found = {}
    for budget, cap in _object(value, "caps").items():
        most = _object(cap, f'caps["{budget}"]', ("per_day",)).get("per_day")
        if type(most) is not int or not 1 <= most <= MOST_A_DAY:
            raise BadPolicy(BAD_CAP.format(budget, _told(most), MOST_A_DAY))
        found[budget] = most
    return found


def _names(value: object, place: str) -> frozenset[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise BadPolicy(BAD_NAMES.format(place, _told(value)))
    return frozenset(_channel(name, place) for name in value)


def _channel(name: str, place: str) -> str:
    """The name of one channel, as messages have it: of "SMS" or "*" nothing would be found."""
    if name == ANY or name != name.strip().lower():
        raise BadPolicy(BAD_CHANNEL.format(place, _told(name)))
    return name


def _texts_by_name(value: object, place: str) -> dict[str, str]:
    found = _object(value, place)
    for name, trait in found.items():
        if not isinstance(trait, str) or not trait:
            raise BadPolicy(BAD_TRAIT.format(place, name, _told(trait)))
    return {_channel(name, place): trait for name, trait in found.items()}


def _object(value: object, place: str, fields: tuple[str, ...] = ()) -> Mapping[str, Any]:
    """An object of these fields only, of any where none is named."""
    if not isinstance(value, Mapping):
        raise BadPolicy(NO_OBJECT.format(place, _told(value)))
    if len(value) > MOST_NAMES:
        raise BadPolicy(TOO_MANY.format(place, len(value), MOST_NAMES))
    for name in value:
        if fields and name not in fields:
            raise BadPolicy(UNKNOWN.format(place, _told(name), ", ".join(fields)))
    return value


def _told(value: object) -> str:
    return shown(value) if isinstance(value, str) else shown(write_json(value))[1:-1]


NO_OBJECT = "{} is {}; write an object."
TOO_MANY = "{} has {} names; {} are enough."
UNKNOWN = "{} has the unknown field {}; it may have {}."
BAD_CLOCK = 'quiet_hours: "{}" is {}; write a time from "00:00" to "23:59", as "22:00".'
ALWAYS_QUIET = (
    'quiet_hours: "from" and "to" are both {}, so it would always be quiet. '
    "Write two different times, or null."
)
BAD_CAP = 'caps["{}"]: per_day is {}; write a whole number from 1 to {}.'
BAD_NAMES = "{} is {}; write a list of names of channels."
BAD_CHANNEL = '{} names the channel {}; write one channel in small letters, as "sms".'
BAD_TRAIT = '{}["{}"] is {}; write the name of the trait that holds the address.'


# -- stored --------------------------------------------------------------------------------------


async def save_policy(
    database: Database, tenant_id: int, document: str | bytes | Mapping[str, Any]
) -> int:
    """Keep a policy, which counts from now on; its version. Raises `BadPolicy`."""
    Policy.parse(document)
    kept = write_json(_plain(document))
    token = database.chance.token()

    async def save(connection: AsyncConnection) -> int:
        of_token = select(table.c.version).where(
            table.c.tenant_id == tenant_id, table.c.saved_token == token
        )
        before = (await connection.execute(of_token)).scalar_one_or_none()
        if before is not None:  # the commit of the last try had arrived
            return int(before)
        version = await store.take_number(connection, tenant_id, "policies")
        await connection.execute(
            insert(table).values(
                tenant_id=tenant_id,
                version=version,
                document=kept,
                saved_at=microseconds(await database.now(connection)),
                saved_token=token,
            )
        )
        return version

    return await database.run(save)


async def read_policy(
    database: Database, tenant_id: int, version: int | None = None
) -> tuple[int, dict[str, Any]]:
    """A version of the policy and its document, the latest where none is named; (0, {}) where the
    account has none."""
    query = select(table.c.version, table.c.document).where(table.c.tenant_id == tenant_id)
    if version is not None:
        query = query.where(table.c.version == version)
    latest = query.order_by(table.c.version.desc()).limit(1)

    async def read(connection: AsyncConnection) -> tuple[int, dict[str, Any]]:
        row = (await connection.execute(latest)).one_or_none()
        return (0, {}) if row is None else (row.version, orjson.loads(row.document))

    return await database.read(read)


async def policies(connection: AsyncConnection, tenants: Iterable[int]) -> dict[int, Policy]:
    """The policy of every tenant that is asked for, in one statement."""
    wanted = sorted(set(tenants))
    rows = await CURRENT.run(connection, [(tenant_id,) for tenant_id in wanted])
    found = {row[0]: Policy.parse(row[1]) for row in rows}
    return {tenant_id: found.get(tenant_id, UNLIMITED) for tenant_id in wanted}


UNLIMITED = Policy()
CURRENT = Select(
    [("tenant_id", "bigint")],
    "SELECT p.tenant_id, p.document FROM {given} JOIN policies p "
    "ON p.tenant_id = given.tenant_id AND p.version = "
    "(SELECT max(e.version) FROM policies e WHERE e.tenant_id = given.tenant_id)",
)
