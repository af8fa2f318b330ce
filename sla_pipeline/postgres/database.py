"""The cycle's session, kept open from step to step."""

import contextlib
from collections.abc import Iterator

import psycopg

from sla_pipeline.postgres.outbox import PostgresOutbox
from sla_pipeline.postgres.session import PostgresSettings, translated_errors

__all__ = ["Database"]


class Database:
    """The cycle's session, opened at first use and kept to the end of the run, since its advisory locks live as long
    as it does.
    """

    def __init__(self, settings: PostgresSettings, *, single_runner: bool = False) -> None:
        self.settings = settings
        self.single_runner = single_runner
        self._connection: psycopg.Connection | None = None

    def connection(self) -> psycopg.Connection:
        """The session, for callers that judge the driver's errors themselves.

        Raises ``PostgresSetupError`` or ``PostgresUnavailable``.
        """
        if self._connection is None or self._connection.closed:
            self._connection = self.settings.connect(purpose="cycle")
        return self._connection

    @contextlib.contextmanager
    def session(self) -> Iterator[psycopg.Connection]:
        """The session, with the driver's errors turned into ours.

        Raises ``PostgresSetupError`` or ``PostgresUnavailable``.
        """
        connection = self.connection()
        with translated_errors(self.settings):
            yield connection

    def outbox(self) -> PostgresOutbox:
        """A session for the relay."""
        return PostgresOutbox(self.settings)

    def close(self) -> None:
        """End the session. What it had not committed is rolled back by the server, its locks are free."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
