"""Journal of cycles, ``support.ticket_sla_cycles``: one row per cycle, written at its start and at its end.

A running cycle's session holds an advisory lock on its row's id. Where the lock is free, the process that held it is
dead: the next cycle records this at once (state ``abandoned``), without a guess at the duration of a cycle.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from sla_pipeline.cycle import CycleInput, CycleTotals
from sla_pipeline.health import FinishedCycle

__all__ = [
    "TABLE",
    "finish",
    "finished_after",
    "finished_cycle",
    "is_alive",
    "last_cycle_id",
    "start",
    "sweep_abandoned",
]

TABLE = "support.ticket_sla_cycles"

# First half of the two-part advisory lock that shows a cycle is alive; the number has no meaning.
_LIVENESS_CLASS = 740_551

_START = """
insert into support.ticket_sla_cycles (run_id, now_utc, batch_size, max_batches_per_cycle, tenant_id)
values (%(run_id)s, %(now_utc)s, %(batch_size)s, %(max_batches_per_cycle)s, %(tenant_id)s)
returning id
"""
_HOLD = "select pg_advisory_lock(%s, %s::bigint::bit(32)::integer)"
_RELEASE = "select pg_advisory_unlock(%s, %s::bigint::bit(32)::integer)"
# Index: ticket_sla_cycles_running. The lock is taken for this statement's transaction only. A death is an error.
_SWEEP = """
with swept as (
    update support.ticket_sla_cycles
    set state = 'abandoned', finished_at = clock_timestamp(), error_count = 1,
        error = 'the process died before recording its end'
    where state = 'running' and pg_try_advisory_xact_lock(%s, id::bit(32)::integer)
    returning id, run_id
), counted as (
    update support.ticket_sla_counters set error_count = error_count + (select count(*) from swept)
    where id = 1 and exists (select from swept)
)
select id, run_id from swept order by id
"""

# Index: ticket_sla_cycles_started; a condition on clock_timestamp(), which is volatile, could not use it. No run lasts
# an hour. The lock is held for this statement's transaction only, and shared, so that two concurrent checks do not
# mistake each other for the cycle.
_IS_ALIVE = """
select case state
    when 'running' then not pg_try_advisory_xact_lock_shared(%(liveness_class)s, id::bit(32)::integer)
    when 'abandoned' then false
    else finished_at > clock_timestamp() - make_interval(secs => %(ending_seconds)s)
end
from support.ticket_sla_cycles
where run_id = %(run_id)s and started_at > now() - interval '1 hour'
order by id desc limit 1
"""
# Bounds the time between the end of a row and the end of its run, which only reports it to Dagster: milliseconds.
_ENDING_SECONDS = 10

# Only the first end of a cycle is written, except over "abandoned": the cycle's own end is more accurate.
_FINISH = """
with ended as (
    update support.ticket_sla_cycles
    set finished_at = clock_timestamp(), state = %(state)s, error = %(error)s, {columns}
    where id = %(cycle_id)s and state in ('running', 'abandoned')
    returning error_count
)
update support.ticket_sla_counters counters set error_count = counters.error_count + ended.error_count
from ended where counters.id = 1 and ended.error_count > 0
"""
# Index: the primary key.
_FINISHED_AFTER = """
select * from support.ticket_sla_cycles where id > %s and state not in ('running', 'abandoned') order by id
"""


def sweep_abandoned(connection: psycopg.Connection) -> list[tuple[int, str]]:
    """Close the rows of cycles whose process is dead, and return their ``(cycle_id, run_id)``."""
    return connection.execute(_SWEEP, (_LIVENESS_CLASS,)).fetchall()


def is_alive(connection: psycopg.Connection, run_id: str) -> bool | None:
    """Return whether the run's process is alive: its row is locked, or has just ended.

    None when the run has no row.
    """
    row = connection.execute(
        _IS_ALIVE, {"liveness_class": _LIVENESS_CLASS, "ending_seconds": _ENDING_SECONDS, "run_id": run_id}
    ).fetchone()
    return None if row is None else bool(row[0])


def start(connection: psycopg.Connection, *, run_id: str, now_utc: datetime, cycle_input: CycleInput) -> int:
    """Write the row of a cycle that starts, take its lock for as long as the session lives, and return its id."""
    with connection.transaction():
        row = connection.execute(
            _START,
            {
                "run_id": run_id,
                "now_utc": now_utc,
                "batch_size": cycle_input.batch_size,
                "max_batches_per_cycle": cycle_input.max_batches_per_cycle,
                "tenant_id": cycle_input.tenant_id,
            },
        ).fetchone()
        assert row is not None  # noqa: S101  an insert with returning always returns a row
        cycle_id = int(row[0])
        # Before the commit, so that the row is never visible without its lock.
        connection.execute(_HOLD, (_LIVENESS_CLASS, cycle_id))
    return cycle_id


def finish(connection: psycopg.Connection, cycle_id: int, state: str, totals: CycleTotals) -> None:
    """Write the end of the cycle, and release its lock."""
    numbers = totals.as_row()
    columns = sql.SQL(", ").join(
        sql.SQL("{} = {}").format(sql.Identifier(name), sql.Placeholder(name)) for name in numbers
    )
    values = {**numbers, "cycle_id": cycle_id, "state": state, "error": "\n".join(totals.error_list.listed()) or None}
    connection.execute(sql.SQL(_FINISH).format(columns=columns), values)
    connection.execute(_RELEASE, (_LIVENESS_CLASS, cycle_id))


def finished_after(connection: psycopg.Connection, cycle_id: int) -> list[FinishedCycle]:
    """Return the cycles with an id above ``cycle_id`` that have ended by themselves, in order."""
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(_FINISHED_AFTER, (cycle_id,)).fetchall()
    return list(map(finished_cycle, rows))


def finished_cycle(row: Mapping[str, Any]) -> FinishedCycle:
    """Return an ended row of the journal as a value."""
    return FinishedCycle(
        row["id"], row["run_id"], row["state"], row["finished_at"], CycleTotals.from_row(row), row["error"]
    )


def last_cycle_id(connection: psycopg.Connection) -> int:
    """Return the id of the newest cycle; 0 when there is none."""
    row = connection.execute("select coalesce(max(id), 0) from support.ticket_sla_cycles").fetchone()
    assert row is not None  # noqa: S101  an aggregate always returns a row
    return int(row[0])
