"""The command line: validate, simulate, replay and render a journey.

Exit codes: 0 fine, 1 the journey has problems or the input cannot be used, 2 the call is wrong.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

if TYPE_CHECKING:
    from journeykit_engine.check import Report
    from journeykit_engine.document import Document

app = typer.Typer(
    name="journeykit",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
JOURNAL_BATCH = 20_000  # records between two writes; memory stays flat, calls stay few


class Format(str, Enum):
    """How an answer is written."""

    text = "text"
    json = "json"


class Theme(str, Enum):
    """The colours of a drawing."""

    light = "light"
    dark = "dark"
    auto = "auto"


class Direction(str, Enum):
    """Top to bottom or left to right."""

    TB = "TB"
    LR = "LR"


GraphFile = Annotated[
    Path, typer.Argument(help="The journey as JSON: a graph, {name, graph} or steps; - reads stdin")
]
FormatOption = Annotated[Format, typer.Option("--format", help="text for people, json for programs")]
ZoneOption = Annotated[
    str, typer.Option("--account-timezone", help="The account's zone, where the journey names none")
]


class Refused(Exception):
    """The input cannot be used; the message is for the person at the terminal."""


def main() -> None:
    """Run the command line; every fault of an input is one clear line, never a traceback."""
    from journeykit_engine.shape import BadGraph

    try:
        app(prog_name="journeykit")
    except BadGraph as bad:
        fail("\n".join(f"{p.path}: {p.message} {p.fix}".lstrip(": ") for p in bad.problems))
    except (Refused, ValueError) as bad:
        fail(str(bad))
    except FileNotFoundError as missing:
        fail(f'There is no file "{missing.filename}".')
    except IsADirectoryError as folder:
        fail(f'"{folder.filename}" is a folder; name a file.')
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def fail(message: str) -> None:
    """Say what is wrong on standard error, and leave with 1."""
    print(f"journeykit: {message}", file=sys.stderr)
    sys.exit(1)


def _version(asked: bool) -> None:
    if asked:
        print(f"journeykit {version('journeykit')}")
        raise typer.Exit


@app.callback()
def root(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Customer journeys: check them, walk one person or a whole history through them, draw them.

    \b
    journeykit validate cart.json
    journeykit simulate cart.json --person sara.json
    journeykit replay cart.json --events events.jsonl --until 2026-12-31T00:00:00Z
    journeykit render cart.json -o cart.svg
    """


@app.command()
def validate(
    graph: GraphFile, format: FormatOption = Format.text, account_timezone: ZoneOption = "UTC"
) -> None:
    """List every problem and warning of a journey; exit 1 when there are problems.

    \b
    journeykit validate cart.json
    journeykit validate cart.json --format json | jq .problems
    """
    from journeykit_engine.document import judge

    report = judge(_text(graph), account_timezone=account_timezone)
    print(json.dumps(report.to_dict(), ensure_ascii=False) if format is Format.json else _told(report))
    raise typer.Exit(0 if report.valid else 1)


@app.command()
def simulate(
    graph: GraphFile,
    person: Annotated[
        Path | None,
        typer.Option(help="JSON of {user_id, traits, timezone, events, segments}"),
    ] = None,
    user_id: Annotated[str, typer.Option(help="A person with no traits and no history")] = "someone",
    at: Annotated[str | None, typer.Option(help="When it begins, ISO 8601; now if absent")] = None,
    answer: Annotated[
        list[str] | None, typer.Option(help="WAIT=EVENT or WAIT=timeout, may be repeated")
    ] = None,
    account_timezone: ZoneOption = "UTC",
    format: FormatOption = Format.text,
) -> None:
    """Walk one person through a journey, waits passed over; nothing is stored or sent.

    \b
    journeykit simulate cart.json --user-id u_9137
    journeykit simulate cart.json --person sara.json --answer "wait_purchase=timeout"
    """
    from journeykit.journeys import Journey
    from journeykit.run import simulate as walk
    from journeykit_engine.strict_json import read_json

    found = _document(graph)
    given: Any = user_id if person is None else read_json(person.read_bytes())
    if not isinstance(given, str | dict):
        raise Refused(f'"{person}" must hold an object with "user_id".')
    answers = dict(_pair(text) for text in answer or ())
    trace = walk(
        Journey.from_graph(found.graph, found.name),
        given,
        at,
        account_timezone=account_timezone,
        answers=answers,
    )
    print(json.dumps(trace.to_dict(), ensure_ascii=False) if format is Format.json else trace)


