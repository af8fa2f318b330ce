"""No false breach: tickets that must not be marked, however monitor and operator overlap (SPEC 1.3, 2.4, 5.5)."""

import logging
from typing import Any

import psycopg
import pytest

from sla_pipeline_tests.integration.conftest import Cycle, Events
from sla_pipeline_tests.tickets import (
    FIRST_RESPONSE_OVERDUE,
    HOUR,
    MICROSECOND,
    MINUTE,
    NOW,
    RESOLUTION_OVERDUE,
    breached_ids,
    change,
    close,
    is_breached,
    look,
    make_ticket,
    make_tickets,
    reply,
    resolve,
    row_versions,
)

Support = psycopg.Connection[Any]


def test_reply_between_claim_and_mark(support: Support, cycle: Cycle, events: Events) -> None:
    ticket = make_ticket(support, **FIRST_RESPONSE_OVERDUE)

    def operator_replies(step: str) -> None:
        if step == "claimed":
            reply(support, ticket)

    report = cycle(on_step=operator_replies)
    assert (report.processed_count, report.lock_skip_count, report.errors) == (0, 0, [])
    assert not is_breached(support, ticket)
    assert events() == []


@pytest.mark.parametrize("operator_ends_it", [resolve, close])
def test_resolve_between_claim_and_mark(operator_ends_it: Any, support: Support, cycle: Cycle, events: Events) -> None:
    tickets = [make_ticket(support, **FIRST_RESPONSE_OVERDUE), make_ticket(support, **RESOLUTION_OVERDUE)]

    def operator_ends_both(step: str) -> None:
        if step == "claimed":
            for ticket in tickets:
                operator_ends_it(support, ticket)

    report = cycle(on_step=operator_ends_both)
    assert (report.processed_count, report.errors) == (0, [])
    assert breached_ids(support) == set()
    assert events() == []


def test_reply_uncommitted_during_mark(support: Support, operator: Support, cycle: Cycle, events: Events) -> None:
    ticket = make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    reply(operator, ticket)
    report = cycle()
    assert (report.processed_count, report.lock_skip_count, report.backlog_count, report.errors) == (0, 1, 1, [])
    operator.commit()
    assert cycle().processed_count == 0
    assert not is_breached(support, ticket)
    assert events() == []


def test_a_reply_that_commits_while_the_batch_is_being_locked_counts(
    support: Support, operator: Support, cycle: Cycle, events: Events
) -> None:
    """The reply commits between the first try of the batch, which skips the row, and the second at the cycle's end."""
    replied = make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    late = make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    reply(operator, replied)

    def operator_commits(step: str) -> None:
        if step == "batch_locked":
            operator.commit()

    report = cycle(on_step=operator_commits)
    assert (report.processed_count, report.backlog_count) == (1, 0)
    assert breached_ids(support) == {late}
    assert [event.ticket_id for event in events()] == [late]


def test_comment_being_written(support: Support, operator: Support, cycle: Cycle, events: Events) -> None:
    ticket = make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    support.execute(
        "create table support.comments (ticket_id uuid not null references support.tickets, body text not null)"
    )
    operator.execute("insert into support.comments values (%s, 'half a sentence')", (ticket,))
    report = cycle()
    assert (report.processed_count, report.lock_skip_count) == (1, 0)
    operator.commit()
    assert is_breached(support, ticket)
    assert [event.ticket_id for event in events()] == [ticket]


def test_stale_operator_write_after_mark(support: Support, cycle: Cycle, events: Events) -> None:
    ticket = make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    loaded = support.execute("select xmin::text from support.tickets where id = %s", (ticket,)).fetchone()
    assert loaded is not None
    assert cycle().processed_count == 1
    saved = support.execute(
        "update support.tickets set sla_breached = false, first_response_at = %s where id = %s and xmin::text = %s",
        (NOW, ticket, *loaded),
    )
    assert saved.rowcount == 0
    assert is_breached(support, ticket)
    assert look(support, ticket)["first_response_at"] is None
    assert len(events()) == 1


