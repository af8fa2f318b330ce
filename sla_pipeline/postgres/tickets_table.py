"""The support service's table as the monitor needs it: kind, key, columns. One declaration, compared by `migrate` and by every cycle.

What belongs here: the catalogue query, the declaration, the comparison. What does not: statements on tickets
(``tickets.py``), our own tables (``migrations/``). Accepted is what was tried on a server and marks, publishes and
audits the right values. Everything else is refused with its remedy: a deadline without a time zone ended each cycle in
a traceback, a flag that may be null hid a breach in silence.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from sla_pipeline.errors import PostgresSetupError

__all__ = ["CATALOGUE", "Column", "FoundColumn", "TicketsTable", "faults", "read_table", "require_table"]

TABLE = "support.tickets"

_UUID = ("uuid",)
_MOMENT = ("timestamp with time zone",)
_BOOLEAN = ("boolean",)
# char(n) comes padded with blanks, in SQL equal to the value without them and in Python and in an event not
_TEXT = ("text", "character varying")
_ENUM = "enum"
# citext compares without case; what is only passed on may be of it
_PASSED_ON = (*_TEXT, "citext", _ENUM)


@dataclass(frozen=True, slots=True)
class Column:
    """What is needed of one column. A domain counts as the type that it stands on."""

    name: str
    types: tuple[str, ...]
    """Accepted types as Postgres prints them, without a length; ``enum`` stands for every enum type."""
    why: str
    """What goes wrong otherwise, for the message."""
    not_null: bool = False
    written: bool = False
    """The monitor writes it, so it cannot be generated."""
    indexed: bool = False
    """One of our indexes holds it, so it cannot be a virtual generated column."""
    labels: tuple[str, ...] = ()
    """Values that the statements compare with; an enum must have them."""
    audit_only: bool = False
    """Only `sla-pipeline verify` reads it: a cycle goes on without."""


NEEDED = (
    Column("id", _UUID, "the ticket's identity in the event, the key of its one record", not_null=True, indexed=True),
    Column("number", (*_TEXT, "citext"), "it goes out as text, exactly as people quote it"),
    Column("tenant_id", _UUID, "it goes out as a UUID"),
    Column("queue_id", _UUID, "it goes out as a UUID"),
    Column("requester_user_id", _UUID, "it goes out as a UUID"),
    Column("assignee_user_id", _UUID, "it goes out as a UUID"),
    Column("priority", _PASSED_ON, "it goes out as text"),
    Column(
        "status", (*_TEXT, _ENUM), "it is compared with New and InWork, exactly", indexed=True, labels=("New", "InWork")
    ),
    Column("first_response_due_at", _MOMENT, "a deadline must be a moment in time", indexed=True),
    Column("first_response_at", _MOMENT, "a reply must be a moment in time", indexed=True),
    Column("resolution_due_at", _MOMENT, "a deadline must be a moment in time", indexed=True),
    Column("resolved_at", _MOMENT, "a resolution must be a moment in time", indexed=True),
    Column(
        "sla_breached",
        _BOOLEAN,
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
    """A column as the catalogue has it."""

    name: str
    type: str
    """As declared, with its length."""
    base_type: str
    """Without length, a domain resolved."""
    is_enum: bool = False
    not_null: bool = False
    generated: str = ""
    """Empty, ``s`` for stored, ``v`` for virtual."""
    deterministic: bool = True
    """False for a collation under which different texts are equal."""
    unvalidated: str | None = None
    """A constraint that says not null, of new rows only."""
    labels: tuple[str, ...] = ()
    """An enum's values."""


@dataclass(frozen=True, slots=True)
class TicketsTable:
    """``support.tickets`` as the catalogue has it."""

    database: str
    kind: str
    """``pg_class.relkind``."""
    partition_keys: tuple[str, ...]
    """Of the table and of partitions that are partitioned again, as Postgres writes them; empty for an ordinary
    table.
    """
    has_unique_id: bool
    below: tuple[tuple[str, str], ...] = ()
    """Name and kind of every table that inherits from it: partitions of all levels, or old-style children."""
    columns: dict[str, FoundColumn] = field(default_factory=dict)

    @classmethod
    def of(cls, row: Sequence[Any]) -> "TicketsTable":
        """From a row of ``CATALOGUE``."""
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


