"""The cycle's session, kept open from step to step."""

import contextlib
from collections.abc import Iterator

import psycopg

from sla_pipeline.errors import PostgresSetupError, SlaPipelineError
from sla_pipeline.postgres.faults import translate
from sla_pipeline.postgres.outbox import PostgresOutbox
from sla_pipeline.postgres.session import PostgresSettings, translated_errors
from sla_pipeline.postgres.settings import POSTGRES_URL

__all__ = ["Database", "check_writable"]


class Database:
    """The cycle's session: opened at first use, kept to the end of the run, since its advisory locks live as long."""

    def __init__(self, settings: PostgresSettings, *, single_runner: bool = False) -> None:
        self.settings = settings
        self.single_runner = single_runner
        self._connection: psycopg.Connection | None = None

    def connection(self) -> psycopg.Connection:
        """Return the session, for callers that classify the driver's errors themselves.

        Raises ``PostgresSetupError`` or ``PostgresUnavailable``.
        """
        if self._connection is None or self._connection.closed:
            self._connection = self.settings.connect(purpose="cycle")
        return self._connection

    @contextlib.contextmanager
    def session(self) -> Iterator[psycopg.Connection]:
        """Yield the session; raise ``PostgresSetupError`` or ``PostgresUnavailable`` for the driver's errors."""
        connection = self.connection()
        with translated_errors(self.settings):
            yield connection

    def translated(self, error: Exception) -> SlaPipelineError | None:
        """Return our error for one of the driver; None for any other."""
        return translate(error, self.settings) if isinstance(error, psycopg.Error) else None

    def outbox(self) -> PostgresOutbox:
        """Open a session for the relay."""
        return PostgresOutbox(self.settings)

    def close(self) -> None:
        """End the session: the server rolls back what is not committed, and frees the session's locks."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def check_writable(connection: psycopg.Connection) -> None:
    """Raise ``PostgresSetupError`` on a standby, and on a database that is set to read only."""
    if connection.execute("show transaction_read_only").fetchone() == ("on",):
        info = connection.info
        raise PostgresSetupError(
            f"database {info.dbname!r} on {info.host}:{info.port} is read only: this is a standby, or set to read "
            f"only; let {POSTGRES_URL} name the primary"
        )
