"""Operators that reply, resolve, close, reopen, hold and edit deadlines, mostly near the deadlines.

They write ``support.tickets`` with the support service's rights and record each commit in ``committed_versions.py``.
Each operator has tickets of its own, so the order of its commits is the order of the row's versions. When the server
stops during a commit, the operator first reads the row to find out whether the commit took effect.
"""

import bisect
import contextlib
import random
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import psycopg
from psycopg import sql
from psycopg.rows import args_row

from sla_pipeline_tests.chaos.committed_versions import CommittedVersions, Version
from sla_pipeline_tests.chaos.initial_tickets import InitialTickets

__all__ = ["LockHolder", "Operator", "close_tickets_not_due"]

_VERSION = "status, first_response_due_at, first_response_at, resolution_due_at, resolved_at, sla_breached"
_READ = f"select {_VERSION} from support.tickets where id = %s"
# waits for the transaction that still holds the row; its outcome is final afterwards
_READ_LOCKED = f"{_READ} for update"
_OPEN = "select xmin::text from support.tickets where id = %s"
_HOLD = "select id from support.tickets where id = any(%s::uuid[]) for update skip locked"
_CLOSE = (
    "update support.tickets set status = 'Closed' where id = any(%s::uuid[]) and not sla_breached "
    f"returning id::text, {_VERSION}"
)
# an operator gives up a locked row soon
_OPTIONS = "-c lock_timeout=500 -c statement_timeout=10000 -c timezone=UTC"
_RECONNECT_SECONDS = 0.2
_RESOLVE_SECONDS = 90.0

Changes = Mapping[str, object]


class _SupportSession(threading.Thread):
    """Thread with a session of the support service; it reconnects after an outage. ``error`` holds its failure."""

    def __init__(self, name: str, owner_url: str, tickets: InitialTickets, rng: random.Random) -> None:
        super().__init__(name=name, daemon=True)
        self.error: BaseException | None = None
        self._owner_url = owner_url
        self._tickets = tickets
        self._rng = rng
        self._stopping = threading.Event()

    def stop(self) -> None:
        """End after the current action."""
        self._stopping.set()

    def run(self) -> None:
        """Work until stopped."""
        try:
            while not self._stopping.is_set():
                with contextlib.suppress(psycopg.OperationalError), self._connect() as connection:
                    while not self._stopping.is_set():
                        self._work(connection)
                # an uncommitted change ends with its session; a lock timeout also ends the session, which is
                # harmless
                self._stopping.wait(_RECONNECT_SECONDS)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that joins this one
            self.error = error

    def _connect(self) -> "psycopg.Connection[tuple[object, ...]]":
        return psycopg.connect(self._owner_url, autocommit=True, connect_timeout=3, options=_OPTIONS)

    def _work(self, connection: psycopg.Connection) -> None:
        raise NotImplementedError

    def _position(self, earliest: float, latest: float) -> int:
        """Return the position of a ticket due in ``earliest`` to ``latest`` seconds, or of the next one."""
        moment = datetime.now(UTC) + timedelta(seconds=self._rng.uniform(earliest, latest))
        return min(bisect.bisect(self._tickets.due_ats, moment), len(self._tickets.ids) - 1)


class LockHolder(_SupportSession):
    """Session that keeps rows locked for seconds, as a long transaction does."""

    def _work(self, connection: psycopg.Connection) -> None:
        first = self._position(-1, 5)
        with connection.transaction():
            connection.execute(_HOLD, (self._tickets.ids[first : first + self._rng.randint(1, 30)],))
            self._stopping.wait(self._rng.uniform(1, 10))


