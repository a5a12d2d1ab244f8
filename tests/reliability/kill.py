"""Rounds of sudden death: a crowd whose time has come, and workers that are killed again and again.

    python -m tests.reliability.kill --seed 7 --database sqlite
    python -m tests.reliability.kill --rounds 500

The seed decides after how long who is killed and where processes kill themselves. How far they have
come by then is up to the machine, so a seed that failed may have to be repeated.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from pathlib import Path

from tests import postgres as throwaway
from tests.databases import postgresql_address, sqlite_address
from tests.reliability.crowd import (
    faults_of_log,
    faults_of_welcome,
    finished,
    gather_crowd,
    looked_at,
    make_schema,
)
from tests.reliability.processes import LOOK_SECONDS, Crew, crew
from tests.reliability.worker_process import PLACES

DEATHS = 6  # of a round; an effect that was offered ten times in vain would be a dead letter
LONGEST_LIFE_SECONDS = 0.6
MOST_TIMERS, MOST_EFFECTS = 60, 40  # at once, so that there is something left to be killed in


async def play(seed: int, url: str, folder: Path) -> list[str]:
    """One round on an empty database; what is wrong in the end."""
    chance = random.Random(seed)
    await gather_crowd(url)
    with crew(url, folder, most_timers=MOST_TIMERS, most_effects=MOST_EFFECTS) as workers:
        await _kill(chance, workers, 1 if url.startswith("sqlite") else 2)
        async with looked_at(url) as database:
            await finished(database, workers)
            await workers.stop()
            return await faults_of_welcome(database) + await faults_of_log(database)


async def _kill(chance: random.Random, workers: Crew, number: int) -> None:
    """Death upon death; in the end that many live."""
    loop = asyncio.get_running_loop()
    deaths, next_death = 0, loop.time()
    while deaths < DEATHS:
        for _ in range(number - len(workers.living)):
            workers.start(halts={chance.choice(PLACES): "kill"} if chance.random() < 0.5 else {})
        if loop.time() >= next_death:
            next_death = loop.time() + chance.uniform(0.05, LONGEST_LIFE_SECONDS)
            deaths += 1
            chance.choice(workers.living).kill()
        await asyncio.sleep(LOOK_SECONDS)
    for process in workers.living:
        process.kill()  # who may have its own death still before it
    for _ in range(number):
        workers.start()


def again(seed: int, database: str) -> str:
    return f"python -m tests.reliability.kill --seed {seed} --database {database}"


# --- by hand


def main() -> int:
    given = _arguments()
    databases = [given.database] if given.database else ["sqlite", "postgresql"]
    seeds = [given.seed] if given.seed is not None else range(given.rounds)
    failed = 0
    for database in databases:
        with throwaway.server() as server:
            for seed in seeds:
                faults = asyncio.run(_play_once(seed, database, server))
                failed += bool(faults)
                print(f"{database} {seed}", *(faults or ["fine"]), sep="\n  ", flush=True)
    return min(failed, 1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Kill workers and see whether anything is lost.")
    parser.add_argument("--seed", type=int, help="this round only")
    parser.add_argument("--rounds", type=int, default=10, help="on each database")
    parser.add_argument("--database", choices=["sqlite", "postgresql"], help="both if absent")
    return parser.parse_args()


async def _play_once(seed: int, database: str, server: Path) -> list[str]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        url = sqlite_address(folder / "journeykit.db")
        if database == "postgresql":
            throwaway.tell(server, f"CREATE DATABASE round_{seed}")
            url = postgresql_address(server, f"round_{seed}")
        await make_schema(url)
        try:
            return await play(seed, url, folder / "logs")
        except AssertionError as fault:
            return [str(fault)]


if __name__ == "__main__":
    sys.exit(main())
