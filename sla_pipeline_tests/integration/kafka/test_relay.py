"""Guarantees of the relay without faults (SPEC 5.6, 7.2)."""

from typing import cast

import pytest

from sla_pipeline.cycle import CycleTotals
from sla_pipeline.errors import KafkaSetupError, PublisherBusy
from sla_pipeline.kafka.deadline import Deadline
from sla_pipeline.kafka.progress import Progress, ProgressReader, record_digest
from sla_pipeline.kafka.relay import STEPS, Relay
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline_tests.integration.kafka.breach_records import BreachRecords
from sla_pipeline_tests.integration.kafka.conftest import OutboxFactory, Publish


def read_progress(settings: KafkaSettings) -> Progress:
    reader = ProgressReader(settings)
    try:
        return cast(Progress, reader.read(Deadline(20)))
    finally:
        reader.close()


def test_a_new_installation_is_at_sequence_zero(kafka_settings: KafkaSettings) -> None:
    progress = read_progress(kafka_settings)
    assert (progress.seq, progress.first, progress.count, progress.digest, progress.run) == (
        0,
        1,
        0,
        "",
        "create_topics",
    )


def test_each_waiting_record_becomes_one_event_with_its_key_headers_and_payload(
    kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish
) -> None:
    records.add(50, run_id="run-7")
    assert publish(kafka_settings) == CycleTotals(published_count=50, transaction_count=1)
    events = records.assert_each_published_once_in_order(kafka_settings)
    assert events[16].headers == {
        "event-type": b"TicketSlaBreachedKafkaEvent",
        "contract-version": b"1",
        "correlation-id": b"run-7",
        "outbox-seq": b"17",
        "content-type": b"application/json",
    }
    assert {event.partition for event in events} == {0, 1, 2}
    assert records.positions() == (50, 50)


def test_the_progress_record_states_what_its_transaction_held(
    kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish, outbox_factory: OutboxFactory
) -> None:
    records.add(7)
    publish(kafka_settings)
    records.add(5)
    publish(kafka_settings, run_id="run-2")
    with outbox_factory() as outbox:
        (last,) = outbox.records_from(12, 1)
    progress = read_progress(kafka_settings)
    assert (progress.seq, progress.first, progress.count, progress.digest, progress.run) == (
        12,
        8,
        5,
        record_digest(last),
        "run-2",
    )


def test_leftovers_and_new_records_go_out_in_as_many_transactions_as_they_need(
    kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish
) -> None:
    records.add(25)
    assert publish(kafka_settings, transaction_limit=10) == CycleTotals(published_count=25, transaction_count=3)
    records.add(10)
    assert publish(kafka_settings, transaction_limit=10) == CycleTotals(published_count=10, transaction_count=1)
    records.assert_each_published_once_in_order(kafka_settings)


def test_with_nothing_waiting_the_topics_are_checked_and_nothing_else_is_done(
    kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish
) -> None:
    steps: list[str] = []
    assert publish(kafka_settings, on_step=steps.append) == CycleTotals(published_count=0, transaction_count=0)
    assert steps == []
    with pytest.raises(KafkaSetupError, match="topic no-such-topic does not exist"):
        publish(KafkaSettings(kafka_settings.bootstrap_servers, topic="no-such-topic"))


def test_steps_are_reported_in_their_order(
    kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish
) -> None:
    records.add(1)
    steps: list[str] = []
    publish(kafka_settings, on_step=steps.append)
    assert tuple(steps) == STEPS


def test_records_written_while_publishing_are_published_by_the_same_call(
    kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish
) -> None:
    records.add(3)
    late = iter([4])

    def add_late(step: str) -> None:
        if step == "flushed" and (count := next(late, 0)):
            records.add(count)

    assert publish(kafka_settings, on_step=add_late) == CycleTotals(published_count=7, transaction_count=2)
    records.assert_each_published_once_in_order(kafka_settings)


def test_a_second_publisher_waits_a_bounded_time_for_the_lock(
    kafka_settings: KafkaSettings, records: BreachRecords, outbox_factory: OutboxFactory
) -> None:
    records.add(1)
    with outbox_factory() as holder, outbox_factory() as outbox, Relay(kafka_settings, lock_seconds=0.3) as relay:
        assert holder.try_lock()
        with pytest.raises(PublisherBusy, match=r"held the relay's lock in Postgres for more than 0.3 s"):
            relay.publish(outbox, run_id="second")
        holder.unlock()
        assert relay.publish(outbox, run_id="second").published_count == 1


def test_the_lock_is_released_after_an_error_and_after_a_success(
    kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish, outbox_factory: OutboxFactory
) -> None:
    records.add(1)
    with outbox_factory() as outbox, outbox_factory() as other:
        with (
            Relay(KafkaSettings(kafka_settings.bootstrap_servers, topic="no-such-topic")) as lost,
            pytest.raises(KafkaSetupError),
        ):
            lost.publish(outbox, run_id="run")
        assert other.try_lock()
        other.unlock()
        with Relay(kafka_settings) as relay:
            relay.publish(outbox, run_id="run")
        assert other.try_lock()


class Interruption(BaseException):
    """As Dagster's own, it is not an ``Exception``."""


@pytest.mark.parametrize("at", STEPS)
def test_an_interruption_at_any_step_passes_and_the_next_call_goes_on(
    at: str, kafka_settings: KafkaSettings, records: BreachRecords, outbox_factory: OutboxFactory
) -> None:
    records.add(20)

    def interrupt(step: str) -> None:
        if step == at and not interrupted:
            interrupted.append(step)
            raise Interruption

    interrupted: list[str] = []
    with outbox_factory() as outbox, Relay(kafka_settings, on_step=interrupt) as relay:
        with pytest.raises(Interruption):
            relay.publish(outbox, run_id="interrupted")
        relay.publish(outbox, run_id="next")
    records.assert_each_published_once_in_order(kafka_settings)
    assert records.positions() == (20, 20)


def test_a_bug_is_not_reported_as_an_outage(
    kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish
) -> None:
    records.add(1)

    def broken(step: str) -> None:
        raise ZeroDivisionError(step)

    with pytest.raises(ZeroDivisionError, match="locked"):
        publish(kafka_settings, on_step=broken)
