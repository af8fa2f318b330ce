"""Failed deliveries, as a producer reports them."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError

from sla_pipeline.kafka.clients import TransactionalProducer
from sla_pipeline.kafka.settings import KafkaSettings


def _message(key: bytes) -> Any:
    return cast("Any", SimpleNamespace(key=lambda: key))


@pytest.mark.parametrize("purged", [KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT])
def test_the_cause_is_reported_and_not_the_deliveries_that_fell_with_it(purged: int) -> None:
    """librdkafka may report purged records before the record that caused the purge."""
    producer = TransactionalProducer(KafkaSettings("127.0.0.1:1"))
    producer._on_delivery(KafkaError(purged), _message(b"given up"))
    assert producer.reported_error is not None
    assert producer.reported_error.code() == purged
    producer._on_delivery(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), _message(b"too large"))
    assert producer.reported_error is not None
    assert producer.reported_error.code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert producer.failed_keys() == [b"too large"]
    producer.drop()
