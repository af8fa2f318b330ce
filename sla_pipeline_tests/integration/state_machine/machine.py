"""The machine: claim, mark, publish, crashes, amid operators and the passing of time, in an order that Hypothesis
chooses.

What belongs here: the monitor's rules, and what each must come to. What does not: the support service
(``support_machine.py``), what must be true after every rule (``oracle.py``), how a publisher ends badly
(``publishers.py``). Which tickets a rule takes hangs on the model alone, never on what the servers answered, so that an
example can be run again.
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
from sla_pipeline_tests.integration.state_machine.model import claimable, overdue
from sla_pipeline_tests.integration.state_machine.publishers import (
    Crashed,
    overtake,
    publish,
    publish_and_die,
    publish_with_its_session_cut,
)
from sla_pipeline_tests.integration.state_machine.support_actions import ACTIONS, LATE, minutes
from sla_pipeline_tests.integration.state_machine.support_machine import SupportMachine, positions
from sla_pipeline_tests.integration.state_machine.world import World
from sla_pipeline_tests.tickets import HOUR

__all__ = ["SlaMonitorMachine"]

_POD_COUNT = 2
_MARKING_STEPS = ("batch_locked", "batch_written", "batch_committed")
_batch_sizes = st.integers(1, 4)
_batch_counts = st.integers(1, 3)


@dataclass
class OpenCycle:
    """A cycle that has claimed and is not at its end."""

    database: Database
    claim: Claim
    waiting: list[tuple[str, ...]]
    """Batches that are still to be marked."""


class SlaMonitorMachine(SupportMachine):
    """One example: cycles and publishers in the midst of what the support service does."""

    def __init__(self, open_world: Callable[[], World]) -> None:
        self._error_outside = sys.exc_info()[1]
        super().__init__(open_world)
        self.relay = self.world.relay()
        self.cycles: list[OpenCycle] = []

    def claimed_ids(self) -> set[str]:
        """Of all open cycles."""
        return {ticket_id for cycle in self.cycles for batch in cycle.waiting for ticket_id in batch}

    # --- cycles, step by step

    @precondition(lambda self: len(self.cycles) < _POD_COUNT)
    @rule(batch_size=_batch_sizes, max_batches=_batch_counts)
    def a_cycle_claims(self, batch_size: int, max_batches: int) -> None:
        database = self.world.pod()
        given = CycleInput(batch_size, max_batches)
        expected = claimable(self.oracle.state, self.clock.moment, given.ceiling)
        claim = steps.claim_overdue(database, self.clock, given, run_id=f"cycle-{next(self.numbers)}")
        assert list(itertools.chain(*claim.batches)) == expected
        self.cycles.append(OpenCycle(database, claim, list(claim.batches)))

    @rule(position=positions)
    def a_batch_is_marked(self, position: int) -> None:
        cycle = self._cycle_with_work(position)
        self._mark(cycle, [cycle.waiting.pop(0)])

    @rule(position=positions, action=st.sampled_from(sorted(ACTIONS)), offset=minutes)
    def an_operator_is_faster_than_a_batch(self, position: int, action: str, offset: int) -> None:
        cycle = self._cycle_with_work(position)
        free = sorted((self.oracle.tickets.keys() - self.held) & set(cycle.waiting[0]))
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
                    self.world.cut(pid)

        expected = self._markable(cycle, cycle.waiting[0])[0] if step == "batch_committed" else []
        with suppress(Crashed, PostgresUnavailable):
            steps.mark_breached(cycle.database, replace(cycle.claim, batches=(cycle.waiting[0],)), on_step=on_step)
        cycle.database.close()
        self.world.wait_until_gone(pid)
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
        waiting = self.oracle.state.last_seq - self.oracle.state.published_seq
        claim = replace(cycle.claim, batches=())
        steps.mark_breached(cycle.database, claim)
        steps.publish_breaches(cycle.database, lambda: self.relay, claim)
        report = steps.close_cycle(cycle.database, self.clock, claim)
        self._assert_no_errors_but_an_outage(report.errors)
        assert report.backlog_count == len(overdue(self.oracle.tickets.values(), self.clock.moment))
        # less when a publisher died between its commit and the copy of the position
        assert report.published_count <= waiting
        self._assert_all_published()
        cycle.database.close()

    @rule(batch_size=_batch_sizes, max_batches=_batch_counts)
    def a_whole_cycle_runs(self, batch_size: int, max_batches: int) -> None:
        self._run_cycle(CycleInput(batch_size, max_batches))

    def _run_cycle(self, given: CycleInput) -> CycleTotals:
        database = self.world.pod()
        claimed = claimable(self.oracle.state, self.clock.moment, given.ceiling)
        expected, bad, _ = self._split(claimed, self.clock.moment)
        report = run_cycle(database, self.relay, given, clock=self.clock)
        database.close()
        assert sorted(self.newly_marked()) == sorted(expected)
        assert report.processed_count == len(expected)
        assert len([error for error in report.errors if " set aside: the event cannot be built: " in error]) == len(bad)
        self._assert_no_errors_but_an_outage([error for error in report.errors if " set aside: " not in error])
        self._assert_all_published()
        return report

    def _assert_no_errors_but_an_outage(self, errors: list[str]) -> None:
        """A busy machine may stall the broker; the next attempt must make up for it."""
        if errors:
            assert len(errors) == 1
            assert errors[0].startswith(
                ("publishing failed: Kafka ", f"publishing failed: topic {self.world.kafka.progress_topic} ")
            )
            publish(self.world, self.relay)

    def _cycle_with_work(self, position: int) -> OpenCycle:
        """An open cycle with batches to be marked; when there is none, one claims."""
        with_work = [cycle for cycle in self.cycles if cycle.waiting]
        if not with_work:
            if len(self.cycles) == _POD_COUNT:
                self.a_cycle_is_abandoned(position)
            if not claimable(self.oracle.state, self.clock.moment, 1):
                self.tickets_come([LATE, LATE, LATE])
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
        assert {row.ticket_id for row in self.oracle.state.set_aside} >= set(bad)

    def _markable(self, cycle: OpenCycle, ids: Iterable[str]) -> tuple[list[str], list[str], list[str]]:
        return self._split(ids, cycle.claim.now_utc)

    def _split(self, ids: Iterable[str], now_utc: datetime) -> tuple[list[str], list[str], list[str]]:
        """Of ``ids``: those that a batch at ``now_utc`` must mark, those it must set aside, those it must leave to
        whoever holds them.
        """
        out_of_reach = self.held if self.held_how == "row" else set()
        expected: list[str] = []
        bad: list[str] = []
        held: list[str] = []
        for ticket_id in ids:
            ticket = self.oracle.tickets.get(ticket_id)
            if ticket is None or judge(ticket, now_utc) is None:
                continue
            (held if ticket_id in out_of_reach else bad if ticket.is_bad else expected).append(ticket_id)
        return expected, bad, held

    # --- publishers

    def _let_something_wait(self) -> None:
        """Lets a cycle mark, unless there are records to be published already."""
        if self.oracle.state.published_seq == self.oracle.state.last_seq:
            self.tickets_come([LATE, LATE])
            self.newly_marked()
            database = self.world.pod()
            steps.mark_breached(
                database, steps.claim_overdue(database, self.clock, CycleInput(), run_id=f"cycle-{next(self.numbers)}")
            )
            database.close()
            assert self.newly_marked() != []

    @rule(transaction_limit=st.sampled_from([1, 2, 10_000]))
    def the_records_are_published(self, transaction_limit: int) -> None:
        self._let_something_wait()
        publish(self.world, self.world.relay(transaction_limit=transaction_limit))
        self._assert_all_published()

    @rule(step=st.sampled_from(STEPS), nth=st.integers(1, 2), transaction_limit=st.sampled_from([1, 10_000]))
    def a_publisher_dies(self, step: str, nth: int, transaction_limit: int) -> None:
        self._let_something_wait()
        if not publish_and_die(self.world, step=step, nth=nth, transaction_limit=transaction_limit):
            self.newly_marked()
            self._assert_all_published()
        self.relay = self.world.relay()

    @rule(step=st.sampled_from(STEPS))
    def a_publisher_loses_its_session(self, step: str) -> None:
        self._let_something_wait()
        publish_with_its_session_cut(self.world, step=step)

    @rule(step=st.sampled_from(STEPS), let_go_at=st.sampled_from([None, *STEPS]))
    def a_publisher_sleeps_and_another_takes_over(self, step: str, let_go_at: str | None) -> None:
        self._let_something_wait()
        overtake(self.world, step=step, let_go_at=let_go_at)

    def _assert_all_published(self) -> None:
        assert self.newly_marked() == []
        state = self.oracle.state
        assert state.published_seq == state.last_seq
        events = self.world.witness.look_at_all()
        self.oracle.judge_topic(events)
        assert len(events) == state.last_seq

    # --- the end

    def teardown(self) -> None:
        """One clean cycle brings everything to its right end; a second one finds nothing to do."""
        try:
            if sys.exc_info()[1] is self._error_outside:
                self._end()
        finally:
            self.world.close()

    def _end(self) -> None:
        self.world.operator.rollback()
        self.held, self.held_how = set(), ""
        for cycle in self.cycles:
            cycle.database.close()
        # whatever was set aside may be tried again
        self.clock.moment += 2 * HOUR
        left = [t for t in self.oracle.tickets.values() if judge(t, self.clock.moment)]
        report = self._run_cycle(CycleInput())
        assert report.processed_count == len([ticket for ticket in left if not ticket.is_bad])
        assert report.backlog_count == len([ticket for ticket in left if ticket.is_bad])
        again = self._run_cycle(CycleInput())
        assert (again.processed_count, again.published_count) == (0, 0)
