"""Errors of Kafka as the audit reports them."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from sla_pipeline.audit.reading import translated_errors
from sla_pipeline.errors import KafkaSetupError, KafkaUnavailable, SlaPipelineError
from sla_pipeline.kafka.clients import ClientReports
from sla_pipeline.kafka.settings import KafkaSettings

SETTINGS = KafkaSettings("kafka-1:9092", topic="breaches", client_config={"sasl.password": "hush-hush"})


def raised_for(error: KafkaError, reported: KafkaError | None = None) -> SlaPipelineError:
    """The error that the audit raises when a call fails with ``error``."""
    reports = ClientReports()
    if reported is not None:
        reports.on_error(reported)
    with pytest.raises(SlaPipelineError) as caught, translated_errors(SETTINGS, "breaches", reports):
        raise KafkaException(error)
    return caught.value


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaSetupError, "topic breaches does not exist on Kafka at kafka-1:9092"),
        (
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            KafkaSetupError,
            "An audit needs Read and Describe on topics breaches and breaches.relay-progress",
        ),
        (KafkaError._AUTHENTICATION, KafkaSetupError, "settings in SLA_KAFKA_CLIENT_CONFIG"),
        (KafkaError.OFFSET_OUT_OF_RANGE, KafkaSetupError, "topic breaches on Kafka at kafka-1:9092 lost the records"),
        (KafkaError._TRANSPORT, KafkaUnavailable, "did not answer as expected while auditing topic breaches"),
        (KafkaError._TIMED_OUT, KafkaUnavailable, "check that it runs and can be reached"),
    ],
)
def test_an_error_names_what_to_do(code: int, kind: type[SlaPipelineError], words: str) -> None:
    error = raised_for(KafkaError(code, "it says hush-hush"))
    assert type(error) is kind
    assert words in str(error)
    assert "hush-hush" not in str(error)


def test_a_refused_login_that_the_client_reported_explains_a_timeout() -> None:
    error = raised_for(KafkaError(KafkaError._TIMED_OUT), KafkaError(KafkaError._AUTHENTICATION))
    assert type(error) is KafkaSetupError
    assert "refuses our credentials" in str(error)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (
            "fetch failed due to requested offset not available on the broker: Broker: Offset out of range (broker 1)",
            KafkaSetupError,
        ),
        ("Unable to validate offset and epoch: Local: Broker transport failure (broker 1)", KafkaUnavailable),
    ],
)
def test_a_lost_offset_is_expiry_or_an_outage_by_its_reason(reason: str, kind: type[SlaPipelineError]) -> None:
    assert type(raised_for(KafkaError(KafkaError._AUTO_OFFSET_RESET, reason))) is kind
