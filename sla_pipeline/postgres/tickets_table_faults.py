"""Comparison of the support service's table with what the monitor needs, by `migrate` and by every cycle.

Accepted are the shapes that were tried on a server and are marked, published and audited with the right values.
Everything else is refused with its remedy: a deadline without a time zone ended each cycle in a traceback, and a flag
that may be null hid a breach in silence.
"""

import re

from sla_pipeline.errors import PostgresSetupError
from sla_pipeline.postgres.tickets_table import BOOLEAN, ENUM, NEEDED, Column, FoundColumn, TicketsTable

__all__ = ["faults", "require_table"]

_TABLE = "support.tickets"
# Definitions under which a missing column can be added to a table with rows.
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


def require_table(found: TicketsTable, *, for_audit: bool) -> None:
    """Raise ``PostgresSetupError``, with all faults in one message, unless the table is as needed. Reads only."""
    reasons = faults(found, for_audit=for_audit)
    if reasons:
        raise PostgresSetupError(
            f"table {_TABLE} in database {found.database!r} is not as the monitor needs it: {'; '.join(reasons)}. "
            "Nothing was touched. The table belongs to the support service: have it changed there"
        )


def faults(found: TicketsTable, *, for_audit: bool) -> list[str]:
    """Return the faults of the table, each with its remedy.

    ``for_audit`` checks also the columns that only the audit reads.
    """
    if found.kind not in (_ORDINARY, _PARTITIONED):
        # the checks below are about the rows that such a relation does not have
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
            f"no inherit {_TABLE}`) or partition the table by id"
            for name, _ in found.below
        ]
    return [
        f"its partition {name} is {_KINDS.get(kind, 'no table')}, whose rows have no version; "
        f"detach it (`alter table {_TABLE} detach partition {name}`)"
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
    adding = f"create unique index {'' if found.partition_keys else 'concurrently '}on {_TABLE} (id)"
    return [f"id has no valid unique index of its own, without a condition; {why}; `{adding}`"]


def _faults_of_column(needed: Column, found: FoundColumn | None) -> list[str]:
    types = " or ".join("an enum" if name == ENUM else name for name in needed.types)
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
            f"`update {_TABLE} set {needed.name} = false where {needed.name} is null`, then "
            if needed.types == BOOLEAN
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
    return ENUM in needed.types and not (needed.labels and found.type != found.base_type)


def _described(found: FoundColumn) -> str:
    return found.type if found.type.partition("(")[0] == found.base_type else f"{found.type} ({found.base_type})"


def _alter(action: str) -> str:
    return f"alter table {_TABLE} {action}"


def _conversion(needed: Column, found: FoundColumn) -> str:
    """Return the statement that converts the column, or nothing where none is right for all values."""
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
        # Postgres does not convert the old default
        action = f"alter column {name} drop default, {action}, alter column {name} set default {default}"
    return f"; `{_alter(action)}`{where}"


def _ungenerated(needed: Column, found: FoundColumn) -> str:
    if found.generated == "s":
        return f"`{_alter(f'alter column {needed.name} drop expression')}`"
    return f"drop it and add it as an ordinary one (`{_alter(f'drop column {needed.name}')}`)"
