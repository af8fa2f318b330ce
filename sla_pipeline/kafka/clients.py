"""Open the clients of librdkafka, and collect the errors and log lines that they report asynchronously."""

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, ThrottleEvent
from confluent_kafka.admin import AdminClient, ClusterMetadata, PartitionMetadata  # type: ignore[attr-defined]

from sla_pipeline.errors import SlaPipelineError
from sla_pipeline.kafka import faults
from sla_pipeline.kafka.client_config import admin_config, consumer_config, producer_config
from sla_pipeline.kafka.deadline import Deadline
from sla_pipeline.kafka.settings import KafkaSettings

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

log = logging.getLogger(__name__)

# Bounds one wait for deliveries, which ends with the last of them.
_FLUSH_SECONDS = 0.2
# Bounds the wait for the callbacks that explain a failure.
_DRAIN_SECONDS = 0.1
_DRAIN_TRIES = 3
# Codes of deliveries that failed because another one did: librdkafka purges its queue then, and on a busy machine
# reports these first; a broker that refuses a batch for one record reports the others as invalid.
_CONSEQUENCES = (
    KafkaError._PURGE_QUEUE,
    KafkaError._PURGE_INFLIGHT,
    KafkaError._INVALID_DIFFERENT_RECORD,
    KafkaError.INVALID_RECORD,
)
# Bounds a purge: it is immediate unless a thread is still resolving a host, and then nothing was sent.
_PURGE_SECONDS = 2.0
_QUIET_FACILITIES = {
    # A producer setting in the further settings makes every consumer warn, and a consumer setting every producer.
    "CONFWARN": logging.DEBUG,
    # librdkafka retries a coordinator that is starting; a lasting failure is raised by the call that waits for it.
    "GETPID": logging.INFO,
    # An unreachable broker, or a refused login: raised by the call as well, with its reason.
    "FAIL": logging.INFO,
}
# librdkafka's word for a connection that the other side closed.
_HUNG_UP = "Disconnected"
# Log lines that differ in numbers only (milliseconds, ids of threads and clients) count as the same line.
_NUMBER = re.compile(r"\d+")


class ClientReports:
    """Errors, throttling and log lines that one client reports between our calls.

    librdkafka reports a refused login here, while the call itself merely times out.
    """

    def __init__(self) -> None:
        self.error: KafkaError | None = None
        self.throttled_seconds = 0.0
        self._seen: set[str] = set()

    def on_error(self, error: KafkaError) -> None:
        """Keep the most specific error: the client's ``error_cb``."""
        self.error = faults.more_specific(self.error, error)

    def on_throttle(self, event: ThrottleEvent) -> None:
        """Keep the longest delay that a quota of the broker caused: the client's ``throttle_cb``."""
        self.throttled_seconds = max(self.throttled_seconds, event.throttle_time)

    def log(self, level: int, message: str, *arguments: object) -> None:
        """Log each line once per client: the client's ``logger``.

        librdkafka logs a closed port at every attempt to connect.
        """
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
            # A listener that requires TLS or a login closes the connection without a reason; librdkafka would
            # report only "0/1 brokers are down".
            self.on_error(KafkaError(KafkaError._TRANSPORT, line[line.index(_HUNG_UP) :]))
        log.log(_QUIET_FACILITIES.get(facility, level), "%s", line)


def _callbacks(reports: ClientReports) -> dict[str, Any]:
    return {"error_cb": reports.on_error, "throttle_cb": reports.on_throttle, "logger": reports}


def open_consumer(settings: KafkaSettings, reports: ClientReports, *, isolation_level: str) -> Consumer:
    """Open a consumer whose partitions the caller assigns.

    Raise ``ConfigurationError`` naming a setting that librdkafka refuses.
    """
    try:
        return Consumer({**consumer_config(settings, isolation_level=isolation_level), **_callbacks(reports)})
    except KafkaException as error:
        raise faults.configuration_fault(error, settings) from error


def open_admin(settings: KafkaSettings, reports: ClientReports) -> AdminClient:
    """Open an admin client. Raise ``ConfigurationError`` naming a setting that librdkafka refuses."""
    try:
        return AdminClient({**admin_config(settings), **_callbacks(reports)})
    except KafkaException as error:
        raise faults.configuration_fault(error, settings) from error


