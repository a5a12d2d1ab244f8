"""Somebody stops a journey while its people are on the move. Rows C37, C38 and C68."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from whenever import TimeDelta

from journeykit_server import lifecycle
from journeykit_server.database import Database
from journeykit_server.runtime import SWEEP_SECONDS, Runtime
from journeykit_server.tables import instances, journeys, messages, outbox, timers
from journeykit_server.waking import Woken
from tests.reliability.faults import Interrupted, hold_before_commit
from tests.reliability.stage import (
    DAY,
    TENANT,
    due_times,
    execute,
    finish,
    happens,
    later,
    order,
    process,
    read,
    reminder,
    taken,
    where,
)

MESSAGES = {"j1.v1.send_email_1.ann.e1": 1, "j1.v1.send_email_1.bob.e1": 1}
ROOT = Path(__file__).parents[2]


async def has_ended(task: asyncio.Task[str]) -> bool:
    """Whether a call is answered, after it had every opportunity."""
    await asyncio.wait([task], timeout=0.3)
    return task.done()


# --- C37


async def test_c37_a_pause_between_claim_and_walk_leaves_everybody_where_they_are(
    database: Database, other: Database
) -> None:
    """Times stay what they were, no attempt is counted, and going on fires each once."""
    control, late = await process(database, reminder()), Interrupted(other)
    await order(control, "ann", "bob")
    late.meanwhile = lambda: lifecycle.pause(control, TENANT, 1, "freeze")
    before = await due_times(database)
    later(database, DAY)

    assert await late.wake() == Woken(claimed=2, held=2)

    assert await read(database, outbox) == []
    assert await due_times(database) == before
    assert {row.attempts for row in await read(database, timers)} == {0}
    later(database, 3 * DAY)
    assert await late.wake() == Woken()
    await lifecycle.resume(control, TENANT, 1)
    later(database, TimeDelta(seconds=SWEEP_SECONDS))  # by then it looks at past minutes again
    assert await late.wake() == Woken(claimed=2, advanced=2)
    assert await control.wake() == Woken()
    await finish(control)
    assert await taken(database) == MESSAGES


async def test_c37_a_pause_waits_for_the_step_that_is_under_way(
    database: Database, other: Database
) -> None:
    """Before the answer that step ends; after it no effect appears, whoever looks."""
    control, worker = await process(database, reminder()), Runtime(other)
    await order(control, "ann", "bob")
    later(database, DAY)

    with hold_before_commit() as held:
        waking = asyncio.ensure_future(worker.wake(limit=1))
        await held.stands.wait()
        pausing = asyncio.ensure_future(lifecycle.pause(control, TENANT, 1, "freeze"))
        assert not await has_ended(pausing)
        held.go_on.set()
        assert await waking == Woken(claimed=1, advanced=1)
        assert await pausing == "paused"

    written = await read(database, outbox)
    assert len(written) == 1
    assert await worker.wake() == Woken(claimed=1, held=1)
    await worker.deliver()
    assert len(await read(database, outbox)) == 1
    assert await taken(database) == {}

    await lifecycle.resume(control, TENANT, 1)
    await finish(control)
    assert await taken(database) == MESSAGES


async def test_c37_a_pause_waits_for_who_is_entering(database: Database, other: Database) -> None:
    control, worker = await process(database, reminder()), Runtime(other)
    await order(control, "ann")

    with hold_before_commit() as held:
        entering = asyncio.ensure_future(worker.ingest(TENANT, [happens("order", "bob")]))
        await held.stands.wait()
        pausing = asyncio.ensure_future(lifecycle.pause(control, TENANT, 1))
        assert not await has_ended(pausing)
        held.go_on.set()
        await asyncio.gather(entering, pausing)

    assert await where(database, "bob") == [(1, "waiting", "wait_1d", 1)]
    await worker.ingest(TENANT, [happens("order", "zoe")])  # it has not heard of the pause
    assert await where(database, "zoe") == []


async def test_c37_a_worker_that_dies_while_a_journey_goes_on_leaves_nobody_behind(
    database: Database, other: Database
) -> None:
    """The journey runs again, and nobody has taken the timers back: the next who tidies does."""
    control = await process(database, reminder())
    await order(control, "ann", "bob")
    await lifecycle.pause(control, TENANT, 1, "freeze")
    later(database, DAY)
    assert await control.wake() == Woken(claimed=2, held=2)
    await execute(database, "UPDATE journeys SET status = 'published', pause_mode = ''")
    worker = Runtime(other)
    assert await worker.wake() == Woken()

    assert await lifecycle.tidy_once(worker) == 2

    assert await worker.wake() == Woken(claimed=2, advanced=2)
    await finish(worker)
    assert await taken(database) == MESSAGES


async def test_c37_pausing_and_going_on_at_once_ends_in_one_of_the_two(
    database: Database, other: Database
) -> None:
    """Whichever was last: nobody is lost, nobody is sent anything twice."""
    control, worker = await process(database, reminder()), Runtime(other)
    await order(control, "ann", "bob")
    await lifecycle.pause(control, TENANT, 1, "freeze")
    later(database, DAY)

    for _ in range(5):
        await asyncio.gather(
            lifecycle.resume(control, TENANT, 1),
            lifecycle.pause(worker, TENANT, 1, "freeze"),
            worker.wake(),
        )
    await lifecycle.resume(control, TENANT, 1)
    await lifecycle.tidy_once(control)
    later(database, TimeDelta(minutes=2))
    await finish(control)

    assert await taken(database) == MESSAGES
    assert {row.status for row in await read(database, instances)} == {"completed"}


# --- C38


@pytest.mark.parametrize("way", ["archived", "deleted"])
async def test_c38_a_journey_that_ends_between_claim_and_walk_sends_nothing_more(
    database: Database, other: Database, way: str
) -> None:
    control, late = await process(database, reminder()), Interrupted(other)
    await order(control, "ann")
    later(database, DAY / 2)
    await order(control, "bob")
    later(database, DAY / 2)
    assert await control.wake() == Woken(claimed=1, advanced=1)  # ann's message is on its way

    async def end() -> None:
        await lifecycle.archive(control, TENANT, 1)
        if way == "deleted":
            await lifecycle.delete(control, TENANT, 1)

    late.meanwhile = end
    later(database, DAY / 2)

    assert await late.wake() == Woken(claimed=1, held=1)
    await finish(late, database.clock.now() + DAY)

    assert await taken(database) == {}
    (row,) = await read(database, messages)
    assert (row.message_id, row.state, row.reason) == (next(iter(MESSAGES)), "suppressed", way)
    assert await where(database, "bob") == [(1, "waiting", "wait_1d", 1)]


async def test_c38_what_is_restored_goes_on_and_sends_nothing_twice(
    database: Database, other: Database
) -> None:
    control, late = await process(database, reminder()), Interrupted(other)
    await order(control, "ann")
    later(database, DAY / 2)
    await order(control, "bob")
    await finish(control, database.clock.now() + DAY / 2)
    assert await taken(database) == {"j1.v1.send_email_1.ann.e1": 1}

    async def delete() -> None:
        await lifecycle.pause(control, TENANT, 1, "freeze")
        await lifecycle.delete(control, TENANT, 1)

    late.meanwhile = delete
    later(database, DAY / 2)
    assert await late.wake() == Woken(claimed=1, held=1)
    later(database, 20 * DAY)

    assert await lifecycle.restore(control, TENANT, 1) == "paused"
    assert await late.wake() == Woken()
    await lifecycle.resume(control, TENANT, 1)
    await finish(control)
    assert await taken(database) == MESSAGES


async def test_c38_a_deletion_of_which_nobody_knows_whether_it_was_is_repeated(
    database: Database,
) -> None:
    """The commit arrived and its answer did not: the second try finds what the first has done."""
    control = await process(database, reminder())
    await lifecycle.archive(control, TENANT, 1)
    run = control.database.run

    async def twice(work: object) -> object:
        await run(work)  # type: ignore[arg-type]
        return await run(work)  # type: ignore[arg-type]

    control.database.run = twice  # type: ignore[method-assign, assignment]
    assert await lifecycle.delete(control, TENANT, 1) == "deleted"
    control.database.run = run  # type: ignore[method-assign]

    (row,) = await read(database, journeys)
    assert (row.status, row.status_before) == ("deleted", "archived")


# --- C68


PRODUCT = [path for part in ("engine", "sdk", "server") for path in (ROOT / part).rglob("*.py")]
FROM_OUTSIDE = ("tests", "unittest", "pytest", "hypothesis")
SETTING = re.compile("[A-Z][A-Z0-9_]+")
SETTINGS_ARE_READ_IN = {"server/journeykit_server/__main__.py": ["reads environ"]}
WORDS = ("failpoint", "fail_point", "inject", "sabotage", "chaos")


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]


def names(tree: ast.AST) -> Iterator[str]:
    """Everything that the source calls by a name, and its texts that could name a setting."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.arg)):
            yield node.arg if isinstance(node, ast.arg) else node.name
        elif isinstance(node, ast.Constant) and SETTING.fullmatch(str(node.value)):
            yield str(node.value)


