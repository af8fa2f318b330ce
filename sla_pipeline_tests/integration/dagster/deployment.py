"""Dagster as it is deployed: a code server and the daemon, each a process, on the repository's own dagster.yaml and definitions.

What belongs here: starting and ending them. What does not: what they are expected to do. The webserver is left out: nothing that runs a
cycle goes through it.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from sla_pipeline.embedded.ports import free_ports, listens
from sla_pipeline.embedded.supervision import Service

# a loaded machine needs long to import Dagster
_START_SECONDS = 120.0


class Deployment:
    """The two processes. ``code_server`` runs the cycles as its children; ``daemon`` ticks and launches them."""

    def __init__(self, code_server: Service, daemon: Service) -> None:
        self.code_server = code_server
        self.daemon = daemon

    def process_connected_from(self, port: int) -> psutil.Process:
        """The run's process whose session Postgres sees at client port ``port``."""
        for process in psutil.Process(self.code_server.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if any(connection.laddr.port == port for connection in process.net_connections("tcp")):
                    return process
        raise AssertionError(f"no run of the code server is connected from port {port}")


@contextlib.contextmanager
def deployment(home: Path) -> Iterator[Deployment]:
    """Both processes up, with the variables of this one; Dagster ends before whatever is around it."""
    (port,) = free_ports(1)
    (home / "workspace.yaml").write_text(f"load_from:\n  - grpc_server: {{host: 127.0.0.1, port: {port}, location_name: sla_pipeline}}\n")

    def dagster(name: str, *arguments: str) -> Service:
        return Service(name, [sys.executable, "-m", *arguments], home / f"{name}.log", env=dict(os.environ), cwd=home)

    code_server = dagster(
        "code-server", "dagster", "api", "grpc", "-m", "sla_pipeline.definitions", "-h", "127.0.0.1", "-p", str(port),
        "--location-name", "sla_pipeline",
    )  # fmt: skip
    with code_server:
        code_server.wait_until(lambda: listens(port), _START_SECONDS)
        with dagster("daemon", "dagster._daemon", "run", "-w", "workspace.yaml") as daemon:
            yield Deployment(code_server, daemon)
