"""States that are no fault: a normal run, and later changes of tickets, records and topic."""

from datetime import timedelta

import pytest

from sla_pipeline.audit.findings import Check, Positions
from sla_pipeline.audit.verify import verify
from sla_pipeline.errors import InputError, KafkaSetupError, KafkaUnavailable, PostgresSetupError, PostgresUnavailable
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline_tests.integration.audit.conftest import Audit, Mark
from sla_pipeline_tests.integration.audit.fault_injection import Support, Topic, faults, found, publish_by_hand
from sla_pipeline_tests.integration.conftest import Cycle
from sla_pipeline_tests.tickets import (
    FIRST_RESPONSE_OVERDUE,
    HOUR,
    MINUTE,
    NOW,
    change,
    close,
    make_ticket,
    make_tickets,
    reply,
    resolve,
    row_versions,
)


def test_a_new_installation_is_clean(audit: Audit) -> None:
    report = audit()
    assert report.clean
    assert found(report) == {}
    assert report.positions == Positions(
        published_seq=0, progress_seq=0, last_seq=0, highest_event_seq=None, progress_seq_after=0
    )


def test_after_a_cycle_all_agrees_and_every_mark_is_proven(audit: Audit, breached: list[str]) -> None:
    report = audit()
    assert found(report) == {}
    assert (report.marked_count, report.record_count, report.event_count, report.proven_count) == (5, 5, 5, 5)
    assert report.positions == Positions(
        published_seq=5, progress_seq=5, last_seq=5, highest_event_seq=5, progress_seq_after=5
    )


def test_after_many_cycles_and_transactions_all_agrees(audit: Audit, cycle: Cycle, support: Support) -> None:
    for number in range(6):
        make_tickets(support, 40, **FIRST_RESPONSE_OVERDUE)
        cycle(run_id=f"run-{number}")
    report = audit()
    assert found(report) == {}
    assert (report.record_count, report.event_count, report.proven_count) == (240, 240, 240)


def test_an_audit_writes_nothing(audit: Audit, breached: list[str], support: Support) -> None:
    before = row_versions(support)
    audit()
    assert row_versions(support) == before


def test_what_happens_to_tickets_after_their_mark_is_no_fault(
    audit: Audit, breached: list[str], support: Support
) -> None:
    resolved, closed, deleted, moved, answered = breached
    reply(support, answered, at=NOW + MINUTE)
    change(support, moved, first_response_due_at=NOW + HOUR, updated_at=NOW + MINUTE)
    support.execute("delete from support.tickets where id = %s", (deleted,))
    resolve(support, resolved, at=NOW + MINUTE)
    close(support, closed, at=NOW + MINUTE)
    report = audit(now_utc=NOW + 10 * MINUTE)
    assert found(report) == {"record_of_deleted_ticket": 1, "deadline_edited": 1}
    (example,) = report.finding(Check.RECORD_OF_DELETED_TICKET).examples
    assert (example.ticket_id, example.number, example.seq) == (deleted, f"TCK-{deleted}", 3)
    assert report.proven_count == 0


def test_a_script_that_edits_a_ticket_and_leaves_updated_at_alone_makes_no_mark_look_false(
    audit: Audit, breached: list[str], support: Support
) -> None:
    change(support, breached[4], first_response_due_at=NOW + HOUR)
    report = audit()
    assert found(report) == {"deadline_edited": 1}
    assert report.proven_count == 4


def test_after_a_restore_in_one_transaction_tickets_that_were_edited_prove_nothing(
    audit: Audit, breached: list[str], support: Support
) -> None:
    """Every row is then written by the same transaction, whoever wrote it before."""
    change(support, breached[4], first_response_due_at=NOW + HOUR, updated_at=NOW + MINUTE)
    with support.transaction():
        support.execute("update support.tickets set number = number")
        support.execute("update support.ticket_sla_breaches set number = number")
    report = audit()
    assert found(report) == {"deadline_edited": 1}
    assert report.proven_count == 4


@pytest.mark.parametrize(
    ("dated", "expected"), [(MINUTE, {}), (MINUTE + timedelta(microseconds=1), {"reply_before_breach": 1})]
)
def test_a_reply_dated_before_the_mark_is_a_warning_when_it_is_more_than_a_minute(
    audit: Audit, breached: list[str], support: Support, dated: timedelta, expected: dict[str, int]
) -> None:
    change(support, breached[4], first_response_at=NOW - dated, updated_at=NOW + MINUTE)
    report = audit()
    assert found(report) == expected
    assert report.clean


