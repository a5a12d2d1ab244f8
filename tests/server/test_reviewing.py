"""What somebody else wrote is published only as it was reviewed."""

from __future__ import annotations

from typing import Any

import pytest

from journeykit_server.clock import instant
from journeykit_server.database import Database
from journeykit_server.publishing import (
    NeedsReview,
    NoSuchJourney,
    NotReady,
    RevisionConflict,
    publish,
    save_draft,
)
from journeykit_server.reviewing import review
from journeykit_server.tables import journeys
from tests.databases import START
from tests.engine.journeys import journey
from tests.engine.walking import END, days, send
from tests.server.shop import Shop

WELCOME = journey(send("a", "end"), END)


@pytest.fixture
async def shop(database: Database) -> Shop:
    await save_draft(database, 1, WELCOME, origin="library")
    return Shop(database)


async def edit(shop: Shop, document: Any) -> int:
    return (await save_draft(shop.database, 1, document, journey_id=1)).revision


async def test_it_is_published_once_somebody_has_looked_at_it(shop: Shop) -> None:
    with pytest.raises(NeedsReview) as refused:
        await publish(shop.database, 1, 1)
    assert str(refused.value) == (
        'Journey "1" came from the library, and nobody has reviewed it. '
        "Review revision 1 before it is published."
    )

    fingerprint = await review(shop.database, 1, 1, reviewer="mina", revision=1)

    assert (await publish(shop.database, 1, 1)).version == 1
    (row,) = await shop.rows(journeys)
    assert (row.reviewed, row.reviewed_by) == (fingerprint, "mina")
    assert (instant(row.reviewed_at), row.origin) == (START, "library")


async def test_what_is_changed_afterwards_has_to_be_looked_at_again(shop: Shop) -> None:
    await review(shop.database, 1, 1, reviewer="mina", revision=1)
    await edit(shop, journey(send("a", "w"), days(1, "end"), END))

    with pytest.raises(NeedsReview) as refused:
        await publish(shop.database, 1, 1)

    assert str(refused.value) == (
        'Journey "1" came from the library, and it was changed after "mina" had reviewed it. '
        "Review revision 2 before it is published."
    )
    await review(shop.database, 1, 1, reviewer="omid", revision=2)
    assert (await publish(shop.database, 1, 1)).version == 1


async def test_how_it_is_drawn_and_called_may_be_changed(shop: Shop) -> None:
    await review(shop.database, 1, 1, reviewer="mina", revision=1)
    moved = [{**node, "x": 9, "y": 9, "label": "here"} for node in WELCOME["nodes"]]
    await save_draft(shop.database, 1, {**WELCOME, "nodes": moved}, journey_id=1, name="Hello")

    assert (await publish(shop.database, 1, 1)).version == 1


async def test_a_suggestion_needs_it_too_and_what_is_our_own_does_not(database: Database) -> None:
    await save_draft(database, 1, WELCOME, origin="suggestion")
    await save_draft(database, 1, WELCOME)

    with pytest.raises(NeedsReview, match='Journey "1" is a suggestion, and nobody has reviewed'):
        await publish(database, 1, 1)
    assert (await publish(database, 1, 2)).version == 1


async def test_where_it_came_from_is_kept(shop: Shop) -> None:
    await save_draft(shop.database, 1, WELCOME, journey_id=1, origin="own")

    with pytest.raises(NeedsReview):
        await publish(shop.database, 1, 1)


async def test_its_problems_are_told_first(shop: Shop) -> None:
    await edit(shop, journey(send("a", "nowhere"), END))

    with pytest.raises(NotReady):
        await publish(shop.database, 1, 1)


async def test_only_what_was_looked_at_is_approved(shop: Shop) -> None:
    await edit(shop, journey(END))

    with pytest.raises(RevisionConflict) as refused:
        await review(shop.database, 1, 1, reviewer="mina", revision=1)

    assert str(refused.value) == (
        'The draft of journey "1" is at revision 2, expected 1. Read it again before you go on.'
    )


async def test_the_first_who_approves_it_is_its_reviewer(shop: Shop) -> None:
    first = await review(shop.database, 1, 1, reviewer="mina", revision=1)

    assert await review(shop.database, 1, 1, reviewer="omid", revision=1) == first
    (row,) = await shop.rows(journeys)
    assert row.reviewed_by == "mina"


async def test_a_review_names_a_journey_and_a_reviewer(shop: Shop) -> None:
    with pytest.raises(NoSuchJourney):
        await review(shop.database, 2, 1, reviewer="mina", revision=1)
    with pytest.raises(ValueError, match="reviewer") as refused:
        await review(shop.database, 1, 1, reviewer=" ", revision=1)
    assert str(refused.value) == "A review needs a reviewer. Say who looked at it."


async def test_a_draft_comes_from_one_of_three_places(database: Database) -> None:
    with pytest.raises(ValueError, match="origin") as refused:
        await save_draft(database, 1, WELCOME, origin="friend")  # type: ignore[arg-type]

    assert str(refused.value) == (
        'The origin "friend" is not known. Write own, library or suggestion.'
    )
