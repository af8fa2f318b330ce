"""Validated Kafka settings: servers, topic and further client settings; ``client_config.py`` builds on them."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sla_pipeline.environment import variable
from sla_pipeline.errors import ConfigurationError
from sla_pipeline.event import EVENT_TOPIC
from sla_pipeline.quoting import quoted

__all__ = [
    "BOOTSTRAP_SERVERS_VARIABLE",
    "CLIENT_CONFIG_VARIABLE",
    "TOPIC_VARIABLE",
    "KafkaSettings",
]

BOOTSTRAP_SERVERS_VARIABLE = "SLA_KAFKA_BOOTSTRAP_SERVERS"
TOPIC_VARIABLE = "SLA_KAFKA_TOPIC"
CLIENT_CONFIG_VARIABLE = "SLA_KAFKA_CLIENT_CONFIG"

# Kafka's form of a topic name; 200 leaves room for the suffixes below under Kafka's own limit of 249.
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
# The client library accepts only printable ASCII in a host.
_SERVER = re.compile(r"(?:[A-Z0-9_]+://)?[!-+\-.0-~]+:([0-9]{1,5})")
_HIGHEST_PORT = 65_535
_WHOLE_NUMBER = re.compile(r"[0-9]{1,10}")
# A larger number overflows inside the client library, which then uses another number than this package.
_HIGHEST_NUMBER = 2_147_483_647

# librdkafka's defaults: the relay must know the size of its queue and of a batch.
_QUEUE_MESSAGES = 100_000
_QUEUE_KBYTES = 1_048_576
_BATCH_BYTES = 1_000_000

# Settings that exactly-once depends on; the further settings may not change them.
_RESERVED = frozenset(
    {
        "acks",
        "allow.auto.create.topics",
        "auto.commit.enable",
        "auto.commit.interval.ms",
        "auto.offset.reset",
        "bootstrap.servers",
        "check.crcs",
        "consume_cb",
        "default.topic.config",
        "default_topic_conf",
        "delivery.report.only.error",
        "delivery.timeout.ms",
        "dr_cb",
        "dr_msg_cb",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.gapless.guarantee",
        "enable.idempotence",
        "enable.partition.eof",
        "error_cb",
        "events",
        "group.id",
        "group.instance.id",
        "group.protocol",
        "isolation.level",
        "log.queue",
        "log_cb",
        "logger",
        "max.in.flight",
        "max.in.flight.requests.per.connection",
        "message.send.max.retries",
        "message.timeout.ms",
        "metadata.broker.list",
        "offset.store.method",
        "offset_commit_cb",
        "on_commit",
        "on_delivery",
        "partitioner",
        "partitioner_cb",
        "rebalance_cb",
        "request.required.acks",
        "retries",
        "stats_cb",
        # The mock cluster neither fences nor keeps transactions.
        "test.mock.num.brokers",
        "throttle_cb",
        "transaction.timeout.ms",
        "transactional.id",
    }
)
_SECRET_WORDS = ("password", "secret", "pem", "token", "jaas", "oauthbearer.config", "private.key", "username")


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """Connection settings of every Kafka client.

    ``client_config`` holds further settings of librdkafka as text (TLS, SASL); ``repr`` shows their names only. Raises
    ``ConfigurationError`` naming the setting, never a value of ``client_config``.
    """

    bootstrap_servers: str
    topic: str = EVENT_TOPIC
    client_config: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)

    def __post_init__(self) -> None:
        servers = [server.strip() for server in self.bootstrap_servers.split(",")]
        for server in servers:
            found = _SERVER.fullmatch(server)
            if not found or not 0 < int(found[1]) <= _HIGHEST_PORT:
                raise ConfigurationError(
                    f"the Kafka bootstrap servers ({BOOTSTRAP_SERVERS_VARIABLE}) hold {quoted(server)}; write them as "
                    "host:port, separated by commas"
                )
        object.__setattr__(self, "bootstrap_servers", ",".join(servers))
        if not _TOPIC_NAME.fullmatch(self.topic) or self.topic in (".", ".."):
            raise ConfigurationError(
                f"the Kafka topic ({TOPIC_VARIABLE}) is {quoted(self.topic)}; use at most 200 letters, digits, dots, "
                "underscores and dashes"
            )
        for key, value in self.client_config.items():
            if not (_is_plain_text(key) and _is_plain_text(value)):
                # librdkafka aborts the process on such a key and truncates such a value.
                raise ConfigurationError(
                    f"{CLIENT_CONFIG_VARIABLE}: the setting {quoted(key)} holds a NUL or half of a surrogate pair, in "
                    "its name or in its value; write plain text"
                )
        reserved = sorted(_RESERVED & self.client_config.keys())
        if reserved:
            raise ConfigurationError(
                f"the further client settings ({CLIENT_CONFIG_VARIABLE}) set {', '.join(reserved)}: exactly-once "
                "publishing depends on the values of this package; leave it out"
            )
        object.__setattr__(self, "client_config", dict(self.client_config))
        for key in ("queue.buffering.max.messages", "queue.buffering.max.kbytes", "batch.size"):
            self._whole_number(key, 1)

    def __repr__(self) -> str:
        masked = ", ".join(f"{key}=***" for key in sorted(self.client_config))
        return (
            f"KafkaSettings(bootstrap_servers={self.bootstrap_servers!r}, topic={self.topic!r}, "
            f"client_config={{{masked}}})"
        )

    @property
    def progress_topic(self) -> str:
        """Compacted topic that holds the published position."""
        return f"{self.topic}.relay-progress"

    @property
    def transactional_id(self) -> str:
        """Transactional id, one per environment: a new publisher under it fences the one before."""
        return f"{self.topic}.relay"

    @property
    def group_id(self) -> str:
        """Group name, which librdkafka requires of every consumer; no offset is ever committed under it."""
        return f"{self.topic}.readers"

    @property
    def queue_messages(self) -> int:
        """Most records in the producer's queue."""
        return self._whole_number("queue.buffering.max.messages", _QUEUE_MESSAGES)

    @property
    def queue_bytes(self) -> int:
        """Most bytes in the producer's queue."""
        return self._whole_number("queue.buffering.max.kbytes", _QUEUE_KBYTES) * 1024

    @property
    def batch_bytes(self) -> int:
        """Most bytes in one batch of the producer."""
        return self._whole_number("batch.size", _BATCH_BYTES)

    def _whole_number(self, key: str, default: int) -> int:
        text = self.client_config.get(key, str(default))
        if not _WHOLE_NUMBER.fullmatch(text) or not 0 < int(text) <= _HIGHEST_NUMBER:
            raise ConfigurationError(
                f"{CLIENT_CONFIG_VARIABLE}: {key} is {quoted(text)}; it must be a whole number above 0, at most "
                f"{_HIGHEST_NUMBER}"
            )
        return int(text)

    def masked(self, text: str) -> str:
        """Return ``text`` without any secret of ``client_config``: librdkafka may quote a value that it refuses."""
        for key, value in self.client_config.items():
            if value and any(word in key for word in _SECRET_WORDS):
                text = text.replace(value, "***")
        return text

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "KafkaSettings":
        """Return the settings in SLA_KAFKA_BOOTSTRAP_SERVERS, SLA_KAFKA_TOPIC and SLA_KAFKA_CLIENT_CONFIG.

        Raise ``ConfigurationError`` naming the variable and the remedy.
        """
        servers = variable(BOOTSTRAP_SERVERS_VARIABLE, environment)
        if not servers:
            raise ConfigurationError(
                f"{BOOTSTRAP_SERVERS_VARIABLE} is not set; set it to Kafka's addresses, such as "
                "kafka-1:9092,kafka-2:9092"
            )
        return cls(
            bootstrap_servers=servers,
            topic=variable(TOPIC_VARIABLE, environment) or EVENT_TOPIC,
            client_config=_parse_client_config(variable(CLIENT_CONFIG_VARIABLE, environment, several_lines=True)),
        )


