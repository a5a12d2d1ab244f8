"""A template is written, corrected and put away; what was sent once can always be read again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import select
from whenever import TimeDelta

from journeykit_engine.strict_json import BadJson
from journeykit_engine.template import MAX_TEXT_BYTES, BadTemplate
from journeykit_server.clock import SeededChance
from journeykit_server.database import Database
from journeykit_server.publishing import HIGHEST_ID, save_draft
from journeykit_server.tables import template_versions
from journeykit_server.templates import (
    CurrentTemplate,
    Template,
    Use,
    archive_template,
    current,
    list_templates,
    read_template,
    restore_template,
    save_template,
    used_by,
)
from journeykit_server.versioned import Archived, BadName, NotFound, VersionConflict
from tests.databases import START, open_database
from tests.engine.journeys import journey
from tests.engine.walking import END, days, send
from tests.server.shop import Shop, counted, track

HELLO = {"subject": "Hi {{ name }}", "body": "{{ event.rival }} passed you"}
WELCOME: dict[str, Any] = {"name": "Welcome", "channel": "email", "texts": HELLO}


@pytest.fixture
async def other(database: Database, database_url: str) -> AsyncIterator[Database]:
    """Another process on the same database."""
    opened = open_database(database_url, clock=database.clock, chance=SeededChance(2))
    yield opened
    await opened.close()


async def test_a_template_is_kept_as_version_1_under_the_next_number_of_its_tenant(
    database: Database,
) -> None:
    first = await save_template(database, 1, **WELCOME, category="transactional")
    second = await save_template(database, 1, **WELCOME)
    elsewhere = await save_template(database, 2, **WELCOME)

    assert first == Template(
        1, 1, "Welcome", "email", "transactional", 1, HELLO, ("event.rival", "name"), START, None
    )
    assert (second.template_id, second.category, elsewhere.template_id) == (2, "", 1)
    assert await read_template(database, 1, 1) == first


async def test_a_correction_is_another_version_and_the_old_one_stays(database: Database) -> None:
    await save_template(database, 1, **WELCOME)
    again = {**WELCOME, "name": "Hello", "texts": {"body": "Hello {{ name }}"}}

    second = await save_template(database, 1, **again, template_id=1, expected_version=1)

    assert (second.template_id, second.version, second.name) == (1, 2, "Hello")
    assert second.texts == {"body": "Hello {{ name }}"}
    assert (await read_template(database, 1, 1, version=1)).texts == HELLO
    assert await read_template(database, 1, 1) == second


async def test_who_saw_an_older_version_is_told_and_changes_nothing(database: Database) -> None:
    await save_template(database, 1, **WELCOME)
    await save_template(database, 1, **WELCOME, template_id=1)

    with pytest.raises(VersionConflict) as refused:
        await save_template(database, 1, **WELCOME, template_id=1, expected_version=1)
    with pytest.raises(VersionConflict) as at_first:
        await save_template(database, 1, **WELCOME, expected_version=3)

    assert str(refused.value) == (
        'Template "1" is at version 2, expected 1. Read it again before you go on.'
    )
    assert str(at_first.value) == "A new template has no version 3. Leave it out."
    assert (await read_template(database, 1, 1)).version == 2


async def test_of_two_who_correct_the_same_version_one_wins(
    database: Database, other: Database
) -> None:
    await save_template(database, 1, **WELCOME)

    for version in range(1, 6):
        both = await asyncio.gather(
            *(
                save_template(each, 1, **WELCOME, template_id=1, expected_version=version)
                for each in (database, other)
            ),
            return_exceptions=True,
        )
        assert sorted(type(one).__name__ for one in both) == ["Template", "VersionConflict"]
    assert (await read_template(database, 1, 1)).version == 6


async def test_a_save_whose_answer_was_lost_is_kept_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = database.run

    async def twice(work: Any) -> Any:
        await run(work)
        return await run(work)

    monkeypatch.setattr(database, "run", twice)
    saved = await save_template(database, 1, **WELCOME)
    corrected = await save_template(
        database, 1, **WELCOME, template_id=saved.template_id, expected_version=1
    )

    assert (saved.version, corrected.version) == (1, 2)
    rows = await database.read(lambda c: c.execute(select(template_versions.c.version)))
    assert sorted(rows.scalars()) == [1, 2]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            {"texts": {"subject": "Hi", "body": "a\n{{ name | shout }}\n{% if %}"}},
            BadTemplate,
            'The text "body" is no Liquid template: missing expression, on line 3. Mend it there.',
        ),
        (
            {"texts": {"body": "{{ name | shout }}"}},
            BadTemplate,
            'The text "body" uses the filter "shout", which Liquid does not have. '
            "Remove it or mend its name.",
        ),
        (
            {"texts": {"body": "x" * (MAX_TEXT_BYTES + 1)}},
            BadTemplate,
            'The text "body" has over 262144 bytes. Shorten it, or link to the rest.',
        ),
        (
            {"texts": {}},
            BadTemplate,
            'The template has no texts. Give it at least one, as {"body": "…"}.',
        ),
        (
            {"texts": {f"t{i}": "" for i in range(33)}},
            BadTemplate,
            "The template has 33 texts, more than 32. Make two templates of it.",
        ),
        (
            {"texts": {" ": "x"}},
            BadTemplate,
            'A text of the template has a blank name. Name it, as "body".',
        ),
        ({"texts": {"body": 5}}, BadTemplate, 'The text "body" must be text, not 5.'),
        ({"channel": ""}, BadTemplate, 'The template has no channel. Name one, as "email".'),
        (
            {"category": "c" * 201},
            BadTemplate,
            "The category of the template has 201 characters, more than 200. Shorten it.",
        ),
        ({"name": " "}, BadName, "The template has no name. Give it one that is not blank."),
        (
            {"name": "n" * 201},
            BadName,
            "The name of the template has 201 characters, more than 200. Shorten it.",
        ),
    ],
)
async def test_what_cannot_be_sent_is_not_kept(
    database: Database, given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as refused:
        await save_template(database, 1, **{**WELCOME, **given})

    assert str(refused.value) == message
    assert await list_templates(database, 1) == []


async def test_a_text_that_no_database_takes_is_refused(database: Database) -> None:
    for given in ({"texts": {"body": "\0"}}, {"name": "\ud800"}, {"channel": "e\0"}):
        with pytest.raises(BadJson):
            await save_template(database, 1, **{**WELCOME, **given})


async def test_another_tenants_template_is_none(database: Database) -> None:
    await save_template(database, 2, **WELCOME)

    for call in (read_template, archive_template, restore_template):
        with pytest.raises(NotFound) as refused:
            await call(database, 1, 1)
        assert str(refused.value) == 'There is no template "1".'
    with pytest.raises(NotFound):
        await save_template(database, 1, **WELCOME, template_id=1)
    with pytest.raises(NotFound):
        await read_template(database, 2, HIGHEST_ID + 1)
    with pytest.raises(NotFound) as too_new:
        await read_template(database, 2, 1, version=2)
    assert str(too_new.value) == 'Template "1" has no version 2; its latest is 1.'


async def test_templates_are_listed_page_by_page(database: Database) -> None:
    for name in "abcde":
        await save_template(database, 1, **{**WELCOME, "name": name})
    await save_template(database, 1, **{**WELCOME, "name": "B"}, template_id=2)
    await archive_template(database, 1, 4)

    page = await list_templates(database, 1, first=3)
    rest = await list_templates(database, 1, after=page[-1].template_id)

    assert [(each.name, each.version) for each in page] == [("a", 1), ("B", 2), ("c", 1)]
    assert [each.name for each in rest] == ["e"]
    assert [each.name for each in await list_templates(database, 1, archived=True)] == ["d"]


async def test_an_archived_template_is_neither_sent_nor_saved_until_it_is_restored(
    database: Database,
) -> None:
    await save_template(database, 1, **WELCOME)

    assert await archive_template(database, 1, 1)
    assert not await archive_template(database, 1, 1)

    assert (await read_template(database, 1, 1)).archived_at == START
    assert await database.read(lambda c: current(c, [(1, 1)])) == {}
    with pytest.raises(Archived) as refused:
        await save_template(database, 1, **WELCOME, template_id=1)
    assert str(refused.value) == 'Template "1" is archived. Restore it before you save it.'

    assert await restore_template(database, 1, 1)
    assert not await restore_template(database, 1, 1)
    assert (await save_template(database, 1, **WELCOME, template_id=1)).version == 2


async def test_what_is_current_is_read_for_a_whole_batch_in_one_statement(
    database: Database,
) -> None:
    await save_template(database, 1, **WELCOME)
    await save_template(database, 1, **WELCOME, template_id=1, category="news")
    await save_template(database, 1, **{**WELCOME, "channel": "sms"})
    await save_template(database, 2, **WELCOME)
    wanted = [(1, 2), (1, 1), (1, 1), (2, 1), (2, 2), (1, 0), (1, HIGHEST_ID + 1)]

    with counted(database) as sent:
        found = await database.read(lambda connection: current(connection, wanted))

    assert found == {
        (1, 1): CurrentTemplate(1, 2, "news", "email", HELLO),
        (1, 2): CurrentTemplate(2, 1, "", "sms", HELLO),
        (2, 1): CurrentTemplate(1, 1, "", "email", HELLO),
    }
    assert len([statement for statement in sent if "template" in statement]) == 1


async def test_a_template_tells_which_journeys_send_it(database: Database) -> None:
    """In the draft, in the version of now, and in an older one while somebody is inside."""
    shop = Shop(database)
    both = [{"channel": "push", "template_id": 4}, {"channel": "sms", "template_id": 5}]
    journey_id = await shop.opens(days(1, "a"), send("a", "b"), send("b", channels=both))
    await shop.hears(track("ann", "signed_up"))
    await shop.changes(journey_id, days(1, "a"), send("a", channel="push", template_id=4))
    await save_draft(database, 1, journey(send("x", channel="sms", template_id=5)), name="Later")
    await shop.opens(END)

    assert await used_by(database, 1, 3) == [Use(1, "", 1, ("a",))]
    assert await used_by(database, 1, 4) == [
        Use(1, "", 0, ("a",)),
        Use(1, "", 1, ("b",)),
        Use(1, "", 2, ("a",)),
    ]
    assert await used_by(database, 1, 5) == [Use(1, "", 1, ("b",)), Use(2, "Later", 0, ("x",))]
    assert await used_by(database, 2, 4) == []

    await shop.wakes(START + TimeDelta(hours=24))  # ann is through, nobody is in version 1 now
    assert await used_by(database, 1, 3) == []
