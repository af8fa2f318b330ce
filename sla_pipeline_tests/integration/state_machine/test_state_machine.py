"""Everything at once, in any order: a state machine drives cycles, operators, crashes and the clock on real servers (SPEC 7, 8).

The examples are the same in every run, so that a red run can be told from a new find. ``SLA_TEST_STATE_MACHINE_EXAMPLES=500`` looks for new
ones instead, and prints how to run a failing one again.
"""

import os

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline_tests.integration.state_machine.machine import SlaMonitorMachine
from sla_pipeline_tests.integration.state_machine.world import World

_EXAMPLES = int(os.environ.get("SLA_TEST_STATE_MACHINE_EXAMPLES", "0"))


@pytest.mark.timeout(600 + 20 * _EXAMPLES)
def test_any_order_of_steps_crashes_and_operators(owner_url: str, worker_url: str, kafka_settings: KafkaSettings) -> None:
    def machine() -> SlaMonitorMachine:
        return SlaMonitorMachine(lambda: World(owner_url=owner_url, worker_url=worker_url, kafka=kafka_settings))

    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=_EXAMPLES or 20,
            stateful_step_count=25,
            derandomize=not _EXAMPLES,
            database=None,
            deadline=None,
            print_blob=True,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
            # an example takes seconds: what it did is told step by step, and needs no explanation on top
            phases=[Phase.generate, Phase.shrink],
        ),
    )
