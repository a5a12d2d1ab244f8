"""The segment language: one rule, true or false for every person.

A rule is `{}` (everybody), `{"all": […]}`, `{"any": […]}`, `{"none": […]}`, `{"not": rule}` or a
leaf; a definition is `{"root": rule}`. Every rule is total and two-valued: whatever a person
holds, it answers true or false, never raises, and `not` is its exact complement. `all []` is true,
`any []` false, `none []` true, and the order of rules does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, NamedTuple

from whenever import Instant

from journeykit_engine import moment
from journeykit_engine.comparison import LARGEST_INTEGER, NEGATIONS, Comparison
from journeykit_engine.facts import Facts as Facts
from journeykit_engine.facts import Predicate as Predicate
from journeykit_engine.facts import Snapshot as Snapshot
from journeykit_engine.history import (
    EventCount,
    EventTime,
    EventValue,
    PropertyTest,
    Scope,
    where_predicate,
)
from journeykit_engine.instance import NOTHING
from journeykit_engine.leaf import (
    InJourney,
    InSegment,
    Leaf,
    Local,
    Trait,
    leaf_changes,
    leaf_definition,
    leaf_predicate,
    leaf_saw,
    read_leaf,
    read_where,
    reads_time,
)
from journeykit_engine.moment import Dated
from journeykit_engine.rule_faults import MAX_DEPTH as MAX_DEPTH
from journeykit_engine.rule_faults import MAX_LEAVES as MAX_LEAVES
from journeykit_engine.rule_faults import Fault as Fault
from journeykit_engine.rule_faults import faults as faults
from journeykit_engine.rule_faults import property_faults as property_faults
from journeykit_engine.strict_json import write_json


@dataclass(frozen=True, slots=True)
class Everybody:
    """`{}`: true for everybody. As the exit criteria of a journey it means none, see `is_empty`."""


@dataclass(frozen=True, slots=True)
class All:
    """True when every rule inside is."""

    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """True when at least one rule inside is."""

    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class NoneOf:
    """True when no rule inside is."""

    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """The complement of the rule inside."""

    rule: Rule


Rule = Everybody | All | AnyOf | NoneOf | Not | Leaf
Definition = Mapping[str, Any]


class BadRule(ValueError):
    """A definition that is no rule; `faults` holds every reason, the message tells the first."""

    def __init__(self, found: Sequence[Fault]) -> None:
        self.faults = tuple(found)
        first = self.faults[0]
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        super().__init__(f"{first.path or 'definition'}: {first.message} {first.fix}{more}")


def parse(definition: object) -> Rule:
    """The rule of a sound definition; raises BadRule with every fault of an unsound one.

    >>> parse({"root": {"not": {"segment": 12}}})
    Not(rule=InSegment(segment=12))
    """
    found = faults(definition)
    if found:
        raise BadRule(found)
    assert isinstance(definition, Mapping)
    return _read(definition["root"])


def _read(body: Mapping[str, Any]) -> Rule:
    if not body:
        return Everybody()
    if "not" in body:
        return Not(_read(body["not"]))
    for kind, group in (("all", All), ("any", AnyOf), ("none", NoneOf)):
        if kind in body:
            return group(tuple(map(_read, body[kind])))
    return read_leaf(body)


def to_definition(rule: Rule) -> dict[str, Any]:
    """The rule as JSON; parsing that gives an equal rule back."""
    return {"root": _written(rule)}


def _written(rule: Rule) -> dict[str, Any]:
    match rule:
        case Everybody():
            return {}
        case All(rules):
            return {"all": [_written(inner) for inner in rules]}
        case AnyOf(rules):
            return {"any": [_written(inner) for inner in rules]}
        case NoneOf(rules):
            return {"none": [_written(inner) for inner in rules]}
        case Not(inner):
            return {"not": _written(inner)}
        case _:
            return leaf_definition(rule)


def is_empty(definition: object) -> bool:
    """True where no rule is given at all: None, `{}`, `{"root": null}`, `{"root": {}}`.

    Exit criteria of this kind exit nobody, though the same rule anywhere else matches everybody.
    """
    return not definition or (isinstance(definition, Mapping) and not definition.get("root"))


def compile_rule(rule: Rule) -> Predicate:
    """The rule as one function of the facts: what does not depend on them is done once, here."""
    match rule:
        case Everybody():
            return lambda facts: True
        case All(rules):
            return _every(tuple(map(compile_rule, rules)))
        case AnyOf(rules):
            return _some(tuple(map(compile_rule, rules)))
        case NoneOf(rules):
            return _complement(_some(tuple(map(compile_rule, rules))))
        case Not(inner):
            return _complement(compile_rule(inner))
        case _:
            return leaf_predicate(rule)


def _every(predicates: tuple[Predicate, ...]) -> Predicate:
    def every(facts: Facts) -> bool:
        for holds in predicates:  # noqa: SIM110 - twice as fast as all() over a generator
            if not holds(facts):
                return False
        return True

    return every


def _some(predicates: tuple[Predicate, ...]) -> Predicate:
    def some(facts: Facts) -> bool:
        for holds in predicates:  # noqa: SIM110 - twice as fast as any() over a generator
            if holds(facts):
                return True
        return False

    return some


def _complement(holds: Predicate) -> Predicate:
    return lambda facts: not holds(facts)


def matches(rule: Rule | Definition, facts: Facts) -> bool:
    """One look at one person; for many looks compile once. Raises BadRule for a bad definition."""
    return compile_rule(_rule_of(rule))(facts)


def _rule_of(rule: Rule | Definition) -> Rule:
    return parse(rule) if isinstance(rule, Mapping) else rule


def equal(one: object, other: object) -> bool:
    """Whether two JSON values are the same: types matter (true is not 1, "10" is not 10), 1 and
    1.0 are one number, the order of an object's keys says nothing.

    >>> equal({"a": [1, 2.0]}, {"a": [1.0, 2]}), equal(True, 1)
    (True, False)
    """
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


def compile_filter(tests: Sequence[Mapping[str, Any]]) -> Callable[[Mapping[str, Any]], bool]:
    """A list of `{"property", "op", "value"}` as a function of an event's properties: all must
    hold, an empty list lets everything pass. Raises BadRule for an unsound list.

    >>> compile_filter([{"property": "amount", "op": "gt", "value": 50}])({"amount": 51})
    True
    """
    found = property_faults(tests, "filter")
    if found:
        raise BadRule(found)
    return where_predicate(read_where(tests))


class Explained(NamedTuple):
    """A rule's answer and why: `rule` is the group's name or the leaf itself, `saw` what a leaf
    looked at, `inner` the rules inside, every one of them answered."""

    rule: str | dict[str, Any]
    result: bool
    saw: Mapping[str, Any] = NOTHING
    inner: tuple[Explained, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """`{"rule", "result"}` with `saw` for a leaf or `rules` for a group, ready for JSON."""
        body: dict[str, Any] = {"rule": self.rule, "result": self.result}
        if isinstance(self.rule, dict):
            return body | {"saw": dict(self.saw)}
        return body | {"rules": [inner.to_dict() for inner in self.inner]}


def explain(rule: Rule | Definition, facts: Facts) -> Explained:
    """The whole tree with each rule's answer; nothing is skipped once the answer is known."""
    return _explained(_rule_of(rule), facts)


