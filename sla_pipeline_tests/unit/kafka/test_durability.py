"""Durability of the topics: one warning in a process, with the remedy; none where the cluster cannot do better."""

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sla_pipeline.kafka.durability import durability_gap, warn_of_gap
from sla_pipeline.kafka.refusals import TopicConfig
from sla_pipeline.kafka.topics import create_topics
from sla_pipeline_tests.unit.kafka.test_topics import COMPLETE, EVENTS, PROGRESS, SETTINGS, check, partition

THREE, TWO, ONE = (partition(1, replicas, replicas) for replicas in ([1, 2, 3], [1, 2], [1]))


@pytest.fixture(autouse=True)
def new_process() -> Iterator[None]:
    """Forget which warnings were logged."""
    warn_of_gap.cache_clear()
    yield
    warn_of_gap.cache_clear()


def gap(led: Any, broker_ids: tuple[int, ...], in_sync: str = "2", **further: str) -> str | None:
    values = {"min.insync.replicas": in_sync, **{name.replace("_", "."): value for name, value in further.items()}}
    return durability_gap(TopicConfig("events", values), {0: THREE, 1: led}, broker_ids)


@pytest.mark.parametrize(
    ("led", "broker_ids", "in_sync", "warning"),
    [
        (
            ONE,
            (1, 2, 3),
            "1",
            "topic events has a partition with 1 replica: acknowledged records are lost with the disk of its broker. "
            "Raise the replicas to 3 by kafka-reassign-partitions.sh, then run kafka-configs.sh --alter --topic events "
            "--add-config min.insync.replicas=2",
        ),
        (
            THREE,
            (1, 2, 3),
            "1",
            "topic events has min.insync.replicas=1: a record counts as published while one broker holds it, and is "
            "lost with that broker. Run kafka-configs.sh --alter --topic events --add-config min.insync.replicas=2",
        ),
        (
            TWO,
            (1, 2, 3),
            "2",
            "topic events has a partition with 2 replicas: nothing is published while one of its brokers is down. "
            "Raise the replicas to 3 by kafka-reassign-partitions.sh",
        ),
    ],
    ids=["one replica", "one in sync", "two replicas"],
)
def test_a_topic_that_falls_short_is_named_with_value_loss_and_remedy(
    led: Any, broker_ids: tuple[int, ...], in_sync: str, warning: str
) -> None:
    assert gap(led, broker_ids, in_sync) == warning


def test_an_unclean_election_loses_acknowledged_records() -> None:
    assert gap(THREE, (1, 2, 3), unclean_leader_election_enable="false") is None
    assert "--topic events --add-config unclean.leader.election.enable=false" in (
        gap(THREE, (1, 2, 3), unclean_leader_election_enable="true") or ""
    )


def test_two_brokers_that_are_down_hide_no_gap() -> None:
    assert "min.insync.replicas=1" in (gap(THREE, (1,), in_sync="1") or "")


@pytest.mark.parametrize(("led", "broker_ids"), [(ONE, (1,)), (TWO, (1, 2))], ids=["one broker", "two brokers"])
def test_a_cluster_that_cannot_hold_more_replicas_has_no_gap(led: Any, broker_ids: tuple[int, ...]) -> None:
    config = TopicConfig("events", {"min.insync.replicas": str(len(broker_ids))})
    assert durability_gap(config, {0: led}, broker_ids) is None


def test_each_gap_is_logged_once_in_a_process_and_refuses_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    configs = {topic: {**values, "min.insync.replicas": "1"} for topic, values in COMPLETE.items()}
    for _ in range(3):
        assert check(monkeypatch, configs).partition_count == 3
    logged = [(record.levelno, record.message.partition(":")[0]) for record in caplog.records]
    assert logged == [(logging.WARNING, f"topic {topic} has min.insync.replicas=1") for topic in (EVENTS, PROGRESS)]


def test_a_cluster_of_one_broker_logs_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    configs = {topic: {**values, "min.insync.replicas": "1"} for topic, values in COMPLETE.items()}
    check(monkeypatch, configs, led=ONE, broker_ids=(1,))
    assert caplog.records == []


@pytest.mark.parametrize(("replication_factor", "in_sync"), [(1, None), (2, "2"), (3, "2")])
def test_topics_are_created_with_the_replicas_in_sync_that_their_number_allows(
    replication_factor: int, in_sync: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    created: list[Any] = []

    class Recorded(Exception):
        pass

    def create(topics: list[Any], **times: float) -> Any:
        created.extend(topics)
        raise Recorded

    admin = SimpleNamespace(
        list_topics=lambda timeout: SimpleNamespace(topics={}), create_topics=create, poll=lambda timeout: None
    )
    monkeypatch.setattr("sla_pipeline.kafka.topics.open_admin", lambda settings, reports: admin)
    with pytest.raises(Recorded):
        create_topics(SETTINGS, replication_factor=replication_factor)
    assert [topic.config.get("min.insync.replicas") for topic in created] == [in_sync, in_sync]
