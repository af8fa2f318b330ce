"""State of the database as values, and what the rule finds in it. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import NamedTuple

from sla_pipeline.breach import Breach, judge

__all__ = ["COLUMNS", "BreachRow", "DatabaseState", "SetAsideRow", "TicketRow", "claimable", "overdue"]

_NO_DEADLINE = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True)
class TicketRow:
    """A row of ``support.tickets``; ids are text. Times are aware, in UTC."""

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
    sla_breached: bool
    created_at: datetime
    updated_at: datetime

    @property
    def is_bad(self) -> bool:
        """Whether the contract cannot express its event, so that it can only be set aside."""
        return not self.priority or self.queue_id is None


COLUMNS = tuple(field.name for field in fields(TicketRow))


class BreachRow(NamedTuple):
    """A row of ``support.ticket_sla_breaches``, the source of an event."""

    seq: int
    ticket_id: str
    kind: str
    due_at: datetime
    breached_at: datetime
    payload: str


class SetAsideRow(NamedTuple):
    """A row of ``support.ticket_sla_set_aside``."""

    ticket_id: str
    next_try_at: datetime
    changed: bool
    """Whether the ticket's row has changed since it failed."""


@dataclass(frozen=True)
class DatabaseState:
    """Contents of all tables at one moment."""

    tickets: Mapping[str, TicketRow]
    records: tuple[BreachRow, ...]
    """In the order of ``seq``."""
    set_aside: tuple[SetAsideRow, ...]
    last_seq: int
    published_seq: int

    @property
    def breached_ids(self) -> set[str]:
        """Ids of the marked tickets."""
        return {ticket.id for ticket in self.tickets.values() if ticket.sla_breached}


def overdue(tickets: Iterable[TicketRow], now_utc: datetime) -> dict[str, Breach]:
    """Return the unmarked tickets that the rule finds breached, in the order of SPEC 5.3."""
    ordered = sorted(tickets, key=lambda ticket: (ticket.first_response_due_at or _NO_DEADLINE, ticket.id))
    return {ticket.id: breach for ticket in ordered if (breach := judge(ticket, now_utc))}


def claimable(state: DatabaseState, now_utc: datetime, limit: int) -> list[str]:
    """Return what a claim at ``now_utc`` must find: overdue tickets that are not set aside, at most ``limit``."""
    waiting = {row.ticket_id for row in state.set_aside if row.next_try_at > now_utc and not row.changed}
    return [ticket_id for ticket_id in overdue(state.tickets.values(), now_utc) if ticket_id not in waiting][:limit]
