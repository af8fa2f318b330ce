"""The operators' own book: every version of every ticket that they committed, and whether each saw the ticket marked
already.

What belongs here: versions and what follows from them for a ticket, pure but for a lock. What does not: SQL
(``operators.py``), and counting over all tickets (``verdict.py``).

The proof against false breaches rests on one thing: an operator's update tells, in its own transaction, whether the row
was marked before it. Versions of a row are one chain, so the last version that saw no mark is the one that the mark was
put on.
"""

import threading
from dataclasses import dataclass, replace
from datetime import datetime

from sla_pipeline.breach import Breach, judge

__all__ = ["Ledger", "TicketBook", "Version"]


@dataclass(frozen=True, slots=True)
class Version:
    """What operators may change of a ticket, and whether it was marked when they did. Has what ``breach.judge`` looks
    at.
    """

    status: str
    first_response_due_at: datetime | None
    first_response_at: datetime | None
    resolution_due_at: datetime | None
    resolved_at: datetime | None
    sla_breached: bool = False

    def says_the_same(self, other: "Version") -> bool:
        """Whether all that operators write is equal."""
        return replace(self, sla_breached=False) == replace(other, sla_breached=False)


class TicketBook:
    """One ticket's versions, the first one that it was created with."""

    __slots__ = ("versions",)

    def __init__(self, created: Version) -> None:
        self.versions = [created]

    @property
    def last(self) -> Version:
        """What the row must say."""
        return self.versions[-1]

    @property
    def flag_went_back(self) -> bool:
        """Whether a later version saw no mark although an earlier one did."""
        seen = [version.sla_breached for version in self.versions]
        return seen != sorted(seen)

    @property
    def unmarked(self) -> Version:
        """The version that a mark was put on, or would be: the last one that saw none."""
        return [version for version in self.versions if not version.sla_breached][-1]

    def is_false_breach(self, found: Breach, breached_at: datetime) -> bool:
        """Whether a mark that says ``found``, by a cycle whose time was ``breached_at``, is not what the rule says of
        that version.
        """
        return judge(self.unmarked, breached_at) != found

    def is_missed(self, cutoff: datetime) -> bool:
        """Whether a ticket without a mark was due for one at ``cutoff``."""
        return judge(self.unmarked, cutoff) is not None


class Ledger:
    """All tickets' books. Each ticket is written by one thread only, so that its versions are in the order of the
    row's.
    """

    def __init__(self) -> None:
        self._books: dict[str, TicketBook] = {}
        self._lock = threading.Lock()
        self.change_count = 0

    def create(self, ticket_id: str, version: Version) -> None:
        """A ticket is created."""
        self._books[ticket_id] = TicketBook(version)

    def commit(self, ticket_id: str, version: Version) -> None:
        """A change is committed."""
        with self._lock:
            self._books[ticket_id].versions.append(version)
            self.change_count += 1

    def __getitem__(self, ticket_id: str) -> TicketBook:
        return self._books[ticket_id]

    def __len__(self) -> int:
        return len(self._books)

    def items(self) -> list[tuple[str, TicketBook]]:
        """All ids and books."""
        return list(self._books.items())
