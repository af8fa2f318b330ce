"""The one place that wires the project for Dagster: assets, job, schedule, checks, resources.

What belongs here: which parts there are. What does not: any part itself, or a setting: each run reads the environment
when it starts, so that a wrong variable fails the run in one sentence and never takes the location down.
"""

import dagster as dg

from sla_pipeline.monitor.job import (
    backlog_size,
    sla_breaches,
    ticket_sla_monitor,
    ticket_sla_monitor_every_minute,
    tickets_set_aside,
)
from sla_pipeline.monitor.resources import cycle_values, kafka, postgres
from sla_pipeline.telemetry.logs import configure_logging

__all__ = ["defs"]

configure_logging()

defs = dg.Definitions(
    assets=[sla_breaches],
    asset_checks=[backlog_size, tickets_set_aside],
    jobs=[ticket_sla_monitor],
    schedules=[ticket_sla_monitor_every_minute],
    # For all jobs, Dagster's implicit one behind the UI's buttons included: the ops of a cycle pass their values in
    # memory, and a process per op costs more than a second each, every minute.
    executor=dg.in_process_executor,
    resources={
        "postgres": postgres,
        "kafka": kafka,
        # For the ops of a cycle only; any other asset's value goes to Dagster's default storage.
        "cycle_values": cycle_values,
    },
)
