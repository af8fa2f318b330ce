"""Wrong settings and wrong databases: the message names the fault and the remedy, shows no secret; nothing changes."""

from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from sla_pipeline.embedded.ports import free_ports
from sla_pipeline.errors import ConfigurationError, PostgresSetupError, PostgresUnavailable
from sla_pipeline.kafka.relay import Relay
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.monitor.runner import run_cycle
from sla_pipeline.postgres.database import Database
from sla_pipeline.postgres.schema import REVISION
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline.postgres.settings import single_runner_from_environment
from sla_pipeline_tests.integration.conftest import Cycle
from sla_pipeline_tests.tickets import FIRST_RESPONSE_OVERDUE, make_ticket, row_versions

Support = psycopg.Connection[Any]
_SECRET = "s3cr3t-of-the-worker"  # noqa: S105 - no login has it


def _refusal(database_url: str, relay: Relay) -> str:
    """Return the message with which a cycle refuses ``database_url``."""
    database = Database(PostgresSettings(database_url))
    with pytest.raises(PostgresSetupError) as raised:
        run_cycle(database, relay)
    database.close()
    return str(raised.value)


@pytest.mark.parametrize("url", ["", None])
def test_missing_postgres_variable(url: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLA_POSTGRES_URL", raising=False)
    if url is not None:
        monkeypatch.setenv("SLA_POSTGRES_URL", url)
    with pytest.raises(
        ConfigurationError,
        match=r"^SLA_POSTGRES_URL is not set; set it to postgresql://USER:PASSWORD@HOST:PORT/DATABASE, the worker's "
        r"login$",
    ):
        PostgresSettings.from_environment()


@pytest.mark.parametrize(
    "url",
    [
        f"mysql://worker:{_SECRET}@localhost/support",
        f"host=localhost password={_SECRET}",
        f"worker:{_SECRET}@localhost/support",
        f"postgresql://worker:{_SECRET}@localhost/support?sslmod=require",
        f"postgresql://worker:{_SECRET}%@localhost/support",
        f"postgresql://worker:{_SECRET}@[::1/support",
    ],
)
def test_malformed_postgres_variable(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLA_POSTGRES_URL", url)
    with pytest.raises(
        ConfigurationError, match=r"^SLA_POSTGRES_URL .*write postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
    ) as raised:
        PostgresSettings.from_environment()
    assert _SECRET not in str(raised.value)
    assert raised.value.__cause__ is None


def test_settings_do_not_show_the_password() -> None:
    settings = PostgresSettings(f"postgresql://worker:{_SECRET}@db-1:5433/support")
    assert _SECRET not in repr(settings)
    assert settings.place == "database 'support' at db-1:5433 as user 'worker'"


@pytest.mark.parametrize(("value", "single"), [("1", True), ("0", False), ("", False), ("1\n", True), (None, False)])
def test_single_runner_variable(value: str | None, single: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLA_SINGLE_RUNNER", raising=False)
    if value is not None:
        monkeypatch.setenv("SLA_SINGLE_RUNNER", value)
    assert single_runner_from_environment() is single


@pytest.mark.parametrize("value", ["yes", "true", "2"])
def test_malformed_single_runner_variable(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLA_SINGLE_RUNNER", value)
    with pytest.raises(
        ConfigurationError, match=rf"^SLA_SINGLE_RUNNER is '{value}'; set it to 1 for one runner at a time, or to 0$"
    ):
        single_runner_from_environment()


def test_missing_kafka_variable() -> None:
    with pytest.raises(
        ConfigurationError, match=r"^SLA_KAFKA_BOOTSTRAP_SERVERS is not set; set it to Kafka's addresses, such as "
    ):
        KafkaSettings.from_environment({"SLA_KAFKA_BOOTSTRAP_SERVERS": " "})


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("SLA_KAFKA_BOOTSTRAP_SERVERS", "kafka-1", "write them as host:port, separated by commas"),
        ("SLA_KAFKA_TOPIC", "überfällig", "use at most 200 letters, digits, dots, underscores and dashes"),
        ("SLA_KAFKA_CLIENT_CONFIG", f'{{"sasl.password": "{_SECRET}"', r"is not JSON \(line 1, column"),
        ("SLA_KAFKA_CLIENT_CONFIG", f'["{_SECRET}"]', "is a JSON list, not an object"),
        ("SLA_KAFKA_CLIENT_CONFIG", f'{{"sasl.password": ["{_SECRET}"]}}', "the value of 'sasl.password' is a list"),
        (
            "SLA_KAFKA_CLIENT_CONFIG",
            f'{{"transactional.id": "{_SECRET}"}}',
            "set transactional.id: exactly-once publishing depends on",
        ),
    ],
)
def test_malformed_kafka_variable(variable: str, value: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as raised:
        KafkaSettings.from_environment({"SLA_KAFKA_BOOTSTRAP_SERVERS": "kafka-1:9092", variable: value})
    assert variable in str(raised.value)
    assert _SECRET not in str(raised.value)


def test_unreachable_server(relay: Relay) -> None:
    (port,) = free_ports(1)
    database = Database(PostgresSettings(f"postgresql://worker:{_SECRET}@127.0.0.1:{port}/support"))
    with pytest.raises(PostgresUnavailable) as raised:
        run_cycle(database, relay)
    assert f"no connection to database 'support' at 127.0.0.1:{port} as user 'worker': " in str(raised.value)
    assert str(raised.value).endswith("check the server, the network and SLA_POSTGRES_URL")
    assert _SECRET not in str(raised.value)


def test_unknown_host(relay: Relay) -> None:
    database = Database(PostgresSettings(f"postgresql://worker:{_SECRET}@nowhere.invalid/support"))
    with pytest.raises(
        PostgresUnavailable, match=r"no connection to database 'support' at nowhere\.invalid:5432 as user 'worker': "
    ):
        run_cycle(database, relay)


def test_wrong_password(worker_url: str, worker_login: tuple[str, str], relay: Relay) -> None:
    message = _refusal(worker_url.replace(worker_login[1], _SECRET), relay)
    assert message.startswith("cannot log in to database ")
    assert f"as user '{worker_login[0]}'" in message
    assert message.endswith("check user and password in SLA_POSTGRES_URL")
    assert _SECRET not in message
    assert worker_login[1] not in message


def test_wrong_database(worker_url: str, relay: Relay) -> None:
    message = _refusal(urlsplit(worker_url)._replace(path="/supprt").geturl(), relay)
    assert message.startswith("cannot log in to database 'supprt' at ")
    assert 'database "supprt" does not exist; check the database in SLA_POSTGRES_URL' in message


def test_database_not_migrated(postgres_server_url: str, relay: Relay) -> None:
    message = _refusal(postgres_server_url, relay)
    assert message.startswith("database 'postgres' on 127.0.0.1:")
    assert message.endswith("is not migrated; run `sla-pipeline migrate` as its owner (SLA_POSTGRES_OWNER_URL)")


@pytest.mark.parametrize(
    ("revision", "message"),
    [
        ("sla_0000", f"is at revision sla_0000, this version needs {REVISION}; run `sla-pipeline migrate`"),
        (
            "sla_9999",
            f"is at revision sla_9999, newer than {REVISION} that this version knows; deploy the newer sla-pipeline",
        ),
    ],
)
def test_migrated_not_far_enough_or_too_far(revision: str, message: str, support: Support, cycle: Cycle) -> None:
    make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    before = row_versions(support)
    support.execute(
        "update support.ticket_sla_schema_version set version_num = %(revision)s::text, "
        "compatible_from = %(revision)s::text where version_num like 'sla%%'",
        {"revision": revision},
    )
    with pytest.raises(PostgresSetupError) as raised:
        cycle()
    assert str(raised.value).endswith(message)
    assert row_versions(support) == before
    assert support.execute("select count(*) from support.ticket_sla_cycles").fetchall() == [(0,)]
