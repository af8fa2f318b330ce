"""Migrations of real databases: from empty, back, and with a table that the support service has created."""

import threading
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from psycopg import sql

import sla_pipeline.postgres.migrate
from sla_pipeline.embedded.ports import free_ports
from sla_pipeline.errors import ConfigurationError, PostgresSetupError, PostgresUnavailable
from sla_pipeline.postgres.indexes import OUR_INDEXES
from sla_pipeline.postgres.migrate import downgrade, upgrade
from sla_pipeline.postgres.schema import REVISION
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline.postgres.settings import OWNER_URL
from sla_pipeline_tests.integration.postgres.conftest import NewDatabase
from sla_pipeline_tests.waiting import wait_until

_INDEXES = [index.name for index in OUR_INDEXES]
_OURS = [
    "ticket_sla_breaches",
    "ticket_sla_counters",
    "ticket_sla_cycles",
    "ticket_sla_relay",
    "ticket_sla_schema_version",
    "ticket_sla_set_aside",
]
# a table that the support service has created: more columns, other lengths, its own constraints and trigger, and rows
_TICKETS_OF_SOMEBODY_ELSE = """
create schema support;
create table support.queues (id uuid primary key, title text);
insert into support.queues values ('0b0b0000-0000-4000-8000-000000000002', 'Billing');
create table support.tickets (
    tenant_id uuid not null,
    id uuid primary key default gen_random_uuid(),
    number varchar(20) not null unique,
    subject text not null,
    queue_id uuid not null references support.queues,
    requester_user_id uuid not null,
    assignee_user_id uuid,
    priority varchar(16) not null check (priority in ('Critical', 'High', 'Normal', 'Low')),
    status varchar(16) not null,
    first_response_due_at timestamptz not null,
    first_response_at timestamptz,
    resolution_due_at timestamptz,
    resolved_at timestamptz,
    sla_breached boolean not null default false,
    reopened_count integer not null default 0,
    version integer not null default 1,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now()
);
create function support.count_versions() returns trigger language plpgsql
    as $$ begin new.version := old.version + 1; return new; end $$;
create trigger count_versions before update on support.tickets
    for each row execute function support.count_versions();
insert into support.tickets
    (tenant_id, number, subject, queue_id, requester_user_id, priority, status, first_response_due_at)
values ('0a11ce00-0000-4000-8000-000000000001', 'TCK-1', 'Help', '0b0b0000-0000-4000-8000-000000000002',
    '0ca70000-0000-4000-8000-000000000003', 'High', 'New', now() - interval '1 hour');
"""


def _tables(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "select table_name from information_schema.tables where table_schema = 'support' order by 1"
        ).fetchall()
    return [name for (name,) in rows]


def _indexes_of_tickets(url: str) -> dict[str, bool]:
    """Return each index's name, and whether it is valid and ready."""
    with psycopg.connect(url) as connection:
        rows: list[tuple[str, bool]] = connection.execute(
            "select c.relname, i.indisvalid and i.indisready from pg_index i join pg_class c on c.oid = i.indexrelid"
            " where i.indrelid = 'support.tickets'::regclass"
        ).fetchall()
    return dict(rows)


def _dump(url: str) -> list[tuple[Any, ...]]:
    """Return all that a migration creates: columns, constraints, indexes and grants of the schema."""
    with psycopg.connect(url) as connection:
        return [
            row
            for statement in (
                "select table_name, column_name, data_type, is_nullable, column_default from information_schema.columns"
                " where table_schema = 'support' order by 1, 2",
                "select conrelid::regclass::text, conname, pg_get_constraintdef(oid) from pg_constraint"
                " where connamespace = 'support'::regnamespace order by 1, 2",
                "select tablename, indexname, indexdef from pg_indexes where schemaname = 'support' order by 1, 2",
                "select relname, relacl::text from pg_class where relnamespace = 'support'::regnamespace order by 1",
                "select attrelid::regclass::text, attname, attacl::text from pg_attribute where attacl is not null "
                "and not attisdropped and attrelid in (select oid from pg_class where relnamespace = "
                "'support'::regnamespace) order by 1, 2",
                "select * from support.ticket_sla_relay",
            )
            for row in connection.execute(statement).fetchall()
        ]


