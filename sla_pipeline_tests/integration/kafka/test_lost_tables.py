"""A dropped table: `migrate` re-creates it, `recover` writes its records back, and no event is doubled."""

import json
import re
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from sla_pipeline.cli import app
from sla_pipeline.cycle import CycleInput, SimulatedClock
from sla_pipeline.kafka.events import read_events
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.monitor.steps import claim_overdue, mark_breached
from sla_pipeline.postgres.database import Database
from sla_pipeline_tests.integration.conftest import Cycle
from sla_pipeline_tests.integration.kafka.breach_records import sequence_of
from sla_pipeline_tests.integration.kafka.topic_administration import expire
from sla_pipeline_tests.tickets import FIRST_RESPONSE_OVERDUE, NOW, change, make_ticket, make_tickets

Support = psycopg.Connection[Any]
_DOCS = Path(__file__).parents[3] / "docs" / "exactly-once.md"


pytestmark = pytest.mark.usefixtures("environment_of_commands")


@pytest.fixture
def published(support: Support, cycle: Cycle) -> list[str]:
    """Five tickets whose events are out."""
    ids = make_tickets(support, 5, **FIRST_RESPONSE_OVERDUE)
    assert cycle().published_count == 5
    return ids


def _mark_only(support: Support, database: Database, count: int) -> list[str]:
    """Tickets that are marked and whose events wait: the process died before it published."""
    ids = make_tickets(support, count, **FIRST_RESPONSE_OVERDUE)
    claim = claim_overdue(database, SimulatedClock(NOW), CycleInput(), run_id="died")
    mark_breached(database, claim)
    assert claim.totals.processed_count == count
    return ids


def _run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def _faults() -> dict[str, int]:
    _, output = _run("verify", "--json")
    report = json.loads(output[output.index("{") :])
    return {
        finding["check"]: finding["count"]
        for finding in report["findings"]
        if finding["count"] and finding["severity"] == "fault"
    }


def _sent(settings: KafkaSettings) -> dict[int, str]:
    """Sequence to ticket of everything on the topic; each sequence and each ticket stands there once."""
    events = list(read_events(settings))
    sent = {sequence_of(event): event.key.decode() for event in events}
    assert len(sent) == len(events) == len(set(sent.values()))
    return sent


def _statements() -> list[str]:
    """Return the SQL in docs/exactly-once.md on lost tables: flags to reset, and the start of recovery."""
    section = _DOCS.read_text().partition("### Tables of ours lost")[2].partition("\n### ")[0]
    return re.findall(r"```sql\n(.*?)```", section, re.DOTALL)


def test_the_relays_table_is_made_again_and_publishing_goes_on(
    support: Support, database: Database, cycle: Cycle, published: list[str], kafka_settings: KafkaSettings
) -> None:
    """Its row follows from the records, and the position is Kafka's: nothing is to be recovered."""
    waiting = _mark_only(support, database, 2)
    support.execute("drop table support.ticket_sla_relay")
    assert _run("migrate", "--no-topics") == (0, "database: migrated\n")
    fresh = make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    report = cycle()
    assert (report.errors, report.processed_count, report.published_count) == ([], 1, 3)
    sent = _sent(kafka_settings)
    assert sorted(sent) == list(range(1, 9))
    assert set(sent.values()) == {*published, *waiting, fresh}
    assert _faults() == {}


