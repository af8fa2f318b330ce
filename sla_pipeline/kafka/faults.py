"""Translate errors of librdkafka into ours: each message has the address, the topic and the remedy.

Pure functions, testable without a server. None decides whether a transaction was committed, because no error shows it
(the same timeout was seen for either outcome); the next attempt reads it back from the progress topic.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto

from confluent_kafka import KafkaError, KafkaException

from sla_pipeline.errors import ConfigurationError, KafkaSetupError, KafkaUnavailable, PublisherFenced, SlaPipelineError
from sla_pipeline.kafka.settings import CLIENT_CONFIG_VARIABLE, KafkaSettings
from sla_pipeline.outbox import BreachRecord
from sla_pipeline.quoting import named

__all__ = [
    "ErrorContext",
    "Fault",
    "classify",
    "client_error_of",
    "configuration_fault",
    "described_record",
    "more_specific",
    "translate",
]


class Fault(Enum):
    """Fault categories, one per remedy."""

    CREDENTIALS = auto()
    AUTHORIZATION = auto()
    TOPIC_MISSING = auto()
    TOO_LARGE = auto()
    FENCED = auto()
    TRANSACTION_TIMEOUT = auto()
    QUEUE_FULL = auto()
    OFFSET_LOST = auto()
    TIMESTAMP = auto()
    RECORD_REFUSED = auto()
    REPLICAS = auto()
    DISK = auto()
    TOO_FEW_BROKERS = auto()
    REFUSED = auto()
    UNAVAILABLE = auto()


_FAULT_BY_CODE = {
    KafkaError._AUTHENTICATION: Fault.CREDENTIALS,
    KafkaError._SSL: Fault.CREDENTIALS,
    KafkaError.SASL_AUTHENTICATION_FAILED: Fault.CREDENTIALS,
    KafkaError.ILLEGAL_SASL_STATE: Fault.CREDENTIALS,
    KafkaError.UNSUPPORTED_SASL_MECHANISM: Fault.CREDENTIALS,
    KafkaError.TOPIC_AUTHORIZATION_FAILED: Fault.AUTHORIZATION,
    KafkaError.GROUP_AUTHORIZATION_FAILED: Fault.AUTHORIZATION,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: Fault.AUTHORIZATION,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Fault.AUTHORIZATION,
    KafkaError.UNKNOWN_TOPIC_OR_PART: Fault.TOPIC_MISSING,
    KafkaError.UNKNOWN_TOPIC_ID: Fault.TOPIC_MISSING,
    KafkaError._UNKNOWN_TOPIC: Fault.TOPIC_MISSING,
    KafkaError.MSG_SIZE_TOO_LARGE: Fault.TOO_LARGE,
    KafkaError.INVALID_MSG_SIZE: Fault.TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE: Fault.TOO_LARGE,
    KafkaError._FENCED: Fault.FENCED,
    KafkaError.PRODUCER_FENCED: Fault.FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH: Fault.FENCED,
    KafkaError.INVALID_TRANSACTION_TIMEOUT: Fault.TRANSACTION_TIMEOUT,
    KafkaError._QUEUE_FULL: Fault.QUEUE_FULL,
    KafkaError.OFFSET_OUT_OF_RANGE: Fault.OFFSET_LOST,
    KafkaError._LOG_TRUNCATION: Fault.OFFSET_LOST,
    KafkaError.INVALID_TIMESTAMP: Fault.TIMESTAMP,
    KafkaError.INVALID_RECORD: Fault.RECORD_REFUSED,
    KafkaError.INVALID_REQUIRED_ACKS: Fault.RECORD_REFUSED,
    KafkaError.UNSUPPORTED_COMPRESSION_TYPE: Fault.RECORD_REFUSED,
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT: Fault.RECORD_REFUSED,
    KafkaError.NOT_ENOUGH_REPLICAS: Fault.REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Fault.REPLICAS,
    KafkaError.KAFKA_STORAGE_ERROR: Fault.DISK,
    KafkaError.INVALID_CONFIG: Fault.REFUSED,
    KafkaError.INVALID_PARTITIONS: Fault.REFUSED,
    KafkaError.INVALID_REPLICATION_FACTOR: Fault.TOO_FEW_BROKERS,
    KafkaError.POLICY_VIOLATION: Fault.REFUSED,
    KafkaError.TOPIC_EXCEPTION: Fault.REFUSED,
    KafkaError.UNSUPPORTED_VERSION: Fault.REFUSED,
    KafkaError._UNSUPPORTED_FEATURE: Fault.REFUSED,
}
_FAULT_BY_TEXT = {
    "fenced by a newer instance": Fault.FENCED,
    "SSL handshake failed": Fault.CREDENTIALS,
}
# Asynchronously reported errors explain a bare timeout; of several, one that a person must correct explains most.
_ACTIONABLE = (Fault.CREDENTIALS, Fault.AUTHORIZATION, Fault.TOPIC_MISSING)


@dataclass(frozen=True, slots=True)
class ErrorContext:
    """Circumstances of an error: ``doing`` completes "Kafka ... while ".

    ``reported`` is the error that the client reported in a callback; ``rejected`` are the records at fault;
    ``transaction_open`` is true once a transaction had begun, so that its outcome is unknown; ``throttled_seconds`` is
    the longest delay that a quota caused; ``time_limits`` lists the topic's settings that limit the time of an event;
    ``required_rights`` is the sentence on the rights that the client needs, the publisher's when empty.
    """

    settings: KafkaSettings
    doing: str
    reported: KafkaError | None = None
    topic: str | None = None
    rejected: Sequence[BreachRecord] = ()
    transaction_open: bool = False
    throttled_seconds: float = 0.0
    time_limits: str = ""
    required_rights: str = ""


def classify(error: KafkaError) -> Fault:
    """Return the fault of an error of librdkafka; an unknown error is an outage, which the next cycle retries."""
    if error.code() == KafkaError._AUTO_OFFSET_RESET:
        # This code covers outages as well as lost records; only librdkafka's text has the reason.
        return next(
            (fault for code, fault in _FAULT_BY_CODE.items() if KafkaError(code).str() in error.str()),
            Fault.UNAVAILABLE,
        )
    fault = _FAULT_BY_CODE.get(error.code(), Fault.UNAVAILABLE)
    if fault is not Fault.UNAVAILABLE:
        return fault
    # Some general codes (_FATAL, _TRANSPORT) have their reason in the text only.
    return next((hinted for hint, hinted in _FAULT_BY_TEXT.items() if hint in error.str()), Fault.UNAVAILABLE)


def client_error_of(error: BaseException) -> KafkaError | None:
    """Return the error of librdkafka inside an exception, or None.

    A fatal error that is found while a delivery callback runs surfaces as ``SystemError``, with or without the real one
    as its cause.
    """
    if isinstance(error, SystemError) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, KafkaException) and error.args and isinstance(error.args[0], KafkaError):
        return error.args[0]
    return None


def more_specific(known: KafkaError | None, new: KafkaError) -> KafkaError:
    """Return the error to show, of two that a client reported.

    Errors that a person must correct come first, then any with a reason, then "all brokers down".
    """
    return known if known is not None and _specificity(known) > _specificity(new) else new


def _specificity(error: KafkaError) -> int:
    if error.code() == KafkaError._ALL_BROKERS_DOWN:
        return 0
    return 2 if classify(error) in _ACTIONABLE else 1


def described_record(record: BreachRecord) -> str:
    """Return a breach record's ticket number and id, sequence and size in bytes: the keys that on-call searches by."""
    try:
        number = str(json.loads(record.payload)["Number"])
    except (ValueError, TypeError, KeyError):
        number = "without a number"
    return (
        f"ticket {named(number)} (id {record.ticket_id}, sequence {record.seq}, {len(record.payload.encode())} bytes)"
    )


