"""What the support service does to tickets, drawn by Hypothesis: which tickets come, what operators change of them.

What belongs here: strategies, and the change that an action means. What does not: carrying it out (``world.py``).
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from sla_pipeline_tests.integration.state_machine.model import Ticket
from sla_pipeline_tests.tickets import MINUTE, NOW, QUEUE, TENANT

__all__ = ["ACTIONS", "LATE", "Draft", "changed_values", "drafts", "minutes"]

# odd, so that it maps the counted tickets to ids that are not in their order
_SPREAD = 0x9E3779B97F4A7C15F39CC0605CEDC835

# around a cycle's now; 0 is the boundary itself, at which nothing is overdue yet
minutes = st.integers(min_value=-60, max_value=30)


@dataclass(frozen=True)
class Draft:
    """A ticket to come; deadlines in minutes from the time of its coming."""

    status: str
    first_due_minutes: int | None
    replied: bool
    resolution_due_minutes: int | None
    resolved: bool
    priority: str
    has_queue: bool
    breached: bool

    def ticket(self, number: int, now: datetime) -> Ticket:
        """The row."""
        return Ticket(
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
    # most are of a kind that is overdue and can be marked
    status=st.sampled_from(["New", "InWork", "New", "InWork", "New", "InWork", "OnHold", "Resolved", "Closed"]),
    first_due_minutes=_mostly_passed,
    replied=st.sampled_from([False, False, True]),
    resolution_due_minutes=_mostly_passed,
    resolved=_seldom,
    priority=st.sampled_from(["Normal", "High", "Critical", "Low", "Urgent", "High", ""]),
    has_queue=_seldom.map(lambda seldom: not seldom),
    breached=_seldom,
)
LATE = Draft("New", -1, False, None, False, "Normal", True, False)
"""A ticket that a cycle must mark."""

Action = Callable[[Ticket, datetime, int], dict[str, Any]]
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
    "mend": lambda _, __, ___: {"priority": "Normal", "queue_id": QUEUE},
    # a full-row write of somebody who had loaded the ticket before it was marked (CASES: blind write)
    "write the row back as not breached": lambda ticket, _, __: {**vars(ticket), "sla_breached": False},
}


def changed_values(ticket: Ticket, action: str, now: datetime, offset: int) -> dict[str, Any]:
    """The columns that ``action`` writes, and their values."""
    return {**ACTIONS[action](ticket, now, offset), "updated_at": now}
