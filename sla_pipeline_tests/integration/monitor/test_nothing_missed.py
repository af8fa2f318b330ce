"""Nothing missed: under a backlog, after a break, beside rows that cannot be marked (SPEC 3.5, 7.1, 8).

``each_kind_end_to_end`` goes through the deployed schedule: ``integration/dagster/test_deployed.py``.
"""

import logging
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from sla_pipeline.breach import BreachKind
from sla_pipeline.cycle import CycleInput, SimulatedClock
from sla_pipeline.errors import CycleStopped
from sla_pipeline_tests.integration.conftest import Cycle, Events
from sla_pipeline_tests.tickets import (
    FIRST_RESPONSE_OVERDUE,
    HOUR,
    MINUTE,
    NOW,
    QUEUE,
    RESOLUTION_OVERDUE,
    breached_ids,
    change,
    is_breached,
    make_ticket,
    make_tickets,
    row_versions,
)

Support = psycopg.Connection[Any]


def test_answered_in_time_resolved_late(support: Support, cycle: Cycle, events: Events) -> None:
    make_ticket(support, **RESOLUTION_OVERDUE)
    report = cycle()
    assert (report.first_response_count, report.resolution_count) == (0, 1)
    assert [event.breach_kind for event in events()] == [BreachKind.RESOLUTION]


def test_both_deadlines_passed(support: Support, cycle: Cycle, clock: SimulatedClock, events: Events) -> None:
    ticket = make_ticket(
        support,
        status="InWork",
        first_response_due_at=NOW - HOUR,
        first_response_at=None,
        resolution_due_at=NOW - 2 * HOUR,
    )
    cycle()
    (event,) = events()
    assert (event.breach_kind, event.due_at) == (BreachKind.FIRST_RESPONSE, "2026-11-30T11:00:00.000000Z")
    change(support, ticket, first_response_at=NOW)
    clock.moment += HOUR
    assert cycle().processed_count == 0
    assert events() == [event]


def test_deadline_moved_by_hand(support: Support, cycle: Cycle, clock: SimulatedClock, events: Events) -> None:
    ticket = make_ticket(support)
    assert cycle().processed_count == 0
    change(support, ticket, first_response_due_at=NOW - 30 * MINUTE)
    clock.moment += MINUTE
    assert cycle().processed_count == 1
    assert [event.due_at for event in events()] == ["2026-11-30T11:30:00.000000Z"]


