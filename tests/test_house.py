"""What holds for the repository as a whole: what may be committed, packed and named."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("engine/journeykit_engine", "sdk/journeykit", "server/journeykit_server")

# A machine's own folders and the registry it installs from mean nothing on another machine. Folders
# of the system that are everywhere the same (/usr/lib, /usr/bin, /dev) may be named.
STRANGE = re.compile(
    r"(?<![\w.:~-])/(?:home|root|Users|work|workspace|opt|srv|mnt|tmp|var)/"
    r"|\b[A-Z]:\\"
    r"|\bfile:/"
    r"|\bhttps?://[^\s\"'<>)]*(?:pypi|pythonhosted|/simple\b)"
    r"|\bindex[-_]url\s*="
)
# A name that says nothing gathers what has nothing in common.
EMPTY_NAMES = re.compile(
    "utils?|helpers?|common|constants|models?|types|schemas?|exceptions|base|misc"
    "|repository|service|factory|manager"
)
MAX_FILE_LINES = 600  # past it a file holds more than one noun
LONG_FUNCTION_LINES = 30  # nine functions of ten stay under it


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    written = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    described: dict[str, Any] = written["project"]
    return described


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """Every text file that is or would be committed, by its path."""
    found = {path: (ROOT / path).read_bytes() for path in committed()}
    return {path: raw.decode("utf-8") for path, raw in found.items() if b"\0" not in raw[:8000]}


def committed() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout: " + listed.stderr.strip())
    return [path for path in listed.stdout.split("\0") if path and (ROOT / path).is_file()]


def modules() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def test_no_committed_text_knows_the_machine_it_was_written_on(texts: dict[str, str]) -> None:
    assert "pyproject.toml" in texts
    assert strangers(texts) == []


@pytest.mark.parametrize(
    "halves",
    [
        ("file:", "///mirror/simple"),
        ("/home", "/sara/orders.csv"),
        ("/tmp", "/built"),
        ("C:", "\\Users"),
        ("https://mirror.example/", "simple/"),
        ("index", "-url = mirror"),
    ],
    ids=lambda halves: halves[0],
)
def test_what_belongs_to_one_machine_would_be_found(halves: tuple[str, str]) -> None:
    """Joined here only, or this file would be the first to hold it."""
    text = "name = 1\nurl = " + "".join(halves)

    (stranger,) = strangers({"uv.lock": text})
    assert stranger.startswith("uv.lock:2: ")


def test_folders_that_every_system_has_may_be_named() -> None:
    text = "#!/usr/bin/env python3\nhttps://example.com/home/tmp/page\nnotebooks/data/orders"

    assert strangers({"page.md": text}) == []


def strangers(texts: dict[str, str]) -> list[str]:
    return [
        f"{path}:{number}: {found[0]}"
        for path, text in texts.items()
        for number, line in enumerate(text.splitlines(), 1)
        for found in STRANGE.finditer(line)
    ]


def test_the_lock_pins_every_dependency_at_an_allowed_version(project: dict[str, Any]) -> None:
    pins = locked()
    groups = [project["dependencies"], *project["optional-dependencies"].values()]

    for requirement in (Requirement(text) for group in groups for text in group):
        if requirement.name != project["name"]:
            (pin,) = pins[requirement.name.lower()].specifier
            assert requirement.specifier.contains(pin.version), f"{requirement} but {pin} locked"


def test_the_lock_is_names_and_exact_versions_only() -> None:
    for requirement in locked().values():
        (pin,) = requirement.specifier
        assert (pin.operator, requirement.url) == ("==", None)


def locked() -> dict[str, Requirement]:
    lines = (ROOT / "requirements.lock").read_text("utf-8").splitlines()
    pins = [Requirement(line) for line in lines if not line.lstrip().startswith("#")]
    return {pin.name.lower(): pin for pin in pins}


def test_the_changelog_begins_with_this_version(project: dict[str, Any]) -> None:
    entries = [
        line
        for line in (ROOT / "CHANGELOG.md").read_text("utf-8").splitlines()
        if line.startswith("## ")
    ]

    assert entries[0].split()[1] == project["version"]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_says_that_it_is_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()


def test_every_file_is_named_after_something() -> None:
    assert [path.name for path in modules() if EMPTY_NAMES.fullmatch(path.stem)] == []


def test_no_file_outgrows_its_noun() -> None:
    lines = {path.name: len(path.read_text("utf-8").splitlines()) for path in modules()}

    assert {name: count for name, count in lines.items() if count > MAX_FILE_LINES} == {}


def test_nine_functions_of_ten_are_short() -> None:
    lengths = sorted(length for path in modules() for length in function_lengths(path))

    assert lengths, "no function was found"
    assert lengths[int(len(lengths) * 0.9)] < LONG_FUNCTION_LINES


def function_lengths(path: Path) -> list[int]:
    """The lines of each function of a module, its docstring not counted."""
    functions = [
        node
        for node in ast.walk(ast.parse(path.read_text("utf-8"), filename=str(path)))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return [(f.end_lineno or f.lineno) - f.lineno + 1 - docstring_lines(f) for f in functions]


def docstring_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    text = ast.get_docstring(function, clean=False)
    return len(text.splitlines()) if text else 0


def test_every_module_of_the_server_has_a_room() -> None:
    package = ROOT / "server" / "journeykit_server"
    told = ast.get_docstring(ast.parse((package / "__init__.py").read_text("utf-8"))) or ""
    named = re.findall(r"`(\w+)`", told)

    assert sorted(named) == sorted(
        path.stem for path in package.glob("*.py") if path.stem != "__init__"
    )
