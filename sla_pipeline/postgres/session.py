"""Sessions: connecting, the settings that a session requires, and the bounds on its waits.

A session must keep its server process to its end: advisory locks and settings belong to that process. So settings are
made after connecting, because a pooler refuses them at login, and read back in a second statement. Behind a pooler,
``pooler.py`` checks the rest.
"""

import contextlib
import logging
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Self

import psycopg
from psycopg.types.datetime import TimestamptzLoader
from psycopg.types.string import TextLoader

from sla_pipeline.errors import PostgresSetupError, SlaPipelineError
from sla_pipeline.postgres.answer_timer import AnswerTimer
from sla_pipeline.postgres.faults import login_fault, stop_request_behind, translate
from sla_pipeline.postgres.login import refusal_of
from sla_pipeline.postgres.pooler import check_pooler
from sla_pipeline.postgres.settings import POSTGRES_URL, PostgresUrl, required_url
from sla_pipeline.quoting import quoted

__all__ = [
    "DISTANT_FUTURE",
    "DISTANT_PAST",
    "LOCK_TIMEOUT_MS",
    "STATEMENT_TIMEOUT_MS",
    "PostgresSettings",
    "TolerantTimestamptzLoader",
    "limit_waiting",
    "translated_errors",
]

# Bounds one attempt to connect; a cycle has a minute.
_CONNECT_TIMEOUT_SECONDS = 5
# the first version with idle_session_timeout and client_connection_check_interval
_OLDEST_SERVER = 140_000
# Bounds one statement. The slowest is the claim under a backlog of millions, about a second; a cycle must end well
# inside its minute.
STATEMENT_TIMEOUT_MS = 10_000
# Bounds one wait for a lock. Rows are locked with SKIP LOCKED, so a batch waits only for the outbox's sequence, which
# another batch holds for milliseconds.
LOCK_TIMEOUT_MS = 5_000
# Bounds how long a frozen worker keeps the rows of its batch.
_IDLE_IN_TRANSACTION_TIMEOUT_MS = 15_000
# Bounds how long a dead peer goes unnoticed; the kernel's default is two hours.
_TCP_USER_TIMEOUT_MS = 15_000

# Settings that the code relies on, whatever the defaults of the server, the database or the login are.
_MEANING = {
    "timezone": "UTC",
    # psycopg parses ISO dates only
    "datestyle": "ISO, MDY",
    # a batch must see what an operator has committed since it began (SPEC 5.5)
    "default_transaction_isolation": "read committed",
    # if off, a crash could lose a mark whose event is published
    "synchronous_commit": "on",
    # a row-level policy must be an error: the job would silently miss hidden tickets
    "row_security": "off",
    # the server detects a worker whose machine died, and frees its locks, in seconds instead of two hours
    "tcp_keepalives_idle": 5,
    "tcp_keepalives_interval": 2,
    "tcp_keepalives_count": 3,
    "tcp_user_timeout": _TCP_USER_TIMEOUT_MS,
    "client_connection_check_interval": 1_000,
}
_BOUNDS = {
    # parallel workers cost more to start than our statements take; the planner's estimate would start them
    "max_parallel_workers_per_gather": 0,
    "statement_timeout": STATEMENT_TIMEOUT_MS,
    "lock_timeout": LOCK_TIMEOUT_MS,
    "idle_in_transaction_session_timeout": _IDLE_IN_TRANSACTION_TIMEOUT_MS,
}
# Bounds are off for migrations: an index of years of tickets takes hours to build.
_UNBOUNDED = {"statement_timeout": 0, "idle_in_transaction_session_timeout": 0, "idle_session_timeout": 0}

# Replacements of times that Python's datetime cannot hold (infinity, years before 1 and after 9999); they compare as
# the originals would.
DISTANT_PAST = datetime.min.replace(tzinfo=UTC)
DISTANT_FUTURE = datetime.max.replace(tzinfo=UTC)


class TolerantTimestamptzLoader(TimestamptzLoader):
    """Loader of every timestamp that Postgres can hold.

    It is ten times slower than the driver's own, so only rows that need it use it.
    """

    def load(self, data: psycopg.abc.Buffer) -> datetime:
        """Return the timestamp; one that Python cannot hold becomes ``DISTANT_PAST`` or ``DISTANT_FUTURE``."""
        try:
            return super().load(data)
        except (psycopg.DataError, OverflowError):
            written = bytes(data)
            return DISTANT_PAST if written.startswith(b"-") or written.endswith(b"BC") else DISTANT_FUTURE


