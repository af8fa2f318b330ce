"""Decisions of the schedule: start a cycle, skip the tick, or report a dead run failed (SPEC 3.1)."""

import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
import pytest
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.storage.dagster_run import RunOpConcurrency

from sla_pipeline.cycle import CycleInput, CycleTotals
from sla_pipeline.defs.resources import PostgresResource
from sla_pipeline.defs.sla_monitor import schedules
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.postgres import journal
from sla_pipeline.postgres.session import PostgresSettings

Support = psycopg.Connection[Any]
Decision = dg.RunRequest | dg.SkipReason
Decide = Callable[[], Decision]
_REPOSITORY = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("sla_pipeline"), "__repository__")


@pytest.fixture
def kafka_settings() -> KafkaSettings:
    """The schedule does not connect to Kafka."""
    return KafkaSettings("127.0.0.1:1", topic="untouched")


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance that keeps its runs in files, because a schedule's context opens it again."""
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        yield instance


@pytest.fixture
def decide(stored: dg.DagsterInstance, worker_url: str, monkeypatch: pytest.MonkeyPatch) -> Decide:
    """A function that runs one tick and returns its decision."""
    monkeypatch.setenv("SLA_POSTGRES_URL", worker_url)

    def tick() -> Decision:
        with dg.build_schedule_context(instance=stored, resources={"postgres": PostgresResource()}) as context:
            decision = schedules.ticket_sla_monitor_every_minute(context)
        assert isinstance(decision, dg.RunRequest | dg.SkipReason)
        return decision

    return tick


def _run(instance: dg.DagsterInstance, status: dg.DagsterRunStatus, *, started_seconds_ago: float = 0) -> dg.DagsterRun:
    """Add a run of a cycle as a button starts it: of Dagster's own job, without a tag."""
    run = instance.add_run(
        dg.DagsterRun(
            job_name="__ASSET_JOB",
            status=dg.DagsterRunStatus.NOT_STARTED if status is dg.DagsterRunStatus.STARTED else status,
            asset_selection=frozenset({dg.AssetKey("sla_breaches")}),
            remote_job_origin=RemoteJobOrigin(_REPOSITORY, "__ASSET_JOB"),
            run_op_concurrency=RunOpConcurrency(
                root_key_counts={"ticket_sla_cycle": 1},
                has_unconstrained_root_nodes=False,
                all_pools={"ticket_sla_cycle"},
            ),
        )
    )
    if status is dg.DagsterRunStatus.STARTED:
        started = dg.DagsterEvent(dg.DagsterEventType.RUN_START.value, run.job_name)
        moment = datetime.fromtimestamp(time.time() - started_seconds_ago, UTC)
        instance.run_storage.handle_run_event(run.run_id, started, moment)
    return run


