"""Our two partial indexes on the support service's table: their definitions, and the warning where the table lacks one.

What does not belong here: building them (``index_build.py``), and which statement needs which (``tickets.py``). An index counts by its
definition, not by its name: one that somebody made by hand is as good.
"""

import logging
import re
from dataclasses import dataclass

from sla_pipeline.postgres.tickets_table import TicketsTable

__all__ = ["OUR_INDEXES", "OurIndex", "missing_indexes", "warn_of_missing"]

log = logging.getLogger(__name__)

# a unique or a covering index could not be attached to ours on a partitioned table
_DEFINITION = re.compile(r"CREATE INDEX .*? USING btree \((?P<columns>[^()]*)\)(?: WITH \([^()]*\))? WHERE (?P<condition>.*)")
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
        """Whether ``definition``, printed by ``pg_get_indexdef``, has the same columns in the same order, and the same condition."""
        found = _DEFINITION.fullmatch(definition)
        return found is not None and found["columns"] == self.columns and _conjuncts(found["condition"]) == self.printed


# the statuses and the flags stand in the predicates of tickets.py as literals, in this form, or the planner does not use these
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
    """The parts of ``((a) AND (b) AND ...)``. Casts and parentheses go: which ones are printed depends on the columns' types."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(condition):
        depth += (character == "(") - (character == ")")
        if depth == 1 and condition.startswith(" AND ", position):
            parts.append(condition[start:position])
            start = position + len(" AND ")
    parts.append(condition[start:])
    return frozenset(re.sub(r"[()]", "", _CAST.sub("", part)).strip() for part in parts)


def missing_indexes(found: TicketsTable) -> list[OurIndex]:
    """Those of ours that the table lacks under any name, or has half built."""
    return [ours for ours in OUR_INDEXES if not any(index.valid and ours.is_defined_by(index.definition) for index in found.indexes)]


def warn_of_missing(found: TicketsTable) -> None:
    """Log a warning for each of our indexes that is missing or half built; the job works without, slower."""
    for ours in missing_indexes(found):
        log.warning("index missing: cycles get slower as tickets grow; run `sla-pipeline migrate`", extra={"index": f"support.{ours.name}"})
