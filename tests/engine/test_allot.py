"""Who is held out and who gets which arm, by hand, in bulk, and as SQL on real databases."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeykit_engine import allot
from journeykit_engine.allot import (
    WHOLE,
    Allotter,
    Dialect,
    allotter,
    arm_at,
    arm_cuts,
    cut,
    draw,
    holdout_cut,
    jitter_share,
    person_key,
    share,
    split_key,
)
from tests.postgres import rows

GOLDEN = json.loads((Path(__file__).parents[1] / "data/allotment_golden.json").read_text("utf-8"))

# Ids as customers have them: numbers, addresses, quotes, Persian, both forms of é, one emoji.
IDS = [f"user-{n}" for n in range(19_990)] + [
    "7",
    "a@b.example",
    "it's",
    'say "hi"',
    "back\\slash",
    "کاربر۱",
    "👩‍👩‍👧",
    "\u00e9",
    "e\u0301",
    " ",
]
VARIANTS = ["it's A", "none", "ب"]
WEIGHTS = [30, 0, 70]


# --- the hash ---


@pytest.mark.parametrize("row", GOLDEN["shares"], ids=lambda row: f"{row['user_id'][:8]}-{row}")
def test_shares_never_change(row: dict[str, Any]) -> None:
    assert share(row["user_id"], split_key(row["node_id"], row["salt"])) == row["share"]


@pytest.mark.parametrize("row", GOLDEN["jitter"])
def test_jitter_shares_never_change(row: dict[str, Any]) -> None:
    assert jitter_share(row["user_id"], row["node_id"], row["entry_count"]) == row["share"]


def test_a_share_is_the_head_of_an_md5_over_the_joined_parts() -> None:
    digest = hashlib.md5("کاربر۱".encode() + b"\x1f" + b"12:test").digest()

    assert share("کاربر۱", split_key("test", "12")) == (
        digest[0] * 2**24 + digest[1] * 2**16 + digest[2] * 2**8 + digest[3]
    )


def test_parts_cannot_run_into_each_other() -> None:
    assert share("ab", "c") != share("a", "bc")


def test_the_key_carries_the_salt_only_when_there_is_one() -> None:
    assert split_key("test", "") == "test"
    assert split_key("test", "12") == "12:test"


# --- who a person is ---


def test_seven_and_the_text_seven_are_one_person(cases: Mapping[str, Any]) -> None:
    number, text, decimal = cases["split-user-id-type"]["given"]["user_ids"]

    assert person_key(number) == person_key(text) == "7"
    assert person_key(decimal) == "7.0"


def test_persian_emoji_and_both_forms_of_e_acute(cases: Mapping[str, Any]) -> None:
    ids = cases["split-unicode-user"]["given"]["user_ids"]

    shares = {share(person_key(user_id), "test") for user_id in ids}

    assert len(shares) == len(set(ids)) == 4, "one share each: both forms of é are two people"


@pytest.mark.parametrize(
    ("user_id", "found"),
    [
        (True, "True, a bool"),
        (7.0, "7.0, a float"),
        (None, "None, a NoneType"),
        (b"7", "b'7', a bytes"),
        ("", "empty"),
    ],
)
def test_what_is_no_user_id(user_id: object, found: str) -> None:
    with pytest.raises(ValueError) as error:
        person_key(user_id)

    assert str(error.value) == (
        f"The user id is {found}; expected a text or a whole number. "
        'Send the id as a text, for example "7".'
    )


def test_a_lone_surrogate_cannot_be_hashed() -> None:
    with pytest.raises(UnicodeEncodeError):
        share("\ud800", "test")


# --- cuts ---


def test_ten_percent_is_ten_percent_everywhere() -> None:
    assert cut(0.1) == holdout_cut(10) == holdout_cut(10.0) == 429_496_729
    assert holdout_cut(1.1) == 11 * WHOLE // 1000
    assert cut(Fraction(1, 3)) == WHOLE // 3


@given(st.integers(0, 10_000))
def test_a_percent_with_two_digits_is_cut_exactly(hundredths: int) -> None:
    assert holdout_cut(hundredths / 100) == hundredths * WHOLE // 10_000


@pytest.mark.parametrize("portion", [-0.1, 1.5])
def test_a_portion_outside_zero_to_one(portion: float) -> None:
    with pytest.raises(ValueError) as error:
        cut(portion)

    assert str(error.value) == f"The portion is {portion}; expected a number from 0 to 1."


@pytest.mark.parametrize("percent", [-1, 100.5])
def test_a_holdout_percent_outside_zero_to_a_hundred(percent: float) -> None:
    with pytest.raises(ValueError) as error:
        allotter("test", "", percent, [1])

    assert str(error.value) == (
        f"The holdout percent is {percent}; expected a number from 0 to 100."
    )


@pytest.mark.parametrize(
    ("weights", "expected"),
    [([], "at least one above 0"), ([0, 0], "at least one above 0"), ([2, -1], "none below 0")],
)
def test_weights_that_split_nobody(weights: list[float], expected: str) -> None:
    with pytest.raises(ValueError) as error:
        arm_cuts(weights)

    assert str(error.value) == f"The weights are {weights}; expected {expected}."


def test_the_scale_of_weights_does_not_matter(cases: Mapping[str, Any]) -> None:
    given_ = cases["split-weight-scale"]["given"]

    drawn = [drawn_by(allotter("test", "", 0, w), given_["users"]) for w in given_["weight_sets"]]

    assert drawn[0] == drawn[1] == drawn[2]
    assert arm_cuts([0.1, 0.2, 0.7]) == arm_cuts([1, 2, 7]) == arm_cuts([10, 20, 70])


@given(st.lists(st.floats(0, 1e308), min_size=1).filter(any))
def test_cuts_rise_to_the_edge_and_every_share_falls_in_an_arm_with_weight(
    weights: list[float],
) -> None:
    cuts = arm_cuts(weights)

    assert list(cuts) == sorted(cuts) and cuts[-1] == WHOLE
    assert all(weights[arm_at(edge, cuts)] > 0 for edge in (0, WHOLE // 2, WHOLE - 1))


def test_an_arm_without_weight_gets_nobody() -> None:
    counts = Counter(arm for _, arm in drawn_by(allotter("test", "", 0, [0, 1, 0, 1, 0]), 10_000))

    assert set(counts) == {1, 3}


def test_a_lone_arm_gets_everybody_and_a_holdout_the_first_branch() -> None:
    assert set(drawn_by(allotter("test", "", 0, [0, 5, 0]), 1_000)) == {(False, 1)}
    assert set(drawn_by(allotter("test", "", 100, [0, 5, 0]), 1_000)) == {(True, 0)}


# --- the draw in bulk ---


@pytest.mark.parametrize("case_id", ["split-holdout-0", "split-holdout-100"])
def test_nobody_and_everybody(case_id: str, cases: Mapping[str, Any]) -> None:
    case = cases[case_id]

    drawn = drawn_by(
        allotter("test", "", case["given"]["holdout_percent"], [1]), case["given"]["users"]
    )

    assert sum(held_out for held_out, _ in drawn) == case["expect"]["holdout"]


def test_a_growing_holdout_keeps_its_members(cases: Mapping[str, Any]) -> None:
    given_ = cases["split-holdout-grows-keeping-members"]["given"]
    ten, twenty = (
        [held_out for held_out, _ in drawn_by(allotter("test", "12", p, [1, 1]), given_["users"])]
        for p in given_["holdout_percent"]
    )

    assert sum(was and not is_ for was, is_ in zip(ten, twenty, strict=True)) == 0
    assert 0.095 < sum(ten) / len(ten) < 0.105
    assert 0.195 < sum(twenty) / len(twenty) < 0.205


def test_arms_are_shared_alike_inside_and_outside_the_holdout(cases: Mapping[str, Any]) -> None:
    given_ = cases["split-independent"]["given"]
    held_below = holdout_cut(given_["holdout_percent"])
    cuts = arm_cuts(given_["weights"])

    counts = Counter(
        (share(user, "test") < held_below, arm_at(share(user, "test:branch"), cuts))
        for user in map(str, range(given_["users"]))
    )

    assert independence_p(counts) >= 0.001


def test_a_node_named_like_another_ones_arms_needs_the_refused_suffix(
    cases: Mapping[str, Any],
) -> None:
    """The clash is real, which is why ids ending in ":branch" are refused before publishing."""
    plain, suffixed = cases["split-branch-suffix-clash"]["given"]["node_ids"]

    assert (
        allotter(plain, "12", 50, [1, 1]).arm_key == allotter(suffixed, "12", 50, [1]).holdout_key
    )


def test_two_journeys_with_a_node_of_one_name_hold_out_different_people() -> None:
    first, second = (
        [held_out for held_out, _ in drawn_by(allotter("test", salt, 50, [1]), 20_000)]
        for salt in ("12", "13")
    )

    assert independence_p(Counter(zip(first, second, strict=True))) >= 0.001


@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_another_process_draws_the_same(seed: str, cases: Mapping[str, Any]) -> None:
    users = cases["split-stable-across-processes"]["given"]["users"]
    assert seed in cases["split-stable-across-processes"]["given"]["PYTHONHASHSEED"]
    program = (
        "from journeykit_engine.allot import allotter, draw\n"
        "split = allotter('test', '12', 10, [1, 2])\n"
        f"print([draw(split, str(n).encode()) for n in range({users})])"
    )
    told = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        capture_output=True,
        text=True,
    )

    assert told.stdout.strip() == str(drawn_by(allotter("test", "12", 10, [1, 2]), users))


# --- the SQL twin ---


def test_sqlite_agrees_with_python_person_by_person() -> None:
    db = sqlite3.connect(":memory:")
    db.create_function("journeykit_share", 2, share, deterministic=True)
    db.execute("CREATE TABLE people (user_id TEXT)")
    db.executemany("INSERT INTO people VALUES (?)", [(user,) for user in IDS])

    told = db.execute(f"SELECT user_id, {twin('sqlite')} FROM people ORDER BY rowid").fetchall()
    db.close()

    assert [(user, bool(held_out), variant) for user, held_out, variant in told] == by_python()


def test_duckdb_agrees_with_python_person_by_person() -> None:
    with duckdb.connect() as db:
        told = db.execute(
            f"SELECT user_id, {twin('duckdb')} FROM (SELECT unnest($ids::VARCHAR[]) AS user_id)",
            {"ids": IDS},
        ).fetchall()

    assert told == by_python()


def test_postgresql_agrees_with_python_person_by_person(postgres: Path) -> None:
    people = f"json_array_elements_text($ids${json.dumps(IDS)}$ids$) WITH ORDINALITY"

    told = rows(
        postgres,
        f"SELECT user_id, {twin('postgresql')} FROM {people} AS people(user_id, place)"
        " ORDER BY place",
    )

    assert [tuple(row) for row in told] == by_python()


def test_a_number_column_hashes_as_its_text() -> None:
    with duckdb.connect() as db:
        columns = allot.sql("duckdb", "n", "test", "12", 50, [1, 1], ["A", "B"])
        told = db.execute(f"SELECT n, {columns} FROM range(100) AS people(n)").fetchall()

    split = allotter("test", "12", 50, [1, 1])
    assert told == [named(n, draw(split, person_key(n).encode()), ["A", "B"]) for n in range(100)]


@pytest.mark.parametrize(
    ("dialect", "share_of"),
    [
        (
            "postgresql",
            "('x' || substr(md5(convert_to(CAST(user_id AS text) || chr(31) || '{}', 'UTF8')),"
            " 1, 8))::bit(32)::bigint",
        ),
        (
            "duckdb",
            "('0x' || substr(md5(CAST(user_id AS VARCHAR) || chr(31) || '{}'), 1, 8))::BIGINT",
        ),
        ("sqlite", "journeykit_share(CAST(user_id AS TEXT), '{}')"),
        (
            "bigquery",
            "CAST(CONCAT('0x', SUBSTR(TO_HEX(MD5(CONCAT(CAST(user_id AS STRING),"
            " CODE_POINTS_TO_STRING([31]), '{}'))), 1, 8)) AS INT64)",
        ),
        (
            "snowflake",
            "TO_NUMBER(SUBSTR(MD5(TO_VARCHAR(user_id) || CHR(31) || '{}'), 1, 8), 'XXXXXXXX')",
        ),
    ],
)
def test_the_text_of_each_dialect(dialect: Dialect, share_of: str) -> None:
    held_out = f"{share_of.format('12:test')} < 429496729"
    arm = share_of.format("12:test:branch")

    assert allot.sql(dialect, "user_id", "test", "12", 10, [1, 0, 1, 2], ["A", "B", "C", "D"]) == (
        f"{held_out} AS is_holdout,\n"
        "CASE\n"
        f"  WHEN {held_out} THEN NULL\n"
        f"  WHEN {arm} < 1073741824 THEN 'A'\n"
        f"  WHEN {arm} < 2147483648 THEN 'C'\n"
        "  ELSE 'D'\n"
        "END AS variant"
    )


@pytest.mark.parametrize(
    ("dialect", "literal"),
    [
        ("postgresql", r"'it''s \ '"),
        ("duckdb", r"'it''s \ '"),
        ("sqlite", r"'it''s \ '"),
        ("bigquery", r"'it\'s \\ '"),
        ("snowflake", r"'it\'s \\ '"),
    ],
)
def test_quotes_and_backslashes_stay_inside_their_literal(dialect: Dialect, literal: str) -> None:
    columns = allot.sql(dialect, "user_id", "test", "", 0, [1], ["it's \\ "])

    assert columns.splitlines()[-2] == f"  ELSE {literal}"


def test_every_arm_needs_a_name() -> None:
    with pytest.raises(ValueError) as error:
        allot.sql("duckdb", "user_id", "test", "", 0, [1, 1], ["A"])

    assert str(error.value) == ("There are 1 variants for 2 weights; expected one name for each.")


# --- what the story needs ---


def drawn_by(split: Allotter, users: int) -> list[tuple[bool, int]]:
    return [draw(split, str(user).encode()) for user in range(users)]


def twin(dialect: Dialect) -> str:
    return allot.sql(dialect, "user_id", "it's/گره", "12", 10, WEIGHTS, VARIANTS)


def by_python() -> list[tuple[object, bool, str | None]]:
    split = allotter("it's/گره", "12", 10, WEIGHTS)
    return [named(user, draw(split, user.encode()), VARIANTS) for user in IDS]


def named(
    user: object, drawn: tuple[bool, int], variants: Sequence[str]
) -> tuple[object, bool, str | None]:
    held_out, arm = drawn
    return user, held_out, None if held_out else variants[arm]


def independence_p(counts: Counter[tuple[Any, Any]]) -> float:
    """Pearson's chi-square of a 2 × 2 table; one degree of freedom, so p = erfc(sqrt(x / 2))."""
    rows, columns = sorted({row for row, _ in counts}), sorted({column for _, column in counts})
    assert len(rows) == len(columns) == 2
    total = counts.total()
    statistic = 0.0
    for row in rows:
        for column in columns:
            of_row = sum(counts[row, other] for other in columns)
            of_column = sum(counts[other, column] for other in rows)
            expected = of_row * of_column / total
            statistic += (counts[row, column] - expected) ** 2 / expected
    return math.erfc(math.sqrt(statistic / 2))
