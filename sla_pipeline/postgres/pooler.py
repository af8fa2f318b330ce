"""Check of a pooler between the worker and the server: advisory locks and settings belong to a server process.

A session must have a server process to itself while it is open (``pool_mode = session``), and the next session on that
process must start clean (``server_reset_query = DISCARD ALL``).
"""

import time

import psycopg

from sla_pipeline.errors import PostgresSetupError

__all__ = ["check_pooler"]

# Bounds the reset of a server process, which the pooler starts when the client disconnects; it takes milliseconds.
_RESET_SECONDS = 2.0
_POLL_SECONDS = 0.01
# Repetitions until a pooler in transaction mode shows itself: a busy one may hand out the same process a few times.
_ROUNDS = 4

_PROCESS = "select pg_backend_pid()"
_LEFT_BEHIND = """
select (select count(*) from pg_prepared_statements),
    (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid())
"""
# All sessions take one lock, and share it, so that checks do not wait for each other. Behind a pooler that never
# resets, a server process keeps this one lock, however often it is taken.
_LOCK_KEY = "hashtextextended('Pin:lock:probe:support-ticket-sla-monitor', 0)"
_TAKE_LOCK = f"select pg_advisory_lock_shared({_LOCK_KEY})"
_HOLDS_LOCK = f"""
select exists (
    select from pg_locks
    where locktype = 'advisory' and pid = %s and granted and objsubid = 1
        and (classid::bigint << 32) | objid::bigint = {_LOCK_KEY}
)
"""


def check_pooler(
    first: psycopg.Connection, other: psycopg.Connection, processes: set[int], *, where: str, variable: str
) -> None:
    """Raise ``PostgresSetupError`` unless a session keeps its server process and leaves it clean. Closes ``other``.

    ``processes`` are the server processes that ``first`` had so far. ``other`` is a second session, opened just now
    with the same parameters.
    """
    mine, others = set(processes), set[int]()
    for _ in range(_ROUNDS):
        # twice in a row each: a pooler that alternates its processes would always give two sessions the same two
        for session, seen in ((other, others), (first, mine), (first, mine), (other, others)):
            seen.add(_process(session))
    if len(mine) > 1 or len(others) > 1 or mine == others:
        raise PostgresSetupError(
            f"{where} is behind a pooler in transaction or statement mode: a session does not keep its server process, "
            f"settings and locks; set `pool_mode = session` in the pooler for this database, or let {variable} name "
            "the server itself"
        )
    if first.execute(_LEFT_BEHIND).fetchone() != (0, 0):
        raise _not_reset(where, variable)
    other.execute(_TAKE_LOCK)
    (process,) = others
    other.close()
    deadline = time.monotonic() + _RESET_SECONDS
    while first.execute(_HOLDS_LOCK, (process,)).fetchone() == (True,):
        if time.monotonic() > deadline:
            raise _not_reset(where, variable)
        time.sleep(_POLL_SECONDS)


def _process(session: psycopg.Connection) -> int:
    row = session.execute(_PROCESS).fetchone()
    assert row is not None  # noqa: S101  a function call returns a row
    return int(row[0])


def _not_reset(where: str, variable: str) -> PostgresSetupError:
    return PostgresSetupError(
        f"{where} is behind a pooler that does not reset a session at its end, so that its locks and prepared "
        f"statements stay; set `server_reset_query = DISCARD ALL` in the pooler, or let {variable} name the server "
        "itself"
    )
