"""Check of the worker's clock against the database's (SPEC 4.1)."""

from datetime import datetime, timedelta

import psycopg

from sla_pipeline.errors import ClockSkewError

__all__ = ["MAX_SKEW_SECONDS", "check_clock"]

# Bounds the time by which a fast worker clock can mark too early; NTP keeps machines within milliseconds.
MAX_SKEW_SECONDS = 5.0


def check_clock(connection: psycopg.Connection, now_utc: datetime) -> None:
    """Raise ``ClockSkewError``, with both times, when ``now_utc`` and the database's clock are too far apart."""
    row = connection.execute("select clock_timestamp()").fetchone()
    assert row is not None  # noqa: S101  a function call always returns a row
    database: datetime = row[0]
    if abs(now_utc - database) > timedelta(seconds=MAX_SKEW_SECONDS):
        raise ClockSkewError(
            f"the worker's clock shows {now_utc.isoformat()}, the database's {database.isoformat()}: more than "
            f"{MAX_SKEW_SECONDS:g} s apart; nothing was marked; set the clocks (NTP) and run again"
        )
