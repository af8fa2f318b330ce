"""Faults of the topic: foreign, altered, repeated, misplaced and lost events, wrong positions."""

from collections.abc import Iterable

import pytest

from sla_pipeline.audit.findings import Check, Example
from sla_pipeline.audit.verify import verify
from sla_pipeline.event import event_headers
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.kafka.topics import create_topics
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline_tests.integration.audit.conftest import Audit, Mark
from sla_pipeline_tests.integration.audit.fault_injection import (
    HandWrittenRecord,
    Sent,
    Support,
    Topic,
    faults,
    found,
    publish_by_hand,
    sent_again,
    set_published,
    waiting_records,
)
from sla_pipeline_tests.tickets import FIRST_RESPONSE_OVERDUE, NOW, make_ticket, make_tickets

STRANGER = "11111111-2222-4333-8444-555555555555"


@pytest.fixture
def waiting(support: Support, mark: Mark) -> list[str]:
    """Four marked tickets whose records are not published; sequences 1 to 4."""
    ids = make_tickets(support, 4, **FIRST_RESPONSE_OVERDUE)
    assert mark().processed_count == 4
    return ids


@pytest.fixture
def in_one_partition(waiting: list[str], support: Support, topic: Topic) -> list[str]:
    """The same tickets, published, all in partition 0 at offsets 0 to 3."""
    publish_by_hand(support, topic, lambda record: [record.as_sent(partition=0)])
    return waiting


def test_events_published_by_hand_as_the_relay_would_are_clean(
    audit: Audit, waiting: list[str], support: Support, topic: Topic
) -> None:
    publish_by_hand(support, topic)
    assert found(audit()) == {}


def test_a_lost_event_is_found_by_sequence_and_by_ticket(
    audit: Audit, waiting: list[str], support: Support, topic: Topic
) -> None:
    publish_by_hand(support, topic, lambda record: [record.as_sent()] if record.seq != 3 else [])
    report = audit()
    assert found(report) == {"record_without_event": 1, "record_ticket_without_event": 1}
    assert report.finding(Check.RECORD_WITHOUT_EVENT).examples == (Example(waiting[2], f"TCK-{waiting[2]}", 3),)


def test_all_events_are_lost_when_the_topic_is_another_one(
    audit: Audit, breached: list[str], analyst: PostgresSettings, kafka_settings: KafkaSettings
) -> None:
    elsewhere = KafkaSettings(kafka_settings.bootstrap_servers, topic=f"{kafka_settings.topic}.other")
    create_topics(elsewhere)
    report = verify(analyst, elsewhere, now_utc=NOW)
    assert faults(report) == {
        "record_without_event": 5,
        "record_ticket_without_event": 5,
        "progress_behind_postgres": 5,
    }
    assert not report.clean


def test_an_event_under_another_sequence_is_lost_by_sequence_only(
    audit: Audit, waiting: list[str], support: Support, topic: Topic
) -> None:
    def alter(record: HandWrittenRecord) -> Iterable[Sent]:
        seq = 900 if record.seq == 4 else record.seq
        yield record.as_sent(headers=dict(event_headers(correlation_id=record.correlation_id, outbox_seq=seq)))

    publish_by_hand(support, topic, alter)
    assert found(audit()) == {"record_without_event": 1, "event_without_record": 1, "event_ahead_of_progress": 896}


def test_an_altered_payload_is_found(audit: Audit, waiting: list[str], support: Support, topic: Topic) -> None:
    publish_by_hand(
        support, topic, lambda record: [record.as_sent(value=b"{}") if record.seq == 2 else record.as_sent()]
    )
    report = audit()
    assert found(report) == {"event_payload_differs": 1, "event_invalid": 1}
    assert report.event_count == 4


def test_an_event_without_a_value_is_found(audit: Audit, waiting: list[str], support: Support, topic: Topic) -> None:
    publish_by_hand(support, topic, lambda record: [record.as_sent(value=None)])
    assert found(audit()) == {"event_payload_differs": 4, "event_invalid": 4}


