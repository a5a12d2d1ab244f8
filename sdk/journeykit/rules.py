"""Rules that read like pandas: who enters, who leaves, who takes which way.

`trait("plan") == "premium"` is a rule, and so is `did("purchase", at_least=2, within="30d")`.
`&`, `|` and `~` combine rules; `and`, `or`, `not` and `1 < x < 2` cannot, and say so. A rule is
never changed: each operator gives a new one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, TypeAlias

from journeykit.mistake import JourneyError, plain, text_of
from journeykit.subject import Dated, Measured, Ordered, Subject, Valued, quoted
from journeykit_engine import rule as engine_rule
from journeykit_engine.comparison import shown

if TYPE_CHECKING:
    from journeykit_engine.instance import Person
    from journeykit_engine.rule import Explained

Body = dict[str, Any]


class Rule:
    """True or false for every person. `definition` is the document, `{"root": …}`.

    >>> premium = (trait("plan") == "premium") & ~in_segment(4)
    >>> premium.definition["root"]["all"][1]
    {'not': {'segment': 4}}
    """

    __slots__ = ("_body",)

    def __init__(self, body: Body) -> None:
        self._body = body

    @property
    def definition(self) -> Body:
        """The rule as `{"root": rule}`, ready for JSON; a copy."""
        return {"root": deepcopy(self._body)}

    def explain(
        self, person: Person | Mapping[str, Any] | str, at: object, account_timezone: str = "UTC"
    ) -> Explained:
        """Whether the rule holds for one person at a moment, and what each part of it saw.

        `person` and `at` are as `Journey.simulate` takes them. `result` is the answer, `to_dict()`
        the whole tree as plain values.

        >>> sara = {"user_id": "sara", "traits": {"plan": "free"}}
        >>> (trait("plan") == "premium").explain(sara, "2026-06-01T10:00:00Z").result
        False
        """
        from journeykit.given import moment_of, person_of
        from journeykit_engine.rule import Snapshot, explain
        from journeykit_engine.timing import first_zone

        found = person_of(person)
        zone, _ = first_zone((found.timezone, account_timezone))
        facts = Snapshot(found, moment_of("at", at), account_timezone, zone)
        return explain(self.definition, facts)

    def __and__(self, other: object) -> Rule:
        return Rule({"all": [*self._opened("all"), *_rule("&", other)._opened("all")]})

    def __or__(self, other: object) -> Rule:
        return Rule({"any": [*self._opened("any"), *_rule("|", other)._opened("any")]})

    def __invert__(self) -> Rule:
        return Rule({"not": self._body})

    def __rand__(self, other: object) -> Rule:
        return _rule("&", other) & self

    def __ror__(self, other: object) -> Rule:
        return _rule("|", other) | self

    def __bool__(self) -> bool:
        raise _no_truth("A rule")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rule) and _text(self._body) == _text(other._body)

    def __hash__(self) -> int:
        return hash(_text(self._body))

    def __repr__(self) -> str:
        from journeykit.rule_source import rule_code

        return rule_code(self.definition)

    def _opened(self, kind: str) -> list[Body]:
        """The rules of a group of this kind, so that a & b & c is one list of three."""
        body = self._body
        return list(body[kind]) if kind in body else [body]


class Filter:
    """Comparisons of an event's properties that must all hold; only `&` joins them.

    >>> ((prop("value") > 20) & (prop("currency") == "EUR")).comparisons[1]
    {'property': 'currency', 'op': 'eq', 'value': 'EUR'}
    """

    __slots__ = ("_comparisons",)

    def __init__(self, comparisons: Sequence[Body]) -> None:
        self._comparisons = tuple(comparisons)

    @property
    def comparisons(self) -> list[Body]:
        """`[{"property", "op", "value"}, …]`, ready for JSON; a copy."""
        return deepcopy(list(self._comparisons))

    def __and__(self, other: object) -> Filter:
        if not isinstance(other, Filter):
            raise _not_joinable("&", "a comparison of a property", other)
        return Filter((*self._comparisons, *other._comparisons))

    def __rand__(self, other: object) -> Filter:
        raise _not_joinable("&", "a comparison of a property", other)

    def __or__(self, other: object) -> Filter:
        raise _only_and("|")

    __ror__ = __or__

    def __invert__(self) -> Filter:
        raise _only_and("~")

    def __bool__(self) -> bool:
        raise _no_truth("A comparison of a property")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Filter) and _text(self.comparisons) == _text(other.comparisons)

    def __hash__(self) -> int:
        return hash(_text(self.comparisons))

    def __repr__(self) -> str:
        from journeykit.rule_source import filter_code

        return filter_code(self.comparisons)


Where: TypeAlias = "Filter | Sequence[Mapping[str, Any]] | None"
"""What `where=` takes; a list is a filter as the document writes it, kept as it is."""


class _LeafSubject(Subject[Rule]):
    __slots__ = ()

    def _asked(self, body: Body) -> Rule:
        return _leaf(self._name, body)


class Trait(_LeafSubject, Measured[Rule], Dated[Rule]):
    """A trait of the person, to be compared. A missing or differently typed value fails every
    positive comparison, so it passes the negative ones."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]


