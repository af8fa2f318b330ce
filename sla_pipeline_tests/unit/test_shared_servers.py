"""Addresses of the shared servers, from the controller of a test run to its workers."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sla_pipeline.embedded import ServiceError
from sla_pipeline.errors import ConfigurationError, SlaPipelineError
from sla_pipeline_tests.shared_servers import AddressServer, ControllerServers, OwnServers


@pytest.fixture
def address_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[AddressServer]:
    monkeypatch.setenv("SLA_TEST_POSTGRES_URL", "postgresql://somebody@db/postgres")
    monkeypatch.setenv("SLA_TEST_KAFKA_BOOTSTRAP_SERVERS", "kafka:9092")
    address_server = AddressServer(OwnServers())
    yield address_server
    address_server.close()


def test_workers_get_the_servers_that_the_environment_names(address_server: AddressServer) -> None:
    servers = ControllerServers(address_server.address, address_server.key)
    assert servers.postgres_url() == "postgresql://somebody@db/postgres"
    assert servers.kafka_bootstrap_servers() == "kafka:9092"


def test_a_deep_temporary_folder_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of a socket in such a folder would be too long."""
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    monkeypatch.setenv("SLA_TEST_POSTGRES_URL", "postgresql://somebody@db/postgres")
    address_server = AddressServer(OwnServers())
    try:
        assert (
            ControllerServers(address_server.address, address_server.key).postgres_url()
            == "postgresql://somebody@db/postgres"
        )
    finally:
        address_server.close()


@pytest.mark.parametrize("kind", [ServiceError, ConfigurationError])
def test_workers_get_the_reason_why_a_server_did_not_start(kind: type[SlaPipelineError]) -> None:
    class Failing(OwnServers):
        def postgres_url(self) -> str:
            raise kind("PostgreSQL ended with exit status 1")

    address_server = AddressServer(Failing())
    try:
        with pytest.raises(ServiceError, match="PostgreSQL ended with exit status 1"):
            ControllerServers(address_server.address, address_server.key).postgres_url()
    finally:
        address_server.close()