def _is_plain_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def _parse_client_config(text: str) -> dict[str, str]:
    """Return the JSON object of scalars in ``text``, every value as librdkafka spells it.

    The text may hold a password, so no error quotes it.
    """
    if not text.strip():
        return {}
    remedy = 'write a JSON object of texts, numbers and booleans, such as {"security.protocol": "SASL_SSL"}'
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigurationError(
            f"{CLIENT_CONFIG_VARIABLE} is not JSON (line {error.lineno}, column {error.colno}); {remedy}"
        ) from None
    except (ValueError, RecursionError):
        raise ConfigurationError(
            f"{CLIENT_CONFIG_VARIABLE} holds too long a number or brackets too deep; {remedy}"
        ) from None
    if not isinstance(parsed, dict):
        raise ConfigurationError(f"{CLIENT_CONFIG_VARIABLE} is a JSON {type(parsed).__name__}, not an object; {remedy}")
    config = {}
    for key, value in parsed.items():
        if isinstance(value, bool):
            config[key] = "true" if value else "false"
        elif isinstance(value, str | int | float):
            config[key] = str(value)
        else:
            kind = "null" if value is None else type(value).__name__
            raise ConfigurationError(f"{CLIENT_CONFIG_VARIABLE}: the value of {quoted(key)} is a {kind}; {remedy}")
    return config
