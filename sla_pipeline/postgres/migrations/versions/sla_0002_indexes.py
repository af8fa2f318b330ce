"""Our two partial indexes on the support service's table, built concurrently: the job works without them, slower."""

from alembic import op

from sla_pipeline.postgres.schema import OUR_INDEXES

revision = "sla_0002"
down_revision = "sla_0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Build them without blocking writers; a half-built one of an interrupted try is dropped first."""
    with op.get_context().autocommit_block():
        for name, definition in OUR_INDEXES.items():
            op.execute(f"drop index concurrently if exists support.{name}")
            op.execute(f"create index concurrently {name} {definition}")


def downgrade() -> None:
    """Drop them."""
    with op.get_context().autocommit_block():
        for name in OUR_INDEXES:
            op.execute(f"drop index concurrently if exists support.{name}")
