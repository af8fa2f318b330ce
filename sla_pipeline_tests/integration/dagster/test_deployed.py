"""The deployed schedule: Dagster's own processes tick, launch and record (SPEC 3.1, 11)."""

import logging
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
import pytest
from dagster._core.scheduler.instigation import InstigatorState, ScheduleInstigatorData

from sla_pipeline.breach import BreachKind
from sla_pipeline_tests.integration.conftest import Events
from sla_pipeline_tests.integration.dagster.conftest import CHECK
from sla_pipeline_tests.integration.dagster.deployment import deployment
from sla_pipeline_tests.tickets import HOUR, MINUTE, breached_ids, make_ticket, make_tickets
from sla_pipeline_tests.waiting import wait_until

Support = psycopg.Connection[Any]
log = logging.getLogger(__name__)
# Bounds each wait: the start of processes, a tick at the full minute and the start of a run take long on a loaded
# machine.
_TIMEOUT_SECONDS = 150.0
# One period, and the time that a run needs to start.
_AFTER_A_DEATH = timedelta(seconds=100)
_POWER_CUT = timedelta(seconds=12)

pytestmark = pytest.mark.timeout(400)


def _overdue(support: Support) -> dict[str, BreachKind]:
    """Create one overdue ticket per kind, by the system's clock."""
    now = datetime.now(UTC)
    first = make_ticket(support, first_response_due_at=now - MINUTE)
    second = make_ticket(
        support,
        status="InWork",
        first_response_due_at=now - 3 * HOUR,
        first_response_at=now - 4 * HOUR,
        resolution_due_at=now - MINUTE,
    )
    return {first: BreachKind.FIRST_RESPONSE, second: BreachKind.RESOLUTION}


def _succeeded(instance: dg.DagsterInstance) -> list[dg.DagsterRun]:
    return list(instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.SUCCESS])))


def test_each_kind_end_to_end(support: Support, home: Path, instance: dg.DagsterInstance, events: Events) -> None:
    kinds = _overdue(support)
    with deployment(home):
        wait_until(lambda: bool(_succeeded(instance)), what="a scheduled run to succeed", seconds=_TIMEOUT_SECONDS)
    assert breached_ids(support) == set(kinds)
    assert {event.ticket_id: event.breach_kind for event in events()} == kinds

    run = _succeeded(instance)[-1]
    assert run.tags["dagster/schedule_name"] == "ticket_sla_monitor_every_minute"
    assert run.job_name == "ticket_sla_monitor"
    (materialized,) = instance.fetch_materializations(CHECK.asset_key, limit=1, ascending=True).records
    assert materialized.run_id == run.run_id
    assert materialized.asset_materialization is not None
    assert materialized.asset_materialization.metadata["processed_count"].value == 2
    journal = support.execute(
        "select run_id, state, processed_count, published_count from support.ticket_sla_cycles order by id"
    ).fetchone()
    assert journal == (run.run_id, "succeeded", 2, 2)
    # The IO manager stores no files.
    assert not [path for path in (home / "storage").rglob("*") if path.is_file() and "result" in path.name]


def test_after_a_break_of_an_hour(support: Support, home: Path, instance: dg.DagsterInstance, events: Events) -> None:
    """The daemon was down for 60 ticks: it starts one run, for the newest, and that run marks all tickets."""
    tickets = make_tickets(
        support, 60, apart=timedelta(minutes=1), first_response_due_at=datetime.now(UTC) - timedelta(minutes=61)
    )
    with deployment(home) as deployed:
        wait_until(
            lambda: bool(_schedule_states(instance)), what="the daemon to record the schedule", seconds=_TIMEOUT_SECONDS
        )
        deployed.daemon.stop()
        _backdate(instance, since=datetime.now(UTC) - timedelta(hours=1))
        support.execute("update support.tickets set sla_breached = false")
        before = {run.run_id for run in instance.get_runs()}
        resumed_at = time.time()
        deployed.daemon.start()
        wait_until(
            lambda: len(_succeeded(instance)) > len(before), what="a run after the break", seconds=_TIMEOUT_SECONDS
        )
        minutes = time.time() // 60 - resumed_at // 60
    runs = [run for run in instance.get_runs() if run.run_id not in before]
    assert 1 <= len(runs) <= 1 + minutes
    assert breached_ids(support) == set(tickets)
    assert sorted(event.ticket_id for event in events()) == sorted(tickets)


def _schedule_states(instance: dg.DagsterInstance) -> list[InstigatorState]:
    return list(instance.all_instigator_state())


def _backdate(instance: dg.DagsterInstance, *, since: datetime) -> None:
    """Rewrite the schedule's state: running since ``since``, without a tick, as after a stop of the daemon."""
    (state,) = _schedule_states(instance)
    instance.purge_ticks(state.instigator_origin_id, state.selector_id, before=time.time() + 60)
    data = state.instigator_data
    assert isinstance(data, ScheduleInstigatorData)
    instance.update_instigator_state(state.with_data(ScheduleInstigatorData(data.cron_schedule, since.timestamp())))


