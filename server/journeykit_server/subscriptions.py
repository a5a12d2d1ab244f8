"""What a person wants to get: by which channel, of which category, and how we know.

A row says yes or no for a channel and a category, where "*" stands for all of them. `change` keeps
what people said, with the proof; `allows` tells whether a message may go out.

A later word counts for what it speaks of. A no to marketing is a no to each of its categories; a
yes takes it back, with whatever went with it, and leaves alone what somebody refused by name: a
category, or a channel as a whole. So a STOP is taken back for text messages, not by a yes to "*".

An event says it too, in the same transaction: `opt_out` (of `channel`, else of everything but
transactional messages), `subscription_changed` (`state`, and `channel`, `category`, "*" where they
are missing or null), and a text message that is nothing but STOP or START. A yes to something that
cannot be read is none; a no to it is a no to everything.
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

    With `only_back` it does nothing but take an "unsubscribed" of just this back.
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

    A no to the whole channel counts for transactional messages too: who answers STOP gets nothing
    more by that channel. So does a no to everything, but for a channel that was asked for since. Of
    the rest the most specific row counts, and a category without a row is as marketing. Who said
    nothing may get messages, unless the account needs an opt-in for the channel; transactional
    messages need none.

    >>> allows({("sms", "*"): "unsubscribed"}, "sms", "transactional", False)
    False
    >>> allows({("*", "marketing"): "unsubscribed"}, "email", "news", False)
    False
    """
    channel = _plain(channel)
    if states.get((channel, ALL), states.get((ALL, ALL))) == "unsubscribed":
        return False
    if category == TRANSACTIONAL:
        return True
    for asked in (category, MARKETING, ALL):
        for by in (channel, ALL):
            if (by, asked) in states:
                return states[by, asked] == "subscribed"
    return not opted_in_needed


def _plain(channel: str) -> str:
    """A channel as it is kept: who refuses "SMS" gets none by "sms"."""
    return channel.strip().lower()


# --- what is stored

