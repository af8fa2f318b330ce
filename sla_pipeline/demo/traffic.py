"""Ticket traffic of the demo: real initial tickets, and a simulated desk that works on them and on new ones.

``operators.py`` decides the actions on a ticket and their times; this module holds clock, thread and database.

An operator opens a ticket and saves it some seconds later, with an optimistic check of the row's version. When the
monitor has marked the ticket in between, the check fails and the operator reads the ticket again (SPEC 1.3).
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
from sla_pipeline.demo.incident_log import IncidentLog
from sla_pipeline.demo.operators import (
    Action,
    Plan,
    apply_action,
    can_apply,
    new_ticket,
    next_plan,
    seeded_rng,
    time_to_next_arrival,
)
from sla_pipeline.demo.support_service import OpenForm
from sla_pipeline.demo.ticket import Ticket
from sla_pipeline.demo.ticket_history import ticket_at
from sla_pipeline.postgres.session import PostgresSettings, translated_errors

__all__ = ["SNAPSHOT_MOMENT", "Traffic", "TrafficCounts", "load_initial_tickets"]

log = logging.getLogger(__name__)

SNAPSHOT_MOMENT = datetime(2016, 3, 2, 12, 0, tzinfo=UTC)
"""Busiest noon of the log: 734 tickets, 524 of them open.

