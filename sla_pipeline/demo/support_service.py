"""The support service's own statements on ``support.tickets``, as far as the demo plays it: open, save, apply.

What belongs here: SQL. What does not: which tickets and why (``replay.py``, ``traffic.py``). No statement here writes
``sla_breached``: the monitor alone does (SPEC 1.3). The connection may be any, in autocommit mode; ids are text.
"""

from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import NamedTuple

import psycopg
from psycopg.rows import kwargs_row

from sla_pipeline.demo.ticket import Ticket

__all__ = ["OpenForm", "add_new", "apply", "count_tickets", "last_number", "open_form", "open_ids", "save_form"]

_COLUMNS = tuple(field.name for field in fields(Ticket))
# the ticket's identity is never saved again
_SAVED = tuple(column for column in _COLUMNS if column not in ("id", "number", "tenant_id", "created_at"))
_INSERT = (
    f"insert into support.tickets ({', '.join(_COLUMNS)}) "  # noqa: S608
    f"values ({', '.join(f'%({column})s' for column in _COLUMNS)})"
)
_ADD_NEW = f"{_INSERT} on conflict do nothing"
_APPLY = f"{_INSERT} on conflict (id) do update set {', '.join(f'{column} = excluded.{column}' for column in _SAVED)}"
# Index: the primary key. Ids as text whatever the session's loaders are; xmin is the row's version.
_OPEN = f"""
select {", ".join(f"{column}::text" if column.endswith("id") else column for column in _COLUMNS)}, xmin::text as version
from support.tickets where id = %(id)s
"""  # noqa: S608
# Index: the primary key. When somebody has changed the row since it was opened, the monitor for one, no row is hit.
_SAVE = f"""
update support.tickets set {", ".join(f"{column} = %({column})s" for column in _SAVED)}
where id = %(id)s and xmin = %(version)s::xid
"""  # noqa: S608
_OPEN_IDS = "select id::text from support.tickets where status <> 'Closed' order by number"
_LAST_NUMBER = "select max(number) from support.tickets where number ~ %(pattern)s"
_COUNT = "select count(*) from support.tickets"


class OpenForm(NamedTuple):
    """A ticket as an operator sees it on the screen, and the version of the row that it was read from."""

    ticket: Ticket
    version: str


def add_new(connection: psycopg.Connection, tickets: Iterable[Ticket]) -> int:
    """Insert those of ``tickets`` that are not there, in one transaction; returns how many."""
    with connection.transaction(), connection.cursor() as cursor:
        cursor.executemany(_ADD_NEW, [asdict(ticket) for ticket in tickets])
        return cursor.rowcount


def apply(connection: psycopg.Connection, tickets: Iterable[Ticket]) -> None:
    """Make the rows be ``tickets``, in their order, in one transaction: new ones are inserted."""
    with connection.transaction(), connection.cursor() as cursor:
        cursor.executemany(_APPLY, [asdict(ticket) for ticket in tickets])


def open_form(connection: psycopg.Connection, ticket_id: str) -> OpenForm | None:
    """Read a ticket in order to change it later; None when it is gone."""
    with connection.cursor(row_factory=kwargs_row(_form)) as cursor:
        return cursor.execute(_OPEN, {"id": ticket_id}).fetchone()


def _form(*, version: str, **columns: object) -> OpenForm:
    return OpenForm(Ticket(**columns), version)  # type: ignore[arg-type]  # the columns are the fields


def save_form(connection: psycopg.Connection, changed: Ticket, version: str) -> bool:
    """Save a ticket that was opened at ``version``.

    False, and nothing is written, when the row has changed since (optimistic locking).
    """
    return connection.execute(_SAVE, {**asdict(changed), "version": version}).rowcount == 1


def open_ids(connection: psycopg.Connection) -> list[str]:
    """The ids of all tickets that are not closed, in the order of their numbers."""
    return [ticket_id for (ticket_id,) in connection.execute(_OPEN_IDS)]


def last_number(connection: psycopg.Connection, pattern: str) -> str | None:
    """The last number, in alphabetical order, that matches the regular expression ``pattern``; None when there is
    none.
    """
    row = connection.execute(_LAST_NUMBER, {"pattern": pattern}).fetchone()
    return str(row[0]) if row and row[0] is not None else None


def count_tickets(connection: psycopg.Connection) -> int:
    """How many tickets there are."""
    row = connection.execute(_COUNT).fetchone()
    return int(row[0]) if row else 0
