"""Every way in which a person starts a cycle in the UI, followed to the end of the run.

The tests send the mutations of Dagster's own pages (``ui-core/src/runs/RunUtils.tsx``) to a real webserver, daemon and
code server. One deployment serves the whole file. Its schedule is stopped as a person stops it, so that no other run
disturbs a test.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import dagster as dg
import psycopg
import pytest

from sla_pipeline.defs.resources import RE_EXECUTE_ALL, PostgresResource
from sla_pipeline.defs.sla_monitor import schedules
from sla_pipeline.kafka.events import read_events
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.kafka.topics import create_topics
from sla_pipeline_tests.integration.dagster.conftest import CHECK, REPOSITORY, SET_ASIDE_CHECK, database, launchpad
from sla_pipeline_tests.integration.dagster.deployment import LOCATION, Deployment, deployment
from sla_pipeline_tests.tickets import TENANT, before_update, breached_ids, make_ticket
from sla_pipeline_tests.waiting import wait_until

Support = psycopg.Connection[Any]
_ENDS_SECONDS = 120.0
_GATE = 4_712
_IS_AT_THE_GATE = (
    "select 1 from pg_stat_activity where datname = current_database() and application_name = 'ticket-sla-monitor "
    "cycle' and wait_event = 'PgSleep'"
)
_OVERDUE: dict[str, Any] = {"first_response_due_at": datetime(2026, 1, 1, tzinfo=UTC)}
_REPOSITORY = {"repositoryLocationName": LOCATION, "repositoryName": "__repository__"}
_ASSET = {"path": ["sla_breaches"]}
_CHECKS = (CHECK, SET_ASIDE_CHECK)

_ERROR = "... on PythonError { message className stack causes { message } }"
_LAUNCH = f"""
mutation LaunchPipelineExecution($executionParams: ExecutionParams!) {{
  launchPipelineExecution(executionParams: $executionParams) {{
    __typename
    ... on LaunchRunSuccess {{ run {{ id pipelineName }} }}
    ... on PipelineNotFoundError {{ message }}
    ... on InvalidSubsetError {{ message }}
    ... on RunConfigValidationInvalid {{ errors {{ message }} }}
    {_ERROR}
  }}
}}"""
_RE_EXECUTE = f"""
mutation LaunchPipelineReexecution($executionParams: ExecutionParams, $reexecutionParams: ReexecutionParams) {{
  launchPipelineReexecution(executionParams: $executionParams, reexecutionParams: $reexecutionParams) {{
    __typename
    ... on LaunchRunSuccess {{ run {{ id pipelineName rootRunId parentRunId }} }}
    ... on PipelineNotFoundError {{ message }}
    ... on InvalidSubsetError {{ message }}
    ... on RunConfigValidationInvalid {{ errors {{ message }} }}
    {_ERROR}
  }}
}}"""
_TERMINATE = f"""
mutation Terminate($runIds: [String!]!, $terminatePolicy: TerminateRunPolicy) {{
  terminateRuns(runIds: $runIds, terminatePolicy: $terminatePolicy) {{
    ... on TerminateRunsResult {{
      terminateRunResults {{ __typename ... on TerminateRunSuccess {{ run {{ id canTerminate }} }} }}
    }}
    {_ERROR}
  }}
}}"""
_SCHEDULE = """
query Schedule($selector: ScheduleSelector!) {
  scheduleOrError(scheduleSelector: $selector) { ... on Schedule { scheduleState { id status } } }
}"""
_STOP_SCHEDULE = f"""
mutation StopSchedule($id: String!) {{
  stopRunningSchedule(id: $id) {{ ... on ScheduleStateResult {{ scheduleState {{ id status }} }} {_ERROR} }}
}}"""
_ASSET_JOBS = """
query AssetJobs($asset: AssetKeyInput!) {
  assetNodeOrError(assetKey: $asset) {
    ... on AssetNode {
      jobNames
      assetChecksOrError { ... on AssetChecks { checks { name jobNames canExecuteIndividually } } }
    }
  }
}"""


@dataclass
class Site:
    """A deployment with its webserver, its instance, database and topic."""

    deployed: Deployment
    instance: dg.DagsterInstance
    support: Support
    kafka: KafkaSettings

    def launch(
        self, job: str, *, assets: bool = True, checks: Sequence[dg.AssetCheckKey] = (), config: object = None
    ) -> dict[str, Any]:
        """Press a button that starts a run of ``job``; return the answer."""
        parameters = {
            "mode": "default",
            "executionMetadata": {"tags": []},
            "runConfigData": json.dumps(config or {}),
            "selector": {
                **_REPOSITORY,
                "pipelineName": job,
                "assetSelection": [_ASSET] if assets else [],
                "assetCheckSelection": [{"assetKey": _ASSET, "name": check.name} for check in checks],
            },
        }
        answer: dict[str, Any] = self.deployed.send(_LAUNCH, executionParams=parameters)["launchPipelineExecution"]
        return answer

    def re_execute(self, run: dg.DagsterRun, strategy: str) -> dg.DagsterRun:
        """Press a button of a run's page; return the new run at its end."""
        parameters = {"parentRunId": run.run_id, "strategy": strategy, "extraTags": []}
        answer = self.deployed.send(_RE_EXECUTE, reexecutionParams=parameters)["launchPipelineReexecution"]
        assert answer["run"]["parentRunId"] == run.run_id, answer
        return self.ended(answer)

    def ended(self, answer: dict[str, Any]) -> dg.DagsterRun:
        """Wait for the end of the launched run; return it."""
        assert answer["__typename"] == "LaunchRunSuccess", answer
        return self.wait_for_end(answer["run"]["id"])

    def wait_for_end(self, run_id: str) -> dg.DagsterRun:
        wait_until(lambda: self.run(run_id).is_finished, what=f"the end of run {run_id}", seconds=_ENDS_SECONDS)
        return self.run(run_id)

    def run(self, run_id: str) -> dg.DagsterRun:
        found = self.instance.get_run_by_id(run_id)
        assert found is not None
        return found

    def failure(self, run: dg.DagsterRun) -> tuple[str, str]:
        """Return the step that failed, and its description on the run's page."""
        (entry,) = self.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
        event = entry.get_dagster_event()
        shown = event.step_failure_data.user_failure_data
        assert shown is not None
        return str(event.step_key), str(shown.description)

    def materialized_by(self) -> str:
        """Return the id of the run that materialized the asset last."""
        (record, *_) = self.instance.fetch_materializations(CHECK.asset_key, limit=1).records
        return record.run_id

    def events_of(self, ticket_id: str) -> int:
        """Return the number of the ticket's events on the topic."""
        return [event.key.decode() for event in read_events(self.kafka)].count(ticket_id)

    def cycle_count(self) -> int:
        """Return the number of rows in the journal."""
        return len(self.support.execute("select from support.ticket_sla_cycles").fetchall())

    def span(self, run_id: str) -> tuple[float, float]:
        """Return the seconds at which the run started and ended."""
        record = self.instance.get_run_record_by_id(run_id)
        assert record is not None
        assert record.start_time is not None
        assert record.end_time is not None
        return record.start_time, record.end_time

    @contextlib.contextmanager
    def gate_before(self, ticket_id: str, *, timeout_seconds: float = 60) -> Iterator[None]:
        """Make every session that marks the ticket wait until the end of the block, or until ``open_gate``.

        It waits for at most ``timeout_seconds``. When that exceeds the statement timeout, the batch fails.
        """
        self.support.execute("select pg_advisory_lock(%s)", (_GATE,))
        before_update(
            self.support,
            f"if new.id = '{ticket_id}' then while not pg_try_advisory_xact_lock_shared({_GATE}) and clock_timestamp() "
            f"< statement_timestamp() + interval '{timeout_seconds} s' loop perform pg_sleep(0.05); end loop; end if;",
        )
        try:
            yield
        finally:
            self.open_gate()
            self.support.execute("drop function support.before_update() cascade")

    def open_gate(self) -> None:
        self.support.execute("select pg_advisory_unlock_all()")

    def wait_at_the_gate(self) -> None:
        wait_until(
            lambda: bool(self.support.execute(_IS_AT_THE_GATE).fetchall()),
            what="a run inside a batch",
            seconds=_ENDS_SECONDS,
        )


