"""Environment of the demo's processes, and the file that gives it to a second shell.

The demo chooses every address itself. A variable of the caller's shell (another topic, libpq's ``PGHOSTADDR``, an HTTP
proxy that takes 127.0.0.1 too) would send one of its processes elsewhere, so none of them is inherited.
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

__all__ = ["Addresses", "isolated_environment", "second_shell_file"]

# our settings, Dagster's, libpq's
_PREFIXES = ("SLA_", "DAGSTER_", "PG")
# where the broker's jars are kept and fetched from concerns the machine, not the demo
_INHERITED = frozenset({CACHE_VARIABLE, REPOSITORY_VARIABLE})
# requests and gRPC read one spelling each
_NO_PROXY = ("no_proxy", "NO_PROXY")
_LOCAL = "127.0.0.1,localhost"
# settings that the demo leaves at their defaults: a shell may have them for another deployment
_UNSET = (TOPIC_VARIABLE, CLIENT_CONFIG_VARIABLE, SINGLE_RUNNER)


@dataclass(frozen=True, slots=True, repr=False)
class Addresses:
    """Where the demo's servers are. The URLs hold passwords."""

    worker_url: str
    owner_url: str
    bootstrap_servers: str
    dagster_home: Path
    dagster_url: str

    def variables(self) -> dict[str, str]:
        """Variables for the job and for Dagster: the worker's rights, as in production."""
        return {
            POSTGRES_URL: self.worker_url,
            BOOTSTRAP_SERVERS_VARIABLE: self.bootstrap_servers,
            "DAGSTER_HOME": str(self.dagster_home),
            "DAGSTER_POSTGRES_URL": self.dagster_url,
        }


def isolated_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """``inherited`` without settings of this package, Dagster or libpq, and with 127.0.0.1 reached past any proxy."""
    kept = {name: value for name, value in inherited.items() if name in _INHERITED or not name.startswith(_PREFIXES)}
    return kept | {name: ",".join(filter(None, [inherited.get(name), _LOCAL])) for name in _NO_PROXY}


@contextlib.contextmanager
def second_shell_file(path: Path, addresses: Addresses) -> Iterator[None]:
    """Keep at ``path``, for the length of the block, a file that a POSIX shell sources to run commands against the demo.

    Mode 0600: it holds the owner's password. It appears whole or not at all. A file that a killed demo left there is
    replaced.
    """
    # a temporary file is 0600 from its first byte on
    descriptor, part = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
    with os.fdopen(descriptor, "w") as file:
        file.write(_as_shell(addresses))
    Path(part).replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _as_shell(addresses: Addresses) -> str:
    # libpq itself lists the variables that it reads; any of them could redirect a session, whatever the URL says
    libpq = [option.envvar.decode() for option in pq.Conninfo.get_defaults() if option.envvar]
    exports = addresses.variables() | {OWNER_URL: addresses.owner_url}
    return "".join(
        [
            "# Addresses and passwords of the running demo: new at each start, gone at its end.\n",
            f"unset {' '.join([*_UNSET, *libpq])}\n",
            *(f"export {name}={shlex.quote(value)}\n" for name, value in exports.items()),
            # sla-pipeline and dagster of the virtual environment that the demo runs in
            f"export VIRTUAL_ENV={shlex.quote(sys.prefix)}\n",
            f'export PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"\n',
        ]
    )
