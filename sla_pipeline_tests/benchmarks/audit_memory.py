"""Memory and time of an audit of a million events: ``python -m sla_pipeline_tests.benchmarks.audit_memory``.

It fills real PostgreSQL and Kafka with marked tickets, their breach records and, through the relay, their events. Then
it runs one audit in a process of its own (``audit_process.py``). The test of the memory's growth uses ``fill`` too.
"""

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated

import psycopg
import typer
from rich.console import Console

from sla_pipeline.breach import Breach, BreachKind
from sla_pipeline.embedded import embedded_kafka, embedded_postgres
from sla_pipeline.event import event_json
from sla_pipeline.kafka.relay import Relay
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.kafka.topics import create_topics
from sla_pipeline.postgres.migrate import upgrade
from sla_pipeline.postgres.outbox import PostgresOutbox
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline_tests.benchmarks.audit_process import measured
from sla_pipeline_tests.shared_servers import server_folder

console = Console(stderr=True)

_TICKETS = """
copy support.tickets (id, number, tenant_id, queue_id, requester_user_id, priority, status, first_response_due_at,
    sla_breached, created_at, updated_at) from stdin
"""
_RECORDS = (
    "copy support.ticket_sla_breaches (seq, ticket_id, number, kind, due_at, breached_at, "
    "correlation_id, payload) from stdin"
)
# tickets per transaction, as in a large cycle
_BATCH = 10_000


def fill(owner_url: str, kafka: KafkaSettings, count: int) -> None:
    """Add ``count`` marked tickets with records and published events."""
    with psycopg.connect(owner_url) as connection:
        for start in range(0, count, _BATCH):
            _fill_batch(connection, min(_BATCH, count - start))
    with PostgresOutbox(PostgresSettings(owner_url)) as outbox, Relay(kafka) as relay:
        while relay.publish(outbox, run_id="benchmark").published_count:
            pass


def _fill_batch(connection: psycopg.Connection, count: int) -> None:
    """Add tickets and records in one transaction, as the marking does, so that the auditor can check each mark."""
    now_utc = datetime.now(UTC)
    due_at = now_utc - timedelta(minutes=1)
    ids = [str(uuid.uuid4()) for _ in range(count)]
    tenant_id, queue_id, run_id = (str(uuid.uuid4()) for _ in range(3))
    with connection.transaction(), connection.cursor() as cursor:
        row = cursor.execute(
            "update support.ticket_sla_relay set last_seq = last_seq + %s where id = 1 returning last_seq - %s",
            (count, count),
        ).fetchone()
        base = row[0] if row else 0
        with cursor.copy(_TICKETS) as copy:
            for ticket_id in ids:
                number = f"TCK-{ticket_id[:8]}-{ticket_id[9:13]}"
                copy.write_row(
                    (ticket_id, number, tenant_id, queue_id, tenant_id, "High", "New", due_at, True, due_at, now_utc)
                )
        with cursor.copy(_RECORDS) as copy:
            for seq, ticket_id in enumerate(ids, start=base + 1):
                number = f"TCK-{ticket_id[:8]}-{ticket_id[9:13]}"
                event = event_json(
                    Breach(BreachKind.FIRST_RESPONSE, due_at),
                    ticket_id=ticket_id,
                    number=number,
                    tenant_id=tenant_id,
                    queue_id=queue_id,
                    requester_user_id=tenant_id,
                    assignee_user_id=None,
                    priority="High",
                    now_utc=now_utc,
                )
                copy.write_row((seq, ticket_id, number, "FirstResponse", due_at, now_utc, run_id, event))


def main(records: Annotated[int, typer.Option(min=1, help="Breach records, and so events.")] = 1_000_000) -> None:
    """Start and fill servers, audit once, and print the measured values as JSON."""
    with _servers() as (owner_url, kafka):
        began = time.monotonic()
        fill(owner_url, kafka, records)
        console.print(f"{records:,} tickets, records and events written in {time.monotonic() - began:.0f} s")
        print(json.dumps(asdict(measured(owner_url, kafka)), indent=2))  # noqa: T201  the result, for programs


@contextmanager
def _servers() -> Iterator[tuple[str, KafkaSettings]]:
    with (
        server_folder() as postgres_folder,
        server_folder() as kafka_folder,
        embedded_postgres(postgres_folder, durable=False) as postgres,
        embedded_kafka(kafka_folder) as broker,
    ):
        kafka = KafkaSettings(broker.bootstrap_servers)
        upgrade(postgres.url, with_tickets=True)
        create_topics(kafka)
        yield postgres.url, kafka


if __name__ == "__main__":
    typer.run(main)
