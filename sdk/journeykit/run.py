"""What a journey does to people: the trace of one person, the replay of a history.

Both results show themselves: in a notebook as the drawing with the path lit up or the funnel on
it, in a terminal as text.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Unpack

from whenever import Instant

from journeykit import history
from journeykit.given import interval_of, lines_from, moment_of, people_from, person_of, span_of
from journeykit.mistake import JourneyError
from journeykit_engine import replay as engine_replay
from journeykit_engine import simulate as engine_simulate
from journeykit_engine.check import check
from journeykit_engine.instance import Person
from journeykit_engine.phone import phone_zone
from journeykit_engine.program import compile_graph
from journeykit_engine.replay import Replayed

if TYPE_CHECKING:
    from journeykit.draw import Looks
    from journeykit.drawing import Drawing
    from journeykit.journeys import Journey

COLUMNS = ("at", "user_id", "entry", "what", "node_id")  # of every record of a journal


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

    def draw(self, **looks: Unpack[Looks]) -> Drawing:
        """The journey with this person's path lit up."""
        looks.setdefault("path", self.simulation.path)
        looks.setdefault("taken", self.simulation.taken)
        return self.journey.draw(**looks)

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

    def draw(self, **looks: Unpack[Looks]) -> Drawing:
        """The journey with the replay's figures on it, as a funnel."""
        looks.setdefault("stats", self.summary["nodes"])
        looks.setdefault("arms", self.summary["arms"])
        return self.journey.draw(**looks)

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
    moment = Instant.now().round("second", mode="floor") if at is None else moment_of("at", at)
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
            lines_from(events),
            people_from(people),
            since=begins,
            until=ends,
            scan_every=every,
            render=history.renderer(texts) if texts else None,
            phone_zone=phone_zone,
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
