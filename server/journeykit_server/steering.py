"""What somebody asks for about one person in one journey: take them out, hold them, let them go on,
tell about them.

Each call is one unit of work, and one whose answer was lost can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import Instant

from journeykit_engine import walk
from journeykit_engine.instance import NOTHING, Instance, Person
from journeykit_engine.program import Program
from journeykit_engine.walk import Step
from journeykit_server import store
from journeykit_server.incoming import BadEvent, Incoming, Receipt, event_fault
from journeykit_server.published import Walkable, stand_in, version_of
from journeykit_server.rows import LIVE, STATUS

if TYPE_CHECKING:
    from journeykit_server.runtime import Runtime

Steer = Callable[[Program, Person, Instance, Instant], Step]
SIGNAL_SOURCE = "signal"  # of an event that is sent about somebody in one journey
NOT_INSIDE = (
    'The person "{0}" is not inside journey "{1}", so there is nobody to tell it about. '
    "See where they are, or send an ordinary event."
)
BAD_SIGNAL = "The signal cannot be stored: {0}"


class NotInside(LookupError):
    """The person is not inside this journey. Nothing was stored."""


async def eject(runtime: Runtime, tenant_id: int, journey_id: int, user_id: str) -> bool:
    """Take a person out of a journey; False where they are not inside."""
    return await _steer(runtime, (tenant_id, user_id, journey_id), walk.leave)


async def pause_person(runtime: Runtime, tenant_id: int, journey_id: int, user_id: str) -> bool:
    """Hold a person where they are until `resume_person`: no time and no event moves them on, but
    an event may end their pass. False where they are not inside; who is held already stays so."""

    def hold(_: Program, person: Person, instance: Instance, at: Instant) -> Step:
        return walk.pause(person, instance, at)

    return await _steer(runtime, (tenant_id, user_id, journey_id), hold)


async def resume_person(runtime: Runtime, tenant_id: int, journey_id: int, user_id: str) -> bool:
    """Let a person who was held go on. A time that passed meanwhile is taken by the next worker
    that looks, once. False where they are not inside; who is not held stays as they are."""

    def let_go(program: Program, person: Person, instance: Instance, at: Instant) -> Step:
        # The time is left to its timer, which knows what to do when a step fails.
        step = walk.unpause(program, person, instance._replace(wake_at=None), at)
        if not step.trail:
            return step._replace(instance=instance)
        assert step.instance is not None
        return step._replace(instance=step.instance._replace(wake_at=instance.wake_at))

    return await _steer(runtime, (tenant_id, user_id, journey_id), let_go)


async def _steer(runtime: Runtime, key: store.PassKey, steer: Steer) -> bool:
    """Take this step with this pass; whether they are inside. It asks nothing of the person and
    runs no node, so it needs no program that can be walked."""
    made: list[Instance | None] = []  # what tries have made of it, of which one may be kept
    tenant_id, user_id, journey_id = key

    async def work(connection: AsyncConnection) -> bool:
        people = [(tenant_id, user_id)]
        unit, now = await runtime.begin(connection, people)
        if not unit.people:
            return False
        await runtime.stand(connection, unit, people)
        standing = unit.people[tenant_id, user_id]
        instance = standing.instances.get(journey_id)
        if instance is None or not instance.is_live:
            return instance is not None and instance in made
        walkable = walkable_of(runtime, instance)
        at = max(now, instance.updated_at)
        step = steer(walkable.program, standing.person, instance, at)
        made.append(step.instance)
        unit.take(standing, walkable, step, "", 0)
        await unit.save(connection)
        return True

    return await runtime.unit(work)


def walkable_of(runtime: Runtime, instance: Instance) -> Walkable:
    """The program of the version that a pass is in, one that can only be left where it has none."""
    key = version_of(instance)
    found = runtime.published.known[key]
    return found if isinstance(found, Walkable) else stand_in(*key)


async def signal(
    runtime: Runtime,
    tenant_id: int,
    journey_id: int,
    user_id: str,
    event: str,
    properties: Mapping[str, Any] = NOTHING,
    id: str = "",
) -> Receipt:
    """Store an event about somebody who is inside this journey; every journey hears it, as any
    other event. A second one of the same id is dropped. Raises `NotInside` and `BadEvent`."""
    named = id or runtime.chance.token()
    sent = Incoming("track", user_id, event, properties, named, SIGNAL_SOURCE)
    if fault := event_fault(sent):
        raise BadEvent(BAD_SIGNAL.format(fault))
    await runtime.reload_if_stale()

    async def work(connection: AsyncConnection) -> Receipt:
        if not await _is_inside(connection, (tenant_id, user_id, journey_id)):
            known = await store.RECORDED.run(connection, [(tenant_id, SIGNAL_SOURCE, named)])
            # What is known about them under this id may be what ended the pass.
            if all(row.user_id != user_id for row in known):
                raise NotInside(NOT_INSIDE.format(user_id, journey_id))
        return await runtime.receive(connection, tenant_id, [sent])

    return await runtime.unit(work)


async def _is_inside(connection: AsyncConnection, key: store.PassKey) -> bool:
    """Whether the person is inside; they stay locked."""
    person = key[:2]
    await store.lock(connection, [person])
    passes = await store.INSTANCES_OF_PEOPLE.run(connection, [person])
    return any(row[2] == key[2] and row[STATUS] in LIVE for row in passes)
