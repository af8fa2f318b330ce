"""The rule: when a ticket is breached, of which kind, by which deadline (SPEC 1.1, 4.1, 5.4).

What belongs here: pure functions and values, nothing that reads a clock, a database or a setting. What does not: how
tickets are found quickly (``postgres/tickets.py`` says the same rule in SQL; a property test holds the two together).
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

__all__ = ["ACTIVE_STATUSES", "Breach", "BreachKind", "Priority", "TicketState", "judge"]

# the only statuses that a batch may hold (SPEC 5.3)
ACTIVE_STATUSES = ("New", "InWork")


class BreachKind(StrEnum):
    """Which promise was broken."""

    FIRST_RESPONSE = "FirstResponse"
    RESOLUTION = "Resolution"


class Priority(StrEnum):
    """The priorities that we know.

    The support service owns the list: another value is no fault, it goes out as it is.
    """

    CRITICAL = "Critical"
    HIGH = "High"
    NORMAL = "Normal"
    LOW = "Low"


class TicketState(Protocol):
    """What the rule looks at.

    Every time is timezone-aware; ``status`` is free text, since the support service owns its values.
    """

    @property
    def status(self) -> str:
        """New, InWork, OnHold, Resolved, Closed, or what the support service adds."""

    @property
    def sla_breached(self) -> bool:
        """Marked already."""

    @property
    def first_response_due_at(self) -> datetime | None:
        """Deadline of the first public reply."""

    @property
    def first_response_at(self) -> datetime | None:
        """The first public reply."""

    @property
    def resolution_due_at(self) -> datetime | None:
        """Deadline of the resolution."""

    @property
    def resolved_at(self) -> datetime | None:
        """When it was resolved."""


@dataclass(frozen=True, slots=True)
class Breach:
    """A broken promise: its kind and the deadline that passed."""

    kind: BreachKind
    due_at: datetime


def judge(ticket: TicketState, now_utc: datetime) -> Breach | None:
    """The breach that a cycle at ``now_utc`` must mark on this ticket, or None (SPEC 1.1, 5.4).

    The cut-off is strict, ``due < now_utc``. A first response overdue has priority over a resolution overdue. A ticket
    that is already breached, or in a status other than New and InWork, is never breached (again).
    """
    if ticket.sla_breached or ticket.status not in ACTIVE_STATUSES:
        return None
    if (
        ticket.first_response_at is None
        and ticket.first_response_due_at is not None
        and ticket.first_response_due_at < now_utc
    ):
        return Breach(BreachKind.FIRST_RESPONSE, ticket.first_response_due_at)
    if (
        ticket.status == "InWork"
        and ticket.resolved_at is None
        and ticket.resolution_due_at is not None
        and ticket.resolution_due_at < now_utc
    ):
        return Breach(BreachKind.RESOLUTION, ticket.resolution_due_at)
    return None
