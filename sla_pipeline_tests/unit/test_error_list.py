"""Errors of a cycle: all are counted, a hundred are kept, and thousands of tickets do not hide what failed beside
them.
"""

from sla_pipeline.cycle import ERRORS_KEPT, ErrorList, listed


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


def test_the_errors_of_several_steps_add_up() -> None:
    marking, publishing, cycle = ErrorList(), ErrorList(), ErrorList()
    for number in range(150):
        marking.add_of_ticket(f"ticket {number}")
    publishing.add("publishing failed")
    for step in (ErrorList(), marking, publishing):
        cycle.add_all(step)
    assert cycle.count == 151
    assert cycle.kept()[:2] == ["publishing failed", "ticket 0"]
    assert len(cycle.kept()) == ERRORS_KEPT
    # what was added up is not changed by what comes after
    cycle.add("the journal failed")
    assert (marking.count, publishing.kept()) == (150, ["publishing failed"])


def test_a_list_says_how_many_more_there_are() -> None:
    assert listed([], 0) == []
    assert listed(["one", "two"], 2) == ["one", "two"]
    more = "more errors; the log has a line for each ticket that was set aside"
    assert listed(["one", "two"], 3) == ["one", "two", f"and 1 {more}"]
    assert listed(["one", "two"], 2, limit=1) == ["one", f"and 1 {more}"]
