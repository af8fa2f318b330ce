"""The monitor's tables: breach records (the outbox), the relay's position, the journal of cycles, rows set aside."""

from alembic import op

from sla_pipeline.postgres.migrations.additive import add_missing, add_missing_index

revision = "sla_0001"
down_revision = None
branch_labels = ("sla_monitor",)
depends_on = None
compatible_from = "sla_0001"


def upgrade() -> None:
    """Create the four tables, or add what they lack."""
    records_are_new = add_missing(
        "support.ticket_sla_breaches",
        {
            "seq": "bigint not null",
            # no foreign key: a ticket may be deleted, the record of its event stays
            "ticket_id": "uuid not null",
            "number": "text not null",
            "kind": "text not null",
            "due_at": "timestamptz not null",
            "breached_at": "timestamptz not null",
            "correlation_id": "text not null",
            "payload": "text not null",
            "recorded_at": "timestamptz not null default clock_timestamp()",
        },
        {
            "ticket_sla_breaches_pkey": "primary key (seq)",
            "ticket_sla_breaches_ticket_id_key": "unique (ticket_id)",
            "ticket_sla_breaches_kind_check": "check (kind in ('FirstResponse', 'Resolution'))",
        },
        then=", then `sla-pipeline recover`, which writes the records back from their events",
    )
    add_missing(
        "support.ticket_sla_relay",
        {
            "id": "integer not null",
            # a plain row holds the last sequence handed out: numbers of a sequence object have gaps and do not commit
            # in order
            "last_seq": "bigint not null",
            "published_seq": "bigint not null",
            "published_at": "timestamptz",
        },
        {
            "ticket_sla_relay_pkey": "primary key (id)",
            "ticket_sla_relay_id_check": "check (id = 1)",
            "ticket_sla_relay_check": "check (published_seq between 0 and last_seq)",
        },
    )
    if records_are_new:
        # without its records the database equals one restored to before its first record, which recovery can repair
        op.execute("update support.ticket_sla_relay set last_seq = 0, published_seq = 0, published_at = null")
    # a published_seq of 0 is safe: Kafka's progress record holds the position, and the next takeover copies it here
    op.execute(
        "insert into support.ticket_sla_relay (id, last_seq, published_seq) select 1, coalesce(max(seq), 0), 0 from "
        "support.ticket_sla_breaches on conflict (id) do nothing"
    )
    add_missing(
        "support.ticket_sla_cycles",
        {
            "id": "bigint generated always as identity",
            "run_id": "text not null",
            "state": "text not null default 'running'",
            "started_at": "timestamptz not null default clock_timestamp()",
            "finished_at": "timestamptz",
            "now_utc": "timestamptz not null",
            "batch_size": "integer not null",
            "max_batches_per_cycle": "integer not null",
            "tenant_id": "uuid",
            "claimed_count": "integer not null default 0",
            "processed_count": "integer not null default 0",
            "first_response_count": "integer not null default 0",
            "resolution_count": "integer not null default 0",
            "batch_count": "integer not null default 0",
            "published_count": "integer not null default 0",
            "transaction_count": "integer not null default 0",
            "backlog_count": "bigint",
            "lock_skip_count": "integer not null default 0",
            "flags_restored_count": "integer not null default 0",
            "unknown_priority_count": "integer not null default 0",
            "set_aside_count": "bigint",
            "error_count": "integer not null default 0",
            "has_more": "boolean not null default false",
            "claim_ms": "double precision",
            "mark_ms": "double precision",
            "publish_ms": "double precision",
            "duration_ms": "double precision",
            "error": "text",
        },
        {
            "ticket_sla_cycles_pkey": "primary key (id)",
            "ticket_sla_cycles_state_check": "check (state in ('running', 'succeeded', 'failed', 'canceled', "
            "'abandoned'))",
        },
    )
    add_missing_index("ticket_sla_cycles_running", "support.ticket_sla_cycles", "(id) where state = 'running'")
    add_missing_index("ticket_sla_cycles_started", "support.ticket_sla_cycles", "(started_at)")
    add_missing(
        "support.ticket_sla_set_aside",
        {
            "ticket_id": "uuid not null",
            "number": "text not null",
            "kind": "text not null",
            "error": "text not null",
            "try_count": "integer not null default 1",
            "first_failed_at": "timestamptz not null",
            "last_failed_at": "timestamptz not null",
            "next_try_at": "timestamptz not null",
        },
        {"ticket_sla_set_aside_pkey": "primary key (ticket_id)"},
    )


def downgrade() -> None:
    """Drop the four tables, and with them the record of what was published."""
    for table in ("ticket_sla_set_aside", "ticket_sla_cycles", "ticket_sla_relay", "ticket_sla_breaches"):
        op.execute(f"drop table if exists support.{table}")
