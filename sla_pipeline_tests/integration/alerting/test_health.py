"""Durable facts behind the rules, on real servers: counters that never fall, and their reading (SPEC 3.5, 9)."""

import json
import os
import socket
import subprocess
import sys
import time
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from sla_pipeline.alerting.rules import RULES, RuleState, evaluate
from sla_pipeline.cycle import CycleInput
from sla_pipeline.errors import PostgresSetupError, PostgresUnavailable
from sla_pipeline.health import DELAY_BOUNDS_SECONDS, Health
from sla_pipeline.kafka.relay import Relay
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.monitor.runner import run_cycle
from sla_pipeline.postgres import counters, journal
from sla_pipeline.postgres.counters import Detected, count_new_records
from sla_pipeline.postgres.database import Database
from sla_pipeline.postgres.health import read_health, read_health_within
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline_tests.integration.conftest import Cycle
from sla_pipeline_tests.tickets import FIRST_RESPONSE_OVERDUE, RESOLUTION_OVERDUE, TENANT, make_ticket, make_tickets

Support = psycopg.Connection[Any]


def _health(database: Database) -> Health:
    with database.session() as connection:
        return read_health(connection)


def _age_records(support: Support, *delays_seconds: float) -> None:
    """Set the delay of each breach record, in the order of the sequence."""
    for seq, delay in enumerate(delays_seconds, start=1):
        support.execute(
            "update support.ticket_sla_breaches set recorded_at = due_at + make_interval(secs => %s) where seq = %s",
            (delay, seq),
        )


def test_a_record_is_counted_once_in_the_bucket_of_its_delay(
    support: Support, database: Database, cycle: Cycle
) -> None:
    make_tickets(support, 3, **FIRST_RESPONSE_OVERDUE)
    make_tickets(support, 2, **RESOLUTION_OVERDUE)
    cycle()
    # as if none were counted yet
    support.execute(
        "update support.ticket_sla_counters set counted_seq = 0, first_response_count = 0, resolution_count = 0, "
        "delay_seconds_sum = 0, delay_bucket_counts = array_fill(0::bigint, array[14])"
    )
    _age_records(support, -5, 15, 15.5, 120, 90_000)
    with database.session() as connection:
        assert count_new_records(connection) == Detected(5, 1)
        assert count_new_records(connection) == Detected()
    counted = _health(database).counters
    assert (counted.first_response_count, counted.resolution_count) == (3, 2)
    bounds = [*DELAY_BOUNDS_SECONDS, None]
    filled = {bounds[place]: count for place, count in enumerate(counted.delay_bucket_counts) if count}
    assert filled == {15: 2, 30: 1, 120: 1, None: 1}
    assert counted.delay_seconds_sum == pytest.approx(15 + 15.5 + 120 + 90_000)


def test_the_marks_of_a_killed_cycle_are_counted_by_the_next(
    support: Support, database: Database, cycle: Cycle
) -> None:
    make_tickets(support, 4, **FIRST_RESPONSE_OVERDUE)
    cycle()
    support.execute("update support.ticket_sla_counters set counted_seq = 1, first_response_count = 1")
    make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    assert cycle().detected_count == 4
    assert _health(database).counters.first_response_count == 5


def test_counters_do_not_fall_when_rows_are_deleted(support: Support, database: Database, cycle: Cycle) -> None:
    make_tickets(support, 4, **FIRST_RESPONSE_OVERDUE)
    make_ticket(support, **FIRST_RESPONSE_OVERDUE, queue_id=None)
    cycle()
    before = _health(database).counters
    assert (before.first_response_count, before.error_count) == (4, 1)
    support.execute("delete from support.ticket_sla_breaches where seq < 4")
    support.execute("delete from support.ticket_sla_cycles")
    cycle()
    assert _health(database).counters == before


def test_a_cycle_whose_process_died_counts_as_one_error(support: Support, database: Database, cycle: Cycle) -> None:
    support.execute(
        "insert into support.ticket_sla_cycles (run_id, now_utc, batch_size, max_batches_per_cycle) values ('dead', "
        "now(), 1, 1)"
    )
    cycle()
    health = _health(database)
    assert health.counters.error_count == 1
    assert [(ended.state, ended.totals.error_count) for ended in health.cycles] == [("abandoned", 1), ("succeeded", 0)]


def test_a_cycle_of_one_tenant_is_no_success_of_the_monitor(support: Support, database: Database, cycle: Cycle) -> None:
    cycle(CycleInput(tenant_id=TENANT))
    assert (_health(database).cycles, _health(database).last_success_at) == ([], None)
    cycle()
    health = _health(database)
    assert [ended.state for ended in health.cycles] == ["succeeded"]
    assert health.last_success_at == health.cycles[0].finished_at


def test_records_that_wait_are_seen_with_the_age_of_the_oldest(
    support: Support, database: Database, kafka_settings: KafkaSettings, clock: Any
) -> None:
    make_tickets(support, 3, **FIRST_RESPONSE_OVERDUE)
    with Relay(KafkaSettings("127.0.0.1:9", topic="down")) as unreachable:
        run_cycle(database, unreachable, clock=clock)
    support.execute(
        "update support.ticket_sla_breaches set recorded_at = recorded_at - interval '1 hour' where seq = 1"
    )
    health = _health(database)
    assert (health.unpublished_count, health.last_seq, health.published_seq) == (3, 3, 0)
    assert health.oldest_unpublished_at is not None
    assert health.read_at - health.oldest_unpublished_at > timedelta(minutes=59)
    assert "TicketSlaPublishingBehind" in {
        found.rule.name for found in evaluate(RULES, health) if found.state is RuleState.FIRING
    }


