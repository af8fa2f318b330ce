"""The example consumer against the real broker and a local webhook: killed, fed aborted and foreign records.

The calls are compared with the topic: every event is accepted at least once, in the order of its partition, and more
than once only where a crash between call and record allows it. Each test runs the consumer of each language.
"""

import json
import signal
import sqlite3
import uuid
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import KafkaError, Message, Producer

from sla_pipeline.kafka.events import read_events
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline_tests.integration.conftest import Cycle
from sla_pipeline_tests.integration.examples.breach_events import assert_in_order, committed_count, event, send
from sla_pipeline_tests.integration.examples.conftest import SAME_MEMBER, EventOrder, StartConsumer
from sla_pipeline_tests.integration.examples.webhook import Webhook
from sla_pipeline_tests.tickets import FIRST_RESPONSE_OVERDUE, RESOLUTION_OVERDUE, make_ticket, make_tickets
from sla_pipeline_tests.waiting import wait_until

Support = psycopg.Connection[Any]
_CANARY_TENANT = "00000000-0000-4000-8000-000000ca4a47"
only_python = pytest.mark.parametrize("command", ["python"], indirect=True)
"""Mark of the tests of SQLite, and of the texts of wrong settings."""


def test_each_event_of_a_cycle_is_escalated_once_in_order(
    support: Support,
    cycle: Cycle,
    start: StartConsumer,
    webhook: Webhook,
    order: EventOrder,
    kafka_settings: KafkaSettings,
) -> None:
    make_ticket(support, **FIRST_RESPONSE_OVERDUE, number='[b]\u202eЖ\n"')
    make_tickets(support, 29, **FIRST_RESPONSE_OVERDUE, priority="Срочно")
    make_tickets(support, 10, **RESOLUTION_OVERDUE)
    assert cycle().published_count == 40
    consumer = start(webhook.url)
    wait_until(lambda: len(webhook.calls) == 40, what="40 escalations", seconds=60)
    assert_in_order([call.event_id for call in webhook.calls], order())
    assert {call.event_id: call.body for call in webhook.calls} == {
        json.loads(event.value)["EventId"]: event.value for event in read_events(kafka_settings)
    }
    assert {(call.method, call.path, call.content_type) for call in webhook.calls} == {
        ("POST", "/escalations", "application/json")
    }
    assert consumer.end(signal.SIGTERM) == 0
    assert committed_count(kafka_settings) == len(order())

    # the next start begins behind them
    make_ticket(support, **FIRST_RESPONSE_OVERDUE)
    cycle()
    consumer = start(webhook.url)
    wait_until(lambda: len(webhook.calls) >= 41, what="the last escalation", seconds=60)
    assert consumer.end(signal.SIGINT) == 0
    assert_in_order([call.event_id for call in webhook.calls], order())
    assert "is recorded" not in consumer.output()


def test_killed_in_a_call_only_that_call_is_repeated(
    support: Support,
    cycle: Cycle,
    start: StartConsumer,
    webhook: Webhook,
    order: EventOrder,
    kafka_settings: KafkaSettings,
    command: list[str],
) -> None:
    """In Python no offset is committed before the kill: each event is read again, and those on record are skipped.

    In Java each offset is committed after its record.
    """
    commits_later = "consumer.py" in command[-1]
    make_tickets(support, 20, **FIRST_RESPONSE_OVERDUE)
    cycle()
    first_partition = order()[0]
    webhook.held_event_id = held = first_partition[-1]
    client = {**SAME_MEMBER, "auto.commit.interval.ms": "600000"}
    consumer = start(webhook.url, client=client)
    assert webhook.held.wait(60)
    recorded = webhook.accepted_ids()
    assert len(recorded) >= len(first_partition) - 1 > 1
    consumer.kill()
    assert (committed_count(kafka_settings) == 0) == commits_later
    webhook.release()
    wait_until(lambda: len(webhook.accepted) == len(recorded) + 1, what="the end of the held call")

    consumer = start(webhook.url, client=client)
    wait_until(lambda: len(webhook.accepted) >= 21, what="all escalations", seconds=60)
    assert consumer.end() == 0
    assert Counter(call.event_id for call in webhook.calls) == {
        event_id: 2 if event_id == held else 1 for partition in order() for event_id in partition
    }
    assert_in_order(webhook.accepted_ids(), order())
    read_again = {event_id for event_id in recorded if f"{event_id} is recorded" in consumer.output()}
    assert read_again == (set(recorded) if commits_later else set())


@only_python
def test_killed_between_call_and_record_only_that_call_is_repeated(
    support: Support, cycle: Cycle, start: StartConsumer, webhook: Webhook, order: EventOrder, store: Path
) -> None:
    make_tickets(support, 20, **FIRST_RESPONSE_OVERDUE)
    cycle()
    webhook.held_event_id = held = order()[0][-1]
    consumer = start(webhook.url)
    assert webhook.held.wait(60)
    with closing(sqlite3.connect(store, isolation_level=None)) as lock:
        lock.execute("begin immediate")  # the record waits
        webhook.release()
        consumer.wait_until_printed(f"escalated event {held}")
        consumer.kill()
    assert webhook.accepted_ids()[-1] == held

    consumer = start(webhook.url)
    wait_until(lambda: len(webhook.calls) >= 21, what="all escalations", seconds=60)
    assert consumer.end() == 0
    assert Counter(call.event_id for call in webhook.calls) - Counter(webhook.accepted_ids()) == {held: 1}
    assert_in_order(webhook.accepted_ids(), order())


