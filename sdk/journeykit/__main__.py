"""The command line: validate, simulate, replay and render a journey; and the server's commands, if
it is installed.

Exit codes: 0 fine, 1 the journey has problems or the input cannot be used, 2 the call is wrong,
130 interrupted, 141 nobody reads the output any more, 143 told to stop.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, NoReturn, TypeGuard

import typer

if TYPE_CHECKING:
    from journeykit_engine.check import Report
    from journeykit_engine.document import Document
    from journeykit_engine.strict_json import BadJson

INTERRUPTED, NOBODY_READS, STOPPED = 130, 141, 143  # as a shell counts: 128 and the signal
STANDARD_INPUT = Path("-")

app = typer.Typer(
    name="journeykit",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Format(StrEnum):
    """How an answer is written."""

    text = "text"
    json = "json"


class Theme(StrEnum):
    """The colours of a drawing."""

    light = "light"
    dark = "dark"
    auto = "auto"


class Direction(StrEnum):
    """Top to bottom or left to right."""

    TB = "TB"
    LR = "LR"


GraphFile = Annotated[
    Path,
    typer.Argument(
        metavar="JOURNEY",
        show_default=False,
        help="The journey as JSON: a graph, {name, graph} or steps. A - reads standard input.",
    ),
]
FormatOption = Annotated[Format, typer.Option("--format", help="For people or for programs.")]
ZoneOption = Annotated[
    str,
    typer.Option(metavar="ZONE", help="The account's time zone, where the journey names none."),
]


def _file(help: str, *names: str) -> Any:
    return typer.Option(*names, metavar="FILE", help=help, show_default=False)


def _instant(help: str) -> Any:
    return typer.Option(metavar="INSTANT", help=help, show_default=False)


class Refused(Exception):
    """The input cannot be used; the message is for the person at the terminal."""


def main() -> None:
    """Run the command line; every fault of an input is one clear line, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # names of nodes are in any language
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(STOPPED))  # what is begun is cleared away
    try:
        try:
            app(sys.argv[1:] or ["--help"], prog_name="journeykit")
        finally:
            say()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        fail(_reason(error))


def _reason(error: Exception) -> str:
    """What is wrong with the input; any other fault is ours, and raised."""
    match error:
        case FileNotFoundError():
            return f'there is no file "{error.filename}".'
        case IsADirectoryError():
            return f'"{error.filename}" is a folder; name a file.'
        case OSError():
            reason = error.strerror or str(error)
            return f'"{error.filename}": {reason}' if error.filename else reason
        case Refused() | ValueError():
            return str(error)
    from journeykit.drawing import CannotDraw

    if isinstance(error, CannotDraw):
        return str(error)
    raise error


def fail(message: str) -> NoReturn:
    """Say what is wrong on standard error, and leave with 1."""
    note(message)
    sys.exit(1)


def say(*answer: object) -> None:
    """Print an answer, all of it; where nobody reads it any more, leave without a word."""
    if sys.stdout is None:
        return
    try:
        print(*answer, end="\n" if answer else "", flush=True)
    except OSError as error:
        # What is left of it would be tried again, and complained about, when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            sys.exit(NOBODY_READS)
        raise Refused(f"standard output: {error.strerror}.") from None


def note(message: str) -> None:
    """Say something beside the answer."""
    print(f"journeykit: {message}", file=sys.stderr)


