"""What a walk tells: the entries of a trail in the order they came, and the effects, as data.

A trail is written for one person by one step of the walk, so its entries carry neither the person
nor the time: the step has both. Entries that depend on the graph alone are made once per program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from journeykit_engine.instance import NOTHING, ExitReason, Refusal, Wait


class Medium(NamedTuple):
    """One channel of a message: the text it carries and the name the message has there."""

    channel: str
    template_id: int | None
    message_id: str


class Message(NamedTuple):
    """Send a message. `message_id` is unique per journey, version, node, person, entry and visit.

    `fallback` lists further channels, tried in order when this one cannot reach the person.
    `event` holds the properties of the causing event that may travel, empty after a timed wait.
    """

    message_id: str
    event: Mapping[str, Any]
    node_id: str
    channel: str
    template_id: int | None
    category: str
    priority: int
    budget: str
    fallback: tuple[Medium, ...] = ()

    @property
    def kind(self) -> str:
        return "send"


class WriteTrait(NamedTuple):
    """Set a trait of the person."""

    node_id: str
    trait: str
    value: Any

    @property
    def kind(self) -> str:
        return "update_trait"


class AddToSegment(NamedTuple):
    """Make the person a member of a segment."""

    node_id: str
    segment_id: int

    @property
    def kind(self) -> str:
        return "add_to_segment"


class CallWebhook(NamedTuple):
    """Call a url; `id` is the idempotency key."""

    id: str
    node_id: str
    url: str
    headers: Mapping[str, str]
    body: Any
    event: Mapping[str, Any] = NOTHING

    @property
    def kind(self) -> str:
        return "webhook"


class StartJourney(NamedTuple):
    """Ask another journey to take the person in; its own entry rules apply."""

    id: str
    node_id: str
    journey_id: int

    @property
    def kind(self) -> str:
        return "enter_journey"


class GiveTask(NamedTuple):
    """Put a task on somebody's list."""

    id: str
    node_id: str
    task: str
    title: str
    connected_outcomes: tuple[str, ...]

    @property
    def kind(self) -> str:
        return "task"


Effect = Message | WriteTrait | AddToSegment | CallWebhook | StartJourney | GiveTask
EFFECTS = (Message, WriteTrait, AddToSegment, CallWebhook, StartJourney, GiveTask)


class Entered(NamedTuple):
    """A pass began, caused by the event with this id."""

    node_id: str
    caused_by: str


class Visited(NamedTuple):
    """The person arrived at a node."""

    node_id: str


class Woke(NamedTuple):
    """A wait closed: `branch` is the event, "timeout" (its time came: also a timed wait, or a step
    held until its window opened) or "exit"; `woken_by` is the id of the event, "" without one."""

    node_id: str
    branch: str
    woken_by: str


class Branched(NamedTuple):
    """A condition, switch or goal took this port."""

    node_id: str
    port: str


class Assigned(NamedTuple):
    """A split gave an arm; both arms are told. `variant` is "" for a person whom this split holds
    out; one whom an earlier split holds out has the arm of the hash, and `holdout` is true."""

    node_id: str
    variant: str
    holdout: bool


class Suppressed(NamedTuple):
    """Something outside was not done: "holdout", "window_never_opens", or a reason of delivery;
    `missing` names the values a text had no answer for."""

    node_id: str
    reason: str
    kind: str
    message_id: str = ""
    missing: tuple[str, ...] = ()


class Noted(NamedTuple):
    """A fact for whoever asks why: the zone name that does not exist, for instance."""

    node_id: str
    note: str
    detail: str


class Failed(NamedTuple):
    """Something went wrong, and what was done instead is on the safe side."""

    node_id: str
    code: str
    message: str


class Paused(NamedTuple):
    """Somebody stopped this person where they are."""

    node_id: str


class Resumed(NamedTuple):
    """The person may go on; what their time has come for follows."""

    node_id: str


class Exited(NamedTuple):
    """The pass ended here."""

    node_id: str
    reason: ExitReason


class Refused(NamedTuple):
    """A trigger matched and the entry rule said no."""

    node_id: str
    reason: Refusal


Entry = (
    Entered
    | Visited
    | Wait
    | Woke
    | Branched
    | Assigned
    | Effect
    | Suppressed
    | Noted
    | Failed
    | Paused
    | Resumed
    | Exited
    | Refused
)
