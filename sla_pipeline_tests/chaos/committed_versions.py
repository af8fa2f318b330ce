"""Committed versions of each ticket, as its operators recorded them. No SQL.

The check for false breaches needs one fact: an operator's update returns, in its own transaction, whether the row was
already marked. The versions of a row form one chain, so the mark was set on the last version that was not marked.
"""

import threading
from dataclasses import dataclass, replace
from datetime import datetime

from sla_pipeline.breach import Breach, judge

__all__ = ["CommittedVersions", "TicketVersions", "Version"]


@dataclass(frozen=True, slots=True)
class Version:
    """Columns that operators may change, and whether the ticket was marked at that time. Input of ``breach.judge``."""

    status: str
    first_response_due_at: datetime | None
    first_response_at: datetime | None
    resolution_due_at: datetime | None
    resolved_at: datetime | None
    sla_breached: bool = False

    def has_same_values(self, other: "Version") -> bool:
        """Return whether all columns that operators write are equal."""
        return replace(self, sla_breached=False) == replace(other, sla_breached=False)


class TicketVersions:
    """Versions of one ticket, from its creation on."""

    __slots__ = ("versions",)

    def __init__(self, created: Version) -> None:
        self.versions = [created]

    @property
    def last(self) -> Version:
        """Version that the row must hold."""
        return self.versions[-1]

    @property
    def flag_was_reset(self) -> bool:
        """Whether an unmarked version follows a marked one."""
        flags = [version.sla_breached for version in self.versions]
        return flags != sorted(flags)

    @property
    def unmarked(self) -> Version:
        """Last unmarked version: the one that a mark was, or would be, set on."""
        return [version for version in self.versions if not version.sla_breached][-1]

    def is_false_breach(self, found: Breach, breached_at: datetime) -> bool:
        """Return whether the breach ``found`` differs from the rule's for that version at ``breached_at``."""
        return judge(self.unmarked, breached_at) != found

    def is_missed(self, cutoff: datetime) -> bool:
        """Return whether an unmarked ticket was overdue at ``cutoff``."""
        return judge(self.unmarked, cutoff) is not None


class CommittedVersions:
    """Versions of all tickets.

    Only one thread writes a ticket, so its versions are in the row's order. Thread safe.
    """

    def __init__(self) -> None:
        self._by_ticket: dict[str, TicketVersions] = {}
        self._lock = threading.Lock()
        self.change_count = 0

    def create(self, ticket_id: str, version: Version) -> None:
        """Record a new ticket."""
        self._by_ticket[ticket_id] = TicketVersions(version)

    def commit(self, ticket_id: str, version: Version) -> None:
        """Record a committed change."""
        with self._lock:
            self._by_ticket[ticket_id].versions.append(version)
            self.change_count += 1

    def __getitem__(self, ticket_id: str) -> TicketVersions:
        return self._by_ticket[ticket_id]

    def __len__(self) -> int:
        return len(self._by_ticket)
