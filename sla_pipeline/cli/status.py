"""Command ``status``."""

import typer

from sla_pipeline.cli.exit_codes import EXIT_FAILED
from sla_pipeline.cli.options import AsJson
from sla_pipeline.cli.output import out, print_json
from sla_pipeline.postgres.session import PostgresSettings

__all__ = ["status"]

# A person waits two seconds at most, the start of the command included.
_ANSWER_SECONDS = 1.5


def status(as_json: AsJson = False) -> None:
    """Show whether the monitor works: the alerts that fire, why, since when, and the runbook. Exit code 1 if one does.

    Reads the monitor's own tables, so it needs neither Dagster nor Kafka, and reports what the last cycles found of
    Kafka. Ends with exit code 75 when the database does not answer within 1.5 s. Runs with the rights of sla_analyst.
    """
    from sla_pipeline.alerting.rules import RULES, evaluate  # noqa: PLC0415
    from sla_pipeline.alerting.status import status_of  # noqa: PLC0415
    from sla_pipeline.postgres.health import read_health_within  # noqa: PLC0415

    health = read_health_within(PostgresSettings.from_environment(), _ANSWER_SECONDS)
    found = status_of(health, evaluate(RULES, health))
    if as_json:
        print_json(found.as_dict())
    else:
        for line in found.lines():
            out.print(line)
    if not found.green:
        raise typer.Exit(EXIT_FAILED)
