"""Every benchmark, or the one that is named: `python3 dev.py bench [name] [options]`.

Absolute figures drift with the machine; what counts is the ratio to the baseline of the same run.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the benchmarks share what lies beside them
BENCHMARKS = {
    "walk": ["--peers"],
    "replay": [],
    "timers": [],
    "ingest": [],
    "governance": [],
    "segments": [],
}


def main(words: list[str]) -> int:
    if words and words[0] in ("-h", "--help"):
        print((__doc__ or "").strip())
        return 0
    if words and words[0] not in BENCHMARKS:
        print(f'there is no benchmark "{words[0]}"; name one of {", ".join(BENCHMARKS)}')
        return 2
    for name in words[:1] or BENCHMARKS:
        path = Path(__file__).with_name(f"{name}.py")
        print(f"--- {name}", flush=True)
        runpy.run_path(str(path))["main"](words[1:] or BENCHMARKS[name])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
