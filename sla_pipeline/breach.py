"""The rule: when a ticket is breached, of which kind, by which deadline (SPEC 1.1, 4.1, 5.4).

Pure functions and values: nothing here reads a clock, a database or a setting. ``postgres/tickets.py`` has the same
rule in SQL; a property test holds the two together.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

__all__ = ["ACTIVE_STATUSES", "Breach", "BreachKind", "Priority", "TicketState", "judge"]

# The only statuses of tickets in a batch (SPEC 5.3).
ACTIVE_STATUSES = ("New", "InWork")


class BreachKind(StrEnum):
    """The deadline that was missed: of the first response, or of the resolution."""

    FIRST_RESPONSE = "FirstResponse"
    RESOLUTION = "Resolution"


class Priority(StrEnum):
    """Known priorities.

    The support service owns the list: another value is valid and goes into the event unchanged.
    """

    CRITICAL = "Critical"
    HIGH = "High"
    NORMAL = "Normal"
    LOW = "Low"


class TicketState(Protocol):
    """Fields of a ticket that the rule reads.

    Every time is timezone-aware; ``status`` is free text, since the support service owns its values.
    """

    @property
    def status(self) -> str:
        """New, InWork, OnHold, Resolved, Closed, or a value that the support service adds."""

    @property
    def sla_breached(self) -> bool:
        """True once the ticket has been marked."""

    @property
    def first_response_due_at(self) -> datetime | None:
        """Deadline of the first public reply, or None."""

    @property
    def first_response_at(self) -> datetime | None:
        """Time of the first public reply, or None."""

    @property
    def resolution_due_at(self) -> datetime | None:
        """Deadline of the resolution, or None."""

    @property
    def resolved_at(self) -> datetime | None:
        """Time of the resolution, or None."""


@dataclass(frozen=True, slots=True)
class Breach:
    """A missed deadline and its kind."""

    kind: BreachKind
    due_at: datetime


def judge(ticket: TicketState, now_utc: datetime) -> Breach | None:
    """Return the breach that a cycle at ``now_utc`` must mark on this ticket, or None (SPEC 1.1, 5.4).

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
