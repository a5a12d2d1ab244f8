"""The leaves of a segment definition: what each asks of a person, reads, saw, and when it may turn.

A leaf is one question. Seven of them look at the person (a trait, a count or a sum or a date of
events, a segment, another journey, a bucket) and one at the recipient's clock. Each is a frozen
value; `leaf_predicate` compiles it, `leaf_definition` writes it back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, assert_never

from whenever import Instant

from journeykit_engine import allot, moment, timing
from journeykit_engine.comparison import Comparison, compile_comparison, shown_value
from journeykit_engine.facts import Facts, Predicate
from journeykit_engine.history import (
    EventCount,
    EventTime,
    EventValue,
    PropertyTest,
    Scope,
    event_changes,
    event_predicate,
    events_saw,
)
from journeykit_engine.instance import Person
from journeykit_engine.moment import Dated

BUCKETS = 10_000
"""A bucket is one basis point of all people: 2,500 buckets hold a quarter of them."""

Part = Literal["hour", "weekday", "month"]


@dataclass(frozen=True, slots=True)
class Trait:
    """`{"trait", "op", "value"}`: a trait against a value or a date, in its own shape only."""

    trait: str
    test: Comparison | Dated


@dataclass(frozen=True, slots=True)
class InSegment:
    """`{"segment": 12}`: a member now."""

    segment: int


@dataclass(frozen=True, slots=True)
class InJourney:
    """`{"journey": 7, …}`: has a pass, the latest of which shows all that is asked ("" and None
    ask nothing)."""

    journey: int
    status: str = ""
    node: str = ""
    variant: str = ""
    holdout: bool | None = None


@dataclass(frozen=True, slots=True)
class Bucket:
    """`{"bucket": {"salt", "from", "to"}}`: a fixed share of people, in basis points.

    `first` is inside, `end` is not. The same salt gives the same person the same bucket.
    """

    salt: str
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Local:
    """`{"local": "hour", "op", "value"}`: the recipient's clock; weekdays are "mon" to "sun"."""

    part: Part
    test: Comparison


Leaf = Trait | EventCount | EventValue | EventTime | InSegment | InJourney | Bucket | Local


def leaf_predicate(leaf: Leaf) -> Predicate:
    """The leaf as a function of the facts, which never raises whatever the person holds."""
    match leaf:
        case Trait():
            return _trait_predicate(leaf)
        case EventCount() | EventValue() | EventTime():
            return event_predicate(leaf)
        case InSegment():
            return lambda facts: leaf.segment in facts.person.segments
        case InJourney():
            return lambda facts: _is_in_journey(leaf, facts.person)
        case Bucket():
            return lambda facts: leaf.first <= _bucket_of(leaf, facts.person) < leaf.end
        case Local():
            return _local_predicate(leaf)
        case _:
            assert_never(leaf)


def _trait_predicate(leaf: Trait) -> Predicate:
    name, test = leaf.trait, leaf.test
    if isinstance(test, Comparison):
        if test.op == "eq" and isinstance(test.value, str):  # the most frequent leaf of all
            text = test.value
            return lambda facts: (
                isinstance(given := facts.person.traits.get(name), str) and given == text
            )
        holds = compile_comparison(test)
        return lambda facts: holds(facts.person.traits.get(name))
    dated, passes = test, moment.compile_dated(test)

    def predicate(facts: Facts) -> bool:
        at = moment.read_for(dated, facts.person.traits.get(name))
        return passes(at, facts.at, facts.account_zone)

    return predicate


def _is_in_journey(leaf: InJourney, person: Person) -> bool:
    found = person.journeys.get(leaf.journey)
    return (
        found is not None
        and leaf.status in ("", found.status)
        and leaf.node in ("", found.node)
        and leaf.variant in ("", found.variant)
        and leaf.holdout in (None, found.is_holdout)
    )


def _bucket_of(leaf: Bucket, person: Person) -> int:
    """From 0 to BUCKETS - 1; -1, which no bucket holds, for an id that has no UTF-8."""
    try:
        return allot.share(person.user_id, leaf.salt) * BUCKETS >> 32
    except UnicodeEncodeError:
        return -1


