"""What the two group roles may do, as Postgres itself enforces it (SPEC 1.3, 5.4, 7.1)."""

from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.errors import InsufficientPrivilege

from sla_pipeline_tests.integration.postgres.conftest import NewLogin
from sla_pipeline_tests.tickets import look, make_ticket

Support = psycopg.Connection[Any]
_OURS = [
    "ticket_sla_breaches",
    "ticket_sla_cycles",
    "ticket_sla_relay",
    "ticket_sla_schema_version",
    "ticket_sla_set_aside",
]


def _columns(support: Support) -> list[str]:
    rows = support.execute(
        "select column_name from information_schema.columns where table_schema = 'support' and table_name = "
        "'tickets' order by 1"
    ).fetchall()
    return [name for (name,) in rows]


def test_the_worker_may_update_two_columns_of_a_ticket_and_no_other(support: Support, new_login: NewLogin) -> None:
    make_ticket(support)
    support.execute("alter table support.tickets add column version integer not null default 1")
    allowed, refused = [], []
    with psycopg.connect(new_login("sla_worker"), autocommit=True) as worker:
        for column in _columns(support):
            try:
                worker.execute(sql.SQL("update support.tickets set {0} = {0}").format(sql.Identifier(column)))
            except InsufficientPrivilege:
                refused.append(column)
            else:
                allowed.append(column)
    assert allowed == ["sla_breached", "updated_at"]
    assert len(refused) == 14


@pytest.mark.parametrize(
    "statement",
    [
        "insert into support.tickets (id, number, status) values (gen_random_uuid(), 'X', 'New')",
        "delete from support.tickets",
        "truncate support.tickets",
        "alter table support.tickets add column mine text",
        "drop table support.ticket_sla_breaches",
        "delete from support.ticket_sla_breaches",
        "update support.ticket_sla_breaches set payload = ''",
        "truncate support.ticket_sla_breaches",
        "insert into support.ticket_sla_relay values (2, 0, 0)",
        "delete from support.ticket_sla_relay",
        "delete from support.ticket_sla_cycles",
        "update support.ticket_sla_schema_version set version_num = 'sla_9999'",
        "create table support.mine (id integer)",
    ],
)
def test_the_worker_may_not(statement: str, support: Support, new_login: NewLogin) -> None:
    ticket = make_ticket(support)
    before = look(support, ticket)
    with psycopg.connect(new_login("sla_worker"), autocommit=True) as worker, pytest.raises(InsufficientPrivilege):
        worker.execute(statement.encode())
    assert look(support, ticket) == before


def test_an_analyst_may_read_everything_and_write_nothing(support: Support, new_login: NewLogin) -> None:
    make_ticket(support)
    with psycopg.connect(new_login("sla_analyst"), autocommit=True) as analyst:
        for table in [*_OURS, "tickets"]:
            name = sql.Identifier("support", table)
            analyst.execute(sql.SQL("select * from {}").format(name))
            columns = [
                row[0]
                for row in support.execute(
                    "select column_name from information_schema.columns where table_schema = 'support' and "
                    "table_name = %s",
                    (table,),
                )
            ]
            for column in columns:
                with pytest.raises(InsufficientPrivilege):
                    analyst.execute(sql.SQL("update {0} set {1} = default").format(name, sql.Identifier(column)))
            for statement in (
                "delete from {}",
                "truncate {}",
                "insert into {} default values",
                "select 1 from {} for update",
            ):
                with pytest.raises(InsufficientPrivilege):
                    analyst.execute(sql.SQL(statement).format(name))


def test_a_login_in_neither_role_sees_nothing(new_login: NewLogin) -> None:
    with (
        psycopg.connect(new_login(), autocommit=True) as stranger,
        pytest.raises(InsufficientPrivilege, match="schema support"),
    ):
        stranger.execute("select 1 from support.tickets")
