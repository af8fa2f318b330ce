"""An audit: tickets, breach records and topic compared, in an order of reading under which a live system cannot look broken.

What belongs here: that order. What does not: any statement, any message, any comparison.

The job goes on while the audit reads, so each thing is read after what it must cover:

1. ``published_seq`` from Postgres, then the newest record of the progress topic. Both only grow and Postgres follows
  Kafka, so in this order Postgres cannot be ahead. The progress record is waited for where a transaction is open: its
  commit shows in the progress topic and in Postgres a moment apart.
2. The end of the event topic. Whatever 1 told to be published was on the topic before, so it is below this end.
3. One snapshot of Postgres. An event is produced from a committed record only, so every event below the end of 2 has
  its record here, and ``last_seq`` here is at least what 1 told. Marks and records change together, and are seen
  together.
4. The topic up to the end of 2, and not beyond: younger events may have younger records. A transaction that lies across
  that end shows in part, which is why a record beyond 1's positions counts as waiting, not as lost.
5. The first offsets of the topic, after reading it: retention that moved meanwhile explains what was not read. Then the
  progress record again, waited for: a transaction's events and its progress record appear together, so no event that
  was read can be beyond it.
"""

from collections.abc import Callable
from datetime import datetime

from sla_pipeline.audit.findings import AuditReport, Positions, Tally
from sla_pipeline.audit.ledger import Ledger
from sla_pipeline.audit.reading import read_events, read_progress_seq, watermarks
from sla_pipeline.audit.records import open_postgres
from sla_pipeline.audit.settlement import expired_below, judge_positions, settle
from sla_pipeline.errors import InputError
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.postgres.session import PostgresSettings

__all__ = ["OnProgress", "verify"]

OnProgress = Callable[[int, int], None]
"""Called now and then with what is done and what there is to do: records and offsets of the topic, added up."""

# as often as the eye can follow
_PROGRESS_EVERY = 10_000


def _nobody(done: int, total: int) -> None:
    """The default ``OnProgress``."""


def verify(
    postgres: PostgresSettings, kafka: KafkaSettings, *, now_utc: datetime, on_progress: OnProgress = _nobody
) -> AuditReport:
    """Audit everything once; reads only, also while the job runs (SPEC 3.5, 7).

    ``postgres`` must be the primary: a standby lags, and lacks records whose events are out. ``now_utc``, aware, is the
    time by which tickets are overdue. Memory: 49 bytes a record, and half as much again at the end.

    Raises ``InputError`` for a naive time; ``PostgresSetupError``, ``PostgresUnavailable``, ``KafkaSetupError``,
    ``KafkaUnavailable`` or ``ConfigurationError`` when one of the sides cannot be read. What is wrong between them is
    in the report, never raised.
    """
    if now_utc.tzinfo is None:
        raise InputError(f"now_utc is {now_utc.isoformat()}, without a time zone; pass an aware time, in UTC")
    tally = Tally()
    ledger = Ledger(tally)
    with open_postgres(postgres, now_utc=now_utc) as tables:
        published_seq = tables.relay().published_seq
        progress_seq = read_progress_seq(kafka)
        spans = watermarks(kafka, kafka.topic)
        topic_total = sum(span.end - span.low for span in spans.values())
        on_progress(0, topic_total)

        with tables.snapshot():
            relay = tables.relay()
            record_total = tables.record_count()
            on_progress(0, record_total + topic_total)
            for record in tables.records():
                ledger.add_record(record)
                if ledger.record_count % _PROGRESS_EVERY == 0:
                    on_progress(ledger.record_count, record_total + topic_total)
            ledger.close_records(published_seq=relay.published_seq, last_seq=relay.last_seq)
            on_progress(record_total, record_total + topic_total)
            proven_count = tables.judge_marks(tally)
            tables.ask_tickets(tally)
            marked_count = tables.marked_count()

        for event in read_events(
            kafka,
            spans,
            on_read=lambda passed_count: on_progress(record_total + passed_count, record_total + topic_total),
        ):
            ledger.add_event(event)
        lows = {partition: span.low for partition, span in watermarks(kafka, kafka.topic).items()}
        positions = Positions(
            published_seq=published_seq,
            progress_seq=progress_seq,
            last_seq=relay.last_seq,
            highest_event_seq=ledger.highest_event_seq,
            progress_seq_after=read_progress_seq(kafka),
        )
        judge_positions(positions, tally)
        settle(
            ledger,
            tally,
            claimed_published=positions.claimed_published,
            expired_below=expired_below(lows, ledger.first_seqs),
        )
        on_progress(record_total + topic_total, record_total + topic_total)
        return AuditReport(
            now_utc=now_utc,
            positions=positions,
            marked_count=marked_count,
            record_count=ledger.record_count,
            event_count=ledger.event_count,
            proven_count=proven_count,
            findings=tally.findings(tables.numbers(tally.unnumbered_tickets())),
        )
