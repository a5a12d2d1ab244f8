"""The schema, one for both databases: what is kept, and what can never be kept.

Every key begins with the tenant. The person comes before the journey in it, because an event asks
for everything about one person; so all that belongs to somebody lies together. Moments are
microseconds since 1970 in UTC, always in a column whose name ends in `_at` or is `due`.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Sequence,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, TEXT
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeEngine

NEVER_BUCKET = 2**31 - 1  # the minute of a timer that is not to be tried again: in the year 6053
HELD_BUCKET = NEVER_BUCKET - 1  # the minute of a timer whose journey stands still
NEVER = 2**62  # a moment that does not come, in microseconds
NUMBERS_A_BLOCK = 1_000  # event numbers fetched at once; the most events of one transaction

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "pk": "pk_%(table_name)s",
    }
)

ID = Text().with_variant(TEXT(collation="C"), "postgresql")
"""Text that is compared byte for byte, whatever language the database was made for."""
DOCUMENT = JSON().with_variant(JSONB(), "postgresql")
"""Values that rules ask about in SQL."""


def _id(name: str) -> Column[str]:
    return Column(name, ID, nullable=False)


def _number(name: str, default: str | None = None) -> Column[int]:
    return Column(name, BigInteger, nullable=False, server_default=default)


def _moment(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False)


def _moment_or_null(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=True)


def _text(name: str, default: str | None = None) -> Column[str]:
    return Column(name, Text, nullable=False, server_default=default)


def _ids(*names: str) -> list[Column[str]]:
    return [_id(name) for name in names]


def _numbers(*names: str) -> list[Column[int]]:
    return [_number(name) for name in names]


def _texts(*names: str) -> list[Column[str]]:
    return [_text(name) for name in names]


def _moments(*names: str) -> list[Column[int]]:
    return [_moment(name) for name in names]


def _flag(name: str) -> Column[bool]:
    return Column(name, Boolean, nullable=False)


def _index(rows: str, name: str, *columns: str) -> Index:
    """An index of these rows only; a query must name them in the same words."""
    return Index(name, *columns, postgresql_where=text(rows), sqlite_where=text(rows))


def _table(name: str, key: tuple[str, ...], *parts: SchemaItem) -> Table:
    return Table(name, metadata, *parts, PrimaryKeyConstraint(*key), sqlite_with_rowid=False)


journeys = _table(
    "journeys",
    ("tenant_id", "journey_id"),
    _number("tenant_id"),
    _number("journey_id"),
    _text("name"),
    _text("status"),
    _number("published_version"),
    _moment("created_at"),
    _moment("updated_at"),
    _text("pause_mode", default=""),
    _text("status_before", default=""),
    _moment_or_null("deleted_at"),
    _text("origin", default="own"),
    _text("reviewed", default=""),
    _text("reviewed_by", default=""),
    _moment_or_null("reviewed_at"),
    CheckConstraint("status IN ('draft', 'published', 'paused', 'archived', 'deleted')", "status"),
    CheckConstraint("pause_mode IN ('', 'entries', 'freeze', 'drain')", "pause_mode"),
    CheckConstraint("origin IN ('own', 'library', 'suggestion')", "origin"),
)
"""One row a journey; `published_version` is 0 before the first publishing.

`pause_mode` says what stands still while `status` is paused, "" otherwise. A deleted journey keeps
`status_before` for whoever restores it until 30 days after `deleted_at`. One that somebody else
wrote (`origin`) is published only as it was `reviewed`: the fingerprint of what it does.
"""

drafts = _table(
    "drafts",
    ("tenant_id", "journey_id"),
    _number("tenant_id"),
    _number("journey_id"),
    _number("revision"),
    _text("document"),
    _moment("saved_at"),
    _text("saved_token", default=""),
)
"""What is being edited; `revision` grows by one at every save, `saved_token` names the last one."""

versions = _table(
    "versions",
    ("tenant_id", "journey_id", "version"),
    _number("tenant_id"),
    _number("journey_id"),
    _number("version"),
    _text("document"),
    _id("sha256"),
    _number("format"),
    _text("account_timezone"),
    _moment("published_at"),
    _text("published_token"),
    _number("revision", default="0"),
)
"""What was published, never changed. `sha256` is of the document's bytes, `format` the number of
the document format that wrote it, `account_timezone` the account's zone of that day, `revision` the
draft's that was published."""

