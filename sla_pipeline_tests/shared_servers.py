"""One PostgreSQL and one Kafka for all processes of a test run, each started when the first test asks for it.

What belongs here: who starts the servers and how the others learn their addresses. What does not: what is in them
(``conftest.py``). Under pytest-xdist the controller owns the servers, because it outlives its workers; it cannot know
what they will need, since they alone collect the tests. So they ask, over a socket whose address travels in
``workerinput``.
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


class Servers(Protocol):
    """Where a test process gets the addresses from. Both raise ``ServiceError`` when the server does not start."""

    def postgres_url(self) -> str:
        """Superuser's URL of the maintenance database."""
        ...

    def kafka_bootstrap_servers(self) -> str:
        """The broker's ``host:port``."""
        ...


class OwnServers:
    """Servers of this process: those that the environment names, or else embedded ones, ended by ``close``."""

    def __init__(self) -> None:
        self._up = contextlib.ExitStack()
        self._starting = threading.Lock()
        self._postgres_url = os.environ.get(POSTGRES_VARIABLE)
        self._bootstrap_servers = os.environ.get(KAFKA_VARIABLE)

    def postgres_url(self) -> str:
        with self._starting:
            if self._postgres_url is None:
                self._postgres_url = self._up.enter_context(embedded_postgres(self._folder(), durable=False)).url
            return self._postgres_url

    def kafka_bootstrap_servers(self) -> str:
        with self._starting:
            if self._bootstrap_servers is None:
                self._bootstrap_servers = self._up.enter_context(embedded_kafka(self._folder())).bootstrap_servers
            return self._bootstrap_servers

    def close(self) -> None:
        with self._starting:
            self._up.close()

    def _folder(self) -> Path:
        return self._up.enter_context(server_folder())


class AskedServers:
    """Servers of xdist's controller, for its workers."""

    def __init__(self, address: tuple[str, int], key: bytes) -> None:
        self._address = address
        self._key = key

    def postgres_url(self) -> str:
        return self._ask("postgres")

    def kafka_bootstrap_servers(self) -> str:
        return self._ask("kafka")

    def _ask(self, name: str) -> str:
        with Client(self._address, authkey=self._key) as connection:
            connection.send(name)
            found, answer = connection.recv()
        if not found:
            raise ServiceError(answer)
        return str(answer)


class ServersDesk:
    """Answers ``AskedServers`` in a thread of the controller, from its ``OwnServers``."""

    def __init__(self, servers: OwnServers) -> None:
        self._answers = {"postgres": servers.postgres_url, "kafka": servers.kafka_bootstrap_servers}
        self.key = os.urandom(16)
        # not AF_UNIX: a socket's path may not exceed 107 bytes, and one in a deep temporary folder does
        self._listener = Listener(("127.0.0.1", 0), authkey=self.key)
        self._thread = threading.Thread(target=self._serve, name="servers-desk", daemon=True)
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
            with (
                self._listener.accept() as connection,
                contextlib.suppress(EOFError, OSError),
            ):  # a worker may die while it waits
                name = connection.recv()
                if name == "close":
                    return
                self._answer(connection, name)

    def _answer(self, connection: Connection, name: str) -> None:
        try:
            answer = (True, self._answers[name]())
        except SlaPipelineError as error:
            answer = (False, str(error))
        connection.send(answer)


@contextlib.contextmanager
def server_folder() -> Iterator[Path]:
    """A temporary folder for a server's state; everybody may pass through it, since root's PostgreSQL runs as
    nobody.
    """
    with tempfile.TemporaryDirectory(prefix="sla-tests-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
