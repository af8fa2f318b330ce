"""Migrations, as a function: bring a database to the revision that this package needs, or take it back.

What belongs here: running Alembic on one connection under a lock. What does not: the scripts (``migrations/``), and the topics of
Kafka (``kafka/topics.py``).
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import alembic.command
import alembic.util
import sqlalchemy
from alembic.config import Config
from sqlalchemy import Connection, create_engine, make_url, text
from sqlalchemy.pool import NullPool

from sla_pipeline.environment import variable
from sla_pipeline.errors import ConfigurationError, DatabaseError, DatabaseUnavailable
from sla_pipeline.postgres.schema import SCHEMA

__all__ = ["OWNER_URL", "downgrade", "owner_url_from_environment", "upgrade"]

OWNER_URL = "SLA_POSTGRES_OWNER_URL"

# names the lock that keeps two migrations apart; the number has no meaning
_LOCK_KEY = 7_405_514_001


def owner_url_from_environment() -> str:
    """The owner's URL. Raises ``ConfigurationError`` when it is missing."""
    url = variable(OWNER_URL)
    if not url:
        raise ConfigurationError(
            f"{OWNER_URL} is not set; set it to postgresql://USER:PASSWORD@HOST:PORT/DATABASE of schema support's owner"
        )
    return url


def upgrade(owner_url: str, *, with_tickets: bool = False) -> None:
    """Bring the database to the newest revision; a no-op when it is there.

    ``with_tickets`` creates ``support.tickets`` too, which belongs to the support service: for demo and tests. Without it the table must
    exist. Raises ``DatabaseError`` (no table, no right, another migration under way), ``DatabaseUnavailable``, ``ConfigurationError``.
    """
    with _connected(owner_url) as (config, connection):
        if with_tickets:
            alembic.command.upgrade(config, "support_service@head")
        if connection.scalar(text("select to_regclass('support.tickets')")) is None:
            raise DatabaseError(
                f"table support.tickets does not exist in database {connection.engine.url.database!r}: it belongs to the support service; "
                "check the database, or pass --with-tickets for a demo"
            )
        connection.commit()
        alembic.command.upgrade(config, "sla_monitor@head")


def downgrade(owner_url: str, *, with_tickets: bool = False) -> None:
    """Take our objects back, and ``support.tickets`` too where asked. Raises as ``upgrade`` does."""
    with _connected(owner_url) as (config, connection):
        alembic.command.downgrade(config, "sla_monitor@base")
        if with_tickets:
            # with nothing to take back, the first command has read, and a transaction that it left open is not Alembic's to commit
            connection.commit()
            alembic.command.downgrade(config, "support_service@base")


@contextlib.contextmanager
def _connected(owner_url: str) -> Iterator[tuple[Config, Connection]]:
    try:
        url = make_url(owner_url).set(drivername="postgresql+psycopg")
    except sqlalchemy.exc.ArgumentError:
        raise ConfigurationError(f"{OWNER_URL} is not a URL; write postgresql://USER:PASSWORD@HOST:PORT/DATABASE") from None
    # the encoding is named for a database without one, from which the driver would return bytes
    session = {"connect_timeout": 5, "application_name": "ticket-sla-monitor-migrate", "client_encoding": "utf8"}
    engine = create_engine(url, poolclass=NullPool, connect_args=session)
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    place = url.set(drivername="postgresql").render_as_string(hide_password=True)
    try:
        # a session of its own, idle between statements: waiting inside one would hold a snapshot, on which a concurrent index build waits
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as guard:
            if not guard.scalar(text("select pg_try_advisory_lock(:key)"), {"key": _LOCK_KEY}):
                raise DatabaseError(f"another migration of {place} is under way; try again when it has ended")
            # asked first: `if not exists` demands the right to make schemas even where there is nothing to make
            if guard.scalar(text(f"select to_regnamespace('{SCHEMA}')")) is None:
                guard.execute(text(f"create schema {SCHEMA}"))
            with engine.connect() as connection:
                config.attributes["connection"] = connection
                yield config, connection
    except sqlalchemy.exc.OperationalError as error:
        raise DatabaseUnavailable(f"cannot migrate {place}: {_first_line(error)}; check SLA_POSTGRES_OWNER_URL and the server") from error
    except sqlalchemy.exc.DBAPIError as error:
        raise DatabaseError(f"cannot migrate {place}: {_first_line(error)}; migrate as the owner of schema {SCHEMA}") from error
    except alembic.util.CommandError as error:
        raise DatabaseError(f"cannot migrate {place}: {error}; the database was migrated by another version of sla-pipeline") from error


def _first_line(error: sqlalchemy.exc.DBAPIError) -> str:
    return (str(error.orig).strip().splitlines() or [type(error.orig).__name__])[0]