class Local(_LeafSubject, Valued[Rule]):
    """A part of the recipient's local time, to be compared."""

    __slots__ = ()
    __hash__ = None


class Total(_LeafSubject, Ordered[Rule]):
    """A number made of a property of many events, to be compared with a number."""

    __slots__ = ()
    __hash__ = None


class Moment(_LeafSubject, Dated[Rule]):
    """The time of the first or last event, to be asked with a date operator."""

    __slots__ = ()


class Property(Measured[Filter]):
    """A property of an event, to be compared, for `where=`."""

    __slots__ = ()
    __hash__ = None

    def _asked(self, body: Body) -> Filter:
        _refuse(self._name, engine_rule.property_faults([body], "where"))
        return Filter((body,))


class Did(Rule):
    """How often an event happened; `.sum("amount") > 100` asks for more than the count."""

    __slots__ = ("_counted", "_event", "_scope")

    def __init__(self, body: Body, event: str, scope: Body, counted: bool) -> None:
        super().__init__(body)
        self._event = event
        self._scope = scope
        self._counted = counted

    def sum(self, name: str) -> Total:
        """The sum of a property; 0 where nothing happened."""
        return self._total("sum", name)

    def min(self, name: str) -> Total:
        """The smallest value of a property."""
        return self._total("min", name)

    def max(self, name: str) -> Total:
        """The largest value of a property."""
        return self._total("max", name)

    def avg(self, name: str) -> Total:
        """The average of a property."""
        return self._total("avg", name)

    def distinct(self, name: str) -> Total:
        """How many different values a property had."""
        return self._total("distinct", name)

    def _total(self, aggregate: str, name: str) -> Total:
        shows = f"did({quoted(self._event)}).{aggregate}({quoted(name)})"
        if self._counted:
            raise JourneyError(
                "TWO_QUESTIONS",
                f"{shows} follows a count, which asks something else.",
                "Write two rules and join them with &.",
            )
        body = {"event": self._event, "aggregate": aggregate, "property": name}
        return Total(shows, {**body, **self._scope})


def trait(name: str) -> Trait:
    """A trait of the person, to be compared: `trait("plan") == "premium"`."""
    return Trait(f"trait({quoted(name)})", {"trait": text_of("The name of a trait", name)})


def prop(name: str) -> Property:
    """A property of the event, for `where=`: `prop("value") > 20`."""
    return Property(f"prop({quoted(name)})", {"property": text_of("The name of a property", name)})


def did(
    event: str,
    *,
    at_least: int | None = None,
    at_most: int | None = None,
    exactly: int | None = None,
    more_than: int | None = None,
    fewer_than: int | None = None,
    within: str | None = None,
    since_entry: bool = False,
    where: Where = None,
) -> Did:
    """The event happened, once at least unless a count is given.

    `within="30d"` looks at the last 30 days, `since_entry=True` at this pass through the journey,
    `where` at the events whose properties match.

    >>> did("purchase", at_least=2, within="30d").definition["root"]["count"]
    2
    """
    given = {"gte": at_least, "lte": at_most, "eq": exactly, "gt": more_than, "lt": fewer_than}
    counts = {op: plain(count) for op, count in given.items() if count is not None}
    shows, scope = f"did({quoted(event)})", _scope(within, since_entry, where)
    asked = [
        {"event": event, "op": op, "count": count, **scope}
        for op, count in (counts or {"gte": 1}).items()
    ]
    for body in asked:
        _leaf(shows, body)
    return Did(asked[0] if len(asked) == 1 else {"all": asked}, event, scope, bool(counts))


def last(
    event: str, *, within: str | None = None, since_entry: bool = False, where: Where = None
) -> Moment:
    """The last time of an event: `last("purchase").before_last("30d")`."""
    return _moment_of("last", event, _scope(within, since_entry, where))


def first(
    event: str, *, within: str | None = None, since_entry: bool = False, where: Where = None
) -> Moment:
    """The first time of an event: `first("purchase").within_last("7d")`."""
    return _moment_of("first", event, _scope(within, since_entry, where))


def in_segment(segment: int) -> Rule:
    """A member of the segment with this number."""
    number = plain(segment)
    return _leaf(f"in_segment({shown(number)})", {"segment": number})


def in_journey(
    journey: int,
    *,
    status: str | None = None,
    node: str | None = None,
    variant: str | None = None,
    holdout: bool | None = None,
) -> Rule:
    """Has a pass through another journey, the latest of which shows all that is asked."""
    asked = {"status": status, "node": node, "variant": variant, "holdout": holdout}
    known = {name: value for name, value in asked.items() if value is not None}
    number = plain(journey)
    return _leaf(f"in_journey({shown(number)})", {"journey": number, **known})


