"""Fixtures that give every test a clean database and topics of its own on real servers.

Each test process has one migrated template database; each test gets a copy of it. A server starts when the first test
uses it, so the unit tests need none. ``SLA_TEST_POSTGRES_URL`` (of a superuser) and
``SLA_TEST_KAFKA_BOOTSTRAP_SERVERS`` select running servers instead. ``shared_servers.py`` starts and shares servers.
"""

import contextlib
import itertools
import logging
import os
import re
import secrets
import shutil
import signal
import uuid
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import conninfo, sql
from pytest_postgresql.janitor import DatabaseJanitor

from sla_pipeline.embedded import EmbeddedKafka, EmbeddedPostgres, embedded_kafka, embedded_postgres
from sla_pipeline_tests.shared_servers import AddressServer, ControllerServers, OwnServers, Servers, server_folder

if TYPE_CHECKING:
    from sla_pipeline.kafka.settings import KafkaSettings

_SERVERS: pytest.StashKey[Servers] = pytest.StashKey()
_ADDRESS_SERVER: pytest.StashKey[AddressServer] = pytest.StashKey()
_BROKER_LOGS: pytest.StashKey[list[Path]] = pytest.StashKey()
_KEPT_LOGS = Path(__file__).parents[1] / "build" / "broker-logs"
_LOG_TAIL_LINES = 40

# distinguishes this process from others on the same servers
_PROCESS = f"{os.environ.get('PYTEST_XDIST_WORKER', 'main')}_{uuid.uuid4().hex[:8]}"
_numbers = itertools.count(1)
# key of the advisory lock that serializes migrations: they create roles, which all databases of a server share
_MIGRATION_LOCK = 7_305_183_124


def pytest_configure(config: pytest.Config) -> None:
    # a shell starts background jobs with SIGINT ignored, and programs that tests start would inherit that
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if worker_input := getattr(config, "workerinput", None):
        config.stash[_SERVERS] = ControllerServers(worker_input["servers_address"], worker_input["servers_key"])
    else:
        config.stash[_SERVERS] = OwnServers()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the address server to a worker; pytest-xdist calls this hook in the controller."""
    stash = node.config.stash
    if _ADDRESS_SERVER not in stash:
        stash[_ADDRESS_SERVER] = AddressServer(stash[_SERVERS])
    node.workerinput |= {"servers_address": stash[_ADDRESS_SERVER].address, "servers_key": stash[_ADDRESS_SERVER].key}


def pytest_unconfigure(config: pytest.Config) -> None:
    if address_server := config.stash.get(_ADDRESS_SERVER, None):
        address_server.close()
    if isinstance(servers := config.stash.get(_SERVERS, None), OwnServers):
        servers.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the log of a failed test's own broker in ``build/``, and report its end."""
    report = yield
    if report.failed:
        logs: list[Path] = item.stash.get(_BROKER_LOGS, [])
        for number, log in enumerate(log for log in logs if log.exists()):
            kept = _KEPT_LOGS / f"{re.sub(r'[^A-Za-z0-9]+', '-', item.nodeid)[-150:]}-{report.when}-{number}.log"
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(log, kept)
            tail = kept.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
            report.sections.append((f"end of the broker's log, kept as {kept}", "\n".join(tail)))
    return report


@pytest.fixture(scope="session")
def postgres_server_url(request: pytest.FixtureRequest) -> str:
    """URL of the shared server's maintenance database, as superuser."""
    return request.config.stash[_SERVERS].postgres_url()


@pytest.fixture(scope="session")
def kafka_bootstrap(request: pytest.FixtureRequest) -> str:
    """Address of the shared broker."""
    return request.config.stash[_SERVERS].kafka_bootstrap_servers()


@pytest.fixture(scope="session")
def migrated_template(postgres_server_url: str) -> Iterator[str]:
    """Name of a template database with the whole schema, the demo's tickets table included."""
    from sla_pipeline.postgres.migrate import upgrade  # noqa: PLC0415 - unit tests must not pay for it

    with _database(postgres_server_url, f"template_{_PROCESS}", as_template=True) as url:
        with psycopg.connect(postgres_server_url, autocommit=True) as connection:
            connection.execute("select pg_advisory_lock(%s)", (_MIGRATION_LOCK,))
            upgrade(url, with_tickets=True)
        yield _name_of(url)


