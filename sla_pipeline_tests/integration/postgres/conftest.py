"""Fixtures of the tests of Postgres alone: databases that are not migrated yet, and further logins."""

import contextlib
import secrets
import uuid
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

NewDatabase = Callable[..., str]
NewLogin = Callable[..., str]


@pytest.fixture
def new_database(postgres_server_url: str) -> Iterator[NewDatabase]:
    """Creates an empty database, with ``options`` of ``create database``; returns its URL, as superuser."""
    with psycopg.connect(postgres_server_url, autocommit=True) as server, contextlib.ExitStack() as made:

        def make(options: str = "") -> str:
            name = f"empty_{uuid.uuid4().hex}"
            server.execute(sql.SQL("create database {} {}").format(sql.Identifier(name), sql.SQL(options)))
            made.callback(server.execute, sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))
            return urlsplit(postgres_server_url)._replace(path=f"/{name}").geturl()

        yield make


@pytest.fixture
def new_login(owner_url: str) -> Iterator[NewLogin]:
    """Creates a login, in a group role or in none; returns the URL of ``owner_url``'s database with it."""
    server = urlsplit(owner_url)
    with psycopg.connect(owner_url, autocommit=True) as connection, contextlib.ExitStack() as made:

        def make(group: str | None = None) -> str:
            name, password = f"login_{uuid.uuid4().hex}", secrets.token_urlsafe(16)
            role = sql.Identifier(name)
            connection.execute(sql.SQL("create role {} login password {}").format(role, sql.Literal(password)))
            made.callback(connection.execute, sql.SQL("drop role {}").format(role))
            made.callback(connection.execute, sql.SQL("drop owned by {}").format(role))
            if group is not None:
                connection.execute(sql.SQL("grant {} to {}").format(sql.Identifier(group), role))
            return server._replace(netloc=f"{name}:{password}@{server.netloc.rpartition('@')[2]}").geturl()

        yield make
