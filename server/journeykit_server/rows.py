"""What the engine knows as values, as rows, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from whenever import Instant

from journeykit_engine.instance import NOTHING, Assignment, Instance, Wait
from journeykit_engine.nodes import new
from journeykit_server.clock import instant, microseconds
from journeykit_server.tables import HELD_BUCKET

MINUTE = 60_000_000  # microseconds

INSTANCE_KEY = ("tenant_id", "user_id", "journey_id")
INSTANCE_VALUES = (
    "version",
    "entry_count",
    "rev",
    "status",
    "current_node",
    "entered_at",
    "updated_at",
    "wake_at",
    "entered_by",
    "variant",
    "is_holdout",
    "exit_reason",
    "state",
    "paused_at",
)
INSTANCE_COLUMNS = (*INSTANCE_KEY, *INSTANCE_VALUES)
STATUS = INSTANCE_COLUMNS.index("status")
LIVE = ("active", "waiting")

_PLAIN = b"{}"  # the state of somebody who is not parked and met neither a split nor a loop


def read_instance(row: Any) -> Instance:
    """The instance of a row of `INSTANCE_COLUMNS`, in this order (`rev` stands in the row only)."""
    (
        tenant_id,
        user_id,
        journey_id,
        version,
        entry_count,
        _,
        status,
        current_node,
        entered_at,
        updated_at,
        wake_at,
        entered_by,
        variant,
        is_holdout,
        exit_reason,
        state,
        paused_at,
    ) = row
    updated = instant(updated_at)
    wake = None if wake_at is None else instant(wake_at)
    assignments, visits, wait = _read_state(state, updated_at, updated, wake_at, wake)
    fields = (
        tenant_id,
        journey_id,
        version,
        user_id,
        entry_count,
        status,
        current_node,
        updated if entered_at == updated_at else instant(entered_at),
        updated,
        wake,
        entered_by,
        variant,
        bool(is_holdout),
        exit_reason,
        assignments,
        visits,
        wait,
        None if paused_at is None else instant(paused_at),
    )
    read: Instance = new(Instance, fields)
    return read


def _read_state(
    state: str, updated_at: int, updated: Instant, wake_at: int | None, wake: Instant | None
) -> tuple[Mapping[str, Assignment], Mapping[str, int], Wait | None]:
    kept = orjson.loads(state)
    assignments: Mapping[str, Assignment] = NOTHING
    if arms := kept.get("arms"):
        assignments = {node_id: Assignment(name, held) for node_id, (name, held) in arms.items()}
    waits = kept.get("wait")
    if waits is None:
        return assignments, kept.get("visits") or NOTHING, None
    node_id, kind, since, until, events = waits
    wait = Wait(
        node_id,
        kind,
        updated if since == updated_at else instant(since),
        None if until is None else (wake if until == wake_at else instant(until)),
        tuple(events),
    )
    return assignments, kept.get("visits") or NOTHING, wait


def instance_key(instance: Instance) -> tuple[int, str, int]:
    """The values of `INSTANCE_KEY`."""
    return instance.tenant_id, instance.user_id, instance.journey_id


def instance_values(instance: Instance, rev: int) -> tuple[Any, ...]:
    """The values of `INSTANCE_VALUES`."""
    (
        _,
        _,
        version,
        _,
        entry_count,
        status,
        current_node,
        entered_at,
        updated_at,
        wake_at,
        entered_by,
        variant,
        is_holdout,
        exit_reason,
        _,
        _,
        _,
        paused_at,
    ) = instance
    return (
        version,
        entry_count,
        rev,
        status,
        current_node,
        microseconds(entered_at),
        microseconds(updated_at),
        None if wake_at is None else microseconds(wake_at),
        entered_by,
        variant,
        is_holdout,
        exit_reason,
        _state(instance).decode(),
        None if paused_at is None else microseconds(paused_at),
    )


def _state(instance: Instance) -> bytes:
    """What only the engine asks about: assignments, visits on loops, the open wait."""
    assignments, visits, wait = instance.assignments, instance.visits, instance.wait
    if wait is None and not assignments and not visits:
        return _PLAIN
    kept: dict[str, Any] = {}
    if assignments:
        kept["arms"] = {node_id: tuple(arm) for node_id, arm in assignments.items()}
    if visits:
        kept["visits"] = dict(visits)
    if wait is not None:
        node_id, kind, since, until, events = wait
        until_at = None if until is None else microseconds(until)
        kept["wait"] = (node_id, kind, microseconds(since), until_at, events)
    return orjson.dumps(kept)


def has_timer(instance: Instance | None) -> bool:
    """Whether a row of `timers` belongs to it: it wakes by itself and is not paused."""
    return (
        instance is not None
        and instance.wake_at is not None
        and instance.is_live
        and instance.paused_at is None
    )


def bucket_of(moment: int, now: int) -> int:
    """The minute under which the poll finds a moment: never one that has passed, since minutes
    that have passed are looked through only now and then."""
    return min(max(moment, now) // MINUTE, HELD_BUCKET - 1)