def translate(error: BaseException, context: ErrorContext) -> SlaPipelineError | None:
    """Return our error for ``error``, without secrets; None for one that is not Kafka's.

    The caller must raise such an error unchanged: a bug is no outage.
    """
    if isinstance(error, SlaPipelineError):
        return error
    if isinstance(error, BufferError):
        return _message(Fault.QUEUE_FULL, "the producer's queue is full", context)
    client_error = client_error_of(error)
    if client_error is not None:
        fault, text = classify(client_error), _text_of(client_error)
    elif isinstance(error, SystemError):
        fault, text = Fault.UNAVAILABLE, f"SystemError: {error}"
    else:
        return None
    if fault is Fault.UNAVAILABLE and context.reported is not None:
        fault, text = classify(context.reported), f"{text}; {_text_of(context.reported)}"
    return _message(fault, text, context)


def _text_of(error: KafkaError) -> str:
    return f"{error.name()}: {error.str()}"


def _message(fault: Fault, text: str, context: ErrorContext) -> SlaPipelineError:  # noqa: PLR0911 - one return a fault reads best
    settings, detail = context.settings, context.settings.masked(text)
    where = f"Kafka at {settings.bootstrap_servers}"
    topic = context.topic or settings.topic
    at = f"while {context.doing} ({detail})"
    match fault:
        case Fault.CREDENTIALS:
            return KafkaSetupError(
                f"{where} refuses our credentials or its TLS certificate is not trusted, {at}; check the security "
                f"settings in {CLIENT_CONFIG_VARIABLE}"
            )
        case Fault.AUTHORIZATION:
            publisher_rights = (
                "The publisher needs Write, Read, Describe and DescribeConfigs on the topics, Write and Describe on "
                f"the transactional id and Read on the group, each of the prefix {settings.topic}"
            )
            return KafkaSetupError(
                f"{where} denies us a right {at}; topic {topic}. {context.required_rights or publisher_rights}"
            )
        case Fault.TOPIC_MISSING:
            return KafkaSetupError(
                f"topic {topic} does not exist on {where}, {at}; create it by `sla-pipeline migrate`"
            )
        case Fault.TOO_LARGE:
            which = ", ".join(described_record(record) for record in context.rejected[:3]) or "an event"
            return KafkaSetupError(
                f"{where} refuses an event of topic {topic} as too large {at}: {which}. Nothing of its transaction is "
                "published and nothing after it will be until the topic's max.message.bytes, or message.max.bytes in "
                f"{CLIENT_CONFIG_VARIABLE}, allows its size"
            )
        case Fault.FENCED:
            return PublisherFenced(
                f"another publisher has taken over {settings.transactional_id} {at}; it publishes "
                "what was not committed here"
            )
        case Fault.TRANSACTION_TIMEOUT:
            return KafkaSetupError(
                f"{where} allows no transaction of 30 s {at}; raise the broker's transaction.max.timeout.ms to at "
                "least 30000"
            )
        case Fault.QUEUE_FULL:
            return KafkaSetupError(
                f"the client's queue holds fewer events than one transaction {at}; raise queue.buffering.max.messages "
                f"or queue.buffering.max.kbytes in {CLIENT_CONFIG_VARIABLE}, or leave them out"
            )
        case Fault.OFFSET_LOST:
            return KafkaSetupError(
                f"topic {topic} on {where} lost the records that were being read {at}: its retention is shorter than "
                "the reading; start it again"
            )
        case Fault.UNAVAILABLE:
            return _outage(where, at, context)
        case _:
            return _refusal(fault, where, topic, at, context)


