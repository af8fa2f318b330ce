"""``python -m sla_pipeline_tests.benchmarks.overload``: 200,000 tickets overdue at once, cycle after cycle down to none.

Each cycle has the default ceiling of 10,000. Printed for each: tickets marked, tickets left, seconds, memory of this process. What must be
true of the first few is asserted in ``integration/overload``; nothing is asserted here, and CI does not run it.
"""

import tempfile
from pathlib import Path
from typing import Annotated

import psutil
import psycopg
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from sla_pipeline.cycle import CycleInput
from sla_pipeline.embedded import embedded_kafka, embedded_postgres
from sla_pipeline.kafka.relay import Relay
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.kafka.topics import create_topics
from sla_pipeline.monitor.runner import run_cycle
from sla_pipeline.monitor.steps import CycleReport, Database
from sla_pipeline.postgres.migrate import upgrade
from sla_pipeline.postgres.session import PostgresSettings

console = Console(stderr=True)

_INSERT = """
insert into support.tickets (id, number, tenant_id, queue_id, requester_user_id, priority, status, first_response_due_at,
    first_response_at, resolution_due_at)
select gen_random_uuid(), 'LATE-' || g, gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'High', 'InWork',
    now() - interval '1 day' + g * interval '1 millisecond', case when g %% 3 = 0 then now() - interval '30 days' end,
    now() - interval '1 minute'
from generate_series(1, %(count)s) g
"""
# a cycle that marks nothing has met its end
_SPARE_CYCLES = 2


def _cycles(owner_url: str, kafka: KafkaSettings, count: int) -> list[tuple[CycleReport, float]]:
    database, process, rows = Database(PostgresSettings(owner_url)), psutil.Process(), []
    with Relay(kafka) as relay:
        for _ in track(range(count // CycleInput().ceiling + _SPARE_CYCLES), "cycles", console=console):
            report = run_cycle(database, relay)
            rows.append((report, process.memory_info().rss / 2**20))
            if not report.has_more:
                break
    database.close()
    return rows


def main(tickets: Annotated[int, typer.Option(min=1, help="Overdue at the start.")] = 200_000) -> None:
    """Run cycles on embedded PostgreSQL (durable) and Kafka until nothing is overdue."""
    with tempfile.TemporaryDirectory(prefix="sla-overload-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # root's PostgreSQL runs as nobody
        with embedded_postgres(folder / "postgres") as postgres, embedded_kafka(folder / "kafka") as kafka:
            owner_url, settings = postgres.database("overload"), KafkaSettings(kafka.bootstrap_servers, topic="overload")
            upgrade(owner_url, with_tickets=True)
            create_topics(settings)
            console.print(f"inserting {tickets:,} overdue tickets")
            with psycopg.connect(owner_url, autocommit=True) as owner:
                owner.execute(_INSERT, {"count": tickets})
                owner.execute("vacuum analyze support.tickets")
            rows = _cycles(owner_url, settings, tickets)
    table = Table("cycle", "marked", "published", "backlog", "duration, s", "memory, MB", "errors", title=f"{tickets:,} overdue at once")
    for number, (report, memory_mb) in enumerate(rows, start=1):
        table.add_row(
            *(str(number), f"{report.processed:,}", f"{report.published:,}", f"{report.backlog:,}"),
            *(f"{report.duration_ms / 1000:.2f}", f"{memory_mb:.1f}", str(len(report.errors))),
        )
    Console(width=100).print(table)


if __name__ == "__main__":
    typer.run(main)