def test_events_of_an_aborted_transaction_are_not_escalated(
    start: StartConsumer, webhook: Webhook, kafka_settings: KafkaSettings
) -> None:
    written: list[int | None] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        written.append(message.offset() if error is None else None)

    producer = Producer({"bootstrap.servers": kafka_settings.bootstrap_servers, "transactional.id": str(uuid.uuid4())})
    producer.init_transactions(20)
    producer.begin_transaction()
    for _ in range(3):
        producer.produce(kafka_settings.topic, event(), b"key", partition=0, on_delivery=delivered)
    assert producer.flush(20) == 0
    producer.abort_transaction(20)
    assert written == [0, 1, 2]
    committed = event()
    send(kafka_settings, committed)
    start(webhook.url)
    wait_until(lambda: len(webhook.calls) > 0, what="the committed event", seconds=60)
    assert [call.body for call in webhook.calls] == [committed]


def test_foreign_records_are_skipped_and_the_canary_is_recorded(
    start: StartConsumer, webhook: Webhook, kafka_settings: KafkaSettings, store: Path
) -> None:
    foreign = [
        None,
        b"",
        b"not JSON \x1b[31m",
        b"\xff\xfe",
        b"[" * 400_000,
        b'{"EventType": "TicketClosed"}',
        event(ContractVersion=2),
        event(EventType="TicketSlaBreachedKafkaEvent2"),
        event(EventId="' or 1=1 \ud800"),
    ]
    canary = event(TenantId=_CANARY_TENANT)
    # a new field, an unknown priority and kind
    last = event(Priority="\ud800", BreachKind="Third", Later={"EventId": 1}, Number='"TenantId":"' + _CANARY_TENANT)
    send(kafka_settings, *foreign, canary, last, last)
    consumer = start(webhook.url)
    wait_until(lambda: len(webhook.calls) > 0, what="the last event", seconds=60)
    canary_id, last_id = (json.loads(value)["EventId"] for value in (canary, last))
    consumer.wait_until_printed(f"skipped partition 0, offset {len(foreign) + 2}: event {last_id} is recorded")
    assert consumer.end() == 0
    assert [call.body for call in webhook.calls] == [last]
    for offset in range(len(foreign)):
        assert f"skipped partition 0, offset {offset}: it" in consumer.output()
    assert consumer.output().count("skipped partition 0, offset 6: its ContractVersion is not 1") == 1
    assert f"event {canary_id} of the canary is not escalated" in consumer.output()
    assert "\x1b" not in consumer.output()
    # Python's store is an SQLite file with its log beside it, Java's a folder with a file for each event
    assert (store / canary_id).exists() or canary_id.encode() in b"".join(
        file.read_bytes() for file in store.parent.glob("store*") if file.is_file()
    )


@only_python
def test_old_records_are_forgotten(
    start: StartConsumer, webhook: Webhook, kafka_settings: KafkaSettings, store: Path
) -> None:
    values = [event(), event()]
    send(kafka_settings, values[0])
    consumer = start(webhook.url)
    wait_until(lambda: len(webhook.calls) == 1, what="the first event", seconds=60)
    assert consumer.end() == 0
    ids = [json.loads(value)["EventId"] for value in values]
    with closing(sqlite3.connect(store, isolation_level=None)) as database:
        assert [row[0] for row in database.execute("select event_id from done")] == ids[:1]
        database.execute("update done set at = at - 31 * 86400")
        send(kafka_settings, values[1])
        consumer = start(webhook.url)
        wait_until(lambda: len(webhook.calls) == 2, what="the second event", seconds=60)
        assert consumer.end() == 0
        assert [row[0] for row in database.execute("select event_id from done")] == ids[1:]


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"SLA_WEBHOOK_URL": ""}, "SLA_WEBHOOK_URL is not set"),
        ({"SLA_WEBHOOK_URL": "hooks.example.com/secret"}, "SLA_WEBHOOK_URL is not of the form https://HOST/PATH"),
        ({"SLA_KAFKA_BOOTSTRAP_SERVERS": " "}, "SLA_KAFKA_BOOTSTRAP_SERVERS is not set"),
        ({"SLA_KAFKA_CLIENT_CONFIG": "security.protocol=secret"}, "SLA_KAFKA_CLIENT_CONFIG is not a JSON object"),
        ({"SLA_KAFKA_CLIENT_CONFIG": '{"security.protocoll": "SSL"}'}, "SLA_KAFKA_CLIENT_CONFIG: "),
        ({"SLA_CONSUMER_STORE": "/no/such/folder/x"}, "SLA_CONSUMER_STORE: /no/such/folder/x cannot be used"),
    ],
)
@only_python
def test_a_wrong_setting_ends_it_with_the_variable(
    variables: dict[str, str], message: str, start: StartConsumer, webhook: Webhook
) -> None:
    consumer = start(webhook.url, variables=variables)
    assert consumer.exit_code() == 1
    assert message in consumer.output()
    assert "Traceback" not in consumer.output()
    assert "secret" not in consumer.output()


@pytest.mark.parametrize("url", ["hooks.example.com/secret", "https://h/ secret", "ftp://h/secret"])
def test_a_malformed_url_is_not_repeated(url: str, start: StartConsumer) -> None:
    consumer = start(url)
    assert consumer.exit_code() == 1
    assert "SLA_WEBHOOK_URL is not of the form https://HOST/PATH" in consumer.output()
    assert "secret" not in consumer.output()
