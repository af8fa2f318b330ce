"""The command line, ``sla-pipeline``: for on-call, for cron, for the demo.

What belongs here: options, what is printed, exit codes. What does not: the work; every command is a few lines around a
function of another room.
"""

import io
import json
import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from sla_pipeline import errors
from sla_pipeline.cycle import BATCH_SIZE, MAX_BATCHES_PER_CYCLE, CycleInput, SystemClock
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.postgres.session import PostgresSettings, translated_errors
from sla_pipeline.postgres.settings import OWNER_URL, single_runner_from_environment
from sla_pipeline.quoting import named, quoted
from sla_pipeline.telemetry.logs import configure_logging

if TYPE_CHECKING:
    from sla_pipeline.kafka.recovery import Diagnosis
    from sla_pipeline.postgres.set_aside import SetAside
    from sla_pipeline.postgres.tickets import Preview

__all__ = ["app", "main"]

_EPILOG = (
    "Exit codes: 0 done; 1 done, but something failed or does not agree (it is printed); 2 a wrong option, variable "
    "or value; 3 Postgres or Kafka is not as it must be, a person must act; 75 a server is away, try again; 130 "
    "interrupted. Settings: SLA_POSTGRES_URL, SLA_POSTGRES_OWNER_URL (migrate, recover), SLA_KAFKA_BOOTSTRAP_SERVERS, "
    "SLA_KAFKA_TOPIC, SLA_KAFKA_CLIENT_CONFIG."
)
_EXIT_FAILED, _EXIT_USAGE, _EXIT_BROKEN, _EXIT_TRY_AGAIN, _EXIT_INTERRUPTED = 1, 2, 3, 75, 130
_UNFOLDED_WIDTH = 240
_LINE_BREAKS_AS_SPACES = bytes.maketrans(b"\r\n", b"  ")

app = typer.Typer(
    name="sla-pipeline",
    help="The ticket SLA monitor: marks every breached ticket once and publishes exactly one Kafka event for it.",
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
# what is printed comes from elsewhere in part (a ticket's number, a server's text): none of it is markup or an emoji's
# name a pipe or a file has no width: an id that is folded into two lines cannot be searched for
out = Console(
    highlight=False, soft_wrap=True, markup=False, emoji=False, width=None if sys.stdout.isatty() else _UNFOLDED_WIDTH
)
err = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)

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
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@app.command(epilog=_EPILOG)
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

    owner_url = PostgresSettings.from_environment(OWNER_URL).url
    kafka = KafkaSettings.from_environment() if topics else None
    upgrade(owner_url, with_tickets=with_tickets, say=out.print)
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

    The same code as the job's, and safe beside it. Stops between two batches on SIGTERM or Ctrl-C; what was saved stays
    saved. The log goes to standard error, JSON lines.
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
            err.print(f"sla-pipeline: {stopped}")
            raise typer.Exit(_EXIT_INTERRUPTED) from None
        finally:
            database.close()
    if as_json:
        _print_json(asdict(report))
    else:
        kinds = ", ".join(f"{count} {kind}" for kind, count in report.by_kind.items())
        out.print(
            f"{report.processed} marked ({kinds}) in {report.batches} batches, {report.published} published, backlog "
            f"{report.backlog}, {report.lock_skips} held by others, {report.error_count} errors, "
            f"{report.duration_ms / 1000:.2f} s"
        )
        if report.unknown_priority_count:
            values = ", ".join(map(quoted, report.unknown_priorities))
            out.print(
                f"{report.unknown_priority_count} of them with a priority that we do not know, sent as it is: {values}"
            )
        if report.set_aside is not None and report.set_aside.count:
            for line in _set_aside_lines(report.set_aside):
                out.print(line)
    report.raise_if_failed()


