"""States of the log's tickets after each change, and the minutes at which a cycle can find a breach. Pure.

The rules are those of ``data/README.md``. Whether a ticket is breached is decided by the cycle alone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import zip_longest

from sla_pipeline.breach import Priority
from sla_pipeline.demo.incident_log import Change, IncidentLog
from sla_pipeline.demo.ticket import TENANT_ID, Ticket, person_id, queue_id, ticket_id

__all__ = ["TICK", "after_change", "deadlines", "states", "ticket_at", "ticks"]

TICK = timedelta(minutes=1)
"""Resolution of the log's times."""

# minutes from opened_at to the first response and to the resolution, around the clock
_POLICY_MINUTES = {
    Priority.CRITICAL: (15, 240),
    Priority.HIGH: (60, 480),
    Priority.NORMAL: (240, 2_880),
    Priority.LOW: (480, 7_200),
}


def deadlines(opened_at: datetime, priority: Priority) -> tuple[datetime, datetime]:
    """Return the deadlines of the first response and of the resolution."""
    first_response, resolution = _POLICY_MINUTES[priority]
    return opened_at + timedelta(minutes=first_response), opened_at + timedelta(minutes=resolution)


def after_change(ticket: Ticket | None, change: Change) -> Ticket:
    """Return the ticket after ``change``; ``ticket`` is its state before, None for its first change."""
    first_response_due_at, resolution_due_at = deadlines(change.opened_at, change.priority)
    base = ticket or Ticket(
        id=ticket_id(change.number),
        number=change.number,
        tenant_id=TENANT_ID,
        queue_id=queue_id(change.queue),
        requester_user_id=person_id(change.requester),
        assignee_user_id=None,
        priority=change.priority,
        status=change.status,
        first_response_due_at=first_response_due_at,
        first_response_at=None,
        resolution_due_at=resolution_due_at,
        resolved_at=None,
        created_at=change.at,
        updated_at=change.at,
    )
    changed = replace(
        base.with_status(change.status, change.at),
        priority=change.priority,
        queue_id=queue_id(change.queue),
        assignee_user_id=None if change.assignee is None else person_id(change.assignee),
        requester_user_id=person_id(change.requester),
        first_response_due_at=first_response_due_at,
        resolution_due_at=resolution_due_at,
    )
    return changed if change.status == "New" else changed.answered(change.at)


def states(changes: Iterable[Change]) -> list[Ticket]:
    """Return the state of one ticket after each of its changes, in their order."""
    found: list[Ticket] = []
    ticket: Ticket | None = None
    for change in changes:
        ticket = after_change(ticket, change)
        found.append(ticket)
    return found


def ticket_at(changes: Sequence[Change], moment: datetime) -> Ticket | None:
    """Return the state of one ticket at ``moment``; None before its first change."""
    history = states(change for change in changes if change.at <= moment)
    return history[-1] if history else None


def ticks(log: IncidentLog, until: datetime | None = None) -> list[datetime]:
    """Return the minutes at which a cycle can find anything new, in order, up to and including ``until``.

    They are the minutes at which a change took effect, and the minutes after a deadline then in force, since a deadline
    must lie before ``now_utc`` (SPEC 4.1). A cycle at any other minute would change nothing.
    """
    found: set[datetime] = set()
    for changes in log.by_ticket().values():
        found.update(change.at for change in changes)
        ends = [change.at for change in changes[1:]]
        for change, end in zip_longest(changes, ends):
            for due_at in deadlines(change.opened_at, change.priority):
                passed_at = due_at + TICK
                if change.at <= passed_at and (end is None or passed_at < end):
                    found.add(passed_at)
    return sorted(tick for tick in found if until is None or tick <= until)
