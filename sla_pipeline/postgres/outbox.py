"""Outbox of the relay in Postgres: its lock, its position and the waiting breach records, over a session of its own.

``kafka/takeover.py`` has the order of the calls and the reasons for it; ``marking.py`` writes the records.
"""

from types import TracebackType
from typing import Self

from sla_pipeline.errors import PostgresSetupError
from sla_pipeline.outbox import BreachRecord
from sla_pipeline.postgres.session import PostgresSettings, translated_errors

__all__ = ["PostgresOutbox", "relay_row_missing"]

# Name of the advisory lock; the lock's key is hashtextextended(name, 0).
_LOCK_NAME = "Pin:lock:relay:support-ticket-sla-monitor"
# Bounds an idle session. Longer than a whole takeover may take (20 s): only a paused publisher loses its session, and
# with it the lock.
_IDLE_SESSION_TIMEOUT_MS = 25_000

_TRY_LOCK = "select pg_try_advisory_lock(hashtextextended(%s, 0))"
_UNLOCK = "select pg_advisory_unlock(hashtextextended(%s, 0))"
# pg_locks shows an advisory lock of one bigint as two halves, with objsubid 1.
_HOLDS_LOCK = """
select exists (
    select from pg_locks
    where locktype = 'advisory' and pid = pg_backend_pid() and granted and objsubid = 1
        and (classid::bigint << 32) | objid::bigint = hashtextextended(%s, 0)
)
"""
_LAST_SEQ = "select last_seq from support.ticket_sla_relay where id = 1"
_PUBLISHED_SEQ = "select published_seq from support.ticket_sla_relay where id = 1"
# Index: the primary key, in its order.
_RECORDS = """
select seq, ticket_id, correlation_id, payload from support.ticket_sla_breaches
where seq >= %(seq)s order by seq limit %(limit)s
"""
_ADVANCE = """
update support.ticket_sla_relay set published_seq = %(seq)s, published_at = clock_timestamp()
where id = 1 and published_seq < %(seq)s
"""


def relay_row_missing() -> PostgresSetupError:
    """Return the error for a lost row of ``ticket_sla_relay``."""
    return PostgresSetupError(
        "support.ticket_sla_relay has no row with id 1: somebody deleted it. Nothing is marked or published; run "
        "`sla-pipeline migrate`, which puts it back"
    )


class PostgresOutbox:
    """Outbox over one direct session. Its methods raise ``PostgresUnavailable`` or ``PostgresSetupError``."""

    def __init__(self, settings: PostgresSettings) -> None:
        self._settings = settings
        self._connection = settings.connect(purpose="relay", idle_session_timeout_ms=_IDLE_SESSION_TIMEOUT_MS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the session, and with it the lock."""
        self._connection.close()

    def try_lock(self) -> bool:
        """Take the relay's lock if it is free; held until ``unlock`` or the end of the session."""
        return bool(self._scalar(_TRY_LOCK, (_LOCK_NAME,)))

    def holds_lock(self) -> bool:
        """Return whether this session still holds the lock, according to the server."""
        return bool(self._scalar(_HOLDS_LOCK, (_LOCK_NAME,)))

    def unlock(self) -> None:
        """Release the lock."""
        self._scalar(_UNLOCK, (_LOCK_NAME,))

    def last_seq(self) -> int:
        """Return the last sequence handed out; 0 without any record."""
        return self._position(_LAST_SEQ)

    def published_seq(self) -> int:
        """Return the last sequence recorded as published; it may lag behind the progress topic, never lead."""
        return self._position(_PUBLISHED_SEQ)

    def records_from(self, seq: int, limit: int) -> list[BreachRecord]:
        """Return at most ``limit`` records from ``seq`` on, in the order of ``seq``."""
        with translated_errors(self._settings):
            return list(
                map(BreachRecord._make, self._connection.execute(_RECORDS, {"seq": seq, "limit": limit}).fetchall())
            )

    def advance(self, seq: int) -> None:
        """Record that all up to ``seq`` is published; never lower the position."""
        with translated_errors(self._settings):
            self._connection.execute(_ADVANCE, {"seq": seq})

    def _position(self, statement: str) -> int:
        position = self._scalar(statement)
        if position is None:
            raise relay_row_missing()
        return int(str(position))

    def _scalar(self, statement: str, values: tuple[object, ...] = ()) -> object:
        with translated_errors(self._settings):
            row = self._connection.execute(statement, values).fetchone()
        return None if row is None else row[0]
