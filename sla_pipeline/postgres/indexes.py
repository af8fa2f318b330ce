"""Two partial indexes on the support service's table: their definitions, and the checks of the running code.

Revision ``sla_0002`` builds them from definitions of its own; a test holds the two equal. An index is recognized by its
definition, not by its name: one that somebody built by hand is as good.
"""

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

import psycopg

from sla_pipeline.errors import PostgresSetupError
from sla_pipeline.postgres.migrations.index_definition import IndexDefinition

if TYPE_CHECKING:
    from sqlalchemy import Connection

__all__ = ["DEFINITIONS", "OUR_INDEXES", "missing_indexes", "require_free_names", "warn_of_missing"]

log = logging.getLogger(__name__)

# the predicates of tickets.py repeat these statuses and flags as literals; in any other form the planner does not use
# the indexes
OUR_INDEXES = (
    IndexDefinition(
        "ticket_sla_first_response_overdue",
        "support.tickets",
        "first_response_due_at, id",
        "status in ('New', 'InWork') and not sla_breached and first_response_at is null",
        frozenset(("status = ANY ARRAY['New', 'InWork']", "NOT sla_breached", "first_response_at IS NULL")),
    ),
    IndexDefinition(
        "ticket_sla_resolution_overdue",
        "support.tickets",
        "resolution_due_at",
        "status = 'InWork' and not sla_breached and resolved_at is null",
        frozenset(("status = 'InWork'", "NOT sla_breached", "resolved_at IS NULL")),
    ),
)

# Indexes of the table itself: on a partitioned one, an index represents those of all partitions and is valid when they
# all are. To print a definition locks the table for a moment, as reading it does.
DEFINITIONS = """
select pg_get_indexdef(indexrelid), indisvalid and indisready
from pg_index where indrelid = to_regclass('support.tickets')
"""
# Bounds the wait behind somebody who rebuilds the table, which takes long: a warning is not worth a longer wait.
_WAIT_MS = 50
_RELATION_OF_NAME = """
select c.relkind::text, i.indrelid = to_regclass('{table}'),
    case when i.indexrelid is not null then pg_get_indexdef(c.oid) end
from pg_class c left join pg_index i on i.indexrelid = c.oid where c.oid = to_regclass('{schema}.{name}')
"""
_RELATION_KINDS = {"v": "view", "m": "materialized view", "S": "sequence", "f": "foreign table", "c": "type"}


def missing_indexes(found: Iterable[tuple[str, bool]]) -> list[IndexDefinition]:
    """Return those of our indexes that ``found``, rows of ``DEFINITIONS``, has under no name, or only half built."""
    valid = [definition for definition, is_valid in found if is_valid]
    return [index for index in OUR_INDEXES if not any(map(index.is_defined_by, valid))]


def warn_of_missing(connection: psycopg.Connection) -> None:
    """Log a warning for each of our indexes that is missing or half built; the job works without it, but slower."""
    try:
        with connection.pipeline(), connection.transaction():
            connection.execute(f"set local lock_timeout = {_WAIT_MS}")
            cursor = connection.execute(DEFINITIONS)
        found = cursor.fetchall()
    except psycopg.errors.LockNotAvailable:
        return
    for index in missing_indexes(found):
        log.warning(
            "index missing: cycles get slower as tickets grow; run `sla-pipeline migrate`",
            extra={"index": f"{index.schema}.{index.name}"},
        )


def require_free_names(connection: "Connection") -> None:
    """Raise ``PostgresSetupError`` where another relation has the name of an index that is missing."""
    found = connection.exec_driver_sql(DEFINITIONS).fetchall()
    for index in missing_indexes((definition, valid) for definition, valid in found):
        statement = _RELATION_OF_NAME.format(table=index.table, schema=index.schema, name=index.name)
        row = connection.exec_driver_sql(statement).fetchone()
        if row is None or (row[1] and index.is_defined_by(row[2])):
            continue
        what, kind = (row[2], "index") if row[2] else ("not an index", _RELATION_KINDS.get(row[0], "table"))
        name = f"{index.schema}.{index.name}"
        raise PostgresSetupError(
            f"the name {name} is taken by another {kind} ({what}), needed is an index of {index.table} on "
            f"({index.columns}) where {index.condition}. Nothing was touched; rename the other one (`alter {kind} "
            f"{name} rename to OTHER_NAME`) and run `sla-pipeline migrate` again"
        )