def _local_predicate(leaf: Local) -> Predicate:
    holds, part = compile_comparison(leaf.test), leaf.part
    return lambda facts: holds(_local_part(part, facts))


def _local_part(part: Part, facts: Facts) -> int | str:
    clock = moment.local_clock(facts.at, facts.zone)
    match part:
        case "hour":
            return clock.hour
        case "weekday":
            return timing.DAY_NAMES[clock.date().day_of_week().value - 1]
        case "month":
            return clock.month


def leaf_changes(leaf: Leaf, facts: Facts) -> list[Instant]:
    """Instants, past ones among them, of which the first after now is no later than the next turn
    of the answer, as long as no new fact arrives; [] where time alone changes nothing."""
    match leaf:
        case Trait(test=Dated() as dated):
            at = moment.read_for(dated, facts.person.traits.get(leaf.trait))
            return moment.dated_changes(dated, at, facts.at, facts.account_zone)
        case EventCount() | EventValue() | EventTime():
            return event_changes(leaf, facts)
        case Local():
            hours: Literal[1, 24] = 1 if leaf.part == "hour" else 24
            return moment.next_local(facts.at, facts.zone, hours)
        case Trait() | InSegment() | InJourney() | Bucket():
            return []
        case _:
            assert_never(leaf)


def reads_time(leaf: Leaf) -> bool:
    """True when the answer can change by time passing alone."""
    match leaf:
        case Trait(test=Dated() as dated):
            return moment.OPERATORS[dated.op] in ("duration", "days")
        case EventTime():
            return bool(leaf.scope.within) or moment.OPERATORS[leaf.test.op] in ("duration", "days")
        case EventCount() | EventValue():
            return bool(leaf.scope.within)
        case _:
            return isinstance(leaf, Local)


def leaf_saw(leaf: Leaf, facts: Facts) -> dict[str, Any]:
    """What the leaf looked at, ready for JSON: the trait, the events, the clock."""
    match leaf:
        case Trait():
            return _trait_saw(leaf, facts)
        case EventCount() | EventValue() | EventTime():
            return events_saw(leaf, facts)
        case InSegment():
            return {"member": leaf.segment in facts.person.segments}
        case InJourney():
            found = facts.person.journeys.get(leaf.journey)
            return {"pass": None if found is None else dict(zip(_PASS, found[1:], strict=True))}
        case Bucket():
            return {"bucket": _bucket_of(leaf, facts.person)}
        case Local():
            return {leaf.part: _local_part(leaf.part, facts), "zone": shown_value(facts.zone)}
        case _:
            assert_never(leaf)


_PASS = ("status", "node", "variant", "holdout")


def _trait_saw(leaf: Trait, facts: Facts) -> dict[str, Any]:
    value = facts.person.traits.get(leaf.trait)
    saw: dict[str, Any] = {"value": shown_value(value)}
    if isinstance(leaf.test, Dated):
        saw["moment"] = moment.shown_moment(moment.read_for(leaf.test, value))
    return saw


def leaf_definition(leaf: Leaf) -> dict[str, Any]:
    """The leaf as JSON, defaults of `op` and `count` written out."""
    match leaf:
        case Trait():
            return {"trait": leaf.trait, **_test_definition(leaf.test)}
        case EventCount():
            body = {"event": leaf.event, "op": leaf.op, "count": leaf.count}
            return body | _scope_definition(leaf.scope)
        case EventValue():
            body = {"event": leaf.event, "aggregate": leaf.aggregate, "property": leaf.property}
            return body | {"op": leaf.op, "value": leaf.value} | _scope_definition(leaf.scope)
        case EventTime():
            body = {"event": leaf.event, "aggregate": leaf.aggregate}
            return body | _test_definition(leaf.test) | _scope_definition(leaf.scope)
        case InSegment():
            return {"segment": leaf.segment}
        case InJourney():
            return {"journey": leaf.journey, **_journey_definition(leaf)}
        case Bucket():
            return {"bucket": {"salt": leaf.salt, "from": leaf.first, "to": leaf.end}}
        case Local():
            return {"local": leaf.part, **_test_definition(leaf.test)}
        case _:
            assert_never(leaf)


