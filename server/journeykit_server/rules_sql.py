"""A segment rule as SQL: who of a million people it holds for, by a few statements.

A rule becomes two conditions over a row `p` of `profiles`. Where `lower` is true the rule surely
holds, where `upper` is false it surely does not; the people between the two are shown to the
engine's own predicate. So the answer is the engine's for everybody, whatever lies in a document,
and what SQL cannot say costs time and nothing else. All constants stand in the text, quoted: it can
be made a part of any statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, assert_never

import orjson
from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import Instant

from journeykit_engine import allot, moment, profile, timing
from journeykit_engine.comparison import Comparison, compile_comparison
from journeykit_engine.facts import Snapshot
from journeykit_engine.history import EventCount, EventTime, EventValue, Scope
from journeykit_engine.instance import NOTHING, Happened, Pass, Person
from journeykit_engine.leaf import BUCKETS, Bucket, InJourney, InSegment, Leaf, Local, Part, Trait
from journeykit_engine.rule import (
    All,
    AnyOf,
    Everybody,
    NoneOf,
    Not,
    Rule,
    compile_rule,
    leaves,
    references,
)
from journeykit_engine.zone import ZONES
from journeykit_server import store
from journeykit_server.bulk import Select
from journeykit_server.clock import instant
from journeykit_server.rules_days import NANOSECONDS, bounds, microsecond, nanoseconds
from journeykit_server.rules_values import (
    FALSE,
    NO,
    PERHAPS,
    SAFE_INTEGER,
    SIGNS,
    TRUE,
    YES,
    Dialect,
    Pair,
    Place,
    compared,
    dated,
    every,
    exactly,
    is_read_well,
    is_storable,
    negation,
    number,
    ordered,
    place,
    quoted,
    some,
)

STRETCH = 250_000
"""Profiles that one statement passes at most: far less than a server lets a statement run, and few
enough statements for a million people."""
SHOWN_AT_ONCE = 1_000  # people whose history is in memory while the predicate is asked
DEEP = 10
"""Levels from which the deepest group is written first: SQLite's parser keeps a hundred things in
mind at most, and what stands first it need not keep."""


class Pushed(NamedTuple):
    """A rule as two conditions over a row `p` of `profiles`; both are true or false, never NULL."""

    lower: str
    upper: str

    @property
    def is_exact(self) -> bool:
        """Whether SQL says all: nobody has to be shown to the predicate."""
        return self.lower == self.upper


def compile_sql(rule: Rule, *, dialect: Dialect, now: Instant, account_zone: str) -> Pushed:
    """The rule as it answers at `now`, outside of any journey, for an account in `account_zone`."""
    depth = _depth(rule)
    return Pushed(*_Compiler(dialect, now, account_zone, depth >= DEEP).pair(rule, True))


def _depth(rule: Rule) -> int:
    return 1 + max(map(_depth, _inside(rule)), default=0)


def _inside(rule: Rule) -> tuple[Rule, ...]:
    match rule:
        case All(rules) | AnyOf(rules) | NoneOf(rules):
            return rules
        case Not(inner):
            return (inner,)
        case _:
            return ()


class _Compiler(NamedTuple):
    """What every leaf of one rule is compiled with."""

    dialect: Dialect
    now: Instant
    account_zone: str
    is_deep: bool

    def pair(self, rule: Rule, wanted: bool) -> Pair:
        """The conditions that the rule answers `wanted`. A negation moves inwards to the leaves, so
        that the text is no deeper than it must be."""
        match rule:
            case Everybody():
                return YES if wanted else NO
            case All(rules):
                return self._group(rules, wanted, wanted)
            case AnyOf(rules):
                return self._group(rules, not wanted, wanted)
            case NoneOf(rules):
                return self._group(rules, wanted, not wanted)
            case Not(inner):
                return self.pair(inner, not wanted)
            case _:
                found = self._leaf(rule)
                return found if wanted else negation(found)

    def _group(self, rules: Sequence[Rule], is_every: bool, wanted: bool) -> Pair:
        pairs = [self.pair(inner, wanted) for inner in self._in_order(rules)]
        return every(pairs) if is_every else some(pairs)

    def _in_order(self, rules: Sequence[Rule]) -> list[Rule]:
        """What costs least first, as SQLite asks in the order of the text."""
        if self.is_deep:
            return sorted(rules, key=lambda inner: -_depth(inner))
        return sorted(rules, key=_cost)

    def _leaf(self, leaf: Leaf) -> Pair:
        match leaf:
            case Trait():
                return self._trait(leaf)
            case EventCount() | EventValue() | EventTime():
                return self._events(leaf)
            case InSegment():
                return _in_segment(leaf)
            case InJourney():
                return _in_journey(leaf, self.dialect)
            case Bucket():
                return _in_bucket(leaf, self.dialect)
            case Local():
                return self._local(leaf)
            case _:
                assert_never(leaf)

    def _trait(self, leaf: Trait) -> Pair:
        test = leaf.test
        if not is_storable(leaf.trait):  # nobody can have it
            return _constantly(isinstance(test, Comparison) and compile_comparison(test)(None))
        at = place("p.traits", leaf.trait, self.dialect)
        if isinstance(test, Comparison):
            return compared(at, test)
        return dated(at, test, bounds(test, self.now, self.account_zone))

    def _local(self, leaf: Local) -> Pair:
        """By name of zone: there are a few hundred, and the clock of each shows one thing now."""
        holds = compile_comparison(leaf.test)
        shown = _clocks(self.now)
        at_home, _ = timing.first_zone((self.account_zone,))
        answer = holds(shown[at_home][leaf.part])
        others = sorted(zone for zone, parts in shown.items() if holds(parts[leaf.part]) != answer)
        own = place("p.traits", "timezone", self.dialect)
        has_another = compared(own, Comparison("in", tuple(others))) if others else NO
        return negation(has_another) if answer else has_another

    # --- events

    def _events(self, leaf: EventCount | EventValue | EventTime) -> Pair:
        if leaf.scope.since_entry or not is_storable(leaf.event):
            return self._of_no_events(leaf)
        where = self._where(leaf.scope)
        begun = self._begun(leaf)
        if isinstance(leaf, EventCount):
            return _count(leaf, begun, where)
        if where.lower != where.upper:
            return PERHAPS
        events = _that(begun, where.lower)
        if isinstance(leaf, EventTime):
            return self._time(leaf, events)
        if not is_storable(leaf.property):
            return self._of_no_events(leaf) if leaf.aggregate in ("sum", "distinct") else NO
        return _value(leaf, events, place("e.properties", leaf.property, self.dialect))

    def _of_no_events(self, leaf: EventCount | EventValue | EventTime) -> Pair:
        """Nothing has happened since an entry where there is none."""
        person = Person("", events={})
        facts = Snapshot(person, self.now, self.account_zone, self.account_zone)
        return _constantly(compile_rule(leaf)(facts))

    def _where(self, scope: Scope) -> Pair:
        return every([self._property(test.property, test.comparison) for test in scope.where])

    def _property(self, name: str, comparison: Comparison) -> Pair:
        if not is_storable(name):
            return _constantly(compile_comparison(comparison)(None))
        return compared(place("e.properties", name, self.dialect), comparison)

    def _begun(self, leaf: EventCount | EventValue | EventTime) -> str:
        """`FROM events e WHERE …` up to what is asked of each event."""
        text = (
            "FROM events AS e WHERE e.tenant_id = p.tenant_id AND e.user_id = p.user_id "
            f"AND e.name = {quoted(leaf.event, self.dialect)} AND e.kind = 'track'"
        )
        if not leaf.scope.within:
            return text
        minutes = moment.window_minutes(leaf.scope.within)
        end = nanoseconds(self.now) + 1  # a window takes in now, and leaves out its older end
        first = end - minutes * 60 * NANOSECONDS
        return f"{text} AND e.at >= {microsecond(first)} AND e.at < {microsecond(end)}"

    def _time(self, leaf: EventTime, events: str) -> Pair:
        limits = bounds(leaf.test, self.now, self.account_zone)
        at = "max(e.at)" if leaf.aggregate == "last_at" else "min(e.at)"
        if limits.start is None or limits.end is None:
            return Pair(FALSE, f"EXISTS (SELECT 1 {events})")
        start, end = limits.start, limits.end
        sure = f"{at} >= {microsecond(start.sure_after)} AND {at} < {microsecond(end.sure_before)}"
        near = f"{at} >= {microsecond(start.sure_before)} AND {at} < {microsecond(end.sure_after)}"
        return Pair(*(f"(SELECT {test} {events}) IS TRUE" for test in (sure, near)))


def _constantly(answer: bool) -> Pair:
    return YES if answer else NO


def _cost(rule: Rule) -> int:
    """How much the dearest leaf costs."""
    return max((_leaf_cost(leaf) for leaf in leaves(rule)), default=0)


def _leaf_cost(leaf: Leaf) -> int:
    match leaf:
        case Trait() | Local() | Bucket():
            return 0
        case InSegment() | InJourney():
            return 1
        case _:
            return 2


@lru_cache(maxsize=2)
def _clocks(now: Instant) -> dict[str, dict[Part, int | str]]:
    """What the clocks of all zones show."""
    return {zone: _shown(now, zone) for zone in sorted(ZONES)}


def _shown(now: Instant, zone: str) -> dict[Part, int | str]:
    clock = moment.local_clock(now, zone)
    weekday = timing.DAY_NAMES[clock.date().day_of_week().value - 1]
    return {"hour": clock.hour, "weekday": weekday, "month": clock.month}


# --- other leaves


def _in_segment(leaf: InSegment) -> Pair:
    return exactly(
        "EXISTS (SELECT 1 FROM segment_members AS m WHERE m.tenant_id = p.tenant_id "
        f"AND m.user_id = p.user_id AND m.segment_id = {leaf.segment})"
    )


def _in_journey(leaf: InJourney, dialect: Dialect) -> Pair:
    asked = [("status", leaf.status), ("current_node", leaf.node), ("variant", leaf.variant)]
    if not all(is_storable(text) for _, text in asked):
        return NO
    tests = [f" AND i.{name} = {quoted(text, dialect)}" for name, text in asked if text]
    if leaf.holdout is not None:
        tests.append(f" AND i.is_holdout = {TRUE if leaf.holdout else FALSE}")
    return exactly(
        "EXISTS (SELECT 1 FROM instances AS i WHERE i.tenant_id = p.tenant_id "
        f"AND i.user_id = p.user_id AND i.journey_id = {leaf.journey}{''.join(tests)})"
    )


def _in_bucket(leaf: Bucket, dialect: Dialect) -> Pair:
    """SQLite has no hash that a warehouse has too."""
    if leaf.first >= leaf.end:
        return NO
    if leaf.first <= 0 and leaf.end >= BUCKETS:
        return YES
    if dialect == "sqlite" or not is_storable(leaf.salt):
        return PERHAPS
    low, end = (-(-cut * allot.WHOLE // BUCKETS) for cut in (leaf.first, leaf.end))
    separator = quoted(allot.SEPARATOR.decode() + leaf.salt, dialect)
    share = f"('x' || substr(md5(p.user_id || {separator}), 1, 8))::bit(32)::bigint"
    return exactly(f"{share} >= {low} AND {share} < {end}")


# --- what happened


def _count(leaf: EventCount, begun: str, where: Pair) -> Pair:
    """Of every event it is known whether it counts, or that it may."""
    if where.is_exact:
        return Pair(test := _counted(_that(begun, where.lower), leaf.op, leaf.count), test)
    sure, near = (_that(begun, tests) for tests in where)
    if leaf.op in ("gte", "gt"):
        return Pair(*(_counted(events, leaf.op, leaf.count) for events in (sure, near)))
    if leaf.op in ("lte", "lt"):
        return Pair(*(_counted(events, leaf.op, leaf.count) for events in (near, sure)))
    at_least, at_most = _counted(near, "gte", leaf.count), _counted(sure, "lte", leaf.count)
    is_sure = [_counted(events, "eq", leaf.count) for events in (sure, near)]
    return Pair(f"({' AND '.join(is_sure)})", f"({at_least} AND {at_most})")


def _that(begun: str, tests: str) -> str:
    return begun if tests == TRUE else f"{begun} AND {tests}"


def _counted(events: str, op: str, count: int) -> str:
    if (op, count) in (("gte", 1), ("gt", 0)):
        return f"EXISTS (SELECT 1 {events})"
    if (op, count) in (("lt", 1), ("lte", 0), ("eq", 0)):
        return f"NOT EXISTS (SELECT 1 {events})"
    return f"(SELECT count(*) {SIGNS[op]} {count} {events})"


def _value(leaf: EventValue, events: str, at: Place) -> Pair:
    if leaf.aggregate == "distinct":
        asked = _distinct(leaf, at)
    elif leaf.aggregate in ("min", "max"):
        value = at.value if at.dialect == "sqlite" else f"({at.value})::numeric"
        found = f"{leaf.aggregate}(CASE WHEN {at.is_number} THEN {value} END)"
        asked = ordered(found, leaf.op, leaf.value, at.dialect)
    elif at.dialect == "postgresql":
        asked = _exact_total(leaf, at)
    else:
        asked = _near_total(leaf, at)
    return Pair(*(f"(SELECT {test} {events}) IS TRUE" for test in asked))


def _exact_total(leaf: EventValue, at: Place) -> Pair:
    """PostgreSQL adds decimals, as the engine does."""
    numbers = f"CASE WHEN {at.is_number} THEN ({at.value})::numeric END"
    wanted, total = number(leaf.value), f"COALESCE(sum({numbers}), 0)"
    if leaf.aggregate == "sum":
        return Pair(test := f"{total} {SIGNS[leaf.op]} {wanted}", test)
    count = f"count({numbers})"
    test = f"{count} > 0 AND {total} {SIGNS[leaf.op]} {wanted} * {count}"
    return Pair(test, test)


SLACK = 1e-9  # of all that is added up: a million doubles are never further from their true sum
EXACT_BELOW = SAFE_INTEGER // 2  # whole numbers that doubles add up without a rounding


def _near_total(leaf: EventValue, at: Place) -> Pair:
    """SQLite adds doubles: exact for whole numbers, else sure only at some distance."""
    numbers = f"CASE WHEN {at.is_number} THEN CAST({at.value} AS REAL) END"
    total, size = f"total({numbers})", f"total(abs({numbers}))"
    count, wanted = f"count({numbers})", number(float(leaf.value))
    if leaf.aggregate == "avg":
        wanted = f"({wanted} * {count})"
    is_whole = f"total({at.kind} = 'real') = 0 AND {size} + abs({wanted}) < {EXACT_BELOW}"
    if not float(leaf.value).is_integer() and leaf.aggregate == "avg":
        is_whole = FALSE
    above = f"{total} - {wanted} > {SLACK} * ({size} + abs({wanted})) + 1e-290"
    below = f"{wanted} - {total} > {SLACK} * ({size} + abs({wanted})) + 1e-290"
    sure, surely_not = {
        "gt": (above, below),
        "gte": (above, below),
        "lt": (below, above),
        "lte": (below, above),
        "eq": (FALSE, f"({above} OR {below})"),
    }[leaf.op]
    plain = f"{total} {SIGNS[leaf.op]} {wanted}"
    some_are = TRUE if leaf.aggregate == "sum" else f"{count} > 0"
    return Pair(
        f"{some_are} AND CASE WHEN {is_whole} THEN {plain} ELSE {sure} END",
        f"{some_are} AND CASE WHEN {is_whole} THEN {plain} ELSE ({surely_not}) IS NOT TRUE END",
    )


def _distinct(leaf: EventValue, at: Place) -> Pair:
    if at.dialect == "postgresql":
        count = f"count(DISTINCT CASE WHEN {at.is_scalar} THEN {at.value} END)"
        return ordered(count, leaf.op, leaf.value, at.dialect)
    values = f"CASE WHEN {at.kind} IN ('text', 'integer', 'real') THEN {at.value} END"
    both = " + ".join(f"max(COALESCE({at.kind} = '{word}', 0))" for word in ("true", "false"))
    if not is_read_well(leaf.value):
        return PERHAPS
    test = f"COALESCE(count(DISTINCT {values}) + {both}, 0) {SIGNS[leaf.op]} {number(leaf.value)}"
    # Two decimals that differ may be read as one double, so two of them leave a doubt.
    has_doubt = f"total({at.kind} = 'real') > 1"
    return Pair(f"NOT ({has_doubt}) AND {test}", f"({has_doubt} OR {test})")


# --- a look at everybody


class Page(NamedTuple):
    """People whom a rule holds for, in the order of their ids. There may be none on a page that is
    not the last; `position` is what the next page begins behind. `doubtful` counts those who were
    shown to the predicate."""

    user_ids: list[str]
    position: str
    is_last: bool
    doubtful: int


async def matching(
    connection: AsyncConnection,
    tenant_id: int,
    rule: Rule,
    *,
    now: Instant,
    account_zone: str,
    after: str,
    limit: int,
    extra: str = "",
    up_to: str | None = None,
) -> Page:
    """The people behind `after` ("" for all) whom the rule holds for: a page looks at `limit` of
    those who come into question, and passes `STRETCH` people at most. `extra` is one more condition
    over the row `p` of a profile; `up_to` is the last person to look at, None for all. A page wants
    one snapshot, as `Database.read` gives it; the next one may have another, and finds people who
    were added behind the position meanwhile.
    """
    dialect: Dialect = "sqlite" if connection.dialect.name == "sqlite" else "postgresql"
    pushed = compile_sql(rule, dialect=dialect, now=now, account_zone=account_zone)
    behind = f"p.tenant_id = {tenant_id} AND p.user_id > {quoted(after, dialect)}"
    if up_to is not None:
        behind += f" AND p.user_id <= {quoted(up_to, dialect)}"
    more = f" AND ({extra})" if extra else ""
    is_sure = TRUE if pushed.is_exact else pushed.lower
    end = await _end_of_stretch(connection, behind) if dialect == "sqlite" else None
    found = await connection.exec_driver_sql(
        f"SELECT p.user_id, {is_sure} FROM {_stretch(behind, end, dialect)} "
        f"AND {pushed.upper}{more} ORDER BY p.user_id LIMIT {limit}"
    )
    rows: Sequence[Any] = found.all()
    doubtful = [user_id for user_id, sure in rows if not sure]
    look = Look(tenant_id, rule, now, account_zone)
    refused = set(doubtful).difference(await look.holding(connection, doubtful))
    user_ids = [user_id for user_id, _ in rows if user_id not in refused]
    if len(rows) == limit:
        return Page(user_ids, rows[-1][0], False, len(doubtful))
    if dialect == "postgresql":  # which had to know only how many people those are
        end = await _end_of_stretch(connection, behind)
    return Page(user_ids, after if end is None else end, end is None, len(doubtful))


def _stretch(behind: str, end: str | None, dialect: Dialect) -> str:
    """A stretch of people as what follows FROM, to go on with AND. PostgreSQL stops in it as soon
    as the page is full; SQLite would sort all of it first, and so is told its end."""
    if dialect == "sqlite":
        up_to = "" if end is None else f" AND p.user_id <= {quoted(end, dialect)}"
        return f"profiles AS p WHERE {behind}{up_to}"
    people = f"SELECT * FROM profiles AS p WHERE {behind} ORDER BY p.user_id LIMIT {STRETCH}"
    return f"({people}) AS p WHERE TRUE"


async def _end_of_stretch(connection: AsyncConnection, behind: str) -> str | None:
    """The last person of a whole stretch; None where fewer are left."""
    found = await connection.exec_driver_sql(
        f"SELECT p.user_id FROM profiles AS p WHERE {behind} "
        f"ORDER BY p.user_id LIMIT 1 OFFSET {STRETCH - 1}"
    )
    return found.scalar_one_or_none()


class Look(NamedTuple):
    """A rule as it is asked of people one by one, at one moment."""

    tenant_id: int
    rule: Rule
    now: Instant
    account_zone: str

    async def holding(self, connection: AsyncConnection, user_ids: Sequence[str]) -> list[str]:
        """Those of these people whom the rule holds for, by the engine's predicate."""
        holds, found = compile_rule(self.rule), list[str]()
        for first in range(0, len(user_ids), SHOWN_AT_ONCE):
            shown = await self.facts(connection, user_ids[first : first + SHOWN_AT_ONCE])
            found += (facts.person.user_id for facts in shown if holds(facts))
        return found

    async def facts(self, connection: AsyncConnection, user_ids: Sequence[str]) -> list[Snapshot]:
        """All that the rule may ask about these people, by a fixed number of statements; who has
        no profile is left out."""
        people = [(self.tenant_id, user_id) for user_id in user_ids]
        asked = references(self.rule)
        histories = await _histories(connection, people, sorted(filter(is_storable, asked.events)))
        members = await _members(connection, people) if asked.segments else {}
        passes = await _passes(connection, people) if asked.journeys else {}
        return [
            self._snapshot(
                Person(
                    user_id,
                    orjson.loads(traits),
                    events=histories.get(user_id, NOTHING),
                    segments=frozenset(members.get(user_id, ())),
                    journeys=passes.get(user_id, NOTHING),
                    phone_timezone=phone_timezone,
                )
            )
            for user_id, traits, phone_timezone in await PROFILES.run(connection, people)
        ]

    def _snapshot(self, person: Person) -> Snapshot:
        own = profile.zone_trait(person.traits)
        zone, _ = timing.first_zone((own, self.account_zone))
        return Snapshot(person._replace(timezone=own), self.now, self.account_zone, zone)


