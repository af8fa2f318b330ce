"""Addresses of the shared servers, from the controller of a test run to its workers."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sla_pipeline.embedded import ServiceError
from sla_pipeline.errors import ConfigurationError, SlaPipelineError
from sla_pipeline_tests.shared_servers import AskedServers, OwnServers, ServersDesk


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[ServersDesk]:
    monkeypatch.setenv("SLA_TEST_POSTGRES_URL", "postgresql://somebody@db/postgres")
    monkeypatch.setenv("SLA_TEST_KAFKA_BOOTSTRAP_SERVERS", "kafka:9092")
    desk = ServersDesk(OwnServers())
    yield desk
    desk.close()


def test_workers_get_the_servers_that_the_environment_names(desk: ServersDesk) -> None:
    servers = AskedServers(desk.address, desk.key)
    assert servers.postgres_url() == "postgresql://somebody@db/postgres"
    assert servers.kafka_bootstrap_servers() == "kafka:9092"


def test_a_deep_temporary_folder_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of a socket in such a folder would be too long."""
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    monkeypatch.setenv("SLA_TEST_POSTGRES_URL", "postgresql://somebody@db/postgres")
    desk = ServersDesk(OwnServers())
    try:
        assert AskedServers(desk.address, desk.key).postgres_url() == "postgresql://somebody@db/postgres"
    finally:
        desk.close()


@pytest.mark.parametrize("kind", [ServiceError, ConfigurationError])
def test_workers_get_the_reason_why_a_server_did_not_start(kind: type[SlaPipelineError]) -> None:
    class Failing(OwnServers):
        def postgres_url(self) -> str:
            raise kind("PostgreSQL ended with exit status 1")

    desk = ServersDesk(Failing())
    try:
        with pytest.raises(ServiceError, match="PostgreSQL ended with exit status 1"):
            AskedServers(desk.address, desk.key).postgres_url()
    finally:
        desk.close()