def hooks(source: str) -> list[str]:
    """What in a source could let a fault in."""
    tree = ast.parse(source)
    found = [f"imports {name}" for name in imported(tree) if name in FROM_OUTSIDE]
    told = sorted({name for name in names(tree) if any(word in name.lower() for word in WORDS)})
    reads = sorted({"environ", "getenv"} & set(names(tree)))
    return [*found, *(f"calls something {name}" for name in told), *(f"reads {n}" for n in reads)]


def test_c68_the_product_has_no_place_where_a_fault_is_let_in() -> None:
    """No failpoint can be forgotten where there is none: the tests bring their faults from outside,
    and the environment is read by the command alone, which knows no setting for any."""
    assert len(PRODUCT) > 60
    found = {str(path.relative_to(ROOT)): hooks(path.read_text("utf-8")) for path in PRODUCT}

    assert {path: told for path, told in found.items() if told} == SETTINGS_ARE_READ_IN


def test_c68_such_a_place_would_be_found() -> None:
    assert hooks("from tests.faults import x") == ["imports tests"]
    assert hooks("def walk():\n    failpoint('claim')") == ["calls something failpoint"]
    assert hooks("import os\nif os.environ.get('FAULTS'):\n    pass") == ["reads environ"]
    assert hooks("X = 'JOURNEY_TEST_FAILPOINTS'") == ["calls something JOURNEY_TEST_FAILPOINTS"]


def test_c68_the_faults_of_the_tests_come_from_outside() -> None:
    """They are brought in over what the product itself hands out: classes, engines, statements."""
    source = (ROOT / "tests" / "reliability" / "faults.py").read_text("utf-8")

    assert "mock.patch.object(" in source
    assert "class Interrupted(Runtime)" in source
