"""Durability of both topics: replicas and ``min.insync.replicas`` against what docs/exactly-once.md demands.

A topic that falls short still works, so it is a warning and never a refusal.
"""

import logging
from collections.abc import Collection, Mapping
from functools import cache

from confluent_kafka.admin import PartitionMetadata  # type: ignore[attr-defined]

from sla_pipeline.kafka.refusals import TopicConfig

__all__ = ["IN_SYNC_REPLICAS", "REPLICAS", "durability_gap", "warn_of_gap"]

log = logging.getLogger(__name__)

REPLICAS = 3
"""Replicas of each partition: with one broker down, two still take events."""

IN_SYNC_REPLICAS = 2
"""Replicas that must hold an event before it counts (acks=all): the loss of one broker loses no event."""


def durability_gap(
    config: TopicConfig, partitions: Mapping[int, PartitionMetadata], broker_ids: Collection[int]
) -> str | None:
    """Return topic, value, possible loss and remedy where the topic falls short; None where it does not.

    ``broker_ids`` are the brokers that answer. A cluster of one broker, such as a demo's, has no gap: it cannot hold a
    second replica.
    """
    replicas = {replica for partition in partitions.values() for replica in partition.replicas}
    broker_count = len(replicas.union(broker_ids))
    fewest = min((len(partition.replicas) for partition in partitions.values()), default=0)
    in_sync = config.number("min.insync.replicas")
    raise_in_sync = (
        f"kafka-configs.sh --alter --topic {config.topic} --add-config min.insync.replicas={IN_SYNC_REPLICAS}"
    )
    if broker_count <= 1:
        return None
    if fewest == 1:
        return (
            f"topic {config.topic} has a partition with 1 replica: acknowledged records are lost with the disk of its "
            f"broker. Raise the replicas to {min(REPLICAS, broker_count)} by kafka-reassign-partitions.sh, then run "
            f"{raise_in_sync}"
        )
    if in_sync < IN_SYNC_REPLICAS:
        return (
            f"topic {config.topic} has min.insync.replicas={in_sync}: a record counts as published while one broker "
            f"holds it, and is lost with that broker. Run {raise_in_sync}"
        )
    if fewest < min(REPLICAS, broker_count):
        return (
            f"topic {config.topic} has a partition with {fewest} replicas: nothing is published while one of its "
            f"brokers is down. Raise the replicas to {REPLICAS} by kafka-reassign-partitions.sh"
        )
    if config.values.get("unclean.leader.election.enable") == "true":
        return (
            f"topic {config.topic} has unclean.leader.election.enable=true: a replica that lacks acknowledged records "
            f"may become leader, and these are lost. Run kafka-configs.sh --alter --topic {config.topic} --add-config "
            "unclean.leader.election.enable=false"
        )
    return None


@cache
def warn_of_gap(gap: str) -> None:
    """Log ``gap`` as a warning. Cached: every cycle checks the topics, and a process logs each gap once."""
    log.warning("%s", gap)
