"""Checks at the start of a cycle and of each command: the revision of our objects, the shape of the support service's table.

What does not belong here: how our objects come to be (``migrations/``), what is needed of the table
(``tickets_table.py``).
"""

import psycopg

from sla_pipeline.errors import PostgresSetupError
from sla_pipeline.postgres.tickets_table import read_table, require_table

__all__ = ["REVISION", "SCHEMA", "VERSION_TABLE", "check_revision", "check_tickets"]

SCHEMA = "support"
VERSION_TABLE = "ticket_sla_schema_version"
# the newest revision of branch sla_monitor; a test holds it equal to Alembic's head
REVISION = "sla_0004"

_REVISIONS = f"select version_num from {SCHEMA}.{VERSION_TABLE} where version_num like 'sla%'"


def check_revision(connection: psycopg.Connection) -> None:
    """Raises ``PostgresSetupError`` unless the database is migrated exactly as far as this package needs."""
    try:
        found = connection.execute(_REVISIONS).fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        found = None
    where = f"database {connection.info.dbname!r} on {connection.info.host}:{connection.info.port}"
    if found is None:
        raise PostgresSetupError(
            f"{where} is not migrated; run `sla-pipeline migrate` as its owner (SLA_POSTGRES_OWNER_URL)"
        )
    revision = str(found[0])
    if revision < REVISION:
        raise PostgresSetupError(
            f"{where} is at revision {revision}, this version needs {REVISION}; run `sla-pipeline migrate`"
        )
    if revision > REVISION:
        raise PostgresSetupError(
            f"{where} is at revision {revision}, newer than {REVISION} that this version knows; deploy the newer "
            "sla-pipeline"
        )


def check_tickets(connection: psycopg.Connection, *, for_audit: bool = False) -> None:
    """Raises ``PostgresSetupError`` unless the support service's table is as the monitor needs it.

    ``for_audit`` needs the columns as well that only the audit reads.
    """
    found = read_table(connection)
    if found is None:
        raise PostgresSetupError(
            f"table support.tickets does not exist in database {connection.info.dbname!r} on {connection.info.host}:"
            f"{connection.info.port}: it belongs to the support service; check SLA_POSTGRES_URL"
        )
    require_table(found, for_audit=for_audit)
