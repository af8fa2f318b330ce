"""A session does not depend on the defaults of server, database and login; the driver's errors become ours."""

from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from sla_pipeline.cycle import SimulatedClock
from sla_pipeline.errors import PostgresSetupError, PostgresUnavailable
from sla_pipeline.kafka.relay import Relay
from sla_pipeline.monitor.runner import run_cycle
from sla_pipeline.postgres.database import Database
from sla_pipeline.postgres.migrate import upgrade
from sla_pipeline.postgres.session import PostgresSettings, translated_errors
from sla_pipeline_tests.integration.conftest import Cycle, Events
from sla_pipeline_tests.integration.postgres.conftest import NewDatabase
from sla_pipeline_tests.tickets import FIRST_RESPONSE_OVERDUE, NOW, breached_ids, make_ticket
from sla_pipeline_tests.waiting import wait_until

Support = psycopg.Connection[Any]


@pytest.mark.parametrize(
    ("setting", "default", "expected"),
    [
        ("timezone", "Asia/Kathmandu", "UTC"),
        ("datestyle", "German, DMY", "ISO, MDY"),
        ("default_transaction_isolation", "serializable", "read committed"),
        ("synchronous_commit", "off", "on"),
        ("row_security", "on", "off"),
        ("statement_timeout", "0", "10s"),
        ("lock_timeout", "0", "5s"),
        ("idle_in_transaction_session_timeout", "0", "15s"),
        ("idle_session_timeout", "1s", "0"),
    ],
)
def test_settings_do_not_depend_on_the_defaults(
    setting: str, default: str, expected: str, support: Support, worker_url: str
) -> None:
    support.execute(
        sql.SQL("alter database {} set {} to {}").format(
            sql.Identifier(support.info.dbname), sql.Identifier(setting), sql.Literal(default)
        )
    )
    with PostgresSettings(worker_url).session(purpose="test") as connection:
        assert connection.execute(f"show {setting}".encode()).fetchone() == (expected,)


def test_options_of_the_url_are_kept_and_ours_win(worker_url: str) -> None:
    url = f"{worker_url}?options=-c%20work_mem%3D9MB%20-c%20timezone%3DAsia/Kathmandu"
    with PostgresSettings(url).session(purpose="test") as connection:
        shown = connection.execute(
            "select current_setting('work_mem'), current_setting('timezone'), current_setting('application_name')"
        )
        assert shown.fetchone() == ("9MB", "UTC", "ticket-sla-monitor test")


@pytest.mark.parametrize("version", ["13.22", "9.6.24"])
def test_a_server_without_our_settings_is_refused_by_its_version(
    version: str, worker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psycopg.ConnectionInfo, "server_version", 130_022)
    monkeypatch.setattr(psycopg.ConnectionInfo, "parameter_status", lambda *_: version)
    with pytest.raises(
        PostgresSetupError, match=f"is served by version '{version}'; the monitor needs PostgreSQL 14 or later"
    ):
        PostgresSettings(worker_url).connect(purpose="test")


def test_a_direct_connection_opens_one_session(support: Support, worker_url: str) -> None:
    with PostgresSettings(worker_url).session(purpose="only one"):
        opened = support.execute(
            "select application_name from pg_stat_activity where usename = %s", (urlsplit(worker_url).username,)
        ).fetchall()
    assert opened == [("ticket-sla-monitor only one",)]


def test_a_migration_is_not_bound_by_the_time_of_a_statement(support: Support, owner_url: str) -> None:
    """An index of years of tickets takes hours to build, whatever the server's default timeout is."""
    support.execute(
        sql.SQL("alter database {} set statement_timeout to '1s'").format(sql.Identifier(support.info.dbname))
    )
    with PostgresSettings(owner_url).connect_unbounded(purpose="migrate") as connection:
        shown = connection.execute(
            "select current_setting('statement_timeout'), current_setting('row_security')"
        ).fetchone()
    assert shown == ("0", "off")


def test_an_idle_session_is_ended_after_the_time_that_was_set(support: Support, worker_url: str) -> None:
    settings = PostgresSettings(worker_url)
    connection = settings.connect(purpose="silent", idle_session_timeout_ms=100)
    wait_until(
        lambda: (
            not support.execute(
                "select 1 from pg_stat_activity where application_name = 'ticket-sla-monitor silent'"
            ).fetchall()
        ),
        what="the server to end the session",
    )
    with (
        pytest.raises(PostgresUnavailable, match="terminating connection due to idle-session timeout"),
        translated_errors(settings),
    ):
        connection.execute("select 1")
    connection.close()


def test_another_pods_commit_does_not_fail_a_batch_where_serializable_is_the_default(
    support: Support, cycle: Cycle, other_pod: Cycle, events: Events
) -> None:
    """Between the first statement of a batch and its last one, another pod hands out sequences."""
    support.execute(
        sql.SQL("alter database {} set default_transaction_isolation to serializable").format(
            sql.Identifier(support.info.dbname)
        )
    )
    first = make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    second: list[str] = []

    def other_pod_marks(step: str) -> None:
        if step == "batch_locked" and not second:
            second.append(make_ticket(support, **FIRST_RESPONSE_OVERDUE))
            assert other_pod().errors == []

    assert cycle(on_step=other_pod_marks).errors == []
    assert breached_ids(support) == {first, *second}
    assert {event.ticket_id for event in events()} == {first, *second}


def test_a_database_without_an_encoding_is_read_as_utf_8(
    new_database: NewDatabase, relay: Relay, events: Events
) -> None:
    url = new_database("encoding 'SQL_ASCII' locale_provider libc locale 'C' template template0")
    upgrade(url, with_tickets=True)
    with psycopg.connect(url, autocommit=True, client_encoding="utf8") as support:
        make_ticket(support, **FIRST_RESPONSE_OVERDUE, number="ЗАЯВКА-1")
    database = Database(PostgresSettings(url))
    assert run_cycle(database, relay, clock=SimulatedClock(NOW)).errors == []
    database.close()
    assert [event.number for event in events()] == ["ЗАЯВКА-1"]
    assert urlsplit(url).path[1:] in database.settings.place
