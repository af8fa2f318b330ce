"""Reading of ``Health``: a few indexed statements on our own tables, never on tickets."""

import psycopg
from psycopg.rows import args_row, dict_row

from sla_pipeline.errors import PostgresSetupError, PostgresUnavailable
from sla_pipeline.health import WINDOW, Counters, Health
from sla_pipeline.postgres.journal import finished_cycle
from sla_pipeline.postgres.schema import check_revision
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline.time_limit import call_within

__all__ = ["read_health", "read_health_within"]

# Bounds what one reading returns: an hour of cycles is 60, more where several runners work.
_CYCLE_LIMIT = 500

# Index: ticket_sla_cycles_started; a condition on clock_timestamp(), which is volatile, cannot use it.
_CYCLES = """
select * from support.ticket_sla_cycles
where started_at > now() - %(window)s and tenant_id is null and state <> 'running'
order by started_at desc, id desc limit %(limit)s
"""
# Index: the primary key, backward. It passes the cycles since the last success, 1,440 a day.
_LAST_SUCCESS = """
select finished_at from support.ticket_sla_cycles
where state = 'succeeded' and tenant_id is null order by id desc limit 1
"""
# Index: primary keys; the table of rows set aside is small.
_POSITIONS = """
select clock_timestamp() as read_at, coalesce(last_seq, 0) as last_seq, coalesce(published_seq, 0) as published_seq,
    (select recorded_at from support.ticket_sla_breaches where seq = published_seq + 1) as oldest_unpublished_at,
    (select count(*) from support.ticket_sla_set_aside) as set_aside_count,
    (select min(first_failed_at) from support.ticket_sla_set_aside) as set_aside_since
from (select) one left join support.ticket_sla_relay on id = 1
"""
# Index: the primary key.
_COUNTERS = """
select created_at, first_response_count, resolution_count, delay_bucket_counts, delay_seconds_sum, error_count
from support.ticket_sla_counters where id = 1
"""


def read_health(connection: psycopg.Connection) -> Health:
    """Read the facts in one snapshot.

    Raises ``PostgresSetupError`` for a database that is not migrated, and the driver's errors.
    """
    check_revision(connection)
    values = {"window": WINDOW, "limit": _CYCLE_LIMIT}
    with connection.transaction():
        connection.execute("set transaction isolation level repeatable read, read only")
        with connection.cursor(row_factory=dict_row) as cursor:
            cycles = cursor.execute(_CYCLES, values).fetchall()
            positions = cursor.execute(_POSITIONS).fetchone()
        success = connection.execute(_LAST_SUCCESS).fetchone()
        with connection.cursor(row_factory=args_row(Counters)) as cursor:
            counters = cursor.execute(_COUNTERS).fetchone()
    assert positions is not None  # noqa: S101  a left join with one row returns one
    if counters is None:
        raise PostgresSetupError(
            "support.ticket_sla_counters has no row with id 1: somebody deleted it; run `sla-pipeline migrate`, which "
            "puts it back"
        )
    return Health(
        **positions,
        cycles=[finished_cycle(row) for row in reversed(cycles)],
        last_success_at=success[0] if success else None,
        counters=counters,
    )


def read_health_within(settings: PostgresSettings, seconds: float) -> Health:
    """Read the facts over a session of its own, in a bounded time: the bounds of a session add up to more.

    Raises ``PostgresUnavailable``, also when there is no answer within ``seconds``, and ``PostgresSetupError``.
    """

    def read() -> Health:
        with settings.session(purpose="health") as connection:
            return read_health(connection)

    try:
        return call_within(seconds, read)
    except TimeoutError:
        raise PostgresUnavailable(
            f"{settings.place} did not answer within {seconds:g} s; check the server, the network and "
            f"{settings.variable}"
        ) from None
