"""Overdue tickets that cannot be marked, set aside until their next try, and their one rendering for people."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from sla_pipeline.quoting import named

__all__ = ["SetAside", "SetAsideCells", "TicketSetAside"]

# A reason is our own sentence: the longest names five fields that are null.
_REASON_LENGTH = 1_000


class SetAsideCells(NamedTuple):
    """One ticket, printable: one line, bounded, no control characters. Times are in UTC."""

    number: str
    ticket_id: str
    kind: str
    since: str
    reason: str
    next_try: str


@dataclass(frozen=True, slots=True)
class TicketSetAside:
    """An overdue ticket that cannot be marked; ``error`` holds no text of the ticket."""

    id: str
    number: str
    kind: str
    error: str
    try_count: int
    first_failed_at: datetime
    next_try_at: datetime


@dataclass(frozen=True, slots=True)
class SetAside:
    """Number of tickets set aside, and the first of them by the time of their first failure."""

    count: int = 0
    tickets: list[TicketSetAside] = field(default_factory=list)

    @property
    def summary(self) -> str:
        """Sentence with the number and the remedy."""
        return (
            f"{self.count} overdue tickets cannot be marked, and nobody is called for them; correct the row, or what "
            "refuses it: a row that has changed is tried by the next cycle, another one at its next try"
        )

    def cells(self) -> Iterator[SetAsideCells]:
        """Yield the listed tickets, as texts for a table, a Markdown table or a line."""
        for ticket in self.tickets:
            yield SetAsideCells(
                named(ticket.number),
                ticket.id,
                named(ticket.kind),
                f"{ticket.first_failed_at:%Y-%m-%d %H:%M:%S}",
                named(ticket.error, length=_REASON_LENGTH),
                f"{ticket.next_try_at:%Y-%m-%d %H:%M:%S}",
            )

    @property
    def unlisted(self) -> str:
        """Sentence on the tickets that are not listed; empty when all are."""
        more = self.count - len(self.tickets)
        return f"and {more} more in support.ticket_sla_set_aside" if more else ""
