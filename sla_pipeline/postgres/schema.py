"""Checks at the start of a cycle and of each command: the database's revision, and the support service's table."""

import functools
import logging

import psycopg

from sla_pipeline.errors import PostgresSetupError
from sla_pipeline.postgres.tickets_table import read_table
from sla_pipeline.postgres.tickets_table_faults import require_table

__all__ = ["REVISION", "SCHEMA", "VERSION_TABLE", "check_revision", "check_tickets"]

log = logging.getLogger(__name__)

SCHEMA = "support"
VERSION_TABLE = "ticket_sla_schema_version"
# the newest revision of branch sla_monitor; a test holds it equal to Alembic's head
REVISION = "sla_0005"

# through jsonb, because a database that was migrated before `migrate` wrote compatible_from lacks the column
_REVISION = f"""
select version_num, to_jsonb(version) ->> 'compatible_from'
from {SCHEMA}.{VERSION_TABLE} version where version_num like 'sla%'
"""


def check_revision(connection: psycopg.Connection) -> None:
    """Return if this version works on the database as it is migrated: at our revision, or at a compatible newer one.

    A newer revision is unknown to this package, so the database itself names the oldest revision that it is compatible
    with. Raises ``PostgresSetupError`` for an older database, for a newer one that is not compatible, and for one that
    is not migrated.
    """
    try:
        found = connection.execute(_REVISION).fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        found = None
    where = f"database {connection.info.dbname!r} on {connection.info.host}:{connection.info.port}"
    if found is None:
        raise PostgresSetupError(
            f"{where} is not migrated; run `sla-pipeline migrate` as its owner (SLA_POSTGRES_OWNER_URL)"
        )
    revision, compatible_from = found
    if revision < REVISION:
        raise PostgresSetupError(
            f"{where} is at revision {revision}, this version needs {REVISION}; run `sla-pipeline migrate`"
        )
    if revision > REVISION:
        if compatible_from is None or compatible_from > REVISION:
            raise PostgresSetupError(
                f"{where} is at revision {revision}, newer than {REVISION} that this version knows; deploy the newer "
                "sla-pipeline"
            )
        _log_newer(revision)


@functools.cache
def _log_newer(revision: str) -> None:
    """Log once per process, since each cycle of a worker that is not rolled out yet would repeat it."""
    log.info(
        "database is newer than this version, and compatible with it",
        extra={"revision": revision, "knownRevision": REVISION},
    )


def check_tickets(connection: psycopg.Connection, *, for_audit: bool = False) -> None:
    """Raise ``PostgresSetupError`` unless the support service's table is as the monitor needs it.

    ``for_audit`` checks also the columns that only the audit reads.
    """
    found = read_table(connection)
    if found is None:
        raise PostgresSetupError(
            f"table support.tickets does not exist in database {connection.info.dbname!r} on {connection.info.host}:"
            f"{connection.info.port}: it belongs to the support service; check SLA_POSTGRES_URL"
        )
    require_table(found, for_audit=for_audit)
