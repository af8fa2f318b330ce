"""Fault injection as a foreign program, a script or a bug would cause it.

Events by a plain producer, marks and records by SQL, expired beginnings of the topic.
"""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import psycopg
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from sla_pipeline.audit.findings import AuditReport, Severity
from sla_pipeline.breach import Breach, BreachKind
from sla_pipeline.event import event_headers, event_json, event_key
from sla_pipeline.kafka.events import ReceivedEvent, read_events
from sla_pipeline.kafka.progress import PROGRESS_KEY, Progress
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline_tests.tickets import NOW, QUEUE, TENANT

Support = psycopg.Connection[Any]


def found(report: AuditReport) -> dict[str, int]:
    """Counts of all findings, by the code of the check."""
    return {finding.check.code: finding.count for finding in report.findings if finding.count}


def faults(report: AuditReport) -> dict[str, int]:
    """Counts of the faults."""
    return {f.check.code: f.count for f in report.findings if f.count and f.check.severity is Severity.FAULT}


class Sent(NamedTuple):
    """An event to send."""

    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes]
    partition: int = -1


def sent_again(event: ReceivedEvent, **changes: Any) -> Sent:
    """A copy of an event of the topic, with ``changes``."""
    return Sent(event.key, event.value, dict(event.headers), event.partition)._replace(**changes)


class Topic:
    """Access to the event topic and the progress topic that bypasses the relay."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings

    def events(self) -> list[ReceivedEvent]:
        """The events on the topic, in the order of the sequence."""
        return sorted(read_events(self._settings), key=lambda event: int(event.headers.get("outbox-seq", b"0")))

    def send(self, *events: Sent) -> None:
        """Send events without a transaction."""
        producer = Producer({"bootstrap.servers": self._settings.bootstrap_servers, "partitioner": "murmur2_random"})
        for event in events:
            producer.produce(
                self._settings.topic,
                event.value,
                event.key,
                partition=event.partition,
                headers=list(event.headers.items()),
            )
        assert producer.flush(20) == 0

    def send_progress(self, value: bytes, key: bytes = PROGRESS_KEY) -> None:
        """Send a record to the progress topic."""
        producer = Producer({"bootstrap.servers": self._settings.bootstrap_servers})
        producer.produce(self._settings.progress_topic, value, key, partition=0)
        assert producer.flush(20) == 0

    def transactional_producer(self) -> Producer:
        """A producer with an open transaction of its own."""
        producer = Producer(
            {
                "bootstrap.servers": self._settings.bootstrap_servers,
                "transactional.id": f"{self._settings.topic}.foreign",
            }
        )
        producer.init_transactions(20)
        producer.begin_transaction()
        return producer

    def expire(self, up_to: dict[int, int]) -> None:
        """Move the first offset of partitions, as retention does; -1 is the end."""
        admin = AdminClient({"bootstrap.servers": self._settings.bootstrap_servers})
        offsets = [TopicPartition(self._settings.topic, partition, offset) for partition, offset in up_to.items()]
        for future in admin.delete_records(offsets).values():
            future.result(20)


class HandWrittenRecord(NamedTuple):
    """A row of the outbox."""

    seq: int
    ticket_id: str
    correlation_id: str
    payload: str

    def as_sent(self, **changes: Any) -> Sent:
        """The event that the relay would send for the row, with ``changes``."""
        headers = dict(event_headers(correlation_id=self.correlation_id, outbox_seq=self.seq))
        return Sent(event_key(self.ticket_id), self.payload.encode(), headers)._replace(**changes)


def waiting_records(support: Support) -> list[HandWrittenRecord]:
    """The records beyond the published position."""
    rows = support.execute(
        "select seq, ticket_id::text, correlation_id, payload from support.ticket_sla_breaches, "
        "support.ticket_sla_relay where seq > published_seq order by seq"
    )
    return [HandWrittenRecord(*row) for row in rows]


def publish_by_hand(
    support: Support,
    topic: Topic,
    alter: Callable[[HandWrittenRecord], Iterable[Sent]] = lambda record: [record.as_sent()],
) -> list[HandWrittenRecord]:
    """Send the waiting records as ``alter`` returns them, and set both positions; return the records."""
    records = waiting_records(support)
    topic.send(*(event for record in records for event in alter(record)))
    set_published(support, topic, records[-1].seq)
    return records


def set_published(support: Support, topic: Topic, seq: int) -> None:
    """Set both positions to ``seq``."""
    topic.send_progress(Progress.without_events(seq, "0" * 32, "by hand").to_json())
    support.execute("update support.ticket_sla_relay set published_seq = %s where id = 1", (seq,))


def record_by_hand(
    support: Support,
    ticket_id: str,
    number: str,
    *,
    kind: BreachKind = BreachKind.FIRST_RESPONSE,
    due_at: datetime,
    breached_at: datetime = NOW,
) -> int:
    """Mark a ticket and write its breach record in one transaction, without the rule; return the sequence."""
    event = event_json(
        Breach(kind, due_at),
        ticket_id=ticket_id,
        number=number,
        tenant_id=TENANT,
        queue_id=QUEUE,
        requester_user_id=TENANT,
        assignee_user_id=None,
        priority="High",
        now_utc=breached_at,
    )
    with support.transaction():
        support.execute(
            "update support.tickets set sla_breached = true, updated_at = %s where id = %s", (breached_at, ticket_id)
        )
        row = support.execute(
            "update support.ticket_sla_relay set last_seq = last_seq + 1 where id = 1 returning last_seq"
        ).fetchone()
        assert row is not None
        support.execute(
            "insert into support.ticket_sla_breaches (seq, ticket_id, number, kind, due_at, breached_at, "
            "correlation_id, payload, recorded_at) values (%s, %s, %s, %s, %s, %s, 'by hand', %s, %s)",
            (row[0], ticket_id, number, kind.value, due_at, breached_at, event, breached_at),
        )
    return int(row[0])


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)
