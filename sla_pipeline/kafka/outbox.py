"""What the relay needs of Postgres, as a protocol: ``sla_pipeline.postgres`` implements it.

What does not belong here: SQL, or what recovery needs beyond it (``recovery.py``).
"""

from typing import Protocol

from sla_pipeline.cycle import BreachRecord

__all__ = ["Outbox"]


class Outbox(Protocol):
    """The breach records in Postgres, over one direct session of its own (a session's lock does not survive a transaction-mode pooler).

    Each call is a transaction of its own and sees what is committed when it is made. Errors are raised as
    ``SlaPipelineError``.
    """

    def try_lock(self) -> bool:
        """Takes the relay's advisory lock for the session, without waiting; false when another session holds it."""
        ...

    def holds_lock(self) -> bool:
        """Whether this session still holds the lock; false, or an error, when the session was cut."""
        ...

    def unlock(self) -> None:
        """Gives the lock back."""
        ...

    def published_seq(self) -> int:
        """The copy of the position: everything up to it is published."""
        ...

    def last_seq(self) -> int:
        """The last sequence handed out: records 1 to it are committed."""
        ...

    def records_from(self, seq: int, limit: int) -> list[BreachRecord]:
        """At most ``limit`` records with a sequence of at least ``seq``, in order."""
        ...

    def advance(self, seq: int) -> None:
        """Raises the copy of the position to ``seq``; never lowers it."""
        ...
