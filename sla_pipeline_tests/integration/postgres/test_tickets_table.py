"""Shapes of the support service's table: accepted and right to the end, or refused by name with a remedy that works.

An accepted shape goes through a whole cycle and the audit. For a refused one, the statements in the message are
executed; afterwards it is accepted.
"""

import re
import uuid
from typing import Any

import psycopg
import pytest
from psycopg import sql
from typer.testing import CliRunner

from sla_pipeline.audit.verify import verify
from sla_pipeline.cli import app
from sla_pipeline.cycle import CycleInput, SimulatedClock
from sla_pipeline.errors import PostgresSetupError
from sla_pipeline.kafka.relay import Relay
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.monitor.runner import run_cycle
from sla_pipeline.monitor.steps import claim_overdue
from sla_pipeline.postgres.database import Database
from sla_pipeline.postgres.indexes import DEFINITIONS, missing_indexes
from sla_pipeline.postgres.migrate import upgrade
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline.postgres.tickets import other_queues_first
from sla_pipeline.postgres.tickets_table import NEEDED, read_table
from sla_pipeline.postgres.tickets_table_faults import faults
from sla_pipeline_tests.integration.conftest import Events
from sla_pipeline_tests.integration.postgres.conftest import NewDatabase
from sla_pipeline_tests.integration.postgres.tables_of_others import COLUMNS, make_table
from sla_pipeline_tests.tickets import (
    FIRST_RESPONSE_OVERDUE,
    HOUR,
    NOW,
    RESOLUTION_OVERDUE,
    breached_ids,
    change,
    make_ticket,
)

_TYPES = """
create schema support;
create type support."Status of a ticket" as enum ('New', 'InWork', 'Resolved', 'Closed');
create type support.priority as enum ('Critical', 'High', 'Normal', 'Low');
create domain support.any_priority as support.priority;
create domain support.identity as uuid;
create domain support.moment as timestamptz;
create domain support.seconds as timestamptz(0);
create domain support.flag as boolean;
create domain support.short as varchar(20);
create domain support.shorter as support.short check (length(value) < 15);
create type support.two as enum ('New', 'Closed')
"""
# aliases in our statements, all of which the support service uses as column names
_TAKEN_NAMES = [
    "kind",
    "payload",
    "position",
    "ticket_id",
    "base",
    "seq",
    "count",
    "error",
    "recorded",
    "row_version",
    "due_at",
    "breached_at",
    "correlation_id",
    "run_id",
    "next_try_at",
    "taken",
    "breach",
    "claimed",
    "overdue",
    "tickets",
    "s",
    "b",
    "t",
    "oldest",
    "now_utc",
    "published_seq",
    "last_seq",
]