def test_an_altered_key_is_found(audit: Audit, waiting: list[str], support: Support, topic: Topic) -> None:
    publish_by_hand(
        support,
        topic,
        lambda record: [record.as_sent(key=STRANGER.encode()) if record.seq == 2 else record.as_sent(partition=0)],
    )
    assert found(audit()) == {"event_key_differs": 1}


def test_a_payload_that_differs_by_a_space_is_valid_and_still_differs(
    audit: Audit, waiting: list[str], support: Support, topic: Topic
) -> None:
    publish_by_hand(
        support, topic, lambda record: [record.as_sent(value=record.payload.replace(",", ", ", 1).encode())]
    )
    assert found(audit()) == {"event_payload_differs": 4}


def test_altered_and_missing_headers_are_found(
    audit: Audit, waiting: list[str], support: Support, topic: Topic
) -> None:
    def alter(record: HandWrittenRecord) -> Iterable[Sent]:
        headers = record.as_sent().headers
        if record.seq == 1:
            headers["correlation-id"] = b"another run"
        if record.seq == 2:
            del headers["event-type"]
        yield record.as_sent(headers=headers)

    publish_by_hand(support, topic, alter)
    assert found(audit()) == {"event_headers_differ": 2}


@pytest.mark.parametrize("text", [None, b"one"])
def test_an_event_without_a_usable_sequence_is_found(
    audit: Audit, breached: list[str], topic: Topic, text: bytes | None
) -> None:
    event = topic.events()[0]
    headers = {name: value for name, value in event.headers.items() if name != "outbox-seq"}
    topic.send(sent_again(event, headers=headers if text is None else {**headers, "outbox-seq": text}))
    report = audit()
    assert faults(report) == {"event_without_sequence": 1, "event_ticket_twice": 1}
    assert report.finding(Check.EVENT_WITHOUT_SEQUENCE).examples[0].ticket_id == event.key.decode()


def test_a_foreign_event_is_found_by_sequence_and_by_ticket(audit: Audit, breached: list[str], topic: Topic) -> None:
    event = topic.events()[0]
    headers = {**event.headers, "outbox-seq": b"77"}
    topic.send(Sent(STRANGER.encode(), event.value.replace(event.key, STRANGER.encode()), headers))
    report = audit()
    assert faults(report) == {
        "event_without_record": 1,
        "event_ticket_without_record": 1,
        # its EventId is that of another ticket
        "event_invalid": 1,
        "event_ahead_of_progress": 72,
    }
    (example,) = report.finding(Check.EVENT_WITHOUT_RECORD).examples
    assert (example.ticket_id, example.number, example.seq) == (STRANGER, None, 77)


def test_text_that_came_from_the_topic_is_never_repeated(audit: Audit, breached: list[str], topic: Topic) -> None:
    topic.send(
        Sent(
            b"Jane Doe",
            b'{"TicketId": "Jane Doe", "Number": "Jane Doe"}',
            {"outbox-seq": b"Jane Doe", "Jane Doe": b"Jane Doe"},
        )
    )
    report = audit()
    assert faults(report) == {"event_without_sequence": 1, "event_invalid": 1}
    assert "Jane" not in repr(report)


def test_an_event_that_came_twice_is_found_by_sequence_and_by_ticket(
    audit: Audit, in_one_partition: list[str], topic: Topic
) -> None:
    second = topic.events()[1]
    topic.send(sent_again(second), sent_again(second))
    report = audit()
    assert found(report) == {"event_sequence_twice": 2, "event_ticket_twice": 2, "order_in_partition": 1}
    ticket_id = in_one_partition[1]
    assert report.finding(Check.EVENT_SEQUENCE_TWICE).examples == (
        Example(ticket_id, f"TCK-{ticket_id}", 2, partition=0, offset=4),
        Example(ticket_id, f"TCK-{ticket_id}", 2, partition=0, offset=5),
    )


def test_a_ticket_s_events_in_two_partitions_have_no_order(
    audit: Audit, in_one_partition: list[str], topic: Topic
) -> None:
    topic.send(sent_again(topic.events()[0], partition=1))
    assert found(audit()) == {"event_sequence_twice": 1, "event_ticket_twice": 1, "order_of_ticket": 1}


