"""A document is judged with what the account has besides: journeys, triggers, texts."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from sqlalchemy import event, insert, update

from journeykit_engine.check import Report
from journeykit_server.clock import microseconds
from journeykit_server.database import Database
from journeykit_server.judging import judge
from journeykit_server.publishing import save_draft
from journeykit_server.tables import journeys, template_versions, templates
from journeykit_server.templates import archive_template
from tests.databases import START
from tests.engine.journeys import Value, journey
from tests.server.shop import API, Shop

AT = microseconds(START)
END: Value = {"id": "end", "kind": "exit"}


@pytest.fixture
def shop(database: Database) -> Shop:
    return Shop(database)


def jump(target: int) -> Value:
    action = {"kind": "enter_journey", "journey_id": target}
    return {"id": "go", "kind": "action", "action": action, "next": "end"}


def send(template_id: int) -> Value:
    action = {"kind": "send", "channel": "email", "template_id": template_id}
    return {"id": "s", "kind": "action", "action": action, "next": "end"}


def sweep() -> Value:
    plan = {"root": {"trait": "plan", "op": "eq", "value": "pro"}}
    return {"kind": "segment_periodic", "definition": plan, "hours": [9]}


async def has_template(shop: Shop, template_id: int, body: str, *, tenant_id: int = 1) -> None:
    ids = {"tenant_id": tenant_id, "template_id": template_id}
    row = {"name": "", "channel": "email", "version": 2, "created_at": AT, "updated_at": AT}
    texts = [(1, "an older text"), (2, body)]

    async def write(connection: Any) -> None:
        await connection.execute(insert(templates).values(**ids, **row))
        for version, text in texts:
            kept = {"texts": orjson.dumps({"body": text}).decode(), "category": ""}
            saved = {"saved_at": AT, "saved_token": ""}
            await connection.execute(
                insert(template_versions).values(**ids, version=version, **kept, **saved)
            )

    await shop.database.run(write)


async def becomes(shop: Shop, journey_id: int, status: str) -> None:
    change = update(journeys).where(journeys.c.journey_id == journey_id).values(status=status)
    await shop.database.run(lambda connection: connection.execute(change))


async def judged(shop: Shop, *nodes: Value, journey_id: int = 0, **fields: Any) -> Report:
    document = journey(*nodes, journey_id=journey_id or 99, **fields)
    return await judge(shop.database, 1, document, journey_id=journey_id, account_timezone="UTC")


def codes(report: Report) -> tuple[list[str], list[str]]:
    problems, warnings = report
    return [problem.code for problem in problems], [warning.code for warning in warnings]


async def test_a_journey_of_this_account_may_be_entered_if_it_takes_people_in(shop: Shop) -> None:
    called, heard = await shop.opens(END, trigger=API), await shop.opens(END)

    assert codes(await judged(shop, jump(called), END)) == ([], [])
    assert codes(await judged(shop, jump(heard), END)) == (["NOT_API_TRIGGER"], [])
    assert codes(await judged(shop, jump(77), END)) == (["JOURNEY_UNKNOWN"], [])


async def test_a_journey_of_another_account_does_not_exist(shop: Shop) -> None:
    foreign = await shop.opens(END, trigger=API, tenant_id=2)

    assert codes(await judged(shop, jump(foreign), END)) == (["JOURNEY_UNKNOWN"], [])


async def test_what_is_archived_or_deleted_takes_nobody_in(shop: Shop) -> None:
    target = await shop.opens(END, trigger=API)

    await becomes(shop, target, "archived")
    assert codes(await judged(shop, jump(target), END)) == (["JOURNEY_ARCHIVED"], [])
    await becomes(shop, target, "deleted")
    assert codes(await judged(shop, jump(target), END)) == (["JOURNEY_UNKNOWN"], [])


async def test_a_draft_that_nobody_published_is_a_warning_even_without_a_trigger(
    shop: Shop,
) -> None:
    draft = await save_draft(shop.database, 1, {"nodes": []})

    report = await judged(shop, jump(draft.journey_id), END)

    assert codes(report) == ([], ["JOURNEY_NOT_PUBLISHED"])


async def test_a_circle_is_seen_from_both_sides(shop: Shop) -> None:
    there = await shop.opens(END, trigger=API)
    here = await shop.opens(jump(there), END, trigger=API)
    back = journey(jump(here), END, trigger=API)
    await save_draft(shop.database, 1, back, journey_id=there)
    await shop.runtime.publish(1, there)

    assert codes(await judged(shop, jump(there), END, journey_id=here, trigger=API)) == (
        [],
        ["JOURNEY_LOOP"],
    )


async def test_two_journeys_that_ask_the_same_at_the_door_overlap(shop: Shop) -> None:
    fields: dict[str, Any] = {
        "trigger": sweep(),
        "entry_rule": "every_time",
        "reentry_window": "day",
    }
    other = await shop.opens(END, **fields)

    report = await judged(shop, END, **fields)

    assert codes(report) == ([], ["NO_EXIT_RULE", "OVERLAP"])
    assert codes(await judged(shop, END, journey_id=other, **fields))[1] == ["NO_EXIT_RULE"]


async def test_an_account_without_templates_keeps_its_texts_elsewhere(shop: Shop) -> None:
    assert (await judged(shop, send(7), END)).valid
    await has_template(shop, 7, "Hello", tenant_id=2)
    assert (await judged(shop, send(7), END)).valid
    await has_template(shop, 8, "Hello")
    assert codes(await judged(shop, send(7), END)) == (["TEMPLATE_UNKNOWN"], [])


async def test_an_account_that_has_put_all_its_templates_away_has_none(shop: Shop) -> None:
    await has_template(shop, 7, "Hello")
    await archive_template(shop.database, 1, 7)

    assert codes(await judged(shop, send(7), END)) == (["TEMPLATE_UNKNOWN"], [])


async def test_the_text_that_is_sent_now_is_read_for_values_that_would_be_lost(shop: Shop) -> None:
    wait: Value = {
        "id": "w",
        "kind": "wait",
        "next": "s",
        "wait": {"kind": "duration", "amount": 1},
    }
    wait["wait"]["unit"] = "day"
    await has_template(shop, 7, "You are {{ event.rank }}")

    assert codes(await judged(shop, wait, send(7), END)) == ([], ["EVENT_VALUE_LOST_AFTER_WAIT"])


async def test_a_webhook_that_leads_inside_is_a_warning(shop: Shop) -> None:
    call: Value = {"id": "c", "kind": "action", "next": "end"}
    inside = call | {"action": {"kind": "webhook", "url": "http://127.1/hook"}}
    outside = call | {"action": {"kind": "webhook", "url": "https://example.com/hook"}}

    assert (await judged(shop, outside, END)).warnings == ()
    assert await judged(shop, inside, END) == (
        (),
        (
            (
                "BLOCKED_ADDRESS",
                "c",
                "nodes[1].action.url",
                'The webhook node "c" calls an address: "127.1" leads to an address inside, which '
                "webhooks never call.",
                "Use a public address, or let the operator open its network with "
                "JOURNEYKIT_ALLOW_NETWORKS.",
            ),
        ),
    )


async def test_judging_takes_two_statements_whatever_the_account_has(shop: Shop) -> None:
    for _ in range(4):
        await shop.opens(END, trigger=API)
    seen: list[str] = []
    event.listen(
        shop.database.engine.sync_engine,
        "before_cursor_execute",
        lambda _, __, statement, *___: seen.append(statement),
    )

    await judged(shop, jump(1), END)

    assert len([statement for statement in seen if statement.startswith("SELECT")]) == 2