@pytest.mark.parametrize(
    "dropped",
    ["support.ticket_sla_breaches", "support.ticket_sla_breaches, support.ticket_sla_relay"],
    ids=["records", "both"],
)
def test_lost_records_are_written_back_and_a_flag_that_was_reset_sends_nothing(
    dropped: str, support: Support, cycle: Cycle, published: list[str], kafka_settings: KafkaSettings
) -> None:
    """Between `migrate` and `recover` a cycle marks a new ticket and a published one: only the new one is published."""
    support.execute(f"drop table {dropped}".encode())
    exit_code, output = _run("migrate", "--no-topics")
    assert exit_code == 0
    assert "table support.ticket_sla_breaches was lost and is made again, empty. Nothing is published until" in output
    change(support, published[2], sla_breached=False)
    fresh = make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    report = cycle()
    assert (report.processed_count, report.published_count) == (2, 0)
    assert "Kafka's progress is at sequence 5, but Postgres has handed out only 2" in report.errors[0]
    before = _sent(kafka_settings)

    exit_code, output = _run("recover", "--yes")
    assert exit_code == 0
    assert (
        "repair: write 5 records back from their events (sequences 1 to 5), drop the records made since for the same "
        "tickets" in output
    )
    change(support, published[3], sla_breached=False)
    report = cycle()
    assert (report.errors, report.processed_count, report.flags_restored_count, report.published_count) == ([], 1, 1, 1)
    assert _sent(kafka_settings) == {**before, 6: fresh}
    assert _faults() == {}


def test_marks_whose_records_were_lost_before_they_were_published_are_counted_and_marked_again(
    support: Support, database: Database, cycle: Cycle, published: list[str], kafka_settings: KafkaSettings
) -> None:
    waiting = _mark_only(support, database, 3)
    before = _sent(kafka_settings)
    support.execute("drop table support.ticket_sla_breaches")
    assert _run("migrate", "--no-topics")[0] == 0
    assert _run("recover", "--yes")[0] == 0
    assert _faults() == {"mark_without_record": 3}
    (reset, _) = _statements()
    support.execute(reset.encode())
    report = cycle()
    assert (report.errors, report.processed_count, report.published_count) == ([], 3, 3)
    sent = _sent(kafka_settings)
    assert {seq: ticket for seq, ticket in sent.items() if seq <= 5} == before
    assert sorted(sent) == list(range(1, 9))
    assert {sent[6], sent[7], sent[8]} == set(waiting)
    assert _faults() == {}


def test_records_lost_before_anything_was_published_leave_marks_without_a_record(
    support: Support, database: Database, cycle: Cycle, kafka_settings: KafkaSettings
) -> None:
    """Kafka's progress is at 0: there is no contradiction, and nothing to recover."""
    waiting = _mark_only(support, database, 3)
    support.execute("drop table support.ticket_sla_breaches")
    assert _run("migrate", "--no-topics")[0] == 0
    assert cycle().errors == []
    assert _faults() == {"mark_without_record": 3}
    assert "Postgres and Kafka agree" in _run("recover")[1]
    (reset, _) = _statements()
    support.execute(reset.encode())
    assert cycle().published_count == 3
    assert set(_sent(kafka_settings).values()) == set(waiting)
    assert _faults() == {}


def test_where_the_topic_has_lost_its_beginning_a_statement_sets_where_recovery_starts(
    support: Support, cycle: Cycle, published: list[str], kafka_settings: KafkaSettings
) -> None:
    """Records whose events have expired are nowhere any more; those that are still there are written back."""
    later = make_tickets(support, 20, **FIRST_RESPONSE_OVERDUE)
    assert cycle().published_count == 20
    first = min((event for event in read_events(kafka_settings)), key=sequence_of)
    expire(kafka_settings, {first.partition: first.offset + 1})
    still_there = _sent(kafka_settings)
    assert min(still_there) > 1
    support.execute("drop table support.ticket_sla_breaches")
    assert _run("migrate", "--no-topics")[0] == 0

    exit_code, output = _run("recover", "--yes")
    assert exit_code == 3
    start = re.search(r"which is complete from (\d+) on only", output)
    assert start is not None
    (_, place) = _statements()
    support.execute(place.replace("START", start[1]).encode())
    assert _run("recover", "--yes")[0] == 0
    fresh = make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    assert cycle().published_count == 1
    assert _sent(kafka_settings) == {**still_there, 26: fresh}
    # those marks are as old as what housekeeping has deleted
    assert _faults() == {}
    assert {*published, *later} >= set(still_there.values())