# One row, or none where there is no such table. Reads the catalogue only, by its indexes. No function that prints an
# expression of the table: those lock it, and a cycle would wait for whoever rebuilds it instead of publishing what
# waits. A constraint `not null ... not valid` says nothing of the rows that were there before.
CATALOGUE = """
with recursive resolved (attnum, type_id) as (
    select attnum, atttypid from pg_attribute where attrelid = to_regclass('support.tickets') and attnum > 0 and not attisdropped
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
    (select json_agg(json_build_array(c.oid::regclass::text, c.relkind) order by c.oid) from below join pg_class c using (oid)),
    (
        select json_agg(json_build_array(
            a.attname, format_type(a.atttypid, a.atttypmod), case when t.typname = 'citext' then 'citext' else format_type(t.oid, null) end,
            t.typtype = 'e',
            a.attnotnull and n.conname is null, a.attgenerated, coalesce(l.collisdeterministic, true), quote_ident(n.conname),
            (select json_agg(e.enumlabel order by e.enumsortorder) from pg_enum e where e.enumtypid = t.oid)
        ) order by a.attnum)
        from resolved join pg_type t on t.oid = type_id and t.typtype <> 'd'
        join pg_attribute a on a.attrelid = tickets.oid and a.attnum = resolved.attnum
        left join pg_collation l on l.oid = a.attcollation
        left join pg_constraint n on n.conrelid = a.attrelid and n.contype = 'n' and n.conkey[1] = a.attnum and not n.convalidated
    )
from pg_class tickets where tickets.oid = to_regclass('support.tickets')
"""

# how a missing column can be added to rows that are there
_ADDED_AS = {"id": " primary key default gen_random_uuid()", "sla_breached": " not null default false"}
_ORDINARY, _PARTITIONED = "r", "p"
_KINDS = {
    "r": "an ordinary table",
    "p": "a partitioned table",
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "S": "a sequence",
    "c": "a composite type",
    "i": "an index",
    "I": "a partitioned index",
}


def read_table(connection: psycopg.Connection) -> TicketsTable | None:
    """``support.tickets`` as the catalogue has it, or None; one round trip, no lock."""
    row = connection.execute(CATALOGUE).fetchone()
    return None if row is None else TicketsTable.of(row)


def require_table(found: TicketsTable, *, for_audit: bool) -> None:
    """Raises ``PostgresSetupError``, with all faults in one message, unless the table is as needed; nothing was touched
    then.
    """
    reasons = faults(found, for_audit=for_audit)
    if reasons:
        raise PostgresSetupError(
            f"table {TABLE} in database {found.database!r} is not as the monitor needs it: {'; '.join(reasons)}. "
            "Nothing was touched. The table belongs to the support service: have it changed there"
        )


def faults(found: TicketsTable, *, for_audit: bool) -> list[str]:
    """What is wrong with the table, each with its remedy; pure.

    ``for_audit`` looks at what only the audit reads as well.
    """
    if found.kind not in (_ORDINARY, _PARTITIONED):
        # without rows of its own nothing below says anything
        return [
            f"it is {_KINDS.get(found.kind, 'no table')}, needed is the ordinary or partitioned table itself, whose "
            "rows can be locked and whose versions can be told apart"
        ]
    reasons = [*_faults_of_tree(found), *_faults_of_key(found)]
    for needed in NEEDED:
        if for_audit or not needed.audit_only:
            reasons += _faults_of_column(needed, found.columns.get(needed.name))
    return reasons


def _faults_of_tree(found: TicketsTable) -> list[str]:
    if found.kind == _ORDINARY:
        return [
            f"it has a child by inheritance, {name}, and no key is unique over both; take it off (`alter table {name} "
            f"no inherit {TABLE}`) or partition the table by id"
            for name, _ in found.below
        ]
    return [
        f"its partition {name} is {_KINDS.get(kind, 'no table')}, whose rows have no version; "
        f"detach it (`alter table {TABLE} detach partition {name}`)"
        for name, kind in found.below
        if kind not in (_ORDINARY, _PARTITIONED)
    ]


