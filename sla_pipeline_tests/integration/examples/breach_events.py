"""Events and foreign records that the tests send, and the comparison of escalations with the topic."""

import json
import uuid
from collections.abc import Sequence

from confluent_kafka import Consumer, Producer, TopicPartition

from sla_pipeline.event import event_id
from sla_pipeline.kafka.settings import KafkaSettings


def assert_in_order(ids: Sequence[str], order: Sequence[Sequence[str]]) -> None:
    """Fail unless ``ids`` are all events of the topic, each once, in the order of its partition."""
    assert sorted(ids) == sorted(event for partition in order for event in partition)
    for partition in order:
        assert [event for event in ids if event in partition] == partition


def committed_count(settings: KafkaSettings) -> int:
    """Return the number of partitions for which the group has committed an offset."""
    consumer = Consumer({"bootstrap.servers": settings.bootstrap_servers, "group.id": f"group-of-{settings.topic}"})
    try:
        offsets = consumer.committed([TopicPartition(settings.topic, partition) for partition in range(3)], timeout=20)
        return sum(place.offset >= 0 for place in offsets)
    finally:
        consumer.close()


def send(settings: KafkaSettings, *values: bytes | None) -> None:
    """Send records to partition 0, without a transaction, as a foreign program does."""
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers})
    for value in values:
        producer.produce(settings.topic, value, b"key", partition=0)
    assert producer.flush(20) == 0


def event(**fields: object) -> bytes:
    """Return a breach event of a new ticket."""
    ticket_id = str(uuid.uuid4())
    values: dict[str, object] = {
        "EventId": event_id(ticket_id),
        "EventType": "TicketSlaBreachedKafkaEvent",
        "ContractVersion": 1,
        "TicketId": ticket_id,
        "TenantId": "0a11ce00-0000-4000-8000-000000000001",
    }
    return json.dumps(values | fields).encode()
