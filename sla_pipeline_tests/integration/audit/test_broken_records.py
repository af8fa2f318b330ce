"""Faults of marks and breach records: each kind is found, and nothing else."""

from datetime import timedelta

import pytest

from sla_pipeline.audit.findings import Check, Example
from sla_pipeline.breach import BreachKind
from sla_pipeline_tests.integration.audit.conftest import Audit, Mark
from sla_pipeline_tests.integration.audit.fault_injection import (
    Support,
    Topic,
    faults,
    found,
    publish_by_hand,
    record_by_hand,
)
from sla_pipeline_tests.integration.conftest import Cycle
from sla_pipeline_tests.tickets import (
    FIRST_RESPONSE_OVERDUE,
    HOUR,
    MINUTE,
    NOW,
    RESOLUTION_OVERDUE,
    change,
    make_ticket,
)


def test_a_deleted_record_is_found_from_every_side(audit: Audit, breached: list[str], support: Support) -> None:
    support.execute("delete from support.ticket_sla_breaches where seq = 3")
    report = audit()
    assert found(report) == {
        "record_gap": 1,
        "mark_without_record": 1,
        "event_without_record": 1,
        "event_ticket_without_record": 1,
    }
    assert report.finding(Check.RECORD_GAP).examples == (Example(seq=3),)
    (mark,) = report.finding(Check.MARK_WITHOUT_RECORD).examples
    assert (mark.ticket_id, mark.number) == (breached[2], f"TCK-{breached[2]}")
    (event,) = report.finding(Check.EVENT_WITHOUT_RECORD).examples
    assert (event.ticket_id, event.number, event.seq) == (breached[2], f"TCK-{breached[2]}", 3)


def test_an_emptied_outbox_is_not_taken_for_housekeeping(audit: Audit, breached: list[str], support: Support) -> None:
    support.execute("delete from support.ticket_sla_breaches")
    assert found(audit()) == {
        "record_gap": 1,
        "mark_without_record": 5,
        "event_without_record": 5,
        "event_ticket_without_record": 5,
    }


def test_a_record_removed_at_the_published_position_is_a_gap(
    audit: Audit, breached: list[str], support: Support, mark: Mark
) -> None:
    make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    mark()
    support.execute("delete from support.ticket_sla_breaches where seq <= 5")
    assert faults(audit())["record_gap"] == 1


def test_a_record_missing_at_the_end_is_a_gap(audit: Audit, breached: list[str], support: Support) -> None:
    support.execute("delete from support.ticket_sla_breaches where seq >= 4")
    assert faults(audit())["record_gap"] == 2


def test_a_rewound_sequence_leaves_records_beyond_it(audit: Audit, breached: list[str], support: Support) -> None:
    support.execute("update support.ticket_sla_relay set published_seq = 3, last_seq = 3")
    report = audit()
    assert faults(report) == {"record_beyond_sequence": 2, "progress_ahead_of_sequence": 2}
    assert [example.seq for example in report.finding(Check.RECORD_BEYOND_SEQUENCE).examples] == [4, 5]


def test_a_second_record_of_a_ticket_is_found_and_so_is_its_event(
    audit: Audit, breached: list[str], support: Support, cycle: Cycle
) -> None:
    support.execute("alter table support.ticket_sla_breaches drop constraint ticket_sla_breaches_ticket_id_key")
    record_by_hand(support, breached[2], f"TCK-{breached[2]}", due_at=NOW - MINUTE)
    assert faults(audit()) == {"record_ticket_twice": 1}
    cycle()
    report = audit()
    assert faults(report) == {"record_ticket_twice": 1, "event_ticket_twice": 1}
    assert report.finding(Check.RECORD_TICKET_TWICE).examples == (Example(breached[2], f"TCK-{breached[2]}", 6),)
    assert report.finding(Check.EVENT_TICKET_TWICE).examples[0].seq == 6


@pytest.mark.parametrize(
    "damage",
    [
        "number = 'TCK-other'",
        "kind = case kind when 'Resolution' then 'FirstResponse' else 'Resolution' end",
        "due_at = due_at - interval '1 microsecond'",
        "due_at = '-infinity'",
        "breached_at = breached_at + interval '1 second'",
    ],
)
def test_a_record_whose_columns_differ_from_its_payload(
    audit: Audit, breached: list[str], support: Support, damage: str
) -> None:
    support.execute(f"update support.ticket_sla_breaches set {damage} where seq = 2".encode())
    report = audit()
    assert faults(report) == {"record_malformed": 1}
    assert report.finding(Check.RECORD_MALFORMED).examples[0].seq == 2


def test_a_record_of_another_ticket_than_its_payload_names(audit: Audit, breached: list[str], support: Support) -> None:
    other = make_ticket(support)
    support.execute("update support.ticket_sla_breaches set ticket_id = %s where seq = 2", (other,))
    assert faults(audit()) == {
        "record_malformed": 1,
        "mark_without_record": 1,
        "record_of_unmarked": 1,
        "event_key_differs": 1,
    }


