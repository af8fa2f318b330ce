"""Configuration of every client that this package opens, each setting with its reason."""

from sla_pipeline.kafka.settings import KafkaSettings

__all__ = ["TRANSACTION_TIMEOUT_MS", "ClientConfig", "admin_config", "consumer_config", "producer_config"]

ClientConfig = dict[str, str | int | bool]
"""Configuration in the form that librdkafka takes."""

# Bounds a dead publisher's open transaction, which holds back every read_committed consumer (37-40 s with the broker's
# own scan), and the retries of a delivery. Below the broker's default maximum (transaction.max.timeout.ms, 15 min), and
# shorter than a cycle's period.
TRANSACTION_TIMEOUT_MS = 30_000
# Pause before reconnecting; the port is often closed only briefly: a takeover's connection takes 18 instead of 57 ms.
_RECONNECT_BACKOFF_MS = 10
# Bounds the broker's wait with an empty fetch: the end of a partition is reported one fetch after its last record, so
# every progress read waits that long.
_FETCH_WAIT_MS = 10
# Bounds a consumer's prefetch, and so the memory of reading a million events; it costs no speed.
_PREFETCH_KBYTES = 16_384


def _common(settings: KafkaSettings) -> ClientConfig:
    return {
        "bootstrap.servers": settings.bootstrap_servers,
        "reconnect.backoff.ms": _RECONNECT_BACKOFF_MS,
        # A typing error would otherwise create a topic that nobody reads.
        "allow.auto.create.topics": False,
        # Requests are small, and the caller waits for each.
        "socket.nagle.disable": True,
    }


def producer_config(settings: KafkaSettings, *, largest_batch_bytes: int | None = None) -> ClientConfig:
    """Return the configuration of a transactional producer.

    ``largest_batch_bytes`` is the event topic's ``max.message.bytes``, where known.
    """
    return {
        **_common(settings),
        # Every consumer can read uncompressed events; KafkaJS, for one, cannot read LZ4, Snappy and Zstandard.
        "compression.type": "none",
        **settings.client_config,
        # The broker's limit applies to a whole batch: a topic for small messages would refuse a larger batch of small
        # events.
        "batch.size": min(settings.batch_bytes, largest_batch_bytes or settings.batch_bytes),
        # Fencing needs the same id for every publisher of an environment. The id implies enable.idempotence and
        # acks=all.
        "transactional.id": settings.transactional_id,
        "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
        # The Java client's partitioner: a ticket has the same partition whichever client writes.
        "partitioner": "murmur2_random",
        # Only failures matter, and a callback per event costs time.
        "delivery.report.only.error": True,
    }


def consumer_config(settings: KafkaSettings, *, isolation_level: str) -> ClientConfig:
    """Return the configuration of a consumer that is assigned its partitions and never commits.

    ``isolation_level`` is ``read_committed`` for records, ``read_uncommitted`` for the end of a partition: a
    read_committed client returns the last stable offset instead, which may be 0 although a record exists.
    """
    return {
        **_common(settings),
        "fetch.wait.max.ms": _FETCH_WAIT_MS,
        "queued.max.messages.kbytes": _PREFETCH_KBYTES,
        **settings.client_config,
        "group.id": settings.group_id,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "isolation.level": isolation_level,
        # Readers stop at this event.
        "enable.partition.eof": True,
        # A lost offset is an error, never a silent jump to either end.
        "auto.offset.reset": "error",
        # A record damaged in transit is an error, not an event.
        "check.crcs": True,
    }


def admin_config(settings: KafkaSettings) -> ClientConfig:
    """Return the configuration of an admin client."""
    return {**_common(settings), **settings.client_config}
