"""The remedy in the error of a missing right works: each is carried out here."""

from typing import Any

import psycopg
import pytest
from psycopg import sql

from sla_pipeline.errors import PostgresSetupError
from sla_pipeline.postgres.migrate import upgrade
from sla_pipeline_tests.integration.conftest import Cycle
from sla_pipeline_tests.integration.postgres.conftest import NewLogin
from sla_pipeline_tests.tickets import FIRST_RESPONSE_OVERDUE, breached_ids, make_ticket

Support = psycopg.Connection[Any]
_MEMBERSHIP = "grant sla_worker to"


def _failure(cycle: Cycle) -> str:
    with pytest.raises(PostgresSetupError) as raised:
        cycle().raise_if_failed()
    return str(raised.value)


@pytest.fixture
def audited_ticket(support: Support) -> str:
    """An overdue ticket in a database whose support service records who changes tickets."""
    support.execute("create table support.ticket_audit (ticket_id uuid, changed_by text)")
    support.execute(
        "create function support.audit() returns trigger language plpgsql as $$ begin "
        "insert into support.ticket_audit values (new.id, current_user); return new; end $$"
    )
    support.execute(
        "create trigger audit after update on support.tickets for each row execute function support.audit()"
    )
    return make_ticket(support, **FIRST_RESPONSE_OVERDUE)


@pytest.mark.parametrize(
    "remedy", ["grant insert on support.ticket_audit to sla_worker", "alter function support.audit() security definer"]
)
def test_an_audit_trigger_of_the_support_service(
    remedy: str, audited_ticket: str, support: Support, cycle: Cycle
) -> None:
    message = _failure(cycle)
    assert "permission denied for table ticket_audit" in message
    assert (
        "grant the right to sla_worker, or let the function run with its owner's: `alter function NAME security "
        "definer`" in message
    )
    assert _MEMBERSHIP not in message
    support.execute(remedy.encode())
    assert cycle().errors == []
    assert breached_ids(support) == {audited_ticket}


def test_a_trigger_that_refuses_by_itself_gets_no_remedy_that_does_not_help(support: Support, cycle: Cycle) -> None:
    ticket = make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    support.execute(
        "create function support.keep_out() returns trigger language plpgsql as $$ begin "
        "raise insufficient_privilege using message = 'no monitor for ' || new.number; end $$"
    )
    support.execute(
        "create trigger keep_out before update on support.tickets for each row execute function support.keep_out()"
    )
    message = _failure(cycle)
    assert "in a function or trigger of the database" in message
    assert "a function of the support service refuses the monitor: ask its owner" in message
    assert "grant" not in message
    assert "no monitor for" not in message
    support.execute("drop trigger keep_out on support.tickets")
    assert cycle().errors == []
    assert breached_ids(support) == {ticket}


def test_a_login_without_the_role(worker_login: tuple[str, str], support: Support, cycle: Cycle) -> None:
    ticket, role = make_ticket(support, **FIRST_RESPONSE_OVERDUE), sql.Identifier(worker_login[0])
    support.execute(sql.SQL("revoke sla_worker from {}").format(role))
    try:
        assert "grant the login the rights of role sla_worker (`grant sla_worker to LOGIN`)" in _failure(cycle)
        # a member that inherits nothing has none of the role's rights
        support.execute(sql.SQL("grant sla_worker to {} with inherit false").format(role))
        assert "grant sla_worker to LOGIN" in _failure(cycle)
    finally:
        support.execute(sql.SQL("grant sla_worker to {} with inherit true").format(role))
    assert cycle().errors == []
    assert breached_ids(support) == {ticket}


def test_an_owner_url_whose_login_is_not_the_owner(new_login: NewLogin) -> None:
    with pytest.raises(PostgresSetupError) as raised:
        upgrade(new_login())
    assert str(raised.value).endswith("let SLA_POSTGRES_OWNER_URL name the owner of schema support and of its tables")
