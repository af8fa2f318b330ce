"""The command line, ``sla-pipeline``: for on-call, for cron, for the demo.

What belongs here: options, what is printed, exit codes. What does not: the work; every command is a few lines around a function of
another room.
"""

import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from sla_pipeline import errors
from sla_pipeline.cycle import BATCH_SIZE, MAX_BATCHES_PER_CYCLE, CycleInput, SystemClock
from sla_pipeline.event import TicketSlaBreachedKafkaEvent
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.postgres.session import PostgresSettings, single_runner_from_environment
from sla_pipeline.telemetry.logs import configure_logging

if TYPE_CHECKING:
    from sla_pipeline.kafka.recovery import Diagnosis

__all__ = ["app", "main"]

_EPILOG = (
    "Exit codes: 0 done; 1 done, but something failed or does not agree (it is printed); 2 a wrong option, variable or value; "
    "3 Postgres or Kafka is not as it must be, a person must act; 75 a server is away, try again; 130 interrupted. "
    "Settings: SLA_POSTGRES_URL, SLA_POSTGRES_OWNER_URL (migrate, recover), SLA_KAFKA_BOOTSTRAP_SERVERS, SLA_KAFKA_TOPIC, "
    "SLA_KAFKA_CLIENT_CONFIG."
)
_EXIT_FAILED, _EXIT_USAGE, _EXIT_BROKEN, _EXIT_TRY_AGAIN, _EXIT_INTERRUPTED = 1, 2, 3, 75, 130
_RETRYABLE = (errors.DatabaseUnavailable, errors.KafkaUnavailable, errors.PublisherBusy, errors.PublisherFenced, errors.CycleLocked)

app = typer.Typer(
    name="sla-pipeline",
    help="The ticket SLA monitor: marks every breached ticket once and publishes exactly one Kafka event for it.",
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)

