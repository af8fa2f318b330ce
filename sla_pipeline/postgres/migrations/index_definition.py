"""Definition of a partial index, and its comparison with the text that Postgres prints.

Frozen interface of the revisions: add functions, never change one. No function here names a table or a column.
"""

import re
from dataclasses import dataclass

__all__ = ["IndexDefinition"]

# a unique or a covering index cannot be attached to a plain one on a partitioned table
_DEFINITION = re.compile(
    r"CREATE INDEX .*? USING btree \((?P<columns>[^()]*)\)(?: WITH \([^()]*\))? WHERE (?P<condition>.*)"
)
_NAME = r'(?:"[^"]*"|\w+)'
_CAST = re.compile(rf"::(?:character varying|{_NAME}(?:\.{_NAME})?)(?:\(\d+\))?(?:\[\])?")


@dataclass(frozen=True, slots=True)
class IndexDefinition:
    """A partial b-tree index. It is recognized by its definition, not by its name."""

    name: str
    """Without the schema, which is the table's."""
    table: str
    """``schema.name``."""
    columns: str
    condition: str
    printed: frozenset[str]
    """The parts of the condition as Postgres prints them, without casts and parentheses."""

    @property
    def schema(self) -> str:
        """Schema of the table and of the index."""
        return self.table.partition(".")[0]

    def is_defined_by(self, definition: str) -> bool:
        """Return whether ``definition``, as ``pg_get_indexdef`` prints it, has the same columns and condition."""
        found = _DEFINITION.fullmatch(definition)
        return found is not None and found["columns"] == self.columns and _conjuncts(found["condition"]) == self.printed


def _conjuncts(condition: str) -> frozenset[str]:
    """Return the parts of ``((a) AND (b) AND ...)``, without casts and parentheses, which depend on column types."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(condition):
        depth += (character == "(") - (character == ")")
        if depth == 1 and condition.startswith(" AND ", position):
            parts.append(condition[start:position])
            start = position + len(" AND ")
    parts.append(condition[start:])
    return frozenset(re.sub(r"[()]", "", _CAST.sub("", part)).strip() for part in parts)
