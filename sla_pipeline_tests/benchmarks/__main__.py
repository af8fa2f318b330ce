"""``make bench``: three ratios, each measured within one run, since absolute times drift on shared machines.

1. Marking: claim and mark of 10,000 tickets in 20 batches, against one SQL statement that marks and records the same.
2. Publishing: 10,000 breach records through the relay, against a plain idempotent producer that reads and sends the
   same records and headers.
3. Idling: an empty cycle on 2,000,000 tickets, 200,000 of them breached and still open, against one on 100,000 with
   none.

Each round runs both sides in turn. The output is the median of the rounds' ratios, with minimum and maximum; it is also
written to ``build/bench.json``. Nothing is asserted: a timed test would fail on a busy machine.
"""

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import psycopg
import typer
from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table

from sla_pipeline.cycle import CycleInput
from sla_pipeline.embedded import embedded_kafka, embedded_postgres
from sla_pipeline.event import event_headers, event_key
from sla_pipeline.kafka.relay import Relay
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.kafka.topics import create_topics
from sla_pipeline.monitor import steps
from sla_pipeline.monitor.runner import run_cycle
from sla_pipeline.postgres.database import Database
from sla_pipeline.postgres.migrate import upgrade
from sla_pipeline.postgres.outbox import PostgresOutbox
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline_tests.shared_servers import server_folder

console = Console(stderr=True)

_COUNT = 10_000

_INSERT = """
insert into support.tickets (id, number, tenant_id, queue_id, requester_user_id, priority, status,
    first_response_due_at, resolution_due_at, sla_breached)
select gen_random_uuid(), %(prefix)s || g, gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'High', %(status)s,
    now() + %(due)s * interval '1 second' - g * interval '1 millisecond', now() + interval '7 days', %(breached)s
from generate_series(1, %(count)s) g
"""

# The job's work in one statement: both kinds in the order of SPEC 5.3, without tickets set aside, with their events.
# EventId is a SHA-256 hash, since SHA-1 needs an extension; all other columns are compared with the job's records.
_ONE_STATEMENT = """
with batch as (
    select id,
        case when first_response_at is null and first_response_due_at < %(now)s
            then 'FirstResponse' else 'Resolution' end as kind
    from support.tickets
    where ((status in ('New', 'InWork') and not sla_breached
                and first_response_at is null and first_response_due_at < %(now)s)
            or (status = 'InWork' and not sla_breached and resolved_at is null and resolution_due_at < %(now)s))
        and not exists (
            select from support.ticket_sla_set_aside s where s.ticket_id = tickets.id and s.next_try_at > %(now)s)
    order by first_response_due_at, id limit 10000 for no key update skip locked
), marked as (
    update support.tickets t set sla_breached = true, updated_at = %(now)s from batch where batch.id = t.id
    returning t.*, kind, case kind when 'FirstResponse' then first_response_due_at else resolution_due_at end as due_at
), taken as (
    update support.ticket_sla_relay set last_seq = last_seq + (select count(*) from marked) where id = 1
    returning last_seq - (select count(*) from marked) as base
)
insert into support.ticket_sla_breaches (seq, ticket_id, number, kind, due_at, breached_at, correlation_id, payload)
select base + row_number() over (order by first_response_due_at, marked.id), marked.id, number, kind, due_at, %(now)s,
    'benchmark',
    json_build_object(
        'EventId', overlay(left(encode(sha256(uuid_send(marked.id)), 'hex'), 32) placing '5' from 13)::uuid,
        'EventType', 'TicketSlaBreachedKafkaEvent', 'ContractVersion', 1, 'AggregateType', 'Ticket',
        'AggregateId', marked.id, 'TicketId', marked.id, 'Number', number, 'TenantId', tenant_id, 'QueueId', queue_id,
        'RequesterUserId', requester_user_id, 'AssigneeUserId', assignee_user_id, 'Priority', priority,
        'BreachKind', kind,
        'DueAt', to_char(due_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        'BreachedAt', to_char(%(now)s at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))::text
from marked, taken
"""
# digest of the written records, in order, without the event's id and the time of the cycle
_WRITTEN = """
select md5(string_agg(
    concat_ws(' ', seq, ticket_id, number, kind, due_at, payload::jsonb - 'EventId' - 'BreachedAt'), ',' order by seq))
from support.ticket_sla_breaches
"""
_TO_PUBLISH = (
    "select seq, ticket_id::text, correlation_id, payload from support.ticket_sla_breaches order by seq limit 10000"
)