@pytest.fixture(autouse=True)
def unconfigured_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo a test's configuration of the package's logger, since its standard error stream is closed afterwards."""
    logger = logging.getLogger("sla_pipeline")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", True)


@pytest.fixture
def owner_url(postgres_server_url: str, migrated_template: str) -> Iterator[str]:
    """URL of a clean migrated database, as superuser. It is dropped after the test in spite of open sessions."""
    with _database(postgres_server_url, f"test_{_PROCESS}_{next(_numbers)}", template_dbname=migrated_template) as url:
        yield url


@pytest.fixture(scope="session")
def worker_login(postgres_server_url: str, migrated_template: str) -> Iterator[tuple[str, str]]:
    """Name and password of a login with the worker's rights only."""
    name, password = f"worker_{_PROCESS}", secrets.token_urlsafe(16)
    role = sql.Identifier(name)
    with psycopg.connect(postgres_server_url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("create role {} login password {} in role sla_worker").format(role, sql.Literal(password))
        )
    yield name, password
    with psycopg.connect(postgres_server_url, autocommit=True) as connection:
        connection.execute(sql.SQL("drop role {}").format(role))


@pytest.fixture
def worker_url(owner_url: str, worker_login: tuple[str, str]) -> str:
    """URL of the database of ``owner_url``, as a login that is a member of ``sla_worker`` only."""
    server = urlsplit(owner_url)
    return server._replace(netloc=f"{':'.join(worker_login)}@{server.netloc.rpartition('@')[2]}").geturl()


@pytest.fixture
def kafka_settings(kafka_bootstrap: str) -> "KafkaSettings":
    """Settings with new, existing topics; the progress topic holds its first record."""
    from sla_pipeline.kafka.settings import KafkaSettings  # noqa: PLC0415 - unit tests must not pay for them
    from sla_pipeline.kafka.topics import create_topics  # noqa: PLC0415

    settings = KafkaSettings(
        bootstrap_servers=kafka_bootstrap, topic=f"test-{_PROCESS}-{next(_numbers)}.breached.v1".replace("_", "-")
    )
    create_topics(settings)
    return settings


class BrokerFactory(Protocol):
    """Factory of brokers for one test; ``properties`` override the usual ones."""

    def __call__(self, properties: Mapping[str, object] | None = None) -> EmbeddedKafka: ...


class PostgresFactory(Protocol):
    """Factory of servers without databases for one test. With ``durable=False`` the data still survives ``kill``."""

    def __call__(self, *, durable: bool = False) -> EmbeddedPostgres: ...


@pytest.fixture
def own_broker(request: pytest.FixtureRequest) -> Iterator[BrokerFactory]:
    """Factory of brokers that a test may stop, kill or pause; they end with the test."""
    logs = request.node.stash.setdefault(_BROKER_LOGS, [])
    with contextlib.ExitStack() as stack:

        def start(properties: Mapping[str, object] | None = None) -> EmbeddedKafka:
            folder = stack.enter_context(server_folder())
            logs.append(folder / "kafka.log")
            return stack.enter_context(embedded_kafka(folder, properties=properties))

        yield start


@pytest.fixture
def own_postgres() -> Iterator[PostgresFactory]:
    """Factory of PostgreSQL servers that a test may stop, kill or pause; they end with the test."""
    with contextlib.ExitStack() as stack:

        def start(*, durable: bool = False) -> EmbeddedPostgres:
            return stack.enter_context(embedded_postgres(stack.enter_context(server_folder()), durable=durable))

        yield start


@contextlib.contextmanager
def _database(server_url: str, name: str, **options: Any) -> Iterator[str]:
    """Create the database ``name``, yield its URL, and drop it. ``options`` are the janitor's."""
    parameters = conninfo.conninfo_to_dict(server_url)
    janitor = DatabaseJanitor(
        host=str(parameters["host"]),
        port=int(parameters.get("port") or "5432"),
        user=str(parameters["user"]),
        password=str(parameters.get("password", "")),
        maintenance_dbname=str(parameters["dbname"]),
        dbname=name,
        **options,
    )
    with janitor:
        yield urlsplit(server_url)._replace(path=f"/{name}").geturl()


def _name_of(url: str) -> str:
    return urlsplit(url).path.removeprefix("/")
