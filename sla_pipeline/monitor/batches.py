"""Loop of the mark step: batches first, then the tickets of failed batches in small pieces, within a time limit.

A batch is rolled back whole, whatever failed in it. The ticket at fault is found by trying the others without it, not
by the error's code alone: pieces start at one ticket, double while they pass, and shrink when they fail. So each cycle
marks something or finds a ticket that cannot be marked, however slow the database is:

- a ticket that fails alone is set aside, and tried again with growing pauses or when its row changes;
- a fault of the environment (a missing right) with which no ticket passes ends the marking, and nothing is set aside;
- a lost session ends the marking.
"""

import logging
import random
import time
from collections.abc import Callable, Sequence

from sla_pipeline.breach import BreachKind, judge
from sla_pipeline.cycle import Claim, OnStep
from sla_pipeline.errors import CycleStopped, SlaPipelineError
from sla_pipeline.monitor.faults import bookkeeping, counted
from sla_pipeline.postgres import set_aside, tickets
from sla_pipeline.postgres.database import Database
from sla_pipeline.postgres.faults import FaultScope
from sla_pipeline.postgres.marking import BadRow, BatchFailed, mark_batch, require_free_sequence
from sla_pipeline.postgres.session import LOCK_TIMEOUT_MS, STATEMENT_TIMEOUT_MS, limit_waiting, translated_errors
from sla_pipeline.quoting import named

__all__ = ["BatchMarker", "ShouldStop"]

log = logging.getLogger(__name__)

ShouldStop = Callable[[], bool]
"""Returns true once a stop was requested; called before each batch (SPEC 3.4)."""

# Latest start of a batch or piece after the cycle's start: half of a cycle's 30 s (SPEC 3.3); publishing gets the rest.
_MARK_SECONDS = 15.0
# Bounds one statement of a batch, which takes 50 ms on a healthy database.
_STATEMENT_MS = 4_000
# Bounds a batch's wait for the outbox's sequence, which other cycles hold for milliseconds.
_BATCH_LOCK_MS = 2_000
# Bounds a piece's wait for a lock: a ticket whose trigger waits for one must not use up the cycle.
_PIECE_LOCK_MS = 50
# Busy or refused batches in a row after which the others probably fail too: small pieces make better use of the time.
_STUCK_BATCHES = 2
# Tickets in a row that a fault of the environment refused, with none that passed, after which the rest is sampled, and
# then left to the next cycle.
_HOPELESS_COUNT = 20
# Divisor of the size of a failed piece: a thousand tickets are down to one after four tries.
_SHRINK = 8
# Number of a ticket whose row could not even be read.
_UNREADABLE = "(row not read)"


