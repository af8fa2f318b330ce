"""A database that makes the cycle wait: one statement is cancelled, the cycle runs to its end (SPEC 5.7, 8)."""

from typing import Any

import psycopg
import pytest

from sla_pipeline.cycle import CycleInput
from sla_pipeline.errors import PostgresBusy, PostgresUnavailable
from sla_pipeline.postgres import session
from sla_pipeline_tests.integration.conftest import Cycle, Events
from sla_pipeline_tests.tickets import FIRST_RESPONSE_OVERDUE, breached_ids, make_tickets

Support = psycopg.Connection[Any]


def test_a_batch_that_waits_too_long_is_tried_again_in_smaller_batches(
    support: Support, operator: Support, cycle: Cycle, events: Events
) -> None:
    tickets = make_tickets(support, 20, **FIRST_RESPONSE_OVERDUE)
    steps: list[str] = []

    def sequence_is_held_for_one_batch(step: str) -> None:
        steps.append(step)
        if step == "batch_locked":
            if steps.count(step) == 1:
                operator.execute("select 1 from support.ticket_sla_relay for update")
            else:
                operator.rollback()

    report = cycle(CycleInput(batch_size=10), on_step=sequence_is_held_for_one_batch)
    assert (
        report.processed_count,
        report.published_count,
        report.batch_count,
        report.backlog_count,
        report.errors,
    ) == (20, 20, 2, 0, [])
    assert breached_ids(support) == set(tickets)
    # The tickets of the failed batch come last, in smaller batches.
    assert [event.ticket_id for event in events()] == tickets[10:] + tickets[:10]


def test_a_position_that_cannot_be_recorded_ends_the_publishing_not_the_cycle(
    support: Support, operator: Support, cycle: Cycle, events: Events
) -> None:
    """The events are published, and Postgres has not recorded it yet.

    The cycle fails at its end; the next one publishes none of them again.
    """
    tickets = make_tickets(support, 10, **FIRST_RESPONSE_OVERDUE)

    def relay_row_is_held(step: str) -> None:
        if step == "batch_committed":
            operator.execute("select 1 from support.ticket_sla_relay for update")

    report = cycle(on_step=relay_row_is_held)
    operator.rollback()
    assert (report.processed_count, report.published_count, report.backlog_count) == (10, 10, 0)
    assert len(report.errors) == 1
    assert report.errors[0].startswith(
        "publishing failed: canceling statement due to lock timeout (55P03) in database "
    )
    assert support.execute("select state, published_count from support.ticket_sla_cycles").fetchall() == [
        ("failed", 10)
    ]
    assert support.execute("select published_seq, last_seq from support.ticket_sla_relay").fetchall() == [(0, 10)]

    following = cycle()
    assert (following.published_count, following.errors) == (0, [])
    assert support.execute("select published_seq, last_seq from support.ticket_sla_relay").fetchall() == [(10, 10)]
    assert [event.ticket_id for event in events()] == tickets


def test_a_claim_that_waits_too_long_ends_the_cycle_with_our_message(
    support: Support, operator: Support, cycle: Cycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(session._BOUNDS, "lock_timeout", 300)
    operator.execute("lock table support.tickets in access exclusive mode")
    with pytest.raises(
        PostgresBusy,
        match=r"lock timeout \(55P03\) in database .*; the next cycle tries again\. If it comes often, look for",
    ):
        cycle().raise_if_failed()
    operator.rollback()
    assert [row.errors for row in [cycle()]] == [[]]


def test_a_session_that_the_server_ends_ends_the_cycle(support: Support, cycle: Cycle, events: Events) -> None:
    """A cycle that loses its session loses its locks, so it does not continue in another session."""
    tickets = make_tickets(support, 30, **FIRST_RESPONSE_OVERDUE)
    steps: list[str] = []

    def session_is_ended(step: str) -> None:
        steps.append(step)
        if step == "batch_locked" and steps.count(step) == 2:
            support.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and "
                "application_name = 'ticket-sla-monitor cycle'"
            )

    report = cycle(CycleInput(batch_size=10), on_step=session_is_ended)
    with pytest.raises(PostgresUnavailable, match="terminating connection due to administrator command"):
        report.raise_if_failed()
    assert (report.processed_count, report.published_count, report.backlog_count) == (10, 10, 20)
    assert breached_ids(support) == set(tickets[:10])
    assert support.execute("select state, processed_count from support.ticket_sla_cycles").fetchall() == [
        ("failed", 10)
    ]
    assert cycle().processed_count == 20
    assert [event.ticket_id for event in events()] == tickets
