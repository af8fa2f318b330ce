"""Our tables: breach records (the outbox), the relay's position, the journal of cycles, rows set aside."""

from alembic import op

revision = "sla_0001"
down_revision = None
branch_labels = ("sla_monitor",)
depends_on = None


def upgrade() -> None:
    """Create the four tables."""
    op.execute(
        """
        create table support.ticket_sla_breaches (
            seq bigint primary key,
            -- no foreign key: a ticket may be deleted, what was published of it stays
            ticket_id uuid not null unique,
            number text not null,
            kind text not null check (kind in ('FirstResponse', 'Resolution')),
            due_at timestamptz not null,
            breached_at timestamptz not null,
            correlation_id text not null,
            payload text not null,
            recorded_at timestamptz not null default clock_timestamp()
        )
        """
    )
    op.execute(
        """
        create table support.ticket_sla_relay (
            id integer primary key check (id = 1),
            -- the last sequence handed out: a plain row, not a sequence object, so that numbers have no gap and commit in order
            next_seq bigint not null,
            published_seq bigint not null,
            published_at timestamptz,
            check (published_seq between 0 and next_seq)
        )
        """
    )
    op.execute("insert into support.ticket_sla_relay (id, next_seq, published_seq) values (1, 0, 0)")
    op.execute(
        """
        create table support.ticket_sla_cycles (
            id bigint generated always as identity primary key,
            run_id text not null,
            state text not null default 'running' check (state in ('running', 'succeeded', 'failed', 'canceled', 'abandoned')),
            started_at timestamptz not null default clock_timestamp(),
            finished_at timestamptz,
            now_utc timestamptz not null,
            batch_size integer not null,
            max_batches_per_cycle integer not null,
            tenant_id uuid,
            claimed_count integer not null default 0,
            processed_count integer not null default 0,
            first_response_count integer not null default 0,
            resolution_count integer not null default 0,
            batch_count integer not null default 0,
            published_count integer not null default 0,
            backlog_count bigint,
            lock_skip_count integer not null default 0,
            remarked_count integer not null default 0,
            error_count integer not null default 0,
            has_more boolean not null default false,
            claim_ms double precision,
            mark_ms double precision,
            publish_ms double precision,
            duration_ms double precision,
            error text
        )
        """
    )
    op.execute("create index ticket_sla_cycles_running on support.ticket_sla_cycles (id) where state = 'running'")
    op.execute("create index ticket_sla_cycles_started on support.ticket_sla_cycles (started_at)")
    op.execute(
        """
        create table support.ticket_sla_set_aside (
            ticket_id uuid primary key,
            number text not null,
            kind text not null,
            error text not null,
            try_count integer not null default 1,
            first_failed_at timestamptz not null,
            last_failed_at timestamptz not null,
            next_try_at timestamptz not null
        )
        """
    )


def downgrade() -> None:
    """Drop them, and with them the record of what was published."""
    for table in ("ticket_sla_set_aside", "ticket_sla_cycles", "ticket_sla_relay", "ticket_sla_breaches"):
        op.execute(f"drop table support.{table}")
