"""Runs revisions on the connection it is handed; Alembic loads this file by itself."""

from __future__ import annotations

from alembic import context

from journeykit_server.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # SQLite alters hardly anything: a table is copied into a changed one instead.
    render_as_batch=True,
)
context.run_migrations()
