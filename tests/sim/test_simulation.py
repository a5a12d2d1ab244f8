"""Three hundred histories of an installation in which everything that can go wrong goes wrong.

A failure says which seed and the command that repeats it; such a seed is written into failing.txt
and is run first from then on.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.sim import run
from tests.sim.faults import AT_CALLS, KINDS, NthCall
from tests.sim.sabotage import SABOTAGES, weather
from tests.sim.story import play, prepared
from tests.sim.workload import few

ROOT = Path(__file__).parents[2]
SEEDS = 300
CHUNKS = 4
SEEDS_OF_SABOTAGE = 2_000  # the most that one may need; most need less than ten
NTH_CALLS = 5  # calls of the small history that are struck, spread over all it makes
SEEN_AT = {
    "no_queue": 36,
    "no_revision_check": 205,
    "looks_are_one": 21,
    "looks_have_no_name": 21,
    "page_before_people": 21,
}  # tried first by those that need many

Make = Callable[[str], Path]


@pytest.fixture(scope="module")
def make() -> Iterator[Make]:
    with prepared() as fresh:
        yield fresh


def holds(make: Make, seed: int) -> None:
    told = play(seed, make)
    assert not told.findings, f"seed {seed}:\n{told.findings}\n{run.command(seed)}"


@pytest.mark.parametrize("seed", run.failing())
def test_a_seed_that_failed_once_holds_for_ever(make: Make, seed: int) -> None:
    holds(make, seed)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_law_holds_in_every_seed(make: Make, chunk: int) -> None:
    for seed in range(chunk, SEEDS, CHUNKS):
        holds(make, seed)


def test_a_seed_is_the_same_on_every_run() -> None:
    """Whatever the order of sets and dictionaries is in a process."""

    def digests(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-m", "tests.sim.run", "--digests", "--first", "1", "--seeds"]
        done = subprocess.run(
            [*command, "4"], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    first = digests("1")
    assert first.count("\n") == 4
    assert digests("2") == first


@pytest.mark.parametrize("name", SABOTAGES)
def test_the_simulation_sees_that_a_guard_is_gone(make: Make, name: str) -> None:
    for seed in (SEEN_AT.get(name, 0), *range(SEEDS_OF_SABOTAGE)):
        with SABOTAGES[name]():
            if play(seed, make, faults=weather(name, seed)).findings:
                return
    pytest.fail(f"{SEEDS_OF_SABOTAGE} seeds without the guard and nobody saw it")


@pytest.mark.parametrize("kind", AT_CALLS)
def test_one_fault_at_any_call_is_overcome(make: Make, kind: str) -> None:
    """The same small history again and again; each time another call of it is struck."""
    never = NthCall(kind, 10**9)
    assert not play(0, make, faults=never, work=few()).findings
    for number in range(1, never.seen + 1, max(never.seen // NTH_CALLS, 1)):
        told = play(0, make, faults=NthCall(kind, number), work=few())
        assert not told.findings, f"{kind} at call {number}:\n{told.findings}"
        assert told.counts[kind] == 1


def test_there_are_many_kinds_of_faults(make: Make) -> None:
    seen: set[str] = set()
    for seed in (1, 21, 41, 61):  # those with everything turned on
        seen |= play(seed, make).counts.keys()
    assert len(KINDS) >= 30
    assert len(seen) >= 25
