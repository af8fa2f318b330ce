"""Requests for the offsets of a topic's partitions, repeated while a partition has no known leader."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from sla_pipeline.kafka.clients import ClientReports, partitions_of, translated
from sla_pipeline.kafka.deadline import Deadline
from sla_pipeline.kafka.settings import KafkaSettings

__all__ = ["end_offsets", "end_offsets_of", "latest", "result_of", "retry_until_led"]

# Bounds each call; a healthy broker answers in milliseconds.
_CALL_SECONDS = 8.0
_RETRY_SECONDS = 0.05
# Transient errors: a broker does not know a new partition yet, or the partition's leader is changing.
_NOT_YET_KNOWN = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError._NOENT,
)
# Added to a request's own timeout, at which the client raises the reason; only a request that never ends exceeds it.
_GRACE_SECONDS = 1.0

_Answer = TypeVar("_Answer")


def result_of(future: "Future[_Answer]", timeout: float) -> _Answer:
    """Return the result of a request sent with ``timeout``. Raise ``KafkaException``, also for one that never ends."""
    try:
        return future.result(timeout + _GRACE_SECONDS)
    except TimeoutError as error:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"no answer after {timeout:.1f} s")) from error


def retry_until_led(
    request: Callable[[], _Answer], deadline: Deadline, *, before_next: Callable[[], None] = lambda: None
) -> _Answer:
    """Return the result of ``request``, repeated while a partition's leader is unknown or changing."""
    while True:
        try:
            return request()
        except KafkaException as error:
            if error.args[0].code() not in _NOT_YET_KNOWN or not deadline.remaining_seconds():
                raise
            before_next()
            time.sleep(_RETRY_SECONDS)


def end_offsets(
    settings: KafkaSettings, admin: AdminClient, reports: ClientReports, topic: str, deadline: Deadline
) -> dict[int, int]:
    """Return the end of every partition, open transactions included.

    A read_committed client may receive a lower offset.
    """
    with translated(settings, "looking up the end of the topic", reports, poll=admin.poll, topic=topic):
        return end_offsets_of(admin, topic, deadline)


def latest() -> OffsetSpec:
    """Return the specification of a partition's end, with the type that the client lacks."""
    spec: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    return spec


def end_offsets_of(admin: AdminClient, topic: str, deadline: Deadline) -> dict[int, int]:
    """Return what ``end_offsets`` returns. Raise the client's own errors."""
    requests = {
        TopicPartition(topic, partition): latest()
        for partition in partitions_of(admin, topic, deadline.timeout_seconds(_CALL_SECONDS))
    }
    timeout = deadline.timeout_seconds(_CALL_SECONDS)
    answers = admin.list_offsets(requests, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=timeout)
    return {partition.partition: result_of(future, timeout).offset for partition, future in answers.items()}
