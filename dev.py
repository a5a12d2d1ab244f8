#!/usr/bin/env python3
"""One file to work on journeykit with: it makes .venv by itself, then runs the tool inside it."""

# Runs on the machine's own Python before anything is installed: standard library only, and no
# syntax that an old Python could not even read, or it would not get as far as saying what it needs.
from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
ENV = ROOT / ".venv"
PYTHON = ENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAMP = ENV / "made-from"
LOCK = ROOT / "requirements.lock"
EXTRAS = ".[test,notebooks,bench]"
OLDEST = (3, 11)
# The whole suite, which takes minutes, shares the cores; a few tests start faster alone.
TOGETHER = ["-n", "auto", "--maxprocesses", "4", "--dist", "worksteal"]
USAGE_EXIT = 2  # what argparse and most commands answer to a command line they do not know

COMMANDS = {
    "demo": "walk eighteen months of real orders through a journey and print what came of it",
    "test": "run every test; further words go to pytest (test -k layers)",
    "lint": "ruff format --check, ruff check, mypy --strict",
    "check": "lint, then test: what has to pass before a commit",
    "format": "let ruff format the code and mend what it can",
    "bench": "measure the engine; further words go to the benchmark",
    "setup": "only make .venv, which every other command does by itself",
    "lock": "pin every dependency again in requirements.lock (needs uv)",
}


def main(words: list[str]) -> int:
    """The exit code of what was run; 2 for a command that does not exist."""
    fault = python_fault(sys.version_info[:3])
    if fault:
        return refuse(fault)
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    command, rest = words[0], words[1:]
    if command not in COMMANDS:
        return refuse(f'there is no command "{command}"\n\n{usage()}')
    return lock() if command == "lock" else run(command, rest)


def python_fault(version: tuple[int, ...]) -> str | None:
    if version >= OLDEST:
        return None
    given = ".".join(map(str, version))
    return f"journeykit needs Python 3.11 or newer, this is {given}: try python3.11 dev.py"


def usage() -> str:
    lines = [f"  {name:7} {what}" for name, what in COMMANDS.items()]
    return "\n".join(["python3 dev.py <command>", "", *lines])


def refuse(message: str, code: int = USAGE_EXIT) -> int:
    print("dev.py: " + message, file=sys.stderr)
    return code


def run(command: str, rest: list[str]) -> int:
    fault = make_environment()
    if fault:
        return refuse(fault, code=1)
    codes = [subprocess.call([str(PYTHON), *words], cwd=ROOT) for words in steps(command, rest)]
    return next((code for code in codes if code), 0)


def steps(command: str, rest: list[str]) -> list[list[str]]:
    """The command lines behind a command. All of them run, so that one look shows every fault."""
    lint = [["-m", "ruff", "format", "--check", "."], ["-m", "ruff", "check", "."], ["-m", "mypy"]]
    test = [["-m", "pytest", *(rest or TOGETHER)]]
    return {
        "demo": [["-m", "journeykit.demo", *rest]],
        "test": test,
        "lint": lint,
        "check": lint + test,
        "format": [["-m", "ruff", "check", "--fix", "."], ["-m", "ruff", "format", "."]],
        "bench": [["bench/run.py", *rest]],
        "setup": [],
    }[command]


def make_environment() -> str | None:
    """Makes .venv unless it is whole and of today's making. What stands in the way, else None."""
    wanted = fingerprint()
    if is_whole(STAMP, PYTHON, wanted):
        return None
    print("dev.py: setting up .venv (once, a minute or so) ...", file=sys.stderr, flush=True)
    if not made_with_uv():
        fault = make_with_pip()
        if fault:
            return fault
    STAMP.write_text(wanted)
    return None


def fingerprint() -> str:
    """Changes with what would be installed, with the Python, and with the folder's place."""
    parts = [(ROOT / "pyproject.toml").read_bytes(), LOCK.read_bytes()]
    parts += [word.encode() for word in (EXTRAS, sys.version, str(ROOT))]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def is_whole(stamp: Path, python: Path, wanted: str) -> bool:
    """The stamp is written last: without it .venv was left half-made and is begun again."""
    return stamp.is_file() and python.exists() and stamp.read_text() == wanted


def made_with_uv() -> bool:
    """False without uv, and where it fails: pip may know a registry or certificate uv does not."""
    uv = shutil.which("uv")
    if not uv:
        return False
    made = [uv, "venv", "-q", "--clear", "--python", base_python(), str(ENV)]
    installer = [uv, "pip", "install", "-q", "--python", str(PYTHON)]
    if subprocess.call(made) == 0 and installed(installer):
        return True
    print("dev.py: uv could not do it, trying pip ...", file=sys.stderr, flush=True)
    return False


def make_with_pip() -> str | None:
    try:
        import ensurepip  # noqa: F401 (Debian and Ubuntu leave it out of their python3)
        import venv
    except ImportError:
        name = "python{}.{}-venv".format(*sys.version_info)
        return f"this Python cannot make environments: apt install {name}, or install uv"
    venv.create(ENV, clear=True, symlinks=os.name != "nt", with_pip=True)
    if installed([str(PYTHON), "-m", "pip", "install", "-q", "--disable-pip-version-check"]):
        return None
    return "the packages could not be installed: see the message above, then run this again"


def installed(installer: list[str]) -> bool:
    return subprocess.call([*installer, "-c", str(LOCK), "-e", EXTRAS], cwd=ROOT) == 0


def base_python() -> str:
    """The Python outside any environment: the one in .venv is about to be cleared away."""
    return getattr(sys, "_base_executable", None) or sys.executable


def lock() -> int:
    uv = shutil.which("uv")
    if not uv:
        return refuse("pinning needs uv, which is not on the path: install uv")
    words = "pip compile -q --upgrade --universal --python-version 3.11 --all-extras --no-annotate"
    named = ["--no-emit-index-url", "--custom-compile-command", "python3 dev.py lock"]
    made = [uv, *words.split(), *named, "pyproject.toml", "-o", LOCK.name]
    return subprocess.call(made, cwd=ROOT)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
