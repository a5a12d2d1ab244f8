"""A rule as the code a person would write for it.

What the operators cannot say exactly (a draft's faulty rule, a default that the document spells
out or leaves out) is shown as the document itself, so the code always gives the same rule back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, assert_never

from journeykit_engine import rule
from journeykit_engine.comparison import Comparison
from journeykit_engine.history import EventCount, EventTime, EventValue, Scope
from journeykit_engine.leaf import Bucket, InJourney, InSegment, Leaf, Local, Trait, read_where
from journeykit_engine.moment import Dated

SIGNS = {"eq": "==", "neq": "!=", "gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
METHODS = {"in": "is_in", "not_exists": "missing"}  # every other operator is its own method
SIZES = {"size_gt": ">", "size_eq": "==", "size_lt": "<"}
COUNTS = {
    "gte": "at_least",
    "lte": "at_most",
    "eq": "exactly",
    "gt": "more_than",
    "lt": "fewer_than",
}


class _Code(NamedTuple):
    """A piece of code; `loose` where an operator beside it would take it apart."""

    text: str
    loose: bool = False

    @property
    def tight(self) -> str:
        return f"({self.text})" if self.loose else self.text


def rule_code(definition: Mapping[str, Any]) -> str:
    """The definition as rules, or as a plain dict where no rule says exactly this.

    >>> rule_code({"root": {"all": [{"trait": "age", "op": "gt", "value": 17}, {"segment": 4}]}})
    '(jk.trait("age") > 17) & jk.in_segment(4)'
    """
    if rule.faults(definition):
        return literal(definition)
    parsed = rule.parse(definition)
    if not _is_same(rule.to_definition(parsed), definition):
        return literal(definition)
    return _code(parsed).text


def filter_code(comparisons: Sequence[Mapping[str, Any]]) -> str:
    """A filter as comparisons of properties, or as a plain list where none say exactly this.

    >>> filter_code([{"property": "value", "op": "gt", "value": 20}])
    'jk.prop("value") > 20'
    """
    if not comparisons or rule.property_faults(list(comparisons), "where"):
        return literal(list(comparisons))
    if any("value" in test and test["value"] is None for test in comparisons):
        return literal(list(comparisons))
    codes = [
        _tested(f"jk.prop({literal(test.property)})", test.comparison)
        for test in read_where(comparisons)
    ]
    return codes[0].text if len(codes) == 1 else " & ".join(code.tight for code in codes)


def literal(value: object) -> str:
    """A JSON value as Python, texts in double quotes where that needs no escape."""
    match value:
        case str():
            shows = repr(value)
            plain = shows[0] == "'" and '"' not in shows and "\\" not in shows
            return f'"{value}"' if plain else shows
        case Mapping():
            items = (f"{literal(key)}: {literal(item)}" for key, item in value.items())
            return "{" + ", ".join(items) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(literal, value)) + "]"
        case _:
            return repr(value)


def _is_same(one: object, other: object) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _code(tree: rule.Rule) -> _Code:
    match tree:
        case rule.Everybody():
            return _Code("jk.everybody()")
        case rule.All(rules):
            return _group_code(rules, rule.All, "&", "all_of")
        case rule.AnyOf(rules):
            return _group_code(rules, rule.AnyOf, "|", "any_of")
        case rule.NoneOf(rules):
            return _Code(f"jk.none_of({_listed(rules)})")
        case rule.Not(inner):
            return _Code(f"~{_code(inner).tight}")
        case _:
            return _leaf_code(tree)


def _group_code(
    rules: Sequence[rule.Rule], kind: type[rule.All] | type[rule.AnyOf], sign: str, function: str
) -> _Code:
    """Joined by the sign, except where a group of its own kind inside would be opened by it."""
    if len(rules) < 2 or any(isinstance(inner, kind) for inner in rules):
        return _Code(f"jk.{function}({_listed(rules)})")
    return _Code(f" {sign} ".join(_code(inner).tight for inner in rules), loose=True)


def _listed(rules: Sequence[rule.Rule]) -> str:
    return ", ".join(_code(inner).text for inner in rules)


def _leaf_code(leaf: Leaf) -> _Code:
    match leaf:
        case Trait():
            return _tested(f"jk.trait({literal(leaf.trait)})", leaf.test)
        case EventCount():
            return _Code(_did(leaf.event, _count(leaf), leaf.scope))
        case EventValue():
            total = f"{_did(leaf.event, '', leaf.scope)}.{leaf.aggregate}({literal(leaf.property)})"
            return _Code(f"{total} {SIGNS[leaf.op]} {leaf.value!r}", loose=True)
        case EventTime():
            which = leaf.aggregate.removesuffix("_at")
            return _tested(f"jk.{which}({_arguments(leaf.event, '', leaf.scope)})", leaf.test)
        case InSegment():
            return _Code(f"jk.in_segment({leaf.segment})")
        case InJourney():
            return _Code(f"jk.in_journey({_journey_arguments(leaf)})")
        case Bucket():
            return _Code(f"jk.bucket({literal(leaf.salt)}, {leaf.first}, {leaf.end})")
        case Local():
            return _tested(f"jk.local_{leaf.part}()", leaf.test)
        case _:
            assert_never(leaf)


def _tested(subject: str, test: Comparison | Dated) -> _Code:
    if isinstance(test, Dated):
        return _Code(f"{subject}.{test.op}({_dated_arguments(test)})")
    if test.op in SIGNS:
        return _Code(f"{subject} {SIGNS[test.op]} {literal(test.value)}", loose=True)
    if test.op in SIZES:
        return _Code(f"{subject}.size() {SIZES[test.op]} {test.value!r}", loose=True)
    method = METHODS.get(test.op, test.op)
    if test.op == "between" and isinstance(test.value, tuple):
        return _Code(f"{subject}.between({', '.join(map(literal, test.value))})")
    return _Code(f"{subject}.{method}({'' if test.value is None else literal(test.value)})")


def _dated_arguments(test: Dated) -> str:
    annual = ", annual=True" if test.annual else ""
    compare = "" if test.compare == "eq" else f", compare={literal(test.compare)}"
    return literal(test.value) + annual + compare


def _count(leaf: EventCount) -> str:
    once = (leaf.op, leaf.count) == ("gte", 1)
    return "" if once else f", {COUNTS[leaf.op]}={leaf.count}"


def _did(event: str, count: str, scope: Scope) -> str:
    return f"jk.did({_arguments(event, count, scope)})"


def _arguments(event: str, count: str, scope: Scope) -> str:
    text = literal(event) + count
    if scope.within:
        text += f", within={literal(scope.within)}"
    if scope.since_entry:
        text += ", since_entry=True"
    if scope.where:
        tests = [_tested(f"jk.prop({literal(t.property)})", t.comparison) for t in scope.where]
        joined = tests[0].text if len(tests) == 1 else " & ".join(test.tight for test in tests)
        text += f", where={joined}"
    return text


def _journey_arguments(leaf: InJourney) -> str:
    asked = {"status": leaf.status, "node": leaf.node, "variant": leaf.variant}
    texts = [
        str(leaf.journey),
        *(f"{name}={literal(text)}" for name, text in asked.items() if text),
    ]
    return ", ".join(texts if leaf.holdout is None else [*texts, f"holdout={leaf.holdout}"])
