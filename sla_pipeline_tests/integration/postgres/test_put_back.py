"""`sla-pipeline migrate` restores what a database at the newest revision has lost: the errors of cycles name it."""

import re
from typing import Any

import psycopg
import pytest
from alembic.runtime.migration import MigrationContext

from sla_pipeline.errors import PostgresBusy, PostgresSetupError
from sla_pipeline.postgres import migrate
from sla_pipeline.postgres.database import Database
from sla_pipeline.postgres.indexes import OUR_INDEXES
from sla_pipeline.postgres.migrate import downgrade, upgrade
from sla_pipeline.postgres.schema import REVISION
from sla_pipeline_tests.integration.conftest import Cycle, Events
from sla_pipeline_tests.integration.postgres.test_migrations import _dump as dump
from sla_pipeline_tests.tickets import FIRST_RESPONSE_OVERDUE, make_ticket

Support = psycopg.Connection[Any]
_FIRST, _RESOLUTION = OUR_INDEXES
_TABLES = ("ticket_sla_breaches", "ticket_sla_relay", "ticket_sla_cycles", "ticket_sla_set_aside")


def test_every_revision_run_twice_changes_nothing(owner_url: str) -> None:
    made = dump(owner_url)
    upgrade(owner_url)
    assert dump(owner_url) == made


_LOSSES = {
    "the first index": f"drop index support.{_FIRST.name}",
    "the other index": f"drop index support.{_RESOLUTION.name}",
    "an index of the journal": "drop index support.ticket_sla_cycles_running",
    "a key": "alter table support.ticket_sla_breaches drop constraint ticket_sla_breaches_pkey",
    "one record a ticket": "alter table support.ticket_sla_breaches drop constraint ticket_sla_breaches_ticket_id_key",
    "a check": "alter table support.ticket_sla_relay drop constraint ticket_sla_relay_check",
    "the relay's row": "delete from support.ticket_sla_relay",
    "the relay's table": "drop table support.ticket_sla_relay",
    "the records": "drop table support.ticket_sla_breaches",
    "the journal": "drop table support.ticket_sla_cycles",
    "the rows set aside": "drop table support.ticket_sla_set_aside",
    "the counters": "drop table support.ticket_sla_counters",
    "the counters' row": "delete from support.ticket_sla_counters",
    "a column": "alter table support.ticket_sla_set_aside drop column row_version",
    "a column with a default": "alter table support.ticket_sla_cycles drop column error_count",
    "the identity": "alter table support.ticket_sla_cycles drop column id",
    "a right on the tickets": "revoke update (sla_breached, updated_at) on support.tickets from sla_worker",
    "every right of the worker": "revoke all on all tables in schema support from sla_worker;"
    " revoke usage on schema support from sla_worker",
    "the analysts' rights": "revoke all on all tables in schema support from sla_analyst",
    "the oldest compatible version": "alter table support.ticket_sla_schema_version drop column compatible_from",
    "the version": "drop table support.ticket_sla_schema_version",
    "the version and the records": "drop table support.ticket_sla_schema_version, support.ticket_sla_breaches",
    "everything": "drop table support.ticket_sla_schema_version, support.ticket_sla_breaches, support.ticket_sla_relay,"
    " support.ticket_sla_cycles, support.ticket_sla_set_aside",
}