def bucket(salt: str, start: int, end: int) -> Rule:
    """A fixed share of people in basis points: from `start`, inside, to `end`, not inside.

    >>> bucket("pilot", 0, 2500).definition
    {'root': {'bucket': {'salt': 'pilot', 'from': 0, 'to': 2500}}}
    """
    body = {"salt": salt, "from": plain(start), "to": plain(end)}
    return _leaf(f"bucket({quoted(salt)})", {"bucket": body})


def local_hour() -> Local:
    """The hour (0 to 23) on the recipient's clock."""
    return Local("local_hour()", {"local": "hour"})


def local_weekday() -> Local:
    """The recipient's weekday, "mon" to "sun"."""
    return Local("local_weekday()", {"local": "weekday"})


def local_month() -> Local:
    """The recipient's month, 1 to 12."""
    return Local("local_month()", {"local": "month"})


def everybody() -> Rule:
    """True for every person."""
    return Rule({})


def all_of(*rules: Rule) -> Rule:
    """Every rule holds; with none given, true."""
    return Rule({"all": [_rule("all_of", rule)._body for rule in rules]})


def any_of(*rules: Rule) -> Rule:
    """At least one rule holds; with none given, false."""
    return Rule({"any": [_rule("any_of", rule)._body for rule in rules]})


def none_of(*rules: Rule) -> Rule:
    """No rule holds; with none given, true."""
    return Rule({"none": [_rule("none_of", rule)._body for rule in rules]})


def definition_of(where: str, rule: object) -> Body:
    """The document of a rule. A mapping is one already: it is kept as it is, and `validate` says
    what is wrong with it."""
    if isinstance(rule, Rule):
        if faults := engine_rule.faults(rule.definition):
            _refuse(where, faults)
        return rule.definition
    if isinstance(rule, Mapping):
        return deepcopy(dict(rule))
    raise _not_joinable(where, "a rule", rule)


def comparisons_of(where: Where) -> list[Body]:
    """The comparisons of what `where=` was given."""
    if where is None:
        return []
    if isinstance(where, Filter):
        return where.comparisons
    if isinstance(where, (list, tuple)) and all(isinstance(item, Mapping) for item in where):
        return deepcopy([dict(item) for item in where])
    raise _not_joinable("where=", "a comparison of a property", where)


def _moment_of(which: str, event: str, scope: Body) -> Moment:
    name = text_of("The name of an event", event)
    body = {"event": name, "aggregate": f"{which}_at", **scope}
    return Moment(f"{which}({quoted(event)})", body)


def _scope(within: str | None, since_entry: bool, where: Where) -> Body:
    scope: Body = {} if within is None else {"within": within}
    if since_entry:
        scope["since"] = "entry"
    comparisons = comparisons_of(where)
    return {**scope, "where": comparisons} if comparisons else scope


def _leaf(name: str, body: Body) -> Rule:
    _refuse(name, engine_rule.faults({"root": body}))
    return Rule(body)


def _refuse(name: str, faults: Sequence[engine_rule.Fault]) -> None:
    if faults:
        first_fault = faults[0]
        raise JourneyError("BAD_RULE", f"{name}: {first_fault.message}", first_fault.fix)


def _rule(where: str, given: object) -> Rule:
    if not isinstance(given, Rule):
        raise _not_joinable(where, "a rule", given)
    return given


def _not_joinable(where: str, wanted: str, given: object) -> JourneyError:
    shows = repr(given) if isinstance(given, (Subject, Rule, Filter)) else shown(given)
    example = 'trait("plan") == "premium"' if wanted == "a rule" else 'prop("value") > 20'
    fix = f"Write for example ({example})."
    return JourneyError("WRONG_TYPE", f"{where} takes {wanted}, not {shows}.", fix)


def _only_and(operator: str) -> JourneyError:
    return JourneyError(
        "ONLY_AND",
        f"Comparisons of properties cannot be joined with {operator}: all of them must hold.",
        "Join them with &, use .is_in([…]) or !=, or write a rule with did(…, where=…) for each.",
    )


def _no_truth(what: str) -> JourneyError:
    return JourneyError(
        "NO_TRUTH",
        f'{what} is not true or false until a person is asked, so "and", "or", "not", "if" and '
        "1 < x < 2 cannot use it.",
        "Join with &, | and ~, each comparison between parentheses; for a range use "
        ".between(low, high).",
    )


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


__all__ = [
    "Filter",
    "Rule",
    "all_of",
    "any_of",
    "bucket",
    "did",
    "everybody",
    "first",
    "in_journey",
    "in_segment",
    "last",
    "local_hour",
    "local_month",
    "local_weekday",
    "none_of",
    "prop",
    "trait",
]
