"""What is found, sent and allowed: the scanner, templates, segments, consent, tasks."""

from __future__ import annotations

from alembic import op
from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Integer,
    PrimaryKeyConstraint,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import TEXT

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# A revision is history: it repeats what tables.py said on its day, and never imports it.
IDENTITY = Text().with_variant(TEXT(collation="C"), "postgresql")


def upgrade() -> None:
    deferred_sends()
    budget_uses()
    tasks()
    templates()
    template_versions()
    segments()
    segment_versions()
    subscriptions()
    subscription_changes()
    policies()
    looks()
    scans()
    audience()
    timers_held()


def deferred_sends() -> None:
    op.create_table(
        "deferred_sends",
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
        Column("send_at", BigInteger, nullable=False),
        Column("reason", Text, nullable=False),
        CheckConstraint("NOT is_holdout", name=op.f("ck_deferred_sends_nothing_for_a_holdout")),
        PrimaryKeyConstraint("tenant_id", "message_id", name=op.f("pk_deferred_sends")),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_deferred_sends_send_at"), "deferred_sends", ["send_at"])
    op.create_index(
        op.f("ix_deferred_sends_tenant_id_user_id"), "deferred_sends", ["tenant_id", "user_id"]
    )


def budget_uses() -> None:
    op.create_table(
        "budget_uses",
        Column("tenant_id", BigInteger, nullable=False),
        Column("user_id", IDENTITY, nullable=False),
        Column("message_id", IDENTITY, nullable=False),
        Column("budget", IDENTITY, nullable=False),
        Column("day", Integer, nullable=False),
        PrimaryKeyConstraint("tenant_id", "user_id", "message_id", name=op.f("pk_budget_uses")),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_budget_uses_day"), "budget_uses", ["day"])


def tasks() -> None:
    op.create_table(
        "tasks",
        Column("tenant_id", BigInteger, nullable=False),
        Column("task_id", IDENTITY, nullable=False),
        Column("user_id", IDENTITY, nullable=False),
        Column("journey_id", BigInteger, nullable=False),
        Column("version", BigInteger, nullable=False),
        Column("entry_count", BigInteger, nullable=False),
        Column("node_id", IDENTITY, nullable=False),
        Column("task", Text, nullable=False),
        Column("title", Text, nullable=False),
        Column("connected_outcomes", Text, nullable=False),
        Column("status", Text, nullable=False),
        Column("outcome", Text, nullable=False),
        Column("note", Text, nullable=False),
        Column("completed_by", Text, nullable=False),
        Column("created_at", BigInteger, nullable=False),
        Column("completed_at", BigInteger, nullable=True),
        CheckConstraint(
            "status IN ('open', 'completed', 'cancelled')", name=op.f("ck_tasks_status")
        ),
        CheckConstraint(
            "(status = 'open') = (completed_at IS NULL)",
            name=op.f("ck_tasks_ended_at_a_time"),
        ),
        PrimaryKeyConstraint("tenant_id", "task_id", name=op.f("pk_tasks")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        op.f("ix_tasks_tenant_id_status_created_at"), "tasks", ["tenant_id", "status", "created_at"]
    )
    op.create_index(op.f("ix_tasks_tenant_id_user_id"), "tasks", ["tenant_id", "user_id"])


def templates() -> None:
    op.create_table(
        "templates",
        Column("tenant_id", BigInteger, nullable=False),
        Column("template_id", BigInteger, nullable=False),
        Column("name", Text, nullable=False),
        Column("channel", Text, nullable=False),
        Column("version", BigInteger, nullable=False),
        Column("created_at", BigInteger, nullable=False),
        Column("updated_at", BigInteger, nullable=False),
        Column("archived_at", BigInteger, nullable=True),
        PrimaryKeyConstraint("tenant_id", "template_id", name=op.f("pk_templates")),
        sqlite_with_rowid=False,
    )


def template_versions() -> None:
    op.create_table(
        "template_versions",
        Column("tenant_id", BigInteger, nullable=False),
        Column("template_id", BigInteger, nullable=False),
        Column("version", BigInteger, nullable=False),
        Column("category", Text, nullable=False),
        Column("texts", Text, nullable=False),
        Column("saved_at", BigInteger, nullable=False),
        Column("saved_token", Text, nullable=False),
        PrimaryKeyConstraint(
            "tenant_id", "template_id", "version", name=op.f("pk_template_versions")
        ),
        sqlite_with_rowid=False,
    )


def segments() -> None:
    op.create_table(
        "segments",
        Column("tenant_id", BigInteger, nullable=False),
        Column("segment_id", BigInteger, nullable=False),
        Column("name", Text, nullable=False),
        Column("kind", Text, nullable=False),
        Column("version", BigInteger, nullable=False),
        Column("created_at", BigInteger, nullable=False),
        Column("updated_at", BigInteger, nullable=False),
        Column("archived_at", BigInteger, nullable=True),
        Column("refreshed_at", BigInteger, nullable=True),
        CheckConstraint("kind IN ('list', 'rule')", name=op.f("ck_segments_kind")),
        PrimaryKeyConstraint("tenant_id", "segment_id", name=op.f("pk_segments")),
        sqlite_with_rowid=False,
    )


def segment_versions() -> None:
    op.create_table(
        "segment_versions",
        Column("tenant_id", BigInteger, nullable=False),
        Column("segment_id", BigInteger, nullable=False),
        Column("version", BigInteger, nullable=False),
        Column("definition", Text, nullable=False),
        Column("saved_at", BigInteger, nullable=False),
        Column("saved_token", Text, nullable=False),
        PrimaryKeyConstraint(
            "tenant_id", "segment_id", "version", name=op.f("pk_segment_versions")
        ),
        sqlite_with_rowid=False,
    )


def subscriptions() -> None:
    op.create_table(
        "subscriptions",
        Column("tenant_id", BigInteger, nullable=False),
        Column("user_id", IDENTITY, nullable=False),
        Column("channel", IDENTITY, nullable=False),
        Column("category", IDENTITY, nullable=False),
        Column("state", Text, nullable=False),
        Column("version", BigInteger, nullable=False),
        Column("changed_at", BigInteger, nullable=False),
        CheckConstraint(
            "state IN ('subscribed', 'unsubscribed')",
            name=op.f("ck_subscriptions_state"),
        ),
        PrimaryKeyConstraint(
            "tenant_id", "user_id", "channel", "category", name=op.f("pk_subscriptions")
        ),
        sqlite_with_rowid=False,
    )


def subscription_changes() -> None:
    op.create_table(
        "subscription_changes",
        Column("tenant_id", BigInteger, nullable=False),
        Column("user_id", IDENTITY, nullable=False),
        Column("channel", IDENTITY, nullable=False),
        Column("category", IDENTITY, nullable=False),
        Column("version", BigInteger, nullable=False),
        Column("state", Text, nullable=False),
        Column("source", Text, nullable=False),
        Column("cause", Text, nullable=False),
        Column("changed_at", BigInteger, nullable=False),
        PrimaryKeyConstraint(
            "tenant_id",
            "user_id",
            "channel",
            "category",
            "version",
            name=op.f("pk_subscription_changes"),
        ),
        sqlite_with_rowid=False,
    )


def policies() -> None:
    op.create_table(
        "policies",
        Column("tenant_id", BigInteger, nullable=False),
        Column("version", BigInteger, nullable=False),
        Column("document", Text, nullable=False),
        Column("saved_at", BigInteger, nullable=False),
        Column("saved_token", Text, nullable=False),
        PrimaryKeyConstraint("tenant_id", "version", name=op.f("pk_policies")),
        sqlite_with_rowid=False,
    )


def looks() -> None:
    op.create_table(
        "looks",
        Column("tenant_id", BigInteger, nullable=False),
        Column("journey_id", BigInteger, nullable=False),
        Column("version", BigInteger, nullable=False),
        Column("asks", Text, nullable=False),
        Column("next_at", BigInteger, nullable=False),
        Column("slot_at", BigInteger, nullable=True),
        Column("stage", Text, nullable=False),
        Column("position", IDENTITY, nullable=False),
        Column("is_first", Boolean, nullable=False),
        Column("members", BigInteger, nullable=False),
        Column("found", BigInteger, nullable=False),
        Column("skipped", BigInteger, nullable=False),
        Column("is_truncated", Boolean, nullable=False),
        Column("started_at", BigInteger, nullable=True),
        Column("try_at", BigInteger, nullable=False),
        Column("attempts", BigInteger, nullable=False),
        Column("lease_token", Text, nullable=True),
        Column("last_error", Text, nullable=False),
        PrimaryKeyConstraint("tenant_id", "journey_id", name=op.f("pk_looks")),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_looks_try_at"), "looks", ["try_at"])


def scans() -> None:
    op.create_table(
        "scans",
        Column("tenant_id", BigInteger, nullable=False),
        Column("journey_id", BigInteger, nullable=False),
        Column("slot_at", BigInteger, nullable=False),
        Column("version", BigInteger, nullable=False),
        Column("kind", Text, nullable=False),
        Column("is_first", Boolean, nullable=False),
        Column("members", BigInteger, nullable=False),
        Column("found", BigInteger, nullable=False),
        Column("skipped", BigInteger, nullable=False),
        Column("is_truncated", Boolean, nullable=False),
        Column("started_at", BigInteger, nullable=False),
        Column("ended_at", BigInteger, nullable=False),
        PrimaryKeyConstraint("tenant_id", "journey_id", "slot_at", name=op.f("pk_scans")),
        sqlite_with_rowid=False,
    )


def audience() -> None:
    op.create_table(
        "audience",
        Column("tenant_id", BigInteger, nullable=False),
        Column("journey_id", BigInteger, nullable=False),
        Column("user_id", IDENTITY, nullable=False),
        PrimaryKeyConstraint("tenant_id", "journey_id", "user_id", name=op.f("pk_audience")),
        sqlite_with_rowid=False,
    )


def timers_held() -> None:
    op.create_index(
        op.f("ix_timers_held"),
        "timers",
        ["tenant_id", "journey_id", "due"],
        postgresql_where=text("bucket = 2147483646"),
        sqlite_where=text("bucket = 2147483646"),
    )
