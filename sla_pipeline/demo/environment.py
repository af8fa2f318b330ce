"""Environment of the demo's processes, and the file that sets it in a second shell.

The demo chooses every address itself. A variable of the caller's shell (another topic, libpq's ``PGHOSTADDR``, an HTTP
proxy for 127.0.0.1) would redirect one of its processes, so none is inherited.
"""

import contextlib
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from psycopg import pq

from sla_pipeline.embedded.jars import CACHE_VARIABLE, REPOSITORY_VARIABLE
from sla_pipeline.kafka.settings import BOOTSTRAP_SERVERS_VARIABLE, CLIENT_CONFIG_VARIABLE, TOPIC_VARIABLE
from sla_pipeline.postgres.settings import OWNER_URL, POSTGRES_URL, SINGLE_RUNNER
from sla_pipeline.telemetry.heartbeat import HEARTBEAT_URL

__all__ = ["Addresses", "isolated_environment", "second_shell_file"]

# settings of this package, Dagster and libpq
_PREFIXES = ("SLA_", "DAGSTER_", "PG")
# the cache and the source of the broker's jars belong to the machine, not to the demo
_INHERITED = frozenset({CACHE_VARIABLE, REPOSITORY_VARIABLE})
# requests and gRPC read one spelling each
_NO_PROXY = ("no_proxy", "NO_PROXY")
_LOCAL = "127.0.0.1,localhost"
# settings that the demo leaves at their defaults; a shell may have set them for another deployment
_UNSET = (TOPIC_VARIABLE, CLIENT_CONFIG_VARIABLE, SINGLE_RUNNER, HEARTBEAT_URL)


@dataclass(frozen=True, slots=True, repr=False)
class Addresses:
    """Addresses of the demo's servers. The URLs hold passwords."""

    worker_url: str
    owner_url: str
    bootstrap_servers: str
    dagster_home: Path
    dagster_url: str

    def variables(self) -> dict[str, str]:
        """Return the variables for the job and for Dagster, with the worker's rights as in production."""
        return {
            POSTGRES_URL: self.worker_url,
            BOOTSTRAP_SERVERS_VARIABLE: self.bootstrap_servers,
            "DAGSTER_HOME": str(self.dagster_home),
            "DAGSTER_POSTGRES_URL": self.dagster_url,
        }


def isolated_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return ``inherited`` without settings of this package, Dagster and libpq, and with no proxy for 127.0.0.1."""
    kept = {name: value for name, value in inherited.items() if name in _INHERITED or not name.startswith(_PREFIXES)}
    return kept | {name: ",".join(filter(None, [inherited.get(name), _LOCAL])) for name in _NO_PROXY}


@contextlib.contextmanager
def second_shell_file(path: Path, addresses: Addresses) -> Iterator[None]:
    """Provide a file at ``path`` for the length of the block; a POSIX shell sources it to reach the demo.

    Mode 0600: it holds the owner's password. It appears atomically and replaces the file of a killed demo.
    """
    # mkstemp creates the file with mode 0600
    descriptor, part = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
    with os.fdopen(descriptor, "w") as file:
        file.write(_as_shell(addresses))
    Path(part).replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _as_shell(addresses: Addresses) -> str:
    # libpq lists the variables that it reads; each could redirect a session in spite of the URL
    libpq = [option.envvar.decode() for option in pq.Conninfo.get_defaults() if option.envvar]
    exports = addresses.variables() | {OWNER_URL: addresses.owner_url}
    return "".join(
        [
            "# Addresses and passwords of the running demo: new at each start, removed at its end.\n",
            f"unset {' '.join([*_UNSET, *libpq])}\n",
            *(f"export {name}={shlex.quote(value)}\n" for name, value in exports.items()),
            # sla-pipeline and dagster come from the demo's virtual environment
            f"export VIRTUAL_ENV={shlex.quote(sys.prefix)}\n",
            f'export PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"\n',
        ]
    )
