"""Commands ``tail`` and ``verify``."""

import sys
from typing import Annotated

import typer

from sla_pipeline.cli.exit_codes import EXIT_FAILED
from sla_pipeline.cli.options import AsJson
from sla_pipeline.cli.output import out, print_json, progress
from sla_pipeline.cycle import SystemClock
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline.quoting import named

__all__ = ["tail", "verify"]

_LINE_BREAKS_AS_SPACES = bytes.maketrans(b"\r\n", b"  ")


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

    Any other record on the topic is shown in one line on standard error, so that a program that reads the events line
    by line never receives it; their number is printed at the end.
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


def verify(as_json: AsJson = False) -> None:
    """Audit tickets, breach records and the topic against each other. Reads only; exit code 1 when they do not agree.

    Shares no statement with the job, and no code beyond the rule, the event's contract and the connections. Runs with
    the rights of sla_analyst.
    """
    from sla_pipeline.audit.report import as_table  # noqa: PLC0415
    from sla_pipeline.audit.verify import verify as audit  # noqa: PLC0415

    postgres, kafka = PostgresSettings.from_environment(), KafkaSettings.from_environment()
    with progress("reading") as advance:
        report = audit(postgres, kafka, now_utc=SystemClock().now_utc(), on_progress=advance)
    if as_json:
        print_json(report.as_dict())
    else:
        out.print(as_table(report))
    if not report.clean:
        raise typer.Exit(EXIT_FAILED)
