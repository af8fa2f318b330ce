"""Two group roles: the worker may change two columns of a ticket and no other (SPEC 7.1), analysts may only read.

Roles belong to the whole cluster, so they may exist already. A downgrade revokes the grants and keeps the roles.
"""

from alembic import op

revision = "sla_0003"
down_revision = "sla_0002"
branch_labels = None
depends_on = None
compatible_from = "sla_0003"

_GRANTS = (
    "usage on schema support to sla_worker, sla_analyst",
    "select on support.tickets, support.ticket_sla_schema_version, support.ticket_sla_breaches, "
    "support.ticket_sla_relay, support.ticket_sla_cycles, support.ticket_sla_set_aside to sla_worker, sla_analyst",
    "update (sla_breached, updated_at) on support.tickets to sla_worker",
    "insert on support.ticket_sla_breaches to sla_worker",
    "update (last_seq, published_seq, published_at) on support.ticket_sla_relay to sla_worker",
    "insert, update on support.ticket_sla_cycles to sla_worker",
    "insert, update, delete on support.ticket_sla_set_aside to sla_worker",
)


def upgrade() -> None:
    """Create the missing roles, and grant."""
    for role in ("sla_worker", "sla_analyst"):
        # the check comes first because an owner without createrole uses roles that a DBA has created. The exceptions
        # are those of two databases of one cluster that are migrated at once
        op.execute(
            f"do $$ begin if to_regrole('{role}') is null then create role {role} nologin; end if; "
            "exception when duplicate_object or unique_violation then null; end $$"
        )
    for grant in _GRANTS:
        op.execute(f"grant {grant}")


def downgrade() -> None:
    """Revoke the grants."""
    for grant in reversed(_GRANTS):
        op.execute(f"revoke {grant.replace(' to ', ' from ')}")
