"""An offer in rounds: a journey that is stopped between two of them, and answers that are none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from journeykit_server import lifecycle
from journeykit_server.database import Database, Unavailable
from journeykit_server.delivery import Delivered, Failed, Item, Outcome, Unreachable
from journeykit_server.governance import Course
from journeykit_server.offering import Offer
from journeykit_server.outbox import Settled
from journeykit_server.runtime import Runtime
from journeykit_server.tables import NEVER, outbox
from journeykit_server.verify import verify
from tests.databases import START
from tests.engine.walking import END
from tests.server.post import Office, Post, by, message

NAME = "j1.v1.a.ann.e1"
Stop = Callable[[Runtime], Awaitable[object]]


class Meanwhile(Office):
    """Reaches nobody by push; somebody does something to the journey while it tries."""

    def __init__(self, runtime: Runtime, does: Stop) -> None:
        super().__init__()
        self.runtime, self.does = runtime, does

    async def deliver(self, items: Sequence[Item]) -> Sequence[Outcome]:
        self.got.extend(items)
        pushed = [item for item in items if item.payload["channel"] == "push"]
        if pushed:
            await self.does(self.runtime)
            return [Unreachable("device_gone") for _ in items]
        return [Delivered() for _ in items]


async def freeze(runtime: Runtime) -> object:
    return await lifecycle.pause(runtime, 1, 1, "freeze")


async def drain(runtime: Runtime) -> object:
    return await lifecycle.pause(runtime, 1, 1, "drain")


async def archive(runtime: Runtime) -> object:
    return await lifecycle.archive(runtime, 1, 1)


async def delete(runtime: Runtime) -> object:
    await lifecycle.pause(runtime, 1, 1, "freeze")
    return await lifecycle.delete(runtime, 1, 1)


async def chain(database: Database, does: Stop) -> Post:
    """Push, or else e-mail, for ann, who has both."""
    post = Post(database)
    await post.writes("push", body="push")
    await post.writes("email", body="email")
    await post.opens(message("a", "end", **by("push", "email")), END)
    await post.signs_up("ann", push_token="t")
    post.office = Meanwhile(post.runtime, does)
    post.runtime.outbox.provider = post.office
    return post


def channels(post: Post) -> list[str]:
    return [item.payload["channel"] for item in post.office.got]


# --- a journey that is stopped between two rounds


async def test_no_further_channel_is_tried_once_a_freeze_is_answered(database: Database) -> None:
    post = await chain(database, freeze)

    assert await post.runtime.deliver() == Settled(held=1)

    assert channels(post) == ["push"]
    (row,) = await post.rows(outbox)
    assert (row.try_at, row.attempts, row.lease_token) == (NEVER, 0, None)
    assert await post.places() == []

    post.runtime.outbox.provider = post.office = Office()
    await lifecycle.resume(post.runtime, 1, 1)
    assert await post.mails() == Settled(delivered=1)
    assert channels(post) == ["push"]  # every question is asked anew


@pytest.mark.parametrize(("does", "status"), [(archive, "archived"), (delete, "deleted")])
async def test_nor_once_it_was_put_away(database: Database, does: Stop, status: str) -> None:
    post = await chain(database, does)

    assert await post.runtime.deliver() == Settled(suppressed=1)

    assert channels(post) == ["push"]
    assert await post.log() == [f"suppressed email {status}"]
    assert await post.places() == []
    assert await verify(database) == []


async def test_a_journey_that_takes_nobody_in_still_tries_them_all(database: Database) -> None:
    post = await chain(database, drain)

    assert await post.runtime.deliver() == Settled(delivered=1)

    assert channels(post) == ["push", "email"]


async def test_the_others_of_a_batch_go_on(database: Database) -> None:
    post = await chain(database, freeze)
    await post.opens(message("a", "end", **by("push", "email")), END)
    await post.signs_up("bob", push_token="t")

    assert await post.runtime.deliver() == Settled(delivered=1, held=2)

    tried = [(item.user_id, item.journey_id, item.payload["channel"]) for item in post.office.got]
    assert sorted(tried[:3]) == [("ann", 1, "push"), ("bob", 1, "push"), ("bob", 2, "push")]
    assert tried[3:] == [("bob", 2, "email")]


# --- what comes of a round


def an_effect(name: str, kind: str = "send") -> Item:
    return Item(1, name, "ann", 1, 1, 1, "a", kind, {"kind": kind}, START, 1)


class Says:
    """Answers with whatever it was told, round after round."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    async def deliver(self, items: Sequence[Item]) -> Any:
        return self.answers.pop(0)


async def nobody_enters(tenant_id: int, items: Sequence[Item]) -> Sequence[Outcome]:
    raise AssertionError("nobody is sent on here")


async def all_go(items: Sequence[Item]) -> Sequence[Outcome | None]:
    return [None for _ in items]


async def test_an_answer_that_is_none_fails_alone() -> None:
    offer = Offer(Says([Delivered(), "yes", None]), nobody_enters, all_go)

    answers = await offer.make([Course((an_effect(n),), None, an_effect(n)) for n in "abc"])

    assert [answer.outcome for answer in answers] == [
        Delivered(),
        Failed("TypeError: the provider answered with str, which is no outcome"),
        Failed("TypeError: the provider answered with NoneType, which is no outcome"),
    ]


async def test_no_answer_at_all_has_failed() -> None:
    offer = Offer(Says(None), nobody_enters, all_go)

    (answer,) = await offer.make([Course((an_effect("a"),), None, an_effect("a"))])

    assert answer.outcome == Failed("TypeError: 'NoneType' object is not iterable")


async def test_what_went_out_is_kept_where_the_next_round_cannot_begin() -> None:
    async def away(items: Sequence[Item]) -> Sequence[Outcome | None]:
        raise Unavailable("The database does not answer.")

    offer = Offer(Says([Delivered(), Unreachable("gone")]), nobody_enters, away)
    lone, first, second = an_effect("lone"), an_effect("first"), an_effect("second")

    answers = await offer.make([Course((lone,), None, lone), Course((first, second), None, first)])

    assert answers == [
        (Delivered(), lone),
        (Failed("Unavailable: The database does not answer."), second),
    ]


# --- into another journey


async def test_one_who_cannot_enter_keeps_nobody_else_out() -> None:
    asked: list[list[str]] = []

    async def enter(tenant_id: int, items: Sequence[Item]) -> Sequence[Outcome]:
        asked.append([item.message_id for item in items])
        if "c" in asked[-1]:
            raise ValueError("no such person")
        return [Delivered() for _ in items]

    offer = Offer(Says(), enter, all_go)
    effects = [an_effect(name, "enter_journey") for name in "abcd"]

    answers = await offer.make([Course((each,), None, each) for each in effects])

    assert [answer.outcome for answer in answers] == [
        Delivered(),
        Delivered(),
        Failed("ValueError: no such person"),
        Delivered(),
    ]
    assert asked == [list("abcd"), ["a", "b"], ["c", "d"], ["c"], ["d"]]


async def test_while_the_database_is_away_nobody_is_asked_for_again() -> None:
    asked = []

    async def enter(tenant_id: int, items: Sequence[Item]) -> Sequence[Outcome]:
        asked.append(len(items))
        raise Unavailable("The database does not answer.")

    offer = Offer(Says(), enter, all_go)
    effects = [an_effect(name, "enter_journey") for name in "ab"]

    answers = await offer.make([Course((each,), None, each) for each in effects])

    assert asked == [2]
    assert {type(answer.outcome) for answer in answers} == {Failed}
