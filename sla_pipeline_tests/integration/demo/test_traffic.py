"""Simulated traffic beside real cycles: breaches of both kinds, races with the monitor, and a clean audit."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from sla_pipeline.audit.findings import AuditReport
from sla_pipeline.audit.verify import verify
from sla_pipeline.breach import BreachKind
from sla_pipeline.cycle import CycleTotals, SimulatedClock
from sla_pipeline.demo.incident_log import read_log
from sla_pipeline.demo.operators import Action
from sla_pipeline.demo.traffic import SNAPSHOT_MOMENT, Traffic, load_initial_tickets
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline_tests.integration.conftest import Cycle
from sla_pipeline_tests.tickets import MINUTE, NOW, look, make_ticket

Audit = Callable[[], AuditReport]


@pytest.fixture
def traffic(owner_url: str, clock: SimulatedClock) -> Iterator[Traffic]:
    traffic = Traffic(owner_url, seed=1, clock=clock)
    yield traffic
    traffic.close()


@pytest.fixture
def audit(worker_url: str, kafka_settings: KafkaSettings, clock: SimulatedClock) -> Audit:
    return lambda: verify(PostgresSettings(worker_url), kafka_settings, now_utc=clock.moment)


def pass_time(traffic: Traffic, clock: SimulatedClock, cycle: Cycle, minutes: int) -> list[CycleTotals]:
    """Run the traffic for ``minutes`` of the clock, with a cycle at the end of each; return the cycles' totals."""
    reports = []
    for _ in range(minutes):
        next_cycle = clock.moment + MINUTE
        while clock.moment < next_cycle:
            clock.moment = min(next_cycle, clock.moment + timedelta(seconds=traffic.perform_next()))
        reports.append(cycle())
    return reports


def test_within_minutes_breaches_of_both_kinds_happen_and_tickets_records_and_events_agree(
    traffic: Traffic, clock: SimulatedClock, cycle: Cycle, audit: Audit
) -> None:
    reports = pass_time(traffic, clock, cycle, 15)
    by_kind = {
        BreachKind.FIRST_RESPONSE: sum(report.first_response_count for report in reports),
        BreachKind.RESOLUTION: sum(report.resolution_count for report in reports),
    }
    assert 240 < traffic.counts.arrivals < 360
    assert set(traffic.counts.actions) == set(Action)
    # a handful a minute of each kind
    assert all(25 < count < 120 for count in by_kind.values()), by_kind
    # a cycle came in between an operator's opening and saving
    assert traffic.counts.conflicts > 0
    assert [report.errors for report in reports] == [[]] * 15
    assert [report.backlog_count for report in reports] == [0] * 15
    report = audit()
    assert report.clean, [finding.as_dict() for finding in report.findings if finding.count]
    assert report.marked_count == report.record_count == report.event_count == sum(by_kind.values())


def test_no_ticket_was_marked_that_had_been_answered_or_resolved_when_its_cycle_ran(
    traffic: Traffic, clock: SimulatedClock, cycle: Cycle, support: psycopg.Connection[Any]
) -> None:
    pass_time(traffic, clock, cycle, 10)
    breaches = support.execute(
        "select b.kind, b.due_at, b.breached_at, t.first_response_due_at, t.first_response_at, t.resolution_due_at, "
        "t.resolved_at from support.ticket_sla_breaches b join support.tickets t on t.id = b.ticket_id"
    ).fetchall()
    assert Counter(kind for kind, *_ in breaches).keys() == {"FirstResponse", "Resolution"}
    for kind, due_at, breached_at, first_due_at, first_at, resolution_due_at, resolved_at in breaches:
        assert due_at == (first_due_at if kind == "FirstResponse" else resolution_due_at)
        assert due_at < breached_at
        done_at = first_at if kind == "FirstResponse" else resolved_at
        # equal: replied in the instant after the cycle
        assert done_at is None or done_at >= breached_at


def test_the_same_seed_makes_the_same_traffic(owner_url: str, support: psycopg.Connection[Any]) -> None:
    def history(seed: int) -> list[tuple[Any, ...]]:
        # without cycles in between: a conflict with the monitor would cause one more random draw
        clock = SimulatedClock(NOW)
        traffic = Traffic(owner_url, seed=seed, clock=clock)
        while clock.moment < NOW + 3 * MINUTE:
            clock.moment = min(NOW + 3 * MINUTE, clock.moment + timedelta(seconds=traffic.perform_next()))
        traffic.close()
        rows = support.execute("select * from support.tickets order by number").fetchall()
        support.execute("delete from support.tickets")
        return rows

    first, again, other = history(1), history(1), history(2)
    assert len(first) > 30
    assert again == first
    assert other != first