223 of the open ones are overdue; 28 more become so within the hour.
"""

_NUMBER_PREFIX = "DEMO"
# time between an operator's opening and saving of a ticket
_THINK_SECONDS = (2.0, 20.0)
# first action on an initial ticket: spread out, not all at once
_FIRST_ACTION_SECONDS = (5.0, 1_200.0)
# attempts of one save when other sessions keep changing the row
_MAX_SAVES = 3
# delay of the next attempt when another session holds the row's lock
_RETRY_AFTER = timedelta(seconds=10)
# upper bound of one wait, in case the clock is set back; a stop request interrupts the wait
_MAX_WAIT_SECONDS = 5.0


def load_initial_tickets(connection: psycopg.Connection, incident_log: IncidentLog, now_utc: datetime) -> int:
    """Insert the tickets of the log as of ``SNAPSHOT_MOMENT``, with all times moved so that this moment is ``now_utc``.

    Deterministic. Existing tickets stay unchanged. Returns the number of inserted tickets.
    """
    found = (ticket_at(changes, SNAPSHOT_MOMENT) for changes in incident_log.by_ticket().values())
    return support_service.add_new(
        connection, [_moved(ticket, now_utc - SNAPSHOT_MOMENT) for ticket in found if ticket is not None]
    )


def _moved(ticket: Ticket, by: timedelta) -> Ticket:
    times = {column.name: getattr(ticket, column.name) for column in fields(ticket) if column.name.endswith("_at")}
    return replace(ticket, **{name: moment + by for name, moment in times.items() if moment is not None})


@dataclass(slots=True)
class TrafficCounts:
    """Counts of the traffic so far."""

    arrivals: int = 0
    actions: Counter[Action] = field(default_factory=Counter)
    conflicts: int = 0
    """Saves that hit no row because the ticket had changed since it was opened."""


class Traffic:
    """Simulated desk. ``run`` is the target of a thread; ``perform_next`` is one step, for tests on a simulated clock.

    ``owner_url`` is a login that may write ``support.tickets``. The same ``seed`` gives the same decisions.
    """

    def __init__(self, owner_url: str, *, seed: int = 2016, clock: Clock | None = None) -> None:
        self.counts = TrafficCounts()
        self._settings = PostgresSettings(owner_url)
        self._clock = clock or SystemClock()
        self._rng = seeded_rng(seed)
        self._queue: list[tuple[datetime, int, Callable[[], None]]] = []
        # breaks ties: entries of equal time run in the order of their scheduling
        self._order = itertools.count()
        self._open_connection: psycopg.Connection | None = None
        self._numbers = itertools.count(1)

    def run(self, stop: threading.Event) -> None:
        """Work until ``stop`` is set; return after the statement in progress.

        Raises ``PostgresUnavailable`` or ``PostgresSetupError``.
        """
        try:
            while not stop.is_set():
                wait_seconds = self.perform_next()
                if wait_seconds:
                    stop.wait(min(wait_seconds, _MAX_WAIT_SECONDS))
        finally:
            self.close()

    def perform_next(self) -> float:
        """Run one entry of the queue if it is due.

        Returns the seconds until the next one is due, or 0 after a run. Raises the errors of ``run``.
        """
        with translated_errors(self._settings):
            if self._open_connection is None:
                self._connect()
            moment, _, job = self._queue[0]
            wait_seconds = (moment - self._clock.now_utc()).total_seconds()
            if wait_seconds > 0:
                return wait_seconds
            heapq.heappop(self._queue)
            job()
        return 0.0

    def close(self) -> None:
        """Close the session."""
        if self._open_connection is not None:
            self._open_connection.close()
            self._open_connection = None

    @property
    def _connection(self) -> psycopg.Connection:
        assert self._open_connection is not None  # noqa: S101  perform_next opens it first
        return self._open_connection

    def _connect(self) -> None:
        self._open_connection = self._settings.connect(purpose="demo traffic")
        last = support_service.last_number(self._connection, f"^{_NUMBER_PREFIX}[0-9]{{7}}$")
        self._numbers = itertools.count(int(last.removeprefix(_NUMBER_PREFIX)) + 1 if last else 1)
        now = self._clock.now_utc()
        self._queue.clear()
        self._schedule(now, self._add_arrival)
        for ticket_id in support_service.open_ids(self._connection):
            self._schedule(now + self._seconds(*_FIRST_ACTION_SECONDS), partial(self._plan_by_id, ticket_id))

    def _schedule(self, at: datetime, job: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (at, next(self._order), job))

    def _seconds(self, low: float, high: float) -> timedelta:
        return timedelta(seconds=self._rng.uniform(low, high))

    def _add_arrival(self) -> None:
        now = self._clock.now_utc()
        ticket = new_ticket(f"{_NUMBER_PREFIX}{next(self._numbers):07d}", now, self._rng)
        support_service.add_new(self._connection, [ticket])
        self.counts.arrivals += 1
        self._plan(ticket)
        self._schedule(now + time_to_next_arrival(self._rng), self._add_arrival)

    def _plan_by_id(self, ticket_id: str) -> None:
        form = support_service.open_form(self._connection, ticket_id)
        if form is not None:
            self._plan(form.ticket)

    def _plan(self, ticket: Ticket) -> None:
        plan = next_plan(ticket, self._clock.now_utc(), self._rng)
        if plan is not None:
            self._schedule(plan.at - self._seconds(*_THINK_SECONDS), partial(self._open_ticket, ticket.id, plan))

    def _open_ticket(self, ticket_id: str, plan: Plan) -> None:
        """Open the ticket, and schedule its save."""
        form = support_service.open_form(self._connection, ticket_id)
        if form is not None:
            self._schedule(plan.at, partial(self._save_ticket, form, plan.action))

    def _save_ticket(self, form: OpenForm | None, action: Action) -> None:
        """Save the ticket; when it has changed since it was opened, read it again and retry while it applies."""
        for _ in range(_MAX_SAVES):
            if form is None:  # deleted
                return
            if not can_apply(action, form.ticket):
                break
            changed = apply_action(action, form.ticket, self._clock.now_utc(), self._rng)
            try:
                saved = support_service.save_form(self._connection, changed, form.version)
            except (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled, psycopg.errors.DeadlockDetected):
                self._retry_later(changed.id)
                return
            if saved:
                self.counts.actions[action] += 1
                self._plan(changed)
                return
            self.counts.conflicts += 1
            form = support_service.open_form(self._connection, form.ticket.id)
        if form is not None:
            self._plan(form.ticket)

    def _retry_later(self, ticket_id: str) -> None:
        log.warning("ticket is locked by another session; retrying later", extra={"TicketId": ticket_id})
        self._schedule(self._clock.now_utc() + _RETRY_AFTER, partial(self._plan_by_id, ticket_id))
