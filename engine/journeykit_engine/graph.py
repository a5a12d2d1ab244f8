"""The graph document: what a journey is, as JSON, read strictly and written back.

Shape is strict (an unknown field or a wrong type is refused with its path); completeness is
lenient: every field that a draft may still lack has a default, and `check` says what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from journeykit_engine.shape import BadGraph, Problem, salvage
from journeykit_engine.strict_json import read_json, refuse_value, write_json

Kind = Literal["trigger", "wait", "condition", "switch", "split", "action", "goal", "exit"]
KINDS: tuple[str, ...] = get_args(Kind)
MAX_ID_CHARACTERS = 200  # of a node id; it is part of every message id and database key
RESERVED_EVENT = "journey_enter_requested"  # every entry that is not by event travels as this

Definition = dict[str, Any]
Comparisons = list[dict[str, Any]]


class Port(NamedTuple):
    """A named way out of a node; `target` is "" where nothing is wired, `path` says where the
    document names it."""

    name: str
    target: str
    path: str


def _number(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PydanticCustomError("number_type", "a number")
    return value


Number = Annotated[Any, BeforeValidator(_number)]


class _Part(BaseModel):
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, populate_by_name=True, hide_input_in_errors=True
    )


class EventTrigger(_Part):
    """Entered by the event itself, at once; every comparison of `filter` must hold."""

    kind: Literal["event"]
    event: str = ""
    filter: Comparisons = []


class AttributeChanged(_Part):
    """Entered by an identify that wrote the trait; `value`, where given, must be met exactly."""

    kind: Literal["attribute_changed"]
    trait: str = ""
    value: Any = None


class SegmentEnter(_Part):
    """Entered by those who are in the segment at a look and were not at the look before."""

    kind: Literal["segment_enter"]
    definition: Definition | None = None


class SegmentExit(_Part):
    """Entered by those who were in the segment at the look before and no longer are."""

    kind: Literal["segment_exit"]
    definition: Definition | None = None


class SegmentPeriodic(_Part):
    """A sweep over the segment at each of `hours` (0 to 23) of the account's day."""

    kind: Literal["segment_periodic"]
    definition: Definition | None = None
    hours: list[int] = []


class DateTrigger(_Part):
    """`offset_days` days before the date in `trait`, at `hour` of the account's day."""

    kind: Literal["date"]
    trait: str = ""
    offset_days: int = 0
    annual: bool = True
    hour: int = 9
    definition: Definition | None = None


class ApiTrigger(_Part):
    """Entered by a call that names the person."""

    kind: Literal["api"]


Trigger = (
    EventTrigger
    | AttributeChanged
    | SegmentEnter
    | SegmentExit
    | SegmentPeriodic
    | DateTrigger
    | ApiTrigger
)


class DurationWait(_Part):
    """A fixed time: `amount` whole units of minute, hour, day, week or business_day."""

    kind: Literal["duration"]
    amount: int = 0
    unit: str = ""


class UntilTime(_Part):
    """The next such wall-clock time strictly after now, in the recipient's zone."""

    kind: Literal["until_time"]
    hour: int | None = None
    minute: int = 0
    days: list[str] | None = None


class UntilBestTime(_Part):
    """The recipient's best hour, or `fallback_hour` where too little is known."""

    kind: Literal["until_best_time"]
    fallback_hour: int | None = None


class ForEvent(_Part):
    """Until an event arrives: one `event` that goes on to `next`, or several in `on`, each with
    a port of its own. `timeout` is a duration text such as "5bd"; an empty `on_timeout` goes to
    `next`. `events`, where given, must name exactly the keys of `on`."""

    kind: Literal["for_event"]
    event: str = ""
    on: dict[str, str] | None = None
    events: list[str] | None = None
    filter: Comparisons = []
    timeout: str = ""
    on_timeout: str = ""


WaitConfig = DurationWait | UntilTime | UntilBestTime | ForEvent


class Condition(_Part):
    """Yes or no: a definition, and the way for each answer."""

    definition: Definition | None = None
    on_true: str = ""
    on_false: str = ""


class Case(_Part):
    """One way of a switch."""

    label: str = ""
    definition: Definition | None = None
    next: str = ""


class Switch(_Part):
    """Many ways, asked in order; the first that matches wins, else `default`."""

    cases: list[Case] = []
    default: str = ""


class Branch(_Part):
    """One arm of a split; `weight` is a share of the sum, not a percentage."""

    weight: Number = 1
    next: str = ""
    variant: str = ""


class Split(_Part):
    """Arms by weight, and a holdout of `holdout_percent` (0 to 100, decimals allowed). An absent
    `salt` is the journey's id, "" none."""

    branches: list[Branch] = []
    holdout_percent: Number = 0
    on_holdout: str = ""
    salt: str | None = None


