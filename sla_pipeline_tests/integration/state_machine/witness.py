"""The topic as a consumer of the alerts sees it, read on from where the last look ended.

What belongs here: one consumer that is kept open, since each look would otherwise cost a connection. What does not: what the events mean.
"""

import time
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka import KafkaError as ClientError

from sla_pipeline.kafka.settings import KafkaSettings

__all__ = ["SeenEvent", "Witness"]

_PARTITIONS = 2
_CALL_SECONDS = 20.0
_DEADLINE_SECONDS = 60.0


class SeenEvent(NamedTuple):
    """An event as it stands on the topic."""

    seq: int
    partition: int
    ticket_id: str
    payload: str


class Witness:
    """A read_committed consumer of a topic with ``PARTITIONS`` partitions; ``events`` grows in the order in which they were read."""

    PARTITIONS = _PARTITIONS

    def __init__(self, settings: KafkaSettings) -> None:
        self._topic = settings.topic
        self._consumer = Consumer(
            {
                "bootstrap.servers": settings.bootstrap_servers,
                "group.id": f"{settings.topic}.witness",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 5,
            }
        )
        self._consumer.list_topics(self._topic, timeout=_CALL_SECONDS)
        self._consumer.assign([TopicPartition(self._topic, partition, 0) for partition in range(_PARTITIONS)])
        self._read_up_to = dict.fromkeys(range(_PARTITIONS), 0)
        self.events: list[SeenEvent] = []

    def look(self) -> list[SeenEvent]:
        """Everything on the topic that is committed now."""
        # a read_committed client is told the end of what may be read: an open transaction is not waited for
        ends = {
            partition: self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), timeout=_CALL_SECONDS, cached=False)[1]
            for partition in range(_PARTITIONS)
        }
        give_up = time.monotonic() + _DEADLINE_SECONDS
        while any(self._read_up_to[partition] < end for partition, end in ends.items()):
            assert time.monotonic() < give_up, f"topic {self._topic} could not be read up to {ends}: {self._read_up_to}"
            message = self._consumer.poll(0.2)
            if message is not None:
                self._take(message)
        return self.events

    def _take(self, message: Message) -> None:
        error = message.error()
        partition, offset = message.partition() or 0, message.offset() or 0
        if error is not None:
            if error.code() != ClientError._PARTITION_EOF:
                raise KafkaException(error)
            self._read_up_to[partition] = max(self._read_up_to[partition], offset)
            return
        self._read_up_to[partition] = offset + 1
        headers = dict(message.headers() or [])
        seq, key, value = headers["outbox-seq"], message.key(), message.value()
        assert seq is not None
        assert key is not None
        assert value is not None
        self.events.append(SeenEvent(int(seq), partition, key.decode(), value.decode()))

    def close(self) -> None:
        """Ends the consumer."""
        self._consumer.close()
