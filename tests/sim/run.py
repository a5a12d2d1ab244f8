"""Run many seeds, or one of them and tell all it did. Seeds that failed once are kept in
failing.txt and run first."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

from tests.sim.sabotage import SABOTAGES, weather
from tests.sim.story import Told, play, prepared

FAILING = Path(__file__).parent / "failing.txt"


def main() -> int:
    asked = _arguments()
    seeds = [*failing(), *range(asked.first, asked.first + asked.seeds)]
    if asked.seed is not None:
        seeds = [asked.seed]
    elif asked.digests or asked.sabotage:
        seeds = seeds[len(failing()) :]
    told = _run(seeds, asked)
    if asked.digests:
        print("\n".join(f"{one.seed} {one.digest}" for one in told))
    else:
        print(summary(told))
    return 1 if any(one.findings for one in told) else 0


def _run(seeds: list[int], asked: argparse.Namespace) -> list[Told]:
    told = []
    sabotage = SABOTAGES[asked.sabotage] if asked.sabotage else nullcontext
    trace = print if asked.trace else None
    with prepared() as make:
        for seed in seeds:
            with sabotage():
                faults = weather(asked.sabotage, seed) if asked.sabotage else None
                told.append(play(seed, make, faults=faults, trace=trace))
            if told[-1].findings:
                print(f"seed {seed} failed:\n{told[-1].findings}\n{command(seed)}", flush=True)
                if asked.sabotage:
                    break  # seen, which is all that was asked
    return told


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.run", description=__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="how many (300)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (0)")
    parser.add_argument("--seed", type=int, help="this one and no other")
    parser.add_argument("--trace", action="store_true", help="tell all that happens")
    parser.add_argument("--digests", action="store_true", help="print what each seed came to")
    parser.add_argument(
        "--sabotage", choices=sorted(SABOTAGES), help="take out a guard; stop when it is missed"
    )
    return parser.parse_args()


def failing() -> list[int]:
    """The seeds that failed once."""
    lines = [line.partition("#")[0].strip() for line in FAILING.read_text("utf-8").splitlines()]
    return [int(line) for line in lines if line]


def command(seed: int) -> str:
    """What repeats a seed."""
    return f"Repeat it with: python -m tests.sim.run --seed {seed} --trace"


def summary(told: list[Told]) -> str:
    """One line about many seeds."""
    counts: Counter[str] = Counter()
    for one in told:
        counts.update(one.counts)
    bad = ", ".join(str(one.seed) for one in told if one.findings)
    return (
        f"{len(told)} seeds in {time.process_time():.0f} s, {counts.total()} faults of "
        f"{len(counts)} kinds, {sum(one.calls for one in told)} calls of the database; "
        f"failed: {bad or 'none'}"
    )


if __name__ == "__main__":
    sys.exit(main())