profiles = _table(
    "profiles",
    ("tenant_id", "user_id"),
    _number("tenant_id"),
    _id("user_id"),
    Column("traits", DOCUMENT, nullable=False),
    _text("written_at"),
    Column("phone_timezone", Text, nullable=True),
    _moment("created_at"),
    _moment("updated_at"),
)
"""One row a person; whoever changes anything of a person locks this row first."""

events = _table(
    "events",
    ("tenant_id", "user_id", "name", "number"),
    _number("tenant_id"),
    _id("user_id"),
    _id("name"),
    _number("number"),
    _id("source"),
    _id("event_id"),
    _text("kind"),
    _moment("at"),
    _moment("occurred_at"),
    Column("properties", DOCUMENT, nullable=False),
    UniqueConstraint("tenant_id", "source", "event_id"),
    CheckConstraint("kind IN ('track', 'identify', 'enter')", "kind"),
)
"""Inbox and history in one. `number` gives the order of arrival of one person's events; an
identify has the name ""."""

event_numbers = Sequence("event_numbers", increment=NUMBERS_A_BLOCK, metadata=metadata)
"""Where numbers of events come from on PostgreSQL; on SQLite `counters` has them."""

inbox = _table(
    "inbox",
    ("tenant_id", "user_id", "journey_id", "number"),
    _number("tenant_id"),
    _id("user_id"),
    _number("journey_id"),
    _number("number"),
    _id("name"),
    Column("changed", Text, nullable=True),
    _moment("try_at"),
    _number("attempts"),
    _text("last_error"),
    _moment("failed_at"),
    Index(None, "try_at"),
)
"""Events that a journey has still to hear about a person, because its walk failed. Later events of
the two queue up here behind the first; other journeys are not held up. `changed` holds the traits
that an identify really wrote, as JSON."""

instances = _table(
    "instances",
    ("tenant_id", "user_id", "journey_id"),
    _number("tenant_id"),
    _id("user_id"),
    _number("journey_id"),
    _number("version"),
    _number("entry_count"),
    _number("rev"),
    _text("status"),
    _id("current_node"),
    _moment("entered_at"),
    _moment("updated_at"),
    _moment_or_null("wake_at"),
    _text("entered_by"),
    _text("variant"),
    _flag("is_holdout"),
    _text("exit_reason"),
    _text("state"),
    _moment_or_null("paused_at"),
    CheckConstraint("status IN ('active', 'waiting', 'completed', 'exited')", "status"),
    CheckConstraint("(status IN ('active', 'waiting')) = (exit_reason = '')", "ended_with_reason"),
    CheckConstraint("rev > 0 AND entry_count > 0", "counted"),
    _index("status = 'waiting'", "ix_instances_waiting", "tenant_id", "journey_id", "current_node"),
)
"""Where a person is in a journey: their latest pass. The key is the law that nobody is in two
places at once; `rev` grows by one at every step and is the fence."""

entries = _table(
    "entries",
    ("tenant_id", "user_id", "journey_id", "entry_count"),
    _number("tenant_id"),
    _id("user_id"),
    _number("journey_id"),
    _number("entry_count"),
    _number("version"),
    _moment("entered_at"),
    _text("entered_by"),
    _moment_or_null("ended_at"),
    _text("exit_reason"),
    _text("exit_node"),
    _text("variant"),
    _flag("is_holdout"),
    CheckConstraint("(ended_at IS NULL) = (exit_reason = '')", "ended_with_reason"),
)
"""One row a pass, for analysis."""

