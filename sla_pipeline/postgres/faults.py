"""Errors of the driver: their scope, and our error for each."""

from enum import Enum, auto
from typing import Protocol

import psycopg

from sla_pipeline.errors import PostgresBusy, PostgresSetupError, PostgresUnavailable
from sla_pipeline.postgres.login import LoginRefusal
from sla_pipeline.postgres.settings import OWNER_URL
from sla_pipeline.quoting import named

__all__ = [
    "FaultScope",
    "Login",
    "fault_name",
    "fault_scope",
    "first_line",
    "login_fault",
    "stop_request_behind",
    "translate",
]


class Login(Protocol):
    """A login of the database: the parts that a message needs."""

    @property
    def variable(self) -> str:
        """Environment variable that holds its URL."""

    @property
    def place(self) -> str:
        """Server, database and user."""

    def parameters(self) -> dict[str, str]:
        """Return the parameters of its URL."""

    def has_worker_role(self) -> bool:
        """Return whether it has the rights of role sla_worker."""


def stop_request_behind(error: BaseException) -> BaseException | None:
    """Return the interruption that led to ``error``, or None."""
    while error.__context__ is not None:
        error = error.__context__
        if not isinstance(error, Exception):
            return error
    return None


def first_line(error: BaseException) -> str:
    """Return the first line of the error's text, or the name of its class."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


class FaultScope(Enum):
    """Scope of a fault, as far as its SQLSTATE shows. Only a trial of the other rows shows more."""

    CONNECTION = auto()
    """The session is gone."""
    BUSY = auto()
    """A timeout, a lock or a deadlock: the same statement may succeed later, or with fewer rows."""
    ENVIRONMENT = auto()
    """A missing right, object or resource: probably for every row, unless a trigger raises the code for one."""
    ROW = auto()
    """A constraint or a trigger refuses a row's data."""


_BUSY_STATES = ("57014", "55P03")
# SQLSTATE classes of the server, the session, resources, rights and missing objects
_ENVIRONMENT_CLASSES = ("08", "25", "28", "3D", "3F", "42", "53", "54", "55", "57", "58", "F0", "XX")


def fault_scope(error: psycopg.Error, connection: psycopg.Connection) -> FaultScope:
    """Return the scope of an error that ``connection`` raised."""
    if connection.closed or error.sqlstate is None:
        return FaultScope.CONNECTION
    if error.sqlstate in _BUSY_STATES or error.sqlstate.startswith("40"):
        return FaultScope.BUSY
    return FaultScope.ENVIRONMENT if error.sqlstate.startswith(_ENVIRONMENT_CLASSES) else FaultScope.ROW


# SQLSTATE classes after which the session is gone
_CONNECTION_STATES = ("08", "57P")
# messages from these source files of the server name only an object or a timeout, even inside a trigger
_SAFE_SOURCES = ("aclchk.c", "deadlock.c", "namespace.c", "parse_relation.c", "postgres.c", "proc.c")
# the server's source files that raise a missing right, and a row-level policy
_RIGHTS_SOURCE, _POLICIES_SOURCE = "aclchk.c", "rls.c"


def fault_name(error: psycopg.Error) -> str:
    """Return class, code and constraint of a fault; never the server's text, which may repeat a row's values."""
    constraint = f", constraint {named(error.diag.constraint_name)}" if error.diag.constraint_name else ""
    return f"{type(error).__name__} ({error.sqlstate or 'no SQLSTATE'}){constraint}"


def _safe_text(error: psycopg.Error) -> str:
    """Return the server's text, or ``fault_name`` where a function or trigger may have written the text."""
    if error.sqlstate is None:
        return first_line(error)
    if error.diag.context is None or error.diag.source_file in _SAFE_SOURCES:
        return error.diag.message_primary or fault_name(error)
    return f"{fault_name(error)} in a function or trigger of the database"


