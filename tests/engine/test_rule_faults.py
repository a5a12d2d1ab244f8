"""What is said about a definition that is no rule: every fault, where it stands, and the fix."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeykit_engine.rule_faults import MAX_DEPTH, MAX_LEAVES, Fault, faults, property_faults


def only(body: object) -> Fault:
    """The one fault of a rule."""
    (fault,) = faults({"root": body})
    return fault


@pytest.mark.parametrize(
    ("definition", "fault"),
    [
        (
            None,
            Fault(
                "",
                'A segment definition is an object with a "root", not null.',
                'Write {"root": {}} for everybody.',
            ),
        ),
        (
            {"root": None},
            Fault(
                "root",
                'The segment definition has no "root".',
                'Write {"root": {}} for everybody.',
            ),
        ),
        (
            {"root": {}, "name": "x"},
            Fault(
                "name",
                '"name" is not a field of a segment definition.',
                'Remove it; known are "root".',
            ),
        ),
    ],
)
def test_the_definition_around_the_rule(definition: object, fault: Fault) -> None:
    assert faults(definition) == [fault]


@pytest.mark.parametrize(
    ("body", "path", "message", "fix"),
    [
        (
            5,
            "root",
            "A rule is an object, not 5.",
            'Write a leaf such as {"trait": "plan", "op": "exists"}, or {} for everybody.',
        ),
        (
            {"al": []},
            "root",
            "The rule does not say what it asks.",
            'Did you mean "all" instead of "al"? Write one of "all", "any", "none", "not", '
            '"trait", "event", "segment", "journey", "bucket", "local".',
        ),
        (
            {"all": [], "any": []},
            "root",
            'The rule asks several things at once: "all" and "any".',
            'Put each into a rule of its own and join them with "all".',
        ),
        (
            {"all": {}},
            "root.all",
            '"all" takes a list of rules, not an object.',
            "Put the rules between [ and ].",
        ),
        (
            {"trait": "", "op": "exists"},
            "root.trait",
            '"trait" is a text of at least one character, not "".',
            "Write the name between quotes.",
        ),
        (
            {"trait": "x", "op": "eq"},
            "root.value",
            'The operator "eq" has no "value".',
            'Write a value; to ask for a missing one use "not_exists".',
        ),
        (
            {"trait": "x", "op": "gt", "value": "10"},
            "root.value",
            'The operator "gt" takes a number, not "10".',
            'Write the number without quotes; for dates use "before" or "after".',
        ),
        (
            {"trait": "x", "op": "gt", "value": True},
            "root.value",
            'The operator "gt" takes a number, not true.',
            "Write for example 10.",
        ),
        (
            {"trait": "x", "op": "between", "value": [9, 1]},
            "root.value",
            'The operator "between" takes two numbers, the lower first, not a list.',
            "Write the lower number first; both ends are inside.",
        ),
        (
            {"trait": "x", "op": "exists", "value": 1},
            "root.value",
            'The operator "exists" takes no value, not 1.',
            'Remove "value".',
        ),
        (
            {"trait": "x", "op": "in", "value": []},
            "root.value",
            'The operator "in" takes a list of texts, numbers, true or false, not a list.',
            'Write for example ["free", "trial"].',
        ),
        (
            {"trait": "x", "op": "within_last", "value": "5bd"},
            "root.value",
            'The operator "within_last" takes a duration in m, h, d or w, not "5bd".',
            'Business days are for waits; write calendar days, for example "7d".',
        ),
        (
            {"trait": "x", "op": "before", "value": "2026-06-01T10:00:00"},
            "root.value",
            'The operator "before" takes a date or a timestamp with its offset, '
            'not "2026-06-01T10:00:00".',
            'Write the offset too, for example "2026-06-01T10:00:00Z".',
        ),
        (
            {"trait": "x", "op": "days_until", "value": 3, "annual": 1},
            "root.annual",
            '"annual" is true or false, not 1.',
            "Write true for a birthday, false for a single day.",
        ),
        (
            {"trait": "x", "op": "exists", "annual": True},
            "root.annual",
            '"annual" is not a field of a trait.',
            'Remove it; known are "trait", "op", "value".',
        ),
        (
            {"event": "e", "count": -1},
            "root.count",
            '"count" is a whole number from 0 up, not -1.',
            "Write for example 1.",
        ),
        (
            {"event": "e", "op": "neq", "count": 1},
            "root.op",
            'There is no operator "neq" here.',
            'Did you mean "eq"? Write one of "eq", "gt", "gte", "lt", "lte".',
        ),
        (
            {"event": "e", "aggregate": "total", "property": "x", "op": "gt", "value": 1},
            "root.aggregate",
            'There is no aggregate "total" here.',
            'Write one of "sum", "min", "max", "avg", "distinct", "last_at", "first_at".',
        ),
        (
            {"event": "e", "aggregate": "sum", "op": "gt", "value": 1},
            "root.property",
            '"property" is missing.',
            'Write "property" with a name.',
        ),
        (
            {"event": "e", "aggregate": "sum", "property": "x", "op": "gt", "value": "1"},
            "root.value",
            'An aggregate is compared with a number, not "1".',
            "Write for example 100.",
        ),
        (
            {"event": "e", "within": "month"},
            "root.within",
            '"within" takes a duration in m, h, d or w, not "month".',
            'Write for example "7d".',
        ),
        (
            {"event": "e", "since": "start"},
            "root.since",
            '"since" can only be "entry", not "start".',
            'Write "entry", or use "within" for a length of time.',
        ),
        (
            {"event": "e", "where": [{"property": "at", "op": "before", "value": "2026-01-01"}]},
            "root.where[0].op",
            'There is no operator "before" here.',
            'Write one of "eq", "neq", "in", "not_in", "gt", "gte", "lt", "lte", "between", '
            '"exists", "not_exists", "contains", "not_contains", "starts_with", "ends_with", '
            '"is_true", "is_false", "includes", "includes_any", "includes_all", "size_gt", '
            '"size_eq", "size_lt".',
        ),
        (
            {"segment": "12"},
            "root.segment",
            '"segment" is the number of a segment, from 1 up, not "12".',
            "Write the number without quotes.",
        ),
        (
            {"journey": 7, "status": "complete"},
            "root.status",
            'There is no status "complete" here.',
            'Did you mean "completed"? Write one of "active", "waiting", "completed", "exited".',
        ),
        (
            {"bucket": {"salt": "x", "from": 0, "to": 10001}},
            "root.bucket.to",
            '"to" is a whole number from 0 to 10000, not 10001.',
            "Write basis points: 2500 is a quarter of all people.",
        ),
        (
            {"bucket": {"salt": "x", "from": 5, "to": 5}},
            "root.bucket.to",
            "The bucket from 5 to 5 holds nobody.",
            'Make "to" larger than "from": it is not inside.',
        ),
        (
            {"local": "hour", "op": "in", "value": [9, 24]},
            "root.value",
            "The local hour is compared with whole hours from 0 to 23, not a list.",
            "Write for example 12.",
        ),
        (
            {"local": "weekday", "op": "eq", "value": "monday"},
            "root.value",
            'The local weekday is compared with the names "mon" to "sun", not "monday".',
            'Write for example "thu".',
        ),
        (
            {"local": "minute", "op": "eq", "value": 1},
            "root.local",
            'There is no part of the local time "minute" here.',
            'Write one of "hour", "weekday", "month".',
        ),
    ],
)
def test_a_fault_says_where_what_and_what_to_do(
    body: object, path: str, message: str, fix: str
) -> None:
    assert only(body) == Fault(path, message, fix)


@pytest.mark.parametrize(
    ("written", "meant"),
    [("==", "eq"), ("!=", "neq"), ("greater_than", ""), ("GTE", "gte"), ("contain", "contains")],
)
def test_an_unknown_operator_is_answered_with_the_one_that_was_meant(
    written: str, meant: str
) -> None:
    fault = only({"trait": "x", "op": written, "value": 1})

    assert fault.message == f'There is no operator "{written}" here.'
    assert fault.fix.startswith(f'Did you mean "{meant}"?' if meant else 'Write one of "eq"')


def test_a_pattern_is_no_operator() -> None:
    assert only({"trait": "x", "op": "regex", "value": ".*"}).path == "root.op"


def test_every_fault_is_told_in_document_order() -> None:
    body = {
        "all": [
            {"trait": "x", "op": "is", "valu": 1},
            {"not": {"event": "e", "wihtin": "1d"}},
            {"any": [{"segment": 0}, 7]},
        ],
        "comment": "x",
    }

    assert [fault.path for fault in faults({"root": body})] == [
        "root.comment",
        "root.all[0].op",
        "root.all[0].valu",
        "root.all[1].not.wihtin",
        "root.all[2].any[0].segment",
        "root.all[2].any[1]",
    ]


def test_a_misspelt_field_is_answered_with_the_right_one() -> None:
    assert only({"event": "e", "wihtin": "1d"}).fix == 'Did you mean "within"?'


def nested(levels: int) -> dict[str, Any]:
    body: dict[str, Any] = {"segment": 1}
    for _ in range(levels - 1):
        body = {"not": body}
    return body


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 5_000])
def test_depth_is_limited_and_never_recursed_into(levels: int) -> None:
    assert faults({"root": nested(MAX_DEPTH)}) == []
    assert only(nested(levels)) == Fault(
        "root" + ".not" * MAX_DEPTH,
        "The rule is nested more than 32 levels deep.",
        'Join nested "all" or "any" lists into one list.',
    )


def test_a_rule_that_holds_itself_is_too_deep() -> None:
    body: dict[str, Any] = {}
    body["not"] = body

    assert only(body).message == "The rule is nested more than 32 levels deep."


def test_leaves_are_limited() -> None:
    leaf = {"segment": 1}

    assert faults({"root": {"any": [leaf] * MAX_LEAVES}}) == []
    assert only({"any": [leaf] * (MAX_LEAVES + 1)}) == Fault(
        "root",
        "The rule has more than 500 leaves.",
        'Join leaves that compare one trait with "in", or use a segment.',
    )


def test_shared_branches_cost_no_more_than_the_limit() -> None:
    body: dict[str, Any] = {"segment": 1}
    for _ in range(MAX_DEPTH - 1):
        body = {"all": [body, body]}  # 2 ** 31 leaves

    assert only(body).message == "The rule has more than 500 leaves."


def test_a_filter_is_a_list_of_property_tests() -> None:
    path = "nodes[3].wait.filter"

    assert property_faults([], path) == []
    assert property_faults({}, path) == [
        Fault(
            path,
            "A filter is a list of property tests, not an object.",
            'Write [{"property": "amount", "op": "gt", "value": 50}].',
        )
    ]
    assert [
        f.path for f in property_faults([{"property": "x", "op": "eq", "value": {}}], path)
    ] == ["nodes[3].wait.filter[0].value"]


KEYS = st.sampled_from(
    [
        "root",
        "all",
        "any",
        "none",
        "not",
        "trait",
        "event",
        "segment",
        "journey",
        "bucket",
        "local",
        "op",
        "value",
        "count",
        "within",
        "since",
        "where",
        "aggregate",
        "property",
        "status",
        "node",
        "holdout",
        "salt",
        "from",
        "to",
        "annual",
        "compare",
    ]
)
WORDS = st.sampled_from(["eq", "gt", "between", "days_until", "within_last", "sum", "last_at"])
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | WORDS | KEYS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(KEYS | st.text(max_size=2) | st.integers(), inner, max_size=4)
    ),
)


@given(JUNK)
def test_no_value_whatever_makes_the_checks_raise(junk: object) -> None:
    for fault in [*faults(junk), *faults({"root": junk}), *property_faults(junk, "filter")]:
        assert fault.message
        assert fault.fix
