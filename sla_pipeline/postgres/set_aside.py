"""Statements on ``support.ticket_sla_set_aside``: overdue tickets that cannot be marked, out of the claim until their next try.

Why: one bad row must not stop the others, and many bad rows must not fill the ceiling of every cycle. They stay in the backlog,
are tried again with growing pauses, and leave the table when they are marked or no longer overdue.
"""

from collections.abc import Sequence
from datetime import datetime

import psycopg

from sla_pipeline.postgres.tickets import OVERDUE, id_array

__all__ = ["add", "forget", "forget_mended"]

# 1, 2, 4 ... minutes after each failure, at most an hour: a mended row is found within the hour, a thousand bad ones cost little
_ADD = """
insert into support.ticket_sla_set_aside as kept (ticket_id, number, kind, error, first_failed_at, last_failed_at, next_try_at)
select bad.ticket_id, bad.number, bad.kind, bad.error, %(now_utc)s, %(now_utc)s, %(now_utc)s + interval '1 minute'
from unnest(%(ids)s::uuid[], %(numbers)s::text[], %(kinds)s::text[], %(errors)s::text[]) as bad (ticket_id, number, kind, error)
on conflict (ticket_id) do update set
    number = excluded.number, kind = excluded.kind, error = excluded.error, last_failed_at = excluded.last_failed_at,
    try_count = kept.try_count + 1,
    next_try_at = excluded.last_failed_at + least(interval '1 minute' * 2 ^ least(kept.try_count, 10), interval '1 hour')
"""
_FORGET = "delete from support.ticket_sla_set_aside where ticket_id = any(%(ids)s::uuid[])"
# Index: primary keys; the table is small.
_FORGET_MENDED = f"""
delete from support.ticket_sla_set_aside s
where not exists (select from support.tickets where tickets.id = s.ticket_id and {OVERDUE})
"""


def add(connection: psycopg.Connection, rows: Sequence[tuple[str, str, str, str]], *, now_utc: datetime) -> None:
    """Set aside ``(ticket_id, number, kind, error)``; a row that is there already waits twice as long as before, at most an hour."""
    if rows:
        ids, numbers, kinds, errors = (list(column) for column in zip(*rows, strict=True))
        connection.execute(_ADD, {"ids": ids, "numbers": numbers, "kinds": kinds, "errors": errors, "now_utc": now_utc})


def forget(connection: psycopg.Connection, ids: Sequence[str]) -> None:
    """Take rows out that have been marked."""
    if ids:
        connection.execute(_FORGET, {"ids": id_array(ids)})


def forget_mended(connection: psycopg.Connection, *, now_utc: datetime) -> None:
    """Take rows out whose ticket is not overdue any more: answered, resolved, closed, moved, or deleted."""
    connection.execute(_FORGET_MENDED, {"now_utc": now_utc})