def test_oldest_first_under_backlog(support: Support, cycle: Cycle, clock: SimulatedClock, events: Events) -> None:
    """Ten times the ceiling waits; every minute adds half a ceiling of new breaches, some of them due long ago."""
    cycle_input = CycleInput(batch_size=10, max_batches_per_cycle=2)
    ceiling = cycle_input.ceiling
    make_tickets(support, 5 * ceiling, apart=timedelta(seconds=1), first_response_due_at=NOW - 10 * HOUR)
    make_tickets(
        support,
        5 * ceiling,
        apart=timedelta(seconds=1),
        **RESOLUTION_OVERDUE | {"first_response_due_at": NOW - 11 * HOUR},
    )
    backlogs = [10 * ceiling]
    while backlogs[-1]:
        oldest = support.execute(
            "select id::text from support.tickets where not sla_breached order by first_response_due_at, id limit %s",
            (ceiling,),
        ).fetchall()
        marked_before = breached_ids(support)
        report = cycle(cycle_input)
        assert breached_ids(support) - marked_before == {ticket_id for (ticket_id,) in oldest}
        assert report.has_more is (backlogs[-1] >= ceiling)
        assert report.backlog_count is not None
        assert report.backlog_count < backlogs[-1]
        backlogs.append(report.backlog_count)
        clock.moment += MINUTE
        if len(backlogs) < 15:
            # Due among the old ones, so these come before tickets with a later deadline.
            make_tickets(support, ceiling // 4, apart=timedelta(seconds=3), first_response_due_at=NOW - 10 * HOUR)
            make_tickets(support, ceiling // 4, first_response_due_at=NOW - MINUTE)
            backlogs[-1] += ceiling // 4 * 2
    published = [event.ticket_id for event in events()]
    recorded = support.execute("select ticket_id::text from support.ticket_sla_breaches order by seq").fetchall()
    assert published == [ticket_id for (ticket_id,) in recorded]
    assert set(published) == breached_ids(support)


def test_oldest_first_is_the_order_of_the_events_too(support: Support, cycle: Cycle, events: Events) -> None:
    """Order of SPEC 5.3: equal deadlines by id; a resolution breach by its first deadline, not by its second."""
    twins = sorted(make_tickets(support, 4, apart=timedelta(0), first_response_due_at=NOW - HOUR))
    older = make_ticket(
        support, **RESOLUTION_OVERDUE | {"first_response_due_at": NOW - 2 * HOUR, "resolution_due_at": NOW - MINUTE}
    )
    newest = make_ticket(support, first_response_due_at=NOW - 2 * MINUTE)
    without_first_deadline = make_ticket(
        support, **RESOLUTION_OVERDUE | {"first_response_due_at": None, "resolution_due_at": NOW - 5 * HOUR}
    )
    cycle(CycleInput(batch_size=2))
    assert [event.ticket_id for event in events()] == [older, *twins, newest, without_first_deadline]


def test_after_a_break_of_an_hour(support: Support, cycle: Cycle, clock: SimulatedClock, events: Events) -> None:
    """60 minutes of breaches, five a minute.

    ``integration/dagster`` tests the schedule's side: missed ticks are not caught up.
    """
    tickets = make_tickets(support, 300, apart=timedelta(seconds=12), first_response_due_at=NOW)
    clock.moment = NOW + HOUR
    report = cycle()
    assert (report.processed_count, report.published_count, report.backlog_count, report.has_more) == (
        300,
        300,
        0,
        False,
    )
    assert [event.ticket_id for event in events()] == tickets
    assert {event.breached_at for event in events()} == {"2026-11-30T13:00:00.000000Z"}


def test_after_a_break_of_an_hour_above_the_ceiling(
    support: Support, cycle: Cycle, clock: SimulatedClock, events: Events
) -> None:
    tickets = make_tickets(support, 300, apart=timedelta(seconds=12), first_response_due_at=NOW)
    clock.moment = NOW + HOUR
    cycle_input = CycleInput(batch_size=50, max_batches_per_cycle=2)
    assert [(report.processed_count, report.has_more) for report in [cycle(cycle_input) for _ in range(4)]] == [
        (100, True)
    ] * 3 + [(0, False)]
    assert [event.ticket_id for event in events()] == tickets


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        pytest.param({"priority": ""}, "priority: String should have at least 1 character", id="empty priority"),
        pytest.param(
            {"priority": "X" * 33}, "priority: String should have at most 32 characters", id="priority too long"
        ),
        pytest.param(
            {"priority": "High\n"},
            "priority: String should have no control characters",
            id="priority with a line break",
        ),
        pytest.param({"queue_id": None}, "queue_id is null", id="null queue"),
        pytest.param(
            {"tenant_id": None, "requester_user_id": None},
            "tenant_id is null; requester_user_id is null",
            id="null ids",
        ),
        pytest.param({"number": "X" * 65}, "number: String should have at most 64 characters", id="number too long"),
        pytest.param({"number": ""}, "number: String should have at least 1 character", id="number empty"),
    ],
)
def test_bad_row_in_every_batch(
    fault: dict[str, object],
    words: str,
    support: Support,
    cycle: Cycle,
    events: Events,
    logged: list[logging.LogRecord],
) -> None:
    good = make_tickets(support, 998, **FIRST_RESPONSE_OVERDUE | {"first_response_due_at": NOW - HOUR})
    in_first = make_ticket(support, **{"number": "BAD-1", "first_response_due_at": NOW - 2 * HOUR} | fault)
    in_second = make_ticket(
        support,
        **RESOLUTION_OVERDUE | {"first_response_due_at": NOW - 30 * MINUTE, "priority": None, "number": "BAD-2"},
    )

    report = cycle(CycleInput(batch_size=500))

    assert (
        report.processed_count,
        report.published_count,
        report.batch_count,
        report.backlog_count,
        len(report.errors),
    ) == (
        998,
        998,
        2,
        2,
        2,
    )
    assert breached_ids(support) == set(good)
    assert [event.ticket_id for event in events()] == good
    failed = [record.__dict__ for record in logged if record.getMessage() == "item failed"]
    assert [(line["TicketId"], line["BreachKind"]) for line in failed] == [
        (in_first, "FirstResponse"),
        (in_second, "Resolution"),
    ]
    assert [line["Number"] for line in failed] == [fault.get("number", "BAD-1") or "''", "BAD-2"]
    assert words in failed[0]["error"]
    assert failed[1]["error"] == "the event cannot be built: priority is null"


