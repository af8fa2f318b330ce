import re
import sys
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType  # type: ignore[attr-defined]

from sla_pipeline.embedded import ServiceError, embedded_kafka
from sla_pipeline.embedded.java import startup_cache
from sla_pipeline.embedded.warm_up import warm_up
from sla_pipeline_tests.conftest import BrokerFactory
from sla_pipeline_tests.integration.embedded.conftest import KillableParent, is_gone

PARENT = """
import sys, time
import re
import sys
from pathlib import Path
from sla_pipeline.embedded import embedded_kafka
with embedded_kafka(Path(sys.argv[1])) as broker:
    print(broker.service.pid, broker.bootstrap_servers, flush=True)
    time.sleep(300)
"""


def create_topic(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic("kept", 1, 1)])["kept"].result(timeout=30)


def write(address: str, value: bytes) -> None:
    with Producer({"bootstrap.servers": address}) as producer:
        producer.produce("kept", value)
        assert producer.flush(30) == 0


def read(address: str) -> list[bytes | None]:
    """All values, until the end of the topic."""
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "none", "auto.offset.reset": "error", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition("kept", 0, 0)])
    found: list[bytes | None] = []
    try:
        while message := consumer.poll(30):
            if message.error():
                return found
            found.append(message.value())
    finally:
        consumer.close()
    raise AssertionError(f"no end of the topic within 30 s, after {found}")


def test_a_broker_starts_again_on_the_same_port_with_all_that_was_acknowledged_before_a_kill_or_a_stop(
    own_broker: BrokerFactory,
) -> None:
    broker = own_broker()
    create_topic(broker.bootstrap_servers)
    address, pid = broker.bootstrap_servers, broker.service.pid
    write(broker.bootstrap_servers, b"1")
    broker.kill()
    assert is_gone(pid)
    broker.start()
    write(broker.bootstrap_servers, b"2")
    broker.stop()
    broker.start()
    assert broker.bootstrap_servers == address
    assert read(broker.bootstrap_servers) == [b"1", b"2"]


def test_a_paused_broker_does_not_answer_and_answers_again_once_resumed(own_broker: BrokerFactory) -> None:
    broker = own_broker()
    create_topic(broker.bootstrap_servers)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    broker.pause()
    with pytest.raises(KafkaException, match=r"_TRANSPORT|_TIMED_OUT"):
        admin.list_topics(timeout=1)
    broker.resume()
    assert set(admin.list_topics(timeout=30).topics) == {"kept"}
    del admin  # a client that outlives its broker complains on standard error


def test_properties_go_on_top_of_the_brokers_own(own_broker: BrokerFactory) -> None:
    broker = own_broker({"message.max.bytes": 20_000})
    resource = ConfigResource(ResourceType.BROKER, "1")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    settings = admin.describe_configs([resource])[resource].result(timeout=30)
    assert settings["message.max.bytes"].value == "20000"
    assert settings["auto.create.topics.enable"].value == "false"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux shows which files a process has mapped")
def test_a_warmed_up_broker_has_its_classes_from_the_startup_cache(own_broker: BrokerFactory) -> None:
    warm_up()
    made_at = startup_cache().stat().st_mtime
    warm_up()
    assert startup_cache().stat().st_mtime == made_at
    broker = own_broker()
    assert str(startup_cache()) in {mapped.path for mapped in psutil.Process(broker.service.pid).memory_maps()}


def test_a_wrong_property_is_reported_with_the_end_of_the_log(own_broker: BrokerFactory) -> None:
    with pytest.raises(ServiceError, match=r"(?s)Kafka ended with exit status 1; .*num\.io\.threads"):
        own_broker({"num.io.threads": "many"})


def test_a_comma_in_the_path_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    state = tmp_path / "a,b"
    with (
        pytest.raises(ServiceError, match=r"Kafka cannot keep its log in .*a,b: .* a comma in a path ends an item"),
        embedded_kafka(state),
    ):
        pass
    assert not state.exists()


def test_a_killed_parent_leaves_no_broker_and_the_next_one_keeps_the_log_in_any_folder(
    state: Path, killable_parent: KillableParent
) -> None:
    with killable_parent(PARENT, state) as (orphan, address):
        create_topic(address)
        write(address, b"1")
    with embedded_kafka(state) as broker:
        assert is_gone(int(orphan))
        assert read(broker.bootstrap_servers) == [b"1"]
        with (
            pytest.raises(ServiceError, match=re.escape(f"Kafka in {state} is in use by another process")),
            embedded_kafka(state),
        ):
            pass
        broker.service.check()
