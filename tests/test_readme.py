"""What the README and the pages of docs show is run: their Python, their shell, their tables."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import journeykit as jk

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
PACKAGE_FOLDERS = [str(ROOT / name) for name in ("engine", "sdk", "server")]
SHELL_SECONDS = 120  # four short commands on a slow and shared machine


class Block(NamedTuple):
    """A fenced block of a page: its language and its text."""

    language: str
    text: str


def blocks(page: Path, language: str | None = None) -> list[Block]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S)
    return [Block(*one) for one in found if language in (None, one[0])]


def python_blocks() -> list[Any]:
    return [
        pytest.param(block.text, id=f"{page.stem}-{number}")
        for page in PAGES
        for number, block in enumerate(blocks(page, "python"), 1)
    ]


def test_every_block_is_of_a_kind_that_is_tested() -> None:
    kinds = [block.language for page in PAGES for block in blocks(page)]

    assert set(kinds) == {"python", "sh", "text"}


@pytest.mark.parametrize("text", python_blocks())
def test_python_runs_as_it_stands(text: str) -> None:
    exec(compile(text, "page", "exec"), {})


def test_the_two_commands_are_known() -> None:
    two = blocks(README, "sh")[0].text.splitlines()
    listed = subprocess.run(
        [sys.executable, "dev.py"], cwd=ROOT, capture_output=True, encoding="utf-8", timeout=60
    )

    assert two == ["python3 dev.py demo", "python3 dev.py test"]
    for line in two:
        assert f"\n  {line.split()[-1]} " in listed.stdout


@pytest.mark.skipif(shutil.which("sh") is None, reason="the example is for a Unix shell")
def test_the_shell_example_answers_what_is_printed_under_it(tmp_path: Path) -> None:
    _, example = blocks(README, "sh")
    (answer,) = blocks(README, "text")
    commands = tmp_path / "bin"
    commands.mkdir()
    journeykit = commands / "journeykit"
    journeykit.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m journeykit "$@"\n')
    journeykit.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(commands), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(PACKAGE_FOLDERS),
        "PYTHONUTF8": "1",
    }

    ran = subprocess.run(
        ["sh", "-e", "-c", example.text],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=SHELL_SECONDS,
    )

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == answer.text
    records = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_bytes().splitlines()]
    assert [record["what"] for record in records].count("effect") == 2
    assert "<svg" in (tmp_path / "funnel.html").read_text("utf-8")


def table_rows() -> list[tuple[str, str]]:
    """The rows of the tables that set Python beside its JSON."""
    text = (ROOT / "docs" / "rules.md").read_text("utf-8")
    rows = re.findall(r"^\| `(jk\..*?|~jk\..*?)` \| `(\{.*?\})` \|$", text, re.M)
    return [(code.replace("\\|", "|"), body) for code, body in rows]


@pytest.mark.parametrize(("code", "body"), table_rows())
def test_a_rule_in_python_is_the_json_beside_it(code: str, body: str) -> None:
    rule = eval(code, {"jk": jk})

    assert isinstance(rule, jk.Rule)
    assert rule.definition == {"root": json.loads(body)}


def test_every_row_of_the_rule_tables_is_looked_at() -> None:
    lines = (ROOT / "docs" / "rules.md").read_text("utf-8").splitlines()

    assert len(table_rows()) == sum(line.startswith("| `") for line in lines)


def test_every_page_and_picture_that_is_named_is_there() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8")):
            assert "://" in target or (page.parent / target).is_file(), f"{page.name}: {target}"


def test_the_picture_holds_the_figures_of_the_replay() -> None:
    picture = (ROOT / "docs" / "winback.svg").read_text("utf-8")

    assert "<title>Win back</title>" in picture
    for figure in ("69,659", "22,705", "46,954"):
        assert figure in picture
