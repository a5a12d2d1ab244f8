"""Workers die at any moment, and in the end everything has happened once. Rows C2, C8, C10 and C11,
with processes that are really killed; see kill.py for more rounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reliability.kill import again, play

ROUNDS = 10  # on each database


@pytest.mark.parametrize("seed", range(ROUNDS))
async def test_c08_kill_9_at_any_moment_loses_nobody_and_repeats_nothing(
    database_url: str, seed: int, tmp_path: Path
) -> None:
    faults = await play(seed, database_url, tmp_path / "logs")

    assert faults == [], f"\nTo repeat it:\n{again(seed, database_url.split(':')[0])}"