@app.command(epilog=_EPILOG)
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
    given = CycleInput(tenant_id=tenant_id)
    now_utc = SystemClock().now_utc()
    unreadable: errors.PostgresSetupError | None = None
    with settings.session(purpose="preview") as connection:
        schema.check_revision(connection)
        schema.check_tickets(connection)
        try:
            with translated_errors(settings):
                waiting = set_aside.waiting(connection, now_utc=now_utc, tenant_id=given.tenant_id, limit=oldest)
        except errors.PostgresSetupError as error:
            unreadable, waiting = error, None
        found = tickets.preview(
            connection, now_utc=now_utc, tenant_id=given.tenant_id, oldest=oldest, all_set_aside=waiting is None
        )
    if as_json:
        _print_json({**asdict(found), "set_aside": asdict(waiting) if waiting else None})
    else:
        out.print(*_preview_tables(found))
        if waiting and waiting.count:
            out.print(_set_aside_table(waiting, "more are overdue and set aside: a cycle now does not try them"))
    if unreadable:
        right = (
            f"; `grant select on {set_aside.TABLE} to sla_worker`"
            if isinstance(unreadable, errors.RightMissing)
            else ""
        )
        raise type(unreadable)(
            f"{unreadable}{right}. Which tickets are set aside is not known: all that is overdue is listed, and a "
            "cycle would try all of it"
        )


def _preview_tables(found: "Preview") -> tuple[Table, Table]:
    counts = Table("kind", "queue", "priority", "tickets", title=f"{found.total} tickets are overdue and not marked")
    for row in found.counts:
        counts.add_row(row.kind, row.queue_id or "(none)", _shown(row.priority), str(row.count))
    single = Table("due at (UTC)", "number", "kind", "priority", "id", title=f"the oldest {len(found.oldest)}")
    for ticket in found.oldest:
        single.add_row(
            f"{ticket.due_at:%Y-%m-%d %H:%M:%S}", _shown(ticket.number), ticket.kind, _shown(ticket.priority), ticket.id
        )
    return counts, single


def _set_aside_lines(found: "SetAside") -> Iterator[str]:
    """For a mail of cron: a table does not fit its width."""
    from sla_pipeline.postgres.set_aside import REASON_LENGTH  # noqa: PLC0415

    yield (
        f"{found.count} overdue tickets cannot be marked, and nobody is called for them; correct the row, or "
        "what refuses it:"
    )
    for ticket in found.tickets:
        yield (
            f"  {named(ticket.number)} ({ticket.id}, {named(ticket.kind)}) since "
            f"{ticket.first_failed_at:%Y-%m-%d %H:%M:%S} UTC: {named(ticket.error, length=REASON_LENGTH)}; next try "
            f"{ticket.next_try_at:%Y-%m-%d %H:%M:%S} UTC, or when the row has changed"
        )
    if found.count > len(found.tickets):
        yield f"  and {found.count - len(found.tickets)} more in support.ticket_sla_set_aside"


def _set_aside_table(found: "SetAside", title: str) -> Table:
    from sla_pipeline.postgres.set_aside import REASON_LENGTH  # noqa: PLC0415

    table = Table("number", "kind", "since (UTC)", "next try (UTC)", "reason", "id", title=f"{found.count} {title}")
    for ticket in found.tickets:
        times = [f"{moment:%Y-%m-%d %H:%M:%S}" for moment in (ticket.first_failed_at, ticket.next_try_at)]
        table.add_row(
            _shown(ticket.number), _shown(ticket.kind), *times, named(ticket.error, length=REASON_LENGTH), ticket.id
        )
    if found.count > len(found.tickets):
        table.caption = f"the {len(found.tickets)} that have been for longest"
    return table


def _shown(text: str | None) -> str:
    """A text of the support service in a cell: printable, and distinct from a missing one."""
    return "(none)" if text is None else named(text)


def _print_json(value: object) -> None:
    # as ASCII: a control character beyond ASCII moves a cursor too, and JSON does not escape it
    out.print_json(json.dumps(value, default=str), ensure_ascii=True)


