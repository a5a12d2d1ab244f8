"""No code of a problem or a warning goes untested: the codes are read from the source."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = re.compile(r'"([A-Z]+(?:_[A-Z]+)+|CYCLE|UNREACHABLE|OVERLAP)"')
SOURCES = ("check", "check_nodes", "check_warnings", "shape", "steps", "document", "strict_json")
TESTS = "\n".join(
    path.read_text("utf-8")
    for path in sorted((ROOT / "tests").rglob("test_*.py"))
    if path.name != Path(__file__).name
)


@pytest.mark.parametrize("source", SOURCES)
def test_every_code_that_the_engine_can_say_stands_in_a_test(source: str) -> None:
    text = (ROOT / "engine" / "journeykit_engine" / f"{source}.py").read_text("utf-8")
    codes = set(CODE.findall(text))

    assert codes
    assert {code for code in codes if f'"{code}"' not in TESTS} == set()