# Possible texts of the support service: unknown, a single space, right to left, with a separator that is no control
# character, of the greatest length.
_UNKNOWN_PRIORITIES = ["Urgent", "high", "Срочно", " ", "\u202eHigh", "a\u2028b", '</b>"\\', "\U0001f525" * 32]


def test_a_ticket_with_an_unknown_priority_is_marked_and_published(
    support: Support, cycle: Cycle, events: Events, logged: list[logging.LogRecord]
) -> None:
    """The priority is sent unchanged, and one warning a cycle counts it, over all batches; null is set aside."""
    priorities = {
        make_ticket(support, **FIRST_RESPONSE_OVERDUE, priority=text): text
        for text in [*_UNKNOWN_PRIORITIES, "Urgent", "High"]
    }
    bad = make_ticket(support, **FIRST_RESPONSE_OVERDUE, priority=None)

    report = cycle(CycleInput(batch_size=2))

    assert (report.processed_count, report.published_count, report.unknown_priority_count, report.error_count) == (
        10,
        10,
        9,
        1,
    )
    assert {event.ticket_id: event.priority for event in events()} == priorities
    assert report.frequent_unknown_priorities()[0] == "Urgent"
    assert sorted(report.unknown_priorities) == sorted(_UNKNOWN_PRIORITIES)
    (warning,) = [record.__dict__ for record in logged if record.levelno == logging.WARNING]
    assert warning["msg"].startswith("unknown priorities: ")
    assert (warning["jobRunId"], warning["count"], warning["distinct"]) == (report.run_id, 9, 8)
    assert warning["priorities"] == [repr(text) for text in report.frequent_unknown_priorities()]
    assert all(text.isprintable() for text in warning["priorities"])
    (completed,) = [record.__dict__ for record in logged if record.getMessage() == "cycle completed"]
    assert (completed["unknownPriorities"], completed["setAside"], completed["errors"]) == (9, 1, 1)
    assert not is_breached(support, bad)


def test_the_warning_of_unknown_priorities_is_bounded(
    support: Support, cycle: Cycle, logged: list[logging.LogRecord]
) -> None:
    """Each ticket has another unknown priority. A reset flag makes no second event, so it is not counted again."""
    tickets = [make_ticket(support, **FIRST_RESPONSE_OVERDUE, priority=f"P{number}") for number in range(300)]
    report = cycle()
    assert (report.processed_count, report.unknown_priority_count, len(report.frequent_unknown_priorities())) == (
        300,
        300,
        20,
    )
    change(support, tickets[0], sla_breached=False)
    again = cycle()
    assert (again.processed_count, again.flags_restored_count, again.unknown_priority_count) == (1, 1, 0)
    (warning,) = [record.__dict__ for record in logged if record.getMessage().startswith("unknown priorities: ")]
    assert (warning["count"], warning["distinct"], len(warning["priorities"])) == (300, 300, 20)


def test_the_warning_of_unknown_priorities_comes_when_a_cycle_is_stopped_too(
    support: Support, cycle: Cycle, logged: list[logging.LogRecord]
) -> None:
    make_tickets(support, 4, **FIRST_RESPONSE_OVERDUE, priority="Urgent")
    stops = iter([False, True])
    with pytest.raises(CycleStopped):
        cycle(CycleInput(batch_size=2), should_stop=lambda: next(stops))
    (warning,) = [record.__dict__ for record in logged if record.getMessage().startswith("unknown priorities: ")]
    assert warning["count"] == 2


