"""The four steps of a cycle, in plain Python: claim, mark, publish, close (SPEC 5).

Which fault ends what:

- a fault of the cycle's preconditions (wrong clock, wrong database, server unreachable) ends it at once, with nothing
  changed;
- a fault that would meet every ticket (missing table, missing right, lost session) ends the marking;
- a fault of one batch rolls that batch back, and its tickets are tried in smaller pieces; one that fails alone is set
  aside;
- a fault of Kafka ends the publishing: marks stay, their records wait, the next cycle publishes them first;
- a fault of the journal or of the table of rows set aside ends nothing.

Whatever ends the marking, waiting records are published and the cycle is closed and recorded, within one time limit. A
cycle in which anything failed is reported failed at its end, after all the rest was done and recorded.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator

from sla_pipeline.cycle import LISTED_COUNT, Claim, Clock, CycleInput, CycleTotals, OnStep, no_step
from sla_pipeline.errors import CycleLocked, FailClosed, SlaPipelineError
from sla_pipeline.kafka.relay import PUBLISH_SECONDS, Relay
from sla_pipeline.monitor.batches import BatchMarker, ShouldStop
from sla_pipeline.monitor.faults import bookkeeping, counted, fault_of
from sla_pipeline.postgres import counters, indexes, journal, schema, set_aside, tickets
from sla_pipeline.postgres.clock import check_clock
from sla_pipeline.postgres.database import Database, check_writable
from sla_pipeline.postgres.single_runner import take_single_runner_lock
from sla_pipeline.quoting import quoted
from sla_pipeline.telemetry.heartbeat import send_heartbeat

__all__ = ["claim_overdue", "close_cycle", "mark_breached", "publish_breaches"]

log = logging.getLogger(__name__)

# A cycle aims at 30 s (SPEC 3.3); closing it takes the rest.
_PUBLISHED_AFTER_SECONDS = 27.0
# Bounds publishing from below when marking used more than its share; one takeover of a healthy broker takes well under
# a second.
_MIN_PUBLISH_SECONDS = 8.0


def claim_overdue(
    database: Database, clock: Clock, cycle_input: CycleInput, *, run_id: str, on_step: OnStep = no_step
) -> Claim:
    """Check the preconditions, open the journal row, and read once, in order, the tickets to mark (SPEC 5.1 to 5.3).

    Raises ``PostgresSetupError``, ``PostgresUnavailable``, ``ClockSkewError``, and ``CycleLocked`` when another runner
    holds the lock of the single-runner mode: nothing was changed then. A fault of the selection itself goes to
    ``totals.fault``: waiting records can still be published.
    """
    start_seconds = time.monotonic()
    now_utc = clock.now_utc()
    log.info(
        "cycle started", extra={"jobRunId": run_id, "nowUtc": now_utc.isoformat(), "tenantId": cycle_input.tenant_id}
    )
    sends_heartbeat = clock.is_wall_clock and cycle_input.tenant_id is None
    with _failure_reported(sends_heartbeat), database.session() as connection:
        schema.check_revision(connection)
        check_writable(connection)
        schema.check_tickets(connection)
        if clock.is_wall_clock:
            # the clock is read again: connect time is not skew
            check_clock(connection, clock.now_utc())
        if database.single_runner:
            try:
                take_single_runner_lock(connection)
            except CycleLocked as locked:
                log.info("cycle skipped", extra={"jobRunId": run_id, "reason": str(locked)})
                raise
        indexes.warn_of_missing(connection)
    claim = Claim(
        run_id,
        now_utc,
        cycle_input,
        start_seconds,
        CycleTotals(run_id=run_id, now_utc=now_utc),
        sends_heartbeat=sends_heartbeat,
    )
    totals = claim.totals
    totals.cycle_id = _open_journal_row(database, claim)
    ids: list[str] = []
    with _early_end_journaled(database, claim):
        readable = _prepare_set_aside(database, claim)
        with (
            counted(database, totals.error_list, step="selecting overdue tickets", run_id=run_id) as faults,
            database.session() as connection,
        ):
            ids = tickets.claim(
                connection,
                now_utc=now_utc,
                tenant_id=cycle_input.tenant_id,
                limit=cycle_input.ceiling,
                all_set_aside=not readable,
            )
        totals.fault = faults[0] if faults else None
        on_step("claimed")
    size = cycle_input.batch_size
    claim.batches = tuple(tuple(ids[start : start + size]) for start in range(0, len(ids), size))
    totals.claimed_count = len(ids)
    totals.has_more = len(ids) == cycle_input.ceiling
    totals.claim_ms = _elapsed_ms(start_seconds)
    return claim


def mark_breached(
    database: Database, claim: Claim, *, should_stop: ShouldStop = lambda: False, on_step: OnStep = no_step
) -> None:
    """Mark the claimed tickets batch by batch, in a bounded time (SPEC 5.4 to 5.6).

    Each batch is one transaction with its breach records. Raises ``CycleStopped`` when ``should_stop`` returns true
    before a batch (SPEC 3.4); batches that were committed stay. Every other fault is counted in the totals, and the
    cycle goes on to publish.
    """
    start_seconds = time.monotonic()
    totals = claim.totals
    with _early_end_journaled(database, claim):
        if claim.batches:
            with counted(database, totals.error_list, step="marking", run_id=claim.run_id) as faults:
                try:
                    BatchMarker(database, claim, should_stop=should_stop, on_step=on_step).run()
                finally:
                    _warn_of_unknown_priorities(totals)
            totals.fault = faults[0] if faults else None
            with _set_aside_bookkeeping(database, claim), database.session() as connection:
                set_aside.forget_mended(connection, now_utc=claim.now_utc)
    totals.mark_ms = _elapsed_ms(start_seconds)


def publish_breaches(database: Database, make_relay: Callable[[], Relay], claim: Claim) -> None:
    """Publish all waiting breach records, those of earlier cycles first (SPEC 5.6, 7.2), in the cycle's remaining time.

    A fault is counted, not raised: the marks stay, the records wait, ``close_cycle`` reports it. Hence the relay is
    made here. Raises only a stop request.
    """
    start_seconds = time.monotonic()
    totals = claim.totals
    left_seconds = _PUBLISHED_AFTER_SECONDS - (start_seconds - claim.start_seconds)
    with (
        _early_end_journaled(database, claim),
        counted(database, totals.error_list, step="publishing", run_id=claim.run_id),
    ):
        relay = make_relay()
        with database.outbox() as outbox:
            seconds = max(_MIN_PUBLISH_SECONDS, min(left_seconds, PUBLISH_SECONDS))
            relay.publish(outbox, run_id=claim.run_id, totals=totals, seconds=seconds)
    totals.publishing_stopped = any(isinstance(fault, FailClosed) for fault in totals.error_list.faults)
    totals.publish_ms = _elapsed_ms(start_seconds)


def close_cycle(database: Database, clock: Clock, claim: Claim) -> CycleTotals:
    """Count the backlog, close the journal row, return the totals (SPEC 5.7, 9.1). Errors are in them, not raised."""
    totals = claim.totals
    with (
        _early_end_journaled(database, claim),
        counted(database, totals.error_list, step="counting the backlog", run_id=claim.run_id),
        database.session() as connection,
    ):
        totals.backlog_count = tickets.count_backlog(
            connection, now_utc=clock.now_utc(), tenant_id=claim.cycle_input.tenant_id
        )
    with _set_aside_bookkeeping(database, claim), database.session() as connection:
        totals.set_aside = set_aside.recorded(connection, limit=LISTED_COUNT)
    with _counters_bookkeeping(database, claim), database.session() as connection:
        totals.detected_count, totals.late_count = counters.count_new_records(connection)
    totals.duration_ms = _elapsed_ms(claim.start_seconds)
    if totals.cycle_id is not None:
        with _journal_bookkeeping(database, claim), database.session() as connection:
            journal.finish(connection, totals.cycle_id, "failed" if totals.errors else "succeeded", totals)
    log.info(
        "cycle completed",
        extra={
            "jobRunId": totals.run_id,
            "processedTotal": totals.processed_count,
            "batches": totals.batch_count,
            "durationMs": totals.duration_ms,
            "published": totals.published_count,
            "backlog": totals.backlog_count,
            "setAside": totals.set_aside_count,
            "unknownPriorities": totals.unknown_priority_count,
            "errors": totals.error_count,
        },
    )
    if claim.sends_heartbeat:
        send_heartbeat(success=not totals.errors)
    return totals


def _elapsed_ms(start_seconds: float) -> float:
    return round((time.monotonic() - start_seconds) * 1000, 3)


@contextlib.contextmanager
def _early_end_journaled(database: Database, claim: Claim) -> Iterator[None]:
    """Close the journal row, with the totals so far, when the block is ended by a fault or by a stop request."""
    try:
        yield
    except BaseException as error:
        if claim.totals.cycle_id is not None:
            # a stop request is no Exception; it is raised again whatever happens here
            state = "failed" if isinstance(error, Exception) else "canceled"
            text = _safe_text(error, database, claim.run_id)
            log.warning("cycle ended early", extra={"jobRunId": claim.run_id, "state": state, "error": text})
            # the session may be in the middle of a statement: the server rolls back what is not committed
            database.close()
            claim.totals.error_list.add_first(text)
            claim.totals.duration_ms = _elapsed_ms(claim.start_seconds)
            with contextlib.suppress(SlaPipelineError), database.session() as connection:
                journal.finish(connection, claim.totals.cycle_id, state, claim.totals)
        if claim.sends_heartbeat and isinstance(error, Exception):
            send_heartbeat(success=False)
        raise


@contextlib.contextmanager
def _failure_reported(sends_heartbeat: bool) -> Iterator[None]:
    """Report a cycle that ends at its preconditions as failed; one that another runner keeps out is none."""
    try:
        yield
    except CycleLocked:
        raise
    except Exception:
        if sends_heartbeat:
            send_heartbeat(success=False)
        raise


def _safe_text(error: BaseException, database: Database, run_id: str) -> str:
    """Text of the error without a ticket's data."""
    if isinstance(error, Exception):
        return str(fault_of(error, database, doing="running a cycle", run_id=run_id))
    return str(error) or type(error).__name__


