"""The schedule: a cycle every minute (SPEC 3.1, 11), none while one is under way."""

import logging
import time

import dagster as dg

from sla_pipeline.defs.resources import PostgresResource
from sla_pipeline.defs.sla_monitor.jobs import ticket_sla_monitor
from sla_pipeline.defs.sla_monitor.ops import CYCLE_POOL
from sla_pipeline.errors import SlaPipelineError
from sla_pipeline.postgres import journal

__all__ = ["ticket_sla_monitor_every_minute"]

log = logging.getLogger(__name__)

# Bounds the time from a run's start to its journal row, which takes a second. A run without a row by then has died, or
# cannot write the journal and exceeds a cycle's 30 s (SPEC 3.3). Below a minute, so that the next tick finds it.
_SECONDS_TO_JOURNAL = 45.0
# Dagster stores this tag with every run that contains an op of the pool, however the run was started.
_CYCLES = {f".dagster/pool/{CYCLE_POOL}": "true"}
_UNDER_WAY = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


@dg.schedule(
    job=ticket_sla_monitor,
    name="ticket_sla_monitor_every_minute",
    cron_schedule="* * * * *",
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description=(
        "A cycle every minute, UTC; none while one is under way, unless its process is dead."
        " Missed ticks are not caught up: a cycle takes all overdue."
    ),
)
def ticket_sla_monitor_every_minute(
    context: dg.ScheduleEvaluationContext, postgres: dg.ResourceParam[PostgresResource]
) -> dg.RunRequest | dg.SkipReason:
    """SPEC 3.1. Report runs failed whose process died: they stay STARTED in Dagster and would block every tick."""
    alive = []
    for record in context.instance.get_run_records(dg.RunsFilter(tags=_CYCLES, statuses=_UNDER_WAY)):
        run = record.dagster_run
        death = _death_of(record, postgres)
        if death is None:
            alive.append(run.run_id)
        else:
            log.warning("run reported failed", extra={"jobRunId": run.run_id, "reason": death})
            # this frees the run's place in the pool, which a queued run may wait for
            context.instance.report_run_failed(
                run, f"{death} What it committed stays; the next cycle, due now, takes the rest. No action is needed."
            )
    return dg.SkipReason(f"cycle {alive[0]} is under way") if alive else dg.RunRequest()


def _death_of(record: dg.RunRecord, postgres: PostgresResource) -> str | None:
    """Return the evidence that the run's process is dead; None when it may be alive.

    Only for STARTED: ``run_monitoring`` in dagster.yaml bounds the other states. A database that does not answer is no
    evidence; the session's timeouts bound the query.
    """
    run = record.dagster_run
    if run.status is not dg.DagsterRunStatus.STARTED:
        return None
    try:
        with postgres.settings().session(purpose="schedule") as connection:
            alive = journal.is_alive(connection, run.run_id)
    except SlaPipelineError as error:
        log.warning("liveness of a run is unknown", extra={"jobRunId": run.run_id, "error": str(error)})
        return None
    if alive is None and time.time() - (record.start_time or 0) > _SECONDS_TO_JOURNAL:
        return f"The run's process is dead: it wrote no row to support.ticket_sla_cycles in {_SECONDS_TO_JOURNAL:g} s."
    if alive is False:
        return "The run's process is dead: its row in support.ticket_sla_cycles is not locked."
    return None
