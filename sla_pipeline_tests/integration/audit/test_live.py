"""An audit beside running cycles: work in progress is never reported as a fault."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sla_pipeline.audit.findings import AuditReport
from sla_pipeline.audit.reading import read_events, watermarks
from sla_pipeline.cycle import CycleInput, SystemClock
from sla_pipeline.errors import KafkaUnavailable
from sla_pipeline.kafka.relay import Relay
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.monitor.runner import run_cycle
from sla_pipeline.postgres.database import Database
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline_tests.integration.audit.conftest import Audit
from sla_pipeline_tests.integration.audit.fault_injection import Support, Topic, faults, sent_again, utc_now
from sla_pipeline_tests.integration.conftest import Cycle
from sla_pipeline_tests.tickets import MINUTE, make_tickets

# steps after which a cycle is incomplete: marked and not published, produced and not committed, committed and not
# recorded in Postgres
_OPEN_STEPS = ("batch_written", "batch_committed", "begun", "produced", "flushed", "committed")


def ignore(passed_count: int) -> None:
    """An ``OnRead``."""


def new_breaches(support: Support, count: int = 20) -> None:
    """Tickets that became overdue a second ago."""
    now = utc_now()
    make_tickets(
        support,
        count,
        first_response_due_at=now - MINUTE / 60,
        resolution_due_at=now + MINUTE,
        created_at=now,
        updated_at=now,
    )


def test_cycles_between_any_two_reads_of_an_audit_leave_it_clean(audit: Audit, support: Support, cycle: Cycle) -> None:
    """``on_progress`` is called between the reads: each time a whole cycle marks and publishes."""
    new_breaches(support)
    cycle(clock=SystemClock())
    cycles = 0

    def work(done: int, total: int) -> None:
        nonlocal cycles
        new_breaches(support)
        assert cycle(clock=SystemClock()).published_count == 20
        cycles += 1

    report = audit(now_utc=utc_now(), on_progress=work)
    assert faults(report) == {}
    # as of the topic's end, and of the snapshot a cycle later
    assert (report.event_count, report.record_count) == (20, 40)
    assert cycles >= 4
    assert (report.positions.progress_seq, report.positions.last_seq) == (20, 40)
    assert report.positions.progress_seq_after == 20 * cycles


class Worker:
    """Runs cycles in a thread, with a pause after each step, so that audits meet all of them."""

    def __init__(self, worker_url: str, kafka_settings: KafkaSettings) -> None:
        self._database = Database(PostgresSettings(worker_url))
        self._relay = Relay(kafka_settings, on_step=self._dwell, transaction_limit=7)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.steps: set[str] = set()
        self.errors: list[str] = []
        self.published_count = 0

    def _dwell(self, step: str) -> None:
        self.steps.add(step)
        if step in _OPEN_STEPS:
            time.sleep(0.03)

    def _work(self) -> None:
        while not self._stopped.is_set():
            report = run_cycle(
                self._database, self._relay, CycleInput(batch_size=5), clock=SystemClock(), on_step=self._dwell
            )
            self.errors += report.errors
            self.published_count += report.published_count

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run cycles during the block; return when the last one has ended."""
        self._thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            self._thread.join()
            self._relay.close()
            self._database.close()


@pytest.fixture
def worker(worker_url: str, kafka_settings: KafkaSettings) -> Worker:
    """A worker."""
    return Worker(worker_url, kafka_settings)


def test_audits_beside_a_worker_are_clean(audit: Audit, support: Support, worker: Worker) -> None:
    reports: list[AuditReport] = []
    waiting = 0
    with worker.running():
        while len(reports) < 12:
            new_breaches(support)
            report = audit(now_utc=utc_now())
            reports.append(report)
            waiting += report.positions.last_seq > report.positions.claimed_published
    assert worker.errors == []
    assert [faults(report) for report in reports] == [{}] * 12
    assert set(_OPEN_STEPS) <= worker.steps
    # some audits ran during an incomplete cycle
    assert waiting > 0
    last = audit(now_utc=utc_now())
    assert faults(last) == {}
    assert last.event_count == last.record_count == worker.published_count > 0


def test_a_transaction_that_stays_open_ends_the_reading_with_an_explanation(
    breached: list[str], topic: Topic, kafka_settings: KafkaSettings
) -> None:
    producer = topic.transactional_producer()
    producer.produce(kafka_settings.topic, b"open", b"key", partition=0)
    assert producer.flush(20) == 0
    spans = watermarks(kafka_settings, kafka_settings.topic)
    with pytest.raises(
        KafkaUnavailable,
        match=r"stands still: partition 0 is readable to offset \d+ of \d+ only\. Either a transaction",
    ):
        list(read_events(kafka_settings, spans, on_read=ignore, stall_seconds=0.5))
    producer.abort_transaction(20)
    assert len(list(read_events(kafka_settings, spans, on_read=ignore))) == 5


def test_events_beyond_the_end_that_was_looked_up_are_not_read(
    breached: list[str], topic: Topic, kafka_settings: KafkaSettings
) -> None:
    spans = watermarks(kafka_settings, kafka_settings.topic)
    topic.send(*map(sent_again, topic.events()))
    assert len(list(read_events(kafka_settings, spans, on_read=ignore))) == 5
