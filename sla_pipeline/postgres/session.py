"""Sessions: how the job connects, how long it waits, how the driver's errors become ours.

What belongs here: connecting, time-outs, type loaders, translation of errors. What does not: any statement on a table.

Every session is a direct one: advisory locks and session settings do not survive a PgBouncer in transaction mode, so
``SLA_POSTGRES_URL`` must name the server itself (or a pooler in session mode).
"""

import contextlib
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum, auto

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.datetime import TimestamptzLoader
from psycopg.types.string import TextLoader

from sla_pipeline.environment import variable
from sla_pipeline.errors import ConfigurationError, DatabaseBusy, DatabaseError, DatabaseUnavailable, RightMissing
from sla_pipeline.quoting import named, quoted

__all__ = [
    "DISTANT_FUTURE",
    "DISTANT_PAST",
    "LOCK_TIMEOUT_MS",
    "POSTGRES_URL",
    "SINGLE_RUNNER",
    "STATEMENT_TIMEOUT_MS",
    "FaultScope",
    "PostgresSettings",
    "TolerantTimestamptzLoader",
    "fault_name",
    "fault_scope",
    "limit_waiting",
    "single_runner_from_environment",
    "stop_request_behind",
    "translate",
    "translated_errors",
]

POSTGRES_URL = "SLA_POSTGRES_URL"
SINGLE_RUNNER = "SLA_SINGLE_RUNNER"
# a server that does not answer in this time is treated as away; a cycle has a minute
_CONNECT_TIMEOUT_SECONDS = 5
# Bounds one statement. The slowest is the claim under a backlog of millions, about a second; a cycle must end well inside its minute.
STATEMENT_TIMEOUT_MS = 10_000
# Bounds one wait for a lock. Rows are taken with SKIP LOCKED; only the outbox's sequence is ever waited for, which a batch holds for
# milliseconds.
LOCK_TIMEOUT_MS = 5_000
# a worker that froze inside a batch gives its rows back
_IDLE_IN_TRANSACTION_TIMEOUT_MS = 15_000
# dead peers are noticed in this time instead of the kernel's two hours
_TCP_USER_TIMEOUT_MS = 15_000

# what the code relies on, whatever the server, the database or the login have as their defaults
_SETTINGS = {
    "timezone": "UTC",
    # the driver reads no other
    "datestyle": "ISO",
    # a batch must see what an operator has committed since it began (SPEC 5.5)
    "default_transaction_isolation": "read\\ committed",
    # an event must not be on the topic when a crash takes back the mark
    "synchronous_commit": "on",
    # a row-level policy must be an error: hidden tickets would be missed in silence
    "row_security": "off",
    # to start workers takes longer than any of our statements, and the planner, which takes half of the tickets for overdue, would
    "max_parallel_workers_per_gather": 0,
    "statement_timeout": STATEMENT_TIMEOUT_MS,
    "lock_timeout": LOCK_TIMEOUT_MS,
    "idle_in_transaction_session_timeout": _IDLE_IN_TRANSACTION_TIMEOUT_MS,
    # the server notices a worker whose machine died, and frees its locks, in seconds instead of two hours
    "tcp_keepalives_idle": 5,
    "tcp_keepalives_interval": 2,
    "tcp_keepalives_count": 3,
    "tcp_user_timeout": _TCP_USER_TIMEOUT_MS,
    "client_connection_check_interval": 1_000,
}

# what stands for a time that Python's datetime cannot hold (infinity, years before 1 and after 9999): it compares as the original would
DISTANT_PAST = datetime.min.replace(tzinfo=UTC)
DISTANT_FUTURE = datetime.max.replace(tzinfo=UTC)


class TolerantTimestamptzLoader(TimestamptzLoader):
    """Loads every timestamp that Postgres can hold. Ten times slower than the driver's own, so for the rows that need it only."""

    def load(self, data: psycopg.abc.Buffer) -> datetime:
        """Load one; what Python cannot hold becomes ``DISTANT_PAST`` or ``DISTANT_FUTURE``."""
        try:
            return super().load(data)
        except (psycopg.DataError, OverflowError):
            written = bytes(data)
            return DISTANT_PAST if written.startswith(b"-") or written.endswith(b"BC") else DISTANT_FUTURE


