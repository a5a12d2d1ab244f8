"""The CDNOW replay at the command line, as a ratio to a plain script over the same lines.

Both are whole processes, start-up included, in turn; ours writes the journal too, the plain script
(`plain_winback.py`) reads the same lines and prints the same figures.

    python3 dev.py bench replay
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from journeykit import demo
from journeykit_engine.timing import write_instant

PLAIN = Path(__file__).with_name("plain_winback.py")
GOAL = 8.0


def write_input(folder: Path) -> tuple[Path, Path]:
    """The journey and its history as files."""
    graph, events = folder / "winback.json", folder / "orders.jsonl"
    graph.write_text(demo.win_back().to_json(), encoding="utf-8")
    with events.open("w", encoding="utf-8") as file:
        for line in demo.lines(list(demo.orders())):
            row = {
                "type": "track",
                "messageId": line.id,
                "userId": line.user_id,
                "event": line.event,
                "properties": dict(line.properties),
                "timestamp": write_instant(line.at),
            }
            file.write(json.dumps(row) + "\n")
    return graph, events


def seconds(command: list[str]) -> tuple[float, str]:
    """The processor seconds of one whole process, and what it printed."""
    before = os.times()
    began = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    wall = time.perf_counter() - began
    after = os.times()
    used = after.children_user - before.children_user + after.children_system
    return (used - before.children_system) or wall, done.stdout


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description="CDNOW replay against a plain script")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        graph, events = write_input(folder)
        until = write_instant(demo.UNTIL)
        ours = [sys.executable, "-m", "journeykit", "replay", str(graph), "--events", str(events)]
        ours += ["--until", until, "--journal", str(folder / "j.jsonl"), "--format", "json"]
        ours += ["--summary", str(folder / "s.json")]
        plain = [sys.executable, str(PLAIN), str(events), until]
        ratios = []
        for _ in range(given.rounds):
            base, told = seconds(plain)
            mine, summed = seconds(ours)
            assert json.loads(told) == json.loads(summed), "the two must say the same"
            ratios.append(mine / base)
            print(f"ours {mine:.2f} s, plain {base:.2f} s of processor: {mine / base:.1f}")
    print(f"replay / plain script: {statistics.median(ratios):.1f} (goal at most {GOAL:g})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