def test_revision_equals_the_head_of_alembic() -> None:
    config = Config()
    config.set_main_option(
        "script_location", str(sla_pipeline.postgres.migrate.__file__).replace("migrate.py", "migrations")
    )
    assert set(ScriptDirectory.from_config(config).get_heads()) == {REVISION, "support_0001"}


def test_upgrade_from_empty_downgrade_and_upgrade_again(new_database: NewDatabase) -> None:
    url = new_database()
    upgrade(url, with_tickets=True)
    assert _tables(url) == sorted([*_OURS, "tickets"])
    assert _indexes_of_tickets(url) == dict.fromkeys(
        ["tickets_pkey", "tickets_number_key", "tickets_first_response_due", "tickets_resolution_due", *_INDEXES], True
    )
    made = _dump(url)

    downgrade(url)
    assert _tables(url) == ["ticket_sla_schema_version", "tickets"]
    assert set(_indexes_of_tickets(url)) == {
        "tickets_pkey",
        "tickets_number_key",
        "tickets_first_response_due",
        "tickets_resolution_due",
    }
    downgrade(url, with_tickets=True)
    assert _tables(url) == ["ticket_sla_schema_version"]

    upgrade(url, with_tickets=True)
    assert _dump(url) == made
    downgrade(url, with_tickets=True)
    assert _tables(url) == ["ticket_sla_schema_version"]


def test_upgrade_is_a_no_op_on_a_migrated_database(owner_url: str) -> None:
    made = _dump(owner_url)
    upgrade(owner_url)
    upgrade(owner_url, with_tickets=True)
    assert _dump(owner_url) == made


def test_the_support_services_own_table_is_used_as_it_is(new_database: NewDatabase) -> None:
    url = new_database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_TICKETS_OF_SOMEBODY_ELSE)
        columns = connection.execute("select * from support.tickets").fetchall()
    upgrade(url)
    assert _tables(url) == sorted([*_OURS, "queues", "tickets"])
    with psycopg.connect(url, autocommit=True) as connection:
        assert connection.execute("select * from support.tickets").fetchall() == columns
        assert _indexes_of_tickets(url) == dict.fromkeys(["tickets_pkey", "tickets_number_key", *_INDEXES], True)
    downgrade(url, with_tickets=True)
    assert _tables(url) == ["queues", "ticket_sla_schema_version", "tickets"]


def test_missing_tickets_are_reported_and_nothing_is_created(new_database: NewDatabase) -> None:
    url = new_database()
    with pytest.raises(PostgresSetupError) as raised:
        upgrade(url)
    assert str(raised.value) == (
        f"table support.tickets does not exist in database '{urlsplit(url).path[1:]}': it belongs to the support "
        "service; check the database, or pass --with-tickets for a demo"
    )
    with psycopg.connect(url) as connection:
        assert connection.execute("select to_regnamespace('support')").fetchone() == (None,)


def test_a_half_built_index_of_an_interrupted_try_is_built_again(owner_url: str) -> None:
    name = _INDEXES[0]
    with psycopg.connect(owner_url, autocommit=True) as connection:
        connection.execute(
            "update pg_index set indisvalid = false where indexrelid = %s::regclass", (f"support.{name}",)
        )
        connection.execute(
            "update support.ticket_sla_schema_version set version_num = 'sla_0001' where version_num = %s", (REVISION,)
        )
    assert _indexes_of_tickets(owner_url)[name] is False
    upgrade(owner_url)
    assert _indexes_of_tickets(owner_url)[name] is True


def test_writers_go_on_while_indexes_are_built(owner_url: str) -> None:
    """The build waits for an open transaction longer than the login's statements may take; nobody waits for it."""
    downgrade(owner_url)
    insert = "insert into support.tickets (id, number, status) values (gen_random_uuid(), %s, 'New')"
    with psycopg.connect(owner_url) as operator, psycopg.connect(owner_url, autocommit=True) as other:
        operator.execute(insert, ("TCK-1",))
        other.execute(
            sql.SQL("alter database {} set statement_timeout = '500ms'").format(sql.Identifier(other.info.dbname))
        )
        building = threading.Thread(target=upgrade, args=(owner_url,))
        building.start()
        wait_until(
            lambda: bool(
                other.execute(
                    "select 1 from pg_stat_progress_create_index p join pg_stat_activity using (pid) where p.datname "
                    "= current_database() and phase like 'waiting for%' and query_start < clock_timestamp() - "
                    "interval '600 ms'"
                ).fetchall()
            ),
            what="the build to wait for the operator",
        )
        other.execute("set lock_timeout = '2s'")
        other.execute(insert, ("TCK-2",))
        other.execute("update support.tickets set status = 'InWork'")
        operator.commit()
        building.join(timeout=60)
        assert not building.is_alive()
    assert all(_indexes_of_tickets(owner_url)[name] for name in _INDEXES)


