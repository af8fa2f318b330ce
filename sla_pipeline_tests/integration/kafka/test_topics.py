"""Creation of both topics, and their check in every cycle."""

import re
import time

import pytest
from confluent_kafka.admin import AdminClient

from sla_pipeline.cycle import CycleTotals
from sla_pipeline.errors import KafkaSetupError
from sla_pipeline.kafka.clients import ClientReports, open_admin
from sla_pipeline.kafka.deadline import Deadline
from sla_pipeline.kafka.durability import warn_of_gap
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.kafka.topics import EventTopic, TopicChecker, check_topics, create_topics
from sla_pipeline_tests.integration.kafka.breach_records import BreachRecords
from sla_pipeline_tests.integration.kafka.conftest import Publish
from sla_pipeline_tests.integration.kafka.topic_administration import (
    create_topic,
    delete_topic,
    set_topic_config,
    written_offsets,
)
from sla_pipeline_tests.waiting import wait_until


def test_creating_twice_writes_one_first_record(kafka_settings: KafkaSettings) -> None:
    # the record, and the marker of its transaction, which the broker writes a moment after it has answered
    wait_until(lambda: written_offsets(kafka_settings, kafka_settings.progress_topic) == 2, what="the first record")
    create_topics(kafka_settings)
    assert written_offsets(kafka_settings, kafka_settings.progress_topic) == 2


def test_a_crash_between_creating_and_the_first_record_is_repaired_by_the_next_call(
    kafka_bootstrap: str, kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish
) -> None:
    settings = KafkaSettings(kafka_bootstrap, f"{kafka_settings.topic}.half-made")
    create_topic(settings, settings.topic, partitions=3)
    create_topic(settings, settings.progress_topic, config={"cleanup.policy": "compact"})
    create_topics(settings)
    records.add(3)
    assert publish(settings) == CycleTotals(published_count=3, transaction_count=1)


def test_creating_beside_a_running_publisher_does_not_disturb_it(
    kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish
) -> None:
    records.add(3)

    def create(step: str) -> None:
        if step in ("fenced", "flushed"):
            create_topics(kafka_settings)

    assert publish(kafka_settings, on_step=create) == CycleTotals(published_count=3, transaction_count=1)


def test_the_check_returns_the_event_topic_as_it_is(kafka_settings: KafkaSettings) -> None:
    set_topic_config(kafka_settings, kafka_settings.topic, "max.message.bytes", "1000000")
    assert check_topics(kafka_settings) == EventTopic(
        partition_count=3,
        max_message_bytes=1_000_000,
        time_limits="message.timestamp.before.max.ms=9223372036854775807, message.timestamp.after.max.ms=3600000",
    )


