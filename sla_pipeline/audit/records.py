"""The auditor's statements: positions, breach records, marks, and the tickets behind them.

They only read; the rights of role sla_analyst suffice. Everything but the first read of the position is in ONE
read-only snapshot. The job changes records and tickets in one transaction, so within a snapshot a mark without a
record, or a record without a mark, is never a race.

**What proves a false breach.** A ticket changes after its mark: it is answered, resolved, or gets another deadline. So
its present row proves nothing, unless it is the very row version that the mark wrote: then the rule must find on it
exactly the recorded breach. It is that version when ``updated_at`` still equals the record's ``breached_at`` (the mark
sets it, the support service moves it) and when the same transaction wrote ticket and record (``xmin``). ``xmin`` also
detects a script that changed the ticket and left ``updated_at`` alone.

**What does not.** A reply dated before the mark, on a row that changed after it. The operator's application takes the
time at the click and commits later, again after a conflict, by another machine's clock; a mail gateway dates a reply by
the mail. At the moment of the mark the row may have been without it. A difference of up to a minute is normal and not
reported; a larger one is a warning.

**Overdue for long** counts from the deadline, or from the ticket's last change when that is later: the ticket may have
got this deadline, or been reopened, a moment ago.
"""

import contextlib
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import psycopg
from psycopg import IsolationLevel
from psycopg.rows import args_row

from sla_pipeline.audit.contract import RecordRow
from sla_pipeline.audit.findings import EXAMPLE_LIMIT, Check, Example, Tally
from sla_pipeline.breach import judge
from sla_pipeline.errors import PostgresSetupError
from sla_pipeline.postgres.schema import check_revision
from sla_pipeline.postgres.schema import check_tickets as check_tickets_table
from sla_pipeline.postgres.session import PostgresSettings

__all__ = ["OutboxPosition", "Postgres", "open_postgres"]

# the longest time that a ticket may be overdue and unmarked, or a record wait: the detection delay's p99 (SPEC 3.5)
_GRACE_PERIOD = timedelta(minutes=2)
# bounds a form's round trip, a second attempt after a conflict, and the difference of two clocks
_REPLY_TOLERANCE = timedelta(minutes=1)
# bound on one statement: a join of millions of tickets takes tens of seconds; a longer one shows a server in trouble
_STATEMENT_TIMEOUT = "5min"
# bound on the pause between two statements: storing a batch of rows takes milliseconds. The snapshot of an auditor that
# hangs would hold back vacuum.
_IDLE_IN_TRANSACTION_TIMEOUT = "1min"
# source file of the server's refusals for row-level security: no role lifts them, and the session names their remedy
_POLICIES_SOURCE = "rls.c"
# rows per network round trip: one or two megabytes
_FETCH_ROWS = 2_000

_OUTBOX_POSITION = "select published_seq, last_seq from support.ticket_sla_relay where id = 1"
_RECORD_COUNT = "select count(*) from support.ticket_sla_breaches"

# Index: the primary key, in its order. Times are text: 'infinity' becomes null and differs from every payload.
_WIRE_FORMAT = 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'
_RECORDS = f"""
select seq, ticket_id, number, kind, to_char(due_at at time zone 'UTC', '{_WIRE_FORMAT}'),
    to_char(breached_at at time zone 'UTC', '{_WIRE_FORMAT}'), correlation_id, payload,
    due_at < breached_at, recorded_at < %(now_utc)s - %(grace_period)s
from support.ticket_sla_breaches order by seq
"""  # noqa: S608  made of constants of this module, as are the statements below

# The mark's time as ``updated_at`` shows it: the column may keep fewer digits. Null is a change too.
_AS_MARKED = ", ".join(["b.breached_at", *(f"b.breached_at::timestamptz({digits})" for digits in range(6))])
_UNTOUCHED = f"t.xmin = b.xmin and coalesce(t.updated_at in ({_AS_MARKED}), false)"


def _within_python(column: str) -> str:
    """Return SQL for the column, clamped to the range of Python's datetime: the rule only compares."""
    low, high = "timestamptz '0001-01-02 00:00+00'", "timestamptz '9999-12-30 00:00+00'"
    return f"case when {column} < {low} then {low} when {column} > {high} then {high} else {column} end"


# A hash join of both tables: O(tickets).
_PROVABLE = f"""
select b.seq, b.ticket_id, b.number, b.kind, {_within_python("b.due_at")}, {_within_python("b.breached_at")},
    t.status, {_within_python("t.first_response_due_at")}, {_within_python("t.first_response_at")},
    {_within_python("t.resolution_due_at")}, {_within_python("t.resolved_at")}
from support.ticket_sla_breaches b join support.tickets t on t.id = b.ticket_id
where {_UNTOUCHED} order by b.seq
"""  # noqa: S608

