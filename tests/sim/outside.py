"""The outside world: it takes each message id once and remembers every offer.

It is what stands behind a provider (an e-mail gateway, say): its memory is its own, no crash of
ours takes it away, and the way to it loses answers.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from journeykit_server.delivery import Delivered, Failed, Item, Outcome, Refused, Unreachable
from tests.sim.faults import Faults
from tests.sim.loop import PROCESS, SimLoop

SLOW_SECONDS = (20, 25, 45, 90)  # some within the time an offer has, some behind the lease
COME_AGAIN_SECONDS = (1.0, 600.0, 20_000.0)


class Accepted(NamedTuple):
    """What the world took: the offer as it came first, and its place in the order of acceptance."""

    item: Item
    payload: str
    place: int
    at: float


class Outside:
    """A provider for every process, and the world behind it."""

    def __init__(self, loop: SimLoop, faults: Faults, seed: str) -> None:
        self.loop = loop
        self.faults = faults
        self.random = random.Random(seed)
        self.accepted: dict[str, Accepted] = {}
        self.refused: set[str] = set()
        self.unreachable: set[str] = set()
        self.offers: list[tuple[float, str, str]] = []
        self.wrong: list[str] = []
        self.down_until = 0.0
        self.is_written: Callable[[str], bool] = lambda message_id: True
        self.may_go_out: Callable[[str, Item], str] = lambda process, item: ""

    async def deliver(self, items: Sequence[Item]) -> Sequence[Outcome]:
        """One outcome an item. Each may fail before or after the world has it."""
        await asyncio.sleep(self.random.choice((0.0, 0.05, 0.5)))
        if self.faults.chance("provider_slow"):
            await asyncio.sleep(self.random.choice(SLOW_SECONDS))
        outcomes = [self._offer(item) for item in items]
        if self.faults.chance("provider_lost_ack"):
            await asyncio.sleep(self.random.choice(SLOW_SECONDS))
            raise ConnectionResetError("the answer was lost")
        if self.faults.chance("provider_slow"):
            await asyncio.sleep(self.random.choice(SLOW_SECONDS))
        return outcomes

    def _offer(self, item: Item) -> Outcome:
        message_id = item.message_id
        self.offers.append((self.loop.time(), PROCESS.get(), message_id))
        if wrong := self.may_go_out(PROCESS.get(), item):
            self.wrong.append(wrong)
        if message_id in self.refused:
            return Refused("BAD_ADDRESS", "There is no such address.")
        if message_id in self.unreachable:
            return Unreachable(NO_DEVICE)
        is_down = self.loop.time() < self.down_until and not self.faults.is_quiet
        if message_id not in self.accepted:
            if is_down or self.faults.chance("provider_error"):
                return Failed("503")
            if self.faults.chance("provider_retry_after"):
                return Failed("429", self.random.choice(COME_AGAIN_SECONDS))
            if item.kind == "send" and self.faults.chance("provider_unreachable"):
                self.unreachable.add(message_id)
                return Unreachable(NO_DEVICE)
            if self.faults.chance("provider_refusal"):
                self.refused.add(message_id)
                return Refused("BAD_ADDRESS", "There is no such address.")
        self.accept(item)
        if self.faults.chance("provider_twice"):
            self.accept(item)
        return Delivered(str(item.payload.get("channel") or ""))

    def accept(self, item: Item) -> None:
        """Take an offer; one that was taken already must be the same to the byte."""
        payload = _text(item.payload)
        known = self.accepted.get(item.message_id)
        if not self.is_written(asked_for(item)):
            self.wrong.append(f'7: "{item.message_id}" went out and is not written down')
        if known is None:
            place = len(self.accepted)
            self.accepted[item.message_id] = Accepted(item, payload, place, self.loop.time())
        elif known.payload != payload or known.item[:8] != item[:8]:
            self.wrong.append(f'9: two payloads under the message id "{item.message_id}"')


NO_DEVICE = "no_device"


def asked_for(item: Item) -> str:
    """The id of the effect that an item is for: a further channel of a message has its own name."""
    return item.message_id.removesuffix(f".{item.payload.get('channel')}")


def _text(payload: Any) -> str:
    return json.dumps(dict(payload), sort_keys=True)
