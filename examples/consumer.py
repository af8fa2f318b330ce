"""Consumer of the breach events that escalates each one to a webhook. Copy it; it needs confluent-kafka and requests.

For each event, in this order: POST it, record its EventId in SQLite, store its offset. A crash after the record repeats
nothing, since the record is found. A crash between POST and record repeats the call, because the next start cannot
find out whether the webhook received it; the other order would lose it. So the escalation is at least once. Each call
carries the EventId as ``Idempotency-Key``: a webhook that ignores known keys makes it effectively once.

An event that the webhook does not accept is tried until it does, and holds back those behind it: alert on the lag of
the consumer group. Consumers on one machine may share the store; those on several share none, so an event that was in
work when its partition moved may be sent by both.

Variables, the last five optional:

- ``SLA_KAFKA_BOOTSTRAP_SERVERS``: ``host:port``, several with commas
- ``SLA_WEBHOOK_URL``: receives the event's JSON unchanged; Number and Priority in it are texts of another system
- ``SLA_KAFKA_TOPIC``
- ``SLA_KAFKA_CLIENT_CONFIG``: JSON object of further settings of librdkafka, such as ``security.protocol``
- ``SLA_CONSUMER_GROUP``: consumers with the same one share the partitions
- ``SLA_CONSUMER_STORE``: SQLite file of the EventIds, on a local disk
- ``SLA_CANARY_TENANT_ID``: tenant of synthetic tickets, whose events are recorded and not escalated
"""

import json
import logging
import os
import re
import signal
import sqlite3
import sys
import threading
import time
from typing import Any

import requests
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

# Bounds a blocking poll, and so the reaction to SIGTERM.
POLL_SECONDS = 1.0
# Bound one call: connecting, and each wait for a part of the response.
WEBHOOK_SECONDS = (5.0, 10.0)
# Bounds the end while Kafka is down: supervisors kill after 10 s (Docker) or 30 s (Kubernetes).
CLOSE_SECONDS = 5.0
# Pauses between attempts double from the first to the longest, which bounds the delay after the webhook is up again.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
# Age at which an EventId is deleted. It must exceed the topic's retention (Kafka's default: 7 days): an older event
# cannot be read again.
KEPT_SECONDS = 30 * 86_400
# The contract's only spelling of an id.
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

log = logging.getLogger("escalation")


def variable(name: str, default: str = "") -> str:
    """Return an environment variable; end the program when it is neither set nor optional."""
    return os.environ.get(name, "").strip() or default or sys.exit(f"{name} is not set")


def kafka_config() -> dict[str, Any]:
    """Return the client's settings from the environment."""
    try:
        client_config = dict(json.loads(variable("SLA_KAFKA_CLIENT_CONFIG", "{}")))
    except (TypeError, ValueError):
        sys.exit('SLA_KAFKA_CLIENT_CONFIG is not a JSON object such as {"security.protocol": "SSL"}')
    return {
        **client_config,
        "bootstrap.servers": variable("SLA_KAFKA_BOOTSTRAP_SERVERS"),
        "group.id": variable("SLA_CONSUMER_GROUP", "ticket-sla-escalation"),
        # Leaves out the events of aborted transactions, which come again from the next publisher.
        "isolation.level": "read_committed",
        # An offset is stored by this program after the work, not by poll(). The client commits stored offsets in the
        # background, before a partition is taken away, and at the end.
        "enable.auto.offset.store": False,
        "enable.auto.commit": True,
        # A group without an offset begins with the oldest event: skipping events would lose escalations.
        "auto.offset.reset": "earliest",
        # Otherwise the client connects 20 times a second while all brokers are down, with a line in the log for each.
        "metadata.recovery.strategy": "none",
        # A rebalance takes a partition away only if it moves, so it seldom interrupts an event in work.
        "partition.assignment.strategy": "cooperative-sticky",
    }


class Store:
    """EventIds of the events that need no further work, in SQLite; durable when ``add`` returns."""

    def __init__(self, path: str) -> None:
        # isolation_level=None: each statement commits itself. The timeout bounds the wait for another consumer's write.
        self._database = sqlite3.connect(path, timeout=30, isolation_level=None)
        self._database.execute("pragma journal_mode = wal")
        # In this mode the default of some builds loses the last commits when the machine crashes.
        self._database.execute("pragma synchronous = full")
        self._database.execute("create table if not exists done (event_id text primary key, at real not null)")
        self._database.execute("create index if not exists done_at on done (at)")

    def holds(self, event_id: str) -> bool:
        """Return whether the event is recorded."""
        return self._database.execute("select 1 from done where event_id = ?", [event_id]).fetchone() is not None

    def add(self, event_id: str) -> None:
        """Record an event, and forget those that are too old to be read again."""
        self._database.execute("delete from done where at < ?", [time.time() - KEPT_SECONDS])
        self._database.execute("insert or ignore into done values (?, ?)", [event_id, time.time()])


def breach_event(value: bytes | None) -> dict[str, Any]:
    """Return the event in a record's value. Raises ``ValueError`` when it is not a breach event of version 1."""
    try:
        event = json.loads((value or b"").decode())
    except (ValueError, RecursionError):
        raise ValueError("its value is not JSON in UTF-8") from None
    if not isinstance(event, dict) or event.get("EventType") != "TicketSlaBreachedKafkaEvent":
        raise ValueError("it is not a TicketSlaBreachedKafkaEvent")
    if event.get("ContractVersion") != 1:
        raise ValueError("its ContractVersion is not 1")
    if not isinstance(event_id := event.get("EventId"), str) or not UUID.fullmatch(event_id):
        raise ValueError("its EventId is not a UUID")
    # Nothing else is checked: an unknown field, Priority or BreachKind is no reason to withhold an alert.
    return event


