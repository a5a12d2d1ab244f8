"""Rules by operators: the document each becomes, the code each came from, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from whenever import Date, Instant

import journeykit as jk
from journeykit.rule_source import filter_code, rule_code
from journeykit_engine import rule as engine_rule
from tests import graphs

TEHRAN = timezone(timedelta(hours=3, minutes=30))
plan, age, birthday = jk.trait("plan"), jk.trait("age"), jk.trait("birthday")
amount = jk.prop("amount")

SPOKEN: list[tuple[jk.Rule, dict[str, Any], str]] = [
    (plan == "pro", {"trait": "plan", "op": "eq", "value": "pro"}, 'jk.trait("plan") == "pro"'),
    (plan != "pro", {"trait": "plan", "op": "neq", "value": "pro"}, 'jk.trait("plan") != "pro"'),
    (age >= 18, {"trait": "age", "op": "gte", "value": 18}, 'jk.trait("age") >= 18'),
    (age < 18.5, {"trait": "age", "op": "lt", "value": 18.5}, 'jk.trait("age") < 18.5'),
    (
        plan.is_in(("pro", "trial")),
        {"trait": "plan", "op": "in", "value": ["pro", "trial"]},
        'jk.trait("plan").is_in(["pro", "trial"])',
    ),
    (
        age.between(18, 65),
        {"trait": "age", "op": "between", "value": [18, 65]},
        'jk.trait("age").between(18, 65)',
    ),
    (plan.missing(), {"trait": "plan", "op": "not_exists"}, 'jk.trait("plan").missing()'),
    (
        jk.trait("tags").size() > 2,
        {"trait": "tags", "op": "size_gt", "value": 2},
        'jk.trait("tags").size() > 2',
    ),
    (
        birthday.days_until(3, annual=True, compare="lte"),
        {"trait": "birthday", "op": "days_until", "value": 3, "annual": True, "compare": "lte"},
        'jk.trait("birthday").days_until(3, annual=True, compare="lte")',
    ),
    (
        birthday.on_day(date(2026, 6, 1)),
        {"trait": "birthday", "op": "on_day", "value": "2026-06-01"},
        'jk.trait("birthday").on_day("2026-06-01")',
    ),
    (
        birthday.before(datetime(2026, 6, 1, 12, tzinfo=TEHRAN)),
        {"trait": "birthday", "op": "before", "value": "2026-06-01T12:00:00+03:30"},
        'jk.trait("birthday").before("2026-06-01T12:00:00+03:30")',
    ),
    (
        birthday.after(Instant.from_utc(2026, 6, 1)),
        {"trait": "birthday", "op": "after", "value": "2026-06-01T00:00:00Z"},
        'jk.trait("birthday").after("2026-06-01T00:00:00Z")',
    ),
    (
        jk.did("purchase"),
        {"event": "purchase", "op": "gte", "count": 1},
        'jk.did("purchase")',
    ),
    (
        jk.did("purchase", fewer_than=2, since_entry=True, where=(amount > 5) & amount.exists()),
        {
            "event": "purchase",
            "op": "lt",
            "count": 2,
            "since": "entry",
            "where": [
                {"property": "amount", "op": "gt", "value": 5},
                {"property": "amount", "op": "exists"},
            ],
        },
        'jk.did("purchase", fewer_than=2, since_entry=True, '
        'where=(jk.prop("amount") > 5) & jk.prop("amount").exists())',
    ),
    (
        jk.did("purchase", within="30d").sum("amount") > 100,
        {
            "event": "purchase",
            "aggregate": "sum",
            "property": "amount",
            "op": "gt",
            "value": 100,
            "within": "30d",
        },
        'jk.did("purchase", within="30d").sum("amount") > 100',
    ),
    (
        jk.last("purchase").before_last("30d"),
        {"event": "purchase", "aggregate": "last_at", "op": "before_last", "value": "30d"},
        'jk.last("purchase").before_last("30d")',
    ),
    (jk.in_segment(4), {"segment": 4}, "jk.in_segment(4)"),
    (
        jk.in_journey(7, status="completed", holdout=False),
        {"journey": 7, "status": "completed", "holdout": False},
        'jk.in_journey(7, status="completed", holdout=False)',
    ),
    (
        jk.bucket("pilot", 0, 2500),
        {"bucket": {"salt": "pilot", "from": 0, "to": 2500}},
        'jk.bucket("pilot", 0, 2500)',
    ),
    (
        jk.local_weekday().not_in(["sat", "sun"]),
        {"local": "weekday", "op": "not_in", "value": ["sat", "sun"]},
        'jk.local_weekday().not_in(["sat", "sun"])',
    ),
    (jk.everybody(), {}, "jk.everybody()"),
    (
        (age > 17) & jk.in_segment(4) & ~(plan == "pro"),
        {
            "all": [
                {"trait": "age", "op": "gt", "value": 17},
                {"segment": 4},
                {"not": {"trait": "plan", "op": "eq", "value": "pro"}},
            ]
        },
        '(jk.trait("age") > 17) & jk.in_segment(4) & ~(jk.trait("plan") == "pro")',
    ),
    (
        jk.any_of(jk.any_of(), jk.in_segment(1) | jk.in_segment(2)),
        {"any": [{"any": []}, {"any": [{"segment": 1}, {"segment": 2}]}]},
        "jk.any_of(jk.any_of(), jk.in_segment(1) | jk.in_segment(2))",
    ),
    (
        jk.none_of(jk.all_of(jk.in_segment(1))),
        {"none": [{"all": [{"segment": 1}]}]},
        "jk.none_of(jk.all_of(jk.in_segment(1)))",
    ),
]


@pytest.mark.parametrize(("rule", "body", "code"), SPOKEN)
def test_a_rule_is_its_document_and_its_code(
    rule: jk.Rule, body: dict[str, Any], code: str
) -> None:
    assert rule.definition == {"root": body}
    assert engine_rule.faults(rule.definition) == []
    assert repr(rule) == code
    assert eval(code, {"jk": jk}) == rule


def test_a_range_of_counts_is_two_rules() -> None:
    assert jk.did("visit", at_least=2, at_most=5) == jk.all_of(
        jk.did("visit", at_least=2), jk.did("visit", at_most=5)
    )


def test_rules_are_never_changed() -> None:
    both = (plan == "pro") & (age > 17)
    longer = both & jk.in_segment(4)
    both.definition["root"]["all"].clear()

    assert len(both.definition["root"]["all"]) == 2
    assert len(longer.definition["root"]["all"]) == 3


def test_a_number_of_a_data_frame_is_a_number() -> None:
    pd = pytest.importorskip("pandas")

    assert (age > pd.Series([18])[0]) == (age > 18)
    assert birthday.on_day(Date(2026, 6, 1)) == birthday.on_day(date(2026, 6, 1))


@given(graphs.definitions())
def test_the_code_of_a_definition_gives_it_back(definition: dict[str, Any]) -> None:
    said = eval(rule_code(definition), {"jk": jk})
    given = said.definition if isinstance(said, jk.Rule) else said

    assert json.dumps(given, sort_keys=True) == json.dumps(definition, sort_keys=True)


@given(graphs.comparisons())
def test_the_code_of_a_filter_gives_it_back(comparisons: list[dict[str, Any]]) -> None:
    said = eval(filter_code(comparisons), {"jk": jk})

    assert (said.comparisons if isinstance(said, jk.Filter) else said) == comparisons


def test_what_no_rule_says_exactly_is_shown_as_it_is() -> None:
    assert rule_code({"root": {"event": "purchase"}}) == '{"root": {"event": "purchase"}}'
    assert rule_code({"root": {"trait": "plan"}}) == '{"root": {"trait": "plan"}}'


NO_TRUTH = (
    ' is not true or false until a person is asked, so "and", "or", "not", "if" and 1 < x < 2 '
    "cannot use it. Join with &, | and ~, each comparison between parentheses; for a range use "
    ".between(low, high)."
)
PARENTHESES = (
    " stands beside & or | without a comparison. Put each comparison between parentheses: "
    '(trait("a") == 1) & (trait("b") == 2).'
)
ONLY_AND = (
    ": all of them must hold. Join them with &, use .is_in([…]) or !=, or write a rule with "
    "did(…, where=…) for each."
)

MISTAKES: list[tuple[Callable[[], Any], str, str]] = [
    (lambda: (plan == "pro") and (age > 17), "NO_TRUTH", "A rule" + NO_TRUTH),
    (lambda: not plan.exists(), "NO_TRUTH", "A rule" + NO_TRUTH),
    (lambda: 17 < age < 66, "NO_TRUTH", "A rule" + NO_TRUTH),
    (lambda: bool(amount > 1), "NO_TRUTH", "A comparison of a property" + NO_TRUTH),
    (lambda: plan == "pro" & age > 17, "NO_COMPARISON", 'trait("age")' + PARENTHESES),  # type: ignore[operator]
    (lambda: ~plan, "NO_COMPARISON", 'trait("plan")' + PARENTHESES),
    (
        lambda: bool(plan),
        "NO_COMPARISON",
        'trait("plan") is no rule yet. Compare it, for example with == "premium" or .exists().',
    ),
    (
        lambda: (plan == "pro") & True,
        "WRONG_TYPE",
        '& takes a rule, not true. Write for example (trait("plan") == "premium").',
    ),
    (
        lambda: (plan == "pro") | (amount > 1),
        "WRONG_TYPE",
        '| takes a rule, not jk.prop("amount") > 1. Write for example '
        '(trait("plan") == "premium").',
    ),
    (
        lambda: (amount > 1) | (amount < 0),
        "ONLY_AND",
        "Comparisons of properties cannot be joined with |" + ONLY_AND,
    ),
    (
        lambda: ~(amount > 1),
        "ONLY_AND",
        "Comparisons of properties cannot be joined with ~" + ONLY_AND,
    ),
    (
        lambda: jk.did("purchase", where=(plan == "pro")),  # type: ignore[arg-type]
        "WRONG_TYPE",
        'where= takes a comparison of a property, not jk.trait("plan") == "pro". Write for '
        'example (prop("value") > 20).',
    ),
    (
        lambda: age > "18",
        "BAD_RULE",
        'trait("age"): The operator "gt" takes a number, not "18". Write the number without '
        'quotes; for dates use "before" or "after".',
    ),
    (
        lambda: plan == None,  # noqa: E711
        "WRONG_TYPE",
        'trait("plan") does not compare with None. Use .missing() or .exists().',
    ),
    (
        lambda: birthday == date(2026, 6, 1),
        "WRONG_TYPE",
        'trait("birthday") does not compare with a date this way. Use .before(…), .after(…) or '
        ".on_day(…).",
    ),
    (
        lambda: birthday.before(datetime(2026, 6, 1)),
        "NAIVE_DATETIME",
        'trait("birthday"): 2026-06-01T00:00:00 has no timezone. Attach a timezone, for example '
        'datetime(…, tzinfo=ZoneInfo("Europe/Berlin")).',
    ),
    (
        lambda: plan.is_in("pro"),
        "WRONG_TYPE",
        'The values for trait("plan") must be a list, not "pro". Write ["free", "trial"].',
    ),
    (
        lambda: jk.did("purchase", at_least=2).sum("amount"),
        "TWO_QUESTIONS",
        'did("purchase").sum("amount") follows a count, which asks something else. Write two '
        "rules and join them with &.",
    ),
    (
        lambda: jk.did("purchase", within="5bd"),
        "BAD_RULE",
        'did("purchase"): "within" takes a duration in m, h, d or w, not "5bd". Business days are '
        'for waits; write calendar days, for example "7d".',
    ),
    (
        lambda: jk.trait(""),
        "WRONG_TYPE",
        'The name of a trait must be text, not "". Write it between quotes.',
    ),
    (
        lambda: jk.in_segment(0),
        "BAD_RULE",
        'in_segment(0): "segment" is the number of a segment, from 1 up, not 0. Write the number '
        "without quotes.",
    ),
]


@pytest.mark.parametrize(("make", "code", "words"), MISTAKES)
def test_a_mistake_is_told_where_it_is_made(make: Callable[[], Any], code: str, words: str) -> None:
    with pytest.raises(jk.JourneyError) as caught:
        make()

    assert (caught.value.code, str(caught.value)) == (code, words)