class PostgresSettings(PostgresUrl):
    """Database of the tickets, and its sessions. Raises ``ConfigurationError`` for a malformed URL."""

    @classmethod
    def from_environment(cls, variable: str = POSTGRES_URL) -> Self:
        """Read the URL from ``variable``. Raises ``ConfigurationError`` when it is missing or malformed."""
        return cls(required_url(variable), variable)

    @contextlib.contextmanager
    def session(self, *, purpose: str) -> Iterator[psycopg.Connection]:
        """Open a session for the block, and translate the driver's errors in it. Raises as ``connect`` does."""
        with self.connect(purpose=purpose) as connection, translated_errors(self):
            yield connection

    def connect(self, *, purpose: str, idle_session_timeout_ms: int = 0) -> psycopg.Connection:
        """Open a session in autocommit mode, with its own settings and a timeout on everything that it can wait for.

        ``idle_session_timeout_ms``: the server ends an idle session, and with it its locks, after this time; 0 means
        never. Raises ``PostgresUnavailable`` (no answer) or ``PostgresSetupError`` (refused; an old server; a pooler
        that does not keep sessions).
        """
        connection = self._open(purpose, _MEANING | _BOUNDS | {"idle_session_timeout": idle_session_timeout_ms})
        # ids are only passed on, so they stay text
        connection.adapters.register_loader("uuid", TextLoader)
        return connection

    def connect_unbounded(self, *, purpose: str) -> psycopg.Connection:
        """Open a session for migrations: its statements may take hours, and ids are loaded as the driver does."""
        return self._open(purpose, _MEANING | _UNBOUNDED)

    def has_worker_role(self) -> bool:
        """Return whether the login has the rights of role sla_worker; False if that cannot be determined."""
        with (
            contextlib.suppress(SlaPipelineError, psycopg.Error),
            contextlib.closing(self._log_in("rights")) as connection,
        ):
            with AnswerTimer(self.place) as timer:
                timer.watch(connection)
                row = connection.execute(
                    "select pg_has_role(oid, 'usage') from pg_roles where rolname = 'sla_worker'"
                ).fetchone()
            return row == (True,)
        return False

    def _open(self, purpose: str, values: Mapping[str, object]) -> psycopg.Connection:
        connection = self._log_in(purpose)
        try:
            self._require_version(connection)
            with translated_errors(self), AnswerTimer(self.place) as timer:
                timer.watch(connection)
                processes = self._apply(connection, values)
                # the process number at login comes from the peer that accepted the login: a pooler's is another
                if processes != {connection.info.backend_pid}:
                    with contextlib.closing(self._log_in(f"{purpose}, second session")) as other:
                        timer.watch(other)
                        check_pooler(connection, other, processes, where=self.place, variable=self.variable)
        except BaseException:
            connection.close()
            raise
        return connection

    def _log_in(self, purpose: str) -> psycopg.Connection:
        try:
            return psycopg.connect(
                self.url,
                autocommit=True,
                # statements are planned with their values: a generic plan of the claim is hundreds of times slower.
                # Only statements with `prepare=True` are prepared; with None the driver would ignore that too
                prepare_threshold=sys.maxsize,
                connect_timeout=_CONNECT_TIMEOUT_SECONDS,
                application_name=f"ticket-sla-monitor {purpose}",
                # in a database without an encoding the driver would return bytes
                client_encoding="utf8",
                keepalives=1,
                keepalives_idle=5,
                keepalives_interval=2,
                keepalives_count=3,
                tcp_user_timeout=_TCP_USER_TIMEOUT_MS,
            )
        except psycopg.Error as error:
            stopped = stop_request_behind(error)
            raise (stopped or login_fault(error, refusal_of(error, self.attempts()), self)) from None

    def _require_version(self, connection: psycopg.Connection) -> None:
        if connection.info.server_version < _OLDEST_SERVER:
            found = connection.info.parameter_status("server_version") or "(unknown)"
            raise PostgresSetupError(
                f"{self.place} is served by version {quoted(found)}; the monitor needs PostgreSQL "
                f"{_OLDEST_SERVER // 10_000} or later"
            )

    def _apply(self, connection: psycopg.Connection, values: Mapping[str, object]) -> set[int]:
        """Make the settings, read them back in a second statement, and return the server processes of both."""
        set_all = ", ".join(f"set_config('{name}', %s, false)" for name in values)
        read_all = ", ".join(f"current_setting('{name}')" for name in values)
        # set_config returns a value as the server shows it: a time has a unit, and an option that a Unix socket lacks
        # is 0
        made = connection.execute(
            f"select pg_backend_pid(), {set_all}".encode(), [str(value) for value in values.values()]
        ).fetchone()
        found = connection.execute(f"select pg_backend_pid(), {read_all}".encode()).fetchone()
        assert made is not None and found is not None  # noqa: S101, PT018  a select without a table returns a row
        if made[0] == found[0]:
            self._require_same(list(values), made[1:], found[1:])
        return {made[0], found[0]}

    def _require_same(self, names: list[str], made: tuple[str, ...], found: tuple[str, ...]) -> None:
        for name, needed, kept in zip(names, made, found, strict=True):
            if needed != kept:
                raise PostgresSetupError(
                    f"{self.place} does not keep the settings of a session: {name} is {quoted(kept)} in the statement "
                    f"after it was set to {quoted(needed)}; let {self.variable} name the server itself, or set "
                    "`pool_mode = session` in the pooler"
                )


def limit_waiting(connection: psycopg.Connection, *, statement_ms: int, lock_ms: int) -> None:
    """Set the session's bounds on one statement and on one wait for a lock, in milliseconds."""
    connection.execute(
        "select set_config('statement_timeout', %s, false), set_config('lock_timeout', %s, false)",
        (str(statement_ms), str(lock_ms)),
    )


class _WithoutServerText(logging.Filter):
    """Filter of the driver's "error ignored" warnings.

    They repeat an error that is raised anyway, and its text may hold a ticket's data.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is kept."""
        return not str(record.msg).startswith("error ignored")


logging.getLogger("psycopg").addFilter(_WithoutServerText())


@contextlib.contextmanager
def translated_errors(settings: PostgresSettings) -> Iterator[None]:
    """Raise one of our errors for each of the driver's, whose text may repeat a ticket's data and is left out.

    A stop request that interrupts a wait of the driver is raised itself, not the driver's error that follows it.
    """
    try:
        yield
    except psycopg.Error as error:
        raise (stop_request_behind(error) or translate(error, settings)) from None
