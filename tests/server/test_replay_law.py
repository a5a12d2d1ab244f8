"""Any history through any journeys, lived through the store batch by batch, is the history that
`replay` tells: the same journal, the same messages, the same sums at every node."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import count, groupby
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from sqlalchemy import select
from whenever import Instant, TimeDelta

import journeykit as jk
from journeykit_engine.check import Report, check
from journeykit_engine.phone import phone_zone
from journeykit_engine.program import Program
from journeykit_engine.replay import Line, replay, run
from journeykit_engine.timing import write_instant
from journeykit_server import publishing
from journeykit_server.clock import VirtualClock, instant
from journeykit_server.database import Database
from journeykit_server.incoming import Incoming
from journeykit_server.publishing import save_draft, stats
from journeykit_server.runtime import Runtime
from journeykit_server.tables import journal, messages
from journeykit_server.worker import Worker
from tests import graphs
from tests import postgres as throwaway
from tests.databases import open_database, postgresql_address, sqlite_address
from tests.reliability.laws import broken
from tests.reliability.stage import rows

Value = dict[str, Any]
TENANT = 1
A_MOMENT = TimeDelta(microseconds=1)
AFTERWARDS = TimeDelta(hours=24 * 40)
MOST_RECORDS = 200  # of one journey; a loop of minutes would go on for weeks
ZONE = "America/New_York"  # the account's
LEAST_LINES, MOST_LINES = 10, 60
NUMBERS = count(1)


class Life(NamedTuple):
    """Journeys, published at `start`, and what happened, batch by batch."""

    documents: Sequence[Value]
    start: Instant
    batches: list[list[Did]]


# --- drawing journeys


@st.composite
def documents(draw: DrawFn, journey_id: int, *, alone: bool) -> Value:
    """A journey of any shape that is entered by an event, a trait or a call. One that is not alone
    keeps to itself: `replay` has one journey and cannot know what others write."""
    value = draw(graphs.valid_graphs(max_nodes=8)).to_value()
    door = next(node for node in value["nodes"] if node["kind"] == "trigger")
    door["trigger"] = draw(triggers())
    if draw(st.integers(0, 3)):  # else few come in, and those who do are out at once
        value["entry_rule"] = "every_time"
        value.pop("exit_criteria", None)
    return dict(_own(value, journey_id, alone))


def triggers() -> st.SearchStrategy[Value]:
    named = st.builds(lambda name: {"kind": "event", "event": name}, graphs.events)
    return st.one_of(
        named,
        named,
        st.builds(
            lambda name, where: {"kind": "event", "event": name, "filter": where},
            graphs.events,
            graphs.comparisons(),
        ),
        st.builds(lambda trait: {"kind": "attribute_changed", "trait": trait}, graphs.words),
        st.builds(
            lambda trait, value: {"kind": "attribute_changed", "trait": trait, "value": value},
            graphs.words,
            st.sampled_from(VALUES),
        ),
        st.just({"kind": "api"}),
    )


def _own(value: Any, journey_id: int, alone: bool) -> Any:
    """The same with numbers of its own: it asks about its own passes and its own segments."""
    if isinstance(value, list):
        return [_own(item, journey_id, alone) for item in value]
    if not isinstance(value, dict):
        return value
    own = {key: _own(item, journey_id, alone) for key, item in value.items()}
    if type(own.get("journey")) is int:
        own["journey"] = journey_id
    for key in ("segment", "segment_id"):
        if type(own.get(key)) is int:
            own[key] = journey_id * 10 + own[key] % 3
    if own.get("kind") == "update_trait" and not alone:
        own["trait"] = f"own {journey_id}"
    return own


def rich() -> Value:
    """What random journeys seldom are: a loop with a split, a goal, and every kind of wait."""
    journey = (
        jk.journey("rich")
        .on_event("purchase")
        .reenter("every_time", cooldown_hours=5)
        .exit_on("booked")
        .exit_when(jk.trait("plan") == "gold")
        .at_most(30)
        .send_window(["mon", "tue", "wed", "thu", "fri", "sun"], "09:30", "17:00")
        .jitter("45m")
        .split(
            "test",
            {"A": lambda j: j.send(email=1), "B": lambda j: j.send(push=2, sms=3)},
            holdout=30,
            id="half",
        )
        .wait_for("reply", timeout="6h", id="ask")
        .set_trait("age", 40)
        .wait_until(2, 30, id="night")
        .when(
            jk.did("purchase", at_least=3),
            yes=lambda j: j.task("call", title="ring").exit(id="rung"),
            id="often",
        )
        .goal("ثبت نام", within="7d", reached=jk.path().exit(id="won"), id="goal")
        .webhook("https://example.org/hook")
        .wait("1bd", id="rest")
        .go_to("half")
    )
    return journey.graph.to_value()


def busy() -> Value:
    """A journey that asks about itself and writes what it is steered by: the zone, the telephone,
    the plan that ends it."""
    journey = (
        jk.journey("busy")
        .on_trait_change("age")
        .reenter("every_time")
        .exit_when(jk.trait("plan") == "gold")
        .timezone("Asia/Tehran")
        .send_window(["sat", "sun", "mon", "tue", "wed"], "22:00", "01:30", tz="sender")
        .add_to_segment(1)
        .task("call", title="ring", connected_outcomes=["gold"], id="ring")
        .wait_for(
            {
                "reply:sms": jk.path().set_trait("phone", "+12125550100"),
                "reply": jk.path().set_trait("timezone", "Australia/Lord_Howe"),
                "call_connected": jk.path().set_trait("plan", "gold").wait("1m", id="never"),
            },
            timeout="2bd",
            on_timeout=jk.path().wait_best_time(2, id="best"),
            id="ask",
        )
        .send(sms=1, email=2, mode="all", id="tell")
        .choose(
            ("member", jk.in_segment(1) & jk.in_journey(1, status="waiting"), jk.path().wait("1d")),
            ("again", jk.in_journey(1, status="completed"), jk.path().enter_journey(77)),
            otherwise=jk.path().webhook("https://example.org/hook").exit(id="gone"),
            id="which",
        )
        .goal("booked", within="1d", id="goal")
        .set_trait("class", None)
        .wait_until(1, 15, days=["sun", "mon"], id="night")
        .go_to("ring")
    )
    return journey.graph.to_value()


def brief() -> Value:
    """All that a walk may ask is asked at the door, so it shows what the things before left."""
    journey = (
        jk.journey("brief")
        .on_event("purchase")
        .reenter("every_time")
        .choose(
            ("often", jk.did("purchase", at_least=4, within="2d"), jk.path().wait("15m")),
            ("member", jk.in_segment(1), jk.path().send(sms=1).wait_until(1, 15).exit(id="in")),
            ("again", jk.in_journey(1, status="completed"), jk.path().add_to_segment(1).exit()),
            otherwise=jk.path().exit(id="seen"),
            id="which",
        )
        .wait_for("booked", timeout="1h", id="ask")
        .exit()
    )
    return journey.graph.to_value()


KNOWN = {"rich": rich, "busy": busy, "brief": brief}


# --- drawing histories

STARTS = (
    "2026-06-01T10:00:00Z",
    "2026-03-08T05:00:00.000001Z",  # two hours before New York skips an hour
    "2026-11-01T04:30:00Z",  # before it has one twice
    "2027-12-31T23:59:59.999999Z",
)
SECOND = 1_000_000
GAPS = (*[0] * 9, 1, *(seconds * SECOND for seconds in (60, 900, 3_600, 43_200, 172_800)))
PEOPLE = ("b.%2E e", "زهرا\u2028", "🦊" * 200)
ZONES = ("America/New_York", "Asia/Tehran", "Australia/Lord_Howe", "Pacific/Apia", "Mars/Phobos")
REPORTS = (
    *("inbound_email", "task_completed", "call_connected", "reply:sms", "message_opened"),
    *("unheard", "opt_out"),
)
NUMBERS_AT_THE_EDGE = (0, -0.0, 1e-7, 1e18, 2**53 + 1, -(2**63), 2**63 - 1, 5e-324, 1.7e308)
TEXTS = ("", "gold", "2026-06-01", "1990-02-29", "\u2028\u2029", "😀", "connected", "call", "sms")
NESTED: tuple[Any, ...] = (
    {},
    [],
    {"a": {"ب": [1, None, {"c": 0.1}]}},
    [[], "x", True],
    {"": "", "\u2028": 1},
)
VALUES = (None, True, False, 1, 40, 99.5, *NUMBERS_AT_THE_EDGE, *TEXTS, *NESTED)
WORDS = ("plan", "age", "birthday", "خرید", "class", "it's", 'say "hi"', "a.b%")
OF_A_REPORT = ("outcome", "task", "channel", "node_id")
PHONES = ("+982112345678", "+12125550100", "112", None)


class Did(NamedTuple):
    """Something that happened; `journey_id` is whom a call is for, 0 where all may hear it."""

    line: Line
    journey_id: int = 0


class _Historian:
    """Tells what a few people did, batch by batch; the things of one batch are of one instant. A
    plain generator of numbers draws them, since there are many and none is worth shrinking."""

    def __init__(self, seed: int, start: Instant, documents: Sequence[Value]) -> None:
        self.chance = random.Random(seed)
        self.at = start
        self.people = PEOPLE[: self.chance.randint(1, len(PEOPLE))]
        self.many = len(documents)
        self.calls = [n for n, document in enumerate(documents, 1) if _is_by_call(document)]
        self.names = sorted(set(_names(documents))) or ["unheard"]
        self.known: dict[str, list[Line]] = {user_id: [] for user_id in PEOPLE}

    def tell(self) -> list[list[Did]]:
        batches: list[list[Did]] = []
        for number in range(self.chance.randint(LEAST_LINES, MOST_LINES)):
            gap = self.chance.choice(GAPS)
            self.at += TimeDelta(microseconds=gap)
            if not batches or gap or self.chance.random() < 0.2:
                batches.append([])
            batches[-1].append(self._one(number))
        return batches

    def _one(self, number: int) -> Did:
        kinds = [*["track"] * 9, *["identify"] * 3, "eject", *["enter"] * 3 * len(self.calls)]
        kind: Any = self.chance.choice(kinds)
        line = Line(kind, self.chance.choice(self.people), self.at)
        if kind == "enter":
            return self._call(line)
        if kind == "eject":
            return Did(line, self.chance.randint(1, self.many))
        if kind == "identify":
            line = line._replace(properties=self._traits())
        else:
            known = self.chance.choice([self.names, self.names, self.names, REPORTS])
            line = line._replace(event=self.chance.choice(known), properties=self._values())
        return Did(self._named(line, f"{number}\u2028 of {line.user_id[:9]}"))

    def _call(self, line: Line) -> Did:
        """A call is named by who, where, and the second."""
        journey_id, second = self.chance.choice(self.calls), int(line.at.timestamp())
        return Did(line._replace(id=f"jenter-{journey_id}-{line.user_id}-{second}"), journey_id)

    def _named(self, line: Line, own: str) -> Line:
        """Under an id of its own, under none, under one that was there; or the same as before. No
        two people share one: the store refuses the second, `replay` counts ids by person."""
        known, dice = self.known[line.user_id], self.chance.random()
        if dice < 0.15:
            return line
        if dice > 0.8 and known:
            repeated = self.chance.choice(known)
            return line._replace(id=repeated.id) if dice > 0.9 else repeated._replace(at=line.at)
        known.append(line._replace(id=own))
        return known[-1]

    def _values(self) -> Value:
        names = self.chance.sample([*WORDS, *OF_A_REPORT], self.chance.randrange(6))
        return {name: self.chance.choice(VALUES) for name in names}

    def _traits(self) -> Value:
        traits = {name: value for name, value in self._values().items() if name in WORDS}
        if self.chance.random() < 0.4:
            traits["timezone"] = self.chance.choice([*ZONES, "", 5, None])
        if self.chance.random() < 0.2:
            traits["phone"] = self.chance.choice(PHONES)
        return traits


def _names(value: Any) -> list[str]:
    """The events that journeys may hear."""
    if isinstance(value, list):
        return [name for item in value for name in _names(item)]
    if not isinstance(value, dict):
        return []
    own = [value["event"]] if isinstance(value.get("event"), str) else []
    own += value.get("exit_on", [])
    if value.get("kind") == "for_event":
        own += value.get("on", {})
    return own + _names(list(value.values()))


def _is_by_call(document: Value) -> bool:
    return any(node.get("trigger", {}).get("kind") == "api" for node in document["nodes"])


@st.composite
def lives(draw: DrawFn) -> Life:
    many = draw(st.sampled_from([1, 1, 2, 3]))
    made = [draw(documents(number, alone=many == 1)) for number in range(1, many + 1)]
    return draw(lives_of(made))


@st.composite
def lives_of(draw: DrawFn, documents: Sequence[Value]) -> Life:
    start, seed = Instant(draw(st.sampled_from(STARTS))), draw(st.integers(0, 2**32))
    return Life(documents, start, _Historian(seed, start, documents).tell())


# --- the law


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(life=lives())
async def test_any_life_in_sqlite_is_the_life_replayed(life: Life, copies: Copies) -> None:
    await is_as_replayed(life, copies)


@settings(max_examples=16, suppress_health_check=list(HealthCheck))
@given(data=st.data())
@pytest.mark.parametrize("name", sorted(KNOWN))
async def test_any_life_in_a_full_journey_is_the_life_replayed(
    name: str, data: st.DataObject, copies: Copies
) -> None:
    await is_as_replayed(data.draw(lives_of([_own(KNOWN[name](), 1, alone=True)])), copies)


@settings(max_examples=6, suppress_health_check=list(HealthCheck))
@given(life=lives())
async def test_any_life_in_postgresql_is_the_life_replayed(
    life: Life, postgresql_copies: Copies
) -> None:
    await is_as_replayed(life, postgresql_copies)


Copies = Callable[[], AbstractContextManager[str]]
"""Makes an empty database, one for each example, and says its address."""


@pytest.fixture
def copies(sqlite_template: Path, tmp_path: Path) -> Copies:
    @contextmanager
    def copy() -> Iterator[str]:
        path = shutil.copyfile(sqlite_template, tmp_path / f"life_{next(NUMBERS)}.db")
        yield sqlite_address(path)
        for part in tmp_path.glob(f"{path.name}*"):
            part.unlink()

    return copy


@pytest.fixture
def postgresql_copies(postgres: Path, postgresql_template: str) -> Copies:
    @contextmanager
    def copy() -> Iterator[str]:
        name = f"life_{next(NUMBERS)}"
        throwaway.tell(postgres, f"CREATE DATABASE {name} TEMPLATE {postgresql_template}")
        try:
            yield postgresql_address(postgres, name)
        finally:
            throwaway.tell(postgres, f"DROP DATABASE {name} WITH (FORCE)")

    return copy


async def is_as_replayed(life: Life, copies: Copies) -> None:
    with copies() as url:
        database = open_database(url, clock=VirtualClock(life.start - A_MOMENT))
        try:
            await lived_is_replayed(database, life)
        finally:
            await database.close()


async def lived_is_replayed(database: Database, life: Life) -> None:
    worker = await open_up(database, life.documents)
    current = worker.runtime.published.current
    programs = [current[TENANT, number].program for number in range(1, len(life.documents) + 1)]
    batches, end = bounded(programs, life)
    await live(worker, batches, end)
    given = {did.line.id for batch in batches for did in batch}
    for program in programs:
        await one_is_as_replayed(database, program, batches, end, given)
    assert await broken(database) == []


async def one_is_as_replayed(
    database: Database,
    program: Program,
    batches: Sequence[Sequence[Did]],
    end: Instant,
    given: set[str],
) -> None:
    lines = heard_by(program, batches)
    replayed = replay(program, lines, until=end, phone_zone=known_phone_zone)
    expected = [written(record, given) for record in replayed.journal]
    assert sorted(await told(database, program.journey_id, given)) == sorted(expected)
    assert await done_outside(database, program.journey_id) == wanted_outside(replayed.journal)
    sums = await stats(database, TENANT, program.journey_id)
    refused = await refused_by_people(database, program.journey_id)
    counted = {
        node_id: node._replace(suppressed=node.suppressed - refused[node_id])._asdict()
        for node_id, node in sums.items()
    }
    assert counted == replayed.summary["nodes"]


def known_phone_zone(traits: Mapping[str, Any]) -> str | None:
    return phone_zone(traits)


def heard_by(program: Program, batches: Sequence[Sequence[Did]]) -> list[Line]:
    return [
        did.line for batch in batches for did in batch if did.journey_id in (0, program.journey_id)
    ]


# --- living


async def open_up(database: Database, documents: Sequence[Value]) -> Worker:
    """The law holds for every document, also for one that sends people where nobody takes them in
    and that is published no more: so each is judged by itself."""
    runtime = Runtime(database)
    with patch.object(publishing, "judge_here", judged_alone):
        for document in documents:
            draft = await save_draft(database, TENANT, document)
            await runtime.publish(TENANT, draft.journey_id, account_timezone=ZONE)
    return Worker(runtime)


async def judged_alone(connection: Any, tenant_id: int, document: Any, **asked: Any) -> Report:
    return check(document, account_timezone=asked["account_timezone"])


class _Enough(Exception):
    """The journal is as long as it may be; what it was told last."""


def bounded(programs: Sequence[Program], life: Life) -> tuple[list[list[Did]], Instant]:
    """What happened until the journals are long enough, and when that is."""
    end = life.batches[-1][0].line.at if life.batches else life.start
    end += AFTERWARDS
    for program in programs:
        end = min(end, _end(program, heard_by(program, life.batches), end))
    return [batch for batch in life.batches if batch[0].line.at <= end], end


def _end(program: Program, lines: Sequence[Line], until: Instant) -> Instant:
    records: list[Value] = []

    def keep(record: Value) -> None:
        records.append(record)
        if len(records) > MOST_RECORDS:
            raise _Enough

    try:
        run(program, lines, (), keep, until=until, phone_zone=known_phone_zone)
    except _Enough:
        return Instant(records[-1]["at"]) - A_MOMENT
    return until


async def live(worker: Worker, batches: Sequence[Sequence[Did]], end: Instant) -> None:
    for batch in batches:
        at = batch[0].line.at
        await wait_until(worker, at - A_MOMENT)  # at one instant an event goes before a timer
        clock_of(worker).set(at)
        for is_call, together in groupby(batch, key=lambda did: did.journey_id > 0):
            if is_call:
                for did in together:
                    await call(worker.runtime, did)
            else:
                await worker.runtime.ingest(TENANT, [incoming(did.line) for did in together])
    await wait_until(worker, end)


async def call(runtime: Runtime, did: Did) -> None:
    line, journey_id = did
    if line.type == "enter":
        await runtime.enter(TENANT, journey_id, [line.user_id])
    else:
        await runtime.eject(TENANT, journey_id, line.user_id)


async def wait_until(worker: Worker, moment: Instant) -> None:
    """Let the worker do what is due, each thing at its own time."""
    while (due := await worker.runtime.next_due()) is not None and due <= moment:
        clock_of(worker).set(max(due, clock_of(worker).now()))
        assert any(await worker.tick())
    clock_of(worker).set(max(moment, clock_of(worker).now()))


def clock_of(worker: Worker) -> VirtualClock:
    clock = worker.runtime.database.clock
    assert isinstance(clock, VirtualClock)
    return clock


def incoming(line: Line) -> Incoming:
    assert line.type in ("track", "identify")
    kind: Any = line.type
    return Incoming(kind, line.user_id, line.event, line.properties, line.id)


# --- what each of the two says


def written(record: Value, given: set[str]) -> str:
    """A record as a text. An event without an id gets one that no two stores and no replay share,
    and a replayed identify keeps having none: both are told as nothing."""
    for field in ("caused_by", "woken_by"):
        if record.get(field) not in given:
            record = record | {field: None} if field in record else record
    return json.dumps(record, sort_keys=True)


async def told(database: Database, journey_id: int, given: set[str]) -> list[str]:
    """The journal as `replay` would write it."""
    columns = journal.c.user_id, journal.c.entry_count, journal.c.at, journal.c.trail
    found = await rows(database, select(*columns).where(journal.c.journey_id == journey_id))
    return [
        written(
            {
                "at": write_instant(instant(at)),
                "user_id": user_id,
                "entry": entry_count,
                **json.loads(line),
            },
            given,
        )
        for user_id, entry_count, at, trail in found
        for line in trail.split("\n")[:-1]
    ]


Outside = list[tuple[str, str, str]]
"""By the name of each effect whether it was delivered, and why not."""


async def done_outside(database: Database, journey_id: int) -> Outside:
    """What the walk wanted done. That somebody who had said STOP got no message is no matter of the
    walk, and a replay knows nothing of it."""
    columns = messages.c.message_id, messages.c.state, messages.c.reason
    query = select(*columns).where(messages.c.journey_id == journey_id)
    return sorted(
        (name, "delivered", "") if reason == "unsubscribed" else (name, state, reason)
        for name, state, reason in await rows(database, query)
    )


async def refused_by_people(database: Database, journey_id: int) -> Counter[str]:
    """By node, how many messages were withheld from people who had said STOP."""
    query = select(messages.c.node_id).where(
        messages.c.journey_id == journey_id, messages.c.reason == "unsubscribed"
    )
    return Counter(row.node_id for row in await rows(database, query))


def wanted_outside(records: Sequence[Value]) -> Outside:
    wanted = []
    for record in records:
        effect = record.get("effect", {})
        if name := effect.get("message_id") or effect.get("id"):
            wanted.append((name, "delivered", ""))
        elif record["what"] == "suppressed" and "message_id" in record:
            wanted.append((record["message_id"], "suppressed", record["reason"]))
    return sorted(wanted)
