"""The leaves that look at a person's events: how often, how much, and when.

Every one of them first narrows the events of one name by its scope, in the order of arrival, and
then counts them, adds up a property, or takes the first or last time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, Literal, assert_never

from whenever import Instant

from journeykit_engine import moment
from journeykit_engine.comparison import (
    Comparison,
    compile_comparison,
    identity,
    is_number,
    shown_value,
)
from journeykit_engine.facts import Facts, Predicate
from journeykit_engine.instance import Happened
from journeykit_engine.moment import RELATIONS, Dated

Aggregate = Literal["sum", "min", "max", "avg", "distinct"]


@dataclass(frozen=True, slots=True)
class EventCount:
    """`{"event", "op": "gte", "count": 1}`: how often it happened; both may be left out."""

    event: str
    op: str
    count: int
    scope: Scope


@dataclass(frozen=True, slots=True)
class EventValue:
    """`{"event", "aggregate": "sum", "property", "op", "value"}` over the numbers of a property.

    Sums and averages are exact in decimal (0.1 + 0.2 is 0.3). sum and distinct of nothing are 0;
    min, max and avg of nothing are missing. distinct counts texts, numbers, true and false.
    """

    event: str
    aggregate: Aggregate
    property: str
    op: str
    value: int | float
    scope: Scope


@dataclass(frozen=True, slots=True)
class EventTime:
    """`{"event", "aggregate": "last_at" | "first_at", "op", "value"}` with a date operator."""

    event: str
    aggregate: Literal["first_at", "last_at"]
    test: Dated
    scope: Scope


@dataclass(frozen=True, slots=True)
class PropertyTest:
    """One comparison of a property of an event."""

    property: str
    comparison: Comparison


@dataclass(frozen=True, slots=True)
class Scope:
    """Which events of a name count: those of a window `(now - within, now]`, those since the entry
    (the event that caused it left out), those whose properties pass every test of `where`."""

    within: str = ""
    since_entry: bool = False
    where: tuple[PropertyTest, ...] = ()


EventLeaf = EventCount | EventValue | EventTime


def event_predicate(leaf: EventLeaf) -> Predicate:
    """The leaf as a function of the facts, which never raises whatever the events carry."""
    match leaf:
        case EventCount():
            return _count_predicate(leaf)
        case EventValue():
            return _value_predicate(leaf)
        case EventTime():
            return _time_predicate(leaf)
        case _:
            assert_never(leaf)


def _count_predicate(leaf: EventCount) -> Predicate:
    name, relates, count = leaf.event, RELATIONS[leaf.op], leaf.count
    if leaf.scope == Scope():
        return lambda facts: relates(len(facts.person.events.get(name, ())), count)
    selected, none_holds = _selector(leaf), relates(0, count)

    def predicate(facts: Facts) -> bool:
        if name not in facts.person.events:  # most people, most of the time
            return none_holds
        return relates(len(selected(facts)), count)

    return predicate


def _value_predicate(leaf: EventValue) -> Predicate:
    selected, relates = _selector(leaf), RELATIONS[leaf.op]
    if leaf.aggregate in ("sum", "avg"):
        return lambda facts: _total_holds(leaf, selected(facts))

    def predicate(facts: Facts) -> bool:
        found = _found_value(leaf, selected(facts))
        return found is not None and relates(found, leaf.value)

    return predicate


def _found_value(leaf: EventValue, events: Sequence[Happened]) -> int | float | None:
    """The aggregate of those that need no sum."""
    if leaf.aggregate == "distinct":
        found = {identity(event.properties.get(leaf.property)) for event in events}
        return len(found - {None})
    numbers = _numbers(leaf.property, events)
    pick = min if leaf.aggregate == "min" else max
    return pick(numbers, default=None)


def _total_holds(leaf: EventValue, events: Sequence[Happened]) -> bool:
    """Sum against value; an average against value is the sum against value times the count, which
    needs no division and so stays exact."""
    numbers = _numbers(leaf.property, events)
    wanted = _decimal(leaf.value)
    if leaf.aggregate == "avg":
        wanted = EXACT.multiply(wanted, Decimal(len(numbers)))
        if not numbers:
            return False
    return RELATIONS[leaf.op](_total(numbers), wanted)


EXACT = Context(prec=700, Emax=999_999, Emin=-999_999, traps=[])
"""Wide enough for the sum of the largest and the smallest float (632 digits); never raises."""


def _numbers(name: str, events: Sequence[Happened]) -> list[int | float]:
    values = (event.properties.get(name) for event in events)
    return [value for value in values if value is not None and is_number(value)]


def _total(numbers: Sequence[int | float]) -> Decimal:
    total = Decimal()
    for number in numbers:
        total = EXACT.add(total, _decimal(number))
    return total


def _decimal(number: int | float) -> Decimal:
    """A number as it was written: the shortest decimal that reads as this float."""
    return Decimal(number) if isinstance(number, int) else Decimal(float.__repr__(number))


def _time_predicate(leaf: EventTime) -> Predicate:
    selected, passes = _selector(leaf), moment.compile_dated(leaf.test)

    def predicate(facts: Facts) -> bool:
        at = _time_of(leaf, selected(facts))
        return passes(at, facts.at, facts.account_zone)

    return predicate


def _time_of(leaf: EventTime, events: Sequence[Happened]) -> Instant | None:
    pick = max if leaf.aggregate == "last_at" else min
    return pick((event.at for event in events), default=None)


def _selector(leaf: EventLeaf) -> Callable[[Facts], Sequence[Happened]]:
    """The events of a person that the leaf's scope lets count, in the order of arrival."""
    name, scope = leaf.event, leaf.scope
    length = moment.window_length(scope.within) if scope.within else None
    passes = where_predicate(scope.where)

    def selected(facts: Facts) -> Sequence[Happened]:
        events = facts.person.events.get(name, ())
        if scope.since_entry:
            events = _since_entry(events, facts)
        if length is not None:
            now, none = facts.at, moment.NO_TIME
            events = [event for event in events if none <= now - event.at < length]
        return [event for event in events if passes(event.properties)] if scope.where else events

    return selected


