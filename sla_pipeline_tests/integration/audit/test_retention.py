"""Events that left the topic by retention are not lost; others that are missing are."""

from sla_pipeline.audit.findings import Check
from sla_pipeline_tests.integration.audit.conftest import Audit, Mark
from sla_pipeline_tests.integration.audit.fault_injection import (
    Support,
    Topic,
    faults,
    found,
    set_published,
    waiting_records,
)
from sla_pipeline_tests.tickets import FIRST_RESPONSE_OVERDUE, make_tickets


def test_expired_events_are_not_reported_as_lost(audit: Audit, breached: list[str], topic: Topic) -> None:
    topic.expire({0: -1, 1: -1, 2: -1})
    report = audit()
    assert found(report) == {"event_expired": 5}
    assert report.clean
    assert report.event_count == 0


def test_only_what_is_below_the_first_event_kept_may_have_expired(
    audit: Audit, support: Support, mark: Mark, topic: Topic
) -> None:
    make_tickets(support, 12, **FIRST_RESPONSE_OVERDUE)
    mark()
    # partition 0: 1, 4, 7, 10; partition 1: 2, 5, 8 (11 is lost); partition 2: 3, 6, 9, 12
    topic.send(
        *(record.as_sent(partition=(record.seq - 1) % 3) for record in waiting_records(support) if record.seq != 11)
    )
    set_published(support, topic, 12)
    assert faults(audit()) == {"record_without_event": 1, "record_ticket_without_event": 1}

    # partition 0 begins with 7 now, so whatever is below 7 and missing may have been there
    topic.expire({0: 2})
    report = audit()
    assert found(report) == {"event_expired": 2, "record_without_event": 1, "record_ticket_without_event": 1}
    assert [example.seq for example in report.finding(Check.EVENT_EXPIRED).examples] == [1, 4]
    assert report.finding(Check.RECORD_WITHOUT_EVENT).examples[0].seq == 11


def test_a_lost_event_below_what_has_expired_cannot_be_distinguished_from_it(
    audit: Audit, support: Support, mark: Mark, topic: Topic
) -> None:
    make_tickets(support, 6, **FIRST_RESPONSE_OVERDUE)
    mark()
    topic.send(*(record.as_sent(partition=record.seq % 2) for record in waiting_records(support) if record.seq != 2))
    set_published(support, topic, 6)
    assert faults(audit()) == {"record_without_event": 1, "record_ticket_without_event": 1}
    topic.expire({1: 1})
    assert found(audit()) == {"event_expired": 2}


def test_both_ends_may_be_gone_at_once(audit: Audit, breached: list[str], support: Support, topic: Topic) -> None:
    topic.expire({0: -1, 1: -1, 2: -1})
    support.execute("delete from support.ticket_sla_breaches where seq <= 3")
    assert found(audit()) == {"event_expired": 2, "mark_older_than_records": 3}
