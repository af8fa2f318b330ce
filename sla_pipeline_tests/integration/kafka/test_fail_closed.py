"""Postgres and Kafka contradict each other: publishing stops with both numbers and the remedy, and sends nothing."""

import pytest

from sla_pipeline.errors import FailClosed
from sla_pipeline.kafka.deadline import Deadline
from sla_pipeline.kafka.progress import Progress, write_progress
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.kafka.topics import create_topics
from sla_pipeline_tests.integration.kafka.breach_records import BreachRecords
from sla_pipeline_tests.integration.kafka.conftest import Publish
from sla_pipeline_tests.integration.kafka.topic_administration import create_topic, delete_topic, written_offsets

_THE_WAY_OUT = r'docs/exactly-once\.md, section "Recovery", .*`sla-pipeline recover`'


def assert_refused(settings: KafkaSettings, publish: Publish, reason: str) -> None:
    """Assert that publishing raises ``FailClosed`` with ``reason`` and remedy, twice, and sends nothing."""
    before = written_offsets(settings, settings.topic)
    for _ in range(2):
        with pytest.raises(FailClosed, match=f"{reason}.*Nothing is published.*{_THE_WAY_OUT}"):
            publish(settings)
    assert written_offsets(settings, settings.topic) == before


@pytest.fixture
def published_twenty(kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish) -> KafkaSettings:
    """Twenty records are published, five more wait."""
    records.add(20)
    publish(kafka_settings)
    records.add(5)
    return kafka_settings


def test_progress_topic_lost(published_twenty: KafkaSettings, publish: Publish) -> None:
    """Deleted, and re-created by hand: an empty topic is not a new one."""
    settings = published_twenty
    delete_topic(settings, settings.progress_topic)
    create_topic(settings, settings.progress_topic, config={"cleanup.policy": "compact"})
    assert_refused(settings, publish, f"topic {settings.progress_topic} holds no progress record")


def test_a_lost_progress_topic_is_not_re_created_beside_events(
    published_twenty: KafkaSettings, publish: Publish
) -> None:
    settings = published_twenty
    delete_topic(settings, settings.progress_topic)
    with pytest.raises(
        FailClosed, match=f"topic {settings.progress_topic} holds no record, but topic {settings.topic} has held events"
    ):
        create_topics(settings)
    assert_refused(settings, publish, "holds no progress record")


def test_both_topics_lost_and_re_created(published_twenty: KafkaSettings, publish: Publish) -> None:
    settings = published_twenty
    delete_topic(settings, settings.progress_topic)
    delete_topic(settings, settings.topic)
    create_topics(settings)
    assert_refused(settings, publish, "Postgres knows that sequence 20 is published, but Kafka's progress is at 0")


def test_database_restored_from_backup(
    published_twenty: KafkaSettings, records: BreachRecords, publish: Publish
) -> None:
    """At first Postgres is behind Kafka; then it assigns the same sequences to other tickets and looks complete."""
    settings = published_twenty
    records.rewind(12)
    records.add(3)
    assert_refused(settings, publish, "Kafka's progress is at sequence 20, but Postgres has handed out only 15")
    records.add(15)
    assert_refused(
        settings, publish, r"breach record 20 \(ticket .*\) is not the one that was published under this sequence"
    )


def test_the_same_tickets_marked_again_after_a_restore_are_known_as_others(
    published_twenty: KafkaSettings, records: BreachRecords, publish: Publish
) -> None:
    """Only the run that marked differs: sequence, ticket and payload are those that were published."""
    records.query("update support.ticket_sla_breaches set correlation_id = 'another run' where seq = 20 returning seq")
    assert_refused(published_twenty, publish, r"breach record 20 \(ticket .*\) is not the one that was published")


def test_published_record_deleted_by_housekeeping(
    published_twenty: KafkaSettings, records: BreachRecords, publish: Publish
) -> None:
    records.query("delete from support.ticket_sla_breaches where seq <= 20 returning seq")
    assert_refused(published_twenty, publish, "breach record 20, the last one published, is gone from Postgres")


def test_a_hole_in_the_records(published_twenty: KafkaSettings, records: BreachRecords, publish: Publish) -> None:
    records.query("delete from support.ticket_sla_breaches where seq = 22 returning seq")
    assert_refused(published_twenty, publish, "breach record 22 is missing from Postgres; the next one there is 23")


def test_records_missing_at_the_end(published_twenty: KafkaSettings, records: BreachRecords, publish: Publish) -> None:
    records.query("delete from support.ticket_sla_breaches where seq > 20 returning seq")
    assert_refused(published_twenty, publish, "breach records 21 to 25 are missing from Postgres")


def test_a_foreign_record_on_the_progress_topic(published_twenty: KafkaSettings, publish: Publish) -> None:
    class Foreign(Progress):
        def to_json(self) -> bytes:
            return b'{"seq": 24}'

    write_progress(published_twenty, Deadline(20), lambda: Foreign.without_events(24, "0" * 32, "somebody"))
    assert_refused(published_twenty, publish, "is not a progress record of this package")
