"""Rows that the job's statements read: a claim only the index entries that it returns, a batch the primary key's.

SPEC 5.3. No other test fails when each batch of a cycle reads the whole backlog.
"""

from typing import Any

import psycopg
import pytest

from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline.postgres.tickets import claim, lock_batch
from sla_pipeline_tests.tickets import FIRST_RESPONSE_OVERDUE, NOW, make_tickets

_OVERDUE_COUNT = 3_000
_READ_OF_INDEXES = """
select relname, pg_stat_get_xact_tuples_returned(pg_class.oid) from pg_index join pg_class on pg_class.oid = indexrelid
where indrelid = 'support.tickets'::regclass and pg_stat_get_xact_tuples_returned(pg_class.oid) > 0
"""


@pytest.fixture
def overdue(support: psycopg.Connection[Any]) -> list[str]:
    """The ids of a backlog, among many tickets that are not overdue."""
    ids = make_tickets(support, _OVERDUE_COUNT, **FIRST_RESPONSE_OVERDUE)
    make_tickets(support, 20_000)
    support.execute("vacuum analyze support.tickets")
    return ids


def test_a_claim_reads_no_more_of_the_index_than_it_takes(overdue: list[str], worker_url: str) -> None:
    with PostgresSettings(worker_url).session(purpose="test") as session, session.transaction():
        assert claim(session, now_utc=NOW, tenant_id=None, limit=100) == overdue[:100]
        assert dict(session.execute(_READ_OF_INDEXES).fetchall()) == {"ticket_sla_first_response_overdue": 100}


@pytest.mark.parametrize("count", [1, 50, 500])
def test_a_batch_is_locked_by_the_primary_key(count: int, overdue: list[str], worker_url: str) -> None:
    with PostgresSettings(worker_url).session(purpose="test") as session, session.transaction():
        assert len(lock_batch(session, overdue[-count:], now_utc=NOW, tenant_id=None)) == count
        assert dict(session.execute(_READ_OF_INDEXES).fetchall()) == {"tickets_pkey": count}