def _explained(rule: Rule, facts: Facts) -> Explained:
    result = compile_rule(rule)(facts)
    match rule:
        case Everybody():
            return Explained("everybody", result)
        case All(rules):
            return Explained("all", result, inner=_each_explained(rules, facts))
        case AnyOf(rules):
            return Explained("any", result, inner=_each_explained(rules, facts))
        case NoneOf(rules):
            return Explained("none", result, inner=_each_explained(rules, facts))
        case Not(inner):
            return Explained("not", result, inner=_each_explained([inner], facts))
        case _:
            return Explained(leaf_definition(rule), result, leaf_saw(rule, facts))


def _each_explained(rules: Iterable[Rule], facts: Facts) -> tuple[Explained, ...]:
    return tuple(_explained(rule, facts) for rule in rules)


def leaves(rule: Rule) -> Iterator[Leaf]:
    """Every leaf of a rule, in document order; `{}` is none."""
    match rule:
        case Everybody():
            return
        case All(rules) | AnyOf(rules) | NoneOf(rules):
            for inner in rules:
                yield from leaves(inner)
        case Not(inner):
            yield from leaves(inner)
        case _:
            yield rule


class References(NamedTuple):
    """What a rule reads. `reads_time` says that its answer can change by time passing alone."""

    traits: frozenset[str]
    events: frozenset[str]
    segments: frozenset[int]
    journeys: frozenset[int]
    reads_time: bool


def references(rule: Rule) -> References:
    """The names and numbers that must be loaded before the rule can be asked."""
    found = tuple(leaves(rule))
    events = (EventCount, EventValue, EventTime)
    return References(
        frozenset(leaf.trait for leaf in found if isinstance(leaf, Trait)),
        frozenset(leaf.event for leaf in found if isinstance(leaf, events)),
        frozenset(leaf.segment for leaf in found if isinstance(leaf, InSegment)),
        frozenset(leaf.journey for leaf in found if isinstance(leaf, InJourney)),
        any(map(reads_time, found)),
    )


def next_change(rule: Rule, facts: Facts) -> Instant | None:
    """The first instant after now at which the answer could be another if nothing new arrives.

    It may be early, never late: None means that no passing of time changes the answer.
    """
    turns = (at for leaf in leaves(rule) for at in leaf_changes(leaf, facts))
    return min((at for at in turns if at > facts.at), default=None)


def fingerprint(rule: Rule) -> str:
    """SHA-256 of the canonical form, in hex: equal for rules that ask the same in another order."""
    return sha256(canonical(rule).encode("utf-8", "surrogatepass")).hexdigest()


