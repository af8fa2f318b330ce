"""Rules of the support service: new tickets, operators' changes and locks, time; and the checks after every rule."""

import itertools
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sla_pipeline.cycle import SimulatedClock
from sla_pipeline_tests.integration.state_machine.expected_state import ExpectedState
from sla_pipeline_tests.integration.state_machine.support_actions import (
    ACTIONS,
    OVERDUE,
    Draft,
    changed_values,
    drafts,
    minutes,
)
from sla_pipeline_tests.integration.state_machine.system_under_test import HOLDS, SystemUnderTest
from sla_pipeline_tests.tickets import MINUTE, NOW, change

__all__ = ["SupportMachine", "positions"]

positions = st.integers(0, 30)
"""Index into a list of any length, taken modulo the length."""


class SupportMachine(RuleBasedStateMachine):
    """The system under test, its expected state, and the support service.

    ``open_system`` creates a clean database and topics.
    """

    def __init__(self, open_system: Callable[[], SystemUnderTest]) -> None:
        super().__init__()
        self.system = open_system()
        self.expected = ExpectedState()
        self.clock = SimulatedClock(NOW)
        self.numbers = itertools.count(1)
        # locks and uncommitted changes of the operator's open transaction
        self.held: set[str] = set()
        self.held_how = ""
        self.uncommitted: tuple[str, dict[str, Any]] | None = None

    @invariant()
    def database_is_sound(self) -> None:
        assert self.newly_marked() == []

    @invariant()
    def topic_is_sound(self) -> None:
        self.expected.check_topic(self.system.consumer.read(at_least=self.expected.checked.published_seq))

    def newly_marked(self) -> list[str]:
        """Return the tickets that were marked since the last check."""
        return self.expected.check_database(self.system.read())

    def claimed_ids(self) -> set[str]:
        """Return the ids that open cycles have claimed and not yet tried."""
        return set()

    @initialize(new=st.lists(drafts, min_size=3, max_size=8))
    def initial_tickets(self, new: list[Draft]) -> None:
        self.tickets_are_created(new)

    @rule(new=st.lists(drafts, min_size=1, max_size=4))
    def tickets_are_created(self, new: list[Draft]) -> None:
        tickets = [draft.ticket(next(self.numbers), self.clock.moment) for draft in new]
        self.system.insert(tickets)
        self.expected.inserted(tickets)

    @rule(passed=st.integers(1, 30))
    def time_passes(self, passed: int) -> None:
        self.clock.moment += passed * MINUTE

    @rule(position=positions, action=st.sampled_from([*sorted(ACTIONS), "delete"]), offset=minutes)
    def an_operator_acts(self, position: int, action: str, offset: int) -> None:
        self.act(self.free_ticket(position), action, offset)

    def act(self, ticket_id: str, action: str, offset: int) -> None:
        """Change or delete a ticket as an operator, and commit."""
        if action == "delete":
            self.system.delete(ticket_id)
            self.expected.deleted(ticket_id)
            return
        values = changed_values(self.expected.tickets[ticket_id], action, self.clock.moment, offset)
        assert change(self.system.support, ticket_id, **values) == 1
        self.expected.changed(ticket_id, values)

    @precondition(lambda self: not self.held)
    @rule(position=positions, count=st.integers(1, 3), how=st.sampled_from(sorted(HOLDS)))
    def an_operator_locks_tickets(self, position: int, count: int, how: str) -> None:
        ids = {self.free_ticket(position + further) for further in range(count)}
        self.system.hold(sorted(ids), how)
        self.held, self.held_how = ids, how

    @precondition(lambda self: not self.held)
    @rule(position=positions, action=st.sampled_from(sorted(ACTIONS)), offset=minutes)
    def an_operator_acts_and_does_not_commit(self, position: int, action: str, offset: int) -> None:
        ticket_id = self.free_ticket(position)
        values = changed_values(self.expected.tickets[ticket_id], action, self.clock.moment, offset)
        assert change(self.system.operator, ticket_id, **values) == 1
        self.held, self.held_how, self.uncommitted = {ticket_id}, "row", (ticket_id, values)

    @precondition(lambda self: self.held)
    @rule(commits=st.booleans())
    def the_operators_transaction_ends(self, commits: bool) -> None:
        if commits:
            self.system.operator.commit()
            if self.uncommitted is not None:
                self.expected.changed(*self.uncommitted)
        else:
            self.system.operator.rollback()
        self.held, self.held_how, self.uncommitted = set(), "", None

    def free_ticket(self, position: int) -> str:
        """Return a ticket that no transaction holds, first of all one that a cycle has claimed and not yet tried.

        Races concern these tickets.
        """
        free = self.expected.tickets.keys() - self.held
        if not free:
            self.tickets_are_created([OVERDUE])
            free = self.expected.tickets.keys() - self.held
        claimed = self.claimed_ids()
        ordered = [*sorted(free & claimed), *sorted(free - claimed)]
        return ordered[position % len(ordered)]
