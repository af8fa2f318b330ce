"""The example consumer while the webhook or Kafka is down, and while partitions move between consumers."""

import json
import signal
import time
from typing import Any

import psycopg
import pytest

from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.kafka.topics import create_topics
from sla_pipeline_tests.conftest import BrokerFactory
from sla_pipeline_tests.integration.conftest import Cycle
from sla_pipeline_tests.integration.examples.breach_events import assert_in_order, committed_count, event, send
from sla_pipeline_tests.integration.examples.conftest import SHORT_SESSION, EventOrder, StartConsumer
from sla_pipeline_tests.integration.examples.consumer_process import ConsumerProcess
from sla_pipeline_tests.integration.examples.webhook import Webhook
from sla_pipeline_tests.tickets import FIRST_RESPONSE_OVERDUE, make_tickets
from sla_pipeline_tests.waiting import wait_until

Support = psycopg.Connection[Any]


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
    last = event()
    webhook.held_event_id = json.loads(last)["EventId"]
    send(settings, last)
    assert webhook.held.wait(60)
    line_count = consumer.output().count("\n")
    broker.kill()
    webhook.release()  # its offset cannot be committed
    begin = time.monotonic()
    # long enough to see a client that connects without pauses
    wait_until(lambda: time.monotonic() - begin > 3, what="3 s")
    begin = time.monotonic()
    assert consumer.end() == 0
    assert time.monotonic() - begin < 9
    assert consumer.output().count("\n") - line_count < 25
    assert len(webhook.calls) == 2


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
