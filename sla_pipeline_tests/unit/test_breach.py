"""The rule of SPEC 1.1, 2.4, 4.1 and 5.4, line by line.

A property test in ``integration/postgres`` compares the SQL with it.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

import pytest

from sla_pipeline.breach import ACTIVE_STATUSES, Breach, BreachKind, judge

_NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
_PAST, _FUTURE = _NOW - timedelta(microseconds=1), _NOW + timedelta(microseconds=1)


@dataclass(frozen=True)
class Ticket:
    """A ticket whose deadlines have not passed, unless a test sets another value."""

    status: str = "InWork"
    sla_breached: bool = False
    first_response_due_at: datetime | None = _FUTURE
    first_response_at: datetime | None = None
    resolution_due_at: datetime | None = _FUTURE
    resolved_at: datetime | None = None


FIRST_RESPONSE = Breach(BreachKind.FIRST_RESPONSE, _PAST)
RESOLUTION = Breach(BreachKind.RESOLUTION, _PAST)


@pytest.mark.parametrize(
    ("ticket", "breach"),
    [
        pytest.param(Ticket(), None, id="neither has passed"),
        pytest.param(Ticket(first_response_due_at=_PAST), FIRST_RESPONSE, id="first response overdue"),
        pytest.param(Ticket("New", first_response_due_at=_PAST), FIRST_RESPONSE, id="first response overdue, New"),
        pytest.param(Ticket(first_response_due_at=_PAST, first_response_at=_PAST), None, id="answered"),
        pytest.param(
            Ticket(first_response_due_at=_PAST, first_response_at=_FUTURE),
            None,
            id="answered later than now, by another clock",
        ),
        pytest.param(Ticket(first_response_due_at=None), None, id="no first deadline"),
        pytest.param(Ticket(resolution_due_at=_PAST), RESOLUTION, id="resolution overdue, not even answered"),
        pytest.param(
            Ticket(resolution_due_at=_PAST, first_response_at=_PAST), RESOLUTION, id="answered in time, resolved late"
        ),
        pytest.param(Ticket("New", resolution_due_at=_PAST), None, id="resolution counts in InWork only"),
        pytest.param(Ticket(resolution_due_at=_PAST, resolved_at=_PAST), None, id="resolved, back in work"),
        pytest.param(Ticket(resolution_due_at=None), None, id="no resolution deadline"),
        pytest.param(
            Ticket(first_response_due_at=_PAST, resolution_due_at=_PAST),
            FIRST_RESPONSE,
            id="both: first response has priority",
        ),
        pytest.param(Ticket(first_response_due_at=_NOW, resolution_due_at=_NOW), None, id="due now is not overdue"),
        pytest.param(
            Ticket(first_response_due_at=_PAST, resolution_due_at=_PAST, sla_breached=True), None, id="marked already"
        ),
    ],
)
def test_judge(ticket: Ticket, breach: Breach | None) -> None:
    assert judge(ticket, _NOW) == breach


@pytest.mark.parametrize("status", ["OnHold", "Resolved", "Closed", "new", "NEW", "Inwork", "", "Waiting for vendor"])
def test_no_other_status_is_ever_breached(status: str) -> None:
    assert judge(Ticket(status, first_response_due_at=_PAST, resolution_due_at=_PAST), _NOW) is None
    assert status not in ACTIVE_STATUSES


def test_due_at_is_the_deadline_that_passed() -> None:
    first, second = _NOW - timedelta(hours=3), _NOW - timedelta(hours=1)
    assert judge(Ticket(first_response_due_at=first, resolution_due_at=second), _NOW) == Breach(
        BreachKind.FIRST_RESPONSE, first
    )
    assert judge(
        Ticket(first_response_due_at=first, first_response_at=first, resolution_due_at=second), _NOW
    ) == Breach(BreachKind.RESOLUTION, second)


def test_times_in_other_zones_are_the_same_times() -> None:
    kathmandu = timezone(timedelta(hours=5, minutes=45))
    assert judge(Ticket(first_response_due_at=_PAST.astimezone(kathmandu)), _NOW) == FIRST_RESPONSE
    assert judge(Ticket(first_response_due_at=_NOW.astimezone(kathmandu)), _NOW) is None
