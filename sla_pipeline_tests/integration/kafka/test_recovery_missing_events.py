"""Events missing from the topic though both sides count them as published: found by the auditor's rule, sent once."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from confluent_kafka import Producer

from sla_pipeline.audit.findings import AuditReport, Severity
from sla_pipeline.audit.verify import verify
from sla_pipeline.cycle import CycleTotals
from sla_pipeline.errors import FailClosed, PublisherFenced
from sla_pipeline.event import REPUBLISHED_HEADER, event_headers, event_key
from sla_pipeline.kafka.clients import TransactionalProducer
from sla_pipeline.kafka.deadline import Deadline
from sla_pipeline.kafka.events import ReceivedEvent, read_events
from sla_pipeline.kafka.progress import PROGRESS_KEY, Progress, ProgressReader, write_progress
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.postgres import outbox as outbox_module
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline.recovery import repair as recovery
from sla_pipeline.recovery import republish
from sla_pipeline.recovery.diagnosis import State
from sla_pipeline.recovery.outbox_repair import RepairableOutbox
from sla_pipeline.recovery.repair import diagnose, repair
from sla_pipeline_tests.integration.kafka.breach_records import BreachRecords, sequence_of
from sla_pipeline_tests.integration.kafka.conftest import Publish
from sla_pipeline_tests.integration.kafka.publisher_process import run_until_killed
from sla_pipeline_tests.integration.kafka.topic_administration import expire, recreate_event_topic, written_offsets
from sla_pipeline_tests.waiting import wait_until


@pytest.fixture
def audit(owner_url: str, kafka_settings: KafkaSettings) -> Callable[[], AuditReport]:
    """Return the result of `sla-pipeline verify`."""
    return lambda: verify(PostgresSettings(owner_url), kafka_settings, now_utc=datetime.now(UTC))


def found(report: AuditReport, severity: Severity) -> dict[str, int]:
    """Return the counts of the checks of one severity that found something."""
    return {f.check.code: f.count for f in report.findings if f.count and f.check.severity is severity}


def lost(count: int) -> dict[str, int]:
    """Faults of an audit when ``count`` events are missing."""
    return {"record_without_event": count, "record_ticket_without_event": count}


def assert_each_on_the_topic_once(settings: KafkaSettings, records: BreachRecords) -> list[ReceivedEvent]:
    """Compare the topic with the records, in any order; return the events by sequence."""
    events = sorted(read_events(settings), key=sequence_of)
    assert [(sequence_of(event), event.key.decode(), event.value.decode()) for event in events] == records.expected()
    return events


def progress_of(settings: KafkaSettings) -> Progress | None:
    """Return the newest progress record."""
    reader = ProgressReader(settings)
    try:
        return reader.read(Deadline(10))
    finally:
        reader.close()


@pytest.mark.parametrize("step", ["produced", "flushed"])
def test_the_event_topic_re_created_between_produce_and_commit(
    *,
    step: str,
    kafka_settings: KafkaSettings,
    records: BreachRecords,
    publish: Publish,
    outbox: RepairableOutbox,
    audit: Callable[[], AuditReport],
) -> None:
    """Twenty events are lost, and the transaction commits: Postgres and the progress record count them as published."""
    records.add(20)

    def recreate(name: str) -> None:
        if name == step:
            # an event that the client had not sent yet would reach the new topic
            wait_until(lambda: written_offsets(kafka_settings, kafka_settings.topic) == 20, what="20 events to arrive")
            recreate_event_topic(kafka_settings)

    totals = publish(kafka_settings, on_step=recreate)
    assert totals == CycleTotals(published_count=20, transaction_count=1)
    assert found(audit(), Severity.FAULT) == lost(20)

    before = progress_of(kafka_settings)
    diagnosis = diagnose(kafka_settings, outbox)
    assert (diagnosis.state, diagnosis.missing, diagnosis.missing_count) == (State.EVENTS_MISSING, (range(1, 21),), 20)
    assert repair(kafka_settings, outbox, run_id="recover-1", confirmed=diagnosis) == diagnosis

    assert diagnose(kafka_settings, outbox).state is State.AGREED
    assert found(audit(), Severity.FAULT) == {}
    assert {event.headers[REPUBLISHED_HEADER] for event in assert_each_on_the_topic_once(kafka_settings, records)} == {
        b"recover-1"
    }
    after = progress_of(kafka_settings)
    assert before is not None
    assert after is not None
    assert (after.seq, after.digest, after.count, after.run) == (20, before.digest, 0, "recover-1")
    records.add(5)
    assert publish(kafka_settings) == CycleTotals(published_count=5, transaction_count=1)
    records.assert_each_published_once_in_order(kafka_settings)


def test_a_publisher_killed_before_it_updated_postgres(
    kafka_settings: KafkaSettings,
    records: BreachRecords,
    worker_url: str,
    outbox: RepairableOutbox,
    audit: Callable[[], AuditReport],
) -> None:
    records.add(6)
    run_until_killed(kafka_settings, worker_url, at="committed")
    recreate_event_topic(kafka_settings)
    assert records.positions() == (0, 6)
    assert diagnose(kafka_settings, outbox).missing_count == 6
    assert repair(kafka_settings, outbox, run_id="recover").state is State.EVENTS_MISSING
    assert records.positions() == (6, 6)
    assert found(audit(), Severity.FAULT) == {}
    records.assert_each_published_once_in_order(kafka_settings)


def test_events_published_since_stand_before_those_published_again(
    kafka_settings: KafkaSettings,
    records: BreachRecords,
    publish: Publish,
    outbox: RepairableOutbox,
    audit: Callable[[], AuditReport],
) -> None:
    """Nobody noticed for a while. The audit accepts the order because of the header, and shows how many there are."""
    records.add(20)
    publish(kafka_settings)
    recreate_event_topic(kafka_settings)
    records.add(10)
    publish(kafka_settings)
    records.add(3)
    assert found(audit(), Severity.FAULT) == lost(20)
    diagnosis = diagnose(kafka_settings, outbox)
    assert (diagnosis.state, diagnosis.missing, diagnosis.position) == (State.EVENTS_MISSING, (range(1, 21),), 30)
    repair(kafka_settings, outbox, run_id="recover", confirmed=diagnosis)
    publish(kafka_settings)
    assert diagnose(kafka_settings, outbox).state is State.AGREED
    report = audit()
    assert (found(report, Severity.FAULT), found(report, Severity.INFORMATION)["event_republished"]) == ({}, 20)
    events = assert_each_on_the_topic_once(kafka_settings, records)
    assert [sequence_of(event) for event in events if REPUBLISHED_HEADER in event.headers] == list(range(1, 21))


def test_a_rewound_database_and_missing_events_are_two_repairs(
    kafka_settings: KafkaSettings,
    records: BreachRecords,
    publish: Publish,
    outbox: RepairableOutbox,
    audit: Callable[[], AuditReport],
) -> None:
    records.add(20)
    publish(kafka_settings)
    recreate_event_topic(kafka_settings)
    records.add(10)
    publish(kafka_settings)
    before = records.expected()
    records.rewind(25)
    records.add(2, run_id="after-restore")
    first = repair(kafka_settings, outbox, run_id="recover")
    assert (first.state, first.common_seq, first.lost_count, first.missing) == (
        State.DATABASE_REWOUND,
        25,
        5,
        (range(1, 21),),
    )
    assert repair(kafka_settings, outbox, run_id="recover").state is State.EVENTS_MISSING
    assert publish(kafka_settings) == CycleTotals(published_count=2, transaction_count=1)
    assert records.expected()[:30] == before
    assert_each_on_the_topic_once(kafka_settings, records)
    assert found(audit(), Severity.FAULT) == {}


def test_what_is_lost_on_both_sides_is_not_guessed(
    kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish, outbox: RepairableOutbox
) -> None:
    records.add(20)
    publish(kafka_settings)
    recreate_event_topic(kafka_settings)
    records.rewind(12)
    with pytest.raises(FailClosed, match="states that 20 is published, but no event and no record exists after 12"):
        repair(kafka_settings, outbox, run_id="recover")
    assert list(read_events(kafka_settings)) == []


# --- retention


def test_events_that_have_expired_are_left_alone(
    kafka_settings: KafkaSettings,
    records: BreachRecords,
    publish: Publish,
    outbox: RepairableOutbox,
    audit: Callable[[], AuditReport],
) -> None:
    records.add(20)
    publish(kafka_settings)
    expire(kafka_settings, {0: -1, 1: 2})
    assert found(audit(), Severity.FAULT) == {}
    assert repair(kafka_settings, outbox, run_id="recover").state is State.AGREED
    expire(kafka_settings, {0: -1, 1: -1, 2: -1})
    assert repair(kafka_settings, outbox, run_id="recover").state is State.AGREED
    assert list(read_events(kafka_settings)) == []


def send(settings: KafkaSettings, records: BreachRecords, outbox: RepairableOutbox, *, without: set[int]) -> None:
    """Publish by hand, record by record in turn to partitions 0, 1 and 2, and set both positions to the last."""
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers})
    waiting = outbox.records_from(1, 1_000)
    for record in waiting:
        headers: dict[str, str | bytes | None] = dict(
            event_headers(correlation_id=record.correlation_id, outbox_seq=record.seq)
        )
        if record.seq not in without:
            key = event_key(record.ticket_id)
            producer.produce(settings.topic, record.payload, key, partition=(record.seq - 1) % 3, headers=headers)
    producer.produce(settings.progress_topic, Progress.of(waiting, "by hand").to_json(), PROGRESS_KEY, partition=0)
    assert producer.flush(20) == 0
    outbox.advance(waiting[-1].seq)


def test_only_what_is_above_the_first_events_kept_is_proven_to_be_missing(
    kafka_settings: KafkaSettings,
    records: BreachRecords,
    outbox: RepairableOutbox,
    audit: Callable[[], AuditReport],
) -> None:
    """Partition 0 had 1, 4, 7, 10 and begins with 7 now.

    Record 2, which was never sent, may have expired from it; record 11 cannot have.
    """
    records.add(12)
    send(kafka_settings, records, outbox, without={2, 11})
    assert diagnose(kafka_settings, outbox).missing == (range(2, 3), range(11, 12))
    assert found(audit(), Severity.FAULT) == lost(2)
    expire(kafka_settings, {0: 2})
    report = audit()
    assert found(report, Severity.FAULT) == lost(1)
    assert found(report, Severity.INFORMATION)["event_expired"] == 3
    diagnosis = diagnose(kafka_settings, outbox)
    assert (diagnosis.state, diagnosis.missing, diagnosis.expired_below) == (State.EVENTS_MISSING, (range(11, 12),), 7)
    repair(kafka_settings, outbox, run_id="recover", confirmed=diagnosis)
    assert found(audit(), Severity.FAULT) == {}
    assert sorted(map(sequence_of, read_events(kafka_settings))) == [3, 5, 6, 7, 8, 9, 10, 11, 12]


def test_a_partition_that_has_lost_everything_proves_nothing(
    kafka_settings: KafkaSettings,
    records: BreachRecords,
    outbox: RepairableOutbox,
    audit: Callable[[], AuditReport],
) -> None:
    records.add(12)
    send(kafka_settings, records, outbox, without={11})
    confirmed = diagnose(kafka_settings, outbox)
    assert confirmed.missing_count == 1
    expire(kafka_settings, {0: -1})
    assert found(audit(), Severity.FAULT) == {}
    with pytest.raises(FailClosed, match="the situation has changed since it was diagnosed, and nothing was changed"):
        repair(kafka_settings, outbox, run_id="recover", confirmed=confirmed)
    assert diagnose(kafka_settings, outbox).state is State.AGREED
    assert 11 not in set(map(sequence_of, read_events(kafka_settings)))


def test_events_published_again_do_not_count_as_the_first_of_their_partition(
    kafka_settings: KafkaSettings,
    records: BreachRecords,
    publish: Publish,
    outbox: RepairableOutbox,
    audit: Callable[[], AuditReport],
) -> None:
    """1 to 20 stand behind 21 to 30; then everything before them expires: none of 21 to 30 is lost."""
    records.add(20)
    publish(kafka_settings)
    recreate_event_topic(kafka_settings)
    records.add(10)
    publish(kafka_settings)
    ends = dict.fromkeys(range(3), 0)
    for event in read_events(kafka_settings):
        ends[event.partition] = event.offset + 1
    repair(kafka_settings, outbox, run_id="recover")
    expire(kafka_settings, {partition: end for partition, end in ends.items() if end})
    assert {sequence_of(event) for event in read_events(kafka_settings)} == set(range(1, 21))
    assert found(audit(), Severity.FAULT) == {}
    assert diagnose(kafka_settings, outbox).state is State.AGREED


# --- interruptions


class Crash(BaseException):
    """Error that interrupts a recovery."""


@pytest.fixture
def twenty_missing(
    kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> BreachRecords:
    """Twenty published records without an event, and transactions of four."""
    monkeypatch.setattr(republish, "TRANSACTION_RECORDS", 4)
    records.add(20)
    publish(kafka_settings)
    recreate_event_topic(kafka_settings)
    return records


def crash_in(method: str, *, before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the third transaction crash right before or after this method of its producer."""
    calls = [0]
    original = getattr(TransactionalProducer, method)

    def crashing(producer: TransactionalProducer, timeout: float) -> None:
        calls[0] += 1
        if calls[0] == 3 and before:
            raise Crash
        original(producer, timeout)
        if calls[0] == 3:
            raise Crash

    monkeypatch.setattr(TransactionalProducer, method, crashing)


