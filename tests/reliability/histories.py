"""Recorded lives: what happened to people, and the journal that the engine and the store wrote of
it on the day of the recording.

A recording is one file of JSON lines in `tests/data/histories`, named after the journey: first the
document of the journey, then what happened, then the journal, each line under its own word. Today's
engine and today's store must write the very same lines. To record the journeys below anew, after a
change that is meant:

    python -m tests.reliability.histories

To add one, add it to `JOURNEYS` and record. What is recorded already is not written again unless
its file is deleted first: an old recording is kept to show that old journals still come out.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from whenever import Instant, TimeDelta

import journeykit as jk
from journeykit_engine import journal
from journeykit_engine.graph import Graph
from journeykit_engine.program import compile_graph
from journeykit_engine.replay import Line, run
from journeykit_engine.timing import write_instant
from journeykit_server import publishing
from journeykit_server.clock import VirtualClock
from journeykit_server.database import Database
from journeykit_server.incoming import Incoming
from journeykit_server.runtime import Runtime
from journeykit_server.tables import metadata
from tests.databases import START, open_database, sqlite_address
from tests.reliability.stage import TENANT, finish, taken, told

FOLDER = Path(__file__).resolve().parents[1] / "data" / "histories"
DAYS = 60
LINES = 100
PEOPLE = 12  # a journey; enough for every branch, and a journal that one can read


class History(NamedTuple):
    """A recording. `lines` and `told` are as they stand in the file."""

    graph: dict[str, Any]
    lines: list[str]
    told: list[str]


def paths() -> list[Path]:
    return sorted(FOLDER.glob("*.jsonl"))


def read(path: Path) -> History:
    parts: dict[str, list[Any]] = {"graph": [], "happened": [], "told": []}
    for line in path.read_text("utf-8").splitlines():
        word, rest = line.split(" ", 1)
        parts[word].append(rest)
    (graph,) = parts["graph"]
    return History(json.loads(graph), parts["happened"], parts["told"])


def write(path: Path, history: History) -> None:
    graph = orjson.dumps(history.graph).decode()
    lines = [f"graph {graph}"]
    lines += [f"happened {line}" for line in history.lines]
    lines += [f"told {line}" for line in history.told]
    path.write_text("\n".join(lines) + "\n", "utf-8")


# --- the two that tell


def by_engine(history: History) -> list[str]:
    """The journal of the pure engine, person by person."""
    program = compile_graph(Graph.parse(history.graph), "UTC", TENANT)
    lines = [_line(line) for line in history.lines]
    written: list[bytes] = []
    sink = journal.Lines(orjson.dumps, written.append)
    run(program, lines, [], sink, until=START + TimeDelta(hours=24 * DAYS))
    by_person: dict[str, list[str]] = {}
    for text in b"".join(written).decode().splitlines():
        by_person.setdefault(orjson.loads(text)["user_id"], []).append(text)
    return [text for user_id in sorted(by_person) for text in by_person[user_id]]


async def by_store(history: History, database: Database) -> list[str]:
    """The journal of the real store, person by person, all driven by a clock that is moved."""
    runtime = await _published(database, history.graph)
    lines = [_line(line) for line in history.lines]
    for line in lines:
        await finish(runtime, line.at - TimeDelta(microseconds=1))
        _set(database, line.at)
        await runtime.ingest(TENANT, [_incoming(line)])
    await finish(runtime, START + TimeDelta(hours=24 * DAYS))
    people = sorted({line.user_id for line in lines})
    return [text for user_id in people for text in await told(database, user_id)]


def names_told(history: History) -> list[str]:
    """The ids of what the journal says is to be done outside."""
    effects = [orjson.loads(line).get("effect", {}) for line in history.told]
    return sorted(filter(None, (each.get("message_id") or each.get("id") for each in effects)))


async def names_sent(database: Database) -> list[str]:
    return sorted(await taken(database))


async def _published(database: Database, graph: dict[str, Any]) -> Runtime:
    draft = await publishing.save_draft(database, TENANT, graph, name="recorded")
    await publishing.publish(database, TENANT, draft.journey_id)
    runtime = Runtime(database)
    await runtime.reload()
    return runtime


def _set(database: Database, moment: Instant) -> None:
    assert isinstance(database.clock, VirtualClock)
    database.clock.set(moment)


def _line(text: str) -> Line:
    kind, user_id, at, event, properties, event_id = json.loads(text)
    return Line(kind, user_id, Instant(at), event, properties, event_id)


def _incoming(line: Line) -> Incoming:
    assert line.type in ("track", "identify")
    kind: Any = line.type
    return Incoming(kind, line.user_id, line.event, line.properties, line.id)


# --- recording


def _cart() -> jk.Journey:
    return (
        jk.journey("cart")
        .on_event("cart_filled", where=jk.prop("amount") >= 20)
        .reenter("every_time", cooldown_hours=36)
        .wait_for(
            {"purchase": lambda j: j.exit(id="bought"), "cart_emptied": jk.path().exit(id="gone")},
            timeout="20h",
            on_timeout=lambda j: j.send(push=3, email=7, id="remind").wait("2d").send(sms=4),
            id="hesitates",
        )
    )


def _weekly() -> jk.Journey:
    return (
        jk.journey("weekly")
        .on_event("signed_up")
        .exit_on("unsubscribed")
        .at_most(30)
        .send(email=1, id="hello")
        .wait("1w", id="week")
        .go_to("hello")
    )


def _trial() -> jk.Journey:
    return (
        jk.journey("trial")
        .on_event("signed_up")
        .reenter("every_time")
        .exit_when(jk.trait("plan") == "gold")
        .split(
            "test",
            {"A": lambda j: j.send(email=1), "B": lambda j: j.send(email=2)},
            weights={"A": 1, "B": 2},
            holdout=30,
        )
        .set_trait("stage", "tried")
        .wait("3bd", id="days")
        .goal("purchase", within="7d", reached=jk.path().exit(id="won"))
        .choose(
            ("gold", jk.trait("plan") == "silver", jk.path().send(email=3).exit(id="silver")),
            (
                "many",
                jk.did("visit", at_least=2),
                jk.path().task("call", title="ring").exit(id="rung"),
            ),
            otherwise=jk.path().webhook("https://example.org/hook").exit(id="hooked"),
        )
    )


def _zones() -> jk.Journey:
    return (
        jk.journey("zones")
        .on_event("visit")
        .reenter("every_time", window="day")
        .timezone("Asia/Tehran")
        .send_window(["mon", "tue", "wed", "thu", "sat"], "09:30", "17:00")
        .jitter("45m")
        .wait_until(8, 15, id="morning")
        .send(email=1, id="mail")
        .wait("1d")
        .send(sms=2, id="text")
        .exit()
    )


JOURNEYS = (_cart, _weekly, _trial, _zones)
EVENTS = [
    *["cart_filled"] * 2,
    *["visit"] * 2,
    *["signed_up"] * 2,
    *["purchase", "cart_emptied", "unsubscribed"],
]
ZONES = ("America/New_York", "Asia/Tokyo", "Mars/Phobos", "Pacific/Apia")


def _happened(name: str) -> Iterator[str]:
    """Some weeks of a dozen people, drawn by the journey's name; now and then one comes again."""
    chance = random.Random(name)
    at, content = START, tuple[Any, ...]()
    for number in range(LINES):
        at += TimeDelta(minutes=chance.choice([1, 90, 400, 1_440]))
        if not content or chance.random() > 0.1:
            content = (f"user {chance.randrange(PEOPLE)}", *_drawn(chance), f"event {number}")
        user_id, kind, event, properties, event_id = content
        yield json.dumps([kind, user_id, write_instant(at), event, properties, event_id])


