"""The example consumer against the real broker and a local webhook: killed, refused, rebalanced, fed foreign records.

Each test compares the calls with the topic: every event was accepted at least once, in the order of its partition, and
more than once only where a crash between POST and record allows it.
"""

import json
import signal
import sqlite3
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from sla_pipeline.event import event_id
from sla_pipeline.kafka.events import read_events
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.kafka.topics import create_topics
from sla_pipeline_tests.conftest import BrokerFactory
from sla_pipeline_tests.integration.conftest import Cycle
from sla_pipeline_tests.integration.examples.conftest import SAME_MEMBER, SHORT_SESSION, EventOrder, StartConsumer
from sla_pipeline_tests.integration.examples.consumer_process import ConsumerProcess
from sla_pipeline_tests.integration.examples.webhook import Webhook
from sla_pipeline_tests.tickets import FIRST_RESPONSE_OVERDUE, RESOLUTION_OVERDUE, make_ticket, make_tickets
from sla_pipeline_tests.waiting import wait_until

Support = psycopg.Connection[Any]
_CANARY_TENANT = "00000000-0000-4000-8000-000000ca4a47"


@pytest.fixture(params=["python", "java"])
def command(request: pytest.FixtureRequest, command: list[str]) -> list[str]:
    """Command of each language; a test without the mark ``only_python`` holds for both."""
    return request.getfixturevalue("java_command") if request.param == "java" else command


only_python = pytest.mark.parametrize("command", ["python"], indirect=True)
"""Mark of the tests of SQLite, and of the texts of wrong settings."""


def assert_in_order(ids: Sequence[str], order: Sequence[Sequence[str]]) -> None:
    """Fail unless ``ids`` are all events of the topic, each once, in the order of its partition."""
    assert sorted(ids) == sorted(event for partition in order for event in partition)
    for partition in order:
        assert [event for event in ids if event in partition] == partition


def committed_count(settings: KafkaSettings) -> int:
    """Return the number of partitions for which the group has committed an offset."""
    consumer = Consumer({"bootstrap.servers": settings.bootstrap_servers, "group.id": f"group-of-{settings.topic}"})
    try:
        offsets = consumer.committed([TopicPartition(settings.topic, partition) for partition in range(3)], timeout=20)
        return sum(place.offset >= 0 for place in offsets)
    finally:
        consumer.close()


def send(settings: KafkaSettings, *values: bytes | None) -> None:
    """Send records to partition 0, without a transaction, as a foreign program does."""
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers})
    for value in values:
        producer.produce(settings.topic, value, b"key", partition=0)
    assert producer.flush(20) == 0


def event(**fields: object) -> bytes:
    """Return a breach event of a new ticket."""
    ticket_id = str(uuid.uuid4())
    values: dict[str, object] = {
        "EventId": event_id(ticket_id),
        "EventType": "TicketSlaBreachedKafkaEvent",
        "ContractVersion": 1,
        "TicketId": ticket_id,
        "TenantId": "0a11ce00-0000-4000-8000-000000000001",
    }
    return json.dumps(values | fields).encode()


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
    assert {event_id: count for event_id, count in webhook_counts(webhook).items() if count > 1} == {held: 2}
    assert_in_order(webhook.accepted_ids(), order())


def webhook_counts(webhook: Webhook) -> Counter[str]:
    """Return the number of calls for each event."""
    return Counter(call.event_id for call in webhook.calls)


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


def test_while_the_webhook_is_down_nothing_is_lost_and_the_pauses_grow(
    support: Support, cycle: Cycle, start: StartConsumer, order: EventOrder
) -> None:
    make_tickets(support, 12, **FIRST_RESPONSE_OVERDUE)
    cycle()
    with Webhook() as webhook:
        consumer = start(webhook.url)
        begin = time.monotonic()
        consumer.wait_until_printed("next attempt in 2 s")
        answers = iter([500, 302])
        webhook.status_of = lambda _: next(answers, 200)
        webhook.start()
        wait_until(lambda: len(webhook.accepted) == 12, what="all escalations", seconds=60)
        elapsed = time.monotonic() - begin
        assert consumer.end() == 0
        assert_in_order([call.event_id for call in webhook.accepted], order())
        assert [call.status for call in webhook.calls] == [500, 302] + [200] * 12
        assert {call.method for call in webhook.calls} == {"POST"}
        first = webhook.calls[0].event_id
        attempts = [line for line in consumer.output().splitlines() if "is not escalated" in line]
        assert [line.partition("next attempt in ")[2] for line in attempts] == ["1 s", "2 s", "4 s", "8 s"]
        assert all(f"event {first} is not escalated: " in line for line in attempts)
        assert "HTTP status 500" in attempts[2]
        assert "HTTP status 302" in attempts[3]
        assert elapsed > 1 + 2 + 4 + 8 - 1
        # its URL may hold a secret
        assert "/escalations" not in consumer.output()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_while_the_webhook_is_down(
    number: signal.Signals, start: StartConsumer, kafka_settings: KafkaSettings, webhook: Webhook
) -> None:
    only = event()
    send(kafka_settings, only)
    webhook.status_of = lambda _: 503
    consumer = start(webhook.url)
    consumer.wait_until_printed("next attempt in 4 s")
    begin = time.monotonic()
    assert consumer.end(number) == 0
    assert time.monotonic() - begin < 3.5
    assert "Traceback" not in consumer.output()
    assert committed_count(kafka_settings) == 0