@dataclass(frozen=True)
class Ratio:
    """Comparison of two sides: seconds are medians, ``ratio`` is the median of the rounds' ratios."""

    name: str
    product_seconds: float
    baseline_seconds: float
    ratio: float
    least: float
    greatest: float
    target: float


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _ratio(name: str, target: float, rounds: list[tuple[float, float]]) -> Ratio:
    ratios = [product / baseline for product, baseline in rounds]
    product, baseline = (statistics.median(column) for column in zip(*rounds, strict=True))
    return Ratio(name, product, baseline, statistics.median(ratios), min(ratios), max(ratios), target)


def _fill(
    connection: psycopg.Connection, *, prefix: str, count: int, due: int, status: str = "New", breached: bool = False
) -> None:
    connection.execute(_INSERT, {"prefix": prefix, "count": count, "due": due, "status": status, "breached": breached})


def _reset_marks(connection: psycopg.Connection) -> None:
    connection.execute("update support.tickets set sla_breached = false where sla_breached")
    connection.execute("truncate support.ticket_sla_breaches, support.ticket_sla_cycles")
    connection.execute("update support.ticket_sla_relay set last_seq = 0, published_seq = 0")
    connection.execute("vacuum analyze support.tickets")
    connection.execute("checkpoint")


def _marking(owner_url: str, rounds: int) -> Ratio:
    with psycopg.connect(owner_url, autocommit=True) as owner:
        _fill(owner, prefix="LATE", count=_COUNT, due=-3600)
        _fill(owner, prefix="OPEN", count=40_000, due=86_400)
        _fill(owner, prefix="DONE", count=150_000, due=-86_400, status="Closed")
        database = Database(PostgresSettings(owner_url))
        measured = []

        def product() -> None:
            claim = steps.claim_overdue(database, _Clock(), CycleInput(), run_id="benchmark")
            steps.mark_breached(database, claim)
            if claim.totals.processed_count != _COUNT or claim.totals.batch_count != 20:
                raise SystemExit(f"marked {claim.totals.processed_count} in {claim.totals.batch_count} batches")

        def baseline() -> None:
            owner.execute(_ONE_STATEMENT, {"now": datetime.now(UTC)})

        for number in range(rounds + 1):
            pair, written = [], []
            for work in (product, baseline):
                _reset_marks(owner)
                pair.append(_timed(work))
                written += owner.execute(_WRITTEN).fetchall()
            if written[0] != written[1]:
                raise SystemExit("the two sides did not write the same records")
            if number:  # the first round warms up
                measured.append((pair[0], pair[1]))
        database.close()
    return _ratio("marking 10,000: 20 batches / one SQL statement", 1.5, measured)


def _publishing(owner_url: str, bootstrap_servers: str, rounds: int) -> Ratio:
    settings = KafkaSettings(bootstrap_servers, topic="benchmark")
    plain_settings = KafkaSettings(bootstrap_servers, topic="benchmark-plain")
    create_topics(settings)
    create_topics(plain_settings)
    measured = []
    with psycopg.connect(owner_url, autocommit=True) as owner, Relay(settings) as relay:
        _reset_marks(owner)
        owner.execute(_ONE_STATEMENT, {"now": datetime.now(UTC)})
        owner.execute("create table benchmark_records as select * from support.ticket_sla_breaches")

        def baseline() -> None:
            producer = Producer(
                {
                    "bootstrap.servers": bootstrap_servers,
                    "enable.idempotence": True,
                    "linger.ms": 5,
                    "compression.type": "none",
                }
            )
            with psycopg.connect(owner_url) as session:
                for seq, ticket_id, run_id, payload in session.execute(_TO_PUBLISH):
                    headers = event_headers(correlation_id=run_id, outbox_seq=seq)
                    producer.produce(plain_settings.topic, payload, event_key(ticket_id), headers=list(headers))
            if producer.flush(60):
                raise SystemExit("the plain producer left records over")

        def product() -> None:
            with PostgresOutbox(PostgresSettings(owner_url)) as outbox:
                if relay.publish(outbox, run_id="benchmark").published_count != _COUNT:
                    raise SystemExit("not all records were published")

        for number in range(rounds + 1):
            pair = (_timed(product), _timed(baseline))
            if number:
                measured.append(pair)
            # ten thousand more copies of the records to publish
            owner.execute("update support.ticket_sla_relay set last_seq = last_seq + 10000")
            owner.execute(
                "insert into support.ticket_sla_breaches (seq, ticket_id, number, kind, due_at, breached_at, "
                "correlation_id, payload) select seq + %s, gen_random_uuid(), number, kind, due_at, breached_at, "
                "correlation_id, payload from benchmark_records",
                ((number + 1) * _COUNT,),
            )
    return _ratio("publishing 10,000: relay / plain idempotent producer", 2.0, measured)


