"""Where Kafka is, what the topic is called, and the configuration of every client this package opens.

What belongs here: the validated settings and the configuration dictionaries, each constant with its reason. What does
not: opening a client (``clients.py``), or the settings of the topics themselves (``topics.py``).
"""

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
    "ClientConfig",
    "KafkaSettings",
    "admin_config",
    "consumer_config",
    "producer_config",
]

BOOTSTRAP_SERVERS_VARIABLE = "SLA_KAFKA_BOOTSTRAP_SERVERS"
TOPIC_VARIABLE = "SLA_KAFKA_TOPIC"
CLIENT_CONFIG_VARIABLE = "SLA_KAFKA_CLIENT_CONFIG"

ClientConfig = dict[str, str | int | bool]
"""A configuration as librdkafka takes it."""

# what Kafka accepts as a topic's name; 200 leaves room for the suffixes below under Kafka's own limit of 249
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
# a host is printable ASCII: the client library takes nothing else
_SERVER = re.compile(r"(?:[A-Z0-9_]+://)?[!-+\-.0-~]+:([0-9]{1,5})")
_HIGHEST_PORT = 65_535
_WHOLE_NUMBER = re.compile(r"[0-9]{1,10}")
# a larger one overflows inside the client library, which then goes by another number than we do
_HIGHEST_NUMBER = 2_147_483_647

# bounds how long a dead publisher's open transaction holds back every read_committed consumer (37-40 s with the
# broker's own scan), and how long a delivery is tried; below the broker's default ceiling (transaction.max.timeout.ms,
# 15 min) and shorter than a cycle's period
TRANSACTION_TIMEOUT_MS = 30_000
# the broker's port is often closed for a moment only: 18 instead of 57 ms for a takeover's connection
_RECONNECT_BACKOFF_MS = 10
# how long the broker holds an empty fetch: the end of a partition is told one fetch after its last record, so every
# progress read pays it
_FETCH_WAIT_MS = 10
# how much a consumer may hold ahead of its reader: keeps a read of a million events in bounded memory at no loss of
# speed
_PREFETCH_KBYTES = 16_384
# librdkafka's defaults: the relay must know what its queue holds and how large a piece it sends
_QUEUE_MESSAGES = 100_000
_QUEUE_KBYTES = 1_048_576
_BATCH_BYTES = 1_000_000

# settings on which exactly-once rests; "further settings" may not change them
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
        # the mock cluster neither fences nor keeps transactions
        "test.mock.num.brokers",
        "throttle_cb",
        "transaction.timeout.ms",
        "transactional.id",
    }
)
_SECRET_WORDS = ("password", "secret", "pem", "token", "jaas", "oauthbearer.config", "private.key", "username")


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """What everything in this room takes. Raises ``ConfigurationError`` naming the setting, never a value of ``client_config``.

    ``client_config`` holds further settings of librdkafka as text (TLS, SASL); it is left out of ``repr``.
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
                # such a key ends the process inside the client library, such a value is cut off there
                raise ConfigurationError(
                    f"{CLIENT_CONFIG_VARIABLE}: the setting {quoted(key)} holds a NUL or half of a surrogate pair, in "
                    "its name or in its value; write plain text"
                )
        reserved = sorted(_RESERVED & self.client_config.keys())
        if reserved:
            raise ConfigurationError(
                f"the further client settings ({CLIENT_CONFIG_VARIABLE}) set {', '.join(reserved)}: exactly-once "
                "publishing rests on the value that this package gives it; leave it out"
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
        """The compacted topic that holds how far the relay came."""
        return f"{self.topic}.relay-progress"

    @property
    def transactional_id(self) -> str:
        """One per environment: a new publisher under it fences the one before."""
        return f"{self.topic}.relay"

    @property
    def group_id(self) -> str:
        """A name that librdkafka asks of every consumer; no offset is ever committed under it."""
        return f"{self.topic}.readers"

    @property
    def queue_messages(self) -> int:
        """How many records the producer's queue holds."""
        return self._whole_number("queue.buffering.max.messages", _QUEUE_MESSAGES)

    @property
    def queue_bytes(self) -> int:
        """How many bytes the producer's queue holds."""
        return self._whole_number("queue.buffering.max.kbytes", _QUEUE_KBYTES) * 1024

    @property
    def batch_bytes(self) -> int:
        """How many bytes the producer sends in one piece."""
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
        """``text`` without any secret of ``client_config``: librdkafka may quote a value that it refuses."""
        for key, value in self.client_config.items():
            if value and any(word in key for word in _SECRET_WORDS):
                text = text.replace(value, "***")
        return text

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "KafkaSettings":
        """The settings of SLA_KAFKA_BOOTSTRAP_SERVERS, SLA_KAFKA_TOPIC and SLA_KAFKA_CLIENT_CONFIG.

        Raises ``ConfigurationError`` naming the variable and the remedy.
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
    """The JSON object of scalars in ``text``, every value as librdkafka spells it.

    The text may hold a password: no error quotes it.
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


def _common(settings: KafkaSettings) -> ClientConfig:
    return {
        "bootstrap.servers": settings.bootstrap_servers,
        "reconnect.backoff.ms": _RECONNECT_BACKOFF_MS,
        # no topic by accident: a typing error would publish into the void
        "allow.auto.create.topics": False,
        # small requests, each waited for
        "socket.nagle.disable": True,
    }


def producer_config(settings: KafkaSettings, *, largest_batch_bytes: int | None = None) -> ClientConfig:
    """The configuration of a transactional producer.

    ``largest_batch_bytes`` is the event topic's ``max.message.bytes``, where known.
    """
    return {
        **_common(settings),
        # the only codec that every client can read: KafkaJS, for one, stops at LZ4, Snappy and Zstandard
        "compression.type": "none",
        **settings.client_config,
        # the broker's limit holds for a whole batch: with larger ones a topic of small messages would refuse small
        # events too
        "batch.size": min(settings.batch_bytes, largest_batch_bytes or settings.batch_bytes),
        # what fences: the same name for every publisher of an environment. It brings enable.idempotence and acks=all
        # with it
        "transactional.id": settings.transactional_id,
        "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
        # the Java client's, so that a ticket has one partition whoever writes
        "partitioner": "murmur2_random",
        # only failures are of interest, and a callback per event costs time
        "delivery.report.only.error": True,
    }


def consumer_config(settings: KafkaSettings, *, isolation_level: str) -> ClientConfig:
    """The configuration of a consumer that is given its partitions and never commits.

    ``isolation_level`` is ``read_committed`` for records, ``read_uncommitted`` for the end of a partition: a
    read_committed client tells the last stable offset instead, which may be 0 with a record there.
    """
    return {
        **_common(settings),
        "fetch.wait.max.ms": _FETCH_WAIT_MS,
        "queued.max.messages.kbytes": _PREFETCH_KBYTES,
        **settings.client_config,
        "group.id": settings.group_id,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "isolation.level": isolation_level,
        # how a reader knows that there is no more
        "enable.partition.eof": True,
        # a lost offset is an error, never a silent jump to an end
        "auto.offset.reset": "error",
        # a record damaged on the way is an error, not an event
        "check.crcs": True,
    }


def admin_config(settings: KafkaSettings) -> ClientConfig:
    """The configuration of an admin client."""
    return {**_common(settings), **settings.client_config}