@dataclass(frozen=True)
class PostgresSettings:
    """Where the tickets are. Raises ``ConfigurationError`` for a malformed URL."""

    url: str = field(repr=False)

    def __post_init__(self) -> None:
        if not self.url.startswith(("postgresql://", "postgres://")):
            raise ConfigurationError(f"{POSTGRES_URL} is not a URL of Postgres; write postgresql://USER:PASSWORD@HOST:PORT/DATABASE")
        try:
            parts = conninfo_to_dict(self.url)
            for host in str(parts.get("host") or "").split(","):
                # as the driver does with a name, to look it up
                host.encode("idna" if not host.startswith("/") else "utf8")
            # the driver would cut the URL off at a NUL
            readable = "\0" not in self.url
        except (psycopg.ProgrammingError, UnicodeError):
            # bytes that are not UTF-8, in the variable itself or percent-encoded, are an error of Python's
            readable = False
        if not readable:
            # the driver's own text may repeat the password
            raise ConfigurationError(
                f"{POSTGRES_URL} cannot be parsed; write postgresql://USER:PASSWORD@HOST:PORT/DATABASE, special characters percent-encoded"
            )

    @classmethod
    def from_environment(cls) -> "PostgresSettings":
        """Read ``SLA_POSTGRES_URL``. Raises ``ConfigurationError`` when it is missing or malformed."""
        url = variable(POSTGRES_URL)
        if not url:
            raise ConfigurationError(
                f"{POSTGRES_URL} is not set; set it to postgresql://USER:PASSWORD@HOST:PORT/DATABASE, the worker's login"
            )
        return cls(url)

    @property
    def place(self) -> str:
        """Server, database and user, for messages: never the password."""
        parts = conninfo_to_dict(self.url)
        return (
            f"database {quoted(parts.get('dbname', '(default)'))}"
            f" at {named(str(parts.get('host', 'localhost')))}:{named(str(parts.get('port', 5432)))}"
            f" as user {quoted(parts.get('user', '(default)'))}"
        )

    @contextlib.contextmanager
    def session(self, *, purpose: str) -> Iterator[psycopg.Connection]:
        """A session for the length of the block, the driver's errors turned into ours. Raises as ``connect`` does."""
        with self.connect(purpose=purpose) as connection, translated_errors(self):
            yield connection

    def connect(self, *, purpose: str, idle_session_timeout_ms: int = 0) -> psycopg.Connection:
        """Open a session in autocommit mode, with settings of its own and time-outs on all it can wait for.

        ``idle_session_timeout_ms``: the server ends the session, and with it its locks, when it is silent for that long; 0 for never.
        Raises ``DatabaseUnavailable`` (no answer) or ``DatabaseError`` (refused: login, database, rights).
        """
        given = conninfo_to_dict(self.url)
        settings = _SETTINGS | {"idle_session_timeout": idle_session_timeout_ms}
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        with translated_errors(self):
            connection = psycopg.connect(
                self.url,
                autocommit=True,
                # statements are planned with their values: a generic plan of the claim is hundreds of times slower. Only those are prepared
                # that ask for it, by `prepare=True`: with None the driver would not heed that either
                prepare_threshold=sys.maxsize,
                connect_timeout=_CONNECT_TIMEOUT_SECONDS,
                application_name=f"ticket-sla-monitor {purpose}",
                # in a database without an encoding the driver would return bytes
                client_encoding="utf8",
                options=f"{given.get('options') or ''} {options}".strip(),
                keepalives_idle=5,
                keepalives_interval=2,
                keepalives_count=3,
                tcp_user_timeout=_TCP_USER_TIMEOUT_MS,
            )
        # an id is only ever passed on, as text
        connection.adapters.register_loader("uuid", TextLoader)
        return connection


def single_runner_from_environment() -> bool:
    """Whether ``SLA_SINGLE_RUNNER`` asks for the single-runner mode of SPEC 2.2; off by default. Raises ``ConfigurationError``."""
    given = variable(SINGLE_RUNNER) or "0"
    if given not in ("0", "1"):
        raise ConfigurationError(f"{SINGLE_RUNNER} is {given!r}; set it to 1 for one runner at a time, or to 0")
    return given == "1"


def limit_waiting(connection: psycopg.Connection, *, statement_ms: int, lock_ms: int) -> None:
    """Set the session's bounds on a statement and on a wait for a lock, in milliseconds."""
    connection.execute(
        "select set_config('statement_timeout', %s, false), set_config('lock_timeout', %s, false)", (str(statement_ms), str(lock_ms))
    )


class _WithoutServerText(logging.Filter):
    """Drops the driver's "error ignored" warnings: they repeat an error that is raised anyway, whose text may hold a ticket's data."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is kept."""
        return not str(record.msg).startswith("error ignored")


logging.getLogger("psycopg").addFilter(_WithoutServerText())


@contextlib.contextmanager
def translated_errors(settings: PostgresSettings) -> Iterator[None]:
    """Raise one of our errors for each of the driver's, without the driver's in its chain: that text may repeat a ticket's data.

    A stop request that interrupts the driver while it waits is raised as itself, not as the driver's error on its way out.
    """
    try:
        yield
    except psycopg.Error as error:
        raise (stop_request_behind(error) or translate(error, settings)) from None


def stop_request_behind(error: BaseException) -> BaseException | None:
    """The interruption during which an error arose, if there was one."""
    while error.__context__ is not None:
        error = error.__context__
        if not isinstance(error, Exception):
            return error
    return None