class Channel(_Part):
    """One medium of a send and the text it carries."""

    channel: str = ""
    template_id: int | None = None


class Send(_Part):
    """A message, by one channel or several. `channel_mode` "" tries `channels` in order until
    one reaches the person, "all" uses every one."""

    kind: Literal["send"]
    channel: str = ""
    template_id: int | None = None
    channels: list[Channel] = []
    channel_mode: Literal["", "all"] = ""
    category: str = ""
    priority: int = 50
    budget: str = "default"

    @property
    def media(self) -> tuple[Channel, ...]:
        """Every channel with its template, in order, whichever form the document uses."""
        if self.channels:
            return tuple(self.channels)
        return (Channel(channel=self.channel, template_id=self.template_id),)


class UpdateTrait(_Part):
    """Writes a trait; done for held-out people too."""

    kind: Literal["update_trait"]
    trait: str = ""
    value: Any = None


class AddToSegment(_Part):
    """Adds the person to a segment; done for held-out people too."""

    kind: Literal["add_to_segment"]
    segment_id: int | None = None


class Webhook(_Part):
    """Calls a url; withheld from held-out people."""

    kind: Literal["webhook"]
    url: str = ""
    headers: dict[str, str] = {}
    body: Any = None


class EnterJourney(_Part):
    """Starts another journey for the person; withheld from held-out people."""

    kind: Literal["enter_journey"]
    journey_id: int | None = None


class Task(_Part):
    """Something a human does: a call or a step on LinkedIn. A completion whose outcome is in
    `connected_outcomes` counts as a connected call (["connected"] where none are given)."""

    kind: Literal["task"]
    task: Literal["call", "linkedin_message", "linkedin_connect", "custom"] = "custom"
    title: str = ""
    connected_outcomes: list[str] = []


Action = Send | UpdateTrait | AddToSegment | Webhook | EnterJourney | Task


class Goal(_Part):
    """A checkpoint: reached when the event happened at or after entry and no later than
    `window_days` days after it (0 = without end)."""

    event: str = ""
    window_days: int = 0
    filter: Comparisons = []
    on_reached: str = ""


Config: TypeAlias = "Trigger | WaitConfig | Condition | Switch | Split | Action | Goal"


class Node(_Part):
    """One node: `kind` names the configuration object that belongs to it (an exit has none)."""

    id: str
    kind: Kind
    label: str = ""
    next: str = ""
    x: Number = None
    y: Number = None
    trigger: Annotated[Trigger, Field(discriminator="kind")] | None = None
    wait: Annotated[WaitConfig, Field(discriminator="kind")] | None = None
    condition: Condition | None = None
    switch: Switch | None = None
    split: Split | None = None
    action: Annotated[Action, Field(discriminator="kind")] | None = None
    goal: Goal | None = None

    @property
    def config(self) -> Config | None:
        """The configuration that belongs to this kind, None for an exit or an unfinished node."""
        return getattr(self, self.kind, None)

    @property
    def configs(self) -> list[str]:
        """The names of the configuration objects that the document gives this node."""
        return [kind for kind in KINDS if getattr(self, kind, None) is not None]

    def ports(self, path: str = "") -> list[Port]:
        """Every way out, in document order, wired or not; `path` is where this node stands."""
        after = Port("next", self.next, f"{path}.next")
        match self.config:
            case ForEvent() as wait:
                return _wait_ports(wait, after, f"{path}.wait")
            case Condition() as condition:
                at = f"{path}.condition"
                return [
                    Port("on_true", condition.on_true, f"{at}.on_true"),
                    Port("on_false", condition.on_false, f"{at}.on_false"),
                ]
            case Switch() as switch:
                return _switch_ports(switch, f"{path}.switch")
            case Split() as split:
                return _split_ports(split, f"{path}.split")
            case Goal() as goal:
                return [after, Port("on_reached", goal.on_reached, f"{path}.goal.on_reached")]
            case _:
                return [] if self.kind in ("exit", "condition", "switch", "split") else [after]


def _wait_ports(wait: ForEvent, after: Port, at: str) -> list[Port]:
    late = [Port("on_timeout", wait.on_timeout, f"{at}.on_timeout")]
    if wait.on is None:
        return [after, *(late if wait.timeout or wait.on_timeout else [])]
    ways = [Port(event, target, f"{at}.on.{event}") for event, target in wait.on.items()]
    if wait.timeout and not wait.on_timeout:
        late = [Port("on_timeout", after.target, after.path)]
    return ways + (late if wait.timeout or wait.on_timeout else [])


def _switch_ports(switch: Switch, at: str) -> list[Port]:
    ways = [
        Port(case.label or f"case {i + 1}", case.next, f"{at}.cases[{i}].next")
        for i, case in enumerate(switch.cases)
    ]
    return [*ways, Port("default", switch.default, f"{at}.default")]


