"""The one place that wires the project for Dagster: assets, job, schedule, checks, resources.

What belongs here: which parts there are, and which settings they take from the environment. What does not: any part itself.
"""

import os

import dagster as dg

from sla_pipeline.event import EVENT_TOPIC
from sla_pipeline.kafka.settings import BOOTSTRAP_SERVERS_VARIABLE, CLIENT_CONFIG_VARIABLE, TOPIC_VARIABLE
from sla_pipeline.monitor.job import backlog_size, sla_breaches, ticket_sla_monitor, ticket_sla_monitor_every_minute, tickets_set_aside
from sla_pipeline.monitor.resources import KafkaResource, PostgresResource, cycle_values
from sla_pipeline.postgres.settings import POSTGRES_URL, single_runner_from_environment
from sla_pipeline.telemetry.logs import configure_logging

__all__ = ["defs"]

configure_logging()

defs = dg.Definitions(
    assets=[sla_breaches],
    asset_checks=[backlog_size, tickets_set_aside],
    jobs=[ticket_sla_monitor],
    schedules=[ticket_sla_monitor_every_minute],
    # For all jobs, Dagster's implicit one behind the UI's buttons included: the ops of a cycle pass their values in memory,
    # and a process per op costs more than a second each, every minute.
    executor=dg.in_process_executor,
    resources={
        "postgres": PostgresResource(url=dg.EnvVar(POSTGRES_URL), single_runner=single_runner_from_environment()),
        "kafka": KafkaResource(
            bootstrap_servers=dg.EnvVar(BOOTSTRAP_SERVERS_VARIABLE),
            topic=os.environ.get(TOPIC_VARIABLE) or EVENT_TOPIC,
            # named only where it is set: Dagster refuses a run whose variable is missing
            client_config=dg.EnvVar(CLIENT_CONFIG_VARIABLE) if os.environ.get(CLIENT_CONFIG_VARIABLE) else "{}",
        ),
        # For the ops of a cycle only; any other asset's value goes to Dagster's default storage.
        "cycle_values": cycle_values,
    },
)