def _faults_of_key(found: TicketsTable) -> list[str]:
    if found.has_unique_id or "id" not in found.columns:
        return []
    why = "two rows with one id would be one ticket"
    hindering = [key for key in found.partition_keys if not re.fullmatch(r"(HASH|RANGE|LIST) \(id\)", key)]
    if hindering:
        return [
            f"id is not unique by itself: the table is partitioned by {' and '.join(hindering)}, and Postgres keeps a "
            f"key unique within each partition only unless it holds the partition key; {why}; partition it by hash or "
            "range of id"
        ]
    adding = f"create unique index {'' if found.partition_keys else 'concurrently '}on {TABLE} (id)"
    return [f"id has no valid unique index of its own, without a condition; {why}; `{adding}`"]


def _faults_of_column(needed: Column, found: FoundColumn | None) -> list[str]:
    types = " or ".join("an enum" if name == _ENUM else name for name in needed.types)
    if found is None:
        adding = _alter(f"add column {needed.name} {needed.types[0]}{_ADDED_AS.get(needed.name, '')}")
        return [f"column {needed.name} is missing, needed is {types} ({needed.why}); `{adding}`"]
    reasons = []
    if not _is_accepted(needed, found):
        reasons.append(
            f"column {needed.name} is {_described(found)}, needed is {types} ({needed.why}){_conversion(needed, found)}"
        )
    elif missing := [label for label in needed.labels if found.is_enum and label not in found.labels]:
        adding = ", ".join(f"`alter type {found.type} add value '{label}'`" for label in missing)
        reasons.append(
            f"column {needed.name} is {found.type}, an enum without the value {' and '.join(missing)} "
            f"({needed.why}); {adding}"
        )
    elif needed.labels and not found.deterministic:
        collating = _alter(f'alter column {needed.name} type text collate "default"')
        reasons.append(
            f"column {needed.name} has a collation under which different texts are equal, needed is a deterministic "
            f"one ({needed.why}); `{collating}`"
        )
    if needed.not_null and not found.not_null:
        filling = (
            f"`update {TABLE} set {needed.name} = false where {needed.name} is null`, then "
            if needed.types == _BOOLEAN
            else ""
        )
        setting = _alter(
            f"validate constraint {found.unvalidated}"
            if found.unvalidated
            else f"alter column {needed.name} set not null"
        )
        reasons.append(f"column {needed.name} may be null, needed is not null ({needed.why}); {filling}`{setting}`")
    if found.generated and needed.written:
        reasons.append(
            f"column {needed.name} is generated, needed is one that can be written ({needed.why}); "
            f"{_ungenerated(needed, found)}"
        )
    elif found.generated == "v" and needed.indexed:
        reasons.append(
            f"column {needed.name} is a virtual generated column, needed is one that an index can hold; add it again "
            "as a stored one"
        )
    return reasons


def _is_accepted(needed: Column, found: FoundColumn) -> bool:
    if not found.is_enum:
        return found.base_type in needed.types
    # Postgres has no `in (...)` for a domain over an enum
    return _ENUM in needed.types and not (needed.labels and found.type != found.base_type)


def _described(found: FoundColumn) -> str:
    return found.type if found.type.partition("(")[0] == found.base_type else f"{found.type} ({found.base_type})"


def _alter(action: str) -> str:
    return f"alter table {TABLE} {action}"


def _conversion(needed: Column, found: FoundColumn) -> str:
    """The statement that converts the column, where there is a right one."""
    name, target = needed.name, needed.types[0]
    where, default = "", ""
    match found.base_type, target:
        case "timestamp without time zone", "timestamp with time zone":
            using, where = f"{name} at time zone 'UTC'", ", where its times are UTC"
        case "date", "timestamp with time zone":
            return "; a date has no time of day, so only the support service can say which moment it means"
        case (("smallint" | "integer" | "bigint"), "boolean"):
            using, default = f"{name} <> 0", "false"
        case (("text" | "character varying"), "boolean"):
            using, default = f"{name}::boolean", "false"
        case _, "text":
            using = f"{name}::text"
        case (("text" | "character varying"), ("uuid" | "timestamp with time zone")):
            using = f"{name}::{target}"
        case _:
            return ""
    action = f"alter column {name} type {target} using {using}"
    if default:
        # the old one does not convert by itself
        action = f"alter column {name} drop default, {action}, alter column {name} set default {default}"
    return f"; `{_alter(action)}`{where}"


def _ungenerated(needed: Column, found: FoundColumn) -> str:
    if found.generated == "s":
        return f"`{_alter(f'alter column {needed.name} drop expression')}`"
    return f"drop it and add it as an ordinary one (`{_alter(f'drop column {needed.name}')}`)"
