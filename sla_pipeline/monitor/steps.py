"""The four steps of a cycle, in plain Python: claim, mark, publish, close (SPEC 5).

What belongs here: the order of things, the loop over batches, what is counted, which fault ends what. What does not: Dagster
(``ops.py``), statements (``postgres/``), the protocol of Kafka (``kafka/``).

Which fault ends what:
- a fault that would meet every batch (wrong clock, missing table, missing right, server gone) ends the cycle at once;
- a fault of one batch rolls that batch back, is counted, and the next batch goes on;
- a fault of one row sets the row aside, and its batch goes on;
- a fault of Kafka ends the publishing: marks stay, their records wait, the next cycle publishes them first.
A cycle in which anything failed is reported failed at its very end, after all the rest was done and recorded.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import psycopg

from sla_pipeline.breach import BreachKind
from sla_pipeline.cycle import Clock, CycleInput, MarkTotals, OnStep, PublishTotals, no_step
from sla_pipeline.errors import CycleFailed, CycleLocked, CycleStopped, DatabaseBusy, SlaPipelineError
from sla_pipeline.kafka.relay import Relay
from sla_pipeline.postgres import journal, preconditions, schema, set_aside, tickets
from sla_pipeline.postgres.marking import BatchOutcome, mark_batch
from sla_pipeline.postgres.outbox import PostgresOutbox
from sla_pipeline.postgres.session import PostgresSettings, translated_errors
from sla_pipeline.quoting import named

__all__ = [
    "BACKLOG_LIMIT",
    "Claim",
    "CycleReport",
    "Database",
    "Marked",
    "Published",
    "claim_overdue",
    "close_cycle",
    "mark_breached",
    "publish_breaches",
]

log = logging.getLogger(__name__)

# SPEC 9.5: more than this, for long, wakes someone
BACKLOG_LIMIT = 100

ShouldStop = Callable[[], bool]


class Database:
    """The cycle's session, opened at first use and kept to the end of the run, since its advisory locks live as long as it does."""

    def __init__(self, settings: PostgresSettings, *, single_runner: bool = False) -> None:
        self.settings = settings
        self.single_runner = single_runner
        self._connection: psycopg.Connection | None = None

    @contextlib.contextmanager
    def session(self) -> Iterator[psycopg.Connection]:
        """The session, with the driver's errors turned into ours. Raises ``DatabaseError`` or ``DatabaseUnavailable``."""
        if self._connection is None or self._connection.closed:
            self._connection = self.settings.connect(purpose="cycle")
        with translated_errors(self.settings):
            yield self._connection

    def outbox(self) -> PostgresOutbox:
        """A session for the relay."""
        return PostgresOutbox(self.settings)

    def close(self) -> None:
        """End the session. What it had not committed is rolled back by the server, its locks are free."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@dataclass(frozen=True, slots=True)
class Claim:
    """What a cycle has found to do. ``batches`` holds ticket ids in the order of SPEC 5.3, at most ``batch_size`` each."""

    run_id: str
    now_utc: datetime
    given: CycleInput
    began: float
    """Monotonic seconds at the start."""
    cycle_id: int | None = None
    batches: tuple[tuple[str, ...], ...] = ()
    claim_ms: float = 0.0

    @property
    def claimed_count(self) -> int:
        """Tickets claimed."""
        return sum(map(len, self.batches))


@dataclass(frozen=True, slots=True)
class Marked:
    """The claim and what its marking came to."""

    claim: Claim
    totals: MarkTotals
    mark_ms: float


@dataclass(frozen=True, slots=True)
class Published:
    """The same and what its publishing came to."""

    marked: Marked
    totals: PublishTotals
    publish_ms: float


@dataclass(frozen=True, slots=True)
class CycleReport:
    """A cycle as it ended (SPEC 5.7). Durations in milliseconds."""

    run_id: str
    cycle_id: int | None
    now_utc: datetime
    processed: int
    by_kind: dict[BreachKind, int]
    batches: int
    published: int
    backlog: int | None
    has_more: bool
    lock_skips: int
    remarked: int
    claim_ms: float
    mark_ms: float
    publish_ms: float
    duration_ms: float
    errors: list[str] = field(default_factory=list)

    def raise_if_failed(self) -> None:
        """Raises ``CycleFailed`` with all that failed."""
        if self.errors:
            raise CycleFailed("; ".join(self.errors))


def _since(began: float) -> float:
    return round((time.monotonic() - began) * 1000, 3)


def _told(error: BaseException) -> str:
    """An error in words that may be logged and kept: the driver's own text can repeat what a ticket says, so it is left out."""
    if isinstance(error, psycopg.Error):
        return f"{type(error).__name__} ({error.sqlstate or 'no SQLSTATE'})"
    return str(error) or type(error).__name__


