"""The simulated support service: optimistic locking, and no write of ``sla_breached`` (SPEC 1.3)."""

from datetime import UTC, datetime
from typing import Any

import psycopg

from sla_pipeline.demo import support_service
from sla_pipeline.demo.operators import Action, apply_action, new_ticket, seeded_rng
from sla_pipeline.demo.ticket import Ticket
from sla_pipeline_tests.tickets import NOW, is_breached, look, reply

LATER = datetime(2026, 11, 30, 12, 5, tzinfo=UTC)


def stored(connection: psycopg.Connection[Any]) -> Ticket:
    ticket = new_ticket("DEMO0000001", NOW, seeded_rng(1))
    assert support_service.add_new(connection, [ticket]) == 1
    return ticket


def test_a_ticket_is_read_as_it_was_written(support: psycopg.Connection[Any]) -> None:
    ticket = stored(support)
    form = support_service.open_form(support, ticket.id)
    assert form is not None
    assert form.ticket == ticket
    assert support_service.open_form(support, "00000000-0000-4000-8000-000000000000") is None


def test_a_ticket_that_is_there_already_is_not_added_again(support: psycopg.Connection[Any]) -> None:
    ticket = stored(support)
    reply(support, ticket.id, at=LATER)
    assert support_service.add_new(support, [ticket, new_ticket("DEMO0000002", NOW, seeded_rng(2))]) == 1
    assert look(support, ticket.id)["first_response_at"] == LATER
    assert support_service.count_tickets(support) == 2


def test_a_form_that_nobody_overtook_is_saved(support: psycopg.Connection[Any]) -> None:
    form = support_service.open_form(support, stored(support).id)
    assert form is not None
    changed = apply_action(Action.REPLY, form.ticket, LATER, seeded_rng(1))
    assert support_service.save_form(support, changed, form.version)
    again = support_service.open_form(support, changed.id)
    assert again is not None
    assert (again.ticket, again.version == form.version) == (changed, False)


def test_a_form_that_was_overtaken_by_the_mark_hits_no_row_and_the_flag_stays_when_it_is_saved_again(
    support: psycopg.Connection[Any], cycle: Any, clock: Any
) -> None:
    form = support_service.open_form(support, stored(support).id)
    assert form is not None
    clock.moment = LATER
    assert cycle().processed_count == 1
    changed = apply_action(Action.REPLY, form.ticket, LATER, seeded_rng(1))
    before = look(support, changed.id)
    assert not support_service.save_form(support, changed, form.version)
    assert look(support, changed.id) == before
    reopened = support_service.open_form(support, changed.id)
    assert reopened is not None
    assert support_service.save_form(support, changed, reopened.version)
    assert look(support, changed.id)["first_response_at"] == LATER
    assert is_breached(support, changed.id)


def test_applying_a_marked_ticket_leaves_the_mark(support: psycopg.Connection[Any], cycle: Any, clock: Any) -> None:
    ticket = stored(support)
    clock.moment = LATER
    assert cycle().processed_count == 1
    support_service.apply(support, [apply_action(Action.RESOLVE, ticket, LATER, seeded_rng(1)), ticket])
    row = look(support, ticket.id)
    assert (row["status"], row["resolved_at"], row["sla_breached"]) == ("New", None, True)


def test_the_last_number_is_found_among_those_of_one_form(support: psycopg.Connection[Any]) -> None:
    assert support_service.last_number(support, "^DEMO[0-9]{7}$") is None
    support_service.add_new(
        support, [new_ticket(number, NOW, seeded_rng(1)) for number in ("DEMO0000009", "DEMO0000010", "INC0000045")]
    )
    assert support_service.last_number(support, "^DEMO[0-9]{7}$") == "DEMO0000010"
