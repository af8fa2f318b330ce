"""Each remedy in an error about Postgres is carried out word for word, and the refused command works afterwards.

Elsewhere: the shape of the tickets' table (``test_tickets_table.py``), what `migrate` puts back and whom it waits for
(``test_put_back.py``, ``test_partitioned_tables.py``), our lost tables (``kafka/test_lost_tables.py``).
"""

import re
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql
from typer.testing import CliRunner

from sla_pipeline.audit.verify import verify
from sla_pipeline.cli import app
from sla_pipeline.cycle import SimulatedClock
from sla_pipeline.errors import PostgresSetupError, SlaPipelineError
from sla_pipeline.kafka.relay import Relay
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.monitor.runner import run_cycle
from sla_pipeline.postgres.database import Database
from sla_pipeline.postgres.migrate import upgrade
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline_tests.integration.postgres.conftest import NewDatabase, NewLogin
from sla_pipeline_tests.tickets import FIRST_RESPONSE_OVERDUE, NOW, make_ticket

Support = psycopg.Connection[Any]


def _remedies(message: str) -> list[str]:
    return re.findall("`([^`]+)`", message)


def _fails_with(url: str, relay: Relay) -> str:
    """Return the error of a cycle, or an empty text."""
    database = Database(PostgresSettings(url))
    try:
        return "; ".join(run_cycle(database, relay, clock=SimulatedClock(NOW)).errors)
    except SlaPipelineError as error:
        return str(error)
    finally:
        database.close()


def _carry_out(support: Support, remedy: str, url: str) -> None:
    """Run a statement as the owner, with the login's name filled in, or a command of `sla-pipeline`."""
    if remedy.startswith("sla-pipeline "):
        info = support.info
        environment = {
            "SLA_POSTGRES_OWNER_URL": f"postgresql://{info.user}:{info.password}@{info.host}:{info.port}/{info.dbname}"
        }
        assert CliRunner().invoke(app, [*remedy.split()[1:], "--no-topics"], env=environment).exit_code == 0
    else:
        login = sql.Identifier(urlsplit(url).username or "").as_string(support)
        support.execute(remedy.replace("LOGIN", login).encode())


@pytest.mark.parametrize(
    ("group", "fault", "remedy"),
    [
        (None, "select 1", "grant sla_worker to LOGIN"),
        ("sla_worker", "alter table support.tickets enable row level security", "alter role LOGIN bypassrls"),
        (
            "sla_worker",
            "revoke all on support.ticket_sla_set_aside from sla_worker",
            "sla-pipeline migrate",
        ),
        (
            "sla_worker",
            "revoke all on support.ticket_sla_cycles from sla_worker",
            "sla-pipeline migrate",
        ),
        ("sla_worker", "delete from support.ticket_sla_relay", "sla-pipeline migrate"),
        ("sla_worker", "drop table support.ticket_sla_relay", "sla-pipeline migrate"),
        ("sla_worker", "drop table support.ticket_sla_set_aside", "sla-pipeline migrate"),
        ("sla_worker", "alter table support.ticket_sla_set_aside drop column next_try_at", "sla-pipeline migrate"),
        ("sla_worker", "drop table support.ticket_sla_schema_version", "sla-pipeline migrate"),
        (
            "sla_worker",
            "update support.ticket_sla_schema_version set version_num = 'sla_0002' where version_num like 'sla%'",
            "sla-pipeline migrate",
        ),
    ],
)
def test_the_remedy_of_a_cycle_works(
    group: str | None, fault: str, remedy: str, support: Support, new_login: NewLogin, relay: Relay
) -> None:
    url = new_login(group) if group else new_login()
    make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    support.execute(fault.encode())
    message = _fails_with(url, relay)
    assert remedy in _remedies(message)
    _carry_out(support, remedy, url)
    assert _fails_with(url, relay) == ""


def test_the_remedy_of_an_audit_works(support: Support, new_login: NewLogin, kafka_settings: KafkaSettings) -> None:
    url = new_login()
    with pytest.raises(PostgresSetupError) as raised:
        verify(PostgresSettings(url), kafka_settings, now_utc=NOW)
    (remedy,) = _remedies(str(raised.value))
    _carry_out(support, remedy, url)
    assert verify(PostgresSettings(url), kafka_settings, now_utc=NOW).clean


def test_an_audit_of_a_deleted_position_names_migrate(
    support: Support, owner_url: str, kafka_settings: KafkaSettings
) -> None:
    support.execute("delete from support.ticket_sla_relay")
    with pytest.raises(
        PostgresSetupError, match=r"support\.ticket_sla_relay has no row with id 1: .* run `sla-pipeline migrate`"
    ):
        verify(PostgresSettings(owner_url), kafka_settings, now_utc=NOW)
    _carry_out(support, "sla-pipeline migrate", owner_url)
    assert verify(PostgresSettings(owner_url), kafka_settings, now_utc=NOW).clean


def test_a_demo_is_migrated_with_the_option_that_is_named(new_database: NewDatabase) -> None:
    url = new_database()
    with pytest.raises(PostgresSetupError, match="or pass --with-tickets for a demo"):
        upgrade(url)
    assert (
        CliRunner()
        .invoke(app, ["migrate", "--with-tickets", "--no-topics"], env={"SLA_POSTGRES_OWNER_URL": url})
        .exit_code
        == 0
    )
