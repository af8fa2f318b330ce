"""States of a ticket after the log's changes, and the minutes that matter to a cycle (``demo/data/README.md``)."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest

from sla_pipeline.breach import Priority
from sla_pipeline.demo.incident_log import Change, IncidentLog, read_log
from sla_pipeline.demo.ticket import person_id, queue_id, ticket_id
from sla_pipeline.demo.ticket_history import deadlines, states, ticket_at, ticks

OPENED = datetime(2016, 3, 1, 8, 0, tzinfo=UTC)


def minute(count: int) -> datetime:
    return OPENED + timedelta(minutes=count)


def change(
    at: int, status: str, priority: Priority = Priority.CRITICAL, number: str = "INC1", assignee: int | None = None
) -> Change:
    return Change(number, minute(at), OPENED, status, priority, 5, assignee, 9)


@pytest.mark.parametrize(
    ("priority", "first_response", "resolution"),
    [(Priority.CRITICAL, 15, 240), (Priority.HIGH, 60, 480), (Priority.NORMAL, 240, 2_880), (Priority.LOW, 480, 7_200)],
)
def test_deadlines_are_counted_around_the_clock_from_the_opening(
    priority: Priority, first_response: int, resolution: int
) -> None:
    assert deadlines(OPENED, priority) == (minute(first_response), minute(resolution))


def test_the_first_change_that_is_not_new_is_the_first_response_and_it_stays() -> None:
    history = states([change(1, "New"), change(2, "New"), change(3, "OnHold"), change(4, "InWork"), change(5, "New")])
    assert [ticket.first_response_at for ticket in history] == [None, None, minute(3), minute(3), minute(3)]


def test_the_resolution_is_noted_when_a_ticket_leaves_the_open_statuses_and_taken_away_when_it_comes_back() -> None:
    history = states(
        change(at, status) for at, status in enumerate(["InWork", "Resolved", "Closed", "New", "Closed", "InWork"])
    )
    assert [ticket.resolved_at for ticket in history] == [None, minute(1), minute(1), None, minute(4), None]


def test_deadlines_follow_the_priority_of_each_change() -> None:
    history = states([change(1, "New", Priority.LOW), change(2, "New", Priority.HIGH)])
    assert [ticket.first_response_due_at for ticket in history] == [minute(480), minute(60)]
    assert [ticket.resolution_due_at for ticket in history] == [minute(7_200), minute(480)]


def test_a_ticket_takes_queue_assignee_and_times_of_each_change_and_keeps_its_creation() -> None:
    first, second = states([change(1, "New", assignee=7), change(4, "InWork")])
    assert (first.queue_id, first.assignee_user_id, first.requester_user_id) == (
        queue_id(5),
        person_id(7),
        person_id(9),
    )
    assert (second.assignee_user_id, second.created_at, second.updated_at) == (None, minute(1), minute(4))


def test_ids_are_version_5_uuids_made_from_numbers_and_of_a_kind_each() -> None:
    ids = [ticket_id("INC1"), ticket_id("INC2"), queue_id(1), person_id(1)]
    assert [uuid.UUID(text).version for text in ids] == [5, 5, 5, 5]
    assert len(set(ids)) == 4
    assert ticket_id("INC1") == ids[0] == states([change(1, "New")])[0].id


def test_a_ticket_at_a_moment_is_what_its_last_change_made_of_it() -> None:
    changes = [change(1, "New"), change(3, "InWork"), change(3, "OnHold")]
    statuses = [(ticket.status if (ticket := ticket_at(changes, minute(at))) else None) for at in (0, 1, 2, 3, 9)]
    assert statuses == [None, "New", "New", "OnHold", "OnHold"]


def test_a_cycle_matters_when_a_change_takes_effect_and_in_the_minute_after_a_deadline_then_in_force() -> None:
    log = IncidentLog(
        "a test", (change(1, "New"), change(5, "New", Priority.HIGH), change(100, "Closed", Priority.HIGH))
    )
    # 16 and 241: the deadlines of Critical, which is no longer its priority then
    assert ticks(log) == [minute(at) for at in (1, 5, 61, 100, 481)]
    assert ticks(log, minute(61)) == [minute(at) for at in (1, 5, 61)]


def test_a_deadline_that_passes_between_two_changes_counts_and_one_passed_before_the_first_does_not() -> None:
    log = IncidentLog("a test", (change(16, "New"), change(241, "InWork")))
    assert ticks(log) == [minute(16), minute(241)]
    late = IncidentLog("a test", (change(17, "New"),))
    assert ticks(late) == [minute(17), minute(241)]


def test_the_log_in_the_package_has_4297_minutes_that_matter() -> None:
    assert len(ticks(read_log())) == 4_297
