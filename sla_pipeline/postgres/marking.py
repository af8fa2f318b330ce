"""Mark a batch: flag and breach record in one transaction (SPEC 5.4 to 5.6, 6).

The guarantee: a ticket's flag and its breach record are committed together or not at all, and the records' ``seq`` has
no gap and is in the order of commits, because the row that hands it out is locked after the tickets and held until the
commit. ``tickets.claim`` selects the tickets, ``monitor/batches.py`` handles a batch that failed.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

import psycopg
from pydantic import ValidationError

from sla_pipeline.breach import Breach, BreachKind, Priority, judge
from sla_pipeline.cycle import OnStep, no_step
from sla_pipeline.errors import PostgresBusy, SlaPipelineError
from sla_pipeline.event import event_json
from sla_pipeline.postgres.faults import FaultScope, fault_name, fault_scope, stop_request_behind, translate
from sla_pipeline.postgres.outbox import relay_row_missing
from sla_pipeline.postgres.session import DISTANT_PAST, PostgresSettings, translated_errors
from sla_pipeline.postgres.tickets import LockedTicket, id_array, lock_batch

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

__all__ = ["BadRow", "BatchFailed", "BatchOutcome", "mark_batch", "require_free_sequence"]

_KNOWN_PRIORITIES = frozenset(Priority)

# Index: the primary key.
_MARK = "update support.tickets set sla_breached = true, updated_at = %(now_utc)s where id = any(%(ids)s::uuid[])"
_LOCK_SEQUENCE = "select from support.ticket_sla_relay where id = 1 for no key update"
# Index: primary keys. All tickets are locked and updated by this transaction already: the relay's row comes after them,
# so the transaction waits for no ticket while it holds that row. Payloads, JSON without raw line breaks, are sent as
# the lines of one text: psycopg would escape each of their quotes in an array, in Python.
_RECORD = """
with taken as (
    update support.ticket_sla_relay set last_seq = last_seq + %(count)s where id = 1
    returning last_seq - %(count)s as base
)
insert into support.ticket_sla_breaches (seq, ticket_id, number, kind, due_at, breached_at, correlation_id, payload)
select taken.base + breach.position, tickets.id, tickets.number, breach.kind,
    case breach.kind when 'FirstResponse' then tickets.first_response_due_at else tickets.resolution_due_at end,
    %(now_utc)s, %(run_id)s, breach.payload
from taken, unnest(%(ids)s::uuid[], string_to_array(%(kinds)s, ','), string_to_array(%(payloads)s, E'\\n'))
    with ordinality as breach (ticket_id, kind, payload, position) join support.tickets on tickets.id = breach.ticket_id
"""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A ticket that is overdue and cannot be marked; ``error`` holds no text of the ticket."""

    ticket_id: str
    number: str
    kind: BreachKind
    error: str
    row_version: str | None


@dataclass(slots=True)
class BatchOutcome:
    """A committed batch.

    ``bad`` are tickets without an event, ``missed`` those that were locked by others or no longer overdue.
    ``unknown_priorities`` counts the events with each priority that is not in our list.
    """

    by_kind: dict[BreachKind, int] = field(default_factory=lambda: dict.fromkeys(BreachKind, 0))
    flags_restored: list[LockedTicket] = field(default_factory=list)
    bad: list[BadRow] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    unknown_priorities: Counter[str] = field(default_factory=Counter)


class _RowUnchanged(Exception):
    """A trigger or a rule of the database prevented the update of a locked row."""


class BatchFailed(Exception):
    """A batch was rolled back whole, its rows are free. ``tickets`` are the rows that it had locked."""

    def __init__(self, error: psycopg.Error | _RowUnchanged, tickets: list[LockedTicket]) -> None:
        super().__init__()
        self._error = error
        self.tickets = tickets

    def scope(self, connection: psycopg.Connection) -> FaultScope:
        """Return the scope of the fault, as far as its code and the session show it."""
        return FaultScope.ROW if isinstance(self._error, _RowUnchanged) else fault_scope(self._error, connection)

    def fault(self, settings: PostgresSettings) -> SlaPipelineError | None:
        """Return our error for the database's; None when the database reported none."""
        return None if isinstance(self._error, _RowUnchanged) else translate(self._error, settings)

    @property
    def name(self) -> str:
        """Name of the fault, without text of a ticket."""
        return self.refusal if isinstance(self._error, _RowUnchanged) else fault_name(self._error)

    @property
    def refusal(self) -> str:
        """Reason for setting a ticket aside that failed alone."""
        if isinstance(self._error, _RowUnchanged):
            return "the database kept the row from being updated (a trigger or a rule on support.tickets)"
        return f"the database refuses the row: {fault_name(self._error)}"


class _Found(NamedTuple):
    ticket: LockedTicket
    breach: Breach
    payload: str


class _EventsNotBuildable(Exception):
    def __init__(self, rows: list[BadRow]) -> None:
        super().__init__()
        self.rows = rows