class BatchMarker:
    """Marks the claimed tickets, and counts them in the claim's totals, errors included. ``run`` is called once."""

    def __init__(self, database: Database, claim: Claim, *, should_stop: ShouldStop, on_step: OnStep) -> None:
        self._database = database
        self._claim = claim
        self._totals = claim.totals
        self._should_stop = should_stop
        self._on_step = on_step
        self._where = {"jobRunId": claim.run_id, "tenantId": claim.cycle_input.tenant_id}
        self._failed_ids: list[str] = []
        self._held_ids: list[str] = []
        # tickets that failed alone by a fault of the environment: set aside only if others pass
        self._suspects: list[BadRow] = []
        self._refused_in_a_row = 0
        self._sequence_checked = False
        self._busy_queue_ids: list[str] = []
        self._last_fault: SlaPipelineError | None = None

        self._connection = database.connection()

    def run(self) -> None:
        """Mark the batches, then the tickets of failed batches in pieces, then once more the rows that others held.

        Raises ``CycleStopped`` when ``should_stop`` returns true, and the fault when it would meet every ticket
        (``PostgresSetupError``, ``PostgresUnavailable``); batches that were committed stay, and are counted. Every
        other fault is counted in the totals.
        """
        try:
            self._limit_waiting(_BATCH_LOCK_MS, _STATEMENT_MS)
            self._mark_batches()
            self._totals.lock_skip_count = len(self._held_ids)
            if self._failed_ids:
                self._limit_waiting(_PIECE_LOCK_MS, _STATEMENT_MS)
                self._mark_pieces()
            self._mark_held()
        except Exception:
            self._restore_waiting()
            raise
        self._restore_waiting()

    def _restore_waiting(self) -> None:
        """Restore the timeouts of the session: the later steps use it too, and short ones would fail them."""
        if not self._connection.closed:
            self._limit_waiting(LOCK_TIMEOUT_MS, STATEMENT_TIMEOUT_MS)

    def _limit_waiting(self, lock_ms: int, statement_ms: int) -> None:
        with translated_errors(self._database.settings):
            limit_waiting(self._connection, statement_ms=statement_ms, lock_ms=lock_ms)

    def _time_is_up(self) -> bool:
        return time.monotonic() - self._claim.start_seconds > _MARK_SECONDS

    def _stop_if_requested(self) -> None:
        if self._should_stop():
            raise CycleStopped(f"stop requested after {self._totals.batch_count} of {len(self._claim.batches)} batches")

    def _mark_batches(self) -> None:
        stuck_in_a_row = 0
        for position, batch in enumerate(self._claim.batches):
            self._stop_if_requested()
            if position and (self._time_is_up() or stuck_in_a_row == _STUCK_BATCHES):
                self._failed_ids += [ticket_id for untried in self._claim.batches[position:] for ticket_id in untried]
                return
            try:
                self._mark_batch(batch)
                stuck_in_a_row = 0
            except BatchFailed as failed:
                scope = self._scope_of(failed)
                log.warning(
                    "batch failed; its tickets are tried in smaller pieces",
                    extra={**self._where, "batch": self._totals.batch_count, "error": failed.name},
                )
                stuck_in_a_row = 0 if scope is FaultScope.ROW else stuck_in_a_row + 1
                self._failed_ids += batch

    def _mark_pieces(self) -> None:
        ids, position, size = self._failed_ids, 0, 1
        marked_before, sampled = self._totals.processed_count, False
        # at least one piece in every cycle, however much time the batches took: otherwise no cycle would make progress
        while position < len(ids) and not (position and self._time_is_up()):
            self._stop_if_requested()
            piece = ids[position : position + size]
            try:
                self._mark(piece)
            except BatchFailed as failed:
                self._require_rows_locked(failed)
                if len(piece) > 1:
                    size = max(1, len(piece) // _SHRINK)
                    continue
                self._handle_refusal(piece[0], failed)
                position += 1
                if self._is_of_another_busy_queue(failed):
                    ids[position:] = self._other_queues_first(ids[position:])
                if self._refused_in_a_row == _HOPELESS_COUNT:
                    if sampled:
                        break
                    ids[position:] = random.sample(ids[position:], len(ids) - position)
                    sampled, self._refused_in_a_row = True, 0
            else:
                position += len(piece)
                size = min(size * 2, self._claim.cycle_input.batch_size)
                self._refused_in_a_row = 0
        log.info(
            "batch processed",
            extra={**self._where, "count": self._totals.processed_count - marked_before, "pieces": True},
        )
        self._settle_suspects()
        if position < len(ids):
            reason = f"; the last fault: {self._last_fault}" if self._last_fault else ""
            self._totals.error_list.add(
                f"{len(ids) - position} claimed tickets, the first of them {ids[position]}, are left to the next "
                f"cycle: marking used its share of the cycle, {_MARK_SECONDS:g} s{reason}"
            )

    def _require_rows_locked(self, failed: BatchFailed) -> None:
        """Raise the fault when the session is gone or no row could be locked: no other piece would pass either."""
        if self._scope_of(failed) is FaultScope.BUSY and not failed.tickets and self._last_fault is not None:
            raise self._last_fault

    def _handle_refusal(self, ticket_id: str, failed: BatchFailed) -> None:
        """Set aside a ticket that failed alone, or suspect it while a fault of the environment is not ruled out."""
        scope = self._scope_of(failed)
        if scope is FaultScope.BUSY and not self._sequence_checked:
            require_free_sequence(self._connection, self._database.settings)
            self._sequence_checked = True
        bad = self._bad_row(ticket_id, failed)
        if scope is FaultScope.ENVIRONMENT and not self._totals.processed_count:
            self._suspects.append(bad)
            self._refused_in_a_row += 1
        else:
            self._set_aside([bad])

    def _is_of_another_busy_queue(self, failed: BatchFailed) -> bool:
        """Record the queue of a busy ticket; return whether it is a queue not recorded before."""
        queue_id = failed.tickets[0].queue_id if failed.tickets else None
        if queue_id is None or queue_id in self._busy_queue_ids or self._scope_of(failed) is not FaultScope.BUSY:
            return False
        self._busy_queue_ids.append(queue_id)
        return True

    def _other_queues_first(self, ids: list[str]) -> list[str]:
        """Order the tickets of busy queues last: a lock that a trigger waits for is mostly one per queue."""
        with counted(
            self._database, self._totals.error_list, step="ordering tickets by queue", run_id=self._claim.run_id
        ):
            return tickets.other_queues_first(self._connection, ids, self._busy_queue_ids)
        return ids

    def _settle_suspects(self) -> None:
        """Set the suspects aside when another ticket was marked; raise the fault when none was."""
        if self._suspects and self._totals.processed_count:
            self._set_aside(self._suspects)
        elif self._suspects and self._last_fault is not None:
            raise self._last_fault

    def _mark_held(self) -> None:
        held, self._held_ids = self._held_ids, []
        size = self._claim.cycle_input.batch_size
        for start in range(0, len(held), size):
            self._stop_if_requested()
            if self._time_is_up():
                return
            try:
                self._mark_batch(held[start : start + size])
            except BatchFailed as failed:
                # raises the fault of a lost session; the next cycle claims these tickets again
                self._scope_of(failed)
                self._totals.error_list.add(f"the second try of tickets that others held failed: {failed.name}")

    def _mark(self, ids: Sequence[str]) -> int:
        """Mark one batch or piece, count it in the totals, and return the number of tickets marked.

        Raises ``BatchFailed``.
        """
        claim, totals = self._claim, self._totals
        outcome = mark_batch(
            self._connection,
            ids,
            now_utc=claim.now_utc,
            tenant_id=claim.cycle_input.tenant_id,
            run_id=claim.run_id,
            on_step=self._on_step,
        )
        totals.add_marked(outcome.by_kind)
        totals.unknown_priorities += outcome.unknown_priorities
        totals.flags_restored_count += len(outcome.flags_restored)
        for ticket in outcome.flags_restored:
            log.warning(
                "sla_breached had been reset; marked again without a second event",
                extra={**self._where, "TicketId": ticket.id, "Number": named(ticket.number)},
            )
        if outcome.bad:
            self._set_aside(outcome.bad)
        if outcome.missed:
            self._look_for_held(outcome.missed)
        return sum(outcome.by_kind.values())

    def _mark_batch(self, batch: Sequence[str]) -> None:
        self._totals.batch_count += 1
        count = self._mark(batch)
        log.info("batch processed", extra={**self._where, "batch": self._totals.batch_count, "count": count})

    def _look_for_held(self, missed: Sequence[str]) -> None:
        """Record those of the missed rows that others hold.

        The batch is committed and counted already: a fault here is an error of the cycle, not of the batch.
        """
        with counted(
            self._database, self._totals.error_list, step="counting tickets that others hold", run_id=self._claim.run_id
        ):
            self._held_ids += tickets.still_overdue(self._connection, list(missed), now_utc=self._claim.now_utc)

    def _set_aside(self, rows: Sequence[BadRow]) -> None:
        for bad in rows:
            log.error(
                "item failed",
                extra={
                    **self._where,
                    "TicketId": bad.ticket_id,
                    "Number": named(bad.number),
                    "BreachKind": bad.kind,
                    "error": bad.error,
                },
            )
            self._totals.error_list.add_of_ticket(
                f"ticket {named(bad.number)} ({bad.ticket_id}) set aside: {bad.error}"
            )
        kept = [
            set_aside.RowSetAside(bad.ticket_id, bad.number, bad.kind.value, bad.error, bad.row_version) for bad in rows
        ]
        # where this fails, the next cycle tries these rows again
        with bookkeeping(self._database, self._claim, table=set_aside.TABLE):
            set_aside.add(self._connection, kept, now_utc=self._claim.now_utc)

    def _bad_row(self, ticket_id: str, failed: BatchFailed) -> BadRow:
        error = failed.refusal
        if not failed.tickets:
            return BadRow(ticket_id, _UNREADABLE, BreachKind.RESOLUTION, error, None)
        ticket = failed.tickets[0]
        breach = judge(ticket, self._claim.now_utc)
        return BadRow(
            ticket.id, ticket.number, breach.kind if breach else BreachKind.RESOLUTION, error, ticket.row_version
        )

    def _scope_of(self, failed: BatchFailed) -> FaultScope:
        """Return the scope of the fault.

        Raises the fault when the session is gone: its locks are too, and no other session may go on for it.
        """
        fault = failed.fault(self._database.settings)
        scope = failed.scope(self._connection)
        if fault is not None:
            self._last_fault = fault
            if scope is FaultScope.CONNECTION:
                raise fault
        return scope