def _journal_bookkeeping(database: Database, claim: Claim) -> contextlib.AbstractContextManager[None]:
    return bookkeeping(database, claim, table=journal.TABLE)


def _counters_bookkeeping(database: Database, claim: Claim) -> contextlib.AbstractContextManager[None]:
    return bookkeeping(database, claim, table=counters.TABLE)


def _set_aside_bookkeeping(database: Database, claim: Claim) -> contextlib.AbstractContextManager[None]:
    return bookkeeping(database, claim, table=set_aside.TABLE)


def _open_journal_row(database: Database, claim: Claim) -> int | None:
    with _journal_bookkeeping(database, claim), database.session() as connection:
        for dead_id, dead_run in journal.sweep_abandoned(connection):
            log.warning("found an abandoned cycle", extra={"jobRunId": dead_run, "cycleId": dead_id})
        return journal.start(connection, run_id=claim.run_id, now_utc=claim.now_utc, cycle_input=claim.cycle_input)
    return None


def _prepare_set_aside(database: Database, claim: Claim) -> bool:
    """Remove the rows set aside that are no longer overdue; return whether the table can be read."""
    with _set_aside_bookkeeping(database, claim), database.session() as connection:
        set_aside.check_readable(connection)
        with _set_aside_bookkeeping(database, claim), database.session():
            set_aside.forget_mended(connection, now_utc=claim.now_utc)
        return True
    return False


def _warn_of_unknown_priorities(totals: CycleTotals) -> None:
    """Log one line a cycle, however many tickets and values there are."""
    if totals.unknown_priorities:
        log.warning(
            "unknown priorities: the tickets are marked, their events carry the priority as it is; consumers may not "
            "know it",
            extra={
                "jobRunId": totals.run_id,
                "count": totals.unknown_priority_count,
                "priorities": list(map(quoted, totals.frequent_unknown_priorities())),
                "distinct": len(totals.unknown_priorities),
            },
        )
