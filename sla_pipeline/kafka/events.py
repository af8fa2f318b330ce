"""Reads the event topic as a consumer does: committed events only, every partition, no group, nothing remembered (SPEC 7.2).

For ``tail``, for the replay's comparison, for recovery. What belongs here: bytes and where they stood. What does not:
what they say.
"""

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from sla_pipeline.errors import KafkaUnavailable
from sla_pipeline.kafka.clients import ClientReports, open_admin, open_consumer, translated
from sla_pipeline.kafka.deadline import Deadline
from sla_pipeline.kafka.headers import headers_of
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.kafka.topics import end_offsets

__all__ = ["OnProgress", "ReceivedEvent", "read_events"]

OnProgress = Callable[[int, int], None]
"""Called after each piece with the records read and the records there were at the start; the latter counts transaction
markers too.
"""

# the time for finding out where the partitions end
_OPENING_SECONDS = 20.0
# longer than the broker needs to abort a dead publisher's transaction (timeout 30 s, scanned for every 10 s): then it
# is not a crash
_STALL_SECONDS = 60.0
# events taken from the client at once, and the longest wait for that many: at the end of a topic it is always waited
# out
_PIECE = 1_000
_PIECE_SECONDS = 0.05


class ReceivedEvent(NamedTuple):
    """A committed record. ``timestamp_ms`` counts from 1970; a header, key or value that is null is empty here.

    ``headers`` is empty where the client cannot read their names; no event of this package has such.
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
    """The events of the topic, in order within a partition; up to what was there at the start, or for ever with ``follow``.

    Without ``follow`` nothing is returned from the end of a partition at the start on, however much is written
    meanwhile. Memory is bounded, whatever the topic holds. The first event is waited for inside the first ``next``, and
    so are errors: raises ``KafkaSetupError`` (no topic, no right, records gone while reading), ``KafkaUnavailable`` (no
    answer, or no progress for ``stall_seconds`` although there is more: a transaction that is still open holds it
    back).
    """
    reports = ClientReports()
    admin = open_admin(settings, reports)
    ends = end_offsets(settings, admin, reports, settings.topic, Deadline(_OPENING_SECONDS))
    consumer = open_consumer(settings, reports, isolation_level="read_committed")
    try:
        with translated(settings, "reading events", reports):
            # the partitions' leaders first: assigned without knowing them, a consumer waits 500 ms before it asks again
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
    """``missing`` maps the partitions that are not read to their end to that end; it is used up."""
    total = sum(missing.values())
    ends = {} if follow else dict(missing)
    read_count = 0
    positions: dict[int, int] = {}
    patience = Deadline(stall_seconds)
    while missing or follow:
        events = []
        moved = False
        for message in consumer.consume(_PIECE, _PIECE_SECONDS):
            partition, position = _position_after(message)
            if positions.get(partition, -1) < position:
                positions[partition] = position
                moved = True
            if message.error() is None and (follow or position <= ends.get(partition, 0)):
                events.append(_event(message))
            if position >= missing.get(partition, position + 1):
                del missing[partition]
                if not follow:
                    # what is written from now on is not fetched
                    consumer.pause([TopicPartition(settings.topic, partition)])
        read_count += len(events)
        yield from events
        if on_progress is not None and events:
            on_progress(read_count, total)
        if moved:
            patience = Deadline(stall_seconds)
        elif missing and not patience.remaining_seconds():
            partition, end = next(iter(missing.items()))
            raise KafkaUnavailable(
                f"topic {settings.topic} on Kafka at {settings.bootstrap_servers} stands still: partition {partition} "
                f"is readable to offset {positions.get(partition, 0)} of {end} only. Either a transaction is open "
                "there, which the broker aborts after its time-out (kafka-transactions.sh find-hanging shows one that "
                "it does not), or the broker does not answer"
            )


def _position_after(message: Message) -> tuple[int, int]:
    """The partition and the offset up to which it is read with ``message``.

    Raises ``KafkaException`` for an error that is not its end.
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
