"""Builds our two indexes on ``support.tickets`` without blocking writers, on an ordinary table and on a partitioned one.

What does not belong here: their definitions (``indexes.py``). A partitioned table cannot be indexed concurrently as a
whole: its index is made without its partitions, each of those is indexed concurrently, then attached. Every step can be
the last one of an interrupted run; the next run looks at what is there and goes on.
"""

import time
from dataclasses import dataclass

import psycopg
import sqlalchemy
from sqlalchemy import Connection

from sla_pipeline.errors import PostgresBusy, PostgresSetupError
from sla_pipeline.postgres.indexes import DEFINITIONS, OUR_INDEXES, OurIndex, missing_indexes

__all__ = ["build", "drop", "require_free_names"]

# Bounds one wait for a lock behind which writers would queue up.
_BRIEF_WAIT_MS = 1_000
# Between two such waits they pass.
_PAUSE_SECONDS = 0.5
# After this long somebody holds the table, and a person must look.
_BRIEF_TRIES_SECONDS = 30.0
# Bounds the waits of a concurrent build for older transactions; nobody waits for those, and an analyst's statement may
# take minutes.
_BUILD_WAIT_MS = 600_000

_OTHER_OF_NAME = """
select c.relkind::text, i.indrelid = to_regclass('support.tickets'), case when i.indexrelid is not null then pg_get_indexdef(c.oid) end
from pg_class c left join pg_index i on i.indexrelid = c.oid where c.oid = to_regclass('support.{name}')
"""


_RELATION_KINDS = {"v": "view", "m": "materialized view", "S": "sequence", "f": "foreign table", "c": "type"}


def require_free_names(connection: Connection) -> None:
    """Raises ``PostgresSetupError`` where the name of an index that has to be built is taken by something else."""
    found = connection.exec_driver_sql(DEFINITIONS).fetchall()
    for ours in missing_indexes((definition, valid) for definition, valid in found):
        row = connection.exec_driver_sql(_OTHER_OF_NAME.format(name=ours.name)).fetchone()
        if row is None or (row[1] and ours.is_defined_by(row[2])):
            continue
        what, kind = (row[2], "index") if row[2] else ("not an index", _RELATION_KINDS.get(row[0], "table"))
        raise PostgresSetupError(
            f"the name support.{ours.name} is taken by another {kind} ({what}), needed is an index of support.tickets "
            f"on ({ours.columns}) where {ours.condition}. Nothing was touched; rename the other one (`alter {kind} "
            f"support.{ours.name} rename to OTHER_NAME`) and run `sla-pipeline migrate` again"
        )


@dataclass(frozen=True, slots=True)
class _Relation:
    """A table of the partition tree, or the whole table where it is not partitioned."""

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


_ROOT = "c.oid = to_regclass('support.tickets')"
_CHILD = "c.oid in (select inhrelid from pg_inherits where inhparent = {oid})"
_RELATIONS = """
select c.oid, quote_ident(n.nspname) || '.' || quote_ident(c.relname), quote_ident(n.nspname), c.relkind = 'p'
from pg_class c join pg_namespace n on n.oid = c.relnamespace where {which} order by c.oid
"""
_INDEXES = """
select c.oid, quote_ident(n.nspname) || '.' || quote_ident(c.relname), i.indisvalid and i.indisready, h.inhparent, pg_get_indexdef(c.oid)
from pg_index i join pg_class c on c.oid = i.indexrelid join pg_namespace n on n.oid = c.relnamespace
left join pg_inherits h on h.inhrelid = c.oid
where i.indrelid = {oid} order by i.indisvalid desc, c.oid
"""


