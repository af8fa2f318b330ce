"""Fixtures of the tests under Dagster: environment, definitions, an instance with the repository's dagster.yaml.

The cycle's own fixtures are in ``integration/conftest.py``.
"""

import contextlib
import importlib
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import dagster as dg
import psycopg
import pytest
from psycopg import sql

from sla_pipeline.kafka.settings import KafkaSettings

REPOSITORY = Path(__file__).parents[3]
CHECK = dg.AssetCheckKey(dg.AssetKey("sla_breaches"), "backlog_size")
SET_ASIDE_CHECK = dg.AssetCheckKey(CHECK.asset_key, "tickets_set_aside")


@pytest.fixture
def environment(worker_url: str, kafka_settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """The variables of a deployment, set for this process too."""
    variables = {
        "SLA_POSTGRES_URL": worker_url,
        "SLA_KAFKA_BOOTSTRAP_SERVERS": kafka_settings.bootstrap_servers,
        "SLA_KAFKA_TOPIC": kafka_settings.topic,
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return variables


@pytest.fixture
def definitions(environment: Mapping[str, str]) -> dg.Definitions:
    """The repository's definitions; their runs use this environment."""
    defs: dg.Definitions = importlib.import_module("sla_pipeline.definitions").defs
    return defs


@pytest.fixture
def job(definitions: dg.Definitions) -> dg.JobDefinition:
    """The job, its resources bound."""
    return definitions.resolve_job_def("ticket_sla_monitor")


@pytest.fixture
def ephemeral() -> Iterator[dg.DagsterInstance]:
    """An instance in memory, for runs in this process."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def home(
    environment: Mapping[str, str], postgres_server_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A Dagster home with the repository's dagster.yaml, its storage an empty database of its own."""
    with database(postgres_server_url, "dagster") as url:
        shutil.copy(REPOSITORY / "dagster.yaml", tmp_path)
        monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
        monkeypatch.setenv("DAGSTER_POSTGRES_URL", url)
        yield tmp_path


@contextlib.contextmanager
def database(server_url: str, name: str, *, template: str = "template1") -> Iterator[str]:
    """Create a database for the caller, yield its URL, and drop it at the end, also under open connections."""
    name = f"{name}_{uuid.uuid4().hex}"
    create = sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(template))
    with psycopg.connect(server_url, autocommit=True) as server:
        server.execute(create)
        yield urlsplit(server_url)._replace(path=f"/{name}").geturl()
        server.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@pytest.fixture
def instance(home: Path) -> Iterator[dg.DagsterInstance]:
    """The instance of ``home``, as the deployment's processes open it."""
    assert os.environ["DAGSTER_HOME"] == str(home)
    with dg.DagsterInstance.get() as instance:
        yield instance


def launchpad(**config: object) -> dict[str, object]:
    """Return a run config as a person types it into the launchpad."""
    return {"ops": {"sla_breaches": {"config": config}}}
