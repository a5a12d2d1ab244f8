"""Who walks and where they stand: a person's snapshot, their instance, and the rule of re-entry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from whenever import Instant, TimeDelta

from journeykit_engine import timing

Status = Literal["active", "waiting", "completed", "exited"]
ExitReason = Literal[
    "completed",
    "no_next_node",
    "exit_criteria",
    "max_duration",
    "goal_reached",
    "ejected",
    "journey_deleted",
]
Refusal = Literal[
    "already_inside", "once", "cooldown", "same_day", "not_api_trigger", "reserved_event"
]

WaitKind = Literal["timer", "event", "window"]

NOTHING: Mapping[Any, Any] = MappingProxyType({})


class Happened(NamedTuple):
    """One event of a person's history: when it arrived, what it carried, its message id."""

    at: Instant
    properties: Mapping[str, Any] = NOTHING
    id: str = ""


class Pass(NamedTuple):
    """What a rule may ask about another journey: the latest pass of this person through it."""

    journey_id: int
    status: Status
    node: str = ""
    variant: str = ""
    is_holdout: bool = False


class Person(NamedTuple):
    """A snapshot of one person, holding all that a walk may read.

    `events` lists the history by event name, in the order of arrival; it needs to hold only the
    names that `Program.needs` lists. `timezone` is the profile's zone, `phone_timezone` the one
    inferred from a phone number (used for text messages only); a name that does not exist falls
    back to the account's zone and is noted, it never raises.
    """

    user_id: str
    traits: Mapping[str, Any] = NOTHING
    timezone: str | None = None
    events: Mapping[str, Sequence[Happened]] = NOTHING
    segments: frozenset[int] = frozenset()
    journeys: Mapping[int, Pass] = NOTHING
    phone_timezone: str | None = None


class Assignment(NamedTuple):
    """What a split gave a person: the arm's name and whether the person is held out."""

    variant: str
    is_holdout: bool


class Wait(NamedTuple):
    """What a parked person waits for; it stands in the trail too.

    `kind` is "timer", "event", or "window" (an outreach step held until its send window opens).
    `until` is None for an event wait without a time-out. The record stays open until something
    closes it; how it closed is told by the step that closes it (`branch`, `woken_by`).
    """

    node_id: str
    kind: WaitKind
    since: Instant
    until: Instant | None
    events: tuple[str, ...] = ()


class Instance(NamedTuple):
    """One person in one version of one journey.

    `entry_count` numbers the passes from 1. `wake_at` is the earlier of the wait's own time and
    the end of `max_duration_days`, None when only an event can wake the person. `assignments`
    keeps every split met in this entry by node id, `variant` is the latest. `visits` counts the
    arrivals at nodes that lie on a loop, so that a second message has a name of its own.
    `entered_by` is the id of the event that caused the entry.
    """

    tenant_id: int
    journey_id: int
    version: int
    user_id: str
    entry_count: int
    status: Status
    current_node: str
    entered_at: Instant
    updated_at: Instant
    wake_at: Instant | None = None
    entered_by: str = ""
    variant: str = ""
    is_holdout: bool = False
    exit_reason: ExitReason | Literal[""] = ""
    assignments: Mapping[str, Assignment] = NOTHING
    visits: Mapping[str, int] = NOTHING
    wait: Wait | None = None
    paused_at: Instant | None = None

    @property
    def is_live(self) -> bool:
        """True while the person is inside: active or waiting (a paused person is inside too)."""
        return self.status in ("active", "waiting")


class Reentry(NamedTuple):
    """The three fields of a graph that say who may start again."""

    rule: Literal["once", "every_time"] = "once"
    cooldown_hours: int = 0
    window: Literal["", "day"] = ""


def may_enter(reentry: Reentry, prior: Instance | None, now: Instant, zone: str) -> Refusal | None:
    """Why this person may not start a pass now, or None when they may.

    `prior` is the person's latest instance in any version of the journey, `zone` the account's.
    A cooldown counts from the prior instance's last update, the day window from its entry; where
    both are stored the window decides and the hours do nothing.

    >>> may_enter(Reentry(), None, Instant("2026-12-01T09:00:00Z"), "UTC") is None
    True
    """
    if prior is None:
        return None
    if prior.is_live:
        return "already_inside"
    if reentry.rule == "once":
        return "once"
    if reentry.window == "day":
        return "same_day" if timing.same_day(prior.entered_at, now, zone) else None
    if now < prior.updated_at + TimeDelta(hours=reentry.cooldown_hours):
        return "cooldown"
    return None