timers = _table(
    "timers",
    ("tenant_id", "user_id", "journey_id"),
    _number("tenant_id"),
    _id("user_id"),
    _number("journey_id"),
    _number("version"),
    _number("rev"),
    _moment("due"),
    Column("bucket", Integer, nullable=False),
    _moment("try_at"),
    _number("attempts"),
    Column("lease_token", Text, nullable=True),
    _text("last_error"),
    _moment_or_null("failed_at"),
    Index(None, "bucket"),
    _index(f"bucket = {HELD_BUCKET}", "ix_timers_held", "tenant_id", "journey_id", "due"),
)
"""One row a parked person who wakes by themselves. `rev` is the instance's when this was scheduled:
where they differ the timer is superseded. `bucket` is the minute at which to look at it, `try_at`
the moment before which nobody may claim it: `due`, the end of a lease, or of a backoff. A timer
that is dead lies in `NEVER_BUCKET`, one that came due while its journey stood still in
`HELD_BUCKET`, from where the journey takes it back when it goes on."""

segment_members = _table(
    "segment_members",
    ("tenant_id", "user_id", "segment_id"),
    _number("tenant_id"),
    _id("user_id"),
    _number("segment_id"),
    _moment("since_at"),
    Index(None, "tenant_id", "segment_id"),
)

node_stats = _table(
    "node_stats",
    ("tenant_id", "journey_id", "version", "node_id", "shard"),
    _number("tenant_id"),
    _number("journey_id"),
    _number("version"),
    _id("node_id"),
    Column("shard", Integer, nullable=False),
    _number("entered"),
    _number("exited"),
    _number("suppressed"),
)
"""Counters, written in the transaction of the step; `shard` keeps workers out of each other's way,
a reader adds the shards up. Who waits where is counted from `instances`."""

journal = _table(
    "journal",
    ("tenant_id", "user_id", "journey_id", "rev", "step"),
    _number("tenant_id"),
    _id("user_id"),
    _number("journey_id"),
    _number("rev"),
    _number("step"),
    _number("version"),
    _number("entry_count"),
    _moment("at"),
    _text("cause"),
    _text("trail"),
)
"""One row a step: the path taken and why. `step` is 0 for a step that moved the person to `rev`, so
the key lets nobody take it twice; what moved nobody (an entry refused, a step that failed) has the
number of its event, or of its attempt below zero. `trail` holds the records, one a line."""

outbox = _table(
    "outbox",
    ("tenant_id", "message_id"),
    _number("tenant_id"),
    *_ids("message_id", "user_id"),
    *_numbers("journey_id", "version", "entry_count", "rev", "position"),
    _id("node_id"),
    *_texts("kind", "payload"),
    _flag("is_holdout"),
    *_moments("created_at", "try_at"),
    _number("attempts"),
    Column("lease_token", Text, nullable=True),
    _text("last_error"),
    _moment_or_null("failed_at"),
    Index(None, "try_at"),
    Index(None, "tenant_id", "user_id", "journey_id", "rev", "position"),
    CheckConstraint("NOT is_holdout", "nothing_for_a_holdout"),
    CheckConstraint("kind IN ('send', 'webhook', 'enter_journey', 'task')", "kind"),
)
"""What has to be done outside and is not done yet; a row leaves when it is settled. The effects of
one pass go in the order of `rev` and `position`."""

messages = _table(
    "messages",
    ("tenant_id", "message_id"),
    _number("tenant_id"),
    *_ids("message_id", "user_id"),
    *_numbers("journey_id", "version", "entry_count"),
    _id("node_id"),
    *_texts("kind", "channel", "state", "reason"),
    _flag("is_holdout"),
    _number("attempts"),
    *_moments("created_at", "settled_at"),
    _text("detail", default=""),
    _text("category", default=""),
    _text("budget", default=""),
    Column("template_id", BigInteger, nullable=True),
    Column("template_version", BigInteger, nullable=True),
    Index(None, "tenant_id", "user_id", "settled_at"),
    CheckConstraint("state IN ('delivered', 'suppressed')", "state"),
    CheckConstraint("NOT (is_holdout AND state = 'delivered')", "nothing_for_a_holdout"),
)
"""The delivery log: what became of every effect that left the outbox, and of what a walk withheld.
`detail` says more about the reason, as the names that a text had no value for."""

