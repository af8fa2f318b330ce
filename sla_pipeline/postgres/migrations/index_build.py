"""Build an index without blocking writers, on an ordinary table and on a partitioned one.

Frozen interface of the revisions: add functions, never change one. No function here names a table or a column.

Postgres cannot index a partitioned table concurrently as a whole: its index is created without the partitions, each
partition is indexed concurrently, then attached. A run may be interrupted after any step; the next run reads the
catalogue and continues.
"""

import time
from dataclasses import dataclass

import psycopg
import sqlalchemy
from sqlalchemy import Connection

from sla_pipeline.errors import PostgresBusy, PostgresSetupError
from sla_pipeline.postgres.migrations.additive import is_dropped_later
from sla_pipeline.postgres.migrations.index_definition import IndexDefinition

__all__ = ["build", "drop"]

# Bounds one wait for a lock behind which writers queue up.
_BRIEF_WAIT_MS = 1_000
# Lets the queued writers pass between two such waits.
_PAUSE_SECONDS = 0.5
# Bounds all such waits together: after it somebody holds the table, and a person must act.
_BRIEF_TRIES_SECONDS = 30.0
# Bounds the waits of a concurrent build for older transactions. Nobody queues behind it, and an analyst's statement may
# take minutes.
_BUILD_WAIT_MS = 600_000


@dataclass(frozen=True, slots=True)
class _Relation:
    """A table of the partition tree, or an ordinary table."""

    oid: int
    name: str
    schema: str
    partitioned: bool


@dataclass(frozen=True, slots=True)
class _Index:
    oid: int
    name: str
    valid: bool
    parent: int | None


_ROOT = "c.oid = to_regclass('{table}')"
_CHILD = "c.oid in (select inhrelid from pg_inherits where inhparent = {oid})"
_RELATIONS = """
select c.oid, quote_ident(n.nspname) || '.' || quote_ident(c.relname), quote_ident(n.nspname), c.relkind = 'p'
from pg_class c join pg_namespace n on n.oid = c.relnamespace where {which} order by c.oid
"""
_INDEXES = """
select c.oid, quote_ident(n.nspname) || '.' || quote_ident(c.relname), i.indisvalid and i.indisready, h.inhparent,
    pg_get_indexdef(c.oid)
from pg_index i join pg_class c on c.oid = i.indexrelid join pg_namespace n on n.oid = c.relnamespace
left join pg_inherits h on h.inhrelid = c.oid
where i.indrelid = {oid} order by i.indisvalid desc, c.oid
"""


def build(connection: Connection, index: IndexDefinition) -> None:
    """Build ``index`` unless the table has it or a later revision drops it. A half-built one is built again.

    ``connection`` is in autocommit mode. Writers continue meanwhile: partitions are indexed concurrently and attached,
    which takes short locks only. A partition that is added later gets its index from the table's. Raises
    ``PostgresBusy`` when others hold the table for long; the next run continues.
    """
    if is_dropped_later(f"{index.schema}.{index.name}"):
        return
    (table,) = _relations(connection, _ROOT.format(table=index.table))
    usual = connection.exec_driver_sql("show lock_timeout").scalar()
    built = _ensure(connection, index, table, index.name)
    if not built.valid:
        raise PostgresSetupError(
            f"index {built.name} is still not valid: one of its partitions has an invalid index attached; drop it "
            f"(`drop index {built.name}`) and run `sla-pipeline migrate` again"
        )
    _limit_waiting(connection, usual)


def drop(connection: Connection, index: IndexDefinition) -> None:
    """Drop the index of this name. ``connection`` is in autocommit mode."""
    (table,) = _relations(connection, _ROOT.format(table=index.table))
    usual = connection.exec_driver_sql("show lock_timeout").scalar()
    name = f"{index.schema}.{index.name}"
    if table.partitioned:
        _briefly(connection, f"drop index if exists {name}")
    else:
        _patiently(connection, f"drop index concurrently if exists {name}")
    _limit_waiting(connection, usual)


