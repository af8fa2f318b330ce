"""A ticket as the support service holds it: its columns, its identity, and what a change of status does to its times. Pure.

What belongs here: what the replay and the simulated traffic have in common. What does not: ``sla_breached``, which only
the monitor writes (SPEC 1.3); deadlines, which the log and the traffic set each by a policy of its own; SQL
(``support_service.py``).
"""

import functools
import uuid
from dataclasses import dataclass, replace
from datetime import datetime

__all__ = ["FINISHED_STATUSES", "TENANT_ID", "Ticket", "person_id", "queue_id", "ticket_id"]

FINISHED_STATUSES = ("Resolved", "Closed")

# names the demo's world, so that its ids never meet those of a real desk
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "urn:sla-pipeline:demo")


# a log names the same few queues and people thousands of times
@functools.lru_cache(maxsize=10_000)
def _uuid(kind: str, name: str | int) -> str:
    return str(uuid.uuid5(_NAMESPACE, f"{kind}:{name}"))


TENANT_ID = _uuid("tenant", "platform")
"""The single tenant of the platform (SPEC 4.3)."""


def ticket_id(number: str) -> str:
    """The id of the ticket with this number: a UUIDv5, the same every time."""
    return _uuid("ticket", number)


def queue_id(number: int) -> str:
    """The id of the queue with this number."""
    return _uuid("queue", number)


def person_id(number: int) -> str:
    """The id of the person with this number, requester or assignee."""
    return _uuid("person", number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """The columns that the support service writes.

    Ids are text, times are aware and in UTC; what the table lets be empty may be None.
    """

    id: str
    number: str
    tenant_id: str | None
    queue_id: str | None
    requester_user_id: str | None
    assignee_user_id: str | None
    priority: str | None
    status: str
    first_response_due_at: datetime | None
    first_response_at: datetime | None
    resolution_due_at: datetime | None
    resolved_at: datetime | None
    created_at: datetime
    updated_at: datetime

    def with_status(self, status: str, at: datetime) -> "Ticket":
        """The ticket with another status from ``at`` on.

        Its resolution is noted when it leaves the open statuses, kept from Resolved to Closed, and taken away when it
        comes back.
        """
        finished = status in FINISHED_STATUSES
        resolved_at = (self.resolved_at or at) if finished else None
        return replace(self, status=status, resolved_at=resolved_at, updated_at=at)

    def answered(self, at: datetime) -> "Ticket":
        """The ticket with a first response at ``at``, unless it has one."""
        return replace(self, first_response_at=self.first_response_at or at, updated_at=at)
