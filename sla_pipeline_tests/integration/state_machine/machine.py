"""Rules of the monitor: claims, marks, publishing and crashes, in an order that Hypothesis chooses.

``support_machine.py`` holds the rules of the support service, ``expected_state.py`` the checks after every rule,
``publishers.py`` the failing publishers. The tickets that a rule uses depend on the expected state alone, never on a
server's answer, so that an example can be repeated.
"""

import itertools
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from sla_pipeline.breach import judge
from sla_pipeline.cycle import Claim, CycleInput, CycleTotals
from sla_pipeline.errors import PostgresUnavailable
from sla_pipeline.kafka.relay import STEPS
from sla_pipeline.monitor import steps
from sla_pipeline.monitor.runner import run_cycle
from sla_pipeline.postgres.database import Database
from sla_pipeline_tests.integration.state_machine.database_state import claimable, overdue
from sla_pipeline_tests.integration.state_machine.publishers import (
    Crashed,
    overtake,
    publish,
    publish_and_die,
    publish_with_its_session_cut,
)
from sla_pipeline_tests.integration.state_machine.support_actions import ACTIONS, OVERDUE, minutes
from sla_pipeline_tests.integration.state_machine.support_machine import SupportMachine, positions
from sla_pipeline_tests.integration.state_machine.system_under_test import SystemUnderTest
from sla_pipeline_tests.tickets import HOUR

__all__ = ["SlaMonitorMachine"]

_POD_COUNT = 2
_MARKING_STEPS = ("batch_locked", "batch_written", "batch_committed")
_batch_sizes = st.integers(1, 4)
_batch_counts = st.integers(1, 3)


@dataclass
class OpenCycle:
    """A cycle that has claimed tickets and has not ended."""

    database: Database
    claim: Claim
    waiting: list[tuple[str, ...]]
    """Batches not yet marked."""


