"""A journey: who enters, what holds for the whole of it, its steps, and what can be done with it.

`journey("Abandoned cart").on_event(…).wait("1h").send(push=3).exit()` reads as what it does. A
journey is never changed: every call gives a new one, so a half-built one can be kept and continued
in two ways.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from journeykit import rules
from journeykit.builder import Chain, RuleOrDefinition
from journeykit.mistake import JourneyError, plain, text_of, texts_of, whole_of, wrong_type
from journeykit.report import Report
from journeykit.rules import Rule, Where
from journeykit.sketch import ENTRANCE, Document, Sketch
from journeykit_engine import check
from journeykit_engine.comparison import shown
from journeykit_engine.graph import Graph

if TYPE_CHECKING:
    from journeykit.draw import Looks
    from journeykit.drawing import Drawing
    from journeykit.run import Replay, Trace
    from journeykit_engine.instance import Person

SECOND = "\0"
"""Between an id and a number where a document has one id twice: no id can hold this character."""


class Journey(Chain):
    """A journey, immutable; two are equal when their names and graphs are.

    >>> hello = journey("Hello").on_event("signed_up").send(email=1).exit()
    >>> [node.id for node in hello.graph.nodes]
    ['trigger', 'send_email_1', 'exit']
    """

    name: str
    """Shown to people; it may be empty."""

    def __init__(self, name: str, fields: Document, steps: Sketch) -> None:
        self.name = name
        self._fields = fields
        self._sketch = steps

    @classmethod
    def from_json(cls, source: str | bytes | Mapping[str, Any]) -> Journey:
        """A journey from a graph, an envelope `{"name", "graph"}` or the steps dialect, as text or
        as its value. Raises `BadJson` for what is no JSON, `BadGraph` for what is no graph."""
        from journeykit_engine.document import read_document

        found = read_document(source)
        return cls.from_graph(found.graph, found.name)

    @classmethod
    def from_graph(cls, graph: Graph, name: str = "") -> Journey:
        """A journey of a graph that was read already."""
        fields = graph.to_value()
        nodes: Document = {}
        for index, document in enumerate(fields.pop("nodes", [])):
            node_id = document["id"]
            nodes[f"{node_id}{SECOND}{index}" if node_id in nodes else node_id] = document
        head = fields.pop("entry_id", "")
        return cls(name, fields, Sketch(nodes=nodes, ends=(), head=head))

    def _with(self, changed: Sketch) -> Self:
        return type(self)(self.name, self._fields, changed)

    # --- who enters ---

    def on_event(
        self, event: str, where: Where = None, *, id: str | None = None, label: str = ""
    ) -> Self:
        """Entered by an event whose properties match `where`, at once."""
        config: Document = {"kind": "event", "event": text_of("The event of .on_event", event)}
        if comparisons := rules.comparisons_of(where):
            config["filter"] = comparisons
        return self._trigger(config, id, label)

    def on_trait_change(
        self, trait: str, value: Any = None, *, id: str | None = None, label: str = ""
    ) -> Self:
        """Entered when the trait is written with another value; with `value`, only this one."""
        name = text_of("The trait of .on_trait_change", trait)
        config = {"kind": "attribute_changed", "trait": name, "value": plain(value)}
        return self._trigger(config, id, label)

    def on_segment_enter(
        self, people: RuleOrDefinition, *, id: str | None = None, label: str = ""
    ) -> Self:
        """Entered by those for whom the rule holds at a look and did not at the look before."""
        definition = rules.definition_of("The rule of .on_segment_enter", people)
        return self._trigger({"kind": "segment_enter", "definition": definition}, id, label)

    def on_segment_exit(
        self, people: RuleOrDefinition, *, id: str | None = None, label: str = ""
    ) -> Self:
        """Entered by those for whom the rule held at the look before and no longer does."""
        definition = rules.definition_of("The rule of .on_segment_exit", people)
        return self._trigger({"kind": "segment_exit", "definition": definition}, id, label)

    def every_day_at(
        self,
        hours: int | Iterable[int],
        people: RuleOrDefinition,
        *,
        id: str | None = None,
        label: str = "",
    ) -> Self:
        """Entered by everybody for whom the rule holds, at each of these hours (0 to 23) of the
        account's day."""
        given = hours if isinstance(hours, Iterable) else [hours]
        definition = rules.definition_of("The rule of .every_day_at", people)
        whole = [whole_of("An hour of .every_day_at", hour) for hour in given]
        config = {"kind": "segment_periodic", "definition": definition, "hours": whole}
        return self._trigger(config, id, label)

    def on_date(
        self,
        trait: str,
        *,
        days_before: int = 0,
        hour: int = 9,
        annual: bool = True,
        people: RuleOrDefinition | None = None,
        id: str | None = None,
        label: str = "",
    ) -> Self:
        """Entered so many days before the date in a trait, at an hour of the account's day; every
        year unless `annual` is False; `people` says who only."""
        name = text_of("The trait of .on_date", trait)
        config: Document = {"kind": "date", "trait": name, "offset_days": plain(days_before)}
        config |= {"hour": plain(hour), "annual": annual}
        if people is not None:
            config["definition"] = rules.definition_of("The rule of .on_date", people)
        return self._trigger(config, id, label)

    def on_call(self, *, id: str | None = None, label: str = "") -> Self:
        """Entered by a call that names the person."""
        return self._trigger({"kind": "api"}, id, label)

    def _trigger(self, config: Document, id: str | None, label: str) -> Self:
        return self._step("trigger", config, "trigger", id, label)

    def _must_be_open(self, kind: str, what: str) -> None:
        begins = ENTRANCE in self._sketch.ends
        if kind == "trigger" and not begins:
            message = f"The journey already begins with the node {shown(self._sketch.head)}."
            fix = "Keep one trigger; for a second way in, write a second journey."
            raise JourneyError("SECOND_TRIGGER", message, fix)
        if begins and kind not in ("trigger", "node", "then", "go_to"):
            message = f"{what} stands before any trigger."
            fix = "Say first who enters, for example .on_event(…) or .on_call()."
            raise JourneyError("NO_ENTRY", message, fix)
        super()._must_be_open(kind, what)

    # --- what holds for the whole journey ---

    def reenter(
        self,
        rule: Literal["once", "every_time"] = "every_time",
        *,
        cooldown_hours: int = 0,
        window: Literal["", "day"] = "",
    ) -> Self:
        """How often somebody may enter: "once", or "every_time", at the earliest `cooldown_hours`
        after the last pass, or with `window="day"` once a day of the account's calendar."""
        gap = {"cooldown_hours": plain(cooldown_hours), "reentry_window": window}
        return self._settled({"entry_rule": rule, **gap}, ("entry_rule", *gap))

    def exit_when(self, rule: RuleOrDefinition) -> Self:
        """Everybody for whom the rule holds leaves, wherever they are."""
        definition = rules.definition_of("The rule of .exit_when", rule)
        if isinstance(rule, Rule) and not definition["root"]:
            message = "The rule of .exit_when is everybody(), which as an exit rule means nobody."
            raise JourneyError("BAD_SEGMENT", message, "Leave .exit_when away, or name who leaves.")
        return self._settled({"exit_criteria": definition}, ())

    def exit_on(self, *events: str) -> Self:
        """Everybody leaves at any of these events, also out of a wait for them."""
        return self._setting("exit_on", texts_of("The events of .exit_on", events))

    def at_most(self, days: int) -> Self:
        """Everybody leaves so many days of 24 hours after the entry; 0 is no limit."""
        return self._settled({"max_duration_days": plain(days)}, ("max_duration_days",))

    def send_window(
        self,
        days: Iterable[str] = ("mon", "tue", "wed", "thu", "fri"),
        from_: str = "09:00",
        to: str = "17:30",
        tz: Literal["contact", "sender"] = "contact",
    ) -> Self:
        """When sends and tasks may happen, on the clock of the person or ("sender") the account;
        `from_` is inside, `to` is not. A step outside waits for the next opening."""
        names = texts_of('The "days" of .send_window', days)
        return self._setting("send_window", {"days": names, "from": from_, "to": to, "tz": tz})

    def jitter(self, duration: str) -> Self:
        """Spreads sends and tasks over this time, each person at a moment of their own."""
        return self._setting("jitter", duration)

    def workweek(self, *days: str) -> Self:
        """The days that business days count; Monday to Friday unless given."""
        return self._setting("workweek", texts_of("The days of .workweek", days))

    def timezone(self, zone: str) -> Self:
        """The account's clock for this journey, an IANA name such as "Asia/Tehran"."""
        return self._setting("timezone", zone)

    def numbered(self, journey_id: int = 0, version: int = 0) -> Self:
        """The numbers that a server gave to the journey and to its version; 0 is none."""
        whole = {"journey_id": plain(journey_id), "version": plain(version)}
        return self._settled(whole, ())

    def _setting(self, field: str, value: Any) -> Self:
        settings = {**self._fields.get("settings", {}), field: value}
        return self._settled({"settings": settings}, (f"settings.{field}",))

    def _settled(self, changes: Document, judged: tuple[str, ...]) -> Self:
        """With other fields, those of the `judged` paths without a problem."""
        fields = {**self._fields, **changes}
        graph, problems = Graph.salvage(fields)
        if graph is not None and not problems and judged:
            found = check.check(graph).problems
            problems = [problem for problem in found if problem.path.startswith(judged)]
        if problems:
            raise JourneyError(problems[0].code, problems[0].message, problems[0].fix)
        return type(self)(self.name, fields, self._sketch)

    # --- how the document is laid out ---

    def place(self, positions: Mapping[str, tuple[float | None, float | None]]) -> Self:
        """Where an editor draws the nodes: `{"id": (x, y)}`, None for a number that is not set."""
        nodes = {**self._sketch.nodes}
        for node_id, (x, y) in positions.items():
            if node_id not in nodes:
                message = f"There is no node {shown(node_id)} to place."
                raise JourneyError("NO_NODE", message, "Place nodes after their steps are added.")
            at = {"x": plain(x), "y": plain(y)}
            known = {axis: number for axis, number in at.items() if number is not None}
            nodes[node_id] = {**nodes[node_id], **known}
        return self._with(self._sketch._replace(nodes=nodes))

    def in_order(self, node_ids: Iterable[str]) -> Self:
        """The order of the nodes in the document, every one of them once; it means nothing."""
        ids, nodes = list(node_ids), self._sketch.nodes
        if sorted(ids) != sorted(nodes):
            odd = sorted({*ids} ^ nodes.keys()) or [node for node in ids if ids.count(node) > 1]
            message = f"The node {shown(odd[0])} is missing, unknown or named twice in .in_order."
            raise JourneyError("BAD_ORDER", message, "Name every node exactly once.")
        return self._with(self._sketch._replace(nodes={node_id: nodes[node_id] for node_id in ids}))

    # --- the product ---

    @cached_property
    def graph(self) -> Graph:
        """The document that the engine walks."""
        nodes = list(self._sketch.nodes.values())
        return Graph.parse({**self._fields, "entry_id": self._sketch.head, "nodes": nodes})

    def validate(self, account_timezone: str | None = None) -> Report:
        """Every problem and warning, each with its node and what to do. Never raises."""
        return Report(check.check(self.graph, account_timezone=account_timezone))

    def simulate(
        self,
        person: Person | Mapping[str, Any] | str,
        at: object = None,
        *,
        account_timezone: str = "UTC",
        event: Mapping[str, Any] | None = None,
        answers: Mapping[str, str] | None = None,
    ) -> Trace:
        """Walk one person through the journey, waits passed over; nothing is stored or sent.

        `person` is `{"user_id", "traits"?, "timezone"?, "events"?, "segments"?}` or a bare id; `at`
        the moment it begins (an aware datetime, an ISO text, an Instant; now where absent). `event`
        holds the properties of the event that enters. An event wait takes its first event;
        `answers` chooses another by the wait's node id: an event's name or "timeout".
        """
        from journeykit import run

        return run.simulate(
            self, person, at, account_timezone=account_timezone, event=event, answers=answers
        )

    def replay(
        self,
        events: Any,
        people: Any = (),
        *,
        since: object = None,
        until: object = None,
        account_timezone: str = "UTC",
        scan_every: str = "1h",
        templates: Mapping[Any, Any] | None = None,
    ) -> Replay:
        """Walk a whole history through the journey on a virtual clock; nothing is stored or sent.

        `events` is a frame (pandas or Polars), a list of rows or a file of JSON lines; a row has
        `userId` (or `user_id`), `event`, `properties`, `timestamp`, and `type` where it is not a
        track. `people` are rows or a file of `userId`, `traits`, `timezone`. `since` is when the
        journey is published (the first row where absent), `until` the last moment lived through
        (the last row where absent). `templates` maps a template id to its text, or its texts by
        name; a message whose text misses a value, or cannot be made, is suppressed. Raises
        `JourneyError` where the journey has problems, `history.BadHistory` for a row that cannot be
        used.
        """
        from journeykit import run

        return run.replay(
            self,
            events,
            people,
            since=since,
            until=until,
            account_timezone=account_timezone,
            scan_every=scan_every,
            templates=templates,
        )

    def draw(self, **looks: Unpack[Looks]) -> Drawing:
        """The journey as a picture: see `journeykit.draw.draw` for `stats`, `path`, `theme`,
        `direction` and `problems` (those of `validate` where absent)."""
        from journeykit.draw import draw

        looks.setdefault("problems", check.check(self.graph).problems)
        return draw(self.graph, name=self.name, **looks)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Document:
        return self.draw()._repr_mimebundle_()

    def to_json(self, indent: int | None = None) -> str:
        """The document as JSON text: `{"name", "graph"}`, or the bare graph when it has no name."""
        return json.dumps(self.to_value(), ensure_ascii=False, indent=indent)

    def to_value(self) -> Document:
        """The document as plain values; fields at their defaults are left out."""
        value = self.graph.to_value()
        return {"name": self.name, "graph": value} if self.name else value

    def to_steps(self) -> Document:
        """The journey in the steps dialect. Raises `steps.NotSayable`, which lists what the dialect
        has no words for, where there is something."""
        from journeykit_engine.steps import to_steps

        return to_steps(self.graph)

    def to_python(self) -> str:
        """Code that builds this journey again, as somebody would write it."""
        from journeykit.source import journey_code

        return journey_code(self.graph, self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Journey) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @cached_property
    def _key(self) -> tuple[str, str]:
        return self.name, self.graph.to_json()

    def __repr__(self) -> str:
        from journeykit.outline import outline

        return outline(self.graph, self.name)


def journey(
    name: str = "", *, journey_id: int = 0, version: int = 0, timezone: str | None = None
) -> Journey:
    """A new journey; say next who enters it."""
    if not isinstance(name, str):
        raise wrong_type("The name of a journey", "text", name, "Write it between quotes.")
    begun = Journey(name, {}, Sketch()).numbered(journey_id, version)
    return begun if timezone is None else begun.timezone(timezone)
