"""Statements that read and lock ``support.tickets``, which belongs to the support service.

They find overdue tickets, lock a batch, count the backlog, and preview; ``marking.py`` writes the mark. The predicates
are ``breach.judge`` in SQL; a property test checks that the two agree.

Statuses and flags are literals: as parameters they would hide the partial indexes from the planner (0.07 ms became
37-65 ms).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import psycopg
from psycopg.rows import args_row

from sla_pipeline.postgres.session import TolerantTimestamptzLoader

__all__ = [
    "OF_TENANT",
    "OVERDUE",
    "LockedTicket",
    "Preview",
    "PreviewCount",
    "PreviewTicket",
    "claim",
    "count_backlog",
    "id_array",
    "lock_batch",
    "other_queues_first",
    "preview",
    "still_overdue",
]

_FIRST_RESPONSE_OVERDUE = (
    "status in ('New', 'InWork') and not sla_breached and first_response_at is null and "
    "first_response_due_at < %(now_utc)s"
)
_RESOLUTION_OVERDUE = (
    "status = 'InWork' and not sla_breached and resolved_at is null and resolution_due_at < %(now_utc)s"
)
# Excludes the rows of the first branch; `is not true`, because a ticket without a first deadline is only in the second
# branch.
_NOT_FIRST_RESPONSE = "(first_response_at is null and first_response_due_at < %(now_utc)s) is not true"
# Not set aside in the row's present version: a cycle tries a changed row at once.
_NOT_WAITING = (
    "not exists (select from support.ticket_sla_set_aside s where s.ticket_id = tickets.id and s.next_try_at > "
    "%(now_utc)s and tickets.xmin::text = coalesce(s.row_version, tickets.xmin::text))"
)
OVERDUE = f"(({_FIRST_RESPONSE_OVERDUE}) or ({_RESOLUTION_OVERDUE}))"
OF_TENANT = "(%(tenant_id)s::uuid is null or tenant_id = %(tenant_id)s::uuid)"
_NOT_SET_ASIDE = (
    "not exists (select from support.ticket_sla_set_aside s where s.ticket_id = tickets.id and "
    "s.next_try_at > %(now_utc)s)"
)

# Index: ticket_sla_first_response_overdue in its order up to the limit; ticket_sla_resolution_overdue up to now, then a
# top-N sort. Two branches and not one predicate with OR: with a LIMIT over the OR the planner walks one index and
# filters. The second branch cannot be read in the order of resolution_due_at with a limit: under a backlog that is not
# the order of SPEC 5.3.
_CLAIM_WHERE = f"""
with first_response as (
    select id, first_response_due_at from support.tickets
    where {_FIRST_RESPONSE_OVERDUE} and {OF_TENANT} and {{wanted}}
    order by first_response_due_at, id limit %(limit)s
), resolution as (
    select id, first_response_due_at from support.tickets
    where {_RESOLUTION_OVERDUE} and {_NOT_FIRST_RESPONSE} and {OF_TENANT} and {{wanted}}
    order by first_response_due_at, id limit %(limit)s
)
select id from (select * from first_response union all select * from resolution) overdue
order by first_response_due_at, id limit %(limit)s
"""
_CLAIM = _CLAIM_WHERE.format(wanted=_NOT_SET_ASIDE)
# For a cycle that cannot read the table of rows set aside.
_CLAIM_ALL = _CLAIM_WHERE.format(wanted="true")

# Index: the primary key; `is true` hides the partial indexes, in which the planner would read all overdue tickets for
# each batch. The predicate is repeated, so that a ticket answered since the claim drops out, also when that commit
# falls between this statement's snapshot and the lock (Postgres then checks the new version of the row). `for update`
# would skip every ticket on which somebody is writing a comment (its foreign key); `no key update` does not. A ticket
# without a number is a bad row, and is still listed, with an empty number.
_LOCK_BATCH = f"""
select id, coalesce(number, '') as number, tenant_id, queue_id, requester_user_id, assignee_user_id, priority,
    status, sla_breached, first_response_due_at, first_response_at, resolution_due_at, resolved_at,
    exists (select from support.ticket_sla_breaches b where b.ticket_id = tickets.id) as recorded,
    xmin::text as row_version