class FaultScope(Enum):
    """How far a fault reaches, as far as its code shows. Only a trial of the other rows shows the rest."""

    CONNECTION = auto()
    """The session is gone."""
    BUSY = auto()
    """A time-out, a lock or a deadlock: the same statement may pass later, or with fewer rows."""
    ENVIRONMENT = auto()
    """A right, an object or a resource is missing: probably for every row, unless a trigger raises the code for one."""
    ROW = auto()
    """A constraint or a trigger refuses a row's data."""


_BUSY_STATES = ("57014", "55P03")
# server, session, resources, rights and missing objects
_ENVIRONMENT_CLASSES = ("08", "25", "28", "3D", "3F", "42", "53", "54", "55", "57", "58", "F0", "XX")


def fault_scope(error: psycopg.Error, connection: psycopg.Connection) -> FaultScope:
    """The scope of an error that ``connection`` raised."""
    if connection.closed or error.sqlstate is None:
        return FaultScope.CONNECTION
    if error.sqlstate in _BUSY_STATES or error.sqlstate.startswith("40"):
        return FaultScope.BUSY
    return FaultScope.ENVIRONMENT if error.sqlstate.startswith(_ENVIRONMENT_CLASSES) else FaultScope.ROW


# the session could not be opened, or was ended
_CONNECTION_STATES = ("08", "28", "57P", "3D")
# messages from these source files of the server name an object or a time-out and nothing else, also inside a trigger
_SAFE_SOURCES = ("aclchk.c", "deadlock.c", "namespace.c", "parse_relation.c", "postgres.c", "proc.c")


def fault_name(error: psycopg.Error) -> str:
    """Class, code and constraint of a fault; never the server's text, which may repeat what a row holds."""
    constraint = f", constraint {named(error.diag.constraint_name)}" if error.diag.constraint_name else ""
    return f"{type(error).__name__} ({error.sqlstate or 'no SQLSTATE'}){constraint}"


def _safe_text(error: psycopg.Error) -> str:
    """The server's text where the server itself wrote it; ``fault_name`` where a function or trigger may have written it."""
    if error.sqlstate is None:
        return (str(error).strip().splitlines() or [""])[0]
    if error.diag.context is None or error.diag.source_file in _SAFE_SOURCES:
        return error.diag.message_primary or fault_name(error)
    return f"{fault_name(error)} in a function or trigger of the database"


def translate(  # noqa: PLR0911 - one return a fault reads best
    error: psycopg.Error, settings: PostgresSettings
) -> DatabaseError | DatabaseUnavailable:
    """Our error for one of the driver's: permanent faults are ``DatabaseError``, a server that is away or busy ``DatabaseUnavailable``."""
    text, where = _safe_text(error), settings.place
    match error:
        case psycopg.errors.UndefinedTable() | psycopg.errors.InvalidSchemaName() | psycopg.errors.UndefinedColumn():
            return DatabaseError(
                f"{text} in {where}; check that {POSTGRES_URL} names the support service's database and run `sla-pipeline migrate`"
            )
        case psycopg.errors.InsufficientPrivilege() if "row-level security" in text:
            return DatabaseError(f"{text} in {where}; the monitor must see every ticket: `alter role LOGIN bypassrls`")
        case psycopg.errors.InsufficientPrivilege():
            return RightMissing(f"{text} in {where}; grant the login membership of role sla_worker (`grant sla_worker to LOGIN`)")
        case psycopg.errors.ReadOnlySqlTransaction():
            return DatabaseError(f"{text} in {where}: this is a standby, or set to read only; let {POSTGRES_URL} name the primary")
        case (
            psycopg.errors.QueryCanceled()
            | psycopg.errors.LockNotAvailable()
            | psycopg.errors.DeadlockDetected()
            | psycopg.errors.SerializationFailure()
        ):
            return DatabaseBusy(
                f"{text} ({error.sqlstate}) in {where}; the next cycle tries again. If it comes often, look for locks that are held long "
                "and for the warning of a missing index"
            )
        case psycopg.OperationalError() if error.sqlstate and not error.sqlstate.startswith(_CONNECTION_STATES):
            return DatabaseUnavailable(f"{text} in {where}; the next cycle tries again. Check the server's disk, memory and log")
        case psycopg.OperationalError() | psycopg.InterfaceError() | psycopg.errors.IdleInTransactionSessionTimeout():
            return _connection_error(text, where, settings)
        case _:
            return DatabaseError(f"{text} in {where}; look into the server's log for the statement")


# how libpq tells, before there is an SQLSTATE, that the server answered and refused
_REFUSALS = ("password authentication failed", "no password supplied", "does not exist", "no pg_hba.conf entry", "permission denied")


def _connection_error(said: str, where: str, settings: PostgresSettings) -> DatabaseError | DatabaseUnavailable:
    password = conninfo_to_dict(settings.url).get("password")
    if password:
        said = said.replace(str(password), "***")
    if any(refusal in said for refusal in _REFUSALS):
        return DatabaseError(f"cannot log in to {where}: {said}; check user, password and database in {POSTGRES_URL}")
    return DatabaseUnavailable(f"no connection to {where}: {said}; check the server, the network and {POSTGRES_URL}")
