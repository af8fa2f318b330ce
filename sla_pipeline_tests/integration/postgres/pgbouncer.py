"""A real PgBouncer in front of a server, on a port of 127.0.0.1: Debian's package ``pgbouncer``, or one on the path."""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

import psycopg

from sla_pipeline.embedded.ports import free_ports
from sla_pipeline.embedded.supervision import Service
from sla_pipeline.embedded.unprivileged import unprivileged_user
from sla_pipeline_tests.shared_servers import server_folder

__all__ = ["PGBOUNCER", "Pooler", "pgbouncer"]

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/opt/homebrew/bin")


class Pooler:
    """A running pooler; ``admin`` runs a command on its console."""

    def __init__(self, port: int, admin_url: str) -> None:
        self.port = port
        self._admin_url = admin_url

    def url(self, direct_url: str) -> str:
        """Return the URL of ``direct_url``'s database through the pooler, with the same user."""
        server = urlsplit(direct_url)
        return server._replace(netloc=f"{server.netloc.rpartition('@')[0]}@127.0.0.1:{self.port}").geturl()

    def admin(self, command: str) -> None:
        """Run a console command, such as ``pause``."""
        # the console accepts only the simple query protocol, and no transaction
        with psycopg.connect(self._admin_url, autocommit=True) as console:
            console.execute(command.encode())


@contextlib.contextmanager
def pgbouncer(superuser_url: str, *other_urls: str, settings: Mapping[str, object] | None = None) -> Iterator[Pooler]:
    """Start a pooler for the logins of the URLs.

    ``settings`` override its defaults, which are session mode and 20 server processes.
    """
    assert PGBOUNCER is not None
    user = unprivileged_user()
    with server_folder() as folder:
        home = folder / "pgbouncer"
        home.mkdir()
        (port,) = free_ports(1)
        server = urlsplit(superuser_url)
        (home / "users.txt").write_text(
            "".join(f'"{_user(url)}" "{_password(url)}"\n' for url in (superuser_url, *other_urls))
        )
        values: dict[str, object] = {
            "listen_addr": "127.0.0.1",
            "listen_port": port,
            "unix_socket_dir": "",
            "auth_type": "scram-sha-256",
            "auth_file": home / "users.txt",
            "admin_users": _user(superuser_url),
            **(settings or {}),
        }
        lines = [
            "[databases]",
            f"* = host={server.hostname} port={server.port}",
            "[pgbouncer]",
            *(f"{k} = {v}" for k, v in values.items()),
        ]
        (home / "pgbouncer.ini").write_text("\n".join(lines) + "\n")
        _give_to(home, user.uid if user else os.geteuid())
        service = Service(
            "PgBouncer", [PGBOUNCER, home / "pgbouncer.ini"], folder / "pgbouncer.log", user=user, cwd=home
        )
        through = server._replace(netloc=f"{server.netloc.rpartition('@')[0]}@127.0.0.1:{port}")
        pooler = Pooler(port, through._replace(path="/pgbouncer").geturl())
        with service:
            service.wait_until(lambda: _takes_logins(pooler))
            yield pooler


def _takes_logins(pooler: Pooler) -> bool:
    try:
        pooler.admin("show version")
    except psycopg.OperationalError:
        return False
    return True


def _give_to(home: Path, uid: int) -> None:
    for path in (home, *home.iterdir()):
        os.chown(path, uid, -1)
        path.chmod(0o700 if path.is_dir() else 0o600)


def _user(url: str) -> str:
    return unquote(urlsplit(url).username or "")


def _password(url: str) -> str:
    return unquote(urlsplit(url).password or "")
