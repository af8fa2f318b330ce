"""Migrations: bring a database to the revision that this package needs, or take it back.

Migrate first, then roll out the workers: a worker accepts a newer database that declares itself compatible, and never
an older one (``schema.check_revision``).
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import alembic.command
import alembic.util
import psycopg
import sqlalchemy
from alembic.config import Config
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext, MigrationInfo
from alembic.script import Script, ScriptDirectory
from sqlalchemy import URL, Connection, create_engine, text
from sqlalchemy.pool import NullPool

from sla_pipeline.errors import PostgresBusy, PostgresSetupError
from sla_pipeline.postgres.faults import translate
from sla_pipeline.postgres.indexes import require_free_names
from sla_pipeline.postgres.migrations.additive import add_missing
from sla_pipeline.postgres.schema import SCHEMA, VERSION_TABLE
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline.postgres.settings import OWNER_URL
from sla_pipeline.postgres.tickets_table import CATALOGUE, TicketsTable
from sla_pipeline.postgres.tickets_table_faults import require_table

__all__ = ["downgrade", "upgrade"]

_SCRIPTS = Path(__file__).parent / "migrations"
# names the lock that keeps two migrations apart; the number has no meaning
_LOCK_KEY = 7_405_514_001
# Bounds a wait for a lock on our own tables, which a running cycle holds for milliseconds.
_LOCK_TIMEOUT_MS = 5_000
# a database that has one of these had the records too
_TABLES_BESIDE_RECORDS = ("ticket_sla_relay", "ticket_sla_cycles", "ticket_sla_set_aside")
_RECORDS_LOST = (
    "table support.ticket_sla_breaches was lost and is made again, empty. Nothing is published until `sla-pipeline "
    "recover` has written the records back from their events; then `sla-pipeline verify` counts the marks whose event "
    'was not yet out. docs/exactly-once.md, section "Tables of ours lost", explains how those are marked again'
)


def upgrade(owner_url: str, *, with_tickets: bool = False, warn: Callable[[str], None] = lambda _: None) -> None:
    """Bring the database to the newest revision, and restore what it has lost of it.

    ``warn`` is called, before anything is changed, with what a person must do about a loss that this cannot repair.
    ``with_tickets`` creates ``support.tickets`` too, which belongs to the support service: for demo and tests. Without
    it the table must exist. Raises ``PostgresSetupError`` (no table or not as needed, no right, another migration under
    way), ``PostgresBusy`` (somebody holds a table for long), ``PostgresUnavailable``, ``ConfigurationError``; after any
    of them it can be run again.
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
            _is_recorded(connection, "sla") or any(_exists(connection, table) for table in _TABLES_BESIDE_RECORDS)
        ):
            warn(_RECORDS_LOST)
        connection.commit()
        alembic.command.upgrade(config, "sla_monitor@head")
        _restore(config, connection)


def downgrade(owner_url: str, *, with_tickets: bool = False) -> None:
    """Drop our objects, and ``support.tickets`` too if ``with_tickets``. Raises as ``upgrade`` does."""
    with _connected(owner_url) as (config, connection), _bounded_waiting(connection):
        # Alembic's version table needs the schema
        _create_schema(connection)
        connection.commit()
        alembic.command.downgrade(config, "sla_monitor@base")
        if with_tickets:
            # the no-op downgrade leaves a read transaction open; Alembic would not commit ours
            connection.commit()
            alembic.command.downgrade(config, "support_service@base")


def _restore(config: Config, connection: Connection) -> None:
    """Run every revision again: each only adds what is missing.

    The recorded revision does not change meanwhile, so that cycles continue.
    """
    connection.commit()
    options = {"dropped_later": config.attributes["options"]["dropped_later"]}
    context = MigrationContext.configure(connection, opts=options)
    revisions = list(_revisions(config))
    with Operations.context(context):
        for revision in reversed(revisions):
            with context.begin_transaction():
                revision.module.upgrade()
        with context.begin_transaction():
            _record_compatibility(connection, revisions[0])


def _revisions(config: Config) -> Iterator[Script]:
    """Yield the revisions of branch ``sla_monitor``, the newest first."""
    return ScriptDirectory.from_config(config).walk_revisions("base", "sla_monitor@head")