def _since_entry(events: Sequence[Happened], facts: Facts) -> Sequence[Happened]:
    """Those of this pass; the event that entered somebody is never the answer to its own wait."""
    entered_at, entered_by = facts.entered_at, facts.entered_by
    if entered_at is None:
        return ()
    return [e for e in events if e.at >= entered_at and not (e.id and e.id == entered_by)]


def where_predicate(tests: Sequence[PropertyTest]) -> Callable[[Mapping[str, Any]], bool]:
    """True for properties that pass every test."""
    compiled = tuple((test.property, compile_comparison(test.comparison)) for test in tests)

    def passes(properties: Mapping[str, Any]) -> bool:
        for name, holds in compiled:  # noqa: SIM110 - twice as fast as all() over a generator
            if not holds(properties.get(name)):
                return False
        return True

    return passes


def event_changes(leaf: EventLeaf, facts: Facts) -> list[Instant]:
    """When the answer may turn by time passing, see `leaf_changes`."""
    turns = _window_changes(leaf, facts)
    if not isinstance(leaf, EventTime):
        return turns
    at = _time_of(leaf, _selector(leaf)(facts))
    return turns + moment.dated_changes(leaf.test, at, facts.at, facts.account_zone)


def _window_changes(leaf: EventLeaf, facts: Facts) -> list[Instant]:
    """When each event of the name enters its window (at once, unless it lies ahead) and leaves."""
    if not leaf.scope.within:
        return []
    length = moment.window_length(leaf.scope.within)
    times = [event.at for event in facts.person.events.get(leaf.event, ())]
    return times + [end for at in times for end in moment.shifted(at, length)]


def events_saw(leaf: EventLeaf, facts: Facts) -> dict[str, Any]:
    """The events that counted: how many, the first and last time, and the aggregate."""
    events = _selector(leaf)(facts)
    times = [event.at for event in events]
    saw: dict[str, Any] = {
        "count": len(events),
        "first_at": moment.shown_moment(min(times, default=None)),
        "last_at": moment.shown_moment(max(times, default=None)),
    }
    if isinstance(leaf, EventValue):
        saw["value"] = shown_value(_shown_aggregate(leaf, events))
    return saw


def _shown_aggregate(leaf: EventValue, events: Sequence[Happened]) -> object:
    """A sum or an average as the nearest float, or as a whole number where it is one."""
    if leaf.aggregate not in ("sum", "avg"):
        return _found_value(leaf, events)
    numbers = _numbers(leaf.property, events)
    if leaf.aggregate == "avg" and not numbers:
        return None
    total = _total(numbers)
    if leaf.aggregate == "avg":
        total = EXACT.divide(total, Decimal(len(numbers)))
    return int(total) if total == total.to_integral_value(context=EXACT) else float(total)
