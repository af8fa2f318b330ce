"""Dagster as deployed: code server, daemon and, where a test presses buttons, webserver, each in its own process.

They run with the repository's dagster.yaml and definitions. This module starts and ends them, and sends the requests of
the UI's pages; the tests assert.
"""

import contextlib
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from sla_pipeline.embedded.ports import free_ports, listens
from sla_pipeline.embedded.supervision import Service

LOCATION = "sla_pipeline"
# Bounds a start: importing Dagster takes long on a loaded machine.
_START_SECONDS = 120.0
# Bounds an answer: the webserver answers a launch after the code server has made the plan.
_ANSWER_SECONDS = 60.0


class Deployment:
    """The processes. ``code_server`` runs the cycles as its children; ``daemon`` ticks and launches them."""

    def __init__(self, home: Path) -> None:
        self._port, self._web_port = free_ports(2)
        (home / "workspace.yaml").write_text(
            f"load_from:\n  - grpc_server: {{host: 127.0.0.1, port: {self._port}, location_name: {LOCATION}}}\n"
        )

        def dagster(name: str, *arguments: str) -> Service:
            return Service(
                name, [sys.executable, "-m", *arguments], home / f"{name}.log", env=dict(os.environ), cwd=home
            )

        self.code_server = dagster(
            "code-server", "dagster", "api", "grpc", "-m", "sla_pipeline.definitions",
            "-h", "127.0.0.1", "-p", str(self._port), "--location-name", LOCATION,
        )  # fmt: skip
        self.daemon = dagster("daemon", "dagster._daemon", "run", "-w", "workspace.yaml")
        self.webserver = dagster(
            "webserver", "dagster_webserver", "-h", "127.0.0.1", "-p", str(self._web_port), "-w", "workspace.yaml"
        )

    @property
    def web_url(self) -> str:
        """The webserver's address."""
        return f"http://127.0.0.1:{self._web_port}"

    def start(self) -> None:
        """Start code server and daemon, as a machine does after its boot."""
        self.code_server.start()
        self.code_server.wait_until(lambda: listens(self._port), _START_SECONDS)
        self.daemon.start()

    def start_webserver(self) -> None:
        """Start the webserver; ``send`` works from here on."""
        self.webserver.start()
        self.webserver.wait_until(lambda: listens(self._web_port), _START_SECONDS)

    def stop(self) -> None:
        """Stop all processes."""
        for process in (self.webserver, self.daemon, self.code_server):
            process.stop()

    def die(self) -> None:
        """Send SIGKILL to code server, daemon and every run, as a power cut ends them."""
        self.daemon.kill()
        self.code_server.kill()

    def send(self, query: str, **variables: Any) -> dict[str, Any]:
        """Send a page's query; return ``data`` of the answer. Fail on an error of GraphQL itself."""
        request = urllib.request.Request(  # noqa: S310
            f"{self.web_url}/graphql",
            data=json.dumps({"query": query, "variables": variables}).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as response:  # noqa: S310
                answer: dict[str, Any] = json.load(response)
        except urllib.error.HTTPError as error:
            # An error of the user's code is an answer too, with another HTTP status.
            answer = json.load(error)
        assert "errors" not in answer, answer["errors"]
        data: dict[str, Any] = answer["data"]
        return data

    def process_connected_from(self, port: int) -> psutil.Process:
        """Return the process of the run whose Postgres session has the client port ``port``."""
        for process in psutil.Process(self.code_server.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if any(connection.laddr.port == port for connection in process.net_connections("tcp")):
                    return process
        raise AssertionError(f"no run of the code server is connected from port {port}")


@contextlib.contextmanager
def deployment(home: Path) -> Iterator[Deployment]:
    """Run code server and daemon with the variables of this process; stop them at the end of the block."""
    deployed = Deployment(home)
    try:
        deployed.start()
        yield deployed
    finally:
        deployed.stop()
