"""What every test stands on: how long Hypothesis looks, and the cases that were worked out by hand.

The machine that runs the tests may be slow and shared, so nothing here is judged by the clock.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

CASES = Path(__file__).parent / "data" / "cases.json"

settings.register_profile(
    "default", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
# The same examples on every run: a build that fails must fail again when somebody looks.
settings.register_profile(
    "ci", parent=settings.get_profile("default"), derandomize=True, database=None
)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(scope="session")
def cases() -> Mapping[str, dict[str, Any]]:
    """Every case by its id; times are ISO 8601 text, a key ending in ``_utc`` an instant."""
    return {case["id"]: case for case in json.loads(CASES.read_text("utf-8"))}