@app.command()
def replay(
    graph: GraphFile,
    events: Annotated[Path, typer.Option(help="What happened, JSON lines in the Segment shapes")],
    people: Annotated[
        Path | None, typer.Option(help="JSON lines of {userId, traits, timezone}")
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="When the journey is published; the first line if absent")
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="The last instant lived through; the last line if absent")
    ] = None,
    account_timezone: ZoneOption = "UTC",
    templates: Annotated[
        Path | None, typer.Option(help='JSON of texts by template id: {"3": "Hi {{ name }}"}')
    ] = None,
    scan_every: Annotated[str, typer.Option(help="Between two looks at a segment")] = "1h",
    journal: Annotated[Path | None, typer.Option(help="Write all that happened, JSON lines")] = None,
    summary: Annotated[Path | None, typer.Option(help="Write the sums, JSON")] = None,
    format: FormatOption = Format.text,
) -> None:
    """Walk a whole history through a journey on a virtual clock; nothing is stored or sent.

    \b
    journeykit replay winback.json --events orders.jsonl --until 1998-07-31T00:00:00Z \\
        --journal journal.jsonl --summary summary.json
    """
    from journeykit import history
    from journeykit.run import interval_of, moment_of, summary_text
    from journeykit_engine import replay as engine
    from journeykit_engine.program import compile_graph

    found = _sound(graph, account_timezone)
    program = compile_graph(found.graph, account_timezone)
    known = history.read_people(people) if people is not None else []
    lines = history.read_lines(events)
    begins = None if since is None else moment_of("since", since)
    ends = None if until is None else moment_of("until", until)
    every, render = interval_of(scan_every), templates and history.read_templates(templates)
    import gc; gc.disable()
    with _sink(journal) as sink, _progress(len(lines)) as progress:
        sums = engine.run(
            program,
            lines,
            known,
            sink,
            since=begins,
            until=ends,
            scan_every=every,
            render=render or None,
            progress=progress,
        )
    if summary is not None:
        with _whole(summary) as file:
            file.write(json.dumps(sums, ensure_ascii=False, indent=2).encode() + b"\n")
    print(json.dumps(sums, ensure_ascii=False) if format is Format.json else summary_text(sums))


@app.command()
def render(
    graph: GraphFile,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="svg, png, pdf, html or dot by its ending")
    ] = None,
    stats: Annotated[
        Path | None, typer.Option(help="A summary of replay: its figures become a funnel")
    ] = None,
    path: Annotated[str, typer.Option(help="Node ids, comma between: this path is lit up")] = "",
    theme: Annotated[Theme, typer.Option(help="The colours")] = Theme.light,
    direction: Annotated[Direction, typer.Option(help="Where it runs to")] = Direction.TB,
) -> None:
    """Draw a journey; without --output print its outline.

    \b
    journeykit render cart.json -o cart.svg
    journeykit render winback.json --stats summary.json -o funnel.html
    """
    from journeykit.draw import draw
    from journeykit.outline import outline
    from journeykit_engine.check import check
    from journeykit_engine.strict_json import read_json

    found = _document(graph)
    if output is None:
        print(outline(found.graph, found.name))
        return
    figures: Any = read_json(stats.read_bytes()) if stats is not None else None
    if figures is not None and not isinstance(figures, dict):
        raise Refused(f'"{stats}" must hold the object that replay writes as its summary.')
    drawing = draw(
        found.graph,
        name=found.name,
        stats=figures.get("nodes", figures) if figures else None,
        path=[part.strip() for part in path.split(",") if part.strip()],
        problems=check(found.graph).problems,
        theme=theme.value,
        direction=direction.value,
    )
    drawing.save(output)
    print(output)


def _text(path: Path) -> bytes:
    return sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()


def _document(path: Path) -> Document:
    from journeykit_engine.document import read_document

    return read_document(_text(path))


def _sound(path: Path, zone: str) -> Document:
    """The journey, which must have no problem to be walked."""
    from journeykit_engine.document import judge, read_document

    text = _text(path)
    report = judge(text, account_timezone=zone)
    if not report.valid:
        raise Refused(f"the journey is not ready.\n{_told(report)}")
    return read_document(text)


def _told(report: Report) -> str:
    from journeykit.report import Report as Shown

    return repr(Shown(report))


def _pair(text: str) -> tuple[str, str]:
    wait, sign, branch = text.partition("=")
    if not sign or not wait or not branch:
        raise Refused(f'--answer "{text}" must be WAIT=EVENT or WAIT=timeout.')
    return wait, branch


@contextmanager
def _whole(path: Path) -> Iterator[BinaryIO]:
    """A file that is there whole or not at all: written beside its place and moved there."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as file:
            yield file
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def _sink(path: Path | None) -> Iterator[Callable[[dict[str, Any]], object]]:
    """Where the journal's records go: to the file in batches, or nowhere."""
    if path is None:
        yield lambda record: None
        return
    import orjson

    kept: list[bytes] = []
    with _whole(path) as file:

        def keep(record: dict[str, Any]) -> None:
            kept.append(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
            if len(kept) >= JOURNAL_BATCH:
                file.writelines(kept)
                kept.clear()

        yield keep
        file.writelines(kept)


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], object] | None]:
    """A bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from tqdm import tqdm

    with tqdm(total=total, unit=" events", leave=False) as bar:
        yield lambda count: bar.update(count - bar.n)


if __name__ == "__main__":
    main()
