"""Statements of the simulated support service on ``support.tickets``: open, save, apply.

No statement writes ``sla_breached``: the monitor alone does (SPEC 1.3). Connections are in autocommit mode; ids are
text.
"""

from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import NamedTuple

import psycopg
from psycopg.rows import kwargs_row

from sla_pipeline.demo.ticket import Ticket

__all__ = ["OpenForm", "add_new", "apply", "count_tickets", "last_number", "open_form", "open_ids", "save_form"]

_COLUMNS = tuple(field.name for field in fields(Ticket))
# columns that are written again; the ticket's identity never changes
_SAVED = tuple(column for column in _COLUMNS if column not in ("id", "number", "tenant_id", "created_at"))
_INSERT = (
    f"insert into support.tickets ({', '.join(_COLUMNS)}) "  # noqa: S608
    f"values ({', '.join(f'%({column})s' for column in _COLUMNS)})"
)
_ADD_NEW = f"{_INSERT} on conflict do nothing"
_APPLY = f"{_INSERT} on conflict (id) do update set {', '.join(f'{column} = excluded.{column}' for column in _SAVED)}"
# Index: the primary key. The casts return ids as text with any loader of the session; xmin is the row's version.
_OPEN = f"""
select {", ".join(f"{column}::text" if column.endswith("id") else column for column in _COLUMNS)}, xmin::text as version
from support.tickets where id = %(id)s
"""  # noqa: S608
# Index: the primary key. No row is hit when the row has changed since it was opened, for instance by the monitor.
_SAVE = f"""
update support.tickets set {", ".join(f"{column} = %({column})s" for column in _SAVED)}
where id = %(id)s and xmin = %(version)s::xid
"""  # noqa: S608
_OPEN_IDS = "select id::text from support.tickets where status <> 'Closed' order by number"
_LAST_NUMBER = "select max(number) from support.tickets where number ~ %(pattern)s"
_COUNT = "select count(*) from support.tickets"


class OpenForm(NamedTuple):
    """A ticket as an operator opened it, and the version of its row."""

    ticket: Ticket
    version: str


def add_new(connection: psycopg.Connection, tickets: Iterable[Ticket]) -> int:
    """Insert the tickets that do not exist yet, in one transaction; return their number."""
    with connection.transaction(), connection.cursor() as cursor:
        cursor.executemany(_ADD_NEW, [asdict(ticket) for ticket in tickets])
        return cursor.rowcount


def apply(connection: psycopg.Connection, tickets: Iterable[Ticket]) -> None:
    """Insert or update ``tickets``, in their order, in one transaction."""
    with connection.transaction(), connection.cursor() as cursor:
        cursor.executemany(_APPLY, [asdict(ticket) for ticket in tickets])


def open_form(connection: psycopg.Connection, ticket_id: str) -> OpenForm | None:
    """Read a ticket to change it later; None when it does not exist."""
    with connection.cursor(row_factory=kwargs_row(_form)) as cursor:
        return cursor.execute(_OPEN, {"id": ticket_id}).fetchone()


def _form(*, version: str, **columns: object) -> OpenForm:
    return OpenForm(Ticket(**columns), version)  # type: ignore[arg-type]  # the columns are the fields


def save_form(connection: psycopg.Connection, changed: Ticket, version: str) -> bool:
    """Save a ticket that was opened at ``version`` (optimistic locking).

    Returns False, without a write, when the row has changed since.
    """
    return connection.execute(_SAVE, {**asdict(changed), "version": version}).rowcount == 1


def open_ids(connection: psycopg.Connection) -> list[str]:
    """Return the ids of all tickets that are not closed, in the order of their numbers."""
    return [ticket_id for (ticket_id,) in connection.execute(_OPEN_IDS)]


def last_number(connection: psycopg.Connection, pattern: str) -> str | None:
    """Return the alphabetically last ticket number that matches the regular expression ``pattern``, or None."""
    row = connection.execute(_LAST_NUMBER, {"pattern": pattern}).fetchone()
    return str(row[0]) if row and row[0] is not None else None


def count_tickets(connection: psycopg.Connection) -> int:
    """Return the number of tickets."""
    row = connection.execute(_COUNT).fetchone()
    return int(row[0]) if row else 0
