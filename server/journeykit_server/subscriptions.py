"""What a person wants to get: by which channel, of which category, and how we know.

A row says yes or no for a channel and a category, where "*" stands for all of them. `change` keeps
what people said, with the proof; `allows` tells whether a message may go out.

An event says it too, in the same transaction: `opt_out` (of `channel`, else of everything but
transactional messages), `subscription_changed` (`state`, and `channel`, `category`, "*" where they
are missing), and a text message that is nothing but STOP or START.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import Instant

from journeykit_engine import signal
from journeykit_engine.comparison import shown
from journeykit_server import store
from journeykit_server.bulk import Insert, Select
from journeykit_server.clock import instant, microseconds
from journeykit_server.database import Database
from journeykit_server.incoming import MOST_ID_CHARACTERS, Incoming, event_fault, event_of
from journeykit_server.store import PERSON, SAME_PERSON, PersonKey
from journeykit_server.tables import subscription_changes, subscriptions

ALL = "*"  # every channel, every category
MARKETING = "marketing"  # also stands for every category without a row of its own
TRANSACTIONAL = "transactional"
CHANGED = "subscription_changed"  # the event
MOST_HISTORY = 1_000  # changes of one page

State = Literal["subscribed", "unsubscribed"]
States = Mapping[tuple[str, str], str]
"""What somebody said, by channel and category."""


class Change(NamedTuple):
    """What somebody said. `source` tells who told us, `cause` by which event or call.

    With `only_back` it does nothing but take an "unsubscribed" back.
    """

    tenant_id: int
    user_id: str
    channel: str
    category: str
    state: State
    source: str
    cause: str
    only_back: bool = False


class Changed(NamedTuple):
    """A change that was kept; `version` counts those of this channel and category."""

    channel: str
    category: str
    version: int
    state: State
    source: str
    cause: str
    at: Instant


class BadSubscription(ValueError):
    """A change that says nothing that can be kept."""


def allows(states: States, channel: str, category: str, opted_in_needed: bool) -> bool:
    """Whether somebody who said this may get a message.

    A no to the whole channel, or to everything, always counts, for transactional messages too: who
    answers STOP gets nothing more by that channel. Of the rest the most specific row counts, and a
    category without a row is as marketing. Who said nothing may get messages, unless the account
    needs an opt-in for the channel; transactional messages need none.

    >>> allows({("sms", "*"): "unsubscribed"}, "sms", "transactional", False)
    False
    >>> allows({("*", "marketing"): "unsubscribed"}, "email", "news", False)
    False
    """
    if "unsubscribed" in (states.get((channel, ALL)), states.get((ALL, ALL))):
        return False
    if category == TRANSACTIONAL:
        return True
    for asked in (category, MARKETING, ALL):
        for by in (channel, ALL):
            if (by, asked) in states:
                return states[by, asked] == "subscribed"
    return not opted_in_needed


# --- what is stored

OF_PEOPLE = Select(
    PERSON,
    "SELECT s.tenant_id, s.user_id, s.channel, s.category, s.state, s.version FROM {given} "
    f"JOIN subscriptions s ON {SAME_PERSON.format('s')}",
)
_KEY = ("tenant_id", "user_id", "channel", "category")
KEEP = Insert(
    subscriptions,
    (*_KEY, "state", "version", "changed_at"),
    f"({', '.join(_KEY)}) DO UPDATE SET state = excluded.state, version = excluded.version, "
    "changed_at = excluded.changed_at",
)
PROVE = Insert(subscription_changes, (*_KEY, "version", "state", "source", "cause", "changed_at"))


async def of_people(
    connection: AsyncConnection, people: Sequence[PersonKey]
) -> dict[PersonKey, dict[tuple[str, str], str]]:
    """What these people said; who said nothing is not in the answer."""
    found: dict[PersonKey, dict[tuple[str, str], str]] = {}
    for tenant_id, user_id, channel, category, state, _ in await OF_PEOPLE.run(connection, people):
        found.setdefault((tenant_id, user_id), {})[channel, category] = state
    return found


async def change(connection: AsyncConnection, changes: Sequence[Change], at: int) -> int:
    """Keep what these people said, in this order, at `at` (microseconds); how many rows changed.
    The people have to be locked. Saying the same again changes nothing."""
    people = sorted({(each.tenant_id, each.user_id) for each in changes})
    told = _Told(await OF_PEOPLE.run(connection, people))
    for each in changes:
        told.take(each)
    # The last word of each is kept, every word is proven.
    await KEEP.run(connection, [(*key, *row, at) for key, row in told.kept.items()])
    await PROVE.run(connection, [(*row, at) for row in told.proven])
    return len(told.proven)


class _Told:
    """What is stored of these people, and what becomes of it."""

    def __init__(self, rows: Iterable[Sequence[Any]]) -> None:
        self.stored = {tuple(row[:4]): (row[4], row[5]) for row in rows}
        self.kept: dict[tuple[Any, ...], tuple[str, int]] = {}
        self.proven: list[tuple[Any, ...]] = []

    def take(self, said: Change) -> None:
        key = said[:4]
        before = self.stored.get(key, ("", 0))[0]
        if said.only_back and before != "unsubscribed":
            return
        self.put(key, said)
        if said.state == "unsubscribed" and said.category == MARKETING:
            for narrower in self.under(said):
                self.put(narrower, said)

    def under(self, said: Change) -> list[tuple[Any, ...]]:
        """The rows for which a no to marketing counts too: what somebody asked for before."""
        return [
            key
            for key in sorted(self.stored)
            if key[:2] == said[:2]
            and said.channel in (ALL, key[2])
            and key[3] not in (TRANSACTIONAL, ALL)
        ]

    def put(self, key: tuple[Any, ...], said: Change) -> None:
        before, version = self.stored.get(key, ("", 0))
        if before == said.state:
            return
        self.stored[key] = self.kept[key] = (said.state, version + 1)
        self.proven.append((*key, version + 1, said.state, said.source, said.cause))


# --- what an event says


def changes_of(tenant_id: int, event: Incoming) -> list[Change]:
    """What an event says about subscriptions, mostly nothing."""
    if event.kind != "track" or event.name not in SAYING:
        return []
    return [
        Change(tenant_id, event.user_id, channel, category, state, event.source, event.id, back)
        for channel, category, state, back in _said(event)
    ]


SAYING = frozenset((signal.OPT_OUT, CHANGED, *signal.INBOUND))
STATES: Mapping[object, State] = {"subscribed": "subscribed", "unsubscribed": "unsubscribed"}


def _said(event: Incoming) -> Iterator[tuple[str, str, State, bool]]:
    """Channel, category, state, and whether it only takes a no back."""
    properties = event.properties
    if event.name == CHANGED:
        state = properties.get("state")
        if isinstance(state, str) and state in STATES:
            yield _word(properties, "channel"), _word(properties, "category"), STATES[state], False
    elif event.name == signal.OPT_OUT:
        channel = _word(properties, "channel")
        yield channel, MARKETING if channel == ALL else ALL, "unsubscribed", False
    elif signal.is_opt_out(event_of(event, NO_MOMENT)):
        yield signal.INBOUND[event.name], ALL, "unsubscribed", False
    elif event.name == "inbound_sms":
        word = signal.said(properties)
        if word:
            yield "sms", ALL, "subscribed", word == "yes"


NO_MOMENT = Instant.MIN  # when it arrived says nothing about what it says


def _word(properties: Mapping[str, Any], name: str) -> str:
    """A channel or a category, all of them where none is named."""
    given = properties.get(name)
    if not isinstance(given, str) or len(given) > MOST_ID_CHARACTERS:
        return ALL
    return given.strip() or ALL


# --- what somebody says by a call


async def subscribe(
    database: Database,
    tenant_id: int,
    user_id: str,
    channel: str = ALL,
    category: str = ALL,
    *,
    source: str,
    cause: str = "",
) -> bool:
    """Keep that a person wants messages; False where they had said so already. A person not known
    yet becomes known. Raises `BadSubscription`."""
    said = Change(tenant_id, user_id, channel, category, "subscribed", source, cause)
    return await _by_call(database, said)


async def unsubscribe(
    database: Database,
    tenant_id: int,
    user_id: str,
    channel: str = ALL,
    category: str = ALL,
    *,
    source: str,
    cause: str = "",
) -> bool:
    """Keep that a person wants no messages; False where they had said so already. Their journeys go
    on, the messages are withheld; the event `opt_out` ends the journeys too."""
    said = Change(tenant_id, user_id, channel, category, "unsubscribed", source, cause)
    return await _by_call(database, said)


async def _by_call(database: Database, said: Change) -> bool:
    _refuse(said)
    done: list[int] = []  # a try whose commit was in doubt may have been kept

    async def work(connection: AsyncConnection) -> bool:
        key = (said.tenant_id, said.user_id)
        found = await store.lock(connection, [key])
        at = microseconds(await database.now(connection))
        if key not in found:
            await store.add(connection, [key], at)
        done.append(await change(connection, [said], at))
        return any(done)

    return await database.run(work)


def _refuse(said: Change) -> None:
    if fault := event_fault(Incoming("identify", said.user_id)):
        raise BadSubscription(f"The subscription cannot be kept: {fault}")
    for what, word in (("channel", said.channel), ("category", said.category)):
        if fault := event_fault(Incoming("track", "somebody", word)):
            raise BadSubscription(BAD_WORD.format(what, shown(word), MOST_ID_CHARACTERS, what))
    for word in (said.source, said.cause):
        if fault := event_fault(Incoming("identify", "somebody", source=word)):
            raise BadSubscription(f"The subscription cannot be kept: {fault}")


BAD_WORD = (
    'The {} of a subscription is {}; expected a name of 1 to {} characters. Write "*" for every {}.'
)


async def read_subscriptions(
    database: Database, tenant_id: int, user_id: str
) -> dict[tuple[str, str], str]:
    """What a person said last, by channel and category; {} for somebody who said nothing."""
    key = (tenant_id, user_id)
    found = await database.read(lambda connection: of_people(connection, [key]))
    return found.get(key, {})


async def history(
    database: Database, tenant_id: int, user_id: str, *, first: int = MOST_HISTORY
) -> list[Changed]:
    """Every change of a person's subscriptions, the latest first: the proof of a consent."""
    c = subscription_changes.c
    query = (
        select(c.channel, c.category, c.version, c.state, c.source, c.cause, c.changed_at)
        .where(c.tenant_id == tenant_id, c.user_id == user_id)
        .order_by(c.changed_at.desc(), c.channel, c.category, c.version.desc())
        .limit(min(max(first, 0), MOST_HISTORY))
    )

    async def work(connection: AsyncConnection) -> list[Changed]:
        rows = await connection.execute(query)
        return [Changed(*row[:6], instant(row[6])) for row in rows]

    return await database.read(work)
