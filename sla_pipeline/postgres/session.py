"""Sessions: how the job connects, what it requires of a session, how long it waits.

A session must keep its server process to its end: advisory locks and settings belong to that process. So settings are
made after connecting (a pooler refuses them at login), read back in a second statement, and behind a pooler
``pooler.py`` finds out the rest.
"""

import contextlib
import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Self

import psycopg
from psycopg.types.datetime import TimestamptzLoader
from psycopg.types.string import TextLoader

from sla_pipeline.errors import PostgresSetupError, PostgresUnavailable, SlaPipelineError
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

# a server that does not answer in this time is treated as away; a cycle has a minute
_CONNECT_TIMEOUT_SECONDS = 5
# A pooler takes a login by itself and lets the first statement wait, two minutes by default, for a server process.
_FIRST_STATEMENTS_SECONDS = 5
# idle_session_timeout and client_connection_check_interval came with it
_OLDEST_SERVER = 140_000
# Bounds one statement. The slowest is the claim under a backlog of millions, about a second; a cycle must end well
# inside its minute.
STATEMENT_TIMEOUT_MS = 10_000
# Bounds one wait for a lock. Rows are taken with SKIP LOCKED; only the outbox's sequence is ever waited for, which a
# batch holds for milliseconds.
LOCK_TIMEOUT_MS = 5_000
# a worker that froze inside a batch gives its rows back
_IDLE_IN_TRANSACTION_TIMEOUT_MS = 15_000
# dead peers are noticed in this time instead of the kernel's two hours
_TCP_USER_TIMEOUT_MS = 15_000