class SlaMonitorMachine(SupportMachine):
    """One example: cycles and publishers among the actions of the support service."""

    def __init__(self, open_system: Callable[[], SystemUnderTest]) -> None:
        self._error_outside = sys.exc_info()[1]
        super().__init__(open_system)
        self.relay = self.system.relay()
        self.cycles: list[OpenCycle] = []

    def claimed_ids(self) -> set[str]:
        """Return the ids that open cycles have claimed and not yet tried."""
        return {ticket_id for cycle in self.cycles for batch in cycle.waiting for ticket_id in batch}

    # --- cycles, step by step

    @precondition(lambda self: len(self.cycles) < _POD_COUNT)
    @rule(batch_size=_batch_sizes, max_batches=_batch_counts)
    def a_cycle_claims(self, batch_size: int, max_batches: int) -> None:
        database = self.system.pod()
        cycle_input = CycleInput(batch_size, max_batches)
        expected = claimable(self.expected.checked, self.clock.moment, cycle_input.ceiling)
        claim = steps.claim_overdue(database, self.clock, cycle_input, run_id=f"cycle-{next(self.numbers)}")
        assert list(itertools.chain(*claim.batches)) == expected
        self.cycles.append(OpenCycle(database, claim, list(claim.batches)))

    @rule(position=positions)
    def a_batch_is_marked(self, position: int) -> None:
        cycle = self._cycle_with_work(position)
        self._mark(cycle, [cycle.waiting.pop(0)])

    @rule(position=positions, action=st.sampled_from(sorted(ACTIONS)), offset=minutes)
    def an_operator_is_faster_than_a_batch(self, position: int, action: str, offset: int) -> None:
        cycle = self._cycle_with_work(position)
        free = sorted((self.expected.tickets.keys() - self.held) & set(cycle.waiting[0]))
        if free:
            self.act(free[position % len(free)], action, offset)
        self._mark(cycle, [cycle.waiting.pop(0)])

    @rule(position=positions)
    def all_waiting_batches_are_marked(self, position: int) -> None:
        cycle = self._cycle_with_work(position)
        batches, cycle.waiting = cycle.waiting, []
        self._mark(cycle, batches)

    @rule(
        position=positions,
        step=st.sampled_from(_MARKING_STEPS),
        how=st.sampled_from(["dies", "loses its session", "is cut off"]),
    )
    def a_cycle_ends_inside_a_batch(self, position: int, step: str, how: str) -> None:
        cycle = self._cycle_with_work(position)
        self.cycles.remove(cycle)
        with cycle.database.session() as connection:
            pid = connection.info.backend_pid

        def on_step(name: str) -> None:
            if name == step:
                if how == "dies":
                    raise Crashed
                if how == "loses its session":
                    cycle.database.close()
                else:
                    self.system.cut(pid)

        expected = self._markable(cycle, cycle.waiting[0])[0] if step == "batch_committed" else []
        with suppress(Crashed, PostgresUnavailable):
            steps.mark_breached(cycle.database, replace(cycle.claim, batches=(cycle.waiting[0],)), on_step=on_step)
        cycle.database.close()
        self.system.wait_until_gone(pid)
        assert sorted(self.newly_marked()) == sorted(expected)

    @precondition(lambda self: self.cycles)
    @rule(position=positions)
    def a_cycle_is_abandoned(self, position: int) -> None:
        cycle = self.cycles.pop(position % len(self.cycles))
        cycle.database.close()

    @precondition(lambda self: any(not cycle.waiting for cycle in self.cycles))
    @rule(position=positions)
    def a_cycle_publishes_and_ends(self, position: int) -> None:
        done = [cycle for cycle in self.cycles if not cycle.waiting]
        cycle = done[position % len(done)]
        self.cycles.remove(cycle)
        unpublished = self.expected.checked.last_seq - self.expected.checked.published_seq
        claim = replace(cycle.claim, batches=())
        steps.mark_breached(cycle.database, claim)
        steps.publish_breaches(cycle.database, lambda: self.relay, claim)
        totals = steps.close_cycle(cycle.database, self.clock, claim)
        self._assert_no_errors_but_an_outage(totals.errors)
        assert totals.backlog_count == len(overdue(self.expected.tickets.values(), self.clock.moment))
        # fewer when a publisher died between its commit and the copy of the position
        assert totals.published_count <= unpublished
        self._assert_all_published()
        cycle.database.close()

    @rule(batch_size=_batch_sizes, max_batches=_batch_counts)
    def a_whole_cycle_runs(self, batch_size: int, max_batches: int) -> None:
        self._run_cycle(CycleInput(batch_size, max_batches))

    def _run_cycle(self, cycle_input: CycleInput) -> CycleTotals:
        database = self.system.pod()
        claimed = claimable(self.expected.checked, self.clock.moment, cycle_input.ceiling)
        expected, bad, _ = self._split(claimed, self.clock.moment)
        totals = run_cycle(database, self.relay, cycle_input, clock=self.clock)
        database.close()
        assert sorted(self.newly_marked()) == sorted(expected)
        assert totals.processed_count == len(expected)
        assert len([error for error in totals.errors if " set aside: the event cannot be built: " in error]) == len(bad)
        self._assert_no_errors_but_an_outage([error for error in totals.errors if " set aside: " not in error])
        self._assert_all_published()
        return totals

    def _assert_no_errors_but_an_outage(self, errors: list[str]) -> None:
        """Accept one failed publishing, since a busy machine may stall the broker; the next attempt must succeed."""
        if errors:
            assert len(errors) == 1
            assert errors[0].startswith(
                ("publishing failed: Kafka ", f"publishing failed: topic {self.system.kafka.progress_topic} ")
            )
            publish(self.system, self.relay)

    def _cycle_with_work(self, position: int) -> OpenCycle:
        """Return an open cycle with unmarked batches; start one when there is none."""
        with_work = [cycle for cycle in self.cycles if cycle.waiting]
        if not with_work:
            if len(self.cycles) == _POD_COUNT:
                self.a_cycle_is_abandoned(position)
            if not claimable(self.expected.checked, self.clock.moment, 1):
                self.tickets_are_created([OVERDUE, OVERDUE, OVERDUE])
                self.newly_marked()
            self.a_cycle_claims(2, 2)
            with_work = self.cycles[-1:]
        return with_work[position % len(with_work)]

    def _mark(self, cycle: OpenCycle, batches: Sequence[tuple[str, ...]]) -> None:
        expected, bad, held = self._markable(cycle, itertools.chain(*batches))
        totals = CycleTotals(cycle_id=cycle.claim.totals.cycle_id)
        steps.mark_breached(cycle.database, replace(cycle.claim, batches=tuple(batches), totals=totals))
        assert sorted(self.newly_marked()) == sorted(expected)
        assert totals.processed_count == len(expected)
        assert totals.lock_skip_count == len(held)
        assert totals.error_count == len(bad)
        assert {row.ticket_id for row in self.expected.checked.set_aside} >= set(bad)

    def _markable(self, cycle: OpenCycle, ids: Iterable[str]) -> tuple[list[str], list[str], list[str]]:
        return self._split(ids, cycle.claim.now_utc)

    def _split(self, ids: Iterable[str], now_utc: datetime) -> tuple[list[str], list[str], list[str]]:
        """Split ``ids`` into those that a batch at ``now_utc`` must mark, must set aside, and must skip as locked."""
        locked = self.held if self.held_how == "row" else set()
        expected: list[str] = []
        bad: list[str] = []
        held: list[str] = []
        for ticket_id in ids:
            ticket = self.expected.tickets.get(ticket_id)
            if ticket is None or judge(ticket, now_utc) is None:
                continue
            (held if ticket_id in locked else bad if ticket.is_bad else expected).append(ticket_id)
        return expected, bad, held

    # --- publishers

    def _ensure_unpublished_records(self) -> None:
        """Mark some tickets unless unpublished records exist."""
        if self.expected.checked.published_seq == self.expected.checked.last_seq:
            self.tickets_are_created([OVERDUE, OVERDUE])
            self.newly_marked()
            database = self.system.pod()
            steps.mark_breached(
                database, steps.claim_overdue(database, self.clock, CycleInput(), run_id=f"cycle-{next(self.numbers)}")
            )
            database.close()
            assert self.newly_marked() != []

    @rule(transaction_limit=st.sampled_from([1, 2, 10_000]))
    def the_records_are_published(self, transaction_limit: int) -> None:
        self._ensure_unpublished_records()
        publish(self.system, self.system.relay(transaction_limit=transaction_limit))
        self._assert_all_published()

    @rule(step=st.sampled_from(STEPS), nth=st.integers(1, 2), transaction_limit=st.sampled_from([1, 10_000]))
    def a_publisher_dies(self, step: str, nth: int, transaction_limit: int) -> None:
        self._ensure_unpublished_records()
        if not publish_and_die(self.system, step=step, nth=nth, transaction_limit=transaction_limit):
            self.newly_marked()
            self._assert_all_published()
        self.relay = self.system.relay()

    @rule(step=st.sampled_from(STEPS))
    def a_publisher_loses_its_session(self, step: str) -> None:
        self._ensure_unpublished_records()
        publish_with_its_session_cut(self.system, step=step)

    @rule(step=st.sampled_from(STEPS), resume_at=st.sampled_from([None, *STEPS]))
    def a_publisher_is_paused_and_another_takes_over(self, step: str, resume_at: str | None) -> None:
        self._ensure_unpublished_records()
        overtake(self.system, step=step, resume_at=resume_at)

    def _assert_all_published(self) -> None:
        assert self.newly_marked() == []
        checked = self.expected.checked
        assert checked.published_seq == checked.last_seq
        events = self.system.consumer.read_all()
        self.expected.check_topic(events)
        assert len(events) == checked.last_seq

    # --- end of the example

    def teardown(self) -> None:
        """Check that one clean cycle completes all work and that a second one finds none."""
        try:
            if sys.exc_info()[1] is self._error_outside:
                self._end()
        finally:
            self.system.close()

    def _end(self) -> None:
        self.system.operator.rollback()
        self.held, self.held_how = set(), ""
        for cycle in self.cycles:
            cycle.database.close()
        # from now on, tickets that were set aside are due for another try
        self.clock.moment += 2 * HOUR
        left = [t for t in self.expected.tickets.values() if judge(t, self.clock.moment)]
        totals = self._run_cycle(CycleInput())
        assert totals.processed_count == len([ticket for ticket in left if not ticket.is_bad])
        assert totals.backlog_count == len([ticket for ticket in left if ticket.is_bad])
        second = self._run_cycle(CycleInput())
        assert (second.processed_count, second.published_count) == (0, 0)
