"""The definitions load as Dagster's users load them, and nobody finds a blank in the UI (SPEC 3.1, 11)."""

import datetime as dt
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml  # type: ignore[import-untyped]  # Dagster brings it, without types
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin

from sla_pipeline.monitor import job as monitor
from sla_pipeline_tests.integration.dagster.conftest import CHECK, REPOSITORY


@pytest.fixture
def definitions() -> dg.Definitions:
    """The repository's definitions; what they are does not depend on the environment."""
    defs: dg.Definitions = importlib.import_module("sla_pipeline.definitions").defs
    return defs


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance that keeps its runs in files, since a schedule's context needs one that it can open anew."""
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        yield instance


# each command loads Dagster twice, which takes long on a loaded machine
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, "-m", "dagster", "definitions", "validate", "-w", "workspace.yaml"],
        [str(Path(sys.executable).with_name("dg")), "check", "defs"],
    ],
    ids=["dagster definitions validate", "dg check defs"],
)
def test_definitions_validate(command: list[str], tmp_path: Path) -> None:
    environment = os.environ | {"DAGSTER_HOME": str(tmp_path)}
    checked = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, env=environment)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "Traceback" not in checked.stderr


def test_definitions_load_without_any_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A code server whose environment is not complete shows its definitions; the run says what is missing."""
    for name in ("SLA_POSTGRES_URL", "SLA_KAFKA_BOOTSTRAP_SERVERS", "SLA_KAFKA_TOPIC", "SLA_KAFKA_CLIENT_CONFIG", "SLA_SINGLE_RUNNER"):
        monkeypatch.delenv(name, raising=False)
    loaded = subprocess.run(
        [sys.executable, "-c", "from sla_pipeline.definitions import defs; print(defs.resources['kafka'].topic)"],
        capture_output=True, text=True, check=True, cwd=REPOSITORY,
    )  # fmt: skip
    assert loaded.stdout == "pin.support.ticket-sla-breached.v1\n"


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
    assert {"sla_breaches", "ticket_sla_monitor", "claim_overdue", "ticket_sla_monitor_every_minute"} <= described.keys()
    assert [name for name, text in described.items() if not text] == []


def test_every_config_field_and_resource_field_is_described(definitions: dg.Definitions, job: dg.JobDefinition) -> None:
    fields = job.graph.node_named("ticket_sla_cycle").definition.node_named("claim_overdue").definition.config_schema.config_type.fields  # type: ignore[attr-defined]
    assert set(fields) == {"batch_size", "max_batches_per_cycle", "tenant_id"}
    assert all(field.description for field in fields.values())
    assert {name: field.default_value for name, field in fields.items() if field.default_provided} == {
        "batch_size": 500,
        "max_batches_per_cycle": 20,
        "tenant_id": None,
    }
    for resource in (definitions.resources or {}).values():
        if isinstance(resource, dg.ConfigurableResource):
            assert all(field.description for field in type(resource).model_fields.values())


def test_the_asset_is_late_after_five_minutes_without_a_successful_cycle(definitions: dg.Definitions) -> None:
    (spec,) = [spec for spec in definitions.resolve_all_asset_specs() if spec.key == CHECK.asset_key]
    assert spec.freshness_policy == dg.FreshnessPolicy.time_window(fail_window=dt.timedelta(minutes=5), warn_window=dt.timedelta(minutes=3))


def test_one_cycle_at_a_time_by_tag(job: dg.JobDefinition) -> None:
    """Dagster limits by tag only, so the job must carry the one that dagster.yaml limits."""
    instance_config: Mapping[str, Any] = yaml.safe_load((REPOSITORY / "dagster.yaml").read_text())
    assert instance_config["concurrency"]["runs"]["tag_concurrency_limits"] == [
        {"key": "sla/job", "value": "ticket_sla_monitor", "limit": 1}
    ]
    assert {"sla/job": "ticket_sla_monitor", "dagster/max_runtime": "180"}.items() <= job.tags.items()
    assert instance_config["run_monitoring"]["enabled"] is True


def test_the_job_is_the_asset_alone_in_one_process(job: dg.JobDefinition) -> None:
    """The check is not a step of it: the cycle records it."""
    assert job.executor_def is dg.in_process_executor
    assert [node.name for node in job.nodes] == ["ticket_sla_cycle"]


def test_the_schedule_runs_every_minute_in_utc() -> None:
    schedule = monitor.ticket_sla_monitor_every_minute
    assert (schedule.cron_schedule, schedule.execution_timezone) == ("* * * * *", "UTC")
    assert schedule.default_status is dg.DefaultScheduleStatus.RUNNING


def test_the_schedule_skips_exactly_while_a_cycle_is_under_way(stored: dg.DagsterInstance) -> None:
    """Whoever launched it; a run that has ended, in whatever way, holds nothing back."""
    repository = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("sla_pipeline"), "__repository__")
    skipped = []
    for status in dg.DagsterRunStatus:
        run = stored.add_run(
            dg.DagsterRun(
                job_name="ticket_sla_monitor",
                status=status,
                tags=dict(monitor.JOB_TAG),
                remote_job_origin=RemoteJobOrigin(repository, "ticket_sla_monitor"),
            )
        )
        with dg.build_schedule_context(instance=stored) as context:
            decision = monitor.ticket_sla_monitor_every_minute(context)
        if isinstance(decision, dg.SkipReason):
            assert decision.skip_message == f"cycle {run.run_id} is under way"
            skipped.append(status.value)
        else:
            assert isinstance(decision, dg.RunRequest)
        stored.delete_run(run.run_id)
    assert sorted(skipped) == ["CANCELING", "NOT_STARTED", "QUEUED", "STARTED", "STARTING"]
