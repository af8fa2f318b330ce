"""Hostile tickets: each is marked with the right event, or set aside with a clear reason (SPEC 4.4, 6, 8).

A ticket's id and number may be logged. Its other texts carry a canary, which must be found in the table only.
"""

import json
from collections.abc import Callable
from importlib import resources
from typing import Any

import jsonschema
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql

from sla_pipeline.cycle import CycleTotals
from sla_pipeline_tests.integration.conftest import Cycle, Events
from sla_pipeline_tests.integration.hostile.hostile_tickets import HostileTicket, hostile_tickets
from sla_pipeline_tests.integration.hostile.log_capture import everything_logged
from sla_pipeline_tests.integration.hostile.odd_values import CANARY
from sla_pipeline_tests.tickets import (
    FIRST_RESPONSE_OVERDUE,
    MINUTE,
    NOW,
    breached_ids,
    change,
    make_ticket,
    make_tickets,
)

Support = psycopg.Connection[Any]
_SCHEMA = json.loads(resources.files("sla_pipeline").joinpath("event.schema.json").read_text())


def _insert(support: Support, tickets: list[HostileTicket]) -> None:
    names = list(tickets[0].columns)
    statement = sql.SQL("insert into support.tickets ({}) values ({})").format(
        sql.SQL(", ").join(map(sql.Identifier, names)), sql.SQL(", ").join(map(sql.Placeholder, names))
    )
    with support.cursor() as cursor:
        cursor.executemany(statement, [ticket.columns for ticket in tickets])


def _recorded(support: Support) -> dict[str, dict[str, Any]]:
    rows = support.execute("select ticket_id::text, payload from support.ticket_sla_breaches").fetchall()
    return {ticket_id: json.loads(payload) for ticket_id, payload in rows}


def _set_aside(support: Support) -> dict[str, str]:
    return dict(support.execute("select ticket_id::text, error from support.ticket_sla_set_aside").fetchall())


def _assert_complete_event(ticket: HostileTicket, payload: dict[str, Any]) -> None:
    jsonschema.validate(payload, _SCHEMA, format_checker=jsonschema.FormatChecker())
    outcome = ticket.expected
    assert outcome.due_at is not None
    expected = {
        "TicketId": ticket.id,
        "AggregateId": ticket.id,
        "Number": ticket.number,
        "TenantId": ticket.tenant_id,
        "QueueId": ticket.queue_id,
        "RequesterUserId": ticket.requester_user_id,
        "AssigneeUserId": ticket.assignee_user_id,
        "Priority": ticket.priority,
        "BreachKind": outcome.kind,
        "DueAt": outcome.due_at.in_event,
        "BreachedAt": "2026-11-30T12:00:00.000000Z",
    }
    assert {name: payload[name] for name in expected} == expected


def _assert_one_line_each(report: CycleTotals) -> None:
    """Assert it, because a line break in a number could forge a line of the journal, a run's page or a terminal."""
    assert all(error.isprintable() and len(error) < 1000 for error in report.errors), report.errors