def test_the_initial_tickets_are_the_log_at_its_busiest_noon_moved_to_now(
    support: psycopg.Connection[Any], cycle: Cycle
) -> None:
    log = read_log()
    assert load_initial_tickets(support, log, NOW) == 734
    statuses = dict(support.execute("select status, count(*) from support.tickets group by status").fetchall())
    assert statuses == {"New": 302, "InWork": 127, "OnHold": 95, "Resolved": 208, "Closed": 2}
    newest = support.execute("select greatest(max(created_at), max(updated_at)) from support.tickets").fetchone()
    assert newest is not None
    assert NOW - MINUTE <= newest[0] <= NOW
    first = log.changes[0]
    row = support.execute(
        "select first_response_due_at from support.tickets where number = %s", (first.number,)
    ).fetchone()
    assert row == (first.opened_at + timedelta(hours=4) + (NOW - SNAPSHOT_MOMENT),)
    # what was overdue at that noon is overdue now
    assert cycle().processed_count == 223
    # a demo that is started again keeps its tickets
    assert load_initial_tickets(support, log, NOW + MINUTE) == 0


def test_the_desk_works_on_the_initial_tickets_too(
    support: psycopg.Connection[Any], traffic: Traffic, clock: SimulatedClock, cycle: Cycle, audit: Audit
) -> None:
    load_initial_tickets(support, read_log(), NOW)
    reports = pass_time(traffic, clock, cycle, 5)
    assert sum(report.processed_count for report in reports) > 223
    touched = support.execute(
        "select count(*) from support.tickets where number like 'INC%%' and updated_at > %s", (NOW,)
    ).fetchone()
    assert touched is not None
    assert touched[0] > 223
    assert audit().clean


def test_a_desk_that_is_opened_again_goes_on_with_the_next_number(
    owner_url: str, clock: SimulatedClock, cycle: Cycle
) -> None:
    for arrivals in (1, 2):
        traffic = Traffic(owner_url, seed=arrivals, clock=clock)
        pass_time(traffic, clock, cycle, 1)
        traffic.close()
    with psycopg.connect(owner_url) as connection:
        numbers = [number for (number,) in connection.execute("select number from support.tickets order by number")]
    assert numbers == [f"DEMO{position:07d}" for position in range(1, len(numbers) + 1)]


def test_a_ticket_that_someone_else_has_locked_is_worked_on_later(
    support: psycopg.Connection[Any],
    operator: psycopg.Connection[Any],
    traffic: Traffic,
    clock: SimulatedClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ticket_id = make_ticket(support)
    operator.execute("select from support.tickets where id = %s for update", (ticket_id,))
    while "locked by another session" not in caplog.text:
        clock.moment += timedelta(seconds=traffic.perform_next())
        assert clock.moment < NOW + 60 * MINUTE
    assert look(support, ticket_id)["updated_at"] < NOW
    operator.rollback()
    while look(support, ticket_id)["status"] == "New":
        clock.moment += timedelta(seconds=traffic.perform_next())
        assert clock.moment < NOW + 90 * MINUTE
    assert look(support, ticket_id)["status"] in ("InWork", "Resolved")


def test_a_thread_of_traffic_ends_at_once_when_it_is_stopped(owner_url: str, support: psycopg.Connection[Any]) -> None:
    stop = threading.Event()
    traffic = Traffic(owner_url)
    thread = threading.Thread(target=traffic.run, args=(stop,))
    began = datetime.now(UTC)
    thread.start()
    deadline = time.monotonic() + 30
    while traffic.counts.arrivals < 2 and time.monotonic() < deadline:
        stop.wait(0.05)
    stop.set()
    thread.join(5)
    assert not thread.is_alive()
    assert traffic.counts.arrivals >= 2
    created = support.execute("select min(created_at), count(*) from support.tickets").fetchone()
    assert created is not None
    assert created[0] >= began
    assert created[1] == traffic.counts.arrivals
