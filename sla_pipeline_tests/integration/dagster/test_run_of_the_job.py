"""A run of the job: the events that a cycle records in Dagster, on success and on failure (SPEC 5.7, 9)."""

import logging
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
import pytest

from sla_pipeline.defs.resources import RE_EXECUTE_ALL
from sla_pipeline.embedded.ports import free_ports
from sla_pipeline_tests.integration.conftest import Events
from sla_pipeline_tests.integration.dagster.conftest import CHECK, SET_ASIDE_CHECK, launchpad
from sla_pipeline_tests.tickets import (
    QUEUE,
    RESOLUTION_OVERDUE,
    TENANT,
    breached_ids,
    change,
    make_ticket,
    make_tickets,
)

Support = psycopg.Connection[Any]
# Long overdue by the system's clock, which the job uses.
_FIRST_RESPONSE_OVERDUE: dict[str, Any] = {"first_response_due_at": datetime(2026, 1, 1, tzinfo=UTC)}
_RESOLUTION_OVERDUE = RESOLUTION_OVERDUE | dict.fromkeys(
    ("first_response_due_at", "first_response_at", "resolution_due_at"), datetime(2026, 1, 1, tzinfo=UTC)
)


def _evaluation(result: dg.ExecuteInProcessResult, check: dg.AssetCheckKey) -> dg.AssetCheckEvaluation:
    (evaluation,) = [
        evaluation for evaluation in result.get_asset_check_evaluations() if evaluation.check_name == check.name
    ]
    return evaluation


def _metadata(metadata: Any) -> dict[str, Any]:
    return {name: value.value for name, value in metadata.items()}


def test_a_cycle_is_a_materialization_with_all_its_numbers(
    support: Support, job: dg.JobDefinition, ephemeral: dg.DagsterInstance, events: Events
) -> None:
    make_tickets(support, 3, **_FIRST_RESPONSE_OVERDUE)
    make_tickets(support, 2, **_RESOLUTION_OVERDUE)
    began = datetime.now(UTC).timestamp()

    result = job.execute_in_process(instance=ephemeral)

    (materialization,) = result.asset_materializations_for_node("sla_breaches.close_cycle")
    metadata = _metadata(materialization.metadata)
    durations = [metadata.pop(f"{name}_ms") for name in ("claim", "mark", "publish", "duration")]
    assert all(duration > 0 for duration in durations)
    assert durations[3] >= sum(durations[:3])
    assert began < metadata.pop("now_utc") < datetime.now(UTC).timestamp()
    assert metadata == {
        "claimed_count": 5,
        "processed_count": 5,
        "first_response_count": 3,
        "resolution_count": 2,
        "batch_count": 1,
        "published_count": 5,
        "transaction_count": 1,
        "lock_skip_count": 0,
        "flags_restored_count": 0,
        "unknown_priority_count": 0,
        "error_count": 0,
        "has_more": False,
        "publishing_stopped": False,
        "detected_count": 5,
        "late_count": 5,
        "backlog_count": 0,
        "set_aside_count": 0,
    }
    assert support.execute("select run_id, state from support.ticket_sla_cycles").fetchall() == [
        (result.run_id, "succeeded")
    ]
    assert support.execute("select distinct correlation_id from support.ticket_sla_breaches").fetchall() == [
        (result.run_id,)
    ]
    assert len(events()) == 5


def test_the_launchpads_fields_reach_the_cycle(
    support: Support, job: dg.JobDefinition, ephemeral: dg.DagsterInstance
) -> None:
    of_tenant = [make_ticket(support, first_response_due_at=f"2026-01-01T00:0{minute}:00Z") for minute in range(5)]
    make_ticket(support, first_response_due_at="2026-01-01T00:00:00Z", tenant_id="bbbbbbbb-0000-4000-8000-000000000002")
    result = job.execute_in_process(
        instance=ephemeral, run_config=launchpad(batch_size=2, max_batches_per_cycle=2, tenant_id=TENANT)
    )
    assert result.success
    assert breached_ids(support) == set(of_tenant[:4])
    assert support.execute(
        "select batch_size, max_batches_per_cycle, tenant_id::text, batch_count from support.ticket_sla_cycles"
    ).fetchall() == [(2, 2, TENANT, 2)]


_EARLIER_CYCLE = """
insert into support.ticket_sla_cycles (run_id, state, started_at, finished_at, now_utc, batch_size,
    max_batches_per_cycle, backlog_count)
select 'earlier', 'succeeded', moment, moment, moment, 500, 20, %s
from (select clock_timestamp() - make_interval(mins => %s) as moment) one
"""
_ERROR, _WARN = dg.AssetCheckSeverity.ERROR, dg.AssetCheckSeverity.WARN


