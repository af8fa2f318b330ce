from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from sla_pipeline.embedded import EmbeddedKafka, ServiceError, embedded_kafka
from sla_pipeline_tests.conftest import BrokerFactory
from sla_pipeline_tests.integration.embedded.conftest import KilledParent, is_gone

PARENT = """
import sys, time
from pathlib import Path
from sla_pipeline.embedded import embedded_kafka
with embedded_kafka(Path(sys.argv[1])) as broker:
    print(broker.service.pid, flush=True)
    time.sleep(300)
"""


def create_topic(broker: EmbeddedKafka) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic("kept", 1, 1)])["kept"].result(timeout=30)


def write(broker: EmbeddedKafka, value: bytes) -> None:
    with Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        producer.produce("kept", value)
        assert producer.flush(30) == 0


def read(broker: EmbeddedKafka) -> list[bytes]:
    """All records, until the end of the topic."""
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": "reader",
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
    }
    consumer = Consumer(settings)
    consumer.subscribe(["kept"])
    found = []
    try:
        while message := consumer.poll(30):
            if message.error():
                return found
            found.append(message.value())
    finally:
        consumer.close()
    raise AssertionError(f"no end of the topic within 30 s, after {found}")


def test_the_log_is_kept_from_run_to_run_in_any_folder(state: Path) -> None:
    with embedded_kafka(state) as broker:
        create_topic(broker)
        write(broker, b"1")
    with embedded_kafka(state) as broker:
        write(broker, b"2")
        assert read(broker) == [b"1", b"2"]
        with pytest.raises(ServiceError, match=f"Kafka in {state} is in use by another process"), embedded_kafka(state):
            pass
        broker.service.check()


def test_a_killed_broker_starts_again_on_the_same_port_with_all_that_was_acknowledged(own_broker: BrokerFactory) -> None:
    broker = own_broker()
    create_topic(broker)
    address = broker.bootstrap_servers
    for value in (b"1", b"2"):
        write(broker, value)
        pid = broker.service.pid
        broker.kill()
        assert is_gone(pid)
        broker.start()
    assert broker.bootstrap_servers == address
    assert read(broker) == [b"1", b"2"]


def test_a_frozen_broker_does_not_answer_and_answers_again_after_the_thaw(own_broker: BrokerFactory) -> None:
    broker = own_broker()
    create_topic(broker)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    broker.freeze()
    with pytest.raises(KafkaException, match="_TRANSPORT|_TIMED_OUT"):
        admin.list_topics(timeout=1)
    broker.thaw()
    assert set(admin.list_topics(timeout=30).topics) == {"kept"}
    del admin  # a client that outlives its broker complains on standard error


def test_properties_go_on_top_of_the_brokers_own(own_broker: BrokerFactory) -> None:
    broker = own_broker({"message.max.bytes": 20_000})
    resource = ConfigResource(ResourceType.BROKER, "1")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    settings = admin.describe_configs([resource])[resource].result(timeout=30)
    assert settings["message.max.bytes"].value == "20000"
    assert settings["auto.create.topics.enable"].value == "false"


def test_a_wrong_property_is_told_with_the_end_of_the_log(own_broker: BrokerFactory) -> None:
    with pytest.raises(ServiceError, match="(?s)Kafka's log cannot be formatted.*num.io.threads"):
        own_broker({"num.io.threads": "many"})


def test_a_comma_in_the_path_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    state = tmp_path / "a,b"
    with pytest.raises(ServiceError, match=r"Kafka cannot keep its log in .*a,b: .* a comma in a path ends an item"), embedded_kafka(state):
        pass
    assert not state.exists()


def test_a_killed_parent_leaves_no_broker_and_the_next_start_finds_the_data(state: Path, killed_parent: KilledParent) -> None:
    with embedded_kafka(state) as broker:
        create_topic(broker)
        write(broker, b"1")
    orphan = int(killed_parent(PARENT, state))
    with embedded_kafka(state) as broker:
        assert is_gone(orphan)
        assert read(broker) == [b"1"]