OF_PEOPLE = Select(
    PERSON,
    "SELECT s.tenant_id, s.user_id, s.channel, s.category, s.state, s.version, s.changed_at "
    f"FROM {{given}} JOIN subscriptions s ON {SAME_PERSON.format('s')}",
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
    for row in await OF_PEOPLE.run(connection, people):
        tenant_id, user_id, channel, category, state = row[:5]
        found.setdefault((tenant_id, user_id), {})[channel, category] = state
    return found


async def change(connection: AsyncConnection, changes: Sequence[Change], at: int) -> int:
    """Keep what these people said, in this order, at `at` (microseconds); how many rows changed.
    The people have to be locked. Saying the same again changes nothing."""
    people = sorted({(each.tenant_id, each.user_id) for each in changes})
    told = _Told(await OF_PEOPLE.run(connection, people), at)
    for each in changes:
        told.take(each)
    # The last word of each is kept, every word is proven.
    await KEEP.run(connection, [(*key, *row, at) for key, row in told.kept.items()])
    await PROVE.run(connection, [(*row, at) for row in told.proven])
    return len(told.proven)


_Row = tuple[Any, ...]
"""The key of a row: tenant, person, channel and category."""


class _Stored(NamedTuple):
    state: str
    version: int
    at: int


class _Told:
    """What is stored of these people, and what becomes of it."""

    def __init__(self, rows: Iterable[Sequence[Any]], at: int) -> None:
        self.at = at
        self.stored: dict[_Row, _Stored] = {}
        self.people: dict[_Row, set[_Row]] = {}
        self.kept: dict[_Row, tuple[str, int]] = {}
        self.proven: list[_Row] = []
        for row in rows:
            self.store(tuple(row[:4]), _Stored(*row[4:]))

    def store(self, key: _Row, now: _Stored) -> None:
        self.stored[key] = now
        self.people.setdefault(key[:2], set()).add(key)

    def take(self, said: Change) -> None:
        key = said[:4]
        everything = (*key[:2], ALL, ALL)
        if said.only_back and (
            self.state(key) != "unsubscribed" or self.state(everything) == "unsubscribed"
        ):
            return
        if said.state == "unsubscribed":
            self.refuse(key, said)
        else:
            for row in (*self.taken_back(said), key):
                self.put(row, said)

    def refuse(self, key: _Row, said: Change) -> None:
        """What goes with a no has its moment, which tells it from what was refused by name."""
        others = self.refused_with(said)
        before = [row for row in others if self.went_with(row, said.category)]
        self.put(key, said)
        went = [self.put(row, said) for row in others]
        if any(went):
            for row in (key, *before):
                self.keep(row, self.stored[row])

    def refused_with(self, said: Change) -> list[_Row]:
        """The rows of what somebody asked for before, for which a no counts too."""
        if said.category == MARKETING:
            return [
                key
                for key in self.rows_of(said)
                if said.channel in (ALL, key[2]) and key[3] not in (TRANSACTIONAL, ALL)
            ]
        if said.channel == said.category == ALL:
            return [key for key in self.rows_of(said) if key[3] == ALL]
        return []

    def taken_back(self, said: Change) -> list[_Row]:
        """The rows of what a yes takes back: refused marketing, and what was refused with it. Of a
        no for every channel a yes to one gets a row of its own."""
        if said.category not in (MARKETING, ALL) or said.only_back:
            return []
        back = []
        for key in self.rows_of(said):
            own = (*key[:2], said.channel, key[3])
            if not self.goes_back(key, said):
                continue
            if said.channel in (ALL, key[2]):
                back.append(key)
            elif key[2] == ALL and own not in self.stored:
                back.append(own)
        return back

    def goes_back(self, key: _Row, said: Change) -> bool:
        """Whether a refused row is one that a yes to more than it takes back."""
        _, _, channel, category = key
        if category == TRANSACTIONAL:
            return False
        if category == ALL:  # a channel, refused when everything was
            return said.channel == said.category == ALL != channel and self.went_with(key, ALL)
        if category == MARKETING:
            return self.state(key) == "unsubscribed"
        return self.went_with(key, MARKETING)

    def went_with(self, key: _Row, category: str) -> bool:
        """Whether a row was refused with a no to all of this."""
        if self.state(key) != "unsubscribed":
            return False
        moment = self.stored[key].at
        wider = [(*key[:2], channel, category) for channel in (key[2], ALL)]
        return any(
            row != key and self.state(row) == "unsubscribed" and self.stored[row].at == moment
            for row in wider
        )

    def rows_of(self, said: Change) -> list[_Row]:
        """Everything else that this person said, in order."""
        return sorted(self.people.get(said[:2], set()) - {said[:4]})

    def state(self, key: _Row) -> str:
        return self.stored[key].state if key in self.stored else ""

    def put(self, key: _Row, said: Change) -> bool:
        """Keep and prove a word, unless it is what is stored."""
        if self.state(key) == said.state:
            return False
        version = self.stored[key].version + 1 if key in self.stored else 1
        self.keep(key, _Stored(said.state, version, self.at))
        self.proven.append((*key, version, said.state, said.source, said.cause))
        return True

    def keep(self, key: _Row, now: _Stored) -> None:
        self.store(key, now._replace(at=self.at))
        self.kept[key] = now[:2]


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


def _said(event: Incoming) -> Iterator[tuple[str, str, State, bool]]:
    """Channel, category, state, and whether it only takes a no back."""
    properties = event.properties
    if event.name == CHANGED:
        state = properties.get("state")
        words = _channel(properties), _word(properties, "category")
        if state == "subscribed" and None not in words:
            yield words[0] or ALL, words[1] or ALL, "subscribed", False
        elif state == "unsubscribed":
            yield words[0] or ALL, words[1] or ALL, "unsubscribed", False
    elif event.name == signal.OPT_OUT:
        channel = _channel(properties) or ALL
        yield channel, MARKETING if channel == ALL else ALL, "unsubscribed", False
    elif signal.is_opt_out(event_of(event, NO_MOMENT)):
        yield signal.INBOUND[event.name], ALL, "unsubscribed", False
    elif event.name == "inbound_sms":
        word = signal.said(properties)
        if word:
            yield "sms", ALL, "subscribed", word == "yes"


NO_MOMENT = Instant.MIN  # when it arrived says nothing about what it says


def _channel(properties: Mapping[str, Any]) -> str | None:
    channel = _plain(_word(properties, "channel") or "")
    return channel if 1 <= len(channel) <= MOST_ID_CHARACTERS else None


def _word(properties: Mapping[str, Any], name: str) -> str | None:
    """A channel or a category, all of them where none is named; None for what is no name."""
    given = properties.get(name)
    if given is None:
        return ALL
    if not isinstance(given, str) or not 1 <= len(given.strip()) <= MOST_ID_CHARACTERS:
        return None
    return given.strip()


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
    """Keep that a person wants messages, by every channel that they did not refuse by name; False
    where they had said so already. A person not known yet becomes known. Raises
    `BadSubscription`."""
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
    said = said._replace(channel=_plain(said.channel), category=said.category.strip())
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
        if event_fault(Incoming("track", "somebody", word)) or not word.strip():
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
