"""Who may import whom, read from the source: sdk -> engine <- server.

The engine is pure: what it answers depends on its arguments alone. So it may import only what
cannot touch a clock, chance, a file, the network or another thread, and the list of that is here.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
ENGINE, SDK, SERVER = "journeykit_engine", "journeykit", "journeykit_server"
HOMES = {ENGINE: "engine", SDK: "sdk", SERVER: "server"}

# A module of the engine imports only from rows above its own, so that no two can need each other.
ENGINE_ROWS = (
    ("phone", "zone"),
    ("allot", "comparison", "shape", "strict_json", "template", "timing"),
    ("instance", "moment"),
    ("facts", "signal", "trail"),
    ("history",),
    ("leaf",),
    ("rule_faults",),
    ("rule",),
    ("graph", "profile"),
    ("paths",),
    ("nodes", "check_nodes"),
    ("program", "check_warnings", "check_outside"),
    ("walk", "journal", "looks", "check", "steps"),
    ("behaviour", "document"),
    ("forecast", "replay", "simulate"),
)
ROW_OF = {name: row for row, names in enumerate(ENGINE_ROWS) for name in names}

# What the engine may import from outside itself, with the modules that may; () means all of them.
PURE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("__future__", "abc", "types", "typing", "dataclasses", "enum", "copy"), ()),
    **dict.fromkeys(("collections", "collections.abc", "functools", "itertools"), ()),
    **dict.fromkeys(("bisect", "heapq", "operator", "math", "fractions", "decimal"), ()),
    **dict.fromkeys(("numbers", "statistics", "re", "string", "unicodedata", "textwrap"), ()),
    **dict.fromkeys(
        ("base64", "hashlib", "json", "struct", "urllib.parse", "ipaddress", "difflib"), ()
    ),
    **dict.fromkeys(("pydantic", "pydantic_core", "typing_extensions", "whenever"), ()),
    "importlib.resources": ("zone",),  # the zone data of the package tzdata, read once
    "tzdata": ("zone",),
    "_md5": ("allot",),  # the hash of hashlib without the way through OpenSSL
    "liquid": ("template",),
    "phonenumbers": ("phone",),  # tables of numbering plans
}
# Slow to import and needed by few: such a module is imported inside the function that uses it.
LAZY = ("liquid", "phonenumbers")
# A field may be called `now`: the moment that was given. Called, or taken from what was imported,
# it is somebody's clock.
CLOCK_AND_CHANCE = ("now", "utcnow", "today", "uuid4", "random", "getenv")
OUTSIDE_CALLS = ("open", "input", "print", "eval", "exec", "__import__", "breakpoint")
# The modules of the SDK that may start a server: the client when somebody connects to a file, and
# the one command `journeykit` when a command of the server is asked for. Both inside a function:
# whoever only checks and draws journeys neither needs the server's packages nor waits for them.
EMBED_THE_SERVER = ("client", "__main__")


class Import(NamedTuple):
    line: int
    module: str  # dotted and absolute
    lazy: bool  # inside a function
    for_types: bool  # under `if TYPE_CHECKING`: never runs


def test_every_module_keeps_its_layer() -> None:
    files = [path for home in HOMES.values() for path in sorted((ROOT / home).rglob("*.py"))]

    assert len(files) > len(HOMES), "the packages were not found"
    assert [fault for path in files for fault in layer_faults(*placed(path))] == []


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("import time", "imports 'time', which PURE does not list"),
        ("import os.path", "imports 'os.path', which PURE does not list"),
        ("from random import choice", "imports 'random', which PURE does not list"),
        ("def f():\n    import sqlite3", "imports 'sqlite3', which PURE does not list"),
        (
            "import importlib.resources",
            "imports 'importlib.resources', which PURE grants to zone only",
        ),
        ("def f():\n    import liquid", "imports 'liquid', which PURE grants to template only"),
        ("import journeykit", "imports 'journeykit': the engine imports neither sdk nor server"),
        (
            "from journeykit_server.store import save",
            "imports 'journeykit_server.store': the engine imports neither sdk nor server",
        ),
        (
            "from journeykit_engine.walk import react",
            "imports 'walk', which ENGINE_ROWS does not put above graph",
        ),
        ("from . import replay", "imports 'replay', which ENGINE_ROWS does not put above graph"),
        (
            "import journeykit_engine",
            "imports 'journeykit_engine', which ENGINE_ROWS does not put above graph",
        ),
        ("from .graph import Node", "imports 'graph', which ENGINE_ROWS does not put above graph"),
        (
            "from whenever import Instant\nInstant.now()",
            "reads 'now': time and chance are arguments",
        ),
        ("import whenever\nwhenever.Instant.now", "reads 'now': time and chance are arguments"),
        ("def f(clock):\n    return clock.today()", "reads 'today': time and chance are arguments"),
        ("from whenever import now", "reads 'now': time and chance are arguments"),
        ("open('people.json')", "calls 'open': the engine touches nothing outside"),
    ],
)
def test_a_breach_in_the_engine_is_told(source: str, complaint: str) -> None:
    line = source.count("\n") + 1

    assert layer_faults(ENGINE, "graph", source) == [
        f"engine/journeykit_engine/graph.py:{line}: {complaint}"
    ]


@pytest.mark.parametrize(
    ("package", "module", "source", "complaint"),
    [
        (
            ENGINE,
            "template",
            "import liquid",
            "engine/journeykit_engine/template.py:1: imports 'liquid' at the top: it is slow, "
            "import it inside the function that uses it",
        ),
        (
            ENGINE,
            "banana",
            "",
            "engine/journeykit_engine/banana.py:1: 'banana' has no place in the engine's order: "
            "give it a row in ENGINE_ROWS",
        ),
        (
            SDK,
            "draw",
            "def f():\n    import journeykit_server",
            "sdk/journeykit/draw.py:2: imports 'journeykit_server': only client and __main__ may, "
            "and only inside a function",
        ),
        (
            SDK,
            "client",
            "import journeykit_server",
            "sdk/journeykit/client.py:1: imports 'journeykit_server': only client and __main__ "
            "may, and only inside a function",
        ),
        (
            SERVER,
            "store",
            "from journeykit.rules import trait",
            "server/journeykit_server/store.py:1: imports 'journeykit.rules': the server never "
            "imports the sdk",
        ),
    ],
)
def test_a_breach_elsewhere_is_told(package: str, module: str, source: str, complaint: str) -> None:
    assert layer_faults(package, module, source) == [complaint]


@pytest.mark.parametrize(
    ("package", "module", "source"),
    [
        (ENGINE, "graph", "from .rule import matches\nfrom . import timing, strict_json"),
        (ENGINE, "__init__", "from .replay import replay\nfrom journeykit_engine import walk"),
        (ENGINE, "zone", "from importlib.resources import files\nimport tzdata"),
        (ENGINE, "zone", "import importlib.resources as resources"),
        (ENGINE, "template", "def render():\n    from liquid import Environment"),
        (ENGINE, "walk", "def f(person):\n    return person.now, person.mood.random"),
        (ENGINE, "nodes", "if TYPE_CHECKING:\n    from .program import Program"),
        (ENGINE, "walk", "from urllib.parse import urlsplit\nimport collections.abc"),
        (SDK, "builder", "import os, time\nfrom journeykit_engine.graph import Node"),
        (SDK, "client", "def connect():\n    from journeykit_server.app import start"),
        (SDK, "__main__", "def serve():\n    from journeykit_server.__main__ import main"),
        (SERVER, "store", "import sqlite3\nfrom journeykit_engine import walk"),
    ],
)
def test_what_is_allowed_is_silent(package: str, module: str, source: str) -> None:
    assert layer_faults(package, module, source) == []


def placed(path: Path) -> tuple[str, str, str]:
    """The package, the module's dotted name inside it, and the source."""
    package, *inner = path.relative_to(ROOT).with_suffix("").parts[1:]
    return package, ".".join(inner), path.read_text("utf-8")