def _version(asked: bool) -> None:
    from importlib.metadata import PackageNotFoundError, version

    if asked:
        try:
            say(f"journeykit {version('journeykit')}")
        except PackageNotFoundError:
            say("journeykit, not installed")
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
    Examples:
      journeykit validate cart.json
      journeykit simulate cart.json --user-id sara
      journeykit replay cart.json --events events.jsonl
      journeykit render cart.json -o cart.svg
    """


@app.command(short_help="List the problems and warnings of a journey.")
def validate(
    graph: GraphFile, format: FormatOption = Format.text, account_timezone: ZoneOption = "UTC"
) -> None:
    """List every problem and warning of a journey; exit 1 when there are problems.

    \b
    Examples:
      journeykit validate cart.json
      journeykit validate cart.json --format json | jq .problems
    """
    report = _judged(_text(graph), account_timezone)
    say(_json(report.to_dict()) if format is Format.json else _told(report))
    raise typer.Exit(0 if report.valid else 1)


@app.command(short_help="Walk one person through a journey.")
def simulate(
    graph: GraphFile,
    person: Annotated[
        Path | None,
        _file("Who walks, as JSON: {user_id, traits, timezone, events, segments}."),
    ] = None,
    user_id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Who walks: somebody with no traits and no history."),
    ] = None,
    at: Annotated[str | None, _instant("When it begins, ISO 8601; now if absent.")] = None,
    answer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WAIT=ANSWER",
            show_default=False,
            help="How an event wait ends: an event or timeout. May be repeated.",
        ),
    ] = None,
    account_timezone: ZoneOption = "UTC",
    format: FormatOption = Format.text,
) -> None:
    """Walk one person through a journey, waits passed over; nothing is stored or sent.

    A draft is walked as far as it is sound; exit 1 when it has problems.

    \b
    Examples:
      journeykit simulate cart.json --user-id sara
      journeykit simulate cart.json --person sara.json --answer ask=timeout
    """
    from journeykit.journeys import Journey
    from journeykit.run import simulate as walk

    _refuse_two_inputs(JOURNEY=graph, **{"--person": person})
    if person is not None and user_id is not None:
        raise Refused("--person and --user-id are both given; keep one of them.")
    found = _document(graph)
    given: Any = _person(person) if person is not None else user_id
    trace = walk(
        Journey.from_graph(found.graph, found.name),
        "someone" if given is None else given,
        _moment("--at", at),
        account_timezone=account_timezone,
        answers=dict(_pair(text) for text in answer or ()),
    )
    say(_json(trace.to_dict()) if format is Format.json else trace)
    raise typer.Exit(1 if trace.simulation.problems else 0)


@app.command(short_help="Walk a whole history through a journey.")
def replay(
    graph: GraphFile,
    events: Annotated[Path, _file("What happened: JSON lines in the Segment shapes.")],
    people: Annotated[
        Path | None, _file("Who is known before: JSON lines of {userId, traits, timezone}.")
    ] = None,
    since: Annotated[
        str | None, _instant("When the journey is published; the first line if absent.")
    ] = None,
    until: Annotated[
        str | None, _instant("The last moment lived through; the last line if absent.")
    ] = None,
    account_timezone: ZoneOption = "UTC",
    templates: Annotated[
        Path | None,
        _file(
            'Texts by template id, as JSON: {"3": "Hi {{name}}"}. A message whose text misses '
            "a value, or cannot be made, is suppressed."
        ),
    ] = None,
    scan_every: Annotated[
        str, typer.Option(metavar="DURATION", help="Between two looks at a segment.")
    ] = "1h",
    journal: Annotated[Path | None, _file("Where all that happens goes, as JSON lines.")] = None,
    summary: Annotated[Path | None, _file("Where the sums go, as JSON.")] = None,
    format: FormatOption = Format.text,
) -> None:
    """Walk a whole history through a journey on a virtual clock; nothing is stored or sent.

    \b
    Examples:
      journeykit replay cart.json --events events.jsonl
      journeykit replay winback.json --events orders.jsonl \\
          --people people.jsonl --until 1998-07-31T00:00:00Z \\
          --journal journal.jsonl --summary summary.json
    """
    from journeykit import history, output
    from journeykit.given import interval_of, span_of
    from journeykit.run import summary_text, uncollected
    from journeykit_engine import replay as engine
    from journeykit_engine.phone import phone_zone
    from journeykit_engine.program import compile_graph

    inputs = {"JOURNEY": graph, "--events": events, "--people": people, "--templates": templates}
    _refuse_two_inputs(**inputs)
    output.refuse_outputs({"--journal": journal, "--summary": summary}, inputs)
    begins, ends = span_of(since, until, dashes="--")
    every = interval_of(scan_every, "--scan-every")
    found = _sound(graph, account_timezone)
    with uncollected():
        known = _read(people, history.people_in) if people is not None else []
        render = _read(templates, history.templates_in) if templates is not None else None
        lines = _read(events, history.lines_in)
        with output.whole(journal) as told, output.whole(summary) as summed:
            with output.sink_to(told) as sink, _progress(len(lines)) as progress:
                sums = engine.run(
                    compile_graph(found.graph, account_timezone),
                    lines,
                    known,
                    sink,
                    since=begins,
                    until=ends,
                    scan_every=every,
                    render=render,
                    phone_zone=phone_zone,
                    progress=progress,
                )
            if summed is not None:
                summed.write(json.dumps(sums, ensure_ascii=False, indent=2).encode() + b"\n")
    if not lines:
        note(f'"{events}" holds no line; nothing happened.')
    elif ends is not None and lines[0].at > ends:
        note(f'"{events}" begins at {lines[0].at}, after "--until"; nothing happened.')
    say(_json(sums) if format is Format.json else summary_text(sums))


@app.command(name="render", short_help="Draw a journey.")
def render_(
    graph: GraphFile,
    output: Annotated[
        Path | None,
        _file("svg, png, pdf, html or dot by its ending.", "-o", "--output"),
    ] = None,
    stats: Annotated[
        Path | None, _file("A summary that replay wrote: its figures make a funnel.")
    ] = None,
    path: Annotated[
        str,
        typer.Option(metavar="IDS", help="Node ids with commas between: this path is lit up."),
    ] = "",
    theme: Annotated[Theme, typer.Option(help="The colours.")] = Theme.light,
    direction: Annotated[
        Direction, typer.Option(help="Top to bottom or left to right.")
    ] = Direction.TB,
) -> None:
    """Draw a journey; without --output print its outline.

    \b
    Examples:
      journeykit render cart.json
      journeykit render cart.json -o cart.svg --theme auto
      journeykit render winback.json --stats summary.json -o funnel.html
    """
    from journeykit.draw import draw
    from journeykit.outline import outline
    from journeykit.output import place_for, refuse_outputs
    from journeykit_engine.check import check

    _refuse_two_inputs(JOURNEY=graph, **{"--stats": stats})
    refuse_outputs({"--output": output}, {"JOURNEY": graph, "--stats": stats})
    _refuse_ending(output)
    found = _document(graph)
    figures, arms = _figures(stats) if stats is not None else (None, None)
    lit = _node_ids(found, path)
    if output is None:
        if stats is not None or lit:
            raise Refused("--stats and --path are for a picture; name its file with --output.")
        say(outline(found.graph, found.name))
        return
    drawing = draw(
        found.graph,
        name=found.name,
        stats=figures,
        arms=arms,
        path=lit,
        problems=check(found.graph).problems,
        theme=theme.value,
        direction=direction.value,
    )
    with place_for(output) as made:
        drawing.save(made)
    say(output)


# --- what the server does ---

SERVER_COMMANDS = {
    "migrate": "Bring a database to this version's schema.",
    "worker": "Move people and deliver what is due, until stopped.",
    "doctor": "Look for what keeps people from moving.",
    "verify": "Compare the counters with a recount of the journal.",
}
# The server reads its own options, so that none of it is imported before it is asked for.
AS_THEY_COME = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def _add_server_command(name: str, what: str) -> None:
    @app.command(name, short_help=what, add_help_option=False, context_settings=AS_THEY_COME)
    def run(context: typer.Context) -> None:
        _serve(name, context.args)


def _serve(name: str, words: list[str]) -> NoReturn:
    try:
        from journeykit_server.__main__ import main as serve
    except ImportError as error:
        if (error.name or "").startswith("journeykit"):
            raise
        install = 'pip install "journeykit[server]"'
        raise Refused(f'The command "{name}" needs the server: {install}.') from None
    serve([name, *words])


for _command, _what in SERVER_COMMANDS.items():
    _add_server_command(_command, _what)


# --- what is read ---


def _open(path: Path) -> BinaryIO:
    return sys.stdin.buffer if path == STANDARD_INPUT else path.open("rb")


def _name(path: Path) -> str:
    return "standard input" if path == STANDARD_INPUT else path.name


def _read(path: Path, reader: Callable[[BinaryIO, str], Any]) -> Any:
    with _open(path) as file:
        return reader(file, _name(path))


def _refuse_two_inputs(**inputs: Path | None) -> None:
    both = [option for option, path in inputs.items() if path == STANDARD_INPUT]
    if len(both) > 1:
        raise Refused(f"{both[0]} and {both[1]} both read standard input; name a file for one.")


def _text(path: Path) -> bytes:
    with _open(path) as file:
        text = file.read()
    if not text.strip():
        raise Refused(f"{_name(path)} is empty; a journey as JSON was expected.")
    return text


def _document(path: Path) -> Document:
    from journeykit_engine.document import read_document
    from journeykit_engine.shape import BadGraph
    from journeykit_engine.strict_json import BadJson

    try:
        return read_document(_text(path))
    except BadGraph as bad:
        faults = [f"{p.path}: {p.message} {p.fix}".removeprefix(": ") for p in bad.problems]
        raise Refused("\n".join([f"{_name(path)} is no journey.", *faults])) from None
    except BadJson as bad:
        raise Refused(f"{_name(path)}{_place(bad)}: {bad.message} {bad.fix}") from None


def _judged(text: bytes, zone: str) -> Report:
    """Every problem; that the text is no JSON, or holds no graph, is one too."""
    from journeykit_engine.check import Report
    from journeykit_engine.document import judge
    from journeykit_engine.shape import BadGraph, Problem
    from journeykit_engine.strict_json import BadJson

    try:
        return judge(text, account_timezone=zone)
    except BadGraph as bad:
        return Report(tuple(bad.problems), ())
    except BadJson as bad:
        message = f"{bad.message.removesuffix('.')}{_place(bad)}."
        return Report((Problem(bad.code, "", bad.path, message, bad.fix),), ())


def _place(bad: BadJson) -> str:
    return "" if bad.line is None else f", line {bad.line}, column {bad.column}"


def _sound(path: Path, zone: str) -> Document:
    """The journey, which must have no problem to be walked."""
    from journeykit_engine.document import read_document

    text = _text(path)
    report = _judged(text, zone)
    if not report.valid:
        raise Refused(f"{_name(path)} cannot be replayed.\n{_told(report)}")
    return read_document(text)


def _person(path: Path) -> Mapping[str, Any]:
    from journeykit.history import value_in

    given = _read(path, value_in)
    if not isinstance(given, dict):
        raise Refused(f'{_name(path)} must hold an object, as {{"user_id": "sara"}}.')
    return given


def _pair(text: str) -> tuple[str, str]:
    wait, sign, branch = text.partition("=")
    if not sign or not wait or not branch:
        raise Refused(f'--answer "{text}" must be WAIT=EVENT or WAIT=timeout.')
    return wait, branch


def _moment(option: str, text: str | None) -> Any:
    from journeykit.given import moment_of

    return None if text is None else moment_of(option, text)


Counts = Mapping[str, Mapping[str, int]]


def _figures(path: Path) -> tuple[Counts, Counts]:
    """The figures of each node and of each split's arms, out of a summary; or of nodes, bare."""
    from journeykit.history import value_in

    given = _read(path, value_in)
    whole = given if isinstance(given, dict) else {"nodes": None}
    nodes, arms = whole.get("nodes", whole), whole.get("arms", {}) if "nodes" in whole else {}
    if not _is_table(nodes) or not _is_table(arms):
        raise Refused(f"{_name(path)} is no summary of replay; give the file of its --summary.")
    return nodes, arms


def _is_table(value: object) -> TypeGuard[Counts]:
    return isinstance(value, dict) and all(map(_are_counts, value.values()))


def _are_counts(figures: object) -> bool:
    return isinstance(figures, dict) and all(type(count) is int for count in figures.values())


def _node_ids(found: Document, path: str) -> list[str]:
    ids = [part.strip() for part in path.split(",") if part.strip()]
    for node_id in ids:
        if node_id not in found.graph.by_id:
            raise Refused(f'--path names the node "{node_id}", which the journey has not.')
    return ids


def _refuse_ending(path: Path | None) -> None:
    endings = (".svg", ".png", ".pdf", ".html", ".dot")
    if path is not None and path.suffix.lower() not in endings:
        raise Refused(f'--output "{path}" must end in {", ".join(endings[:-1])} or {endings[-1]}.')


# --- what is told ---


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _told(report: Report) -> str:
    from journeykit.report import Report as Shown

    return repr(Shown(report))


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], object] | None]:
    """A bar on a terminal, nothing elsewhere."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from tqdm import tqdm

    with tqdm(total=total, unit=" events", leave=False) as bar:
        yield lambda count: bar.update(count - bar.n)


if __name__ == "__main__":
    main()
