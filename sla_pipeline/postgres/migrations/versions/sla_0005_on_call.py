"""Counters that survive the deletion of rows, and three more numbers of a cycle in the journal."""

from alembic import op

from sla_pipeline.postgres.migrations.additive import add_missing

revision = "sla_0005"
down_revision = "sla_0004"
branch_labels = None
depends_on = None
compatible_from = "sla_0004"

_DELAY_BUCKET_COUNT = 14
_JOURNAL = {
    "publishing_stopped": "boolean not null default false",
    "detected_count": "integer not null default 0",
    "late_count": "integer not null default 0",
}
_GRANTS = (
    "select on support.ticket_sla_counters to sla_worker, sla_analyst",
    "update on support.ticket_sla_counters to sla_worker",
)


def upgrade() -> None:
    """Create the table with its row, or add what is missing; add the journal's columns."""
    add_missing("support.ticket_sla_cycles", _JOURNAL)
    add_missing(
        "support.ticket_sla_counters",
        {
            "id": "integer not null",
            "created_at": "timestamptz not null default clock_timestamp()",
            # breach records up to this sequence are in the four counters below
            "counted_seq": "bigint not null default 0",
            "first_response_count": "bigint not null default 0",
            "resolution_count": "bigint not null default 0",
            # one count per bucket of the delay from deadline to record, not cumulative
            "delay_bucket_counts": "bigint[] not null",
            "delay_seconds_sum": "double precision not null default 0",
            "error_count": "bigint not null default 0",
        },
        {"ticket_sla_counters_pkey": "primary key (id)", "ticket_sla_counters_id_check": "check (id = 1)"},
    )
    op.execute(
        "insert into support.ticket_sla_counters (id, delay_bucket_counts) values (1, array_fill(0::bigint, "
        f"array[{_DELAY_BUCKET_COUNT}])) on conflict (id) do nothing"
    )
    for grant in _GRANTS:
        op.execute(f"grant {grant}")


def downgrade() -> None:
    """Drop the table and the columns."""
    op.execute("drop table if exists support.ticket_sla_counters")
    for column in _JOURNAL:
        op.execute(f"alter table support.ticket_sla_cycles drop column if exists {column}")
