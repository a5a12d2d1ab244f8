"""The first schema."""

from __future__ import annotations

from alembic import op
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Integer,
    PrimaryKeyConstraint,
    Sequence,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, TEXT
from sqlalchemy.schema import CreateSequence

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# A revision is history: it repeats what tables.py said on its day, and never imports it.
IDENTITY = Text().with_variant(TEXT(collation="C"), "postgresql")
DOCUMENT = JSON().with_variant(JSONB(), "postgresql")


def upgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        op.execute(CreateSequence(Sequence("event_numbers", increment=1000)))
    journeys()
    drafts()
    versions()
    profiles()
    events()
    inbox()
    instances()
    entries()
    timers()
    segment_members()
    node_stats()
    journal()
    outbox()
    messages()
    deliveries()
    exposures()
    dead_letters()
    counters()


def journeys() -> None:
    op.create_table(
        "journeys",
        Column("tenant_id", BigInteger, nullable=False),
        Column("journey_id", BigInteger, nullable=False),
        Column("name", Text, nullable=False),
        Column("status", Text, nullable=False),
        Column("published_version", BigInteger, nullable=False),
        Column("created_at", BigInteger, nullable=False),
        Column("updated_at", BigInteger, nullable=False),
        Column("pause_mode", Text, nullable=False, server_default=""),
        Column("status_before", Text, nullable=False, server_default=""),
        Column("deleted_at", BigInteger, nullable=True),
        Column("origin", Text, nullable=False, server_default="own"),
        Column("reviewed", Text, nullable=False, server_default=""),
        Column("reviewed_by", Text, nullable=False, server_default=""),
        Column("reviewed_at", BigInteger, nullable=True),
        CheckConstraint(
            "status IN ('draft', 'published', 'paused', 'archived', 'deleted')",
            name=op.f("ck_journeys_status"),
        ),
        CheckConstraint(
            "pause_mode IN ('', 'entries', 'freeze', 'drain')",
            name=op.f("ck_journeys_pause_mode"),
        ),
        CheckConstraint(
            "origin IN ('own', 'library', 'suggestion')", name=op.f("ck_journeys_origin")
        ),
        PrimaryKeyConstraint("tenant_id", "journey_id", name=op.f("pk_journeys")),
        sqlite_with_rowid=False,
    )


def drafts() -> None:
    op.create_table(
        "drafts",
        Column("tenant_id", BigInteger, nullable=False),
        Column("journey_id", BigInteger, nullable=False),
        Column("revision", BigInteger, nullable=False),
        Column("document", Text, nullable=False),
        Column("saved_at", BigInteger, nullable=False),
        Column("saved_token", Text, nullable=False, server_default=""),
        PrimaryKeyConstraint("tenant_id", "journey_id", name=op.f("pk_drafts")),
        sqlite_with_rowid=False,
    )


def versions() -> None:
    op.create_table(
        "versions",
        Column("tenant_id", BigInteger, nullable=False),
        Column("journey_id", BigInteger, nullable=False),
        Column("version", BigInteger, nullable=False),
        Column("document", Text, nullable=False),
        Column("sha256", IDENTITY, nullable=False),
        Column("format", BigInteger, nullable=False),
        Column("account_timezone", Text, nullable=False),
        Column("published_at", BigInteger, nullable=False),
        Column("published_token", Text, nullable=False),
        Column("revision", BigInteger, nullable=False, server_default="0"),
        PrimaryKeyConstraint("tenant_id", "journey_id", "version", name=op.f("pk_versions")),
        sqlite_with_rowid=False,
    )


def profiles() -> None:
    op.create_table(
        "profiles",
        Column("tenant_id", BigInteger, nullable=False),
        Column("user_id", IDENTITY, nullable=False),
        Column("traits", DOCUMENT, nullable=False),
        Column("written_at", Text, nullable=False),
        Column("phone_timezone", Text, nullable=True),
        Column("created_at", BigInteger, nullable=False),
        Column("updated_at", BigInteger, nullable=False),
        PrimaryKeyConstraint("tenant_id", "user_id", name=op.f("pk_profiles")),
        sqlite_with_rowid=False,
    )


