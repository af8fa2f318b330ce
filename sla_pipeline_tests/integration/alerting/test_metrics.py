"""The exporter, over real state: SPEC 9.2's six metrics by their names, and the truth when the database is down."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sla_pipeline.alerting.rules import RULES
from sla_pipeline.cycle import CycleInput
from sla_pipeline_tests.integration.conftest import Cycle
from sla_pipeline_tests.tickets import FIRST_RESPONSE_OVERDUE, RESOLUTION_OVERDUE, make_ticket, make_tickets

Support = psycopg.Connection[Any]
_COMMAND = [sys.executable, "-c", "from sla_pipeline.entry import main; main()", "metrics"]
_PROMTOOL = shutil.which("promtool")
# SPEC 9.2 names the metric so; promtool's linter wants seconds
_LINT_OF_THE_SPEC = "support_ticket_sla_cycle_duration_ms metric names should not contain abbreviated units"


def _ended(url: str, *options: str) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"SLA_POSTGRES_URL": url}
    return subprocess.run(
        [*_COMMAND, *options], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def _once(url: str) -> str:
    ended = _ended(url, "--once")
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def _samples(text: str) -> dict[str, float]:
    """Return the samples by name and labels."""
    samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            samples[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return samples


@pytest.fixture
def scraped(support: Support, operator: Support, cycle: Cycle, worker_url: str) -> str:
    """One scrape after a cycle with marks of both kinds, a held ticket, a ticket set aside and a second batch."""
    make_tickets(support, 7, **FIRST_RESPONSE_OVERDUE)
    make_tickets(support, 4, **RESOLUTION_OVERDUE)
    make_ticket(support, **FIRST_RESPONSE_OVERDUE, queue_id=None)
    held = make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    operator.execute("select 1 from support.tickets where id = %s for update", (held,))
    cycle(CycleInput(batch_size=10))
    return _once(worker_url)


def test_the_six_metrics_of_the_spec_and_ours(scraped: str, support: Support) -> None:
    found = _samples(scraped)
    spec = {
        "support_ticket_sla_breached_total{breach_kind=FirstResponse}": 7,
        "support_ticket_sla_breached_total{breach_kind=Resolution}": 4,
        "support_ticket_sla_backlog": 2,
        "support_ticket_sla_batches_per_cycle": 3,
        "support_ticket_sla_errors_total": 1,
        "support_ticket_sla_lock_skips": 1,
    }
    ours = {
        "support_ticket_sla_up": 1,
        "support_ticket_sla_events_published_total": 11,
        "support_ticket_sla_unpublished_records": 0,
        "support_ticket_sla_unpublished_age_seconds": 0,
        "support_ticket_sla_set_aside_tickets": 1,
        "support_ticket_sla_publishing_stopped": 0,
        "support_ticket_sla_detection_delay_seconds_bucket{le=+Inf}": 11,
        "support_ticket_sla_detection_delay_seconds_count": 11,
        "support_ticket_sla_detection_delay_seconds_bucket{le=120.0}": 0,
        "support_ticket_sla_build_info{version=0.1.0}": 1,
    }
    assert {name: found.get(name) for name in spec | ours} == spec | ours
    (duration,) = support.execute("select duration_ms from support.ticket_sla_cycles").fetchone() or (None,)
    assert found["support_ticket_sla_cycle_duration_ms"] == duration
    # the cycle failed, because of the ticket set aside
    assert "support_ticket_sla_last_success_timestamp_seconds" not in found


def test_the_time_of_the_last_success(support: Support, cycle: Cycle, worker_url: str) -> None:
    cycle()
    row = support.execute("select finished_at from support.ticket_sla_cycles").fetchone()
    assert row is not None
    assert _samples(_once(worker_url))["support_ticket_sla_last_success_timestamp_seconds"] == row[0].timestamp()


def test_every_metric_that_a_rule_uses_is_served(
    scraped: str, support: Support, operator: Support, cycle: Cycle, worker_url: str
) -> None:
    served = {name.partition("{")[0] for name in _samples(scraped)}
    # a cycle that succeeds
    operator.rollback()
    support.execute("delete from support.tickets")
    cycle()
    served |= {name.partition("{")[0] for name in _samples(_once(worker_url))}
    used = {name for rule in RULES for name in re.findall(r"support_ticket_sla_\w+", rule.promql())}
    assert used <= served
    assert {name for name in _samples(scraped) if name.startswith("support_ticket_sla_alert_firing")} == {
        f"support_ticket_sla_alert_firing{{alert={rule.name},severity={rule.severity}}}"
        for rule in RULES
        if rule.condition
    }


@pytest.mark.skipif(_PROMTOOL is None, reason="promtool is not on PATH; Debian's package prometheus has it")
def test_promtool_accepts_the_metrics(scraped: str) -> None:
    assert _PROMTOOL is not None
    checked = subprocess.run(
        [_PROMTOOL, "check", "metrics"], input=scraped, capture_output=True, text=True, timeout=60, check=False
    )
    assert (checked.stdout + checked.stderr).strip().splitlines() == [_LINT_OF_THE_SPEC]


@contextmanager
def _served(url: str) -> Iterator[str]:
    """Serve metrics on a free port for the block; yield the address."""
    process = subprocess.Popen(
        [*_COMMAND, "--port", "0"],
        env=os.environ | {"SLA_POSTGRES_URL": url, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().removeprefix("metrics: ").strip()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _get(address: str) -> str:
    with urllib.request.urlopen(address, timeout=30) as response:  # noqa: S310  an address of our own
        return str(response.read().decode())


def test_the_server_reads_the_state_at_each_scrape_and_ends_on_sigterm(
    support: Support, cycle: Cycle, worker_url: str
) -> None:
    with _served(worker_url) as address:
        counts = []
        for _ in range(2):
            make_tickets(support, 3, **FIRST_RESPONSE_OVERDUE)
            cycle()
            counts.append(_samples(_get(address))["support_ticket_sla_breached_total{breach_kind=FirstResponse}"])
    assert counts == [3, 6]


def test_a_database_that_does_not_answer_is_up_0_and_nothing_else() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        _served(f"postgresql://a:b@127.0.0.1:{silent.getsockname()[1]}/x") as address,
    ):
        assert _samples(_get(address)) == {
            "support_ticket_sla_up": 0,
            "support_ticket_sla_build_info{version=0.1.0}": 1,
        }


def test_a_port_in_use_is_named(worker_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = _ended(worker_url, "--port", str(port))
    assert ended.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use; pass another --host or --port" in ended.stderr
