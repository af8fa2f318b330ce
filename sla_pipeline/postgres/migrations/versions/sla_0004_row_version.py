"""The version of a row set aside: a row that has changed since it failed is tried at once, without its pause."""

from alembic import op

from sla_pipeline.postgres.migrations.additive import add_missing

revision = "sla_0004"
down_revision = "sla_0003"
branch_labels = None
depends_on = None
compatible_from = "sla_0004"


def upgrade() -> None:
    """Add the column; a row that is set aside already keeps its pause."""
    add_missing("support.ticket_sla_set_aside", {"row_version": "text"})


def downgrade() -> None:
    """Drop the column."""
    op.execute("alter table support.ticket_sla_set_aside drop column if exists row_version")