def _execute(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def _make(url: str, **changes: Any) -> None:
    """Create the table and the types above."""
    _execute(url, _TYPES)
    make_table(url, **changes)


_ACCEPTED: dict[str, dict[str, Any]] = {
    "enums, lengths, few digits": {
        "number": "varchar(20) not null",
        "status": 'support."Status of a ticket" not null',
        "priority": "support.priority",
        "updated_at": "timestamptz(0)",
        "first_response_due_at": "timestamptz(3)",
        "created_at": "timestamptz",
        "after": tuple(f'alter table support.tickets add column "{name}" text' for name in _TAKEN_NAMES),
    },
    "domains": {
        "id": "support.identity not null",
        "queue_id": "support.identity",
        "number": "support.shorter",
        "status": "support.shorter",
        "priority": "support.any_priority",
        "updated_at": "support.seconds",
        "first_response_due_at": "support.moment",
        "first_response_at": "support.moment",
        "sla_breached": "support.flag not null default false",
    },
    "generated, a key that is deferred": {
        "key": "unique (id) deferrable initially deferred",
        "first_response_due_at": "timestamptz generated always as (timezone('UTC', timezone('UTC', created_at) + "
        "'239 min')) stored",
        "number": "text generated always as ('T' || status) virtual",
    },
}


@pytest.mark.parametrize("shape", _ACCEPTED)
def test_a_shape_that_is_accepted_is_right_to_the_end(
    shape: str, new_database: NewDatabase, relay: Relay, kafka_settings: KafkaSettings, events: Events
) -> None:
    url = new_database()
    _make(url, **_ACCEPTED[shape])
    upgrade(url)
    with psycopg.connect(url, autocommit=True) as support:
        overdue = [{**FIRST_RESPONSE_OVERDUE}, {**RESOLUTION_OVERDUE}]
        generated = {
            name
            for (name,) in support.execute(
                "select attname from pg_attribute where attrelid = 'support.tickets'::regclass and attgenerated <> ''"
            )
        }
        made = []
        for position, values in enumerate(overdue):
            row = {
                "id": str(uuid.uuid4()),
                "number": f"T-{position}",
                "created_at": NOW - 4 * HOUR,
                "updated_at": NOW - 4 * HOUR,
            }
            row |= {
                "tenant_id": str(uuid.uuid4()),
                "queue_id": str(uuid.uuid4()),
                "requester_user_id": str(uuid.uuid4()),
                "priority": "High",
            } | values
            row = {name: value for name, value in row.items() if name not in generated}
            columns, values_ = (
                sql.SQL(", ").join(map(sql.Identifier, row)),
                sql.SQL(", ").join(map(sql.Placeholder, row)),
            )
            support.execute(sql.SQL("insert into support.tickets ({}) values ({})").format(columns, values_), row)
            made.append(row)
        settings = PostgresSettings(url)
        database = Database(settings)
        with settings.session(purpose="test") as session:
            assert missing_indexes(session.execute(DEFINITIONS).fetchall()) == []
            assert len(other_queues_first(session, [str(row["id"]) for row in made], [str(made[0]["queue_id"])])) == 2
        report = run_cycle(database, relay, clock=SimulatedClock(NOW))
        database.close()
        assert (report.processed_count, report.published_count, report.errors) == (2, 2, [])
        assert breached_ids(support) == {str(row["id"]) for row in made}
        numbers = {
            str(ticket_id): number for ticket_id, number in support.execute("select id, number from support.tickets")
        }
    for event in events():
        (row,) = (row for row in made if row["id"] == event.ticket_id)
        assert (event.number, event.queue_id, event.priority) == (numbers[event.ticket_id], row["queue_id"], "High")
    audited = verify(settings, kafka_settings, now_utc=NOW)
    assert (audited.clean, audited.proven_count) == (True, 2)


# columns of the table; text in the message; number of statements in the message
_REFUSED: dict[str, tuple[dict[str, Any], str, int]] = {
    **{
        f"{column} without a time zone": (
            {column: "timestamp"},
            f"column {column} is timestamp without time zone, needed is timestamp with time zone (",
            1,
        )
        for column in (
            "first_response_due_at",
            "first_response_at",
            "resolution_due_at",
            "resolved_at",
            "updated_at",
            "created_at",
        )
    },
    "a deadline as text": (
        {"resolution_due_at": "text"},
        "column resolution_due_at is text, needed is timestamp with time zone",
        1,
    ),
    "a deadline as a date": (
        {"resolution_due_at": "date"},
        "is date, needed is timestamp with time zone (a deadline must be a moment in time); a date has no time of day",
        0,
    ),
    "a deadline as a number": ({"resolution_due_at": "bigint"}, "column resolution_due_at is bigint, needed", 0),
    **{
        f"{column} as text": (
            {column: "text" + (" not null" if column == "id" else "")},
            f"column {column} is text, needed is uuid (",
            1,
        )
        for column in ("id", "tenant_id", "queue_id", "requester_user_id", "assignee_user_id")
    },
    "an id as a number": ({"id": "bigint not null"}, "column id is bigint, needed is uuid (", 0),
    "a number as a number": (
        {"number": "integer"},
        "column number is integer, needed is text or character varying or citext (",
        1,
    ),
    "a padded number": ({"number": "char(12)"}, "column number is character(12), needed is text or", 1),
    "a padded status": ({"status": "char(10)"}, "column status is character(10), needed is text or", 1),
    "a padded priority": ({"priority": "char(10)"}, "column priority is character(10), needed is text or", 1),
    "a priority as a number": ({"priority": "smallint"}, "column priority is smallint, needed is text or", 1),
    "a status without InWork": (
        {"status": "support.two"},
        "column status is support.two, an enum without the value InWork",
        1,
    ),
    "a domain over an enum": (
        {"status": "support.any_priority"},
        "column status is support.any_priority (support.priority), needed is text or",
        1,
    ),
    "a domain over another type": (
        {"first_response_due_at": "support.flag"},
        "column first_response_due_at is support.flag (boolean), needed is",
        0,
    ),
    "a flag that may be null": (
        {"sla_breached": "boolean default false"},
        "column sla_breached may be null, needed is not null",
        2,
    ),
    "a flag of which only new rows are not null": (
        {
            "sla_breached": "boolean",
            "after": (
                "insert into support.tickets (id, status) values (gen_random_uuid(), 'New')",
                'alter table support.tickets add constraint "Flag" not null sla_breached not valid',
            ),
            "number": "text",
        },
        "column sla_breached may be null, needed is not null",
        2,
    ),
    "a flag as a number": (
        {"sla_breached": "smallint not null default 0"},
        "column sla_breached is smallint, needed is boolean",
        1,
    ),
    "a flag as text": (
        {"sla_breached": "text not null default 'f'"},
        "column sla_breached is text, needed is boolean",
        1,
    ),
    "a generated flag": (
        {"sla_breached": "boolean not null generated always as (resolved_at is not null) stored"},
        "column sla_breached is generated, needed is one that can be written",
        1,
    ),
    "a virtual flag": (
        {"sla_breached": "boolean not null generated always as (resolved_at is not null) virtual"},
        "column sla_breached is generated, needed is one",
        1,
    ),
    "a generated time of change": (
        {"updated_at": "timestamptz generated always as (created_at) stored"},
        "column updated_at is generated, needed",
        1,
    ),
    "a virtual deadline": (
        {"first_response_due_at": "timestamptz generated always as (created_at) virtual"},
        "column first_response_due_at is a virtual generated column, needed is one that an index can hold",
        0,
    ),
    **{
        f"no {column.name}": (
            {column.name: "", "key": "" if column.name == "id" else "primary key (id)"},
            f"column {column.name} is missing, needed is",
            1,
        )
        for column in NEEDED
    },
    "no key": (
        {"key": ""},
        "id has no valid unique index of its own, without a condition; two rows with one id would be one ticket",
        1,
    ),
    "a key of two columns": ({"key": "primary key (tenant_id, id)"}, "id has no valid unique index of its own", 1),
    "a key of some rows": (
        {"key": "", "after": ("create unique index on support.tickets (id) where status <> 'Closed'",)},
        "id has no valid unique index",
        1,
    ),
    "an id that may be null": ({"id": "uuid", "key": "unique (id)"}, "column id may be null, needed is not null", 1),
    "a child by inheritance": (
        {"after": ("create table support.old_tickets () inherits (support.tickets)",)},
        "it has a child by inheritance, support.old_tickets, and no key is unique over both",
        1,
    ),
}


@pytest.fixture(scope="module")
def scratch_url(postgres_server_url: str) -> Any:
    """One database for all tables that are only read."""
    name = f"scratch_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_server_url, autocommit=True) as server:
        server.execute(f'create database "{name}"'.encode())
        yield postgres_server_url.rpartition("/")[0] + f"/{name}"
        server.execute(f'drop database "{name}" with (force)'.encode())


def _faults(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        found = read_table(connection)
    assert found is not None
    return faults(found, for_audit=True)


@pytest.mark.parametrize("shape", _REFUSED)
def test_a_shape_that_is_refused_is_named_and_its_remedy_works(shape: str, scratch_url: str) -> None:
    changes, fault, statement_count = _REFUSED[shape]
    _execute(scratch_url, "drop schema if exists support cascade")
    _make(scratch_url, **changes)
    found = _faults(scratch_url)
    assert fault in "; ".join(found)
    statements = re.findall("`([^`]+)`", "; ".join(found))
    assert len(statements) == statement_count
    if not statements:
        return
    for _ in range(2):
        # the first round drops a generated column, the second one adds the missing column
        _execute(
            scratch_url, *(statement for fault in _faults(scratch_url) for statement in re.findall("`([^`]+)`", fault))
        )
    assert _faults(scratch_url) == []


@pytest.mark.parametrize(
    ("statements", "fault"),
    [
        (
            ("create view support.tickets as select * from support.old_tickets",),
            "it is a view, needed is the ordinary or partitioned table itself",
        ),
        (
            ("create materialized view support.tickets as select * from support.old_tickets",),
            "it is a materialized view, needed is",
        ),
        (
            (
                "create foreign data wrapper nothing",
                "create server elsewhere foreign data wrapper nothing",
                "create foreign table support.tickets (id uuid) server elsewhere",
            ),
            "it is a foreign table, needed is",
        ),
        (("create sequence support.tickets",), "it is a sequence, needed is"),
        (("create type support.tickets as (id uuid)",), "it is a composite type, needed is"),
        (("create index tickets on support.old_tickets (status)",), "it is an index, needed is"),
    ],
    ids=["view", "materialized view", "foreign table", "sequence", "type", "index"],
)
def test_what_is_not_a_table_is_refused_by_name_and_nothing_is_made(
    statements: tuple[str, ...], fault: str, new_database: NewDatabase
) -> None:
    url = new_database()
    _make(url)
    _execute(url, "alter table support.tickets rename to old_tickets", *statements)
    with pytest.raises(PostgresSetupError) as raised:
        upgrade(url)
    assert fault in str(raised.value)
    with psycopg.connect(url) as connection:
        assert connection.execute("select count(*) from pg_class where relname like 'ticket_sla%'").fetchone() == (0,)


def test_a_foreign_partition_is_refused_with_what_to_detach(new_database: NewDatabase) -> None:
    url = new_database()
    make_table(
        url,
        key="",
        suffix="partition by hash (id)",
        after=(
            "create foreign data wrapper nothing",
            "create server elsewhere foreign data wrapper nothing",
            'create foreign table support."Far" partition of support.tickets for values with (modulus 2, remainder '
            "0) server elsewhere",
        ),
    )
    (far, key) = _faults(url)
    assert far.startswith('its partition support."Far" is a foreign table, whose rows have no version; detach it (')
    _execute(url, far.split("`")[1], key.split("`")[1])
    assert _faults(url) == []


def test_all_faults_are_in_one_message_and_a_cycle_touches_nothing(
    support: psycopg.Connection[Any],
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    kafka_settings: KafkaSettings,
    worker_url: str,
    owner_url: str,
) -> None:
    """The table was right when it was migrated and has changed since. Every command that uses it refuses."""
    make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    support.execute(
        "alter table support.tickets alter column first_response_due_at type timestamp, alter column sla_breached "
        "drop not null"
    )
    with pytest.raises(PostgresSetupError) as raised:
        claim_overdue(database, SimulatedClock(NOW), CycleInput(), run_id="r")
    assert str(raised.value) == (
        f"table support.tickets in database {support.info.dbname!r} is not as the monitor needs it: column "
        "first_response_due_at is timestamp without time zone, needed is timestamp with time zone (a deadline must be "
        "a moment in time); `alter table support.tickets alter column first_response_due_at type timestamp with time "
        "zone using first_response_due_at at time zone 'UTC'`, where its times are UTC; column sla_breached may be "
        "null, needed is not null (the flag of a mark; a ticket whose flag is null would never be found); `update "
        "support.tickets set sla_breached = false where sla_breached is null`, then `alter table support.tickets "
        "alter column sla_breached set not null`. Nothing was touched. The table belongs to the support service: have "
        "it changed there"
    )
    assert support.execute("select count(*) from support.ticket_sla_cycles").fetchone() == (0,)
    with pytest.raises(PostgresSetupError, match="is not as the monitor needs it: column first_response_due_at"):
        upgrade(owner_url)
    monkeypatch.setenv("SLA_POSTGRES_URL", worker_url)
    monkeypatch.setenv("SLA_KAFKA_BOOTSTRAP_SERVERS", kafka_settings.bootstrap_servers)
    monkeypatch.setenv("SLA_KAFKA_TOPIC", kafka_settings.topic)
    for command in ("cycle", "preview", "verify"):
        result = CliRunner().invoke(app, [command])
        assert isinstance(result.exception, PostgresSetupError)
        assert str(result.exception) == str(raised.value)


def test_a_column_that_only_the_audit_reads_does_not_stop_cycles(
    support: psycopg.Connection[Any], database: Database, worker_url: str, kafka_settings: KafkaSettings
) -> None:
    make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    support.execute("alter table support.tickets drop column created_at")
    claim = claim_overdue(database, SimulatedClock(NOW), CycleInput(), run_id="r")
    assert claim.totals.claimed_count == 1
    with pytest.raises(PostgresSetupError, match="column created_at is missing, needed is timestamp with time zone"):
        verify(PostgresSettings(worker_url), kafka_settings, now_utc=NOW)


def test_the_audit_finds_an_overdue_ticket_without_a_time_of_its_last_change(
    support: psycopg.Connection[Any], worker_url: str, kafka_settings: KafkaSettings
) -> None:
    support.execute("alter table support.tickets alter column updated_at drop not null")
    ticket = make_ticket(support, **FIRST_RESPONSE_OVERDUE | {"first_response_due_at": NOW - HOUR})
    change(support, ticket, updated_at=None)
    audited = verify(PostgresSettings(worker_url), kafka_settings, now_utc=NOW)
    assert not audited.clean
    assert {finding.check.name: finding.count for finding in audited.findings if finding.count} == {
        "OVERDUE_UNMARKED": 1
    }


def test_the_declaration_is_of_the_columns_that_tests_make() -> None:
    assert {column.name for column in NEEDED} == set(COLUMNS)
