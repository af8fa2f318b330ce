"""What a cycle checks before it starts: a writable database, its clock against the worker's, the lock of the single-runner mode."""

from datetime import datetime, timedelta

import psycopg

from sla_pipeline.errors import ClockSkewError, CycleLocked, PostgresSetupError
from sla_pipeline.postgres.settings import POSTGRES_URL

__all__ = ["check_clock", "check_writable", "take_single_runner_lock"]

# a worker ahead of the database marks too early by as much; NTP keeps machines within milliseconds
MAX_SKEW_SECONDS = 5.0
# the name of SPEC 2.2
_SINGLE_RUNNER_LOCK = "Pin:lock:job:scheduled:support-ticket-sla-monitor"


def check_writable(connection: psycopg.Connection) -> None:
    """Raises ``PostgresSetupError`` on a standby, and on a database that is set to read only."""
    if connection.execute("show transaction_read_only").fetchone() == ("on",):
        info = connection.info
        raise PostgresSetupError(
            f"database {info.dbname!r} on {info.host}:{info.port} is read only: this is a standby, or set to read "
            f"only; let {POSTGRES_URL} name the primary"
        )


def check_clock(connection: psycopg.Connection, now_utc: datetime) -> None:
    """Raises ``ClockSkewError``, telling both, when the worker's ``now_utc`` and the database's clock are too far apart (SPEC 4.1)."""
    row = connection.execute("select clock_timestamp()").fetchone()
    assert row is not None  # noqa: S101  a function call always answers
    database: datetime = row[0]
    if abs(now_utc - database) > timedelta(seconds=MAX_SKEW_SECONDS):
        raise ClockSkewError(
            f"the worker's clock says {now_utc.isoformat()}, the database's {database.isoformat()}: more than "
            f"{MAX_SKEW_SECONDS:g} s apart; nothing was marked; set the clocks (NTP) and run again"
        )


def take_single_runner_lock(connection: psycopg.Connection) -> None:
    """Take the advisory lock of SPEC 2.2 for as long as the session lives. Raises ``CycleLocked`` when another runner has it."""
    row = connection.execute("select pg_try_advisory_lock(hashtextextended(%s, 0))", (_SINGLE_RUNNER_LOCK,)).fetchone()
    if row != (True,):
        raise CycleLocked(f"another runner holds the advisory lock {_SINGLE_RUNNER_LOCK!r}: this cycle is left to it")
