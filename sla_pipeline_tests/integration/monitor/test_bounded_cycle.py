"""A cycle ends in time, and publishes the records that wait, whatever happens to its marking (SPEC 3.3, 5.7)."""

import logging
from typing import Any

import psycopg
import pytest

from sla_pipeline.cycle import Claim, CycleInput, SimulatedClock
from sla_pipeline.errors import PostgresBusy, UnexpectedFault
from sla_pipeline.kafka.relay import Relay
from sla_pipeline.monitor import batches, steps
from sla_pipeline.postgres import session, tickets
from sla_pipeline.postgres.database import Database
from sla_pipeline.postgres.migrate import upgrade
from sla_pipeline_tests.integration.conftest import Cycle, Events
from sla_pipeline_tests.tickets import (
    FIRST_RESPONSE_OVERDUE,
    HOUR,
    MINUTE,
    NOW,
    before_update,
    breached_ids,
    make_ticket,
    make_tickets,
)

Support = psycopg.Connection[Any]
# Joined at run time: a traceback shows the source, where the text must not be found.
_PLANTED = " ".join(("text", "of a ticket"))
_OTHER_QUEUE = "0b0b0000-0000-4000-8000-00000000000f"


def _mark_without_publishing(database: Database, claim: Claim) -> None:
    steps.mark_breached(database, claim)


@pytest.fixture
def waiting(support: Support, database: Database, clock: Any) -> str:
    """A ticket that an earlier cycle has marked and not published."""
    ticket = make_ticket(support, **FIRST_RESPONSE_OVERDUE | {"first_response_due_at": NOW - HOUR})
    _mark_without_publishing(database, steps.claim_overdue(database, clock, CycleInput(), run_id="earlier"))
    database.close()
    return ticket