@app.command(epilog=_EPILOG)
def tail(
    beginning: Annotated[
        bool, typer.Option("--beginning", help="Start with the oldest event on the topic, not with what comes next.")
    ] = False,
    follow: Annotated[
        bool, typer.Option(help="Go on until Ctrl-C; without, end at what was there at the start.")
    ] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the events' own JSON, one a line, for programs.")
    ] = False,
) -> None:
    """Print breach events as they arrive, as a consumer sees them (read_committed). Leaves no trace on the topic.

    A record that is no breach event of ours is shown in one line on standard error, so that whoever reads the events
    line by line never meets it; how many there were is said at the end.
    """
    from sla_pipeline.kafka.events import read_events  # noqa: PLC0415
    from sla_pipeline.kafka.foreign import event_or_fault, shown  # noqa: PLC0415
    from sla_pipeline.kafka.headers import sequence_in  # noqa: PLC0415

    foreign_count = 0
    try:
        for received in read_events(
            KafkaSettings.from_environment(), follow=follow, start="beginning" if beginning else "end"
        ):
            event = event_or_fault(received)
            if isinstance(event, str):
                foreign_count += 1
                print(shown(received, event), file=sys.stderr, flush=True)  # noqa: T201  no markup, no emoji
            elif as_json:
                # the exact bytes; a line break in JSON is white space between its tokens
                sys.stdout.buffer.write(received.value.translate(_LINE_BREAKS_AS_SPACES) + b"\n")
                sys.stdout.buffer.flush()
            else:
                kind, priority, seq = event.breach_kind.value, named(str(event.priority)), sequence_in(received.headers)
                print(  # noqa: T201
                    f"{event.breached_at}  {named(event.number)}  {kind}  {priority}  due {event.due_at}  seq {seq}",
                    flush=True,
                )
    finally:
        if foreign_count:
            print(f"records on the topic that were not breach events: {foreign_count}", file=sys.stderr)  # noqa: T201


@app.command(epilog=_EPILOG)
def verify(as_json: AsJson = False) -> None:
    """Audit tickets, breach records and the topic against each other. Reads only; exit code 1 when they do not agree.

    Shares no statement and no code with the job beyond the rule and the event's contract. Runs with the rights of
    sla_analyst.
    """
    from sla_pipeline.audit.report import as_table  # noqa: PLC0415
    from sla_pipeline.audit.verify import verify as audit  # noqa: PLC0415

    postgres, kafka = PostgresSettings.from_environment(), KafkaSettings.from_environment()
    with _progress("reading") as advance:
        report = audit(postgres, kafka, now_utc=SystemClock().now_utc(), on_progress=advance)
    if as_json:
        _print_json(report.as_dict())
    else:
        out.print(as_table(report))
    if not report.clean:
        raise typer.Exit(_EXIT_FAILED)


