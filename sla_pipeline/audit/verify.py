"""The audit, in an order of reading in which a live system never looks broken.

The job continues during the audit, so each source is read after those that it must cover:

1. ``published_seq`` from Postgres, then the newest record of the progress topic. Both only grow, and Postgres follows
   Kafka, so in this order Postgres cannot be ahead. Where a transaction is open, the audit waits for the progress
   record: the commit reaches the progress topic and Postgres a moment apart.
2. The end of the event topic. Everything published according to step 1 was on the topic before, so it is below this
   end.
3. One snapshot of Postgres. Events are produced from committed records only, so every event below the end of step 2 has
   its record in the snapshot, and ``last_seq`` in it is at least the positions of step 1. Marks and records change in
   one transaction, so the snapshot holds both or neither.
4. The topic up to the end of step 2, and not beyond: younger events may have younger records. A transaction that
   crosses that end is visible in part; therefore a record beyond the positions of step 1 counts as waiting, not lost.
5. The first offsets of the topic, after reading it: retention that moved during the read explains missing events. Then
   the progress record again, with the same wait as in step 1: a transaction's events and its progress record become
   visible together, so no event that was read can be beyond it.
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from sla_pipeline.audit.contract import RecordRow
from sla_pipeline.audit.findings import AuditReport, Positions, Tally
from sla_pipeline.audit.positions import check_positions, expired_below
from sla_pipeline.audit.reading import read_events, read_progress_seq, watermarks
from sla_pipeline.audit.reconcile import open_reconciliation
from sla_pipeline.audit.records import open_postgres
from sla_pipeline.errors import InputError
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.postgres.session import PostgresSettings

__all__ = ["OnProgress", "verify"]

OnProgress = Callable[[int, int], None]
"""Callback with the work done and the total, each in records plus offsets of the topic."""

# records between two calls: often enough for a smooth progress bar
_PROGRESS_EVERY = 10_000


def _ignore_progress(done: int, total: int) -> None:
    """Do nothing; the default ``OnProgress``."""


def verify(
    postgres: PostgresSettings, kafka: KafkaSettings, *, now_utc: datetime, on_progress: OnProgress = _ignore_progress
) -> AuditReport:
    """Audit tickets, records and events once. Reads only, and can run beside the job (SPEC 3.5, 7).

    ``postgres`` must be the primary: a standby lags, and lacks records whose events are already on the topic. Tickets
    are overdue as of ``now_utc``, an aware time. Memory does not depend on the number of events; a temporary file takes
    360 MB for a million.

    Raises ``InputError`` for a naive time; ``PostgresSetupError``, ``PostgresUnavailable``, ``KafkaSetupError``,
    ``KafkaUnavailable`` or ``ConfigurationError`` when a side cannot be read, or the temporary file not be written.
    Contradictions between the sides are in the report and never raised.
    """
    if now_utc.tzinfo is None:
        raise InputError(f"now_utc is {now_utc.isoformat()}, without a time zone; pass an aware time, in UTC")
    tally = Tally()
    with open_postgres(postgres, now_utc=now_utc) as tables, open_reconciliation() as reconciliation:
        published_seq = tables.outbox_position().published_seq
        progress_seq = read_progress_seq(kafka)
        spans = watermarks(kafka, kafka.topic)
        topic_total = sum(span.end - span.low for span in spans.values())
        on_progress(0, topic_total)

        with tables.snapshot():
            outbox = tables.outbox_position()
            record_total = tables.record_count()
            total = record_total + topic_total
            on_progress(0, total)
            reconciliation.load_records(_reported(tables.records(), lambda count: on_progress(count, total)))
            on_progress(record_total, total)
            proven_count = tables.check_marks(tally)
            tables.check_tickets(tally)
            marked_count = tables.marked_count()

        reconciliation.load_events(
            read_events(kafka, spans, on_read=lambda passed_count: on_progress(record_total + passed_count, total))
        )
        lows = {partition: span.low for partition, span in watermarks(kafka, kafka.topic).items()}
        positions = Positions(
            published_seq=published_seq,
            progress_seq=progress_seq,
            last_seq=outbox.last_seq,
            highest_event_seq=reconciliation.highest_event_seq,
            progress_seq_after=read_progress_seq(kafka),
        )
        check_positions(positions, tally)
        reconciliation.compare(
            tally,
            published_seq=outbox.published_seq,
            last_seq=outbox.last_seq,
            claimed_published=positions.claimed_published,
            expired_below=expired_below(lows, reconciliation.first_seqs()),
        )
        on_progress(total, total)
        return AuditReport(
            now_utc=now_utc,
            positions=positions,
            marked_count=marked_count,
            record_count=reconciliation.record_count,
            event_count=reconciliation.event_count,
            proven_count=proven_count,
            findings=tally.findings(tables.numbers(tally.unnumbered_tickets())),
        )


def _reported(records: Iterable[RecordRow], on_count: Callable[[int], None]) -> Iterator[RecordRow]:
    """Yield the records, and report their count so far after every ``_PROGRESS_EVERY``."""
    for count, record in enumerate(records, start=1):
        yield record
        if count % _PROGRESS_EVERY == 0:
            on_count(count)
