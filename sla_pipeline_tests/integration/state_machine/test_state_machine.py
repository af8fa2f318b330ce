"""Stateful test: cycles, operators, crashes and the clock in any order on real servers (SPEC 7, 8).

The examples are the same in every run, so a failure comes from a change of the code and not from a new example.
``SLA_TEST_STATE_MACHINE_EXAMPLES=500`` generates new examples and prints how to repeat a failing one.
"""

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import cast
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from sla_pipeline.breach import Breach, BreachKind, judge
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.postgres import marking, tickets
from sla_pipeline_tests.chaos.broken import Build, install
from sla_pipeline_tests.integration.state_machine.machine import SlaMonitorMachine
from sla_pipeline_tests.integration.state_machine.support_actions import OVERDUE
from sla_pipeline_tests.integration.state_machine.system_under_test import SystemUnderTest

_EXAMPLES = int(os.environ.get("SLA_TEST_STATE_MACHINE_EXAMPLES", "0"))
Machine = Callable[[], SlaMonitorMachine]


@pytest.fixture
def machine(owner_url: str, worker_url: str, kafka_settings: KafkaSettings) -> Machine:
    """Return a machine class on an emptied database with topics of its own."""

    class OnRealServers(SlaMonitorMachine):
        def __init__(self) -> None:
            super().__init__(lambda: SystemUnderTest(owner_url=owner_url, worker_url=worker_url, kafka=kafka_settings))

    return OnRealServers


def _run(machine: Machine, *, examples: int, phases: tuple[Phase, ...], derandomize: bool = True) -> None:
    run_state_machine_as_test(
        # Hypothesis only calls it, so a factory is enough
        cast("type[SlaMonitorMachine]", machine),
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            derandomize=derandomize,
            # no examples are stored between runs
            database=None,
            deadline=None,
            print_blob=True,
            report_multiple_bugs=False,
            suppress_health_check=[HealthCheck.too_slow],
            phases=phases,
        ),
    )


# an example takes seconds, and many more when it is being shortened
@pytest.mark.timeout(900 + 30 * _EXAMPLES)
def test_any_order_of_steps_crashes_and_operators(machine: Machine) -> None:
    _run(machine, examples=_EXAMPLES or 12, phases=(Phase.generate, Phase.shrink), derandomize=not _EXAMPLES)


def _no_recheck() -> None:
    """Patch the product so that a batch is marked as claimed, without a check for changes since."""
    assert tickets.OVERDUE in tickets._LOCK_BATCH
    mock.patch.object(tickets, "_LOCK_BATCH", tickets._LOCK_BATCH.replace(tickets.OVERDUE, "not sla_breached")).start()
    mock.patch.object(
        marking, "judge", lambda ticket, now: judge(ticket, now) or Breach(BreachKind.FIRST_RESPONSE, now)
    ).start()


@pytest.fixture
def broken_build(request: pytest.FixtureRequest) -> Iterator[None]:
    """Install one wrong build of the product."""
    request.param()
    yield
    mock.patch.stopall()


def _dies_after_the_commit(machine: SlaMonitorMachine) -> None:
    machine.a_publisher_dies(step="committed", nth=1, transaction_limit=10_000)
    machine.the_records_are_published(transaction_limit=10_000)


def _resumes_after_the_other_has_read(machine: SlaMonitorMachine) -> None:
    machine.a_publisher_is_paused_and_another_takes_over(step="flushed", resume_at="progress_read")


def _replies_before_the_mark(machine: SlaMonitorMachine) -> None:
    machine.an_operator_is_faster_than_a_batch(position=0, action="reply", offset=0)


@pytest.mark.usefixtures("broken_build")
@pytest.mark.parametrize(
    ("broken_build", "steps", "found"),
    [
        pytest.param(
            partial(install, Build.PLAIN_OUTBOX), _dies_after_the_commit, "tickets with two events", id="plain outbox"
        ),
        pytest.param(
            partial(install, Build.EARLY_PROGRESS),
            _resumes_after_the_other_has_read,
            "tickets with two events",
            id="position read before the fence",
        ),
        pytest.param(_no_recheck, _replies_before_the_mark, "marked against the rule", id="no recheck of the row"),
    ],
    indirect=["broken_build"],
)
def test_the_machines_rules_find_what_is_wrong(
    machine: Machine, steps: Callable[[SlaMonitorMachine], None], found: str
) -> None:
    """Rules that pass a wrong product would prove nothing about the right one."""
    example = machine()
    with pytest.raises(AssertionError, match=found):
        _to_the_end(example, steps)


@pytest.mark.parametrize("steps", [_dies_after_the_commit, _resumes_after_the_other_has_read, _replies_before_the_mark])
def test_the_same_steps_find_nothing_in_the_product(
    machine: Machine, steps: Callable[[SlaMonitorMachine], None]
) -> None:
    _to_the_end(machine(), steps)


def _to_the_end(example: SlaMonitorMachine, steps: Callable[[SlaMonitorMachine], None]) -> None:
    try:
        example.initial_tickets([OVERDUE, OVERDUE, OVERDUE])
        example.database_is_sound()
        steps(example)
        example.database_is_sound()
    finally:
        example.teardown()
