"""The segment language: what each leaf means, and the laws that hold for every rule and person."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from whenever import Instant, TimeDelta

from journeykit_engine import comparison, moment, rule
from journeykit_engine.instance import Happened, Pass, Person
from journeykit_engine.rule import Snapshot

NOW = Instant("2026-06-01T10:00:00Z")  # a Monday, 13:30 in Tehran
TEHRAN = "Asia/Tehran"


def facts(
    traits: Mapping[str, Any] | None = None, *events: tuple[str, Happened], **more: Any
) -> Snapshot:
    history: dict[str, list[Happened]] = {}
    for name, happened in events:
        history.setdefault(name, []).append(happened)
    person = Person("u1", traits or {}, events=history, **more)
    return Snapshot(person, NOW, TEHRAN, TEHRAN)


def happened(ago: str, amount: object = None, id: str = "") -> tuple[str, Happened]:
    """A purchase so long ago, `-1h` being one to come."""
    properties = {} if amount is None else {"amount": amount}
    length = moment.window_length(ago.lstrip("-"))
    at = NOW + length if ago.startswith("-") else NOW - length
    return "purchase", Happened(at, properties, id)


def holds(leaf: Mapping[str, Any], of: Snapshot) -> bool:
    return rule.matches({"root": leaf}, of)


# Values


@pytest.mark.parametrize(
    ("op", "value", "true_for", "false_for"),
    [
        ("eq", "pro", ["pro"], ["Pro", "", None, 1, ["pro"]]),
        ("eq", 10, [10, 10.0], ["10", 11, True, None, math.nan]),
        ("eq", 1, [1, 1.0], [True, "1"]),
        ("eq", True, [True], [1, 1.0, "true", None]),
        ("neq", 10, ["10", None, True, math.nan, {}], [10, 10.0]),
        ("in", ["a", 1], ["a", 1, 1.0], [True, "1", None, [], {}]),
        ("not_in", ["a", 1], [True, "1", None, []], ["a", 1.0]),
        ("gt", 5, [6, 5.5, 2**70], [5, "6", True, None, math.inf, math.nan]),
        ("gte", 18, [18, 100], [8, "18", None]),
        ("lt", 5, [4, -(2**70)], [5, None, False, -math.inf]),
        ("lte", 5, [5, 5.0], [5.1, "5"]),
        ("between", [18, 65], [18, 40, 65], [17.9, 66, "40", None]),
        ("exists", None, [0, False, "", [], {}], [None, math.nan]),
        ("not_exists", None, [None, math.inf], [0, False, ""]),
        ("contains", "b", ["abc"], ["ABC", "", None, ["b"], 5]),
        ("not_contains", "b", ["ac", None, ["b"]], ["abc"]),
        ("starts_with", "ab", ["abc"], ["cab", None]),
        ("ends_with", "bc", ["abc"], ["bca", None]),
        ("is_true", None, [True], [1, "true", None]),
        ("is_false", None, [False], [0, "", None]),
        ("includes", 1, [[1], [2, 1.0]], [[], [True], ["1"], 1, None, "1"]),
        ("includes_any", ["a", "b"], [["b", 5]], [["c"], "a", None]),
        ("includes_all", ["a", "b"], [["b", {}, "a"]], [["a"], [], None]),
        ("size_gt", 1, [[1, None]], [[1], "ab", None]),
        ("size_eq", 0, [[]], [None, "", {}]),
        ("size_lt", 1, [[]], [[1], None]),
    ],
)
def test_a_trait_is_compared_in_its_own_type(
    op: str, value: object, true_for: list[object], false_for: list[object]
) -> None:
    leaf = {"trait": "x", "op": op} if value is None else {"trait": "x", "op": op, "value": value}

    assert [given for given in true_for if not holds(leaf, facts({"x": given}))] == []
    assert [given for given in false_for if holds(leaf, facts({"x": given}))] == []
    assert holds(leaf, facts({})) is holds(leaf, facts({"x": None}))


def test_numbers_are_ordered_as_numbers(cases: Mapping[str, dict[str, Any]]) -> None:
    adult = {"trait": "age", "op": "gte", "value": 18}
    for name in ("cmp-greater-than-numbers", "cmp-greater-than-numeric-text"):
        case = cases[name]
        found = [holds(adult, facts(person)) for person in case["given"]["people"]]
        assert found == case["expect"]["matches"]


def test_null_and_absent_are_missing_alike(cases: Mapping[str, dict[str, Any]]) -> None:
    case = cases["cmp-null-and-absent"]
    tests = [("eq", 10), ("gt", 5), ("lt", 5)]
    found = [
        [holds({"trait": "level", "op": op, "value": v}, facts(p)) for p in case["given"]["people"]]
        for op, v in tests
    ]

    assert found == case["expect"]["matches"][:3]
    assert holds({"trait": "level", "op": "neq", "value": 10}, facts({}))


def test_the_text_ten_is_not_the_number_ten(cases: Mapping[str, dict[str, Any]]) -> None:
    case = cases["cmp-text-ten-number-ten"]
    leaf = {"trait": "level", "op": "eq", "value": case["given"]["trigger"]["value"]}

    assert holds(leaf, facts(case["given"]["identify"])) is case["expect"]["enters"]


# Dates


@pytest.mark.parametrize(
    ("op", "value", "trait", "answer"),
    [
        ("before", "2026-06-02", "2026-06-01", True),
        ("before", "2026-06-01", "2026-06-01", False),
        ("before", "2026-06-01", "2026-05-31T20:29:59Z", True),  # 23:59:59 in Tehran
        ("before", "2026-06-01", "2026-05-31T20:30:00Z", False),  # midnight there
        ("before", "2026-06-01T10:00:00Z", "2026-06-01T13:29:59+03:30", True),
        ("after", "2026-06-01", "2026-06-02", True),
        ("after", "2026-06-01", "2026-06-01T20:29:59Z", False),
        ("after", "2026-06-01", "2026-06-01T20:30:00Z", True),
        ("after", "2026-06-01T10:00:00Z", "2026-06-01", False),  # the same day, as dates
        ("on_day", "2026-06-01", "2026-06-01", True),
        ("on_day", "2026-06-01", "2026-05-31T20:30:00Z", True),
        ("on_day", "2026-06-01", "2026-06-01T20:30:00Z", False),
        ("within_last", "1d", "2026-06-01T10:00:00Z", True),
        ("within_last", "1d", "2026-05-31T10:00:01Z", True),
        ("within_last", "1d", "2026-05-31T10:00:00Z", False),
        ("within_last", "1d", "2026-06-01T10:00:01Z", False),
        ("within_last", "1d", "2026-06-01", True),
        ("before_last", "1d", "2026-05-31T10:00:00Z", True),
        ("before_last", "1d", "2026-05-31T10:00:01Z", False),
        ("within_next", "1d", "2026-06-01T10:00:00Z", False),
        ("within_next", "1d", "2026-06-02T10:00:00Z", True),
        ("within_next", "1d", "2026-06-02T10:00:01Z", False),
        ("after_next", "1d", "2026-06-02T10:00:01Z", True),
        ("after_next", "1d", "9999-12-31", True),
        ("before_last", "1d", "0001-01-01", True),
        ("within_last", "1d", "2026-06-01T10:00:00", False),  # no offset, no instant
        ("on_day", "2026-06-01", 20260601, False),
        ("before", "2026-06-01", "soon", False),
    ],
)
def test_a_trait_against_a_date(op: str, value: str, trait: object, answer: bool) -> None:
    leaf = {"trait": "at", "op": op, "value": value}

    assert holds(leaf, facts({"at": trait})) is answer


@pytest.mark.parametrize(
    ("leaf", "trait", "answer"),
    [
        ({"op": "days_until", "value": 3}, "2026-06-04", True),
        ({"op": "days_until", "value": 3}, "1990-06-04", False),
        ({"op": "days_until", "value": 3, "annual": True}, "1990-06-04", True),
        ({"op": "days_until", "value": 0, "annual": True}, "1990-06-01T00:00:00Z", True),
        ({"op": "days_until", "value": 7, "annual": True, "compare": "lte"}, "1990-06-08", True),
        ({"op": "days_until", "value": 7, "annual": True, "compare": "lte"}, "1990-06-09", False),
        ({"op": "days_until", "value": 7, "compare": "lte"}, "2026-05-31", False),  # over
        ({"op": "days_since", "value": 1}, "2026-05-31", True),
        ({"op": "days_since", "value": 5, "compare": "lt"}, "2026-06-02", False),  # to come
        ({"op": "days_since", "value": 30, "compare": "gte"}, "2026-05-02", True),
        ({"op": "days_since", "value": 1}, None, False),
        ({"op": "days_until", "value": 999, "compare": "gt"}, "9999-12-31", True),
        ({"op": "days_since", "value": 999, "compare": "gt"}, "0001-01-01", True),
    ],
)
def test_days_to_and_from_a_date(leaf: dict[str, Any], trait: object, answer: bool) -> None:
    assert holds({"trait": "birthday", **leaf}, facts({"birthday": trait})) is answer


# Events


def test_an_event_without_more_asks_whether_it_ever_happened() -> None:
    assert not holds({"event": "purchase"}, facts())
    assert holds({"event": "purchase"}, facts({}, happened("900d")))
    assert holds({"event": "purchase", "op": "lt", "count": 1}, facts())


@pytest.mark.parametrize(
    ("op", "answers"),
    [
        ("gte", [False, True, True]),
        ("gt", [False, False, True]),
        ("lte", [True, True, False]),
        ("lt", [True, False, False]),
        ("eq", [False, True, False]),
    ],
)
def test_events_are_counted(op: str, answers: list[bool]) -> None:
    leaf = {"event": "purchase", "op": op, "count": 2}
    people = [facts({}, *[happened("1h")] * count) for count in (1, 2, 3)]

    assert [holds(leaf, person) for person in people] == answers


def test_a_window_is_half_open_and_ends_now() -> None:
    leaf = {"event": "purchase", "within": "30d"}

    assert holds(leaf, facts({}, happened("43199m")))
    assert not holds(leaf, facts({}, happened("30d")))
    assert not holds(leaf, facts({}, happened("-1m")))
    assert holds(leaf, facts({}, ("purchase", Happened(NOW))))


def test_where_looks_at_each_event_on_its_own() -> None:
    dear = [{"property": "amount", "op": "gt", "value": 50}]
    leaf = {"event": "purchase", "count": 2, "where": dear}

    assert holds(leaf, facts({}, happened("1h", 51), happened("2h", 10), happened("3h", 60.5)))
    assert not holds(leaf, facts({}, happened("1h", 51), happened("2h", "60"), happened("3h")))


def test_since_entry_leaves_out_the_event_that_entered() -> None:
    leaf = {"event": "purchase", "since": "entry"}
    entry = happened("1h", id="m1")
    outside = facts({}, entry, happened("2h", id="m0"))
    inside = outside._replace(entered_at=NOW - TimeDelta(hours=1), entered_by="m1")
    again = inside.person._replace(events={"purchase": [entry[1], happened("1h", id="m2")[1]]})

    assert not holds(leaf, outside)
    assert not holds(leaf, inside)
    assert holds(leaf, inside._replace(entered_by="another"))
    assert holds(leaf, inside._replace(person=again))


def test_events_without_an_id_are_never_taken_for_the_one_that_entered() -> None:
    inside = facts({}, happened("1h"))._replace(entered_at=NOW - TimeDelta(hours=1))

    assert holds({"event": "purchase", "since": "entry"}, inside)


@pytest.mark.parametrize(
    ("aggregate", "op", "value", "amounts", "answer"),
    [
        ("sum", "eq", 0.3, [0.1, 0.2], True),  # exact in decimal
        ("sum", "gt", 100, [60, 60, "60", None, True, math.nan], True),
        ("sum", "eq", 120, [60, 60, "60", None, True, math.inf], True),
        ("sum", "lt", 100, [], True),  # nothing adds up to 0
        ("sum", "gt", 10, [10**400, 1e308, -0.5], True),
        ("min", "eq", 1, [3, 1.0, 2], True),
        ("min", "lt", 5, [], False),  # the least of nothing is missing
        ("max", "gte", 3, [3, 1, "9"], True),
        ("avg", "eq", 0.2, [0.1, 0.2, 0.3], True),
        ("avg", "lt", 5, ["1"], False),
        ("distinct", "eq", 4, [1, 1.0, True, "1", "a", None, [1], {}], True),
        ("distinct", "eq", 0, [], True),
    ],
)
def test_a_property_is_aggregated(
    aggregate: str, op: str, value: float, amounts: list[object], answer: bool
) -> None:
    leaf = {
        "event": "purchase",
        "aggregate": aggregate,
        "property": "amount",
        "op": op,
        "value": value,
    }

    assert holds(leaf, facts({}, *[happened("1h", amount) for amount in amounts])) is answer


def test_the_first_and_the_last_time() -> None:
    bought = facts({}, happened("20d"), happened("3d"))
    lapsed = {"event": "purchase", "aggregate": "last_at", "op": "before_last", "value": "7d"}
    new = {"event": "purchase", "aggregate": "first_at", "op": "within_last", "value": "7d"}

    assert not holds(lapsed, bought)
    assert not holds(new, bought)
    assert holds(lapsed | {"value": "3d"}, bought)
    assert holds(new | {"within": "7d"}, bought)  # the first of this week
    assert holds(
        {"event": "purchase", "aggregate": "last_at", "op": "days_since", "value": 3}, bought
    )
    assert not holds(lapsed, facts())


# Membership and context


def test_segments_and_journeys() -> None:
    inside = facts(
        {}, segments=frozenset({12}), journeys={7: Pass(7, "completed", "end", "A", False)}
    )

    assert holds({"segment": 12}, inside)
    assert not holds({"segment": 13}, inside)
    assert holds({"journey": 7}, inside)
    assert holds(
        {"journey": 7, "status": "completed", "node": "end", "variant": "A", "holdout": False},
        inside,
    )
    for other in ({"status": "active"}, {"node": "x"}, {"variant": "B"}, {"holdout": True}):
        assert not holds({"journey": 7, **other}, inside)
    assert not holds({"journey": 8}, inside)


def test_every_person_is_in_exactly_one_bucket() -> None:
    cuts = [0, 1, 2500, 9999, 10_000]
    rules = [{"bucket": {"salt": "x", "from": low, "to": high}} for low, high in pairwise(cuts)]
    people = [Person(f"u{number}") for number in range(400)]
    found = [[holds(r, facts()._replace(person=person)) for r in rules] for person in people]

    assert all(sum(row) == 1 for row in found)
    assert 60 < sum(row[1] for row in found) < 140  # a quarter of 400, five deviations wide


def test_an_id_without_utf8_is_in_no_bucket() -> None:
    everybody = {"bucket": {"salt": "x", "from": 0, "to": 10_000}}

    assert not holds(everybody, facts()._replace(person=Person("\ud800")))


@pytest.mark.parametrize(
    ("leaf", "answer"),
    [
        ({"local": "hour", "op": "eq", "value": 13}, True),
        ({"local": "hour", "op": "between", "value": [9, 12]}, False),
        ({"local": "weekday", "op": "in", "value": ["sat", "mon"]}, True),
        ({"local": "weekday", "op": "neq", "value": "mon"}, False),
        ({"local": "month", "op": "lt", "value": 7}, True),
    ],
)
def test_the_recipients_clock(leaf: dict[str, Any], answer: bool) -> None:
    assert holds(leaf, facts()) is answer


# Groups


def test_empty_groups_and_the_empty_rule() -> None:
    empty: list[tuple[dict[str, Any], bool]] = [
        ({}, True),
        ({"all": []}, True),
        ({"any": []}, False),
        ({"none": []}, True),
    ]

    assert [holds(body, facts()) for body, _ in empty] == [answer for _, answer in empty]


@pytest.mark.parametrize("definition", [None, {}, {"root": None}, {"root": {}}])
def test_no_rule_at_all_is_empty(definition: object) -> None:
    assert rule.is_empty(definition)
    assert not rule.is_empty({"root": {"all": []}})


def test_a_bad_definition_is_refused_with_every_fault() -> None:
    with pytest.raises(rule.BadRule) as refused:
        rule.matches({"root": {"all": [{"trait": "plan", "op": "equal"}, 5]}}, facts())

    assert [fault.path for fault in refused.value.faults] == ["root.all[0].op", "root.all[1]"]
    assert str(refused.value).startswith(
        'root.all[0].op: There is no operator "equal" here. Did you mean "eq"? Write one of "eq"'
    )
    assert str(refused.value).endswith('"days_since". (and 1 more)')


def test_a_filter_holds_when_all_its_tests_do() -> None:
    passes = rule.compile_filter(
        [
            {"property": "amount", "op": "gte", "value": 20},
            {"property": "tags", "op": "includes", "value": "sale"},
        ]
    )

    assert passes({"amount": 20, "tags": ["sale"]})
    assert not passes({"amount": 20})
    assert rule.compile_filter([])({})
    with pytest.raises(rule.BadRule, match=r"^filter\[0\].op: There is no operator"):
        rule.compile_filter([{"property": "at", "op": "within_last", "value": "7d"}])


# Telling


def test_an_explanation_shows_what_each_leaf_saw() -> None:
    definition = {
        "root": {
            "any": [
                {"trait": "plan", "op": "eq", "value": "pro"},
                {"not": {"event": "purchase", "within": "30d"}},
                {"trait": "born", "op": "before", "value": "2000-01-01"},
                {"journey": 7},
                {},
            ]
        }
    }
    person = facts({"plan": "free", "born": "1999-12-31"}, happened("1d"), happened("2d"))

    assert rule.explain(definition, person).to_dict() == {
        "rule": "any",
        "result": True,
        "rules": [
            {
                "rule": {"trait": "plan", "op": "eq", "value": "pro"},
                "result": False,
                "saw": {"value": "free"},
            },
            {
                "rule": "not",
                "result": False,
                "rules": [
                    {
                        "rule": {"event": "purchase", "op": "gte", "count": 1, "within": "30d"},
                        "result": True,
                        "saw": {
                            "count": 2,
                            "first_at": "2026-05-30T10:00:00Z",
                            "last_at": "2026-05-31T10:00:00Z",
                        },
                    }
                ],
            },
            {
                "rule": {"trait": "born", "op": "before", "value": "2000-01-01"},
                "result": True,
                "saw": {"value": "1999-12-31", "moment": "1999-12-31"},
            },
            {"rule": {"journey": 7}, "result": False, "saw": {"pass": None}},
            {"rule": "everybody", "result": True, "rules": []},
        ],
    }


@pytest.mark.parametrize(
    ("aggregate", "seen"), [("sum", 0.6), ("avg", 0.2), ("max", 0.3), ("distinct", 3)]
)
def test_an_explanation_shows_the_aggregate(aggregate: str, seen: float) -> None:
    leaf = {
        "event": "purchase",
        "aggregate": aggregate,
        "property": "amount",
        "op": "gt",
        "value": 1,
    }
    events = [happened("1h", amount) for amount in (0.1, 0.2, 0.3)]

    assert rule.explain({"root": leaf}, facts({}, *events)).saw["value"] == seen


def test_references_name_all_that_must_be_loaded() -> None:
    definition = {
        "root": {
            "all": [
                {"trait": "plan", "op": "exists"},
                {"none": [{"event": "purchase"}, {"segment": 4}]},
                {"not": {"journey": 9}},
            ]
        }
    }

    assert rule.references(rule.parse(definition)) == rule.References(
        frozenset({"plan"}), frozenset({"purchase"}), frozenset({4}), frozenset({9}), False
    )


@pytest.mark.parametrize(
    ("leaf", "reads_time"),
    [
        ({"event": "purchase", "within": "1d"}, True),
        ({"event": "purchase", "since": "entry"}, False),
        ({"event": "purchase", "aggregate": "last_at", "op": "before_last", "value": "1d"}, True),
        (
            {"event": "purchase", "aggregate": "last_at", "op": "after", "value": "2026-01-01"},
            False,
        ),
        ({"trait": "at", "op": "on_day", "value": "2026-06-01"}, False),
        ({"trait": "at", "op": "days_until", "value": 3}, True),
        ({"local": "hour", "op": "eq", "value": 3}, True),
        ({"segment": 1}, False),
    ],
)
def test_references_tell_whether_time_alone_changes_the_answer(
    leaf: dict[str, Any], reads_time: bool
) -> None:
    assert rule.references(rule.parse({"root": leaf})).reads_time is reads_time


@pytest.mark.parametrize(
    ("leaf", "at"),
    [
        ({"event": "purchase", "within": "30d"}, "2026-06-11T10:00:00Z"),
        ({"trait": "at", "op": "within_next", "value": "1d"}, "2026-06-02T12:00:00Z"),
        ({"trait": "at", "op": "days_until", "value": 1}, "2026-06-01T20:30:00Z"),
        ({"local": "hour", "op": "eq", "value": 3}, "2026-06-01T10:30:00Z"),
        ({"local": "month", "op": "eq", "value": 3}, "2026-06-01T20:30:00Z"),
        ({"trait": "at", "op": "after", "value": "2026-01-01"}, None),
        ({"trait": "absent", "op": "within_last", "value": "1d"}, None),
        ({"event": "purchase"}, None),
        ({}, None),
    ],
)
def test_the_next_instant_at_which_time_may_change_the_answer(
    leaf: dict[str, Any], at: str | None
) -> None:
    person = facts({"at": "2026-06-03T12:00:00Z"}, happened("20d"), happened("40d"))

    assert rule.next_change(rule.parse({"root": leaf}), person) == (at and Instant(at))


@pytest.mark.parametrize("leaf", [{"op": "eq", "value": 0}, {"op": "gt", "value": 22}])
def test_a_clock_change_counts_as_a_turn_of_the_local_hour(leaf: dict[str, Any]) -> None:
    # In Newfoundland of 2010 the clock showed 00:01 for no time at all: it went back to 23:01.
    body = rule.parse({"root": {"local": "hour", **leaf}})
    midnight = facts()._replace(zone="America/St_Johns", at=Instant("2010-11-07T02:30:30Z"))
    change = rule.next_change(body, midnight)

    assert change == Instant("2010-11-07T02:31:00Z")
    assert rule.matches(body, midnight._replace(at=change)) is not rule.matches(body, midnight)


# The canonical form


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"all": [{"segment": 1}, {"segment": 2}]}, {"all": [{"segment": 2}, {"segment": 1}]}),
        ({"any": [{"segment": 1}, {"segment": 1}]}, {"segment": 1}),
        ({"all": [{"all": [{"segment": 1}]}, {}]}, {"segment": 1}),
        ({"all": []}, {}),
        ({"any": [{}, {"segment": 1}]}, {}),
        ({"not": {"not": {"segment": 1}}}, {"segment": 1}),
        ({"none": [{"segment": 1}]}, {"not": {"segment": 1}}),
        ({"not": {}}, {"any": []}),
        ({"none": []}, {}),
        ({"all": [{"any": []}, {"segment": 1}]}, {"any": []}),
        (
            {"trait": "x", "op": "neq", "value": 1.0},
            {"not": {"trait": "x", "op": "eq", "value": 1}},
        ),
        (
            {"trait": "x", "op": "in", "value": ["b", "a", "b"]},
            {"trait": "x", "op": "in", "value": ["a", "b"]},
        ),
        ({"event": "e", "within": "7d"}, {"event": "e", "op": "gte", "count": 1, "within": "168h"}),
    ],
)
def test_rules_that_say_the_same_have_one_fingerprint(one: object, other: object) -> None:
    assert rule.fingerprint(rule.parse({"root": one})) == rule.fingerprint(
        rule.parse({"root": other})
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"any": []}),
        ({"trait": "x", "op": "eq", "value": 1}, {"trait": "x", "op": "eq", "value": True}),
        ({"trait": "x", "op": "eq", "value": 1}, {"trait": "x", "op": "eq", "value": "1"}),
        ({"all": [{"segment": 1}, {"segment": 2}]}, {"any": [{"segment": 1}, {"segment": 2}]}),
        ({"event": "e", "within": "7d"}, {"event": "e"}),
    ],
)
def test_rules_that_differ_have_two(one: object, other: object) -> None:
    assert rule.fingerprint(rule.parse({"root": one})) != rule.fingerprint(
        rule.parse({"root": other})
    )


def test_the_fingerprint_is_stored_and_must_never_move() -> None:
    stored = rule.parse({"root": {"all": [{"segment": 2}, {"trait": "شهر", "op": "exists"}]}})

    assert rule.canonical(stored) == (
        '{"root":{"all":[{"op":"exists","trait":"شهر"},{"segment":2}]}}'
    )
    assert rule.fingerprint(stored) == (
        "7496908b41f6f933b71e0dd1353194bf3c9cd9516e71b86a280d455c1f1321eb"
    )


# Laws

NAMES = st.sampled_from(["a", "b", "c"])
WINDOWS = st.sampled_from(["1m", "90m", "3h", "1d", "7d", "2w"])
NUMBERS = st.sampled_from([0, 1, 1.0, 2, 2.5, -3, 2**62]) | st.floats(-5, 5)
SCALARS = st.sampled_from(["a", "ab", "1", "", True, False]) | NUMBERS
SCALAR_LISTS = st.lists(SCALARS, min_size=1, max_size=3)
ZONES = st.sampled_from(["UTC", TEHRAN, "America/St_Johns", "Pacific/Apia", "Mars/Base", ""])
NEARBY = st.integers(-20 * 1440, 20 * 1440).map(lambda minutes: NOW + TimeDelta(minutes=minutes))
DATES = NEARBY.map(lambda at: at.to_tz("UTC").date().format_iso())
MOMENTS = DATES | NEARBY.map(Instant.format_iso)
ODD = st.sampled_from(
    [
        None,
        math.nan,
        math.inf,
        -math.inf,
        10**5000,
        b"bytes",
        {},
        {"a": [1]},
        [[[]], {}, math.nan],
        object(),
        "9999-12-31",
        "0001-01-01",
        "9999-12-31T23:59:59.9Z",
        "2026-06-01T10:00:00",
        "\ud800",
        "2000-02-29",
    ]
)
VALUES = SCALARS | MOMENTS | ODD | st.lists(SCALARS | ODD, max_size=4)


def operands(takes: str) -> st.SearchStrategy[Any]:
    ranges = st.tuples(NUMBERS, NUMBERS).map(sorted).map(list)
    return {
        "nothing": st.none(),
        "scalar": SCALARS,
        "scalars": SCALAR_LISTS,
        "number": NUMBERS,
        "range": ranges,
        "text": st.sampled_from(["a", "b", "1"]),
        "size": st.integers(0, 3),
        "moment": MOMENTS,
        "day": DATES,
        "duration": WINDOWS,
        "days": st.integers(0, 9),
    }[takes]


def leaf_tests(name: str, operators: Mapping[str, str]) -> st.SearchStrategy[dict[str, Any]]:
    def build(op: str) -> st.SearchStrategy[dict[str, Any]]:
        takes = operators[op]
        fields = {name: NAMES, "op": st.just(op)}
        if takes != "nothing":
            fields["value"] = operands(takes)
        counted = {"annual": st.booleans(), "compare": st.sampled_from(moment.COMPARES)}
        return st.fixed_dictionaries(fields, optional=counted if takes == "days" else {})

    return st.sampled_from(sorted(operators)).flatmap(build)


VALUE_TESTS = leaf_tests("property", comparison.OPERATORS)
SCOPES = {
    "within": WINDOWS,
    "since": st.just("entry"),
    "where": st.lists(VALUE_TESTS, max_size=2),
}
COMPARES = st.sampled_from(moment.COMPARES)
EVENT_COUNTS = st.fixed_dictionaries(
    {"event": NAMES}, optional={"op": COMPARES, "count": st.integers(0, 3), **SCOPES}
)
EVENT_VALUES = st.fixed_dictionaries(
    {
        "event": NAMES,
        "aggregate": st.sampled_from(["sum", "min", "max", "avg", "distinct"]),
        "property": NAMES,
        "op": COMPARES,
        "value": NUMBERS,
    },
    optional=SCOPES,
)
EVENT_TIMES = st.builds(
    lambda test, scope, aggregate: test | scope | {"aggregate": aggregate},
    leaf_tests("event", moment.OPERATORS),
    st.fixed_dictionaries({}, optional=SCOPES),
    st.sampled_from(["first_at", "last_at"]),
)
LOCALS = st.sampled_from(
    [
        {"local": "hour", "op": "between", "value": [9, 16]},
        {"local": "weekday", "op": "not_in", "value": ["sat", "sun"]},
        {"local": "month", "op": "neq", "value": 6},
    ]
)
JOURNEYS = st.fixed_dictionaries(
    {"journey": st.integers(1, 2)},
    optional={
        "status": st.sampled_from(["active", "waiting", "completed", "exited"]),
        "node": NAMES,
        "variant": NAMES,
        "holdout": st.booleans(),
    },
)
BUCKETS = st.tuples(NAMES, st.integers(0, 9_999)).map(
    lambda drawn: {"bucket": {"salt": drawn[0], "from": drawn[1], "to": 10_000}}
)
LEAVES = st.one_of(
    leaf_tests("trait", {**comparison.OPERATORS, **moment.OPERATORS}),
    EVENT_COUNTS,
    EVENT_VALUES,
    EVENT_TIMES,
    st.integers(1, 3).map(lambda number: {"segment": number}),
    JOURNEYS,
    BUCKETS,
    LOCALS,
)
RULES: st.SearchStrategy[dict[str, Any]] = st.recursive(
    LEAVES | st.just({}),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).flatmap(
            lambda rules: st.sampled_from([{"all": rules}, {"any": rules}, {"none": rules}])
        ),
        inner.map(lambda one: {"not": one}),
    ),
    max_leaves=6,
)
HAPPENED = st.builds(
    Happened,
    NEARBY | st.sampled_from([Instant.MIN, Instant.MAX]),
    st.dictionaries(NAMES, VALUES, max_size=2),
    st.sampled_from(["", "m1", "m2"]),
)
PEOPLE = st.builds(
    Person,
    st.text(max_size=3) | st.just("\ud800"),
    st.dictionaries(NAMES, VALUES),
    events=st.dictionaries(NAMES, st.lists(HAPPENED, max_size=4)),
    segments=st.frozensets(st.integers(1, 3)),
    journeys=st.dictionaries(
        st.integers(1, 2),
        st.builds(
            Pass, st.just(1), st.sampled_from(["active", "exited"]), NAMES, NAMES, st.booleans()
        ),
    ),
)
FACTS = st.builds(
    Snapshot, PEOPLE, NEARBY, ZONES, ZONES, st.none() | NEARBY, st.sampled_from(["", "m1"])
)


@given(RULES, FACTS)
def test_every_rule_is_true_or_false_for_everybody_and_not_is_its_complement(
    body: dict[str, Any], of: Snapshot
) -> None:
    answer = holds(body, of)

    assert answer is True or answer is False
    assert holds({"not": body}, of) is (not answer)


@given(st.lists(RULES, max_size=4), FACTS)
def test_groups_follow_de_morgan(rules: list[dict[str, Any]], of: Snapshot) -> None:
    each = [holds(body, of) for body in rules]
    negated = [{"not": body} for body in rules]

    assert holds({"all": rules}, of) is all(each) is holds({"not": {"any": negated}}, of)
    assert holds({"any": rules}, of) is any(each) is holds({"not": {"all": negated}}, of)
    assert holds({"none": rules}, of) is holds({"all": negated}, of)


@given(st.lists(RULES, max_size=4), FACTS, st.randoms())
def test_order_does_not_matter(rules: list[dict[str, Any]], of: Snapshot, chance: Any) -> None:
    mixed = list(rules)
    chance.shuffle(mixed)
    for group in ("all", "any", "none"):
        one, other = (rule.parse({"root": {group: children}}) for children in (rules, mixed))

        assert rule.matches(one, of) is rule.matches(other, of)
        assert rule.fingerprint(one) == rule.fingerprint(other)


@given(NAMES, VALUES, st.sampled_from(sorted(comparison.NEGATIONS)), st.data())
def test_a_negative_operator_is_the_negation_of_its_twin(
    name: str, value: object, negative: str, data: st.DataObject
) -> None:
    operand = data.draw(operands(comparison.OPERATORS[negative]))
    more = {} if operand is None else {"value": operand}
    person = facts({name: value})
    positive = {"trait": name, "op": comparison.NEGATIONS[negative], **more}

    assert holds({"trait": name, "op": negative, **more}, person) is not holds(positive, person)


@given(
    st.sampled_from([op for op in comparison.OPERATORS if op not in comparison.NEGATIONS]),
    st.sampled_from([None, math.nan, math.inf, -math.inf, object(), b"a", {}]),
    st.data(),
)
def test_no_positive_comparison_holds_for_a_missing_or_strange_value(
    op: str, value: object, data: st.DataObject
) -> None:
    operand = data.draw(operands(comparison.OPERATORS[op]))
    leaf = {"trait": "a", "op": op} | ({} if operand is None else {"value": operand})

    assert not holds(leaf, facts({"a": value})) or (op == "exists" and value is not None)
    assert not holds(leaf, facts({}))


@given(SCALARS, SCALARS)
def test_equality_never_converts(one: object, other: object) -> None:
    def kind(value: object) -> str:
        return "number" if type(value) in (int, float) else type(value).__name__

    same = kind(one) == kind(other) and one == other

    assert holds({"trait": "a", "op": "eq", "value": one}, facts({"a": other})) is same
    assert holds({"trait": "a", "op": "in", "value": [one]}, facts({"a": other})) is same
    assert holds({"trait": "a", "op": "includes", "value": one}, facts({"a": [other]})) is same


@given(MOMENTS, WINDOWS, NEARBY, ZONES)
def test_a_date_lies_in_exactly_one_of_the_four_windows(
    at: str, window: str, now: Instant, zone: str
) -> None:
    person = facts({"at": at})._replace(at=now, account_zone=zone)
    windows = ("before_last", "within_last", "within_next", "after_next")

    assert sum(holds({"trait": "at", "op": op, "value": window}, person) for op in windows) == 1


@given(RULES)
def test_a_rule_survives_the_way_out_and_in(body: dict[str, Any]) -> None:
    parsed = rule.parse({"root": body})
    written = rule.to_definition(parsed)

    assert rule.parse(written) == parsed
    assert rule.to_definition(rule.parse(json.loads(json.dumps(written)))) == written


@given(RULES, FACTS)
def test_the_canonical_form_is_a_definition_of_the_same_meaning(
    body: dict[str, Any], of: Snapshot
) -> None:
    parsed = rule.parse({"root": body})
    canonical = rule.canonical(parsed)
    again = rule.parse(json.loads(canonical))

    assert rule.matches(again, of) is rule.matches(parsed, of)
    assert rule.canonical(again) == canonical


@given(RULES, FACTS)
def test_an_explanation_gives_the_same_answer_and_is_json(
    body: dict[str, Any], of: Snapshot
) -> None:
    explained = rule.explain({"root": body}, of)

    assert explained.result is holds(body, of)
    json.dumps(explained.to_dict(), allow_nan=False)


@given(RULES, FACTS, st.lists(st.floats(0, 1), max_size=4))
def test_no_answer_changes_before_the_next_change(
    body: dict[str, Any], of: Snapshot, portions: list[float]
) -> None:
    parsed = rule.parse({"root": body})
    answer, change = rule.matches(parsed, of), rule.next_change(parsed, of)
    longest = TimeDelta(hours=24 * 40)
    span = min(longest, change - of.at) if change is not None else longest
    last = span - TimeDelta(nanoseconds=1)

    assert span > TimeDelta()
    assert change is None or rule.references(parsed).reads_time
    for later in [last, *(last * portion for portion in portions)]:
        assert rule.matches(parsed, of._replace(at=of.at + later)) is answer


@given(RULES, FACTS)
def test_a_rule_reads_only_what_its_references_name(body: dict[str, Any], of: Snapshot) -> None:
    parsed = rule.parse({"root": body})
    named = rule.references(parsed)
    person = of.person
    loaded = person._replace(
        traits={name: person.traits[name] for name in named.traits & person.traits.keys()},
        events={name: person.events[name] for name in named.events & person.events.keys()},
        segments=person.segments & named.segments,
        journeys={key: person.journeys[key] for key in named.journeys & person.journeys.keys()},
    )

    assert rule.matches(parsed, of._replace(person=loaded)) is rule.matches(parsed, of)
