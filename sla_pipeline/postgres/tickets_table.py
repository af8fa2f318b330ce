"""The support service's table: the columns that the monitor needs, and the table as the catalogue describes it.

``tickets_table_faults.py`` compares the two.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

__all__ = ["BOOLEAN", "CATALOGUE", "ENUM", "NEEDED", "Column", "FoundColumn", "TicketsTable", "read_table"]

BOOLEAN = ("boolean",)
ENUM = "enum"
_UUID = ("uuid",)
_MOMENT = ("timestamp with time zone",)
# char(n) is missing: Postgres pads it with blanks, which SQL ignores in a comparison and Python and an event do not
_TEXT = ("text", "character varying")
# citext compares without case, so it is accepted only where the value is passed on
_PASSED_ON = (*_TEXT, "citext", ENUM)


@dataclass(frozen=True, slots=True)
class Column:
    """Requirements of one column. A domain counts as its base type."""

    name: str
    types: tuple[str, ...]
    """Accepted types as Postgres prints them, without a length; ``enum`` means every enum type."""
    why: str
    """Reason of the requirement, for the message."""
    not_null: bool = False
    written: bool = False
    """The monitor writes it, so it cannot be generated."""
    indexed: bool = False
    """One of our indexes contains it, so it cannot be a virtual generated column."""
    labels: tuple[str, ...] = ()
    """Values that the statements compare with; an enum must have them."""
    audit_only: bool = False
    """Only `sla-pipeline verify` reads it: a cycle works without."""


NEEDED = (
    Column("id", _UUID, "the ticket's identity in the event, the key of its one record", not_null=True, indexed=True),
    Column("number", (*_TEXT, "citext"), "it goes out as text, exactly as people quote it"),
    Column("tenant_id", _UUID, "it goes out as a UUID"),
    Column("queue_id", _UUID, "it goes out as a UUID"),
    Column("requester_user_id", _UUID, "it goes out as a UUID"),
    Column("assignee_user_id", _UUID, "it goes out as a UUID"),
    Column("priority", _PASSED_ON, "it goes out as text"),
    Column(
        "status", (*_TEXT, ENUM), "it is compared with New and InWork, exactly", indexed=True, labels=("New", "InWork")
    ),
    Column("first_response_due_at", _MOMENT, "a deadline must be a moment in time", indexed=True),
    Column("first_response_at", _MOMENT, "a reply must be a moment in time", indexed=True),
    Column("resolution_due_at", _MOMENT, "a deadline must be a moment in time", indexed=True),
    Column("resolved_at", _MOMENT, "a resolution must be a moment in time", indexed=True),
    Column(
        "sla_breached",
        BOOLEAN,
        "the flag of a mark; a ticket whose flag is null would never be found",
        not_null=True,
        written=True,
        indexed=True,
    ),
    Column("updated_at", _MOMENT, "each mark sets it", written=True),
    Column("created_at", _MOMENT, "the audit compares it with the oldest record", audit_only=True),
)


@dataclass(frozen=True, slots=True)
class FoundColumn:
    """A column as the catalogue describes it."""

    name: str
    type: str
    """As declared, with its length."""
    base_type: str
    """Without its length; of a domain, the base type."""
    is_enum: bool = False
    not_null: bool = False
    generated: str = ""
    """Empty, ``s`` (stored) or ``v`` (virtual)."""
    deterministic: bool = True
    """False for a collation under which different texts are equal."""
    unvalidated: str | None = None
    """Name of a not-null constraint that holds for new rows only."""
    labels: tuple[str, ...] = ()
    """An enum's values."""


@dataclass(frozen=True, slots=True)
class TicketsTable:
    """``support.tickets`` as the catalogue describes it."""

    database: str
    kind: str
    """``pg_class.relkind``."""
    partition_keys: tuple[str, ...]
    """Of the table and of partitions that are partitioned again, as Postgres prints them; empty if it is ordinary."""
    has_unique_id: bool
    below: tuple[tuple[str, str], ...] = ()
    """Name and kind of every table that inherits from it: partitions of all levels, or old-style children."""
    columns: dict[str, FoundColumn] = field(default_factory=dict)

    @classmethod
    def of(cls, row: Sequence[Any]) -> "TicketsTable":
        """Build it from a row of ``CATALOGUE``."""
        database, kind, partition_keys, has_unique_id, below, columns = row
        found = (FoundColumn(*[*values[:-1], tuple(values[-1] or ())]) for values in columns or ())
        return cls(
            database,
            kind,
            tuple(partition_keys or ()),
            has_unique_id,
            tuple((name, relation_kind) for name, relation_kind in below or ()),
            {column.name: column for column in found},
        )


# Returns one row, or none where there is no such table. It reads the catalogue only, by its indexes, and calls no
# function that prints an expression of the table: those lock it, and a cycle would wait for somebody who rebuilds the
# table instead of publishing the records that wait. A constraint `not null ... not valid` does not cover earlier rows.
CATALOGUE = """
with recursive resolved (attnum, type_id) as (
    select attnum, atttypid from pg_attribute
    where attrelid = to_regclass('support.tickets') and attnum > 0 and not attisdropped
    union all
    select attnum, typbasetype from resolved join pg_type on oid = type_id where typtype = 'd'
), below (oid) as (
    select inhrelid from pg_inherits where inhparent = to_regclass('support.tickets')
    union all
    select inhrelid from pg_inherits join below on inhparent = below.oid
)
select current_database(), tickets.relkind::text,
    (
        select json_agg(distinct case partstrat when 'h' then 'HASH' when 'r' then 'RANGE' else 'LIST' end || ' (' || (
            select string_agg(coalesce(attname, 'an expression'), ', ' order by position)
            from unnest(partattrs::int2[]) with ordinality as key (attnum, position)
            left join pg_attribute a on a.attrelid = partrelid and a.attnum = key.attnum
        ) || ')')
        from pg_partitioned_table where partrelid = tickets.oid or partrelid in (select oid from below)
    ),
    exists (
        select from pg_index i join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
        where i.indrelid = tickets.oid and a.attname = 'id' and i.indnkeyatts = 1
            and i.indisunique and i.indisvalid and i.indpred is null and i.indexprs is null
    ),
    (
        select json_agg(json_build_array(c.oid::regclass::text, c.relkind) order by c.oid)
        from below join pg_class c using (oid)
    ),
    (
        select json_agg(json_build_array(
            a.attname, format_type(a.atttypid, a.atttypmod),
            case when t.typname = 'citext' then 'citext' else format_type(t.oid, null) end,
            t.typtype = 'e', a.attnotnull and n.conname is null, a.attgenerated,
            coalesce(l.collisdeterministic, true), quote_ident(n.conname),
            (select json_agg(e.enumlabel order by e.enumsortorder) from pg_enum e where e.enumtypid = t.oid)
        ) order by a.attnum)
        from resolved join pg_type t on t.oid = type_id and t.typtype <> 'd'
        join pg_attribute a on a.attrelid = tickets.oid and a.attnum = resolved.attnum
        left join pg_collation l on l.oid = a.attcollation
        left join pg_constraint n
            on n.conrelid = a.attrelid and n.contype = 'n' and n.conkey[1] = a.attnum and not n.convalidated
    )
from pg_class tickets where tickets.oid = to_regclass('support.tickets')
"""


def read_table(connection: psycopg.Connection) -> TicketsTable | None:
    """Return ``support.tickets`` as the catalogue describes it, or None; one round trip, no lock."""
    row = connection.execute(CATALOGUE).fetchone()
    return None if row is None else TicketsTable.of(row)
