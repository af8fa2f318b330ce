"""The chaos itself, short: a sound build comes out clean, and each of three wrong builds is caught by the same harness.

The long form is ``python -m sla_pipeline_tests.chaos``. The times are those of an idle machine; on a busy one the runs
wait for their servers, so the limits are wide.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sla_pipeline.audit.findings import Check
from sla_pipeline.embedded import embedded_kafka, embedded_postgres
from sla_pipeline_tests.chaos.broken import Build
from sla_pipeline_tests.chaos.conductor import Outcome, run
from sla_pipeline_tests.chaos.disruptions import Scenario
from sla_pipeline_tests.chaos.outages import Servers
from sla_pipeline_tests.chaos.report import as_json
from sla_pipeline_tests.shared_servers import server_folder

Play = Callable[[Scenario], Outcome]

# its short timelines hold kills at every step and zombies of every kind (test_timeline.py)
SEED = 7


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    """Durable servers of these tests' own, for they are killed."""
    with server_folder() as folder, embedded_postgres(folder) as postgres, embedded_kafka(folder) as kafka:
        yield Servers(postgres, kafka)


@pytest.fixture
def play(servers: Servers, tmp_path: Path) -> Play:
    """Runs a scenario and prints what it came to."""

    def run_it(scenario: Scenario) -> Outcome:
        outcome = run(scenario, servers, tmp_path, print)
        print(json.dumps(as_json(outcome)))  # noqa: T201 - shown when the test fails
        return outcome

    return run_it


@pytest.mark.timeout(600)
def test_no_event_is_lost_doubled_or_false_whatever_is_killed_frozen_or_cut(play: Play) -> None:
    outcome = play(Scenario(SEED, seconds=45, kills=30, tickets=5_000))
    assert outcome.findings.faults == {}
    assert outcome.chronicle.unexpected == {}
    assert outcome.drained
    assert outcome.audit.clean
    assert outcome.findings.breaches == outcome.findings.events >= 5_000
    assert outcome.chronicle.kills.total() == 30
    assert outcome.chronicle.restarts == {"kafka kill": 1, "postgres fast": 1, "postgres immediate": 1}
    assert outcome.chronicle.freezes.total() >= 3


@pytest.mark.timeout(600)
def test_an_outbox_whose_position_is_in_postgres_alone_is_caught(play: Play) -> None:
    outcome = play(Scenario(SEED, seconds=25, kills=20, tickets=3_000, build=Build.PLAIN_OUTBOX, outages=False))
    assert not outcome.clean
    assert outcome.findings.faults["duplicates"] > 0
    assert outcome.audit.finding(Check.EVENT_SEQUENCE_TWICE).count == outcome.findings.faults["duplicates"]


@pytest.mark.timeout(600)
def test_a_mark_without_a_second_look_is_caught(play: Play) -> None:
    outcome = play(Scenario(SEED, seconds=25, kills=8, tickets=4_000, build=Build.NO_RECHECK, outages=False))
    assert not outcome.clean
    assert outcome.findings.faults["false_breaches"] > 0


@pytest.mark.timeout(600)
def test_a_position_read_before_the_fence_is_caught(play: Play) -> None:
    outcome = play(Scenario(SEED, seconds=35, kills=10, tickets=4_000, build=Build.EARLY_PROGRESS, outages=False))
    assert not outcome.clean
    assert outcome.findings.faults["duplicates"] > 0
