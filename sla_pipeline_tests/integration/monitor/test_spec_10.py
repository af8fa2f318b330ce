"""The tests that SPEC 10 demands, row by row, under the names of its table."""

from typing import Any

import psycopg
import pytest

from sla_pipeline.breach import BreachKind
from sla_pipeline.cycle import CycleInput, CycleTotals
from sla_pipeline.errors import CycleStopped
from sla_pipeline_tests.integration.conftest import Cycle, Events
from sla_pipeline_tests.tickets import (
    FIRST_RESPONSE_OVERDUE,
    HOUR,
    MINUTE,
    NOW,
    QUEUE,
    RESOLUTION_OVERDUE,
    TENANT,
    breached_ids,
    look,
    make_ticket,
    make_tickets,
    reply,
    resolve,
    row_versions,
)

Support = psycopg.Connection[Any]


def test_empty_batch(support: Support, cycle: Cycle, events: Events) -> None:
    make_ticket(support)
    report = cycle()
    assert (
        report.processed_count,
        report.batch_count,
        report.published_count,
        report.backlog_count,
        report.errors,
    ) == (0, 0, 0, 0, [])
    assert events() == []


def test_first_response_overdue(support: Support, cycle: Cycle, events: Events) -> None:
    ticket = make_ticket(support, **FIRST_RESPONSE_OVERDUE, number="TCK-17", priority="Critical")
    before = look(support, ticket)

    report = cycle(run_id="run-17")

    assert (report.first_response_count, report.resolution_count) == (1, 0)
    assert look(support, ticket) == before | {"sla_breached": True, "updated_at": NOW}
    (event,) = events()
    assert event.model_dump(exclude={"event_id"}) == {
        "EventType": "TicketSlaBreachedKafkaEvent",
        "ContractVersion": 1,
        "AggregateType": "Ticket",
        "AggregateId": ticket,
        "TicketId": ticket,
        "Number": "TCK-17",
        "TenantId": TENANT,
        "QueueId": QUEUE,
        "RequesterUserId": str(before["requester_user_id"]),
        "AssigneeUserId": None,
        "Priority": "Critical",
        "BreachKind": "FirstResponse",
        "DueAt": "2026-11-30T11:59:00.000000Z",
        "BreachedAt": "2026-11-30T12:00:00.000000Z",
    }


def test_resolution_overdue(support: Support, cycle: Cycle, events: Events) -> None:
    assignee = "0a551600-0000-4000-8000-000000000009"
    ticket = make_ticket(support, **RESOLUTION_OVERDUE, assignee_user_id=assignee)
    before = look(support, ticket)

    report = cycle()

    assert (report.first_response_count, report.resolution_count) == (0, 1)
    assert look(support, ticket) == before | {"sla_breached": True, "updated_at": NOW}
    (event,) = events()
    assert (event.ticket_id, event.breach_kind, event.due_at) == (
        ticket,
        BreachKind.RESOLUTION,
        "2026-11-30T11:59:00.000000Z",
    )
    assert event.assignee_user_id == assignee


@pytest.mark.parametrize(
    "state",
    [
        pytest.param({"sla_breached": True}, id="already breached"),
        pytest.param({"status": "Resolved", "resolved_at": NOW - HOUR}, id="Resolved"),
        pytest.param({"status": "Closed"}, id="Closed"),
    ],
)
def test_already_breached_or_resolved_or_closed(
    state: dict[str, object], support: Support, cycle: Cycle, events: Events
) -> None:
    make_ticket(support, **FIRST_RESPONSE_OVERDUE | state)
    make_ticket(support, **RESOLUTION_OVERDUE | state)
    before = row_versions(support)
    assert cycle().processed_count == 0
    assert row_versions(support) == before
    assert events() == []


def test_not_due_yet(support: Support, cycle: Cycle, events: Events) -> None:
    make_ticket(support, first_response_due_at=NOW)
    make_ticket(support, first_response_due_at=NOW + MINUTE)
    make_ticket(support, **RESOLUTION_OVERDUE | {"resolution_due_at": NOW})
    make_ticket(support, **RESOLUTION_OVERDUE | {"resolution_due_at": NOW + MINUTE})
    before = row_versions(support)
    assert cycle().processed_count == 0
    assert row_versions(support) == before
    assert events() == []


def test_race_with_an_operator(support: Support, cycle: Cycle, events: Events) -> None:
    answered = make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    resolved = make_ticket(support, **RESOLUTION_OVERDUE)
    late = make_ticket(support, **FIRST_RESPONSE_OVERDUE)

    def operator_is_faster(step: str) -> None:
        if step == "claimed":
            reply(support, answered)
            resolve(support, resolved)

    assert cycle(on_step=operator_is_faster).processed_count == 1
    assert breached_ids(support) == {late}
    assert [event.ticket_id for event in events()] == [late]
    assert look(support, answered)["first_response_at"] == NOW
    assert look(support, resolved)["status"] == "Resolved"


def test_duplicate_run(support: Support, cycle: Cycle, events: Events) -> None:
    tickets = make_tickets(support, 30, **FIRST_RESPONSE_OVERDUE)
    assert cycle(run_id="same-run").processed_count == 30
    marked = row_versions(support)
    assert [cycle(run_id="same-run").processed_count for _ in range(2)] == [0, 0]
    assert row_versions(support) == marked
    assert [event.ticket_id for event in events()] == tickets


def test_two_pods(support: Support, cycle: Cycle, other_pod: Cycle, events: Events) -> None:
    """The second pod runs a whole cycle while the first holds its batch: the rows are disjoint."""
    tickets = make_tickets(support, 30, **FIRST_RESPONSE_OVERDUE)
    of_other_pod: list[CycleTotals] = []

    def other_pod_runs(step: str) -> None:
        if step == "batch_locked" and not of_other_pod:
            of_other_pod.append(other_pod(CycleInput(batch_size=10)))

    first = cycle(CycleInput(batch_size=10), on_step=other_pod_runs)
    (second,) = of_other_pod
    assert (first.processed_count, second.processed_count, second.lock_skip_count) == (10, 20, 10)
    assert breached_ids(support) == set(tickets)
    assert sorted(event.ticket_id for event in events()) == sorted(tickets)


def test_cancellation(support: Support, cycle: Cycle, events: Events) -> None:
    tickets = make_tickets(support, 50, **FIRST_RESPONSE_OVERDUE)
    steps: list[str] = []
    with pytest.raises(CycleStopped, match="stop requested after 2 of 5 batches"):
        cycle(CycleInput(batch_size=10), on_step=steps.append, should_stop=lambda: steps.count("batch_committed") == 2)
    assert breached_ids(support) == set(tickets[:20])

    def stop_inside_the_batch(step: str) -> None:
        if step == "batch_written":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cycle(CycleInput(batch_size=10), on_step=stop_inside_the_batch)
    assert breached_ids(support) == set(tickets[:20])

    report = cycle(CycleInput(batch_size=10))
    assert (report.processed_count, report.published_count, report.backlog_count) == (30, 50, 0)
    assert [event.ticket_id for event in events()] == tickets
