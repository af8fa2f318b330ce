"""The heartbeat: one call after each cycle, and a cycle that no fault of the service fails or delays."""

import logging
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import psycopg
import pytest

from sla_pipeline.cycle import CycleInput, SystemClock
from sla_pipeline.embedded.ports import free_ports
from sla_pipeline.errors import CycleStopped, PostgresSetupError, PostgresUnavailable
from sla_pipeline.kafka.relay import Relay
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.monitor.runner import run_cycle
from sla_pipeline.postgres.database import Database
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline_tests.integration.conftest import Cycle
from sla_pipeline_tests.tickets import FIRST_RESPONSE_OVERDUE, TENANT, make_ticket

Support = psycopg.Connection[Any]
_SECRET = "5f0c-of-the-check"  # noqa: S105  no service has it


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Paths that were requested; the service answers each with 200."""
    paths: list[str] = []

    class Service(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("SLA_HEARTBEAT_URL", f"http://127.0.0.1:{server.server_port}/{_SECRET}?rid=7")
        yield paths
        server.shutdown()
        thread.join()


def test_one_call_after_a_cycle_that_succeeded_and_one_with_fail_after_one_that_failed(
    support: Support, cycle: Cycle, calls: list[str]
) -> None:
    cycle(clock=SystemClock())
    assert calls == [f"/{_SECRET}?rid=7"]
    make_ticket(support, **FIRST_RESPONSE_OVERDUE, queue_id=None)
    assert cycle(clock=SystemClock()).errors
    assert calls[1:] == [f"/{_SECRET}/fail?rid=7"]


def test_a_cycle_that_ends_at_its_preconditions_has_failed(
    support: Support, relay: Relay, cycle: Cycle, calls: list[str]
) -> None:
    (port,) = free_ports(1)
    with pytest.raises(PostgresUnavailable):
        run_cycle(Database(PostgresSettings(f"postgresql://a:b@127.0.0.1:{port}/x")), relay)
    support.execute("drop table support.ticket_sla_schema_version")
    with pytest.raises(PostgresSetupError):
        cycle(clock=SystemClock())
    assert calls == [f"/{_SECRET}/fail?rid=7"] * 2


def test_a_cycle_ended_by_a_fault_has_failed_and_one_that_was_stopped_sends_nothing(
    support: Support, cycle: Cycle, calls: list[str]
) -> None:
    make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    with pytest.raises(CycleStopped):
        cycle(clock=SystemClock(), should_stop=lambda: True)
    assert calls == []

    def fail(step: str) -> None:
        if step == "claimed":
            raise RuntimeError(step)

    with pytest.raises(RuntimeError):
        cycle(clock=SystemClock(), on_step=fail)
    assert calls == [f"/{_SECRET}/fail?rid=7"]


def test_a_replay_and_a_cycle_of_one_tenant_send_nothing(cycle: Cycle, calls: list[str]) -> None:
    cycle()
    cycle(CycleInput(tenant_id=TENANT), clock=SystemClock())
    assert calls == []


def test_a_cycle_that_the_single_runner_lock_keeps_out_sends_nothing(
    worker_url: str, relay: Relay, operator: Support, calls: list[str]
) -> None:
    operator.execute(
        "select pg_advisory_lock(hashtextextended('Pin:lock:job:scheduled:support-ticket-sla-monitor', 0))"
    )
    database = Database(PostgresSettings(worker_url), single_runner=True)
    with pytest.raises(Exception, match="lock"):
        run_cycle(database, relay)
    database.close()
    assert calls == []


def test_a_service_that_is_silent_costs_a_second_and_no_cycle(
    cycle: Cycle, monkeypatch: pytest.MonkeyPatch, logged: list[logging.LogRecord]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("SLA_HEARTBEAT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}/{_SECRET}")
        began = time.monotonic()
        assert cycle(clock=SystemClock()).errors == []
        assert time.monotonic() - began < 20
    assert [record.__dict__["error"] for record in logged if record.getMessage() == "heartbeat not sent"] in (
        ["no answer within 1 s"],
        ["TimeoutError"],
    )


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("http://127.0.0.1:9/", "URLError"),
        (f"ftp://example.com/{_SECRET}", "SLA_HEARTBEAT_URL is not a URL; write https://HOST/PATH"),
        (f"http://[{_SECRET}", "SLA_HEARTBEAT_URL is not a URL; write https://HOST/PATH"),
        (f'"https://example.com/{_SECRET}"', "SLA_HEARTBEAT_URL is enclosed in quotation marks"),
    ],
)
def test_a_heartbeat_that_cannot_be_sent_is_a_warning_without_the_url(
    url: str, error: str, cycle: Cycle, monkeypatch: pytest.MonkeyPatch, logged: list[logging.LogRecord]
) -> None:
    monkeypatch.setenv("SLA_HEARTBEAT_URL", url)
    assert cycle(clock=SystemClock()).errors == []
    (line,) = [record for record in logged if record.getMessage() == "heartbeat not sent"]
    assert (line.levelname, str(line.__dict__["error"])[: len(error)]) == ("WARNING", error)
    assert _SECRET not in str(line.__dict__)


def test_kafka_that_is_down_is_a_failure(
    support: Support, database: Database, kafka_settings: KafkaSettings, calls: list[str]
) -> None:
    make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    with Relay(KafkaSettings("127.0.0.1:9", topic="down")) as unreachable:
        assert run_cycle(database, unreachable).published_count == 0
    assert calls == [f"/{_SECRET}/fail?rid=7"]
