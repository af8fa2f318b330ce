"""Advisory lock of the optional single-runner mode (SPEC 2.2)."""

import psycopg

from sla_pipeline.errors import CycleLocked

__all__ = ["take_single_runner_lock"]

# Name from SPEC 2.2.
_LOCK_NAME = "Pin:lock:job:scheduled:support-ticket-sla-monitor"


def take_single_runner_lock(connection: psycopg.Connection) -> None:
    """Take the lock for as long as the session lives. Raise ``CycleLocked`` when another runner holds it."""
    row = connection.execute("select pg_try_advisory_lock(hashtextextended(%s, 0))", (_LOCK_NAME,)).fetchone()
    if row != (True,):
        raise CycleLocked(f"another runner holds the advisory lock {_LOCK_NAME!r}: this cycle is left to it")
