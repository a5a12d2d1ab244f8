"""Groups of people: some are kept by hand, some follow a rule, and journeys ask about both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from journeykit_engine.strict_json import BadJson
from journeykit_server import rules_sql, store
from journeykit_server import segments as grouping
from journeykit_server.clock import SeededChance, microseconds
from journeykit_server.database import Database
from journeykit_server.incoming import Incoming
from journeykit_server.scanner import Scanner, scans_of
from journeykit_server.segments import (
    BadSegment,
    Members,
    Refreshed,
    Segment,
    add_members,
    archive_segment,
    begin_refresh,
    count_members,
    list_segments,
    members,
    next_refresh,
    read_segment,
    refresh_once,
    remove_members,
    restore_segment,
    save_segment,
)
from journeykit_server.tables import entries, journeys, segment_members
from journeykit_server.versioned import Archived, NotFound, VersionConflict
from tests.databases import START, open_database
from tests.engine.journeys import Value
from tests.engine.walking import END, ask, node
from tests.reliability.faults import lost_answer
from tests.server.shop import Shop, counted, later, track

PREMIUM: Value = {"root": {"trait": "plan", "op": "eq", "value": "premium"}}
BOUGHT: Value = {"root": {"event": "bought", "op": "gte", "count": 1, "within": "1d"}}


@pytest.fixture
async def shop(database: Database) -> Shop:
    return Shop(database)


@pytest.fixture
async def other(database: Database, database_url: str) -> AsyncIterator[Database]:
    """Another process on the same database."""
    opened = open_database(database_url, clock=database.clock, chance=SeededChance(2))
    yield opened
    await opened.close()


async def inside(shop: Shop, segment_id: int = 1) -> list[str]:
    return (await members(shop.database, 1, segment_id, first=5_000)).user_ids


async def have_plans(shop: Shop, **plans: str) -> None:
    await shop.hears(
        *(Incoming("identify", user_id, properties={"plan": p}) for user_id, p in plans.items())
    )


# --- kept, with versions


async def test_a_segment_is_a_list_or_a_rule(database: Database) -> None:
    friends = await save_segment(database, 1, name="Friends")
    premium = await save_segment(database, 1, name="Premium", definition=PREMIUM)

    assert friends == Segment(1, 1, "Friends", "list", 1, None, START, None, None)
    assert premium == Segment(1, 2, "Premium", "rule", 1, PREMIUM, START, None, None)
    assert await list_segments(database, 1) == [friends, premium]
    assert await list_segments(database, 1, after=1) == [premium]
    assert await list_segments(database, 2) == []


async def test_another_rule_is_another_version(database: Database) -> None:
    await save_segment(database, 1, name="Good ones", definition=PREMIUM)

    second = await save_segment(
        database, 1, name="Buyers", definition=BOUGHT, segment_id=1, expected_version=1
    )

    assert (second.version, second.definition) == (2, BOUGHT)
    assert (await read_segment(database, 1, 1, version=1)).definition == PREMIUM
    with pytest.raises(VersionConflict) as refused:
        await save_segment(
            database, 1, name="x", definition=BOUGHT, segment_id=1, expected_version=1
        )
    assert str(refused.value) == (
        'Segment "1" is at version 2, expected 1. Read it again before you go on.'
    )


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        (
            {"root": {"all": [{}, {"trait": "plan", "op": "is"}]}},
            "The rule of the segment is not sound at root.all[1].op: ",
        ),
        ({}, "The rule of the segment is not sound at root: "),
        ({"root": {}, "x": 1}, "The rule of the segment is not sound at x: "),
    ],
)
async def test_a_rule_that_is_not_sound_is_not_kept(
    database: Database, definition: Value, message: str
) -> None:
    with pytest.raises(BadSegment) as refused:
        await save_segment(database, 1, name="x", definition=definition)

    first = refused.value.faults[0]
    assert str(refused.value) == f"{message}{first.message} {first.fix}"
    assert await list_segments(database, 1) == []


async def test_what_a_segment_cannot_become_is_told(database: Database) -> None:
    await save_segment(database, 1, name="Friends")
    await save_segment(database, 1, name="Premium", definition=PREMIUM)

    with pytest.raises(BadSegment) as to_rule:
        await save_segment(database, 1, name="x", definition=PREMIUM, segment_id=1)
    with pytest.raises(BadSegment) as itself:
        asked = {"root": {"not": {"segment": 2}}}
        await save_segment(database, 1, name="x", definition=asked, segment_id=2)
    with pytest.raises(BadJson):
        await save_segment(database, 1, name="x", definition={"root": {"trait": "\0"}})

    assert str(to_rule.value) == 'Segment "1" is a list and stays one. Make a new segment.'
    assert str(itself.value) == (
        'The rule of segment "2" asks about segment "2". Ask about another one.'
    )


# --- a list


async def test_people_are_put_on_a_list_and_taken_off_it(shop: Shop) -> None:
    database = shop.database
    await save_segment(database, 1, name="Friends")

    assert await add_members(database, 1, 1, ["bob", "ann", "ann"]) == 2
    shop.clock.set(later(days=1))
    assert await add_members(database, 1, 1, ["ann", "cyd"]) == 1
    assert await remove_members(database, 1, 1, ["bob", "nobody"]) == 1
    assert await add_members(database, 1, 1, []) == 0

    assert await inside(shop) == ["ann", "cyd"]
    assert await count_members(database, 1, 1) == 2
    since = [row.since_at for row in await shop.rows(segment_members)]
    assert since == [microseconds(START), microseconds(later(days=1))]


async def test_members_are_told_page_by_page(shop: Shop) -> None:
    await save_segment(shop.database, 1, name="Friends")
    await add_members(shop.database, 1, 1, [f"u{i}" for i in range(5)])

    first = await members(shop.database, 1, 1, first=3)
    assert first == Members(["u0", "u1", "u2"], "u2")
    assert await members(shop.database, 1, 1, after="u2", first=3) == Members(["u3", "u4"], None)
    with pytest.raises(NotFound) as refused:
        await members(shop.database, 2, 1)
    assert str(refused.value) == 'There is no segment "1".'


async def test_what_a_list_does_not_take_is_told(shop: Shop) -> None:
    await save_segment(shop.database, 1, name="Friends")
    await save_segment(shop.database, 1, name="Premium", definition=PREMIUM)

    for segment_id, user_ids, message in (
        (
            1,
            [""],
            'A member cannot be kept: it has no user id. Give "user_id" a text that is not blank.',
        ),
        (
            *(1, [f"u{i}" for i in range(5_001)]),
            "The call names 5001 people, more than 5000. Make several calls of it.",
        ),
        (
            *(2, ["ann"]),
            'The members of segment "2" follow its rule. Change the rule, or use a list.',
        ),
    ):
        for call in (add_members, remove_members):
            with pytest.raises(BadSegment) as refused:
                await call(shop.database, 1, segment_id, user_ids)
            assert str(refused.value) == message


async def test_an_archived_list_stays_as_it_is(shop: Shop) -> None:
    await save_segment(shop.database, 1, name="Friends")
    await add_members(shop.database, 1, 1, ["ann"])

    assert await archive_segment(shop.database, 1, 1)
    with pytest.raises(Archived) as refused:
        await add_members(shop.database, 1, 1, ["bob"])
    assert str(refused.value) == 'Segment "1" is archived. Restore it before you save it.'
    assert await inside(shop) == ["ann"]

    assert await restore_segment(shop.database, 1, 1)
    assert await add_members(shop.database, 1, 1, ["bob"]) == 1


async def test_a_journey_asks_about_a_list_and_adds_to_it(shop: Shop) -> None:
    await save_segment(shop.database, 1, name="Friends")
    await add_members(shop.database, 1, 1, ["ann"])
    add: Value = {"kind": "add_to_segment", "segment_id": 1}
    await shop.opens(
        ask({"root": {"segment": 1}}, "end", "add"), node("add", "action", add, "out"),
        END, {"id": "out", "kind": "exit"},
    )  # fmt: skip

    await shop.hears(track("ann", "signed_up"), track("bob", "signed_up"))

    assert [await shop.where(user_id) for user_id in ("ann", "bob")] == [
        *("completed end", "completed out")
    ]
    assert await inside(shop) == ["ann", "bob"]


# --- a rule


async def test_a_rule_is_counted_at_once_and_then_now_and_then(shop: Shop) -> None:
    database = shop.database
    await have_plans(shop, ann="premium", bob="free", cyd="premium")
    await save_segment(database, 1, name="Premium", definition=PREMIUM)

    assert await refresh_once(database) == Refreshed(1, 1, 2, 0, True)
    assert await inside(shop) == ["ann", "cyd"]
    assert (await read_segment(database, 1, 1)).refreshed_at == START
    assert await next_refresh(database) == later(minutes=5)

    await have_plans(shop, ann="free", bob="premium")
    shop.clock.set(later(seconds=299))
    assert await refresh_once(database) is None
    shop.clock.set(later(minutes=5))
    assert await refresh_once(database) == Refreshed(1, 1, 1, 1, True)
    assert await inside(shop) == ["bob", "cyd"]
    since = {row.user_id: row.since_at for row in await shop.rows(segment_members)}
    assert since == {"bob": microseconds(later(minutes=5)), "cyd": microseconds(START)}


async def test_time_alone_takes_people_out_of_a_rule(shop: Shop) -> None:
    await save_segment(shop.database, 1, name="Buyers", definition=BOUGHT)
    await shop.hears(track("ann", "bought"))
    await refresh_once(shop.database)
    assert await inside(shop) == ["ann"]

    shop.clock.set(later(days=1, minutes=1))
    assert await refresh_once(shop.database) == Refreshed(1, 1, 0, 1, True)
    assert await inside(shop) == []


async def test_a_changed_rule_is_counted_without_waiting(shop: Shop) -> None:
    await have_plans(shop, ann="premium", bob="free")
    await save_segment(shop.database, 1, name="Premium", definition=PREMIUM)
    await refresh_once(shop.database)

    free = {"root": {"trait": "plan", "op": "eq", "value": "free"}}
    await save_segment(shop.database, 1, name="Free", definition=free, segment_id=1)

    assert await refresh_once(shop.database) == Refreshed(1, 1, 1, 1, True)
    assert await inside(shop) == ["bob"]


async def test_whom_a_journey_adds_to_a_rule_stays_until_it_is_counted_again(shop: Shop) -> None:
    await save_segment(shop.database, 1, name="Premium", definition=PREMIUM)
    await refresh_once(shop.database)
    await shop.opens(node("add", "action", {"kind": "add_to_segment", "segment_id": 1}))
    await shop.hears(track("ann", "signed_up"))
    assert await inside(shop) == ["ann"]

    shop.clock.set(later(minutes=5))
    await refresh_once(shop.database)
    assert await inside(shop) == []


async def test_lists_and_what_was_put_away_are_never_counted(shop: Shop) -> None:
    await save_segment(shop.database, 1, name="Friends")
    await save_segment(shop.database, 1, name="Premium", definition=PREMIUM)
    await archive_segment(shop.database, 1, 2)

    assert await refresh_once(shop.database) is None
    assert await next_refresh(shop.database) is None


async def test_many_people_are_counted_in_pages_and_tenants_stay_apart(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grouping, "REFRESH_PAGE", 7)
    monkeypatch.setattr(rules_sql, "STRETCH", 20)
    plans = {f"u{i:03}": "premium" if i % 3 else "free" for i in range(100)}
    await have_plans(shop, **plans)
    premium = {"plan": "premium"}
    await shop.hears(Incoming("identify", "zoe", properties=premium), tenant_id=2)
    await save_segment(shop.database, 1, name="Premium", definition=PREMIUM)

    told = await refresh_once(shop.database)

    good = [user_id for user_id, plan in plans.items() if plan == "premium"]
    assert told == Refreshed(1, 1, len(good), 0, True)
    assert await inside(shop) == good

    await have_plans(shop, u001="free", u099="premium")
    shop.clock.set(later(minutes=5))
    assert await refresh_once(shop.database) == Refreshed(1, 1, 1, 1, True)
    assert await inside(shop) == sorted({*good, "u099"} - {"u001"})


async def test_the_longest_overdue_segment_comes_first(shop: Shop) -> None:
    for name in "abc":
        await save_segment(shop.database, 1, name=name, definition=PREMIUM)
    order = []
    for minutes in (0, 1, 2, 6, 6, 20, 20, 20):
        shop.clock.set(later(minutes=minutes))
        told = await refresh_once(shop.database)
        order.append(told.segment_id if told else None)

    assert order == [1, 2, 3, 1, 2, 3, 1, 2]


async def test_two_workers_count_different_segments(shop: Shop, other: Database) -> None:
    for name in "abcd":
        await save_segment(shop.database, 1, name=name, definition=PREMIUM)

    told = [
        one.segment_id if one else None
        for _ in range(2)
        for one in await asyncio.gather(refresh_once(shop.database), refresh_once(other))
    ]

    assert sorted(told, key=str) == [1, 2, 3, 4]


async def test_a_rule_that_is_changed_meanwhile_is_left_to_the_next_count(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old rule brings nobody in any more."""
    await have_plans(shop, ann="premium", bob="free")
    await save_segment(shop.database, 1, name="Premium", definition=PREMIUM)
    free = {"root": {"trait": "plan", "op": "eq", "value": "free"}}
    read = shop.database.read

    async def read_and_change(work: Any) -> Any:
        found = await read(work)
        monkeypatch.setattr(shop.database, "read", read)
        await save_segment(shop.database, 1, name="Free", definition=free, segment_id=1)
        return found

    monkeypatch.setattr(shop.database, "read", read_and_change)
    assert await refresh_once(shop.database) == Refreshed(1, 1, 0, 0, False)

    assert await inside(shop) == []
    assert await refresh_once(shop.database) == Refreshed(1, 1, 1, 0, True)
    assert await inside(shop) == ["bob"]


