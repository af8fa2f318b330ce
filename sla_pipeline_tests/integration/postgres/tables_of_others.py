"""``support.tickets`` in the shapes that a support service may create."""

import psycopg

COLUMNS = {
    "id": "uuid not null",
    "number": "text not null",
    "tenant_id": "uuid",
    "queue_id": "uuid",
    "requester_user_id": "uuid",
    "assignee_user_id": "uuid",
    "priority": "text",
    "status": "text not null",
    "first_response_due_at": "timestamptz",
    "first_response_at": "timestamptz",
    "resolution_due_at": "timestamptz",
    "resolved_at": "timestamptz",
    "sla_breached": "boolean not null default false",
    "created_at": "timestamptz not null default now()",
    "updated_at": "timestamptz not null default now()",
}
HASHED = (
    *(
        f"create table support.tickets_{part} partition of support.tickets for values with (modulus 3, remainder "
        f"{part})"
        for part in range(2)
    ),
    # a second level, in a schema of its own
    "create schema archive",
    'create table archive."old tickets" partition of support.tickets for values with (modulus 3, remainder 2) '
    "partition by range (id)",
    'create table archive.old_low partition of archive."old tickets" for values from (minvalue) to '
    "('80000000000000000000000000000000')",
    'create table archive.old_high partition of archive."old tickets" default',
)
"""Three partitions by hash of the id, the last one partitioned again, by range of the id: four leaves."""


def make_table(
    url: str, *, key: str = "primary key (id)", suffix: str = "", after: tuple[str, ...] = (), **columns: str
) -> None:
    """Create the table with some ``columns`` of another type; an empty type omits the column."""
    definitions = [f"{name} {definition}" for name, definition in {**COLUMNS, **columns}.items() if definition]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create schema if not exists support")
        table = ", ".join([*definitions, key] if key else definitions)
        for statement in (f"create table support.tickets ({table}) {suffix}", *after):
            connection.execute(statement.encode())


def make_hashed_table(url: str) -> None:
    """Create a partitioned table whose id is unique."""
    make_table(url, suffix="partition by hash (id)", after=HASHED)