def _outage(where: str, at: str, context: ErrorContext) -> KafkaUnavailable:
    """Return the error for a broker that did not answer, or not in time."""
    if context.throttled_seconds:
        return KafkaUnavailable(
            f"{where} holds this client back by a quota, up to {context.throttled_seconds:.0f} s a request, {at}. The "
            "next cycle is as slow: raise producer_byte_rate or request_percentage of this user or client id"
        )
    if context.transaction_open:
        return KafkaUnavailable(
            f"{where} did not answer as expected {at}. The transaction's outcome is unknown; the next cycle reads it "
            f"back from topic {context.settings.progress_topic} and goes on"
        )
    if "Disconnected" in at:
        return KafkaUnavailable(
            f"{where} closed the connection {at}; it passes by itself if the broker is just starting or stopping. If "
            f"not, the listener requires TLS or a login: set security.protocol in {CLIENT_CONFIG_VARIABLE}"
        )
    return KafkaUnavailable(f"{where} did not answer as expected {at}; check that it runs and can be reached from here")


def _refusal(fault: Fault, where: str, topic: str, at: str, context: ErrorContext) -> SlaPipelineError:
    """Return the error for a broker that refused the request."""
    match fault:
        case Fault.TIMESTAMP:
            return KafkaSetupError(
                f"{where} refuses the time of an event of topic {topic} {at}, and does so until the cause is "
                f"corrected. This machine's clock shows {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC: correct its clock "
                f"or the broker's, or raise the topic's limits ({context.time_limits or 'message.timestamp.*'})"
            )
        case Fault.RECORD_REFUSED:
            return KafkaSetupError(
                f"{where} refuses the events of topic {topic} {at}, and does so until the cause is corrected"
                f"{_codec_remedy(context.settings)}. The broker's log names the rule that an event breaks"
            )
        case Fault.REPLICAS:
            return KafkaUnavailable(
                f"{where} has too few replicas of topic {topic} in sync {at}; it passes by itself once the brokers "
                "of the others are back"
            )
        case Fault.DISK:
            return KafkaUnavailable(
                f"{where} cannot read or write topic {topic} on its disk {at}; it passes by itself where another "
                "broker has a replica in sync, else the disk must be repaired"
            )
        case Fault.TOO_FEW_BROKERS:
            return KafkaSetupError(
                f"{where} has fewer brokers than the requested replicas, {at}; run `sla-pipeline migrate "
                "--replication-factor` with at most their number"
            )
        case _:
            return KafkaSetupError(f"{where} refuses the request {at}; topic {topic}")


def _codec_remedy(settings: KafkaSettings) -> str:
    codec = next((name for name in ("compression.type", "compression.codec") if name in settings.client_config), None)
    return (
        f"; {CLIENT_CONFIG_VARIABLE} sets {codec}: leave it out if the broker does not take that compression"
        if codec
        else ""
    )


def configuration_fault(error: KafkaException, settings: KafkaSettings) -> ConfigurationError:
    """Return our error for a client that librdkafka refused to create: it names the setting, and never its value."""
    reason = client_error_of(error)
    text = settings.masked(reason.str().strip() if reason else str(error))
    return ConfigurationError(
        f"the Kafka client refuses its configuration: {text}; correct the setting in {CLIENT_CONFIG_VARIABLE}"
    )