def _test_definition(test: Comparison | Dated) -> dict[str, Any]:
    body: dict[str, Any] = {"op": test.op}
    if test.value is not None:
        body["value"] = list(test.value) if isinstance(test.value, tuple) else test.value
    if isinstance(test, Dated) and test.annual:
        body["annual"] = True
    if isinstance(test, Dated) and test.compare != "eq":
        body["compare"] = test.compare
    return body


def _scope_definition(scope: Scope) -> dict[str, Any]:
    body: dict[str, Any] = {}
    if scope.within:
        body["within"] = scope.within
    if scope.since_entry:
        body["since"] = "entry"
    if scope.where:
        body["where"] = [
            {"property": test.property, **_test_definition(test.comparison)} for test in scope.where
        ]
    return body


def _journey_definition(leaf: InJourney) -> dict[str, Any]:
    asked = {"status": leaf.status, "node": leaf.node, "variant": leaf.variant}
    body: dict[str, Any] = {name: text for name, text in asked.items() if text}
    return body if leaf.holdout is None else body | {"holdout": leaf.holdout}


def read_leaf(body: Mapping[str, Any]) -> Leaf:
    """A leaf from sound JSON; what is unsound was told by the faults before."""
    for kind, reader in _READERS.items():
        if kind in body:
            return reader(body)
    raise AssertionError(f"no leaf is called any of {sorted(body)}")


def _read_trait(body: Mapping[str, Any]) -> Leaf:
    return Trait(body["trait"], _read_test(body))


def _read_event(body: Mapping[str, Any]) -> Leaf:
    event, aggregate, scope = body["event"], body.get("aggregate"), _read_scope(body)
    if aggregate is None:
        return EventCount(event, body.get("op", "gte"), body.get("count", 1), scope)
    if aggregate in ("last_at", "first_at"):
        return EventTime(event, aggregate, _read_dated(body), scope)
    return EventValue(event, aggregate, body["property"], body["op"], body["value"], scope)


def _read_scope(body: Mapping[str, Any]) -> Scope:
    return Scope(body.get("within", ""), "since" in body, read_where(body.get("where", ())))


def read_where(tests: Sequence[Mapping[str, Any]]) -> tuple[PropertyTest, ...]:
    """The property tests of sound JSON."""
    return tuple(PropertyTest(test["property"], _read_comparison(test)) for test in tests)


def _read_test(body: Mapping[str, Any]) -> Comparison | Dated:
    return _read_dated(body) if body["op"] in moment.OPERATORS else _read_comparison(body)


def _read_comparison(body: Mapping[str, Any]) -> Comparison:
    value = body.get("value")
    return Comparison(body["op"], tuple(value) if isinstance(value, list) else value)


def _read_dated(body: Mapping[str, Any]) -> Dated:
    annual, compare = body.get("annual", False), body.get("compare", "eq")
    return Dated(body["op"], body["value"], annual, compare)


def _read_journey(body: Mapping[str, Any]) -> Leaf:
    return InJourney(
        body["journey"],
        status=body.get("status", ""),
        node=body.get("node", ""),
        variant=body.get("variant", ""),
        holdout=body.get("holdout"),
    )


def _read_bucket(body: Mapping[str, Any]) -> Leaf:
    bucket = body["bucket"]
    return Bucket(bucket["salt"], bucket["from"], bucket["to"])


def _read_local(body: Mapping[str, Any]) -> Leaf:
    return Local(body["local"], _read_comparison(body))


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Leaf]] = MappingProxyType(
    {
        "trait": _read_trait,
        "event": _read_event,
        "segment": lambda body: InSegment(body["segment"]),
        "journey": _read_journey,
        "bucket": _read_bucket,
        "local": _read_local,
    }
)
