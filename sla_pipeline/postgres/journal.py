"""The journal of cycles, ``support.ticket_sla_cycles``: one row a cycle, written at its start and at its end.

A running cycle's session holds an advisory lock on its row's number. Where the lock is free, the process that held it
is dead: the next cycle says so in the journal (state ``abandoned``), at once and without a guess at how long a cycle
may take.
"""

from dataclasses import asdict, dataclass
from datetime import datetime

import psycopg
from psycopg import sql

from sla_pipeline.cycle import CycleInput

__all__ = ["RIGHTS", "TABLE", "CycleEnd", "finish", "is_alive", "start", "sweep_abandoned"]

TABLE = "support.ticket_sla_cycles"
RIGHTS = "select, insert, update"

# the first half of the two-part advisory lock that shows a cycle is alive; the number has no meaning
_LIVENESS_CLASS = 740_551

_START = """
insert into support.ticket_sla_cycles (run_id, now_utc, batch_size, max_batches_per_cycle, tenant_id)
values (%(run_id)s, %(now_utc)s, %(batch_size)s, %(max_batches_per_cycle)s, %(tenant_id)s)
returning id
"""
_HOLD = "select pg_advisory_lock(%s, %s::bigint::bit(32)::integer)"
_LET_GO = "select pg_advisory_unlock(%s, %s::bigint::bit(32)::integer)"
# Index: ticket_sla_cycles_running. The lock is taken for this statement's transaction only.
_SWEEP = """
update support.ticket_sla_cycles set state = 'abandoned', finished_at = clock_timestamp(), error = 'the process ended without a word'
where state = 'running' and pg_try_advisory_xact_lock(%s, id::bit(32)::integer)
returning id, run_id
"""

# Index: ticket_sla_cycles_started; no run lasts an hour. The lock is held for this statement's transaction only, and
# shared, so that two processes that ask at once do not mistake each other for the cycle.
_IS_ALIVE = """
select case state
    when 'running' then not pg_try_advisory_xact_lock_shared(%(liveness_class)s, id::bit(32)::integer)
    when 'abandoned' then false
    else finished_at > clock_timestamp() - make_interval(secs => %(ending_seconds)s)
end
from support.ticket_sla_cycles
where run_id = %(run_id)s and started_at > clock_timestamp() - interval '1 hour'
order by id desc limit 1
"""
# After it has closed its row, a run only reports its end to Dagster: milliseconds.
_ENDING_SECONDS = 10


@dataclass(frozen=True, slots=True)
class CycleEnd:
    """The columns that a cycle's end fills; durations in milliseconds, counts of tickets unless the name says
    otherwise.
    """

    state: str
    claimed_count: int = 0
    processed_count: int = 0
    first_response_count: int = 0
    resolution_count: int = 0
    batch_count: int = 0
    published_count: int = 0
    backlog_count: int | None = None
    lock_skip_count: int = 0
    remarked_count: int = 0
    error_count: int = 0
    has_more: bool = False
    claim_ms: float | None = None
    mark_ms: float | None = None
    publish_ms: float | None = None
    duration_ms: float | None = None
    error: str | None = None


_FINISH = sql.SQL(
    "update support.ticket_sla_cycles set finished_at = clock_timestamp(), {} where id = %(cycle_id)s and state in "
    "('running', 'abandoned')"
).format(
    sql.SQL(", ").join(
        sql.SQL("{} = {}").format(sql.Identifier(column), sql.Placeholder(column))
        for column in CycleEnd.__dataclass_fields__
    )
)


def sweep_abandoned(connection: psycopg.Connection) -> list[tuple[int, str]]:
    """Close the rows of cycles whose process is dead, and return their ``(cycle_id, run_id)``."""
    return connection.execute(_SWEEP, (_LIVENESS_CLASS,)).fetchall()


def is_alive(connection: psycopg.Connection, run_id: str) -> bool | None:
    """Whether the run's process is alive: its row is locked, or was closed just now. None when the run has no row."""
    row = connection.execute(
        _IS_ALIVE, {"liveness_class": _LIVENESS_CLASS, "ending_seconds": _ENDING_SECONDS, "run_id": run_id}
    ).fetchone()
    return None if row is None else bool(row[0])


def start(connection: psycopg.Connection, *, run_id: str, now_utc: datetime, given: CycleInput) -> int:
    """Write the row of a cycle that starts, take its lock for as long as the session lives, and return its id."""
    with connection.transaction():
        row = connection.execute(
            _START,
            {
                "run_id": run_id,
                "now_utc": now_utc,
                "batch_size": given.batch_size,
                "max_batches_per_cycle": given.max_batches_per_cycle,
                "tenant_id": given.tenant_id,
            },
        ).fetchone()
        assert row is not None  # noqa: S101  an insert that returns always answers
        cycle_id = int(row[0])
        # before the commit: nobody sees the row without its lock
        connection.execute(_HOLD, (_LIVENESS_CLASS, cycle_id))
    return cycle_id


def finish(connection: psycopg.Connection, cycle_id: int, end: CycleEnd) -> None:
    """Write how the cycle ended, and give its lock back. A second word on the same cycle is not written."""
    connection.execute(_FINISH, {**asdict(end), "cycle_id": cycle_id})
    connection.execute(_LET_GO, (_LIVENESS_CLASS, cycle_id))
