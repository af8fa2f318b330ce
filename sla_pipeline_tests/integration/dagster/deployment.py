"""Dagster as it is deployed: code server, daemon and, where a test presses buttons, webserver, each a process of its
own.

They run on the repository's own dagster.yaml and definitions. What belongs here: starting and ending them, and sending
what a page sends. What does not: what they are expected to do.
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
# a loaded machine needs long to import Dagster
_START_SECONDS = 120.0
# the webserver answers a launch once the code server has made the plan
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
            "code-server", "dagster", "api", "grpc", "-m", "sla_pipeline.definitions", "-h", "127.0.0.1", "-p", str(self._port),
            "--location-name", LOCATION,
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
        """Starts code server and daemon, as a machine does after its boot."""
        self.code_server.start()
        self.code_server.wait_until(lambda: listens(self._port), _START_SECONDS)
        self.daemon.start()

    def start_webserver(self) -> None:
        """Starts the webserver; ``send`` works from here on."""
        self.webserver.start()
        self.webserver.wait_until(lambda: listens(self._web_port), _START_SECONDS)

    def stop(self) -> None:
        """Stops all that runs."""
        for process in (self.webserver, self.daemon, self.code_server):
            process.stop()

    def die(self) -> None:
        """SIGKILL to code server, daemon and every run: what a power cut leaves of them."""
        self.daemon.kill()
        self.code_server.kill()

    def send(self, query: str, **variables: Any) -> dict[str, Any]:
        """Sends what a page sends; returns ``data`` of the answer. Fails on an error of GraphQL itself."""
        request = urllib.request.Request(  # noqa: S310
            f"{self.web_url}/graphql",
            data=json.dumps({"query": query, "variables": variables}).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as response:  # noqa: S310
                answer: dict[str, Any] = json.load(response)
        except urllib.error.HTTPError as error:
            # an error of the user's code is an answer too, with a status of its own
            answer = json.load(error)
        assert "errors" not in answer, answer["errors"]
        data: dict[str, Any] = answer["data"]
        return data

    def process_connected_from(self, port: int) -> psutil.Process:
        """The run's process whose session Postgres sees at client port ``port``."""
        for process in psutil.Process(self.code_server.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if any(connection.laddr.port == port for connection in process.net_connections("tcp")):
                    return process
        raise AssertionError(f"no run of the code server is connected from port {port}")


@contextlib.contextmanager
def deployment(home: Path) -> Iterator[Deployment]:
    """Code server and daemon up, with the variables of this process; Dagster ends before whatever is around it."""
    deployed = Deployment(home)
    try:
        deployed.start()
        yield deployed
    finally:
        deployed.stop()
