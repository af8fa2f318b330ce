"""Time limit of a session's first statements; the driver itself has none."""

import contextlib
import os
import socket
import threading
from typing import Self

import psycopg

from sla_pipeline.errors import PostgresUnavailable

__all__ = ["AnswerTimer"]

# Bounds the first statements of a session. A pooler accepts a login by itself and lets the first statement wait for a
# server process, two minutes by default.
_FIRST_STATEMENTS_SECONDS = 5


class AnswerTimer:
    """Disconnects the watched sessions when the block takes longer than ``_FIRST_STATEMENTS_SECONDS``."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._timer = threading.Timer(_FIRST_STATEMENTS_SECONDS, self._disconnect)
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._expired = False

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def watch(self, connection: psycopg.Connection) -> None:
        """Disconnect this session too when the time is over."""
        with self._lock:
            # a duplicate, because the driver may close its own descriptor at any moment
            self._sockets.append(socket.socket(fileno=os.dup(connection.pgconn.socket)))
        if self._expired:
            self._disconnect()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._timer.cancel()
        with self._lock:
            expired = self._expired
            for watched in self._sockets:
                watched.close()
            self._sockets = []
        if expired and isinstance(error, psycopg.OperationalError):
            raise PostgresUnavailable(
                f"{self._where} takes the login and does not answer the first statement within "
                f"{_FIRST_STATEMENTS_SECONDS} s: a pooler that is paused, or has no server process free (`show pools`; "
                "`resume`, or raise `default_pool_size`)"
            ) from None

    def _disconnect(self) -> None:
        with self._lock:
            self._expired = True
            for watched in self._sockets:
                with contextlib.suppress(OSError):
                    watched.shutdown(socket.SHUT_RDWR)
