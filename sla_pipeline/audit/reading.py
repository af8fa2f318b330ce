"""The auditor's reads of both topics: committed records, every partition from its beginning.

Consumers are assigned their partitions; they join no group and commit no offset. There are two isolation levels: only a
read_uncommitted client gets the true end of a partition, and only a read_committed one leaves out what was aborted.
Reading up to a true end waits until every transaction below it is committed or aborted, so nothing is left undecided.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from sla_pipeline.audit.contract import TopicEvent
from sla_pipeline.errors import KafkaUnavailable
from sla_pipeline.kafka.clients import ClientReports, open_consumer, partitions_of, translated
from sla_pipeline.kafka.deadline import Deadline
from sla_pipeline.kafka.headers import headers_of
from sla_pipeline.kafka.settings import KafkaSettings

__all__ = ["Span", "read_events", "read_progress_seq", "translated_errors", "watermarks"]

OnRead = Callable[[int], None]
"""Callback after each batch. Its argument is the number of offsets passed so far, transaction markers included."""

# bound of one call; a healthy broker answers in milliseconds
_CALL_SECONDS = 10.0
# longest wait without a new record. A broker aborts a dead publisher's transaction earlier (timeout 30 s, checked every
# 10 s), so a longer wait has another cause than a crash.
_STALL_SECONDS = 60.0
# pause between two lookups of a partition's leader; an election takes about a second
_ELECTION_POLL_SECONDS = 0.2
# messages per consume call, and the longest wait for that many; each read ends with one full wait at the topic's end
_BATCH_SIZE = 1_000
_BATCH_SECONDS = 0.05
_PROGRESS_KEY = b"progress"

_LEADER_MOVED = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError._UNKNOWN_PARTITION)


class Span(NamedTuple):
    """Range of a partition: the first offset that is still there, and the offset that the next record will have."""

    low: int
    end: int


def watermarks(settings: KafkaSettings, topic: str) -> dict[int, Span]:
    """Return the current span of every partition, open transactions included.

    Raises ``KafkaSetupError`` or ``KafkaUnavailable``.
    """
    with _consumer(settings, topic, isolation_level="read_uncommitted") as consumer:
        partitions = sorted(partitions_of(consumer, topic, _CALL_SECONDS))
        return {partition: _span(consumer, TopicPartition(topic, partition)) for partition in partitions}


def _span(consumer: Consumer, partition: TopicPartition) -> Span:
    """Return a partition's span. Looks up a leader that has moved: an election must not fail a long audit."""
    deadline = Deadline(_CALL_SECONDS)
    while True:
        try:
            return Span(*consumer.get_watermark_offsets(partition, timeout=_CALL_SECONDS, cached=False))
        except KafkaException as error:
            if error.args[0].code() not in _LEADER_MOVED or not deadline.remaining_seconds():
                raise
        time.sleep(_ELECTION_POLL_SECONDS)
        partitions_of(consumer, partition.topic, _CALL_SECONDS)


def read_events(
    settings: KafkaSettings, spans: dict[int, Span], *, on_read: OnRead, stall_seconds: float = _STALL_SECONDS
) -> Iterator[TopicEvent]:
    """Yield the committed events below the ends of ``spans``, in order within a partition, in bounded memory.

    Raises ``KafkaSetupError`` (no topic, no right, records expired during the read) or ``KafkaUnavailable`` (no answer,
    or nothing new for ``stall_seconds`` before the end: a transaction is open).
    """
    for message in _read(settings, settings.topic, spans, on_read, stall_seconds):
        yield TopicEvent(
            message.partition() or 0, message.offset() or 0, message.key(), headers_of(message), message.value()
        )


def read_progress_seq(settings: KafkaSettings, *, stall_seconds: float = _STALL_SECONDS) -> int | None:
    """Return the sequence in the newest committed progress record; None without a record or a valid sequence in it.

    Waits for the transactions that are open at the time of the call. Raises the same errors as ``read_events``.
    """
    newest: Message | None = None
    spans = watermarks(settings, settings.progress_topic)
    for message in _read(settings, settings.progress_topic, spans, lambda _: None, stall_seconds):
        newest = message
    if newest is None or newest.key() != _PROGRESS_KEY:
        return None
    try:
        seq = json.loads(newest.value() or b"null")["seq"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return seq if type(seq) is int and seq >= 0 else None


def _read(
    settings: KafkaSettings, topic: str, spans: dict[int, Span], on_read: OnRead, stall_seconds: float
) -> Iterator[Message]:
    missing = {partition: span.end for partition, span in spans.items() if span.low < span.end}
    if not missing:
        return
    positions = {partition: spans[partition].low for partition in missing}
    with _consumer(settings, topic, isolation_level="read_committed") as consumer:
        # fetches the partitions' leaders: without them, an assigned consumer waits 500 ms before its first fetch
        partitions_of(consumer, topic, _CALL_SECONDS)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in missing])
        deadline = Deadline(stall_seconds)
        while missing:
            moved = False
            for message in consumer.consume(_BATCH_SIZE, _BATCH_SECONDS):
                partition, position = message.partition() or 0, _position_after(message)
                moved = moved or position > positions[partition]
                positions[partition] = max(positions[partition], position)
                # events beyond the end are skipped: their records may be newer than the snapshot of Postgres
                if message.error() is None and position <= spans[partition].end:
                    yield message
                if position >= spans[partition].end and missing.pop(partition, None) is not None:
                    consumer.pause([TopicPartition(topic, partition)])
            if moved:
                on_read(sum(min(position, spans[p].end) - spans[p].low for p, position in positions.items()))
                deadline = Deadline(stall_seconds)
            elif not deadline.remaining_seconds():
                raise _stalled(settings, topic, positions, missing)


def _position_after(message: Message) -> int:
    """Return the offset up to which the partition is read after ``message``.

    Raises ``KafkaException`` for any error but the end of the partition.
    """
    error, offset = message.error(), message.offset() or 0
    if error is None:
        return offset + 1
    if error.code() == KafkaError._PARTITION_EOF:
        return offset
    raise KafkaException(error)


def _stalled(
    settings: KafkaSettings, topic: str, positions: dict[int, int], missing: dict[int, int]
) -> KafkaUnavailable:
    partition, end = next(iter(missing.items()))
    return KafkaUnavailable(
        f"topic {topic} on Kafka at {settings.bootstrap_servers} stands still: partition {partition} is readable to "
        f"offset {positions[partition]} of {end} only. Either a transaction is open there, which the broker aborts "
        "after its timeout (kafka-transactions.sh find-hanging lists one that it does not), or the broker does not "
        "answer; run the audit again"
    )


@contextlib.contextmanager
def _consumer(settings: KafkaSettings, topic: str, *, isolation_level: str) -> Iterator[Consumer]:
    """Open a consumer for the length of the block. Raises the errors of ``translated_errors`` for the client's."""
    reports = ClientReports()
    consumer = open_consumer(settings, reports, isolation_level=isolation_level)
    try:
        with translated_errors(settings, topic, reports, poll=consumer.poll):
            yield consumer
    finally:
        consumer.close()


def translated_errors(
    settings: KafkaSettings, topic: str, reports: ClientReports, *, poll: Callable[[float], object] | None = None
) -> contextlib.AbstractContextManager[None]:
    """Return a context manager that raises ``KafkaSetupError`` or ``KafkaUnavailable`` for the client's errors."""
    return translated(
        settings,
        f"auditing topic {topic}",
        reports,
        poll=poll,
        topic=topic,
        required_rights=f"An audit needs Read and Describe on topics {settings.topic} and {settings.progress_topic}",
    )
