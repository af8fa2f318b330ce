"""Incomplete answers of a broker about the topics, and missing ones: a clear error in bounded time."""

import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from sla_pipeline.errors import KafkaSetupError, KafkaUnavailable
from sla_pipeline.kafka.deadline import Deadline
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.kafka.topics import EventTopic, TopicChecker

SETTINGS = KafkaSettings("127.0.0.1:1", topic="events")
EVENTS, PROGRESS = SETTINGS.topic, SETTINGS.progress_topic
COMPLETE = {
    EVENTS: {"cleanup.policy": "delete", "max.message.bytes": "1048588", "min.insync.replicas": "2"},
    PROGRESS: {"cleanup.policy": "compact", "max.message.bytes": "1048588", "min.insync.replicas": "2"},
}


class Admin:
    """Fake admin client that answers from a table; requests for other topics never end."""

    def __init__(
        self,
        configs: dict[str, dict[str, str]],
        partitions: dict[str, int],
        led: Any,
        broker_ids: tuple[int, ...] = (1, 2, 3),
    ) -> None:
        self.configs = configs
        self.broker_ids = broker_ids
        self.partitions = partitions
        self.led = led

    def list_topics(self, topic: str, timeout: float) -> Any:
        counts = {
            name: SimpleNamespace(error=None, partitions=dict.fromkeys(range(count), self.led))
            for name, count in self.partitions.items()
        }
        return SimpleNamespace(
            topics={name: found for name, found in counts.items() if name == topic},
            brokers=dict.fromkeys(self.broker_ids),
        )

    def describe_configs(self, resources: list[Any], request_timeout: float) -> dict[Any, "Future[Any]"]:
        answers = {resource: Future[Any]() for resource in resources}
        for resource, future in answers.items():
            if resource.name in self.configs:
                values = self.configs[resource.name]
                future.set_result({name: SimpleNamespace(value=value) for name, value in values.items()})
        return answers

    def poll(self, timeout: float) -> None:
        pass


def partition(leader: int, replicas: list[int], in_sync: list[int]) -> Any:
    return SimpleNamespace(leader=leader, replicas=replicas, isrs=in_sync)


HEALTHY = partition(1, [1, 2, 3], [1, 2, 3])


def check(
    monkeypatch: pytest.MonkeyPatch,
    configs: dict[str, dict[str, str]] = COMPLETE,
    partitions: dict[str, int] | None = None,
    led: Any = HEALTHY,
    broker_ids: tuple[int, ...] = (1, 2, 3),
) -> EventTopic:
    admin = Admin(configs, {EVENTS: 3, PROGRESS: 1} if partitions is None else partitions, led, broker_ids)
    monkeypatch.setattr("sla_pipeline.kafka.topics.open_admin", lambda settings, reports: admin)
    return TopicChecker(SETTINGS).check(Deadline(0.2))


def test_a_complete_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(monkeypatch) == EventTopic(partition_count=3, max_message_bytes=1_048_588)


@pytest.mark.parametrize(("topic", "name"), [(topic, name) for topic, values in COMPLETE.items() for name in values])
def test_a_setting_that_the_broker_does_not_return_is_named(
    topic: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = {**COMPLETE, topic: {key: value for key, value in COMPLETE[topic].items() if key != name}}
    with pytest.raises(
        KafkaSetupError,
        match=rf"did not return {name} of topic {topic}, .*kafka-configs.sh --describe --all --topic {topic} ",
    ):
        check(monkeypatch, lacking)


@pytest.mark.parametrize("name", ["max.message.bytes", "min.insync.replicas"])
def test_a_setting_that_is_no_number_is_shown(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = {**COMPLETE, EVENTS: {**COMPLETE[EVENTS], name: "None"}}
    with pytest.raises(
        KafkaSetupError, match=rf"topic {EVENTS} has {name}=.None., which is no whole number.*--delete-config {name}"
    ):
        check(monkeypatch, odd)


@pytest.mark.parametrize("topic", [EVENTS, PROGRESS])
def test_a_topic_that_the_answer_leaves_out_does_not_exist(topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    partitions = {name: 1 for name in (EVENTS, PROGRESS) if name != topic}
    with pytest.raises(KafkaSetupError, match=f"topic {topic} does not exist on Kafka at 127.0.0.1:1"):
        check(monkeypatch, partitions=partitions)


@pytest.mark.parametrize(
    "led",
    [partition(1, [1, 2, 3], [1, 3]), partition(1, [1], [1])],
    ids=["one broker away", "fewer replicas than min.insync.replicas"],
)
def test_enough_replicas_in_sync(led: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(monkeypatch, led=led).partition_count == 3


@pytest.mark.parametrize(
    ("led", "state"),
    [
        (
            partition(1, [1, 2, 3], [1]),
            r"has 1 of its 3 replicas in sync, and min.insync.replicas=2 needs 2; not in sync: brokers 2, 3\. It "
            r"passes by itself",
        ),
        (
            partition(-1, [1, 2], [2]),
            "has no leader; its replicas are on brokers 1, 2. It passes by itself once those brokers are back",
        ),
    ],
)
def test_too_few_replicas_in_sync_are_an_outage_with_names(
    led: Any, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        KafkaUnavailable, match=f"topic {EVENTS} on Kafka at 127.0.0.1:1 takes no records: partition 0 {state}"
    ):
        check(monkeypatch, led=led)


def with_times(topic: str, **times: str) -> dict[str, dict[str, str]]:
    named = {f"message.timestamp.{name.replace('_', '.')}": value for name, value in times.items()}
    return {**COMPLETE, topic: {**COMPLETE[topic], **named}}


@pytest.mark.parametrize("topic", [EVENTS, PROGRESS])
@pytest.mark.parametrize(
    ("name", "value", "needed", "usual"),
    [("before_max_ms", "29999", 30_000, 2**63 - 1), ("after_max_ms", "999", 1_000, 3_600_000)],
)
def test_a_topic_that_refuses_the_time_of_an_event_on_its_way(
    topic: str, name: str, value: str, needed: int, usual: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = f"message.timestamp.{name.replace('_', '.')}"
    remedy = f"--alter --topic {topic} --add-config {setting}={usual}"
    with pytest.raises(
        KafkaSetupError, match=f"topic {topic} has {setting}={value}; it must be at least {needed}.*{remedy}"
    ):
        check(monkeypatch, with_times(topic, **{name: value}))
    assert check(monkeypatch, with_times(topic, **{name: str(needed)})).partition_count == 3
    assert check(monkeypatch, with_times(topic, type="LogAppendTime", **{name: value})).partition_count == 3


def test_an_answer_that_never_comes_is_waited_for_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.monotonic()
    with pytest.raises(
        KafkaUnavailable, match=r"no answer after 0\.\d s.*while|while reading the topics' settings .*no answer after"
    ):
        check(monkeypatch, {EVENTS: COMPLETE[EVENTS]})
    assert time.monotonic() - began < 3
