"""Mark a batch: flag and breach record in one transaction (SPEC 5.4 to 5.6, 6), bad rows told apart and set aside.

What belongs here: everything that happens between the locks of one batch and its commit. What does not: which tickets are tried
(``tickets.claim``), the loop over batches (``monitor/steps.py``), publishing.

The guarantee: a ticket's flag and its breach record are committed together or not at all, and the records' ``seq`` has no gap and
is in the order of commits, because the row that hands it out is locked last and held until the commit.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

import psycopg
from pydantic import ValidationError

from sla_pipeline.breach import Breach, BreachKind, judge
from sla_pipeline.cycle import OnStep, no_step
from sla_pipeline.event import event_json
from sla_pipeline.postgres import set_aside
from sla_pipeline.postgres.session import DISTANT_PAST
from sla_pipeline.postgres.tickets import LockedTicket, id_array, lock_batch, still_overdue

__all__ = ["BadRow", "BatchOutcome", "mark_batch"]

log = logging.getLogger(__name__)

# Index: the primary key.
_MARK = "update support.tickets set sla_breached = true, updated_at = %(now_utc)s where id = any(%(ids)s::uuid[])"
# Index: primary keys. All tickets are locked and updated by this transaction already, so the relay's row is the last lock that it takes.
# Payloads, JSON without a raw line break, go over as the lines of one text: in an array each of their quotes would be escaped, in Python.
_RECORD = """
with taken as (
    update support.ticket_sla_relay set next_seq = next_seq + %(count)s where id = 1 returning next_seq - %(count)s as base
)
insert into support.ticket_sla_breaches (seq, ticket_id, number, kind, due_at, breached_at, correlation_id, payload)
select taken.base + position, id, number, kind,
    case kind when 'FirstResponse' then first_response_due_at else resolution_due_at end, %(now_utc)s, %(run_id)s, payload
from taken, unnest(%(ids)s::uuid[], string_to_array(%(kinds)s, ','), string_to_array(%(payloads)s, E'\\n'))
    with ordinality as breach (ticket_id, kind, payload, position) join support.tickets on id = ticket_id
"""

# SQLSTATEs and their classes that say nothing of a row: server, session, resources, locks and time-outs, rights, missing objects. With any
# other, a constraint or a trigger of the support service (which may raise a code of its own) objects to some row.
_NOT_OF_A_ROW_CLASSES = ("08", "25", "28", "40", "53", "55", "57", "58", "F0")
_NOT_OF_A_ROW = ("3F000", "42501", "42703", "42P01")


@dataclass(frozen=True, slots=True)
class BadRow:
    """A ticket that is overdue and cannot be marked; ``error`` holds no text of the ticket."""

    ticket_id: str
    number: str
    kind: BreachKind
    error: str


@dataclass(slots=True)
class BatchOutcome:
    """What became of a batch's tickets."""

    by_kind: dict[BreachKind, int] = field(default_factory=lambda: dict.fromkeys(BreachKind, 0))
    remarked: list[LockedTicket] = field(default_factory=list)
    bad: list[BadRow] = field(default_factory=list)
    held_by_others: list[str] = field(default_factory=list)


class _Found(NamedTuple):
    ticket: LockedTicket
    breach: Breach
    payload: str


class _RowUnchanged(Exception):
    """A trigger or a rule of the database has kept a locked row from being updated."""


