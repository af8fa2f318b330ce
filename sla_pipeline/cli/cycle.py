"""Commands ``cycle`` and ``preview``."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from sla_pipeline.cli.exit_codes import EXIT_INTERRUPTED
from sla_pipeline.cli.options import AsJson
from sla_pipeline.cli.output import cell, err, out, print_json
from sla_pipeline.cli.signals import stop_requests
from sla_pipeline.cycle import BATCH_SIZE, MAX_BATCHES_PER_CYCLE, CycleInput, SystemClock
from sla_pipeline.errors import CycleStopped, PostgresSetupError
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.postgres.session import PostgresSettings, translated_errors
from sla_pipeline.postgres.settings import single_runner_from_environment
from sla_pipeline.quoting import quoted
from sla_pipeline.set_aside import SetAside
from sla_pipeline.telemetry.logs import configure_logging

if TYPE_CHECKING:
    from sla_pipeline.postgres.tickets import Preview

__all__ = ["cycle", "preview"]

BatchSize = Annotated[
    int, typer.Option(help=f"Tickets marked in one transaction, {BATCH_SIZE.low} to {BATCH_SIZE.high}.")
]
MaxBatches = Annotated[
    int,
    typer.Option(
        help=f"Batches in one cycle, {MAX_BATCHES_PER_CYCLE.low} to {MAX_BATCHES_PER_CYCLE.high}; the rest waits for "
        "the next cycle."
    ),
]
TenantId = Annotated[
    str | None, typer.Option(help="Only this tenant's tickets, a UUID. For diagnosis and manual runs.")
]


def cycle(
    batch_size: BatchSize = BATCH_SIZE.default,
    max_batches_per_cycle: MaxBatches = MAX_BATCHES_PER_CYCLE.default,
    tenant_id: TenantId = None,
    as_json: AsJson = False,
) -> None:
    """Run one cycle without Dagster: for cron, or an emergency.

    The same code as the job's, and safe beside it. Stops between two batches on SIGTERM or Ctrl-C; what was saved stays
    saved. The log goes to standard error, JSON lines.
    """
    from sla_pipeline.kafka.relay import Relay  # noqa: PLC0415
    from sla_pipeline.monitor.runner import run_cycle  # noqa: PLC0415
    from sla_pipeline.postgres.database import Database  # noqa: PLC0415

    cycle_input = CycleInput(batch_size, max_batches_per_cycle, tenant_id)
    database = Database(PostgresSettings.from_environment(), single_runner=single_runner_from_environment())
    configure_logging()
    with Relay(KafkaSettings.from_environment()) as relay, stop_requests() as stop:
        try:
            totals = run_cycle(database, relay, cycle_input, should_stop=stop.is_set)
        except CycleStopped as stopped:
            err.print(f"sla-pipeline: {stopped}")
            raise typer.Exit(EXIT_INTERRUPTED) from None
        finally:
            database.close()
    if as_json:
        print_json(totals.as_dict())
    else:
        out.print(totals.as_line())
        if totals.unknown_priority_count:
            values = ", ".join(map(quoted, totals.frequent_unknown_priorities()))
            out.print(
                f"{totals.unknown_priority_count} of them with a priority that is not in our list, sent as it is: "
                f"{values}"
            )
        if totals.set_aside is not None and totals.set_aside.count:
            _print_set_aside(totals.set_aside)
    totals.raise_if_failed()


def _print_set_aside(set_aside: SetAside) -> None:
    """Print lines, not a table: a table does not fit into a mail of cron."""
    out.print(set_aside.summary)
    for ticket in set_aside.cells():
        out.print(
            f"  {ticket.number} ({ticket.ticket_id}, {ticket.kind}) since {ticket.since} UTC: {ticket.reason}; next "
            f"try {ticket.next_try} UTC, or when the row has changed"
        )
    if set_aside.unlisted:
        out.print(f"  {set_aside.unlisted}")


def preview(
    tenant_id: TenantId = None,
    oldest: Annotated[int, typer.Option(min=0, max=1000, help="How many single tickets to show.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Show what a cycle would mark now: counts by kind, queue and priority, and the oldest tickets. Changes nothing.

    Tickets that cannot be marked are listed apart, with the reason and the next try: until then, or until their row
    changes, no cycle tries them.
    """
    from sla_pipeline.postgres import schema, set_aside, tickets  # noqa: PLC0415

    settings = PostgresSettings.from_environment()
    tenant_id = CycleInput(tenant_id=tenant_id).tenant_id
    now_utc = SystemClock().now_utc()
    unreadable: PostgresSetupError | None = None
    with settings.session(purpose="preview") as connection:
        schema.check_revision(connection)
        schema.check_tickets(connection)
        try:
            with translated_errors(settings):
                waiting = set_aside.waiting(connection, now_utc=now_utc, tenant_id=tenant_id, limit=oldest)
        except PostgresSetupError as error:
            unreadable, waiting = error, None
        found = tickets.preview(
            connection, now_utc=now_utc, tenant_id=tenant_id, oldest=oldest, all_set_aside=waiting is None
        )
    if as_json:
        print_json({**asdict(found), "set_aside": asdict(waiting) if waiting else None})
    else:
        out.print(*_preview_tables(found))
        if waiting and waiting.count:
            out.print(_set_aside_table(waiting))
    if unreadable:
        raise type(unreadable)(
            f"{unreadable}. Which tickets are set aside is not known: all that is overdue is listed, and a cycle would "
            "try all of it"
        )


def _preview_tables(found: "Preview") -> tuple[Table, Table]:
    counts = Table("kind", "queue", "priority", "tickets", title=f"{found.total} tickets are overdue and not marked")
    for row in found.counts:
        counts.add_row(row.kind, row.queue_id or "(none)", cell(row.priority), str(row.count))
    single = Table("due at (UTC)", "number", "kind", "priority", "id", title=f"the oldest {len(found.oldest)}")
    for ticket in found.oldest:
        single.add_row(
            f"{ticket.due_at:%Y-%m-%d %H:%M:%S}", cell(ticket.number), ticket.kind, cell(ticket.priority), ticket.id
        )
    return counts, single


def _set_aside_table(set_aside: SetAside) -> Table:
    title = f"{set_aside.count} more are overdue and set aside: a cycle now does not try them"
    table = Table("number", "kind", "since (UTC)", "next try (UTC)", "reason", "id", title=title)
    for ticket in set_aside.cells():
        table.add_row(ticket.number, ticket.kind, ticket.since, ticket.next_try, ticket.reason, ticket.ticket_id)
    table.caption = set_aside.unlisted or None
    return table
