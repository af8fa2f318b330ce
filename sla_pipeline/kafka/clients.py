"""Opens the clients of librdkafka, and keeps what they tell aside.

What belongs here: making a client, its log, its last error, the life of a producer. What does not: what is said over
it.
"""

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, ThrottleEvent
from confluent_kafka.admin import AdminClient, ClusterMetadata, PartitionMetadata  # type: ignore[attr-defined]

from sla_pipeline.errors import SlaPipelineError
from sla_pipeline.kafka import faults
from sla_pipeline.kafka.deadline import Deadline
from sla_pipeline.kafka.settings import KafkaSettings, admin_config, consumer_config, producer_config

__all__ = [
    "ANY_PARTITION",
    "ClientReports",
    "TransactionalProducer",
    "cluster_with",
    "open_admin",
    "open_consumer",
    "partitions_of",
    "translated",
]

ANY_PARTITION = -1
"""The partitioner decides by the key."""

_log = logging.getLogger("sla_pipeline.kafka")
# how long one look at the deliveries lasts at most; it ends with the last of them
_FLUSH_SECONDS = 0.2
# after a failure: how long the callbacks that explain it are waited for
_HEAR_SECONDS = 0.1
_HEAR_TRIES = 3
# Deliveries that failed because another one did: librdkafka empties its queue then, and on a busy machine reports these
# first; a broker refuses a batch for one of its records, and calls the others invalid.
_CONSEQUENCES = (
    KafkaError._PURGE_QUEUE,
    KafkaError._PURGE_INFLIGHT,
    KafkaError._INVALID_DIFFERENT_RECORD,
    KafkaError.INVALID_RECORD,
)
# the threads of a client take its records back at once; one that still looks up a name has sent none
_PURGE_SECONDS = 2.0
_QUIET_FACILITIES = {
    # a setting of producers in the further settings makes every consumer warn, and the other way round
    "CONFWARN": logging.DEBUG,
    # a coordinator that is just starting is asked again; what does not come to an end is told by the call that waits
    # for it
    "GETPID": logging.INFO,
    # a broker that cannot be reached, or one that refuses a login: the same, with its reason
    "FAIL": logging.INFO,
}
# how librdkafka words it that the other side closed a connection
_HUNG_UP = "Disconnected"
# numbers in a line of librdkafka (milliseconds, ids of threads and clients) do not make it another line
_NUMBER = re.compile(r"\d+")


class ClientReports:
    """What one client tells between our calls. librdkafka reports a refused login here, while the call itself merely
    times out.
    """

    def __init__(self) -> None:
        self.error: KafkaError | None = None
        self.throttled_seconds = 0.0
        self._seen: set[str] = set()

    def on_error(self, error: KafkaError) -> None:
        """The client's ``error_cb``."""
        self.error = faults.more_telling(self.error, error)

    def on_throttle(self, event: ThrottleEvent) -> None:
        """The client's ``throttle_cb``: a quota of the broker holds the client back."""
        self.throttled_seconds = max(self.throttled_seconds, event.throttle_time)

    def log(self, level: int, message: str, *arguments: object) -> None:
        """The client's ``logger``: each line once per client, for a closed port is logged at every try to connect."""
        facility = str(arguments[0]) if arguments else ""
        line = message % arguments
        key = _NUMBER.sub("#", line)
        if key in self._seen:
            return
        self._seen.add(key)
        if (
            facility == "FAIL"
            and _HUNG_UP in line
            and (self.error is None or self.error.code() == KafkaError._ALL_BROKERS_DOWN)
        ):
            # reported as "0/1 brokers are down" otherwise: a listener that asks for TLS or a login closes the
            # connection without a reason
            self.on_error(KafkaError(KafkaError._TRANSPORT, line[line.index(_HUNG_UP) :]))
        _log.log(_QUIET_FACILITIES.get(facility, level), "%s", line)


def _callbacks(reports: ClientReports) -> dict[str, Any]:
    return {"error_cb": reports.on_error, "throttle_cb": reports.on_throttle, "logger": reports}


def open_consumer(settings: KafkaSettings, reports: ClientReports, *, isolation_level: str) -> Consumer:
    """A consumer that is given its partitions.

    Raises ``ConfigurationError`` naming a setting that librdkafka refuses.
    """
    try:
        return Consumer({**consumer_config(settings, isolation_level=isolation_level), **_callbacks(reports)})
    except KafkaException as error:
        raise faults.configuration_fault(error, settings) from error


def open_admin(settings: KafkaSettings, reports: ClientReports) -> AdminClient:
    """An admin client. Raises ``ConfigurationError`` naming a setting that librdkafka refuses."""
    try:
        return AdminClient({**admin_config(settings), **_callbacks(reports)})
    except KafkaException as error:
        raise faults.configuration_fault(error, settings) from error


def cluster_with(client: AdminClient | Producer | Consumer, topic: str, timeout: float) -> ClusterMetadata:
    """Return the brokers and one topic. Raise ``KafkaException``, also when the broker's answer leaves the topic out."""
    cluster = client.list_topics(topic, timeout=timeout)
    found = cluster.topics.get(topic)
    if found is None:
        raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, f"the answer does not hold topic {topic}"))
    if found.error:
        raise KafkaException(found.error)
    return cluster


def partitions_of(
    client: AdminClient | Producer | Consumer, topic: str, timeout: float
) -> dict[int, PartitionMetadata]:
    """Return the partitions of a topic. Raise what ``cluster_with`` raises."""
    return dict(cluster_with(client, topic, timeout).topics[topic].partitions)


