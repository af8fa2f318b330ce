"""Definitions: they load by Dagster's usual commands, and each has the texts that the UI shows (SPEC 3.1, 11)."""

import datetime as dt
import importlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from sla_pipeline.defs.sla_monitor import schedules
from sla_pipeline_tests.integration.dagster.conftest import CHECK, REPOSITORY

_VARIABLES = (
    "SLA_POSTGRES_URL",
    "SLA_KAFKA_BOOTSTRAP_SERVERS",
    "SLA_KAFKA_TOPIC",
    "SLA_KAFKA_CLIENT_CONFIG",
    "SLA_SINGLE_RUNNER",
)


@pytest.fixture
def definitions() -> dg.Definitions:
    """The repository's definitions; they do not depend on the environment."""
    defs: dg.Definitions = importlib.import_module("sla_pipeline.definitions").defs
    return defs


# Each command loads Dagster twice, which takes long on a loaded machine.
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, "-m", "dagster", "definitions", "validate", "-w", "workspace.yaml"],
        [str(Path(sys.executable).with_name("dg")), "check", "defs"],
    ],
    ids=["dagster definitions validate", "dg check defs"],
)
def test_definitions_validate_whatever_the_variables_hold(command: list[str], tmp_path: Path) -> None:
    """A code server with a wrong environment loads its definitions; the run reports the fault."""
    environment = os.environ | {"DAGSTER_HOME": str(tmp_path)} | dict.fromkeys(_VARIABLES, "nonsense")
    checked = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, env=environment)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "Traceback" not in checked.stderr


def test_everything_has_a_description_and_every_asset_a_group(definitions: dg.Definitions) -> None:
    described: dict[str, str | None] = {}
    for spec in definitions.resolve_all_asset_specs():
        assert spec.group_name not in (None, "default"), spec.key
        described[spec.key.to_user_string()] = spec.description
    for asset in definitions.resolve_asset_graph().asset_check_keys:
        described[asset.to_user_string()] = definitions.resolve_asset_graph().get_check_spec(asset).description
    for job in definitions.jobs or []:
        described[job.name] = job.description
        for node in definitions.resolve_job_def(job.name).nodes:
            described[node.name] = node.definition.description
            for op in node.definition.nodes if isinstance(node.definition, dg.GraphDefinition) else []:
                described[op.name] = op.definition.description
    for schedule in definitions.schedules or []:
        described[schedule.name] = schedule.description
    for sensor in definitions.sensors or []:
        described[sensor.name] = sensor.description
    assert {
        "sla_breaches",
        "ticket_sla_monitor",
        "claim_overdue",
        "ticket_sla_monitor_every_minute",
    } <= described.keys()
    assert [name for name, text in described.items() if not text] == []


def test_no_setting_is_configuration_of_a_resource(definitions: dg.Definitions) -> None:
    """Settings at the load of the location and settings of a run could differ."""
    resources = definitions.get_repository_def().get_top_level_resources()
    assert sorted(resources) == ["cycle_values", "kafka", "postgres"]
    for name in ("kafka", "postgres"):
        assert resources[name].description
        schema = resources[name].config_schema.config_type
        assert isinstance(schema, dg.Shape)
        assert schema.fields == {}


def test_the_asset_is_late_after_five_minutes_without_a_successful_cycle(definitions: dg.Definitions) -> None:
    (spec,) = [spec for spec in definitions.resolve_all_asset_specs() if spec.key == CHECK.asset_key]
    assert spec.freshness_policy == dg.FreshnessPolicy.time_window(
        fail_window=dt.timedelta(minutes=5), warn_window=dt.timedelta(minutes=3)
    )


def test_one_cycle_at_a_time_whatever_starts_it(definitions: dg.Definitions) -> None:
    """The limit counts runs that contain an op of the pool, so every op of a cycle is in it, and nothing else is."""
    settings: Mapping[str, Any] = yaml.safe_load((REPOSITORY / "dagster.yaml").read_text())
    assert settings["concurrency"] == {"pools": {"granularity": "run", "default_limit": 1}}
    ops = definitions.resolve_implicit_global_asset_job_def().all_node_defs
    pools = {op.name: op.pool for op in ops if isinstance(op, dg.OpDefinition)}
    cycle = ("claim_overdue", "mark_breached", "publish_breaches", "close_cycle")
    checks = ("sla_breaches_backlog_size", "sla_breaches_tickets_set_aside")
    assert pools == {**dict.fromkeys(cycle, "ticket_sla_cycle"), **dict.fromkeys(checks)}


def test_a_run_that_died_while_it_started_is_failed_before_the_next_tick() -> None:
    """And a run is bounded to 60 s for the cycle (SPEC 3.3 aims at 30 s), plus its start and its end."""
    monitoring = yaml.safe_load((REPOSITORY / "dagster.yaml").read_text())["run_monitoring"]
    assert monitoring["enabled"] is True
    assert monitoring["start_timeout_seconds"] + monitoring["poll_interval_seconds"] < 60
    assert 60 < monitoring["max_runtime_seconds"] <= 90


def test_every_job_of_the_location_runs_in_one_process(definitions: dg.Definitions) -> None:
    """This includes the implicit job behind the buttons Materialize and Execute."""
    assert definitions.resolve_implicit_global_asset_job_def().executor_def is dg.in_process_executor
    assert definitions.resolve_job_def("ticket_sla_monitor").executor_def is dg.in_process_executor


def test_the_job_is_the_asset_alone(job: dg.JobDefinition) -> None:
    """The checks are not steps of the job: the cycle records them."""
    assert [node.name for node in job.nodes] == ["sla_breaches"]


def test_the_schedule_runs_every_minute_in_utc() -> None:
    schedule = schedules.ticket_sla_monitor_every_minute
    assert (schedule.cron_schedule, schedule.execution_timezone) == ("* * * * *", "UTC")
    assert schedule.default_status is dg.DefaultScheduleStatus.RUNNING
