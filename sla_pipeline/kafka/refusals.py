"""Refusals of a broker that no error shows: read from settings, replicas and the transaction log.

librdkafka retries a refused record until its timeout, and reports only that: no error names the missing replica, or the
broker's inability to begin a transaction. ``faults.py`` has the errors that do name their reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, PartitionMetadata, ResourceType  # type: ignore[attr-defined]

from sla_pipeline.errors import KafkaSetupError, KafkaUnavailable
from sla_pipeline.kafka.client_config import TRANSACTION_TIMEOUT_MS
from sla_pipeline.kafka.clients import ClientReports, TransactionalProducer, open_admin
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.quoting import quoted

__all__ = ["ReplicasMissing", "TopicConfig", "fence", "require_replicas", "require_usual_times", "time_limits"]

# Tolerated difference of two clocks; synchronized ones differ by less.
_CLOCK_DIFFERENCE_MS = 1_000
# Kafka's defaults, for the remedy: they refuse no event of a correct clock.
_USUAL_TIMES = {
    "message.timestamp.before.max.ms": 9_223_372_036_854_775_807,
    "message.timestamp.after.max.ms": 3_600_000,
}
_TRANSACTION_LOG = "__transaction_state"
# Bounds one request for the reason of a fault; a healthy broker answers in milliseconds.
_LOOK_SECONDS = 2.0


class ReplicasMissing(KafkaUnavailable):
    """A topic that refuses records because replicas are not in sync, or none leads."""


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """Settings of one topic as the broker returned them."""

    topic: str
    values: Mapping[str, str]

    def text(self, name: str) -> str:
        """Return a setting. Raise ``KafkaSetupError`` naming it when the broker did not return it."""
        if name not in self.values:
            raise KafkaSetupError(
                f"the broker did not return {name} of topic {self.topic}, without which nothing can be published "
                f"safely; see what kafka-configs.sh --describe --all --topic {self.topic} shows, and use a broker that "
                "keeps the setting"
            )
        return self.values[name]

    def number(self, name: str) -> int:
        """Return a setting. Raise ``KafkaSetupError`` naming it and its value when it is no whole number."""
        text = self.text(name)
        try:
            return int(text)
        except ValueError:
            raise KafkaSetupError(
                f"topic {self.topic} has {name}={quoted(text)}, which is no whole number. Run kafka-configs.sh --alter "
                f"--topic {self.topic} --delete-config {name}"
            ) from None


def require_usual_times(config: TopicConfig) -> None:
    """Raise ``KafkaSetupError`` for a topic that refuses the time of an event whose delivery takes as long as it may.

    Brokers before Kafka 3.6 have neither setting and pass.
    """
    if config.values.get("message.timestamp.type", "CreateTime") != "CreateTime":
        # The broker writes its own time to every record.
        return
    for name, needed, why in (
        ("message.timestamp.before.max.ms", TRANSACTION_TIMEOUT_MS, "an event may take that long to arrive"),
        (
            "message.timestamp.after.max.ms",
            _CLOCK_DIFFERENCE_MS,
            "the clocks of this machine and the broker may differ by that",
        ),
    ):
        if name in config.values and (limit := config.number(name)) < needed:
            raise KafkaSetupError(
                f"topic {config.topic} has {name}={limit}; it must be at least {needed}, or the broker refuses events "
                f"by their time: {why}. Run kafka-configs.sh --alter --topic {config.topic} --add-config "
                f"{name}={_USUAL_TIMES[name]}"
            )


def time_limits(config: TopicConfig) -> str:
    """Return the settings that limit the time of an event, for a message; empty on a broker without them."""
    return ", ".join(f"{name}={config.values[name]}" for name in _USUAL_TIMES if name in config.values)


def require_replicas(
    where: str, topic: str, partitions: Mapping[int, PartitionMetadata], min_insync_replicas: int
) -> None:
    """Raise ``ReplicasMissing`` naming partition, brokers and numbers when a partition would refuse a record.

    Kafka never needs more replicas in sync than a partition has, whatever ``min.insync.replicas`` says (tried with
    4.3.1).
    """
    for number, partition in sorted(partitions.items()):
        out_of_sync = sorted(set(partition.replicas) - set(partition.isrs))
        needed = min(min_insync_replicas, len(partition.replicas))
        if partition.leader < 0:
            state = f"has no leader; its replicas are on brokers {_listed(partition.replicas)}"
        elif len(partition.isrs) < needed:
            state = (
                f"has {len(partition.isrs)} of its {len(partition.replicas)} replicas in sync, and "
                f"min.insync.replicas={min_insync_replicas} needs {needed}; not in sync: brokers {_listed(out_of_sync)}"
            )
        else:
            continue
        raise ReplicasMissing(
            f"topic {topic} on {where} takes no records: partition {number} {state}. It passes by itself once those "
            "brokers are back"
        )


def fence(settings: KafkaSettings, producer: TransactionalProducer, timeout: float) -> None:
    """Call ``producer.fence``; after a timeout, read the reason from the broker's transaction log.

    Raise what ``producer.fence`` raises, or ``KafkaSetupError`` or ``ReplicasMissing`` with the setting and the
    numbers.
    """
    try:
        producer.fence(timeout)
    except KafkaException as error:
        if error.args[0].code() != KafkaError._TIMED_OUT:
            raise
        try:
            _require_transaction_log(settings)
        except (KafkaException, TimeoutError, LookupError, ValueError):
            # No right, no answer or an unexpected one: only the timeout is known.
            raise error from None
        raise


def _require_transaction_log(settings: KafkaSettings) -> None:
    admin = open_admin(settings, ClientReports())
    where = f"Kafka at {settings.bootstrap_servers}"
    found = admin.list_topics(_TRANSACTION_LOG, timeout=_LOOK_SECONDS)
    log = found.topics[_TRANSACTION_LOG]
    if log.error is None:
        config = _described(admin, ResourceType.TOPIC, _TRANSACTION_LOG)
        require_replicas(where, _TRANSACTION_LOG, log.partitions, int(config["min.insync.replicas"]))
        return
    if log.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
        return
    name = "transaction.state.log.replication.factor"
    # Any broker will do: all have the same value.
    needed = int(_described(admin, ResourceType.BROKER, str(min(found.brokers)))[name])
    if needed > len(found.brokers):
        raise KafkaSetupError(
            f"{where} cannot begin a transaction: its topic {_TRANSACTION_LOG} does not exist and cannot be created, "
            f"because {name}={needed} and the number of brokers is {len(found.brokers)}. Start more brokers, or set "
            f"{name}={len(found.brokers)} on them"
        )


def _described(admin: AdminClient, kind: ResourceType, name: str) -> dict[str, str]:
    (future,) = admin.describe_configs([ConfigResource(kind, name)], request_timeout=_LOOK_SECONDS).values()
    return {key: str(entry.value) for key, entry in future.result(_LOOK_SECONDS + 1).items()}


def _listed(brokers: list[int]) -> str:
    return ", ".join(map(str, brokers))
