"""People a second that a look of the scanner passes, as a ratio to pages through the predicate.

A rule as shops have it: the plan is premium, and at least two purchases in 30 days. The product
pushes it down to SQL. The other side reads everybody in pages of 5,000, with all the events that
the rule asks about, and asks the engine's predicate. Both find the same people. One in three people
is premium, and everybody has three events on average, half of them purchases of the last months.

    python3 dev.py bench segments
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from statistics import median
from typing import Any

import orjson
from sqlalchemy.ext.asyncio import AsyncConnection

from bench.ground import (
    START,
    TENANT,
    Ground,
    calm_down,
    create_tables,
    grounds,
    opened,
    say,
    say_ratio,
    seconds,
    statements,
)
from journeykit_engine import rule
from journeykit_server import store
from journeykit_server.bulk import Insert
from journeykit_server.clock import microseconds
from journeykit_server.database import Database
from journeykit_server.rules_sql import Look, matching

GOAL = 10.0  # times the pages through the predicate
PAGE = 5_000
RULE = rule.parse(
    {
        "root": {
            "all": [
                {"trait": "plan", "op": "eq", "value": "premium"},
                {"event": "purchase", "op": "gte", "count": 2, "within": "30d"},
            ]
        }
    }
)
DAY = 86_400_000_000  # microseconds


# --- who is there


def people(count: int) -> Iterator[tuple[Any, ...]]:
    """Profiles as they are in a shop, six traits each."""
    chance = random.Random(1)
    for number in range(count):
        traits = {
            "plan": chance.choice(("free", "trial", "premium")),
            "country": chance.choice(("DE", "FR", "IR", "US")),
            "email": f"user{number}@example.org",
            "age": chance.randrange(18, 80),
            "spent": round(chance.random() * 500, 2),
            "newsletter": chance.random() < 0.5,
        }
        yield TENANT, user_id(number), orjson.dumps(traits).decode(), "{}", None, 0, 0


def user_id(number: int) -> str:
    return f"u_{number:08}"


def events(count: int, of: int) -> Iterator[tuple[Any, ...]]:
    """In the order of their arrival, everybody's in between everybody else's."""
    chance, now = random.Random(2), microseconds(START)
    for number in range(count):
        at = now - (count - number) * 90 * DAY // count
        name = "purchase" if chance.random() < 0.5 else "page_viewed"
        properties = orjson.dumps({"amount": round(chance.random() * 90, 2), "currency": "EUR"})
        head = (TENANT, user_id(chance.randrange(of)), name, number, "api", f"e{number}", "track")
        yield *head, at, at, properties.decode()


async def prepare(ground: Ground, base: str, profiles: int, happened: int) -> None:
    await create_tables(ground, base)
    async with opened(ground, base) as database:
        for insert, rows in (
            (store.ADD_PEOPLE, people(profiles)),
            (store.RECORD, events(happened, profiles)),
        ):
            for batch in batches(rows, 20_000):
                await database.run(partial(_write, insert, batch))
    await ground.settle(base)


def batches(rows: Iterable[tuple[Any, ...]], size: int) -> Iterator[list[tuple[Any, ...]]]:
    """The rows in lists of `size`."""
    left = iter(rows)
    while batch := list(islice(left, size)):
        yield batch


async def _write(insert: Insert, rows: list[tuple[Any, ...]], connection: AsyncConnection) -> None:
    await insert.run(connection, rows)


# --- both sides


async def pushed(database: Database) -> list[str]:
    """The product, in pages as the scanner takes them."""
    found: list[str] = []
    after, is_last = "", False
    while not is_last:

        async def look(connection: AsyncConnection, after: str = after) -> Any:
            return await matching(
                connection, TENANT, RULE, now=START, account_zone="UTC", after=after, limit=PAGE
            )

        page = await database.read(look)
        found += page.user_ids
        after, is_last = page.position, page.is_last
    return found


async def paged(database: Database) -> list[str]:
    """Everybody in pages, with a history, before the predicate."""
    look, after, found = Look(TENANT, RULE, START, "UTC"), "", list[str]()
    holds = rule.compile_rule(RULE)
    while True:

        async def page(connection: AsyncConnection, after: str = after) -> Any:
            ids = await _next_ids(connection, after)
            facts = await look.facts(connection, ids)
            return ids, [one.person.user_id for one in facts if holds(one)]

        ids, holding = await database.read(page)
        found += holding
        if len(ids) < PAGE:
            return found
        after = ids[-1]


async def _next_ids(connection: AsyncConnection, after: str) -> list[str]:
    rows = await connection.exec_driver_sql(
        f"SELECT user_id FROM profiles WHERE tenant_id = {TENANT} AND user_id > '{after}' "
        f"ORDER BY user_id LIMIT {PAGE}"
    )
    return list(rows.scalars())


# --- the measurement


async def measure(ground: Ground, profiles: int, happened: int, rounds: int) -> float:
    await prepare(ground, "people", profiles, happened)
    rates: dict[str, list[float]] = {"SQL": [], "pages through the predicate": []}
    answers: list[list[str]] = []
    async with opened(ground, "people") as database:
        calm_down()
        for _ in range(rounds):
            for name, side in (("SQL", pushed), ("pages through the predicate", paged)):

                async def run(side: Any = side) -> None:
                    answers.append(sorted(await side(database)))

                rates[name].append(profiles / await seconds(run))
        assert all(answer == answers[0] for answer in answers), "the two sides differ"
        with statements(database) as sent:
            await pushed(database)
    await ground.drop("people")
    say(f"{ground.name}, people a second", rates)
    print(f"  {len(answers[0]):,} people found, by {len(sent)} statements")
    ratio = median(rates["SQL"]) / median(rates["pages through the predicate"])
    say_ratio("SQL to pages", ratio, GOAL)
    return ratio


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="segments")
    parser.add_argument("--profiles", type=int, default=1_000_000)
    parser.add_argument("--events", type=int, default=3_000_000)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args(words)

    async def all_of_it() -> None:
        with grounds() as places:
            for ground in places:
                await measure(ground, options.profiles, options.events, options.rounds)

    asyncio.run(all_of_it())


if __name__ == "__main__":
    main(sys.argv[1:])