@contextlib.contextmanager
def _journaled(
    database: Database, claim: Claim, marked: MarkTotals | None = None, published: PublishTotals | None = None
) -> Iterator[None]:
    """Tell the journal when a step ends the cycle, by a fault (failed) or by a stop request (canceled), and what was saved before."""
    marked, published = marked or MarkTotals(), published or PublishTotals()
    try:
        yield
    except BaseException as error:
        if claim.cycle_id is not None:
            # a stop request is not an Exception; it goes on upwards whatever happens here
            state = "failed" if isinstance(error, Exception) else "canceled"
            log.warning("cycle ended early", extra={"jobRunId": claim.run_id, "state": state, "error": _told(error)})
            # the session may be in the middle of a statement: the server rolls back what it had not committed
            database.close()
            errors = [*marked.errors, *published.errors, _told(error)]
            end = journal.CycleEnd(
                state,
                claimed_count=claim.claimed_count,
                **_journal_counts(marked),
                published_count=published.published,
                error_count=len(errors),
                duration_ms=_since(claim.began),
                error="\n".join(errors),
            )
            with contextlib.suppress(SlaPipelineError, psycopg.Error), database.session() as connection:
                journal.finish(connection, claim.cycle_id, end)
        raise


def _journal_counts(totals: MarkTotals) -> dict[str, Any]:
    return {
        "processed_count": totals.processed,
        "first_response_count": totals.by_kind[BreachKind.FIRST_RESPONSE],
        "resolution_count": totals.by_kind[BreachKind.RESOLUTION],
        "batch_count": totals.batch_count,
        "lock_skip_count": totals.lock_skips,
        "remarked_count": totals.remarked,
    }


def claim_overdue(database: Database, clock: Clock, given: CycleInput, *, run_id: str, on_step: OnStep = no_step) -> Claim:
    """Check what a cycle stands on, open its journal row, and read once, in order, the tickets that it will try to mark (SPEC 5.1 to 5.3).

    Raises ``DatabaseError``, ``DatabaseUnavailable``, ``ClockSkewError``, and ``CycleLocked`` when another runner holds the lock of the
    single-runner mode: nothing was touched then.
    """
    began = time.monotonic()
    now_utc = clock.now_utc()
    log.info("cycle started", extra={"jobRunId": run_id, "nowUtc": now_utc.isoformat(), "tenantId": given.tenant_id})
    with database.session() as connection:
        schema.check_revision(connection)
        if clock.is_wall_clock:
            # asked again: what it takes to connect is not a difference of clocks
            preconditions.check_clock(connection, clock.now_utc())
        if database.single_runner:
            try:
                preconditions.take_single_runner_lock(connection)
            except CycleLocked as locked:
                log.info("cycle skipped", extra={"jobRunId": run_id, "reason": str(locked)})
                raise
        for dead_id, dead_run in journal.sweep_abandoned(connection):
            log.warning("an earlier cycle ended without a word", extra={"jobRunId": dead_run, "cycleId": dead_id})
        schema.warn_of_missing_indexes(connection)
        cycle_id = journal.start(connection, run_id=run_id, now_utc=now_utc, given=given)
    with _journaled(database, Claim(run_id, now_utc, given, began, cycle_id)), database.session() as connection:
        set_aside.forget_mended(connection, now_utc=now_utc)
        ids = tickets.claim(connection, now_utc=now_utc, tenant_id=given.tenant_id, limit=given.ceiling)
        on_step("claimed")
    size = given.batch_size
    batches = tuple(tuple(ids[start : start + size]) for start in range(0, len(ids), size))
    return Claim(run_id, now_utc, given, began, cycle_id, batches, _since(began))


def mark_breached(database: Database, claim: Claim, *, should_stop: ShouldStop = lambda: False, on_step: OnStep = no_step) -> Marked:
    """Mark the claimed tickets batch by batch, each in one transaction with its breach records (SPEC 5.4 to 5.6).

    Rows that others held get one more try after the last batch. ``should_stop`` is asked before each batch (SPEC 3.4). Raises
    ``DatabaseError`` or ``DatabaseUnavailable`` for what would meet every batch; batches that were saved stay saved.
    """
    began = time.monotonic()
    totals = MarkTotals()
    held: list[str] = []
    with _journaled(database, claim, totals):
        for batch in claim.batches:
            if should_stop():
                raise CycleStopped(f"stop requested after {totals.batch_count} of {len(claim.batches)} batches")
            outcome = _mark_one(database, claim, batch, totals, on_step)
            held += outcome.held_by_others
        totals.lock_skips = len(held)
        size = claim.given.batch_size
        for start in range(0, len(held), size):
            if should_stop():
                raise CycleStopped("stop requested before the second try of rows that others held")
            _mark_one(database, claim, held[start : start + size], totals, on_step)
    return Marked(claim, totals, _since(began))


