"""The asset, the job, the schedule and the check: how Dagster runs a cycle every minute (SPEC 3.1, 11).

What belongs here: wiring of the ops and when they run. What does not: what they do (``ops.py``), and which resources they get
(``definitions.py``).
"""

import datetime as dt

import dagster as dg

from sla_pipeline.cycle import SystemClock
from sla_pipeline.monitor import ops
from sla_pipeline.monitor.resources import PostgresResource
from sla_pipeline.postgres import tickets

__all__ = ["JOB_TAG", "backlog_size", "ticket_sla_cycle", "ticket_sla_monitor", "ticket_sla_monitor_every_minute"]

# Dagster sets no tag with a job's name; the limit of concurrent runs in dagster.yaml and the schedule's look-out both go by this one
JOB_TAG = {"sla/job": "ticket_sla_monitor"}
# a cycle aims at 30 s (SPEC 3.3); after this a run is taken for dead, or a lost one would hold back every later cycle
_MAX_RUNTIME_SECONDS = 180
# "no successful cycle for more than 5 minutes" (SPEC 9.5)
_STALE_AFTER = dt.timedelta(minutes=5)
_STALE_SOON_AFTER = dt.timedelta(minutes=3)


@dg.graph_multi_asset(
    name="ticket_sla_cycle",
    group_name="sla_monitor",
    outs={
        "sla_breaches": dg.AssetOut(
            description=(
                "Tickets whose deadline has passed, each marked once in support.tickets and published once to Kafka. "
                "Every materialization is one cycle."
            ),
            kinds={"postgres", "kafka"},
            owners=["team:pin-platform-care"],
        )
    },
)
def _ticket_sla_cycle() -> dict[str, object]:
    """Claim, mark, publish, close."""
    return {"sla_breaches": ops.close_cycle(ops.publish_breaches(ops.mark_breached(ops.claim_overdue())))}


# set on the spec: a freshness policy that is given to `AssetOut` is lost in `graph_multi_asset`
ticket_sla_cycle = _ticket_sla_cycle.map_asset_specs(
    lambda spec: dg.apply_freshness_policy(spec, dg.FreshnessPolicy.time_window(fail_window=_STALE_AFTER, warn_window=_STALE_SOON_AFTER))
)


@dg.asset_check(
    asset=ops.BACKLOG_CHECK.asset_key,
    name=ops.BACKLOG_CHECK.name,
    description="At most 100 tickets are overdue and not marked (SPEC 9.5). Every cycle records it; run it alone to count now.",
)
def backlog_size(postgres: PostgresResource) -> dg.AssetCheckResult:
    """Count the backlog now."""
    with postgres.database().session() as connection:
        evaluation = ops.backlog_evaluation(tickets.count_backlog(connection, now_utc=SystemClock().now_utc()))
    return dg.AssetCheckResult(
        passed=evaluation.passed, severity=evaluation.severity, description=evaluation.description, metadata=evaluation.metadata
    )


ticket_sla_monitor = dg.define_asset_job(
    "ticket_sla_monitor",
    description="One cycle: find the tickets whose deadline has passed, mark each once, publish each once.",
    # the cycle records the check itself: as a step of its own it would count the backlog a second time every minute
    selection=dg.AssetSelection.assets(ops.BACKLOG_CHECK.asset_key).without_checks(),
    # a process per op costs more than a second each, every minute
    executor_def=dg.in_process_executor,
    tags={"dagster/max_runtime": str(_MAX_RUNTIME_SECONDS), **JOB_TAG},
)

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
    description="A cycle every minute, UTC; none while one is under way. Missed ticks are not caught up: a cycle takes all overdue.",
)
def ticket_sla_monitor_every_minute(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
    """SPEC 3.1."""
    busy = context.instance.get_run_records(dg.RunsFilter(tags=JOB_TAG, statuses=_UNDER_WAY), limit=1)
    if busy:
        return dg.SkipReason(f"cycle {busy[0].dagster_run.run_id} is under way")
    return dg.RunRequest()
