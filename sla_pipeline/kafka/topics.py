"""The event topic and the progress topic: their creation, and the check of their settings in every cycle."""

import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewTopic,
    PartitionMetadata,
    ResourceType,
)

from sla_pipeline.errors import FailClosed, KafkaSetupError
from sla_pipeline.kafka.clients import ClientReports, cluster_with, open_admin, translated
from sla_pipeline.kafka.deadline import Deadline
from sla_pipeline.kafka.durability import IN_SYNC_REPLICAS, durability_gap, warn_of_gap
from sla_pipeline.kafka.offsets import end_offsets, end_offsets_of, latest, result_of, retry_until_led
from sla_pipeline.kafka.progress import PROGRESS_PARTITION, RECOVERY, Progress, ProgressReader, write_progress
from sla_pipeline.kafka.refusals import ReplicasMissing, TopicConfig, require_replicas, require_usual_times, time_limits
from sla_pipeline.kafka.settings import KafkaSettings

__all__ = ["EventTopic", "TopicChecker", "check_topics", "create_topics"]

# Bounds a check or a creation as a whole; a healthy broker needs milliseconds.
_ATTEMPT_SECONDS = 20.0
_CALL_SECONDS = 8.0
_SETTLING_POLL_SECONDS = 0.05
# Bounds the wait for leaders and replicas: an election, or a restarted broker that reads its log, takes about 1 s.
_SETTLING_SECONDS = 3.0
# Least max.message.bytes: a smaller limit refuses even one event with its headers.
_SMALLEST_EVENT_LIMIT_BYTES = 2_048
# Kafka's default, for the remedy.
_USUAL_LIMIT_BYTES = 1_048_588


@dataclass(frozen=True, slots=True)
class EventTopic:
    """Settings of the event topic that publishing depends on.

    ``time_limits`` lists the settings that limit the time of an event, as name=value.
    """

    partition_count: int
    max_message_bytes: int
    time_limits: str = ""


