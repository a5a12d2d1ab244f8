"""What may go out: every question that is asked of an effect before it is offered.

The questions of a message come in one order: does its journey let anything out; is there a text;
can this channel reach the person; do they want to hear from us there; have they had enough for
today; is it a time for it; does the text find all its values. What speaks against the channel (no
address, a channel that is off) leads on to the next channel of the message; what speaks for the
person (no consent, a cap, the hour) ends it.

All of a batch is read and decided in one transaction, with the people locked, so that two workers
never give out the same place of a cap; what is decided is then offered outside of it. An effect of
which the questions cannot be answered has failed by itself, and holds up no other.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson
from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import Date, Instant

from journeykit_engine import profile, timing
from journeykit_engine.template import BadTemplate, Missing, Template, parse_template, render
from journeykit_server import store, subscriptions, templates
from journeykit_server.backoff import words_of
from journeykit_server.bulk import Delete, Insert, Select
from journeykit_server.clock import microseconds
from journeykit_server.database import Database
from journeykit_server.delivery import (
    Deferred,
    Delivered,
    Failed,
    Held,
    Item,
    Outcome,
    Refused,
    Suppressed,
    Unreachable,
)
from journeykit_server.doors import Door, JourneyKey, doors
from journeykit_server.policy import ANY, Policy, policies
from journeykit_server.published import Key, Published, Walkable
from journeykit_server.store import PersonKey, StoredProfile
from journeykit_server.tables import budget_uses, tasks

log = logging.getLogger("journeykit")

TRANSACTIONAL = "transactional"
"""The category of what a person has to be told: caps, quiet hours and marketing consent do not
count for it."""
MOST_TEMPLATES = 1_000  # kept parsed; about 10 kB each
TEXT_MESSAGES = "sms"

TemplateKey = tuple[int, int]
"""Tenant and template."""


class Course(NamedTuple):
    """What is to become of an effect.

    `ready` are the letters that may go out, one a medium, each to be offered if the one before
    could not reach the person. `end` is the outcome after the last of them, or at once where there
    is none; None: nothing reached the person, because of `reason` or of what the provider said.
    `about` is the effect as the log has it where no letter went out: of the medium it ended at.
    """

    ready: tuple[Item, ...]
    end: Outcome | None
    about: Item
    reason: str = ""


class Governor:
    """Decides for one worker; keeps the templates parsed that it has met last."""

    def __init__(self, database: Database, published: Published) -> None:
        self.database = database
        self.published = published
        self.parsed: OrderedDict[tuple[int, int, int], Template | BadTemplate] = OrderedDict()

    async def govern(self, connection: AsyncConnection, items: Sequence[Item]) -> list[Course]:
        """One course an effect, in their order. Reserves the places in the caps of all that are
        ready, and writes tasks onto their list."""
        known = await self._known(connection, items)
        courses = [self._course_of(known, item) for item in items]
        await RESERVE.run(connection, sorted(known.reserved))
        await GIVE_TASKS.run(connection, sorted(known.given))
        return courses

    async def _known(self, connection: AsyncConnection, items: Sequence[Item]) -> _Known:
        sends = [item for item in items if item.kind == "send"]
        people = sorted({_person(item) for item in sends})
        locked = await store.lock(connection, people)
        now = await self.database.now(connection)
        versions = sorted({_version(item) for item in sends})
        await self.published.load(connection, versions)
        zones = {key: self._zone(key) for key in versions}
        tenants = sorted({item.tenant_id for item in sends})
        days = {key: _day(now, zone) for key, zone in zones.items()}
        of_days = {(*_person(item), days[_version(item)]) for item in sends}
        rows = await USES.run(connection, sorted(of_days))
        wanted = sorted({key for item in sends for key in _templates_of(item)})
        return _Known(
            now=now,
            doors=await doors(connection, (_journey(item) for item in items)),
            people=locked,
            zones=zones,
            days=days,
            states=await subscriptions.of_people(connection, people),
            policies=await policies(connection, tenants),
            writing=frozenset(
                row[0] for row in await WRITING.run(connection, [(each,) for each in tenants])
            ),
            templates=await templates.current(connection, wanted),
            uses=_uses(rows),
        )

    def _zone(self, key: Key) -> str:
        found = self.published.known[key]
        return found.program.zone if isinstance(found, Walkable) else "UTC"

    def _course_of(self, known: _Known, item: Item) -> Course:
        try:
            return self._course(known, item)
        except Exception as error:
            told = (item.journey_id, item.node_id, type(error).__name__)
            log.error("governance failed journey_id=%d node_id=%s error=%s", *told)
            return failed(item, error)

    def _course(self, known: _Known, item: Item) -> Course:
        shut = withheld(known.doors[_journey(item)])
        if shut is not None:
            return Course((), shut, item)
        if item.kind == "send":
            return _Sending(self, known, item).course()
        if item.kind == "task":
            known.given.append(_task_row(item, microseconds(known.now)))
            return Course((), Delivered(), item)
        return Course((item,), None, item)

    def template(
        self, tenant_id: int, current: templates.CurrentTemplate
    ) -> Template | BadTemplate:
        """A template, parsed when it is met first."""
        key = (tenant_id, current.template_id, current.version)
        found = self.parsed.get(key)
        if found is None:
            found = self.parsed[key] = _parsed(current.texts)
            if len(self.parsed) > MOST_TEMPLATES:
                self.parsed.popitem(last=False)
        self.parsed.move_to_end(key)
        return found


def withheld(door: Door) -> Outcome | None:
    """What becomes of an effect whose journey lets nothing out; None where it may go."""
    if door.outgoing == "hold":
        return Held()
    return Suppressed(door.status) if door.outgoing == "cancel" else None


def failed(item: Item, fault: Exception) -> Course:
    """Of an effect that cannot be decided on: it is tried again, and a dead letter in the end."""
    return Course((), Failed(words_of(fault)), item)


class Recipient(NamedTuple):
    """What a message needs of a profile."""

    traits: Mapping[str, Any]
    timezone: str | None
    phone_timezone: str | None


NOBODY = Recipient({}, None, None)


@dataclass(slots=True)
class _Day:
    """The messages of one person on one day of the account: their ids, and how many by budget."""

    ids: set[str] = field(default_factory=set)
    budgets: Counter[str] = field(default_factory=Counter)

    def add(self, message_id: str, budget: str) -> None:
        self.ids.add(message_id)
        self.budgets[budget] += 1

    def is_full(self, message_id: str, budget: str, caps: Mapping[str, int]) -> bool:
        """Whether a cap leaves no place; a message that is tried again has its own already."""
        if message_id in self.ids:
            return False
        many = {budget: self.budgets[budget], ANY: self.budgets.total()}
        return any(many[name] >= caps[name] for name in (budget, ANY) if name in caps)


@dataclass(slots=True)
class _Known:
    """All that was read for a batch; `uses` and `reserved` grow as its messages are decided on.

    `writing` are the tenants that have templates. Before its first one an account has no texts:
    what it sends is told and goes out unrendered, to no address.
    """

    now: Instant
    doors: Mapping[JourneyKey, Door]
    people: Mapping[PersonKey, StoredProfile]
    zones: Mapping[Key, str]
    days: Mapping[Key, int]
    states: Mapping[PersonKey, Mapping[tuple[str, str], str]]
    policies: Mapping[int, Policy]
    writing: frozenset[int]
    templates: Mapping[TemplateKey, templates.CurrentTemplate]
    uses: dict[tuple[int, str, int], _Day]
    reserved: list[tuple[int, str, str, str, int]] = field(default_factory=list)
    given: list[tuple[Any, ...]] = field(default_factory=list)


class _Medium(NamedTuple):
    """One channel of a message: `name` is the message's id there. `parsed` is None for an account
    that has no templates yet."""

    channel: str
    template_id: int | None
    name: str
    category: str
    version: int | None = None
    parsed: Template | None = None

    @property
    def is_transactional(self) -> bool:
        return self.category == TRANSACTIONAL


class _Sending:
    """One message, and the questions that are asked of it."""

    def __init__(self, governor: Governor, known: _Known, item: Item) -> None:
        self.governor, self.known, self.item = governor, known, item
        self.policy = known.policies[item.tenant_id]
        self.zone = known.zones[_version(item)]
        stored = known.people.get(_person(item))
        self.person = NOBODY if stored is None else _recipient(stored)
        self.states = known.states.get(_person(item), {})
        self.budget = _budget(item)
        self.day = (*_person(item), known.days[_version(item)])

    def course(self) -> Course:
        """Ask of one medium after the other, until what is answered speaks for the person."""
        ready: list[Item] = []
        first, reason, counts = self.item, "", False
        for number, medium in enumerate(_media(self.item)):
            letter, answer = self._asked(medium)
            first = first if number else letter
            if answer is None:
                ready.append(letter)
                counts = counts or letter.payload["category"] != TRANSACTIONAL
            elif isinstance(answer, Unreachable):
                reason = reason or ("" if ready else answer.reason)
            else:
                break
        else:
            answer = None if ready else Suppressed(reason)
            letter = first
        if ready and counts:
            self._reserve()
        return Course(tuple(ready), answer, letter, reason)

    def _asked(self, medium: _Medium) -> tuple[Item, Outcome | None]:
        """The letter by this medium, and what speaks against it."""
        written, answer = self._written(medium)
        for question in QUESTIONS:
            if answer is None:
                answer = question(self, written)
        texts: Mapping[str, str] = {}
        if answer is None:
            texts, answer = self._rendered(written)
        return self._letter(written, texts), answer

    def _letter(self, medium: _Medium, texts: Mapping[str, str]) -> Item:
        payload = {name: value for name, value in self.item.payload.items() if name != "fallback"}
        payload |= {
            "message_id": medium.name,
            "channel": medium.channel,
            "template_id": medium.template_id,
            "template_version": medium.version,
            "category": medium.category,
            "address": self._address(medium.channel),
            "texts": dict(texts),
        }
        return self.item._replace(message_id=medium.name, payload=payload)

    def _address(self, channel: str) -> str | None:
        """Where the person is on this channel; None where that is not known, or not needed."""
        found = self.person.traits.get(self.policy.addresses.get(channel, ""))
        return found.strip() or None if isinstance(found, str) else None

    def _reserve(self) -> None:
        tenant_id, user_id, day = self.day
        uses = self.known.uses.setdefault(self.day, _Day())
        if self.item.message_id not in uses.ids:
            uses.add(self.item.message_id, self.budget)
        row = (tenant_id, user_id, self.item.message_id, self.budget, day)
        self.known.reserved.append(row)

    # --- the questions, in their order

    def _written(self, medium: _Medium) -> tuple[_Medium, Outcome | None]:
        """Is there a text, and what category does it say?"""
        tenant_id, template_id = self.item.tenant_id, medium.template_id
        if tenant_id not in self.known.writing:
            return medium, None
        if template_id is None:
            return medium, Refused("NO_TEMPLATE", NO_TEMPLATE.format(self.item.node_id))
        current = self.known.templates.get((tenant_id, template_id))
        if current is None:
            told = TEMPLATE_MISSING.format(template_id, self.item.node_id)
            return medium, Refused("TEMPLATE_MISSING", told)
        category = current.category or medium.category
        medium = medium._replace(version=current.version, category=category)
        parsed = self.governor.template(tenant_id, current)
        if isinstance(parsed, BadTemplate):
            return medium, _failed(template_id, parsed)
        return medium._replace(parsed=parsed), None

    def _reachable(self, medium: _Medium) -> Outcome | None:
        """Can this channel reach the person?"""
        if medium.channel in self.policy.channels_off:
            return Unreachable("channel_off")
        needs = medium.parsed is not None and medium.channel in self.policy.addresses
        if needs and self._address(medium.channel) is None:
            return Unreachable("no_address")
        return None

    def _wanted(self, medium: _Medium) -> Outcome | None:
        """Do they want to hear from us there?"""
        needs_consent = medium.channel in self.policy.opt_in and not medium.is_transactional
        if subscriptions.allows(self.states, medium.channel, medium.category, needs_consent):
            return None
        return Suppressed("unsubscribed")

    def _has_place(self, medium: _Medium) -> Outcome | None:
        """Have they had enough for today?"""
        uses = self.known.uses.get(self.day)
        if medium.is_transactional or uses is None:
            return None
        full = uses.is_full(self.item.message_id, self.budget, self.policy.caps)
        return Suppressed("capped") if full else None

    def _timely(self, medium: _Medium) -> Outcome | None:
        """Is it a time for it, on the person's clock?"""
        person, windows = self.person, {}
        is_text = medium.channel == TEXT_MESSAGES
        phone = person.phone_timezone if is_text else None
        zone, _ = timing.first_zone((person.timezone, phone, self.zone))
        if is_text:
            windows["sms_window"] = timing.sms_window(zone)
        if not medium.is_transactional and (allowed := self.policy.window(zone)):
            windows["quiet_hours"] = allowed
        now = self.known.now
        shut = [name for name, window in windows.items() if not timing.is_open([window], now)]
        if not shut:
            return None
        until = timing.next_opening(list(windows.values()), now)
        return Suppressed("window_never_opens") if until is None else Deferred(until, shut[0])

    def _rendered(self, medium: _Medium) -> tuple[Mapping[str, str], Outcome | None]:
        """Does the text find all its values?"""
        if medium.parsed is None:
            return {}, None
        try:
            made = render(medium.parsed, self.person.traits, self.item.payload.get("event"))
        except BadTemplate as error:
            return {}, _failed(medium.template_id, error)
        if isinstance(made, Missing):
            return {}, Suppressed("missing_personalisation", ", ".join(made.names))
        return made.texts, None


