"""Our two partial indexes on the support service's table, built concurrently: the job works without them, slower."""

from alembic import op

from sla_pipeline.postgres import index_build

revision = "sla_0002"
down_revision = "sla_0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Build those that are missing."""
    with op.get_context().autocommit_block():
        index_build.build(op.get_bind())


def downgrade() -> None:
    """Drop them."""
    with op.get_context().autocommit_block():
        index_build.drop(op.get_bind())