def events() -> None:
    op.create_table(
        "events",
        Column("tenant_id", BigInteger, nullable=False),
        Column("user_id", IDENTITY, nullable=False),
        Column("name", IDENTITY, nullable=False),
        Column("number", BigInteger, nullable=False),
        Column("source", IDENTITY, nullable=False),
        Column("event_id", IDENTITY, nullable=False),
        Column("kind", Text, nullable=False),
        Column("at", BigInteger, nullable=False),
        Column("occurred_at", BigInteger, nullable=False),
        Column("properties", DOCUMENT, nullable=False),
        UniqueConstraint(
            "tenant_id", "source", "event_id", name=op.f("uq_events_tenant_id_source_event_id")
        ),
        CheckConstraint("kind IN ('track', 'identify', 'enter')", name=op.f("ck_events_kind")),
        PrimaryKeyConstraint("tenant_id", "user_id", "name", "number", name=op.f("pk_events")),
        sqlite_with_rowid=False,
    )


def inbox() -> None:
    op.create_table(
        "inbox",
        Column("tenant_id", BigInteger, nullable=False),
        Column("user_id", IDENTITY, nullable=False),
        Column("journey_id", BigInteger, nullable=False),
        Column("number", BigInteger, nullable=False),
        Column("name", IDENTITY, nullable=False),
        Column("changed", Text, nullable=True),
        Column("try_at", BigInteger, nullable=False),
        Column("attempts", BigInteger, nullable=False),
        Column("last_error", Text, nullable=False),
        Column("failed_at", BigInteger, nullable=False),
        PrimaryKeyConstraint("tenant_id", "user_id", "journey_id", "number", name=op.f("pk_inbox")),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_inbox_try_at"), "inbox", ["try_at"])


def instances() -> None:
    op.create_table(
        "instances",
        Column("tenant_id", BigInteger, nullable=False),
        Column("user_id", IDENTITY, nullable=False),
        Column("journey_id", BigInteger, nullable=False),
        Column("version", BigInteger, nullable=False),
        Column("entry_count", BigInteger, nullable=False),
        Column("rev", BigInteger, nullable=False),
        Column("status", Text, nullable=False),
        Column("current_node", IDENTITY, nullable=False),
        Column("entered_at", BigInteger, nullable=False),
        Column("updated_at", BigInteger, nullable=False),
        Column("wake_at", BigInteger, nullable=True),
        Column("entered_by", Text, nullable=False),
        Column("variant", Text, nullable=False),
        Column("is_holdout", Boolean, nullable=False),
        Column("exit_reason", Text, nullable=False),
        Column("state", Text, nullable=False),
        Column("paused_at", BigInteger, nullable=True),
        CheckConstraint(
            "status IN ('active', 'waiting', 'completed', 'exited')",
            name=op.f("ck_instances_status"),
        ),
        CheckConstraint(
            "(status IN ('active', 'waiting')) = (exit_reason = '')",
            name=op.f("ck_instances_ended_with_reason"),
        ),
        CheckConstraint("rev > 0 AND entry_count > 0", name=op.f("ck_instances_counted")),
        PrimaryKeyConstraint("tenant_id", "user_id", "journey_id", name=op.f("pk_instances")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        op.f("ix_instances_waiting"),
        "instances",
        ["tenant_id", "journey_id", "current_node"],
        postgresql_where=text("status = 'waiting'"),
        sqlite_where=text("status = 'waiting'"),
    )


def entries() -> None:
    op.create_table(
        "entries",
        Column("tenant_id", BigInteger, nullable=False),
        Column("user_id", IDENTITY, nullable=False),
        Column("journey_id", BigInteger, nullable=False),
        Column("entry_count", BigInteger, nullable=False),
        Column("version", BigInteger, nullable=False),
        Column("entered_at", BigInteger, nullable=False),
        Column("entered_by", Text, nullable=False),
        Column("ended_at", BigInteger, nullable=True),
        Column("exit_reason", Text, nullable=False),
        Column("exit_node", Text, nullable=False),
        Column("variant", Text, nullable=False),
        Column("is_holdout", Boolean, nullable=False),
        CheckConstraint(
            "(ended_at IS NULL) = (exit_reason = '')", name=op.f("ck_entries_ended_with_reason")
        ),
        PrimaryKeyConstraint(
            "tenant_id", "user_id", "journey_id", "entry_count", name=op.f("pk_entries")
        ),
        sqlite_with_rowid=False,
    )


def timers() -> None:
    op.create_table(
        "timers",
        Column("tenant_id", BigInteger, nullable=False),
        Column("user_id", IDENTITY, nullable=False),
        Column("journey_id", BigInteger, nullable=False),
        Column("version", BigInteger, nullable=False),
        Column("rev", BigInteger, nullable=False),
        Column("due", BigInteger, nullable=False),
        Column("bucket", Integer, nullable=False),
        Column("try_at", BigInteger, nullable=False),
        Column("attempts", BigInteger, nullable=False),
        Column("lease_token", Text, nullable=True),
        Column("last_error", Text, nullable=False),
        Column("failed_at", BigInteger, nullable=True),
        PrimaryKeyConstraint("tenant_id", "user_id", "journey_id", name=op.f("pk_timers")),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_timers_bucket"), "timers", ["bucket"])


def segment_members() -> None:
    op.create_table(
        "segment_members",
        Column("tenant_id", BigInteger, nullable=False),
        Column("user_id", IDENTITY, nullable=False),
        Column("segment_id", BigInteger, nullable=False),
        Column("since_at", BigInteger, nullable=False),
        PrimaryKeyConstraint("tenant_id", "user_id", "segment_id", name=op.f("pk_segment_members")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        op.f("ix_segment_members_tenant_id_segment_id"),
        "segment_members",
        ["tenant_id", "segment_id"],
    )


def node_stats() -> None:
    op.create_table(
        "node_stats",
        Column("tenant_id", BigInteger, nullable=False),
        Column("journey_id", BigInteger, nullable=False),
        Column("version", BigInteger, nullable=False),
        Column("node_id", IDENTITY, nullable=False),
        Column("shard", Integer, nullable=False),
        Column("entered", BigInteger, nullable=False),
        Column("exited", BigInteger, nullable=False),
        Column("suppressed", BigInteger, nullable=False),
        PrimaryKeyConstraint(
            "tenant_id", "journey_id", "version", "node_id", "shard", name=op.f("pk_node_stats")
        ),
        sqlite_with_rowid=False,
    )


def journal() -> None:
    op.create_table(
        "journal",
        Column("tenant_id", BigInteger, nullable=False),
        Column("user_id", IDENTITY, nullable=False),
        Column("journey_id", BigInteger, nullable=False),
        Column("rev", BigInteger, nullable=False),
        Column("step", BigInteger, nullable=False),
        Column("version", BigInteger, nullable=False),
        Column("entry_count", BigInteger, nullable=False),
        Column("at", BigInteger, nullable=False),
        Column("cause", Text, nullable=False),
        Column("trail", Text, nullable=False),
        PrimaryKeyConstraint(
            "tenant_id", "user_id", "journey_id", "rev", "step", name=op.f("pk_journal")
        ),
        sqlite_with_rowid=False,
    )


def outbox() -> None:
    op.create_table(
        "outbox",
        Column("tenant_id", BigInteger, nullable=False),
        Column("message_id", IDENTITY, nullable=False),
        Column("user_id", IDENTITY, nullable=False),
        Column("journey_id", BigInteger, nullable=False),
        Column("version", BigInteger, nullable=False),
        Column("entry_count", BigInteger, nullable=False),
        Column("rev", BigInteger, nullable=False),
        Column("position", BigInteger, nullable=False),
        Column("node_id", IDENTITY, nullable=False),
        Column("kind", Text, nullable=False),
        Column("payload", Text, nullable=False),
        Column("is_holdout", Boolean, nullable=False),
        Column("created_at", BigInteger, nullable=False),
        Column("try_at", BigInteger, nullable=False),
        Column("attempts", BigInteger, nullable=False),
        Column("lease_token", Text, nullable=True),
        Column("last_error", Text, nullable=False),
        Column("failed_at", BigInteger, nullable=True),
        CheckConstraint("NOT is_holdout", name=op.f("ck_outbox_nothing_for_a_holdout")),
        CheckConstraint(
            "kind IN ('send', 'webhook', 'enter_journey', 'task')", name=op.f("ck_outbox_kind")
        ),
        PrimaryKeyConstraint("tenant_id", "message_id", name=op.f("pk_outbox")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        op.f("ix_outbox_tenant_id_user_id_journey_id_rev_position"),
        "outbox",
        ["tenant_id", "user_id", "journey_id", "rev", "position"],
    )
    op.create_index(op.f("ix_outbox_try_at"), "outbox", ["try_at"])


def messages() -> None:
    op.create_table(
        "messages",
        Column("tenant_id", BigInteger, nullable=False),
        Column("message_id", IDENTITY, nullable=False),
        Column("user_id", IDENTITY, nullable=False),
        Column("journey_id", BigInteger, nullable=False),
        Column("version", BigInteger, nullable=False),
        Column("entry_count", BigInteger, nullable=False),
        Column("node_id", IDENTITY, nullable=False),
        Column("kind", Text, nullable=False),
        Column("channel", Text, nullable=False),
        Column("state", Text, nullable=False),
        Column("reason", Text, nullable=False),
        Column("is_holdout", Boolean, nullable=False),
        Column("attempts", BigInteger, nullable=False),
        Column("created_at", BigInteger, nullable=False),
        Column("settled_at", BigInteger, nullable=False),
        Column("detail", Text, nullable=False, server_default=""),
        Column("category", Text, nullable=False, server_default=""),
        Column("budget", Text, nullable=False, server_default=""),
        Column("template_id", BigInteger, nullable=True),
        Column("template_version", BigInteger, nullable=True),
        CheckConstraint("state IN ('delivered', 'suppressed')", name=op.f("ck_messages_state")),
        CheckConstraint(
            "NOT (is_holdout AND state = 'delivered')",
            name=op.f("ck_messages_nothing_for_a_holdout"),
        ),
        PrimaryKeyConstraint("tenant_id", "message_id", name=op.f("pk_messages")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        op.f("ix_messages_tenant_id_user_id_settled_at"),
        "messages",
        ["tenant_id", "user_id", "settled_at"],
    )


def deliveries() -> None:
    op.create_table(
        "deliveries",
        Column("tenant_id", BigInteger, nullable=False),
        Column("message_id", IDENTITY, nullable=False),
        Column("user_id", IDENTITY, nullable=False),
        Column("kind", Text, nullable=False),
        Column("payload", Text, nullable=False),
        Column("accepted_at", BigInteger, nullable=False),
        Column("times", BigInteger, nullable=False),
        PrimaryKeyConstraint("tenant_id", "message_id", name=op.f("pk_deliveries")),
        sqlite_with_rowid=False,
    )


def exposures() -> None:
    op.create_table(
        "exposures",
        Column("tenant_id", BigInteger, nullable=False),
        Column("user_id", IDENTITY, nullable=False),
        Column("journey_id", BigInteger, nullable=False),
        Column("entry_count", BigInteger, nullable=False),
        Column("node_id", IDENTITY, nullable=False),
        Column("version", BigInteger, nullable=False),
        Column("variant", Text, nullable=False),
        Column("is_holdout", Boolean, nullable=False),
        Column("at", BigInteger, nullable=False),
        PrimaryKeyConstraint(
            "tenant_id",
            "user_id",
            "journey_id",
            "entry_count",
            "node_id",
            name=op.f("pk_exposures"),
        ),
        sqlite_with_rowid=False,
    )


def dead_letters() -> None:
    op.create_table(
        "dead_letters",
        Column("tenant_id", BigInteger, nullable=False),
        Column("letter_id", IDENTITY, nullable=False),
        Column("kind", Text, nullable=False),
        Column("user_id", IDENTITY, nullable=False),
        Column("journey_id", BigInteger, nullable=False),
        Column("version", BigInteger, nullable=False),
        Column("node_id", IDENTITY, nullable=False),
        Column("code", Text, nullable=False),
        Column("message", Text, nullable=False),
        Column("attempts", BigInteger, nullable=False),
        Column("first_at", BigInteger, nullable=False),
        Column("last_at", BigInteger, nullable=False),
        Column("payload", Text, nullable=False),
        CheckConstraint("kind IN ('timer', 'effect', 'event')", name=op.f("ck_dead_letters_kind")),
        PrimaryKeyConstraint("tenant_id", "letter_id", name=op.f("pk_dead_letters")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        op.f("ix_dead_letters_tenant_id_user_id"), "dead_letters", ["tenant_id", "user_id"]
    )


def counters() -> None:
    op.create_table(
        "counters",
        Column("tenant_id", BigInteger, nullable=False),
        Column("name", IDENTITY, nullable=False),
        Column("value", BigInteger, nullable=False),
        PrimaryKeyConstraint("tenant_id", "name", name=op.f("pk_counters")),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    raise NotImplementedError("Nothing is older than the first schema: drop the database.")