@contextmanager
def translated(
    settings: KafkaSettings,
    doing: str,
    reports: ClientReports,
    *,
    poll: Callable[[float], object] | None = None,
    topic: str | None = None,
) -> Iterator[None]:
    """Raises our error for one of librdkafka's.

    ``poll`` is the client's own, called once so that it can tell what it has to tell.
    """
    try:
        yield
    except Exception as error:
        if poll is not None:
            poll(0)
        ours = faults.translate(
            error, faults.Scene(settings, doing, reports.error, topic, throttled_seconds=reports.throttled_seconds)
        )
        if ours is None or ours is error:
            raise
        raise ours from error


class TransactionalProducer:
    """One producer for one transaction, never used again afterwards.

    ``drop`` lets it go without a word to the broker: no abort, no flush, no close. Those take up to 20 s after a
    failure and may act on a transaction whose outcome is unknown; the next publisher's fence settles it. The producer
    is held nowhere else, not even in the frames of a traceback that somebody keeps, so that its background threads end
    there and then. Time-outs are in seconds; the methods raise what librdkafka raises.
    """

    def __init__(self, settings: KafkaSettings, *, largest_batch_bytes: int | None = None) -> None:
        self.reports = ClientReports()
        self._failed: list[tuple[KafkaError, Message]] = []
        self._fatal: KafkaError | None = None
        self._settings = settings
        config = producer_config(settings, largest_batch_bytes=largest_batch_bytes)
        try:
            self._producer: Producer | None = Producer(
                {**config, **_callbacks(self.reports), "on_delivery": self._on_delivery}
            )
        except KafkaException as error:
            raise faults.configuration_fault(error, settings) from error

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed.append((error, message))

    @property
    def _client(self) -> Producer:
        if self._producer is None:
            raise SlaPipelineError("a producer was used after its transaction ended")
        return self._producer

    def connect(self, timeout: float) -> None:
        """Looks up both topics: brings the connection up, without which ``fence`` waits 500 ms in half of all cases."""
        for topic in (self._settings.topic, self._settings.progress_topic):
            partitions_of(self._client, topic, timeout)

    def fence(self, timeout: float) -> None:
        """Shuts out every earlier publisher; returns when whatever one had left open is committed or aborted."""
        self._client.init_transactions(timeout)

    def begin(self) -> None:
        """Begins the one transaction."""
        self._client.begin_transaction()

    def produce(
        self,
        topic: str,
        value: str | bytes,
        key: bytes,
        *,
        headers: Sequence[tuple[str, bytes]] = (),
        partition: int = ANY_PARTITION,
    ) -> None:
        """Hands a record over.

        Any raise means that the record is not in the transaction, which must not be committed then.
        """
        self._client.produce(topic, value, key, partition=partition, headers=list(headers))

    def deliver(self, timeout: float) -> None:
        """Waits until the broker has every record. Raises ``KafkaException`` for a failed one, or one left over."""
        patience = Deadline(timeout)
        while (left_count := self._client.flush(_FLUSH_SECONDS)) or self._failed:
            if self._failed:
                # what is left is not even sent any more, and would be waited for in vain
                self._await_cause()
                raise KafkaException(self._first_failure)
            if not patience.remaining_seconds():
                raise KafkaException(
                    KafkaError(KafkaError._MSG_TIMED_OUT, f"{left_count} records undelivered after {timeout:.1f} s")
                )

    @property
    def _first_failure(self) -> KafkaError | None:
        """The first failed delivery that is no consequence of another one; else the first."""
        errors = [error for error, _ in self._failed]
        return next((error for error in errors if error.code() not in _CONSEQUENCES), errors[0] if errors else None)

    def _await_cause(self) -> None:
        for _ in range(_HEAR_TRIES):
            if self._first_failure is not None and self._first_failure.code() not in _CONSEQUENCES:
                return
            self._client.poll(_HEAR_SECONDS)

    def commit(self, timeout: float) -> None:
        """Commits the transaction. An error tells nothing about whether it is committed."""
        self._client.commit_transaction(timeout)

    @property
    def told(self) -> KafkaError | None:
        """What the client told besides the error of a call: a fatal error, else the first failed delivery, else its
        last report.
        """
        return self._fatal or self._first_failure or self.reports.error

    def failed_keys(self) -> list[bytes]:
        """The keys of the records whose delivery failed first, and of those that failed alike; the rest fell with
        their transaction.
        """
        first = self._first_failure
        return [
            message.key() or b""
            for error, message in self._failed
            if first is not None and error.code() == first.code()
        ]

    def hear(self) -> None:
        """Lets the client tell what it has to tell, after a failure and before ``drop``; never raises.

        In a fatal state every call raises the reason, though perhaps as a ``SystemError`` that holds none at first.
        """
        for _ in range(_HEAR_TRIES):
            try:
                self._client.poll(_HEAR_SECONDS)
            except Exception as error:  # noqa: BLE001 - the failure itself is already on its way to the caller
                self._fatal = faults.client_error_of(error)
                if self._fatal is None:
                    continue
            return

    def drop(self) -> None:
        """Lets the producer go. May be called again.

        Its records are taken back first, so that no answer to one comes while it ends: librdkafka 2.16 frees the text
        of its transaction's error then, and an answer that says "fenced" frees it a second time, which aborts the
        process.
        """
        producer, self._producer = self._producer, None
        if producer is None or not len(producer):
            return
        producer.purge()
        # purge does not wait, whatever its "blocking" says: the client passes that on the wrong way round
        patience = Deadline(_PURGE_SECONDS)
        while len(producer) and patience.remaining_seconds():
            with suppress(Exception):
                producer.poll(_HEAR_SECONDS)
