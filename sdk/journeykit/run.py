"""What a journey does to people: the trace of one person, the replay of a history.

Both results show themselves: in a notebook as the drawing with the path lit up or the funnel on
it, in a terminal as text.
"""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from whenever import Instant, TimeDelta

from journeykit import history
from journeykit.mistake import JourneyError, plain
from journeykit_engine import replay as engine_replay
from journeykit_engine import simulate as engine_simulate
from journeykit_engine import timing
from journeykit_engine.allot import person_key
from journeykit_engine.check import check
from journeykit_engine.comparison import shown
from journeykit_engine.instance import Happened, Person
from journeykit_engine.program import compile_graph
from journeykit_engine.replay import Known, Line, Replayed

if TYPE_CHECKING:
    from journeykit.drawing import Drawing
    from journeykit.journeys import Journey

COLUMNS = ("at", "user_id", "entry", "what", "node_id")  # of every record of a journal
OTHER_NAMES = {"user_id": "userId", "message_id": "messageId"}  # as frames say and lines say it


class Trace:
    """One person's walk, waits passed over. `steps` are rows of node, label, kind and detail."""

    def __init__(self, journey: Journey, simulation: engine_simulate.Simulation) -> None:
        self.journey = journey
        self.simulation = simulation

    @property
    def steps(self) -> list[dict[str, Any]]:
        """Every decision as a row, in order."""
        return [step.to_dict() for step in self.simulation.steps]

    @property
    def sends(self) -> int:
        """How many messages would go out."""
        return self.simulation.sends

    @property
    def outcome(self) -> str:
        """How the walk ends, in words."""
        return self.simulation.outcome

    def to_dict(self) -> dict[str, Any]:
        """The whole trace as plain values, ready for JSON."""
        return self.simulation.to_dict()

    def draw(self, **looks: Any) -> Drawing:
        """The journey with this person's path lit up."""
        found = self.simulation
        return self.journey.draw(path=found.path, taken=found.taken, **looks)

    def __repr__(self) -> str:
        lines = [f'"{self.simulation.user_id}" walks {_title(self.journey)}']
        for step in self.simulation.steps:
            mend = f"  ({step.suggestion})" if step.suggestion else ""
            lines.append(f"  {step.kind:8} {step.node_id}: {step.detail}{mend}")
        problems = len(self.simulation.problems)
        lines.append(self.outcome)
        if problems == 1:
            lines.append("1 problem blocks publishing; validate tells it.")
        elif problems:
            lines.append(f"{problems} problems block publishing; validate lists them.")
        return "\n".join(lines)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        return {**self.draw()._repr_mimebundle_(), "text/plain": repr(self)}


class Replay:
    """A history walked through a journey. `journal` has a record for everything that happened, in
    time order; `summary` its sums: people, events, entries, messages, nodes, exits, arms."""

    def __init__(self, journey: Journey, replayed: Replayed) -> None:
        self.journey = journey
        self.journal = replayed.journal
        self.summary = replayed.summary

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The journal's records of messages."""
        return [
            record
            for record in self.journal
            if record["what"] == "effect" and record["effect"]["kind"] == "send"
        ]

    def of(self, user_id: str) -> list[dict[str, Any]]:
        """One person's journal: where they went and why."""
        return [record for record in self.journal if record["user_id"] == user_id]

    def to_frame(self) -> Any:
        """The journal as a pandas frame, `at` as UTC timestamps. Needs pandas."""
        try:
            import pandas
        except ImportError:
            hint = 'A frame needs pandas: pip install "journeykit[notebooks]".'
            raise ImportError(hint) from None
        frame = pandas.DataFrame(self.journal, columns=None if self.journal else COLUMNS)
        frame["at"] = pandas.to_datetime(frame["at"], utc=True, format="ISO8601")
        return frame

    def draw(self, **looks: Any) -> Drawing:
        """The journey with the replay's figures on it, as a funnel."""
        figures = {"stats": self.summary["nodes"], "arms": self.summary["arms"]}
        return self.journey.draw(**{**figures, **looks})

    def __repr__(self) -> str:
        return f"{_title(self.journey)}, replayed\n{summary_text(self.summary)}"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        return {**self.draw()._repr_mimebundle_(), "text/plain": repr(self)}


def _title(journey: Journey) -> str:
    return f'"{journey.name}"' if journey.name else "the journey"


