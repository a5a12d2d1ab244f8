"""The server's part of the command line: migrate, worker, doctor, verify.

Exit codes: 0 fine, 1 something is wrong and one line on standard error says what, 2 the call is
wrong.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn, TypeVar

import typer

from journeykit_server.clock import Clock
from journeykit_server.database import BadUrl, Database, Unavailable
from journeykit_server.holder import Held, Holder
from journeykit_server.migrate import WrongRevision, shown

log = logging.getLogger("journeykit")

SHARDS = 16  # more workers than that share counters, which only makes them wait for each other
CLOSE_SECONDS = 5.0  # for connections to a database that may not answer any more
T = TypeVar("T")

app = typer.Typer(
    name="journeykit",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Run journeys: people arrive, wait and leave in a database.",
)


class LogFormat(StrEnum):
    """How a process tells about its running."""

    text = "text"
    json = "json"


UrlOption = Annotated[
    str,
    typer.Option(
        metavar="URL",
        envvar="JOURNEYKIT_DATABASE_URL",
        help="sqlite:///file.db or postgresql://user:password@host/database.",
    ),
]
DEFAULT_URL = "sqlite:///journeykit.db"


class Missing(Exception):
    """What is needed is not there, or cannot be used."""


def main(words: Sequence[str] | None = None) -> NoReturn:
    """Run one command and leave the process; what went wrong is one line, never a traceback."""
    try:
        app(words, prog_name="journeykit")
    except (BadUrl, Held, Missing, Unavailable, WrongRevision) as error:
        fault = str(error)
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        fault = 'A PostgreSQL address needs asyncpg: pip install "journeykit[postgres]".'
    except OSError as error:
        fault = f'"{error.filename}": {error.strerror}' if error.filename else str(error)
    else:
        sys.exit(0)
    print(f"journeykit: {fault}", file=sys.stderr)
    sys.exit(1)


@app.command(short_help="Bring the database to this version's schema.")
def migrate(database_url: UrlOption = DEFAULT_URL) -> None:
    """Bring the database to the schema of this journeykit. To do it twice, or at once from several
    machines, does no harm.

    \b
    Example:
      journeykit migrate --database-url postgresql://app@db/app
    """
    from journeykit_server.migrate import migrate

    applied = _with_database(database_url, migrate)
    print("\n".join(f"applied {revision}" for revision in applied) or "nothing to do")


@app.command(short_help="Move people and deliver what is due, until stopped.")
def worker(
    database_url: UrlOption = DEFAULT_URL,
    log_format: Annotated[LogFormat, typer.Option(help="For people or for programs.")] = (
        LogFormat.text
    ),
) -> None:
    """Move people and deliver what is due, until SIGTERM or Ctrl-C: then end what runs, at most 30
    seconds, and leave with 0. A second signal ends it at once.

    On PostgreSQL any number of workers share the work. A SQLite file has one, which also brings it
    to this version's schema.

    \b
    Examples:
      journeykit worker
      journeykit worker --database-url postgresql://app@db/app --log-format json
    """
    from journeykit_server.logline import write_lines

    write_lines(log_format.value)
    _with_database(database_url, _work)


@app.command(short_help="Look for what keeps people from moving.")
def doctor(database_url: UrlOption = DEFAULT_URL) -> None:
    """Look at database, schema, clock, zone data and backlog, and say what to do; exit 1 when
    something is bad."""
    from journeykit_server.doctor import examine

    findings = _with_database(database_url, examine)
    for level, what, fix in findings:
        print(f"{level:4}  {what}" + (f"\n      {fix}" if fix else ""))
    raise typer.Exit(any(level == "bad" for level, _, _ in findings))


@app.command(short_help="Compare the counters with a recount of the journal.")
def verify(
    database_url: UrlOption = DEFAULT_URL,
    tenant_id: Annotated[
        int | None,
        typer.Option(metavar="ID", show_default=False, help="This tenant only; all if absent."),
    ] = None,
) -> None:
    """Compare every counter with a recount of the journal; exit 1 when one differs."""

    async def recount(database: Database) -> list[str]:
        from journeykit_server.migrate import require_current
        from journeykit_server.verify import verify

        _require_file(database)
        await require_current(database)
        return await verify(database, tenant_id)

    differences = _with_database(database_url, recount)
    print("\n".join(differences) or "every number is what the journal says")
    raise typer.Exit(bool(differences))


def _with_database(url: str, work: Callable[[Database], Awaitable[T]]) -> T:
    async def run() -> T:
        database = Database(url)
        try:
            return await work(database)
        finally:
            with suppress(TimeoutError):
                await asyncio.wait_for(database.close(), CLOSE_SECONDS)

    return asyncio.run(run())


def _require_file(database: Database) -> None:
    file = Path(database.url.database or "")
    if database.is_sqlite and not file.exists():
        raise Missing(f'There is no file "{file}". Name the database with --database-url.')


async def _work(database: Database) -> None:
    if not database.is_sqlite:
        await _work_alone(database)
        return
    holder = Holder(Path(database.url.database or ""))
    await holder.take(Clock())
    try:
        await _work_alone(database)
    finally:
        holder.release()


async def _work_alone(database: Database) -> None:
    from journeykit_server import retention
    from journeykit_server.migrate import migrate, require_current
    from journeykit_server.providers import BadSettings, from_settings
    from journeykit_server.runtime import Runtime
    from journeykit_server.upkeep import Upkeep
    from journeykit_server.worker import Worker

    stop = _stopped_by_signals()
    if database.is_sqlite:
        await migrate(database)
    await require_current(database)
    shard = int(database.chance.fraction() * SHARDS)
    told = {"pid": os.getpid(), "database": shown(database)}
    log.info("worker started", extra={"figures": told})
    try:
        channels = from_settings(database, os.environ)
        kept = retention.from_settings(os.environ)
    except (BadSettings, retention.BadRetention) as error:
        raise Missing(str(error)) from None
    runtime = Runtime(database, provider=channels, shard=shard)
    # What is there now stays for the life of the process: the collector need not go through all
    # of it again and again, which costs a tenth of a batch.
    gc.collect()
    gc.freeze()
    try:
        await Worker(runtime, upkeep=Upkeep(runtime, kept=kept)).run(stop)
    finally:
        await channels.close()
    log.info("worker stopped", extra={"figures": told})


def _stopped_by_signals() -> asyncio.Event:
    """Set by the first SIGTERM or SIGINT; the second ends the process on the spot."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    seen: list[int] = []

    def heard(number: int, _: FrameType | None) -> None:
        if seen:
            os._exit(128 + number)
        seen.append(number)
        loop.call_soon_threadsafe(stop.set)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, heard)
    return stop


if __name__ == "__main__":
    main()