def _comparable(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the dump with the entries of each access list sorted."""
    return [
        tuple(sorted(re.split("[{},]", value)) if str(value).startswith("{") else value for value in row)
        for row in rows
    ]


@pytest.mark.parametrize("lost", _LOSSES)
def test_what_is_lost_is_put_back(
    lost: str, owner_url: str, support: Support, database: Database, cycle: Cycle, events: Events
) -> None:
    """The schema is as before, and a cycle of the worker marks and publishes."""
    made = _comparable(dump(owner_url))
    support.execute(_LOSSES[lost].encode())
    database.close()
    reported: list[str] = []
    upgrade(owner_url, warn=reported.append)
    records = (
        ["table support.ticket_sla_breaches was lost"] if lost in ("the records", "the version and the records") else []
    )
    assert [line.partition(" and is")[0] for line in reported] == records
    assert _comparable(dump(owner_url)) == made
    assert support.execute(
        "select version_num, compatible_from from support.ticket_sla_schema_version where version_num like 'sla%'"
    ).fetchall() == [(REVISION, "sla_0004")]
    ticket = make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    assert (report := cycle()).errors == []
    assert (report.processed_count, report.published_count) == (1, 1)
    assert [event.ticket_id for event in events()] == [ticket]


def test_the_warning_of_a_missing_index_ends_with_migrate(
    support: Support, owner_url: str, cycle: Cycle, logged: list[Any]
) -> None:
    """A half-built index counts as missing, one with another name that somebody has built does not."""

    def warned() -> list[str]:
        logged.clear()
        assert cycle().errors == []
        return [record.index for record in logged if record.getMessage().startswith("index missing: cycles get slower")]

    assert warned() == []
    support.execute(f"alter index support.{_FIRST.name} rename to by_hand".encode())
    support.execute(
        "update pg_index set indisvalid = false where indexrelid = %s::regclass", (f"support.{_RESOLUTION.name}",)
    )
    assert warned() == [f"support.{_RESOLUTION.name}"]
    upgrade(owner_url)
    assert warned() == []
    names = {
        name
        for (name,) in support.execute(
            "select relname from pg_class where relkind = 'i' and relname in ('by_hand', %s, %s)",
            (_FIRST.name, _RESOLUTION.name),
        )
    }
    assert names == {"by_hand", _RESOLUTION.name}


@pytest.mark.parametrize(
    ("taking", "what"),
    [
        (
            "create index {name} on support.tickets (first_response_due_at)",
            "index (CREATE INDEX {name} ON support.tickets USING btree (first_response_due_at))",
        ),
        (
            "create index {name} on support.tickets ({columns}, number) where {condition}",
            "index (CREATE INDEX {name} ON support.tickets",
        ),
        (
            "create index {name} on support.tickets (first_response_due_at desc, id) where {condition}",
            "index (CREATE INDEX {name} ON support",
        ),
        (
            "create index {name} on support.tickets ({columns}) where status in ('New', 'InWork') and not "
            "(sla_breached and first_response_at is null)",
            "index (CREATE INDEX {name} ON support.tickets",
        ),
        (
            "create index {name} on support.ticket_sla_cycles (id)",
            "index (CREATE INDEX {name} ON support.ticket_sla_cycles",
        ),
        ("create view support.{name} as select 1", "view (not an index)"),
        ("create table support.{name} ()", "table (not an index)"),
    ],
    ids=["other columns", "one more column", "other order", "other condition", "another table", "a view", "a table"],
)
def test_a_name_taken_by_something_else_is_refused_with_its_remedy(
    taking: str, what: str, owner_url: str, support: Support
) -> None:
    names = {"name": _FIRST.name, "columns": _FIRST.columns, "condition": _FIRST.condition}
    support.execute(f"drop index support.{_FIRST.name}".encode())
    support.execute(taking.format(**names).encode())
    with pytest.raises(PostgresSetupError) as raised:
        upgrade(owner_url)
    assert f"the name support.{_FIRST.name} is taken by another {what.format(**names)}" in str(raised.value)
    remedy = str(raised.value).split("`")[1]
    assert remedy.endswith("rename to OTHER_NAME")
    support.execute(remedy.encode())
    upgrade(owner_url)
    assert support.execute(
        "select indisvalid from pg_index where indexrelid = %s::regclass", (f"support.{_FIRST.name}",)
    ).fetchone() == (True,)


def _columns(url: str) -> list[tuple[str, str]]:
    with psycopg.connect(url) as connection:
        return connection.execute(
            "select relname, attname from pg_attribute join pg_class on pg_class.oid = attrelid where relname = any(%s)"
            " and attnum > 0 and not attisdropped and relkind = 'r' order by 1, 2",
            (list(_TABLES),),
        ).fetchall()


def _refusal(url: str) -> str:
    """Return the error of `migrate`, or an empty text."""
    try:
        upgrade(url)
    except PostgresSetupError as error:
        return str(error)
    return ""


def test_every_single_column_is_put_back_or_named_with_a_remedy_that_works(
    owner_url: str, support: Support, cycle: Cycle, logged: list[Any]
) -> None:
    """Every table has rows. Where a column cannot be added to them, the error names what to give up."""
    make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    make_ticket(support, **FIRST_RESPONSE_OVERDUE | {"queue_id": None})
    cycle()
    filled = [support.execute(f"select count(*) from support.{table}".encode()).fetchone() for table in _TABLES]
    assert filled == [(1,), (1,), (1,), (1,)]
    made = _comparable(dump(owner_url))[:-1]
    named = []
    for table, column in _columns(owner_url):
        support.execute(f"create table kept as table support.{table}".encode())
        support.execute(f"alter table support.{table} drop column {column} cascade".encode())
        message = _refusal(owner_url)
        if message:
            assert (
                f"column {column} of support.{table} is gone, and with it a value that each of its rows must have"
                in message
            )
            named.append((table, column))
            support.execute(message.split("`")[1].encode())
            assert _refusal(owner_url) == ""
        assert _comparable(dump(owner_url))[:-1] == made
        if not support.execute(f"select 1 from support.{table}".encode()).fetchone():
            columns = ", ".join(name for relation, name in _columns(owner_url) if relation == table)
            overriding = "overriding system value" if table == "ticket_sla_cycles" else ""
            support.execute(f"insert into support.{table} ({columns}) {overriding} select {columns} from kept".encode())
        support.execute("drop table kept")
    # these have no default and may not be null
    assert {column for table, column in named if table == "ticket_sla_relay"} == {"id", "last_seq", "published_seq"}
    assert ("ticket_sla_breaches", "payload") in named
    assert ("ticket_sla_breaches", "recorded_at") not in named


def test_cycles_go_on_while_what_is_lost_is_put_back(
    owner_url: str, support: Support, cycle: Cycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorded revision does not change meanwhile: a cycle runs between any two revisions."""
    support.execute(f"drop index support.{_FIRST.name}".encode())
    processed = []
    plain = MigrationContext.begin_transaction

    def begin(self: Any, *arguments: Any, **options: Any) -> Any:
        make_ticket(support, **FIRST_RESPONSE_OVERDUE)
        processed.append(cycle().processed_count)
        return plain(self, *arguments, **options)

    monkeypatch.setattr(MigrationContext, "begin_transaction", begin)
    upgrade(owner_url)
    assert len(processed) >= 4
    assert set(processed) == {1}


def test_a_table_of_ours_that_is_held_is_waited_for_in_bounds(
    owner_url: str, support: Support, operator: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "_LOCK_TIMEOUT_MS", 200)
    support.execute("alter table support.ticket_sla_set_aside drop column row_version")
    operator.execute("select from support.ticket_sla_set_aside")
    with pytest.raises(
        PostgresBusy,
        match=r"a transaction holds a table of schema support for longer than 0\.2 s \(canceling statement due to lock",
    ) as raised:
        upgrade(owner_url)
    assert str(raised.value).endswith("wait for it to end and run `sla-pipeline migrate` again: it goes on")
    operator.rollback()
    operator.execute("lock table support.tickets in access exclusive mode")
    with pytest.raises(PostgresBusy, match=r"a transaction holds a table of schema support for longer than 0\.2 s"):
        upgrade(owner_url)
    operator.rollback()
    upgrade(owner_url)
    assert support.execute("select row_version from support.ticket_sla_set_aside").fetchall() == []


def test_a_table_that_is_not_of_our_making_is_not_taken_for_the_demos(owner_url: str, support: Support) -> None:
    support.execute("delete from support.ticket_sla_schema_version where version_num like 'support%'")
    with pytest.raises(
        PostgresSetupError, match=r"was not made by sla-pipeline: .* run `sla-pipeline migrate` without --with-tickets"
    ):
        upgrade(owner_url, with_tickets=True)
    upgrade(owner_url)


def test_a_downgrade_takes_back_what_is_left(owner_url: str, support: Support) -> None:
    support.execute(f"drop index support.{_FIRST.name}".encode())
    downgrade(owner_url, with_tickets=True)
    assert support.execute(
        "select count(*) from pg_class where relnamespace = 'support'::regnamespace and relkind = 'r'"
    ).fetchone() == (1,)
