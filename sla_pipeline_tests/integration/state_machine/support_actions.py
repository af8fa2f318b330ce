"""Actions of the support service, drawn by Hypothesis: new tickets and operators' changes. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from sla_pipeline_tests.integration.state_machine.database_state import TicketRow
from sla_pipeline_tests.tickets import MINUTE, NOW, QUEUE, TENANT

__all__ = ["ACTIONS", "OVERDUE", "Draft", "changed_values", "drafts", "minutes"]

# odd, so that consecutive ticket numbers map to distinct ids in another order
_SPREAD = 0x9E3779B97F4A7C15F39CC0605CEDC835

# around a cycle's time; 0 is the boundary, at which nothing is overdue yet
minutes = st.integers(min_value=-60, max_value=30)


@dataclass(frozen=True)
class Draft:
    """A new ticket; deadlines in minutes from its creation."""

    status: str
    first_due_minutes: int | None
    replied: bool
    resolution_due_minutes: int | None
    resolved: bool
    priority: str
    has_queue: bool
    breached: bool

    def ticket(self, number: int, now: datetime) -> TicketRow:
        """Return the ticket's row."""
        return TicketRow(
            id=str(UUID(int=number * _SPREAD % 2**128)),
            number=f"TCK-{number}",
            tenant_id=TENANT,
            queue_id=QUEUE if self.has_queue else None,
            requester_user_id="0ca70000-0000-4000-8000-000000000003",
            assignee_user_id=None,
            priority=self.priority,
            status=self.status,
            first_response_due_at=_from(now, self.first_due_minutes),
            first_response_at=NOW - MINUTE if self.replied else None,
            resolution_due_at=_from(now, self.resolution_due_minutes),
            resolved_at=NOW - MINUTE if self.resolved else None,
            sla_breached=self.breached,
            created_at=now,
            updated_at=now,
        )


def _from(now: datetime, offset: int | None) -> datetime | None:
    return None if offset is None else now + offset * MINUTE


_seldom = st.sampled_from([False] * 7 + [True])
_mostly_passed = st.one_of(st.integers(-60, -1), st.integers(-60, -1), minutes, st.none())
drafts = st.builds(
    Draft,
    # most tickets are overdue and can be marked
    status=st.sampled_from(["New", "InWork", "New", "InWork", "New", "InWork", "OnHold", "Resolved", "Closed"]),
    first_due_minutes=_mostly_passed,
    replied=st.sampled_from([False, False, True]),
    resolution_due_minutes=_mostly_passed,
    resolved=_seldom,
    priority=st.sampled_from(["Normal", "High", "Critical", "Low", "Urgent", "High", ""]),
    has_queue=_seldom.map(lambda seldom: not seldom),
    breached=_seldom,
)
OVERDUE = Draft("New", -1, False, None, False, "Normal", True, False)
"""A ticket that a cycle must mark."""

Action = Callable[[TicketRow, datetime, int], dict[str, Any]]
ACTIONS: dict[str, Action] = {
    "reply": lambda _, now, __: {"first_response_at": now},
    "take into work": lambda _, __, ___: {"status": "InWork"},
    "resolve": lambda _, now, __: {"status": "Resolved", "resolved_at": now},
    "close": lambda _, __, ___: {"status": "Closed"},
    "reopen": lambda _, __, ___: {"status": "InWork", "resolved_at": None},
    "put on hold": lambda _, __, ___: {"status": "OnHold"},
    "assign": lambda _, __, ___: {"assignee_user_id": "0a551911-0000-4000-8000-000000000004"},
    "move the first deadline": lambda _, now, offset: {"first_response_due_at": now + offset * MINUTE},
    "move the second deadline": lambda _, now, offset: {"resolution_due_at": now + offset * MINUTE},
    "drop the second deadline": lambda _, __, ___: {"resolution_due_at": None},
    "invent a priority": lambda _, __, ___: {"priority": "Urgent"},
    "empty the priority": lambda _, __, ___: {"priority": ""},
    "lose the queue": lambda _, __, ___: {"queue_id": None},
    "repair": lambda _, __, ___: {"priority": "Normal", "queue_id": QUEUE},
    # a full-row write of a client that read the ticket before it was marked (a blind write)
    "write the row back as not breached": lambda ticket, _, __: {**vars(ticket), "sla_breached": False},
}


def changed_values(ticket: TicketRow, action: str, now: datetime, offset: int) -> dict[str, Any]:
    """Return the columns that ``action`` writes, with their values."""
    return {**ACTIONS[action](ticket, now, offset), "updated_at": now}
