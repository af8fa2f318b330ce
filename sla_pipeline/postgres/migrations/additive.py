"""Adds to a table of ours what it lacks, so that a revision can run again on a database that has lost something.

Frozen like the revisions that use it: what is there already is left as it is, whatever it looks like.
"""

from collections.abc import Mapping

import psycopg
import sqlalchemy
from alembic import op

from sla_pipeline.errors import PostgresSetupError

__all__ = ["add_missing", "add_missing_index"]

_COLUMNS = (
    "select attname from pg_attribute where attrelid = to_regclass('support.{table}') and attnum > 0 and "
    "not attisdropped"
)
_CONSTRAINTS = "select conname from pg_constraint where conrelid = to_regclass('support.{table}')"


def add_missing(table: str, columns: Mapping[str, str], constraints: Mapping[str, str] | None = None) -> bool:
    """Create ``support.<table>``, or add those of its columns and constraints that are missing. Returns whether the table was created.

    Raises ``PostgresSetupError`` for a column without which the rows that are there cannot be.
    """
    connection = op.get_bind()
    constraints = constraints or {}
    if connection.exec_driver_sql(f"select to_regclass('support.{table}')").scalar() is None:
        parts = [f"{name} {definition}" for name, definition in columns.items()]
        parts += [f"constraint {name} {definition}" for name, definition in constraints.items()]
        op.execute(f"create table support.{table} ({', '.join(parts)})")
        return True
    found = set(connection.exec_driver_sql(_COLUMNS.format(table=table)).scalars())
    for name, definition in columns.items():
        if name not in found:
            try:
                op.execute(f"alter table support.{table} add column {name} {definition}")
            except sqlalchemy.exc.IntegrityError as error:
                if not isinstance(error.orig, psycopg.errors.NotNullViolation):
                    raise
                raise _values_lost(table, name) from None
    found = set(connection.exec_driver_sql(_CONSTRAINTS.format(table=table)).scalars())
    for name, definition in constraints.items():
        if name not in found:
            op.execute(f"alter table support.{table} add constraint {name} {definition}")
    return False


def add_missing_index(name: str, definition: str) -> None:
    """Create an index on a table of ours, unless there is one of this name: `if not exists` would wait for writers
    first.
    """
    if op.get_bind().exec_driver_sql(f"select to_regclass('support.{name}')").scalar() is None:
        op.execute(f"create index {name} {definition}")


def _values_lost(table: str, column: str) -> PostgresSetupError:
    again = "run `sla-pipeline migrate` again"
    if table == "ticket_sla_breaches":
        again += ", then `sla-pipeline recover`, which writes the records back from their events"
    return PostgresSetupError(
        f"column {column} of support.{table} is gone, and with it a value that each of its rows must have. Nothing was "
        f"changed; restore the table from a backup, or give its rows up (`drop table support.{table}`) and {again}"
    )
