"""The asset, the job, the schedule and the checks: how Dagster runs a cycle every minute (SPEC 3.1, 11).

What belongs here: wiring of the ops and when they run. What does not: what they do (``ops.py``), and which resources
they get (``definitions.py``).
"""

import contextlib
import datetime as dt
import logging
import time
from collections.abc import Iterator

import dagster as dg
import psycopg

from sla_pipeline.cycle import SystemClock
from sla_pipeline.errors import SlaPipelineError
from sla_pipeline.monitor import ops, steps
from sla_pipeline.monitor.resources import PostgresResource
from sla_pipeline.postgres import journal, set_aside, tickets

__all__ = ["backlog_size", "sla_breaches", "ticket_sla_monitor", "ticket_sla_monitor_every_minute", "tickets_set_aside"]

log = logging.getLogger(__name__)

# "no successful cycle for more than 5 minutes" (SPEC 9.5)
_STALE_AFTER = dt.timedelta(minutes=5)
_STALE_SOON_AFTER = dt.timedelta(minutes=3)
# A run writes its journal row within a second of its start. A run without one after this time died before it, or cannot
# write the journal and exceeds a cycle's 30 s (SPEC 3.3). Below the minute between ticks, so that the next tick finds
# it.
_SECONDS_TO_JOURNAL = 45.0


def _with_freshness(asset: dg.AssetsDefinition) -> dg.AssetsDefinition:
    """Set the policy on the spec: ``graph_asset`` takes none."""
    policy = dg.FreshnessPolicy.time_window(fail_window=_STALE_AFTER, warn_window=_STALE_SOON_AFTER)
    return asset.map_asset_specs(lambda spec: dg.apply_freshness_policy(spec, policy))


@_with_freshness
@dg.graph_asset(
    name="sla_breaches",
    group_name="sla_monitor",
    description=(
        "Tickets whose deadline has passed, each marked once in support.tickets and published once to Kafka. "
        "Every materialization is one cycle."
    ),
    config=ops.launchpad_config,
    kinds={"postgres", "kafka"},
    owners=["team:pin-platform-care"],
)
def sla_breaches() -> object:
    """Claim, mark, publish, close."""
    return ops.close_cycle(ops.publish_breaches(ops.mark_breached(ops.claim_overdue())))


@dg.asset_check(
    asset=ops.BACKLOG_CHECK.asset_key,
    name=ops.BACKLOG_CHECK.name,
    description="At most 100 tickets are overdue and not marked (SPEC 9.5). Every cycle records it; run it alone to "
    "count now.",
)
def backlog_size(postgres: dg.ResourceParam[PostgresResource]) -> dg.AssetCheckResult:
    """Count the backlog now."""
    with _checking(postgres) as connection:
        evaluation = ops.backlog_evaluation(tickets.count_backlog(connection, now_utc=SystemClock().now_utc()))
    return _result(evaluation)


@dg.asset_check(
    asset=ops.SET_ASIDE_CHECK.asset_key,
    name=ops.SET_ASIDE_CHECK.name,
    description=(
        "No overdue ticket is set aside because it cannot be marked: nobody is called for such a ticket. Every cycle "
        "records it; run it alone to look now."
    ),
)
def tickets_set_aside(postgres: dg.ResourceParam[PostgresResource]) -> dg.AssetCheckResult:
    """Look for tickets set aside now; those that have changed since they failed are the next cycle's."""
    with _checking(postgres) as connection:
        evaluation = ops.set_aside_evaluation(
            set_aside.still_set_aside(connection, now_utc=SystemClock().now_utc(), limit=steps.SHOWN_COUNT)
        )
    return _result(evaluation)


@contextlib.contextmanager
def _checking(postgres: PostgresResource) -> Iterator[psycopg.Connection]:
    """A session for a check that runs alone, which fails in the words that a cycle has for the same fault."""
    try:
        with postgres.database().session() as connection:
            yield connection
    except SlaPipelineError as error:
        raise dg.Failure(description=str(error), allow_retries=False) from None


def _result(evaluation: dg.AssetCheckEvaluation) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        passed=evaluation.passed,
        severity=evaluation.severity,
        description=evaluation.description,
        metadata=evaluation.metadata,
    )


ticket_sla_monitor = dg.define_asset_job(
    "ticket_sla_monitor",
    description="One cycle: find the tickets whose deadline has passed, mark each once, publish each once.",
    # the cycle records the checks itself: as steps of their own they would count a second time every minute
    selection=dg.AssetSelection.assets(ops.BACKLOG_CHECK.asset_key).without_checks(),
)

# Dagster stores this tag with every run that contains an op of the pool, however the run was started.
_CYCLES = {f".dagster/pool/{ops.CYCLE_POOL}": "true"}
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
    """SPEC 3.1. A run whose process died stays STARTED in Dagster; reported failed here, it does not block the tick."""
    alive = []
    for record in context.instance.get_run_records(dg.RunsFilter(tags=_CYCLES, statuses=_UNDER_WAY)):
        run = record.dagster_run
        death = _death_of(record, postgres)
        if death is None:
            alive.append(run.run_id)
        else:
            log.warning("run reported failed", extra={"jobRunId": run.run_id, "reason": death})
            # frees its place in the pool, which a queued run may wait for
            context.instance.report_run_failed(
                run, f"{death} What it committed stays; the next cycle, due now, takes the rest. No action is needed."
            )
    return dg.SkipReason(f"cycle {alive[0]} is under way") if alive else dg.RunRequest()


def _death_of(record: dg.RunRecord, postgres: PostgresResource) -> str | None:
    """Evidence that the run's process is dead; None when it may be alive.

    Only for STARTED: ``run_monitoring`` in dagster.yaml bounds the other states. A database that does not answer is no
    evidence; the session's timeouts bound the query.
    """
    run = record.dagster_run
    if run.status is not dg.DagsterRunStatus.STARTED:
        return None
    try:
        with postgres.settings().session(purpose="schedule") as connection:
            alive = journal.is_alive(connection, run.run_id)
    except (SlaPipelineError, psycopg.Error) as error:
        # our own sentences are fit to be shown; the driver's may repeat a row
        told = str(error) if isinstance(error, SlaPipelineError) else type(error).__name__
        log.warning("liveness of a run is unknown", extra={"jobRunId": run.run_id, "error": told})
        return None
    if alive is None and time.time() - (record.start_time or 0) > _SECONDS_TO_JOURNAL:
        return f"The run's process is dead: it wrote no row to support.ticket_sla_cycles in {_SECONDS_TO_JOURNAL:g} s."
    if alive is False:
        return "The run's process is dead: its row in support.ticket_sla_cycles is not locked."
    return None
