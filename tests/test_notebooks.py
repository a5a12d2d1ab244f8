"""Every notebook runs from top to bottom in a fresh kernel, and is stored as nobody's machine.

What its cells assert holds, nothing is printed to standard error, and the pictures are there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
PACKAGE_FOLDERS = [str(ROOT / name) for name in ("engine", "sdk", "server")]
CELL_SECONDS = 180  # the longest takes about eight on a quiet machine
START_SECONDS = 120  # a kernel starts in two

# Graphviz' C code writes to the kernel's standard error on some Debians; it means nothing here.
HARMLESS = re.compile(r"\s*Fontconfig (warning|error): .*")
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Any]]:
    """Every notebook after its run, by its name."""
    home = tmp_path_factory.mktemp("jupyter")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
            patch.setenv(name, str(home / name.lower()))
        patch.setenv("PYTHONPATH", os.pathsep.join(PACKAGE_FOLDERS))
        yield {path.stem: run(path) for path in NOTEBOOKS}


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def run(path: Path) -> Any:
    notebook = read(path)
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        startup_timeout=START_SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(FOLDER)}},
    )
    client.execute()
    return notebook


def outputs(notebook: Any) -> list[Any]:
    return [one for cell in notebook.cells for one in cell.get("outputs", ())]


def printed(notebook: Any) -> str:
    texts = [one.text for one in outputs(notebook) if one.get("name") == "stdout"]
    tables = [one.data.get("text/plain", "") for one in outputs(notebook) if "data" in one]
    return "\n".join(texts + tables)


def pictures(notebook: Any) -> list[str]:
    shown = [one.data for one in outputs(notebook) if "data" in one]
    return [data["image/svg+xml"] for data in shown if "image/svg+xml" in data]


def titles(notebook: Any) -> list[str]:
    """The title of each picture, which is the name of the journey."""
    return [re.findall("<title>(.*?)</title>", picture)[0] for picture in pictures(notebook)]


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS][:1] == ["01_first_journey"]


@each_notebook
def test_a_notebook_runs_without_a_word_on_standard_error(
    path: Path, ran: Mapping[str, Any]
) -> None:
    told = [one.text for one in outputs(ran[path.stem]) if one.get("name") == "stderr"]
    lines = [line for text in told for line in text.splitlines() if line.strip()]

    assert [line for line in lines if not HARMLESS.fullmatch(line)] == []


@each_notebook
def test_a_notebook_shows_a_journey(path: Path, ran: Mapping[str, Any]) -> None:
    assert re.search("<svg .*<title>[^<]+</title>", pictures(ran[path.stem])[0], re.S)


def test_the_first_journey_finds_the_mistakes_and_tells_the_arms(ran: Mapping[str, Any]) -> None:
    told = printed(ran["01_first_journey"])
    first, *_, patient, funnel = titles(ran["01_first_journey"])

    assert (first, patient, funnel) == ("Abandoned cart", *["Abandoned cart, patient"] * 2)
    assert "valid: no problems, no warnings" in told
    assert 'DANGLING_EDGE node "send_push_3"' in told
    assert '.wait: "90 minutes" is not a duration.' in told
    assert 'maryam   arm "A"    messages: 1\n' in told
    assert "ana      held out   messages: 0\n" in told
    assert "{'test': {'A': 609, 'B': 606, 'holdout': 144}}" in told


def test_the_real_orders_give_the_figures_that_pandas_gives(ran: Mapping[str, Any]) -> None:
    told = printed(ran["03_replay_real_orders"])

    assert "23,570 people, 69,659 orders" in told
    assert "every figure agrees" in told
    assert "1997-06  1,717" in told
    assert "1997-12  1,649" in told
    assert titles(ran["03_replay_real_orders"]) == ["Win back"] * 3
    _, funnel, _ = pictures(ran["03_replay_real_orders"])
    assert all(figure in funnel for figure in ("69,659", "22,705", "46,954"))


def test_the_orders_are_found_from_the_root_of_the_repository_too() -> None:
    notebook = read(FOLDER / "03_replay_real_orders.ipynb")
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    reading = code[: next(n for n, text in enumerate(code) if "read_csv" in text) + 1]

    ran = subprocess.run(
        [sys.executable, "-c", "\n".join([*reading, "print(len(orders))"])],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(PACKAGE_FOLDERS)},
        capture_output=True,
        encoding="utf-8",
        timeout=CELL_SECONDS,
    )

    assert ran.stdout == "69659\n", ran.stderr


@each_notebook
def test_a_stored_notebook_holds_no_trace_of_a_run(path: Path) -> None:
    notebook = read(path)

    assert notebook.metadata == METADATA
    for cell in notebook.cells:
        assert cell.metadata == {}
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None)
