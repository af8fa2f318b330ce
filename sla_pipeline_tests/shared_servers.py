"""One PostgreSQL and one Kafka for all processes of a test run, each started when the first test uses it.

Under pytest-xdist the controller owns the servers because it outlives its workers. Only the workers collect tests, so
only they know which servers they need: they request the address over a socket whose own address is in ``workerinput``.
"""

import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Protocol

from sla_pipeline.embedded import ServiceError, embedded_kafka, embedded_postgres
from sla_pipeline.errors import SlaPipelineError

POSTGRES_VARIABLE = "SLA_TEST_POSTGRES_URL"
KAFKA_VARIABLE = "SLA_TEST_KAFKA_BOOTSTRAP_SERVERS"

# Time without a heartbeat after which Kafka's controller fences its broker. The embedded broker has 3 s, for a quick
# restart after a kill. The broker shared by the tests is never restarted, and a busy machine delays its heartbeats.
_SESSION_TIMEOUT_MS = 60_000


class Servers(Protocol):
    """Source of the servers' addresses. Both methods raise ``ServiceError`` when the server does not start."""

    def postgres_url(self) -> str:
        """Return the URL of the maintenance database, as superuser."""
        ...

    def kafka_bootstrap_servers(self) -> str:
        """Return the broker's ``host:port``."""
        ...


class OwnServers:
    """Servers of this process: those in the environment, or else embedded ones, which ``close`` ends."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._lock = threading.Lock()
        self._postgres_url = os.environ.get(POSTGRES_VARIABLE)
        self._bootstrap_servers = os.environ.get(KAFKA_VARIABLE)

    def postgres_url(self) -> str:
        with self._lock:
            if self._postgres_url is None:
                self._postgres_url = self._stack.enter_context(embedded_postgres(self._folder(), durable=False)).url
            return self._postgres_url

    def kafka_bootstrap_servers(self) -> str:
        with self._lock:
            if self._bootstrap_servers is None:
                kafka = embedded_kafka(self._folder(), properties={"broker.session.timeout.ms": _SESSION_TIMEOUT_MS})
                self._bootstrap_servers = self._stack.enter_context(kafka).bootstrap_servers
            return self._bootstrap_servers

    def close(self) -> None:
        with self._lock:
            self._stack.close()

    def _folder(self) -> Path:
        return self._stack.enter_context(server_folder())


class ControllerServers:
    """Servers of xdist's controller, as its workers reach them."""

    def __init__(self, address: tuple[str, int], key: bytes) -> None:
        self._address = address
        self._key = key

    def postgres_url(self) -> str:
        return self._request("postgres")

    def kafka_bootstrap_servers(self) -> str:
        return self._request("kafka")

    def _request(self, name: str) -> str:
        with Client(self._address, authkey=self._key) as connection:
            connection.send(name)
            started, address_or_error = connection.recv()
        if not started:
            raise ServiceError(address_or_error)
        return str(address_or_error)


class AddressServer:
    """Thread of the controller that sends the addresses of its ``OwnServers`` to ``ControllerServers``."""

    def __init__(self, servers: OwnServers) -> None:
        self._addresses = {"postgres": servers.postgres_url, "kafka": servers.kafka_bootstrap_servers}
        self.key = os.urandom(16)
        # not AF_UNIX: a socket's path is limited to 107 bytes, which a deep temporary folder exceeds
        self._listener = Listener(("127.0.0.1", 0), authkey=self.key)
        self._thread = threading.Thread(target=self._serve, name="address-server", daemon=True)
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listener.address
        return str(host), int(port)

    def close(self) -> None:
        with Client(self.address, authkey=self.key) as connection:
            connection.send("close")
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            # a worker may die while it waits
            with self._listener.accept() as connection, contextlib.suppress(EOFError, OSError):
                name = connection.recv()
                if name == "close":
                    return
                self._send(connection, name)

    def _send(self, connection: Connection, name: str) -> None:
        try:
            result = (True, self._addresses[name]())
        except SlaPipelineError as error:
            result = (False, str(error))
        connection.send(result)


@contextlib.contextmanager
def server_folder() -> Iterator[Path]:
    """Yield a temporary folder for a server's state.

    Every user may enter it, since PostgreSQL runs as nobody when root starts it.
    """
    with tempfile.TemporaryDirectory(prefix="sla-tests-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
