"""Read the event topic as a consumer does: committed events, every partition, no group, no stored offset (SPEC 7.2).

Used by ``tail``, by the replay's comparison and by recovery.
"""

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from sla_pipeline.errors import KafkaUnavailable
from sla_pipeline.kafka.clients import ClientReports, open_admin, open_consumer, translated
from sla_pipeline.kafka.deadline import Deadline
from sla_pipeline.kafka.headers import headers_of
from sla_pipeline.kafka.offsets import end_offsets
from sla_pipeline.kafka.settings import KafkaSettings

__all__ = ["OnProgress", "ReceivedEvent", "read_events"]

OnProgress = Callable[[int, int], None]
"""Called after each batch with the number of records read, and of those on the topic at the start.

The latter counts transaction markers too.
"""

# Bounds the look-up of the partitions' ends; a healthy broker answers in milliseconds.
_OPENING_SECONDS = 20.0
# Bounds reading without progress. A broker aborts a dead publisher's transaction within 40 s (timeout 30 s, scan every
# 10 s), so a longer stall is not a crash.
_STALL_SECONDS = 60.0
# Bounds one batch: records taken from the client at once, and the wait for that many, which is always used up at the
# end of a topic.
_BATCH = 1_000
_BATCH_SECONDS = 0.05


class ReceivedEvent(NamedTuple):
    """A committed record. ``timestamp_ms`` counts from 1970; a null header, key or value is empty here.

    ``headers`` is empty where the client cannot read their names, which no event of this package has.
    """

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes
    headers: dict[str, bytes]
    value: bytes


def read_events(
    settings: KafkaSettings,
    *,
    follow: bool = False,
    start: Literal["beginning", "end"] = "beginning",
    on_progress: OnProgress | None = None,
    stall_seconds: float = _STALL_SECONDS,
) -> Iterator[ReceivedEvent]:
    """Yield the events of the topic, in order within a partition, up to its end at the start.

    With ``follow`` it never ends. Without it, records written after the start are not returned. Memory is bounded,
    whatever the topic holds. The topic is opened in the first ``next``, which also raises the errors of opening.

    Raise ``KafkaSetupError`` (no topic, no right, records gone while reading) or ``KafkaUnavailable`` (no answer, or no
    progress for ``stall_seconds`` before the end: an open transaction holds the rest back).
    """
    reports = ClientReports()
    admin = open_admin(settings, reports)
    ends = end_offsets(settings, admin, reports, settings.topic, Deadline(_OPENING_SECONDS))
    consumer = open_consumer(settings, reports, isolation_level="read_committed")
    try:
        with translated(settings, "reading events", reports):
            # Fetch the partitions' leaders first: assigned without them, a consumer waits 500 ms before it retries.
            consumer.list_topics(settings.topic, timeout=_OPENING_SECONDS)
            consumer.assign(
                [
                    TopicPartition(settings.topic, p, end if start == "end" else OFFSET_BEGINNING)
                    for p, end in ends.items()
                ],
            )
            missing = {partition: end for partition, end in ends.items() if end and start == "beginning"}
            yield from _received(
                settings, consumer, missing, follow=follow, on_progress=on_progress, stall_seconds=stall_seconds
            )
    finally:
        consumer.close()


def _received(
    settings: KafkaSettings,
    consumer: Consumer,
    missing: dict[int, int],
    *,
    follow: bool,
    on_progress: OnProgress | None,
    stall_seconds: float,
) -> Iterator[ReceivedEvent]:
    """Yield events; ``missing`` maps partitions still to be read to their end offset, and is emptied meanwhile."""
    total = sum(missing.values())
    ends = {} if follow else dict(missing)
    read_count = 0
    positions: dict[int, int] = {}
    stall_deadline = Deadline(stall_seconds)
    while missing or follow:
        events = []
        moved = False
        for message in consumer.consume(_BATCH, _BATCH_SECONDS):
            partition, position = _position_after(message)
            if positions.get(partition, -1) < position:
                positions[partition] = position
                moved = True
            if message.error() is None and (follow or position <= ends.get(partition, 0)):
                events.append(_event(message))
            if position >= missing.get(partition, position + 1):
                del missing[partition]
                if not follow:
                    # Records written from now on are not fetched.
                    consumer.pause([TopicPartition(settings.topic, partition)])
        read_count += len(events)
        yield from events
        if on_progress is not None and events:
            on_progress(read_count, total)
        if moved:
            stall_deadline = Deadline(stall_seconds)
        elif missing and not stall_deadline.remaining_seconds():
            partition, end = next(iter(missing.items()))
            raise KafkaUnavailable(
                f"topic {settings.topic} on Kafka at {settings.bootstrap_servers} stands still: partition {partition} "
                f"is readable to offset {positions.get(partition, 0)} of {end} only. Either a transaction is open "
                "there, which the broker aborts after its timeout (kafka-transactions.sh find-hanging shows one that "
                "it does not), or the broker does not answer"
            )


def _position_after(message: Message) -> tuple[int, int]:
    """Return the partition, and the offset up to which it is read with ``message``.

    Raise ``KafkaException`` for an error that is not the end of the partition.
    """
    error = message.error()
    partition, offset = message.partition() or 0, message.offset() or 0
    if error is None:
        return partition, offset + 1
    if error.code() == KafkaError._PARTITION_EOF:
        return partition, offset
    raise KafkaException(error)


def _event(message: Message) -> ReceivedEvent:
    return ReceivedEvent(
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        timestamp_ms=message.timestamp()[1],
        key=message.key() or b"",
        headers={name: value or b"" for name, value in headers_of(message).items()},
        value=message.value() or b"",
    )
