"""Fixtures of the examples' tests: the webhook, the consumer in each language, events and their order on the topic."""

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import pytest

from sla_pipeline.embedded.jars import fetch_jars
from sla_pipeline.kafka.events import read_events
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline_tests.integration.examples.consumer_process import ConsumerProcess
from sla_pipeline_tests.integration.examples.webhook import Webhook

EXAMPLES = Path(__file__).parents[3] / "examples"
# The consumer rejoins at once after SIGKILL, as the same member; without an id its group waits for the session's end.
SAME_MEMBER: Mapping[str, str] = {"group.instance.id": "the-only-one"}
# Shortest session that the broker allows: its end is when the others get the partitions of a killed member.
SHORT_SESSION: Mapping[str, str] = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "1000"}
_FIRST_JAVA_THAT_RUNS_IT = 17

EventOrder = Callable[[], list[list[str]]]


class StartConsumer(Protocol):
    """Factory of started consumers in one group; they end with the test."""

    def __call__(
        self, webhook_url: str, *, client: Mapping[str, str] = ..., variables: Mapping[str, str] = ...
    ) -> ConsumerProcess: ...


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    """Receiver that listens and accepts."""
    with Webhook() as receiver:
        yield receiver.start()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """File of the EventIds, shared by all consumers of a test."""
    return tmp_path / "store"


@pytest.fixture(params=["python", "java"])
def command(request: pytest.FixtureRequest) -> list[str]:
    """Command that starts the consumer, in each language."""
    if request.param == "java":
        in_java: list[str] = request.getfixturevalue("java_command")
        return in_java
    return [sys.executable, str(EXAMPLES / "consumer.py")]


@pytest.fixture
def start(kafka_settings: KafkaSettings, command: list[str], tmp_path: Path, store: Path) -> Iterator[StartConsumer]:
    """Function that starts a consumer of the test's topic."""
    numbers = itertools.count(1)
    with contextlib.ExitStack() as stack:

        def start_consumer(
            webhook_url: str,
            *,
            client: Mapping[str, str] = SAME_MEMBER,
            variables: Mapping[str, str] = MappingProxyType({}),
        ) -> Any:
            number = next(numbers)
            properties = tmp_path / f"client-{number}.properties"
            properties.write_text("".join(f"{name}={value}\n" for name, value in client.items()))
            environment = {
                "SLA_KAFKA_BOOTSTRAP_SERVERS": kafka_settings.bootstrap_servers,
                "SLA_KAFKA_TOPIC": kafka_settings.topic,
                "SLA_KAFKA_CLIENT_CONFIG": json.dumps(dict(client)),
                "SLA_KAFKA_CLIENT_PROPERTIES": str(properties),
                "SLA_CONSUMER_GROUP": f"group-of-{kafka_settings.topic}",
                "SLA_CONSUMER_STORE": str(store),
                "SLA_WEBHOOK_URL": webhook_url,
                **variables,
            }
            return stack.enter_context(ConsumerProcess(command, environment, tmp_path / f"consumer-{number}.log"))

        yield start_consumer


@pytest.fixture
def order(kafka_settings: KafkaSettings) -> EventOrder:
    """Function that returns the event ids of each partition in order, partitions without events left out."""

    def read() -> list[list[str]]:
        ids: dict[int, list[str]] = {}
        for event in read_events(kafka_settings):
            ids.setdefault(event.partition, []).append(json.loads(event.value)["EventId"])
        return list(ids.values())

    return read


@pytest.fixture(scope="session")
def java_command() -> list[str]:
    """Command that starts the consumer in Java; skips where no JDK can launch a source file."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else None)
    if found is None:
        pytest.skip("no java found: the Java consumer needs a JDK, in JAVA_HOME or on PATH")
    listed = subprocess.run([found, "--list-modules"], capture_output=True, text=True, check=False, timeout=60)
    if "jdk.compiler@" not in listed.stdout:
        pytest.skip(f"{found} has no compiler: the Java consumer needs a JDK, in JAVA_HOME or on PATH")
    version = int(listed.stdout.split("java.base@")[1].split(".")[0].split()[0])
    if version < _FIRST_JAVA_THAT_RUNS_IT:
        pytest.skip(f"{found} is Java {version}: the Java consumer needs Java {_FIRST_JAVA_THAT_RUNS_IT} or later")
    wanted = ("kafka-clients-", "slf4j-api-", "lz4-java-", "snappy-java-", "zstd-jni-")
    jars = [str(path) for path in fetch_jars() if path.name.startswith(wanted)]
    return [found, "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", os.pathsep.join(jars), str(EXAMPLES / "Consumer.java")]
