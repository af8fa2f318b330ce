"""Rows that cannot be marked: the others are marked, whatever the cause, and such a row is tried again (SPEC 8)."""

import logging
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from sla_pipeline.cycle import CycleInput, SimulatedClock
from sla_pipeline.errors import CycleFailed, CycleStopped, KafkaUnavailable
from sla_pipeline.kafka.relay import Relay
from sla_pipeline_tests.integration.conftest import Cycle, Events
from sla_pipeline_tests.tickets import (
    FIRST_RESPONSE_OVERDUE,
    HOUR,
    MINUTE,
    NOW,
    RESOLUTION_OVERDUE,
    before_update,
    breached_ids,
    change,
    close,
    is_breached,
    make_ticket,
    make_tickets,
)

Support = psycopg.Connection[Any]


def _set_aside(support: Support) -> list[tuple[Any, ...]]:
    return support.execute(
        "select ticket_id::text, number, kind, try_count, first_failed_at, last_failed_at, next_try_at from "
        "support.ticket_sla_set_aside"
    ).fetchall()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(
            "raise exception 'no, % is secret', new.requester_user_id;", "RaiseException (P0001)", id="raises"
        ),
        pytest.param(
            "raise exception 'no' using errcode = 'TK001';", "DatabaseError (TK001)", id="raises a code of its own"
        ),
        pytest.param("raise no_data_found;", "NoDataFound (P0002)", id="finds no data"),
        pytest.param("assert false;", "AssertFailure (P0004)", id="asserts"),
        pytest.param("perform 1 / 0;", "DivisionByZero (22012)", id="divides by zero"),
        pytest.param("new.number := null;", "NotNullViolation (23502)", id="violates a constraint"),
        pytest.param(
            "return null;",
            "the database kept the row from being updated (a trigger or a rule",
            id="swallows the update",
        ),
    ],
)
def test_a_trigger_that_refuses_one_row_does_not_stop_the_others(
    body: str,
    message: str,
    support: Support,
    cycle: Cycle,
    clock: SimulatedClock,
    events: Events,
    logged: list[logging.LogRecord],
) -> None:
    good = make_tickets(support, 20, **FIRST_RESPONSE_OVERDUE | {"first_response_due_at": NOW - HOUR})
    bad = make_ticket(support, **RESOLUTION_OVERDUE | {"number": "BAD-1"})
    before_update(support, f"if new.number = 'BAD-1' and new.sla_breached then {body} end if;")

    report = cycle()

    assert (report.processed_count, report.published_count, report.backlog_count) == (20, 20, 1)
    assert len(report.errors) == 1
    assert message in report.errors[0]
    assert f"ticket BAD-1 ({bad}) set aside: " in report.errors[0]
    assert "secret" not in report.errors[0]
    assert breached_ids(support) == set(good)
    assert _set_aside(support) == [(bad, "BAD-1", "Resolution", 1, NOW, NOW, NOW + timedelta(seconds=55))]
    assert [record.__dict__["Number"] for record in logged if record.getMessage() == "item failed"] == ["BAD-1"]

    support.execute("drop trigger before_update on support.tickets")
    clock.moment += MINUTE
    assert cycle().processed_count == 1
    assert _set_aside(support) == []
    assert [event.ticket_id for event in events()] == [*good, bad]


def test_a_ticket_without_a_number_does_not_stop_the_others(support: Support, cycle: Cycle, events: Events) -> None:
    support.execute("alter table support.tickets alter number drop not null")
    good = make_tickets(support, 3, **FIRST_RESPONSE_OVERDUE)
    bad = make_ticket(support, **FIRST_RESPONSE_OVERDUE | {"first_response_due_at": NOW - HOUR})
    change(support, bad, number=None)
    report = cycle()
    assert (report.processed_count, len(report.errors)) == (3, 1)
    assert (
        report.errors[0]
        == f"ticket '' ({bad}) set aside: the event cannot be built: number: String should have at least 1 character"
    )
    assert [event.ticket_id for event in events()] == good


def test_a_row_that_the_database_refuses_beside_one_that_makes_no_event(
    support: Support, cycle: Cycle, events: Events, caplog: pytest.LogCaptureFixture
) -> None:
    """Both are set aside, each for its own reason; the trigger's message reaches no log, not even the driver's."""
    good = make_tickets(support, 3, **FIRST_RESPONSE_OVERDUE)
    without_event = make_ticket(support, **FIRST_RESPONSE_OVERDUE, queue_id=None)
    refused = make_ticket(support, **FIRST_RESPONSE_OVERDUE | {"number": "BAD-1"})
    before_update(support, "if new.number = 'BAD-1' then raise exception 'secret'; end if;")
    report = cycle()
    assert report.processed_count == 3
    assert {
        error.split(" set aside: ")[0].split("(")[1]: error.split(" set aside: ")[1][:21] for error in report.errors
    } == {
        f"{without_event})": "the event cannot be b",
        f"{refused})": "the database refuses ",
    }
    assert {event.ticket_id for event in events()} == set(good)
    assert "secret" not in caplog.text


@pytest.mark.parametrize("due_at", ["-infinity", "0044-03-15 12:00:00+00 BC"])
def test_a_deadline_before_the_year_1_is_set_aside(due_at: str, support: Support, cycle: Cycle, events: Events) -> None:
    good = make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    bad = [make_ticket(support), make_ticket(support, **RESOLUTION_OVERDUE)]
    change(support, bad[0], first_response_due_at=due_at)
    change(support, bad[1], resolution_due_at=due_at)
    report = cycle()
    assert (report.processed_count, report.backlog_count) == (1, 2)
    assert sorted(report.errors) == sorted(
        f"ticket TCK-{ticket} ({ticket}) set aside: the deadline is not a date between the years 1 and 9999"
        for ticket in bad
    )
    assert [event.ticket_id for event in events()] == [good]


