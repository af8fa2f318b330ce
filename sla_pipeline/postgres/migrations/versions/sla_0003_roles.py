"""Two group roles: the worker can change two columns of a ticket and nothing else of it (SPEC 7.1), analysts can only read.

Roles belong to the whole cluster, so they may exist already, and a downgrade takes back the grants and leaves the
roles.
"""

from alembic import op

from sla_pipeline.postgres.schema import VERSION_TABLE

revision = "sla_0003"
down_revision = "sla_0002"
branch_labels = None
depends_on = None

_OURS = ("ticket_sla_breaches", "ticket_sla_relay", "ticket_sla_cycles", "ticket_sla_set_aside")
_GRANTS = (
    "usage on schema support to sla_worker, sla_analyst",
    f"select on support.tickets, support.{VERSION_TABLE}, {', '.join(f'support.{table}' for table in _OURS)} to "
    "sla_worker, sla_analyst",
    "update (sla_breached, updated_at) on support.tickets to sla_worker",
    "insert on support.ticket_sla_breaches to sla_worker",
    "update (last_seq, published_seq, published_at) on support.ticket_sla_relay to sla_worker",
    "insert, update on support.ticket_sla_cycles to sla_worker",
    "insert, update, delete on support.ticket_sla_set_aside to sla_worker",
)


def upgrade() -> None:
    """Create the roles where they are missing, and grant."""
    for role in ("sla_worker", "sla_analyst"):
        # looked for first: an owner who may not make roles uses those that a DBA has made. Two databases of one cluster
        # may be migrated at once: whoever comes second finds the role there
        op.execute(
            f"do $$ begin if to_regrole('{role}') is null then create role {role} nologin; end if; "
            "exception when duplicate_object or unique_violation then null; end $$"
        )
    for grant in _GRANTS:
        op.execute(f"grant {grant}")


def downgrade() -> None:
    """Take back the grants."""
    for grant in reversed(_GRANTS):
        op.execute(f"revoke {grant.replace(' to ', ' from ')}")
