"""Kafka settings: validated on creation, without secrets in any text."""

import json
import pickle

import pytest

from sla_pipeline.errors import ConfigurationError
from sla_pipeline.event import EVENT_TOPIC
from sla_pipeline.kafka.client_config import admin_config, consumer_config, producer_config
from sla_pipeline.kafka.settings import KafkaSettings

_SECRET = "swordfish"  # noqa: S105 - made up here
_ENVIRONMENT = {"SLA_KAFKA_BOOTSTRAP_SERVERS": "kafka-1:9092, kafka-2:9092"}


def test_the_environment_gives_servers_topic_and_client_settings() -> None:
    client_config = {
        "security.protocol": "SASL_SSL",
        "sasl.password": _SECRET,
        "debug": "",
        "socket.keepalive.enable": True,
        "linger.ms": 5,
    }
    settings = KafkaSettings.from_environment(
        {**_ENVIRONMENT, "SLA_KAFKA_TOPIC": "some.topic", "SLA_KAFKA_CLIENT_CONFIG": json.dumps(client_config)}
    )
    assert settings == KafkaSettings(
        "kafka-1:9092,kafka-2:9092",
        "some.topic",
        {
            "security.protocol": "SASL_SSL",
            "sasl.password": _SECRET,
            "debug": "",
            "socket.keepalive.enable": "true",
            "linger.ms": "5",
        },
    )


def test_only_the_servers_must_be_given() -> None:
    settings = KafkaSettings.from_environment(_ENVIRONMENT)
    assert (settings.topic, settings.client_config) == (EVENT_TOPIC, {})


def test_names_derive_from_the_topic() -> None:
    settings = KafkaSettings("kafka:9092", "t")
    assert (settings.progress_topic, settings.transactional_id, settings.group_id) == (
        "t.relay-progress",
        "t.relay",
        "t.readers",
    )


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ({}, "SLA_KAFKA_BOOTSTRAP_SERVERS is not set; set it to Kafka's addresses"),
        ({"SLA_KAFKA_BOOTSTRAP_SERVERS": "  "}, "SLA_KAFKA_BOOTSTRAP_SERVERS is not set"),
        (
            {"SLA_KAFKA_BOOTSTRAP_SERVERS": "kafka"},
            r"SLA_KAFKA_BOOTSTRAP_SERVERS\) hold 'kafka'; write them as host:port",
        ),
        ({"SLA_KAFKA_BOOTSTRAP_SERVERS": "a:1,,b:2"}, "hold ''; write them as host:port"),
        ({**_ENVIRONMENT, "SLA_KAFKA_TOPIC": "white space"}, r"SLA_KAFKA_TOPIC\) is 'white space'"),
        ({**_ENVIRONMENT, "SLA_KAFKA_TOPIC": "t" * 201}, "at most 200 letters"),
        (
            {**_ENVIRONMENT, "SLA_KAFKA_CLIENT_CONFIG": '{"a": }'},
            r"SLA_KAFKA_CLIENT_CONFIG is not JSON \(line 1, column 7\)",
        ),
        ({**_ENVIRONMENT, "SLA_KAFKA_CLIENT_CONFIG": "[1]"}, "is a JSON list, not an object"),
        ({**_ENVIRONMENT, "SLA_KAFKA_CLIENT_CONFIG": '{"a": null}'}, "the value of 'a' is a null"),
        ({**_ENVIRONMENT, "SLA_KAFKA_CLIENT_CONFIG": '{"a": {"b": 1}}'}, "the value of 'a' is a dict"),
        (
            {**_ENVIRONMENT, "SLA_KAFKA_CLIENT_CONFIG": '{"batch.size": "big"}'},
            "batch.size is 'big'; it must be a whole number above 0",
        ),
        (
            {**_ENVIRONMENT, "SLA_KAFKA_CLIENT_CONFIG": '{"queue.buffering.max.messages": 0}'},
            "queue.buffering.max.messages is '0'",
        ),
    ],
)
def test_a_missing_or_malformed_variable_is_named_with_its_remedy(environment: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        KafkaSettings.from_environment(environment)


def test_text_that_is_not_json_is_not_repeated() -> None:
    with pytest.raises(ConfigurationError) as raised:
        KafkaSettings.from_environment({**_ENVIRONMENT, "SLA_KAFKA_CLIENT_CONFIG": f"sasl.password={_SECRET}"})
    assert _SECRET not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize(
    "key",
    [
        "transactional.id",
        "transaction.timeout.ms",
        "enable.idempotence",
        "acks",
        "request.required.acks",
        "isolation.level",
        "bootstrap.servers",
        "metadata.broker.list",
        "enable.auto.commit",
        "auto.offset.reset",
        "group.id",
        "max.in.flight.requests.per.connection",
        "message.timeout.ms",
        "partitioner",
        "allow.auto.create.topics",
        "test.mock.num.brokers",
    ],
)
def test_a_setting_on_which_exactly_once_rests_is_refused_by_name(key: str) -> None:
    with pytest.raises(ConfigurationError, match=f"SLA_KAFKA_CLIENT_CONFIG.* set {key}: exactly-once"):
        KafkaSettings("kafka:9092", client_config={key: "1"})


def test_repr_shows_no_value_of_the_client_settings() -> None:
    settings = KafkaSettings("kafka:9092", "t", {"sasl.password": _SECRET, "linger.ms": "17"})
    assert (
        repr(settings)
        == "KafkaSettings(bootstrap_servers='kafka:9092', topic='t', client_config={linger.ms=***, sasl.password=***})"
    )


def test_settings_are_frozen_hashable_and_travel_to_another_process() -> None:
    settings = KafkaSettings("kafka:9092", "t", {"linger.ms": "17"})
    with pytest.raises(AttributeError):
        settings.topic = "other"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(settings)) == settings  # noqa: S301 - our own bytes
    assert hash(settings) == hash(KafkaSettings("kafka:9092", "t"))


def test_masked_text_holds_no_secret() -> None:
    settings = KafkaSettings("kafka:9092", "t", {"ssl.key.password": _SECRET, "linger.ms": "17"})
    assert settings.masked(f"invalid value {_SECRET} after 17 ms") == "invalid value *** after 17 ms"


def test_further_settings_reach_every_client_and_the_protocol_stays_ours() -> None:
    settings = KafkaSettings("kafka:9092", "t", {"compression.type": "none", "socket.keepalive.enable": "true"})
    producer, admin = producer_config(settings), admin_config(settings)
    consumer = consumer_config(settings, isolation_level="read_committed")
    assert {config["socket.keepalive.enable"] for config in (producer, consumer, admin)} == {"true"}
    assert producer["compression.type"] == "none"
    assert (producer["transactional.id"], producer["transaction.timeout.ms"]) == ("t.relay", 30_000)
    assert (consumer["isolation.level"], consumer["auto.offset.reset"], consumer["enable.auto.commit"]) == (
        "read_committed",
        "error",
        False,
    )


@pytest.mark.parametrize(
    ("configured", "topic_limit", "batch"), [(None, None, 1_000_000), (None, 3_000, 3_000), ("500", 3_000, 500)]
)
def test_a_batch_is_never_larger_than_the_topic_allows(
    configured: str | None, topic_limit: int | None, batch: int
) -> None:
    settings = KafkaSettings("kafka:9092", "t", {"batch.size": configured} if configured else {})
    assert producer_config(settings, largest_batch_bytes=topic_limit)["batch.size"] == batch
