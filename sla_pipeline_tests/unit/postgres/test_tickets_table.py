"""Shapes of the tickets' table that the embedded server cannot create: it has neither citext nor ICU collations."""

from dataclasses import replace

import pytest

from sla_pipeline.postgres.tickets_table import NEEDED, FoundColumn, TicketsTable
from sla_pipeline.postgres.tickets_table_faults import faults

_COLUMNS = {
    needed.name: FoundColumn(needed.name, needed.types[0], needed.types[0], not_null=needed.not_null)
    for needed in NEEDED
}


def _faults(**changed: FoundColumn) -> list[str]:
    return faults(TicketsTable("db", "r", (), has_unique_id=True, columns=_COLUMNS | changed), for_audit=True)


def test_the_declaration_is_met_by_what_it_declares() -> None:
    assert _faults() == []


@pytest.mark.parametrize("name", ["number", "priority"])
def test_citext_is_text_where_it_is_only_passed_on(name: str) -> None:
    assert _faults(**{name: replace(_COLUMNS[name], type="citext", base_type="citext")}) == []
    assert _faults(**{name: replace(_COLUMNS[name], type="support.word", base_type="citext")}) == []


def test_a_status_that_is_compared_without_case_is_refused() -> None:
    """SQL would find "new" equal to New; the rule, the audit and consumers would not."""
    assert _faults(status=replace(_COLUMNS["status"], type="citext", base_type="citext")) == [
        "column status is citext, needed is text or character varying or an enum (it is compared with New and InWork, "
        "exactly); `alter table support.tickets alter column status type text using status::text`"
    ]
    assert _faults(status=replace(_COLUMNS["status"], deterministic=False)) == [
        "column status has a collation under which different texts are equal, needed is a deterministic one (it is "
        "compared with New and "
        'InWork, exactly); `alter table support.tickets alter column status type text collate "default"`'
    ]
    assert _faults(number=replace(_COLUMNS["number"], deterministic=False)) == []
