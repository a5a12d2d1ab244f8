"""What was recorded once comes out again, byte for byte. Row C64."""

from __future__ import annotations

from pathlib import Path

import pytest

from journeykit_server.database import Database
from tests.reliability import histories
from tests.reliability.histories import History

RECORDED = {path.stem: path for path in histories.paths()}


@pytest.fixture(params=RECORDED)
def history(request: pytest.FixtureRequest) -> History:
    name: str = request.param
    return histories.read(RECORDED[name])


def test_c64_there_are_recordings_and_each_journey_has_one() -> None:
    """Without files the tests below would test nothing."""
    assert {make().name for make in histories.JOURNEYS} <= set(RECORDED)


def test_c64_the_engine_tells_a_recorded_history_to_the_byte(history: History) -> None:
    assert histories.by_engine(history) == history.told


async def test_c64_the_store_tells_a_recorded_history_to_the_byte(
    database: Database, history: History
) -> None:
    """On both databases; and what is said to be sent is what was taken, once each."""
    assert await histories.by_store(history, database) == history.told
    assert await histories.names_sent(database) == histories.names_told(history)


def test_c64_a_recording_is_read_as_it_was_written(history: History, tmp_path: Path) -> None:
    copy = tmp_path / "copy.jsonl"
    histories.write(copy, history)
    assert histories.read(copy) == history
