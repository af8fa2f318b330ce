"""What the tickets must look like: a copy of the table in memory, and what the rule says of it.

What belongs here: values and pure functions. What does not: databases, topics, Hypothesis. Only the support service's
side is written down here as it acts; the monitor's marks are taken over from the database, each after the rule was
asked whether it may be there.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import NamedTuple

from sla_pipeline.breach import Breach, judge

__all__ = ["COLUMNS", "Record", "SetAside", "State", "Ticket", "claimable", "overdue"]

_NO_DEADLINE = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Ticket:
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
        """Its event cannot be told in the contract, so it can only be set aside."""
        return not self.priority or self.queue_id is None


COLUMNS = tuple(field.name for field in fields(Ticket))


class Record(NamedTuple):
    """A row of the outbox, of which the event is made."""

    seq: int
    ticket_id: str
    kind: str
    due_at: datetime
    breached_at: datetime
    payload: str


class SetAside(NamedTuple):
    """A row of ``support.ticket_sla_set_aside``."""

    ticket_id: str
    next_try_at: datetime
    changed: bool
    """The ticket's row is another than the one that failed."""


@dataclass(frozen=True)
class State:
    """All that the database says at one moment."""

    tickets: Mapping[str, Ticket]
    records: tuple[Record, ...]
    """In the order of ``seq``."""
    set_aside: tuple[SetAside, ...]
    last_seq: int
    published_seq: int

    @property
    def breached_ids(self) -> set[str]:
        """The marked tickets."""
        return {ticket.id for ticket in self.tickets.values() if ticket.sla_breached}


def overdue(tickets: Iterable[Ticket], now_utc: datetime) -> dict[str, Breach]:
    """The tickets that the rule finds breached and not marked, in the order of SPEC 5.3."""
    ordered = sorted(tickets, key=lambda ticket: (ticket.first_response_due_at or _NO_DEADLINE, ticket.id))
    return {ticket.id: breach for ticket in ordered if (breach := judge(ticket, now_utc))}


def claimable(state: State, now_utc: datetime, limit: int) -> list[str]:
    """What a claim at ``now_utc`` must find: the overdue but for those set aside for later, at most ``limit``."""
    waiting = {row.ticket_id for row in state.set_aside if row.next_try_at > now_utc and not row.changed}
    return [ticket_id for ticket_id in overdue(state.tickets.values(), now_utc) if ticket_id not in waiting][:limit]