@pytest.mark.parametrize(
    ("earlier", "backlog", "passed", "severity", "description"),
    [
        pytest.param([], 100, True, _WARN, "; more than 100 for 10 minutes is too many", id="at the limit"),
        pytest.param([], 101, True, _WARN, "; more than 100 for 10 minutes is too many", id="above it at once"),
        pytest.param([(101, 9)], 101, True, _WARN, "; more than 100 for 10 minutes is too many", id="for 9 minutes"),
        pytest.param(
            [(101, 11)],
            101,
            False,
            _ERROR,
            r", more than 100 since \d\d:\d\d UTC; see docs/runbooks/ticket-"
            r"sla-backlog\.md",
            id="for 11 minutes",
        ),
        pytest.param(
            [(101, 11), (100, 5)], 101, True, _WARN, "; more than 100 for 10 minutes is too many", id="with a pause"
        ),
    ],
)
def test_the_cycle_records_the_check_in_its_own_run(
    earlier: list[tuple[int, int]],
    backlog: int,
    passed: bool,
    severity: dg.AssetCheckSeverity,
    description: str,
    support: Support,
    operator: Support,
    job: dg.JobDefinition,
    ephemeral: dg.DagsterInstance,
) -> None:
    for count_and_age in earlier:
        support.execute(_EARLIER_CYCLE, count_and_age)
    make_tickets(support, backlog, **_FIRST_RESPONSE_OVERDUE)
    operator.execute("select 1 from support.tickets for update")
    result = job.execute_in_process(instance=ephemeral)
    assert result.success
    evaluation = _evaluation(result, CHECK)
    assert (evaluation.passed, evaluation.severity) == (passed, severity)
    assert _metadata(evaluation.metadata) == {"backlog": backlog, "limit": 100}
    assert re.fullmatch(f"{backlog} tickets are overdue and not marked{description}", evaluation.description or "")
    record = ephemeral.get_latest_asset_check_evaluation_record(CHECK)
    assert record is not None
    assert record.run_id == result.run_id


def test_a_full_cycle_that_leaves_a_growing_backlog_is_a_warning(
    support: Support, job: dg.JobDefinition, ephemeral: dg.DagsterInstance
) -> None:
    for expected, added in (((True, 3), 5), ((False, 6), 5), ((True, 4), 0)):
        make_tickets(support, added, **_FIRST_RESPONSE_OVERDUE)
        config = launchpad(batch_size=2, max_batches_per_cycle=1)
        evaluation = _evaluation(job.execute_in_process(instance=ephemeral, run_config=config), CHECK)
        assert (evaluation.passed, evaluation.metadata["backlog"].value) == expected
        assert evaluation.severity is _WARN


def test_the_check_runs_alone_and_counts_now(
    support: Support, definitions: dg.Definitions, ephemeral: dg.DagsterInstance
) -> None:
    make_tickets(support, 7, **_FIRST_RESPONSE_OVERDUE)
    alone = definitions.resolve_implicit_global_asset_job_def().get_subset(
        asset_check_selection={CHECK}, asset_selection=set()
    )
    result = alone.execute_in_process(instance=ephemeral)
    (evaluation,) = result.get_asset_check_evaluations()
    assert (evaluation.passed, _metadata(evaluation.metadata)) == (True, {"backlog": 7, "limit": 100})
    assert breached_ids(support) == set()
    assert ephemeral.get_latest_materialization_event(CHECK.asset_key) is None


