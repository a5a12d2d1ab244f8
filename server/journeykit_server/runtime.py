"""Where the engine meets the store: what an event does, what the passing of time does.

Each of `ingest`, `wake`, `catch_up` and `eject` takes a batch of people through one transaction:
lock them, read all that their walks may ask, walk (pure, in memory), write all that came of it.
`deliver` then does outside what was written to be done. A unit that fails has done nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import Instant, TimeDelta

from journeykit_engine import graph, program
from journeykit_engine.program import Evaluator
from journeykit_server import hops, outbox, publishing, steering, store, subscriptions
from journeykit_server.clock import instant, microseconds
from journeykit_server.database import Database, Unavailable
from journeykit_server.delivery import Delivered, Item, LogProvider, Outcome, Provider
from journeykit_server.doors import NO_ROW, JourneyKey, doors
from journeykit_server.hearing import Arrival, Hearing, how_they_came
from journeykit_server.incoming import (
    BadEvent,
    Incoming,
    Receipt,
    entering,
    event_fault,
    event_of,
)
from journeykit_server.outbox import Outbox, Settled
from journeykit_server.published import Key, Published, Unwalkable, Walkable, version_of
from journeykit_server.publishing import Published as Publication
from journeykit_server.recording import record
from journeykit_server.rows import INSTANCE_COLUMNS, LIVE, MINUTE, STATUS
from journeykit_server.store import PassKey, PersonKey
from journeykit_server.tables import HELD_BUCKET, NEVER, NUMBERS_A_BLOCK
from journeykit_server.waking import Waking, Woken
from journeykit_server.work import Fenced, Work

log = logging.getLogger("journeykit")

WAKE_BATCH = 1_000  # timers; more gains nothing and holds locks for longer
INGEST_BATCH = 500  # events; below `NUMBERS_A_BLOCK`
CATCH_UP_BATCH = 200  # people
LEASE = TimeDelta(seconds=30)  # after it a claim is anybody's again: its worker is taken for dead
SWEEP_SECONDS = 5.0  # between two looks at all minutes: lease and sweep make 35 s at most
MOST_RACES = 5  # times that a unit is begun again because somebody else was there first
MOST_PEOPLE = 500  # of one enter call

T = TypeVar("T")


class NotEnterable(ValueError):
    """The journey takes nobody in by a call: not published, or it has another trigger."""


class Runtime:
    """The engine on a database. `shard` (0-15) keeps the counters of workers apart.

    `evaluator` makes a predicate of a definition; the provider is what does things outside.
    """

    def __init__(
        self,
        database: Database,
        *,
        provider: Provider | None = None,
        shard: int = 0,
        evaluator: Evaluator | None = program.evaluate,
    ) -> None:
        self.database = database
        self.clock, self.chance = database.clock, database.chance
        self.shard = shard
        self.published = Published(evaluator)
        self.reloading = asyncio.Lock()  # what began to read later knows more, and comes last
        port = provider or LogProvider(database)
        self.outbox = Outbox(database, port, self._start, self.published, shard=shard)
        self.leases: dict[str, None] = {}
        self.unwalked: list[str] = []  # claims whose walk the database did not take
        self.low = 0
        self.swept_at: float | None = None

    async def reload(self) -> None:
        """Read which journeys are published now."""
        async with self.reloading:
            await self._reload()

    async def _reload(self) -> None:
        async def read(connection: AsyncConnection) -> None:
            await self.published.reload(connection, self.clock.monotonic())

        await self.database.read(read)

    async def publish(
        self,
        tenant_id: int,
        journey_id: int,
        *,
        expected_revision: int | None = None,
        account_timezone: str = "UTC",
    ) -> Publication:
        """`publishing.publish`; this process walks the new version at once."""
        published = await publishing.publish(
            self.database,
            tenant_id,
            journey_id,
            expected_revision=expected_revision,
            account_timezone=account_timezone,
        )
        await self.reload()
        return published

    async def reload_if_stale(self) -> None:
        if not self.published.is_stale(self.clock.monotonic()):
            return
        async with self.reloading:
            if self.published.is_stale(self.clock.monotonic()):  # nobody has just done it
                await self._reload()

    async def unit(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        """One transaction, begun again where somebody else was there first."""
        for _ in range(MOST_RACES):
            try:
                return await self.database.run(work)
            except Fenced:
                log.warning("fenced: somebody else moved one of these people, beginning again")
        return await self.database.run(work)

    async def begin(
        self, connection: AsyncConnection, people: Sequence[PersonKey]
    ) -> tuple[Work, Instant]:
        """These people, those of them that are known, locked and standing; and the time, read once
        they are locked, so that for each of them it only grows."""
        found = await store.lock(connection, people)
        now = await self.database.now(connection)
        work = Work(now, self.shard)
        work.stand(found.values())
        return work, now

    # --- an event comes in

    async def ingest(self, tenant_id: int, incoming: Sequence[Incoming]) -> Receipt:
        """Store these events and do all that they do: profiles, waits, exits, entries.

        When this returns, everything is durable. Raises `BadEvent` before anything is stored.
        """
        for position, event in enumerate(incoming):
            if fault := event_fault(event):
                raise BadEvent(f"Event {position + 1}: {fault}")
        await self.reload_if_stale()
        # Named before the transaction: one that is repeated must not store an event twice.
        named = [each if each.id else each._replace(id=self.chance.token()) for each in incoming]
        told = Receipt()
        for start in range(0, len(named), INGEST_BATCH):
            part = named[start : start + INGEST_BATCH]

            async def work(connection: AsyncConnection, part: list[Incoming] = part) -> Receipt:
                return await self.receive(connection, tenant_id, part)

            told = told.and_also(await self.unit(work))
        return told

    async def receive(
        self, connection: AsyncConnection, tenant_id: int, incoming: Sequence[Incoming]
    ) -> Receipt:
        """`ingest` inside a transaction: of `INGEST_BATCH` events at most, each with an id."""
        people = sorted({(tenant_id, event.user_id) for event in incoming})
        found = await store.lock(connection, people)
        now = await self.database.now(connection)  # once they are locked, so that time only grows
        if missing := [key for key in people if key not in found]:
            found |= await store.add(connection, missing, microseconds(now))
        first, fresh, receipt = await record(connection, tenant_id, incoming, now)
        said = [c for _, event in fresh for c in subscriptions.changes_of(tenant_id, event)]
        await subscriptions.change(connection, said, microseconds(now))
        arrivals = [self._arrival(tenant_id, number, event, now) for number, event in fresh]
        work = Work(now, self.shard)
        hearing = Hearing(self.published, self.chance, work)
        passes = await store.INSTANCES_OF_PEOPLE.run(connection, people)
        live = [_key_of(row) for row in passes if row[STATUS] in LIVE]
        await self.published.load(connection, (version for _, version in live))
        matched = self._matched(arrivals, tenant_id, live)
        heard = [one for one in arrivals if one.number in matched or one.event.changed is not None]
        if heard:
            concerned = {(tenant_id, arrival.incoming.user_id) for arrival in heard}
            work.stand(found[key] for key in sorted(concerned))
            _take_up(work, passes)
            await self._hear(connection, hearing, arrivals, heard, first)
        return receipt._replace(unmatched=len(arrivals) - len(matched))

    def _matched(
        self, arrivals: Sequence[Arrival], tenant_id: int, live: Iterable[tuple[PersonKey, Key]]
    ) -> set[int]:
        """The numbers of the events that a journey listens for, one published or one that the
        person is inside of."""
        inside: dict[PersonKey, list[Key]] = {}
        for person, version in live:
            inside.setdefault(person, []).append(version)
        may_hear = self.published.may_hear
        return {
            arrival.number
            for arrival in arrivals
            if arrival.hearing
            or any(
                may_hear(key, arrival.event)
                for key in inside.get((tenant_id, arrival.incoming.user_id), ())
            )
        }

    def _arrival(self, tenant_id: int, number: int, incoming: Incoming, now: Instant) -> Arrival:
        event = event_of(incoming, now)
        return Arrival(number, incoming, event, self.published.hearing(tenant_id, event))

    async def _hear(
        self,
        connection: AsyncConnection,
        hearing: Hearing,
        arrivals: Sequence[Arrival],
        heard: Sequence[Arrival],
        first: int,
    ) -> None:
        """Let the people of `heard` hear it; what else arrived of them goes into the history that
        their rules see. `first` is the first number of the batch."""
        work = hearing.work
        people = sorted(work.people)
        tenant_id = people[0][0]
        listening = [walkable for arrival in heard for walkable in arrival.hearing]
        hearing.doors = await doors(connection, work.journeys(listening))
        await work.load_needs(connection, self._asking(work, tenant_id, heard), people, first)
        hearing.busy = {tuple(row[:3]) for row in await store.QUEUED.run(connection, people)}
        numbers = {arrival.number for arrival in heard}
        for arrival in arrivals:
            standing = work.people.get((tenant_id, arrival.incoming.user_id))
            if arrival.number in numbers and standing is not None:
                hearing.receive(standing, arrival)
            elif standing is not None:
                hearing.remember(standing, arrival)
        await store.QUEUE.run(connection, hearing.queued)
        await work.save(connection)

    def _asking(
        self, work: Work, tenant_id: int, arrivals: Sequence[Arrival]
    ) -> Iterable[Walkable]:
        """The programs that may have a word on these events."""
        asking: dict[int, Walkable] = {}
        for arrival in arrivals:
            for walkable in arrival.hearing:
                asking[id(walkable)] = walkable
            for instance in work.people[tenant_id, arrival.incoming.user_id].instances.values():
                inside = self.published.known.get(version_of(instance))
                if isinstance(inside, Walkable) and inside.program.hears(arrival.event):
                    asking[id(inside)] = inside
        return asking.values()

    async def stand(
        self, connection: AsyncConnection, work: Work, people: Sequence[PersonKey]
    ) -> None:
        """Read every pass of these people, and the versions in which they are inside."""
        passes = await store.INSTANCES_OF_PEOPLE.run(connection, people)
        live = [_key_of(row)[1] for row in passes if row[STATUS] in LIVE]
        await self.published.load(connection, live)
        _take_up(work, passes)

    # --- time passes

    async def wake(self, limit: int = WAKE_BATCH) -> Woken:
        """Take up to `limit` due timers: claim them, then walk their people in one transaction."""
        await self.reload_if_stale()
        token, began = self.chance.token(), self.clock.monotonic()
        self.leases[token] = None
        try:
            woken = await self._claim_and_wake(limit, token, began)
        except Exception:  # the claim ends by itself; one that is cut off is given back
            del self.leases[token]
            raise
        del self.leases[token]
        if woken.claimed:
            level = logging.WARNING if woken.failed or woken.dead else logging.INFO
            log.log(level, "woke", extra={"figures": woken._asdict()})
        return woken

    async def _claim_and_wake(self, limit: int, token: str, began: float) -> Woken:
        sweeps = self.swept_at is None or not 0 <= began - self.swept_at < SWEEP_SECONDS
        low = 0 if sweeps else self.low
        unwalked = tuple(self.unwalked)
        minute, rows = await self.database.run(
            lambda c: self._claim(c, low, limit, token, unwalked)
        )
        self.unwalked = [held for held in self.unwalked if held not in unwalked]
        if sweeps:
            self.swept_at = began
        # Full: the next pass goes on from here. Else all is done up to now, and what commits late
        # lies in a minute just passed, or is found by the next sweep.
        self.low = max(row.bucket for row in rows) if len(rows) == limit else minute - 1
        if not rows:
            return Woken()
        keys = sorted((row.tenant_id, row.user_id, row.journey_id) for row in rows)
        try:
            return await self._wake_apart(keys, token, began)
        except Unavailable:
            self.unwalked.append(token)
            raise

    async def _wake_apart(self, keys: Sequence[PassKey], token: str, began: float) -> Woken:
        """Wake these people together. Where one of them cannot be saved, halve the batch until that
        one is alone, and set them aside: nobody is held up by another."""
        try:
            return await self.unit(lambda c: self._wake(c, keys, token, began))
        except Unavailable:
            raise
        except Exception as fault:
            if len(keys) == 1:
                error = fault
                return await self.unit(lambda c: self._wake(c, keys, token, began, error))
        middle = len(keys) // 2
        first = await self._wake_apart(keys[:middle], token, began)
        second = await self._wake_apart(keys[middle:], token, began)
        return Woken(*map(sum, zip(first, second, strict=True)))

    async def _claim(
        self,
        connection: AsyncConnection,
        low: int,
        limit: int,
        token: str,
        unwalked: Iterable[str],
    ) -> tuple[int, Sequence[Any]]:
        """The minute it is, and what is ours now. Claims after which the database failed are given
        back first: nobody walked, so no attempt is counted, however long it is away."""
        now = await self.database.now(connection)
        at, until = microseconds(now), microseconds(now + LEASE)
        for held in unwalked:
            await store.release(connection, held, at)
        rows = await store.claim(
            connection, low=low, now=at, lease_until=until, many=limit, token=token
        )
        return at // MINUTE, rows

    async def _wake(
        self,
        connection: AsyncConnection,
        keys: Sequence[PassKey],
        token: str,
        began: float,
        fault: Exception | None = None,
    ) -> Woken:
        people = store.distinct_people(keys)
        work, now = await self.begin(connection, people)
        rows = await store.CLAIMED.run(connection, [(*key, token) for key in keys])
        waking = Waking(self.published, self.clock, self.chance, work, now, token, began)
        waking.find(rows)
        waking.hold(await doors(connection, waking.journeys()))
        await self.published.load(connection, waking.versions())
        await work.load_needs(connection, waking.walkables(), people)
        queued = await store.QUEUED.run(connection, people)
        waking.busy = {tuple(key): try_at for *key, try_at in queued}
        if fault is None:
            waking.walk()
        else:
            waking.set_aside(fault)
        await store.UNSCHEDULE.run(connection, waking.superseded)
        await store.POSTPONE.run(connection, waking.postponed)
        await work.save(connection)
        return waking.told(len(keys))

    async def next_due(self) -> Instant | None:
        """When something is to be done next, as far as is known now; None where nothing waits."""

        async def read(connection: AsyncConnection) -> list[int | None]:
            timer = await connection.execute(store.NEXT_TIMER, {"held": HELD_BUCKET})
            event = await connection.execute(store.NEXT_IN_INBOX, {"never": NEVER})
            effect = await self.outbox.next_try(connection)
            at = None if effect is None else microseconds(effect)
            return [timer.scalar_one(), event.scalar_one(), at]

        times = [at for at in await self.database.read(read) if at is not None]
        return instant(min(times)) if times else None

    async def release(self) -> None:
        """Give back what is claimed and not taken: for a worker that stops."""
        for token in list(self.leases):

            async def give_back(connection: AsyncConnection, token: str = token) -> None:
                now = await self.database.now(connection)
                await store.release(connection, token, microseconds(now))

            await self.database.run(give_back)
            self.leases.pop(token, None)

    # --- what failed is tried again

    async def catch_up(self, limit: int = CATCH_UP_BATCH) -> int:
        """Let journeys hear the events that they could not hear when these arrived; how many they
        heard (or were given up)."""
        await self.reload_if_stale()
        return await self.unit(lambda c: self._catch_up(c, limit))

    async def _catch_up(self, connection: AsyncConnection, limit: int) -> int:
        due = {"now": microseconds(await self.database.now(connection)), "many": limit}
        people = [(row[0], row[1]) for row in await connection.execute(store.DUE_IN_INBOX, due)]
        if not people:
            return 0
        work, _ = await self.begin(connection, people)
        await self.stand(connection, work, people)
        rows = await store.QUEUED_EVENTS.run(connection, people)
        hearing = Hearing(self.published, self.chance, work)
        hearing.doors = await doors(connection, [(row.tenant_id, row.journey_id) for row in rows])
        hearing.came = await how_they_came(connection, people)
        await work.load_needs(connection, self._waiting_to_hear(work, rows), people)
        heard = hearing.catch_up(rows)
        await store.UNQUEUE.run(connection, heard)
        await store.REQUEUE.run(connection, hearing.requeued)
        await work.save(connection)
        return len(heard)

    def _waiting_to_hear(self, work: Work, rows: Sequence[Any]) -> list[Walkable]:
        """The programs that queued events may meet: the one published, the one inside."""
        found: dict[int, Walkable | Unwalkable | None] = {}
        for tenant_id, user_id, journey_id, *_ in rows:
            instance = work.people[tenant_id, user_id].instances.get(journey_id)
            inside = self.published.known.get(version_of(instance)) if instance else None
            for known in (inside, self.published.current.get((tenant_id, journey_id))):
                found[id(known)] = known
        return [known for known in found.values() if isinstance(known, Walkable)]

    # --- what somebody asks for

    async def enter(self, tenant_id: int, journey_id: int, user_ids: Iterable[str]) -> int:
        """Ask a journey with an api trigger to take these people in; how many were asked for.

        Blanks and repeats are dropped. The journey's own rules still apply to each. Asking twice
        within one second is asking once. Raises `NotEnterable`, and `BadEvent` for too many.
        """
        people = list(dict.fromkeys(user_id for user_id in user_ids if user_id.strip()))
        if not people:
            raise BadEvent(NO_PEOPLE)
        if len(people) > MOST_PEOPLE:
            raise BadEvent(TOO_MANY_PEOPLE)
        await self.reload_if_stale()
        walkable = await self._to_enter((tenant_id, journey_id))
        if not isinstance(walkable.program.trigger, graph.ApiTrigger):
            raise NotEnterable(NOT_BY_API.format(journey_id))
        second = int(self.clock.now().timestamp())
        events = [
            entering(journey_id, user_id, f"jenter-{journey_id}-{user_id}-{second}", "enter")
            for user_id in people
        ]
        await self.ingest(tenant_id, events)
        return len(people)

    async def _to_enter(self, key: JourneyKey) -> Walkable:
        """The version that takes people in now. Raises `NotEnterable` where none does."""
        door = (await self.database.read(lambda c: doors(c, [key], locks=False)))[key]
        told = NOT_PUBLISHED if door is NO_ROW else CLOSED.get(door.status)
        if told is not None:
            raise NotEnterable(told.format(key[1]))
        if door.takes_in and key not in self.published.current:  # another process opened it
            await self.reload()
        walkable = self.published.current.get(key) if door.takes_in else None
        if walkable is None:
            raise NotEnterable(NOT_PUBLISHED.format(key[1]))
        return walkable

    async def _start(self, tenant_id: int, items: Sequence[Item]) -> Sequence[Outcome]:
        """Take people into the journeys that other journeys send them to, those who have not been
        sent on too often; one outcome an item."""
        counted = await self.database.read(lambda c: hops.count_hops(c, tenant_id, items))
        asked = [hops.sending(item, count) for item, count in zip(items, counted, strict=True)]
        refused = [
            hops.refusal(item, count, event_fault(event))
            for item, count, event in zip(items, counted, asked, strict=True)
        ]
        pairs = zip(asked, refused, strict=True)
        await self.ingest(tenant_id, [event for event, refusal in pairs if refusal is None])
        return [refusal or Delivered() for refusal in refused]

    async def eject(self, tenant_id: int, journey_id: int, user_id: str) -> bool:
        """Take a person out of a journey; False where they are not inside."""
        return await steering.eject(self, tenant_id, journey_id, user_id)

    async def pause_person(self, tenant_id: int, journey_id: int, user_id: str) -> bool:
        """Hold a person where they are until `resume_person`; False where they are not inside. An
        event may end their pass meanwhile, and nothing else happens to them."""
        return await steering.pause_person(self, tenant_id, journey_id, user_id)

    async def resume_person(self, tenant_id: int, journey_id: int, user_id: str) -> bool:
        """Let a person who was held go on; False where they are not inside."""
        return await steering.resume_person(self, tenant_id, journey_id, user_id)

    # --- what is done outside

    async def deliver(self, limit: int = outbox.BATCH) -> Settled:
        """Offer up to `limit` effects to the provider and keep what became of each."""
        return await self.outbox.deliver_once(limit)


NO_PEOPLE = "user_id or user_ids is required"
TOO_MANY_PEOPLE = f"at most {MOST_PEOPLE} people per call"
NOT_PUBLISHED = (
    "The journey {0} has no published version, so nobody can enter it. Publish it first."
)
CLOSED = {
    "paused": "The journey {0} is paused, so nobody can enter it. Resume it first.",
    "archived": "The journey {0} is archived, so nobody can enter it. Publish a new one for them.",
    "deleted": "The journey {0} is deleted, so nobody can enter it. Restore it first.",
}
NOT_BY_API = (
    "The journey {0} does not begin with an api trigger, so nobody can be entered by a call. "
    "Send the event that it listens for, or give it an api trigger."
)


def _key_of(row: Sequence[Any]) -> tuple[PersonKey, Key]:
    """The person of a row of `INSTANCE_COLUMNS`, and the version in which they are."""
    tenant_id, user_id, journey_id, version, *_ = row
    return (tenant_id, user_id), (tenant_id, journey_id, version)


def _take_up(work: Work, passes: Iterable[Sequence[Any]]) -> None:
    """Put these passes where their people stand; of people whom nothing concerns none is read."""
    for row in passes:
        standing = work.people.get((row[0], row[1]))
        if standing is not None:
            instance = standing.stand(row[:-1])
            if row[-1] is not None:
                standing.dead_timers.append(instance.journey_id)


assert INGEST_BATCH <= NUMBERS_A_BLOCK
assert INSTANCE_COLUMNS[5] == "rev"
