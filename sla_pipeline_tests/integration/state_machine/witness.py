"""The topic as a consumer of the alerts sees it, read on from where the last look ended.

What belongs here: one consumer that is kept open, since each look would otherwise cost a connection. What does not:
what the events mean.
"""

import time
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from sla_pipeline.kafka.settings import KafkaSettings

__all__ = ["SeenEvent", "Witness"]

_PARTITIONS = 2
# a busy machine may stall the broker for seconds
_CALL_SECONDS = 60.0
_DEADLINE_SECONDS = 120.0


class SeenEvent(NamedTuple):
    """An event as it stands on the topic."""

    seq: int
    partition: int
    ticket_id: str
    payload: str


class Witness:
    """A consumer of a topic with ``PARTITIONS`` partitions, which believes committed events only.

    A broker acknowledges a commit before it has told every partition of it, so for some milliseconds a part of a
    transaction may be seen; hence both looks wait, with a deadline, for what must become true.
    """

    PARTITIONS = _PARTITIONS

    def __init__(self, settings: KafkaSettings) -> None:
        self._topic = settings.topic
        self._believing = self._open(settings, "read_committed")
        # told the true end of a partition, open transactions included
        self._all_knowing = self._open(settings, "read_uncommitted")
        self._believing.assign([TopicPartition(self._topic, partition, 0) for partition in range(_PARTITIONS)])
        self._read_up_to = dict.fromkeys(range(_PARTITIONS), 0)
        self._events: list[SeenEvent] = []

    def _open(self, settings: KafkaSettings, isolation_level: str) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": settings.bootstrap_servers,
                "group.id": f"{settings.topic}.witness",
                "enable.auto.commit": False,
                "isolation.level": isolation_level,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 5,
            }
        )
        # without knowing the partitions' leaders it would wait half a second after the assignment
        consumer.list_topics(self._topic, timeout=_CALL_SECONDS)
        return consumer

    def look(self, *, at_least: int) -> list[SeenEvent]:
        """What is committed now: at least the records up to ``at_least``, and no record without those before it."""
        give_up = time.monotonic() + _DEADLINE_SECONDS
        while True:
            self._read_to(self._ends(self._believing))
            sequence = {event.seq for event in self._events}
            if len(sequence) >= at_least and sequence == set(range(1, len(sequence) + 1)):
                return self._events
            assert time.monotonic() < give_up, (
                f"on the topic are {sorted(sequence)}, and not at least all up to {at_least}"
            )

    def look_at_all(self) -> list[SeenEvent]:
        """All that is on the topic, when every transaction on it is decided."""
        self._read_to(self._ends(self._all_knowing))
        return self._events

    def _ends(self, consumer: Consumer) -> dict[int, int]:
        return {
            partition: self._end(consumer, TopicPartition(self._topic, partition)) for partition in range(_PARTITIONS)
        }

    def _end(self, consumer: Consumer, partition: TopicPartition) -> int:
        give_up = time.monotonic() + _DEADLINE_SECONDS
        while True:
            try:
                return int(consumer.get_watermark_offsets(partition, timeout=_CALL_SECONDS, cached=False)[1])
            except KafkaException:
                # a stalled broker loses the lead of its partitions for a moment
                if time.monotonic() > give_up:
                    raise

    def _read_to(self, ends: dict[int, int]) -> None:
        give_up = time.monotonic() + _DEADLINE_SECONDS
        while any(self._read_up_to[partition] < end for partition, end in ends.items()):
            assert time.monotonic() < give_up, (
                f"topic {self._topic} could not be read up to {ends}, only to {self._read_up_to}"
            )
            message = self._believing.poll(0.2)
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
        self._events.append(SeenEvent(int(seq), partition, key.decode(), value.decode()))

    def close(self) -> None:
        """Ends both consumers."""
        self._believing.close()
        self._all_knowing.close()