def summary_text(summary: Mapping[str, Any]) -> str:
    """The sums as text for a terminal: totals, then nodes, exits and arms as columns."""
    lines = [f"{name:10} {summary[name]:>9,}" for name in ("people", "events", "entries")]
    lines.append(f"{'messages':10} {summary['messages']:>9,}")
    nodes: Mapping[str, Mapping[str, int]] = summary["nodes"]
    width = max((len(node) for node in nodes), default=4)
    head = ("entered", "exited", "suppressed", "waiting")
    lines += ["", f"{'node':{width}} " + " ".join(f"{name:>10}" for name in head)]
    for node, counts in nodes.items():
        lines.append(f"{node:{width}} " + " ".join(f"{counts[name]:>10,}" for name in head))
    for reason, count in summary["exits"].items():
        lines.append(f"left by {reason}: {count:,}")
    for node, arms in summary["arms"].items():
        shares = ", ".join(f"{arm} {count:,}" for arm, count in arms.items())
        lines.append(f'split "{node}": {shares}')
    return "\n".join(lines)


def simulate(
    journey: Journey,
    person: Person | Mapping[str, Any] | str,
    at: object = None,
    *,
    account_timezone: str = "UTC",
    event: Mapping[str, Any] | None = None,
    answers: Mapping[str, str] | None = None,
) -> Trace:
    """See `Journey.simulate`."""
    moment = Instant.now() if at is None else moment_of("at", at)
    refuse_zone(journey, account_timezone)
    found = engine_simulate.simulate(
        journey.graph,
        person_of(person),
        moment,
        account_timezone=account_timezone,
        event=event or {},
        answers=answers or {},
    )
    return Trace(journey, found)


def replay(
    journey: Journey,
    events: Any,
    people: Any = (),
    *,
    since: object = None,
    until: object = None,
    account_timezone: str = "UTC",
    scan_every: str = "1h",
    templates: Mapping[Any, Any] | None = None,
) -> Replay:
    """See `Journey.replay`."""
    problems = check(journey.graph, account_timezone=account_timezone).problems
    if problems:
        first = problems[0]
        raise JourneyError(first.code, first.message, f"{first.fix} See .validate() for all.")
    begins, ends = span_of(since, until)
    every = interval_of(scan_every)
    texts = {str(number): text for number, text in (templates or {}).items()}
    with uncollected():
        replayed = engine_replay.replay(
            compile_graph(journey.graph, account_timezone),
            _lines(events),
            _people(people),
            since=begins,
            until=ends,
            scan_every=every,
            render=history.renderer(texts) if texts else None,
        )
    return Replay(journey, replayed)


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the cyclic garbage collector, for reading and replaying: millions of small records
    are made and none of them in a cycle, yet it would look through all of them again and again,
    for a quarter of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def refuse_zone(journey: Journey, account_timezone: str) -> None:
    """Raises for an account's zone that is unknown, as far as the journey asks for one."""
    for problem in check(journey.graph, account_timezone=account_timezone).problems:
        if problem.path == "account_timezone":
            raise JourneyError(problem.code, problem.message, problem.fix)


def person_of(given: Person | Mapping[str, Any] | str) -> Person:
    """A person of `{"user_id", "traits"?, "timezone"?, "events"?, "segments"?}`, or of a bare id.

    `events` is a list of `{"event", "properties"?, "timestamp"}`; `segments` a list of numbers.
    """
    if isinstance(given, Person):
        return given
    if not isinstance(given, Mapping):
        given = {"user_id": person_key(plain(given))}
    row = _named(given)
    found = history.person_of(row)
    events: dict[str, list[Happened]] = {}
    for line in _events_of(found.user_id, row.get("events", ())):
        events.setdefault(line.event, []).append(Happened(line.at, line.properties, line.id))
    return Person(found.user_id, found.traits, found.timezone, events, _segments_of(row))


def _events_of(user_id: str, given: object) -> list[Line]:
    if not _is_list(given) or not all(isinstance(one, Mapping) for one in given):
        message = f'"events" of the person must be a list of objects, not {shown(given)}.'
        fix = 'Write [{"event": "purchase", "timestamp": "2026-06-01T10:00:00Z"}].'
        raise JourneyError("WRONG_TYPE", message, fix)
    rows = [{**_named(one), "type": "track", "userId": user_id} for one in given]
    return history.lines_of(rows, "the person's event")