_A_MONTH_OF_CYCLES = """
insert into support.ticket_sla_cycles
    (run_id, state, now_utc, batch_size, max_batches_per_cycle, started_at, finished_at)
select 'old', 'succeeded', moment, 1, 1, moment, moment
from generate_series(now() - interval '30 days', now() - interval '2 hours', interval '2 minutes') moment
"""


def _rows_read(support: Support) -> dict[str, int]:
    """Return the rows that all sessions have read, by table, index entries included."""
    return dict(
        support.execute(
            "select relname, seq_tup_read + (select coalesce(sum(idx_tup_read), 0)::bigint from pg_stat_all_indexes i "
            "where i.relid = t.relid) from pg_stat_all_tables t where schemaname = 'support'"
        ).fetchall()
    )


def test_a_reading_uses_indexes_and_never_the_tickets(support: Support, database: Database, cycle: Cycle) -> None:
    support.execute(_A_MONTH_OF_CYCLES)
    make_tickets(support, 200, **FIRST_RESPONSE_OVERDUE)
    cycle()
    support.execute("vacuum analyze support.ticket_sla_cycles")
    support.execute("vacuum analyze support.ticket_sla_breaches")
    with database.session() as connection:
        # what the cycle has read is counted before, not between
        connection.execute("select pg_stat_force_next_flush()")
        before = _rows_read(support)
        read_health(connection)
        connection.execute("select pg_stat_force_next_flush()")
    read_rows = {table: count - before[table] for table, count in _rows_read(support).items()}
    assert read_rows["tickets"] == 0
    assert read_rows["ticket_sla_breaches"] <= 1
    # of 21,000 cycles: the last hour's, and the last success
    assert 0 < read_rows["ticket_sla_cycles"] < 10


def test_the_liveness_of_a_run_is_read_from_the_cycles_of_the_last_hour(
    support: Support, database: Database, cycle: Cycle
) -> None:
    support.execute(_A_MONTH_OF_CYCLES)
    cycle(run_id="this")
    support.execute("vacuum analyze support.ticket_sla_cycles")
    with database.session() as connection:
        connection.execute("select pg_stat_force_next_flush()")
        before = _rows_read(support)
        assert journal.is_alive(connection, "this") is True
        connection.execute("select pg_stat_force_next_flush()")
    assert 0 < _rows_read(support)["ticket_sla_cycles"] - before["ticket_sla_cycles"] < 10


def test_records_are_counted_in_pieces(
    support: Support, database: Database, cycle: Cycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tickets(support, 7, **FIRST_RESPONSE_OVERDUE)
    monkeypatch.setattr(counters, "_RECORD_LIMIT", 3)
    assert cycle().detected_count == 7
    # without time for more, each cycle still counts one piece
    monkeypatch.setattr(counters, "_SECONDS", -1.0)
    make_tickets(support, 7, **FIRST_RESPONSE_OVERDUE)
    assert [cycle().detected_count for _ in range(4)] == [3, 3, 1, 0]


def test_a_lost_row_of_counters_is_named_with_its_remedy(support: Support, database: Database) -> None:
    support.execute("delete from support.ticket_sla_counters")
    with pytest.raises(
        PostgresSetupError, match=r"ticket_sla_counters has no row with id 1: .* run `sla-pipeline migrate`"
    ):
        _health(database)


def test_a_server_that_accepts_and_is_silent_ends_the_reading() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://a:b@127.0.0.1:{silent.getsockname()[1]}/x"
        began = time.monotonic()
        with pytest.raises(PostgresUnavailable, match=r"did not answer within 0\.5 s; check the server"):
            read_health_within(PostgresSettings(url), 0.5)
        assert time.monotonic() - began < 5


def _status(worker_url: str, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", "from sla_pipeline.entry import main; main()", "status", *options]
    environment = os.environ | {"SLA_POSTGRES_URL": worker_url}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_the_command_is_green_without_kafka_and_red_with_a_cause(
    support: Support, cycle: Cycle, worker_url: str
) -> None:
    cycle()
    green = _status(worker_url)
    assert (green.returncode, green.stdout.splitlines()[0]) == (0, "green: no alert fires")
    support.execute("update support.ticket_sla_cycles set finished_at = finished_at - interval '7 minutes'")
    red = _status(worker_url, "--json")
    report = json.loads(red.stdout)
    (alert,) = report["alerts"]
    assert (red.returncode, report["green"]) == (1, False)
    assert (alert["name"], alert["state"], alert["severity"]) == ("TicketSlaNotRunning", "firing", "critical")
    assert alert["runbook"] == "docs/runbooks/ticket-sla-not-running.md"


def test_the_command_ends_in_time_when_the_database_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ended = _status(f"postgresql://a:b@127.0.0.1:{silent.getsockname()[1]}/x")
    assert ended.returncode == 75
    assert "did not answer within 1.5 s" in ended.stderr