# what the code relies on, whatever the server, the database or the login have as their defaults
_MEANING = {
    "timezone": "UTC",
    # psycopg parses ISO dates only
    "datestyle": "ISO, MDY",
    # a batch must see what an operator has committed since it began (SPEC 5.5)
    "default_transaction_isolation": "read committed",
    # an event must not be on the topic when a crash takes back the mark
    "synchronous_commit": "on",
    # a row-level policy must be an error: hidden tickets would be missed in silence
    "row_security": "off",
    # the server notices a worker whose machine died, and frees its locks, in seconds instead of two hours
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
# an index of years of tickets takes hours to build
_UNBOUNDED = {"statement_timeout": 0, "idle_in_transaction_session_timeout": 0, "idle_session_timeout": 0}

# what stands for a time that Python's datetime cannot hold (infinity, years before 1 and after 9999): it compares as
# the original would
DISTANT_PAST = datetime.min.replace(tzinfo=UTC)
DISTANT_FUTURE = datetime.max.replace(tzinfo=UTC)


class TolerantTimestamptzLoader(TimestamptzLoader):
    """Loads every timestamp that Postgres can hold.

    Ten times slower than the driver's own, so for the rows that need it only.
    """

    def load(self, data: psycopg.abc.Buffer) -> datetime:
        """Load one; what Python cannot hold becomes ``DISTANT_PAST`` or ``DISTANT_FUTURE``."""
        try:
            return super().load(data)
        except (psycopg.DataError, OverflowError):
            written = bytes(data)
            return DISTANT_PAST if written.startswith(b"-") or written.endswith(b"BC") else DISTANT_FUTURE


class PostgresSettings(PostgresUrl):
    """Where the tickets are, and sessions there. Raises ``ConfigurationError`` for a malformed URL."""

    @classmethod
    def from_environment(cls, variable: str = POSTGRES_URL) -> Self:
        """Read the URL from ``variable``. Raises ``ConfigurationError`` when it is missing or malformed."""
        return cls(required_url(variable), variable)

    @contextlib.contextmanager
    def session(self, *, purpose: str) -> Iterator[psycopg.Connection]:
        """A session for the length of the block, the driver's errors turned into ours. Raises as ``connect`` does."""
        with self.connect(purpose=purpose) as connection, translated_errors(self):
            yield connection

    def connect(self, *, purpose: str, idle_session_timeout_ms: int = 0) -> psycopg.Connection:
        """Open a session in autocommit mode, with settings of its own and time-outs on all it can wait for.

        ``idle_session_timeout_ms``: the server ends the session, and with it its locks, when it is silent for that
        long; 0 for never. Raises ``PostgresUnavailable`` (no answer) or ``PostgresSetupError`` (refused; an old server; a
        pooler that does not keep sessions).
        """
        connection = self._open(purpose, _MEANING | _BOUNDS | {"idle_session_timeout": idle_session_timeout_ms})
        # an id is only ever passed on, as text
        connection.adapters.register_loader("uuid", TextLoader)
        return connection

    def connect_unbounded(self, *, purpose: str) -> psycopg.Connection:
        """The same for migrations, whose statements may take hours, and without loaders of ours."""
        return self._open(purpose, _MEANING | _UNBOUNDED)

    def has_worker_role(self) -> bool:
        """Whether the login has the rights of role sla_worker; False where that cannot be found out."""
        with (
            contextlib.suppress(SlaPipelineError, psycopg.Error),
            contextlib.closing(self._log_in("rights")) as connection,
        ):
            with _AnswerTimer(self.place) as timer:
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
            with translated_errors(self), _AnswerTimer(self.place) as timer:
                timer.watch(connection)
                processes = self._apply(connection, values)
                # libpq learns the number of its server process at login, from whoever took the login
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
                # Only those are prepared that ask for it, by `prepare=True`: with None the driver would not heed that
                # either
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
        """Make the settings, read them back in a second statement, and return the server processes of the two."""
        set_all = ", ".join(f"set_config('{name}', %s, false)" for name in values)
        read_all = ", ".join(f"current_setting('{name}')" for name in values)
        # as the server shows them: a time has a unit, and what a socket of this machine does not have is 0
        made = connection.execute(
            f"select pg_backend_pid(), {set_all}".encode(), [str(value) for value in values.values()]
        ).fetchone()
        found = connection.execute(f"select pg_backend_pid(), {read_all}".encode()).fetchone()
        assert made is not None and found is not None  # noqa: S101, PT018  a select without a table has a row
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


class _AnswerTimer:
    """Cuts the watched sessions off when the block takes longer than ``_FIRST_STATEMENTS_SECONDS``: the driver
    itself has no time limit.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._timer = threading.Timer(_FIRST_STATEMENTS_SECONDS, self._cut_off)
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._expired = False

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def watch(self, connection: psycopg.Connection) -> None:
        """Cut this session off too."""
        with self._lock:
            # a descriptor of its own: the driver may close its own one at any moment
            self._sockets.append(socket.socket(fileno=os.dup(connection.pgconn.socket)))
        if self._expired:
            self._cut_off()

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

    def _cut_off(self) -> None:
        with self._lock:
            self._expired = True
            for watched in self._sockets:
                with contextlib.suppress(OSError):
                    watched.shutdown(socket.SHUT_RDWR)


def limit_waiting(connection: psycopg.Connection, *, statement_ms: int, lock_ms: int) -> None:
    """Set the session's bounds on a statement and on a wait for a lock, in milliseconds."""
    connection.execute(
        "select set_config('statement_timeout', %s, false), set_config('lock_timeout', %s, false)",
        (str(statement_ms), str(lock_ms)),
    )


class _WithoutServerText(logging.Filter):
    """Drops the driver's "error ignored" warnings: they repeat an error that is raised anyway, whose text may hold a
    ticket's data.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is kept."""
        return not str(record.msg).startswith("error ignored")


logging.getLogger("psycopg").addFilter(_WithoutServerText())


@contextlib.contextmanager
def translated_errors(settings: PostgresSettings) -> Iterator[None]:
    """Raise one of our errors for each of the driver's, without the driver's in its chain: that text may repeat a ticket's data.

    A stop request that interrupts the driver while it waits is raised as itself, not as the driver's error on its way
    out.
    """
    try:
        yield
    except psycopg.Error as error:
        raise (stop_request_behind(error) or translate(error, settings)) from None