def test_blind_write_resets_flag(
    support: Support, cycle: Cycle, events: Events, logged: list[logging.LogRecord]
) -> None:
    ticket = make_ticket(support, **FIRST_RESPONSE_OVERDUE, number="TCK-9")
    other = make_ticket(support, first_response_due_at=NOW + MINUTE)
    cycle()
    change(support, ticket, sla_breached=False, assignee_user_id="0a551600-0000-4000-8000-000000000009")
    change(support, other, first_response_due_at=NOW - MINUTE)

    report = cycle()

    assert (report.processed_count, report.flags_restored_count, report.errors) == (2, 1, [])
    assert breached_ids(support) == {ticket, other}
    assert [event.ticket_id for event in events()] == [ticket, other]
    (warning,) = [record for record in logged if "had been reset" in record.getMessage()]
    assert (warning.levelname, warning.__dict__["TicketId"], warning.__dict__["Number"]) == ("WARNING", ticket, "TCK-9")


def test_a_flag_that_is_put_back_every_minute_never_makes_a_second_event(
    support: Support, cycle: Cycle, events: Events
) -> None:
    ticket = make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    cycle()
    for _ in range(3):
        change(support, ticket, sla_breached=False)
        report = cycle()
        assert (report.processed_count, report.flags_restored_count, report.published_count) == (1, 1, 0)
    assert len(events()) == 1


def test_null_resolution_deadline(support: Support, cycle: Cycle, events: Events) -> None:
    make_ticket(support, **RESOLUTION_OVERDUE | {"resolution_due_at": None})
    assert cycle().processed_count == 0
    assert breached_ids(support) == set()
    assert events() == []


def test_only_one_deadline_passed_of_two(support: Support, cycle: Cycle, events: Events) -> None:
    make_ticket(support, **RESOLUTION_OVERDUE | {"resolution_due_at": NOW + HOUR})
    assert cycle().processed_count == 0
    assert breached_ids(support) == set()
    assert events() == []


def test_due_equals_now(support: Support, cycle: Cycle, clock: Any, events: Events) -> None:
    due_at = NOW.replace(microsecond=123_457)
    first = make_ticket(support, first_response_due_at=due_at)
    second = make_ticket(support, **RESOLUTION_OVERDUE | {"resolution_due_at": due_at})
    clock.moment = due_at
    assert cycle().processed_count == 0
    assert breached_ids(support) == set()
    clock.moment = due_at + MICROSECOND
    assert cycle().processed_count == 2
    assert breached_ids(support) == {first, second}
    assert {event.due_at for event in events()} == {"2026-11-30T12:00:00.123457Z"}
    assert {event.breached_at for event in events()} == {"2026-11-30T12:00:00.123458Z"}


def test_closed_without_any_reply(support: Support, cycle: Cycle, events: Events) -> None:
    make_ticket(support, **FIRST_RESPONSE_OVERDUE | {"status": "Closed"})
    before = row_versions(support)
    assert cycle().processed_count == 0
    assert row_versions(support) == before
    assert events() == []


@pytest.mark.parametrize("status", ["OnHold", "new", "INWORK", "In Work", ""])
def test_on_hold_at_deadline(status: str, support: Support, cycle: Cycle, events: Events) -> None:
    ticket = make_ticket(support, **RESOLUTION_OVERDUE | {"status": status})
    before = row_versions(support)
    assert cycle().processed_count == 0
    assert row_versions(support) == before
    change(support, ticket, status="InWork")
    assert cycle().processed_count == 1
    assert [event.ticket_id for event in events()] == [ticket]


def test_first_run_on_history(support: Support, cycle: Cycle, events: Events) -> None:
    support.execute(
        """
        insert into support.tickets (
            id, number, tenant_id, queue_id, requester_user_id, priority, status,
            first_response_due_at, first_response_at, resolution_due_at, resolved_at
        )
        select gen_random_uuid(), 'OLD-' || n, gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'Normal',
            case when n %% 2 = 0 then 'Closed' else 'Resolved' end, %(long_ago)s - n * interval '1 minute',
            case when n %% 3 = 0 then %(long_ago)s end, %(long_ago)s - n * interval '1 minute',
            case when n %% 5 = 0 then %(long_ago)s end
        from generate_series(1, 100000) n
        """,
        {"long_ago": NOW - 1000 * HOUR},
    )
    overdue = [*make_tickets(support, 5, **RESOLUTION_OVERDUE), *make_tickets(support, 5, **FIRST_RESPONSE_OVERDUE)]
    report = cycle()
    assert (report.processed_count, report.published_count, report.backlog_count) == (10, 10, 0)
    assert breached_ids(support) == set(overdue)
    assert [event.ticket_id for event in events()] == overdue
