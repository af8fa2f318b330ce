"""Errors of a cycle: all are counted, a hundred are kept, and those of tickets do not hide a step's fault."""

from sla_pipeline.cycle import ERRORS_KEPT, ErrorList
from sla_pipeline.errors import FailClosed


def test_the_first_hundred_are_kept_and_all_are_counted() -> None:
    errors = ErrorList()
    for number in range(10_000):
        errors.add_of_ticket(f"ticket {number}")
    assert errors.count == 10_000
    assert errors.kept() == [f"ticket {number}" for number in range(ERRORS_KEPT)]


def test_a_fault_of_a_step_comes_before_the_tickets_whenever_it_happened() -> None:
    errors = ErrorList()
    for number in range(ERRORS_KEPT):
        errors.add_of_ticket(f"ticket {number}")
    errors.add("publishing failed")
    assert errors.count == ERRORS_KEPT + 1
    assert errors.kept() == ["publishing failed", *(f"ticket {number}" for number in range(ERRORS_KEPT - 1))]


def test_faults_are_bounded_too() -> None:
    errors = ErrorList()
    for number in range(200):
        errors.add(f"fault {number}")
    assert (errors.count, len(errors.kept())) == (200, ERRORS_KEPT)


def test_the_fault_that_ended_the_cycle_comes_first() -> None:
    errors = ErrorList()
    for number in range(ERRORS_KEPT):
        errors.add(f"fault {number}")
    errors.add_first("the session was lost")
    assert errors.count == ERRORS_KEPT + 1
    assert errors.kept() == ["the session was lost", *(f"fault {number}" for number in range(ERRORS_KEPT - 1))]


def test_a_list_gives_the_number_of_those_that_it_leaves_out() -> None:
    errors = ErrorList()
    assert errors.listed() == []
    errors.add("one")
    errors.add("two")
    more = "more errors; the log has a line for each ticket that was set aside"
    assert errors.listed() == ["one", "two"]
    assert errors.listed(1) == ["one", f"and 1 {more}"]
    for number in range(ERRORS_KEPT):
        errors.add_of_ticket(f"ticket {number}")
    assert errors.listed()[-2:] == [f"ticket {ERRORS_KEPT - 3}", f"and 2 {more}"]


def test_the_faults_of_steps_are_kept_beside_their_texts_and_bounded() -> None:
    errors = ErrorList()
    errors.add("publishing failed: stopped", FailClosed("stopped"))
    errors.add("1 claimed tickets are left to the next cycle")
    assert [type(fault) for fault in errors.faults] == [FailClosed]
    for number in range(200):
        errors.add(f"fault {number}", FailClosed(str(number)))
    assert len(errors.faults) == ERRORS_KEPT