async def test_a_worker_that_dies_half_way_leaves_it_to_the_next_count(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grouping, "REFRESH_PAGE", 2)
    await have_plans(shop, **{f"u{i}": "premium" for i in range(6)})
    await save_segment(shop.database, 1, name="Premium", definition=PREMIUM)
    keep = grouping.Refresh._keep
    kept: list[int] = []

    async def dies(*given: Any) -> bool:
        if kept:
            raise RuntimeError("the process is gone")
        kept.append(1)
        return await keep(*given)

    monkeypatch.setattr(grouping.Refresh, "_keep", dies)
    with pytest.raises(RuntimeError):
        await refresh_once(shop.database)
    assert await inside(shop) == ["u0", "u1"]
    assert (await read_segment(shop.database, 1, 1)).refreshed_at is None

    monkeypatch.setattr(grouping.Refresh, "_keep", keep)
    assert await refresh_once(shop.database) is None
    assert await next_refresh(shop.database) == later(minutes=1)
    shop.clock.set(later(minutes=1))
    assert await refresh_once(shop.database) == Refreshed(1, 1, 4, 0, True)
    assert (await read_segment(shop.database, 1, 1)).refreshed_at == later(minutes=1)


async def test_a_count_that_was_taken_over_writes_nothing(
    shop: Shop, other: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minute without a page, and somebody else counts."""
    monkeypatch.setattr(grouping, "REFRESH_PAGE", 2)
    await have_plans(shop, **{f"u{i}": "premium" for i in range(6)})
    await save_segment(shop.database, 1, name="Premium", definition=PREMIUM)
    first = await begin_refresh(shop.database)
    assert first is not None
    assert await first.page()
    shop.clock.set(later(seconds=50))
    assert await first.page(), "each page makes the claim last longer"
    shop.clock.set(later(seconds=109))
    assert await begin_refresh(other) is None
    shop.clock.set(later(seconds=110))
    await have_plans(shop, u5="free")
    second = await begin_refresh(other)
    assert second is not None

    assert not await first.page()
    assert first.told() == Refreshed(1, 1, 4, 0, False)
    while await second.page():
        pass
    assert second.told() == Refreshed(1, 1, 1, 0, True)
    assert await inside(shop) == ["u0", "u1", "u2", "u3", "u4"]


@pytest.mark.parametrize("commit", [1, 2, 3, 4])
async def test_a_page_whose_answer_is_lost_is_counted_on(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, commit: int
) -> None:
    monkeypatch.setattr(grouping, "REFRESH_PAGE", 2)
    await have_plans(shop, **{f"u{i}": "premium" for i in range(4)})
    await save_segment(shop.database, 1, name="Premium", definition=PREMIUM)
    refresh = await begin_refresh(shop.database)
    assert refresh is not None

    with lost_answer(shop.database, commit) as asked:
        while await refresh.page():
            pass

    assert len(asked) >= commit
    assert refresh.told() == Refreshed(1, 1, 4, 0, True)
    assert (await read_segment(shop.database, 1, 1)).refreshed_at == START


async def test_a_transaction_touches_a_page_of_people_at_most(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a rule that held for everybody holds for nobody, or for all others."""
    monkeypatch.setattr(grouping, "REFRESH_PAGE", 7)
    plans = {f"u{i:02}": "premium" if i % 2 else "free" for i in range(60)}
    await have_plans(shop, **plans)
    await save_segment(shop.database, 1, name="x", definition={"root": {}})
    await refresh_once(shop.database)
    lock, locked = store.lock, list[int]()

    async def watched(connection: Any, people: Any) -> Any:
        locked.append(len(people))
        return await lock(connection, people)

    monkeypatch.setattr(store, "lock", watched)
    expected = [("premium", 0, 30), ("free", 30, 30), ("gold", 0, 30)]
    for plan, joined, left in expected:
        wanted = {"root": {"trait": "plan", "op": "eq", "value": plan}}
        await save_segment(shop.database, 1, name="x", definition=wanted, segment_id=1)
        assert await refresh_once(shop.database) == Refreshed(1, 1, joined, left, True)
        assert await inside(shop) == [user_id for user_id in plans if plans[user_id] == plan]

    assert max(locked) == 7


async def zoned(shop: Shop, zone: str, definition: Value) -> int:
    """A sweep at the next full hour of every day, for an account in this zone."""
    trigger = {"kind": "segment_periodic", "hours": list(range(24)), "definition": definition}
    return await shop.opens(END, trigger=trigger, zone=zone, entry_rule="once")


@pytest.mark.parametrize("zone", ["Asia/Tehran", "America/Los_Angeles", "Pacific/Kiritimati"])
@pytest.mark.parametrize(
    "asked",
    [
        {"local": "hour", "op": "lt", "value": 9},
        {"local": "weekday", "op": "eq", "value": "mon"},
        {"trait": "due", "op": "days_until", "value": 1},
        {"trait": "due", "op": "days_since", "value": 0},
        {"trait": "born", "op": "days_until", "value": 1, "annual": True},
    ],
    ids=lambda asked: "-".join(map(str, asked.values())),
)
async def test_a_segment_and_a_trigger_mean_the_same_by_today(
    shop: Shop, zone: str, asked: Value
) -> None:
    """People with and without a zone of their own, on a clock that is not UTC."""
    definition = {"root": asked}
    for day in range(1, 5):
        traits = {"due": f"2026-06-0{day}", "born": f"1990-06-0{day}"}
        for own in ({}, {"timezone": "Asia/Tokyo"}, {"timezone": "America/New_York"}):
            user_id = f"{day} {own.get('timezone', 'none')}"
            await shop.hears(Incoming("identify", user_id, properties={**traits, **own}))
    await save_segment(shop.database, 1, name="x", definition=definition)
    found = []
    for days in range(3):
        shop.clock.set(later(days=days))
        journey_id = await zoned(shop, zone, definition)
        await refresh_once(shop.database)
        scanner = Scanner(shop.runtime)
        while not await scans_of(shop.database, 1, journey_id):
            due = await scanner.next_due()
            assert due is not None
            shop.clock.set(max(due, shop.clock.now()))
            await scanner.look_once()
        shop.clock.set((await scans_of(shop.database, 1, journey_id))[0].slot_at)
        await save_segment(shop.database, 1, name="x", definition=definition, segment_id=1)
        await refresh_once(shop.database)
        rows = [row for row in await shop.rows(entries) if row.journey_id == journey_id]
        found.append(sorted(row.user_id for row in rows))
        assert await inside(shop) == found[-1]
        await shop.tampers(journeys, journey_id, status="paused", pause_mode="entries")
        await shop.runtime.reload()

    assert any(found)


async def test_the_zone_of_a_segment_is_that_of_the_latest_publishing(shop: Shop) -> None:
    """UTC before any; other tenants have their own."""
    at_ten = {"root": {"local": "hour", "op": "eq", "value": 10}}
    await have_plans(shop, ann="free")
    await save_segment(shop.database, 1, name="Ten o'clock", definition=at_ten)
    told = []
    for minutes, zone in enumerate(["", "Asia/Tokyo", "UTC", "Asia/Tehran"]):
        shop.clock.set(later(minutes=6 * minutes))
        if zone:
            await shop.opens(END, zone=zone)
            await shop.opens(END, zone="Europe/London" if zone == "UTC" else "UTC", tenant_id=2)
        await refresh_once(shop.database)
        told.append(await inside(shop))

    assert told == [["ann"], [], ["ann"], []]


async def test_a_page_costs_a_fixed_number_of_statements(shop: Shop) -> None:
    sent_by: list[int] = []
    await save_segment(shop.database, 1, name="Premium", definition=PREMIUM)
    for many in (10, 300):
        await have_plans(shop, **{f"{many}.{i}": "premium" for i in range(many)})
        shop.clock.set(later(days=many))
        with counted(shop.database) as sent:
            assert await refresh_once(shop.database) == Refreshed(1, 1, many, 0, True)
        sent_by.append(len(sent))

    assert sent_by[0] == sent_by[1]