class _NoEvents(Exception):
    """Of some tickets no event can be built."""

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

    Rows that others hold are left out and told. A row that cannot be marked is set aside with a growing pause; the others go through.
    Raises what the driver raises when the whole batch failed: it is rolled back then, its rows are free.
    """
    outcome = BatchOutcome()
    with connection.transaction():
        tickets = lock_batch(connection, ids, now_utc=now_utc, tenant_id=tenant_id)
        on_step("batch_locked")
        written = _write(connection, tickets, now_utc=now_utc, run_id=run_id, bad=outcome.bad)
        set_aside.add(connection, [(bad.ticket_id, bad.number, bad.kind.value, bad.error) for bad in outcome.bad], now_utc=now_utc)
        set_aside.forget(connection, [one.ticket.id for one in written if one.ticket.set_aside])
        on_step("batch_written")
    on_step("batch_committed")
    for one in written:
        outcome.by_kind[one.breach.kind] += 1
    outcome.remarked = [one.ticket for one in written if one.ticket.recorded]
    missing = set(ids).difference(ticket.id for ticket in tickets)
    if missing:
        outcome.held_by_others = still_overdue(connection, list(missing), now_utc=now_utc)
    return outcome


def _event_of(ticket: LockedTicket, now_utc: datetime) -> _Found | BadRow:
    breach = judge(ticket, now_utc)
    if breach is None:  # the predicate in SQL let it through: never to be guessed at
        return BadRow(ticket.id, ticket.number, BreachKind.RESOLUTION, "the rule does not find this ticket breached, the selection does")
    if breach.due_at == DISTANT_PAST:
        return BadRow(ticket.id, ticket.number, breach.kind, "the deadline is not a date between the years 1 and 9999")
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
        faults = "; ".join(f"{fault['loc'][0] if fault['loc'] else 'event'}: {fault['msg']}" for fault in error.errors(include_input=False))
        return BadRow(ticket.id, ticket.number, breach.kind, f"the event cannot be built: {faults}")
    return _Found(ticket, breach, payload)


def _write(
    connection: psycopg.Connection,
    tickets: Sequence[LockedTicket],
    *,
    now_utc: datetime,
    run_id: str,
    bad: list[BadRow],
    alone: bool = False,
) -> list[_Found]:
    """Write all, or, where some rows' data make that fail, all but those, which go to ``bad``; ``alone`` for one, tried by itself."""
    try:
        with connection.transaction():
            return _write_all(connection, tickets, now_utc=now_utc, run_id=run_id)
    except _NoEvents as without:
        bad += without.rows
        left_out = {row.ticket_id for row in without.rows}
        others = [ticket for ticket in tickets if ticket.id not in left_out]
        return _write(connection, others, now_utc=now_utc, run_id=run_id, bad=bad)
    except (psycopg.Error, _RowUnchanged) as error:
        if not _is_of_a_row(error):
            raise
        if alone:
            (ticket,) = tickets
            breach = judge(ticket, now_utc)
            bad.append(BadRow(ticket.id, ticket.number, breach.kind if breach else BreachKind.RESOLUTION, _described(error)))
            return []
    written: list[_Found] = []
    for ticket in tickets:
        # locked and read again: a record that was committed between the first look and the lock is seen now
        now_seen = lock_batch(connection, [ticket.id], now_utc=now_utc, tenant_id=None)
        written += _write(connection, now_seen, now_utc=now_utc, run_id=run_id, bad=bad, alone=True)
    return written


def _write_all(connection: psycopg.Connection, tickets: Sequence[LockedTicket], *, now_utc: datetime, run_id: str) -> list[_Found]:
    """Write the flags and the records. The events are built while the server sets the flags."""
    if not tickets:
        return []
    with connection.pipeline():
        marking = connection.execute(_MARK, {"now_utc": now_utc, "ids": id_array(ticket.id for ticket in tickets)}, prepare=True)
        verdicts = [_event_of(ticket, now_utc) for ticket in tickets]
        bad = [verdict for verdict in verdicts if isinstance(verdict, BadRow)]
        found = [verdict for verdict in verdicts if isinstance(verdict, _Found)]
        # a record exists where the flag was put back after it was set: such a ticket has had its event
        fresh = [one for one in found if not one.ticket.recorded]
        recording = connection.execute(
            _RECORD,
            {
                "now_utc": now_utc,
                "run_id": run_id,
                "count": len(fresh),
                "ids": id_array(one.ticket.id for one in fresh),
                "kinds": ",".join(one.breach.kind.value for one in fresh),
                "payloads": "\n".join(one.payload for one in fresh),
            },
            prepare=True,
        )
    if bad:
        raise _NoEvents(bad)
    if marking.rowcount != len(found):
        raise _RowUnchanged
    if recording.rowcount != len(fresh):
        raise RuntimeError(f"{recording.rowcount} of {len(fresh)} breach records were written; is there a row in support.ticket_sla_relay?")
    return found


def _is_of_a_row(error: psycopg.Error | _RowUnchanged) -> bool:
    """Whether the others can go through without the row at fault."""
    if isinstance(error, _RowUnchanged):
        return True
    # without a code it is the driver that speaks, of a connection that broke
    return error.sqlstate is not None and error.sqlstate not in _NOT_OF_A_ROW and not error.sqlstate.startswith(_NOT_OF_A_ROW_CLASSES)


def _described(error: Exception) -> str:
    """Code, class and constraint of a fault; never the driver's text, which may repeat what the row says."""
    if isinstance(error, psycopg.Error):
        constraint = f", constraint {error.diag.constraint_name}" if error.diag.constraint_name else ""
        return f"the database refuses the row: {type(error).__name__} ({error.sqlstate}){constraint}"
    return "the database kept the row from being updated (a trigger or a rule on support.tickets)"
