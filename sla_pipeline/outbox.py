"""The outbox: breach records that wait to be published, and the operations on them that publishing needs.

``postgres/outbox.py`` implements the protocol; ``kafka/`` publishes through it, so neither room imports the other.
"""

from typing import NamedTuple, Protocol

__all__ = ["BreachRecord", "Outbox"]


class BreachRecord(NamedTuple):
    """One row of the outbox: the event of one ticket. ``seq`` counts from 1 without a gap, in commit order."""

    seq: int
    ticket_id: str
    correlation_id: str
    payload: str
    """The event's JSON, stored when the ticket was marked, sent unchanged."""


class Outbox(Protocol):
    """Breach records in Postgres, over one direct session.

    A session's lock does not survive a pooler in transaction mode. Each call is a transaction of its own and reads what
    is committed when it starts. Errors are raised as ``SlaPipelineError``.
    """

    def try_lock(self) -> bool:
        """Take the relay's advisory lock for the session, without waiting; false when another session holds it."""
        ...

    def holds_lock(self) -> bool:
        """Return true while this session holds the lock; false, or an error, when the session was cut."""
        ...

    def unlock(self) -> None:
        """Release the lock."""
        ...

    def published_seq(self) -> int:
        """Return the copy of the position: all records up to it are published."""
        ...

    def last_seq(self) -> int:
        """Return the last sequence handed out: records 1 to it are committed."""
        ...

    def records_from(self, seq: int, limit: int) -> list[BreachRecord]:
        """Return at most ``limit`` records with a sequence of at least ``seq``, in order."""
        ...

    def advance(self, seq: int) -> None:
        """Raise the copy of the position to ``seq``; never lower it."""
        ...