def test_two_migrations_at_once_are_kept_apart(owner_url: str) -> None:
    with psycopg.connect(owner_url, autocommit=True) as connection:
        connection.execute("select pg_advisory_lock(%s)", (sla_pipeline.postgres.migrate._LOCK_KEY,))
        with pytest.raises(
            PostgresSetupError,
            match=r"another migration of database 'test_.*' at .* as user 'postgres' is under way; try again when it "
            r"has ended",
        ):
            upgrade(owner_url)


def test_a_database_of_a_newer_version_is_refused(owner_url: str) -> None:
    with psycopg.connect(owner_url, autocommit=True) as connection:
        connection.execute(
            "update support.ticket_sla_schema_version set version_num = 'sla_9999' where version_num = %s", (REVISION,)
        )
    made = _dump(owner_url)
    with pytest.raises(
        PostgresSetupError, match=r"'sla_9999'; the database was migrated by another version of sla-pipeline"
    ):
        upgrade(owner_url)
    assert _dump(owner_url) == made


def test_the_owner_of_schema_and_table_may_migrate_where_the_roles_exist(
    owner_url: str, new_database: NewDatabase
) -> None:
    """Without superuser, createrole and the right to create schemas: a DBA has created the roles and the schema."""
    url = new_database()
    server, name = urlsplit(url), urlsplit(url).path[1:]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("create role {} login password 'owner'").format(sql.Identifier(name)))
        try:
            connection.execute(_TICKETS_OF_SOMEBODY_ELSE)
            for what in ("schema support", "table support.queues", "table support.tickets"):
                connection.execute(sql.SQL("alter {} owner to {}").format(sql.SQL(what), sql.Identifier(name)))
            upgrade(server._replace(netloc=f"{name}:owner@{server.netloc.rpartition('@')[2]}").geturl())
            assert _tables(url) == sorted([*_OURS, "queues", "tickets"])
            assert all(_indexes_of_tickets(url).values())
        finally:
            connection.execute(sql.SQL("drop owned by {} cascade").format(sql.Identifier(name)))
            connection.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


def test_a_login_without_rights_gets_an_error_that_names_the_missing_one(
    worker_url: str, worker_login: tuple[str, str]
) -> None:
    with pytest.raises(PostgresSetupError) as raised:
        downgrade(worker_url)
    assert "must be owner of table ticket_sla_counters" in str(raised.value)
    assert str(raised.value).endswith("let SLA_POSTGRES_OWNER_URL name the owner of schema support and of its tables")
    assert worker_login[1] not in str(raised.value)


def test_unreachable_server_and_malformed_url(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    with pytest.raises(
        PostgresUnavailable, match=rf"no connection to database 'support' at 127\.0\.0\.1:{port} as user 'owner': "
    ) as raised:
        upgrade(f"postgresql://owner:s3cr3t@127.0.0.1:{port}/support")
    assert str(raised.value).endswith("check the server, the network and SLA_POSTGRES_OWNER_URL")
    assert "s3cr3t" not in str(raised.value)
    with pytest.raises(
        ConfigurationError,
        match="SLA_POSTGRES_OWNER_URL is not a URL of Postgres; write postgresql://USER:PASSWORD@HOST",
    ):
        upgrade("s3cr3t")
    monkeypatch.delenv("SLA_POSTGRES_OWNER_URL", raising=False)
    with pytest.raises(ConfigurationError, match="SLA_POSTGRES_OWNER_URL is not set; set it to postgresql://USER"):
        PostgresSettings.from_environment(OWNER_URL)
