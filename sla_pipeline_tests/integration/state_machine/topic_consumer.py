"""Consumer of the event topic that stays open between reads, which saves a connection for each read."""

import time
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from sla_pipeline.kafka.settings import KafkaSettings

__all__ = ["ConsumedEvent", "TopicConsumer"]

_PARTITIONS = 2
# a busy machine may stall the broker for seconds
_CALL_SECONDS = 60.0
_DEADLINE_SECONDS = 120.0


class ConsumedEvent(NamedTuple):
    """An event on the topic."""

    seq: int
    partition: int
    ticket_id: str
    payload: str


class TopicConsumer:
    """A consumer of committed events of a topic with ``PARTITIONS`` partitions.

    A broker acknowledges a commit before every partition has it, so for some milliseconds only a part of a transaction
    is visible. Both read methods therefore wait, with a deadline, for a complete state.
    """

    PARTITIONS = _PARTITIONS

    def __init__(self, settings: KafkaSettings) -> None:
        self._topic = settings.topic
        self._committed = self._open(settings, "read_committed")
        # returns the end of a partition, open transactions included
        self._uncommitted = self._open(settings, "read_uncommitted")
        self._committed.assign([TopicPartition(self._topic, partition, 0) for partition in range(_PARTITIONS)])
        self._read_up_to = dict.fromkeys(range(_PARTITIONS), 0)
        self._events: list[ConsumedEvent] = []

    def _open(self, settings: KafkaSettings, isolation_level: str) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": settings.bootstrap_servers,
                "group.id": f"{settings.topic}.consumer",
                "enable.auto.commit": False,
                "isolation.level": isolation_level,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 5,
            }
        )
        # without metadata the first fetch would wait half a second after the assignment
        consumer.list_topics(self._topic, timeout=_CALL_SECONDS)
        return consumer

    def read(self, *, at_least: int) -> list[ConsumedEvent]:
        """Return the committed events: at least those up to ``at_least``, and without gaps."""
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while True:
            self._read_to(self._ends(self._committed))
            sequence = {event.seq for event in self._events}
            if len(sequence) >= at_least and sequence == set(range(1, len(sequence) + 1)):
                return self._events
            assert time.monotonic() < deadline, f"the topic holds {sorted(sequence)}, not all records up to {at_least}"

    def read_all(self) -> list[ConsumedEvent]:
        """Return all events on the topic, once no transaction is open."""
        self._read_to(self._ends(self._uncommitted))
        return self._events

    def _ends(self, consumer: Consumer) -> dict[int, int]:
        return {
            partition: self._end(consumer, TopicPartition(self._topic, partition)) for partition in range(_PARTITIONS)
        }

    def _end(self, consumer: Consumer, partition: TopicPartition) -> int:
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while True:
            try:
                return int(consumer.get_watermark_offsets(partition, timeout=_CALL_SECONDS, cached=False)[1])
            except KafkaException:
                # a stalled broker loses the leadership of its partitions for a moment
                if time.monotonic() > deadline:
                    raise

    def _read_to(self, ends: dict[int, int]) -> None:
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while any(self._read_up_to[partition] < end for partition, end in ends.items()):
            assert time.monotonic() < deadline, (
                f"topic {self._topic} could not be read up to {ends}, only to {self._read_up_to}"
            )
            message = self._committed.poll(0.2)
            if message is not None:
                self._take(message)

    def _take(self, message: Message) -> None:
        error = message.error()
        partition, offset = message.partition() or 0, message.offset() or 0
        if error is not None:
            if error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            self._read_up_to[partition] = max(self._read_up_to[partition], offset)
            return
        self._read_up_to[partition] = offset + 1
        headers = dict(message.headers() or [])
        seq, key, value = headers["outbox-seq"], message.key(), message.value()
        assert seq is not None
        assert key is not None
        assert value is not None
        self._events.append(ConsumedEvent(int(seq), partition, key.decode(), value.decode()))

    def close(self) -> None:
        """Close both consumers."""
        self._committed.close()
        self._uncommitted.close()