@pytest.mark.parametrize("moment", ["infinity", "294000-01-01 00:00:00+00", "0044-03-15 12:00:00+00 BC"])
def test_times_beyond_the_calendar_that_are_not_in_the_event_are_harmless(
    moment: str, support: Support, cycle: Cycle, events: Events
) -> None:
    """Such a time elsewhere in the row does not matter: the ticket is marked for the deadline that passed."""
    ticket = make_ticket(support, **RESOLUTION_OVERDUE)
    change(support, ticket, first_response_due_at=moment, first_response_at=moment)
    untouched = make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    change(support, untouched, first_response_due_at="infinity", first_response_at=None)
    report = cycle()
    assert (report.processed_count, report.errors) == (1, [])
    assert [(event.ticket_id, event.breach_kind) for event in events()] == [(ticket, "Resolution")]


def test_the_pause_doubles_up_to_an_hour(support: Support, cycle: Cycle, clock: SimulatedClock) -> None:
    bad = make_ticket(support, **FIRST_RESPONSE_OVERDUE, queue_id=None)
    tries = [0, 1, 3, 7, 15, 31, 63, 123, 183]
    for minute in sorted({*tries, *(minute - 1 for minute in tries[1:])}):
        clock.moment = NOW + minute * MINUTE
        assert len(cycle().errors) == (minute in tries)
    assert not is_breached(support, bad)


@pytest.mark.parametrize(
    "corrected",
    [close, lambda support, ticket: support.execute("delete from support.tickets where id = %s", (ticket,))],
)
def test_a_ticket_that_is_not_overdue_any_more_is_forgotten(corrected: Any, support: Support, cycle: Cycle) -> None:
    bad = make_ticket(support, **FIRST_RESPONSE_OVERDUE, queue_id=None)
    assert len(cycle().errors) == 1
    corrected(support, bad)
    assert cycle().errors == []
    assert _set_aside(support) == []


def test_a_ticket_set_aside_stays_in_the_backlog(support: Support, cycle: Cycle) -> None:
    make_ticket(support, **FIRST_RESPONSE_OVERDUE, queue_id=None)
    assert [cycle().backlog_count for _ in range(3)] == [1, 1, 1]


def test_the_journal_counts_the_bad_rows(support: Support, cycle: Cycle) -> None:
    make_tickets(support, 3, **FIRST_RESPONSE_OVERDUE, queue_id=None)
    cycle_id = cycle().cycle_id
    row = support.execute(
        "select state, error_count, processed_count, error from support.ticket_sla_cycles where id = %s", (cycle_id,)
    ).fetchone()
    assert row is not None
    assert row[:3] == ("failed", 3, 0)
    assert row[3].count("the event cannot be built: queue_id is null") == 3


def test_thousands_of_bad_rows_do_not_hide_what_failed_beside_them(
    support: Support, cycle: Cycle, logged: list[logging.LogRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred errors are kept, the fault of a step first; all are counted; the log names each ticket."""

    def unreachable(*_: object, **__: object) -> None:
        raise KafkaUnavailable("Kafka is down")

    monkeypatch.setattr(Relay, "publish", unreachable)
    make_tickets(support, 250, **FIRST_RESPONSE_OVERDUE, queue_id=None)
    report = cycle()
    assert (report.error_count, len(report.errors)) == (251, 100)
    assert report.errors[0] == "publishing failed: Kafka is down"
    assert all(" set aside: " in error for error in report.errors[1:])
    more = "and 151 more errors; the log has a line for each ticket that was set aside"
    with pytest.raises(CycleFailed) as failed:
        report.raise_if_failed()
    assert str(failed.value) == "; ".join([*report.errors, more])
    assert support.execute("select error_count, error from support.ticket_sla_cycles").fetchall() == [
        (251, "\n".join([*report.errors, more]))
    ]
    assert len({record.__dict__["TicketId"] for record in logged if record.getMessage() == "item failed"}) == 250


def test_a_cycle_that_is_stopped_keeps_a_hundred_errors_too(support: Support, cycle: Cycle) -> None:
    make_tickets(support, 250, **FIRST_RESPONSE_OVERDUE, queue_id=None)
    stops = iter([False, False, True])
    with pytest.raises(CycleStopped):
        cycle(CycleInput(batch_size=100), should_stop=lambda: next(stops))
    ((state, count, error),) = support.execute(
        "select state, error_count, error from support.ticket_sla_cycles"
    ).fetchall()
    lines = error.splitlines()
    assert (state, count, len(lines)) == ("canceled", 201, 101)
    assert lines[0] == "stop requested after 2 of 3 batches"
    assert lines[-1].startswith("and 101 more errors; ")


def test_only_the_beginning_of_a_very_long_number_is_kept(support: Support, cycle: Cycle) -> None:
    make_ticket(support, **FIRST_RESPONSE_OVERDUE, number="9" * 10_240)
    report = cycle()
    assert report.set_aside is not None
    assert [(ticket.number, ticket.error) for ticket in report.set_aside.tickets] == [
        ("9" * 200, "the event cannot be built: number: String should have at most 64 characters")
    ]
