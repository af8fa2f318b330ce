"""A broker that requires credentials or rights: a refusal differs from an outage, and no secret is shown."""

import logging

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from sla_pipeline.embedded import EmbeddedKafka
from sla_pipeline.embedded.ports import listens
from sla_pipeline.errors import ConfigurationError, KafkaSetupError, KafkaUnavailable
from sla_pipeline.kafka.clients import ClientReports, open_admin
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.kafka.topics import check_topics, create_topics
from sla_pipeline_tests.conftest import BrokerFactory
from sla_pipeline_tests.integration.kafka.breach_records import BreachRecords
from sla_pipeline_tests.integration.kafka.conftest import Publish

_PASSWORD = "right-horse-battery"  # noqa: S105 - of a broker that lives as long as one test
_SASL = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.plaintext.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="broker" password="{_PASSWORD}" user_broker="{_PASSWORD}" user_sla="{_PASSWORD}";'
    ),
}


def with_password(broker: EmbeddedKafka, password: str) -> KafkaSettings:
    """Return settings that log in as ``sla``."""
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "sla",
        "sasl.password": password,
    }
    return KafkaSettings(broker.bootstrap_servers, client_config=login)


def test_a_wrong_password_is_distinguished_from_an_outage_and_never_shown(
    own_broker: BrokerFactory,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    # the broker's own check of readiness does not log in
    monkeypatch.setattr(
        EmbeddedKafka, "_answers", lambda broker: listens(int(broker.bootstrap_servers.rpartition(":")[2]))
    )
    broker = own_broker(_SASL)
    right = with_password(broker, _PASSWORD)
    create_topics(right)
    caplog.set_level(logging.DEBUG)
    capfd.readouterr()
    with pytest.raises(
        KafkaSetupError, match=r"refuses our credentials .*Invalid username or password.*SLA_KAFKA_CLIENT_CONFIG"
    ) as raised:
        check_topics(with_password(broker, "wrong-horse-battery"))
    shown = f"{raised.value!s}{raised.value!r}{caplog.text}{right!r}"
    assert "horse" not in shown
    assert [record.name for record in caplog.records if "Invalid username" in record.getMessage()] == [
        "sla_pipeline.kafka.clients"
    ]
    # a login that is not sent at all: the broker closes the connection without a reason, as a stopping broker does
    with pytest.raises(
        KafkaUnavailable,
        match=r"closed the connection .*Disconnected.*set security.protocol in SLA_KAFKA_CLIENT_CONFIG",
    ):
        check_topics(KafkaSettings(broker.bootstrap_servers))
    # librdkafka's log goes to logging, not past it
    assert capfd.readouterr().err == ""


def test_tls_against_a_port_without_it_is_a_fault_of_the_settings(kafka_bootstrap: str) -> None:
    with pytest.raises(
        KafkaSetupError, match=r"refuses our credentials or its TLS certificate is not trusted.*SLA_KAFKA_CLIENT_CONFIG"
    ):
        check_topics(KafkaSettings(kafka_bootstrap, client_config={"security.protocol": "ssl"}))


def test_a_denied_right_names_topic_and_what_is_needed(
    own_broker: BrokerFactory, records: BreachRecords, publish: Publish
) -> None:
    broker = own_broker(
        {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
        }
    )
    settings = KafkaSettings(broker.bootstrap_servers)
    create_topics(settings)
    admin = open_admin(settings, ClientReports())
    denied = AclBinding(
        ResourceType.TOPIC,
        settings.topic,
        ResourcePatternType.LITERAL,
        "User:ANONYMOUS",
        "*",
        AclOperation.WRITE,
        AclPermissionType.DENY,
    )
    for future in admin.create_acls([denied]).values():
        future.result()
    records.add(2)
    with pytest.raises(
        KafkaSetupError,
        match=rf"denies us a right .*TOPIC_AUTHORIZATION_FAILED.*topic {settings.topic}.*needs Write, Read",
    ):
        publish(settings)
    assert records.positions() == (0, 2)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"linger.mss": "5"}, "linger.mss"),
        # librdkafka names it by its older name
        ({"linger.ms": "soon"}, "queue.buffering.max.ms"),
        ({"security.protocol": "ssl", "ssl.ca.location": "/no/such/file"}, "ssl.ca.location"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "sasl.username"),
    ],
)
def test_a_setting_that_the_client_refuses_is_named(config: dict[str, str], named: str, kafka_bootstrap: str) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"the Kafka client refuses its configuration: .*{named}.*SLA_KAFKA_CLIENT_CONFIG"
    ):
        check_topics(KafkaSettings(kafka_bootstrap, client_config=config))
