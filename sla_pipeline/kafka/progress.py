"""Progress record: the published position, kept in Kafka, with its reader and its first record.

The record is in the same Kafka transaction as the events that it covers, so the two never diverge. ``consistency.py``
compares it with Postgres, ``takeover.py`` writes it along with events.
"""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from sla_pipeline.errors import FailClosed, KafkaUnavailable
from sla_pipeline.event import wire_timestamp
from sla_pipeline.kafka.clients import ClientReports, TransactionalProducer, open_consumer, translated
from sla_pipeline.kafka.deadline import Deadline
from sla_pipeline.kafka.refusals import fence
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.outbox import BreachRecord

__all__ = [
    "PROGRESS_KEY",
    "PROGRESS_PARTITION",
    "RECOVERY",
    "Progress",
    "ProgressReader",
    "newest_committed",
    "record_digest",
    "write_progress",
]

_Record = TypeVar("_Record")

# One key for all records: compaction always keeps the newest.
PROGRESS_KEY = b"progress"
# The only partition: its order is the order of the transactions.
PROGRESS_PARTITION = 0
RECOVERY = (
    'docs/exactly-once.md, section "Recovery", has the next step; `sla-pipeline recover` shows what is on the topic'
)
"""Remedy at the end of every message of ``FailClosed``."""

# Bounds each call; a healthy broker answers in milliseconds.
_CALL_SECONDS = 8.0
# Bounds one poll, which returns earlier at the end of the partition.
_POLL_SECONDS = 0.2
# Offsets read from the end at first. Aborted records and transaction markers use offsets too, so the range grows by
# this factor until it holds a committed record.
_TAIL = 64
_TAIL_GROWTH = 8
_DIGEST = re.compile(r"[0-9a-f]{32}")


def record_digest(record: BreachRecord) -> str:
    """Return the digest that identifies a row of the outbox, 32 hexadecimal digits.

    It covers sequence, ticket, run and payload: a row written again after Postgres was rewound differs at least in the
    run that marked it.
    """
    text = f"{record.seq}\n{record.ticket_id}\n{record.correlation_id}\n{record.payload}"
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True)
class Progress:
    """One progress record: everything up to ``seq`` is published.

    ``first`` and ``count`` are the events of its transaction (``first + count - 1 == seq``), ``digest`` is that of row
    ``seq`` and empty for sequence 0, ``run`` is the run that published, ``at`` its time (UTC, as on the wire).
    """

    seq: int
    first: int
    count: int
    digest: str
    run: str
    at: str

    @classmethod
    def of(cls, records: list[BreachRecord], run: str) -> "Progress":
        """Return the record of a transaction that holds ``records``, at least one, in order."""
        last = records[-1]
        return cls(last.seq, records[0].seq, len(records), record_digest(last), run, wire_timestamp(datetime.now(UTC)))

    @classmethod
    def without_events(cls, seq: int, digest: str, run: str) -> "Progress":
        """Return the record of a transaction without events, which states that all up to ``seq`` are published."""
        return cls(seq, seq + 1, 0, digest, run, wire_timestamp(datetime.now(UTC)))

    def to_json(self) -> bytes:
        """Return the record's value."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, key: bytes | None, value: bytes | None, where: str) -> "Progress":
        """Return the record with this key and value.

        Raise ``FailClosed`` for one that this package did not write; unknown fields are ignored.
        """
        try:
            parsed = json.loads(value or b"null")
            fields = {name: parsed[name] for name in ("seq", "first", "count", "digest", "run", "at")}
        except (ValueError, TypeError, KeyError, RecursionError):
            fields = {}
        numbers = [fields.get(name) for name in ("seq", "first", "count")]
        texts = [fields.get(name) for name in ("digest", "run", "at")]
        if key == PROGRESS_KEY and all(type(n) is int for n in numbers) and all(isinstance(t, str) for t in texts):
            progress = cls(**fields)
            digest_fits = bool(_DIGEST.fullmatch(progress.digest)) if progress.seq else not progress.digest
            if (
                progress.seq >= 0
                and progress.count >= 0
                and progress.first + progress.count - 1 == progress.seq
                and digest_fits
            ):
                return progress
        raise FailClosed(
            f"{where} is not a progress record of this package: another program writes to the topic. Nothing is "
            f"published. {RECOVERY}"
        )


class ProgressReader:
    """Reader of the newest committed progress record.

    Two consumers stay open between the transactions of a cycle, because opening them costs 40 ms: only a
    read_uncommitted client receives the true end of the partition, and only a read_committed one returns no aborted
    record. After an error the reader must be closed; it then opens new consumers.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._reports = ClientReports()
        self._consumers: dict[str, Consumer] = {}

    def _consumer(self, isolation_level: str) -> Consumer:
        if isolation_level not in self._consumers:
            self._consumers[isolation_level] = open_consumer(
                self._settings, self._reports, isolation_level=isolation_level
            )
        return self._consumers[isolation_level]

    def read(self, deadline: Deadline, *, behind_fence: bool = True) -> Progress | None:
        """Return the newest record, None when the topic holds no committed one.

        Behind the fence no transaction of this publisher is open, so the record cannot change meanwhile. With
        ``behind_fence`` false the read does not wait for an open transaction; its result is good for display, or to
        check that a record exists. Raise ``FailClosed`` for a foreign record, ``KafkaUnavailable`` or
        ``KafkaSetupError`` when the topic cannot be read to its end.
        """
        progress, foreign = self.read_with_foreign(deadline, behind_fence=behind_fence)
        if foreign is not None:
            raise foreign
        return progress

    def read_with_foreign(
        self, deadline: Deadline, *, behind_fence: bool = True
    ) -> tuple[Progress | None, FailClosed | None]:
        """Return the newest record of this package, and the error for a foreign record behind it, if any."""
        topic = self._settings.progress_topic
        foreign: FailClosed | None = None

        def parse(record: Message) -> Progress | None:
            nonlocal foreign
            try:
                progress = Progress.from_json(
                    record.key(), record.value(), f"offset {record.offset()} of topic {topic}"
                )
            except FailClosed as error:
                foreign = error
                return None
            foreign = None
            return progress

        with translated(self._settings, "reading the progress topic", self._reports, topic=topic):
            low, end = self._consumer("read_uncommitted").get_watermark_offsets(
                TopicPartition(topic, PROGRESS_PARTITION), timeout=deadline.timeout_seconds(_CALL_SECONDS), cached=False
            )
            progress = newest_committed(
                self._consumer("read_committed"),
                TopicPartition(topic, PROGRESS_PARTITION, low),
                end,
                deadline,
                parse=parse,
                to_end=behind_fence,
            )
        return progress, foreign

    def close(self) -> None:
        """Close both consumers. May be called again."""
        while self._consumers:
            self._consumers.popitem()[1].close()