def canonical(rule: Rule) -> str:
    """The rule as JSON text in one agreed form, itself a definition of the same meaning.

    Rules inside a group are sorted and kept once, groups of one kind joined, groups of one rule
    and double negations removed, `none` and the negative operators written with `not`, windows in
    the largest unit that divides them, whole floats as integers. Equal texts mean equal rules; two
    rules that happen to agree on everybody may still differ.

    >>> canonical(parse({"root": {"all": [{"none": [{"segment": 2}]}, {}]}}))
    '{"root":{"not":{"segment":2}}}'
    """
    return write_json(to_definition(_normal(rule)))


NOBODY = AnyOf(())


def _normal(rule: Rule) -> Rule:
    match rule:
        case Everybody():
            return rule
        case All(rules):
            return _normal_all(_joined(map(_normal, rules), All))
        case AnyOf(rules):
            return _normal_any(_joined(map(_normal, rules), AnyOf))
        case NoneOf(rules):
            return _negated(_normal(AnyOf(rules)))
        case Not(inner):
            return _negated(_normal(inner))
        case _:
            return _normal_leaf(rule)


def _joined(rules: Iterable[Rule], kind: type[All] | type[AnyOf]) -> tuple[Rule, ...]:
    """The rules with groups of the same kind opened, sorted, each kept once."""
    by_text: dict[str, Rule] = {}
    for rule in rules:
        opened = rule.rules if isinstance(rule, (All, AnyOf)) and type(rule) is kind else (rule,)
        by_text |= {write_json(_written(inner)): inner for inner in opened}
    return tuple(by_text[text] for text in sorted(by_text))


def _normal_all(rules: tuple[Rule, ...]) -> Rule:
    kept = tuple(rule for rule in rules if rule != Everybody())
    if NOBODY in kept:
        return NOBODY
    if not kept:
        return Everybody()
    return kept[0] if len(kept) == 1 else All(kept)


def _normal_any(rules: tuple[Rule, ...]) -> Rule:
    if Everybody() in rules:
        return Everybody()
    kept = tuple(rule for rule in rules if rule != NOBODY)
    return kept[0] if len(kept) == 1 else AnyOf(kept)


def _negated(rule: Rule) -> Rule:
    match rule:
        case Not(inner):
            return inner
        case Everybody():
            return NOBODY
        case _:
            return Everybody() if rule == NOBODY else Not(rule)


def _normal_leaf(leaf: Leaf) -> Rule:
    match leaf:
        case Trait() | Local():
            return _normal_test(leaf)
        case EventCount():
            return replace(leaf, scope=_normal_scope(leaf.scope))
        case EventValue():
            return replace(leaf, value=_normal_value(leaf.value), scope=_normal_scope(leaf.scope))
        case EventTime():
            return replace(leaf, test=_normal_dated(leaf.test), scope=_normal_scope(leaf.scope))
        case _:
            return leaf


def _normal_test(leaf: Trait | Local) -> Rule:
    test = leaf.test
    if isinstance(test, Dated):
        return Trait(leaf.trait, _normal_dated(test)) if isinstance(leaf, Trait) else leaf
    positive = replace(_normal_comparison(test), op=NEGATIONS.get(test.op, test.op))
    kept = replace(leaf, test=positive)
    return Not(kept) if test.op in NEGATIONS else kept


def _normal_dated(dated: Dated) -> Dated:
    if moment.OPERATORS[dated.op] != "duration":
        return dated
    return replace(dated, value=_normal_window(str(dated.value)))


def _normal_scope(scope: Scope) -> Scope:
    tests = (PropertyTest(t.property, _normal_comparison(t.comparison)) for t in scope.where)
    by_text = {repr(test): test for test in tests}
    where = tuple(by_text[text] for text in sorted(by_text))
    return Scope(_normal_window(scope.within), scope.since_entry, where)


def _normal_window(text: str) -> str:
    """7d and 168h are one window, 1w."""
    if not text:
        return text
    minutes = moment.window_minutes(text)
    units = (("w", 7 * 24 * 60), ("d", 24 * 60), ("h", 60), ("m", 1))
    return next(f"{minutes // size}{unit}" for unit, size in units if minutes % size == 0)


def _normal_comparison(test: Comparison) -> Comparison:
    """Whole floats become integers; a list that is a set is sorted and holds each value once."""
    if not isinstance(test.value, tuple):
        return Comparison(test.op, _normal_value(test.value))
    values = tuple(map(_normal_value, test.value))
    if test.op == "between":
        return Comparison(test.op, values)
    by_text = {write_json(value): value for value in values}
    return Comparison(test.op, tuple(by_text[text] for text in sorted(by_text)))


def _normal_value(value: Any) -> Any:
    whole = isinstance(value, float) and value.is_integer() and abs(value) < LARGEST_INTEGER
    return int(value) if whole else value
