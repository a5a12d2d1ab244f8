"""What people do by hand: the list of tasks that journeys gave, and what came of each.

Completing a task is one event, `task_completed`, which wakes whoever waits for it: the wait behind
the task, and by its outcome a wait for a connected call, a reply or an accepted connection. The
list is written in the transaction of the event.

A task stays on the list when its pass ends, for whatever reason: what came of it is still worth
knowing. `pass_ended` says so, since somebody who left with a STOP is not to be called.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import orjson
from sqlalchemy import Row, and_, exists, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import Instant

from journeykit_engine import signal
from journeykit_engine.comparison import shown
from journeykit_engine.strict_json import json_faults
from journeykit_server import store
from journeykit_server.clock import instant, microseconds
from journeykit_server.database import Database
from journeykit_server.incoming import MOST_ID_CHARACTERS, Incoming, named_after
from journeykit_server.runtime import Runtime
from journeykit_server.tables import instances, tasks

MOST_LISTED = 1_000  # of one page
MOST_NOTE_CHARACTERS = 10_000  # a page or two
SOURCE = "task"  # of the events

Status = Literal["open", "completed", "cancelled"]
Place = tuple[Instant, str]
"""Where a page of the list ended: when the task came up, and its id."""


class Task(NamedTuple):
    """Something to be done by hand for a person.

    `task` says what: call, linkedin_message, linkedin_connect or custom. Of a call that had one of
    the `connected_outcomes` the journey says that it was connected; none listed means "connected".
    `pass_ended` is true of an open task that nobody in the journey can wait for any more.
    """

    task_id: str
    user_id: str
    journey_id: int
    version: int
    entry_count: int
    node_id: str
    task: str
    title: str
    connected_outcomes: tuple[str, ...]
    status: Status
    outcome: str
    note: str
    completed_by: str
    created_at: Instant
    completed_at: Instant | None
    pass_ended: bool = False

    @property
    def place(self) -> Place:
        """What the next page comes after."""
        return self.created_at, self.task_id


class NoSuchTask(LookupError):
    """This tenant has no task of this id; whether another one has is not told."""

    def __init__(self, task_id: str) -> None:
        super().__init__(f"There is no task {shown(task_id)}.")


class TaskClosed(Exception):
    """The task was completed with another outcome, or cancelled. Nothing was changed."""


class BadOutcome(ValueError):
    """What was said of a task cannot be kept."""


async def complete_task(
    runtime: Runtime, tenant_id: int, task_id: str, outcome: str, by: str = "", note: str = ""
) -> Task:
    """Tell what came of a task: any word, of which journeys know "connected", "replied" and
    "accepted", and those that the task lists. Whoever waits for it goes on before this returns.

    Doing it again with the same outcome changes nothing. Where the pass that gave the task has
    ended, the outcome is kept and wakes nobody there. Raises `NoSuchTask`, `TaskClosed`,
    `BadOutcome`.
    """
    _refuse(outcome, by, note)
    task = await read_task(runtime.database, tenant_id, task_id)
    await runtime.reload_if_stale()

    async def work(connection: AsyncConnection) -> Task:
        await store.lock(connection, [(tenant_id, task.user_id)])  # the person before the task
        now = await _locked(connection, tenant_id, task_id)
        if now.status != "open":
            return _closed(now, outcome)
        at = await runtime.database.now(connection)
        done = now._replace(
            status="completed",
            outcome=outcome,
            note=note,
            completed_by=by,
            completed_at=at,
            pass_ended=False,
        )
        await _close(connection, tenant_id, done)
        await runtime.receive(connection, tenant_id, [_event(done, outcome)])
        return done

    return await runtime.unit(work)


async def cancel_task(
    database: Database, tenant_id: int, task_id: str, by: str = "", note: str = ""
) -> Task:
    """Take a task off the list undone. It wakes nobody: a wait behind it goes on at its timeout.
    Raises `NoSuchTask`, `BadOutcome`, and `TaskClosed` for a completed one."""
    _refuse("cancelled", by, note)
    await read_task(database, tenant_id, task_id)

    async def work(connection: AsyncConnection) -> Task:
        now = await _locked(connection, tenant_id, task_id)
        if now.status == "completed":
            raise TaskClosed(COMPLETED.format(task_id, now.outcome))
        if now.status == "cancelled":
            return now
        at = await database.now(connection)
        gone = now._replace(
            status="cancelled", note=note, completed_by=by, completed_at=at, pass_ended=False
        )
        await _close(connection, tenant_id, gone)
        return gone

    return await database.run(work)


async def read_task(database: Database, tenant_id: int, task_id: str) -> Task:
    """One task. Raises `NoSuchTask`."""
    if json_faults(task_id):  # what no database would take was never stored
        raise NoSuchTask(task_id)
    query = TASKS.where(*_is_task(tenant_id, task_id))

    async def work(connection: AsyncConnection) -> Task:
        row = (await connection.execute(query)).one_or_none()
        if row is None:
            raise NoSuchTask(task_id)
        return _task(row)

    return await database.read(work)


async def list_tasks(
    database: Database,
    tenant_id: int,
    *,
    status: Status | None = "open",
    journey_id: int | None = None,
    user_id: str | None = None,
    after: Place | None = None,
    first: int = 200,
) -> list[Task]:
    """The tasks of this status (None for all), the oldest first: `first` of them (`MOST_LISTED` at
    most) from behind `after`, the `place` of one; of one journey or one person if wanted."""
    if user_id is not None and json_faults(user_id):
        return []
    query = TASKS.where(tasks.c.tenant_id == tenant_id)
    for column, wanted in (
        (tasks.c.status, status),
        (tasks.c.journey_id, journey_id),
        (tasks.c.user_id, user_id),
    ):
        query = query if wanted is None else query.where(column == wanted)
    place = (tasks.c.created_at, tasks.c.task_id)
    if after is not None:
        query = query.where(tuple_(*place) > (microseconds(after[0]), after[1]))
    page = query.order_by(*place).limit(min(max(first, 0), MOST_LISTED))

    async def work(connection: AsyncConnection) -> list[Task]:
        return [_task(row) for row in await connection.execute(page)]

    return await database.read(work)


PASS = (
    exists()
    .where(instances.c.tenant_id == tasks.c.tenant_id)
    .where(instances.c.user_id == tasks.c.user_id)
    .where(instances.c.journey_id == tasks.c.journey_id)
    .where(instances.c.entry_count == tasks.c.entry_count)
    .where(instances.c.exit_reason == "")
)
TASKS = select(tasks, and_(tasks.c.status == "open", ~PASS).label("pass_ended"))


def _is_task(tenant_id: int, task_id: str) -> tuple[Any, ...]:
    return tasks.c.tenant_id == tenant_id, tasks.c.task_id == task_id


def _task(row: Row[Any]) -> Task:
    fields = row._asdict()
    del fields["tenant_id"]
    fields["connected_outcomes"] = tuple(orjson.loads(row.connected_outcomes or "[]"))
    fields["pass_ended"] = bool(row.pass_ended)  # SQLite tells 0 and 1
    fields["created_at"] = instant(row.created_at)
    fields["completed_at"] = None if row.completed_at is None else instant(row.completed_at)
    return Task(**fields)


def _refuse(outcome: str, by: str, note: str) -> None:
    if faults := json_faults({"outcome": outcome, "by": by, "note": note}):
        raise BadOutcome(str(faults[0]))
    if not outcome.strip():
        raise BadOutcome(NO_OUTCOME)
    for what, text, most in (
        ("outcome", outcome, MOST_ID_CHARACTERS),
        ("name of who did it", by, MOST_ID_CHARACTERS),
        ("note", note, MOST_NOTE_CHARACTERS),
    ):
        if len(text) > most:
            raise BadOutcome(LONG_TEXT.format(what, len(text), most))


NO_OUTCOME = 'The task has no outcome. Say what came of it, as "connected" or "no_answer".'
LONG_TEXT = "The {} has {} characters, more than {}. Shorten it."


def _event(task: Task, outcome: str) -> Incoming:
    """The same event for the same outcome, however often it is told."""
    properties = {
        "task_id": task.task_id,
        "task": task.task,
        "outcome": outcome,
        "connected": signal.is_connected(task.task, outcome, task.connected_outcomes),
        "journey_id": task.journey_id,
        "version": task.version,
        "entry_count": task.entry_count,
        "node_id": task.node_id,
    }
    name = named_after("task", task.task_id)
    return Incoming("track", task.user_id, signal.TASK_COMPLETED, properties, name, SOURCE)


async def _locked(connection: AsyncConnection, tenant_id: int, task_id: str) -> Task:
    """The task as it is until this transaction ends."""
    query = TASKS.where(*_is_task(tenant_id, task_id)).with_for_update(of=tasks)
    return _task((await connection.execute(query)).one())


async def _close(connection: AsyncConnection, tenant_id: int, task: Task) -> None:
    assert task.completed_at is not None
    await connection.execute(
        update(tasks)
        .where(*_is_task(tenant_id, task.task_id))
        .values(
            status=task.status,
            outcome=task.outcome,
            note=task.note,
            completed_by=task.completed_by,
            completed_at=microseconds(task.completed_at),
        )
    )


def _closed(task: Task, outcome: str) -> Task:
    """The task, if it was completed with this outcome."""
    if task.status == "cancelled":
        raise TaskClosed(CANCELLED.format(task.task_id))
    if task.outcome != outcome:
        raise TaskClosed(COMPLETED.format(task.task_id, task.outcome))
    return task


CANCELLED = 'The task "{}" is cancelled. Nothing more can be said of it.'
COMPLETED = 'The task "{}" was completed with "{}" already.'
