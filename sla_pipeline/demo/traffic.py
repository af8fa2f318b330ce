"""Ticket traffic for the demo: a stock of real tickets, and a desk that works on them and on what keeps coming in.

What belongs here: time, threads and the database. What does not: what is done to a ticket and when (``desk_work.py``).

An operator opens a ticket, thinks for some seconds, and saves with an optimistic check on the row's version. When the
monitor has marked the ticket in the meantime the check fails, and the operator looks again: that is how SPEC 1.3
settles their race.
"""

import heapq
import itertools
import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from functools import partial

import psycopg

from sla_pipeline.cycle import Clock, SystemClock
from sla_pipeline.demo import support_service
from sla_pipeline.demo.desk_work import (
    Action,
    Plan,
    apply_action,
    arrival,
    can_take,
    dice_of,
    next_plan,
    pause_to_next_arrival,
)
from sla_pipeline.demo.incident_log import IncidentLog
from sla_pipeline.demo.support_service import OpenForm
from sla_pipeline.demo.ticket import Ticket
from sla_pipeline.demo.ticket_history import ticket_at
from sla_pipeline.postgres.session import PostgresSettings, translated_errors

__all__ = ["STOCK_MOMENT", "Traffic", "TrafficCounts", "load_stock"]

log = logging.getLogger(__name__)

STOCK_MOMENT = datetime(2016, 3, 2, 12, 0, tzinfo=UTC)
"""The busiest noon of the log: 734 tickets, 524 of them open, of which 223 are overdue and 28 more will be within the
hour.
"""

_NUMBERS = "DEMO"
# how long an operator has a ticket open before saving it
_THINK_SECONDS = (2.0, 20.0)
# the stock's tickets are taken up one after the other, not all at once
_STOCK_SECONDS = (5.0, 1_200.0)
# how often an operator looks again and saves at once, after somebody else was faster
_TRIES = 3
# when a ticket is locked by someone else
_COME_BACK = timedelta(seconds=10)
# a stop request is heard at once all the same: this bounds what a clock that was set back can do
_LONGEST_WAIT_SECONDS = 5.0


def load_stock(connection: psycopg.Connection, log: IncidentLog, now_utc: datetime) -> int:
    """Insert the tickets of ``log`` as they were at ``STOCK_MOMENT``, all their times moved so that this moment is ``now_utc``.

    Deterministic. Returns how many were inserted: tickets that are there already stay as they are.
    """
    found = (ticket_at(changes, STOCK_MOMENT) for changes in log.by_ticket().values())
    return support_service.add_new(
        connection, [_moved(ticket, now_utc - STOCK_MOMENT) for ticket in found if ticket is not None]
    )


def _moved(ticket: Ticket, by: timedelta) -> Ticket:
    times = {column.name: getattr(ticket, column.name) for column in fields(ticket) if column.name.endswith("_at")}
    return replace(ticket, **{name: moment + by for name, moment in times.items() if moment is not None})


@dataclass(slots=True)
class TrafficCounts:
    """What the traffic has done so far."""

    arrivals: int = 0
    actions: Counter[Action] = field(default_factory=Counter)
    conflicts: int = 0
    """Saves that hit no row, because the ticket had changed since it was opened."""


