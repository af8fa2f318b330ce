"""Commands ``demo`` and ``replay``: the pipeline on embedded servers."""

import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from sla_pipeline.cli.exit_codes import EXIT_FAILED
from sla_pipeline.cli.output import err, out, progress
from sla_pipeline.cli.signals import interrupted_by_any_signal
from sla_pipeline.errors import InputError
from sla_pipeline.quoting import quoted

__all__ = ["demo", "replay"]


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
            raise InputError(
                f"--out: {quoted(str(out_file))} cannot be written: {error.strerror}; name another file"
            ) from None
    _without_log()
    with interrupted_by_any_signal(), progress("replaying") as advance:
        result = replay_on_embedded_servers(
            log, until=until.replace(tzinfo=UTC) if until else None, on_progress=advance
        )
    if out_file is not None:
        out_file.write_text(result.as_csv())
    else:
        print(result.as_csv(), end="")  # noqa: T201  a file's content, not a message
    err.print(result.summary())
    if not result.agree:
        raise typer.Exit(EXIT_FAILED)


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
    from sla_pipeline.demo.run import run_demo  # noqa: PLC0415

    _without_log()
    with interrupted_by_any_signal():
        try:
            report = run_demo(state.resolve(), cycles=cycles, print_line=out.print)
        except KeyboardInterrupt:
            out.print("stopped")
            return
    out.print(as_table(report))
    if not report.clean:
        raise typer.Exit(EXIT_FAILED)


def _without_log() -> None:
    """Discard the log of the cycles: without a handler Python prints its warnings, without their values."""
    logging.getLogger("sla_pipeline").addHandler(logging.NullHandler())
