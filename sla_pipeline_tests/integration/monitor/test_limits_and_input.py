"""Clock, limits, input, and faults of the database in the middle of a cycle (SPEC 3.2, 3.4, 4.1, 6).

The cases of a job under Dagster, launchpad and termination, are in ``integration/dagster``.
"""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

from sla_pipeline.cycle import CycleInput, SimulatedClock, SystemClock
from sla_pipeline.errors import ClockSkewError, CycleStopped, InputError, PostgresSetupError, PostgresUnavailable
from sla_pipeline.kafka.relay import Relay
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.monitor.runner import run_cycle
from sla_pipeline.postgres.database import Database
from sla_pipeline.postgres.migrate import upgrade
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline_tests.conftest import PostgresFactory
from sla_pipeline_tests.integration.conftest import Cycle, Events
from sla_pipeline_tests.integration.monitor.cycle_process import Pod
from sla_pipeline_tests.tickets import (
    FIRST_RESPONSE_OVERDUE,
    MICROSECOND,
    NOW,
    RESOLUTION_OVERDUE,
    before_update,
    breached_ids,
    make_ticket,
    make_tickets,
    row_versions,
)

Support = psycopg.Connection[Any]


@dataclass
class SkewedClock:
    """A machine's clock that differs from the true time by ``skew``."""

    skew: timedelta
    is_wall_clock: bool = True

    def now_utc(self) -> datetime:
        return datetime.now(UTC) + self.skew


@pytest.fixture
def time_zone_of_the_process(request: pytest.FixtureRequest) -> Iterator[str]:
    """Set TZ and libpq's PGTZ, whose value libpq sets in every session."""
    before = {name: os.environ.get(name) for name in ("TZ", "PGTZ")}
    os.environ |= dict.fromkeys(before, request.param)
    time.tzset()
    yield request.param
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
    time.tzset()


def _journal_rows(support: Support) -> int:
    row = support.execute("select count(*) from support.ticket_sla_cycles").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("skew", [timedelta(minutes=5), timedelta(minutes=-5), timedelta(seconds=6)])
def test_worker_clock_ahead(skew: timedelta, support: Support, cycle: Cycle, events: Events) -> None:
    make_ticket(support, first_response_due_at=datetime.now(UTC) - timedelta(minutes=1))
    before = row_versions(support)
    earliest = datetime.now(UTC)
    with pytest.raises(ClockSkewError) as raised:
        cycle(clock=SkewedClock(skew))
    message = str(raised.value)
    workers, databases = (
        datetime.fromisoformat(word.rstrip(",:")) for word in message.split() if word.startswith("20")
    )
    assert workers - databases == pytest.approx(skew, abs=timedelta(seconds=1))
    assert earliest - timedelta(seconds=1) < databases < datetime.now(UTC) + timedelta(seconds=1)
    assert message.startswith("the worker's clock shows ")
    assert "more than 5 s apart; nothing was marked; set the clocks (NTP) and run again" in message
    assert row_versions(support) == before
    assert _journal_rows(support) == 0
    assert events() == []


def test_a_skew_of_a_second_is_tolerated(support: Support, cycle: Cycle) -> None:
    make_ticket(support, first_response_due_at=datetime.now(UTC) - timedelta(minutes=1))
    assert cycle(clock=SkewedClock(timedelta(seconds=1))).processed_count == 1


def test_the_system_clock_is_the_usual_one(support: Support, database: Database, relay: Relay) -> None:
    due = make_ticket(support, first_response_due_at=datetime.now(UTC) - timedelta(seconds=1))
    make_ticket(support, first_response_due_at=datetime.now(UTC) + timedelta(minutes=10))
    report = run_cycle(database, relay)
    assert breached_ids(support) == {due}
    assert report.now_utc is not None
    assert abs(report.now_utc - SystemClock().now_utc()) < timedelta(seconds=60)