def newest_committed(
    consumer: Consumer,
    low: TopicPartition,
    end: int,
    deadline: Deadline,
    *,
    parse: Callable[[Message], _Record | None],
    to_end: bool = True,
) -> _Record | None:
    """Return the newest record between offsets ``low`` and ``end`` that is visible to ``consumer``, None without one.

    ``parse`` is called with every record read, a tail of the partition. It returns None for a record of another
    program; the search then continues before it. With ``to_end`` false, the search stops where the consumer's view
    ends, even before ``end``. Raise ``KafkaUnavailable`` when the end cannot be reached in time.
    """
    tail = _TAIL
    while end > low.offset:
        start = max(low.offset, end - tail)
        newest = _newest_between(
            consumer, TopicPartition(low.topic, low.partition, start), end, deadline, parse=parse, to_end=to_end
        )
        if newest is not None or start == low.offset:
            return newest
        tail *= _TAIL_GROWTH
    return None


def _newest_between(
    consumer: Consumer,
    start: TopicPartition,
    end: int,
    deadline: Deadline,
    *,
    parse: Callable[[Message], _Record | None],
    to_end: bool,
) -> _Record | None:
    consumer.assign([start])
    newest = None
    call_deadline = Deadline(deadline.timeout_seconds(_CALL_SECONDS))
    while call_deadline.remaining_seconds():
        message = consumer.poll(_POLL_SECONDS)
        if message is None:
            continue
        error = message.error()
        if error is None:
            parsed = parse(message)
            newest = newest if parsed is None else parsed
        elif error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        elif (message.offset() or 0) >= end or not to_end:
            # Stop fetching: an assigned consumer fetches a hundred times a second.
            consumer.unassign()
            return newest
        # EOF below the true end: an open transaction holds the rest back.
    raise KafkaUnavailable(
        f"topic {start.topic} could not be read up to offset {end} in time: a transaction that is not ours may be open "
        "there, or the broker is slow; the next cycle tries again"
    )


def write_progress(
    settings: KafkaSettings, deadline: Deadline, decide: Callable[[], Progress | None]
) -> Progress | None:
    """Fence earlier publishers, call ``decide``, and commit the record that it returns, without events.

    Return the record written; None, and write nothing, when ``decide`` returns None. An error leaves the outcome
    unknown; the caller's next attempt must read it back.
    """
    producer = TransactionalProducer(settings)
    try:
        with translated(settings, "writing a progress record", producer.reports, topic=settings.progress_topic):
            producer.connect(deadline.timeout_seconds(_CALL_SECONDS))
            fence(settings, producer, deadline.timeout_seconds(_CALL_SECONDS))
            progress = decide()
            if progress is not None:
                producer.begin()
                producer.produce(
                    settings.progress_topic, progress.to_json(), PROGRESS_KEY, partition=PROGRESS_PARTITION
                )
                producer.deliver(deadline.timeout_seconds(_CALL_SECONDS))
                producer.commit(deadline.timeout_seconds(_CALL_SECONDS))
            return progress
    finally:
        producer.drop()
