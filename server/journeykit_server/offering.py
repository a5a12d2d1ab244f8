"""An offer: what is ready goes to the provider, by the next channel where one reached nobody."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from typing import NamedTuple

from journeykit_server.backoff import words_of
from journeykit_server.database import Unavailable
from journeykit_server.delivery import (
    OUTCOMES,
    Failed,
    Item,
    Outcome,
    Provider,
    Suppressed,
    Unreachable,
)
from journeykit_server.governance import Course

log = logging.getLogger("journeykit")

OFFER_SECONDS = 35  # how long a provider may take; one of several channels has 30 of them

Enter = Callable[[int, Sequence[Item]], Awaitable[Sequence[Outcome]]]
"""Takes the people of these effects, all of one tenant, into the journeys they name; one outcome an
effect. May be asked for the same effect again."""
Hold = Callable[[Sequence[Item]], Awaitable[Sequence[Outcome | None]]]
"""Keeps a batch for another round, and says what became of each of these effects meanwhile: None
where it may still go out."""


class Answer(NamedTuple):
    """What became of an effect, and the effect as it went out: by the medium that was used last."""

    outcome: Outcome
    sent: Item


Place = tuple[int, Item]
"""Which course of the batch, and what of it is offered now."""


class Offer:
    """One batch; `hold` is called before every round after the first, so that nobody takes a batch
    over that needs several, and nothing goes out by a further channel of a journey that was stopped
    since. What is with the provider when a journey is stopped still goes out."""

    def __init__(self, provider: Provider, enter: Enter, hold: Hold) -> None:
        self.provider, self.enter, self.hold = provider, enter, hold

    async def make(self, courses: Sequence[Course]) -> list[Answer]:
        """One answer a course, in their order. A provider's own trouble is an outcome."""
        answers: dict[int, Answer] = {}
        reasons = [course.reason for course in courses]
        step = 0
        while offered := [
            (place, course.ready[step])
            for place, course in enumerate(courses)
            if place not in answers and step < len(course.ready)
        ]:
            if step:
                offered = await self._held(offered, answers)
            for (place, item), outcome in zip(offered, await self._round(offered), strict=True):
                if isinstance(outcome, Unreachable):
                    reasons[place] = reasons[place] or outcome.reason
                else:
                    answers[place] = Answer(outcome, item)
            step += 1
        for place, course in enumerate(courses):
            if place not in answers:
                end = Suppressed(reasons[place]) if course.end is None else course.end
                answers[place] = Answer(end, course.about)
        return [answers[place] for place in range(len(courses))]

    async def _held(self, offered: list[Place], answers: dict[int, Answer]) -> list[Place]:
        """Those that may still go out; `answers` gets what became of the others."""
        try:
            said = await self.hold([item for _, item in offered])
        except Exception as error:  # what went out in the rounds before is to be kept
            failed = _all_failed(offered, error)
            said = [failed[place] for place, _ in offered]
        shut = zip(offered, said, strict=True)
        ended = {place: Answer(end, item) for (place, item), end in shut if end is not None}
        answers.update(ended)
        return [each for each in offered if each[0] not in ended]

    async def _round(self, offered: Sequence[Place]) -> list[Outcome]:
        """One outcome a place, in their order."""
        found: dict[int, Outcome] = {}
        entering = [each for each in offered if each[1].kind == "enter_journey"]
        for tenant_id, group in groupby(sorted(entering, key=_tenant), _tenant):
            people = list(group)
            found.update(await self._enter(tenant_id, people))
        leaving = [each for each in offered if each[1].kind != "enter_journey"]
        if leaving:
            found.update(await self._deliver(leaving))
        return [found[place] for place, _ in offered]

    async def _enter(self, tenant_id: int, offered: Sequence[Place]) -> dict[int, Outcome]:
        """Where one of them cannot enter, halve the group until that one is alone."""
        try:
            outcomes = list(await self.enter(tenant_id, [item for _, item in offered]))
        except Exception as error:
            if len(offered) == 1 or isinstance(error, Unavailable):
                return _all_failed(offered, error)
        else:
            return _one_each(offered, outcomes)
        middle = len(offered) // 2
        first = await self._enter(tenant_id, offered[:middle])
        return first | await self._enter(tenant_id, offered[middle:])

    async def _deliver(self, offered: Sequence[Place]) -> dict[int, Outcome]:
        try:
            async with asyncio.timeout(OFFER_SECONDS) as limit:
                outcomes = list(await self.provider.deliver([item for _, item in offered]))
        except Exception as error:
            late = TimeoutError(TOO_SLOW.format(OFFER_SECONDS))
            return _all_failed(offered, late if limit.expired() else error)
        return _one_each(offered, outcomes)


TOO_SLOW = "the provider gave no answer within {} seconds"
BAD_ANSWER = "the provider gave {got} outcomes for {want} effects; it owes one each"
NO_OUTCOME = "the provider answered with {}, which is no outcome"


def _tenant(place: Place) -> int:
    return place[1].tenant_id


def _one_each(offered: Sequence[Place], outcomes: Sequence[object]) -> dict[int, Outcome]:
    if len(outcomes) != len(offered):  # nobody can say which is whose
        told = BAD_ANSWER.format(got=len(outcomes), want=len(offered))
        return _all_failed(offered, ValueError(told))
    pairs = zip(offered, outcomes, strict=True)
    return {place: _outcome(answered) for (place, _), answered in pairs}


def _outcome(answered: object) -> Outcome:
    if isinstance(answered, OUTCOMES):
        return answered
    return Failed(words_of(TypeError(NO_OUTCOME.format(type(answered).__name__))))


def _all_failed(offered: Sequence[Place], error: Exception) -> dict[int, Outcome]:
    log.warning("outbox offer failed count=%d error=%s", len(offered), type(error).__name__)
    return {place: Failed(words_of(error)) for place, _ in offered}