@pytest.mark.parametrize("status", ["Escalated", "new", "New ", "InWork\n", "Срочно", ""])
def test_a_ticket_in_an_unknown_status_is_never_marked(status: str, support: Support, cycle: Cycle) -> None:
    """SPEC 5.3: only the support service defines in which statuses a deadline counts."""
    before = make_ticket(support, **RESOLUTION_OVERDUE | {"status": status, "first_response_at": None})
    report = cycle()
    assert (report.processed_count, report.backlog_count, report.errors) == (0, 0, [])
    assert not is_breached(support, before)


def test_bad_rows_fill_the_ceiling(support: Support, cycle: Cycle, clock: SimulatedClock, events: Events) -> None:
    cycle_input = CycleInput(batch_size=10, max_batches_per_cycle=2)
    bad = make_tickets(support, 25, first_response_due_at=NOW - 2 * HOUR, queue_id=None)
    good = make_tickets(support, 15, first_response_due_at=NOW - HOUR)

    first = cycle(cycle_input)
    assert (first.processed_count, len(first.errors), first.backlog_count) == (0, 20, 40)
    second = cycle(cycle_input)
    assert (second.processed_count, second.backlog_count) == (15, 25)
    assert breached_ids(support) == set(good)
    set_aside = support.execute(
        "select ticket_id::text, try_count, kind, next_try_at - %s from support.ticket_sla_set_aside", (NOW,)
    ).fetchall()
    assert sorted(set_aside) == sorted((ticket, 1, "FirstResponse", timedelta(seconds=55)) for ticket in bad)

    change(support, bad[0], queue_id=QUEUE)
    clock.moment += 2 * MINUTE
    third, fourth = cycle(cycle_input), cycle(cycle_input)
    assert (third.processed_count + fourth.processed_count, len(third.errors) + len(fourth.errors)) == (1, 24)
    assert is_breached(support, bad[0])
    assert {event.ticket_id for event in events()} == {*good, bad[0]}
    waiting = support.execute(
        "select distinct try_count, next_try_at - %s from support.ticket_sla_set_aside", (clock.moment,)
    ).fetchall()
    assert waiting == [(2, timedelta(seconds=115))]


def test_lock_held_for_long(
    support: Support, operator: Support, cycle: Cycle, clock: SimulatedClock, events: Events
) -> None:
    held = make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    operator.execute("select 1 from support.tickets where id = %s for update", (held,))
    others: list[str] = []
    for _ in range(10):
        new = make_tickets(support, 3, first_response_due_at=clock.moment - MINUTE)
        report = cycle()
        assert (report.processed_count, report.lock_skip_count, report.backlog_count, report.errors) == (3, 1, 1, [])
        others += new
        clock.moment += MINUTE
    assert breached_ids(support) == set(others)
    operator.rollback()
    assert cycle().processed_count == 1
    assert [event.ticket_id for event in events()] == [*others, held]


def test_two_tenants_filter(support: Support, cycle: Cycle, events: Events) -> None:
    tenant, other = "aaaaaaaa-0000-4000-8000-000000000001", "bbbbbbbb-0000-4000-8000-000000000002"
    of_tenant = [
        make_ticket(support, **kind | {"tenant_id": tenant}) for kind in (RESOLUTION_OVERDUE, FIRST_RESPONSE_OVERDUE)
    ]
    of_other_tenant = [
        make_ticket(support, **kind | {"tenant_id": other}) for kind in (RESOLUTION_OVERDUE, FIRST_RESPONSE_OVERDUE)
    ]
    before = [row for row in row_versions(support) if str(row[0]) in of_other_tenant]
    report = cycle(CycleInput(tenant_id=tenant.upper()))
    assert (report.processed_count, report.backlog_count) == (2, 0)
    assert breached_ids(support) == set(of_tenant)
    assert [row for row in row_versions(support) if str(row[0]) in of_other_tenant] == before
    assert [(event.ticket_id, event.tenant_id) for event in events()] == [(ticket, tenant) for ticket in of_tenant]
    assert cycle().processed_count == 2
    assert breached_ids(support) == {*of_tenant, *of_other_tenant}
