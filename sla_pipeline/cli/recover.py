"""Command ``recover``."""

from typing import TYPE_CHECKING, Annotated

import typer

from sla_pipeline.cli.exit_codes import EXIT_BROKEN
from sla_pipeline.cli.output import out, progress
from sla_pipeline.cycle import SystemClock
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline.postgres.settings import OWNER_URL

if TYPE_CHECKING:
    from sla_pipeline.recovery.diagnosis import Diagnosis

__all__ = ["recover"]


def recover(
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Repair without asking, and publish missing events again. Read a diagnosis first."),
    ] = False,
) -> None:
    """Diagnose why nothing is published, or why events are missing; propose a repair; repair on confirmation.

    Reads the event topic, which neither a lost progress topic nor a restored database can change. Runs as the owner
    (SLA_POSTGRES_OWNER_URL); stop the schedule first. docs/exactly-once.md, section "Recovery", explains the cases.
    """
    from sla_pipeline.recovery.diagnosis import State  # noqa: PLC0415

    found = _recovered(confirm=not yes)
    if found.missing and found.state is not State.EVENTS_MISSING:
        out.print("repaired; now the missing events")
        found = _recovered(confirm=not yes)
    if found.state is not State.AGREED:
        out.print("repaired; the next cycle publishes what waits")


def _recovered(*, confirm: bool) -> "Diagnosis":
    """Diagnose once, and repair; return the diagnosis.

    Raises ``typer.Exit`` where nothing can be decided, ``typer.Abort`` without confirmation.
    """
    from sla_pipeline.recovery.diagnosis import State  # noqa: PLC0415
    from sla_pipeline.recovery.outbox_repair import RepairableOutbox  # noqa: PLC0415
    from sla_pipeline.recovery.repair import diagnose, repair  # noqa: PLC0415

    kafka = KafkaSettings.from_environment()
    with (
        RepairableOutbox(PostgresSettings.from_environment(OWNER_URL)) as outbox,
        progress("reading the topic") as advance,
    ):
        found = diagnose(kafka, outbox, on_progress=advance)
    for line in found.lines():
        out.print(line)
    if found.state is State.AGREED:
        return found
    if found.state is State.UNDECIDABLE:
        raise typer.Exit(EXIT_BROKEN)
    if confirm:
        typer.confirm(found.question, abort=True)
    # a session of its own: the one of the diagnosis may have been ended while a person was reading
    with (
        RepairableOutbox(PostgresSettings.from_environment(OWNER_URL)) as outbox,
        progress("repairing") as advance,
    ):
        run_id = f"recover-{SystemClock().now_utc():%Y%m%dT%H%M%SZ}"
        repair(kafka, outbox, run_id=run_id, confirmed=found, on_progress=advance)
    return found
