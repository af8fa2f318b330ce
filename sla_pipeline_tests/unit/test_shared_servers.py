from collections.abc import Iterator

import pytest

from sla_pipeline.embedded import ServiceError
from sla_pipeline_tests.shared_servers import AskedServers, OwnServers, ServersDesk


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[ServersDesk]:
    monkeypatch.setenv("SLA_TEST_POSTGRES_URL", "postgresql://somebody@db/postgres")
    monkeypatch.setenv("SLA_TEST_KAFKA_BOOTSTRAP_SERVERS", "kafka:9092")
    desk = ServersDesk(OwnServers())
    yield desk
    desk.close()


def test_workers_learn_the_servers_that_the_environment_names(desk: ServersDesk) -> None:
    asked = AskedServers(desk.address, desk.key)
    assert asked.postgres_url() == "postgresql://somebody@db/postgres"
    assert asked.kafka_bootstrap_servers() == "kafka:9092"


def test_workers_learn_why_a_server_did_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(OwnServers):
        def postgres_url(self) -> str:
            raise ServiceError("PostgreSQL ended with exit status 1")

    desk = ServersDesk(Failing())
    try:
        with pytest.raises(ServiceError, match="PostgreSQL ended with exit status 1"):
            AskedServers(desk.address, desk.key).postgres_url()
    finally:
        desk.close()
