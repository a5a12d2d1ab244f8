"""dev.py is the first thing a newcomer runs, on whatever Python their machine has."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

DEV = Path(__file__).resolve().parents[1] / "dev.py"


@pytest.fixture(scope="module")
def dev() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dev", DEV)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_dev(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(DEV), *words],
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


def test_alone_it_says_what_it_can_do_and_makes_nothing(tmp_path: Path) -> None:
    answer = run_dev(folder=tmp_path)

    assert answer.returncode == 0
    assert "test    run every test; further words go to pytest (test -k layers)" in answer.stdout
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_command_is_named_and_the_known_ones_listed(tmp_path: Path) -> None:
    answer = run_dev("tset", folder=tmp_path)

    assert answer.returncode == 2
    assert answer.stderr.startswith(
        'dev.py: there is no command "tset"\n\npython3 dev.py <command>'
    )


def test_an_old_python_is_told_what_is_needed(dev: ModuleType) -> None:
    assert dev.python_fault((3, 11, 0)) is None
    assert dev.python_fault((3, 10, 13)) == (
        "journeykit needs Python 3.11 or newer, this is 3.10.13: try python3.11 dev.py"
    )


def test_an_old_python_can_read_the_file_that_tells_it() -> None:
    ast.parse(DEV.read_text("utf-8"), feature_version=(3, 8))


def test_an_environment_is_whole_only_with_todays_stamp(dev: ModuleType, tmp_path: Path) -> None:
    stamp, python = tmp_path / "made-from", tmp_path / "python"
    assert not dev.is_whole(stamp, python, "today")  # nothing there yet

    python.touch()
    assert not dev.is_whole(stamp, python, "today")  # broken off before the stamp

    stamp.write_text("yesterday")
    assert not dev.is_whole(stamp, python, "today")  # the dependencies changed since

    stamp.write_text("today")
    assert dev.is_whole(stamp, python, "today")

    python.unlink()
    assert not dev.is_whole(stamp, python, "today")  # its Python was uninstalled


def test_every_command_has_its_steps(dev: ModuleType) -> None:
    assert dev.steps("test", ["-k", "layers"]) == [["-m", "pytest", "-k", "layers"]]
    assert dev.steps("test", []) == [["-m", "pytest", *dev.TOGETHER]]
    assert dev.steps("check", []) == dev.steps("lint", []) + dev.steps("test", [])
    known = {command for command in dev.COMMANDS if command != "lock"}
    assert {command: bool(dev.steps(command, [])) for command in known} == {
        **dict.fromkeys(known, True),
        "setup": False,  # the environment is all it makes
    }


def test_the_first_failing_step_gives_the_exit_code(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = ["raise SystemExit(0)", "raise SystemExit(5)", "raise SystemExit(7)"]
    monkeypatch.setattr(dev, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(dev, "make_environment", lambda: None)
    monkeypatch.setattr(dev, "steps", lambda command, rest: [["-c", code] for code in codes])

    assert dev.run("check", []) == 5