@pytest.mark.timeout(600)
def test_each_is_marked_correctly_or_set_aside_with_a_clear_reason(
    support: Support, cycle: Cycle, events: Events
) -> None:
    published: list[str] = []

    @settings(
        max_examples=40,
        derandomize=True,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(tickets=st.lists(hostile_tickets, min_size=1, max_size=12, unique_by=lambda ticket: ticket.number))
    def check(tickets: list[HostileTicket]) -> None:
        support.execute("delete from support.tickets")
        _insert(support, tickets)
        # Due after all others, so it is in their batch.
        harmless = make_ticket(support, **FIRST_RESPONSE_OVERDUE)
        with everything_logged() as logged:
            report = cycle()
            again = cycle()

        expected: dict[str, set[str]] = {"marked": {harmless}, "set aside": set(), "untouched": set()}
        for ticket in tickets:
            expected[ticket.expected.state].add(ticket.id)
        already_breached = {ticket.id for ticket in tickets if ticket.sla_breached}
        assert breached_ids(support) == expected["marked"] | already_breached
        recorded = _recorded(support)
        assert recorded.keys() - set(published) == expected["marked"]
        assert _set_aside(support).keys() == expected["set aside"]
        for ticket in tickets:
            if ticket.expected.state == "marked":
                _assert_complete_event(ticket, recorded[ticket.id])

        assert (report.processed_count, report.published_count, report.backlog_count) == (
            len(expected["marked"]),
            len(expected["marked"]),
            len(expected["set aside"]),
        )
        assert len(report.errors) == len(expected["set aside"])
        assert all(any(ticket_id in error for error in report.errors) for ticket_id in expected["set aside"])
        _assert_one_line_each(report)
        assert (again.processed_count, again.published_count, again.errors) == (0, 0, [])
        published.extend(expected["marked"])

        journal = support.execute(
            "select state, error from support.ticket_sla_cycles order by id desc limit 2"
        ).fetchall()
        assert [state for state, _ in journal] == ["succeeded", "failed" if report.errors else "succeeded"]
        for text in (*logged, *report.errors, *(str(row) for row in journal), *_set_aside(support).values()):
            assert CANARY not in text

    check()
    sent = events()
    assert sorted(event.ticket_id for event in sent) == sorted(published)
    assert {event.ticket_id: json.loads(event.model_dump_json()) for event in sent} == _recorded(support)


@pytest.mark.parametrize(
    "refuse",
    [
        pytest.param(
            lambda support: support.execute(
                "alter table support.tickets add constraint quiet check (number <> 'BAD-1' or not sla_breached) not "
                "valid"
            ),
            id="a constraint, whose error repeats the whole row",
        ),
        pytest.param(
            lambda support: support.execute(
                """
                create function support.object() returns trigger language plpgsql as $$ begin
                if new.number = 'BAD-1' then
                    raise exception '% is refused', new.subject
                        using detail = new.subject, hint = new.subject, constraint = 'of support';
                end if;
                return new; end $$;
                create trigger object before update on support.tickets for each row execute function support.object()
                """
            ),
            id="a trigger, whose error has any text",
        ),
    ],
)
def test_the_databases_message_about_a_row_is_not_repeated(
    refuse: Callable[[Support], object], support: Support, cycle: Cycle, events: Events
) -> None:
    support.execute(f"alter table support.tickets add subject text not null default '{CANARY}: my salary'")
    good = make_tickets(support, 3, **FIRST_RESPONSE_OVERDUE)
    bad = make_ticket(support, **FIRST_RESPONSE_OVERDUE, number="BAD-1")
    refuse(support)
    with everything_logged() as logged:
        report = cycle()
    assert (report.processed_count, report.published_count, len(report.errors)) == (3, 3, 1)
    assert report.errors[0].startswith(f"ticket BAD-1 ({bad}) set aside: the database refuses the row: ")
    assert breached_ids(support) == {event.ticket_id for event in events()} == set(good)
    journal = support.execute("select error from support.ticket_sla_cycles").fetchall()
    for text in (*logged, *report.errors, str(journal), *_set_aside(support).values()):
        assert CANARY not in text


def test_the_error_holds_only_the_beginning_of_a_very_long_number(support: Support, cycle: Cycle) -> None:
    make_ticket(support, **FIRST_RESPONSE_OVERDUE, number="9" * 10_240)
    with everything_logged() as logged:
        report = cycle()
    (error,) = report.errors
    assert "99999999" in error
    assert len(error) < 1_000
    assert max(map(len, logged)) < 5_000


@pytest.mark.parametrize("column", ["first_response_due_at", "first_response_at", "resolution_due_at", "resolved_at"])
@pytest.mark.parametrize(
    "moment", ["infinity", "-infinity", "4713-01-01 00:00:00+00 BC", "294276-12-31 23:59:59.999999+00"]
)
def test_a_time_beyond_the_calendar_does_not_keep_its_batch_from_being_marked(
    column: str, moment: str, support: Support, cycle: Cycle, events: Events
) -> None:
    """Whether it is marked or set aside, the hundred others of its batch are marked and published."""
    good = make_tickets(support, 100, **FIRST_RESPONSE_OVERDUE)
    odd = make_ticket(support, status="InWork", first_response_due_at=NOW - MINUTE, resolution_due_at=NOW - MINUTE)
    change(support, odd, **{column: moment})
    report = cycle()
    assert set(good) <= breached_ids(support) <= {*good, odd}
    assert {event.ticket_id for event in events()} == breached_ids(support)
    assert len(report.errors) == (odd in _set_aside(support))
    assert (odd in breached_ids(support)) != (odd in _set_aside(support))
