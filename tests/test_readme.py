"""What the README and the pages of docs show is run: Python, shell, tables, journeys, histories."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import journeykit as jk
from journeykit import history
from journeykit.report import Report
from journeykit_engine import replay
from journeykit_engine.check import check
from journeykit_engine.document import judge, read_document
from journeykit_engine.graph import FIELD_NAMES, KINDS, Graph
from journeykit_engine.steps import KINDS as STEP_KINDS
from journeykit_engine.steps import is_steps

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
DOCUMENT, HISTORY = ROOT / "docs" / "document.md", ROOT / "docs" / "history.md"
OWN_RUN = ROOT / "docs" / "what-is-sent-and-why.md"  # test_what_is_sent runs it, as a whole
PAGES = [README, *(page for page in sorted((ROOT / "docs").glob("*.md")) if page != OWN_RUN)]
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

    assert set(kinds) == {"json", "jsonl", "python", "sh", "text"}


@pytest.mark.parametrize("text", python_blocks())
def test_python_runs_as_it_stands(text: str) -> None:
    exec(compile(text, "page", "exec"), {})


def test_the_line_that_is_shown_of_a_walk_is_told_by_it() -> None:
    (example,) = [block.text for block in blocks(README, "python")]
    names: dict[str, Any] = {}
    exec(compile(example, "page", "exec"), names)

    told = repr(names["cart"].simulate("maryam"))

    assert "\n  effect   send_push_3: send\n" in told
    assert "`effect   send_push_3: send`" in README.read_text("utf-8")
    assert '"maryam"' in example


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
    _, example, _ = blocks(README, "sh")
    (answer,) = blocks(README, "text")

    answered = shell(example.text, tmp_path)

    assert answered == answer.text
    records = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_bytes().splitlines()]
    assert [record["what"] for record in records].count("effect") == 2
    assert "<svg" in (tmp_path / "funnel.html").read_text("utf-8")


@pytest.mark.skipif(shutil.which("sh") is None, reason="the example is for a Unix shell")
def test_the_example_of_the_store_finds_all_well(tmp_path: Path) -> None:
    _, _, example = blocks(README, "sh")

    answered = shell(example.text, tmp_path)

    assert "The schema is current." in answered
    assert answered.endswith("every number is what the journal says\n")


def shell(text: str, folder: Path) -> str:
    """What the lines print with `journeykit` on the path; each must succeed."""
    commands = folder / "bin"
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
        ["sh", "-e", "-c", text],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=SHELL_SECONDS,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


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


# The document.


def journeys() -> list[tuple[str, str]]:
    """The journeys of the page, each with the verdict that is printed under it."""
    pairs = pairwise(blocks(DOCUMENT))
    return [(one.text, two.text) for one, two in pairs if one.text.startswith("{")]


def lists_of_nodes() -> list[list[dict[str, Any]]]:
    return [json.loads(one.text) for one in blocks(DOCUMENT, "json") if one.text[0] == "["]


def nodes() -> list[dict[str, Any]]:
    return [node for listed in lists_of_nodes() for node in listed]


@pytest.mark.parametrize(("text", "verdict"), journeys())
def test_a_journey_is_as_valid_as_the_page_says(text: str, verdict: str) -> None:
    assert f"{Report(judge(text))!r}\n" == verdict


def test_every_shape_of_a_journey_is_shown_and_judged() -> None:
    shown = [json.loads(text) for text, _ in journeys()]

    assert [next(iter(one)) for one in shown] == ["journey_id", "entry_id", "name", "entry"]
    assert len(shown) == sum(block.language == "text" for block in blocks(DOCUMENT))


@pytest.mark.parametrize("node", nodes(), ids=lambda node: node["id"])
def test_a_node_lacks_nothing_but_the_graph_around_it(node: dict[str, Any]) -> None:
    problems = check(Graph.parse({"nodes": [node]})).problems

    assert {problem.code for problem in problems} <= {"NO_ENTRY", "DANGLING_EDGE"}


def kinds_in(found: list[dict[str, Any]]) -> set[str]:
    inner = [node[node["kind"]].get("kind", "") for node in found if node["kind"] != "exit"]
    return {*(node["kind"] for node in found), *inner} - {""}


def test_every_kind_and_every_field_is_shown() -> None:
    text = DOCUMENT.read_text("utf-8")
    schema = json.dumps(Graph.model_json_schema())
    inner = set(re.findall(r'"const": "(\w+)"', schema))

    assert kinds_in(nodes()) == {*KINDS, *inner}
    assert [name for name in FIELD_NAMES if not re.search(rf'[`"]{name}[`"]', text)] == []
    assert [name for name in STEP_KINDS if f"`{name}`" not in text] == []


def test_the_steps_become_the_nodes_under_them() -> None:
    (steps,) = [text for text, _ in journeys() if is_steps(json.loads(text))]

    assert read_document(steps).graph.to_value()["nodes"] == lists_of_nodes()[-1]


# The history.


def test_the_lines_are_read_and_every_type_is_among_them() -> None:
    lines, _ = blocks(HISTORY, "jsonl")

    read = history.lines_in(io.BytesIO(lines.text.encode()), "events.jsonl")

    assert {line.type for line in read} == set(history.LINE_TYPES)
    assert len(read) == lines.text.count("\n")
    assert [line.id for line in read].count("m-1") == 2


def test_the_people_are_read() -> None:
    _, people = blocks(HISTORY, "jsonl")

    read = history.people_in(io.BytesIO(people.text.encode()), "people.jsonl")

    assert read[0] == replay.Known("sara", {"plan": "free", "born": "1990-03-09"}, "Asia/Tehran")
    assert read[1] == replay.Known("omid")


def test_the_person_is_seen_by_the_rules() -> None:
    person, _ = [json.loads(block.text) for block in blocks(HISTORY, "json")]
    past = jk.did("purchase", where=jk.prop("value") >= 20) & jk.in_segment(12)
    known = past & (jk.trait("plan") == "premium")
    fork = jk.journey().on_call().when(known, yes=lambda j: j.exit(id="known")).exit()

    assert "known" in fork.simulate(person, "2026-03-02T09:00:00Z").simulation.path


def test_the_texts_are_read_and_tell_what_they_miss() -> None:
    _, texts = [json.loads(block.text) for block in blocks(HISTORY, "json")]
    hello = jk.journey().on_event("added").send(push=3).send(email=7).exit()
    row = {"userId": "sara", "event": "added", "timestamp": "2026-03-02T09:00:00Z"}
    named = {"userId": "sara", "traits": {"name": "Sara"}}

    nameless = hello.replay([row], templates=texts).of("sara")

    withheld = [record for record in nameless if record["what"] == "suppressed"]
    assert [record["missing"] for record in withheld] == [["name"], ["name"]]
    assert hello.replay([row], [named], templates=texts).summary["messages"] == 2


def test_a_line_that_cannot_be_used_is_told_as_on_the_page() -> None:
    broken = b"\n" * 6 + b'{"type": "track", "event": "x", "timestamp": "2026-03-02T09:00:00Z"}'

    with pytest.raises(history.BadHistory) as caught:
        history.lines_in(io.BytesIO(broken), "events.jsonl")

    assert f"`{caught.value}`" in HISTORY.read_text("utf-8")


# What the pages name.


def test_every_page_and_picture_that_is_named_is_there() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            assert "://" in target or (page.parent / target).is_file(), f"{page.name}: {target}"


def test_the_picture_holds_the_figures_of_the_replay() -> None:
    picture = (ROOT / "docs" / "winback.svg").read_text("utf-8")

    assert "<title>Win back</title>" in picture
    for figure in ("69,659", "22,705", "46,954"):
        assert figure in picture