def test_tickets_set_aside_are_an_alarm_until_they_are_corrected(
    support: Support, definitions: dg.Definitions, job: dg.JobDefinition, ephemeral: dg.DagsterInstance
) -> None:
    """The run fails in the cycle in which the ticket fails. While it waits, only the check reports it."""
    alone = definitions.resolve_implicit_global_asset_job_def().get_subset(
        asset_check_selection={SET_ASIDE_CHECK}, asset_selection=set()
    )
    bad = make_ticket(support, **_FIRST_RESPONSE_OVERDUE, queue_id=None, number="BAD|1 [x](http://x) <b>\n\x1b[2J")

    failed = job.execute_in_process(instance=ephemeral, raise_on_error=False)
    later = job.execute_in_process(instance=ephemeral)
    by_hand = alone.execute_in_process(instance=ephemeral)

    assert (failed.success, later.success, by_hand.success) == (False, True, True)
    ((since, next_try),) = support.execute(
        "select first_failed_at, next_try_at from support.ticket_sla_set_aside"
    ).fetchall()
    for result in (failed, later, by_hand):
        evaluation = _evaluation(result, SET_ASIDE_CHECK)
        assert (evaluation.passed, evaluation.severity) == (False, dg.AssetCheckSeverity.ERROR)
        assert evaluation.description is not None
        assert evaluation.description.startswith(
            "1 overdue tickets cannot be marked, and nobody is called for them; correct the row, or "
        )
        metadata = _metadata(evaluation.metadata)
        assert metadata["set_aside"] == 1
        assert metadata["tickets"].splitlines()[2:] == [
            "| \\'BAD\\|1 \\[x\\]\\(http\\:\\/\\/x\\) \\<b\\>\\\\n\\\\x1b\\[2J\\' "
            f"| {bad} | FirstResponse | {since:%Y-%m-%d %H:%M:%S} | the event cannot be built\\: queue\\_id is null "
            f"| {next_try:%Y-%m-%d %H:%M:%S} |"
        ]
    assert breached_ids(support) == set()
    latest = ephemeral.get_latest_asset_check_evaluation_record(SET_ASIDE_CHECK)
    assert latest is not None
    assert latest.run_id == by_hand.run_id

    # The remedy that the check names: after a correction of the row, the next cycle tries it, during its pause too.
    change(support, bad, queue_id=QUEUE)
    assert _evaluation(alone.execute_in_process(instance=ephemeral), SET_ASIDE_CHECK).passed
    corrected = _evaluation(job.execute_in_process(instance=ephemeral), SET_ASIDE_CHECK)
    assert (corrected.passed, corrected.description, _metadata(corrected.metadata)) == (
        True,
        "no overdue ticket is set aside",
        {"set_aside": 0},
    )
    assert breached_ids(support) == {bad}


def test_the_alarm_lists_the_first_twenty(
    support: Support, job: dg.JobDefinition, ephemeral: dg.DagsterInstance
) -> None:
    make_tickets(support, 120, **_FIRST_RESPONSE_OVERDUE, queue_id=None)
    result = job.execute_in_process(instance=ephemeral, raise_on_error=False)
    metadata = _metadata(_evaluation(result, SET_ASIDE_CHECK).metadata)
    assert metadata["set_aside"] == 120
    assert len([line for line in metadata["tickets"].splitlines() if "FirstResponse" in line]) == 20
    assert metadata["tickets"].endswith("\nand 100 more in support.ticket_sla_set_aside")
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    shown = failure.step_failure_data.user_failure_data
    assert shown is not None
    assert shown.description is not None
    assert shown.description.count(" set aside: ") == 20
    assert "\nand 100 more errors; the log has a line for each ticket that was set aside\n" in shown.description
    assert shown.metadata["error_count"].value == 120


def test_a_set_aside_table_that_cannot_be_read_is_no_passed_check(
    support: Support, job: dg.JobDefinition, ephemeral: dg.DagsterInstance
) -> None:
    """It counts as bookkeeping: the cycle marks and publishes, then fails with the remedy.

    The check keeps its last record.
    """
    good = make_ticket(support, **_FIRST_RESPONSE_OVERDUE)
    support.execute("revoke select on support.ticket_sla_set_aside from sla_worker")
    with pytest.raises(dg.Failure, match=r"denied for table ticket_sla_set_aside .* run `sla-pipeline migrate`"):
        job.execute_in_process(instance=ephemeral)
    assert breached_ids(support) == {good}
    assert ephemeral.get_latest_asset_check_evaluation_record(SET_ASIDE_CHECK) is None
    assert ephemeral.get_latest_asset_check_evaluation_record(CHECK) is not None


def test_unknown_priorities_are_counted_on_the_runs_page(
    support: Support, job: dg.JobDefinition, ephemeral: dg.DagsterInstance, events: Events
) -> None:
    make_tickets(support, 3, **_FIRST_RESPONSE_OVERDUE, priority="Urgent")
    make_ticket(support, **_FIRST_RESPONSE_OVERDUE, priority="High")
    result = job.execute_in_process(instance=ephemeral)
    (materialization,) = result.asset_materializations_for_node("sla_breaches.close_cycle")
    metadata = _metadata(materialization.metadata)
    assert (metadata["processed_count"], metadata["unknown_priority_count"], metadata["error_count"]) == (4, 3, 0)
    assert sorted(event.priority for event in events()) == ["High", "Urgent", "Urgent", "Urgent"]
    warnings = [entry.user_message for entry in ephemeral.all_logs(result.run_id) if entry.level == logging.WARNING]
    assert warnings == ["3 tickets have a priority that is not in our list, sent as it is: 'Urgent'"]


