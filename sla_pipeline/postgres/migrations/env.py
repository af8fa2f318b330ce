"""Alembic's entry: runs the revisions on the connection and with the options that ``postgres/migrate.py`` passes."""

from alembic import context

context.configure(**context.config.attributes["options"])
with context.begin_transaction():
    context.run_migrations()