def test_ten_thousand_updates_that_run_into_the_timeout(
    support: Support, waiting: str, cycle: Cycle, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every update exceeds the statement timeout: marking stops within its share, the earlier event is published."""
    monkeypatch.setattr(batches, "_STATEMENT_MS", 400)
    monkeypatch.setattr(batches, "_MARK_SECONDS", 1.5)
    make_tickets(support, 10_000, **FIRST_RESPONSE_OVERDUE)
    before_update(support, "perform pg_sleep(1);")

    report = cycle()

    assert (report.processed_count, report.published_count, report.backlog_count) == (0, 1, 10_000)
    # Two batches, then single tickets, each within the timeout, and all within the share of the cycle.
    assert report.mark_ms is not None
    assert report.mark_ms < 10_000
    assert [event.ticket_id for event in events()] == [waiting]
    (left,) = [error for error in report.errors if "are left to the next cycle" in error]
    assert left.startswith(f"{10_000 - report.error_count + 1} claimed tickets, the first of them ")
    assert "canceling statement due to statement timeout (57014)" in left
    assert support.execute(
        "select state, processed_count, published_count, backlog_count from support.ticket_sla_cycles order by id "
        "desc limit 1"
    ).fetchone() == ("failed", 0, 1, 10_000)
    with pytest.raises(Exception, match="are left to the next cycle"):
        report.raise_if_failed()


def test_a_lock_on_the_rows_of_one_queue(
    support: Support,
    operator: Support,
    cycle: Cycle,
    clock: SimulatedClock,
    events: Events,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A trigger updates the queue's row, which another session holds. The other queue's tickets are published now."""
    monkeypatch.setattr(batches, "_BATCH_LOCK_MS", 300)
    monkeypatch.setattr(batches, "_MARK_SECONDS", 4.0)
    support.execute("create table support.queues (id uuid primary key, breached integer not null default 0)")
    support.execute("grant select, update on support.queues to sla_worker")
    free, held = [], []
    for second in range(300):
        due = FIRST_RESPONSE_OVERDUE | {"first_response_due_at": NOW - HOUR + second * MINUTE / 60}
        held.append(make_ticket(support, **due))
        free.append(make_ticket(support, **due | {"queue_id": _OTHER_QUEUE}))
    support.execute("insert into support.queues (id) select distinct queue_id from support.tickets")
    before_update(support, "update support.queues set breached = breached + 1 where id = new.queue_id;")
    operator.execute("select 1 from support.queues where id <> %s for update", (_OTHER_QUEUE,))

    report = cycle(CycleInput(batch_size=100))

    assert (report.processed_count, report.published_count, report.backlog_count) == (300, 300, 300)
    assert breached_ids(support) == set(free)
    assert {event.ticket_id for event in events()} == set(free)
    (left,) = [error for error in report.errors if "are left to the next cycle" in error]
    assert "canceling statement due to lock timeout (55P03)" in left
    operator.rollback()
    clock.moment += HOUR
    assert cycle().processed_count == 300
    assert breached_ids(support) == {*free, *held}


def test_a_claim_that_fails_does_not_hold_back_what_waits(
    support: Support, operator: Support, waiting: str, cycle: Cycle, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(session._BOUNDS, "lock_timeout", 300)
    operator.execute("lock table support.tickets in access exclusive mode")
    report = cycle()
    operator.rollback()
    assert report.published_count == 1
    assert [event.ticket_id for event in events()] == [waiting]
    assert [error.split(" failed: ")[0] for error in report.errors] == [
        "bookkeeping in support.ticket_sla_set_aside",
        "selecting overdue tickets",
        "counting the backlog",
    ]
    with pytest.raises(PostgresBusy, match="lock timeout"):
        report.raise_if_failed()


def test_a_missing_relay_row_is_named_and_migrate_restores_it(
    support: Support, owner_url: str, cycle: Cycle, events: Events
) -> None:
    tickets = make_tickets(support, 20, **FIRST_RESPONSE_OVERDUE)
    cycle(CycleInput(batch_size=5, max_batches_per_cycle=2))
    support.execute("delete from support.ticket_sla_relay")
    report = cycle()
    assert (report.processed_count, report.published_count, report.backlog_count) == (0, 0, 10)
    assert [error.split(" failed: ")[0] for error in report.errors] == ["marking", "publishing"]
    assert all("support.ticket_sla_relay has no row with id 1" in error for error in report.errors)
    assert all(error.split("`")[1] == "sla-pipeline migrate" for error in report.errors)
    upgrade(owner_url)
    assert cycle().errors == []
    assert [event.ticket_id for event in events()] == tickets


@pytest.mark.parametrize("step", ["claim", "mark", "publish", "close"])
def test_an_unforeseen_error_in_any_step_ends_in_a_closed_journal_row(
    step: str,
    support: Support,
    waiting: str,
    cycle: Cycle,
    monkeypatch: pytest.MonkeyPatch,
    logged: list[logging.LogRecord],
) -> None:
    make_tickets(support, 3, **FIRST_RESPONSE_OVERDUE)

    def broken(*_: object, **__: object) -> None:
        raise KeyError(_PLANTED)

    target: tuple[Any, str] = {
        "claim": (tickets, "claim"),
        "mark": (batches, "mark_batch"),
        "publish": (Relay, "publish"),
        "close": (tickets, "count_backlog"),
    }[step]
    monkeypatch.setattr(*target, broken)
    report = cycle()
    assert len(report.errors) == 1
    assert "unexpected KeyError while " in report.errors[0]
    assert _PLANTED not in report.errors[0] + str([vars(record) for record in logged])
    assert {record.__dict__["jobRunId"] for record in logged if record.levelno == logging.ERROR} == {report.run_id}
    assert report.processed_count == (0 if step in ("claim", "mark") else 3)
    assert report.published_count == {"claim": 1, "mark": 1, "publish": 0, "close": 4}[step]
    assert report.backlog_count == {"claim": 3, "mark": 3, "publish": 0, "close": None}[step]
    assert support.execute(
        "select state, error_count from support.ticket_sla_cycles order by id desc limit 1"
    ).fetchone() == ("failed", 1)
    if step in ("claim", "mark"):
        with pytest.raises(UnexpectedFault):
            report.raise_if_failed()