# Each statement of _TICKET_CHECKS returns ticket_id, number, seq; check_tickets orders and limits them. Cost: a scan or
# a hash join of the tables named, O(tickets).
_PAST_DEADLINE = """
(t.status in ('New', 'InWork') and not t.sla_breached and t.first_response_at is null
        and t.first_response_due_at < %(now_utc)s - %(grace_period)s
    or t.status = 'InWork' and not t.sla_breached and t.resolved_at is null
        and t.resolution_due_at < %(now_utc)s - %(grace_period)s)
"""
# a ticket without updated_at counts as unchanged
_CHANGED_LATELY = "coalesce(t.updated_at >= %(now_utc)s - %(grace_period)s, false)"
# Housekeeping removes the oldest records first, so a ticket younger than the oldest record left has not lost its own.
_OLDER_THAN_RECORDS = """
exists (select from (select seq, breached_at from support.ticket_sla_breaches order by seq limit 1) oldest
    where oldest.seq > 1 and t.created_at < oldest.breached_at)
"""
_MARKED_UNRECORDED = (
    "t.sla_breached and not exists (select from support.ticket_sla_breaches b where b.ticket_id = t.id)"
)
_SET_ASIDE = "exists (select from support.ticket_sla_set_aside s where s.ticket_id = t.id)"
_OF_TICKETS = "select t.id, t.number, null::bigint from support.tickets t where"
_OF_RECORDS = "select b.ticket_id, b.number, b.seq from support.ticket_sla_breaches b"
_JOINED = f"{_OF_RECORDS} join support.tickets t on t.id = b.ticket_id where"
_TICKET_CHECKS = {
    Check.RECORD_TICKET_TWICE: """
        select ticket_id, max(number), max(seq) from support.ticket_sla_breaches
        group by ticket_id having count(*) > 1""",
    Check.MARK_WITHOUT_RECORD: f"{_OF_TICKETS} {_MARKED_UNRECORDED} and not {_OLDER_THAN_RECORDS}",
    Check.MARK_OLDER_THAN_RECORDS: f"{_OF_TICKETS} {_MARKED_UNRECORDED} and {_OLDER_THAN_RECORDS}",
    Check.RECORD_OF_UNMARKED: f"{_JOINED} not t.sla_breached",
    Check.RECORD_OF_DELETED_TICKET: f"{_OF_RECORDS} where not exists (select from support.tickets t where t.id = "
    "b.ticket_id)",
    Check.OVERDUE_UNMARKED: f"{_OF_TICKETS} {_PAST_DEADLINE} and not {_CHANGED_LATELY}",
    Check.OVERDUE_SET_ASIDE: f"{_OF_TICKETS} {_PAST_DEADLINE} and not {_CHANGED_LATELY} and {_SET_ASIDE}",
    Check.OVERDUE_CHANGED_LATELY: f"{_OF_TICKETS} {_PAST_DEADLINE} and {_CHANGED_LATELY}",
    Check.REPLY_BEFORE_BREACH: f"""{_JOINED} not ({_UNTOUCHED})
        and case b.kind when 'FirstResponse' then t.first_response_at else t.resolved_at end
            < b.breached_at - %(reply_tolerance)s""",
    Check.DEADLINE_EDITED: f"""{_JOINED} not ({_UNTOUCHED})
        and case b.kind when 'FirstResponse' then t.first_response_due_at else t.resolution_due_at end
            is distinct from b.due_at""",
}
_MARKED_COUNT = "select count(*) from support.tickets where sla_breached"
# Index: primary keys. A deleted ticket's number is in its record.
_NUMBERS = """
select id, number from support.tickets where id = any(%(ids)s::uuid[])
union select ticket_id, number from support.ticket_sla_breaches where ticket_id = any(%(ids)s::uuid[])
"""


class OutboxPosition(NamedTuple):
    """Position of the outbox: records 1 to ``last_seq`` were written, those up to ``published_seq`` are published."""

    published_seq: int
    last_seq: int


class _MarkedRow(NamedTuple):
    """A record and its ticket as the mark left it; holds the fields that ``breach.judge`` reads."""

    seq: int
    ticket_id: str
    number: str
    kind: str
    due_at: datetime
    breached_at: datetime
    status: str
    first_response_due_at: datetime | None
    first_response_at: datetime | None
    resolution_due_at: datetime | None
    resolved_at: datetime | None

    @property
    def sla_breached(self) -> bool:
        """The flag's value before the mark."""
        return False

    @property
    def fits_the_rule(self) -> bool:
        """True when the rule finds the recorded breach: its kind and its deadline."""
        breach = judge(self, self.breached_at)
        return breach is not None and (breach.kind.value, breach.due_at) == (self.kind, self.due_at)


