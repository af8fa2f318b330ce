"""Settings of Postgres: environment variables, and the URL of a database as libpq reads it.

No message repeats a part of a refused URL: a password that was not percent-encoded may be anywhere in it.
"""

import ipaddress
import os
from dataclasses import dataclass, field

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo, PGconn

from sla_pipeline.environment import variable
from sla_pipeline.errors import ConfigurationError
from sla_pipeline.quoting import named, quoted

__all__ = [
    "OWNER_URL",
    "POSTGRES_URL",
    "SINGLE_RUNNER",
    "PostgresUrl",
    "required_url",
    "single_runner_from_environment",
]

POSTGRES_URL = "SLA_POSTGRES_URL"
OWNER_URL = "SLA_POSTGRES_OWNER_URL"
SINGLE_RUNNER = "SLA_SINGLE_RUNNER"

_FORM = "postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
_SCHEMES = ("postgresql://", "postgres://")
_LOGIN = {POSTGRES_URL: "the worker's login", OWNER_URL: "the login of schema support's owner"}
_HIGHEST_PORT = 65_535
_SERVER = ("host", "hostaddr", "port")
_IDENTITY = (*_SERVER, "dbname", "user", "password")
# libpq reads these numbers only after a server has answered, or not at all
_NUMBERS = (
    "connect_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "tcp_user_timeout",
)
# libpq checks its other parameters before it opens a socket; an attempt that names this folder has passed the check
_NO_SERVER = "/sla-pipeline-checks-parameters"


def required_url(name: str) -> str:
    """Return the URL in the variable ``name``. Raises ``ConfigurationError`` when it is not set."""
    url = variable(name)
    if not url:
        raise ConfigurationError(f"{name} is not set; set it to {_FORM}, {_LOGIN[name]}")
    return url


def single_runner_from_environment() -> bool:
    """Return whether ``SLA_SINGLE_RUNNER`` turns on the single-runner mode of SPEC 2.2; off by default.

    Raises ``ConfigurationError``.
    """
    text = variable(SINGLE_RUNNER) or "0"
    if text not in ("0", "1"):
        raise ConfigurationError(f"{SINGLE_RUNNER} is {quoted(text)}; set it to 1 for one runner at a time, or to 0")
    return text == "1"


@dataclass(frozen=True)
class PostgresUrl:
    """A database's URL and the variable that holds it.

    Raises ``ConfigurationError`` for a URL that the driver does not accept.
    """

    url: str = field(repr=False)
    variable: str = POSTGRES_URL

    def __post_init__(self) -> None:
        fault = _fault_of(self.url)
        if fault is not None:
            raise ConfigurationError(f"{self.variable} {fault}")

    def parameters(self) -> dict[str, str]:
        """Return the parameters of the URL, decoded, under libpq's names."""
        return {name: str(value) for name, value in conninfo_to_dict(self.url).items()}

    def attempts(self) -> list[str]:
        """Return one connection string for each of the URL's servers, in their order."""
        parameters = self.parameters()
        hosts, addresses, ports = ((parameters.get(name) or "").split(",") for name in ("host", "hostaddr", "port"))
        count = max(len(hosts), len(addresses))
        others = {name: value for name, value in parameters.items() if name not in _SERVER}
        columns = (
            ("host", _spread(hosts, count)),
            ("hostaddr", _spread(addresses, count)),
            ("port", _spread(ports, count)),
        )
        return [
            make_conninfo(**others | {name: values[server] for name, values in columns if values[server]})
            for server in range(count)
        ]

    @property
    def place(self) -> str:
        """Server, database and user, for messages: never the password."""
        parameters = self.parameters()
        known = parameters
        if "service" not in parameters:
            # libpq's own variables supply what the URL omits
            known = {option.keyword.decode(): _text(option.val) for option in Conninfo.get_defaults()} | parameters
        hosts = (known.get("host") or known.get("hostaddr") or "localhost").split(",")
        ports = _spread((known.get("port") or "5432").split(","), len(hosts))
        servers = ", ".join(
            f"{named(host or 'localhost')}:{named(port or '5432')}" for host, port in zip(hosts, ports, strict=True)
        )
        service = f" of service {quoted(parameters['service'])}" if "service" in parameters else ""
        database, user = (quoted(known.get(name) or "(default)") for name in ("dbname", "user"))
        return f"database {database} at {servers} as user {user}{service}"


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode(errors="replace")


