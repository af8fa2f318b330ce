"""Plans and actions of the simulated desk: short deadlines, some of them missed, actions that fit the status."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from sla_pipeline.demo.operators import (
    Action,
    apply_action,
    can_apply,
    new_ticket,
    next_plan,
    seeded_rng,
    time_to_next_arrival,
)
from sla_pipeline.demo.ticket import Ticket

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def ticket(status: str = "New", **values: object) -> Ticket:
    return replace(new_ticket("DEMO1", NOW, seeded_rng(1)), status=status, **values)  # type: ignore[arg-type]


def test_customers_write_about_twenty_times_a_minute() -> None:
    rng = seeded_rng(1)
    assert sum((time_to_next_arrival(rng) for _ in range(2_000)), timedelta()) / 2_000 == pytest.approx(
        3 * SECOND, rel=0.05
    )


def test_a_new_ticket_falls_due_within_minutes() -> None:
    rng = seeded_rng(1)
    arrivals = [new_ticket(f"DEMO{n}", NOW, rng) for n in range(200)]
    assert {((new.first_response_due_at or NOW) - NOW) // SECOND for new in arrivals} == {20, 30, 50, 90}
    assert {((new.resolution_due_at or NOW) - NOW) // SECOND for new in arrivals} == {80, 110, 150, 200}
    assert {(new.status, new.first_response_at, new.resolved_at) for new in arrivals} == {("New", None, None)}
    assert len({new.queue_id for new in arrivals}) == 6


def test_equal_seeds_make_equal_decisions() -> None:
    assert (
        new_ticket("DEMO1", NOW, seeded_rng(7))
        == new_ticket("DEMO1", NOW, seeded_rng(7))
        != new_ticket("DEMO1", NOW, seeded_rng(8))
    )
    assert [next_plan(ticket(), NOW, seeded_rng(n)) for n in range(50)] == [
        next_plan(ticket(), NOW, seeded_rng(n)) for n in range(50)
    ]


@pytest.mark.parametrize(
    ("status", "answered", "actions"),
    [
        ("New", False, {Action.START_WORK, Action.REPLY}),
        ("InWork", False, {Action.REPLY}),
        ("InWork", True, {Action.HOLD, Action.RESOLVE}),
        ("OnHold", True, {Action.RESUME}),
        ("Resolved", True, {Action.CLOSE, Action.REOPEN}),
        ("Closed", True, {None}),
        ("Escalated", True, {None}),
    ],
)
def test_what_is_planned_next_fits_the_ticket(status: str, answered: bool, actions: set[Action | None]) -> None:
    current = ticket(status, first_response_at=NOW if answered else None)
    rng = seeded_rng(1)
    plans = [next_plan(current, NOW, rng) for _ in range(300)]
    assert {plan.action if plan else None for plan in plans} == actions
    assert all(plan.at > NOW and can_apply(plan.action, current) for plan in plans if plan)


@pytest.mark.parametrize(("status", "action", "share"), [("New", Action.REPLY, 0.25), ("InWork", Action.RESOLVE, 0.35)])
def test_a_share_of_replies_and_resolutions_comes_late_mostly_after_the_next_cycle(
    status: str, action: Action, share: float
) -> None:
    current = ticket(status, first_response_at=NOW if status == "InWork" else None)
    due_at = current.first_response_due_at if status == "New" else current.resolution_due_at
    assert due_at is not None
    rng = seeded_rng(1)
    lateness = [
        plan.at - due_at for _ in range(3_000) if (plan := next_plan(current, NOW, rng)) and plan.action is action
    ]
    late = [delay for delay in lateness if delay > timedelta()]
    assert len(late) / len(lateness) == pytest.approx(share, abs=0.03)
    assert sum(delay > timedelta(minutes=1) for delay in late) / len(late) == pytest.approx(0.62, abs=0.05)
    assert max(late) < timedelta(minutes=3)


def test_a_deadline_that_is_far_past_or_missing_is_not_waited_for() -> None:
    for due_at in (None, NOW - timedelta(days=3), NOW, NOW + timedelta(days=3)):
        current = ticket("InWork", first_response_due_at=due_at)
        assert all(
            (plan := next_plan(current, NOW, seeded_rng(n))) and plan.at - NOW <= timedelta(minutes=2)
            for n in range(50)
        )


@pytest.mark.parametrize(
    ("action", "before", "after"),
    [
        (Action.START_WORK, "New", "InWork"),
        (Action.REPLY, "New", "InWork"),
        (Action.REPLY, "OnHold", "OnHold"),
        (Action.HOLD, "InWork", "OnHold"),
        (Action.RESUME, "OnHold", "InWork"),
        (Action.RESOLVE, "InWork", "Resolved"),
        (Action.CLOSE, "Resolved", "Closed"),
        (Action.REOPEN, "Resolved", "InWork"),
    ],
)
def test_an_action_changes_the_status_and_gives_the_ticket_an_assignee(action: Action, before: str, after: str) -> None:
    at = NOW + 5 * SECOND
    changed = apply_action(action, ticket(before), at, seeded_rng(1))
    assert (changed.status, changed.updated_at, changed.assignee_user_id is None) == (after, at, False)
    assert changed.first_response_at == (at if action in (Action.REPLY, Action.RESOLVE) else None)
    assert changed.resolved_at == (at if after in ("Resolved", "Closed") else None)


def test_no_action_is_taken_that_no_longer_makes_sense() -> None:
    possible = {
        status: [action for action in Action if can_apply(action, ticket(status))] for status in ("InWork", "Closed")
    }
    assert possible == {"InWork": [Action.REPLY, Action.HOLD, Action.RESOLVE], "Closed": []}
    assert not can_apply(Action.REPLY, ticket("InWork", first_response_at=NOW))
