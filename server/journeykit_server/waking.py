"""Some people whose time has come walk on; what came of it is written by their unit of work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from whenever import Instant, TimeDelta

from journeykit_engine import walk
from journeykit_engine.instance import Instance
from journeykit_server import letters
from journeykit_server.backoff import ATTEMPTS, TOO_NEW_PAUSE, backoff, code_of, words_of
from journeykit_server.clock import Chance, Clock, instant, microseconds
from journeykit_server.doors import Door, JourneyKey
from journeykit_server.letters import Letter
from journeykit_server.published import CannotWalk, Published, Unwalkable, Walkable, version_of
from journeykit_server.rows import bucket_of
from journeykit_server.tables import HELD_BUCKET, NEVER, NEVER_BUCKET
from journeykit_server.work import Standing, Work

TRUST_SECONDS = 20.0  # a worker believes in its own claim for so long, well below the lease
A_SECOND = TimeDelta(seconds=1)
WORKER_DIED = "a worker died while it walked this person, {0} times"


class Woken(NamedTuple):
    """What became of a batch of due timers."""

    claimed: int = 0
    advanced: int = 0
    superseded: int = 0
    fenced: int = 0
    postponed: int = 0
    failed: int = 0
    dead: int = 0
    held: int = 0


class _Due(NamedTuple):
    """A claimed timer and the pass it belongs to."""

    due: Instant
    attempts: int
    failed_at: int | None
    instance: Instance
    standing: Standing


class Waking:
    """Who wakes in one unit of work: those whose timer, claimed under `token`, is ours still."""

    def __init__(
        self,
        published: Published,
        clock: Clock,
        chance: Chance,
        work: Work,
        now: Instant,
        token: str,
        began: float,
    ) -> None:
        self.published = published
        self.clock = clock
        self.chance = chance
        self.work = work
        self.now = now
        self.token = token
        self.began = began
        self.busy: dict[tuple[Any, ...], int] = {}
        self.due: list[_Due] = []
        self.superseded: list[tuple[Any, ...]] = []
        self.postponed: list[tuple[Any, ...]] = []
        self.found = self.advanced = self.failed = self.dead = self.held = 0

    def find(self, rows: Sequence[Any]) -> None:
        """Which of the claimed timers are still ours and still meant."""
        self.found = len(rows)
        for row in rows:
            scheduled, due, attempts, _, failed_at, *columns = row
            standing = self.work.people[columns[0], columns[1]]
            instance = standing.stand(columns)
            if scheduled != columns[5] or not instance.is_live or instance.paused_at:
                self.superseded.append(tuple(columns[:3]))
            else:
                self.due.append(_Due(instant(due), attempts, failed_at, instance, standing))
        self.due.sort(key=lambda found: (found.due, *found.standing.key, found.instance.journey_id))

    def journeys(self) -> list[JourneyKey]:
        return [version_of(found.instance)[:2] for found in self.due]

    def hold(self, doors: Mapping[JourneyKey, Door]) -> None:
        """Whose journey stands still stays there: their timers are put away until it goes on."""
        moving: list[_Due] = []
        for found in self.due:
            if doors[version_of(found.instance)[:2]].moves:
                moving.append(found)
            else:
                self._put_away(found)
        self.due = moving

    def _put_away(self, found: _Due) -> None:
        """As if it had not been claimed."""
        self.held += 1
        values = (HELD_BUCKET, NEVER, max(found.attempts - 1, 0), "", found.failed_at, None)
        key = (*found.standing.key, found.instance.journey_id)
        self.postponed.append((*values, *key, self.token))

    def versions(self) -> list[tuple[int, int, int]]:
        return [version_of(found.instance) for found in self.due]

    def walkables(self) -> list[Walkable]:
        known = {key: self.published.known[key] for key in self.versions()}
        return [found for found in known.values() if isinstance(found, Walkable)]

    def walk(self) -> None:
        """Walk everybody whose time it is, as far as the claim can be trusted."""
        for found in self.due:
            if self.clock.monotonic() - self.began > TRUST_SECONDS:
                self._postpone(found, A_SECOND, found.attempts - 1, "")  # may be another's by now
                continue
            key = (*found.standing.key, found.instance.journey_id)
            if key in self.busy:  # an event waits to be heard first
                pause = instant(self.busy[key]) - self.now
                self._postpone(found, max(pause, A_SECOND), found.attempts - 1, "")
                continue
            try:
                self._resume(found)
            except Exception as fault:
                self._fail(found, fault)

    def set_aside(self, fault: Exception) -> None:
        """Of those found nobody can be saved: let them go, to be tried again later or given up."""
        for found in self.due:
            self._fail(found, fault)

    def _resume(self, found: _Due) -> None:
        known = self.published.known[version_of(found.instance)]
        if isinstance(known, Unwalkable):
            raise CannotWalk(known)
        if found.attempts > ATTEMPTS:
            raise RuntimeError(WORKER_DIED.format(found.attempts))
        at = max(self.now, found.due, found.instance.updated_at)
        step = walk.resume(known.program, found.standing.person, found.instance, at)
        self.work.take(found.standing, known, step, "", -found.attempts)
        if step.failure is not None:
            self._die(found, *step.failure)
        else:
            self.advanced += 1

    def _fail(self, found: _Due, fault: Exception) -> None:
        code, for_ever = code_of(fault)
        words = words_of(fault)
        if isinstance(fault, CannotWalk) and not for_ever:
            self._postpone(found, TOO_NEW_PAUSE, found.attempts - 1, words)
            return
        if for_ever or found.attempts >= ATTEMPTS:
            self._die(found, found.instance.current_node, code, words)
            return
        self.failed += 1
        self._postpone(found, backoff(found.attempts, self.chance), found.attempts, words)

    def _postpone(self, found: _Due, pause: TimeDelta, attempts: int, error: str) -> None:
        try_at = microseconds(self.now + pause)
        failed_at = found.failed_at or (microseconds(self.now) if error else None)
        bucket = bucket_of(try_at, self.work.now)
        values = (bucket, try_at, max(attempts, 0), error, failed_at, None)
        key = (*found.standing.key, found.instance.journey_id)
        self.postponed.append((*values, *key, self.token))

    def _die(self, found: _Due, node_id: str, code: str, message: str) -> None:
        """The person stays where they are; somebody has to look."""
        self.dead += 1
        now = microseconds(self.now)
        failed_at = found.failed_at or now
        tenant_id, user_id = found.standing.key
        journey_id = found.instance.journey_id
        values = (NEVER_BUCKET, now, found.attempts, message, failed_at, None)
        self.postponed.append((*values, tenant_id, user_id, journey_id, self.token))
        self.work.bury(
            Letter(
                tenant_id,
                letters.timer_letter_id(journey_id, user_id),
                "timer",
                user_id,
                journey_id,
                found.instance.version,
                node_id,
                code,
                message,
                found.attempts,
                instant(failed_at),
                self.now,
                {},
            )
        )

    def told(self, claimed: int) -> Woken:
        return Woken(
            claimed,
            self.advanced,
            len(self.superseded),
            claimed - self.found,
            len(self.postponed) - self.failed - self.dead - self.held,
            self.failed,
            self.dead,
            self.held,
        )
