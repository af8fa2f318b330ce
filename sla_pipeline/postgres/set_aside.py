"""Statements on ``support.ticket_sla_set_aside``: overdue tickets that cannot be marked, held until their next try.

One bad row must not stop the others, and many bad rows must not fill the ceiling of every cycle. They stay in the
backlog, are tried again with growing pauses, or at once when the row has changed, and leave the table when they are
marked or no longer overdue.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import psycopg
from psycopg.rows import args_row

from sla_pipeline.postgres.tickets import OF_TENANT, OVERDUE
from sla_pipeline.set_aside import SetAside, TicketSetAside

__all__ = [
    "TABLE",
    "RowSetAside",
    "add",
    "check_readable",
    "forget_mended",
    "recorded",
    "still_set_aside",
    "waiting",
]

TABLE = "support.ticket_sla_set_aside"

# A malformed number may be very long; 200 characters are more than a message shows. The pauses are 1, 2, 4 ... minutes,
# at most an hour, each five seconds shorter, so that a cycle that starts early does not skip a try.
_ADD = """
insert into support.ticket_sla_set_aside as kept
    (ticket_id, number, kind, error, row_version, first_failed_at, last_failed_at, next_try_at)
select bad.ticket_id, left(bad.number, 200), bad.kind, bad.error, bad.row_version,
    %(now_utc)s, %(now_utc)s, %(now_utc)s + interval '55 seconds'
from unnest(%(ids)s::uuid[], %(numbers)s::text[], %(kinds)s::text[], %(errors)s::text[], %(versions)s::text[])
    as bad (ticket_id, number, kind, error, row_version)
on conflict (ticket_id) do update set
    number = excluded.number, kind = excluded.kind, error = excluded.error, row_version = excluded.row_version,
    last_failed_at = excluded.last_failed_at, try_count = kept.try_count + 1,
    next_try_at = excluded.last_failed_at - interval '5 seconds'
        + least(interval '1 minute' * 2 ^ least(kept.try_count, 10), interval '1 hour')
"""
_UNCHANGED = (
    f"tickets.id = s.ticket_id and {OVERDUE} and tickets.xmin::text = coalesce(s.row_version, tickets.xmin::text)"
)
# Index: primary keys; the table is small. The version is compared here, because the claim reads only the index.
_FORGET_MENDED = f"""
delete from support.ticket_sla_set_aside s
where not exists (select from support.tickets where {_UNCHANGED})
"""
# Reads the small table alone: at the end of a cycle `_FORGET_MENDED` has just run.
_ALL = "from support.ticket_sla_set_aside s"
# Index: primary keys.
_STILL = f"{_ALL} where exists (select from support.tickets where {_UNCHANGED})"
_WAITING = (
    f"{_ALL} where s.next_try_at > %(now_utc)s and exists (select from support.tickets where {_UNCHANGED} "
    f"and {OF_TENANT})"
)


class RowSetAside(NamedTuple):
    """A ticket to be set aside; ``row_version`` is None where the row could not be read."""

    ticket_id: str
    number: str
    kind: str
    error: str
    row_version: str | None


def check_readable(connection: psycopg.Connection) -> None:
    """Raise the driver's error when the table cannot be read."""
    connection.execute("select from support.ticket_sla_set_aside limit 0")


def add(connection: psycopg.Connection, rows: Sequence[RowSetAside], *, now_utc: datetime) -> None:
    """Set rows aside; a row already set aside waits twice as long as before, at most an hour."""
    if rows:
        ids, numbers, kinds, errors, versions = (list(column) for column in zip(*rows, strict=True))
        values = {
            "ids": ids,
            "numbers": numbers,
            "kinds": kinds,
            "errors": errors,
            "versions": versions,
            "now_utc": now_utc,
        }
        connection.execute(_ADD, values)


def forget_mended(connection: psycopg.Connection, *, now_utc: datetime) -> None:
    """Delete the rows of tickets that are no longer overdue, or have changed since they failed.

    Such a ticket was marked, answered, closed, moved, deleted or corrected.
    """
    connection.execute(_FORGET_MENDED, {"now_utc": now_utc})


def recorded(connection: psycopg.Connection, *, limit: int) -> SetAside:
    """Return the rows of the table at the end of a cycle, without reading the tickets; ``limit`` of them in full."""
    return _found(connection, _ALL, {"limit": limit})


def still_set_aside(connection: psycopg.Connection, *, now_utc: datetime, limit: int) -> SetAside:
    """Return the tickets set aside that are unchanged and still overdue.

    A cycle at ``now_utc`` would leave these in the table.
    """
    return _found(connection, _STILL, {"limit": limit, "now_utc": now_utc})


def waiting(connection: psycopg.Connection, *, now_utc: datetime, tenant_id: str | None, limit: int) -> SetAside:
    """Return those of them that a cycle at ``now_utc`` would not try, since their next try is later."""
    return _found(connection, _WAITING, {"limit": limit, "now_utc": now_utc, "tenant_id": tenant_id})


def _found(connection: psycopg.Connection, where: str, values: dict[str, object]) -> SetAside:
    row = connection.execute(f"select count(*) {where}", values).fetchone()
    count = int(row[0]) if row else 0
    if not count:
        # Nearly every cycle ends here.
        return SetAside()
    columns = "ticket_id, number, kind, error, try_count, first_failed_at, next_try_at"
    with connection.cursor(row_factory=args_row(TicketSetAside)) as cursor:
        query = f"select {columns} {where} order by first_failed_at, ticket_id limit %(limit)s"
        return SetAside(count, cursor.execute(query, values).fetchall())
