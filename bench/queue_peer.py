"""pgqueuer on the same PostgreSQL, its worker told to drain a queue of jobs.

Three ways: a job that does nothing, with the batch it has when nothing is said and with the batch
that suits it best; and a job that moves its person on as the product does, in a transaction of its
own with the next job in it, which is how one would build journeys on a queue.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from bench import bare
from bench.ground import PostgreSQL, seconds

Pool = Any
Job = Any
Work = Callable[[Pool, Job], Awaitable[object]]
DEFAULT_BATCH = 10
WIDE_BATCH = 500  # larger ones gained nothing


async def drained(ground: PostgreSQL, base: str, users: list[str], batch: int, work: Work) -> float:
    """Jobs a second, from a full queue to an empty one."""
    from pgqueuer.db import AsyncpgDriver
    from pgqueuer.qm import QueueManager
    from pgqueuer.queries import Queries
    from pgqueuer.types import QueueExecutionMode

    connection = await ground.connect(base)
    queries = Queries(AsyncpgDriver(connection))
    if not await queries.schema_is_installed():
        await queries.install()
        await queries.optimize_autovacuum()
    await queries.enqueue(
        ["wake"] * len(users), [user.encode() for user in users], [0] * len(users)
    )
    manager, done = QueueManager(queries), 0
    async with ground.pool(base, 4) as pool:

        @manager.entrypoint("wake")
        async def wake(job: Job) -> None:
            nonlocal done
            await work(pool, job)
            done += 1

        took = await seconds(
            lambda: manager.run(
                batch_size=batch,
                mode=QueueExecutionMode.drain,
                dequeue_timeout=timedelta(seconds=1),
            )
        )
    await connection.close()
    assert done == len(users), f"{done} of {len(users)} jobs were done"
    return len(users) / took


async def nothing(pool: Pool, job: Job) -> None:
    """The least that a job can do."""


def moving_on(now: int) -> Work:
    """The same rows as the bare loop's, of one person, and the job of the next day."""
    from pgqueuer.db import AsyncpgDriver
    from pgqueuer.queries import Queries

    async def work(pool: Pool, job: Job) -> None:
        user = job.payload.decode()
        async with pool.acquire() as connection, connection.transaction():
            due = await connection.fetch(bare.LOAD, [1], [user], [1])
            for statement, batch in zip(bare.STATEMENTS, bare.worked_out(due, now), strict=True):
                if batch:
                    await connection.execute(statement, *bare.columns(batch))
            queries = Queries(AsyncpgDriver(connection))
            await queries.enqueue("wake_later", job.payload, execute_after=timedelta(days=1))

    return work