def translate(  # noqa: PLR0911 - one return per fault reads best
    error: psycopg.Error, login: Login
) -> PostgresSetupError | PostgresUnavailable:
    """Return our error for one of an open session.

    ``PostgresSetupError`` is permanent; ``PostgresUnavailable`` means that the server is unreachable or busy.
    """
    text, where = _safe_text(error), login.place
    match error:
        case psycopg.errors.UndefinedTable() | psycopg.errors.InvalidSchemaName() | psycopg.errors.UndefinedColumn():
            return PostgresSetupError(
                f"{text} in {where}; check that {login.variable} names the support service's database and run "
                "`sla-pipeline migrate`"
            )
        case psycopg.errors.InsufficientPrivilege():
            return _right_missing(error, text, login)
        case psycopg.errors.ReadOnlySqlTransaction():
            return PostgresSetupError(
                f"{text} in {where}: this is a standby, or set to read only; let {login.variable} name the primary"
            )
        case (
            psycopg.errors.QueryCanceled()
            | psycopg.errors.LockNotAvailable()
            | psycopg.errors.DeadlockDetected()
            | psycopg.errors.SerializationFailure()
        ):
            return PostgresBusy(
                f"{text} ({error.sqlstate}) in {where}; the next cycle tries again. If it comes often, look for locks "
                "that are held long and for the warning of a missing index"
            )
        case psycopg.OperationalError() if error.sqlstate and not error.sqlstate.startswith(_CONNECTION_STATES):
            return PostgresUnavailable(
                f"{text} in {where}; the next cycle tries again. Check the server's disk, memory and log"
            )
        case psycopg.OperationalError() | psycopg.InterfaceError() | psycopg.errors.IdleInTransactionSessionTimeout():
            return _unavailable(text, login)
        case _:
            return PostgresSetupError(f"{text} in {where}; look into the server's log for the statement")


def _right_missing(error: psycopg.Error, text: str, login: Login) -> PostgresSetupError:
    where = login.place
    if error.diag.source_file == _POLICIES_SOURCE:
        return PostgresSetupError(f"{text} in {where}; the monitor must see every ticket: `alter role LOGIN bypassrls`")
    if login.variable == OWNER_URL:
        return PostgresSetupError(
            f"{text} in {where}; let {OWNER_URL} name the owner of schema support and of its tables"
        )
    if error.diag.context is not None:
        if error.diag.source_file != _RIGHTS_SOURCE:
            return PostgresSetupError(
                f"{text} in {where}; a function of the support service refuses the monitor: ask its owner"
            )
        return PostgresSetupError(
            f"{text} in {where}, in a function or trigger of the support service, which runs with the monitor's "
            "rights; grant the right to sla_worker, or let the function run with its owner's: `alter function NAME "
            "security definer`"
        )
    if login.has_worker_role():
        return PostgresSetupError(
            f"{text} in {where}; the login has the rights of sla_worker, which lacks this one: run `sla-pipeline "
            "migrate`, which grants it"
        )
    return PostgresSetupError(
        f"{text} in {where}; grant the login the rights of role sla_worker (`grant sla_worker to LOGIN`)"
    )


def login_fault(
    error: psycopg.Error, refusal: LoginRefusal | None, login: Login
) -> PostgresSetupError | PostgresUnavailable:
    """Return our error for a session that could not be opened; ``refusal`` is set if a server refused the login."""
    text = _login_text(error, login)
    if refusal is None:
        return _unavailable(text, login)
    return PostgresSetupError(
        f"cannot log in to {login.place}: {text}; {_login_remedy(refusal.sqlstate or '', login.variable)}"
    )


def _unavailable(text: str, login: Login) -> PostgresUnavailable:
    return PostgresUnavailable(
        f"no connection to {login.place}: {text}; check the server, the network and {login.variable}"
    )


def _login_text(error: psycopg.Error, login: Login) -> str:
    lines = str(error).strip().splitlines()
    # the driver lists several servers, one line each
    text = _one_line([line for line in lines if line.startswith("- host: ")]) or "; ".join(
        # the attempt with TLS and the one without have a line each; the other lines are hints
        [first_line(error), *(line for line in lines[1:] if line.startswith("connection "))]
    )
    password = login.parameters().get("password")
    # the stars would reveal a password that is also part of a name in the message
    return text.replace(password, "***") if password and password not in login.place else text


def _one_line(lines: list[str]) -> str:
    """Join the servers' refusals into one line."""
    return "; ".join(line.partition("hostaddr: ")[2].partition(": ")[2] for line in lines)


_REMEDIES_OF_LOGINS = {
    # no such role, a role that may not log in, or no entry in pg_hba.conf for it
    "28000": "check user and database in {variable}, `alter role USER login`, and the server's pg_hba.conf",
    "28P01": "check user and password in {variable}",
    "3D000": "check the database in {variable}",
    "42501": "`grant connect on database DATABASE to USER`",
    "55000": "`alter database DATABASE with allow_connections true`",
    # older poolers use this code for all their refusals
    "08P01": "check user, password, database and options in {variable}, and the pooler's configuration",
    "": "the server answered, and the driver goes no further: check password, port and parameters such as sslmode in "
    "{variable}",
}


def _login_remedy(sqlstate: str, variable: str) -> str:
    remedy = _REMEDIES_OF_LOGINS.get(
        sqlstate, f"({sqlstate}) check the parameters in {{variable}} and the server's log"
    )
    return remedy.format(variable=variable)