def test_a_cluster_of_one_broker_is_not_warned_of_its_replicas(
    kafka_settings: KafkaSettings, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_gap.cache_clear()
    check_topics(kafka_settings)
    assert [record.message for record in caplog.records if record.name == "sla_pipeline.kafka.durability"] == []


def test_further_checks_use_the_connection_of_the_first(
    kafka_settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    def counted(settings: KafkaSettings, reports: ClientReports) -> AdminClient:
        opened.append(settings)
        return open_admin(settings, reports)

    monkeypatch.setattr("sla_pipeline.kafka.topics.open_admin", counted)
    checker = TopicChecker(kafka_settings)
    assert len({checker.check(Deadline(20)) for _ in range(3)}) == 1
    assert len(opened) == 1
    checker.close()


@pytest.mark.parametrize("which", ["topic", "progress_topic"])
def test_topic_missing(which: str, kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish) -> None:
    records.add(1)
    missing = getattr(kafka_settings, which)
    delete_topic(kafka_settings, missing)
    steps: list[str] = []
    began = time.monotonic()
    with pytest.raises(KafkaSetupError, match=f"topic {missing} does not exist on Kafka at .*`sla-pipeline migrate`"):
        publish(kafka_settings, on_step=steps.append)
    assert time.monotonic() - began < 5
    assert steps == []
    assert records.positions() == (0, 1)


@pytest.mark.parametrize("value", ["delete", "compact,delete"])
def test_progress_topic_misconfigured(
    value: str, kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish
) -> None:
    records.add(1)
    set_topic_config(kafka_settings, kafka_settings.progress_topic, "cleanup.policy", value)
    with pytest.raises(
        KafkaSetupError, match=f"topic {kafka_settings.progress_topic} has cleanup.policy=.*must be compact"
    ) as raised:
        publish(kafka_settings)
    assert written_offsets(kafka_settings, kafka_settings.topic) == 0
    follow_remedy(kafka_settings, raised.value)
    assert publish(kafka_settings).published_count == 1


def test_progress_topic_with_several_partitions_is_refused(kafka_bootstrap: str, kafka_settings: KafkaSettings) -> None:
    settings = KafkaSettings(kafka_bootstrap, f"{kafka_settings.topic}.wide")
    create_topic(settings, settings.topic)
    create_topic(settings, settings.progress_topic, partitions=2, config={"cleanup.policy": "compact"})
    with pytest.raises(KafkaSetupError, match=f"topic {settings.progress_topic} has 2 partitions; it must have 1"):
        check_topics(settings)


def follow_remedy(settings: KafkaSettings, error: KafkaSetupError) -> None:
    """Run the command in the message."""
    remedy = re.search(r"Run kafka-configs\.sh --alter --topic (\S+) --add-config ([^ =]+)=(\S+)", str(error))
    assert remedy, error
    set_topic_config(settings, *remedy.groups())


@pytest.mark.parametrize("which", ["topic", "progress_topic"])
@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("max.message.bytes", "100", "an event needs up to 2048"),
        (
            "message.timestamp.before.max.ms",
            "0",
            "it must be at least 30000, or the broker refuses events by their time",
        ),
        ("message.timestamp.after.max.ms", "0", "it must be at least 1000, or the broker refuses events by their time"),
    ],
)
def test_a_topic_that_refuses_events_is_found_before_the_first_event_and_corrected_by_the_remedy(
    name: str,
    value: str,
    complaint: str,
    which: str,
    kafka_settings: KafkaSettings,
    records: BreachRecords,
    publish: Publish,
) -> None:
    """Nothing waits to be published: an idle cycle finds it."""
    topic = getattr(kafka_settings, which)
    set_topic_config(kafka_settings, topic, name, value)
    with pytest.raises(KafkaSetupError, match=f"topic {topic} has {name}={value}; {complaint}") as raised:
        publish(kafka_settings)
    follow_remedy(kafka_settings, raised.value)
    records.add(3)
    assert publish(kafka_settings).published_count == 3


def test_an_event_topic_that_would_lose_events_is_corrected_by_the_remedy(kafka_settings: KafkaSettings) -> None:
    set_topic_config(kafka_settings, kafka_settings.topic, "cleanup.policy", "compact")
    with pytest.raises(
        KafkaSetupError, match=f"topic {kafka_settings.topic} has cleanup.policy=compact; .*drops events"
    ) as raised:
        check_topics(kafka_settings)
    follow_remedy(kafka_settings, raised.value)
    check_topics(kafka_settings)


@pytest.mark.parametrize(
    ("name", "value"),
    [("compression.type", "zstd"), ("message.timestamp.type", "LogAppendTime"), ("min.insync.replicas", "2")],
)
def test_settings_that_refuse_nothing(
    name: str, value: str, kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish
) -> None:
    """The broker compresses again, puts its own time, and needs no more replicas than there are."""
    for topic in (kafka_settings.topic, kafka_settings.progress_topic):
        set_topic_config(kafka_settings, topic, name, value)
    records.add(20)
    assert publish(kafka_settings).published_count == 20
    records.assert_each_published_once_in_order(kafka_settings)


def test_more_replicas_than_brokers_are_reported(kafka_bootstrap: str, kafka_settings: KafkaSettings) -> None:
    settings = KafkaSettings(kafka_bootstrap, f"{kafka_settings.topic}.replicated")
    with pytest.raises(
        KafkaSetupError, match=r"INVALID_REPLICATION_FACTOR.*`sla-pipeline migrate --replication-factor` with at most"
    ):
        create_topics(settings, replication_factor=3)
    create_topics(settings, replication_factor=1)
