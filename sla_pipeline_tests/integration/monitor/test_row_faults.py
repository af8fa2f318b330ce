"""A ticket is at fault when the others succeed without it, whatever the error code is (SPEC 8)."""

import logging
import time
from typing import Any

import psycopg
import pytest

from sla_pipeline.cycle import CycleInput, SimulatedClock
from sla_pipeline.monitor import batches
from sla_pipeline.postgres.database import Database
from sla_pipeline_tests.integration.conftest import Cycle, Events
from sla_pipeline_tests.tickets import (
    FIRST_RESPONSE_OVERDUE,
    HOUR,
    MINUTE,
    NOW,
    QUEUE,
    before_update,
    breached_ids,
    change,
    is_breached,
    make_ticket,
    make_tickets,
)

Support = psycopg.Connection[Any]
# Joined at run time: the report of a failed test shows the source, where the text must not be found.
_PLANTED = " ".join(("my", "salary"))
_OLDEST = FIRST_RESPONSE_OVERDUE | {"first_response_due_at": NOW - HOUR, "priority": "Low"}


def _refuse(support: Support, body: str, *, deferred: bool = False) -> None:
    """Create a trigger of the support service that refuses tickets of low priority; at commit when ``deferred``."""
    support.execute(
        "create function support.refuse() returns trigger language plpgsql as $$ begin if new.priority = 'Low' and "
        f"new.sla_breached then {body} end if; return new; end $$"
    )
    support.execute(
        "create constraint trigger refuse after update on support.tickets deferrable initially deferred "
        "for each row execute function support.refuse()"
        if deferred
        else "create trigger refuse before update on support.tickets for each row execute function support.refuse()"
    )


def _set_aside(support: Support) -> set[str]:
    return {ticket for (ticket,) in support.execute("select ticket_id::text from support.ticket_sla_set_aside")}


@pytest.mark.parametrize(
    ("code", "deferred"),
    [
        *((code, False) for code in ("42501", "42P01", "57P01", "08006", "53100", "40001", "55P03", "57014", "P0001")),
        *((code, True) for code in ("42501", "40001", "23514")),
    ],
)
def test_a_code_of_the_environment_raised_for_three_rows_stops_no_other(
    code: str, deferred: bool, support: Support, cycle: Cycle, events: Events
) -> None:
    bad = make_tickets(support, 3, **_OLDEST)
    good = make_tickets(support, 1_200, **FIRST_RESPONSE_OVERDUE)
    _refuse(support, f"raise exception 'no' using errcode = '{code}';", deferred=deferred)

    report = cycle(CycleInput(batch_size=500))

    assert (report.processed_count, report.published_count, report.backlog_count, report.fault) == (
        1_200,
        1_200,
        3,
        None,
    )
    assert breached_ids(support) == set(good)
    assert _set_aside(support) == set(bad)
    assert len(report.errors) == 3
    assert all(f"({code})" in error for error in report.errors)
    assert {event.ticket_id for event in events()} == set(good)
    assert cycle().errors == []