def test_a_failing_publish_fails_the_run_at_its_end(
    support: Support, definitions: dg.Definitions, job: dg.JobDefinition, ephemeral: dg.DagsterInstance, events: Events,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Kafka is down: the marks stay, the check is recorded, the run fails, the next run publishes."""
    tickets = make_tickets(support, 3, **_FIRST_RESPONSE_OVERDUE)
    (port,) = free_ports(1)
    with monkeypatch.context() as kafka_down:
        kafka_down.setenv("SLA_KAFKA_BOOTSTRAP_SERVERS", f"127.0.0.1:{port}")
        result = job.execute_in_process(instance=ephemeral, raise_on_error=False)

    assert not result.success
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    assert failure.step_key == "sla_breaches.close_cycle"
    user_failure = failure.step_failure_data.user_failure_data
    assert user_failure is not None
    assert user_failure.description is not None
    assert user_failure.description.endswith(f"\n{RE_EXECUTE_ALL}")
    assert user_failure.description.startswith(
        f"publishing failed: Kafka at 127.0.0.1:{port} did not answer as expected while "
    )
    assert {
        name: user_failure.metadata[name].value for name in ("processed_count", "published_count", "error_count")
    } == {
        "processed_count": 3,
        "published_count": 0,
        "error_count": 1,
    }
    assert [evaluation.passed for evaluation in result.get_asset_check_evaluations()] == [True, True]
    assert ephemeral.get_latest_materialization_event(CHECK.asset_key) is None
    assert breached_ids(support) == set(tickets)

    assert job.execute_in_process(instance=ephemeral).success
    assert [event.ticket_id for event in events()] == tickets
    assert len(list(ephemeral.get_runs())) == 2


def test_a_bad_row_fails_the_run_at_its_end_with_a_message_without_its_values(
    support: Support, job: dg.JobDefinition, ephemeral: dg.DagsterInstance
) -> None:
    good = make_ticket(support, **_FIRST_RESPONSE_OVERDUE)
    bad = make_ticket(support, **_FIRST_RESPONSE_OVERDUE, priority="anna@example.org, who waits for us", number="BAD-1")
    with pytest.raises(dg.Failure) as raised:
        job.execute_in_process(instance=ephemeral)
    assert raised.value.description == (
        f"ticket BAD-1 ({bad}) set aside: the event cannot be built: priority: String should have at most 32 "
        f"characters\n{RE_EXECUTE_ALL}"
    )
    assert raised.value.allow_retries is False
    assert breached_ids(support) == {good}


def test_a_wrong_database_fails_the_run_at_once_and_once(
    job: dg.JobDefinition, ephemeral: dg.DagsterInstance, postgres_server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLA_POSTGRES_URL", postgres_server_url)
    result = job.execute_in_process(instance=ephemeral, raise_on_error=False)
    failures = [event for event in result.all_events if event.is_step_failure]
    assert [event.step_key for event in failures] == ["sla_breaches.claim_overdue"]
    (user_failure,) = [failure.step_failure_data.user_failure_data for failure in failures]
    assert user_failure is not None
    assert user_failure.description is not None
    assert "is not migrated; run `sla-pipeline migrate` as its owner" in user_failure.description
    assert user_failure.description.endswith(f"\n{RE_EXECUTE_ALL}")
    assert not [event for event in result.all_events if event.event_type is dg.DagsterEventType.STEP_UP_FOR_RETRY]


def test_a_cycle_that_the_single_runner_lock_keeps_out_is_no_success(
    support: Support, job: dg.JobDefinition, ephemeral: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hung holder of the lock must not hide that no cycle succeeds.

    So there is no materialization, and the run fails with the reason.
    """
    make_ticket(support, **_FIRST_RESPONSE_OVERDUE)
    monkeypatch.setenv("SLA_SINGLE_RUNNER", "1")
    support.execute("select pg_advisory_lock(hashtextextended('Pin:lock:job:scheduled:support-ticket-sla-monitor', 0))")
    result = job.execute_in_process(instance=ephemeral, raise_on_error=False)
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    assert failure.step_key == "sla_breaches.claim_overdue"
    assert failure.step_failure_data.user_failure_data is not None
    assert failure.step_failure_data.user_failure_data.description == (
        "skipped: another runner holds the advisory lock 'Pin:lock:job:scheduled:support-ticket-sla-monitor': this "
        "cycle is left to it"
    )
    assert [run.status for run in ephemeral.get_runs()] == [dg.DagsterRunStatus.FAILURE]
    assert ephemeral.get_latest_materialization_event(CHECK.asset_key) is None
    assert ephemeral.get_latest_asset_check_evaluation_record(CHECK) is None
    assert breached_ids(support) == set()

    support.execute("select pg_advisory_unlock_all()")
    assert job.execute_in_process(instance=ephemeral).success
    assert ephemeral.get_latest_materialization_event(CHECK.asset_key) is not None


def test_another_asset_of_the_location_keeps_its_value(definitions: dg.Definitions, tmp_path: Path) -> None:
    """Only the ops of a cycle pass values in memory: another asset's value is stored, for other processes too."""

    @dg.asset
    def answer() -> int:
        return 42

    both = dg.Definitions.merge(definitions, dg.Definitions(assets=[answer]))
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        job = both.resolve_implicit_global_asset_job_def().get_subset(asset_selection={dg.AssetKey("answer")})
        assert job.execute_in_process(instance=instance).success
    with dg.DagsterInstance.local_temp(str(tmp_path)) as another_process:
        assert both.get_repository_def().load_asset_value("answer", instance=another_process) == 42


_CANARY = "sw0rdf1sh"
_URL = f"postgresql://worker:{_CANARY}@db-1/support"
_URL_FORM = "postgresql://USER:PASSWORD@HOST:PORT/DATABASE"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("SLA_POSTGRES_URL", None, f"SLA_POSTGRES_URL is not set; set it to {_URL_FORM}, the worker's login"),
        ("SLA_POSTGRES_URL", f"{_URL}\nx", "SLA_POSTGRES_URL holds a line break; write the value as plain text on "
                                           "one line"),
        (
            "SLA_POSTGRES_URL",
            f'"{_URL}"',
            'SLA_POSTGRES_URL is enclosed in quotation marks ("), which are part of its value; write the value without '
            "them",
        ),
        (
            "SLA_KAFKA_BOOTSTRAP_SERVERS",
            "",
            "SLA_KAFKA_BOOTSTRAP_SERVERS is not set; set it to Kafka's addresses, such as kafka-1:9092,kafka-2:9092",
        ),
        (
            "SLA_KAFKA_TOPIC",
            "tickets breached",
            "the Kafka topic (SLA_KAFKA_TOPIC) is 'tickets breached'; use at most 200 letters, digits, dots, "
            "underscores and dashes",
        ),
        (
            "SLA_KAFKA_CLIENT_CONFIG",
            f'{{"sasl.password": "{_CANARY}",}}',
            "SLA_KAFKA_CLIENT_CONFIG is not JSON (line 1, column 31); write a JSON object of texts, numbers and "
            "booleans, such as "
            '{"security.protocol": "SASL_SSL"}',
        ),
        ("SLA_SINGLE_RUNNER", "maybe", "SLA_SINGLE_RUNNER is 'maybe'; set it to 1 for one runner at a time, or to 0"),
    ],
)  # fmt: skip
def test_a_wrong_variable_fails_the_run_in_its_first_step_in_one_sentence_and_marks_nothing(
    name: str, value: str | None, message: str,
    support: Support, job: dg.JobDefinition, ephemeral: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The location was loaded before; the run reads the environment."""
    make_ticket(support, **_FIRST_RESPONSE_OVERDUE)
    if value is None:
        monkeypatch.delenv(name)
    else:
        monkeypatch.setenv(name, value)
    result = job.execute_in_process(instance=ephemeral, raise_on_error=False)
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    assert failure.step_key == "sla_breaches.claim_overdue"
    assert failure.step_failure_data.user_failure_data is not None
    assert failure.step_failure_data.user_failure_data.description == f"{message}\n{RE_EXECUTE_ALL}"
    stored = "".join(str(record) for record in ephemeral.all_logs(result.run_id))
    assert _CANARY not in stored
    assert breached_ids(support) == set()


@pytest.mark.parametrize("name", ["SLA_POSTGRES_URL", "SLA_SINGLE_RUNNER"])
def test_the_check_alone_names_a_wrong_variable(
    name: str, definitions: dg.Definitions, ephemeral: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "nonsense")
    alone = definitions.resolve_implicit_global_asset_job_def().get_subset(
        asset_check_selection={CHECK}, asset_selection=set()
    )
    with pytest.raises(dg.Failure, match=f"^{name} is "):
        alone.execute_in_process(instance=ephemeral)


def test_no_session_is_left_behind(support: Support, job: dg.JobDefinition, ephemeral: dg.DagsterInstance) -> None:
    make_tickets(support, 3, **_FIRST_RESPONSE_OVERDUE)
    job.execute_in_process(instance=ephemeral)
    left = support.execute(
        "select application_name from pg_stat_activity where datname = current_database() and application_name like "
        "'ticket-sla-monitor%'"
    )
    assert left.fetchall() == []