# Berlin's clocks change at 01:00 UTC, from 02:00 to 03:00 in spring and from 03:00 to 02:00 in autumn; Lord Howe's
# change by half an hour.
@pytest.mark.parametrize(
    "time_zone_of_the_process", ["Europe/Berlin", "Australia/Lord_Howe", "America/St_Johns"], indirect=True
)
@pytest.mark.parametrize(
    "change", [datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2026, 10, 25, 1, tzinfo=UTC)], ids=["spring", "autumn"]
)
def test_worker_in_another_time_zone(
    change: datetime,
    time_zone_of_the_process: str,
    support: Support,
    cycle: Cycle,
    clock: SimulatedClock,
    events: Events,
    worker_login: Any,
) -> None:
    name = sql.Identifier(support.info.dbname)
    for setting, value in (
        ("timezone", "America/New_York"),
        ("datestyle", "German, DMY"),
        ("intervalstyle", "sql_standard"),
    ):
        support.execute(
            sql.SQL("alter database {} set {} to {}").format(name, sql.Identifier(setting), sql.Literal(value))
        )
    support.execute(
        sql.SQL("alter role {} in database {} set timezone to {}").format(
            sql.Identifier(worker_login[0]), name, "Asia/Kathmandu"
        )
    )
    deadlines = [change + minutes * timedelta(minutes=30) + MICROSECOND for minutes in range(-4, 5)]
    tickets = [make_ticket(support, first_response_due_at=deadline) for deadline in deadlines]
    for past, deadline in enumerate(deadlines):
        clock.moment = deadline
        assert cycle().processed_count == (past > 0)
        assert breached_ids(support) == set(tickets[:past])
    clock.moment += MICROSECOND
    cycle()
    assert [event.due_at for event in events()] == [f"{deadline:%Y-%m-%dT%H:%M:%S.%f}Z" for deadline in deadlines]


@pytest.mark.parametrize("out_of_range", [{"batch_size": 0}, {"batch_size": 1001}, {"max_batches_per_cycle": 201}])
def test_input_out_of_range_touches_nothing(out_of_range: dict[str, Any], support: Support, cycle: Cycle) -> None:
    make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    before = row_versions(support)
    ((field, value),) = out_of_range.items()
    with pytest.raises(
        InputError, match=rf"{field} is {value}; it must be a whole number from 1 to \d+ \(default \d+\)"
    ):
        cycle(CycleInput(**out_of_range))
    assert row_versions(support) == before
    assert _journal_rows(support) == 0


def test_tickets_table_missing(support: Support, cycle: Cycle) -> None:
    support.execute("alter table support.tickets rename to tickets_of_old")
    with pytest.raises(PostgresSetupError) as raised:
        cycle()
    assert str(raised.value).startswith("table support.tickets does not exist in database ")
    assert str(raised.value).endswith(": it belongs to the support service; check SLA_POSTGRES_URL")


def test_column_missing(support: Support, cycle: Cycle) -> None:
    make_tickets(support, 3, **FIRST_RESPONSE_OVERDUE)
    support.execute("alter table support.tickets rename column resolution_due_at to due_for_resolution")
    with pytest.raises(
        PostgresSetupError,
        match=r"column resolution_due_at is missing, needed is timestamp with time zone \(.* Nothing was touched",
    ):
        cycle()
    assert breached_ids(support) == set()
    assert support.execute("select count(*) from support.ticket_sla_cycles").fetchone() == (0,)


