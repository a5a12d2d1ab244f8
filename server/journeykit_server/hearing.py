"""Some people hear events, one after the other; their unit of work writes what came of it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson
from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import Instant

from journeykit_engine import walk
from journeykit_engine.instance import Happened, Instance
from journeykit_engine.signal import Event
from journeykit_engine.walk import Step
from journeykit_server import letters
from journeykit_server.backoff import ATTEMPTS, TOO_NEW_PAUSE, backoff, code_of, words_of
from journeykit_server.bulk import Select
from journeykit_server.clock import Chance, instant, microseconds
from journeykit_server.doors import Door, JourneyKey
from journeykit_server.incoming import Incoming
from journeykit_server.letters import Letter
from journeykit_server.published import CannotWalk, Published, Unwalkable, Walkable, version_of
from journeykit_server.store import PERSON, SAME_PERSON, PersonKey
from journeykit_server.tables import NEVER
from journeykit_server.work import Standing, Work

log = logging.getLogger("journeykit")

BEHIND = "waits for an earlier event"
STANDS_STILL = "its journey stands still"
CAME: Mapping[tuple[bool, bool], str] = {
    (True, True): "",
    (True, False): "came while it could take nobody in; ",
    (False, True): "came while it could wake nobody; ",
    (False, False): "came while it could only end a pass; ",
}
"""By whether people were moved on and taken in when an event arrived: what its row of the inbox and
its dead letter begin with. Heard later, when more is possible, it does no more than then."""


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
    one of them is put into `queued` (rows of the inbox) unheard. `came` has what those that wait
    from before begin with (see `CAME`), by pass and number, where it is anything.
    """

    def __init__(self, published: Published, chance: Chance, work: Work) -> None:
        self.published = published
        self.current = published.current
        self.chance = chance
        self.work = work
        self.now = instant(work.now)
        self.doors: Mapping[JourneyKey, Door] = {}
        self.busy: set[tuple[Any, ...]] = set()
        self.came: Mapping[tuple[Any, ...], str] = {}
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
        queued = _Queued(event, number, 0, self.now, self._comes(standing, journey_id))
        waiting = (NEVER, 0, queued.came + BEHIND)
        if key in self.busy:
            if self._ends_at_once(standing, journey_id, queued):
                return
        else:
            try:
                self._hear(standing, journey_id, queued)
                return
            except Exception as fault:
                again = self._try_again(standing, journey_id, queued, fault)
            if again is None:
                return
            log.warning("journey %d could not hear event number %d yet", journey_id, number)
            waiting = again
            self.busy.add(key)
        at = microseconds(self.now)
        self.queued.append((*key, number, event.name, _written_down(event), *waiting, at))

    def _comes(self, standing: Standing, journey_id: int) -> str:
        """What an event that arrives now may do in this journey, as `CAME` says it."""
        door, instance = self.doors[standing.key[0], journey_id], standing.instances.get(journey_id)
        is_held = instance is not None and instance.is_live and instance.paused_at is not None
        return CAME[door.moves and not is_held, door.takes_in]

    def _ends_at_once(self, standing: Standing, journey_id: int, queued: _Queued) -> bool:
        """In a journey that stands still an event may end a pass, and need not wait for earlier
        ones, which are heard when the journey goes on."""
        if self.doors[standing.key[0], journey_id].moves:
            return False
        try:
            return self._hear(standing, journey_id, queued)
        except Exception:  # it has its turn, and what is wrong is told then
            return False

    def _hear(self, standing: Standing, journey_id: int, queued: _Queued) -> bool:
        """One journey hears one event: what it does inside, then whether it takes the person in;
        whether anything came of it. One that stands still can be left, and does nothing else."""
        event, key = queued.event, (standing.key[0], journey_id)
        door = _as_it_came(self.doors[key], queued.came)
        instance, person = standing.instances.get(journey_id), standing.person
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
            self.work.take(standing, walkable, step, event.id, queued.number)
            if step.failure is not None:
                self._bury(standing, walkable, step, queued)
        return bool(heard)

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

    def _bury(self, standing: Standing, walkable: Walkable, step: Step, queued: _Queued) -> None:
        """A step that can never be taken: the event is kept for whoever repairs the journey."""
        assert step.failure is not None
        node_id, code, message = step.failure
        version = walkable.program.version
        letter = self._letter(standing, walkable.program.journey_id, queued, code, message)
        self.work.bury(letter._replace(version=version, node_id=node_id))

    def _letter(
        self, standing: Standing, journey_id: int, queued: _Queued, code: str, message: str
    ) -> Letter:
        tenant_id, user_id = standing.key
        event, number = queued.event, queued.number
        instance = standing.instances.get(journey_id)
        return Letter(
            tenant_id,
            letters.event_letter_id(journey_id, user_id, number),
            "event",
            user_id,
            journey_id,
            instance.version if instance else 0,
            instance.current_node if instance else "",
            code,
            queued.came + message,
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
            tenant_id, user_id, journey_id = place = tuple(key)
            is_first = place not in begun
            begun.add(place)
            if is_first and try_at > microseconds(self.now):
                self.busy.add(place)
            if place in self.busy:
                continue
            written = None if changed is None else orjson.loads(changed)
            event = Event(name, instant(at), event_id, orjson.loads(properties), written)
            came = self.came.get((*place, number), "")
            queued = _Queued(event, number, attempts, instant(failed_at), came)
            if self._waits(self.doors[tenant_id, journey_id], queued):
                self._wait(place, queued)
            elif self._heard_now(self.work.people[tenant_id, user_id], journey_id, queued):
                done.append((*place, number))
        return done

    def _waits(self, door: Door, queued: _Queued) -> bool:
        """What came before its journey was stopped is heard when that goes on, if it ever does;
        what came later can do no more then than it can now."""
        could_move, _ = LIMITS[queued.came]
        return could_move and not door.moves and door.status != "archived"

    def _wait(self, key: tuple[Any, ...], queued: _Queued) -> None:
        try_at = microseconds(self.now + TOO_NEW_PAUSE)
        told = queued.came + STANDS_STILL
        self.requeued.append((try_at, queued.attempts, told, *key, queued.number))
        self.busy.add(key)

    def _heard_now(self, standing: Standing, journey_id: int, queued: _Queued) -> bool:
        try:
            self._hear(standing, journey_id, queued)
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
        told = queued.came + words
        if isinstance(fault, CannotWalk) and not for_ever:  # waits for an upgrade, no attempt
            return microseconds(self.now + TOO_NEW_PAUSE), queued.attempts, told
        if not for_ever and attempts < ATTEMPTS:
            return microseconds(self.now + backoff(attempts, self.chance)), attempts, told
        letter = self._letter(standing, journey_id, queued, code, words)
        self.work.bury(letter._replace(attempts=attempts, first_at=queued.failed_at))
        return None


class _Queued(NamedTuple):
    """An event of the inbox, how often it was tried, and what it may do (see `CAME`)."""

    event: Event
    number: int
    attempts: int
    failed_at: Instant
    came: str


LIMITS = {words: limits for limits, words in CAME.items()}
LIMITED = Select(
    PERSON,
    "SELECT q.tenant_id, q.user_id, q.journey_id, q.number, q.last_error FROM {given} "
    f"JOIN inbox q ON {SAME_PERSON.format('q')} AND q.last_error LIKE 'came while %'",
)


async def how_they_came(
    connection: AsyncConnection, people: Sequence[PersonKey]
) -> dict[tuple[Any, ...], str]:
    """What the queued events of these people begin with, by pass and number: those that came when
    not everything was possible. One statement."""
    rows = await LIMITED.run(connection, people)
    return {tuple(key): _beginning(told) for *key, told in rows}


def _beginning(told: str) -> str:
    """
    >>> _beginning("came while it could wake nobody; waits for an earlier event")
    'came while it could wake nobody; '
    """
    return next((words for words in LIMITS if words and told.startswith(words)), "")


def _as_it_came(door: Door, came: str) -> Door:
    """The door that an event meets that came when this much was possible."""
    moves, takes_in = LIMITS[came]
    return door._replace(moves=door.moves and moves, takes_in=door.takes_in and takes_in)


def _written_down(event: Event) -> str | None:
    """The traits that an identify wrote, as JSON."""
    return None if event.changed is None else orjson.dumps(dict(event.changed)).decode()
