"""How far the relay came, as Kafka knows it: the progress record, its reader, its first one.

The record travels in the same Kafka transaction as the events it speaks of, so the two are never apart. What does not
belong here: comparing it with Postgres (``consistency.py``), writing it along with events (``relay.py``).
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

# one key: compaction keeps its newest record for ever
PROGRESS_KEY = b"progress"
# one partition: its order is the order of the transactions
PROGRESS_PARTITION = 0
RECOVERY = (
    'docs/exactly-once.md, section "Recovery", says how to go on; `sla-pipeline recover` shows what is on the topic'
)

# no call waits longer than this for a broker; a healthy one answers in milliseconds
_CALL_SECONDS = 8.0
# how long one poll waits; the end of the partition ends it early
_POLL_SECONDS = 0.2
# records read at first, from the end; aborted ones and transaction markers count, so it is widened until a committed
# one is found
_TAIL = 64
_TAIL_GROWTH = 8
_DIGEST = re.compile(r"[0-9a-f]{32}")


def record_digest(record: BreachRecord) -> str:
    """The fingerprint by which a row of the outbox is known again, 32 hexadecimal digits.

    It covers sequence, ticket, run and payload: a row made anew after Postgres was rewound differs at least in the run
    that marked it.
    """
    text = f"{record.seq}\n{record.ticket_id}\n{record.correlation_id}\n{record.payload}"
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True)
class Progress:
    """One progress record: everything up to ``seq`` is published.

    ``first`` and ``count`` tell which events its transaction held (``first + count - 1 == seq``), ``digest`` is that of
    row ``seq`` and empty for sequence 0, ``run`` is the run that published, ``at`` when (UTC, as on the wire).
    """

    seq: int
    first: int
    count: int
    digest: str
    run: str
    at: str

    @classmethod
    def of(cls, records: list[BreachRecord], run: str) -> "Progress":
        """The record of a transaction that holds ``records``, at least one, in order."""
        last = records[-1]
        return cls(last.seq, records[0].seq, len(records), record_digest(last), run, wire_timestamp(datetime.now(UTC)))

    @classmethod
    def standing_at(cls, seq: int, digest: str, run: str) -> "Progress":
        """The record of a transaction that holds no events and says that all up to ``seq`` are published."""
        return cls(seq, seq + 1, 0, digest, run, wire_timestamp(datetime.now(UTC)))

    def to_json(self) -> bytes:
        """The record's value."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, key: bytes | None, value: bytes | None, where: str) -> "Progress":
        """The record read back.

        Raises ``FailClosed`` for one that this package did not write; fields it does not know are ignored.
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
            f"{where} is not a progress record of this package: somebody else writes to the topic. Nothing is "
            f"published. {RECOVERY}"
        )


class ProgressReader:
    """Reads the newest committed progress record. Keeps two consumers open between the transactions of a cycle: they cost 40 ms to open.

    Two, because only a read_uncommitted client is told the true end of the partition, and only a read_committed one may
    be believed. After any error the reader must be closed and a new one made.
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
        """The newest record, None when the topic holds no committed one.

        Behind the fence no transaction of ours is open, and what is read cannot change under us. Without one
        (``behind_fence`` false) the answer is good for display, or to see that there is a record: it is what can be
        read now, without waiting for an open transaction. Raises ``FailClosed`` for a foreign record,
        ``KafkaUnavailable`` or ``KafkaSetupError`` when it cannot be read to its end.
        """
        progress, foreign = self.look(deadline, behind_fence=behind_fence)
        if foreign is not None:
            raise foreign
        return progress

    def look(self, deadline: Deadline, *, behind_fence: bool = True) -> tuple[Progress | None, FailClosed | None]:
        """The newest record that is ours, as ``read`` returns it, and what ``read`` raises when a foreign one stands
        behind it.
        """
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
        """Closes both consumers. May be called again."""
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
    """The newest of a partition's records from offset ``low`` to ``end`` that ``consumer`` gets to see, None without one.

    ``parse`` is called with every record that is read on the way, a tail of the partition; for one that is none of ours
    it returns None, and the newest other one is looked for before it. With ``to_end`` false, an end that comes before
    ``end`` is good enough. Raises ``KafkaUnavailable`` when the end cannot be reached in time.
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
    patience = Deadline(deadline.timeout_seconds(_CALL_SECONDS))
    while patience.remaining_seconds():
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
            # stop fetching: an assigned consumer fetches a hundred times a second
            consumer.unassign()
            return newest
        # EOF below the true end: an open transaction holds the rest back
    raise KafkaUnavailable(
        f"topic {start.topic} could not be read up to offset {end} in time: a transaction that is not ours may be open "
        "there, or the broker is slow; the next cycle tries again"
    )


def write_progress(
    settings: KafkaSettings, deadline: Deadline, decide: Callable[[], Progress | None]
) -> Progress | None:
    """Takes over as a publisher does, asks ``decide`` behind the fence, and commits the record it gives, with no events; None writes none.

    Returns the record written. An error leaves the outcome unknown; the caller's next attempt must read it back.
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