def build(connection: Connection) -> None:
    """Build what is missing; a half-built one of an interrupted try is built again. ``connection`` is in autocommit mode.

    Writers go on meanwhile: partitions are indexed concurrently and attached, which takes short locks only. A partition
    that is added later gets its index from the table's. Raises ``PostgresBusy`` when others hold the table for long;
    run again, it goes on.
    """
    (table,) = _relations(connection, _ROOT)
    usual = connection.exec_driver_sql("show lock_timeout").scalar()
    for ours in OUR_INDEXES:
        built = _ensure(connection, ours, table, ours.name)
        if not built.valid:
            raise PostgresSetupError(
                f"index {built.name} is still not valid: one of its partitions has an invalid index attached; drop it "
                f"(`drop index {built.name}`) and run `sla-pipeline migrate` again"
            )
    _limit_waiting(connection, usual)


def drop(connection: Connection) -> None:
    """Drop what ``build`` has built under our names, or would have. ``connection`` is in autocommit mode."""
    (table,) = _relations(connection, _ROOT)
    usual = connection.exec_driver_sql("show lock_timeout").scalar()
    for ours in OUR_INDEXES:
        if table.partitioned:
            _briefly(connection, f"drop index if exists support.{ours.name}")
        else:
            _patiently(connection, f"drop index concurrently if exists support.{ours.name}")
    _limit_waiting(connection, usual)


def _ensure(
    connection: Connection, ours: OurIndex, table: _Relation, name: str, parent: _Index | None = None
) -> _Index:
    """The index of one table of the tree, built where it is missing; ``parent`` is the index that it belongs under."""
    index = _usable(connection, ours, table, parent)
    if not table.partitioned:
        if index is None:
            # a half-built one; another one that is invalid may be under construction by somebody else
            _patiently(connection, f"drop index concurrently if exists {table.schema}.{name}")
            _patiently(
                connection, f"create index concurrently {name} on {table.name} ({ours.columns}) where {ours.condition}"
            )
            index = _created(connection, ours, table, parent)
        return index
    if index is None:
        _briefly(connection, f"create index {name} on only {table.name} ({ours.columns}) where {ours.condition}")
        index = _created(connection, ours, table, parent)
    if not index.valid:
        for partition in _relations(connection, _CHILD.format(oid=table.oid)):
            below = _ensure(connection, ours, partition, f"{ours.name}_{partition.oid}", index)
            if below.parent is None:
                _briefly(connection, f"alter index {index.name} attach partition {below.name}")
        index = _created(connection, ours, table, parent)
    return index


def _usable(connection: Connection, ours: OurIndex, table: _Relation, parent: _Index | None) -> _Index | None:
    """The index that is there already: the one under ``parent``, else a free one, valid or, of a partitioned table,
    to be completed.
    """
    rows = connection.exec_driver_sql(_INDEXES.format(oid=table.oid)).fetchall()
    found = [_Index(*row[:4]) for row in rows if ours.is_defined_by(row[4])]
    attached = [index for index in found if parent is not None and index.parent == parent.oid]
    free = [index for index in found if index.parent is None and (index.valid or table.partitioned)]
    return next(iter(attached + free), None)


def _created(connection: Connection, ours: OurIndex, table: _Relation, parent: _Index | None) -> _Index:
    index = _usable(connection, ours, table, parent)
    if index is None:
        raise PostgresSetupError(
            f"the index on ({ours.columns}) of {table.name} is gone right after it was built: somebody drops indexes "
            "there"
        )
    return index


def _relations(connection: Connection, which: str) -> list[_Relation]:
    return [_Relation(*row) for row in connection.exec_driver_sql(_RELATIONS.format(which=which)).fetchall()]


def _patiently(connection: Connection, statement: str) -> None:
    """Run a concurrent statement: it waits for others, nobody waits for it."""
    _limit_waiting(connection, _BUILD_WAIT_MS)
    try:
        connection.exec_driver_sql(statement)
    except sqlalchemy.exc.OperationalError as error:
        if not _is_lock_timeout(error):
            raise
        raise _held_for_long(statement, _BUILD_WAIT_MS / 1_000) from None


def _briefly(connection: Connection, statement: str) -> None:
    """Run a statement behind whose lock writers queue up: wait for a moment only, let them pass, try again."""
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
    """In milliseconds, or as ``show`` prints it."""
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