QUESTIONS: tuple[Callable[[_Sending, _Medium], Outcome | None], ...] = (
    _Sending._reachable,
    _Sending._wanted,
    _Sending._has_place,
    _Sending._timely,
)

NO_TEMPLATE = (
    'The send node "{0}" has no text to send. Give it a template and publish it again; '
    "for this message, skip it."
)
TEMPLATE_MISSING = (
    'The template "{0}", which the node "{1}" sends, is not there, or archived. '
    "Save it, then retry."
)
TEMPLATE_FAILED = 'The template "{0}" cannot be sent. {1}'


def _failed(template_id: int | None, why: BadTemplate) -> Refused:
    return Refused("TEMPLATE_FAILED", TEMPLATE_FAILED.format(template_id, why))


def _parsed(texts: Mapping[str, str]) -> Template | BadTemplate:
    try:
        return parse_template(texts)
    except BadTemplate as error:
        return error


# -- what is asked of an item ------------------------------------------------------------------


def _media(item: Item) -> list[_Medium]:
    """The channels of a message in their order; each is tried once at most."""
    payload = item.payload
    category = str(payload.get("category") or "marketing")
    lead = {**payload, "message_id": item.message_id}
    return [
        _Medium(str(m.get("channel") or ""), m.get("template_id"), m["message_id"], category)
        for m in (lead, *payload.get("fallback", ()))
    ]