def test_of_two_consumers_one_is_killed_and_the_other_goes_on(
    support: Support, cycle: Cycle, start: StartConsumer, order: EventOrder, webhook: Webhook
) -> None:
    with Webhook() as doomed:
        doomed.status_of = lambda _: 503
        doomed.start()
        first = start(doomed.url, client=SHORT_SESSION)
        make_tickets(support, 30, **FIRST_RESPONSE_OVERDUE)
        cycle()
        first.wait_until_printed("next attempt in 2 s")
        # The first consumer gives up some partitions while it waits, perhaps that of its event.
        second = start(webhook.url, client=SHORT_SESSION)
        wait_until(lambda: len(webhook.calls) > 0, what="the second consumer's first escalation", seconds=60)
        calls_before = len(doomed.calls)
        wait_until(lambda: len(doomed.calls) > calls_before, what="another attempt of the first", seconds=60)
        first.kill()
        wait_until(lambda: len(webhook.calls) >= 30, what="all escalations", seconds=60)
        assert second.end() == 0
        assert doomed.accepted == []
    assert_in_order([call.event_id for call in webhook.calls], order())


def test_partitions_move_while_an_event_waits(
    support: Support, cycle: Cycle, start: StartConsumer, order: EventOrder, webhook: Webhook
) -> None:
    """The first consumer holds an event of a partition that moves; each event is accepted once, by either."""
    make_tickets(support, 30, **FIRST_RESPONSE_OVERDUE)
    cycle()
    webhook.status_of = lambda _: 503
    consumers: list[ConsumerProcess] = []
    for _ in range(3):
        consumers.append(start(webhook.url, client=SHORT_SESSION))
        consumers[-1].wait_until_printed("next attempt in 1 s")
    assert len({call.event_id for call in webhook.calls}) == 3
    webhook.status_of = lambda _: 200
    # two leave, and the partitions that were paused while they moved go on at the first, which does not wait any more
    consumers[0].wait_until_printed("escalated event")
    for consumer in consumers[1:]:
        assert consumer.end() == 0
    wait_until(lambda: len(webhook.accepted) >= 30, what="all escalations", seconds=60)
    make_tickets(support, 30, **FIRST_RESPONSE_OVERDUE)
    cycle()
    wait_until(lambda: len(webhook.accepted) >= 60, what="the escalations of the second cycle", seconds=60)
    assert consumers[0].end() == 0
    assert_in_order([call.event_id for call in webhook.accepted], order())


def test_a_consumer_that_lost_its_partitions_leaves_its_event_to_the_next_owner(
    start: StartConsumer, webhook: Webhook, kafka_settings: KafkaSettings
) -> None:
    send(kafka_settings, event())
    webhook.status_of = lambda _: 503
    first = start(webhook.url, client=SHORT_SESSION)
    first.wait_until_printed("next attempt in 2 s")
    first.pause()
    second = start(webhook.url, client=SHORT_SESSION)
    second.wait_until_printed("next attempt in 1 s")
    first.resume()
    first.wait_until_printed("the event in work is left to the next owner")
    webhook.status_of = lambda _: 200
    wait_until(lambda: len(webhook.accepted) > 0, what="the escalation", seconds=60)
    assert (first.end(), second.end()) == (0, 0)
    assert len(webhook.accepted) == 1


def test_kafka_may_be_down_in_between_and_at_the_end(
    own_broker: BrokerFactory, start: StartConsumer, webhook: Webhook
) -> None:
    broker = own_broker()
    settings = KafkaSettings(broker.bootstrap_servers)
    create_topics(settings)
    consumer = start(
        webhook.url,
        variables={"SLA_KAFKA_BOOTSTRAP_SERVERS": settings.bootstrap_servers, "SLA_KAFKA_TOPIC": settings.topic},
    )
    send(settings, event())
    wait_until(lambda: len(webhook.calls) == 1, what="the first event", seconds=60)
    broker.stop()
    broker.start()
    send(settings, event())
    wait_until(lambda: len(webhook.calls) == 2, what="the second event", seconds=60)
    line_count, begin = consumer.output().count("\n"), time.monotonic()
    broker.kill()
    # long enough to see a client that connects without pauses
    wait_until(lambda: time.monotonic() - begin > 3, what="3 s")
    begin = time.monotonic()
    assert consumer.end() == 0
    assert time.monotonic() - begin < 9
    assert consumer.output().count("\n") - line_count < 25
    assert len(webhook.calls) == 2


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
