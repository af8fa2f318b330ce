"""Customers and operators of the simulated desk: new tickets, the operators' actions and their timing.

Pure but for the random generator in the arguments; ``traffic.py`` holds clock, thread and database. Deadlines are
seconds instead of hours, so that a viewer sees breaches of both kinds: about nine a minute.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from random import Random
from typing import TypeVar

from sla_pipeline.breach import Priority
from sla_pipeline.demo.ticket import TENANT_ID, Ticket, person_id, queue_id, ticket_id

__all__ = [
    "ARRIVALS_PER_MINUTE",
    "Action",
    "Plan",
    "apply_action",
    "can_apply",
    "new_ticket",
    "next_plan",
    "seeded_rng",
    "time_to_next_arrival",
]

T = TypeVar("T")

# enough for a change every few seconds, few enough for a viewer to follow
ARRIVALS_PER_MINUTE = 20.0

# seconds from the ticket's creation to the first response and to the resolution
_POLICY_SECONDS = {
    Priority.CRITICAL: (20, 80),
    Priority.HIGH: (30, 110),
    Priority.NORMAL: (50, 150),
    Priority.LOW: (90, 200),
}
# per cent of the tickets
_PRIORITY_WEIGHTS = {Priority.CRITICAL: 10, Priority.HIGH: 20, Priority.NORMAL: 50, Priority.LOW: 20}
# the busiest queues of the incident log, weighted by their share there
_QUEUE_WEIGHTS = {70: 46, 24: 14, 25: 14, 27: 10, 23: 10, 28: 6}
_REQUESTERS = range(1_000, 5_000)
_OPERATORS = range(1, 60)

_LATE_REPLY_SHARE = 0.25
_LATE_RESOLUTION_SHARE = 0.35
# tickets taken into work without a reply: both of their deadlines keep running
_SILENT_START_SHARE = 0.12
_HOLD_SHARE = 0.15
_REOPEN_SHARE = 0.12
# delay after the deadline: mostly after the next cycle, sometimes before it (then it is no breach) or in a race with it
_LATE_SECONDS = (5.0, 150.0)
# operators do not wait for deadlines farther away, such as those of the log's tickets, nor for passed ones; they act
# after _PROMPT_ACTION_SECONDS
_FAR_SECONDS = 600.0
_PROMPT_ACTION_SECONDS = (20.0, 120.0)


class Action(StrEnum):
    """An operator's action on a ticket."""

    START_WORK = "start work"
    REPLY = "reply"
    HOLD = "hold"
    RESUME = "resume"
    RESOLVE = "resolve"
    CLOSE = "close"
    REOPEN = "reopen"


# statuses in which an action makes sense
_ALLOWED_STATUSES = {
    Action.START_WORK: ("New",),
    Action.REPLY: ("New", "InWork", "OnHold"),
    Action.HOLD: ("InWork",),
    Action.RESUME: ("OnHold",),
    Action.RESOLVE: ("New", "InWork", "OnHold"),
    Action.CLOSE: ("Resolved",),
    Action.REOPEN: ("Resolved",),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """An action and its planned time."""

    action: Action
    at: datetime


def seeded_rng(seed: int) -> Random:
    """Return a random generator; equal seeds give equal decisions."""
    return Random(seed)  # noqa: S311  not for secrets


def time_to_next_arrival(rng: Random) -> timedelta:
    """Return the time to the next ticket; arrivals are independent (a Poisson process)."""
    return timedelta(seconds=rng.expovariate(ARRIVALS_PER_MINUTE / 60))


def new_ticket(number: str, now: datetime, rng: Random) -> Ticket:
    """Return a new ticket of a random customer."""
    priority = _weighted(_PRIORITY_WEIGHTS, rng)
    first_response, resolution = _POLICY_SECONDS[priority]
    return Ticket(
        id=ticket_id(number),
        number=number,
        tenant_id=TENANT_ID,
        queue_id=queue_id(_weighted(_QUEUE_WEIGHTS, rng)),
        requester_user_id=person_id(rng.choice(_REQUESTERS)),
        assignee_user_id=None,
        priority=priority,
        status="New",
        first_response_due_at=now + timedelta(seconds=first_response),
        first_response_at=None,
        resolution_due_at=now + timedelta(seconds=resolution),
        resolved_at=None,
        created_at=now,
        updated_at=now,
    )


def next_plan(ticket: Ticket, now: datetime, rng: Random) -> Plan | None:
    """Return the next action on the ticket and its time; None when there is none."""
    match ticket.status:
        case "New" | "InWork":
            return _next_of_active(ticket, now, rng)
        case "OnHold":
            return Plan(Action.RESUME, _between(now, 15, 60, rng))
        case "Resolved":
            return Plan(Action.REOPEN if rng.random() < _REOPEN_SHARE else Action.CLOSE, _between(now, 20, 90, rng))
        case _:
            return None


def _next_of_active(ticket: Ticket, now: datetime, rng: Random) -> Plan:
    if ticket.status == "New" and rng.random() < _SILENT_START_SHARE:
        return Plan(Action.START_WORK, _between(now, 3, 10, rng))
    if ticket.first_response_at is None:
        return Plan(Action.REPLY, _around_deadline(ticket.first_response_due_at, now, _LATE_REPLY_SHARE, rng))
    if ticket.status == "InWork" and rng.random() < _HOLD_SHARE:
        return Plan(Action.HOLD, _between(now, 3, 15, rng))
    return Plan(Action.RESOLVE, _around_deadline(ticket.resolution_due_at, now, _LATE_RESOLUTION_SHARE, rng))


def can_apply(action: Action, ticket: Ticket) -> bool:
    """Return whether the action makes sense for the ticket in its present state."""
    return ticket.status in _ALLOWED_STATUSES[action] and not (
        action is Action.REPLY and ticket.first_response_at is not None
    )


def apply_action(action: Action, ticket: Ticket, at: datetime, rng: Random) -> Ticket:
    """Return the ticket after the action, which ``can_apply`` has allowed."""
    assigned = replace(ticket, assignee_user_id=ticket.assignee_user_id or person_id(rng.choice(_OPERATORS)))
    match action:
        case Action.START_WORK | Action.RESUME | Action.REOPEN:
            return assigned.with_status("InWork", at)
        case Action.REPLY:
            return assigned.answered(at).with_status("InWork" if ticket.status == "New" else ticket.status, at)
        case Action.HOLD:
            return assigned.with_status("OnHold", at)
        case Action.RESOLVE:
            # a resolution is also a reply
            return assigned.answered(at).with_status("Resolved", at)
        case Action.CLOSE:
            return assigned.with_status("Closed", at)


def _around_deadline(due_at: datetime | None, now: datetime, late_share: float, rng: Random) -> datetime:
    left_seconds = (due_at - now).total_seconds() if due_at is not None else _FAR_SECONDS
    if not 0 < left_seconds < _FAR_SECONDS:
        return _between(now, *_PROMPT_ACTION_SECONDS, rng)
    if rng.random() < late_share:
        low, high = _LATE_SECONDS
        return _between(now, left_seconds + low, left_seconds + high, rng)
    return _between(now, 0.2 * left_seconds, 0.9 * left_seconds, rng)


def _between(now: datetime, low_seconds: float, high_seconds: float, rng: Random) -> datetime:
    return now + timedelta(seconds=rng.uniform(low_seconds, high_seconds))


def _weighted(weights: Mapping[T, int], rng: Random) -> T:
    return rng.choices(list(weights), weights=list(weights.values()))[0]
