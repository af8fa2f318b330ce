"""Alembic's entry: runs the scripts on the connection that ``postgres/migrate.py`` hands over."""

from alembic import context

from sla_pipeline.postgres.schema import SCHEMA, VERSION_TABLE

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    version_table=VERSION_TABLE,
    version_table_schema=SCHEMA,
    # an index built concurrently must not share its transaction with anything
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
