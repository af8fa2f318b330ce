"""Short chaos runs: a sound build ends clean, and the harness detects each of three wrong builds.

The long form is ``python -m sla_pipeline_tests.chaos``. The durations are those of an idle machine. On a busy one the
runs wait for their servers, so the timeouts are wide.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sla_pipeline.audit.findings import Check
from sla_pipeline.embedded import embedded_kafka, embedded_postgres
from sla_pipeline_tests.chaos.broken import Build
from sla_pipeline_tests.chaos.disruptions import Scenario
from sla_pipeline_tests.chaos.outages import Servers
from sla_pipeline_tests.chaos.outcome import Outcome, as_json
from sla_pipeline_tests.chaos.runner import run
from sla_pipeline_tests.shared_servers import server_folder

RunScenario = Callable[[Scenario], Outcome]

# the short timelines of this seed hold kills at every step and zombies of every kind (test_timeline.py)
SEED = 7


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    """Servers of these tests alone, durable because they are killed."""
    with server_folder() as folder, embedded_postgres(folder) as postgres, embedded_kafka(folder) as kafka:
        yield Servers(postgres, kafka)


@pytest.fixture
def run_scenario(servers: Servers, tmp_path: Path) -> RunScenario:
    """Return a function that runs a scenario and prints its outcome."""

    def run_and_print(scenario: Scenario) -> Outcome:
        outcome = run(scenario, servers, tmp_path, print)
        print(json.dumps(as_json(outcome)))  # noqa: T201 - shown when the test fails
        return outcome

    return run_and_print


@pytest.mark.timeout(600)
def test_no_event_is_lost_doubled_or_false_whatever_is_killed_paused_or_cut(run_scenario: RunScenario) -> None:
    outcome = run_scenario(Scenario(SEED, seconds=45, kills=30, tickets=5_000))
    assert outcome.findings.faults == {}
    assert outcome.event_log.unexpected == {}
    assert outcome.drained
    assert outcome.audit.clean
    assert outcome.findings.breaches == outcome.findings.events >= 5_000
    assert outcome.event_log.kills.total() == 30
    assert outcome.event_log.restarts == {"kafka kill": 1, "postgres fast": 1, "postgres immediate": 1}
    assert outcome.event_log.pauses.total() >= 3


@pytest.mark.timeout(600)
def test_an_outbox_whose_position_is_in_postgres_alone_is_caught(run_scenario: RunScenario) -> None:
    outcome = run_scenario(Scenario(SEED, seconds=25, kills=20, tickets=3_000, build=Build.PLAIN_OUTBOX, outages=False))
    assert not outcome.clean
    assert outcome.findings.faults["duplicates"] > 0
    assert outcome.audit.finding(Check.EVENT_SEQUENCE_TWICE).count == outcome.findings.faults["duplicates"]


@pytest.mark.timeout(600)
def test_a_mark_without_a_second_look_is_caught(run_scenario: RunScenario) -> None:
    outcome = run_scenario(Scenario(SEED, seconds=25, kills=8, tickets=4_000, build=Build.NO_RECHECK, outages=False))
    assert not outcome.clean
    assert outcome.findings.faults["false_breaches"] > 0


@pytest.mark.timeout(600)
def test_a_position_read_before_the_fence_is_caught(run_scenario: RunScenario) -> None:
    outcome = run_scenario(
        Scenario(SEED, seconds=35, kills=10, tickets=4_000, build=Build.EARLY_PROGRESS, outages=False)
    )
    assert not outcome.clean
    assert outcome.findings.faults["duplicates"] > 0
