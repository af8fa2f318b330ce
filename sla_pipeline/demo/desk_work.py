"""What customers and operators of the simulated desk do next, and what that makes of a ticket. Pure, but for the dice that are passed in.

What belongs here: arrivals, the actions, their timing. What does not: the clock, the threads and the database
(``traffic.py``).

The deadlines are a demo's, seconds instead of hours, so that breaches of both kinds happen while somebody looks on:
about nine a minute.
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
    "arrival",
    "can_take",
    "dice_of",
    "next_plan",
    "pause_to_next_arrival",
]

T = TypeVar("T")

# enough to see something happen at every look, few enough to follow
ARRIVALS_PER_MINUTE = 20.0

# seconds from arrival to the first response and to the resolution; how often, in a hundred
_POLICY_SECONDS = {
    Priority.CRITICAL: (20, 80),
    Priority.HIGH: (30, 110),
    Priority.NORMAL: (50, 150),
    Priority.LOW: (90, 200),
}
_PRIORITY_WEIGHTS = {Priority.CRITICAL: 10, Priority.HIGH: 20, Priority.NORMAL: 50, Priority.LOW: 20}
# the busiest queues of the incident log, by their share there
_QUEUE_WEIGHTS = {70: 46, 24: 14, 25: 14, 27: 10, 23: 10, 28: 6}
_REQUESTERS = range(1_000, 5_000)
_OPERATORS = range(1, 60)

_LATE_ANSWER_SHARE = 0.25
_LATE_RESOLUTION_SHARE = 0.35
# put into work without a word to the customer: both deadlines of such a ticket run on
_SILENT_START_SHARE = 0.12
_HOLD_SHARE = 0.15
_REOPEN_SHARE = 0.12
# sometimes just before the next cycle, which is no breach then, or in a race with it; mostly after it
_LATE_SECONDS = (5.0, 150.0)
# a deadline that is hours away, as those of the log's tickets are, is not waited for
_FAR_SECONDS = 600.0
_CATCH_UP_SECONDS = (20.0, 120.0)


class Action(StrEnum):
    """What an operator does to a ticket."""

    START_WORK = "start work"
    REPLY = "reply"
    HOLD = "hold"
    RESUME = "resume"
    RESOLVE = "resolve"
    CLOSE = "close"
    REOPEN = "reopen"


# the statuses from which an action makes sense
_FROM = {
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
    """An action and when it is meant to be saved."""

    action: Action
    at: datetime


def dice_of(seed: int) -> Random:
    """Dice that fall alike for equal seeds."""
    return Random(seed)  # noqa: S311  not for secrets


def pause_to_next_arrival(dice: Random) -> timedelta:
    """How long until the next customer writes: customers know nothing of each other."""
    return timedelta(seconds=dice.expovariate(ARRIVALS_PER_MINUTE / 60))


def arrival(number: str, now: datetime, dice: Random) -> Ticket:
    """A new ticket of some customer."""
    priority = _one_of(_PRIORITY_WEIGHTS, dice)
    first_response, resolution = _POLICY_SECONDS[priority]
    return Ticket(
        id=ticket_id(number),
        number=number,
        tenant_id=TENANT_ID,
        queue_id=queue_id(_one_of(_QUEUE_WEIGHTS, dice)),
        requester_user_id=person_id(dice.choice(_REQUESTERS)),
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


def next_plan(ticket: Ticket, now: datetime, dice: Random) -> Plan | None:
    """What will be done to the ticket next, and when; None when nothing will."""
    match ticket.status:
        case "New" | "InWork":
            return _next_of_active(ticket, now, dice)
        case "OnHold":
            return Plan(Action.RESUME, _between(now, 15, 60, dice))
        case "Resolved":
            return Plan(Action.REOPEN if dice.random() < _REOPEN_SHARE else Action.CLOSE, _between(now, 20, 90, dice))
        case _:
            return None


def _next_of_active(ticket: Ticket, now: datetime, dice: Random) -> Plan:
    if ticket.status == "New" and dice.random() < _SILENT_START_SHARE:
        return Plan(Action.START_WORK, _between(now, 3, 10, dice))
    if ticket.first_response_at is None:
        return Plan(Action.REPLY, _around_deadline(ticket.first_response_due_at, now, _LATE_ANSWER_SHARE, dice))
    if ticket.status == "InWork" and dice.random() < _HOLD_SHARE:
        return Plan(Action.HOLD, _between(now, 3, 15, dice))
    return Plan(Action.RESOLVE, _around_deadline(ticket.resolution_due_at, now, _LATE_RESOLUTION_SHARE, dice))


def can_take(action: Action, ticket: Ticket) -> bool:
    """Whether the action still makes sense for the ticket as it is."""
    return ticket.status in _FROM[action] and not (action is Action.REPLY and ticket.first_response_at is not None)


def apply_action(action: Action, ticket: Ticket, at: datetime, dice: Random) -> Ticket:
    """The ticket after the action, which ``can_take`` has allowed."""
    assigned = replace(ticket, assignee_user_id=ticket.assignee_user_id or person_id(dice.choice(_OPERATORS)))
    match action:
        case Action.START_WORK | Action.RESUME | Action.REOPEN:
            return assigned.with_status("InWork", at)
        case Action.REPLY:
            return assigned.answered(at).with_status("InWork" if ticket.status == "New" else ticket.status, at)
        case Action.HOLD:
            return assigned.with_status("OnHold", at)
        case Action.RESOLVE:
            # the solution is an answer, too
            return assigned.answered(at).with_status("Resolved", at)
        case Action.CLOSE:
            return assigned.with_status("Closed", at)


def _around_deadline(due_at: datetime | None, now: datetime, late_share: float, dice: Random) -> datetime:
    left_seconds = (due_at - now).total_seconds() if due_at is not None else _FAR_SECONDS
    if not 0 < left_seconds < _FAR_SECONDS:
        return _between(now, *_CATCH_UP_SECONDS, dice)
    if dice.random() < late_share:
        low, high = _LATE_SECONDS
        return _between(now, left_seconds + low, left_seconds + high, dice)
    return _between(now, 0.2 * left_seconds, 0.9 * left_seconds, dice)


def _between(now: datetime, low_seconds: float, high_seconds: float, dice: Random) -> datetime:
    return now + timedelta(seconds=dice.uniform(low_seconds, high_seconds))


def _one_of(weights: Mapping[T, int], dice: Random) -> T:
    return dice.choices(list(weights), weights=list(weights.values()))[0]
