"""Add to a table what it lacks, so that a revision can run again on a database that has lost something.

Frozen interface of the revisions: add functions, never change one. No function here names a table or a column. What
exists already is left unchanged, whatever its definition is.
"""

from collections.abc import Mapping

import psycopg
import sqlalchemy
from alembic import op

from sla_pipeline.errors import PostgresSetupError

__all__ = ["add_missing", "add_missing_index", "is_dropped_later"]

_COLUMNS = (
    "select attname from pg_attribute where attrelid = to_regclass('{table}') and attnum > 0 and not attisdropped"
)
_CONSTRAINTS = "select conname from pg_constraint where conrelid = to_regclass('{table}')"


def is_dropped_later(name: str) -> bool:
    """Return whether some revision declares ``name`` in its ``drops``."""
    return name in op.get_context().opts.get("dropped_later", ())


def add_missing(
    table: str, columns: Mapping[str, str], constraints: Mapping[str, str] | None = None, *, then: str = ""
) -> bool:
    """Create ``table`` (``schema.name``), or add its missing columns and constraints. Return whether it was created.

    ``columns`` and ``constraints`` map a name to its definition. A table that exists does not get back what a later
    revision drops; a new one does, for the revisions in between. Raises ``PostgresSetupError`` for a column that must
    have a value in each row, when there are rows: the value is lost. ``then`` names what a person runs after `migrate`
    once these rows are given up.
    """
    connection = op.get_bind()
    constraints = constraints or {}
    if connection.exec_driver_sql(f"select to_regclass('{table}')").scalar() is None:
        parts = [f"{name} {definition}" for name, definition in columns.items()]
        parts += [f"constraint {name} {definition}" for name, definition in constraints.items()]
        op.execute(f"create table {table} ({', '.join(parts)})")
        return True
    found = set(connection.exec_driver_sql(_COLUMNS.format(table=table)).scalars())
    for name, definition in columns.items():
        if name not in found and not is_dropped_later(f"{table}.{name}"):
            try:
                op.execute(f"alter table {table} add column {name} {definition}")
            except sqlalchemy.exc.IntegrityError as error:
                if not isinstance(error.orig, psycopg.errors.NotNullViolation):
                    raise
                raise _values_lost(table, name, then) from None
    found = set(connection.exec_driver_sql(_CONSTRAINTS.format(table=table)).scalars())
    for name, definition in constraints.items():
        if name not in found and not is_dropped_later(f"{table}.{name}"):
            op.execute(f"alter table {table} add constraint {name} {definition}")
    return False


def add_missing_index(name: str, table: str, definition: str) -> None:
    """Create index ``name`` on ``table`` (``schema.name``), unless it exists or a later revision drops it.

    `create index if not exists` would wait for writers even when the index exists.
    """
    qualified = f"{table.partition('.')[0]}.{name}"
    if is_dropped_later(qualified):
        return
    if op.get_bind().exec_driver_sql(f"select to_regclass('{qualified}')").scalar() is None:
        op.execute(f"create index {name} on {table} {definition}")


def _values_lost(table: str, column: str, then: str) -> PostgresSetupError:
    return PostgresSetupError(
        f"column {column} of {table} is gone, and with it a value that each of its rows must have. Nothing was "
        f"changed; restore the table from a backup, or give its rows up (`drop table {table}`) and run `sla-pipeline "
        f"migrate` again{then}"
    )
