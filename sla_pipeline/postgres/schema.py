"""What the job expects to find in the database, and the check that it is there.

What belongs here: names of our objects, the revision that this version of the package works with, the check at the start of a
cycle. What does not: how the objects come to be (``migrations/``).
"""

import logging

import psycopg

from sla_pipeline.errors import DatabaseError

__all__ = ["OUR_INDEXES", "REVISION", "SCHEMA", "VERSION_TABLE", "check_revision", "warn_of_missing_indexes"]

log = logging.getLogger(__name__)

SCHEMA = "support"
VERSION_TABLE = "ticket_sla_schema_version"
# the newest revision of branch sla_monitor; a test holds it equal to Alembic's head
REVISION = "sla_0004"

# the statuses and the flags stand in the predicates of tickets.py as literals, in this form, or the planner does not use these
OUR_INDEXES = {
    "ticket_sla_first_response_overdue": (
        "on support.tickets (first_response_due_at, id) "
        "where status in ('New', 'InWork') and not sla_breached and first_response_at is null"
    ),
    "ticket_sla_resolution_overdue": (
        "on support.tickets (resolution_due_at) where status = 'InWork' and not sla_breached and resolved_at is null"
    ),
}

_REVISIONS = f"select version_num from {SCHEMA}.{VERSION_TABLE} where version_num like 'sla%'"
_VALID_INDEXES = """
select c.relname from pg_index i join pg_class c on c.oid = i.indexrelid
where i.indrelid = 'support.tickets'::regclass and i.indisvalid and c.relname = any(%s)
"""


def check_revision(connection: psycopg.Connection) -> None:
    """Raises ``DatabaseError`` unless the database is migrated exactly as far as this package needs."""
    try:
        found = connection.execute(_REVISIONS).fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        found = None
    where = f"database {connection.info.dbname!r} on {connection.info.host}:{connection.info.port}"
    if found is None:
        raise DatabaseError(f"{where} is not migrated; run `sla-pipeline migrate` as its owner (SLA_POSTGRES_OWNER_URL)")
    revision = str(found[0])
    if revision < REVISION:
        raise DatabaseError(f"{where} is at revision {revision}, this version needs {REVISION}; run `sla-pipeline migrate`")
    if revision > REVISION:
        raise DatabaseError(
            f"{where} is at revision {revision}, newer than {REVISION} that this version knows; deploy the newer sla-pipeline"
        )


def warn_of_missing_indexes(connection: psycopg.Connection) -> list[str]:
    """Log a warning for each of our indexes that is missing or half built, and return their names; the job works without, slower."""
    valid = {name for (name,) in connection.execute(_VALID_INDEXES, (list(OUR_INDEXES),))}
    missing = [name for name in OUR_INDEXES if name not in valid]
    for name in missing:
        log.warning("index missing: cycles get slower as tickets grow; run `sla-pipeline migrate`", extra={"index": f"{SCHEMA}.{name}"})
    return missing
