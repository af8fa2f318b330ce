"""Hanging transactions of this publisher: found behind the fence, and aborted where none of their events is visible.

Kafka answers a commit before it writes the end markers to the partitions. Seen with Kafka 4.3.1: a broker that is the
only leader of its partitions, killed in between, drops the markers after its restart and counts the transaction as
complete (KAFKA-20734, "Return noNode for known partitions without endpoints"). The fence then waits for nothing, and
the records hang: no read_committed consumer gets past them, and the next marker of the same transactional id ends them
too. A commit after a dropped abort marker would even publish the aborted events, beside their repetition.

So every takeover searches, behind the fence, for records of this publisher without an end marker. Where none of their
events is visible, no consumer has them: they are aborted, and published again from the visible position. Where a part
is visible, the other part cannot be made visible without a guess: ``FailClosed``.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from sla_pipeline.errors import FailClosed, KafkaUnavailable
from sla_pipeline.kafka.clients import ClientReports, TransactionalProducer, open_consumer, translated
from sla_pipeline.kafka.deadline import Deadline
from sla_pipeline.kafka.headers import headers_of, sequence_in
from sla_pipeline.kafka.progress import RECOVERY, Progress, newest_committed
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.kafka.topics import EventTopic, TopicChecker

__all__ = ["Hanging", "abort_hanging", "find_hanging", "require_invisible"]

# Bounds the wait for markers: a broker shows one a moment after writing it, so a transaction without one has none.
_SETTLING_SECONDS = 3.0
_SETTLING_POLL_SECONDS = 0.05
_CALL_SECONDS = 8.0
_POLL_SECONDS = 0.2
# Kafka's own tool, which shows and ends such a transaction.
_TOOL = "kafka-transactions.sh (find-hanging, then abort)"


@dataclass(frozen=True, slots=True)
class Hanging:
    """Records of this publisher in a transaction without end markers.

    ``first_records`` holds the first one of each partition; ``progress`` is the progress record among them, if any.
    """

    first_records: tuple[Message, ...]
    progress: Progress | None

    @property
    def event_seqs(self) -> list[int]:
        """Sequences of the first hanging event of each partition."""
        return [seq for record in self.first_records if (seq := _seq(record))]

    @property
    def where(self) -> str:
        """Partitions, for a message."""
        return ", ".join(f"{record.topic()}-{record.partition()}" for record in self.first_records)


def find_hanging(
    settings: KafkaSettings, topics: TopicChecker, event_topic: EventTopic, deadline: Deadline
) -> Hanging | None:
    """Return the hanging transaction of this publisher; None on a healthy broker, after one request.

    Call it behind the fence: before it, records are merely open. Records of other producers are ignored. Raise
    ``KafkaUnavailable`` or ``KafkaSetupError``, and ``FailClosed`` for a foreign progress record.
    """
    settling = Deadline(_SETTLING_SECONDS)
    while unended := topics.unended(event_topic, deadline):
        if not settling.remaining_seconds():
            break
        time.sleep(_SETTLING_POLL_SECONDS)
    if not unended:
        return None
    with _reading(settings, "read_uncommitted") as consumer:
        first_records = [_record_at(consumer, place, deadline) for place in unended]
    own = tuple(record for record in first_records if record.topic() == settings.progress_topic or _seq(record))
    progress = next((_progress(record) for record in own if record.topic() == settings.progress_topic), None)
    return Hanging(own, progress) if own else None


def require_invisible(
    settings: KafkaSettings, event_topic: EventTopic, hanging: Hanging, progress: Progress, deadline: Deadline
) -> None:
    """Raise ``FailClosed`` when consumers may have read a part of the hanging transaction.

    ``progress`` is the newest visible progress record.
    """
    with _reading(settings, "read_committed") as consumer:
        visible = [_last_visible_seq(consumer, settings.topic, p, deadline) for p in range(event_topic.partition_count)]
    if message := visible_part(progress.seq, hanging.event_seqs, visible):
        raise FailClosed(
            f"Kafka at {settings.bootstrap_servers} never ended a transaction of this publisher in {hanging.where}, "
            f"and {message}: its markers were lost when a broker restarted. Consumers stop there, and nothing is "
            f"published. End it by {_TOOL}, then run `sla-pipeline recover`. {RECOVERY}"
        )


def visible_part(progress_seq: int, hanging_seqs: Sequence[int], visible_seqs: Sequence[int]) -> str:
    """Return the part of a hanging transaction that consumers may have read, for a message; empty without one.

    ``hanging_seqs`` are the first hanging events, ``visible_seqs`` the last visible ones, one per partition. The
    position is in the same transaction as its events, so both must be on the same side of ``progress_seq``.
    """
    if (last := max(visible_seqs, default=0)) > progress_seq:
        return f"its events up to sequence {last} are visible elsewhere, beyond the visible progress {progress_seq}"
    if (first := min(hanging_seqs, default=progress_seq + 1)) <= progress_seq:
        return f"the visible progress {progress_seq} covers its event of sequence {first}"
    return ""


def abort_hanging(producer: TransactionalProducer, hanging: Hanging, deadline: Deadline) -> None:
    """Add one record to each partition where records hang, in a transaction that stays open.

    The next fence aborts it, and with it all hanging records of the same transactional id. The record is a copy of the
    first hanging one, so a reader of uncommitted records sees nothing but events. From now on the broker refuses a late
    marker of the earlier epoch.
    """
    producer.begin()
    for record in hanging.first_records:
        producer.produce(
            str(record.topic()),
            record.value() or b"",
            record.key() or b"",
            headers=[(name, value or b"") for name, value in headers_of(record).items()],
            partition=record.partition() or 0,
        )
    producer.deliver(deadline.timeout_seconds(_CALL_SECONDS))


@contextmanager
def _reading(settings: KafkaSettings, isolation_level: str) -> Iterator[Consumer]:
    reports = ClientReports()
    consumer = open_consumer(settings, reports, isolation_level=isolation_level)
    try:
        with translated(settings, "reading a transaction that has no end", reports):
            yield consumer
    finally:
        consumer.close()


def _record_at(consumer: Consumer, place: TopicPartition, deadline: Deadline) -> Message:
    """Return the first record at or after an offset."""
    consumer.assign([place])
    call_deadline = Deadline(deadline.timeout_seconds(_CALL_SECONDS))
    while call_deadline.remaining_seconds():
        message = consumer.poll(_POLL_SECONDS)
        if message is None:
            continue
        if error := message.error():
            raise KafkaException(error)
        return message
    raise KafkaUnavailable(
        f"offset {place.offset} of topic {place.topic}, partition {place.partition}, could not be read in time; the "
        "next cycle tries again"
    )


def _last_visible_seq(consumer: Consumer, topic: str, partition: int, deadline: Deadline) -> int:
    # A read_committed client receives the last stable offset, where visibility ends.
    low, stable = consumer.get_watermark_offsets(
        TopicPartition(topic, partition), timeout=deadline.timeout_seconds(_CALL_SECONDS), cached=False
    )
    return newest_committed(consumer, TopicPartition(topic, partition, low), stable, deadline, parse=_seq) or 0


def _seq(record: Message) -> int | None:
    """Return the sequence of an event of this package, None for any other record."""
    return sequence_in(headers_of(record))


def _progress(record: Message) -> Progress:
    return Progress.from_json(record.key(), record.value(), f"offset {record.offset()} of topic {record.topic()}")
