"""Files that appear whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from journeykit import output
from journeykit_engine.journal import Lines


def test_a_file_appears_when_all_went_well(tmp_path: Path) -> None:
    target = tmp_path / "made"

    with output.whole(target) as file:
        assert file is not None
        file.write(b"all of it")
        assert not target.exists()

    assert target.read_bytes() == b"all of it"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("fault", [ValueError, KeyboardInterrupt, SystemExit])
def test_what_was_there_stays_when_something_went_wrong(
    fault: type[BaseException], tmp_path: Path
) -> None:
    target = tmp_path / "made"
    target.write_bytes(b"as before")

    with pytest.raises(fault), output.whole(target) as file:
        assert file is not None
        file.write(b"half of")
        raise fault

    assert target.read_bytes() == b"as before"
    assert list(tmp_path.iterdir()) == [target]


def test_records_go_to_the_file_in_batches_and_none_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "JOURNAL_BATCH", 3)
    target = tmp_path / "journal"

    with output.whole(target) as file, output.sink_to(file) as sink:
        assert isinstance(sink, Lines)
        for number in range(7):
            sink.put(sink.dump({"n": number, "text": "سلام"}) + b"\n")

    records = [json.loads(line) for line in target.read_text("utf-8").splitlines()]
    assert records == [{"n": number, "text": "سلام"} for number in range(7)]


def test_without_a_file_records_go_nowhere() -> None:
    with output.whole(None) as file, output.sink_to(file) as sink:
        assert not isinstance(sink, Lines)
        sink({"n": 1})

    assert file is None


def test_inputs_may_be_the_same_file_and_outputs_may_not(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"

    output.refuse_outputs({"--a": other, "--b": None}, {"IN": one, "--also": one, "--no": None})
    with pytest.raises(output.CannotWrite) as caught:
        output.refuse_outputs({"--a": other, "--b": other}, {})

    assert str(caught.value) == f'--a and --b are both "{other}"; name two files.'


def test_a_device_may_be_named_twice() -> None:
    null = Path("/dev/null")

    output.refuse_outputs({"--a": null, "--b": null}, {"IN": null})
    with output.whole(null) as file:
        assert file is not None
        file.write(b"gone")
    assert null.is_char_device()