def _segments_of(row: Mapping[str, Any]) -> frozenset[int]:
    given = row.get("segments", ())
    numbers = [plain(one) for one in given] if _is_list(given) else [given]
    if not _is_list(given) or not all(type(number) is int for number in numbers):
        message = f'"segments" of the person must be a list of whole numbers, not {shown(given)}.'
        raise JourneyError("WRONG_TYPE", message, "Write [4, 7].")
    return frozenset(numbers)


def _is_list(given: object) -> TypeGuard[Collection[Any]]:
    return isinstance(given, Collection) and not isinstance(given, str | bytes | Mapping)


def span_of(
    since: object, until: object, *, dashes: str = ""
) -> tuple[Instant | None, Instant | None]:
    """Both ends of a replay, None where they are the data's; `dashes` stand before their names."""
    begins = None if since is None else moment_of(f"{dashes}since", since)
    ends = None if until is None else moment_of(f"{dashes}until", until)
    if begins is not None and ends is not None and ends < begins:
        message = f'"{dashes}until" is {ends}, before "{dashes}since", {begins}.'
        raise JourneyError("BAD_SPAN", message, "Give a later end, or leave one of them out.")
    return begins, ends


def moment_of(name: str, given: object) -> Instant:
    """An instant of an aware datetime, an ISO text with an offset, or an Instant."""
    if isinstance(given, Instant):
        return given
    stdlib = getattr(given, "isoformat", None)
    text = stdlib() if stdlib is not None else given
    try:
        return timing.read_instant(text)
    except timing.BadInstant as bad:
        is_naive = str(bad).startswith("NAIVE_DATETIME")
    if is_naive:
        message = f'"{name}" is {shown(text)}, which does not say in which zone.'
        raise JourneyError("NAIVE_DATETIME", message, f'Attach a timezone, as "{text}Z" for UTC.')
    message = f'"{name}" is {shown(text)}, which is no instant.'
    raise JourneyError("BAD_INSTANT", message, 'Write it like "2026-06-01T10:00:00Z".')


def interval_of(text: str, name: str = "scan_every") -> TimeDelta:
    """The time between two looks at a segment: a duration in minutes or hours."""
    try:
        duration = timing.parse_duration(text)
    except timing.BadDuration:
        duration = None
    if duration is None or duration.unit not in ("minute", "hour"):
        message = f'"{name}" is {shown(text)}, which is no time between two looks.'
        raise JourneyError("BAD_DURATION", message, 'Write minutes or hours: "30m", "1h", "24h".')
    minutes = duration.amount * (60 if duration.unit == "hour" else 1)
    return TimeDelta(minutes=minutes)


def _lines(events: Any) -> list[Line]:
    if isinstance(events, str | Path):
        return history.read_lines(events)
    rows = list(_rows(events))
    if rows and all(isinstance(row, Line) for row in rows):
        return history.in_time_order(rows)
    return history.lines_of(_tracked(row) for row in rows)


def _people(people: Any) -> list[Known]:
    if isinstance(people, str | Path):
        return history.read_people(people)
    return history.people_of(_named(row) for row in _rows(people))


def _rows(table: Any) -> Iterable[Any]:
    """The rows of a list, or of a pandas or Polars frame."""
    if hasattr(table, "to_dicts"):
        return list(table.to_dicts())
    if hasattr(table, "to_dict") and hasattr(table, "columns"):
        return list(table.to_dict("records"))
    if isinstance(table, Mapping):
        message = "Expected rows, not a single object."
        raise JourneyError("WRONG_TYPE", message, "Give a list of rows or a frame.")
    return list(table)


def _tracked(row: Any) -> Any:
    named = _named(row)
    return {"type": "track", **named} if isinstance(named, dict) else row


def _named(row: Any) -> Any:
    """A row with the names of the lines, without the cells that a frame has but does not fill; what
    is no row is let be, for the reader to tell."""
    if not isinstance(row, Mapping):
        return row
    named = {OTHER_NAMES.get(name, name): _cell(value) for name, value in row.items()}
    return {name: value for name, value in named.items() if value is not None}


def _cell(value: Any) -> Any:
    """A cell's value as plain Python, None where the frame says that it has none."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return {
            name: _dated(cell)
            for name, inner in value.items()
            if (cell := _cell(inner)) is not None or inner is None
        }
    found = plain(value)
    is_nan = isinstance(found, float) and isnan(found)
    return None if is_nan or type(found).__name__ in ("NaTType", "NAType") else found


def _dated(value: Any) -> Any:
    """A date or a datetime as the text that rules read."""
    return value.isoformat() if hasattr(value, "isoformat") else value
