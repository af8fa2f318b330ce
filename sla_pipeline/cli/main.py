"""The command line's entry point: all commands, and the exit code of a failure."""

import io
import sys

import typer

from sla_pipeline.cli.cycle import cycle, preview
from sla_pipeline.cli.demo import demo, replay
from sla_pipeline.cli.events import tail, verify
from sla_pipeline.cli.exit_codes import EPILOG, exit_code
from sla_pipeline.cli.metrics import metrics
from sla_pipeline.cli.migrate import migrate
from sla_pipeline.cli.output import err
from sla_pipeline.cli.recover import recover
from sla_pipeline.cli.status import status
from sla_pipeline.errors import SlaPipelineError

__all__ = ["app", "main"]

app = typer.Typer(
    name="sla-pipeline",
    help="The ticket SLA monitor: marks every breached ticket once and publishes exactly one Kafka event for it.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
# in the order of the help
for command in (migrate, cycle, status, metrics, preview, tail, verify, recover, replay, demo):
    app.command(epilog=EPILOG)(command)


def main() -> None:
    """Run a command. A failure on purpose is one line on standard error and an exit code (``exit_codes.py``)."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # a character that the terminal does not have is escaped, as on standard error
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app()
    except SlaPipelineError as error:
        err.print(f"sla-pipeline: {error}")
        sys.exit(exit_code(error))
    except BrokenPipeError:
        # the reader of our output has ended, as `head` does
        sys.stderr.close()
        sys.exit(0)
