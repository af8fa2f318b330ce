"""librdkafka's errors translated: faults that a person must correct differ from those that the next cycle retries."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from sla_pipeline.errors import (
    KafkaSetupError,
    KafkaUnavailable,
    PostgresUnavailable,
    PublisherFenced,
    SlaPipelineError,
)
from sla_pipeline.kafka.faults import ErrorContext, configuration_fault, described_record, more_specific, translate
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.outbox import BreachRecord

_SETTINGS = KafkaSettings("kafka:9092", "events", {"sasl.password": "swordfish"})
_RECORD = BreachRecord(17, "7d444840-9dc0-11d1-b245-5ffdce74fad2", "run-1", '{"Number":"TCK-9"}')


def context(**changes: object) -> ErrorContext:
    return ErrorContext(_SETTINGS, "committing a transaction", **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (KafkaError._AUTHENTICATION, KafkaSetupError, "refuses our credentials"),
        (KafkaError.SASL_AUTHENTICATION_FAILED, KafkaSetupError, "refuses our credentials"),
        (KafkaError._SSL, KafkaSetupError, "TLS certificate is not trusted"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaSetupError, "denies us a right"),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, KafkaSetupError, "denies us a right"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaSetupError, "topic events does not exist on Kafka at kafka:9092"),
        (KafkaError._UNKNOWN_TOPIC, KafkaSetupError, "`sla-pipeline migrate`"),
        (KafkaError.MSG_SIZE_TOO_LARGE, KafkaSetupError, "too large"),
        (KafkaError.INVALID_TRANSACTION_TIMEOUT, KafkaSetupError, "transaction.max.timeout.ms"),
        (KafkaError._QUEUE_FULL, KafkaSetupError, "queue.buffering.max.messages"),
        (KafkaError.OFFSET_OUT_OF_RANGE, KafkaSetupError, "retention is shorter"),
        (KafkaError._LOG_TRUNCATION, KafkaSetupError, "retention is shorter"),
        (
            KafkaError.INVALID_REPLICATION_FACTOR,
            KafkaSetupError,
            "`sla-pipeline migrate --replication-factor` with at most their number",
        ),
        (KafkaError.POLICY_VIOLATION, KafkaSetupError, "refuses the request"),
        (KafkaError._UNSUPPORTED_FEATURE, KafkaSetupError, "refuses the request"),
        (
            KafkaError.INVALID_TIMESTAMP,
            KafkaSetupError,
            "refuses the time of an event of topic events",
        ),
        (KafkaError.INVALID_RECORD, KafkaSetupError, "refuses the events of topic events"),
        (KafkaError.INVALID_REQUIRED_ACKS, KafkaSetupError, "does so until the cause is corrected"),
        (
            KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
            KafkaSetupError,
            "does so until the cause is corrected. The broker's log",
        ),
        (KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT, KafkaSetupError, "does so until the cause is corrected"),
        (KafkaError.NOT_ENOUGH_REPLICAS, KafkaUnavailable, "has too few replicas of topic events in sync"),
        (
            KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            KafkaUnavailable,
            "passes by itself once the brokers of the others are back",
        ),
        (KafkaError.KAFKA_STORAGE_ERROR, KafkaUnavailable, "else the disk must be repaired"),
        # the topic was just checked: the client does not have its partitions yet
        (KafkaError._UNKNOWN_PARTITION, KafkaUnavailable, "did not answer"),
        (KafkaError._FENCED, PublisherFenced, "another publisher has taken over events.relay"),
        (KafkaError.PRODUCER_FENCED, PublisherFenced, "another publisher has taken over"),
        (KafkaError.INVALID_PRODUCER_EPOCH, PublisherFenced, "another publisher has taken over"),
        (KafkaError._TIMED_OUT, KafkaUnavailable, "did not answer as expected"),
        (KafkaError._TRANSPORT, KafkaUnavailable, "can be reached"),
        (KafkaError._ALL_BROKERS_DOWN, KafkaUnavailable, "kafka:9092"),
        (KafkaError._INCONSISTENT, KafkaUnavailable, "did not answer as expected"),
        (KafkaError.INVALID_PRODUCER_ID_MAPPING, KafkaUnavailable, "did not answer as expected"),
        (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaUnavailable, "did not answer as expected"),
    ],
)
def test_each_code_has_its_error_class_and_its_text(code: int, kind: type[SlaPipelineError], words: str) -> None:
    translated = translate(KafkaException(KafkaError(code, "the reason")), context())
    assert type(translated) is kind
    assert words in str(translated)
    assert "while committing a transaction" in str(translated)
    assert "the reason" in str(translated)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (
            "fetch failed due to requested offset not available on the broker: Broker: Offset out of range (broker 1)",
            KafkaSetupError,
        ),
        (
            "Partition log truncation detected at offset 7: Local: Partition log truncation detected (broker 1)",
            KafkaSetupError,
        ),
        ("failed to query logical offset: Broker: Topic authorization failed (broker 1)", KafkaSetupError),
        ("Unable to validate offset and epoch: Local: Broker transport failure (broker 1)", KafkaUnavailable),
        ("failed to query logical offset: Local: Timed out (broker 1)", KafkaUnavailable),
        ("Unable to validate offset and epoch: Broker: Not leader for partition (broker 1)", KafkaUnavailable),
    ],
)
def test_a_lost_offset_is_judged_by_its_reason(reason: str, kind: type[SlaPipelineError]) -> None:
    translated = translate(KafkaException(KafkaError(KafkaError._AUTO_OFFSET_RESET, reason)), context())
    assert type(translated) is kind
    assert ("lost the records" in str(translated)) == ("out of range" in reason or "truncation" in reason)


def test_a_quota_explains_a_timeout() -> None:
    translated = translate(
        KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT)), context(transaction_open=True, throttled_seconds=37.9)
    )
    assert type(translated) is KafkaUnavailable
    assert "holds this client back by a quota, up to 38 s a request, while committing a transaction" in str(translated)


@pytest.mark.parametrize(
    "reason",
    [
        "Disconnected: connection closed by peer: receive 0 after POLLIN (after 1ms in state UP)",
        "Disconnected while requesting ApiVersion: might be caused by incorrect security.protocol configuration",
    ],
)
def test_a_closed_connection_has_two_causes(reason: str) -> None:
    reported = KafkaError(KafkaError._TRANSPORT, reason)
    translated = translate(KafkaException(KafkaError(KafkaError._TRANSPORT, "no metadata")), context(reported=reported))
    assert type(translated) is KafkaUnavailable
    assert (
        "passes by itself if the broker is just starting or stopping. If not, the listener requires TLS or a login"
        in str(translated)
    )


def test_a_configured_compression_is_named() -> None:
    compressed = ErrorContext(KafkaSettings("kafka:9092", "events", {"compression.codec": "zstd"}), "delivering events")
    translated = translate(KafkaException(KafkaError(KafkaError.UNSUPPORTED_COMPRESSION_TYPE)), compressed)
    assert (
        "SLA_KAFKA_CLIENT_CONFIG sets compression.codec: leave it out if the broker does not take that compression"
        in str(translated)
    )


def test_a_fatal_error_that_surfaces_as_a_system_error_is_known_by_its_cause() -> None:
    error = SystemError("<method 'flush' of ...> returned a result with an exception set")
    error.__cause__ = KafkaException(KafkaError(KafkaError._FENCED, "fenced", fatal=True))
    assert type(translate(error, context())) is PublisherFenced


def test_a_system_error_without_a_cause_is_an_unknown_outcome() -> None:
    translated = translate(SystemError("returned a result with an exception set"), context(transaction_open=True))
    assert type(translated) is KafkaUnavailable
    assert "The transaction's outcome is unknown" in str(translated)


def test_a_system_error_without_a_cause_is_explained_by_what_the_client_reported() -> None:
    fenced = KafkaError(KafkaError._FENCED, "fenced", fatal=True)
    assert (
        type(translate(SystemError("returned NULL without setting an exception"), context(reported=fenced)))
        is PublisherFenced
    )


def test_tls_against_a_port_without_it_is_no_outage() -> None:
    reported = KafkaError(
        KafkaError._TRANSPORT, "SSL handshake failed: Disconnected: connecting to a PLAINTEXT broker listener?"
    )
    assert (
        type(translate(KafkaException(KafkaError(KafkaError._TRANSPORT, "no metadata")), context(reported=reported)))
        is KafkaSetupError
    )


def test_a_fatal_error_may_hold_the_fence_in_its_text_only() -> None:
    reason = "Local: This instance has been fenced by a newer instance"
    assert type(translate(KafkaException(KafkaError(KafkaError._FATAL, reason)), context())) is PublisherFenced


def test_a_timeout_is_explained_by_what_the_client_reported() -> None:
    reported = KafkaError(KafkaError._AUTHENTICATION, "Invalid username or password")
    translated = translate(KafkaException(KafkaError(KafkaError._TIMED_OUT)), context(reported=reported))
    assert type(translated) is KafkaSetupError
    assert "Invalid username or password" in str(translated)


def test_what_the_client_reported_does_not_hide_a_fence() -> None:
    reported = KafkaError(KafkaError._AUTHENTICATION, "an old story")
    assert (
        type(translate(KafkaException(KafkaError(KafkaError._FENCED)), context(reported=reported))) is PublisherFenced
    )


def test_an_event_that_is_too_large_is_named() -> None:
    translated = translate(KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)), context(rejected=[_RECORD]))
    assert "ticket TCK-9 (id 7d444840-9dc0-11d1-b245-5ffdce74fad2, sequence 17, 18 bytes)" in str(translated)


def test_a_full_queue_is_a_fault_of_the_settings() -> None:
    translated = translate(BufferError("Local: Queue full"), context())
    assert type(translated) is KafkaSetupError
    assert "queue.buffering.max.kbytes in SLA_KAFKA_CLIENT_CONFIG" in str(translated)


def test_secrets_are_masked() -> None:
    assert "swordfish" not in str(
        translate(KafkaException(KafkaError(KafkaError._FAIL, "no swordfish here")), context())
    )


def test_our_own_errors_pass_as_they_are() -> None:
    translated = PostgresUnavailable("gone")
    assert translate(translated, context()) is translated


@pytest.mark.parametrize("error", [ValueError("a bug"), KafkaException("without an error of the client")])
def test_a_bug_is_no_outage(error: Exception) -> None:
    assert translate(error, context()) is None


def test_of_several_reports_the_one_that_a_person_must_correct_stays() -> None:
    down = KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down")
    refused = KafkaError(KafkaError._TRANSPORT, "Connection refused")
    password = KafkaError(KafkaError._AUTHENTICATION, "Invalid password")
    assert more_specific(None, down) is down
    assert more_specific(refused, down) is refused
    assert more_specific(down, refused) is refused
    assert more_specific(password, refused) is password
    assert more_specific(refused, password) is password


def test_a_record_whose_payload_is_no_json_is_still_described() -> None:
    assert (
        described_record(BreachRecord(3, "id", "run", "<broken>"))
        == "ticket without a number (id id, sequence 3, 8 bytes)"
    )


def test_a_refused_configuration_names_the_setting_and_not_its_value() -> None:
    reason = 'Invalid value "swordfish" for configuration property "sasl.password"'
    translated = configuration_fault(KafkaException(KafkaError(KafkaError._INVALID_ARG, reason)), _SETTINGS)
    assert '"sasl.password"' in str(translated)
    assert "swordfish" not in str(translated)