def _mark_one(database: Database, claim: Claim, batch: tuple[str, ...] | list[str], totals: MarkTotals, on_step: OnStep) -> BatchOutcome:
    number = totals.batch_count + 1
    where = {"jobRunId": claim.run_id, "batch": number, "tenantId": claim.given.tenant_id}
    totals.batch_count = number
    try:
        with database.session() as connection:
            outcome = mark_batch(
                connection, batch, now_utc=claim.now_utc, tenant_id=claim.given.tenant_id, run_id=claim.run_id, on_step=on_step
            )
    except (psycopg.Error, DatabaseBusy) as error:
        # of this batch alone: a deadlock, a time-out, a fault that no single row explains; it is rolled back and comes again next cycle
        log.error("batch failed", extra={**where, "error": _told(error)})  # noqa: TRY400  a traceback would hold the driver's text
        totals.errors.append(f"batch {number} failed: {_told(error)}")
        return BatchOutcome()
    for kind, count in outcome.by_kind.items():
        totals.by_kind[kind] += count
    for bad in outcome.bad:
        log.error(
            "item failed",
            extra={**where, "TicketId": bad.ticket_id, "Number": named(bad.number), "BreachKind": bad.kind, "error": bad.error},
        )
        totals.errors.append(f"ticket {named(bad.number)} ({bad.ticket_id}) set aside: {bad.error}")
    for ticket in outcome.remarked:
        log.warning(
            "flag was put back by somebody; marked again without a second event",
            extra={**where, "TicketId": ticket.id, "Number": named(ticket.number)},
        )
    totals.remarked += len(outcome.remarked)
    log.info("batch processed", extra={**where, "count": sum(outcome.by_kind.values())})
    return outcome


def publish_breaches(database: Database, relay: Callable[[], Relay], marked: Marked) -> Published:
    """Publish all breach records that wait, those of earlier cycles first (SPEC 5.6, 7.2).

    A fault of Kafka or of its settings is not raised but counted: the marks stay, the records wait, ``close_cycle`` reports it. Hence
    ``relay`` is made here. Raises only a stop request.
    """
    began = time.monotonic()
    claim = marked.claim
    totals = PublishTotals()
    with _journaled(database, claim, marked.totals, totals):
        try:
            publisher = relay()
            with database.outbox() as outbox:
                publisher.publish(outbox, run_id=claim.run_id, totals=totals)
        except SlaPipelineError as error:
            log.error("publishing failed", extra={"jobRunId": claim.run_id, "error": str(error)})  # noqa: TRY400  it says it all
            totals.errors.append(f"publishing failed: {error}")
    return Published(marked, totals, _since(began))


def close_cycle(database: Database, clock: Clock, published: Published) -> CycleReport:
    """Count the backlog, close the journal row and report (SPEC 5.7, 9.1). What failed is in the report, not raised."""
    marked = published.marked
    claim, totals = marked.claim, marked.totals
    errors = [*totals.errors, *published.totals.errors]
    backlog: int | None = None
    with _journaled(database, claim, totals, published.totals), database.session() as connection:
        backlog = tickets.count_backlog(connection, now_utc=clock.now_utc(), tenant_id=claim.given.tenant_id)
    report = CycleReport(
        run_id=claim.run_id,
        cycle_id=claim.cycle_id,
        now_utc=claim.now_utc,
        processed=totals.processed,
        by_kind=totals.by_kind,
        batches=totals.batch_count,
        published=published.totals.published,
        backlog=backlog,
        has_more=claim.claimed_count == claim.given.ceiling,
        lock_skips=totals.lock_skips,
        remarked=totals.remarked,
        claim_ms=claim.claim_ms,
        mark_ms=marked.mark_ms,
        publish_ms=published.publish_ms,
        duration_ms=_since(claim.began),
        errors=errors,
    )
    if claim.cycle_id is not None:
        with database.session() as connection:
            journal.finish(connection, claim.cycle_id, _journal_end(report, claim, totals))
    log.info(
        "cycle completed",
        extra={
            "jobRunId": report.run_id,
            "processedTotal": report.processed,
            "batches": report.batches,
            "durationMs": report.duration_ms,
            "published": report.published,
            "backlog": report.backlog,
            "errors": len(report.errors),
        },
    )
    return report


def _journal_end(report: CycleReport, claim: Claim, totals: MarkTotals) -> journal.CycleEnd:
    return journal.CycleEnd(
        state="failed" if report.errors else "succeeded",
        claimed_count=claim.claimed_count,
        **_journal_counts(totals),
        published_count=report.published,
        backlog_count=report.backlog,
        error_count=len(report.errors),
        has_more=report.has_more,
        claim_ms=report.claim_ms,
        mark_ms=report.mark_ms,
        publish_ms=report.publish_ms,
        duration_ms=report.duration_ms,
        error="\n".join(report.errors) or None,
    )