deferred_sends = _table(
    "deferred_sends",
    ("tenant_id", "message_id"),
    _number("tenant_id"),
    *_ids("message_id", "user_id"),
    *_numbers("journey_id", "version", "entry_count", "rev", "position"),
    _id("node_id"),
    *_texts("kind", "payload"),
    _flag("is_holdout"),
    *_moments("created_at", "send_at"),
    _text("reason"),
    Index(None, "send_at"),
    Index(None, "tenant_id", "user_id"),
    CheckConstraint("NOT is_holdout", "nothing_for_a_holdout"),
)
"""Messages that wait for the end of quiet hours, with the values they were made with; their person
has walked on. At `send_at` they go back into the outbox, and every question is asked anew."""

budget_uses = _table(
    "budget_uses",
    ("tenant_id", "user_id", "message_id"),
    _number("tenant_id"),
    *_ids("user_id", "message_id", "budget"),
    Column("day", Integer, nullable=False),
    Index(None, "day"),
)
"""What counts against a person's caps: a row a message from before it is offered, taken back if it
does not go out. `day` is the account's, counted from 1970-01-01."""

tasks = _table(
    "tasks",
    ("tenant_id", "task_id"),
    _number("tenant_id"),
    *_ids("task_id", "user_id"),
    *_numbers("journey_id", "version", "entry_count"),
    _id("node_id"),
    *_texts("task", "title", "connected_outcomes", "status", "outcome", "note", "completed_by"),
    _moment("created_at"),
    _moment_or_null("completed_at"),
    Index(None, "tenant_id", "status", "created_at"),
    Index(None, "tenant_id", "user_id"),
    CheckConstraint("status IN ('open', 'completed', 'cancelled')", "status"),
    CheckConstraint("(status = 'open') = (completed_at IS NULL)", "ended_at_a_time"),
)
"""What people have to do by hand; `task_id` is the id of the effect that asked for it."""

templates = _table(
    "templates",
    ("tenant_id", "template_id"),
    *_numbers("tenant_id", "template_id"),
    *_texts("name", "channel"),
    _number("version"),
    *_moments("created_at", "updated_at"),
    _moment_or_null("archived_at"),
)
"""One row a template; `version` is the one that is sent now."""

template_versions = _table(
    "template_versions",
    ("tenant_id", "template_id", "version"),
    *_numbers("tenant_id", "template_id", "version"),
    *_texts("category", "texts"),
    _moment("saved_at"),
    _text("saved_token"),
)
"""What a template said, never changed: `texts` is JSON, text by name; `category` is "" where the
node's counts."""

segments = _table(
    "segments",
    ("tenant_id", "segment_id"),
    *_numbers("tenant_id", "segment_id"),
    *_texts("name", "kind"),
    _number("version"),
    *_moments("created_at", "updated_at"),
    _moment_or_null("archived_at"),
    _moment_or_null("refreshed_at"),
    CheckConstraint("kind IN ('list', 'rule')", "kind"),
)
"""One row a segment: a list kept by hand and by journeys, or a rule whose members are counted anew
now and then (`refreshed_at`, below zero while that goes on). `segment_members` has both."""

segment_versions = _table(
    "segment_versions",
    ("tenant_id", "segment_id", "version"),
    *_numbers("tenant_id", "segment_id", "version"),
    _text("definition"),
    _moment("saved_at"),
    _text("saved_token"),
)
"""What a segment asked, never changed; "" for a list."""

subscriptions = _table(
    "subscriptions",
    ("tenant_id", "user_id", "channel", "category"),
    _number("tenant_id"),
    *_ids("user_id", "channel", "category"),
    _text("state"),
    _number("version"),
    _moment("changed_at"),
    CheckConstraint("state IN ('subscribed', 'unsubscribed')", "state"),
)
"""What a person wants to get, as they last said; "*" stands for every channel or category."""

