"""The journal, one row for each cycle, however it ended; and the single-runner mode (SPEC 2.2, 5.7, 9.1)."""

import logging
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from sla_pipeline.cycle import CycleInput, CycleTotals, SimulatedClock
from sla_pipeline.embedded.ports import free_ports
from sla_pipeline.errors import CycleFailed, CycleLocked
from sla_pipeline.kafka.relay import Relay
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.monitor.runner import run_cycle
from sla_pipeline.postgres import journal
from sla_pipeline.postgres.database import Database
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline_tests.integration.conftest import Cycle, Events
from sla_pipeline_tests.tickets import (
    FIRST_RESPONSE_OVERDUE,
    HOUR,
    NOW,
    RESOLUTION_OVERDUE,
    TENANT,
    breached_ids,
    make_ticket,
    make_tickets,
    row_versions,
)
from sla_pipeline_tests.waiting import wait_until

Support = psycopg.Connection[Any]
_ADVISORY_LOCKS = """
select from pg_locks
where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())
"""
_SINGLE_RUNNER_LOCK = "Pin:lock:job:scheduled:support-ticket-sla-monitor"


def _rows(support: Support) -> list[dict[str, Any]]:
    with support.cursor(row_factory=dict_row) as cursor:
        return cursor.execute("select * from support.ticket_sla_cycles order by id").fetchall()


def test_the_row_of_a_cycle_that_succeeded(support: Support, operator: Support, cycle: Cycle) -> None:
    make_tickets(support, 7, **FIRST_RESPONSE_OVERDUE)
    make_tickets(support, 4, **RESOLUTION_OVERDUE)
    held = make_ticket(support, **FIRST_RESPONSE_OVERDUE | {"first_response_due_at": NOW - 2 * HOUR})
    operator.execute("select 1 from support.tickets where id = %s for update", (held,))

    report = cycle(CycleInput(batch_size=5, max_batches_per_cycle=3, tenant_id=TENANT), run_id="run-1")

    (row,) = _rows(support)
    started_at, finished_at = row.pop("started_at"), row.pop("finished_at")
    durations = [row.pop(name) for name in ("claim_ms", "mark_ms", "publish_ms", "duration_ms")]
    assert started_at < finished_at
    assert all(duration > 0 for duration in durations)
    assert durations[3] >= sum(durations[:3])
    assert row == {
        "id": report.cycle_id,
        "run_id": "run-1",
        "state": "succeeded",
        "now_utc": NOW,
        "batch_size": 5,
        "max_batches_per_cycle": 3,
        "tenant_id": row["tenant_id"],
        "claimed_count": 12,
        "processed_count": 11,
        "first_response_count": 7,
        "resolution_count": 4,
        # Three batches, and one more for the row that was held.
        "batch_count": 4,
        "published_count": 11,
        "backlog_count": 1,
        "lock_skip_count": 1,
        "flags_restored_count": 0,
        "transaction_count": 1,
        "unknown_priority_count": 0,
        "set_aside_count": 0,
        "error_count": 0,
        "has_more": False,
        "publishing_stopped": False,
        "detected_count": 11,
        # the simulated clock is months behind the database's
        "late_count": 11,
        "error": None,
    }
    assert str(row["tenant_id"]) == TENANT


def test_has_more_when_the_ceiling_was_reached(support: Support, cycle: Cycle) -> None:
    make_tickets(support, 12, **FIRST_RESPONSE_OVERDUE)
    assert [cycle(CycleInput(batch_size=5, max_batches_per_cycle=2)).has_more for _ in range(2)] == [True, False]
    assert [(row["has_more"], row["backlog_count"]) for row in _rows(support)] == [(True, 2), (False, 0)]


def test_marks_stay_and_the_cycle_fails_at_its_end_when_kafka_is_down(
    support: Support,
    database: Database,
    cycle: Cycle,
    clock: SimulatedClock,
    events: Events,
    logged: list[logging.LogRecord],
) -> None:
    tickets = make_tickets(support, 20, **FIRST_RESPONSE_OVERDUE)
    (port,) = free_ports(1)
    with Relay(KafkaSettings(f"127.0.0.1:{port}", topic="down")) as unreachable:
        report = run_cycle(database, unreachable, clock=clock)

    assert (report.processed_count, report.published_count, report.backlog_count, len(report.errors)) == (20, 0, 0, 1)
    assert report.errors[0].startswith(
        f"publishing failed: Kafka at 127.0.0.1:{port} did not answer as expected while "
    )
    assert report.duration_ms is not None
    assert report.duration_ms < 30_000
    with pytest.raises(CycleFailed, match="publishing failed: Kafka at "):
        report.raise_if_failed()
    assert breached_ids(support) == set(tickets)
    (row,) = _rows(support)
    assert (row["state"], row["error_count"], row["error"]) == ("failed", 1, report.errors[0])
    assert (row["processed_count"], row["published_count"], row["backlog_count"]) == (20, 0, 0)
    assert "publishing" in [record.__dict__["step"] for record in logged if record.getMessage() == "step failed"]

    assert cycle().published_count == 20
    assert [event.ticket_id for event in events()] == tickets


def test_a_live_cycle_is_not_swept_as_abandoned(support: Support, cycle: Cycle, other_pod: Cycle) -> None:
    make_tickets(support, 5, **FIRST_RESPONSE_OVERDUE)
    seen: list[str] = []

    def other_pod_reads(step: str) -> None:
        if step == "claimed":
            other_pod(run_id="second")
            seen.extend(row["state"] for row in _rows(support))

    cycle(run_id="first", on_step=other_pod_reads)
    assert seen == ["running", "succeeded"]
    assert [row["state"] for row in _rows(support)] == ["succeeded", "succeeded"]