def _split_ports(split: Split, at: str) -> list[Port]:
    ways = [
        Port(branch.variant or f"branch {i + 1}", branch.next, f"{at}.branches[{i}].next")
        for i, branch in enumerate(split.branches)
    ]
    if split.on_holdout or split.holdout_percent:
        ways.append(Port("on_holdout", split.on_holdout, f"{at}.on_holdout"))
    return ways


class SendWindow(_Part):
    """When outreach may happen; `tz` "contact" reads the clock of the recipient, "sender" the
    account's. `from` is inside, `to` is not."""

    days: list[str] = []
    from_: str = Field(default="", alias="from")
    to: str = ""
    tz: Literal["contact", "sender"] = "contact"


class Settings(_Part):
    """What holds for the whole journey."""

    timezone: str | None = None
    send_window: SendWindow | None = None
    jitter: str = ""
    exit_on: list[str] = []
    workweek: list[str] | None = None


class Graph(_Part):
    """A journey's graph. `parse` reads it, `to_json` writes it, `check.check` judges it.

    >>> graph = Graph.parse('{"journey_id": 1, "entry_id": "t", "nodes": [{"id": "t",'
    ...     ' "kind": "trigger", "trigger": {"kind": "api"}}]}')
    >>> graph.by_id["t"].kind
    'trigger'
    """

    journey_id: int = 0
    version: int = 0
    entry_id: str = ""
    nodes: list[Node] = []
    entry_rule: Literal["once", "every_time"] = "once"
    cooldown_hours: int = 0
    reentry_window: Literal["", "day"] = ""
    exit_criteria: Definition | None = None
    max_duration_days: int = 0
    settings: Settings = Settings()

    @classmethod
    def parse(cls, source: str | bytes | Mapping[str, Any]) -> Graph:
        """Read a graph from JSON text or from the value of one.

        Raises `strict_json.BadJson` for what is not JSON and `BadGraph` for what is no graph.
        """
        if isinstance(source, str | bytes):
            source = read_json(source)
        else:
            refuse_value(source)
        graph, problems = cls.salvage(source)
        if graph is None or problems:
            raise BadGraph(problems)
        return graph

    @classmethod
    def salvage(cls, value: object) -> tuple[Graph | None, list[Problem]]:
        """The graph, and every fault of its shape: see `shape.salvage`."""
        return salvage(cls, value, FIELD_NAMES)

    def to_value(self) -> dict[str, Any]:
        """The document as plain values; fields at their defaults are left out."""
        return self.model_dump(by_alias=True, exclude_defaults=True)

    def to_json(self) -> str:
        """The document as canonical JSON: keys sorted, no spaces; equal graphs, equal text."""
        return write_json(self.to_value())

    @cached_property
    def by_id(self) -> dict[str, Node]:
        """The nodes by id; of two with one id (a problem) the first."""
        found: dict[str, Node] = {}
        for node in self.nodes:
            found.setdefault(node.id, node)
        return found

    def definitions(self) -> Iterator[tuple[str, str, Definition | None]]:
        """Every segment definition the graph must have: node id, path, and the definition (None
        where the draft still lacks it); the exit criteria only where there are some."""
        if self.exit_criteria:
            yield "", "exit_criteria", self.exit_criteria
        for index, node in enumerate(self.nodes):
            at = f"nodes[{index}]"
            match node.config:
                case SegmentEnter() | SegmentExit() | SegmentPeriodic() as trigger:
                    yield node.id, f"{at}.trigger.definition", trigger.definition
                case DateTrigger() as trigger if trigger.definition is not None:
                    yield node.id, f"{at}.trigger.definition", trigger.definition
                case Condition() as condition:
                    yield node.id, f"{at}.condition.definition", condition.definition
                case Switch() as switch:
                    for i, case in enumerate(switch.cases):
                        yield node.id, f"{at}.switch.cases[{i}].definition", case.definition
                case _:
                    pass

    def edges(self) -> Iterator[tuple[Node, Port]]:
        """Every wired way out, node by node in document order."""
        for index, node in enumerate(self.nodes):
            for port in node.ports(f"nodes[{index}]"):
                if port.target:
                    yield node, port

    @property
    def trigger(self) -> Trigger | None:
        """The configuration of the entry node, None where the draft has none yet."""
        node = self.by_id.get(self.entry_id)
        return node.trigger if node is not None and node.kind == "trigger" else None


FIELD_NAMES = sorted(
    {
        field.alias or name
        for part in _Part.__subclasses__()
        for name, field in part.model_fields.items()
    }
)
"""Every field name of a graph and of all its parts."""
