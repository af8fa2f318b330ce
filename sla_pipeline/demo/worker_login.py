"""Login with the worker's rights only, for the job of demo and replay on an embedded PostgreSQL."""

import secrets
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

__all__ = ["worker_login"]

_LOGIN = "sla_demo_worker"


def worker_login(owner_url: str) -> str:
    """Create a login that is a member of ``sla_worker`` only, and return its URL for the database of ``owner_url``.

    Every call sets a new password.
    """
    password = secrets.token_urlsafe(16)
    with psycopg.connect(owner_url, autocommit=True) as connection:
        if connection.execute("select from pg_roles where rolname = %s", (_LOGIN,)).fetchone() is None:
            connection.execute(sql.SQL("create role {} login in role sla_worker").format(sql.Identifier(_LOGIN)))
        connection.execute(sql.SQL("alter role {} password {}").format(sql.Identifier(_LOGIN), sql.Literal(password)))
    server = urlsplit(owner_url)
    return server._replace(netloc=f"{_LOGIN}:{password}@{server.netloc.rpartition('@')[2]}").geturl()