def test_a_resolution_dated_long_before_the_mark_is_a_warning(
    audit: Audit, breached: list[str], support: Support
) -> None:
    change(support, breached[1], status="Resolved", resolved_at=NOW - HOUR, updated_at=NOW + MINUTE)
    report = audit()
    assert found(report) == {"reply_before_breach": 1}
    assert report.finding(Check.REPLY_BEFORE_BREACH).examples[0].seq == 2


def test_a_flag_that_was_put_back_and_marked_again_is_clean(
    audit: Audit, breached: list[str], support: Support, cycle: Cycle
) -> None:
    change(support, breached[1], sla_breached=False)
    assert faults(audit()) == {"record_of_unmarked": 1}
    assert cycle().flags_restored_count == 1
    assert found(audit()) == {}


def test_records_that_housekeeping_has_removed_are_not_missed(
    audit: Audit, breached: list[str], support: Support
) -> None:
    support.execute("delete from support.ticket_sla_breaches where seq <= 2")
    assert found(audit()) == {"record_expired": 2, "mark_older_than_records": 2}


def test_a_mark_on_a_ticket_younger_than_the_oldest_record_is_not_excused_by_housekeeping(
    audit: Audit, breached: list[str], support: Support
) -> None:
    support.execute("delete from support.ticket_sla_breaches where seq <= 2")
    make_ticket(support, sla_breached=True, created_at=NOW)
    report = audit()
    assert found(report) == {"record_expired": 2, "mark_older_than_records": 2, "mark_without_record": 1}


def test_aborted_events_are_not_seen(
    audit: Audit, breached: list[str], topic: Topic, kafka_settings: KafkaSettings
) -> None:
    producer = topic.transactional_producer()
    producer.produce(kafka_settings.topic, b"never committed", b"key")
    producer.flush(20)
    producer.abort_transaction(20)
    report = audit()
    assert found(report) == {}
    assert report.event_count == 5


def test_further_headers_are_no_difference(audit: Audit, mark: Mark, support: Support, topic: Topic) -> None:
    make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    mark()
    publish_by_hand(
        support, topic, lambda record: [record.as_sent(headers={**record.as_sent().headers, "traceparent": b"00-ab"})]
    )
    report = audit()
    assert found(report) == {}
    assert report.event_count == 1


def test_a_login_without_rights_gets_the_name_of_the_role(
    support: Support, kafka_settings: KafkaSettings, analyst: PostgresSettings
) -> None:
    support.execute("revoke select on support.ticket_sla_breaches from sla_analyst")
    with pytest.raises(PostgresSetupError, match=r"permission denied .* needs membership of role sla_analyst"):
        verify(analyst, kafka_settings, now_utc=NOW)


def test_a_login_under_row_level_security_gets_the_remedy_for_it(
    support: Support, kafka_settings: KafkaSettings, analyst: PostgresSettings
) -> None:
    support.execute("alter table support.tickets enable row level security")
    with pytest.raises(PostgresSetupError, match=r"alter role LOGIN bypassrls"):
        verify(analyst, kafka_settings, now_utc=NOW)


def test_a_topic_that_does_not_exist_is_named(analyst: PostgresSettings, kafka_settings: KafkaSettings) -> None:
    with pytest.raises(KafkaSetupError, match=r"topic no-such-topic\.relay-progress does not exist"):
        verify(analyst, KafkaSettings(kafka_settings.bootstrap_servers, topic="no-such-topic"), now_utc=NOW)


def test_the_error_names_the_server_that_is_down(analyst: PostgresSettings, kafka_settings: KafkaSettings) -> None:
    with pytest.raises(KafkaUnavailable, match=r"Kafka at 127\.0\.0\.1:1 did not answer"):
        verify(analyst, KafkaSettings("127.0.0.1:1"), now_utc=NOW)
    with pytest.raises(PostgresUnavailable, match=r"127\.0\.0\.1:1 as user"):
        verify(PostgresSettings("postgresql://somebody:secret@127.0.0.1:1/support"), kafka_settings, now_utc=NOW)


def test_a_time_without_a_zone_is_refused(audit: Audit) -> None:
    with pytest.raises(InputError, match=r"without a time zone"):
        audit(now_utc=NOW.replace(tzinfo=None))


def test_progress_rises_to_the_total(audit: Audit, cycle: Cycle, support: Support) -> None:
    make_tickets(support, 12_000, **FIRST_RESPONSE_OVERDUE)
    cycle()
    cycle()
    calls: list[tuple[int, int]] = []
    report = audit(on_progress=lambda done, total: calls.append((done, total)))
    assert report.record_count == 12_000
    done, totals = [count for count, _ in calls], {total for _, total in calls[1:]}
    assert done == sorted(done)
    assert done[0] == 0
    assert 10_000 in done
    assert totals == {calls[-1][0]}
    # records, events and the markers of transactions: two cycles, three partitions
    assert calls[-1][0] == 12_000 + 12_000 + 6