@pytest.mark.parametrize(
    ("method", "before", "left"),
    [("deliver", True, range(9, 21)), ("commit", True, range(9, 21)), ("commit", False, range(13, 21))],
    ids=["handed over", "delivered", "committed, without a reply"],
)
def test_a_recovery_that_crashes_goes_on_where_it_was(
    *,
    method: str,
    before: bool,
    left: range,
    kafka_settings: KafkaSettings,
    twenty_missing: BreachRecords,
    outbox: RepairableOutbox,
    audit: Callable[[], AuditReport],
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        crash_in(method, before=before, monkeypatch=patched)
        with pytest.raises(Crash):
            repair(kafka_settings, outbox, run_id="recover-1")
    assert repair(kafka_settings, outbox, run_id="recover-2").missing == (left,)
    assert diagnose(kafka_settings, outbox).state is State.AGREED
    assert found(audit(), Severity.FAULT) == {}
    twenty_missing.assert_each_published_once_in_order(kafka_settings)


def test_a_second_recovery_keeps_the_first_from_going_on(
    kafka_settings: KafkaSettings, twenty_missing: BreachRecords, outbox: RepairableOutbox
) -> None:
    """The lock in Postgres was lost unnoticed: another recovery has taken over, as its progress record shows."""

    def take_over(done: int, total: int) -> None:
        if (done, total) == (8, 20):
            other = progress_of(kafka_settings)
            assert other is not None
            write_progress(
                kafka_settings, Deadline(10), lambda: Progress.without_events(other.seq, other.digest, "other")
            )

    with pytest.raises(PublisherFenced, match="records 9 to 12 and what follows were not published by this one"):
        repair(kafka_settings, outbox, run_id="recover", on_progress=take_over)
    assert {sequence_of(event) for event in read_events(kafka_settings)} == set(range(1, 9))


def test_a_lost_lock_ends_the_recovery(
    kafka_settings: KafkaSettings, twenty_missing: BreachRecords, outbox: RepairableOutbox
) -> None:
    def lose_lock(done: int, total: int) -> None:
        if (done, total) == (8, 20):
            outbox.unlock()

    with pytest.raises(PublisherFenced, match="records 9 to 12"):
        repair(kafka_settings, outbox, run_id="recover", on_progress=lose_lock)
    assert repair(kafka_settings, outbox, run_id="recover").missing == (range(9, 21),)
    twenty_missing.assert_each_published_once_in_order(kafka_settings)


def test_a_client_whose_queue_is_smaller_than_a_transaction(
    kafka_settings: KafkaSettings, twenty_missing: BreachRecords, outbox: RepairableOutbox
) -> None:
    narrow = KafkaSettings(
        kafka_settings.bootstrap_servers, kafka_settings.topic, {"queue.buffering.max.messages": "2"}
    )
    assert repair(narrow, outbox, run_id="recover").missing_count == 20
    twenty_missing.assert_each_published_once_in_order(kafka_settings)


def test_the_lock_is_kept_while_no_event_comes(
    kafka_settings: KafkaSettings,
    records: BreachRecords,
    publish: Publish,
    owner_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A foreign transaction holds the topic back for longer than the idle timeout of the lock's session."""
    records.add(3)
    publish(kafka_settings)
    monkeypatch.setattr(outbox_module, "_IDLE_SESSION_TIMEOUT_MS", 1_000)
    monkeypatch.setattr(recovery, "_KEEPALIVE_SECONDS", 0.2)
    blocker = Producer(
        {
            "bootstrap.servers": kafka_settings.bootstrap_servers,
            "transactional.id": f"{kafka_settings.topic}.foreign",
            "transaction.timeout.ms": 3_000,
        }
    )
    blocker.init_transactions(20)
    blocker.begin_transaction()
    blocker.produce(kafka_settings.topic, b"foreign", b"foreign", partition=0)
    assert blocker.flush(20) == 0
    outbox = RepairableOutbox(PostgresSettings(owner_url))
    try:
        begun = datetime.now(UTC)
        assert diagnose(kafka_settings, outbox).state is State.AGREED
        assert (datetime.now(UTC) - begun).total_seconds() > 2
    finally:
        outbox.close()