def cluster_with(client: AdminClient | Producer | Consumer, topic: str, timeout: float) -> ClusterMetadata:
    """Return the brokers and one topic. Raise ``KafkaException``, also when the answer leaves the topic out."""
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
    required_rights: str = "",
) -> Iterator[None]:
    """Raise our error in place of one of librdkafka's.

    ``poll`` is the client's own, called once so that pending callbacks run.
    """
    try:
        yield
    except Exception as error:
        if poll is not None:
            poll(0)
        context = faults.ErrorContext(
            settings,
            doing,
            reports.error,
            topic,
            throttled_seconds=reports.throttled_seconds,
            required_rights=required_rights,
        )
        own_error = faults.translate(error, context)
        if own_error is None or own_error is error:
            raise
        raise own_error from error


class TransactionalProducer:
    """One producer for one transaction, never used again afterwards.

    ``drop`` discards it without any request to the broker: no abort, no flush, no close. Those take up to 20 s after a
    failure and may act on a transaction whose outcome is unknown; the next publisher's fence ends it. No other object
    refers to the producer, not even the frames of a kept traceback, so that its background threads end at once.
    Timeouts are in seconds; the methods raise what librdkafka raises.
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
        """Request both topics' metadata, which opens the connection.

        Without it, ``fence`` waits 500 ms in half of all cases.
        """
        for topic in (self._settings.topic, self._settings.progress_topic):
            partitions_of(self._client, topic, timeout)

    def fence(self, timeout: float) -> None:
        """Fence every earlier publisher; return when a transaction that one left open is committed or aborted."""
        self._client.init_transactions(timeout)

    def begin(self) -> None:
        """Begin the one transaction."""
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
        """Queue a record.

        Any exception means that the record is not in the transaction, which must not be committed then.
        """
        self._client.produce(topic, value, key, partition=partition, headers=list(headers))

    def deliver(self, timeout: float) -> None:
        """Wait until the broker has every record. Raise ``KafkaException`` for a failed or an undelivered one."""
        deadline = Deadline(timeout)
        while (left_count := self._client.flush(_FLUSH_SECONDS)) or self._failed:
            if self._failed:
                # The remaining records are not sent any more; waiting for them would be in vain.
                self._await_cause()
                raise KafkaException(self._first_failure)
            if not deadline.remaining_seconds():
                raise KafkaException(
                    KafkaError(KafkaError._MSG_TIMED_OUT, f"{left_count} records undelivered after {timeout:.1f} s")
                )

    @property
    def _first_failure(self) -> KafkaError | None:
        """First failed delivery that is no consequence of another one; else the first."""
        errors = [error for error, _ in self._failed]
        return next((error for error in errors if error.code() not in _CONSEQUENCES), errors[0] if errors else None)

    def _await_cause(self) -> None:
        for _ in range(_DRAIN_TRIES):
            if self._first_failure is not None and self._first_failure.code() not in _CONSEQUENCES:
                return
            self._client.poll(_DRAIN_SECONDS)

    def commit(self, timeout: float) -> None:
        """Commit the transaction. An error does not show whether it is committed."""
        self._client.commit_transaction(timeout)

    @property
    def reported_error(self) -> KafkaError | None:
        """Error reported besides that of a call: a fatal one, else the first failed delivery, else the last report."""
        return self._fatal or self._first_failure or self.reports.error

    def failed_keys(self) -> list[bytes]:
        """Return the keys of the records that failed with the code of the first failure.

        The others failed with their transaction.
        """
        first = self._first_failure
        return [
            message.key() or b""
            for error, message in self._failed
            if first is not None and error.code() == first.code()
        ]

    def drain_callbacks(self) -> None:
        """Run pending callbacks after a failure, before ``drop``; never raises.

        In a fatal state every call raises the reason, though the first may raise a ``SystemError`` without one.
        """
        for _ in range(_DRAIN_TRIES):
            try:
                self._client.poll(_DRAIN_SECONDS)
            except Exception as error:  # noqa: BLE001 - the failure itself is already being raised
                self._fatal = faults.client_error_of(error)
                if self._fatal is None:
                    continue
            return

    def drop(self) -> None:
        """Discard the producer. May be called again.

        Its records are purged first, so that no reply to one arrives while it ends: librdkafka 2.16 frees the text of
        its transaction's error then, and a reply with the code "fenced" frees it a second time, which aborts the
        process.
        """
        producer, self._producer = self._producer, None
        if producer is None or not len(producer):
            return
        producer.purge()
        # purge never waits: the client inverts its argument "blocking".
        deadline = Deadline(_PURGE_SECONDS)
        while len(producer) and deadline.remaining_seconds():
            with suppress(Exception):
                producer.poll(_DRAIN_SECONDS)