def _drawn(chance: random.Random) -> tuple[str, str, dict[str, Any]]:
    if chance.random() < 0.2:
        traits = {"plan": chance.choice(["silver", "gold", "none"])}
        zone = {"timezone": chance.choice(ZONES)} if chance.random() < 0.5 else {}
        return "identify", "", {**traits, **zone}
    return "track", chance.choice(EVENTS), {"amount": chance.choice([5, 20, 99.5])}


async def _record(journey: jk.Journey) -> History:
    """What both tell; where they differ nothing is recorded."""
    graph = journey.numbered(1, 1).graph.to_value()
    history = History(graph, list(_happened(journey.name)), [])
    history = history._replace(told=by_engine(history))
    with tempfile.TemporaryDirectory() as folder:
        database = open_database(sqlite_address(Path(folder) / "recording.db"))
        await database.run(lambda connection: connection.run_sync(metadata.create_all))
        stored = await by_store(history, database)
        await database.close()
    if stored != history.told:
        raise SystemExit(f'"{journey.name}" is told differently by the engine and the store.')
    return history


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for make in JOURNEYS:
        journey = make()
        path = FOLDER / f"{journey.name}.jsonl"
        if path.exists():
            print(f"{path.name} is kept as it is")
            continue
        history = asyncio.run(_record(journey))
        write(path, history)
        print(f"{path.name}: {len(history.lines)} lines happened, {len(history.told)} were told")


if __name__ == "__main__":
    main()