def _templates_of(item: Item) -> list[TemplateKey]:
    try:
        media = _media(item)
    except Exception:  # its course fails of the same, and says so
        return []
    wanted = (medium.template_id for medium in media)
    return [(item.tenant_id, each) for each in wanted if each is not None]


def _budget(item: Item) -> str:
    return str(item.payload.get("budget") or "default")


def _person(item: Item) -> PersonKey:
    return item.tenant_id, item.user_id


def _journey(item: Item) -> JourneyKey:
    return item.tenant_id, item.journey_id


def _version(item: Item) -> Key:
    return item.tenant_id, item.journey_id, item.version


def _recipient(stored: StoredProfile) -> Recipient:
    traits = orjson.loads(stored.traits)
    return Recipient(traits, profile.zone_trait(traits), stored.phone_timezone)


def _day(now: Instant, zone: str) -> int:
    """The date on the account's calendar, in days since 1970-01-01."""
    return int(timing.local_date(now, zone).since(EPOCH, total="days"))


EPOCH = Date(1970, 1, 1)


def _uses(rows: Iterable[Any]) -> dict[tuple[int, str, int], _Day]:
    found: dict[tuple[int, str, int], _Day] = {}
    for tenant_id, user_id, day, message_id, budget in rows:
        found.setdefault((tenant_id, user_id, day), _Day()).add(message_id, budget)
    return found


