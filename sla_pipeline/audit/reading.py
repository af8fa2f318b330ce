"""The auditor's own consumer: both topics, committed records only, every partition from its beginning, nothing remembered.

What belongs here: watermarks, messages, the progress record's sequence, and errors of Kafka in our words. What does
not: what an event says. Consumers are given their partitions; no group is joined, no offset is committed.

Two isolation levels, because only a read_uncommitted client is told the true end of a partition, and only a
read_committed one may be believed. Reading up to a true end waits for every transaction below it to be committed or
aborted: nothing is left undecided.
"""

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from sla_pipeline.audit.contract import TopicEvent
from sla_pipeline.errors import ConfigurationError, KafkaSetupError, KafkaUnavailable
from sla_pipeline.kafka.client_config import consumer_config
from sla_pipeline.kafka.headers import headers_of
from sla_pipeline.kafka.settings import CLIENT_CONFIG_VARIABLE, KafkaSettings

__all__ = ["Span", "our_error", "read_events", "read_progress_seq", "watermarks"]

log = logging.getLogger(__name__)

OnRead = Callable[[int], None]
"""Called after each piece with the offsets passed so far; they count transaction markers too."""

# a healthy broker answers in milliseconds
_CALL_SECONDS = 10.0
# longer than a broker needs to abort a dead publisher's transaction (time-out 30 s, looked for every 10 s): then it is
# not a crash
STALL_SECONDS = 60.0
# an election takes a second or so
_ELECTION_POLL_SECONDS = 0.2
# taken from the client at once, and the longest wait for that many: at the end of a topic it is always waited out
_PIECE = 1_000
_PIECE_SECONDS = 0.05
# what the client may hold ahead of us: enough to keep it busy
_PREFETCH_KBYTES = 4_096
_PROGRESS_KEY = b"progress"

_MISSING = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
_REFUSED = (
    KafkaError._AUTHENTICATION,
    KafkaError._SSL,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)
_LEADER_MOVED = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError._UNKNOWN_PARTITION)
# reasons of a lost offset that mean lost records; librdkafka puts any reason, an outage's too, into the text of
# _AUTO_OFFSET_RESET
_EXPIRED = (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION)


class Span(NamedTuple):
    """What a partition holds: the first offset that is still there, and the one that the next record will have."""

    low: int
    end: int


def watermarks(settings: KafkaSettings, topic: str) -> dict[int, Span]:
    """Every partition's span now, open transactions included. Raises ``KafkaSetupError`` or ``KafkaUnavailable``."""
    with _consumer(settings, topic, isolation_level="read_uncommitted") as consumer:
        return {
            partition: _span(consumer, TopicPartition(topic, partition)) for partition in _partitions(consumer, topic)
        }


def _span(consumer: Consumer, partition: TopicPartition) -> Span:
    """A partition's span. A leader that has moved is looked up again: a long audit must not end over an election."""
    patience_ends = time.monotonic() + _CALL_SECONDS
    while True:
        try:
            return Span(*consumer.get_watermark_offsets(partition, timeout=_CALL_SECONDS, cached=False))
        except KafkaException as error:
            if error.args[0].code() not in _LEADER_MOVED or time.monotonic() > patience_ends:
                raise
        time.sleep(_ELECTION_POLL_SECONDS)
        _partitions(consumer, partition.topic)


def read_events(
    settings: KafkaSettings, spans: dict[int, Span], *, on_read: OnRead, stall_seconds: float = STALL_SECONDS
) -> Iterator[TopicEvent]:
    """The committed events below the ends of ``spans``, each partition's in order. Memory is bounded, whatever the topic holds.

    Raises ``KafkaSetupError`` (no topic, no right, records expired while they were read) or ``KafkaUnavailable`` (no answer,
    or nothing new for ``stall_seconds`` although there is more: a transaction is open).
    """
    for message in _read(settings, settings.topic, spans, on_read, stall_seconds):
        yield TopicEvent(
            message.partition() or 0, message.offset() or 0, message.key(), headers_of(message), message.value()
        )