def _status(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dg.DagsterRunStatus:
    found = instance.get_run_by_id(run.run_id)
    assert found is not None
    return found.status


@contextlib.contextmanager
def _journaled(worker_url: str, run: dg.DagsterRun) -> Iterator[tuple[psycopg.Connection, int]]:
    """Write the run's journal row; a worker's session keeps it locked until the end of the block."""
    with PostgresSettings(worker_url).connect(purpose="cycle") as connection:
        yield (
            connection,
            journal.start(connection, run_id=run.run_id, now_utc=datetime.now(UTC), cycle_input=CycleInput()),
        )


def test_the_schedule_skips_exactly_while_a_cycle_is_under_way(stored: dg.DagsterInstance, decide: Decide) -> None:
    """It does not matter who launched the run, nor how an earlier run ended."""
    skipped = []
    for status in dg.DagsterRunStatus:
        run = _run(stored, status)
        decision = decide()
        if isinstance(decision, dg.SkipReason):
            assert decision.skip_message == f"cycle {run.run_id} is under way"
            skipped.append(status.value)
        stored.delete_run(run.run_id)
    assert sorted(skipped) == ["CANCELING", "NOT_STARTED", "QUEUED", "STARTED", "STARTING"]


def test_a_run_of_something_else_holds_nothing_back(stored: dg.DagsterInstance, decide: Decide) -> None:
    stored.add_run(dg.DagsterRun(job_name="__ASSET_JOB", status=dg.DagsterRunStatus.STARTED))
    assert isinstance(decide(), dg.RunRequest)


def test_a_run_whose_row_is_locked_is_alive(stored: dg.DagsterInstance, decide: Decide, worker_url: str) -> None:
    run = _run(stored, dg.DagsterRunStatus.STARTED, started_seconds_ago=60)
    with _journaled(worker_url, run):
        assert isinstance(decide(), dg.SkipReason)
    assert _status(stored, run) is dg.DagsterRunStatus.STARTED


def test_a_run_whose_lock_is_free_is_dead(stored: dg.DagsterInstance, decide: Decide, worker_url: str) -> None:
    run = _run(stored, dg.DagsterRunStatus.STARTED)
    with _journaled(worker_url, run):
        pass
    assert isinstance(decide(), dg.RunRequest)
    assert _status(stored, run) is dg.DagsterRunStatus.FAILURE
    (failure,) = stored.all_logs(run.run_id, of_type=dg.DagsterEventType.RUN_FAILURE)
    assert failure.dagster_event is not None
    assert failure.dagster_event.message == (
        "The run's process is dead: its row in support.ticket_sla_cycles is not locked. What it committed stays; the "
        "next cycle, due now, takes the rest. No action is needed."
    )
    assert isinstance(decide(), dg.RunRequest)


def test_a_run_that_another_cycle_found_abandoned_is_dead(
    stored: dg.DagsterInstance, decide: Decide, worker_url: str
) -> None:
    run = _run(stored, dg.DagsterRunStatus.STARTED)
    with _journaled(worker_url, run):
        pass
    with PostgresSettings(worker_url).session(purpose="cycle") as connection:
        assert [run_id for _, run_id in journal.sweep_abandoned(connection)] == [run.run_id]
    assert isinstance(decide(), dg.RunRequest)
    assert _status(stored, run) is dg.DagsterRunStatus.FAILURE


@pytest.mark.parametrize(("finished_seconds_ago", "status"), [(1, "STARTED"), (15, "FAILURE")])
def test_a_run_that_closed_its_row_has_seconds_to_end(
    finished_seconds_ago: int,
    status: str,
    stored: dg.DagsterInstance,
    decide: Decide,
    worker_url: str,
    support: Support,
) -> None:
    run = _run(stored, dg.DagsterRunStatus.STARTED)
    with _journaled(worker_url, run) as (connection, cycle_id):
        journal.finish(connection, cycle_id, "succeeded", CycleTotals())
        support.execute(
            "update support.ticket_sla_cycles set finished_at = clock_timestamp() - make_interval(secs => %s)",
            (finished_seconds_ago,),
        )
        assert isinstance(decide(), dg.SkipReason if status == "STARTED" else dg.RunRequest)
    assert _status(stored, run).value == status


@pytest.mark.parametrize(("started_seconds_ago", "status"), [(40, "STARTED"), (50, "FAILURE")])
def test_a_run_without_a_row_is_dead_when_it_is_no_longer_young(
    started_seconds_ago: int, status: str, stored: dg.DagsterInstance, decide: Decide
) -> None:
    """Such a run died before it wrote its row, or cannot write it."""
    run = _run(stored, dg.DagsterRunStatus.STARTED, started_seconds_ago=started_seconds_ago)
    assert isinstance(decide(), dg.SkipReason if status == "STARTED" else dg.RunRequest)
    assert _status(stored, run).value == status


def test_a_live_run_behind_a_dead_one_holds_the_tick_back(stored: dg.DagsterInstance, decide: Decide) -> None:
    """The dead run is reported failed too, because the live one waits for its place."""
    dead = _run(stored, dg.DagsterRunStatus.STARTED, started_seconds_ago=50)
    queued = _run(stored, dg.DagsterRunStatus.QUEUED)
    decision = decide()
    assert isinstance(decision, dg.SkipReason)
    assert decision.skip_message == f"cycle {queued.run_id} is under way"
    assert _status(stored, dead) is dg.DagsterRunStatus.FAILURE


@pytest.mark.parametrize(
    "url", ["postgresql://worker:x@127.0.0.1:1/support", "mysql://worker@db/support", '"quoted"', ""]
)
def test_a_database_that_does_not_answer_proves_nothing(
    url: str, stored: dg.DagsterInstance, decide: Decide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a wrong variable: the tick logs it and continues."""
    run = _run(stored, dg.DagsterRunStatus.STARTED, started_seconds_ago=50)
    monkeypatch.setenv("SLA_POSTGRES_URL", url)
    began = time.monotonic()
    assert isinstance(decide(), dg.SkipReason)
    assert time.monotonic() - began < 30
    assert _status(stored, run) is dg.DagsterRunStatus.STARTED


@pytest.mark.parametrize("variable", ["SLA_POSTGRES_URL", "SLA_SINGLE_RUNNER"])
def test_a_wrong_variable_fails_the_run_and_not_the_tick(
    variable: str, decide: Decide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "nonsense")
    assert isinstance(decide(), dg.RunRequest)