def _ensure(
    connection: Connection, index: IndexDefinition, table: _Relation, name: str, parent: _Index | None = None
) -> _Index:
    """Return the index of one table of the tree, built if it is missing; ``parent`` is the index of the table above."""
    found = _usable(connection, index, table, parent)
    if not table.partitioned:
        if found is None:
            # only the half-built index of this name: somebody else may be building another one that is invalid
            _patiently(connection, f"drop index concurrently if exists {table.schema}.{name}")
            _patiently(
                connection,
                f"create index concurrently {name} on {table.name} ({index.columns}) where {index.condition}",
            )
            found = _created(connection, index, table, parent)
        return found
    if found is None:
        _briefly(connection, f"create index {name} on only {table.name} ({index.columns}) where {index.condition}")
        found = _created(connection, index, table, parent)
    if not found.valid:
        for partition in _relations(connection, _CHILD.format(oid=table.oid)):
            below = _ensure(connection, index, partition, f"{index.name}_{partition.oid}", found)
            if below.parent is None:
                _briefly(connection, f"alter index {found.name} attach partition {below.name}")
        found = _created(connection, index, table, parent)
    return found


def _usable(connection: Connection, index: IndexDefinition, table: _Relation, parent: _Index | None) -> _Index | None:
    """Return the existing index: the one attached to ``parent``, else a free one.

    A free one is valid, or belongs to a partitioned table and can be completed.
    """
    rows = connection.exec_driver_sql(_INDEXES.format(oid=table.oid)).fetchall()
    found = [_Index(*row[:4]) for row in rows if index.is_defined_by(row[4])]
    attached = [same for same in found if parent is not None and same.parent == parent.oid]
    free = [same for same in found if same.parent is None and (same.valid or table.partitioned)]
    return next(iter(attached + free), None)


def _created(connection: Connection, index: IndexDefinition, table: _Relation, parent: _Index | None) -> _Index:
    found = _usable(connection, index, table, parent)
    if found is None:
        raise PostgresSetupError(
            f"the index on ({index.columns}) of {table.name} is gone right after it was built: somebody drops indexes "
            "there"
        )
    return found


def _relations(connection: Connection, which: str) -> list[_Relation]:
    return [_Relation(*row) for row in connection.exec_driver_sql(_RELATIONS.format(which=which)).fetchall()]


def _patiently(connection: Connection, statement: str) -> None:
    """Run a concurrent statement, which waits for others while nobody waits for it."""
    _limit_waiting(connection, _BUILD_WAIT_MS)
    try:
        connection.exec_driver_sql(statement)
    except sqlalchemy.exc.OperationalError as error:
        if not _is_lock_timeout(error):
            raise
        raise _held_for_long(statement, _BUILD_WAIT_MS / 1_000) from None


def _briefly(connection: Connection, statement: str) -> None:
    """Run a statement behind whose lock writers queue up: wait briefly, let them pass, try again."""
    _limit_waiting(connection, _BRIEF_WAIT_MS)
    ends = time.monotonic() + _BRIEF_TRIES_SECONDS
    while True:
        try:
            connection.exec_driver_sql(statement)
        except sqlalchemy.exc.OperationalError as error:
            if not _is_lock_timeout(error):
                raise
            if time.monotonic() > ends:
                raise _held_for_long(statement, _BRIEF_TRIES_SECONDS) from None
        else:
            return
        time.sleep(_PAUSE_SECONDS)


def _limit_waiting(connection: Connection, lock_timeout: object) -> None:
    """Set the session's ``lock_timeout``, in milliseconds or as ``show`` prints it."""
    connection.exec_driver_sql(f"set lock_timeout = '{lock_timeout}'")


def _is_lock_timeout(error: sqlalchemy.exc.OperationalError) -> bool:
    return isinstance(error.orig, psycopg.errors.LockNotAvailable)


def _held_for_long(statement: str, seconds: float) -> PostgresBusy:
    oldest = (
        "select pid, usename, state, xact_start from pg_stat_activity where xact_start is not null order by xact_start"
    )
    return PostgresBusy(
        f"`{statement}` has waited {seconds:g} s for transactions that hold the table; what was built stays. End the "
        f"oldest one (`{oldest}`) or wait for it, and run `sla-pipeline migrate` again: it goes on"
    )
