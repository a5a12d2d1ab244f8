"""Who is held out and who gets which arm: a hash of ids, no chance and no memory.

The rule: a share is the first four bytes, big-endian and unsigned, of
``MD5(utf8(user_id) + 0x1f + utf8(key))``. A person is held out when the share of the split's key
is below ``floor(holdout_percent / 100 * 2**32)``; the arm is read from a second, independent share
under the id ``node_id + ":branch"``. MD5 because every warehouse can compute it: `sql` writes the
same decision as text for five of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import accumulate
from math import floor
from typing import Literal, NamedTuple, SupportsIndex, assert_never

try:  # CPython's own: the same digest in half the time, OpenSSL's set-up being longer than the work
    from _md5 import md5 as md5  # type: ignore[import-not-found, unused-ignore]
except ImportError:  # another Python, or one built without it
    from hashlib import md5 as md5

WHOLE = 2**32
"""Shares run from 0 to WHOLE - 1, so a cut of WHOLE takes everybody."""

SEPARATOR = b"\x1f"
"""ASCII "unit separator" between the hashed parts, so that ("ab", "c") and ("a", "bc") differ."""

HEX_DIGITS = 8
"""Four bytes of a digest written in hexadecimal, as SQL reads them."""

DIGEST_BYTES = 16
"""Of an MD5; a share is the first four of them."""

Dialect = Literal["postgresql", "sqlite", "duckdb", "bigquery", "snowflake"]


class Allotter(NamedTuple):
    """One split made ready for many people: keys encoded, cuts counted."""

    holdout_cut: int
    holdout_key: bytes
    arm_key: bytes
    cuts: tuple[int, ...]
    only_arm: int | None
    """The arm everybody gets when no other has weight; None when the hash has to tell."""


def allotter(node_id: str, salt: str, holdout_percent: float, weights: Sequence[float]) -> Allotter:
    """The split `node_id` made ready for `draw`; ValueError for weights or a percent it cannot use.

    `salt` is the text to hash with, `""` for none: the caller has already put the journey id where
    the graph says nothing.
    """
    cuts = arm_cuts(weights)
    weighted = [arm for arm, weight in enumerate(weights) if weight > 0]
    return Allotter(
        holdout_cut=holdout_cut(holdout_percent),
        holdout_key=SEPARATOR + split_key(node_id, salt).encode(),
        arm_key=SEPARATOR + split_key(node_id + ":branch", salt).encode(),
        cuts=cuts,
        only_arm=weighted[0] if len(weighted) == 1 else None,
    )


HELD_OUT = -1
"""What `drawer` answers for a person of the holdout; an arm is 0 or more."""


def drawer(split: Allotter) -> Callable[[bytes], int]:
    """The arm of one person, whose id comes as UTF-8, or `HELD_OUT`; made once for many people.

    Hashes only where the answer can differ: a holdout needs no arm, a lone arm no hash.
    """
    holdout_cut, holdout_key, arm_key, cuts, only_arm = split
    held_below, edges = _edge(holdout_cut), tuple(map(_edge, cuts))

    def arm_of(user: bytes) -> int:
        if holdout_cut and md5(user + holdout_key, usedforsecurity=False).digest() < held_below:
            return HELD_OUT
        if only_arm is not None:
            return only_arm
        return bisect_right(edges, md5(user + arm_key, usedforsecurity=False).digest())

    return arm_of


def _edge(cut: int) -> bytes:
    """The cut as bytes, below which a whole digest lies exactly where its share lies below the cut:
    bytes compare like big-endian numbers, and no share has to be made of them. Nothing is above
    the cut of everybody, so its bytes are more than a digest has."""
    return cut.to_bytes(4, "big") if cut < WHOLE else b"\xff" * (DIGEST_BYTES + 1)


def draw(split: Allotter, user: bytes) -> tuple[bool, int]:
    """(held out, arm) of one person; a holdout gets 0, the first branch.

    >>> draw(allotter("ab", "12", 100, [1, 1]), b"u1")
    (True, 0)
    """
    arm = drawer(split)(user)
    return (True, 0) if arm == HELD_OUT else (False, arm)


def share(user_id: str, key: str) -> int:
    """Where a person falls under `key`, from 0 to WHOLE - 1.

    A lone surrogate has no UTF-8: the UnicodeEncodeError is let out, and the walk then treats
    nobody.

    >>> share("7", "test") == share("7", "test:branch")
    False
    """
    return _first_bytes(user_id.encode() + SEPARATOR + key.encode())


def jitter_share(user_id: str, node_id: str, entry_count: int) -> int:
    """The share that delays this person at this node in this entry, the same on every retry."""
    return share(user_id, f"{node_id}:jitter\x1f{entry_count}")


def split_key(node_id: str, salt: str) -> str:
    """What a split hashes people under; the salt keeps two journeys with equal node ids apart."""
    return f"{salt}:{node_id}" if salt else node_id


def person_key(user_id: object) -> str:
    """The text a person is hashed by: 7 and "7" are one person, "7.0" is another.

    Raises ValueError for anything but a non-empty text or a whole number.

    >>> person_key(7)
    '7'
    """
    if isinstance(user_id, str) and user_id:
        return user_id
    if isinstance(user_id, SupportsIndex) and not isinstance(user_id, bool):
        return str(user_id.__index__())
    found = "empty" if user_id == "" else f"{user_id!r}, a {type(user_id).__name__}"
    raise ValueError(
        f"The user id is {found}; expected a text or a whole number. "
        'Send the id as a text, for example "7".'
    )


def cut(portion: float | Fraction) -> int:
    """The share below which `portion` (0 to 1) of all people fall: `floor(portion * 2**32)`.

    Counted in whole numbers from the portion as it is written, so that 0.1 means one tenth and not
    the binary number next to it, on every platform.

    >>> cut(0), cut(0.1), cut(1)
    (0, 429496729, 4294967296)
    """
    exact = _as_written(portion)
    if not 0 <= exact <= 1:
        raise ValueError(f"The portion is {portion}; expected a number from 0 to 1.")
    return floor(exact * WHOLE)


def holdout_cut(holdout_percent: float) -> int:
    """The cut of a percentage; ValueError outside 0 to 100."""
    exact = _as_written(holdout_percent)
    if not 0 <= exact <= 100:
        raise ValueError(
            f"The holdout percent is {holdout_percent}; expected a number from 0 to 100."
        )
    return cut(exact / 100)


def arm_cuts(weights: Sequence[float]) -> tuple[int, ...]:
    """The share at which each arm ends; the last arm of positive weight takes the edge.

    Weights count relative to each other: [1, 1], [50, 50] and [0.5, 0.5] are one split.

    >>> arm_cuts([1, 1])
    (2147483648, 4294967296)
    """
    exact = [_as_written(weight) for weight in weights]
    if any(weight < 0 for weight in exact):
        raise ValueError(f"The weights are {list(weights)}; expected none below 0.")
    if not any(exact):
        raise ValueError(f"The weights are {list(weights)}; expected at least one above 0.")
    total = sum(exact)
    return tuple(floor(reached / total * WHOLE) for reached in accumulate(exact))


def arm_at(share: int, cuts: Sequence[int]) -> int:
    """The arm a share falls in; an arm of no width gets nobody.

    >>> arm_at(0, arm_cuts([0, 1, 1])), arm_at(WHOLE - 1, arm_cuts([0, 1, 0]))
    (1, 1)
    """
    return bisect_right(cuts, share)


def sql(
    dialect: Dialect,
    user_column: str,
    node_id: str,
    salt: str,
    holdout_percent: float,
    weights: Sequence[float],
    variants: Sequence[str],
) -> str:
    """The same decision as two columns of a SELECT: `is_holdout` and `variant` (NULL if held out).

    `user_column` is pasted as it stands (a column or an expression over one); everything else is
    escaped for the dialect. SQLite has no MD5: register `share` on the connection first.

    >>> import sqlite3
    >>> db = sqlite3.connect(":memory:")
    >>> db.create_function("journeykit_share", 2, share, deterministic=True)
    >>> columns = sql("sqlite", "user_id", "ab", "12", 10, [1, 1], ["A", "B"])
    >>> db.execute(f"SELECT {columns} FROM (SELECT 'u1' AS user_id)").fetchone()
    (0, 'B')
    >>> db.close()
    """
    if len(variants) != len(weights):
        raise ValueError(
            f"There are {len(variants)} variants for {len(weights)} weights; "
            "expected one name for each."
        )
    held_out = (
        f"{_sql_share(dialect, user_column, split_key(node_id, salt))}"
        f" < {holdout_cut(holdout_percent)}"
    )
    arm = _sql_share(dialect, user_column, split_key(node_id + ":branch", salt))
    return "\n".join(
        [
            f"{held_out} AS is_holdout,",
            "CASE",
            f"  WHEN {held_out} THEN NULL",
            *_sql_arms(dialect, arm, weights, variants),
            "END AS variant",
        ]
    )


def _sql_arms(
    dialect: Dialect, arm: str, weights: Sequence[float], variants: Sequence[str]
) -> list[str]:
    """One WHEN for each arm of positive weight, and ELSE for the last, which takes the edge."""
    *before, (_, last) = [
        (end, _sql_text(dialect, variant))
        for end, weight, variant in zip(arm_cuts(weights), weights, variants, strict=True)
        if weight > 0
    ]
    return [*(f"  WHEN {arm} < {end} THEN {name}" for end, name in before), f"  ELSE {last}"]


def _sql_share(dialect: Dialect, user_column: str, key: str) -> str:
    """The share as an expression. PostgreSQL needs bit(32) on the way: an int would be signed."""
    name = _sql_text(dialect, key)
    match dialect:
        case "postgresql":
            hashed = f"convert_to(CAST({user_column} AS text) || chr(31) || {name}, 'UTF8')"
            return f"('x' || substr(md5({hashed}), 1, {HEX_DIGITS}))::bit(32)::bigint"
        case "duckdb":
            hashed = f"CAST({user_column} AS VARCHAR) || chr(31) || {name}"
            return f"('0x' || substr(md5({hashed}), 1, {HEX_DIGITS}))::BIGINT"
        case "sqlite":
            return f"journeykit_share(CAST({user_column} AS TEXT), {name})"
        case "bigquery":
            hashed = f"CONCAT(CAST({user_column} AS STRING), CODE_POINTS_TO_STRING([31]), {name})"
            return f"CAST(CONCAT('0x', SUBSTR(TO_HEX(MD5({hashed})), 1, {HEX_DIGITS})) AS INT64)"
        case "snowflake":
            hashed = f"TO_VARCHAR({user_column}) || CHR(31) || {name}"
            return f"TO_NUMBER(SUBSTR(MD5({hashed}), 1, {HEX_DIGITS}), '{'X' * HEX_DIGITS}')"
        case _:
            assert_never(dialect)


def _sql_text(dialect: Dialect, text: str) -> str:
    """A string literal. BigQuery and Snowflake read backslashes; the others only double quotes."""
    if dialect in ("bigquery", "snowflake"):
        for plain, escaped in (("\\", "\\\\"), ("'", "\\'"), ("\n", "\\n"), ("\r", "\\r")):
            text = text.replace(plain, escaped)
        return f"'{text}'"
    return "'" + text.replace("'", "''") + "'"


def _first_bytes(hashed: bytes) -> int:
    return int.from_bytes(md5(hashed, usedforsecurity=False).digest()[:4], "big")


def _as_written(number: float | Fraction) -> Fraction:
    """The number people wrote: the shortest decimal that reads back as this float."""
    return Fraction(float.__repr__(number)) if isinstance(number, float) else Fraction(number)