def _on_version_apply(*, ctx: MigrationContext, step: MigrationInfo, **_: object) -> None:
    """Record the compatibility of the revision just run; Alembic calls this in the revision's own transaction."""
    connection, revision = ctx.connection, step.up_revision
    if step.is_upgrade and connection and isinstance(revision, Script) and hasattr(revision.module, "compatible_from"):
        _record_compatibility(connection, revision)


def _record_compatibility(connection: Connection, revision: Script) -> None:
    """Write the oldest revision whose workers work on this database beside ``revision``, for those workers to read."""
    # Alembic creates its table without the column
    add_missing(f"{SCHEMA}.{VERSION_TABLE}", {"compatible_from": "text"})
    connection.execute(
        text(f"update {SCHEMA}.{VERSION_TABLE} set compatible_from = :oldest where version_num = :revision"),
        {"oldest": revision.module.compatible_from, "revision": revision.revision},
    )


def _create_schema(connection: Connection) -> None:
    # `create schema if not exists` demands the right to create one even where it exists
    if connection.scalar(text(f"select to_regnamespace('{SCHEMA}')")) is None:
        connection.execute(text(f"create schema {SCHEMA}"))


def _exists(connection: Connection, table: str) -> bool:
    return connection.scalar(text(f"select to_regclass('{SCHEMA}.{table}')")) is not None


def _is_recorded(connection: Connection, branch: str) -> bool:
    """Return whether the database is at a revision whose name begins with ``branch``."""
    recorded = text(f"select 1 from {SCHEMA}.{VERSION_TABLE} where starts_with(version_num, :branch)")
    return _exists(connection, VERSION_TABLE) and connection.execute(recorded, {"branch": branch}).first() is not None


def _require_own_tickets(connection: Connection) -> None:
    """Raise ``PostgresSetupError`` where ``support.tickets`` exists and no migration created it."""
    if not _exists(connection, "tickets"):
        return
    if not _is_recorded(connection, "support"):
        raise PostgresSetupError(
            f"table support.tickets exists in database {connection.engine.url.database!r} and was not made by "
            "sla-pipeline: it belongs to the support service. Nothing was touched; run `sla-pipeline migrate` without "
            "--with-tickets"
        )


@contextlib.contextmanager
def _bounded_waiting(connection: Connection) -> Iterator[None]:
    """Bound each wait for a lock, not the work itself. Raises ``PostgresBusy`` when a wait reaches the bound."""
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


@contextlib.contextmanager
def _connected(owner_url: str) -> Iterator[tuple[Config, Connection]]:
    owner = PostgresSettings(owner_url, OWNER_URL)
    engine = create_engine(
        # selects the dialect and names the database in messages; the creator connects
        URL.create("postgresql+psycopg", database=owner.parameters().get("dbname")),
        creator=partial(_transactional, owner),
        poolclass=NullPool,
        # the dialect would look up a type that no statement uses
        use_native_hstore=False,
    )
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    try:
        # the lock has a session of its own, idle between statements: a wait inside a statement would hold a snapshot,
        # for which a concurrent index build waits
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as guard:
            if not guard.scalar(text("select pg_try_advisory_lock(:key)"), {"key": _LOCK_KEY}):
                raise PostgresSetupError(
                    f"another migration of {owner.place} is under way; try again when it has ended"
                )
            with engine.connect() as connection:
                config.attributes["options"] = _options(config, connection)
                yield config, connection
    except sqlalchemy.exc.DBAPIError as error:
        if not isinstance(error.orig, psycopg.Error):
            raise
        raise translate(error.orig, owner) from None
    except alembic.util.CommandError as error:
        raise PostgresSetupError(
            f"cannot migrate {owner.place}: {error}; the database was migrated by another version of sla-pipeline"
        ) from error


def _options(config: Config, connection: Connection) -> dict[str, Any]:
    """Return the options of Alembic's context; ``dropped_later`` is read by ``migrations/additive.py``."""
    return {
        "connection": connection,
        "version_table": VERSION_TABLE,
        "version_table_schema": SCHEMA,
        # an index built concurrently must not share its transaction with anything
        "transaction_per_migration": True,
        "on_version_apply": _on_version_apply,
        "dropped_later": frozenset(
            name for revision in _revisions(config) for name in getattr(revision.module, "drops", ())
        ),
    }


def _transactional(owner: PostgresSettings) -> psycopg.Connection:
    """Open a session as SQLAlchemy expects it: it begins transactions itself."""
    connection = owner.connect_unbounded(purpose="migrate")
    connection.autocommit = False
    return connection