def _task_row(item: Item, now: int) -> tuple[Any, ...]:
    task = item.payload
    outcomes = orjson.dumps(task.get("connected_outcomes") or []).decode()
    said = (str(task.get("task") or ""), str(task.get("title") or ""), outcomes)
    return (*item[:7], *said, "open", "", "", "", now)


# -- statements ------------------------------------------------------------------------------------

WRITING = Select(
    [("tenant_id", "bigint")],
    "SELECT given.tenant_id FROM {given} WHERE EXISTS "
    "(SELECT 1 FROM templates t WHERE t.tenant_id = given.tenant_id)",
)
"""Which of these tenants have templates, if only archived ones."""
USES = Select(
    [("tenant_id", "bigint"), ("user_id", "text"), ("day", "integer")],
    "SELECT u.tenant_id, u.user_id, u.day, u.message_id, u.budget FROM {given} "
    "JOIN budget_uses u ON u.tenant_id = given.tenant_id AND u.user_id = given.user_id "
    "AND u.day = given.day",
)
RESERVE = Insert(
    budget_uses,
    ("tenant_id", "user_id", "message_id", "budget", "day"),
    # A message that failed yesterday counts for the day on which it is tried again.
    "(tenant_id, user_id, message_id) DO UPDATE SET day = excluded.day, budget = excluded.budget",
)
GIVE_BACK = Delete(budget_uses, ("tenant_id", "user_id", "message_id"))
GIVE_TASKS = Insert(
    tasks,
    (
        *("tenant_id", "task_id", "user_id", "journey_id", "version", "entry_count", "node_id"),
        *("task", "title", "connected_outcomes", "status", "outcome", "note", "completed_by"),
        "created_at",
    ),
    "(tenant_id, task_id) DO NOTHING",
)
KEPT_DAYS = 3  # of what counts against caps; zones lie a day apart at most
FORGET_MANY = 5_000  # rows at once
_OLD = (
    "DELETE FROM budget_uses WHERE (tenant_id, user_id, message_id) IN (SELECT tenant_id, user_id, "
    "message_id FROM budget_uses WHERE day < {day} ORDER BY day LIMIT {many})"
)


async def forget_days(connection: AsyncConnection, now: Instant) -> int:
    """Delete what counted against the caps of days long gone, in one bounded statement; how many
    rows it was."""
    day = _day(now, "UTC") - KEPT_DAYS
    gone = await connection.exec_driver_sql(_OLD.format(day=day, many=FORGET_MANY))
    return gone.rowcount
