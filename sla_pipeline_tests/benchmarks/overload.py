"""``python -m sla_pipeline_tests.benchmarks.overload``: cycles on 200,000 overdue tickets until none is left.

Each cycle has the default ceiling of 10,000. For each cycle it prints the tickets marked and left, the seconds and the
worker's memory. It asserts nothing and does not run in CI; ``integration/overload`` asserts the first cycles.
"""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import psycopg
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from sla_pipeline.cycle import CycleInput
from sla_pipeline.embedded import embedded_kafka, embedded_postgres
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.kafka.topics import create_topics
from sla_pipeline.postgres.migrate import upgrade
from sla_pipeline_tests.benchmarks.overload_process import CycleOutcome, Worker
from sla_pipeline_tests.shared_servers import server_folder

console = Console(stderr=True)

# extra cycles, so that the last one finds nothing
_SPARE_CYCLES = 2


# every third ticket misses its resolution, the others their first response; two tickets each have the same deadline
_INSERT_OVERDUE = """
insert into support.tickets (id, number, tenant_id, queue_id, requester_user_id, priority, status,
    first_response_due_at, first_response_at, resolution_due_at)
select gen_random_uuid(), %(wave)s || '-' || g, gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'High',
    'InWork', %(due_from)s + (g / 2) * interval '1 millisecond',
    case when g %% 3 = 0 then %(now)s - interval '30 days' end, %(now)s - interval '1 minute'
from generate_series(1, %(count)s) g
"""


def add_overdue_tickets(
    support: psycopg.Connection[Any], wave: str, count: int, *, due_hours_ago: int, now: datetime
) -> None:
    """Insert ``count`` overdue tickets, numbered ``wave-1`` and so on; two tickets each are due per millisecond."""
    support.execute(
        _INSERT_OVERDUE, {"wave": wave, "count": count, "due_from": now - timedelta(hours=due_hours_ago), "now": now}
    )


def _cycles(owner_url: str, kafka: KafkaSettings, count: int) -> list[CycleOutcome]:
    outcomes = []
    with Worker(owner_url, kafka) as worker:
        for _ in track(range(count // CycleInput().ceiling + _SPARE_CYCLES), "cycles", console=console):
            outcomes.append(worker.cycle())
            if not outcomes[-1].has_more:
                break
    return outcomes


def main(tickets: Annotated[int, typer.Option(min=1, help="Overdue at the start.")] = 200_000) -> None:
    """Run cycles on embedded PostgreSQL (durable) and Kafka until nothing is overdue."""
    with (
        server_folder() as folder,
        embedded_postgres(folder / "postgres") as postgres,
        embedded_kafka(folder / "kafka") as kafka,
    ):
        owner_url, settings = postgres.database("overload"), KafkaSettings(kafka.bootstrap_servers, topic="overload")
        upgrade(owner_url, with_tickets=True)
        create_topics(settings)
        console.print(f"inserting {tickets:,} overdue tickets")
        with psycopg.connect(owner_url, autocommit=True) as owner:
            add_overdue_tickets(owner, "late", tickets, due_hours_ago=24, now=datetime.now(UTC))
            owner.execute("vacuum analyze support.tickets")
        outcomes = _cycles(owner_url, settings, tickets)
    table = Table(
        "cycle",
        "marked",
        "published",
        "backlog",
        "duration, s",
        "memory, MB",
        "errors",
        title=f"{tickets:,} overdue at once",
    )
    for number, outcome in enumerate(outcomes, start=1):
        table.add_row(
            *(str(number), f"{outcome.marked:,}", f"{outcome.published:,}", f"{outcome.backlog:,}"),
            *(f"{outcome.seconds:.2f}", f"{outcome.memory_mb:.1f}", str(len(outcome.errors))),
        )
    Console(width=100).print(table)


if __name__ == "__main__":
    typer.run(main)