subscription_changes = _table(
    "subscription_changes",
    ("tenant_id", "user_id", "channel", "category", "version"),
    _number("tenant_id"),
    *_ids("user_id", "channel", "category"),
    _number("version"),
    *_texts("state", "source", "cause"),
    _moment("changed_at"),
)
"""Every change of a subscription, the proof of a consent: who told us (`source`), by which event or
call (`cause`)."""

policies = _table(
    "policies",
    ("tenant_id", "version"),
    *_numbers("tenant_id", "version"),
    _text("document"),
    _moment("saved_at"),
    _text("saved_token"),
)
"""What an account allows: quiet hours, caps, channels. The highest version counts."""

looks = _table(
    "looks",
    ("tenant_id", "journey_id"),
    *_numbers("tenant_id", "journey_id", "version"),
    _text("asks"),
    _moment("next_at"),
    _moment_or_null("slot_at"),
    _text("stage"),
    _id("position"),
    _flag("is_first"),
    *_numbers("members", "found", "skipped"),
    _flag("is_truncated"),
    _moment_or_null("started_at"),
    _moment("try_at"),
    _number("attempts"),
    Column("lease_token", Text, nullable=True),
    _text("last_error"),
    Index(None, "try_at"),
)
"""Where the scanner stands with a journey whose trigger has to be looked for. `asks` is what it
asks at the door: another question begins with a first look. `slot_at` names the look that is under
way, null between two; `position` is the last person that it has passed."""

scans = _table(
    "scans",
    ("tenant_id", "journey_id", "slot_at"),
    *_numbers("tenant_id", "journey_id"),
    _moment("slot_at"),
    _number("version"),
    _text("kind"),
    _flag("is_first"),
    *_numbers("members", "found", "skipped"),
    _flag("is_truncated"),
    *_moments("started_at", "ended_at"),
)
"""Every look that came to its end: how many people the question holds for (`members`), how many the
trigger took from them (`found`), how many had a date that cannot be read (`skipped`)."""

audience = _table(
    "audience",
    ("tenant_id", "journey_id", "user_id"),
    *_numbers("tenant_id", "journey_id"),
    _id("user_id"),
)
"""Who was inside at the last look, for a trigger that asks who came or left."""

deliveries = _table(
    "deliveries",
    ("tenant_id", "message_id"),
    _number("tenant_id"),
    *_ids("message_id", "user_id"),
    *_texts("kind", "payload"),
    _moment("accepted_at"),
    _number("times"),
)
"""What the log provider took, each id once; `times` counts how often it was offered."""

exposures = _table(
    "exposures",
    ("tenant_id", "user_id", "journey_id", "entry_count", "node_id"),
    _number("tenant_id"),
    _id("user_id"),
    *_numbers("journey_id", "entry_count"),
    _id("node_id"),
    _number("version"),
    _text("variant"),
    _flag("is_holdout"),
    _moment("at"),
)
"""Who reached which split and what it gave them; the first time in a pass counts."""

dead_letters = _table(
    "dead_letters",
    ("tenant_id", "letter_id"),
    _number("tenant_id"),
    _id("letter_id"),
    _text("kind"),
    _id("user_id"),
    *_numbers("journey_id", "version"),
    _id("node_id"),
    _text("code"),
    _text("message"),
    _number("attempts"),
    _moment("first_at"),
    _moment("last_at"),
    _text("payload"),
    Index(None, "tenant_id", "user_id"),
    CheckConstraint("kind IN ('timer', 'effect', 'event')", "kind"),
)
"""What could not be done and waits for somebody: `payload` is what a retry needs."""

counters = _table(
    "counters",
    ("tenant_id", "name"),
    _number("tenant_id"),
    _id("name"),
    _number("value"),
)
"""Numbers that are given out once and never again: ids of journeys, of events on SQLite."""


def kind_of(column_type: TypeEngine[object]) -> str:
    """The name of a column's type on PostgreSQL, for an array of such values."""
    names = {JSON: "jsonb", Boolean: "boolean", BigInteger: "bigint", Integer: "integer"}
    return next((name for kind, name in names.items() if isinstance(column_type, kind)), "text")