PROFILES = Select(
    store.PERSON,
    "SELECT p.user_id, p.traits::text, p.phone_timezone FROM {given} "
    f"JOIN profiles p ON {store.SAME_PERSON.format('p')}",
)


async def _histories(
    connection: AsyncConnection, people: Sequence[store.PersonKey], names: Sequence[str]
) -> dict[str, dict[str, list[Happened]]]:
    asked = [(*key, name, ALL_NUMBERS) for key in people for name in names]
    found: dict[str, dict[str, list[Happened]]] = {}
    for row in await store.HISTORY.run(connection, asked):
        _, user_id, name, at, event_id, properties = row
        happened = Happened(instant(at), orjson.loads(properties), event_id)
        found.setdefault(user_id, {}).setdefault(name, []).append(happened)
    return found


ALL_NUMBERS = 2**62  # above every number of an event


async def _members(
    connection: AsyncConnection, people: Sequence[store.PersonKey]
) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for _, user_id, segment_id in await store.SEGMENTS.run(connection, people):
        found.setdefault(user_id, set()).add(segment_id)
    return found


async def _passes(
    connection: AsyncConnection, people: Sequence[store.PersonKey]
) -> dict[str, dict[int, Pass]]:
    found: dict[str, dict[int, Pass]] = {}
    for row in await store.PASSES.run(connection, people):
        _, user_id, journey_id, status, node_id, variant, is_held = row
        known = Pass(journey_id, status, node_id, variant, bool(is_held))
        found.setdefault(user_id, {})[journey_id] = known
    return found
