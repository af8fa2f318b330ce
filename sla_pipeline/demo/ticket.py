"""A ticket of the simulated support service: columns, ids, and the times that follow from its status. Pure.

It has no ``sla_breached``, which only the monitor writes (SPEC 1.3). Log and traffic set deadlines by their own
policies.
"""

import functools
import uuid
from dataclasses import dataclass, replace
from datetime import datetime

__all__ = ["FINISHED_STATUSES", "TENANT_ID", "Ticket", "person_id", "queue_id", "ticket_id"]

FINISHED_STATUSES = ("Resolved", "Closed")

# namespace of the demo's ids, which thus differ from those of a real desk
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "urn:sla-pipeline:demo")


# cached: a log repeats the same few queues and people thousands of times
@functools.lru_cache(maxsize=10_000)
def _uuid(kind: str, name: str | int) -> str:
    return str(uuid.uuid5(_NAMESPACE, f"{kind}:{name}"))


TENANT_ID = _uuid("tenant", "platform")
"""The single tenant of the platform (SPEC 4.3)."""


def ticket_id(number: str) -> str:
    """Return the id of the ticket with this number, a UUIDv5."""
    return _uuid("ticket", number)


def queue_id(number: int) -> str:
    """Return the id of the queue with this number."""
    return _uuid("queue", number)


def person_id(number: int) -> str:
    """Return the id of the requester or assignee with this number."""
    return _uuid("person", number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """Columns that the support service writes.

    Ids are text, times are aware and in UTC; nullable columns may be None.
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
        """Return the ticket with another status from ``at`` on.

        ``resolved_at`` is set when the ticket leaves the open statuses, kept from Resolved to Closed, and cleared when
        the ticket is reopened.
        """
        finished = status in FINISHED_STATUSES
        resolved_at = (self.resolved_at or at) if finished else None
        return replace(self, status=status, resolved_at=resolved_at, updated_at=at)

    def answered(self, at: datetime) -> "Ticket":
        """Return the ticket with a first response at ``at``, unless it has one."""
        return replace(self, first_response_at=self.first_response_at or at, updated_at=at)
