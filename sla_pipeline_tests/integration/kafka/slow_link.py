"""TCP proxy on 127.0.0.1 between the clients and a broker, with limited bytes per second or delayed replies."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

from sla_pipeline.embedded import EmbeddedKafka
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.kafka.topics import create_topics
from sla_pipeline_tests.conftest import BrokerFactory

__all__ = ["SlowLink", "broker_behind"]

_CHUNK_BYTES = 4_096
# Small, because the client counts bytes in the proxy as sent; below a segment of the loopback device it would stall.
_BUFFER_BYTES = 65_536


class _Rate:
    """Bytes a second for all connections of one direction together, without a burst; 0 is no limit."""

    def __init__(self) -> None:
        self.bytes_per_second = 0.0
        self._turn = threading.Lock()
        self._free_at = 0.0

    def wait_to_carry(self, size_bytes: int) -> None:
        if not self.bytes_per_second:
            return
        with self._turn:
            self._free_at = max(self._free_at, time.monotonic()) + size_bytes / self.bytes_per_second
            pause = self._free_at - time.monotonic()
        time.sleep(max(0.0, pause))


class SlowLink:
    """The proxy, with equal limits in both directions.

    Clients connect to ``port``; ``target_port`` is the broker's, which may be set later.
    """

    def __init__(self) -> None:
        self.target_port = 0
        self.answer_delay_seconds = 0.0
        self._there, self._back = _Rate(), _Rate()
        self._open: set[socket.socket] = set()
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(64)
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def bytes_per_second(self) -> float:
        """Bytes per second of each direction; 0 is no limit."""
        return self._there.bytes_per_second

    @bytes_per_second.setter
    def bytes_per_second(self, value: float) -> None:
        self._there.bytes_per_second = self._back.bytes_per_second = value

    def close(self) -> None:
        """End the proxy and all its connections."""
        for end in (self._listener, *tuple(self._open)):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(("127.0.0.1", self.target_port), timeout=5)
            except OSError:
                client.close()
                continue
            broker.settimeout(None)
            broker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
            self._open |= {client, broker}
            for source, sink, rate, is_answer in (
                (client, broker, self._there, False),
                (broker, client, self._back, True),
            ):
                threading.Thread(target=self._carry, args=(source, sink, rate, is_answer), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, rate: _Rate, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(_CHUNK_BYTES):
                rate.wait_to_carry(len(chunk))
                if is_answer and self.answer_delay_seconds:
                    time.sleep(self.answer_delay_seconds)
                sink.sendall(chunk)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
            self._open.discard(end)


@contextlib.contextmanager
def broker_behind(own_broker: BrokerFactory) -> Iterator[tuple[SlowLink, KafkaSettings]]:
    """Yield a broker that is reachable through the link only, with both topics created and no limit yet."""
    link = SlowLink()
    try:
        broker: EmbeddedKafka = own_broker({"advertised.listeners": f"PLAINTEXT://127.0.0.1:{link.port}"})
        link.target_port = int(broker.bootstrap_servers.rpartition(":")[2])
        settings = KafkaSettings(f"127.0.0.1:{link.port}")
        create_topics(settings)
        yield link, settings
    finally:
        link.close()
