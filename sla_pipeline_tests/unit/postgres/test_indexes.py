"""Recognition of our indexes by the definition that Postgres prints, for the types that a support service may use."""

import pytest

from sla_pipeline.postgres.indexes import OUR_INDEXES

_FIRST, _RESOLUTION = OUR_INDEXES
_TEXT = "(status = ANY (ARRAY['New'::text, 'InWork'::text]))"
_REST = "(NOT sla_breached) AND (first_response_at IS NULL)"


@pytest.mark.parametrize(
    "condition",
    [
        f"({_TEXT} AND {_REST})",
        f"({_REST} AND {_TEXT})",
        "(((status)::text = ANY ((ARRAY['New'::character varying, 'InWork'::character varying])::text[])) AND "
        f"{_REST})",
        f"((status = ANY (ARRAY['New'::support.ticket_status, 'InWork'::support.ticket_status])) AND {_REST})",
        f"((status = ANY (ARRAY['New'::support.\"a (status)\", 'InWork'::support.\"a (status)\"])) AND {_REST})",
        "(((status)::text = ANY (ARRAY['New'::text, 'InWork'::text])) AND (NOT (sla_breached)::boolean) AND "
        "(first_response_at IS NULL))",
    ],
)
def test_recognized_whatever_the_columns_types(condition: str) -> None:
    for name in ("ticket_sla_first_response_overdue", '"by hand"'):
        for only in ("", "ONLY "):
            definition = (
                f"CREATE INDEX {name} ON {only}support.tickets USING btree (first_response_due_at, id) "
                f"WHERE {condition}"
            )
            assert _FIRST.is_defined_by(definition)
            assert not _RESOLUTION.is_defined_by(definition)


@pytest.mark.parametrize(
    "definition",
    [
        f"CREATE INDEX i ON support.tickets USING btree (first_response_due_at) WHERE ({_TEXT} AND {_REST})",
        f"CREATE INDEX i ON support.tickets USING btree (id, first_response_due_at) WHERE ({_TEXT} AND {_REST})",
        f"CREATE INDEX i ON support.tickets USING btree (first_response_due_at DESC, id) WHERE ({_TEXT} AND {_REST})",
        f"CREATE INDEX i ON support.tickets USING btree (first_response_due_at NULLS FIRST, id) WHERE ({_TEXT} AND "
        f"{_REST})",
        f"CREATE UNIQUE INDEX i ON support.tickets USING btree (first_response_due_at, id) WHERE ({_TEXT} AND {_REST})",
        f"CREATE INDEX i ON support.tickets USING btree (first_response_due_at, id) INCLUDE (number) WHERE ({_TEXT} "
        f"AND {_REST})",
        f"CREATE INDEX i ON support.tickets USING brin (first_response_due_at, id) WHERE ({_TEXT} AND {_REST})",
        "CREATE INDEX i ON support.tickets USING btree (first_response_due_at, id)",
        f"CREATE INDEX i ON support.tickets USING btree (first_response_due_at, id) WHERE {_TEXT}",
        f"CREATE INDEX i ON support.tickets USING btree (first_response_due_at, id) WHERE ({_TEXT} AND {_REST} AND "
        "(queue_id IS NULL))",
        "CREATE INDEX i ON support.tickets USING btree (first_response_due_at, id) WHERE"
        f" ({_TEXT} AND (NOT (sla_breached AND (first_response_at IS NULL))))",
        "CREATE INDEX i ON support.tickets USING btree (first_response_due_at, id) WHERE"
        f" ((status = ANY (ARRAY['New'::text, 'Closed'::text])) AND {_REST})",
        "CREATE INDEX i ON support.tickets USING btree (first_response_due_at, id) WHERE ((status = 'New'::text) "
        f"AND {_REST})",
        f"CREATE INDEX i ON support.tickets USING btree (first_response_due_at, id) WHERE ({_TEXT} OR "
        f"{_REST.replace('AND', 'OR')})",
    ],
)
def test_not_recognized(definition: str) -> None:
    assert not _FIRST.is_defined_by(definition)
