"""The four steps of a cycle, in plain Python: claim, mark, publish, close (SPEC 5).

What belongs here: the order of things, the loop over batches, what is counted, which fault ends what. What does not:
Dagster (``ops.py``), statements (``postgres/``), the protocol of Kafka (``kafka/``).

Which fault ends what:
- a fault of what the cycle stands on (wrong clock, wrong database, server gone) ends it at once, with nothing touched;
- a fault that would meet every ticket (missing table, missing right, session gone) ends the marking;
- a fault of one batch rolls that batch back, and its tickets are tried in smaller pieces; one that fails alone is set
  aside;
- a fault of Kafka ends the publishing: marks stay, their records wait, the next cycle publishes them first;
- a fault of the journal or of the table of rows set aside ends nothing. Whatever ends the marking, what waits is
  published and the cycle is closed and recorded, within one bound in time. A cycle in which anything failed is reported
  failed at its very end, after all the rest was done and recorded.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from sla_pipeline.breach import BreachKind
from sla_pipeline.cycle import (
    ERRORS_KEPT,
    Claim,
    Clock,
    CycleInput,
    ErrorList,
    MarkTotals,
    OnStep,
    PublishTotals,
    listed,
    no_step,
)
from sla_pipeline.errors import CycleFailed, CycleLocked, SlaPipelineError
from sla_pipeline.kafka.relay import PUBLISH_SECONDS, Relay
from sla_pipeline.monitor.batches import BatchMarker, ShouldStop
from sla_pipeline.monitor.faults import bookkeeping, counted, fault_of
from sla_pipeline.postgres import indexes, journal, preconditions, schema, set_aside, tickets
from sla_pipeline.postgres.database import Database
from sla_pipeline.postgres.set_aside import SetAside
from sla_pipeline.quoting import quoted

__all__ = [
    "BACKLOG_LIMIT",
    "SHOWN_COUNT",
    "Claim",
    "CycleReport",
    "Database",
    "Marked",
    "Published",
    "ShouldStop",
    "claim_overdue",
    "close_cycle",
    "mark_breached",
    "publish_breaches",
]

log = logging.getLogger(__name__)

# SPEC 9.5: more than this, for long, wakes someone
BACKLOG_LIMIT = 100
SHOWN_COUNT = 20
"""Single tickets, or values, that a message for people lists at most."""
# A cycle aims at 30 s (SPEC 3.3); closing it takes the rest.
_PUBLISHED_AFTER_SECONDS = 27.0
# What publishing gets even when marking used more than its share: one takeover of a healthy broker takes well under a
# second.
_LEAST_PUBLISH_SECONDS = 8.0


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
    unknown_priority_count: int
    """Tickets that went out with a priority that we do not know."""
    unknown_priorities: list[str]
    """Those priorities, the most frequent first, at most ``SHOWN_COUNT`` of them."""
    set_aside: SetAside | None
    """Overdue tickets that cannot be marked, those of earlier cycles included; None when they cannot be read."""
    claim_ms: float
    mark_ms: float
    publish_ms: float
    duration_ms: float
    error_count: int = 0
    errors: list[str] = field(default_factory=list)
    """The first ``ERRORS_KEPT`` of them, faults of steps before tickets."""
    fault: SlaPipelineError | None = None
    """The fault that ended the claim or the marking early."""

    def listed_errors(self, limit: int = ERRORS_KEPT) -> list[str]:
        """The first ``limit`` errors, and a line on how many more there are."""
        return listed(self.errors, self.error_count, limit=limit)

    def raise_if_failed(self) -> None:
        """Raises ``CycleFailed`` with what failed, or an error of the kind of ``fault``, which says whether to try
        again.
        """
        if self.errors:
            kind = type(self.fault) if self.fault else CycleFailed
            raise kind("; ".join(self.listed_errors()))


def _since(began: float) -> float:
    return round((time.monotonic() - began) * 1000, 3)


@contextlib.contextmanager
def _journaled(
    database: Database, claim: Claim, marked: MarkTotals | None = None, published: PublishTotals | None = None
) -> Iterator[None]:
    """Tell the journal when a step ends the cycle, by a fault (failed) or by a stop request (canceled), and what was
    saved before.
    """
    marked, published = marked or MarkTotals(), published or PublishTotals()
    try:
        yield
    except BaseException as error:
        if claim.cycle_id is not None:
            # a stop request is not an Exception; it goes on upwards whatever happens here
            state = "failed" if isinstance(error, Exception) else "canceled"
            log.warning(
                "cycle ended early",
                extra={"jobRunId": claim.run_id, "state": state, "error": _early_end(error, database, claim.run_id)},
            )
            # the session may be in the middle of a statement: the server rolls back what it had not committed
            database.close()
            errors = ErrorList()
            errors.add(_early_end(error, database, claim.run_id))
            for earlier in (claim.errors, marked.errors, published.errors):
                errors.add_all(earlier)
            end = journal.CycleEnd(
                state,
                claimed_count=claim.claimed_count,
                **_journal_counts(marked),
                published_count=published.published,
                error_count=errors.count,
                duration_ms=_since(claim.began),
                error="\n".join(listed(errors.kept(), errors.count)),
            )
            with contextlib.suppress(SlaPipelineError), database.session() as connection:
                journal.finish(connection, claim.cycle_id, end)
        raise


def _early_end(error: BaseException, database: Database, run_id: str) -> str:
    if isinstance(error, Exception):
        return str(fault_of(error, database, doing="running a cycle", run_id=run_id))
    return str(error) or type(error).__name__


def _journal_counts(totals: MarkTotals) -> dict[str, Any]:
    return {
        "processed_count": totals.processed,
        "first_response_count": totals.by_kind[BreachKind.FIRST_RESPONSE],
        "resolution_count": totals.by_kind[BreachKind.RESOLUTION],
        "batch_count": totals.batch_count,
        "lock_skip_count": totals.lock_skips,
        "remarked_count": totals.remarked,
    }


def claim_overdue(
    database: Database, clock: Clock, given: CycleInput, *, run_id: str, on_step: OnStep = no_step
) -> Claim:
    """Check what a cycle stands on, open its journal row, and read once, in order, the tickets that it will try to mark (SPEC 5.1 to 5.3).

    Raises ``PostgresSetupError``, ``PostgresUnavailable``, ``ClockSkewError``, and ``CycleLocked`` when another runner holds
    the lock of the single-runner mode: nothing was touched then. A fault of the selection itself is ``Claim.fault``:
    what waits can still be published.
    """
    began = time.monotonic()
    now_utc = clock.now_utc()
    log.info("cycle started", extra={"jobRunId": run_id, "nowUtc": now_utc.isoformat(), "tenantId": given.tenant_id})
    with database.session() as connection:
        schema.check_revision(connection)
        preconditions.check_writable(connection)
        schema.check_tickets(connection)
        if clock.is_wall_clock:
            # read again: connect time is not skew
            preconditions.check_clock(connection, clock.now_utc())
        if database.single_runner:
            try:
                preconditions.take_single_runner_lock(connection)
            except CycleLocked as locked:
                log.info("cycle skipped", extra={"jobRunId": run_id, "reason": str(locked)})
                raise
        indexes.warn_of_missing(connection)
    errors = ErrorList()
    cycle_id = _open_journal_row(database, given, run_id=run_id, now_utc=now_utc, errors=errors)
    ids: list[str] = []
    with _journaled(database, Claim(run_id, now_utc, given, began, cycle_id, errors=errors)):
        readable = _prepare_set_aside(database, run_id=run_id, now_utc=now_utc, errors=errors)
        with (
            counted(database, errors, what="selecting overdue tickets", run_id=run_id) as faults,
            database.session() as connection,
        ):
            ids = tickets.claim(
                connection, now_utc=now_utc, tenant_id=given.tenant_id, limit=given.ceiling, all_set_aside=not readable
            )
        on_step("claimed")
    size = given.batch_size
    batches = tuple(tuple(ids[start : start + size]) for start in range(0, len(ids), size))
    return Claim(run_id, now_utc, given, began, cycle_id, batches, _since(began), errors, *faults)


def _open_journal_row(
    database: Database, given: CycleInput, *, run_id: str, now_utc: datetime, errors: ErrorList
) -> int | None:
    with (
        bookkeeping(database, errors, table=journal.TABLE, rights=journal.RIGHTS, run_id=run_id),
        database.session() as connection,
    ):
        for dead_id, dead_run in journal.sweep_abandoned(connection):
            log.warning("found an abandoned cycle", extra={"jobRunId": dead_run, "cycleId": dead_id})
        return journal.start(connection, run_id=run_id, now_utc=now_utc, given=given)
    return None


def _prepare_set_aside(database: Database, *, run_id: str, now_utc: datetime, errors: ErrorList) -> bool:
    """Whether the rows set aside can be read; those that are not overdue any more are taken out."""
    table: dict[str, Any] = {"table": set_aside.TABLE, "rights": set_aside.RIGHTS, "run_id": run_id}
    with bookkeeping(database, errors, **table), database.session() as connection:
        set_aside.check_readable(connection)
        with bookkeeping(database, errors, **table), database.session():
            set_aside.forget_mended(connection, now_utc=now_utc)
        return True
    return False


def mark_breached(
    database: Database, claim: Claim, *, should_stop: ShouldStop = lambda: False, on_step: OnStep = no_step
) -> Marked:
    """Mark the claimed tickets batch by batch, each in one transaction with its breach records (SPEC 5.4 to 5.6), in a bounded time.

    Raises ``CycleStopped`` when ``should_stop`` says so before a batch (SPEC 3.4); batches that were committed stay.
    Every other fault is counted in the totals, and the cycle goes on to publish what waits.
    """
    began = time.monotonic()
    totals = MarkTotals()
    with _journaled(database, claim, totals):
        if claim.batches:
            with counted(database, totals.errors, what="marking", run_id=claim.run_id) as faults:
                try:
                    BatchMarker(database, claim, totals, should_stop=should_stop, on_step=on_step).run()
                finally:
                    _warn_of_unknown_priorities(totals, run_id=claim.run_id)
            totals.fault = faults[0] if faults else None
            with (
                bookkeeping(
                    database, totals.errors, table=set_aside.TABLE, rights=set_aside.RIGHTS, run_id=claim.run_id
                ),
                database.session() as connection,
            ):
                set_aside.forget_mended(connection, now_utc=claim.now_utc)
    return Marked(claim, totals, _since(began))


def _warn_of_unknown_priorities(totals: MarkTotals, *, run_id: str) -> None:
    """One line a cycle, however many tickets and values there are."""
    if totals.unknown_priorities:
        log.warning(
            "unknown priorities: the tickets are marked, their events carry the priority as it is; consumers may not "
            "know it",
            extra={
                "jobRunId": run_id,
                "count": totals.unknown_priorities.total(),
                "priorities": [quoted(priority) for priority in _most_frequent(totals)],
                "distinct": len(totals.unknown_priorities),
            },
        )


def _most_frequent(totals: MarkTotals) -> list[str]:
    return [priority for priority, _ in totals.unknown_priorities.most_common(SHOWN_COUNT)]


def publish_breaches(database: Database, relay: Callable[[], Relay], marked: Marked) -> Published:
    """Publish all breach records that wait, those of earlier cycles first (SPEC 5.6, 7.2), in what is left of the cycle's time.

    A fault is not raised but counted: the marks stay, the records wait, ``close_cycle`` reports it. Hence ``relay`` is
    made here. Raises only a stop request.
    """
    began = time.monotonic()
    claim = marked.claim
    totals = PublishTotals()
    left_seconds = _PUBLISHED_AFTER_SECONDS - (began - claim.began)
    with (
        _journaled(database, claim, marked.totals, totals),
        counted(database, totals.errors, what="publishing", run_id=claim.run_id),
    ):
        publisher = relay()
        with database.outbox() as outbox:
            seconds = max(_LEAST_PUBLISH_SECONDS, min(left_seconds, PUBLISH_SECONDS))
            publisher.publish(outbox, run_id=claim.run_id, totals=totals, seconds=seconds)
    return Published(marked, totals, _since(began))


def close_cycle(database: Database, clock: Clock, published: Published) -> CycleReport:
    """Count the backlog, close the journal row and report (SPEC 5.7, 9.1). What failed is in the report, not raised."""
    marked = published.marked
    claim, totals = marked.claim, marked.totals
    errors = ErrorList()
    for counted_errors in (claim.errors, totals.errors, published.totals.errors):
        errors.add_all(counted_errors)
    backlog: int | None = None
    aside: SetAside | None = None
    with (
        _journaled(database, claim, totals, published.totals),
        counted(database, errors, what="counting the backlog", run_id=claim.run_id),
        database.session() as connection,
    ):
        backlog = tickets.count_backlog(connection, now_utc=clock.now_utc(), tenant_id=claim.given.tenant_id)
    with (
        bookkeeping(database, errors, table=set_aside.TABLE, rights=set_aside.RIGHTS, run_id=claim.run_id),
        database.session() as connection,
    ):
        aside = set_aside.recorded(connection, limit=SHOWN_COUNT)
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
        unknown_priority_count=totals.unknown_priorities.total(),
        unknown_priorities=_most_frequent(totals),
        set_aside=aside,
        claim_ms=claim.claim_ms,
        mark_ms=marked.mark_ms,
        publish_ms=published.publish_ms,
        duration_ms=_since(claim.began),
        error_count=errors.count,
        errors=errors.kept(),
        fault=claim.fault or totals.fault,
    )
    if claim.cycle_id is not None:
        with (
            bookkeeping(database, errors, table=journal.TABLE, rights=journal.RIGHTS, run_id=claim.run_id),
            database.session() as connection,
        ):
            journal.finish(connection, claim.cycle_id, _journal_end(report, claim, totals))
        report = replace(report, error_count=errors.count, errors=errors.kept())
    log.info(
        "cycle completed",
        extra={
            "jobRunId": report.run_id,
            "processedTotal": report.processed,
            "batches": report.batches,
            "durationMs": report.duration_ms,
            "published": report.published,
            "backlog": report.backlog,
            "setAside": aside.count if aside else None,
            "unknownPriorities": report.unknown_priority_count,
            "errors": report.error_count,
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
        error_count=report.error_count,
        has_more=report.has_more,
        claim_ms=report.claim_ms,
        mark_ms=report.mark_ms,
        publish_ms=report.publish_ms,
        duration_ms=report.duration_ms,
        error="\n".join(report.listed_errors()) or None,
    )