def test_a_ticket_s_events_in_falling_sequence_are_found(
    audit: Audit, in_one_partition: list[str], topic: Topic
) -> None:
    last = topic.events()[3]
    topic.send(sent_again(last, headers={**last.headers, "outbox-seq": b"1"}))
    assert found(audit()) == {
        "event_key_differs": 1,
        "event_payload_differs": 1,
        "event_sequence_twice": 1,
        "event_ticket_twice": 1,
        "order_in_partition": 1,
        "order_of_ticket": 1,
    }


def test_events_out_of_order_within_a_partition_are_counted_where_the_order_breaks(
    audit: Audit, waiting: list[str], support: Support, topic: Topic
) -> None:
    records = {record.seq: record for record in waiting_records(support)}
    topic.send(*(records[seq].as_sent(partition=0) for seq in (1, 4, 2, 3)))
    set_published(support, topic, 4)
    report = audit()
    assert found(report) == {"order_in_partition": 1}
    assert report.finding(Check.ORDER_IN_PARTITION).examples[0].seq == 2


def test_order_between_partitions_does_not_matter(
    audit: Audit, waiting: list[str], support: Support, topic: Topic
) -> None:
    records = {record.seq: record for record in waiting_records(support)}
    topic.send(*(records[seq].as_sent(partition=partition) for seq, partition in ((3, 0), (4, 0), (2, 1), (1, 2))))
    set_published(support, topic, 4)
    assert found(audit()) == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"progress", b"{}"),
        (b"progress", b"not JSON"),
        (b"progress", b'{"seq": "5"}'),
        (b"progress", b'{"seq": -1}'),
        (b"other", b'{"seq": 5}'),
    ],
)
def test_a_progress_record_without_a_sequence_is_found(
    audit: Audit, breached: list[str], topic: Topic, key: bytes, value: bytes
) -> None:
    topic.send_progress(value, key)
    assert found(audit()) == {"progress_unreadable": 1}


def test_progress_behind_postgres_is_found_and_so_are_events_beyond_it(
    audit: Audit, breached: list[str], topic: Topic
) -> None:
    topic.send_progress(b'{"seq": 3}')
    assert found(audit()) == {"progress_behind_postgres": 2, "event_ahead_of_progress": 2}


def test_progress_beyond_the_last_sequence_is_found(audit: Audit, breached: list[str], topic: Topic) -> None:
    topic.send_progress(b'{"seq": 9}')
    report = audit()
    assert found(report) == {"progress_ahead_of_sequence": 4, "postgres_behind_progress": 4}
    assert report.finding(Check.PROGRESS_AHEAD_OF_SEQUENCE).examples == (Example(seq=9),)


def test_a_copy_in_postgres_that_lags_behind_is_information(
    audit: Audit, breached: list[str], support: Support
) -> None:
    support.execute("update support.ticket_sla_relay set published_seq = 2")
    report = audit()
    assert found(report) == {"postgres_behind_progress": 3}
    assert report.clean


def test_a_lost_event_does_not_hide_behind_a_position_that_lags(
    audit: Audit, waiting: list[str], support: Support, topic: Topic
) -> None:
    publish_by_hand(support, topic, lambda record: [record.as_sent()] if record.seq != 4 else [])
    support.execute("update support.ticket_sla_relay set published_seq = 0")
    assert faults(audit()) == {"record_without_event": 1, "record_ticket_without_event": 1}


def test_faults_of_every_kind_at_once_are_counted_by_kind(
    audit: Audit, in_one_partition: list[str], support: Support, topic: Topic
) -> None:
    first, second, *_ = topic.events()
    topic.send(sent_again(first), sent_again(second, headers={}))
    support.execute("delete from support.ticket_sla_breaches where seq = 3")
    make_ticket(support, sla_breached=True)
    assert faults(audit()) == {
        "record_gap": 1,
        "mark_without_record": 2,
        "event_without_record": 1,
        "event_ticket_without_record": 1,
        "event_without_sequence": 1,
        "event_invalid": 1,
        "event_sequence_twice": 1,
        "event_ticket_twice": 2,
        "order_in_partition": 1,
    }
