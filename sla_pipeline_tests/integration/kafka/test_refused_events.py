"""Events that the client or the broker refuses: a clear error, a position before them, nothing lost or doubled."""

import time
from typing import Any

import pytest
from confluent_kafka import Producer

from sla_pipeline.cycle import CycleTotals
from sla_pipeline.errors import KafkaSetupError, KafkaUnavailable
from sla_pipeline.kafka.events import ReceivedEvent, read_events
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline_tests.integration.kafka.breach_records import BreachRecords
from sla_pipeline_tests.integration.kafka.conftest import Publish
from sla_pipeline_tests.integration.kafka.topic_administration import (
    set_producer_quota,
    set_topic_config,
    written_offsets,
)


def seen_by_a_consumer(settings: KafkaSettings) -> list[ReceivedEvent]:
    """Return the events that can be read now, before the open transaction."""
    seen: list[ReceivedEvent] = []
    with pytest.raises(KafkaUnavailable, match="stands still: partition"):
        seen.extend(read_events(settings, stall_seconds=0.5))
    return seen


def test_message_too_large(kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish) -> None:
    """The broker's limit, reached at delivery. The other events are small and share batches that fit it."""
    set_topic_config(kafka_settings, kafka_settings.topic, "max.message.bytes", "3000")
    records.add(60)
    (too_large,) = records.add(1, padding_bytes=40_000)
    records.add(60)
    ticket_id = records.expected()[too_large - 1][1]
    for _ in range(2):
        with pytest.raises(
            KafkaSetupError,
            match=rf"too large .*ticket TCK-{too_large} \(id {ticket_id}, sequence {too_large}, \d+ bytes\)",
        ):
            publish(kafka_settings)
        assert records.positions() == (0, 121)
        assert seen_by_a_consumer(kafka_settings) == []
    set_topic_config(kafka_settings, kafka_settings.topic, "max.message.bytes", "1048588")
    assert publish(kafka_settings) == CycleTotals(published_count=121, transaction_count=1)
    records.assert_each_published_once_in_order(kafka_settings)


def test_message_too_large_for_the_client(
    kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish
) -> None:
    """The client's limit, reached when the event is queued."""
    records.add(3)
    (too_large,) = records.add(1, padding_bytes=1_000_000)
    records.add(3)
    with pytest.raises(KafkaSetupError, match=rf"while queueing events .*ticket TCK-{too_large} "):
        publish(kafka_settings)
    # a slow machine may need several transactions, and the first holds only events before the large one
    published, handed_out = records.positions()
    assert (published in (0, 1, 2, 3), handed_out) == (True, 7)
    larger = KafkaSettings(kafka_settings.bootstrap_servers, kafka_settings.topic, {"message.max.bytes": "2000000"})
    assert publish(larger).published_count == 7 - published
    records.assert_each_published_once_in_order(kafka_settings)


def test_delivery_fails_for_one(kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish) -> None:
    """All others of its transaction were delivered, and must not be seen either."""
    set_topic_config(kafka_settings, kafka_settings.topic, "max.message.bytes", "3000")
    records.add(40)
    records.add(1, padding_bytes=40_000)
    with pytest.raises(KafkaSetupError, match=r"too large .*MSG_SIZE_TOO_LARGE.*ticket TCK-41 "):
        publish(kafka_settings)
    assert written_offsets(kafka_settings, kafka_settings.topic) > 0
    assert seen_by_a_consumer(kafka_settings) == []
    set_topic_config(kafka_settings, kafka_settings.topic, "max.message.bytes", "1048588")
    assert publish(kafka_settings) == CycleTotals(published_count=41, transaction_count=1)
    records.assert_each_published_once_in_order(kafka_settings)


def test_producer_queue_full(kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish) -> None:
    """More records than the client's queue holds go out in one transaction, in steps that fit it."""
    records.add(250)
    small = KafkaSettings(
        kafka_settings.bootstrap_servers, kafka_settings.topic, {"queue.buffering.max.messages": "100"}
    )
    assert publish(small) == CycleTotals(published_count=250, transaction_count=1)
    records.assert_each_published_once_in_order(kafka_settings)


def test_a_record_larger_than_the_whole_queue_is_reported_and_not_skipped(
    kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish
) -> None:
    records.add(3)
    records.add(1, padding_bytes=3_000)
    tiny = KafkaSettings(kafka_settings.bootstrap_servers, kafka_settings.topic, {"queue.buffering.max.kbytes": "2"})
    with pytest.raises(KafkaSetupError, match=r"queue holds fewer events .*queue\.buffering\.max\.kbytes"):
        publish(tiny)
    assert records.positions() == (3, 4)
    publish(kafka_settings)
    records.assert_each_published_once_in_order(kafka_settings)


def test_a_refusal_by_time_names_topic_setting_value_and_remedy(
    kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish
) -> None:
    """The setting was changed after the check of this cycle, so that the broker refuses what is delivered."""
    records.add(30)

    def refuse(step: str) -> None:
        if step == "fenced":
            set_topic_config(kafka_settings, kafka_settings.topic, "message.timestamp.before.max.ms", "0")

    with pytest.raises(
        KafkaSetupError, match=rf"topic {kafka_settings.topic} has message\.timestamp\.before\.max\.ms=0; it must be"
    ) as raised:
        publish(kafka_settings, on_step=refuse)
    assert "Broker: Invalid timestamp" in repr(raised.value.__cause__)
    assert records.positions() == (0, 30)


def test_an_event_of_a_wrong_clock_is_refused_for_good(
    kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic is correct, the time of an event is not: this machine's clock seems more than an hour ahead."""
    produce = Producer.produce

    def ahead(producer: Producer, *arguments: Any, **options: Any) -> None:
        produce(producer, *arguments, **options | {"timestamp": int(time.time() * 1000) + 2 * 3_600_000})

    records.add(30)
    monkeypatch.setattr("sla_pipeline.kafka.clients.Producer", type("Ahead", (Producer,), {"produce": ahead}))
    with pytest.raises(
        KafkaSetupError,
        match=rf"refuses the time of an event of topic {kafka_settings.topic} .*INVALID_TIMESTAMP.*until the cause "
        rf"is corrected\..*clock shows "
        r"20.* UTC: correct its clock or the broker's, or raise the topic's limits "
        r"\(.*message\.timestamp\.after\.max\.ms=3600000\)",
    ):
        publish(kafka_settings)
    monkeypatch.undo()
    assert publish(kafka_settings).published_count == 30
    records.assert_each_published_once_in_order(kafka_settings)


def test_a_quota_that_holds_the_publisher_back_is_named(
    kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish
) -> None:
    client_id = kafka_settings.topic
    held_back = KafkaSettings(kafka_settings.bootstrap_servers, kafka_settings.topic, {"client.id": client_id})
    set_producer_quota(kafka_settings, client_id, 100)
    records.add(30)
    with pytest.raises(
        KafkaUnavailable, match=r"holds this client back by a quota, up to \d+ s a request, .*raise producer_byte_rate"
    ):
        publish(held_back, seconds=4.0)
    set_producer_quota(kafka_settings, client_id, 100_000_000)
    assert publish(held_back).published_count == 30
    records.assert_each_published_once_in_order(kafka_settings)