class Operator(_SupportSession):
    """Operator of every ``of``-th ticket from ``number`` on, with ``per_second`` changes on average."""

    def __init__(
        self,
        owner_url: str,
        tickets: InitialTickets,
        committed: CommittedVersions,
        rng: random.Random,
        *,
        number: int,
        of: int,
        per_second: float,
    ) -> None:
        super().__init__(f"operator {number}", owner_url, tickets, rng)
        self._committed = committed
        self._number = number
        self._of = of
        self._per_second = per_second

    def _work(self, connection: psycopg.Connection) -> None:
        self._stopping.wait(self._rng.expovariate(self._per_second))
        # most changes are near a deadline; some are on old tickets, marked or not
        near = self._rng.random() < 0.8
        position = self._position(-1.0, 0.3) if near else self._position(-60, 30)
        position -= (position - self._number) % self._of
        if position < 0:
            return
        ticket_id = self._tickets.ids[position]
        changes = _changes(self._rng, self._committed[ticket_id].last, datetime.now(UTC))
        version = None
        if self._rng.random() < 0.4:
            # optimistic locking: the change is saved only if the row is unchanged since it was read
            row = connection.execute(_OPEN, (ticket_id,)).fetchone()
            version = row[0] if row else None
            self._stopping.wait(self._rng.uniform(0, 1.0))
        self._save(connection, ticket_id, changes, version)

    def _save(self, connection: psycopg.Connection, ticket_id: str, changes: Changes, version: object) -> None:
        try:
            connection.execute("begin")
            saved = self._update(connection, ticket_id, changes, version)
        except psycopg.errors.LockNotAvailable:
            connection.execute("rollback")
            return
        if saved is not None and self._rng.random() < 0.25:
            self._stopping.wait(self._rng.uniform(0, 1.5))
        if saved is None or self._rng.random() < 0.05:
            connection.execute("rollback")
            return
        try:
            connection.execute("commit")
        except psycopg.OperationalError:
            if self._is_committed(ticket_id, saved):
                self._committed.commit(ticket_id, saved)
            raise
        self._committed.commit(ticket_id, saved)

    def _update(
        self, connection: psycopg.Connection, ticket_id: str, changes: Changes, version: object
    ) -> Version | None:
        """Update the row and return its new, uncommitted version; None when it was changed since it was read."""
        assignments = sql.SQL(", ").join(
            sql.SQL("{} = {}").format(sql.Identifier(name), sql.Placeholder(name)) for name in changes
        )
        statement = sql.SQL(
            "update support.tickets set {}, updated_at = now() where id = %(id)s and (%(version)s::text is null or "
            "xmin = %(version)s::text::xid) returning {}"
        ).format(assignments, sql.SQL(_VERSION))
        with connection.cursor(row_factory=args_row(Version)) as cursor:
            return cursor.execute(statement, {**changes, "id": ticket_id, "version": version}).fetchone()

    def _is_committed(self, ticket_id: str, saved: Version) -> bool:
        """Return whether a commit that was interrupted took effect.

        Raises ``RuntimeError`` when the row holds neither the old nor the new version.
        """
        deadline = time.monotonic() + _RESOLVE_SECONDS
        while True:
            try:
                with self._connect() as connection, connection.cursor(row_factory=args_row(Version)) as cursor:
                    row = cursor.execute(_READ_LOCKED, (ticket_id,)).fetchone()
                break
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_RECONNECT_SECONDS)
        if row is not None and row.has_same_values(saved):
            return True
        if row is not None and row.has_same_values(self._committed[ticket_id].last):
            return False
        raise RuntimeError(f"ticket {ticket_id} is {row}: neither {saved} nor {self._committed[ticket_id].last}")


def close_tickets_not_due(owner_url: str, tickets: InitialTickets, committed: CommittedVersions) -> None:
    """Close all tickets that are not due yet. No operator may run any more."""
    later = tickets.ids[bisect.bisect(tickets.due_ats, datetime.now(UTC)) :]
    with psycopg.connect(owner_url) as connection:
        rows = connection.execute(_CLOSE, (later,)).fetchall()
    for ticket_id, *version in rows:
        committed.commit(ticket_id, Version(*version))


def _changes(rng: random.Random, ticket: Version, now: datetime) -> Changes:
    """Draw a change that makes sense for the ticket."""
    soon_or_later = rng.choice((now + timedelta(seconds=rng.uniform(-1, 4)), now + timedelta(hours=rng.uniform(2, 9))))
    if ticket.status in ("Resolved", "Closed"):
        reopened: Changes = {"status": "InWork", "resolved_at": None}
        options: list[tuple[int, Changes]] = [(2, reopened), (3, {**reopened, "resolution_due_at": soon_or_later})]
    elif ticket.status == "OnHold":
        options = [(1, {"status": "InWork"})]
    elif ticket.first_response_at is None:
        options = [
            (35, {"first_response_at": now}),
            (25, {"first_response_at": now, "status": "InWork"}),
            (10, {"status": "Closed"}),
            (20, {"first_response_due_at": soon_or_later}),
            (10, {"status": "InWork"}),
        ]
    else:
        options = [
            (50, {"status": "Resolved", "resolved_at": now}),
            (20, {"resolution_due_at": soon_or_later}),
            (5, {"resolution_due_at": None}),
            (10, {"status": "OnHold"}),
            (15, {"status": "InWork"}),
        ]
    return rng.choices([changes for _, changes in options], [weight for weight, _ in options])[0]
