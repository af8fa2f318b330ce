"""The support service's half of the machine: tickets come, operators work on them, time passes.

What belongs here: the rules that change a ticket in the service's own name, the model's copy of the change, what must
be true after every rule. What does not: the monitor (``machine.py``).
"""

import itertools
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sla_pipeline.cycle import SimulatedClock
from sla_pipeline_tests.integration.state_machine.oracle import Oracle
from sla_pipeline_tests.integration.state_machine.support_actions import (
    ACTIONS,
    LATE,
    Draft,
    changed_values,
    drafts,
    minutes,
)
from sla_pipeline_tests.integration.state_machine.world import HOLDS, World
from sla_pipeline_tests.tickets import MINUTE, NOW, change

__all__ = ["SupportMachine", "positions"]

positions = st.integers(0, 30)
"""Which of several: taken modulo how many there are."""


class SupportMachine(RuleBasedStateMachine):
    """A world, its model, and the support service. ``open_world`` makes a clean database and topics of its own."""

    def __init__(self, open_world: Callable[[], World]) -> None:
        super().__init__()
        self.world = open_world()
        self.oracle = Oracle()
        self.clock = SimulatedClock(NOW)
        self.numbers = itertools.count(1)
        # what the operator's open transaction holds, and what it will have changed
        self.held: set[str] = set()
        self.held_how = ""
        self.uncommitted: tuple[str, dict[str, Any]] | None = None

    @invariant()
    def database_is_sound(self) -> None:
        assert self.newly_marked() == []

    @invariant()
    def topic_is_sound(self) -> None:
        self.oracle.judge_topic(self.world.witness.look(at_least=self.oracle.state.published_seq))

    def newly_marked(self) -> list[str]:
        """The tickets that were marked since the last look, each by the rule."""
        return self.oracle.judge_database(self.world.read())

    def claimed_ids(self) -> set[str]:
        """The tickets that a cycle has claimed and not yet tried."""
        return set()

    @initialize(new=st.lists(drafts, min_size=3, max_size=8))
    def tickets_are_there(self, new: list[Draft]) -> None:
        self.tickets_come(new)

    @rule(new=st.lists(drafts, min_size=1, max_size=4))
    def tickets_come(self, new: list[Draft]) -> None:
        tickets = [draft.ticket(next(self.numbers), self.clock.moment) for draft in new]
        self.world.insert(tickets)
        self.oracle.inserted(tickets)

    @rule(passed=st.integers(1, 30))
    def time_passes(self, passed: int) -> None:
        self.clock.moment += passed * MINUTE

    @rule(position=positions, action=st.sampled_from([*sorted(ACTIONS), "delete"]), offset=minutes)
    def an_operator_acts(self, position: int, action: str, offset: int) -> None:
        self.act(self.free_ticket(position), action, offset)

    def act(self, ticket_id: str, action: str, offset: int) -> None:
        """An operator changes a ticket, and commits."""
        if action == "delete":
            self.world.delete(ticket_id)
            self.oracle.deleted(ticket_id)
            return
        values = changed_values(self.oracle.tickets[ticket_id], action, self.clock.moment, offset)
        assert change(self.world.support, ticket_id, **values) == 1
        self.oracle.changed(ticket_id, values)

    @precondition(lambda self: not self.held)
    @rule(position=positions, count=st.integers(1, 3), how=st.sampled_from(sorted(HOLDS)))
    def an_operator_locks_tickets(self, position: int, count: int, how: str) -> None:
        ids = {self.free_ticket(position + further) for further in range(count)}
        self.world.hold(sorted(ids), how)
        self.held, self.held_how = ids, how

    @precondition(lambda self: not self.held)
    @rule(position=positions, action=st.sampled_from(sorted(ACTIONS)), offset=minutes)
    def an_operator_acts_and_does_not_commit(self, position: int, action: str, offset: int) -> None:
        ticket_id = self.free_ticket(position)
        values = changed_values(self.oracle.tickets[ticket_id], action, self.clock.moment, offset)
        assert change(self.world.operator, ticket_id, **values) == 1
        self.held, self.held_how, self.uncommitted = {ticket_id}, "row", (ticket_id, values)

    @precondition(lambda self: self.held)
    @rule(commits=st.booleans())
    def the_operators_transaction_ends(self, commits: bool) -> None:
        if commits:
            self.world.operator.commit()
            if self.uncommitted is not None:
                self.oracle.changed(*self.uncommitted)
        else:
            self.world.operator.rollback()
        self.held, self.held_how, self.uncommitted = set(), "", None

    def free_ticket(self, position: int) -> str:
        """A ticket that no transaction holds; those that a cycle has claimed and not yet tried come first, since races
        are about them.
        """
        free = self.oracle.tickets.keys() - self.held
        if not free:
            self.tickets_come([LATE])
            free = self.oracle.tickets.keys() - self.held
        claimed = self.claimed_ids()
        ordered = [*sorted(free & claimed), *sorted(free - claimed)]
        return ordered[position % len(ordered)]
