"""A database's URL is read as libpq reads it, or refused by its variable's name, with no part of it repeated."""

import pytest
from psycopg.conninfo import conninfo_to_dict

from sla_pipeline.errors import ConfigurationError
from sla_pipeline.postgres.settings import OWNER_URL, POSTGRES_URL, PostgresUrl

_PIECES = ("s3cr3t", "p4ss", "w0rd")
_FORM = "rite postgresql://USER:PASSWORD@HOST:PORT/DATABASE"


def _refusal(url: str, variable: str = POSTGRES_URL) -> str:
    with pytest.raises(ConfigurationError) as raised:
        PostgresUrl(url, variable)
    assert not any(piece in str(raised.value) for piece in _PIECES)
    assert raised.value.__cause__ is None
    return str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        # libpq would read the rest of each password as a host, a port or a database
        "postgresql://worker:p4ss@w0rd@db-1/support",
        "postgresql://worker:p4ss/w0rd@db-1/support",
        "postgresql://worker:12/w0rd@db-1/support",
        "postgresql://worker:p4ss?w0rd@db-1/support",
        "postgresql://db-1?password=p4ss@w0rd",
        "postgresql://db-1/support?password=p4ss@w0rd",
        "postgresql://worker:p4ss@@w0rd/support",
    ],
)
def test_a_password_that_is_not_encoded_is_refused(url: str) -> None:
    message = _refusal(url)
    assert message.startswith(
        "SLA_POSTGRES_URL cannot be parsed: an @, / or ? in it is not percent-encoded (%40, %2F, %3F); w"
    )
    assert message.endswith(_FORM)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://worker:s3cr3t@db-1/support", "is not a URL of Postgres"),
        (
            "postgresql://worker:s3cr3t@db-1/\nsupport",
            "cannot be parsed: it holds a line break or another control character",
        ),
        ("postgresql://worker:s3cr3t%@db-1/support", "cannot be parsed; "),
        ("postgresql://worker:s3cr3t@db-1/support?s3cr3t=1", "cannot be parsed; "),
        ("postgresql://db-1/support?password=p4ss&w0rd=1", "cannot be parsed; "),
        ("postgresql://worker:s3cr3t", "has a port that is not a number from 1 to 65535"),
        *(
            (f"postgresql://worker@db-1:{port}/support", "has a port that")
            for port in ("0", "-1", "abc", "65536", "9" * 30)
        ),
        ("postgresql://worker@db-1/support?port=p4ss", "has a port that"),
        ("postgresql://db-1/support?sslmode=s3cr3t", "has a value that the driver does not take for sslmode; "),
        ("postgresql://db-1/support?connect_timeout=s3cr3t", "does not take for connect_timeout; "),
        ("postgresql://db-1/support?keepalives=s3cr3t", "does not take for keepalives; "),
        ("postgresql://db-1/support?hostaddr=s3cr3t", "does not take for hostaddr; "),
        ("postgresql://db-1,db-2/support?hostaddr=10.0.0.1", "does not take for hostaddr; "),
        ("postgresql://db-1/support?service=s3cr3t", "does not take for service; "),
        (
            "postgresql://db-1/support?target_session_attrs=s3cr3t&channel_binding=s3cr3t",
            "for channel_binding, target_session_attrs; ",
        ),
        (
            "postgresql://db-1:1,2/support?sslmode=prefer&host=a,b,c&port=1,2",
            "has parameters that the driver does not take together (sslm",
        ),
    ],
)
def test_what_the_driver_does_not_take_is_refused_by_name(url: str, words: str) -> None:
    message = _refusal(url)
    assert words in message
    assert _FORM in message
    assert _refusal(url, OWNER_URL) == message.replace("SLA_POSTGRES_URL", "SLA_POSTGRES_OWNER_URL")


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://worker:p4ss:w0rd@db-1/support", "database 'support' at db-1:5432 as user 'worker'"),
        ("postgresql://worker:p4ss#w0rd@db-1/support", "database 'support' at db-1:5432 as user 'worker'"),
        ("postgresql://w%40x:p4ss%2Fw0rd@db-1/support%20desk", "database 'support desk' at db-1:5432 as user 'w@x'"),
        (
            "postgres://worker@db-1:5433,db-2:5434/support",
            "database 'support' at db-1:5433, db-2:5434 as user 'worker'",
        ),
        ("postgresql://worker@db-1,db-2:5434/support", "database 'support' at db-1:5432, db-2:5434 as user 'worker'"),
        ("postgresql://worker@[::1]:5433/support", "database 'support' at ::1:5433 as user 'worker'"),
        ("postgresql://db-1/support?user=worker&password=s3cr3t", "database 'support' at db-1:5432 as user 'worker'"),
        (
            "postgresql://worker@db-1/support?gssencmode=require&sslmode=require",
            "database 'support' at db-1:5432 as user 'worker'",
        ),
        ("postgresql://worker@db-1/support?passfile=%2Fnowhere", "database 'support' at db-1:5432 as user 'worker'"),
        ("postgresql://worker@/support?hostaddr=10.0.0.1", "database 'support' at 10.0.0.1:5432 as user 'worker'"),
    ],
)
def test_a_url_is_decoded_as_libpq_does_it(url: str, place: str) -> None:
    taken = PostgresUrl(url)
    assert taken.place == place
    assert not any(piece in repr(taken) for piece in _PIECES)


def test_what_a_url_leaves_open_comes_from_the_drivers_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "db-7")
    monkeypatch.setenv("PGPORT", "5440")
    assert PostgresUrl("postgresql://worker@/support").place == "database 'support' at db-7:5440 as user 'worker'"


def test_a_variable_of_the_drivers_own_is_named_and_its_value_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSSLMODE", "s3cr3t")
    monkeypatch.setenv("PGHOST", "db-7")
    assert "does not take the value of its own variable PGSSLMODE; correct or unset that one" in _refusal(
        "postgresql://worker@/support"
    )
    assert PostgresUrl("postgresql://worker@/support?sslmode=prefer").place.startswith("database 'support' at db-7")


def test_each_server_of_a_url_is_an_attempt() -> None:
    url = PostgresUrl("postgresql://worker@db-1,db-2:5434/support?sslmode=require")
    attempts = [conninfo_to_dict(attempt) for attempt in url.attempts()]
    assert [(attempt.get("host"), attempt.get("port"), attempt["sslmode"]) for attempt in attempts] == [
        ("db-1", None, "require"),
        ("db-2", "5434", "require"),
    ]
