"""Fixtures of the auditor's tests: an analyst's login, the audit, the topic, and a consistent initial state."""

import secrets
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Protocol
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from sla_pipeline.audit.findings import AuditReport
from sla_pipeline.audit.verify import OnProgress, verify
from sla_pipeline.cycle import CycleInput, CycleTotals, SimulatedClock
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.monitor.steps import claim_overdue, mark_breached
from sla_pipeline.postgres.database import Database
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline_tests.integration.audit.fault_injection import Support, Topic
from sla_pipeline_tests.integration.conftest import Cycle
from sla_pipeline_tests.tickets import FIRST_RESPONSE_OVERDUE, NOW, RESOLUTION_OVERDUE, make_ticket, make_tickets

Mark = Callable[[], CycleTotals]


class Audit(Protocol):
    """Function that runs one audit under the analyst's login."""

    def __call__(self, now_utc: datetime = NOW, on_progress: OnProgress = ...) -> AuditReport: ...


@pytest.fixture(scope="session")
def analyst_login(postgres_server_url: str, migrated_template: str) -> Iterator[tuple[str, str]]:
    """Name and password of a login with the rights of an analyst, and no others."""
    name, password = f"analyst_{secrets.token_hex(6)}", secrets.token_urlsafe(16)
    role = sql.Identifier(name)
    with psycopg.connect(postgres_server_url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("create role {} login password {} in role sla_analyst").format(role, sql.Literal(password))
        )
    yield name, password
    with psycopg.connect(postgres_server_url, autocommit=True) as connection:
        connection.execute(sql.SQL("drop role {}").format(role))


@pytest.fixture
def analyst(owner_url: str, analyst_login: tuple[str, str]) -> PostgresSettings:
    """The test's database, as the analyst."""
    server = urlsplit(owner_url)
    return PostgresSettings(
        server._replace(netloc=f"{':'.join(analyst_login)}@{server.netloc.rpartition('@')[2]}").geturl()
    )


@pytest.fixture
def audit(analyst: PostgresSettings, kafka_settings: KafkaSettings) -> Audit:
    """The audit."""

    def run(now_utc: datetime = NOW, on_progress: OnProgress = lambda done, total: None) -> AuditReport:
        return verify(analyst, kafka_settings, now_utc=now_utc, on_progress=on_progress)

    return run


@pytest.fixture
def topic(kafka_settings: KafkaSettings) -> Topic:
    """The event topic."""
    return Topic(kafka_settings)


@pytest.fixture
def mark(database: Database, clock: SimulatedClock, support: Support) -> Mark:
    """The first half of a cycle. Its records wait to be published, since the current moment of the test's clock."""

    def run() -> CycleTotals:
        claim = claim_overdue(database, clock, CycleInput(), run_id="run-that-marked")
        mark_breached(database, claim)
        support.execute("update support.ticket_sla_breaches set recorded_at = breached_at")
        return claim.totals

    return run


@pytest.fixture
def breached(support: Support, cycle: Cycle) -> list[str]:
    """Ids of five tickets that a cycle marked and published, in order, sequences 1 to 5; two more are not overdue."""
    late = make_tickets(support, 3, **FIRST_RESPONSE_OVERDUE)
    late += make_tickets(support, 2, **RESOLUTION_OVERDUE)
    make_ticket(support)
    make_ticket(support, status="Closed", first_response_due_at=NOW)
    report = cycle(run_id="run-1")
    assert (report.processed_count, report.published_count, report.errors) == (5, 5, [])
    return [str(row[0]) for row in support.execute("select ticket_id from support.ticket_sla_breaches order by seq")]