def read_progress_seq(settings: KafkaSettings, *, stall_seconds: float = STALL_SECONDS) -> int | None:
    """The sequence that the newest committed progress record tells; None when it tells none, or there is none.

    Waits for what was open at the beginning of the call. Raises as ``read_events`` does.
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
        # the partitions' leaders first: assigned without knowing them, a consumer waits 500 ms before it asks again
        _partitions(consumer, topic)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in missing])
        patience_ends = time.monotonic() + stall_seconds
        while missing:
            moved = False
            for message in consumer.consume(_PIECE, _PIECE_SECONDS):
                partition, position = message.partition() or 0, _position_after(message)
                moved = moved or position > positions[partition]
                positions[partition] = max(positions[partition], position)
                # what was written after the end was looked up is not ours to judge: its records may be newer than the
                # snapshot
                if message.error() is None and position <= spans[partition].end:
                    yield message
                if position >= spans[partition].end and missing.pop(partition, None) is not None:
                    consumer.pause([TopicPartition(topic, partition)])
            if moved:
                on_read(sum(min(position, spans[p].end) - spans[p].low for p, position in positions.items()))
                patience_ends = time.monotonic() + stall_seconds
            elif time.monotonic() > patience_ends:
                raise _stalled(settings, topic, positions, missing)


def _position_after(message: Message) -> int:
    """The offset up to which its partition is read with this message.

    Raises ``KafkaException`` for an error that is not its end.
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
        "after its time-out (kafka-transactions.sh find-hanging shows one that it does not), or the broker does not "
        "answer; run the audit again"
    )


def _partitions(consumer: Consumer, topic: str) -> list[int]:
    found = consumer.list_topics(topic, timeout=_CALL_SECONDS).topics.get(topic)
    if found is None:
        raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, f"the answer does not hold topic {topic}"))
    if found.error:
        raise KafkaException(found.error)
    return sorted(found.partitions)


@contextlib.contextmanager
def _consumer(settings: KafkaSettings, topic: str, *, isolation_level: str) -> Iterator[Consumer]:
    """A consumer for the length of the block, librdkafka's errors turned into ours."""
    # librdkafka reports a refused login aside, while the call itself merely times out
    heard: list[KafkaError] = []

    def hear(error: KafkaError) -> None:
        heard.append(error)
        # a refusal explains a time-out, and is the one to keep
        heard.sort(key=lambda one: one.code() in _REFUSED)
        del heard[:-1]

    config = consumer_config(settings, isolation_level=isolation_level)
    config["queued.max.messages.kbytes"] = _PREFETCH_KBYTES
    try:
        consumer = Consumer({**config, "error_cb": hear, "logger": _Quiet()})
    except KafkaException as error:
        raise ConfigurationError(
            f"the Kafka client refuses its configuration: {settings.masked(_said(error.args[0]))}; correct "
            f"{CLIENT_CONFIG_VARIABLE}"
        ) from error
    try:
        yield consumer
    except KafkaException as error:
        told: KafkaError = error.args[0]
        if heard and told.code() not in _MISSING and not _tells_expiry(told):
            told = heard[-1]
        raise our_error(told, settings, topic) from error
    finally:
        consumer.close()


class _Quiet:
    """librdkafka's log, for whoever looks for it: what matters of it is raised."""

    def log(self, level: int, message: str, *arguments: object) -> None:
        """Any level becomes debug."""
        log.debug(message, *arguments)


def our_error(error: KafkaError, settings: KafkaSettings, topic: str) -> KafkaSetupError | KafkaUnavailable:
    """What an error of librdkafka means to whoever runs the audit; no secret is in it."""
    where = f"Kafka at {settings.bootstrap_servers}"
    said = settings.masked(_said(error))
    if error.code() in _MISSING:
        return KafkaSetupError(
            f"topic {topic} does not exist on {where} ({said}); check SLA_KAFKA_TOPIC, or run `sla-pipeline migrate`"
        )
    if error.code() in _REFUSED:
        return KafkaSetupError(
            f"{where} refuses the auditor ({said}); it needs Read and Describe on topics {settings.topic} and "
            f"{settings.progress_topic}; check {CLIENT_CONFIG_VARIABLE}"
        )
    if _tells_expiry(error):
        return KafkaSetupError(
            f"records of topic {topic} on {where} expired while they were being read ({said}); run the audit again"
        )
    return KafkaUnavailable(
        f"{where} did not answer as expected while topic {topic} was being read ({said}); run the audit again"
    )


def _tells_expiry(error: KafkaError) -> bool:
    if error.code() == KafkaError._AUTO_OFFSET_RESET:
        return any(KafkaError(code).str() in error.str() for code in _EXPIRED)
    return error.code() in _EXPIRED


def _said(error: KafkaError) -> str:
    return f"{error.name()}: {error.str()}"
