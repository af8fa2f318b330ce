"""The support service's table, as production has it: for demo and tests only.

The monitor never alters it. Only the key and the number are constrained, because the monitor must tolerate any row.
"""

from alembic import op

revision = "support_0001"
down_revision = None
branch_labels = ("support_service",)
depends_on = None


def upgrade() -> None:
    """Create ``support.tickets`` with the two partial indexes of SPEC 5.3."""
    op.execute(
        """
        create table support.tickets (
            id uuid primary key,
            number text not null unique,
            tenant_id uuid,
            queue_id uuid,
            requester_user_id uuid,
            assignee_user_id uuid,
            priority text,
            status text not null,
            first_response_due_at timestamptz,
            first_response_at timestamptz,
            resolution_due_at timestamptz,
            resolved_at timestamptz,
            sla_breached boolean not null default false,
            created_at timestamptz not null default now(),
            updated_at timestamptz not null default now()
        )
        """
    )
    op.execute(
        "create index tickets_first_response_due on support.tickets (first_response_due_at) where status in ('New', "
        "'InWork')"
    )
    op.execute("create index tickets_resolution_due on support.tickets (resolution_due_at) where status = 'InWork'")


def downgrade() -> None:
    """Drop the table."""
    op.execute("drop table support.tickets")
