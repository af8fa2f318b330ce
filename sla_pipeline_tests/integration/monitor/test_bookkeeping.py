"""Bookkeeping: tickets are marked and published even when the journal or the set-aside table cannot be used."""

from typing import Any

import psycopg
import pytest

from sla_pipeline.cycle import CycleInput
from sla_pipeline.errors import CycleFailed
from sla_pipeline.postgres.migrate import upgrade
from sla_pipeline_tests.integration.conftest import Cycle, Events
from sla_pipeline_tests.tickets import FIRST_RESPONSE_OVERDUE, HOUR, NOW, breached_ids, make_ticket, make_tickets

Support = psycopg.Connection[Any]


@pytest.mark.parametrize("right", ["insert", "update", "select", "insert, update, select"])
def test_a_journal_that_cannot_be_written(
    right: str, support: Support, owner_url: str, cycle: Cycle, events: Events
) -> None:
    tickets = make_tickets(support, 20, **FIRST_RESPONSE_OVERDUE)
    support.execute(f"revoke {right} on support.ticket_sla_cycles from sla_worker")
    report = cycle(CycleInput(batch_size=5))
    assert (report.processed_count, report.published_count, report.backlog_count, report.fault) == (20, 20, 0, None)
    assert breached_ids(support) == set(tickets)
    assert [event.ticket_id for event in events()] == tickets
    assert report.errors
    assert all(
        error.startswith(
            "bookkeeping in support.ticket_sla_cycles failed: permission denied for table ticket_sla_cycles in "
            "database "
        )
        for error in report.errors
    )
    with pytest.raises(CycleFailed, match="run `sla-pipeline migrate`, which grants it"):
        report.raise_if_failed()
    upgrade(owner_url)
    assert cycle().errors == []


@pytest.mark.parametrize(
    "fault", ["revoke {} on support.ticket_sla_set_aside from sla_worker", "drop table support.ticket_sla_set_aside"]
)
@pytest.mark.parametrize("right", ["insert", "update", "select", "delete", "insert, update, select, delete"])
def test_rows_that_cannot_be_set_aside(
    fault: str, right: str, support: Support, owner_url: str, cycle: Cycle, events: Events
) -> None:
    bad = make_ticket(support, **FIRST_RESPONSE_OVERDUE | {"first_response_due_at": NOW - HOUR}, queue_id=None)
    good = make_tickets(support, 20, **FIRST_RESPONSE_OVERDUE)
    support.execute(fault.format(right))
    report = cycle(CycleInput(batch_size=5))
    assert (report.processed_count, report.published_count, report.backlog_count, report.fault) == (20, 20, 1, None)
    assert breached_ids(support) == set(good)
    assert [event.ticket_id for event in events()] == good
    assert any(
        error.startswith(f"ticket TCK-{bad} ({bad}) set aside: the event cannot be built: ") for error in report.errors
    )
    (note,) = {
        error for error in report.errors if error.startswith("bookkeeping in support.ticket_sla_set_aside failed: ")
    }
    assert support.execute("select state from support.ticket_sla_cycles").fetchall() == [("failed",)]
    if fault.startswith("revoke"):
        assert note.split("`")[-2] == "sla-pipeline migrate"
        upgrade(owner_url)
        cycle()
        assert support.execute("select ticket_id::text from support.ticket_sla_set_aside").fetchall() == [(bad,)]