def _idling(small_url: str, large_url: str, bootstrap_servers: str, rounds: int) -> Ratio:
    settings = KafkaSettings(bootstrap_servers, topic="benchmark-idle")
    create_topics(settings)
    for url, total, breached in ((small_url, 100_000, 0), (large_url, 2_000_000, 200_000)):
        with psycopg.connect(url, autocommit=True) as owner:
            _fill(owner, prefix="LATE", count=breached, due=-3600, breached=True)
            _fill(owner, prefix="OPEN", count=(total - breached) // 4, due=86_400)
            _fill(owner, prefix="DONE", count=(total - breached) * 3 // 4, due=-86_400, status="Closed")
            owner.execute("vacuum analyze support.tickets")
            owner.execute("checkpoint")
    small, large = Database(PostgresSettings(small_url)), Database(PostgresSettings(large_url))
    measured = []
    with Relay(settings) as relay:
        for number in range(rounds * 5 + 1):
            pair = (_timed(lambda: run_cycle(large, relay)), _timed(lambda: run_cycle(small, relay)))
            if number:
                measured.append(pair)
    small.close()
    large.close()
    return _ratio("an empty cycle: 2,000,000 tickets, 200,000 breached / 100,000, 0", 1.2, measured)


class _Clock:
    is_wall_clock = True

    def now_utc(self) -> datetime:
        return datetime.now(UTC)


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each pair, without the first, which warms up.")] = 7,
    only: Annotated[str, typer.Option(help="Run only this one: marking, publishing or idling.")] = "",
    json_file: Annotated[Path, typer.Option(help="Result file.")] = Path("build/bench.json"),
) -> None:
    """Measure the three ratios on embedded PostgreSQL (durable) and Kafka."""
    with (
        server_folder() as folder,
        embedded_postgres(folder / "postgres") as postgres,
        embedded_kafka(folder / "kafka") as kafka,
    ):
        urls = {name: postgres.database(f"bench_{name}") for name in ("busy", "small", "large")}
        for url in urls.values():
            upgrade(url, with_tickets=True)
        ratios = []
        if only in "marking":
            console.print("marking ...")
            ratios.append(_marking(urls["busy"], rounds))
        if only in "publishing":
            console.print("publishing ...")
            if only:
                with psycopg.connect(urls["busy"], autocommit=True) as owner:
                    _fill(owner, prefix="LATE", count=_COUNT, due=-3600)
            ratios.append(_publishing(urls["busy"], kafka.bootstrap_servers, rounds))
        if only in "idling":
            console.print("idling ...")
            ratios.append(_idling(urls["small"], urls["large"], kafka.bootstrap_servers, rounds))
    table = Table(
        "what", "product, s", "baseline, s", "ratio", "least-greatest", "target", title=f"medians of {rounds} rounds"
    )
    for r in ratios:
        spread = f"{r.least:.2f}-{r.greatest:.2f}"
        table.add_row(
            r.name, f"{r.product_seconds:.3f}", f"{r.baseline_seconds:.3f}", f"{r.ratio:.2f}", spread, f"{r.target:.2f}"
        )
    Console(width=140).print(table)
    json_file.parent.mkdir(parents=True, exist_ok=True)
    json_file.write_text(json.dumps([asdict(r) for r in ratios], indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
