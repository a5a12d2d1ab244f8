"""A rule as SQL answers what the engine's predicate answers, for everybody, on both databases."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import Instant, TimeDelta

from journeykit_engine import rule
from journeykit_engine.facts import Snapshot
from journeykit_server import rules_sql, store, tables
from journeykit_server.clock import microseconds
from journeykit_server.database import Database
from journeykit_server.rules_sql import Look, compile_sql, matching
from journeykit_server.rules_values import Dialect
from tests.engine.test_rule import NUMBERS, RULES

Json = dict[str, Any]
NOW = Instant("2026-06-01T10:00:00Z")
TEHRAN = "Asia/Tehran"
TENANT = 7
PEOPLE = 240
EXAMPLES = 450  # of which about fifty are no sound rules

ODD_NAMES = [
    "",
    'say "a"',
    "a\\b",
    "it's",
    "x.y",
    "$",
    "$.a[0]",
    "🙂",
    "{}",
    "{0}",
    "?",
    ":a",
    "%s",
]
NAMES = ["a", "b", "c", *ODD_NAMES]
EVENTS = ["a", "b", "c"]
VALUES: Sequence[Any] = [
    *(
        "a",
        "ab",
        "ba",
        "1",
        "",
        "A",
        "ä",
        "true",
        "null",
        "[]",
        '["a"]',
        "{}",
        "it's",
        "back\\slash",
    ),
    *(True, False, None, 0, 1, 1.0, 2, 2.5, -3, -0.0, 0.1, 0.2, 0.3, 1e-320, 5e-324),
    *(2**53, 2**53 + 1, 2**53 - 1, 2.0**53, 2**62, 2**62 + 1, 2**63 - 1, -(2**63), 2.0**62),
    *(1e19, 1.2345678901234567e19, 1.7976931348623157e308, -1e300, 18.000000000000004),
    *(17.999999999999996, 0.30000000000000004, 1e16, 12345678901234568.0),
    *([], {}, {"a": 1}, ["a"], [1, "a"], [1.0, True], [None, [], "b"], [["a"]], ["a", "b", 2.5]),
    *("2026-06-01", "2026-05-31", "2026-06-04", "1990-06-02", "2000-02-29", "2027-02-28"),
    *("2026-02-30", "2026-13-01", "0000-01-01", "0001-01-01", "9999-12-31", "2026-6-1", "20260601"),
    *("2026-06-01T10:00:00Z", "2026-06-01T10:00:00.000Z", "2026-06-01T10:00:00.5Z"),
    *("2026-05-31T20:29:59Z", "2026-05-31T20:30:00Z", "2026-05-31T20:30:00.000000001Z"),
    *("2026-06-01T10:00:00", "2026-06-01 10:00:00+00:00", "2026-06-02T01:00:00+03:30"),
    *("2026-05-25T10:00:00Z", "2026-05-25T10:00:01Z", "2026-06-01T24:00:00Z"),
    *("2026-06-01T10:00:60Z", "2026-06-01t10:00:00z", "2026-06-01T10:00:00.1234567890Z"),
    *("9998-12-31T23:59:59Z", "0001-06-01T00:00:00Z", "2026-06-01T10:00:00Z\n", "2026-06-01\n"),
    *("2026-02-29T10:00:00Z", "2024-02-29T10:00:00Z", "soon", "2026-06-01T10:00Z", "2026-W23-1"),
]
ZONES = [
    "",
    "UTC",
    "Asia/Tehran",
    "America/St_Johns",
    "Pacific/Apia",
    "Mars/Base",
    "asia/tehran",
    5,
]


async def fill(connection: AsyncConnection) -> None:
    """People whose traits, events, segments and passes are drawn by chance, the same every time."""
    chance = random.Random(4)
    ids = [f"u{number:03}" for number in range(PEOPLE - 3)] + ["it's", "🙂", "ä\\"]
    rows = [
        (TENANT, user_id, _drawn(chance, NAMES, zones=True), "{}", None, 0, 0) for user_id in ids
    ]
    await store.ADD_PEOPLE.run(connection, [*rows, (TENANT + 1, "u001", "{}", "{}", None, 0, 0)])
    happened = [
        _event(chance, user_id, number)
        for number, user_id in enumerate(one for one in ids for _ in range(chance.randrange(9)))
    ]
    await store.RECORD.run(connection, happened)
    members = [(TENANT, one, n, 0) for one in ids for n in (1, 2, 3) if chance.random() < 0.4]
    await store.JOIN_SEGMENTS.run(connection, members)
    passes = [_pass(chance, one, n) for one in ids for n in (1, 2) if chance.random() < 0.5]
    await connection.execute(insert(tables.instances), passes)


def _drawn(chance: random.Random, names: Sequence[str], zones: bool = False) -> str:
    chosen = {name: chance.choice(VALUES) for name in names if chance.random() < 0.8}
    if zones and chance.random() < 0.7:
        chosen["timezone"] = chance.choice(ZONES)
    return orjson.dumps(chosen).decode()


def _event(chance: random.Random, user_id: str, number: int) -> tuple[Any, ...]:
    at = (
        microseconds(NOW)
        + chance.choice([0, 1, -1, -(10**6)])
        + 60_000_000
        * chance.choice(
            [0, -1, 1, -90, -180, -1440, -10_080, 1440, -813, -814, -chance.randrange(30_000)]
        )
    )
    kind, name = ("identify", "") if chance.random() < 0.05 else ("track", chance.choice(EVENTS))
    kind = "enter" if chance.random() < 0.02 else kind
    properties = _drawn(chance, NAMES) if chance.random() < 0.5 else _amounts(chance)
    return (TENANT, user_id, name, number, "api", f"e{number}", kind, at, at, properties)


def _amounts(chance: random.Random) -> str:
    values = (1, 2, 2.5, 0.1, 0.2, -3, "a", True)
    return orjson.dumps({name: chance.choice(values) for name in EVENTS}).decode()


def _pass(chance: random.Random, user_id: str, journey_id: int) -> Json:
    status = chance.choice(["active", "waiting", "completed", "exited"])
    is_over = status in ("completed", "exited")
    return {
        "tenant_id": TENANT,
        "user_id": user_id,
        "journey_id": journey_id,
        "version": 1,
        "entry_count": 1,
        "rev": 1,
        "status": status,
        "current_node": chance.choice("abc"),
        "entered_at": 0,
        "updated_at": 0,
        "entered_by": "",
        "variant": chance.choice("abc"),
        "is_holdout": chance.random() < 0.5,
        "exit_reason": "completed" if is_over else "",
        "state": "{}",
    }


def dialect_of(database: Database) -> Dialect:
    return "sqlite" if database.is_sqlite else "postgresql"


async def everybody(connection: AsyncConnection, now: Instant, zone: str) -> list[Snapshot]:
    """All that any rule may ask about the people of `fill`, read as the product reads it."""
    asked = [{"event": name} for name in EVENTS]
    body = {"root": {"all": [*asked, {"segment": 1}, {"journey": 1}]}}
    found = await connection.exec_driver_sql(
        f"SELECT user_id FROM profiles WHERE tenant_id = {TENANT} ORDER BY user_id"
    )
    look = Look(TENANT, rule.parse(body), now, zone)
    people = await look.facts(connection, list(found.scalars()))
    return sorted(people, key=lambda facts: facts.person.user_id)


Answers = dict[str, tuple[bool, bool]]


async def answers(
    connection: AsyncConnection, asked: rule.Rule, dialect: Dialect, now: Instant, zone: str
) -> Answers:
    """Whether the rule surely holds, and whether it may, by user id."""
    pushed = compile_sql(asked, dialect=dialect, now=now, account_zone=zone)
    found = await connection.exec_driver_sql(
        f"SELECT p.user_id, {pushed.lower}, {pushed.upper} FROM profiles AS p "
        f"WHERE p.tenant_id = {TENANT}"
    )
    rows: Sequence[Any] = found.all()
    return {user_id: (lower, upper) for user_id, lower, upper in rows}


# --- the law

BIG = st.sampled_from([2**53, 2**53 + 1, 2**62 + 1, -(2**63), 1e19, 18, 0.1, 0.3, 1e300, 0, 5e-324])
TEXTS = st.sampled_from(
    ["a", "it's", "back\\slash", "[]", '["a"]', "{}", "ä", "\ud800", "a\0", "?"]
)
OPERANDS = BIG | NUMBERS | TEXTS | st.booleans()
MORE_TESTS = st.one_of(
    st.fixed_dictionaries({"op": st.sampled_from(["eq", "neq", "includes"]), "value": OPERANDS}),
    st.fixed_dictionaries(
        {
            "op": st.sampled_from(["in", "not_in", "includes_any", "includes_all"]),
            "value": st.lists(OPERANDS, min_size=1, max_size=5),
        }
    ),
    st.fixed_dictionaries({"op": st.sampled_from(["gt", "gte", "lt", "lte"]), "value": BIG}),
    st.fixed_dictionaries(
        {"op": st.sampled_from(["contains", "starts_with", "ends_with"]), "value": TEXTS}
    ),
)
MORE_LEAVES = st.one_of(
    st.builds(lambda test, name: {"trait": name, **test}, MORE_TESTS, st.sampled_from(NAMES)),
    st.builds(
        lambda test, name, more: {"event": "a", "where": [{"property": name, **test}], **more},
        MORE_TESTS,
        st.sampled_from(NAMES),
        st.fixed_dictionaries(
            {"op": st.sampled_from(["eq", "gt", "gte", "lt", "lte"]), "count": st.integers(0, 3)}
        ),
    ),
    st.fixed_dictionaries(
        {
            "local": st.sampled_from(["hour"]),
            "op": st.sampled_from(["eq", "gt", "neq"]),
            "value": st.integers(0, 23),
        }
    ),
)
DRAWN = st.one_of(
    RULES, RULES, MORE_LEAVES, st.lists(MORE_LEAVES).map(lambda found: {"any": found})
)
MOMENTS = st.sampled_from(
    [NOW, NOW, NOW + TimeDelta(microseconds=1), Instant("2027-02-28T23:30:00.5Z")]
)
ACCOUNTS = st.sampled_from(["UTC", TEHRAN, "America/St_Johns", "Pacific/Apia"])


def examples(many: int) -> list[tuple[Json, Instant, str]]:
    """Rules, moments and account zones as Hypothesis draws them, to be asked together."""
    found: list[tuple[Json, Instant, str]] = []

    @settings(max_examples=many)
    @given(DRAWN, MOMENTS, ACCOUNTS)
    def draw(body: Json, now: Instant, zone: str) -> None:
        if not rule.faults({"root": body}):
            found.append((body, now, zone))

    draw()
    return found


async def test_sql_and_the_predicate_agree_on_everybody(database: Database) -> None:
    await database.run(fill)
    dialect = dialect_of(database)
    people: dict[tuple[Instant, str], list[Snapshot]] = {}
    drawn = examples(EXAMPLES)

    async def ask(connection: AsyncConnection) -> list[Any]:
        wrong: list[Any] = []
        for body, now, zone in drawn:
            if (now, zone) not in people:
                people[now, zone] = await everybody(connection, now, zone)
            asked = rule.parse({"root": body})
            told = await answers(connection, asked, dialect, now, zone)
            holds = rule.compile_rule(asked)
            for facts in people[now, zone]:
                (lower, upper), answer = told[facts.person.user_id], holds(facts)
                if not lower <= answer <= upper:
                    wrong.append((body, now, zone, facts.person, lower, answer, upper))
        return wrong

    assert len(drawn) > 300
    assert await database.read(ask) == []


# --- what SQL says alone

PLAIN: list[Json] = [
    {"trait": "a", "op": "eq", "value": "premium"},
    {"trait": "a", "op": "not_in", "value": ["free", 1, True]},
    {"trait": "a", "op": "gte", "value": 18},
    {"trait": "a", "op": "between", "value": [0.5, 99.99]},
    {"trait": 'say "a"', "op": "exists"},
    {"trait": "a", "op": "contains", "value": "it's"},
    {"trait": "a", "op": "is_true"},
    {"trait": "a", "op": "includes_all", "value": ["x", 2]},
    {"trait": "a", "op": "size_gt", "value": 2},
    {"event": "purchase"},
    {"event": "purchase", "op": "lt", "count": 3, "within": "30d"},
    {"event": "purchase", "where": [{"property": "amount", "op": "gt", "value": 50}]},
    {"event": "purchase", "aggregate": "max", "property": "amount", "op": "gt", "value": 50},
    {"event": "purchase", "aggregate": "last_at", "op": "before_last", "value": "30d"},
    {"event": "purchase", "aggregate": "first_at", "op": "on_day", "value": "2026-05-01"},
    {"segment": 12},
    {"journey": 3, "status": "completed", "holdout": False},
    {"local": "hour", "op": "between", "value": [9, 17]},
    {"local": "weekday", "op": "not_in", "value": ["sat", "sun"]},
]


DIALECTS: tuple[Dialect, ...] = ("sqlite", "postgresql")


def test_the_usual_questions_leave_no_doubt() -> None:
    given: list[tuple[Dialect, Json]] = []
    bodies: list[Json] = [*PLAIN, {"none": PLAIN}, {"not": {"all": PLAIN}}]
    for dialect in DIALECTS:
        for body in bodies:
            asked = rule.parse({"root": body})
            if not compile_sql(asked, dialect=dialect, now=NOW, account_zone=TEHRAN).is_exact:
                given.append((dialect, body))

    assert given == []


def test_postgresql_adds_decimals_and_has_the_hash() -> None:
    total = {"event": "purchase", "aggregate": "sum", "property": "x", "op": "gt", "value": 0.3}
    for body in ({"bucket": {"salt": "x", "from": 0, "to": 2500}}, total):
        asked = rule.parse({"root": body})
        told = {
            dialect: compile_sql(asked, dialect=dialect, now=NOW, account_zone="UTC").is_exact
            for dialect in DIALECTS
        }

        assert told == {"postgresql": True, "sqlite": False}


WRITTEN = [
    *("2026-06-01", "2000-02-29", "2026-02-30", "", "soon", "2026-05-31T20:30:00Z"),
    *("2026-05-31T20:29:59.999Z", 20260601, None),
]


@pytest.mark.parametrize(
    "test",
    [
        {"op": "on_day", "value": "2026-06-01"},
        {"op": "within_last", "value": "2d"},
        {"op": "days_since", "value": 0},
        {"op": "days_until", "value": 273, "annual": True, "compare": "gte"},
    ],
)
async def test_nobody_with_a_plain_date_is_in_doubt(database: Database, test: Json) -> None:
    asked = rule.parse({"root": {"trait": "at", **test}})
    rows = [
        (TENANT, f"u{number}", orjson.dumps({"at": value}).decode(), "{}", None, 0, 0)
        for number, value in enumerate(WRITTEN)
    ]
    await database.run(lambda connection: store.ADD_PEOPLE.run(connection, rows))
    told = await database.read(
        lambda connection: answers(connection, asked, dialect_of(database), NOW, TEHRAN)
    )
    doubtful = [user_id for user_id, (lower, upper) in told.items() if lower != upper]
    assert doubtful == ["u2"]  # which looks like a date and is none


# --- how deep and how wide a rule may be


def deepest() -> Json:
    body: Json = {"trait": "a", "op": "eq", "value": "a"}
    other = {"trait": "b", "op": "gt", "value": 1}
    event = {"event": "a", "where": [{"property": "a", "op": "includes", "value": "a"}]}
    for number in range(rule.MAX_DEPTH - 1):
        body = [{"all": [other, body]}, {"any": [event, body]}, {"none": [body, other]}][number % 3]
    return body


def bushiest() -> Json:
    """Every group has two deep children, as far as the number of leaves allows."""

    def grown(depth: int) -> Json:
        if depth == 0:
            return {"segment": 2}
        return {("all", "any")[depth % 2]: [grown(depth - 1), grown(depth - 1)]}

    body = grown(8)
    for number in range(rule.MAX_DEPTH - 9):
        body = {("none", "any")[number % 2]: [{"segment": 1}, body]}
    return body


def widest() -> Json:
    return {"any": [{"trait": f"t{n}", "op": "between", "value": [n, n]} for n in range(500)]}


@pytest.mark.parametrize("build", [deepest, bushiest, widest])
async def test_the_largest_rules_can_be_asked(
    database: Database, build: Callable[[], Json]
) -> None:
    await database.run(fill)
    asked = rule.parse({"root": build()})

    async def ask(connection: AsyncConnection) -> None:
        told = await answers(connection, asked, dialect_of(database), NOW, "UTC")
        holds = rule.compile_rule(asked)
        for facts in await everybody(connection, NOW, "UTC"):
            lower, upper = told[facts.person.user_id]
            assert lower <= holds(facts) <= upper

    await database.read(ask)


# --- pages

DOUBTFUL: Mapping[str, Any] = {
    "any": [
        {"bucket": {"salt": "x", "from": 0, "to": 5000}},
        {"trait": "a", "op": "within_last", "value": "2w"},
        {"event": "b", "aggregate": "sum", "property": "a", "op": "gt", "value": 0.2},
    ]
}


async def every_page(
    database: Database, asked: rule.Rule, limit: int, extra: str = "", up_to: str | None = None
) -> list[rules_sql.Page]:
    pages: list[rules_sql.Page] = []
    after = ""
    while not pages or not pages[-1].is_last:

        async def look(connection: AsyncConnection, after: str = after) -> rules_sql.Page:
            return await matching(
                connection,
                TENANT,
                asked,
                now=NOW,
                account_zone=TEHRAN,
                after=after,
                limit=limit,
                extra=extra,
                up_to=up_to,
            )

        pages.append(await database.read(look))
        after = pages[-1].position
    return pages


def ids(pages: Sequence[rules_sql.Page]) -> list[str]:
    return [user_id for page in pages for user_id in page.user_ids]


@pytest.mark.parametrize(("limit", "stretch"), [(1, 50), (7, 50), (PEOPLE, 50), (1000, 1000)])
async def test_pages_find_everybody_once_and_in_order(
    database: Database, monkeypatch: pytest.MonkeyPatch, limit: int, stretch: int
) -> None:
    monkeypatch.setattr(rules_sql, "STRETCH", stretch)
    await database.run(fill)
    asked = rule.parse({"root": DOUBTFUL})
    people = await database.read(lambda connection: everybody(connection, NOW, TEHRAN))
    holds = rule.compile_rule(asked)

    pages = await every_page(database, asked, limit)

    assert ids(pages) == [one.person.user_id for one in people if holds(one)]
    assert sum(page.doubtful for page in pages) > 0
    assert all(len(page.user_ids) <= limit for page in pages)


async def test_one_more_condition_narrows_the_pages(database: Database) -> None:
    await database.run(fill)
    first = {"tenant_id": TENANT, "journey_id": 1, "user_id": "u001"}
    await database.run(lambda c: c.execute(insert(tables.audience), [first]))
    known = (
        "NOT EXISTS (SELECT 1 FROM audience AS a WHERE a.tenant_id = p.tenant_id "
        "AND a.journey_id = 1 AND a.user_id = p.user_id)"
    )

    everyone = ids(await every_page(database, rule.parse({"root": {}}), 100))
    others = ids(await every_page(database, rule.parse({"root": {}}), 100, known))

    assert sorted(set(everyone) - set(others)) == ["u001"]


@pytest.mark.parametrize("stretch", [20, 1000])
async def test_a_look_may_end_at_a_person(
    database: Database, monkeypatch: pytest.MonkeyPatch, stretch: int
) -> None:
    """Who need not be there."""
    monkeypatch.setattr(rules_sql, "STRETCH", stretch)
    await database.run(fill)
    asked = rule.parse({"root": DOUBTFUL})
    everyone = ids(await every_page(database, asked, 100))
    middle = everyone[len(everyone) // 2]

    for up_to in (middle, middle + "a", ""):
        found = ids(await every_page(database, asked, 7, up_to=up_to))
        assert found == [user_id for user_id in everyone if user_id <= up_to]


async def test_nobody_is_there_and_nobody_is_found(database: Database) -> None:
    pages = await every_page(database, rule.parse({"root": {}}), 10)

    assert pages == [rules_sql.Page([], "", True, 0)]