BatchSize = Annotated[int, typer.Option(help=f"Tickets marked in one transaction, {BATCH_SIZE.low} to {BATCH_SIZE.high}.")]
MaxBatches = Annotated[
    int,
    typer.Option(
        help=f"Batches in one cycle, {MAX_BATCHES_PER_CYCLE.low} to {MAX_BATCHES_PER_CYCLE.high}; the rest waits for the next cycle."
    ),
]
TenantId = Annotated[str | None, typer.Option(help="Only this tenant's tickets, a UUID. For diagnosis and manual runs.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@app.command(epilog=_EPILOG)
def migrate(
    with_tickets: Annotated[
        bool,
        typer.Option("--with-tickets", help="Create support.tickets too. It belongs to the support service: for a demo or a test only."),
    ] = False,
    topics: Annotated[bool, typer.Option(help="Create the two topics in Kafka as well, where they are missing.")] = True,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of a new event topic.")] = 3,
    replication_factor: Annotated[int, typer.Option(min=1, help="Replicas of a new topic; a single broker takes 1.")] = 3,
) -> None:
    """Bring database and topics to what this version needs. Safe to repeat.

    Runs as the owner of schema support (SLA_POSTGRES_OWNER_URL). Adds our tables, two indexes on support.tickets (built without blocking
    anyone) and the roles sla_worker and sla_analyst; changes nothing of the tickets themselves.
    """
    from sla_pipeline.postgres.migrate import owner_url_from_environment, upgrade  # noqa: PLC0415  Alembic is slow to import

    owner_url = owner_url_from_environment()
    kafka = KafkaSettings.from_environment() if topics else None
    upgrade(owner_url, with_tickets=with_tickets, say=partial(out.print, markup=False))
    out.print("database: migrated")
    if kafka is not None:
        from sla_pipeline.kafka.topics import create_topics  # noqa: PLC0415

        create_topics(kafka, partitions=partitions, replication_factor=replication_factor)
        out.print(f"topics: {kafka.topic} and {kafka.progress_topic} are there")


@app.command(epilog=_EPILOG)
def cycle(
    batch_size: BatchSize = BATCH_SIZE.default,
    max_batches_per_cycle: MaxBatches = MAX_BATCHES_PER_CYCLE.default,
    tenant_id: TenantId = None,
    as_json: AsJson = False,
) -> None:
    """Run one cycle without Dagster: for cron, or an emergency.

    The same code as the job's, and safe beside it. Stops between two batches on SIGTERM or Ctrl-C; what was saved stays saved. The log goes
    to standard error, JSON lines.
    """
    from sla_pipeline.kafka.relay import Relay  # noqa: PLC0415
    from sla_pipeline.monitor.runner import run_cycle  # noqa: PLC0415
    from sla_pipeline.monitor.steps import Database  # noqa: PLC0415

    given = CycleInput(batch_size, max_batches_per_cycle, tenant_id)
    database = Database(PostgresSettings.from_environment(), single_runner=single_runner_from_environment())
    configure_logging()
    with Relay(KafkaSettings.from_environment()) as relay, _stop_requests() as stop:
        try:
            report = run_cycle(database, relay, given, should_stop=stop.is_set)
        except errors.CycleStopped as stopped:
            err.print(f"sla-pipeline: {stopped}", markup=False)
            raise typer.Exit(_EXIT_INTERRUPTED) from None
        finally:
            database.close()
    if as_json:
        out.print_json(json.dumps(asdict(report), default=str))
    else:
        kinds = ", ".join(f"{count} {kind}" for kind, count in report.by_kind.items())
        out.print(
            f"{report.processed} marked ({kinds}) in {report.batches} batches, {report.published} published, backlog {report.backlog}, "
            f"{report.lock_skips} held by others, {len(report.errors)} errors, {report.duration_ms / 1000:.2f} s"
        )
    report.raise_if_failed()


@app.command(epilog=_EPILOG)
def preview(
    tenant_id: TenantId = None,
    oldest: Annotated[int, typer.Option(min=0, max=1000, help="How many single tickets to show.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Show what a cycle would mark now: counts by kind, queue and priority, and the oldest tickets. Changes nothing."""
    from sla_pipeline.postgres import schema, tickets  # noqa: PLC0415

    settings = PostgresSettings.from_environment()
    given = CycleInput(tenant_id=tenant_id)
    with settings.session(purpose="preview") as connection:
        schema.check_revision(connection)
        schema.check_tickets(connection)
        found = tickets.preview(connection, now_utc=SystemClock().now_utc(), tenant_id=given.tenant_id, oldest=oldest)
    if as_json:
        out.print_json(json.dumps(asdict(found), default=str))
        return
    counts = Table("kind", "queue", "priority", "tickets", title=f"{found.total} tickets are overdue and not marked")
    for row in found.counts:
        counts.add_row(row.kind, row.queue_id or "(none)", row.priority or "(none)", str(row.count))
    single = Table("due at (UTC)", "number", "kind", "priority", "id", title=f"the oldest {len(found.oldest)}")
    for ticket in found.oldest:
        single.add_row(f"{ticket.due_at:%Y-%m-%d %H:%M:%S}", ticket.number, ticket.kind, ticket.priority or "(none)", ticket.id)
    out.print(counts, single)


@app.command(epilog=_EPILOG)
def tail(
    beginning: Annotated[
        bool, typer.Option("--beginning", help="Start with the oldest event on the topic, not with what comes next.")
    ] = False,
    follow: Annotated[bool, typer.Option(help="Go on until Ctrl-C; without, end at what was there at the start.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the events' own JSON, one a line.")] = False,
) -> None:
    """Print breach events as they arrive, as a consumer sees them (read_committed). Leaves no trace on the topic."""
    from sla_pipeline.kafka.events import read_events  # noqa: PLC0415

    for received in read_events(KafkaSettings.from_environment(), follow=follow, start="beginning" if beginning else "end"):
        if as_json:
            print(received.value.decode(errors="replace"), flush=True)  # noqa: T201  exact bytes, no console in between
            continue
        event = TicketSlaBreachedKafkaEvent.model_validate_json(received.value)
        seq = received.headers.get("outbox-seq", b"?").decode()
        print(f"{event.breached_at}  {event.number}  {event.breach_kind}  {event.priority}  due {event.due_at}  seq {seq}", flush=True)  # noqa: T201


@app.command(epilog=_EPILOG)
def verify(as_json: AsJson = False) -> None:
    """Audit tickets, breach records and the topic against each other. Reads only; exit code 1 when they do not agree.

    Shares no statement and no code with the job beyond the rule and the event's contract. Runs with the rights of sla_analyst.
    """
    from sla_pipeline.audit.report import as_table  # noqa: PLC0415
    from sla_pipeline.audit.verify import verify as audit  # noqa: PLC0415

    postgres, kafka = PostgresSettings.from_environment(), KafkaSettings.from_environment()
    with _progress("reading") as advance:
        report = audit(postgres, kafka, now_utc=SystemClock().now_utc(), on_progress=advance)
    if as_json:
        out.print_json(json.dumps(report.as_dict(), default=str))
    else:
        out.print(as_table(report))
    if not report.clean:
        raise typer.Exit(_EXIT_FAILED)


@app.command(epilog=_EPILOG)
def recover(
    yes: Annotated[
        bool, typer.Option("--yes", help="Repair without asking, and publish missing events again. Read a diagnosis first.")
    ] = False,
) -> None:
    """After "nothing is published", or where `verify` finds events missing: compare, propose a repair, do it on confirmation.

    Reads the event topic, which neither a lost progress topic nor a restored database can change. Runs as the owner
    (SLA_POSTGRES_OWNER_URL); stop the schedule first. docs/exactly-once.md, section "Recovery", explains the cases.
    """
    from sla_pipeline.kafka.recovery import State  # noqa: PLC0415

    found = _recovered(ask=not yes)
    if found.missing and found.state is not State.EVENTS_MISSING:
        out.print("repaired; now the missing events")
        found = _recovered(ask=not yes)
    if found.state is not State.AGREED:
        out.print("repaired; the next cycle publishes what waits")


def _recovered(*, ask: bool) -> "Diagnosis":
    """One diagnosis and its repair. Raises ``typer.Exit`` where nothing can be decided, ``typer.Abort`` without confirmation."""
    from sla_pipeline.kafka import recovery  # noqa: PLC0415
    from sla_pipeline.postgres.migrate import owner_url_from_environment  # noqa: PLC0415
    from sla_pipeline.postgres.rebase import RepairablePostgresOutbox  # noqa: PLC0415

    kafka = KafkaSettings.from_environment()
    with RepairablePostgresOutbox(PostgresSettings(owner_url_from_environment())) as outbox, _progress("reading the topic") as advance:
        found = recovery.diagnose(kafka, outbox, on_progress=advance)
    for line in found.lines():
        out.print(line, markup=False)
    if found.state is recovery.State.AGREED:
        return found
    if found.state is recovery.State.UNDECIDABLE:
        raise typer.Exit(_EXIT_BROKEN)
    if ask:
        typer.confirm(found.question, abort=True)
    # a session of its own: the one of the diagnosis may have been ended while a person was reading
    with RepairablePostgresOutbox(PostgresSettings(owner_url_from_environment())) as outbox, _progress("repairing") as advance:
        run_id = f"recover-{SystemClock().now_utc():%Y%m%dT%H%M%SZ}"
        recovery.repair(kafka, outbox, run_id=run_id, confirmed=found, on_progress=advance)
    return found


@app.command(epilog=_EPILOG)
def replay(
    log: Annotated[
        Path,
        typer.Argument(
            exists=True, dir_okay=False, help="A log of ticket changes, CSV, such as sla_pipeline/demo/data/incident_log_2016.csv."
        ),
    ],
    until: Annotated[
        datetime | None, typer.Option(formats=["%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d"], help="Stop at this time, UTC.")
    ] = None,
    out_file: Annotated[Path | None, typer.Option("--out", dir_okay=False, help="Write the breaches here; without, print them.")] = None,
) -> None:
    """Play a log of real tickets with a simulated clock, and list every breach that came out at the far end of Kafka.

    Starts its own PostgreSQL and Kafka in a temporary folder, runs a cycle at every minute that matters, reads the topic back. One line per
    event, `breached_at,number,kind,due_at`, sorted.
    """
    from sla_pipeline.demo.replay import replay_on_embedded_servers  # noqa: PLC0415

    with _progress("replaying") as advance:
        result = replay_on_embedded_servers(log, until=until.replace(tzinfo=UTC) if until else None, on_progress=advance)
    if out_file is not None:
        out_file.write_text(result.as_csv())
    else:
        print(result.as_csv(), end="")  # noqa: T201  a file's content, not a message
    err.print(result.summary())
    if not result.agree:
        raise typer.Exit(_EXIT_FAILED)


@app.command(epilog=_EPILOG)
def demo(
    state: Annotated[Path, typer.Option(file_okay=False, help="Folder that keeps the data from run to run.")] = Path(".demo"),
    cycles: Annotated[
        int | None, typer.Option(min=1, help="End after so many scheduled cycles, compare, and exit 0 only if all agree.")
    ] = None,
) -> None:
    """Run everything here: PostgreSQL, Kafka, Dagster and ticket traffic on top of real tickets. Ctrl-C stops all of it."""
    from sla_pipeline.audit.report import as_table  # noqa: PLC0415
    from sla_pipeline.demo.stage import run_demo  # noqa: PLC0415

    with _interrupted_by_any_signal():
        try:
            report = run_demo(state.resolve(), cycles=cycles, say=partial(out.print, markup=False))
        except KeyboardInterrupt:
            out.print("stopped")
            return
    out.print(as_table(report))
    if not report.clean:
        raise typer.Exit(_EXIT_FAILED)


@contextmanager
def _progress(what: str) -> Iterator["_Advance"]:
    """A progress bar on standard error, where it does not mix with results."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        yield _Advance(bar, bar.add_task(what, total=None))


class _Advance:
    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar, self._task = bar, task

    def __call__(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)


@contextmanager
def _stop_requests() -> Iterator[threading.Event]:
    """SIGTERM and Ctrl-C ask for a stop; a second one interrupts at once."""
    stop = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    with _handlers(ask, signal.SIGTERM, signal.SIGINT):
        yield stop


@contextmanager
def _interrupted_by_any_signal() -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # SIGINT too: it is ignored in what a script starts with &
    with _handlers(interrupt, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        yield


@contextmanager
def _handlers(handler: "signal._HANDLER", *numbers: signal.Signals) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _exit_code(error: errors.SlaPipelineError) -> int:
    if isinstance(error, errors.InputError):
        return _EXIT_USAGE
    if isinstance(error, errors.CycleFailed):
        return _EXIT_FAILED
    return _EXIT_TRY_AGAIN if isinstance(error, _RETRYABLE) else _EXIT_BROKEN


def main() -> None:
    """Run the command line; every failure on purpose is one line on standard error and an exit code that means something."""
    try:
        app()
    except errors.SlaPipelineError as error:
        err.print(f"sla-pipeline: {error}", markup=False)
        sys.exit(_exit_code(error))
    except BrokenPipeError:
        # whoever read our output has gone, as `head` does
        sys.stderr.close()
        sys.exit(0)