class Escalation:
    """Loop over the events of the partitions that the group assigns to this consumer."""

    def __init__(self, consumer: Consumer, store: Store, webhook_url: str, canary_tenant_id: str) -> None:
        self._consumer, self._store, self._url, self._canary = consumer, store, webhook_url, canary_tenant_id
        # Topic and partition of the event in work; None between events, and when the partition is taken away.
        self._in_work: tuple[str | None, int | None] | None = None
        self._waiting = self._stopping = False

    def stop(self) -> None:
        """Request the end of ``run``; a signal handler may call it."""
        self._stopping = True

    def run(self, topic: str) -> None:
        """Escalate until a stop is requested. Raises ``KafkaException`` for an error that the client cannot repair."""
        self._consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke)
        try:
            while not self._stopping:
                if (message := self._polled(POLL_SECONDS)) is not None:
                    self._in_work = message.topic(), message.partition()
                    if self._is_done(message):
                        self._consumer.store_offsets(message=message)
                    self._in_work = None
        finally:
            # Commits the stored offsets and leaves the group. Without a broker it would wait for the session's end.
            closing = threading.Thread(target=self._consumer.close, daemon=True)
            closing.start()
            closing.join(CLOSE_SECONDS)

    def _polled(self, seconds: float) -> Message | None:
        message = self._consumer.poll(seconds)
        if message is not None and (error := message.error()) is not None:
            if error.fatal():
                raise KafkaException(error)
            log.error("Kafka: %.300r", error.str())  # for example a missing topic; the client tries again
            return None
        return message

    def _is_done(self, message: Message) -> bool:
        """Escalate the record's event if it must be. Returns false when that is left to the next reader."""
        place = f"partition {message.partition()}, offset {message.offset()}"
        try:
            event = breach_event(message.value())
        except ValueError as fault:
            log.warning("skipped %s: %s", place, fault)
            return True
        event_id = event["EventId"]
        if self._store.holds(event_id):
            log.info("skipped %s: event %s is recorded", place, event_id)
            return True
        if event.get("TenantId") == self._canary:
            log.info("event %s of the canary is not escalated", event_id)
        elif not self._is_accepted(message.value() or b"", event_id):
            return False
        self._store.add(event_id)
        return True

    def _is_accepted(self, body: bytes, event_id: str) -> bool:
        """POST the event until the webhook accepts it. Returns false on a stop, or when the partition is taken away."""
        pause = FIRST_PAUSE_SECONDS
        while (fault := self._fault_of_call(body, event_id)) is not None:
            log.error("event %s is not escalated: %s; next attempt in %g s", event_id, fault, pause)
            self._wait(pause)
            if self._stopping or self._in_work is None:
                return False
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        log.info("escalated event %s", event_id)
        return True

    def _fault_of_call(self, body: bytes, event_id: str) -> str | None:
        headers = {"Content-Type": "application/json", "Idempotency-Key": event_id}
        try:
            # A followed redirect would turn the POST into a GET. With `stream` the response's body is not read.
            with requests.post(
                self._url, body, headers=headers, timeout=WEBHOOK_SECONDS, allow_redirects=False, stream=True
            ) as response:
                accepted = response.status_code in range(200, 300)
                return None if accepted else f"HTTP status {response.status_code}"
        except requests.RequestException as error:
            return type(error).__name__  # its text holds the URL, which may hold a secret

    def _wait(self, seconds: float) -> None:
        """Pause, and poll meanwhile: a consumer that does not poll for five minutes loses its partitions."""
        self._waiting, end = True, time.monotonic() + seconds
        self._consumer.pause(self._consumer.assignment())
        while (left := end - time.monotonic()) > 0 and self._in_work and not self._stopping:
            if self._polled(min(left, POLL_SECONDS)) is not None:
                raise RuntimeError("the client returned a record of a paused partition")
        self._waiting = False
        self._consumer.resume(self._consumer.assignment())

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)
        # A new partition must not deliver while an event waits; one that was paused before it moved must deliver again.
        (consumer.pause if self._waiting else consumer.resume)(partitions)

    def _on_revoke(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # The next owner begins with the event in work, whose offset is not stored.
        if self._in_work in {(partition.topic, partition.partition) for partition in partitions}:
            self._in_work = None
            log.info("the event in work is left to the next owner of its partition")


def main() -> None:
    """Run until SIGTERM or Ctrl-C. Any other end is an error: a supervisor starts the program again."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    webhook_url, path = variable("SLA_WEBHOOK_URL"), variable("SLA_CONSUMER_STORE", "escalated.sqlite3")
    if not re.fullmatch(r"https?://[^\s/]+(/\S*)?", webhook_url):
        sys.exit("SLA_WEBHOOK_URL is not of the form https://HOST/PATH")
    canary_tenant_id = variable("SLA_CANARY_TENANT_ID", "00000000-0000-4000-8000-000000ca4a47").lower()
    try:
        escalation = Escalation(Consumer(kafka_config(), logger=log), Store(path), webhook_url, canary_tenant_id)
    except sqlite3.Error as error:
        sys.exit(f"SLA_CONSUMER_STORE: {path} cannot be used: {error}")
    except KafkaException as error:
        sys.exit(f"SLA_KAFKA_BOOTSTRAP_SERVERS or SLA_KAFKA_CLIENT_CONFIG: {error}")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: escalation.stop())
    escalation.run(variable("SLA_KAFKA_TOPIC", "pin.support.ticket-sla-breached.v1"))


if __name__ == "__main__":
    main()