class TopicChecker:
    """Check of both topics, over one admin client that stays open: 5 instead of 16 ms from the second check on."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._reports = ClientReports()
        self._admin: AdminClient | None = None

    def check(self, deadline: Deadline) -> EventTopic:
        """Return the event topic's settings; log a warning where a topic's replicas are too few.

        Raise ``KafkaSetupError`` with topic, setting, value and remedy, or ``KafkaUnavailable`` without an answer.
        """
        admin, topics = self._client(), (self._settings.topic, self._settings.progress_topic)
        # At most half of the time, so that enough is left to report the fault.
        settling_deadline = Deadline(min(_SETTLING_SECONDS, deadline.remaining_seconds() / 2))
        try:
            partitions, broker_ids = self._partitions(admin, topics, deadline)
            configs = self._configs(admin, topics, deadline)
            while True:
                try:
                    event_topic = _validated(self._settings, partitions, configs)
                    break
                except ReplicasMissing:
                    if not settling_deadline.remaining_seconds():
                        raise
                time.sleep(_SETTLING_POLL_SECONDS)
                partitions, broker_ids = self._partitions(admin, topics, deadline)
        except BaseException:
            # A new client reports again why it cannot connect.
            self.close()
            raise
        for topic in topics:
            if gap := durability_gap(TopicConfig(topic, configs[topic]), partitions[topic], broker_ids):
                warn_of_gap(gap)
        return event_topic

    def _client(self) -> AdminClient:
        # Not `or`: a client has a length, that of its queue, and an empty one is false.
        if self._admin is None:
            self._admin = open_admin(self._settings, self._reports)
        return self._admin

    def _partitions(
        self, admin: AdminClient, topics: tuple[str, ...], deadline: Deadline
    ) -> tuple[dict[str, dict[int, PartitionMetadata]], set[int]]:
        """Return the partitions of each topic, and the ids of the brokers."""
        partitions: dict[str, dict[int, PartitionMetadata]] = {}
        broker_ids: set[int] = set()
        for topic in topics:
            with translated(self._settings, "looking up the topics", self._reports, poll=admin.poll, topic=topic):
                cluster = cluster_with(admin, topic, deadline.timeout_seconds(_CALL_SECONDS))
            partitions[topic] = cluster.topics[topic].partitions
            broker_ids.update(cluster.brokers)
        return partitions, broker_ids

    def _configs(self, admin: AdminClient, topics: tuple[str, ...], deadline: Deadline) -> dict[str, dict[str, str]]:
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        configs = {}
        timeout = deadline.timeout_seconds(_CALL_SECONDS)
        for resource, future in admin.describe_configs(resources, request_timeout=timeout).items():
            with translated(
                self._settings, "reading the topics' settings", self._reports, poll=admin.poll, topic=resource.name
            ):
                configs[resource.name] = {name: str(entry.value) for name, entry in result_of(future, timeout).items()}
        return configs

    def unended(self, event_topic: EventTopic, deadline: Deadline) -> list[TopicPartition]:
        """Return the partitions with records of an unended transaction, each with the offset of the first one."""
        places = [(self._settings.topic, partition) for partition in range(event_topic.partition_count)]
        requests = {
            TopicPartition(*place): latest() for place in (*places, (self._settings.progress_topic, PROGRESS_PARTITION))
        }

        def read_offsets() -> list[TopicPartition]:
            admin, timeout = self._client(), deadline.timeout_seconds(_CALL_SECONDS)
            stable, ends = (
                admin.list_offsets(requests, isolation_level=level, request_timeout=timeout)
                for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
            )
            found = [
                (place, result_of(future, timeout).offset, result_of(ends[place], timeout).offset)
                for place, future in stable.items()
            ]
            return [
                TopicPartition(place.topic, place.partition, offset) for place, offset, end in found if offset < end
            ]

        with translated(self._settings, "looking for transactions without an end", self._reports):
            # A client keeps sending requests to a partition's former leader; a new client looks the leader up.
            return retry_until_led(
                read_offsets, Deadline(deadline.timeout_seconds(_CALL_SECONDS)), before_next=self.close
            )

    def close(self) -> None:
        """Discard the admin client and its reports. May be called again."""
        self._admin, self._reports = None, ClientReports()


def _validated(
    settings: KafkaSettings,
    partitions: Mapping[str, Mapping[int, PartitionMetadata]],
    configs: Mapping[str, Mapping[str, str]],
) -> EventTopic:
    """Return the event topic's settings.

    Raise ``KafkaSetupError`` for a setting under which events would be lost, doubled or refused, ``ReplicasMissing``
    for too few replicas in sync.
    """
    progress, event = (
        TopicConfig(topic, configs.get(topic, {})) for topic in (settings.progress_topic, settings.topic)
    )
    progress_partitions = len(partitions[settings.progress_topic])
    progress_policy, event_policy = progress.text("cleanup.policy"), event.text("cleanup.policy")
    if progress_partitions != 1:
        raise KafkaSetupError(
            f"topic {settings.progress_topic} has {progress_partitions} partitions; it must have 1, or its newest "
            f"record is not defined. Delete it and follow {RECOVERY}"
        )
    if progress_policy != "compact":
        raise KafkaSetupError(
            f"topic {settings.progress_topic} has cleanup.policy={progress_policy}; it must be compact, or the "
            f"position of the publisher expires. Run kafka-configs.sh --alter --topic {settings.progress_topic} "
            "--add-config cleanup.policy=compact"
        )
    if "compact" in event_policy:
        raise KafkaSetupError(
            f"topic {settings.topic} has cleanup.policy={event_policy}; it must be delete: compaction is for tables, "
            f"and drops events. Run kafka-configs.sh --alter --topic {settings.topic} --add-config "
            "cleanup.policy=delete"
        )
    for topic in (event, progress):
        if (limit := topic.number("max.message.bytes")) < _SMALLEST_EVENT_LIMIT_BYTES:
            raise KafkaSetupError(
                f"topic {topic.topic} has max.message.bytes={limit}; an event needs up to "
                f"{_SMALLEST_EVENT_LIMIT_BYTES}. Run kafka-configs.sh --alter --topic {topic.topic} --add-config "
                f"max.message.bytes={_USUAL_LIMIT_BYTES}"
            )
        require_usual_times(topic)
        require_replicas(
            f"Kafka at {settings.bootstrap_servers}",
            topic.topic,
            partitions[topic.topic],
            topic.number("min.insync.replicas"),
        )
    return EventTopic(
        partition_count=len(partitions[settings.topic]),
        max_message_bytes=event.number("max.message.bytes"),
        time_limits=time_limits(event),
    )


def check_topics(settings: KafkaSettings) -> EventTopic:
    """Check both topics once.

    Raise ``KafkaSetupError`` with topic, setting, value and remedy, or ``KafkaUnavailable``.
    """
    return TopicChecker(settings).check(Deadline(_ATTEMPT_SECONDS))


def create_topics(settings: KafkaSettings, *, partitions: int = 3, replication_factor: int = 1) -> None:
    """Create missing topics, and write the progress record with sequence 0.

    Idempotent: after a crash, call it again. The record is written when the progress topic holds none *and* the event
    topic has never held an event: only both together mean a new installation. ``partitions`` and
    ``replication_factor`` apply to topics created now; an existing one stays as it is. Raise ``FailClosed`` for an
    event topic with a history beside an empty progress topic: either the record was lost, or another program published
    there before.
    """
    deadline = Deadline(_ATTEMPT_SECONDS)
    reports = ClientReports()
    admin = open_admin(settings, reports)
    # One replica: the broker's default stays, since 1 would outlast a later increase of the replicas.
    in_sync = {"min.insync.replicas": str(IN_SYNC_REPLICAS)} if replication_factor >= IN_SYNC_REPLICAS else {}
    wanted = [
        NewTopic(settings.topic, partitions, replication_factor, config={"cleanup.policy": "delete", **in_sync}),
        NewTopic(settings.progress_topic, 1, replication_factor, config={"cleanup.policy": "compact", **in_sync}),
    ]
    with translated(settings, "creating the topics", reports, poll=admin.poll):
        existing = admin.list_topics(timeout=deadline.timeout_seconds(_CALL_SECONDS)).topics
        missing = [topic for topic in wanted if topic.topic not in existing]
        timeout = deadline.timeout_seconds(_CALL_SECONDS)
        for future in (
            admin.create_topics(missing, operation_timeout=timeout, request_timeout=timeout) if missing else {}
        ).values():
            _await_creation(future, timeout)
        _await_leaders(settings, admin, deadline)
    check_topics(settings)
    _write_first_record(settings, admin, reports, deadline)


def _await_creation(future: "Future[None]", timeout: float) -> None:
    try:
        result_of(future, timeout)
    except KafkaException as error:
        # Another process has just created the topic, which is as good.
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def _await_leaders(settings: KafkaSettings, admin: AdminClient, deadline: Deadline) -> None:
    """Wait until both topics can be used: brokers learn of a new topic and its leaders some milliseconds later."""
    for topic in (settings.topic, settings.progress_topic):
        retry_until_led(partial(end_offsets_of, admin, topic, deadline), deadline)


def _write_first_record(
    settings: KafkaSettings, admin: AdminClient, reports: ClientReports, deadline: Deadline
) -> None:
    reader = ProgressReader(settings)

    def first_record() -> Progress | None:
        if reader.read(deadline) is not None:
            return None
        if any(end_offsets(settings, admin, reports, settings.topic, deadline).values()):
            raise FailClosed(
                f"topic {settings.progress_topic} holds no record, but topic {settings.topic} has held events: either "
                "the publisher's position was lost with its topic, or another program published there before. Nothing "
                f"is written. {RECOVERY}"
            )
        return Progress.without_events(0, "", "create_topics")

    try:
        # First without the fence: on a running installation the call must not disturb the publisher.
        if reader.read(deadline, behind_fence=False) is None:
            write_progress(settings, deadline, first_record)
    finally:
        reader.close()