@pytest.mark.parametrize(
    ("right", "object_name"),
    [
        ("select on support.tickets", "table tickets"),
        ("update (sla_breached) on support.tickets", "table tickets"),
        ("insert on support.ticket_sla_breaches", "table ticket_sla_breaches"),
        ("update (last_seq, published_seq, published_at) on support.ticket_sla_relay", "table ticket_sla_relay"),
        ("usage on schema support", "schema support"),
    ],
)
def test_permission_denied(
    right: str, object_name: str, support: Support, owner_url: str, cycle: Cycle, events: Events
) -> None:
    make_tickets(support, 30, **FIRST_RESPONSE_OVERDUE)
    support.execute(f"revoke {right} from sla_worker")
    steps: list[str] = []
    with pytest.raises(PostgresSetupError) as raised:
        cycle(CycleInput(batch_size=10), on_step=steps.append).raise_if_failed()
    assert f"permission denied for {object_name} in database " in str(raised.value)
    assert str(raised.value).endswith("which lacks this one: run `sla-pipeline migrate`, which grants it")
    # Two batches, then ticket by ticket, because one ticket's trigger could be the cause: at most as many as there are
    # tickets.
    assert steps.count("batch_locked") <= 2 + 30
    assert breached_ids(support) == set()
    assert support.execute("select count(*) from support.ticket_sla_set_aside").fetchone() == (0,)
    assert events() == []
    upgrade(owner_url)
    assert cycle().processed_count == 30


def test_row_level_security_does_not_hide_tickets_in_silence(support: Support, cycle: Cycle) -> None:
    make_tickets(support, 3, **FIRST_RESPONSE_OVERDUE)
    support.execute("alter table support.tickets enable row level security")
    support.execute("create policy nobody on support.tickets using (false)")
    with pytest.raises(
        PostgresSetupError,
        match=r'row-level security policy for table "tickets" in database .*`alter role LOGIN bypassrls`',
    ):
        cycle().raise_if_failed()


def test_a_standby_is_named_as_one(support: Support, cycle: Cycle) -> None:
    support.execute(
        sql.SQL("alter database {} set default_transaction_read_only to on").format(sql.Identifier(support.info.dbname))
    )
    with pytest.raises(
        PostgresSetupError,
        match=r"^database .* is read only: this is a standby, .*; let SLA_POSTGRES_URL name the primary$",
    ):
        cycle()


def test_stop_between_batches(support: Support, cycle: Cycle, events: Events) -> None:
    tickets = make_tickets(support, 100, **FIRST_RESPONSE_OVERDUE)
    steps: list[str] = []
    with pytest.raises(CycleStopped, match="stop requested after 3 of 10 batches"):
        # The stop is requested while batch 3 runs.
        cycle(
            CycleInput(batch_size=10),
            run_id="stopped",
            on_step=steps.append,
            should_stop=lambda: steps.count("batch_locked") == 3,
        )
    assert breached_ids(support) == set(tickets[:30])
    assert events() == []
    assert support.execute(
        "select run_id, state, processed_count, batch_count, claimed_count from support.ticket_sla_cycles"
    ).fetchall() == [("stopped", "canceled", 30, 3, 100)]
    report = cycle(CycleInput(batch_size=10))
    assert (report.processed_count, report.published_count, report.backlog_count) == (70, 100, 0)
    assert [event.ticket_id for event in events()] == tickets


@pytest.mark.parametrize("step", ["batch_locked", "batch_written"])
def test_stop_inside_a_batch(step: str, support: Support, cycle: Cycle, events: Events) -> None:
    tickets = make_tickets(support, 30, **FIRST_RESPONSE_OVERDUE)
    steps: list[str] = []

    def interrupted(name: str) -> None:
        steps.append(name)
        if name == step and steps.count(name) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cycle(CycleInput(batch_size=10), on_step=interrupted)
    assert breached_ids(support) == set(tickets[:10])
    free = support.execute(
        "select id::text from support.tickets order by first_response_due_at for update nowait"
    ).fetchall()
    assert [ticket for (ticket,) in free] == tickets
    support.execute("select 1 from support.ticket_sla_relay for update nowait")
    assert cycle().processed_count == 20
    assert [event.ticket_id for event in events()] == tickets


class _Stop(BaseException):
    """Like Dagster's exception, which a signal raises at any point of the code."""