def _spread(values: list[str], count: int) -> list[str]:
    """Return one value for each server; a single value applies to all of them."""
    return values * count if len(values) == 1 else [*values, *[""] * (count - len(values))]


def _fault_of(url: str) -> str | None:
    """Return why the driver does not accept the URL, or None; the text names parameters, never a value."""
    if not url.startswith(_SCHEMES):
        return f"is not a URL of Postgres; write {_FORM}"
    if any(ord(character) < ord(" ") or character == "\x7f" for character in url):
        return f"cannot be parsed: it holds a line break or another control character; write {_FORM}"
    # libpq would read a host, a port or a database after the wrong character, and messages would show it
    before, at, after = url.partition("://")[2].partition("@")
    if "@" in after or (at and ("/" in before or "?" in before)):
        return f"cannot be parsed: an @, / or ? in it is not percent-encoded (%40, %2F, %3F); write {_FORM}"
    try:
        parameters = {name: str(value) for name, value in conninfo_to_dict(url).items()}
        for host in parameters.get("host", "").split(","):
            # psycopg IDNA-encodes host names before resolving
            host.encode("idna" if not host.startswith("/") else "utf8")
    except (psycopg.ProgrammingError, UnicodeError):
        # Python raises an error for bytes that are not UTF-8, in the variable itself or percent-encoded
        return f"cannot be parsed; write {_FORM}, special characters percent-encoded"
    if not all(port == "" or _is_port(port) for port in parameters.get("port", "").split(",")):
        return (
            f"has a port that is not a number from 1 to {_HIGHEST_PORT}; write {_FORM}, special characters "
            "percent-encoded"
        )
    return _fault_of_parameters(parameters)


def _fault_of_parameters(parameters: dict[str, str]) -> str | None:
    refused = [name for name in parameters if not _is_number_or_address(name, parameters[name])]
    hosts, addresses = parameters.get("host", ""), parameters.get("hostaddr", "")
    if hosts and addresses and hosts.count(",") != addresses.count(","):
        refused.append("hostaddr")
    if not refused and _is_accepted(parameters):
        return None
    if not _is_accepted():
        names = ", ".join(_refused_variables())
        return (
            f"cannot be used: the driver does not take the value of its own variable {names}; correct or "
            f"unset that one. Write {_FORM}"
        )
    refused = refused or [
        name for name in parameters if name not in _SERVER and not _is_accepted({name: parameters[name]})
    ]
    if refused:
        return (
            f"has a value that the driver does not take for {', '.join(refused)}; see libpq's connection "
            f"parameters. Write {_FORM}"
        )
    names = ", ".join(name for name in parameters if name not in _IDENTITY)
    return (
        f"has parameters that the driver does not take together ({names}); see libpq's connection parameters. "
        f"Write {_FORM}"
    )


def _refused_variables() -> list[str]:
    """Return libpq's variables whose values it refuses; all that are set when no single one is at fault."""
    options = [option for option in Conninfo.get_defaults() if option.envvar and option.envvar.decode() in os.environ]
    alone = [option for option in options if _is_accepted({option.keyword.decode(): _text(option.compiled)})]
    return [option.envvar.decode() for option in alone or options if option.envvar]


def _is_number_or_address(name: str, value: str) -> bool:
    """Return False for a value that the driver first accepts and later refuses or ignores."""
    if name == "hostaddr":
        return all(address == "" or _is_address(address) for address in value.split(","))
    return name not in _NUMBERS or (value.isascii() and value.strip().removeprefix("-").isdecimal())


def _is_accepted(parameters: dict[str, str] | None = None) -> bool:
    """Return whether libpq accepts the parameters, as far as it checks them before it opens a socket."""
    parameters = dict(parameters or {})
    servers = max(len((parameters.get(name) or "").split(",")) for name in ("host", "hostaddr"))
    # valid for a remote server, but refused for the Unix socket of this attempt
    if parameters.get("gssencmode") == "require":
        del parameters["gssencmode"]
    attempt = parameters | {"host": ",".join([_NO_SERVER] * servers), "hostaddr": ""}
    connection = PGconn.connect_start(make_conninfo(**attempt).encode())
    refusal = connection.error_message
    connection.finish()
    return _NO_SERVER.encode() in refusal


def _is_port(text: str) -> bool:
    return (
        text.isascii() and text.isdecimal() and len(text) <= len(str(_HIGHEST_PORT)) and 1 <= int(text) <= _HIGHEST_PORT
    )


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
