"""An offer: what is ready goes to the provider, by the next channel where one reached nobody."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from typing import NamedTuple

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
effect."""


class Answer(NamedTuple):
    """What became of an effect, and the effect as it went out: by the medium that was used last."""

    outcome: Outcome
    sent: Item


Place = tuple[int, Item]
"""Which course of the batch, and what of it is offered now."""


class Offer:
    """One batch; `hold` is called before every round after the first, so that nobody takes a batch
    over that needs several."""

    def __init__(
        self, provider: Provider, enter: Enter, hold: Callable[[], Awaitable[None]]
    ) -> None:
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
                await self.hold()
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
        try:
            outcomes = await self.enter(tenant_id, [item for _, item in offered])
        except Exception as error:
            return _all_failed(offered, error)
        return _one_each(offered, outcomes)

    async def _deliver(self, offered: Sequence[Place]) -> dict[int, Outcome]:
        try:
            async with asyncio.timeout(OFFER_SECONDS) as limit:
                outcomes = await self.provider.deliver([item for _, item in offered])
        except Exception as error:
            late = TimeoutError(TOO_SLOW.format(OFFER_SECONDS))
            return _all_failed(offered, late if limit.expired() else error)
        return _one_each(offered, outcomes)


TOO_SLOW = "the provider gave no answer within {} seconds"
BAD_ANSWER = "the provider gave {got} outcomes for {want} effects; it owes one each"


def _tenant(place: Place) -> int:
    return place[1].tenant_id


def _one_each(offered: Sequence[Place], outcomes: Sequence[Outcome]) -> dict[int, Outcome]:
    known = [outcome for outcome in outcomes if isinstance(outcome, OUTCOMES)]
    if len(known) == len(outcomes) == len(offered):
        return {place: outcome for (place, _), outcome in zip(offered, known, strict=True)}
    told = BAD_ANSWER.format(got=len(known), want=len(offered))
    return _all_failed(offered, ValueError(told))


def _all_failed(offered: Sequence[Place], error: Exception) -> dict[int, Outcome]:
    log.warning("outbox offer failed count=%d error=%s", len(offered), type(error).__name__)
    return {place: Failed(f"{type(error).__name__}: {error}") for place, _ in offered}