def test_a_cycle_swept_as_abandoned_can_still_record_its_end(support: Support, database: Database) -> None:
    """Its session was cut while it published, so the next cycle swept its row; then it ended after all."""
    settings = database.settings
    with settings.session(purpose="cycle") as cut_off:
        cycle_id = journal.start(cut_off, run_id="first", now_utc=NOW, cycle_input=CycleInput())
    with settings.session(purpose="cycle") as connection:
        assert journal.sweep_abandoned(connection) == [(cycle_id, "first")]
        assert [(row["state"], row["error"]) for row in _rows(support)] == [
            ("abandoned", "the process died before recording its end")
        ]
        assert journal.sweep_abandoned(connection) == []
        journal.finish(connection, cycle_id, "succeeded", CycleTotals(resolution_count=3))
        journal.finish(connection, cycle_id, "failed", CycleTotals())
    assert [(row["state"], row["error"], row["processed_count"]) for row in _rows(support)] == [("succeeded", None, 3)]


def test_each_line_of_the_log_names_the_run(support: Support, cycle: Cycle, logged: list[logging.LogRecord]) -> None:
    make_tickets(support, 25, **FIRST_RESPONSE_OVERDUE)
    cycle(CycleInput(batch_size=10), run_id="run-5")
    lines = [
        (record.getMessage(), record.__dict__["jobRunId"])
        for record in logged
        if record.name.startswith("sla_pipeline.monitor.")
    ]
    assert lines == [
        ("cycle started", "run-5"),
        ("batch processed", "run-5"),
        ("batch processed", "run-5"),
        ("batch processed", "run-5"),
        ("cycle completed", "run-5"),
    ]
    assert [record.__dict__["count"] for record in logged if record.getMessage() == "batch processed"] == [10, 10, 5]
    (completed,) = [record.__dict__ for record in logged if record.getMessage() == "cycle completed"]
    assert (completed["processedTotal"], completed["batches"]) == (25, 3)
    assert completed["durationMs"] > 0


def test_a_missing_index_is_a_warning(support: Support, cycle: Cycle, logged: list[logging.LogRecord]) -> None:
    tickets = [make_ticket(support, **RESOLUTION_OVERDUE), make_ticket(support, **FIRST_RESPONSE_OVERDUE)]
    support.execute("drop index support.ticket_sla_resolution_overdue")
    assert cycle().processed_count == 2
    assert breached_ids(support) == set(tickets)
    (warning,) = [record.__dict__ for record in logged if record.levelno == logging.WARNING]
    assert warning["index"] == "support.ticket_sla_resolution_overdue"


def test_single_runner_mode_leaves_the_cycle_to_the_other_runner(
    support: Support, worker_url: str, relay: Relay, clock: SimulatedClock, logged: list[logging.LogRecord]
) -> None:
    tickets = make_tickets(support, 5, **FIRST_RESPONSE_OVERDUE)
    before = row_versions(support)
    first = Database(PostgresSettings(worker_url), single_runner=True)
    second = Database(PostgresSettings(worker_url), single_runner=True)
    with first.session() as connection:
        connection.execute("select pg_advisory_lock(hashtextextended(%s, 0))", (_SINGLE_RUNNER_LOCK,))

    with pytest.raises(CycleLocked) as locked:
        run_cycle(second, relay, clock=clock)
    assert (
        str(locked.value) == f"another runner holds the advisory lock {_SINGLE_RUNNER_LOCK!r}: this cycle is left to it"
    )
    assert row_versions(support) == before
    assert _rows(support) == []
    assert "cycle skipped" in [record.getMessage() for record in logged]

    first.close()
    # The server releases the lock when it detects the end of the session, a moment after the client has closed it.
    wait_until(lambda: not support.execute(_ADVISORY_LOCKS).fetchall(), what="the server to release the lock")
    assert run_cycle(second, relay, clock=clock).processed_count == 5
    assert breached_ids(support) == set(tickets)
    second.close()


def test_every_number_of_the_totals_is_a_column(support: Support) -> None:
    """And every column is a number of the totals, an input of the cycle, or part of its start and end."""
    columns = {
        column
        for (column,) in support.execute(
            "select column_name from information_schema.columns where table_name = 'ticket_sla_cycles'"
        )
    }
    start_and_end = {"id", "run_id", "state", "started_at", "finished_at", "now_utc", "error"}
    request = {"batch_size", "max_batches_per_cycle", "tenant_id"}
    assert columns == CycleTotals().as_row().keys() | start_and_end | request


def test_the_journal_returns_what_was_written(support: Support, cycle: Cycle, database: Database) -> None:
    make_tickets(support, 3, **FIRST_RESPONSE_OVERDUE)
    report = cycle(run_id="first")
    with database.session() as connection:
        before = journal.last_cycle_id(connection)
        journal.start(connection, run_id="running", now_utc=NOW, cycle_input=CycleInput())
        (finished,) = journal.finished_after(connection, before - 1)
        assert journal.finished_after(connection, before) == []
    assert (finished.cycle_id, finished.run_id, finished.state, finished.error) == (before, "first", "succeeded", None)
    assert finished.totals.as_row() == report.as_row() | {"set_aside_count": None}