def layer_faults(package: str, module: str, source: str) -> list[str]:
    """One sentence for each breach in a module's source, in the order of its lines."""
    where = f"{HOMES[package]}/{package}/{module.replace('.', '/')}.py"
    tree = ast.parse(source, filename=where)
    found = list(import_faults(package, module, tree))
    if package == ENGINE:
        found += engine_faults(module, tree)
    return [f"{where}:{line}: {fault}" for line, fault in sorted(found)]


def import_faults(package: str, module: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    for imported in imports(package, module, tree):
        top = imported.module.split(".")[0]
        if package == ENGINE:
            fault = engine_import_fault(module, imported)
        elif package == SERVER and top == SDK:
            fault = f"imports '{imported.module}': the server never imports the sdk"
        elif (
            package == SDK
            and top == SERVER
            and (module not in EMBED_THE_SERVER or not imported.lazy)
        ):
            fault = (
                f"imports '{imported.module}': only {' and '.join(EMBED_THE_SERVER)} may, "
                "and only inside a function"
            )
        else:
            fault = ""
        if fault:
            yield imported.line, fault


def engine_import_fault(module: str, imported: Import) -> str:
    top, _, inner = imported.module.partition(".")
    if top in (SDK, SERVER):
        return f"imports '{imported.module}': the engine imports neither sdk nor server"
    if top == ENGINE:
        return "" if imported.for_types else order_fault(module, inner.split(".")[0])
    users = PURE.get(imported.module, PURE.get(top))
    if users is None:
        return f"imports '{imported.module}', which PURE does not list"
    if users and module not in users:
        return f"imports '{imported.module}', which PURE grants to {', '.join(users)} only"
    if top in LAZY and not imported.lazy:
        return f"imports '{top}' at the top: it is slow, import it inside the function that uses it"
    return ""


def order_fault(module: str, other: str) -> str:
    """The package itself counts as below everything: its `__init__` imports all of them."""
    if module == "__init__" or ROW_OF.get(other, len(ENGINE_ROWS)) < ROW_OF.get(module, 0):
        return ""
    return f"imports '{other or ENGINE}', which ENGINE_ROWS does not put above {module}"


def engine_faults(module: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    if module not in ("__init__", *ROW_OF):
        yield 1, f"'{module}' has no place in the engine's order: give it a row in ENGINE_ROWS"
    for line, name in clocks_read(tree):
        yield line, f"reads '{name}': time and chance are arguments"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and root_name(node.func) in OUTSIDE_CALLS:
            yield node.lineno, f"calls '{root_name(node.func)}': the engine touches nothing outside"


def clocks_read(tree: ast.Module) -> set[tuple[int, str]]:
    """The line and name of each; a clock that is taken and called at once counts once."""
    found = set()
    taken = {name for node in ast.walk(tree) for name in names_bound(node)}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) if root_name(node) in taken:
                found.add((node.lineno, name))
            case ast.Call(func=ast.Attribute(attr=name)):
                found.add((node.lineno, name))
            case ast.ImportFrom(names=aliases):
                found |= {(node.lineno, alias.name) for alias in aliases}
    return {(line, name) for line, name in found if name in CLOCK_AND_CHANCE}


def names_bound(node: ast.AST) -> list[str]:
    """What an import statement puts into the module's namespace."""
    if not isinstance(node, ast.Import | ast.ImportFrom):
        return []
    return [alias.asname or alias.name.split(".")[0] for alias in node.names]


def root_name(node: ast.expr) -> str:
    """`whenever` of `whenever.Instant.now`; empty where the chain does not begin with a name."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def imports(package: str, module: str, tree: ast.Module) -> Iterator[Import]:
    """Every import of a source, `from . import x` and `from pkg import submodule` resolved."""
    lazy = inside(tree, lambda node: isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    for_types = inside(tree, is_for_types)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name in imported_names(package, module, node):
                yield Import(node.lineno, name, node in lazy, node in for_types)


def inside(tree: ast.Module, encloses: Callable[[ast.AST], bool]) -> set[ast.AST]:
    return {inner for outer in ast.walk(tree) if encloses(outer) for inner in ast.walk(outer)}


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def imported_names(package: str, module: str, node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    source = node.module or ""
    if node.level:
        above = [package, *module.split(".")][: -node.level]
        source = ".".join([*above, source] if source else above)
    if source in HOMES:  # what is imported from a package itself is one of its modules
        return [f"{source}.{alias.name}" for alias in node.names]
    return [source]