class Traffic:
    """The simulated desk. ``run`` is a thread's work; ``perform_next`` is one step of it, for tests on a simulated clock.

    ``owner_url`` is a login that may write ``support.tickets``. The same ``seed`` gives the same decisions.
    """

    def __init__(self, owner_url: str, *, seed: int = 2016, clock: Clock | None = None) -> None:
        self.counts = TrafficCounts()
        self._settings = PostgresSettings(owner_url)
        self._clock = clock or SystemClock()
        self._dice = dice_of(seed)
        self._agenda: list[tuple[datetime, int, Callable[[], None]]] = []
        # equal moments in the order in which they were noted
        self._order = itertools.count()
        self._open_connection: psycopg.Connection | None = None
        self._numbers = itertools.count(1)

    def run(self, stop: threading.Event) -> None:
        """Work until ``stop`` is set, which ends it within one statement.

        Raises ``PostgresUnavailable`` or ``PostgresSetupError``.
        """
        try:
            while not stop.is_set():
                wait_seconds = self.perform_next()
                if wait_seconds:
                    stop.wait(min(wait_seconds, _LONGEST_WAIT_SECONDS))
        finally:
            self.close()

    def perform_next(self) -> float:
        """Do one thing if one is due.

        Returns the seconds until the next is, 0 if it is already; raises as ``run`` does.
        """
        with translated_errors(self._settings):
            if self._open_connection is None:
                self._open()
            moment, _, job = self._agenda[0]
            wait_seconds = (moment - self._clock.now_utc()).total_seconds()
            if wait_seconds > 0:
                return wait_seconds
            heapq.heappop(self._agenda)
            job()
        return 0.0

    def close(self) -> None:
        """End the session."""
        if self._open_connection is not None:
            self._open_connection.close()
            self._open_connection = None

    @property
    def _connection(self) -> psycopg.Connection:
        assert self._open_connection is not None  # noqa: S101  opened before anything is done
        return self._open_connection

    def _open(self) -> None:
        self._open_connection = self._settings.connect(purpose="demo traffic")
        last = support_service.last_number(self._connection, f"^{_NUMBERS}[0-9]{{7}}$")
        self._numbers = itertools.count(int(last.removeprefix(_NUMBERS)) + 1 if last else 1)
        now = self._clock.now_utc()
        self._agenda.clear()
        self._note(now, self._receive)
        for ticket_id in support_service.open_ids(self._connection):
            self._note(now + self._seconds(*_STOCK_SECONDS), partial(self._take_up, ticket_id))

    def _note(self, at: datetime, job: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (at, next(self._order), job))

    def _seconds(self, low: float, high: float) -> timedelta:
        return timedelta(seconds=self._dice.uniform(low, high))

    def _receive(self) -> None:
        now = self._clock.now_utc()
        ticket = arrival(f"{_NUMBERS}{next(self._numbers):07d}", now, self._dice)
        support_service.add_new(self._connection, [ticket])
        self.counts.arrivals += 1
        self._plan(ticket)
        self._note(now + pause_to_next_arrival(self._dice), self._receive)

    def _take_up(self, ticket_id: str) -> None:
        form = support_service.open_form(self._connection, ticket_id)
        if form is not None:
            self._plan(form.ticket)

    def _plan(self, ticket: Ticket) -> None:
        plan = next_plan(ticket, self._clock.now_utc(), self._dice)
        if plan is not None:
            self._note(plan.at - self._seconds(*_THINK_SECONDS), partial(self._begin, ticket.id, plan))

    def _begin(self, ticket_id: str, plan: Plan) -> None:
        """The operator opens the ticket; it is saved when the thinking is over."""
        form = support_service.open_form(self._connection, ticket_id)
        if form is not None:
            self._note(plan.at, partial(self._finish, form, plan.action))

    def _finish(self, form: OpenForm | None, action: Action) -> None:
        """The operator saves; where somebody was faster, looks again and decides anew."""
        for _ in range(_TRIES):
            if form is None:  # deleted
                return
            if not can_take(action, form.ticket):
                break
            changed = apply_action(action, form.ticket, self._clock.now_utc(), self._dice)
            try:
                saved = support_service.save_form(self._connection, changed, form.version)
            except (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled, psycopg.errors.DeadlockDetected):
                self._come_back(changed.id)
                return
            if saved:
                self.counts.actions[action] += 1
                self._plan(changed)
                return
            self.counts.conflicts += 1
            form = support_service.open_form(self._connection, form.ticket.id)
        if form is not None:
            self._plan(form.ticket)

    def _come_back(self, ticket_id: str) -> None:
        log.warning("a ticket is locked by someone else; coming back later", extra={"TicketId": ticket_id})
        self._note(self._clock.now_utc() + _COME_BACK, partial(self._take_up, ticket_id))
