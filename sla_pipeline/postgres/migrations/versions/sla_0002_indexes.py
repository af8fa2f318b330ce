"""Two partial indexes on the support service's table, built concurrently; the job works without them, but slower."""

from alembic import op

from sla_pipeline.postgres.migrations import index_build
from sla_pipeline.postgres.migrations.index_definition import IndexDefinition

revision = "sla_0002"
down_revision = "sla_0001"
branch_labels = None
depends_on = None
compatible_from = "sla_0002"

_INDEXES = (
    IndexDefinition(
        name="ticket_sla_first_response_overdue",
        table="support.tickets",
        columns="first_response_due_at, id",
        condition="status in ('New', 'InWork') and not sla_breached and first_response_at is null",
        printed=frozenset(("status = ANY ARRAY['New', 'InWork']", "NOT sla_breached", "first_response_at IS NULL")),
    ),
    IndexDefinition(
        name="ticket_sla_resolution_overdue",
        table="support.tickets",
        columns="resolution_due_at",
        condition="status = 'InWork' and not sla_breached and resolved_at is null",
        printed=frozenset(("status = 'InWork'", "NOT sla_breached", "resolved_at IS NULL")),
    ),
)


def upgrade() -> None:
    """Build the missing ones."""
    with op.get_context().autocommit_block():
        for index in _INDEXES:
            index_build.build(op.get_bind(), index)


def downgrade() -> None:
    """Drop both."""
    with op.get_context().autocommit_block():
        for index in _INDEXES:
            index_build.drop(op.get_bind(), index)
