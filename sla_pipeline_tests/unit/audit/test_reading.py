"""What an error of Kafka means to whoever runs the audit."""

import pytest
from confluent_kafka import KafkaError

from sla_pipeline.audit.reading import our_error
from sla_pipeline.errors import KafkaSetupError, KafkaUnavailable, SlaPipelineError
from sla_pipeline.kafka.settings import KafkaSettings

SETTINGS = KafkaSettings("kafka-1:9092", topic="breaches", client_config={"sasl.password": "hush-hush"})


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaSetupError, "topic breaches does not exist on Kafka at kafka-1:9092"),
        (
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            KafkaSetupError,
            "needs Read and Describe on topics breaches and breaches.relay-progress",
        ),
        (KafkaError._AUTHENTICATION, KafkaSetupError, "check SLA_KAFKA_CLIENT_CONFIG"),
        (KafkaError.OFFSET_OUT_OF_RANGE, KafkaSetupError, "expired while they were being read"),
        (KafkaError._TRANSPORT, KafkaUnavailable, "did not answer as expected while topic breaches was being read"),
        (KafkaError._TIMED_OUT, KafkaUnavailable, "run the audit again"),
    ],
)
def test_an_error_is_told_by_what_there_is_to_do(code: int, kind: type[SlaPipelineError], words: str) -> None:
    error = our_error(KafkaError(code, "it says hush-hush"), SETTINGS, "breaches")
    assert type(error) is kind
    assert words in str(error)
    assert "hush-hush" not in str(error)


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
    assert type(our_error(KafkaError(KafkaError._AUTO_OFFSET_RESET, reason), SETTINGS, "breaches")) is kind
