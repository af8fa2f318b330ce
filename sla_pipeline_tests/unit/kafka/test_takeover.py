"""Parts of a takeover that need no server: step names, deadline, the client's log."""

import pytest

from sla_pipeline.errors import KafkaUnavailable
from sla_pipeline.kafka.clients import ClientReports
from sla_pipeline.kafka.deadline import Deadline
from sla_pipeline.kafka.takeover import STEPS


def test_the_steps_have_the_names_that_hooks_and_docs_use() -> None:
    assert STEPS == (
        "locked",
        "connected",
        "fenced",
        "progress_read",
        "rows_read",
        "begun",
        "produced",
        "flushed",
        "committed",
        "advanced",
    )


def test_calls_share_one_deadline() -> None:
    now = [100.0]
    deadline = Deadline(20, clock=lambda: now[0])
    assert deadline.timeout_seconds(8) == 8
    now[0] = 115
    assert (deadline.timeout_seconds(8), deadline.remaining_seconds()) == (5, 5)
    now[0] = 121
    assert deadline.remaining_seconds() == 0
    with pytest.raises(KafkaUnavailable, match="the time for this attempt, 20 s, is used up"):
        deadline.timeout_seconds(8)


def test_the_clients_log_repeats_no_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "sla_pipeline.kafka")
    reports = ClientReports()
    for milliseconds in (1, 20, 300):
        reports.log(40, "%s [%s] %s", "FAIL", "rdkafka#producer-1", f"Connection refused (after {milliseconds}ms)")
    reports.log(30, "%s [%s] %s", "CONFWARN", "rdkafka#consumer-2", "linger.ms is a producer property")
    reports.log(30, "%s [%s] %s", "GETPID", "rdkafka#producer-1", "Coordinator load in progress: retrying")
    reports.log(30, "%s [%s] %s", "REQTMOUT", "rdkafka#producer-1", "Timed out 1 in-flight requests")
    logged = [(record.name, record.levelname, record.getMessage()) for record in caplog.records]
    assert logged == [
        # the call that fails raises it too, once, as an error of ours
        ("sla_pipeline.kafka.clients", "INFO", "FAIL [rdkafka#producer-1] Connection refused (after 1ms)"),
        ("sla_pipeline.kafka.clients", "DEBUG", "CONFWARN [rdkafka#consumer-2] linger.ms is a producer property"),
        ("sla_pipeline.kafka.clients", "INFO", "GETPID [rdkafka#producer-1] Coordinator load in progress: retrying"),
        ("sla_pipeline.kafka.clients", "WARNING", "REQTMOUT [rdkafka#producer-1] Timed out 1 in-flight requests"),
    ]