@app.command(epilog=_EPILOG)
def recover(
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Repair without asking, and publish missing events again. Read a diagnosis first."),
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
    """One diagnosis and its repair.

    Raises ``typer.Exit`` where nothing can be decided, ``typer.Abort`` without confirmation.
    """
    from sla_pipeline.kafka import recovery  # noqa: PLC0415
    from sla_pipeline.postgres.rebase import RepairablePostgresOutbox  # noqa: PLC0415

    kafka = KafkaSettings.from_environment()
    with (
        RepairablePostgresOutbox(PostgresSettings.from_environment(OWNER_URL)) as outbox,
        _progress("reading the topic") as advance,
    ):
        found = recovery.diagnose(kafka, outbox, on_progress=advance)
    for line in found.lines():
        out.print(line)
    if found.state is recovery.State.AGREED:
        return found
    if found.state is recovery.State.UNDECIDABLE:
        raise typer.Exit(_EXIT_BROKEN)
    if ask:
        typer.confirm(found.question, abort=True)
    # a session of its own: the one of the diagnosis may have been ended while a person was reading
    with (
        RepairablePostgresOutbox(PostgresSettings.from_environment(OWNER_URL)) as outbox,
        _progress("repairing") as advance,
    ):
        run_id = f"recover-{SystemClock().now_utc():%Y%m%dT%H%M%SZ}"
        recovery.repair(kafka, outbox, run_id=run_id, confirmed=found, on_progress=advance)
    return found


@app.command(epilog=_EPILOG)
def replay(
    log: Annotated[
        Path,
        typer.Argument(
            exists=True,
            dir_okay=False,
            help="A log of ticket changes, CSV, such as sla_pipeline/demo/data/incident_log_2016.csv.",
        ),
    ],
    until: Annotated[
        datetime | None,
        typer.Option(formats=["%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d"], help="Stop at this time, UTC."),
    ] = None,
    out_file: Annotated[
        Path | None, typer.Option("--out", dir_okay=False, help="Write the breaches here; without, print them.")
    ] = None,
) -> None:
    """Play a log of real tickets with a simulated clock, and list every breach that came out at the far end of Kafka.

    Starts its own PostgreSQL and Kafka in a temporary folder, runs a cycle at every minute that matters, reads the
    topic back. One line per event, `breached_at,number,kind,due_at`, sorted.
    """
    from sla_pipeline.demo.replay import replay_on_embedded_servers  # noqa: PLC0415

    if out_file is not None:
        try:
            out_file.touch()
        except OSError as error:
            raise errors.InputError(
                f"--out: {quoted(str(out_file))} cannot be written: {error.strerror}; name another file"
            ) from None
    _without_log()
    with _interrupted_by_any_signal(), _progress("replaying") as advance:
        result = replay_on_embedded_servers(
            log, until=until.replace(tzinfo=UTC) if until else None, on_progress=advance
        )
    if out_file is not None:
        out_file.write_text(result.as_csv())
    else:
        print(result.as_csv(), end="")  # noqa: T201  a file's content, not a message
    err.print(result.summary())
    if not result.agree:
        raise typer.Exit(_EXIT_FAILED)


@app.command(epilog=_EPILOG)
def demo(
    state: Annotated[Path, typer.Option(file_okay=False, help="Folder that keeps the data from run to run.")] = Path(
        ".demo"
    ),
    cycles: Annotated[
        int | None,
        typer.Option(min=1, help="End after so many scheduled cycles, compare, and exit 0 only if all agree."),
    ] = None,
) -> None:
    """Run everything here: PostgreSQL, Kafka, Dagster and ticket traffic on top of real tickets.

    Ctrl-C stops all of it.
    """
    from sla_pipeline.audit.report import as_table  # noqa: PLC0415
    from sla_pipeline.demo.stage import run_demo  # noqa: PLC0415

    _without_log()
    with _interrupted_by_any_signal():
        try:
            report = run_demo(state.resolve(), cycles=cycles, say=out.print)
        except KeyboardInterrupt:
            out.print("stopped")
            return
    out.print(as_table(report))
    if not report.clean:
        raise typer.Exit(_EXIT_FAILED)


def _without_log() -> None:
    """Keep the log of the cycles that a command plays to itself: without a handler Python prints its warnings,
    without their values.
    """
    logging.getLogger("sla_pipeline").addHandler(logging.NullHandler())


@contextmanager
def _progress(what: str) -> Iterator["_Advance"]:
    """A progress bar on standard error, where it does not mix with results."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # where it is not seen it would still print an empty line
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
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
    return _EXIT_TRY_AGAIN if isinstance(error, errors.RetryableError) else _EXIT_BROKEN


def main() -> None:
    """Run the command line; every failure on purpose is one line on standard error and an exit code that means
    something.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # what the terminal's character set does not hold is escaped, as on standard error
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app()
    except errors.SlaPipelineError as error:
        err.print(f"sla-pipeline: {error}")
        sys.exit(_exit_code(error))
    except BrokenPipeError:
        # whoever read our output has gone, as `head` does
        sys.stderr.close()
        sys.exit(0)