def test_what_a_trigger_writes_is_repeated_nowhere(
    support: Support,
    cycle: Cycle,
    logged: list[logging.LogRecord],
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    make_tickets(support, 3, **_OLDEST)
    make_tickets(support, 10, **FIRST_RESPONSE_OVERDUE)
    _refuse(
        support, f"raise exception '{_PLANTED}' using errcode = '42501', detail = '{_PLANTED}', hint = '{_PLANTED}';"
    )
    report = cycle()
    assert len(report.errors) == 3
    # The same where every ticket is refused, so that the code counts as one of the environment.
    support.execute("delete from support.ticket_sla_set_aside")
    failed = cycle()
    with pytest.raises(
        Exception, match=r"InsufficientPrivilege \(42501\) in a function or trigger of the database"
    ) as raised:
        failed.raise_if_failed()
    journal = support.execute("select error from support.ticket_sla_cycles").fetchall()
    shown = capfd.readouterr()
    for text in (
        str(report.errors),
        str(raised.getrepr(chain=True)),
        str(journal),
        str([vars(r) for r in logged]),
        caplog.text,
        *shown,
    ):
        assert _PLANTED not in text


def test_more_refused_tickets_than_a_batch_holds_stop_no_other(support: Support, cycle: Cycle) -> None:
    """The first 60 are refused with a code of the environment; two batches of 20 hold no other ticket."""
    bad = make_tickets(support, 60, **_OLDEST)
    good = make_tickets(support, 40, **FIRST_RESPONSE_OVERDUE)
    _refuse(support, "raise insufficient_privilege;")
    marked: set[str] = set()
    for _ in range(20):
        cycle(CycleInput(batch_size=20))
        marked = breached_ids(support)
        if marked:
            break
    # After the first twenty refusals the rest is tried in a random order: the probability of a cycle without any of the
    # forty is below 0.01 %.
    assert marked == set(good)
    assert _set_aside(support) <= set(bad)


def test_a_fault_that_meets_every_ticket_sets_none_aside(support: Support, database: Database, cycle: Cycle) -> None:
    tickets = make_tickets(support, 300, **FIRST_RESPONSE_OVERDUE)
    support.execute("revoke update (sla_breached) on support.tickets from sla_worker")
    report = cycle(CycleInput(batch_size=100))
    assert (report.processed_count, report.backlog_count, len(report.errors)) == (0, 300, 1)
    assert report.errors[0].startswith("marking failed: permission denied for table tickets in database ")
    with database.session() as session:
        # The steps after the marking have the same timeouts as before it.
        assert session.execute(
            "select current_setting('lock_timeout'), current_setting('statement_timeout')"
        ).fetchone() == ("5s", "10s")
    assert _set_aside(support) == set()
    support.execute("grant update (sla_breached) on support.tickets to sla_worker")
    assert cycle().errors == []
    assert breached_ids(support) == set(tickets)


def test_a_row_that_is_slow_until_a_timeout_stops_no_other(
    support: Support, cycle: Cycle, monkeypatch: pytest.MonkeyPatch, events: Events
) -> None:
    monkeypatch.setattr(batches, "_STATEMENT_MS", 500)
    bad = make_ticket(support, **_OLDEST)
    good = make_tickets(support, 200, **FIRST_RESPONSE_OVERDUE)
    _refuse(support, "perform pg_sleep(30);")
    report = cycle(CycleInput(batch_size=100))
    assert (report.processed_count, report.published_count, report.backlog_count) == (200, 200, 1)
    assert _set_aside(support) == {bad}
    assert report.errors == [f"ticket TCK-{bad} ({bad}) set aside: the database refuses the row: QueryCanceled (57014)"]
    assert {event.ticket_id for event in events()} == set(good)


def test_each_cycle_makes_progress_where_a_batch_takes_longer_than_a_statement_may(
    support: Support, cycle: Cycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every update takes 20 ms, so 200 of them take 4 s; the statement timeout is 400 ms."""
    monkeypatch.setattr(batches, "_STATEMENT_MS", 400)
    monkeypatch.setattr(batches, "_MARK_SECONDS", 1.5)
    tickets = make_tickets(support, 200, **FIRST_RESPONSE_OVERDUE)
    before_update(support, "perform pg_sleep(0.02);")
    backlogs = [len(tickets)]
    while backlogs[-1]:
        report = cycle(CycleInput(batch_size=200))
        assert report.backlog_count is not None
        assert report.backlog_count < backlogs[-1]
        assert report.published_count == report.processed_count
        backlogs.append(report.backlog_count)
        assert len(backlogs) < 20
    assert breached_ids(support) == set(tickets)


def test_a_committed_batch_is_counted_whatever_follows(
    support: Support, operator: Support, cycle: Cycle, monkeypatch: pytest.MonkeyPatch, events: Events
) -> None:
    """Another session holds one row, and the query for it, after the commit, exceeds its timeout."""
    tickets = make_tickets(support, 10, **FIRST_RESPONSE_OVERDUE)
    held = make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    operator.execute("select 1 from support.tickets where id = %s for update", (held,))
    monkeypatch.setattr(
        "sla_pipeline.postgres.tickets._STILL_OVERDUE", "select pg_sleep(30)::text from unnest(%(ids)s::uuid[])"
    )
    monkeypatch.setattr(batches, "_STATEMENT_MS", 300)
    report = cycle()
    assert (report.processed_count, report.published_count, report.backlog_count) == (10, 10, 1)
    assert len(report.errors) == 1
    assert report.errors[0].startswith(
        "counting tickets that others hold failed: canceling statement due to statement timeout (57014)"
    )
    assert [event.ticket_id for event in events()] == tickets


def test_a_corrected_row_is_tried_at_once(
    support: Support, cycle: Cycle, clock: SimulatedClock, events: Events
) -> None:
    bad = make_ticket(support, **FIRST_RESPONSE_OVERDUE, queue_id=None)
    for minute in (0, 1, 3, 7, 15, 31):
        clock.moment = NOW + minute * MINUTE
        assert len(cycle().errors) == 1
    clock.moment += MINUTE
    assert (cycle().processed_count, cycle().processed_count) == (0, 0)
    change(support, bad, queue_id=QUEUE)
    assert cycle().processed_count == 1
    assert _set_aside(support) == set()
    assert [event.ticket_id for event in events()] == [bad]


def test_a_cycle_that_starts_early_does_not_skip_a_turn(support: Support, cycle: Cycle, clock: SimulatedClock) -> None:
    make_ticket(support, **FIRST_RESPONSE_OVERDUE, queue_id=None)
    assert len(cycle().errors) == 1
    clock.moment += MINUTE * 56 / 60
    assert len(cycle().errors) == 1


def test_a_held_sequence_sets_no_ticket_aside(support: Support, operator: Support, cycle: Cycle) -> None:
    """Another session holds the row that hands out sequences: no ticket is at fault, and the cycle ends soon."""
    tickets = make_tickets(support, 30, **FIRST_RESPONSE_OVERDUE)
    operator.execute("select 1 from support.ticket_sla_relay for update")
    began = time.monotonic()
    report = cycle(CycleInput(batch_size=10))
    assert time.monotonic() - began < 20
    assert report.processed_count == 0
    assert report.errors[0].startswith("marking failed: another session holds the row of support.ticket_sla_relay: ")
    assert _set_aside(support) == set()
    operator.rollback()
    assert cycle().processed_count == 30
    assert all(is_breached(support, ticket) for ticket in tickets)
