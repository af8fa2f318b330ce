"""Tickets overdue and unmarked for longer than two minutes (SPEC 3.5): which count, and from which moment."""

from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import product, starmap

import pytest

from sla_pipeline.audit.findings import Check, Example
from sla_pipeline.breach import judge
from sla_pipeline_tests.integration.audit.conftest import Audit, Mark
from sla_pipeline_tests.integration.audit.fault_injection import Support, found
from sla_pipeline_tests.integration.conftest import Cycle
from sla_pipeline_tests.tickets import (
    FIRST_RESPONSE_OVERDUE,
    HOUR,
    MICROSECOND,
    MINUTE,
    NOW,
    RESOLUTION_OVERDUE,
    make_ticket,
)

TWO_MINUTES_AGO = NOW - 2 * MINUTE


@pytest.mark.parametrize("overdue", [FIRST_RESPONSE_OVERDUE, RESOLUTION_OVERDUE])
@pytest.mark.parametrize(("due_at", "count"), [(TWO_MINUTES_AGO, 0), (TWO_MINUTES_AGO - MICROSECOND, 1)])
def test_a_ticket_may_be_unmarked_for_two_minutes_and_no_longer(
    audit: Audit, support: Support, overdue: dict[str, object], due_at: datetime, count: int
) -> None:
    deadline = "first_response_due_at" if overdue is FIRST_RESPONSE_OVERDUE else "resolution_due_at"
    ticket_id = make_ticket(support, **{**overdue, "number": "TCK-1", deadline: due_at})
    report = audit()
    assert found(report) == ({"overdue_unmarked": 1} if count else {})
    assert report.finding(Check.OVERDUE_UNMARKED).examples == ((Example(ticket_id, "TCK-1"),) if count else ())


def test_a_ticket_changed_a_moment_ago_may_have_become_overdue_just_then(audit: Audit, support: Support) -> None:
    make_ticket(support, **{**FIRST_RESPONSE_OVERDUE, "first_response_due_at": NOW - HOUR, "updated_at": NOW - MINUTE})
    report = audit()
    assert found(report) == {"overdue_changed_lately": 1}
    assert report.clean
    assert found(audit(now_utc=NOW + HOUR)) == {"overdue_unmarked": 1}


def test_rows_that_were_set_aside_are_also_listed_separately(audit: Audit, support: Support, cycle: Cycle) -> None:
    bad = make_ticket(support, **FIRST_RESPONSE_OVERDUE, number="TCK-BAD", queue_id=None)
    assert len(cycle().errors) == 1
    missed = make_ticket(support, **FIRST_RESPONSE_OVERDUE, number="TCK-MISSED")
    report = audit(now_utc=NOW + HOUR)
    assert report.finding(Check.OVERDUE_UNMARKED).count == 2
    assert {example.ticket_id for example in report.finding(Check.OVERDUE_UNMARKED).examples} == {bad, missed}
    assert report.finding(Check.OVERDUE_SET_ASIDE).examples == (Example(bad, "TCK-BAD"),)


@dataclass(frozen=True)
class TicketFields:
    """The fields that the rule reads."""

    status: str
    first_response_due_at: datetime | None
    first_response_at: datetime | None
    resolution_due_at: datetime | None
    resolved_at: datetime | None
    sla_breached: bool


def test_the_auditor_finds_exactly_what_the_rule_finds(audit: Audit, support: Support) -> None:
    """Every combination of these fields, with deadlines around two minutes ago."""
    due = [None, TWO_MINUTES_AGO - MICROSECOND, TWO_MINUTES_AGO, NOW]
    done = [None, NOW - HOUR]
    overdue = []
    for fields in starmap(
        TicketFields, product(["New", "InWork", "OnHold", "Resolved"], due, done, due, done, [False, True])
    ):
        ticket_id = make_ticket(support, **asdict(fields))
        if judge(fields, TWO_MINUTES_AGO):
            overdue.append(ticket_id)
    # New without a reply: 8; InWork the same, and 7 of the others whose resolution is overdue
    assert audit().finding(Check.OVERDUE_UNMARKED).count == len(overdue) == 8 + 8 + 7
    support.execute("update support.tickets set sla_breached = true where id = any(%s::uuid[])", (overdue,))
    assert audit().finding(Check.OVERDUE_UNMARKED).count == 0


def test_a_waiting_record_is_information_and_after_two_minutes_a_fault(
    audit: Audit, support: Support, mark: Mark
) -> None:
    make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    mark()
    support.execute("update support.ticket_sla_breaches set recorded_at = %s", (TWO_MINUTES_AGO,))
    assert found(audit()) == {"record_waiting": 1}
    assert found(audit(now_utc=NOW + MICROSECOND)) == {"record_waiting": 1, "record_stuck": 1}
