"""Our two partial indexes on the support service's table: their definitions, and the warning where the table lacks one.

What does not belong here: building them (``index_build.py``), and which statement needs which (``tickets.py``). An
index counts by its definition, not by its name: one that somebody made by hand is as good.
"""

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass

import psycopg

__all__ = ["DEFINITIONS", "OUR_INDEXES", "OurIndex", "missing_indexes", "warn_of_missing"]

log = logging.getLogger(__name__)

# a unique or a covering index could not be attached to ours on a partitioned table
_DEFINITION = re.compile(
    r"CREATE INDEX .*? USING btree \((?P<columns>[^()]*)\)(?: WITH \([^()]*\))? WHERE (?P<condition>.*)"
)
_NAME = r'(?:"[^"]*"|\w+)'
_CAST = re.compile(rf"::(?:character varying|{_NAME}(?:\.{_NAME})?)(?:\(\d+\))?(?:\[\])?")


@dataclass(frozen=True, slots=True)
class OurIndex:
    """One index: its definition in SQL, and its condition as Postgres prints it, without casts and parentheses."""

    name: str
    columns: str
    condition: str
    printed: frozenset[str]

    def is_defined_by(self, definition: str) -> bool:
        """Whether ``definition``, printed by ``pg_get_indexdef``, has the same columns in the same order, and the
        same condition.
        """
        found = _DEFINITION.fullmatch(definition)
        return found is not None and found["columns"] == self.columns and _conjuncts(found["condition"]) == self.printed


# the statuses and the flags stand in the predicates of tickets.py as literals, in this form, or the planner does not
# use these
OUR_INDEXES = (
    OurIndex(
        "ticket_sla_first_response_overdue",
        "first_response_due_at, id",
        "status in ('New', 'InWork') and not sla_breached and first_response_at is null",
        frozenset(("status = ANY ARRAY['New', 'InWork']", "NOT sla_breached", "first_response_at IS NULL")),
    ),
    OurIndex(
        "ticket_sla_resolution_overdue",
        "resolution_due_at",
        "status = 'InWork' and not sla_breached and resolved_at is null",
        frozenset(("status = 'InWork'", "NOT sla_breached", "resolved_at IS NULL")),
    ),
)


def _conjuncts(condition: str) -> frozenset[str]:
    """The parts of ``((a) AND (b) AND ...)``.

    Casts and parentheses go: which ones are printed depends on the columns' types.
    """
    parts, depth, start = [], 0, 0
    for position, character in enumerate(condition):
        depth += (character == "(") - (character == ")")
        if depth == 1 and condition.startswith(" AND ", position):
            parts.append(condition[start:position])
            start = position + len(" AND ")
    parts.append(condition[start:])
    return frozenset(re.sub(r"[()]", "", _CAST.sub("", part)).strip() for part in parts)


# Of the table itself: on a partitioned one an index stands for those of all partitions, and is valid when all of them
# are. Printing a definition locks the table for a moment, as reading it would.
DEFINITIONS = """
select pg_get_indexdef(indexrelid), indisvalid and indisready from pg_index where indrelid = to_regclass('support.tickets')
"""
# Whoever rebuilds the table holds it for long; a warning is not worth the wait.
_WAIT_MS = 50


def missing_indexes(found: Iterable[tuple[str, bool]]) -> list[OurIndex]:
    """Those of ours that are not among ``found``, rows of ``DEFINITIONS``, under any name, or are half built."""
    valid = [definition for definition, is_valid in found if is_valid]
    return [ours for ours in OUR_INDEXES if not any(map(ours.is_defined_by, valid))]


def warn_of_missing(connection: psycopg.Connection) -> None:
    """Log a warning for each of our indexes that is missing or half built; the job works without, slower."""
    try:
        with connection.pipeline(), connection.transaction():
            connection.execute(f"set local lock_timeout = {_WAIT_MS}")
            cursor = connection.execute(DEFINITIONS)
        found = cursor.fetchall()
    except psycopg.errors.LockNotAvailable:
        return
    for ours in missing_indexes(found):
        log.warning(
            "index missing: cycles get slower as tickets grow; run `sla-pipeline migrate`",
            extra={"index": f"support.{ours.name}"},
        )
