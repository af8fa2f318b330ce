"""Transactions that the broker never ends (KAFKA-20734): publishing goes on, and nothing is doubled or lost."""

import os
import signal

import pytest
from confluent_kafka import Producer

from sla_pipeline.cycle import CycleTotals
from sla_pipeline.errors import FailClosed
from sla_pipeline.event import event_headers, event_key
from sla_pipeline.kafka.hanging import visible_part
from sla_pipeline.kafka.progress import Progress
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.kafka.topics import create_topics
from sla_pipeline.outbox import BreachRecord
from sla_pipeline_tests.conftest import BrokerFactory
from sla_pipeline_tests.integration.kafka.breach_records import BreachRecords
from sla_pipeline_tests.integration.kafka.conftest import OutboxFactory, Publish
from sla_pipeline_tests.integration.kafka.hanging_records import UNVERIFIED, leave_hanging, write_with_headers
from sla_pipeline_tests.integration.kafka.slow_link import SlowLink

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def settings(own_broker: BrokerFactory) -> KafkaSettings:
    """Return settings for a broker on which a test can leave records without an end."""
    settings = KafkaSettings(own_broker(UNVERIFIED).bootstrap_servers)
    create_topics(settings)
    return settings


def rows(outbox_factory: OutboxFactory, first: int, count: int) -> list[BreachRecord]:
    with outbox_factory() as outbox:
        return outbox.records_from(first, count)


@pytest.mark.parametrize(
    "committed", [True, False], ids=["a commit that was answered and noted", "a takeover that was given up"]
)
def test_what_hangs_and_is_not_visible_is_published_once(
    committed: bool, settings: KafkaSettings, records: BreachRecords, publish: Publish, outbox_factory: OutboxFactory
) -> None:
    records.add(5)
    publish(settings)
    records.add(9)
    hung = rows(outbox_factory, 6, 9)
    leave_hanging(settings, {0: hung[:4], 2: hung[4:]}, Progress.of(hung, "run-that-hung") if committed else None)
    if committed:
        records.query("update support.ticket_sla_relay set published_seq = 14 where id = 1 returning id")
    records.add(3)
    assert publish(settings) == CycleTotals(published_count=12, transaction_count=1)
    records.assert_each_published_once_in_order(settings)
    assert records.positions() == (17, 17)
    assert publish(settings) == CycleTotals()


def test_an_event_that_the_visible_position_covers_is_not_aborted(
    settings: KafkaSettings, records: BreachRecords, publish: Publish, outbox_factory: OutboxFactory
) -> None:
    records.add(5)
    publish(settings)
    # another program's record is among the visible ones
    write_with_headers(settings, 1, [(b"\xff", b"1"), (b"outbox-seq", b"9" * 5_000)])
    records.add(1)
    leave_hanging(settings, {1: rows(outbox_factory, 4, 1)}, None)
    for _ in range(2):
        with pytest.raises(
            FailClosed,
            match=rf"never ended .* in {settings.topic}-1, and the visible progress 5 covers .* sequence 4: .*",
        ):
            publish(settings)
    assert records.positions() == (5, 6)


def test_a_position_that_hangs_below_visible_events_is_not_aborted(
    settings: KafkaSettings, records: BreachRecords, publish: Publish, outbox_factory: OutboxFactory
) -> None:
    records.add(5)
    (last,) = rows(outbox_factory, 5, 1)
    leave_hanging(settings, {}, Progress.of([last], "run-that-hung"))
    producer = Producer({"bootstrap.servers": settings.bootstrap_servers})
    headers = event_headers(correlation_id=last.correlation_id, outbox_seq=last.seq)
    producer.produce(settings.topic, last.payload, event_key(last.ticket_id), headers=list(headers))
    assert producer.flush(20) == 0
    with pytest.raises(
        FailClosed,
        match=r"events up to sequence 5 are visible elsewhere, beyond the visible progress 0.*sla-pipeline recover",
    ):
        publish(settings)
    assert records.positions() == (0, 5)


@pytest.mark.parametrize(
    ("progress_seq", "hanging_seqs", "visible_seqs", "message"),
    [
        (5, [6, 8], [3, 5, 0], ""),
        (5, [], [5], ""),
        (0, [1], [], ""),
        (5, [6], [3, 7], "up to sequence 7 are visible elsewhere, beyond the visible progress 5"),
        (5, [], [6], "up to sequence 6"),
        (5, [8, 5], [4], "the visible progress 5 covers its event of sequence 5"),
    ],
)
def test_position_and_events_must_be_on_the_same_side(
    progress_seq: int, hanging_seqs: list[int], visible_seqs: list[int], message: str
) -> None:
    found = visible_part(progress_seq, hanging_seqs, visible_seqs)
    assert message in found
    assert bool(message) == bool(found)


def test_a_broker_killed_between_the_answer_and_the_end_markers(
    own_broker: BrokerFactory, records: BreachRecords, publish: Publish
) -> None:
    """The real sequence of events: the broker may or may not write the markers after its restart; both are right."""
    link = SlowLink()
    broker = own_broker({"advertised.listeners": f"PLAINTEXT://127.0.0.1:{link.port}"})
    link.target_port = int(broker.bootstrap_servers.rpartition(":")[2])
    settings = KafkaSettings(broker.bootstrap_servers)
    create_topics(settings)

    def keep_the_markers_back(step: str) -> None:
        # the broker sends markers to its own advertised address, after it has answered the commit
        if step == "flushed":
            link.bytes_per_second = 500
        if step == "committed":
            os.kill(broker.service.pid, signal.SIGKILL)

    for _ in range(3):
        records.add(10)
        publish(settings, on_step=keep_the_markers_back)
        broker.kill()
        link.bytes_per_second = 0
        broker.start()
        records.add(5)
        publish(settings)
        records.assert_each_published_once_in_order(settings)
    link.close()