@pytest.mark.parametrize("request_to_stop", [KeyboardInterrupt, _Stop])
def test_stop_while_the_server_writes_a_batch(
    request_to_stop: type[BaseException], support: Support, cycle: Cycle, events: Events
) -> None:
    tickets = make_tickets(support, 30, **FIRST_RESPONSE_OVERDUE)
    before_update(support, "perform pg_sleep(0.2);")
    steps: list[str] = []

    def stopped(*_: object) -> None:
        raise request_to_stop

    def alarm_in_the_next_batch(name: str) -> None:
        steps.append(name)
        if name == "batch_locked" and steps.count(name) == 2:
            signal.setitimer(signal.ITIMER_REAL, 0.5)

    previous = signal.signal(signal.SIGALRM, stopped)
    try:
        with pytest.raises(request_to_stop):
            cycle(CycleInput(batch_size=10), on_step=alarm_in_the_next_batch)
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert breached_ids(support) == set(tickets[:10])
    assert support.execute("select state, processed_count from support.ticket_sla_cycles").fetchall() == [
        ("canceled", 10)
    ]
    support.execute("drop trigger before_update on support.tickets")
    assert cycle().processed_count == 20
    assert [event.ticket_id for event in events()] == tickets


def test_postgres_restarts_in_a_batch(
    own_postgres: PostgresFactory, kafka_settings: KafkaSettings, events: Events
) -> None:
    server = own_postgres(durable=True)
    url = server.database("support_service")
    upgrade(url, with_tickets=True)
    with psycopg.connect(url, autocommit=True) as support:
        tickets = make_tickets(support, 30, **FIRST_RESPONSE_OVERDUE)
    database, clock, cycle_input = Database(PostgresSettings(url)), SimulatedClock(NOW), CycleInput(batch_size=10)
    steps: list[str] = []

    def server_dies(step: str) -> None:
        steps.append(step)
        if step == "batch_written" and steps.count(step) == 2:
            server.kill()
            server.start()

    with Relay(kafka_settings) as relay:
        with pytest.raises(
            PostgresUnavailable, match=r"database 'support_service' at 127\.0\.0\.1:\d+ as user 'postgres'"
        ):
            run_cycle(
                database, relay, cycle_input, clock=clock, run_id="cut-off", on_step=server_dies
            ).raise_if_failed()
        with psycopg.connect(url, autocommit=True) as support:
            assert breached_ids(support) == set(tickets[:10])
            assert support.execute(
                "select run_id, state, processed_count from support.ticket_sla_cycles"
            ).fetchall() == [("cut-off", "failed", 10)]
            report = run_cycle(database, relay, cycle_input, clock=clock)
            assert (report.processed_count, report.published_count, report.errors) == (20, 20, [])
            assert breached_ids(support) == set(tickets)
    database.close()
    assert [event.ticket_id for event in events()] == tickets


def test_journal_of_a_killed_cycle(
    support: Support,
    worker_url: str,
    kafka_settings: KafkaSettings,
    cycle: Cycle,
    clock: SimulatedClock,
    events: Events,
) -> None:
    tickets = [*make_tickets(support, 10, **RESOLUTION_OVERDUE), *make_tickets(support, 10, **FIRST_RESPONSE_OVERDUE)]
    with Pod(
        worker_url, kafka_settings, CycleInput(batch_size=10), run_id="dead", dies_at="batch_written", dies_at_nth=2
    ) as pod:
        pod.die()
    assert support.execute("select run_id, state, finished_at from support.ticket_sla_cycles").fetchall() == [
        ("dead", "running", None)
    ]

    clock.moment += timedelta(minutes=1)
    report = cycle(run_id="next")

    assert (report.processed_count, report.published_count, report.errors) == (10, 20, [])
    rows = support.execute(
        "select run_id, state, finished_at is not null, error from support.ticket_sla_cycles order by id"
    ).fetchall()
    assert rows == [
        ("dead", "abandoned", True, "the process died before recording its end"),
        ("next", "succeeded", True, None),
    ]
    assert [event.ticket_id for event in events()] == tickets
