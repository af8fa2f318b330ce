"""Migrations, as a function: bring a database to the revision that this package needs, or take it back.

What belongs here: running Alembic on one connection under a lock. What does not: the scripts (``migrations/``), and the
topics of Kafka (``kafka/topics.py``).
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import alembic.command
import alembic.util
import psycopg
import sqlalchemy
from alembic.config import Config
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, create_engine, text
from sqlalchemy.pool import NullPool

from sla_pipeline.errors import PostgresBusy, PostgresSetupError
from sla_pipeline.postgres.faults import translate
from sla_pipeline.postgres.indexes import require_free_names
from sla_pipeline.postgres.schema import SCHEMA, VERSION_TABLE
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline.postgres.settings import OWNER_URL
from sla_pipeline.postgres.tickets_table import CATALOGUE, TicketsTable, require_table

__all__ = ["downgrade", "upgrade"]

# names the lock that keeps two migrations apart; the number has no meaning
_LOCK_KEY = 7_405_514_001
# Bounds a wait for a lock on our own tables, which a running cycle holds for milliseconds.
_LOCK_TIMEOUT_MS = 5_000
# where one of these is there, the records were there too
_OTHERS_OF_OURS = ("ticket_sla_relay", "ticket_sla_cycles", "ticket_sla_set_aside")
_RECORDS_LOST = (
    "table support.ticket_sla_breaches was lost and is made again, empty. Nothing is published until `sla-pipeline "
    "recover` has written "
    "the records back from their events; then `sla-pipeline verify` counts the marks whose event was not yet out. "
    "docs/exactly-once.md, "
    'section "Tables of ours lost", says how those are marked again'
)


def upgrade(owner_url: str, *, with_tickets: bool = False, say: Callable[[str], None] = lambda _: None) -> None:
    """Bring the database to the newest revision, and put back what it has lost of it.

    ``say`` is called with what a person must do about a loss that putting back does not mend, before anything is
    changed. ``with_tickets`` creates ``support.tickets`` too, which belongs to the support service: for demo and tests.
    Without it the table must exist. Raises ``PostgresSetupError`` (no table or not as needed, no right, another migration
    under way), ``PostgresBusy`` (somebody holds a table for long), ``PostgresUnavailable``, ``ConfigurationError``;
    after any of them it can be run again.
    """
    with _connected(owner_url) as (config, connection), _bounded_waiting(connection):
        if with_tickets:
            _require_own_tickets(connection)
            _create_schema(connection)
            connection.commit()
            alembic.command.upgrade(config, "support_service@head")
        row = connection.exec_driver_sql(CATALOGUE).fetchone()
        if row is None:
            raise PostgresSetupError(
                f"table support.tickets does not exist in database {connection.engine.url.database!r}: it belongs to "
                "the support service; check the database, or pass --with-tickets for a demo"
            )
        require_table(TicketsTable.of(row), for_audit=True)
        require_free_names(connection)
        if not _exists(connection, "ticket_sla_breaches") and (
            _is_noted(connection, "sla") or any(_exists(connection, other) for other in _OTHERS_OF_OURS)
        ):
            say(_RECORDS_LOST)
        connection.commit()
        alembic.command.upgrade(config, "sla_monitor@head")
        _put_back(config, connection)


def _put_back(config: Config, connection: Connection) -> None:
    """Run every revision again: each only adds what is missing.

    The version stays as it is, so that cycles go on meanwhile.
    """
    connection.commit()
    context = MigrationContext.configure(connection)
    revisions = ScriptDirectory.from_config(config).walk_revisions("base", "sla_monitor@head")
    with Operations.context(context):
        for revision in reversed(list(revisions)):
            with context.begin_transaction():
                revision.module.upgrade()


def _create_schema(connection: Connection) -> None:
    # looked for first: `if not exists` demands the right to make schemas even where there is nothing to make
    if connection.scalar(text(f"select to_regnamespace('{SCHEMA}')")) is None:
        connection.execute(text(f"create schema {SCHEMA}"))


def _exists(connection: Connection, table: str) -> bool:
    return connection.scalar(text(f"select to_regclass('{SCHEMA}.{table}')")) is not None


def _is_noted(connection: Connection, branch: str) -> bool:
    """Whether the database was migrated by revisions whose names begin with ``branch``."""
    noted = text(f"select 1 from {SCHEMA}.{VERSION_TABLE} where starts_with(version_num, :branch)")
    return _exists(connection, VERSION_TABLE) and connection.execute(noted, {"branch": branch}).first() is not None


def _require_own_tickets(connection: Connection) -> None:
    """Raises ``PostgresSetupError`` where ``support.tickets`` is there and is not of our making."""
    if not _exists(connection, "tickets"):
        return
    if not _is_noted(connection, "support"):
        raise PostgresSetupError(
            f"table support.tickets exists in database {connection.engine.url.database!r} and was not made by "
            "sla-pipeline: it belongs to the support service. Nothing was touched; run `sla-pipeline migrate` without "
            "--with-tickets"
        )


@contextlib.contextmanager
def _bounded_waiting(connection: Connection) -> Iterator[None]:
    """Bounds each wait for a lock, and not the work itself. Raises ``PostgresBusy`` when one ends."""
    connection.exec_driver_sql(f"set lock_timeout = {_LOCK_TIMEOUT_MS}")
    connection.commit()
    try:
        yield
    except sqlalchemy.exc.OperationalError as error:
        if not isinstance(error.orig, psycopg.errors.LockNotAvailable):
            raise
        raise PostgresBusy(
            f"a transaction holds a table of schema {SCHEMA} for longer than {_LOCK_TIMEOUT_MS / 1_000:g} s "
            f"({error.orig.diag.message_primary}); wait for it to end and run `sla-pipeline migrate` again: it goes on"
        ) from None


def downgrade(owner_url: str, *, with_tickets: bool = False) -> None:
    """Take our objects back, and ``support.tickets`` too where asked. Raises as ``upgrade`` does."""
    with _connected(owner_url) as (config, connection), _bounded_waiting(connection):
        # Alembic keeps its version there
        _create_schema(connection)
        connection.commit()
        alembic.command.downgrade(config, "sla_monitor@base")
        if with_tickets:
            # with nothing to take back, the first command has read, and a transaction that it left open is not
            # Alembic's to commit
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
        # a session of its own, idle between statements: waiting inside one would hold a snapshot, on which a concurrent
        # index build waits
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as guard:
            if not guard.scalar(text("select pg_try_advisory_lock(:key)"), {"key": _LOCK_KEY}):
                raise PostgresSetupError(
                    f"another migration of {owner.place} is under way; try again when it has ended"
                )
            with engine.connect() as connection:
                config.attributes["connection"] = connection
                yield config, connection
    except sqlalchemy.exc.DBAPIError as error:
        if not isinstance(error.orig, psycopg.Error):
            raise
        raise translate(error.orig, owner) from None
    except alembic.util.CommandError as error:
        raise PostgresSetupError(
            f"cannot migrate {owner.place}: {error}; the database was migrated by another version of sla-pipeline"
        ) from error


def _transactional(owner: PostgresSettings) -> psycopg.Connection:
    """A session as SQLAlchemy expects it: it begins transactions itself."""
    connection = owner.connect_unbounded(purpose="migrate")
    connection.autocommit = False
    return connection
