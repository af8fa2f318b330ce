"""The rule exists twice, in Python (``breach.judge``) and in SQL (``postgres/tickets.py``): this holds the two equal.

The tickets are random, with values at the edges: null, equal and infinite times, a microsecond before and after the
cut-off, every status.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sla_pipeline.breach import BreachKind, judge
from sla_pipeline.postgres import tickets
from sla_pipeline.postgres.session import DISTANT_FUTURE, DISTANT_PAST, PostgresSettings
from sla_pipeline_tests.tickets import HOUR, MICROSECOND, NOW

_TENANTS = [str(uuid.UUID(int=1)), str(uuid.UUID(int=2))]
# times that Postgres can hold and Python cannot, and the values that the worker reads for them
_BEYOND = {"-infinity": DISTANT_PAST, "infinity": DISTANT_FUTURE, "0044-03-15 00:00:00+00 BC": DISTANT_PAST}
_MOMENTS = [NOW, NOW - MICROSECOND, NOW + MICROSECOND, NOW - HOUR, NOW - HOUR, NOW + HOUR, *_BEYOND]


@dataclass(frozen=True)
class Row:
    """A ticket as generated; times are aware datetimes, or the text of one that Python cannot hold."""

    id: str
    tenant_id: str
    status: str
    sla_breached: bool
    first_response_due_at: Any
    first_response_at: Any
    resolution_due_at: Any
    resolved_at: Any


@dataclass(frozen=True)
class Judged:
    """The same ticket in the form that ``breach.judge`` accepts."""

    status: str
    sla_breached: bool
    first_response_due_at: datetime | None
    first_response_at: datetime | None
    resolution_due_at: datetime | None
    resolved_at: datetime | None


def _seen(moment: datetime | str | None) -> datetime | None:
    return _BEYOND[moment] if isinstance(moment, str) else moment


def _judged(row: Row) -> Any:
    times = (row.first_response_due_at, row.first_response_at, row.resolution_due_at, row.resolved_at)
    return judge(Judged(row.status, row.sla_breached, *map(_seen, times)), NOW)


def _order(row: Row) -> tuple[bool, datetime, str]:
    """Return the sort key of SPEC 5.3.

    A ticket without a first deadline is last; a time that Python cannot hold is before or after all others.
    """
    due_at = row.first_response_due_at
    if due_at == "0044-03-15 00:00:00+00 BC":
        return False, DISTANT_PAST + MICROSECOND, row.id
    return due_at is None, _seen(due_at) or DISTANT_FUTURE, row.id


moments = st.sampled_from([None, *_MOMENTS])
rows = st.builds(
    Row,
    id=st.uuids().map(str),
    tenant_id=st.sampled_from(_TENANTS),
    # the two active statuses are frequent
    status=st.sampled_from(["New", "InWork", "InWork", "OnHold", "Resolved", "Closed", "new", ""]),
    sla_breached=st.sampled_from([False, False, False, True]),
    first_response_due_at=moments,
    first_response_at=moments,
    resolution_due_at=moments,
    resolved_at=st.sampled_from([None, None, *_MOMENTS]),
)


@pytest.fixture(scope="module")
def session(migrated_template: str, postgres_server_url: str) -> Iterator[psycopg.Connection]:
    """One session for all examples, in a separate database."""
    name = f"rule_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_server_url, autocommit=True) as server:
        server.execute(f'create database "{name}" template "{migrated_template}"'.encode())
        with PostgresSettings(postgres_server_url.rpartition("/")[0] + f"/{name}").connect(
            purpose="test"
        ) as connection:
            yield connection
        server.execute(f'drop database "{name}"'.encode())


def _fill(session: psycopg.Connection, generated: list[Row]) -> None:
    session.execute("truncate support.tickets")
    columns = (
        "id, tenant_id, status, sla_breached, first_response_due_at, first_response_at, resolution_due_at, resolved_at"
    )
    with (
        session.cursor() as cursor,
        cursor.copy(f"copy support.tickets (number, {columns}) from stdin".encode()) as copy,
    ):
        for row in generated:
            copy.write_row((row.id, *vars(row).values()))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    generated=st.lists(rows, max_size=80, unique_by=lambda row: row.id),
    limit=st.integers(1, 60),
    tenant=st.sampled_from([None, *_TENANTS]),
)
def test_rule_agrees_with_sql(
    session: psycopg.Connection, generated: list[Row], limit: int, tenant: str | None
) -> None:
    _fill(session, generated)
    of_tenant = [row for row in generated if tenant in (None, row.tenant_id)]
    overdue = sorted((row for row in of_tenant if _judged(row) is not None), key=_order)
    expected = [row.id for row in overdue]

    assert tickets.claim(session, now_utc=NOW, tenant_id=tenant, limit=limit) == expected[:limit]
    assert tickets.claim(session, now_utc=NOW, tenant_id=tenant, limit=1_000) == expected
    assert tickets.count_backlog(session, now_utc=NOW, tenant_id=tenant) == len(expected)

    # all ids, not only the claimed ones: the same rule must drop a ticket that an operator has changed since the claim
    everything = [row.id for row in generated]
    with session.transaction():
        locked = tickets.lock_batch(session, everything, now_utc=NOW, tenant_id=tenant)
        assert [ticket.id for ticket in locked] == expected
        assert [judge(ticket, NOW) for ticket in locked] == [_judged(row) for row in overdue]
    assert tickets.still_overdue(session, everything, now_utc=NOW) == [
        row.id for row in sorted(generated, key=_order) if _judged(row) is not None
    ]

    shown = tickets.preview(session, now_utc=NOW, tenant_id=tenant, oldest=1_000)
    assert {(ticket.id, ticket.kind, ticket.due_at) for ticket in shown.oldest} == {
        (row.id, _judged(row).kind.value, _judged(row).due_at) for row in overdue
    }
    assert shown.total == len(expected)
    kinds = [_judged(row).kind for row in overdue]
    assert {kind: sum(count.count for count in shown.counts if count.kind == kind) for kind in BreachKind} == {
        kind: kinds.count(kind) for kind in BreachKind
    }


def test_every_edge_is_generated() -> None:
    """The samples hold each side of the cut-off, or the property would prove little."""
    assert {NOW, NOW - MICROSECOND, NOW + MICROSECOND} <= set(_MOMENTS)
    assert datetime.min.replace(tzinfo=UTC) == DISTANT_PAST
