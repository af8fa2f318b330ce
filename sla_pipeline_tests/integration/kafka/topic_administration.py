"""Operations on a test's own topics, as by an operator or an accident: change settings, delete, re-create, expire."""

import subprocess
import tempfile
from pathlib import Path

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from sla_pipeline.embedded.java import java_command, java_environment
from sla_pipeline.kafka.clients import ClientReports, open_admin
from sla_pipeline.kafka.deadline import Deadline
from sla_pipeline.kafka.offsets import end_offsets
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline_tests.waiting import wait_until


def _admin(settings: KafkaSettings) -> AdminClient:
    return open_admin(settings, ClientReports())


def set_topic_config(settings: KafkaSettings, topic: str, name: str, value: str) -> None:
    """Change one setting of a topic and wait until the broker returns it: the controller answers earlier."""
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    # Kept in a variable: a client that is garbage-collected drops its pending requests.
    admin = _admin(settings)
    for future in admin.incremental_alter_configs(
        [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])]
    ).values():
        future.result()

    def changed() -> bool:
        (described,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        return bool(described.result()[name].value == value)

    wait_until(changed, what=f"{name} of topic {topic} to change")


def set_producer_quota(settings: KafkaSettings, client_id: str, bytes_per_second: int) -> None:
    """Set a client id's quota with Kafka's own tool: the client library has no call for it."""
    with tempfile.TemporaryDirectory() as folder:
        change = [
            "--alter",
            "--entity-type",
            "clients",
            "--entity-name",
            client_id,
            "--add-config",
            f"producer_byte_rate={bytes_per_second}",
        ]
        command = [
            *java_command(Path(folder)),
            "kafka.admin.ConfigCommand",
            "--bootstrap-server",
            settings.bootstrap_servers,
            *change,
        ]
        subprocess.run(command, check=True, capture_output=True, env=java_environment())


def delete_topic(settings: KafkaSettings, topic: str) -> None:
    """Delete a topic and wait until it is gone."""
    admin = _admin(settings)
    for future in admin.delete_topics([topic], operation_timeout=20).values():
        future.result()
    wait_until(lambda: topic not in admin.list_topics(timeout=10).topics, what=f"topic {topic} to go")


def create_topic(
    settings: KafkaSettings, topic: str, *, partitions: int = 1, config: dict[str, str] | None = None
) -> None:
    """Create a topic by hand and wait until it can be used."""
    admin = _admin(settings)
    for future in admin.create_topics(
        [NewTopic(topic, partitions, 1, config=config or {})], operation_timeout=20
    ).values():
        future.result()

    def usable() -> bool:
        try:
            return len(_ends(settings, topic)) == partitions
        except Exception as error:
            if isinstance(error.__cause__, KafkaException):
                return False
            raise

    wait_until(usable, what=f"topic {topic} to come")


def recreate_event_topic(settings: KafkaSettings) -> None:
    """Delete the event topic and re-create it, empty, with as many partitions."""
    delete_topic(settings, settings.topic)
    create_topic(settings, settings.topic, partitions=3)


def expire(settings: KafkaSettings, up_to: dict[int, int]) -> None:
    """Move the first offset of partitions of the event topic, as retention does; -1 is the end."""
    admin = _admin(settings)
    offsets = [TopicPartition(settings.topic, partition, offset) for partition, offset in up_to.items()]
    for future in admin.delete_records(offsets).values():
        future.result()


def written_offsets(settings: KafkaSettings, topic: str) -> int:
    """Return the sum of a topic's end offsets, aborted records and transaction markers included."""
    return sum(_ends(settings, topic).values())


def _ends(settings: KafkaSettings, topic: str) -> dict[int, int]:
    reports = ClientReports()
    return end_offsets(settings, open_admin(settings, reports), reports, topic, Deadline(20))
