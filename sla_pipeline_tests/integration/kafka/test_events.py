"""Reading the event topic as a consumer does, and the position behind aborted transactions."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sla_pipeline.errors import KafkaSetupError, KafkaUnavailable
from sla_pipeline.kafka import offsets
from sla_pipeline.kafka.clients import TransactionalProducer
from sla_pipeline.kafka.deadline import Deadline
from sla_pipeline.kafka.events import ReceivedEvent, read_events
from sla_pipeline.kafka.progress import PROGRESS_KEY, PROGRESS_PARTITION, Progress, ProgressReader
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline_tests.integration.kafka.breach_records import BreachRecords, sequence_of
from sla_pipeline_tests.integration.kafka.conftest import Publish
from sla_pipeline_tests.integration.kafka.topic_administration import expire


def leave_open(settings: KafkaSettings, count: int) -> TransactionalProducer:
    """Return an open transaction with ``count`` events and progress records, delivered."""
    producer = TransactionalProducer(settings)
    producer.connect(10)
    producer.fence(10)
    producer.begin()
    for seq in range(count):
        producer.produce(
            settings.topic, "never committed", str(seq).encode(), headers=[("outbox-seq", str(seq).encode())]
        )
        producer.produce(
            settings.progress_topic,
            Progress.without_events(999, "f" * 32, "aborted").to_json(),
            PROGRESS_KEY,
            partition=PROGRESS_PARTITION,
        )
    producer.deliver(10)
    return producer


def test_reads_what_was_there_at_the_start_and_ends(
    kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish
) -> None:
    records.add(1200)
    publish(kafka_settings, transaction_limit=500)
    reported: list[tuple[int, int]] = []
    events = list(read_events(kafka_settings, on_progress=lambda read, total: reported.append((read, total))))
    assert sorted(map(sequence_of, events)) == list(range(1, 1201))
    assert reported[-1][0] == 1200
    assert 1200 < reported[-1][1] <= 1200 + 3 * 3
    assert all(event.timestamp_ms > 0 for event in events)


@pytest.fixture
def once_the_ends_are_known(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Run an action between the look-up of the partitions' ends and the first fetch, which then holds its result."""

    def arrange(action: Callable[[], object]) -> None:
        def end_offsets_and_action(*arguments: Any) -> dict[int, int]:
            ends = offsets.end_offsets(*arguments)
            action()
            return ends

        monkeypatch.setattr("sla_pipeline.kafka.events.end_offsets", end_offsets_and_action)

    return arrange


@pytest.mark.parametrize(
    ("at_the_end", "readable"),
    [("events", range(1, 11)), ("aborted records", range(1, 11)), ("nothing", ()), ("what has expired", ())],
)
def test_what_is_written_while_it_reads_is_not_read(
    at_the_end: str,
    readable: Sequence[int],
    once_the_ends_are_known: Callable[[Callable[[], object]], None],
    kafka_settings: KafkaSettings,
    records: BreachRecords,
    publish: Publish,
) -> None:
    """Ten events are there at its start, or none; twenty more are in the first fetch."""
    if at_the_end != "nothing":
        records.add(10)
        publish(kafka_settings)
    if at_the_end == "aborted records":
        # aborted by the fence of the next publisher, after the look-up of the ends
        leave_open(kafka_settings, 9).drop()

    def go_on() -> None:
        records.add(20)
        publish(kafka_settings)
        if at_the_end == "what has expired":
            expire(kafka_settings, dict.fromkeys(range(3), -1))
            records.add(20)
            publish(kafka_settings)

    once_the_ends_are_known(go_on)
    assert sorted(map(sequence_of, read_events(kafka_settings))) == list(readable)


def test_an_empty_topic_ends_at_once(kafka_settings: KafkaSettings) -> None:
    assert list(read_events(kafka_settings)) == []
    assert list(read_events(kafka_settings, start="end")) == []


def test_a_missing_topic_is_reported(kafka_bootstrap: str) -> None:
    with pytest.raises(KafkaSetupError, match="topic no-such-topic does not exist"):
        next(read_events(KafkaSettings(kafka_bootstrap, "no-such-topic")))


def test_follow_from_the_end_gives_only_what_comes_later(
    kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish
) -> None:
    records.add(10)
    publish(kafka_settings)
    received: list[ReceivedEvent] = []
    enough = threading.Event()

    def follow() -> None:
        for event in read_events(kafka_settings, follow=True, start="beginning"):
            received.append(event)
            if len(received) == 10:
                enough.set()
            if len(received) == 15:
                return

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    assert enough.wait(60)
    records.add(5)
    publish(kafka_settings)
    follower.join(60)
    assert sorted(map(sequence_of, received)) == list(range(1, 16))


def test_an_open_transaction_ends_in_a_clear_error_after_a_deadline(
    kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish
) -> None:
    records.add(5)
    publish(kafka_settings)
    open_transaction = leave_open(kafka_settings, 9)
    received: list[ReceivedEvent] = []
    with pytest.raises(
        KafkaUnavailable,
        match=r"stands still: partition \d is readable to offset \d+ of \d+ only.*a transaction is open",
    ):
        received.extend(read_events(kafka_settings, stall_seconds=0.5))
    open_transaction.drop()
    assert set(map(sequence_of, received)) <= {1, 2, 3, 4, 5}


def test_aborted_events_are_never_seen_and_the_position_is_found_behind_hundreds_of_them(
    kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish
) -> None:
    records.add(5)
    publish(kafka_settings)
    leave_open(kafka_settings, 600).drop()
    records.add(5)
    assert publish(kafka_settings).published_count == 5
    records.assert_each_published_once_in_order(kafka_settings)


def test_without_a_fence_the_position_is_readable_beside_an_open_transaction(
    kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish
) -> None:
    records.add(5)
    publish(kafka_settings)
    open_transaction = leave_open(kafka_settings, 1)
    reader = ProgressReader(kafka_settings)
    progress = reader.read(Deadline(20), behind_fence=False)
    assert progress is not None
    assert progress.seq == 5
    with pytest.raises(KafkaUnavailable, match=r"could not be read up to offset \d+ in time"):
        reader.read(Deadline(1))
    reader.close()
    open_transaction.drop()