@contextlib.contextmanager
def open_postgres(settings: PostgresSettings, *, now_utc: datetime) -> Iterator["Postgres"]:
    """Open a session for an audit at ``now_utc``.

    Raises ``PostgresSetupError`` (missing right, table, column) or ``PostgresUnavailable``.
    """
    with settings.session(purpose="audit") as connection:
        try:
            check_revision(connection)
            check_tickets_table(connection, for_audit=True)
            connection.isolation_level = IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            connection.execute(f"set statement_timeout = '{_STATEMENT_TIMEOUT}'")
            connection.execute(f"set idle_in_transaction_session_timeout = '{_IDLE_IN_TRANSACTION_TIMEOUT}'")
            # Every cursor is read to its end. Planned for its first rows, the join of all marks would take a million
            # index lookups.
            connection.execute("set cursor_tuple_fraction = 1")
            yield Postgres(connection, now_utc)
        except psycopg.errors.InsufficientPrivilege as error:
            if error.diag.source_file == _POLICIES_SOURCE:
                raise
            raise PostgresSetupError(
                f"{error.diag.message_primary} in {settings.place}; an audit needs membership of role sla_analyst"
                " (`grant sla_analyst to LOGIN`)"
            ) from error


class Postgres:
    """An audit's session with Postgres."""

    def __init__(self, connection: psycopg.Connection, now_utc: datetime) -> None:
        self._connection = connection
        self._values = {"now_utc": now_utc, "grace_period": _GRACE_PERIOD, "reply_tolerance": _REPLY_TOLERANCE}

    def outbox_position(self) -> OutboxPosition:
        """Return the outbox's current position; inside ``snapshot`` the one at its start."""
        with self._connection.cursor(row_factory=args_row(OutboxPosition)) as cursor:
            row = cursor.execute(_OUTBOX_POSITION).fetchone()
        if row is None:
            raise PostgresSetupError(
                "support.ticket_sla_relay has no row with id 1: somebody deleted it; run `sla-pipeline migrate`, "
                "which restores it"
            )
        return row

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read everything inside the block as of its first statement."""
        with self._connection.transaction():
            yield

    def record_count(self) -> int:
        """Return the number of breach records."""
        return self._count(_RECORD_COUNT)

    def marked_count(self) -> int:
        """Return the number of marked tickets."""
        return self._count(_MARKED_COUNT)

    def records(self) -> Iterator[RecordRow]:
        """Yield the breach records in rising sequence, streamed. Call it inside ``snapshot``."""
        with self._connection.cursor("audit_records", row_factory=args_row(RecordRow)) as cursor:
            cursor.itersize = _FETCH_ROWS
            yield from cursor.execute(_RECORDS, self._values)

    def check_marks(self, tally: Tally) -> int:
        """Check every mark whose ticket is unchanged since against the rule; return the number of these marks.

        Call it inside ``snapshot``.
        """
        count = 0
        with self._connection.cursor("audit_marks", row_factory=args_row(_MarkedRow)) as cursor:
            cursor.itersize = _FETCH_ROWS
            for row in cursor.execute(_PROVABLE):
                count += 1
                if not row.fits_the_rule:
                    tally.add(Check.FALSE_BREACH, Example(row.ticket_id, row.number, row.seq))
        return count

    def check_tickets(self, tally: Tally) -> None:
        """Run the checks that need a statement only. Call it inside ``snapshot``."""
        for check, statement in _TICKET_CHECKS.items():
            found = self._connection.execute(
                # the window function counts all rows, the limit keeps the examples
                f"select *, count(*) over () from ({statement}) found (ticket_id, number, seq) "  # noqa: S608
                f"order by seq, number limit {EXAMPLE_LIMIT}",
                self._values,
            ).fetchall()
            if found:
                tally.add_all(check, [Example(*row[:3]) for row in found], found[0][3])

    def numbers(self, ticket_ids: Sequence[str]) -> dict[str, str]:
        """Return the numbers of these tickets by id, without those that Postgres does not have."""
        return dict(self._connection.execute(_NUMBERS, {"ids": list(ticket_ids)}).fetchall()) if ticket_ids else {}

    def _count(self, statement: str) -> int:
        row = self._connection.execute(statement).fetchone()
        return int(row[0]) if row else 0
