"""Messages a second through every question and the log, as a ratio to the bare outbox.

The bare side claims, hands the same rows to the log provider and settles, and asks nothing. The
other side asks all of it: the journey's door, the template, the channel and its address, consent, a
cap, quiet hours; once with a text that stands as it is, once with one that is rendered from six
values, a condition and a loop, which is the templates' own speed. All stand on copies of databases
that differ in that text alone.

    python3 dev.py bench governance
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterable, Sequence
from operator import truediv
from statistics import median
from typing import Any

import journeykit as jk
from bench.ground import (
    START,
    TENANT,
    Ground,
    calm_down,
    create_tables,
    grounds,
    opened,
    publish,
    ready,
    say,
    say_ratio,
    seconds,
)
from journeykit_server import subscriptions
from journeykit_server.clock import microseconds
from journeykit_server.database import Database
from journeykit_server.delivery import Item, LogProvider
from journeykit_server.governance import Course
from journeykit_server.incoming import Incoming
from journeykit_server.outbox import Outbox, Settled
from journeykit_server.policy import save_policy
from journeykit_server.templates import save_template

ASKED_GOAL, RENDERED_GOAL = 0.4, 0.25  # of the bare drain
BATCH = 500  # people of one ingest
PLAIN = {"subject": "You were passed", "body": "Somebody is ahead of you now."}
LIQUID = {
    "subject": "{{ name }}, {{ event.rival }} passed you",
    "body": (
        "Hi {{ name | default: 'you' }},\n{{ event.rival }} is {{ event.rank }}th in {{ city }} "
        "now.{% if plan == 'gold' %} Your gold days count twice.{% endif %}\n"
        "{% for tip in tips %}* {{ tip | capitalize }}\n{% endfor %}"
    ),
}
POLICY = {
    "quiet_hours": {"from": "22:00", "to": "08:00"},
    "caps": {"default": {"per_day": 3}, "*": {"per_day": 5}},
    "opt_in": ["sms"],
}
TRAITS = {"city": "Berlin", "plan": "gold", "tips": ["run", "rest"], "timezone": "Europe/Berlin"}


async def fill(ground: Ground, base: str, crowd: int, texts: dict[str, str]) -> None:
    """A database with one message in the outbox for each of the crowd."""
    await create_tables(ground, base)
    async with opened(ground, base) as database:
        await save_template(database, TENANT, name="Rank", channel="email", texts=texts)
        await save_policy(database, TENANT, POLICY)
        await publish(database, [jk.journey("rank").on_event("passed").send(email=1).exit()])
        runtime = await ready(database)
        for first in range(0, crowd, BATCH):
            people = [f"u_{n:06}" for n in range(first, min(first + BATCH, crowd))]
            await runtime.ingest(TENANT, [known(user) for user in people])
            await runtime.ingest(TENANT, [passed(user) for user in people])
            await subscribe(database, people)
    await ground.settle(base)


def known(user: str) -> Incoming:
    traits = {"name": user, "email": f"{user}@example.org", **TRAITS}
    return Incoming("identify", user, properties=traits, id=f"i_{user}")


def passed(user: str) -> Incoming:
    return Incoming("track", user, "passed", {"rival": "Sara", "rank": 4}, id=f"p_{user}")


async def subscribe(database: Database, people: Iterable[str]) -> None:
    said = [
        subscriptions.Change(TENANT, user, "email", "marketing", "subscribed", "form", "")
        for user in people
    ]
    at = microseconds(START)
    await database.run(lambda connection: subscriptions.change(connection, said, at))


class Unasked:
    """Lets everything go as it stands."""

    async def govern(self, _: Any, items: Sequence[Item]) -> list[Course]:
        return [Course((item,), None, item) for item in items]


async def nobody_enters(_: int, __: Sequence[Item]) -> Any:
    raise AssertionError("nobody is sent on here")


async def drain(ground: Ground, base: str, crowd: int, asks: bool) -> float:
    """Messages a second."""
    await ground.create("round", base)
    async with opened(ground, "round") as database:
        outbox = Outbox(database, LogProvider(database), nobody_enters)
        if not asks:
            outbox.governor = Unasked()  # type: ignore[assignment]
        sums = Settled()

        async def all_of_it() -> None:
            nonlocal sums
            while any(settled := await outbox.deliver_once()):
                sums = Settled(*map(sum, zip(sums, settled, strict=True)))

        calm_down()
        took = await seconds(all_of_it)
        assert sums == Settled(delivered=crowd), sums
    await ground.drop("round")
    return crowd / took


async def measure_on(ground: Ground, crowd: int, rounds: int) -> None:
    await fill(ground, "plain", crowd, PLAIN)
    await fill(ground, "liquid", crowd, LIQUID)
    bare, asked, rendered = [], [], []
    for _ in range(rounds):
        bare.append(await drain(ground, "plain", crowd, asks=False))
        asked.append(await drain(ground, "plain", crowd, asks=True))
        rendered.append(await drain(ground, "liquid", crowd, asks=True))
    rates = {"asked": asked, "asked and rendered": rendered, "bare outbox": bare}
    say(f"{ground.name}, messages a second", rates)
    say_ratio("asked", median(map(truediv, asked, bare)), ASKED_GOAL)
    say_ratio("asked and rendered", median(map(truediv, rendered, bare)), RENDERED_GOAL)


async def measure(given: argparse.Namespace) -> None:
    with grounds() as both:
        for ground in both:
            await measure_on(ground, given.messages, given.rounds)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Governed messages against a bare outbox")
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    asyncio.run(measure(parser.parse_args(words)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
