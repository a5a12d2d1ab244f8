"""What messages say: templates, each a channel and its texts in Liquid, kept version by version.

A send names a template by its number and gets the version that is current when it goes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Row, select
from sqlalchemy.ext.asyncio import AsyncConnection
from whenever import Instant

from journeykit_engine.strict_json import refuse_value
from journeykit_engine.template import BadTemplate, parse_template
from journeykit_server import versioned
from journeykit_server.bulk import Select
from journeykit_server.clock import instant
from journeykit_server.database import Database
from journeykit_server.publishing import HIGHEST_ID
from journeykit_server.tables import (
    drafts,
    instances,
    journeys,
    template_versions,
    templates,
    versions,
)
from journeykit_server.versioned import Kept, Save

MOST_TEXTS = 32  # of one template; subject, body, plain body, preheader, buttons
MOST_WORD_CHARACTERS = 200  # of a channel, a category, the name of a text

KEPT = Kept("template", templates, template_versions, "template_id")
TemplateKey = tuple[int, int]
"""Tenant and template."""


class Template(NamedTuple):
    """A version of a template. `texts` are its texts by name ("subject", "body"), `names` the
    values they read; `category` is "" where the category of the node counts."""

    tenant_id: int
    template_id: int
    name: str
    channel: str
    category: str
    version: int
    texts: dict[str, str]
    names: tuple[str, ...]
    saved_at: Instant
    archived_at: Instant | None


class CurrentTemplate(NamedTuple):
    """What a send needs of the version that is current."""

    template_id: int
    version: int
    category: str
    channel: str
    texts: dict[str, str]


class Use(NamedTuple):
    """A journey that sends a template; `version` is 0 for its draft."""

    journey_id: int
    name: str
    version: int
    node_ids: tuple[str, ...]


async def save_template(
    database: Database,
    tenant_id: int,
    *,
    name: str,
    channel: str,
    texts: Mapping[str, str],
    category: str = "",
    template_id: int | None = None,
    expected_version: int | None = None,
) -> Template:
    """Keep these texts as the next version of a template, a new one where no number is given.

    Whatever is sent from now on says this. Raises `BadTemplate` (which text, what is wrong with
    it, on which line), `BadName`, `BadJson`, and `NotFound`, `VersionConflict`, `Archived`.
    """
    _refuse(name, channel, category, texts)
    parse_template(texts)
    body = {"category": category, "texts": orjson.dumps(dict(texts)).decode()}
    head = {"name": name, "channel": channel}
    asked = Save(KEPT, tenant_id, template_id, expected_version, head, body)
    number = await versioned.save(database, asked)
    return await read_template(database, tenant_id, number)


async def read_template(
    database: Database, tenant_id: int, template_id: int, version: int = 0
) -> Template:
    """A version of a template, 0 for the current one. Raises `NotFound`."""

    async def work(connection: AsyncConnection) -> Template:
        found = await versioned.read(connection, KEPT, tenant_id, template_id, version)
        return _template(*found)

    return await database.read(work)


async def list_templates(
    database: Database,
    tenant_id: int,
    *,
    after: int = 0,
    first: int = 200,
    archived: bool = False,
) -> list[Template]:
    """The current versions of those in use (or of those put away), in the order of their numbers:
    `first` of them (`versioned.MOST_LISTED` at most) from behind the number `after`."""

    async def work(connection: AsyncConnection) -> list[Template]:
        found = await versioned.listed(
            connection, KEPT, tenant_id, after=after, first=first, archived=archived
        )
        return [_template(*each) for each in found]

    return await database.read(work)


async def archive_template(database: Database, tenant_id: int, template_id: int) -> bool:
    """Put a template away: sends that name it are refused. `used_by` tells which would be. False
    where it was away already. Raises `NotFound`."""
    return await versioned.put_away(database, KEPT, tenant_id, template_id, away=True)


async def restore_template(database: Database, tenant_id: int, template_id: int) -> bool:
    """Take a template back into use; False where it was. Raises `NotFound`."""
    return await versioned.put_away(database, KEPT, tenant_id, template_id, away=False)


def _refuse(name: str, channel: str, category: str, texts: Mapping[str, str]) -> None:
    """Raises for what cannot be kept, whatever the texts say."""
    versioned.refuse_name("template", name)
    refuse_value({"channel": channel, "category": category, "texts": dict(texts)})
    if not channel.strip():
        raise BadTemplate(NO_CHANNEL)
    if not texts:
        raise BadTemplate(NO_TEXTS)
    if len(texts) > MOST_TEXTS:
        raise BadTemplate(MANY_TEXTS.format(len(texts), MOST_TEXTS))
    for word, what in ((channel, "channel"), (category, "category"), *_named(texts)):
        if len(word) > MOST_WORD_CHARACTERS:
            raise BadTemplate(LONG_WORD.format(what, len(word), MOST_WORD_CHARACTERS))
    for text_name, said in texts.items():
        if not text_name.strip():
            raise BadTemplate(UNNAMED_TEXT)
        if not isinstance(said, str):
            raise BadTemplate(NO_TEXT.format(text_name, said))


def _named(texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    return ((name, "name of a text") for name in texts)


NO_CHANNEL = 'The template has no channel. Name one, as "email".'
NO_TEXTS = 'The template has no texts. Give it at least one, as {"body": "…"}.'
MANY_TEXTS = "The template has {} texts, more than {}. Make two templates of it."
LONG_WORD = "The {} of the template has {} characters, more than {}. Shorten it."
UNNAMED_TEXT = 'A text of the template has a blank name. Name it, as "body".'
NO_TEXT = 'The text "{}" must be text, not {!r}.'


def _template(row: Row[Any], version: Row[Any]) -> Template:
    texts = orjson.loads(version.texts)
    return Template(
        row.tenant_id,
        row.template_id,
        row.name,
        row.channel,
        version.category,
        version.version,
        texts,
        parse_template(texts).names,
        instant(version.saved_at),
        None if row.archived_at is None else instant(row.archived_at),
    )


# --- what is sent now

CURRENT = Select(
    [("tenant_id", "bigint"), ("template_id", "bigint")],
    "SELECT t.tenant_id, t.template_id, v.version, v.category, t.channel, v.texts FROM {given} "
    "JOIN templates t ON t.tenant_id = given.tenant_id AND t.template_id = given.template_id "
    "AND t.archived_at IS NULL "
    "JOIN template_versions v ON v.tenant_id = t.tenant_id AND v.template_id = t.template_id "
    "AND v.version = t.version",
)


async def current(
    connection: AsyncConnection, wanted: Iterable[TemplateKey]
) -> dict[TemplateKey, CurrentTemplate]:
    """The current versions of these, in one statement; one that does not exist or was put away is
    not in the answer."""
    keys = sorted({key for key in wanted if 0 < key[1] <= HIGHEST_ID})
    return {
        (tenant_id, template_id): CurrentTemplate(
            template_id, version, category, channel, orjson.loads(texts)
        )
        for tenant_id, template_id, version, category, channel, texts in await CURRENT.run(
            connection, keys
        )
    }


# --- which journeys send it


async def used_by(database: Database, tenant_id: int, template_id: int) -> list[Use]:
    """Every journey that is not deleted and sends this template: in its draft, in the version that
    is published, or in an older one that somebody is inside of."""

    async def work(connection: AsyncConnection) -> list[Use]:
        found = [_use(row, 0, template_id) for row in await connection.execute(_drafts(tenant_id))]
        walked = await _walked(connection, tenant_id)
        for row in await connection.execute(_versions(tenant_id)):
            if row.version == row.published_version or (row.journey_id, row.version) in walked:
                found.append(_use(row, row.version, template_id))
        used = [use for use in found if use.node_ids]
        return sorted(used, key=lambda use: (use.journey_id, use.version))

    return await database.read(work)


def _drafts(tenant_id: int) -> Any:
    same = (drafts.c.tenant_id == journeys.c.tenant_id) & (
        drafts.c.journey_id == journeys.c.journey_id
    )
    return (
        select(journeys.c.journey_id, journeys.c.name, drafts.c.document)
        .join_from(journeys, drafts, same)
        .where(journeys.c.tenant_id == tenant_id, journeys.c.status != "deleted")
    )


def _versions(tenant_id: int) -> Any:
    same = (versions.c.tenant_id == journeys.c.tenant_id) & (
        versions.c.journey_id == journeys.c.journey_id
    )
    named = (journeys.c.journey_id, journeys.c.name, journeys.c.published_version)
    return (
        select(*named, versions.c.version, versions.c.document)
        .join_from(journeys, versions, same)
        .where(journeys.c.tenant_id == tenant_id, journeys.c.status != "deleted")
    )


async def _walked(connection: AsyncConnection, tenant_id: int) -> set[tuple[int, int]]:
    """The versions in which somebody is."""
    query = (
        select(instances.c.journey_id, instances.c.version)
        .where(instances.c.tenant_id == tenant_id, instances.c.exit_reason == "")
        .distinct()
    )
    return {(row.journey_id, row.version) for row in await connection.execute(query)}


def _use(row: Row[Any], version: int, template_id: int) -> Use:
    nodes = orjson.loads(row.document).get("nodes", [])
    ids = tuple(node["id"] for node in nodes if template_id in _sent_by(node))
    return Use(row.journey_id, row.name, version, ids)


def _sent_by(node: Mapping[str, Any]) -> Iterator[int]:
    """The templates that a node sends, by whichever channel."""
    action = node.get("action") or {}
    for sending in (action, *(action.get("channels") or ())):
        if isinstance(sending.get("template_id"), int):
            yield sending["template_id"]
