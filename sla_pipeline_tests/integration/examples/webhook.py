"""Local receiver of escalations: it records each call and answers as the test chooses."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from sla_pipeline.embedded.ports import free_ports

# Bounds a call that a test holds and never releases.
_HELD_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Call:
    """One received request, and the status that it was answered with."""

    method: str
    path: str
    event_id: str
    content_type: str
    body: bytes
    status: int


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Ignore a client that a test has killed in its call."""


@dataclass
class Webhook:
    """Receiver on a free port. It listens from ``start`` to ``stop``.

    ``status_of`` returns the status for an event's id. The calls for ``held_event_id`` wait in ``held`` until
    ``release``.
    """

    status_of: Callable[[str], int] = lambda _: 204
    held_event_id: str | None = None
    calls: list[Call] = field(default_factory=list)
    held: threading.Event = field(default_factory=threading.Event)
    port: int = field(default_factory=lambda: free_ports(1)[0])
    _released: threading.Event = field(default_factory=threading.Event)
    _server: ThreadingHTTPServer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._released.set()
        self.stop()

    @property
    def url(self) -> str:
        """URL for the consumer."""
        return f"http://127.0.0.1:{self.port}/escalations"

    @property
    def accepted(self) -> list[Call]:
        """Calls that were answered with success, in order of arrival."""
        return [call for call in self.calls if call.status // 100 == 2]

    def accepted_ids(self) -> list[str]:
        """Return the event ids of the accepted calls, in order of arrival, without repetitions."""
        return list(dict.fromkeys(call.event_id for call in self.accepted))

    def release(self) -> None:
        """Answer the held calls, and hold none from now on."""
        self.held_event_id = None
        self._released.set()

    def start(self) -> Self:
        """Listen."""
        webhook = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                event_id = self.headers.get("Idempotency-Key") or ""
                if event_id == webhook.held_event_id:
                    webhook.held.set()
                    assert webhook._released.wait(_HELD_SECONDS)
                status = webhook.status_of(event_id)
                content_type = self.headers.get("Content-Type") or ""
                webhook.calls.append(Call(self.command, self.path, event_id, content_type, body, status))
                self.send_response(status)
                if status // 100 == 3:
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST = _answer  # noqa: N815 - names of the base class

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self._server = _Server(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def stop(self) -> None:
        """Close the port."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
