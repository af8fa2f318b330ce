"""Command ``migrate``."""

from typing import Annotated

import typer

from sla_pipeline.cli.output import out
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.postgres.settings import OWNER_URL, required_url

__all__ = ["migrate"]


def migrate(
    with_tickets: Annotated[
        bool,
        typer.Option(
            "--with-tickets",
            help="Create support.tickets too. It belongs to the support service: for a demo or a test only.",
        ),
    ] = False,
    topics: Annotated[
        bool, typer.Option(help="Create the two topics in Kafka as well, where they are missing.")
    ] = True,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of a new event topic.")] = 3,
    replication_factor: Annotated[
        int, typer.Option(min=1, help="Replicas of a new topic; a single broker takes 1.")
    ] = 3,
) -> None:
    """Bring database and topics to what this version needs. Safe to repeat.

    Runs as the owner of schema support (SLA_POSTGRES_OWNER_URL). Adds our tables, two indexes on support.tickets (built
    without blocking anyone) and the roles sla_worker and sla_analyst; changes nothing of the tickets themselves.
    """
    from sla_pipeline.postgres.migrate import upgrade  # noqa: PLC0415  Alembic is slow to import

    owner_url = required_url(OWNER_URL)
    kafka = KafkaSettings.from_environment() if topics else None
    upgrade(owner_url, with_tickets=with_tickets, warn=out.print)
    out.print("database: migrated")
    if kafka is not None:
        from sla_pipeline.kafka.topics import create_topics  # noqa: PLC0415

        create_topics(kafka, partitions=partitions, replication_factor=replication_factor)
        out.print(f"topics: {kafka.topic} and {kafka.progress_topic} are there")