from support.tickets
where id = any(%(ids)s::uuid[]) and {OVERDUE} is true and {OF_TENANT}
order by first_response_due_at, id
for no key update skip locked
"""

# Index: the primary key.
_STILL_OVERDUE = (
    f"select id from support.tickets where id = any(%(ids)s::uuid[]) and {OVERDUE} order by first_response_due_at, id"
)

# Index: the primary key.
_OTHER_QUEUES_FIRST = """
select tickets.id
from unnest(%(ids)s::uuid[]) with ordinality as claimed (id, position) join support.tickets on tickets.id = claimed.id
order by coalesce(tickets.queue_id = any(%(queue_ids)s::uuid[]), false), claimed.position
"""

# Index: both of ours, up to now: O(backlog).
_BACKLOG = f"""
select (select count(*) from support.tickets where {_FIRST_RESPONSE_OVERDUE} and {OF_TENANT})
    + (select count(*) from support.tickets where {_RESOLUTION_OVERDUE} and {_NOT_FIRST_RESPONSE} and {OF_TENANT})
"""

# Index: as the backlog's.
_PREVIEW = f"""
with overdue as (
    select id, number, queue_id, priority, 'FirstResponse' as kind, first_response_due_at as due_at,
        first_response_due_at
    from support.tickets where {_FIRST_RESPONSE_OVERDUE} and {OF_TENANT} and {{wanted}}
    union all
    select id, number, queue_id, priority, 'Resolution', resolution_due_at, first_response_due_at
    from support.tickets where {_RESOLUTION_OVERDUE} and {_NOT_FIRST_RESPONSE} and {OF_TENANT} and {{wanted}}
)
"""
_PREVIEW_COUNTS = (
    "select kind, queue_id, priority, count(*) from overdue group by kind, queue_id, priority order by 4 desc, 1, 2, 3"
)
_PREVIEW_OLDEST = "select id, number, kind, priority, due_at from overdue order by due_at, id limit %(limit)s"


class LockedTicket(NamedTuple):
    """A row that this transaction has locked, with the fields that ``breach.judge`` reads.

    Ids are text; a time outside Python's range is a distant past or future.
    """

    id: str
    number: str
    tenant_id: str | None
    queue_id: str | None
    requester_user_id: str | None
    assignee_user_id: str | None
    priority: str | None
    status: str
    sla_breached: bool
    first_response_due_at: datetime | None
    first_response_at: datetime | None
    resolution_due_at: datetime | None
    resolved_at: datetime | None
    recorded: bool
    """True when a breach record exists: the flag was reset after the ticket was marked."""
    row_version: str
    """Transaction that wrote this version of the row."""


@dataclass(frozen=True, slots=True)
class PreviewCount:
    """Number of overdue tickets of one kind, queue and priority."""

    kind: str
    queue_id: str | None
    priority: str | None
    count: int


@dataclass(frozen=True, slots=True)
class PreviewTicket:
    """One overdue ticket."""

    id: str
    number: str
    kind: str
    priority: str | None
    due_at: datetime


@dataclass(frozen=True, slots=True)
class Preview:
    """Overdue tickets that a cycle would try now."""

    counts: list[PreviewCount]
    oldest: list[PreviewTicket]

    @property
    def total(self) -> int:
        """Number of these tickets."""
        return sum(count.count for count in self.counts)


def id_array(ids: Iterable[str]) -> str:
    """Return ids as the text of a Postgres array.

    psycopg would escape each member of a list, in Python, which takes longer than locking the rows.
    """
    return "{" + ",".join(ids) + "}"


def claim(
    connection: psycopg.Connection, *, now_utc: datetime, tenant_id: str | None, limit: int, all_set_aside: bool = False
) -> list[str]:
    """Return the ids of the first ``limit`` overdue tickets in the order of SPEC 5.3, except those set aside.

    Takes no lock. ``all_set_aside`` includes those set aside, and reads only ``support.tickets``.
    """
    cursor = connection.execute(
        _CLAIM_ALL if all_set_aside else _CLAIM, {"now_utc": now_utc, "tenant_id": tenant_id, "limit": limit}
    )
    return [ticket_id for (ticket_id,) in cursor]


def lock_batch(
    connection: psycopg.Connection, ids: Sequence[str], *, now_utc: datetime, tenant_id: str | None
) -> list[LockedTicket]:
    """Lock those of ``ids`` that are still overdue and that nobody else holds, in the order of SPEC 5.3.

    Needs an open transaction.
    """
    values = {"ids": id_array(ids), "now_utc": now_utc, "tenant_id": tenant_id}
    with connection.cursor(row_factory=args_row(LockedTicket)) as cursor:
        try:
            return cursor.execute(_LOCK_BATCH, values, prepare=True).fetchall()
        except psycopg.DataError as error:
            if error.sqlstate is not None:
                raise
    # The driver, not the server, refuses a time outside Python's range: one odd row must not stop its batch.
    with connection.cursor(row_factory=args_row(LockedTicket)) as cursor:
        cursor.adapters.register_loader("timestamptz", TolerantTimestamptzLoader)
        return cursor.execute(_LOCK_BATCH, values, prepare=True).fetchall()


def still_overdue(connection: psycopg.Connection, ids: Sequence[str], *, now_utc: datetime) -> list[str]:
    """Return those of ``ids`` that are overdue as committed.

    Such a ticket that ``lock_batch`` skipped is locked by another session.
    """
    cursor = connection.execute(_STILL_OVERDUE, {"ids": id_array(ids), "now_utc": now_utc})
    return [ticket_id for (ticket_id,) in cursor]


def other_queues_first(connection: psycopg.Connection, ids: Sequence[str], queue_ids: Iterable[str]) -> list[str]:
    """Return ``ids`` in their order, but those of the queues ``queue_ids`` last; without deleted tickets."""
    cursor = connection.execute(_OTHER_QUEUES_FIRST, {"ids": id_array(ids), "queue_ids": id_array(queue_ids)})
    return [ticket_id for (ticket_id,) in cursor]


def count_backlog(connection: psycopg.Connection, *, now_utc: datetime, tenant_id: str | None = None) -> int:
    """Return the number of overdue, unmarked tickets (SPEC 3.5), those set aside included."""
    row = connection.execute(_BACKLOG, {"now_utc": now_utc, "tenant_id": tenant_id}).fetchone()
    assert row is not None  # noqa: S101  an aggregate always returns a row
    return int(row[0])


def preview(
    connection: psycopg.Connection,
    *,
    now_utc: datetime,
    tenant_id: str | None,
    oldest: int,
    all_set_aside: bool = False,
) -> Preview:
    """Return what a cycle at ``now_utc`` would try to mark, and its ``oldest`` tickets by deadline. Changes nothing.

    ``all_set_aside`` includes those set aside, as in ``claim``, and reads only ``support.tickets``.
    """
    overdue = _PREVIEW.format(wanted="true" if all_set_aside else _NOT_WAITING)
    values = {"now_utc": now_utc, "tenant_id": tenant_id, "limit": oldest}
    with (
        connection.cursor(row_factory=args_row(PreviewCount)) as counts,
        connection.cursor(row_factory=args_row(PreviewTicket)) as tickets,
    ):
        tickets.adapters.register_loader("timestamptz", TolerantTimestamptzLoader)
        return Preview(
            counts.execute(overdue + _PREVIEW_COUNTS, values).fetchall(),
            tickets.execute(overdue + _PREVIEW_OLDEST, values).fetchall(),
        )
