"""Some people hear events, one after the other; their unit of work writes what came of it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson
from whenever import Instant

from journeykit_engine import walk
from journeykit_engine.instance import Happened, Instance
from journeykit_engine.signal import Event
from journeykit_engine.walk import Step
from journeykit_server import letters
from journeykit_server.backoff import ATTEMPTS, TOO_NEW_PAUSE, backoff, code_of, words_of
from journeykit_server.clock import Chance, instant, microseconds
from journeykit_server.doors import Door, JourneyKey
from journeykit_server.incoming import Incoming
from journeykit_server.letters import Letter
from journeykit_server.published import CannotWalk, Published, Unwalkable, Walkable, version_of
from journeykit_server.tables import NEVER
from journeykit_server.work import Standing, Work

log = logging.getLogger("journeykit")


class Arrival(NamedTuple):
    """An event of this batch, its number, and the published journeys that listen for it."""

    number: int
    incoming: Incoming
    event: Event
    hearing: Sequence[Walkable]


class Hearing:
    """Who hears what in one unit of work.

    Made before what the walks need is loaded: a version published after that takes nobody in here.
    `doors` has every journey that may be concerned, as it stands while this goes on. `busy` has the
    passes (tenant, user, journey) that have still to hear an earlier event; what comes later for
    one of them is put into `queued` (rows of the inbox) unheard.
    """

    def __init__(self, published: Published, chance: Chance, work: Work) -> None:
        self.published = published
        self.current = published.current
        self.chance = chance
        self.work = work
        self.now = instant(work.now)
        self.doors: Mapping[JourneyKey, Door] = {}
        self.busy: set[tuple[Any, ...]] = set()
        self.queued: list[tuple[Any, ...]] = []
        self.requeued: list[tuple[Any, ...]] = []

    def receive(self, standing: Standing, arrival: Arrival) -> None:
        """An event that has just arrived: into the profile or the history, then to the journeys."""
        incoming, event = arrival.incoming, arrival.event
        if incoming.kind == "identify":
            event = self._written(standing, incoming)
            if not event.changed:
                return
        else:
            self.remember(standing, arrival)
        for journey_id in self._concerned(standing, event, arrival.hearing):
            self._hear_or_queue(standing, journey_id, event, arrival.number)

    def _written(self, standing: Standing, incoming: Incoming) -> Event:
        occurred_at = self._occurred_at(standing, incoming)
        made, changed = standing.identify(incoming.properties, occurred_at)
        standing.write(made, changed)
        return Event("", self.now, incoming.id, incoming.properties, changed)

    def _occurred_at(self, standing: Standing, incoming: Incoming) -> Instant:
        """The sender's time, but never ahead of ours. Without one the order of arrival counts, even
        where our clock has gone back since the last writing."""
        if incoming.occurred_at is not None:
            return min(incoming.occurred_at, self.now)
        written_at = standing.known_profile().written_at
        before = [written_at[name] for name in incoming.properties if name in written_at]
        return max([self.now, *before])

    def remember(self, standing: Standing, arrival: Arrival) -> None:
        """An event that some rule asks about joins the history of its person."""
        event = arrival.event
        if event.name not in self.work.remembered or arrival.incoming.kind != "track":
            return
        history = standing.person.events
        happened = Happened(event.at, event.properties, event.id)
        told = {**history, event.name: [*history.get(event.name, ()), happened]}
        standing.person = standing.person._replace(events=told)

    def _concerned(
        self, standing: Standing, event: Event, hearing: Sequence[Walkable]
    ) -> Iterable[int]:
        """The journeys that may do something: first those that the person is inside of, so that
        every wait is over before anybody is asked in anew."""
        inside = [
            journey_id
            for journey_id, instance in sorted(standing.instances.items())
            if instance.is_live and self.published.may_hear(version_of(instance), event)
        ]
        return dict.fromkeys([*inside, *(w.program.journey_id for w in hearing)])

    def _hear_or_queue(
        self, standing: Standing, journey_id: int, event: Event, number: int
    ) -> None:
        key = (*standing.key, journey_id)
        at = microseconds(self.now)
        waiting = (NEVER, 0, "waits for an earlier event")
        if key not in self.busy:
            try:
                self._hear(standing, journey_id, event, number)
                return
            except Exception as fault:
                queued = _Queued(event, number, 0, self.now)
                again = self._try_again(standing, journey_id, queued, fault)
            if again is None:
                return
            log.warning("journey %d could not hear event number %d yet", journey_id, number)
            waiting = again
            self.busy.add(key)
        self.queued.append((*key, number, event.name, _written_down(event), *waiting, at))

    def _hear(self, standing: Standing, journey_id: int, event: Event, number: int) -> None:
        """One journey hears one event: what it does inside, then whether it takes the person in.
        One that stands still can be left, and does nothing else."""
        key = (standing.key[0], journey_id)
        door, instance, person = (
            self.doors[key],
            standing.instances.get(journey_id),
            standing.person,
        )
        if instance is not None:
            event = event._replace(at=max(event.at, instance.updated_at))
        heard = self._hear_inside(standing, instance, event, door)
        if heard:
            _, (instance, _, person, _) = heard[-1]
        failed = bool(heard) and heard[-1][1].failure is not None
        current = self.current.get(key) if door.takes_in else None
        if current is not None and not failed and walk.triggers(current.program, event):
            heard.append((current, walk.enter(current.program, person, instance, event)))
        for walkable, step in heard:
            self.work.take(standing, walkable, step, event.id, number)
            if step.failure is not None:
                self._bury(standing, walkable, step, event, number)

    def _hear_inside(
        self, standing: Standing, instance: Instance | None, event: Event, door: Door
    ) -> list[tuple[Walkable, Step]]:
        if instance is None or not instance.is_live:
            return []
        key = version_of(instance)
        if not self.published.may_hear(key, event):
            return []
        inside = self._walkable(key)
        if not (door.moves or instance.paused_at):
            instance = instance._replace(paused_at=event.at)
        steps = walk.hear(inside.program, standing.person, instance, event)
        return [(inside, step) for step in steps]

    def _walkable(self, key: tuple[int, int, int]) -> Walkable:
        found = self.published.known[key]
        if isinstance(found, Unwalkable):
            raise CannotWalk(found)
        return found

    def _bury(
        self, standing: Standing, walkable: Walkable, step: Step, event: Event, number: int
    ) -> None:
        """A step that can never be taken: the event is kept for whoever repairs the journey."""
        assert step.failure is not None
        node_id, code, message = step.failure
        version = walkable.program.version
        letter = self._letter(standing, walkable.program.journey_id, event, number)
        self.work.bury(
            letter._replace(version=version, node_id=node_id, code=code, message=message)
        )

    def _letter(self, standing: Standing, journey_id: int, event: Event, number: int) -> Letter:
        tenant_id, user_id = standing.key
        instance = standing.instances.get(journey_id)
        return Letter(
            tenant_id,
            letters.event_letter_id(journey_id, user_id, number),
            "event",
            user_id,
            journey_id,
            instance.version if instance else 0,
            instance.current_node if instance else "",
            code="",
            message="",
            attempts=1,
            first_at=self.now,
            last_at=self.now,
            payload={"name": event.name, "number": number, "changed": _written_down(event)},
        )

    # --- again

    def catch_up(self, rows: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
        """Queued events, in order; the keys of those that are done with."""
        done, begun = [], set[tuple[Any, ...]]()
        for row in rows:
            *key, number, name, changed, try_at, attempts, failed_at, at, event_id, properties = row
            is_first = tuple(key) not in begun
            begun.add(tuple(key))
            if is_first and try_at > microseconds(self.now):
                self.busy.add(tuple(key))
            elif is_first and self.doors[key[0], key[2]].outgoing == "hold":
                self._wait(tuple(key), number, attempts)
            if tuple(key) in self.busy:
                continue
            written = None if changed is None else orjson.loads(changed)
            event = Event(name, instant(at), event_id, orjson.loads(properties), written)
            queued = _Queued(event, number, attempts, instant(failed_at))
            if self._heard_now(self.work.people[key[0], key[1]], key[2], queued):
                done.append((*key, number))
        return done

    def _wait(self, key: tuple[Any, ...], number: int, attempts: int) -> None:
        """What came before its journey was frozen is heard when that goes on."""
        try_at = microseconds(self.now + TOO_NEW_PAUSE)
        self.requeued.append((try_at, attempts, "its journey stands still", *key, number))
        self.busy.add(key)

    def _heard_now(self, standing: Standing, journey_id: int, queued: _Queued) -> bool:
        try:
            self._hear(standing, journey_id, queued.event, queued.number)
            return True
        except Exception as fault:
            again = self._try_again(standing, journey_id, queued, fault)
        if again is None:
            return True
        key = (*standing.key, journey_id)
        self.requeued.append((*again, *key, queued.number))
        self.busy.add(key)
        return False

    def _try_again(
        self, standing: Standing, journey_id: int, queued: _Queued, fault: Exception
    ) -> tuple[int, int, str] | None:
        """When, the attempts by then, and why; None where it is given up as a dead letter."""
        code, for_ever = code_of(fault)
        words, attempts = words_of(fault), queued.attempts + 1
        if isinstance(fault, CannotWalk) and not for_ever:  # waits for an upgrade, no attempt
            return microseconds(self.now + TOO_NEW_PAUSE), queued.attempts, words
        if not for_ever and attempts < ATTEMPTS:
            return microseconds(self.now + backoff(attempts, self.chance)), attempts, words
        letter = self._letter(standing, journey_id, queued.event, queued.number)
        letter = letter._replace(code=code, message=words, attempts=attempts)
        self.work.bury(letter._replace(first_at=queued.failed_at))
        return None


class _Queued(NamedTuple):
    """An event of the inbox and how often it was tried."""

    event: Event
    number: int
    attempts: int
    failed_at: Instant


def _written_down(event: Event) -> str | None:
    """The traits that an identify wrote, as JSON."""
    return None if event.changed is None else orjson.dumps(dict(event.changed)).decode()