def test_journal_of_a_killed_cycle(support: Support, home: Path, instance: dg.DagsterInstance, events: Events) -> None:
    """After SIGKILL to the run's process in the middle of a batch, no stuck run blocks the next tick."""
    kinds = _overdue(support)
    support.execute(
        "create function support.wait() returns trigger language plpgsql as $$ begin perform pg_sleep(12); return "
        "new; end $$"
    )
    support.execute("create trigger wait before update on support.tickets for each row execute function support.wait()")
    with deployment(home) as deployed:
        wait_until(
            lambda: bool(_marking_ports(support)),
            what="a scheduled run to be inside a batch",
            seconds=_TIMEOUT_SECONDS,
        )
        (port,) = _marking_ports(support)
        deployed.process_connected_from(port).kill()
        killed_at = datetime.now(UTC)
        wait_until(lambda: not _marking_ports(support), what="the server to end the dead session")
        support.execute("drop trigger wait on support.tickets")
        wait_until(lambda: bool(_succeeded(instance)), what="the next tick's run to succeed", seconds=_TIMEOUT_SECONDS)

    dead, *_ = sorted(instance.get_run_records(), key=lambda record: record.create_timestamp)
    assert dead.dagster_run.status is dg.DagsterRunStatus.FAILURE
    rows = support.execute(
        "select run_id, state, started_at, error from support.ticket_sla_cycles order by id"
    ).fetchall()
    assert rows[0][:2] == (dead.dagster_run.run_id, "abandoned")
    assert rows[0][3] == "the process died before recording its end"
    assert rows[1][1] == "succeeded"
    assert rows[1][2] - killed_at < _AFTER_A_DEATH
    assert breached_ids(support) == set(kinds)
    assert {event.ticket_id: event.breach_kind for event in events()} == kinds


def test_the_machine_dies_in_the_middle_of_a_cycle(
    support: Support, home: Path, instance: dg.DagsterInstance, events: Events
) -> None:
    """Daemon, code server and run are killed; daemon and code server start again 12 s later.

    The run is still STARTED in Dagster, but its journal row is not locked.
    """
    kinds = _overdue(support)
    support.execute(
        "create function support.wait() returns trigger language plpgsql as $$ begin perform pg_sleep(8); return "
        "new; end $$"
    )
    support.execute("create trigger wait before update on support.tickets for each row execute function support.wait()")
    with deployment(home) as deployed:
        wait_until(
            lambda: bool(_marking_ports(support)),
            what="a scheduled run to be inside a batch",
            seconds=_TIMEOUT_SECONDS,
        )
        (dead,) = instance.get_runs()
        deployed.die()
        died_at = datetime.now(UTC)
        assert _status(instance, dead) is dg.DagsterRunStatus.STARTED
        # The server detects the lost client at the end of the statement.
        wait_until(lambda: not _marking_ports(support), what="the server to end the dead session")
        support.execute("drop trigger wait on support.tickets")
        wait_until(lambda: datetime.now(UTC) - died_at >= _POWER_CUT, what="the end of the power cut")
        deployed.start()
        wait_until(lambda: bool(_succeeded(instance)), what="a cycle after the death", seconds=_TIMEOUT_SECONDS)
        took = datetime.now(UTC) - died_at
    log.info("a success %.1f s after the machine's death", took.total_seconds())
    assert took < _AFTER_A_DEATH
    assert _status(instance, dead) is dg.DagsterRunStatus.FAILURE
    (failure,) = instance.all_logs(dead.run_id, of_type=dg.DagsterEventType.RUN_FAILURE)
    assert failure.get_dagster_event().message == (
        "The run's process is dead: its row in support.ticket_sla_cycles is not locked. What it committed stays; the "
        "next cycle, due now, takes the rest. No action is needed."
    )
    assert support.execute("select run_id, state from support.ticket_sla_cycles order by id limit 2").fetchall() == [
        (dead.run_id, "abandoned"),
        (_succeeded(instance)[-1].run_id, "succeeded"),
    ]
    assert breached_ids(support) == set(kinds)
    assert {event.ticket_id: event.breach_kind for event in events()} == kinds


def _status(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dg.DagsterRunStatus:
    found = instance.get_run_by_id(run.run_id)
    assert found is not None
    return found.status


def _marking_ports(support: Support) -> list[int]:
    """Return the client ports of the cycles that wait in the trigger."""
    rows = support.execute(
        "select client_port from pg_stat_activity where datname = current_database()"
        " and application_name = 'ticket-sla-monitor cycle' and wait_event = 'PgSleep'"
    ).fetchall()
    return [port for (port,) in rows]
