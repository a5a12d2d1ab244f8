"""What a journey does to people: the trace of one person, the replay of a history.

Both results show themselves: in a notebook as the drawing with the path lit up or the funnel on
it, in a terminal as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from journeykit_engine import replay as engine_replay
from journeykit_engine import simulate as engine_simulate
from journeykit_engine import timing
from journeykit_engine.check import check
from journeykit_engine.instance import Happened, Person
from journeykit_engine.program import compile_graph
from journeykit_engine.replay import Known, Line, Replayed
from whenever import Instant, TimeDelta

from journeykit import history
from journeykit.mistake import JourneyError

if TYPE_CHECKING:
    from journeykit.drawing import Drawing
    from journeykit.journeys import Journey

Rows = Iterable[Mapping[str, Any]]


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
        return self.journey.draw(path=self.simulation.path, **looks)

    def __repr__(self) -> str:
        lines = [f'"{self.simulation.user_id}" walks {_title(self.journey)}']
        for step in self.simulation.steps:
            mend = f"  ({step.suggestion})" if step.suggestion else ""
            lines.append(f"  {step.kind:8} {step.node_id}: {step.detail}{mend}")
        blocking = len(self.simulation.problems)
        lines.append(self.outcome)
        if blocking:
            lines.append(f"{blocking} problem(s) block publishing: see .validate()")
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
        import pandas

        frame = pandas.DataFrame(self.journal)
        if len(frame):
            frame["at"] = pandas.to_datetime(frame["at"], utc=True, format="ISO8601")
        return frame

    def draw(self, **looks: Any) -> Drawing:
        """The journey with the replay's figures on it, as a funnel."""
        return self.journey.draw(stats=self.summary["nodes"], **looks)

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
    problems = check(journey.graph).problems
    if problems:
        first = problems[0]
        raise JourneyError(first.code, first.message, f"{first.fix} See .validate() for all.")
    texts = {str(number): text for number, text in (templates or {}).items()}
    replayed = engine_replay.replay(
        compile_graph(journey.graph, account_timezone),
        _lines(events),
        _people(people),
        since=None if since is None else moment_of("since", since),
        until=None if until is None else moment_of("until", until),
        scan_every=interval_of(scan_every),
        render=history.renderer(texts) if texts else None,
    )
    return Replay(journey, replayed)


def person_of(given: Person | Mapping[str, Any] | str) -> Person:
    """A person of `{"user_id", "traits"?, "timezone"?, "events"?, "segments"?}`, or of a bare id.

    `events` is a list of `{"event", "properties"?, "timestamp"}`; `segments` a list of numbers.
    """
    if isinstance(given, Person):
        return given
    if isinstance(given, str):
        return Person(given)
    row = {**given, "userId": given.get("userId", given.get("user_id"))}
    found = history.person_of(row)
    events: dict[str, list[Happened]] = {}
    rows = [{"type": "track", "userId": found.user_id, **one} for one in given.get("events", ())]
    for line in history.lines_of(rows):
        events.setdefault(line.event, []).append(Happened(line.at, line.properties, line.id))
    segments = frozenset(given.get("segments", ()))
    return Person(found.user_id, found.traits, found.timezone, events, segments)


def moment_of(name: str, given: object) -> Instant:
    """An instant of an aware datetime, an ISO text with an offset, or an Instant."""
    if isinstance(given, Instant):
        return given
    try:
        stdlib = getattr(given, "isoformat", None)
        return timing.read_instant(stdlib() if stdlib is not None else given)
    except timing.BadInstant as bad:
        code = "NAIVE_DATETIME" if "NAIVE" in str(bad) else "WRONG_TYPE"
        raise JourneyError(code, f'"{name}": {bad}', "Attach a timezone.") from None


def interval_of(text: str) -> TimeDelta:
    """The time between two looks at a segment: a duration in minutes or hours."""
    duration = timing.parse_duration(text)
    if duration.unit not in ("minute", "hour"):
        message = f'"scan_every" is "{text}".'
        raise JourneyError("BAD_DURATION", message, 'Write minutes or hours: "30m", "1h", "24h".')
    minutes = duration.amount * (60 if duration.unit == "hour" else 1)
    return TimeDelta(minutes=minutes)


def _lines(events: Any) -> list[Line]:
    if isinstance(events, str | Path):
        return history.read_lines(events)
    rows = list(_rows(events))
    if rows and all(isinstance(row, Line) for row in rows):
        return history.in_time_order(rows)
    return history.lines_of({"type": "track", **_named(row)} for row in rows)


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
    return list(table)


def _named(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with the field names of the lines: a frame may say `user_id` and `message_id`."""
    other = {"user_id": "userId", "message_id": "messageId"}
    return {other.get(name, name): value for name, value in row.items()}
