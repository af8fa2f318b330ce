"""The demo, started from a shell with conflicting settings, and commands from a second shell."""

import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, Queue

import pytest

from sla_pipeline_tests.integration.dagster.conftest import REPOSITORY
from sla_pipeline_tests.shared_servers import server_folder

# each of these once redirected a part of the demo: the job to another topic, sessions to another host or over TLS,
# requests to a proxy
HOSTILE = {
    "SLA_KAFKA_TOPIC": "another.topic",
    "SLA_KAFKA_CLIENT_CONFIG": "not JSON",
    "SLA_SINGLE_RUNNER": "maybe",
    "SLA_POSTGRES_URL": "postgresql://nobody@127.0.0.1:1/none",
    "DAGSTER_HOME": "/nowhere",
    "PGHOSTADDR": "127.0.0.2",
    "PGSSLMODE": "require",
    "PGOPTIONS": "-c default_transaction_read_only=on",
    "http_proxy": "http://127.0.0.1:9",
    "HTTP_PROXY": "http://127.0.0.1:9",
}
_START_SECONDS = 240.0
_STOP_SECONDS = 90.0

# each test starts the whole demo
pytestmark = pytest.mark.timeout(600)


class Demo:
    """A running `sla-pipeline demo`; a thread reads its output, so that a wait for a line has a deadline."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.printed: list[str] = []
        self._lines: Queue[str] = Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))

    def wait_for_line(self, containing: str) -> str:
        while True:
            try:
                line = self._lines.get(timeout=_START_SECONDS)
            except Empty:
                raise AssertionError(
                    f"no line with {containing!r} within {_START_SECONDS} s, after {self.printed}"
                ) from None
            self.printed.append(line)
            if containing in line:
                return line
            assert "sla-pipeline:" not in line, line


@pytest.fixture
def state() -> Iterator[Path]:
    with server_folder() as folder:
        yield folder / "a demo"


@pytest.fixture
def demo(state: Path) -> Iterator[Demo]:
    command = [sys.executable, "-c", "from sla_pipeline.cli import main; main()", "demo", "--state", str(state)]
    with subprocess.Popen(
        command, env=os.environ | HOSTILE, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield Demo(process)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait(_STOP_SECONDS)


def in_second_shell(source: str, command: str) -> str:
    """Run the command in a shell with the same settings that has sourced the demo's file, and return its output."""
    script = f"{source} && {command}"
    ended = subprocess.run(
        ["/bin/sh", "-c", script],
        env=os.environ | HOSTILE,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout


def test_a_demo_and_a_second_shell_in_spite_of_other_settings(demo: Demo, state: Path) -> None:
    metrics = demo.wait_for_line("metrics for Prometheus: ").partition("Prometheus: ")[2]
    source = demo.wait_for_line("in another shell: ").partition("in another shell: ")[2]
    first = demo.wait_for_line(" cycle 1 succeeded: ")
    assert ": 223 marked (202 FirstResponse, 21 Resolution) in 1 batches, 223 published, backlog " in first
    assert source == f". '{state}/env'"
    assert (state / "env").stat().st_mode & 0o777 == 0o600

    with urllib.request.urlopen(metrics, timeout=30) as scraped:  # noqa: S310  an address that the demo printed
        found = re.search(rb'breached_total\{breach_kind="FirstResponse"\} ([0-9.]+)', scraped.read())
    assert found is not None
    assert float(found[1]) >= 202

    command = f"{sys.executable} -c 'from sla_pipeline.cli import main; main()'"
    # 222 of the tickets were overdue for long before the demo found them, so an alert may fire
    assert "last cycle        succeeded" in in_second_shell(source, f"({command} status || test $? = 1)")
    assert "overdue and not marked" in in_second_shell(source, f"{command} preview --oldest 1")
    events = in_second_shell(source, f"{command} tail --beginning --no-follow").splitlines()
    assert len(events) >= 223
    assert "published" in in_second_shell(source, f"{command} cycle")
    assert "finding: Postgres and Kafka agree" in in_second_shell(source, f"{command} recover")
    assert "topics: pin.support.ticket-sla-breached.v1 " in in_second_shell(source, f"{command} migrate")
    assert "they agree: " in in_second_shell(source, f"{command} verify")
    in_second_shell(
        source, f"{sys.executable} -m dagster asset materialize --select sla_breaches -m sla_pipeline.definitions"
    )

    demo.process.send_signal(signal.SIGINT)
    assert demo.process.wait(_STOP_SECONDS) == 0
    assert not (state / "env").exists()