def mark_batch(
    connection: psycopg.Connection,
    ids: Sequence[str],
    *,
    now_utc: datetime,
    tenant_id: str | None,
    run_id: str,
    on_step: OnStep = no_step,
) -> BatchOutcome:
    """Mark those of ``ids`` that are still overdue and free, in ONE transaction with their breach records (SPEC 6).

    Rows that others hold are skipped. Tickets of which no event can be built are left out; the others are marked.
    Raise ``BatchFailed`` for any other fault of the database, of the commit as well, and ``PostgresSetupError`` when
    the row that hands out sequences is missing.
    """
    outcome = BatchOutcome()
    tickets: list[LockedTicket] = []
    try:
        with connection.transaction():
            tickets = lock_batch(connection, ids, now_utc=now_utc, tenant_id=tenant_id)
            on_step("batch_locked")
            written = _write(connection, tickets, now_utc=now_utc, run_id=run_id, bad=outcome.bad)
            on_step("batch_written")
    except (psycopg.Error, _RowUnchanged) as error:
        # The driver's error is not chained, because its text may repeat values of a row.
        raise (stop_request_behind(error) or BatchFailed(error, tickets)) from None
    on_step("batch_committed")
    for item in written:
        outcome.by_kind[item.breach.kind] += 1
        if item.ticket.priority not in _KNOWN_PRIORITIES and not item.ticket.recorded:
            outcome.unknown_priorities[str(item.ticket.priority)] += 1
    outcome.flags_restored = [item.ticket for item in written if item.ticket.recorded]
    outcome.missed = list(set(ids).difference(ticket.id for ticket in tickets))
    return outcome


def require_free_sequence(connection: psycopg.Connection, settings: PostgresSettings) -> None:
    """Raise ``PostgresBusy`` when another session holds the row that hands out sequences: no ticket can be marked."""
    try:
        with translated_errors(settings), connection.transaction():
            connection.execute(_LOCK_SEQUENCE)
    except PostgresBusy as busy:
        raise PostgresBusy(f"another session holds the row of support.ticket_sla_relay: {busy}") from None


def _event_of(ticket: LockedTicket, now_utc: datetime) -> _Found | BadRow:
    breach = judge(ticket, now_utc)
    if breach is None:  # rule and SQL disagree: never guess
        return _bad(ticket, BreachKind.RESOLUTION, "the rule does not find this ticket breached, the selection does")
    if breach.due_at == DISTANT_PAST:
        return _bad(ticket, breach.kind, "the deadline is not a date between the years 1 and 9999")
    try:
        payload = event_json(
            breach,
            ticket_id=ticket.id,
            number=ticket.number,
            tenant_id=ticket.tenant_id,
            queue_id=ticket.queue_id,
            requester_user_id=ticket.requester_user_id,
            assignee_user_id=ticket.assignee_user_id,
            priority=ticket.priority,
            now_utc=now_utc,
        )
    except ValidationError as error:
        return _bad(ticket, breach.kind, f"the event cannot be built: {'; '.join(map(_reason, error.errors()))}")
    return _Found(ticket, breach, payload)


def _reason(fault: "ErrorDetails") -> str:
    """Return the field and its fault, without its value."""
    field_name = fault["loc"][0] if fault["loc"] else "event"
    return f"{field_name} is null" if fault["input"] is None else f"{field_name}: {fault['msg']}"


def _bad(ticket: LockedTicket, kind: BreachKind, error: str) -> BadRow:
    return BadRow(ticket.id, ticket.number, kind, error, ticket.row_version)


def _write(
    connection: psycopg.Connection,
    tickets: Sequence[LockedTicket],
    *,
    now_utc: datetime,
    run_id: str,
    bad: list[BadRow],
) -> list[_Found]:
    """Write all tickets, except those of which no event can be built; these are added to ``bad``."""
    try:
        with connection.transaction():
            return _write_all(connection, tickets, now_utc=now_utc, run_id=run_id)
    except _EventsNotBuildable as error:
        bad += error.rows
    left_out = {row.ticket_id for row in bad}
    return _write_all(
        connection, [ticket for ticket in tickets if ticket.id not in left_out], now_utc=now_utc, run_id=run_id
    )


def _write_all(
    connection: psycopg.Connection, tickets: Sequence[LockedTicket], *, now_utc: datetime, run_id: str
) -> list[_Found]:
    """Write the flags and the records. The events are built while the server sets the flags."""
    if not tickets:
        return []
    with connection.pipeline():
        marking = connection.execute(
            _MARK, {"now_utc": now_utc, "ids": id_array(ticket.id for ticket in tickets)}, prepare=True
        )
        results = [_event_of(ticket, now_utc) for ticket in tickets]
        bad = [result for result in results if isinstance(result, BadRow)]
        found = [result for result in results if isinstance(result, _Found)]
        # A ticket with a record has had its event: its flag was reset after it was set.
        unrecorded = [item for item in found if not item.ticket.recorded]
        recording = connection.execute(
            _RECORD,
            {
                "now_utc": now_utc,
                "run_id": run_id,
                "count": len(unrecorded),
                "ids": id_array(item.ticket.id for item in unrecorded),
                "kinds": ",".join(item.breach.kind.value for item in unrecorded),
                "payloads": "\n".join(item.payload for item in unrecorded),
            },
            prepare=True,
        )
    if bad:
        raise _EventsNotBuildable(bad)
    if marking.rowcount != len(found):
        raise _RowUnchanged
    if recording.rowcount != len(unrecorded):
        raise relay_row_missing()
    return found
