"""Exactly one event with several pods and crashes: the cycle's part (SPEC 2.2, 7.2, 8).

The relay's part is in ``integration/kafka``.
"""

import contextlib
from typing import Any

import psycopg
import pytest

from sla_pipeline.cycle import CycleInput, CycleTotals
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline_tests.integration.conftest import Cycle, Events
from sla_pipeline_tests.integration.monitor.cycle_process import Pod
from sla_pipeline_tests.tickets import (
    FIRST_RESPONSE_OVERDUE,
    RESOLUTION_OVERDUE,
    breached_ids,
    make_tickets,
    row_versions,
)

Support = psycopg.Connection[Any]


def test_two_pods_same_minute(support: Support, worker_url: str, kafka_settings: KafkaSettings, events: Events) -> None:
    tickets = [
        *make_tickets(support, 5_000, **FIRST_RESPONSE_OVERDUE),
        *make_tickets(support, 5_000, **RESOLUTION_OVERDUE),
    ]
    with contextlib.ExitStack() as up:
        pods = [up.enter_context(Pod(worker_url, kafka_settings, run_id=f"pod-{number}")) for number in range(4)]
        for pod in pods:
            pod.wait_until_ready()
        for pod in pods:
            pod.go()
        reports = [pod.report() for pod in pods]
    assert [report["errors"] for report in reports] == [[]] * 4
    assert sum(report["processed_count"] for report in reports) == 10_000
    assert sum(report["published_count"] for report in reports) == 10_000
    assert breached_ids(support) == set(tickets)
    assert sorted(event.ticket_id for event in events()) == sorted(tickets)


def test_overlapping_cycles(support: Support, cycle: Cycle, other_pod: Cycle, events: Events) -> None:
    """Cycle k+1 starts and ends while k has one batch committed, not published, and another under way."""
    tickets = make_tickets(support, 50, **FIRST_RESPONSE_OVERDUE)
    cycle_input = CycleInput(batch_size=10)
    steps: list[str] = []
    later: list[CycleTotals] = []

    def later_cycle_overlaps(step: str) -> None:
        steps.append(step)
        if step == "batch_locked" and steps.count(step) == 2:
            later.append(other_pod(cycle_input))

    earlier = cycle(cycle_input, on_step=later_cycle_overlaps)
    assert (later[0].processed_count, later[0].published_count, later[0].lock_skip_count, later[0].errors) == (
        30,
        40,
        10,
        [],
    )
    assert (earlier.processed_count, earlier.published_count, earlier.lock_skip_count, earlier.errors) == (
        20,
        10,
        0,
        [],
    )
    assert breached_ids(support) == set(tickets)
    assert sorted(event.ticket_id for event in events()) == sorted(tickets)


@pytest.mark.timeout(600)  # 40 s on an idle machine
def test_thousand_idle_cycles(support: Support, cycle: Cycle, events: Events) -> None:
    make_tickets(support, 20, **RESOLUTION_OVERDUE)
    make_tickets(support, 20)
    cycle()
    published, rows = events(), row_versions(support)
    assert len(published) == 20
    totals = [
        (report.processed_count, report.published_count, report.batch_count, report.backlog_count, report.errors)
        for report in (cycle() for _ in range(1_000))
    ]
    assert totals == [(0, 0, 0, 0, [])] * 1_000
    assert row_versions(support) == rows
    assert events() == published


def test_killed_after_mark_before_publish(
    support: Support, worker_url: str, kafka_settings: KafkaSettings, cycle: Cycle, events: Events
) -> None:
    tickets = make_tickets(support, 40, **FIRST_RESPONSE_OVERDUE)
    cycle_input = CycleInput(batch_size=10)
    with Pod(worker_url, kafka_settings, cycle_input, run_id="killed", dies_at="batch_committed", dies_at_nth=3) as pod:
        pod.die()
    assert breached_ids(support) == set(tickets[:30])
    assert events() == []
    report = cycle(cycle_input)
    assert (report.processed_count, report.published_count, report.errors) == (10, 40, [])
    assert [event.ticket_id for event in events()] == tickets


def test_killed_inside_a_batch(
    support: Support, worker_url: str, kafka_settings: KafkaSettings, cycle: Cycle, events: Events
) -> None:
    tickets = make_tickets(support, 30, **FIRST_RESPONSE_OVERDUE)
    cycle_input = CycleInput(batch_size=10)
    with Pod(worker_url, kafka_settings, cycle_input, dies_at="batch_written", dies_at_nth=2) as pod:
        pod.die()
    assert breached_ids(support) == set(tickets[:10])
    report = cycle(cycle_input)
    assert (report.processed_count, report.published_count, report.errors) == (20, 30, [])
    assert [event.ticket_id for event in events()] == tickets
