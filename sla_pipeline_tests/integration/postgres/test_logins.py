"""Logins that a real server refuses: worker and owner get the same error, and its remedy works."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql
from typer.testing import CliRunner

from sla_pipeline import cli
from sla_pipeline.cli.exit_codes import exit_code as cli_exit_code
from sla_pipeline.errors import PostgresSetupError, PostgresUnavailable, SlaPipelineError
from sla_pipeline.postgres.migrate import upgrade
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline_tests.integration.postgres.conftest import NewLogin

Support = psycopg.Connection[Any]


def _open(url: str) -> None:
    PostgresSettings(url).connect(purpose="test").close()


def _refusal(url: str) -> str:
    """Return the worker's error, which the owner gets too."""
    with pytest.raises(PostgresSetupError) as worker:
        _open(url)
    with pytest.raises(PostgresSetupError) as owner:
        upgrade(url)
    assert str(owner.value) == str(worker.value).replace("SLA_POSTGRES_URL", "SLA_POSTGRES_OWNER_URL")
    password = urlsplit(url).password
    assert password is None or password not in str(worker.value)
    return str(worker.value)


@pytest.fixture
def other_database(support: Support) -> Iterator[str]:
    """A second database, for statements that a session in the same database would prevent."""
    name = f"{support.info.dbname}_other"
    support.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    yield name
    support.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def _in(url: str, database: str) -> str:
    return urlsplit(url)._replace(path=f"/{database}").geturl()


def _without_password(url: str) -> str:
    server = urlsplit(url)
    return server._replace(netloc=f"{server.username}@{server.hostname}:{server.port}").geturl()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda url: url.replace("@", "x@"), "check user and password in SLA_POSTGRES_URL"),
        (_without_password, "check password, port and parameters such as sslmode in SLA_POSTGRES_URL"),
        (lambda url: url.replace("://", "://nobody_"), "check user and password in SLA_POSTGRES_URL"),
        (lambda url: _in(url, "nowhere"), 'database "nowhere" does not exist; check the database in SLA_POSTGRES_URL'),
        (
            lambda url: f"{url}?sslmode=require",
            "server does not support SSL, but SSL was required; the server answered, and the driver",
        ),
        (
            lambda url: f"{url}?options=-c%20nonsense%3D1",
            "(42704) check the parameters in SLA_POSTGRES_URL and the server's log",
        ),
        (
            lambda url: f"{url}?target_session_attrs=standby",
            "check password, port and parameters such as sslmode in SLA_POSTGRES_URL",
        ),
    ],
    ids=[
        "wrong password",
        "no password",
        "no such role",
        "no such database",
        "no TLS",
        "unknown setting",
        "not a standby",
    ],
)
def test_a_value_of_the_url_that_the_server_refuses(
    change: Callable[[str], str], words: str, worker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSFILE", "/nowhere")
    message = _refusal(change(worker_url))
    assert message.startswith("cannot log in to database ")
    assert words in message


def test_a_role_that_may_not_log_in(support: Support, new_login: NewLogin) -> None:
    url = new_login("sla_worker")
    role = sql.Identifier(urlsplit(url).username or "")
    support.execute(sql.SQL("alter role {} nologin").format(role))
    assert "`alter role USER login`" in _refusal(url)
    support.execute(sql.SQL("alter role {} login").format(role))
    _open(url)


def test_a_database_that_is_closed_to_connections(support: Support, owner_url: str, other_database: str) -> None:
    support.execute(sql.SQL("alter database {} with allow_connections false").format(sql.Identifier(other_database)))
    assert _refusal(_in(owner_url, other_database)).endswith("; `alter database DATABASE with allow_connections true`")
    support.execute(sql.SQL("alter database {} with allow_connections true").format(sql.Identifier(other_database)))
    _open(_in(owner_url, other_database))


def test_a_login_without_the_right_to_connect(support: Support, worker_url: str, other_database: str) -> None:
    database, url = sql.Identifier(other_database), _in(worker_url, other_database)
    support.execute(sql.SQL("revoke connect on database {} from public").format(database))
    assert _refusal(url).endswith("; `grant connect on database DATABASE to USER`")
    support.execute(
        sql.SQL("grant connect on database {} to {}").format(database, sql.Identifier(urlsplit(url).username or ""))
    )
    _open(url)


def test_a_login_that_has_all_its_connections_is_tried_again(support: Support, new_login: NewLogin) -> None:
    url = new_login("sla_worker")
    support.execute(sql.SQL("alter role {} connection limit 1").format(sql.Identifier(urlsplit(url).username or "")))
    with contextlib.closing(psycopg.connect(url)), pytest.raises(PostgresUnavailable, match="too many connections"):
        _open(url)


@pytest.mark.parametrize(
    ("change", "exit_code"),
    [
        (lambda url: url.replace("@", "x@"), 3),
        (lambda url: _in(url, "nowhere"), 3),
        (lambda url: f"{url}?sslmode=sometimes", 2),
        (lambda url: url.replace(f":{urlsplit(url).port}/", ":abc/"), 2),
        (lambda url: url.replace(f":{urlsplit(url).port}/", ":1/"), 75),
        (lambda url: url.replace(f":{urlsplit(url).port}/", ":1,127.0.0.1:2/"), 75),
    ],
    ids=["wrong password", "no such database", "sslmode", "port", "away", "two servers away"],
)
def test_commands_of_worker_and_owner_end_with_the_same_exit_code(
    change: Callable[[str], str], exit_code: int, owner_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLA_POSTGRES_URL", "SLA_POSTGRES_OWNER_URL"):
        monkeypatch.setenv(name, f"{change(owner_url)}\n")
    monkeypatch.setenv("SLA_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    for command in (["preview"], ["verify"], ["migrate", "--no-topics"], ["recover", "--yes"]):
        error = CliRunner().invoke(cli.app, command).exception
        assert isinstance(error, SlaPipelineError)
        assert cli_exit_code(error) == exit_code, (command, error)
        assert ("SLA_POSTGRES_OWNER_URL" in str(error)) == (command[0] in ("migrate", "recover"))


@pytest.mark.parametrize("name", ["support desk", "поддержка"])
def test_an_encoded_name_of_a_database_is_decoded_for_the_owner_too(
    name: str, support: Support, owner_url: str
) -> None:
    server, database = urlsplit(owner_url), f"{support.info.dbname} {name}"
    support.execute(sql.SQL("create database {}").format(sql.Identifier(database)))
    try:
        url = server._replace(netloc=f"{server.username}:{server.password}@127.0.0.1:1,{server.hostname}:{server.port}")
        encoded = url._replace(path=f"/{''.join(f'%{byte:02X}' for byte in database.encode())}").geturl()
        upgrade(encoded, with_tickets=True)
        _open(encoded)
    finally:
        support.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(database)))


def test_a_password_with_a_colon_is_taken_by_both(support: Support, new_login: NewLogin) -> None:
    url = urlsplit(new_login("sla_worker"))
    support.execute(sql.SQL("alter role {} superuser password 'a:b#c'").format(sql.Identifier(url.username or "")))
    with_colon = f"postgresql://{url.username}:a:b#c@{url.hostname}:{url.port}{url.path}"
    _open(with_colon)
    upgrade(with_colon)
