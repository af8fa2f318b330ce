"""Replicas out of sync, and a broker that cannot begin a transaction: named with numbers and remedy."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sla_pipeline.embedded import EmbeddedKafka, embedded_kafka
from sla_pipeline.errors import KafkaSetupError, KafkaUnavailable
from sla_pipeline.kafka.deadline import Deadline
from sla_pipeline.kafka.progress import Progress, write_progress
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.kafka.topics import TopicChecker, create_topics
from sla_pipeline_tests.conftest import BrokerFactory
from sla_pipeline_tests.integration.kafka.breach_records import BreachRecords
from sla_pipeline_tests.integration.kafka.conftest import Publish
from sla_pipeline_tests.integration.kafka.topic_administration import create_topic
from sla_pipeline_tests.shared_servers import server_folder
from sla_pipeline_tests.waiting import wait_until

# each starts a broker or two, which takes a busy machine a minute
pytestmark = pytest.mark.timeout(400)


def second_broker_of(first: Path, folder: Path) -> dict[str, object]:
    """Properties of a broker that joins the cluster of the one in ``first``; makes its log in ``folder``."""
    voters = re.search(r"(?m)^controller\.quorum\.voters=(.*)$", (first / "kafka" / "server.properties").read_text())
    cluster = re.search(r"(?m)^cluster\.id=.*$", (first / "kafka" / "data" / "meta.properties").read_text())
    assert voters, first
    assert cluster, first
    data = folder / "kafka" / "data"
    data.mkdir(parents=True)
    (data / "meta.properties").write_text(f"version=1\n{cluster[0]}\nnode.id=2\ndirectory.id=c2Vjb25kLWJyb2tlci0xMg\n")
    return {
        "process.roles": "broker",
        "node.id": 2,
        "controller.quorum.voters": voters[1],
        # its own listener of that name is an ordinary one
        "controller.listener.names": "QUORUM",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,QUORUM:PLAINTEXT",
    }


@pytest.fixture
def two_brokers() -> Iterator[tuple[KafkaSettings, EmbeddedKafka]]:
    """Yield settings for a cluster of two, and its second broker.

    The topics need both; the transaction log is on the first alone.
    """
    with server_folder() as here, server_folder() as there, embedded_kafka(here) as first:
        # the first transaction makes the transaction log
        create_topics(KafkaSettings(first.bootstrap_servers, "first-transaction"))
        with embedded_kafka(there, properties=second_broker_of(here, there)) as second:
            settings = KafkaSettings(first.bootstrap_servers)
            # two replicas, and both must have a record
            create_topics(settings, replication_factor=2)
            yield settings, second


def takes_records(settings: KafkaSettings) -> bool:
    """Return whether the check passes."""
    try:
        TopicChecker(settings).check(Deadline(1.0))
    except KafkaUnavailable:
        return False
    return True


def test_a_broker_that_is_down_is_named_before_the_first_event_and_after_a_failure(
    two_brokers: tuple[KafkaSettings, EmbeddedKafka], records: BreachRecords, publish: Publish
) -> None:
    settings, second = two_brokers
    state = (
        r"has 1 of its 2 replicas in sync, and min\.insync\.replicas=2 needs 2; not in sync: brokers 2\. It "
        r"passes by itself once"
    )

    def lose_second(step: str) -> None:
        if step == "begun":
            second.kill()
            wait_until(lambda: not takes_records(settings), what="the broker's session to end")

    records.add(5)
    with pytest.raises(KafkaUnavailable, match=rf"topic {settings.topic} on .* takes no records: partition 0 {state}"):
        publish(settings, on_step=lose_second, seconds=10.0)
    # the next cycle finds it before it produces anything
    steps: list[str] = []
    with pytest.raises(KafkaUnavailable, match=state):
        publish(settings, on_step=steps.append)
    assert steps == []

    second.start()
    wait_until(lambda: takes_records(settings), what="the replicas to catch up")
    assert publish(settings).published_count == 5
    records.assert_each_published_once_in_order(settings)


def test_a_transaction_log_that_cannot_be_created_is_a_fault_of_the_broker(own_broker: BrokerFactory) -> None:
    broker = own_broker({"transaction.state.log.replication.factor": 3})
    settings = KafkaSettings(broker.bootstrap_servers)
    create_topic(settings, settings.topic)
    create_topic(settings, settings.progress_topic, config={"cleanup.policy": "compact"})
    with pytest.raises(
        KafkaSetupError,
        match=r"cannot begin a transaction: its topic __transaction_state does not exist and cannot be created, "
        r"because "
        r"transaction\.state\.log\.replication\.factor=3 and the number of brokers is 1\. Start more brokers, or set "
        r".*factor=1 on them",
    ):
        write_progress(settings, Deadline(2.0), lambda: Progress.without_events(0, "", "test"))
