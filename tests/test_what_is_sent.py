"""The page about what is sent says what a real run does, to the letter."""

from __future__ import annotations

from pathlib import Path

from tests.what_is_sent import told

PAGE = Path(__file__).parents[1] / "docs" / "what-is-sent-and-why.md"


async def test_the_page_is_what_a_run_tells(tmp_path: Path) -> None:
    """After a change that is meant: python -m tests.what_is_sent > docs/what-is-sent-and-why.md"""
    assert PAGE.read_text("utf-8") == await told(tmp_path)
