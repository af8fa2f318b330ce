"""Rows of ``support.tickets`` for tests, and the changes that operators make.

Every connection belongs to the support service: autocommit, with its own rights.
"""

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
"""Time of the ``clock`` fixture at the start of a test."""
MICROSECOND = timedelta(microseconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
TENANT = "0a11ce00-0000-4000-8000-000000000001"
QUEUE = "0b0b0000-0000-4000-8000-000000000002"

# defaults of a ticket: new, no reply, both deadlines ahead
_DEFAULTS: dict[str, Any] = {
    "tenant_id": TENANT,
    "queue_id": QUEUE,
    "requester_user_id": "0ca70000-0000-4000-8000-000000000003",
    "assignee_user_id": None,
    "priority": "Normal",
    "status": "New",
    "first_response_due_at": NOW + HOUR,
    "first_response_at": None,
    "resolution_due_at": NOW + 8 * HOUR,
    "resolved_at": None,
    "sla_breached": False,
    "created_at": NOW - 4 * HOUR,
    "updated_at": NOW - 4 * HOUR,
}
FIRST_RESPONSE_OVERDUE: dict[str, Any] = {"status": "New", "first_response_due_at": NOW - MINUTE}
"""New, no reply, one minute late."""
RESOLUTION_OVERDUE: dict[str, Any] = {
    "status": "InWork",
    "first_response_due_at": NOW - 3 * HOUR,
    "first_response_at": NOW - 4 * HOUR,
    "resolution_due_at": NOW - MINUTE,
}
"""Replied in time, in work, resolution one minute late."""


def make_ticket(connection: psycopg.Connection[Any], **overrides: Any) -> str:
    """Insert one ticket and return its id."""
    return make_tickets(connection, 1, **overrides)[0]


def make_tickets(
    connection: psycopg.Connection[Any], count: int, *, apart: timedelta = timedelta(milliseconds=1), **overrides: Any
) -> list[str]:
    """Insert ``count`` tickets with first responses due ``apart`` from each other; return their ids in that order."""
    columns = {**_DEFAULTS, **overrides}
    ids = [str(columns.pop("id", None) or uuid.uuid4()) for _ in range(count)]
    number = columns.pop("number", None)
    first_due_at = columns.pop("first_response_due_at")
    names = ["id", "number", "first_response_due_at", *columns]
    copy = sql.SQL("copy support.tickets ({}) from stdin").format(sql.SQL(", ").join(map(sql.Identifier, names)))
    with connection.cursor() as cursor, cursor.copy(copy) as rows:
        for position, ticket_id in enumerate(ids):
            due_at = first_due_at + position * apart if isinstance(first_due_at, datetime) else first_due_at
            rows.write_row((ticket_id, f"TCK-{ticket_id}" if number is None else number, due_at, *columns.values()))
    return ids


def before_update(connection: psycopg.Connection[Any], body: str) -> None:
    """Create a trigger of the support service; ``body`` is PL/pgSQL and may use ``new``."""
    connection.execute(
        f"create function support.before_update() returns trigger language plpgsql as $$ begin {body} return new; "
        "end $$"
    )
    connection.execute(
        "create trigger before_update before update on support.tickets for each row execute function "
        "support.before_update()"
    )


def change(connection: psycopg.Connection[Any], ticket_id: str, **values: object) -> int:
    """Update one ticket as an operator or a script does; return the number of updated rows."""
    assignments = sql.SQL(", ").join(
        sql.SQL("{} = {}").format(sql.Identifier(name), sql.Placeholder(name)) for name in values
    )
    statement = sql.SQL("update support.tickets set {} where id = %(ticket_id)s").format(assignments)
    return connection.execute(statement, {**values, "ticket_id": ticket_id}).rowcount


def reply(connection: psycopg.Connection[Any], ticket_id: str, *, at: datetime = NOW) -> None:
    """Record the first public reply."""
    change(connection, ticket_id, first_response_at=at, updated_at=at)


def resolve(connection: psycopg.Connection[Any], ticket_id: str, *, at: datetime = NOW) -> None:
    """Resolve the ticket."""
    change(connection, ticket_id, status="Resolved", resolved_at=at, updated_at=at)


def close(connection: psycopg.Connection[Any], ticket_id: str, *, at: datetime = NOW) -> None:
    """Close the ticket without a reply."""
    change(connection, ticket_id, status="Closed", updated_at=at)


def look(connection: psycopg.Connection[Any], ticket_id: str) -> dict[str, Any]:
    """Return the whole row."""
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute("select * from support.tickets where id = %s", (ticket_id,)).fetchone()
    assert row is not None
    return row


def is_breached(connection: psycopg.Connection[Any], ticket_id: str) -> bool:
    """Return whether the ticket is marked."""
    return bool(look(connection, ticket_id)["sla_breached"])


def breached_ids(connection: psycopg.Connection[Any]) -> set[str]:
    """Return the ids of all marked tickets."""
    return {str(ticket_id) for (ticket_id,) in connection.execute("select id from support.tickets where sla_breached")}


def row_versions(connection: psycopg.Connection[Any]) -> Sequence[tuple[Any, ...]]:
    """Return place and transactions of each row version; equal results mean no write or lock in between."""
    return connection.execute("select id, ctid, xmin, xmax from support.tickets order by id").fetchall()