@pytest.fixture(scope="module")
def site(
    postgres_server_url: str,
    migrated_template: str,
    worker_login: tuple[str, str],
    kafka_bootstrap: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("dagster")
    shutil.copy(REPOSITORY / "dagster.yaml", home)
    kafka = KafkaSettings(kafka_bootstrap, topic=f"test-ui-{uuid.uuid4().hex}.breached.v1")
    create_topics(kafka)
    with contextlib.ExitStack() as up:
        owner_url = up.enter_context(database(postgres_server_url, "ui_starts", template=migrated_template))
        worker_url = owner_url.replace(owner_url.split("//")[1].split("@")[0], ":".join(worker_login), 1)
        environment = up.enter_context(pytest.MonkeyPatch.context())
        for name, value in {
            "SLA_POSTGRES_URL": worker_url,
            "SLA_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
            "SLA_KAFKA_TOPIC": kafka.topic,
            "DAGSTER_HOME": str(home),
            "DAGSTER_POSTGRES_URL": up.enter_context(database(postgres_server_url, "dagster")),
        }.items():
            environment.setenv(name, value)
        instance = up.enter_context(dg.DagsterInstance.get())
        support = up.enter_context(psycopg.connect(owner_url, autocommit=True))
        deployed = up.enter_context(deployment(home))
        deployed.start_webserver()
        site = Site(deployed, instance, support, kafka)
        _stop_schedule(site)
        yield site


def _stop_schedule(site: Site) -> None:
    """Press the toggle of the schedule's page; wait for a run that the schedule has started already."""
    selector = {**_REPOSITORY, "scheduleName": "ticket_sla_monitor_every_minute"}
    state = site.deployed.send(_SCHEDULE, selector=selector)["scheduleOrError"]["scheduleState"]
    assert state["status"] == "RUNNING"
    stopped = site.deployed.send(_STOP_SCHEDULE, id=state["id"])["stopRunningSchedule"]
    assert stopped["scheduleState"]["status"] == "STOPPED", stopped
    wait_until(
        lambda: all(run.is_finished for run in site.instance.get_runs()),
        what="an idle deployment",
        seconds=_ENDS_SECONDS,
    )


@pytest.fixture
def overdue(site: Site) -> str:
    """A ticket that the next cycle marks."""
    return make_ticket(site.support, **_OVERDUE)


def _assert_a_whole_cycle(site: Site, run: dg.DagsterRun, ticket_id: str) -> None:
    assert run.status is dg.DagsterRunStatus.SUCCESS
    assert site.materialized_by() == run.run_id
    assert ticket_id in breached_ids(site.support)
    assert site.events_of(ticket_id) == 1
    for key in _CHECKS:
        check = site.instance.get_latest_asset_check_evaluation_record(key)
        assert check is not None
        assert check.run_id == run.run_id


def test_the_page_offers_the_jobs_that_are_started_here(site: Site) -> None:
    """Materialize uses the first of the asset's jobs, Execute the first of the check's."""
    node = site.deployed.send(_ASSET_JOBS, asset=_ASSET)["assetNodeOrError"]
    assert node["jobNames"] == ["__ASSET_JOB", "ticket_sla_monitor"]
    assert node["assetChecksOrError"]["checks"] == [
        {"name": check.name, "jobNames": ["__ASSET_JOB"], "canExecuteIndividually": "CAN_EXECUTE"} for check in _CHECKS
    ]


def test_materialize_on_the_asset(site: Site, overdue: str) -> None:
    """Catalog, group and lineage all send this mutation, with the asset's checks."""
    _assert_a_whole_cycle(site, site.ended(site.launch("__ASSET_JOB", checks=_CHECKS)), overdue)


@pytest.mark.parametrize("key", _CHECKS, ids=lambda key: key.name)
def test_execute_on_a_check(site: Site, overdue: str, key: dg.AssetCheckKey) -> None:
    """The check counts, and marks nothing."""
    before = len(site.instance.fetch_materializations(CHECK.asset_key, limit=100).records)
    run = site.ended(site.launch("__ASSET_JOB", assets=False, checks=[key]))
    assert run.status is dg.DagsterRunStatus.SUCCESS
    check = site.instance.get_latest_asset_check_evaluation_record(key)
    assert check is not None
    assert check.run_id == run.run_id
    assert overdue not in breached_ids(site.support)
    assert len(site.instance.fetch_materializations(CHECK.asset_key, limit=100).records) == before
    site.support.execute("delete from support.tickets where id = %s", (overdue,))


def test_materialize_on_the_jobs_page_with_the_launchpads_config(site: Site, overdue: str) -> None:
    """Both launchpads, the asset's and the job's, have the same path; fields that are left out have defaults."""
    other = make_ticket(site.support, **_OVERDUE, tenant_id="bbbbbbbb-0000-4000-8000-000000000002")
    config = launchpad(batch_size=100, max_batches_per_cycle=3, tenant_id=TENANT)
    _assert_a_whole_cycle(site, site.ended(site.launch("__ASSET_JOB", config=config)), overdue)
    assert other not in breached_ids(site.support)
    _assert_a_whole_cycle(site, site.ended(site.launch("ticket_sla_monitor", config=launchpad(batch_size=7))), other)
    assert site.support.execute(
        "select batch_size, max_batches_per_cycle from support.ticket_sla_cycles order by id desc limit 2"
    ).fetchall() == [(7, 20), (100, 3)]


@pytest.mark.parametrize("value", ["many", 2.5, True, None, 0, 1001])
@pytest.mark.parametrize("job", ["__ASSET_JOB", "ticket_sla_monitor"])
def test_launchpad_with_a_bad_value_names_the_range(site: Site, job: str, value: object) -> None:
    """The page shows the message in a dialog, and no run is started."""
    before = site.instance.get_runs_count()
    answer = site.launch(job, config=launchpad(batch_size=value))
    assert answer["__typename"] == "PythonError"
    assert f"batch_size is {value!r}; it must be a whole number from 1 to 1000 (default 500)" in answer["message"]
    assert site.instance.get_runs_count() == before


def test_a_failed_run_names_the_button_to_press_and_it_works(site: Site, overdue: str) -> None:
    """The three entries of a failed run's menu: from failure, all steps, from asset failure."""
    before_update(site.support, f"if new.id = '{overdue}' then raise 'not today'; end if;")
    good = make_ticket(site.support, **_OVERDUE)
    failed = site.ended(site.launch("__ASSET_JOB"))
    assert failed.status is dg.DagsterRunStatus.FAILURE
    step, shown = site.failure(failed)
    assert step == "sla_breaches.close_cycle"
    assert overdue in shown
    assert shown.endswith(RE_EXECUTE_ALL)
    site.support.execute("drop function support.before_update() cascade")
    site.support.execute("update support.ticket_sla_set_aside set next_try_at = now()")

    again = site.re_execute(failed, "FROM_FAILURE")
    assert again.status is dg.DagsterRunStatus.FAILURE
    assert site.failure(again) == (
        "sla_breaches.close_cycle",
        "A cycle cannot be resumed: the values of step sla_breaches.publish_breaches ended with run "
        f"{failed.run_id}. {RE_EXECUTE_ALL}",
    )
    assert overdue not in breached_ids(site.support)

    _assert_a_whole_cycle(site, site.re_execute(again, "ALL_STEPS"), overdue)
    assert site.events_of(good) == 1
    later = make_ticket(site.support, **_OVERDUE)
    _assert_a_whole_cycle(site, site.re_execute(failed, "FROM_ASSET_FAILURE"), later)


def test_terminate(site: Site, overdue: str) -> None:
    with site.gate_before(overdue):
        answer = site.launch("__ASSET_JOB")
        site.wait_at_the_gate()
        terminated = site.deployed.send(_TERMINATE, runIds=[answer["run"]["id"]], terminatePolicy="SAFE_TERMINATE")
        (result,) = terminated["terminateRuns"]["terminateRunResults"]
        assert result["__typename"] == "TerminateRunSuccess"
        run = site.ended(answer)
    assert run.status is dg.DagsterRunStatus.CANCELED
    assert overdue not in breached_ids(site.support)


def test_whatever_is_started_waits_for_the_cycle_under_way(site: Site, overdue: str) -> None:
    """The queue's limit and the schedule's skip cover runs by buttons, which have no tags. The check does not wait."""
    with site.gate_before(overdue):
        first = site.launch("__ASSET_JOB")
        site.wait_at_the_gate()
        second = site.launch("ticket_sla_monitor")
        check = site.launch("__ASSET_JOB", assets=False, checks=[CHECK])
        # The queue is served in order, so the check's run was considered after the second run.
        wait_until(
            lambda: site.run(check["run"]["id"]).status is not dg.DagsterRunStatus.QUEUED,
            what="the check's run to leave the queue",
            seconds=_ENDS_SECONDS,
        )
        assert site.run(second["run"]["id"]).status is dg.DagsterRunStatus.QUEUED
        with dg.build_schedule_context(instance=site.instance, resources={"postgres": PostgresResource()}) as context:
            assert isinstance(schedules.ticket_sla_monitor_every_minute(context), dg.SkipReason)
    assert [site.ended(answer).status for answer in (first, second, check)] == [dg.DagsterRunStatus.SUCCESS] * 3
    assert site.span(first["run"]["id"])[1] <= site.span(second["run"]["id"])[0]
    assert site.events_of(overdue) == 1


def test_a_command_beside_a_button_is_harmless(site: Site, overdue: str) -> None:
    """A run that bypasses the queue is not limited: two cycles at once share the work and double nothing.

    The first waits for the second inside its batch, but not so long that the batch fails. On a busy machine one may end
    before the other begins; the outcome must be the same.
    """
    tickets = [overdue, *(make_ticket(site.support, **_OVERDUE) for _ in range(5))]
    known = {run.run_id for run in site.instance.get_runs()}
    cycles = site.cycle_count()
    command = ["asset", "materialize", "--select", "sla_breaches", "-m", "sla_pipeline.definitions"]
    with (
        site.gate_before(overdue, timeout_seconds=1.5),
        subprocess.Popen(
            [sys.executable, "-m", "dagster", *command], cwd=REPOSITORY, env=dict(os.environ),
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        ) as by_command,
    ):  # fmt: skip
        # The button starts its run while the command imports Dagster.
        by_button = site.launch("__ASSET_JOB")["run"]["id"]
        wait_until(lambda: site.cycle_count() == cycles + 2, what="both cycles to begin", seconds=_ENDS_SECONDS)
        site.open_gate()
        _, stderr = by_command.communicate(timeout=_ENDS_SECONDS)
        assert by_command.returncode == 0, stderr
    assert site.wait_for_end(by_button).status is dg.DagsterRunStatus.SUCCESS
    runs = [run for run in site.instance.get_runs() if run.run_id not in known]
    assert [run.status for run in runs] == [dg.DagsterRunStatus.SUCCESS] * 2
    assert set(tickets) <= breached_ids(site.support)
    assert [site.events_of(ticket) for ticket in tickets] == [1] * 6
    # The command's run is in the pool too, so the queue and the schedule wait for it.
    pool = dg.RunsFilter(tags={".dagster/pool/ticket_sla_cycle": "true"})
    assert {run.run_id for run in runs} <= {run.run_id for run in site.instance.get_runs(pool)}
