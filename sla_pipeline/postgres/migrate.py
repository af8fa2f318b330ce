"""Migrations, as a function: bring a database to the revision that this package needs, or take it back.

What belongs here: running Alembic on one connection under a lock. What does not: the scripts (``migrations/``), and the topics of
Kafka (``kafka/topics.py``).
"""

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import alembic.command
import alembic.util
import psycopg
import sqlalchemy
from alembic.config import Config
from sqlalchemy import URL, Connection, create_engine, text
from sqlalchemy.pool import NullPool

from sla_pipeline.errors import DatabaseError
from sla_pipeline.postgres.faults import translate
from sla_pipeline.postgres.schema import SCHEMA
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline.postgres.settings import OWNER_URL

__all__ = ["downgrade", "upgrade"]

# names the lock that keeps two migrations apart; the number has no meaning
_LOCK_KEY = 7_405_514_001


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
    owner = PostgresSettings(owner_url, OWNER_URL)
    engine = create_engine(
        # for the dialect, and for messages; the creator connects
        URL.create("postgresql+psycopg", database=owner.parameters().get("dbname")),
        creator=partial(_transactional, owner),
        poolclass=NullPool,
        # the dialect would look for a type that we do not use
        use_native_hstore=False,
    )
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    try:
        # a session of its own, idle between statements: waiting inside one would hold a snapshot, on which a concurrent index build waits
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as guard:
            if not guard.scalar(text("select pg_try_advisory_lock(:key)"), {"key": _LOCK_KEY}):
                raise DatabaseError(f"another migration of {owner.place} is under way; try again when it has ended")
            # asked first: `if not exists` demands the right to make schemas even where there is nothing to make
            if guard.scalar(text(f"select to_regnamespace('{SCHEMA}')")) is None:
                guard.execute(text(f"create schema {SCHEMA}"))
            with engine.connect() as connection:
                config.attributes["connection"] = connection
                yield config, connection
    except sqlalchemy.exc.DBAPIError as error:
        if not isinstance(error.orig, psycopg.Error):
            raise
        raise translate(error.orig, owner) from None
    except alembic.util.CommandError as error:
        raise DatabaseError(
            f"cannot migrate {owner.place}: {error}; the database was migrated by another version of sla-pipeline"
        ) from error


def _transactional(owner: PostgresSettings) -> psycopg.Connection:
    """A session as SQLAlchemy expects it: it begins transactions itself."""
    connection = owner.connect_unbounded(purpose="migrate")
    connection.autocommit = False
    return connection