def test_a_record_whose_payload_is_no_event_makes_an_event_that_is_none(
    audit: Audit, support: Support, mark: Mark, topic: Topic
) -> None:
    make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    mark()
    support.execute("""update support.ticket_sla_breaches set payload = replace(payload, '"Normal"', '""')""")
    assert faults(audit()) == {"record_malformed": 1}
    publish_by_hand(support, topic)
    assert faults(audit()) == {"record_malformed": 1, "event_invalid": 1}


@pytest.mark.parametrize("due_at", [NOW, NOW + MINUTE])
def test_a_mark_before_its_deadline_is_false_and_proven_so(
    audit: Audit, support: Support, cycle: Cycle, due_at: object
) -> None:
    ticket_id = make_ticket(support, number="TCK-1", first_response_due_at=due_at)
    record_by_hand(support, ticket_id, "TCK-1", due_at=due_at)  # type: ignore[arg-type]
    cycle()
    report = audit()
    assert found(report) == {"record_not_due": 1, "false_breach": 1}
    assert report.finding(Check.FALSE_BREACH).examples == (Example(ticket_id, "TCK-1", 1),)


@pytest.mark.parametrize(
    ("ticket", "kind", "due_at"),
    [
        pytest.param({"first_response_at": NOW - HOUR}, BreachKind.FIRST_RESPONSE, NOW - MINUTE, id="answered before"),
        pytest.param({"first_response_due_at": NOW + HOUR}, BreachKind.FIRST_RESPONSE, NOW - MINUTE, id="not overdue"),
        pytest.param({"status": "OnHold"}, BreachKind.FIRST_RESPONSE, NOW - MINUTE, id="a status outside of the rule"),
        pytest.param(
            {"status": "InWork", "resolution_due_at": NOW - HOUR},
            BreachKind.RESOLUTION,
            NOW - HOUR,
            id="the other kind had priority",
        ),
        pytest.param({}, BreachKind.FIRST_RESPONSE, NOW - 2 * MINUTE, id="another deadline than the ticket's"),
        pytest.param(
            {**RESOLUTION_OVERDUE, "resolved_at": NOW - HOUR}, BreachKind.RESOLUTION, NOW - MINUTE, id="resolved before"
        ),
    ],
)
def test_a_false_mark_is_proven_by_the_row_that_it_was_made_on_and_by_no_later_one(
    audit: Audit, support: Support, cycle: Cycle, ticket: dict[str, object], kind: BreachKind, due_at: object
) -> None:
    ticket_id = make_ticket(support, number="TCK-1", **{**FIRST_RESPONSE_OVERDUE, **ticket})
    record_by_hand(support, ticket_id, "TCK-1", kind=kind, due_at=due_at)  # type: ignore[arg-type]
    cycle()
    assert faults(audit()) == {"false_breach": 1}
    change(support, ticket_id, updated_at=NOW + timedelta(seconds=1))
    assert faults(audit()) == {}


def test_a_deadline_beyond_what_python_can_hold_proves_a_false_mark_too(
    audit: Audit, support: Support, cycle: Cycle
) -> None:
    ticket_id = make_ticket(support, number="TCK-1", **{**FIRST_RESPONSE_OVERDUE, "first_response_due_at": "infinity"})
    record_by_hand(support, ticket_id, "TCK-1", due_at=NOW - MINUTE)
    cycle()
    assert faults(audit()) == {"false_breach": 1}


def test_a_mark_by_another_program_has_no_record(audit: Audit, breached: list[str], support: Support) -> None:
    ticket_id = make_ticket(support, number="TCK-1", sla_breached=True)
    report = audit()
    assert found(report) == {"mark_without_record": 1}
    assert report.finding(Check.MARK_WITHOUT_RECORD).examples == (Example(ticket_id, "TCK-1"),)


def test_a_flag_put_back_leaves_a_record_of_an_unmarked_ticket(
    audit: Audit, breached: list[str], support: Support
) -> None:
    change(support, breached[3], sla_breached=False, updated_at=NOW)
    report = audit()
    assert faults(report) == {"record_of_unmarked": 1}
    assert report.finding(Check.RECORD_OF_UNMARKED).examples == (Example(breached[3], f"TCK-{breached[3]}", 4),)


def test_of_many_cases_the_first_five_are_named(audit: Audit, breached: list[str], support: Support) -> None:
    for number in range(7):
        make_ticket(support, number=f"BY-HAND-{number}", sla_breached=True)
    finding = audit().finding(Check.MARK_WITHOUT_RECORD)
    assert finding.count == 7
    assert [example.number for example in finding.examples] == [f"BY-HAND-{number}" for number in range(5)]
