"""Replay of the real log through real cycles: the topic holds exactly the breaches that follow from the log.

The first week by default; with SLA_REPLAY_FULL=1 the whole year.
"""

import os
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sla_pipeline.audit.findings import Check
from sla_pipeline.breach import BreachKind
from sla_pipeline.demo.incident_log import BUNDLED_LOG, read_log
from sla_pipeline.demo.replay import ReplayResult, replay
from sla_pipeline.errors import InputError
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline_tests.integration.demo.expected_breaches import (
    ExpectedBreach,
    deadlines_moved_later,
    expected_breaches,
)
from sla_pipeline_tests.tickets import FIRST_RESPONSE_OVERDUE, make_ticket

WHOLE = os.environ.get("SLA_REPLAY_FULL") == "1"
# nine in ten lines of the log are of its first week
UNTIL = None if WHOLE else "2016-03-07T00:00Z"
BY_KIND = {"FirstResponse": 462, "Resolution": 130 if WHOLE else 122}

HEADER = "number,at,opened_at,status,priority,queue,assignee,requester"


def day(text: str, number: str, status: str, priority: str = "Critical", opened: str = "08:00") -> str:
    return f"{number},2016-03-01T{text}Z,2016-03-01T{opened}Z,{status},{priority},,,1"


def replayed(result: ReplayResult) -> list[ExpectedBreach]:
    return [ExpectedBreach(*line.split(",")) for line in result.as_csv().splitlines()]


@pytest.fixture
def run_replay(owner_url: str, worker_url: str, kafka_settings: KafkaSettings) -> Any:
    def run(path: Path, until: str | None = None) -> ReplayResult:
        moment = None if until is None else datetime.fromisoformat(until).astimezone(UTC)
        return replay(read_log(path), owner_url=owner_url, worker_url=worker_url, kafka=kafka_settings, until=moment)

    return run


# some thousands of cycles
@pytest.mark.timeout(3_600)
def test_every_breach_of_the_real_log_comes_out_of_kafka_once_at_its_minute_of_its_kind(run_replay: Any) -> None:
    result = run_replay(BUNDLED_LOG, UNTIL)
    expected = expected_breaches(BUNDLED_LOG, UNTIL)
    assert Counter(breach.kind for breach in expected) == BY_KIND
    assert replayed(result) == expected
    # not a fault: some tickets get another priority, and thus other deadlines, after they were marked
    found = {finding.check: finding.count for finding in result.audit.findings if finding.count}
    assert found == {Check.DEADLINE_EDITED: deadlines_moved_later(BUNDLED_LOG, UNTIL)}
    assert result.audit.marked_count == result.audit.record_count == result.audit.event_count == len(expected)


def test_the_rules_of_the_log_lead_to_these_breaches(run_replay: Any, tmp_path: Path) -> None:
    lines = [
        # no reply: found in the minute after the deadline, and only once, although it is reopened and late again
        day("08:00", "UNANSWERED", "New"),
        day("09:00", "UNANSWERED", "Closed"),
        day("10:00", "UNANSWERED", "InWork"),
        # answered in the very minute in which the miss would be found
        day("08:01", "ANSWERED", "New"),
        day("08:16", "ANSWERED", "InWork"),
        day("08:20", "ANSWERED", "Resolved"),
        # on hold when the deadline passes, back in work later
        day("08:05", "HELD", "OnHold"),
        day("13:00", "HELD", "InWork"),
        # created long after its deadline
        day("12:30", "LATECOMER", "New"),
        # becomes urgent and thereby late
        day("08:30", "RAISED", "New", "Low"),
        day("09:30", "RAISED", "New", "High"),
        # becomes less urgent a minute before it would be late, and is resolved late
        day("08:02", "LOWERED", "New"),
        day("08:15", "LOWERED", "New", "High"),
        day("08:50", "LOWERED", "InWork", "High"),
        # two changes in one minute: only the last one is there when the clock ticks
        day("12:10", "FLEETING", "InWork"),
        day("12:10", "FLEETING", "Resolved"),
        day("14:10", "FLEETING", "InWork"),
    ]
    log = tmp_path / "log.csv"
    log.write_text("\n".join([HEADER, *sorted(lines, key=lambda line: line.split(",")[1])]) + "\n")
    result = run_replay(log)
    at = "2016-03-01T{}Z".format
    assert replayed(result) == [
        (at("08:16"), "UNANSWERED", "FirstResponse", at("08:15")),
        (at("09:30"), "RAISED", "FirstResponse", at("09:00")),
        (at("12:30"), "LATECOMER", "FirstResponse", at("08:15")),
        (at("13:00"), "HELD", "Resolution", at("12:00")),
        (at("14:10"), "FLEETING", "Resolution", at("12:00")),
        (at("16:01"), "LOWERED", "Resolution", at("16:00")),
    ]
    assert replayed(result) == expected_breaches(log)
    assert result.by_kind == {BreachKind.FIRST_RESPONSE: 3, BreachKind.RESOLUTION: 3}
    assert (result.change_count, result.ticket_count, result.agree) == (17, 7, True)
    assert result.summary().endswith("Marked tickets (6), breach records (6) and events (6) agree.")


def test_a_replay_stops_at_the_given_minute(run_replay: Any, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("\n".join([HEADER, day("08:00", "ONE", "New"), day("08:01", "TWO", "New", opened="08:01")]) + "\n")
    result = run_replay(log, "2016-03-01T08:16Z")
    assert result.as_csv() == "2016-03-01T08:16Z,ONE,FirstResponse,2016-03-01T08:15Z\n"
    # 08:00, 08:01 and 08:16
    assert result.tick_count == 3


def test_a_replay_refuses_a_database_that_holds_tickets(run_replay: Any, support: psycopg.Connection[Any]) -> None:
    make_ticket(support)
    with pytest.raises(
        InputError, match=r"support\.tickets holds 1 tickets in database .*; a replay needs a database and topics"
    ):
        run_replay(BUNDLED_LOG)


def test_a_replay_refuses_a_database_that_holds_breach_records_and_a_topic_that_holds_events(
    run_replay: Any, support: psycopg.Connection[Any], cycle: Any
) -> None:
    make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    assert cycle().published_count == 1
    support.execute("delete from support.tickets")
    with pytest.raises(InputError, match=r"ticket_sla_breaches holds breach records in database .*; a replay needs"):
        run_replay(BUNDLED_LOG)
    support.execute("delete from support.ticket_sla_breaches")
    with pytest.raises(InputError, match=r"topic .* on Kafka at .* holds events; a replay needs"):
        run_replay(BUNDLED_LOG)
    assert support.execute("select count(*) from support.tickets").fetchone() == (0,)
