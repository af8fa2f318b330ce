"""Publishers killed by SIGKILL or paused by SIGSTOP at every step: each event is published once (CASES)."""

import signal

import pytest

from sla_pipeline.cycle import CycleTotals
from sla_pipeline.kafka.relay import STEPS
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline_tests.integration.kafka.breach_records import BreachRecords
from sla_pipeline_tests.integration.kafka.conftest import Publish
from sla_pipeline_tests.integration.kafka.fenced_process import run_fenced_producers
from sla_pipeline_tests.integration.kafka.publisher_process import run_until_killed, start_publisher, wait_until_stopped

_INSIDE_TRANSACTION = ("begun", "produced", "flushed")
_BEFORE_TRANSACTION = STEPS[: STEPS.index("begun")]


@pytest.mark.parametrize("at", _BEFORE_TRANSACTION)
def test_killed_before_kafka_transaction(
    at: str, kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish, worker_url: str
) -> None:
    records.add(30)
    run_until_killed(kafka_settings, worker_url, at=at)
    assert publish(kafka_settings) == CycleTotals(published_count=30, transaction_count=1)
    records.assert_each_published_once_in_order(kafka_settings)


@pytest.mark.parametrize("at", _INSIDE_TRANSACTION)
def test_killed_inside_kafka_transaction(
    at: str, kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish, worker_url: str
) -> None:
    records.add(30)
    run_until_killed(kafka_settings, worker_url, at=at)
    assert records.positions() == (0, 30)
    assert publish(kafka_settings) == CycleTotals(published_count=30, transaction_count=1)
    records.assert_each_published_once_in_order(kafka_settings)
    assert records.positions() == (30, 30)


def test_killed_after_commit_before_position(
    kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish, worker_url: str
) -> None:
    records.add(30)
    run_until_killed(kafka_settings, worker_url, at="committed")
    assert records.positions() == (0, 30)
    records.add(5)
    assert publish(kafka_settings) == CycleTotals(published_count=5, transaction_count=1)
    records.assert_each_published_once_in_order(kafka_settings)
    assert records.positions() == (35, 35)


def test_killed_after_commit_with_nothing_new_since_only_postgres_catches_up(
    kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish, worker_url: str
) -> None:
    records.add(30)
    run_until_killed(kafka_settings, worker_url, at="committed")
    assert publish(kafka_settings) == CycleTotals(published_count=0, transaction_count=0)
    records.assert_each_published_once_in_order(kafka_settings)
    assert records.positions() == (30, 30)


@pytest.mark.parametrize(
    ("at", "ends_with"),
    [
        # it never had an epoch: it fences the successor, whose work it finds done
        ("locked", "PostgresUnavailable"),
        ("fenced", "PostgresUnavailable"),
        ("begun", "PublisherFenced"),
        ("produced", "PublisherFenced"),
        ("flushed", "PublisherFenced"),
        # it had committed truly, and only the copy of the position was left to write
        ("committed", "PostgresUnavailable"),
    ],
)
def test_zombie_publisher(
    *, at: str, ends_with: str, kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish, worker_url: str
) -> None:
    """Its session is ended as idle; a second publisher finishes; then the first resumes."""
    records.add(30)
    with start_publisher(kafka_settings, worker_url, at=at, signal_name="SIGSTOP") as zombie:
        wait_until_stopped(zombie)
        for pid in records.relay_sessions():
            records.end_session_of(pid)
        publish(kafka_settings)
        records.assert_each_published_once_in_order(kafka_settings)
        zombie.send_signal(signal.SIGCONT)
        output, _ = zombie.communicate(timeout=60)
    assert output.startswith(f"{ends_with}: ")
    if ends_with == "PublisherFenced":
        assert f"another publisher has taken over {kafka_settings.transactional_id}" in output
    records.assert_each_published_once_in_order(kafka_settings)
    assert records.positions() == (30, 30)
    records.add(4)
    assert publish(kafka_settings) == CycleTotals(published_count=4, transaction_count=1)
    records.assert_each_published_once_in_order(kafka_settings)


def test_publisher_fenced_with_records_on_their_way_ends_with_its_error_and_lives_on(
    kafka_settings: KafkaSettings,
) -> None:
    """Dropped while the broker's replies are in flight, a fenced producer corrupted memory and ended the process."""
    process = run_fenced_producers(kafka_settings, rounds=40)
    assert (process.returncode, process.stderr.count("Fatal Python error")) == (0, 0)
    assert process.stdout.split() == ["_FENCED"] * 40
