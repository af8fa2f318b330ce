"""Recovery from each state in which publishing stops: no event is doubled, none is left out."""

import pytest

from sla_pipeline.cycle import CycleTotals
from sla_pipeline.errors import FailClosed, PublisherBusy
from sla_pipeline.kafka.clients import TransactionalProducer
from sla_pipeline.kafka.events import read_events
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.kafka.topics import create_topics
from sla_pipeline.recovery.diagnosis import Diagnosis, State
from sla_pipeline.recovery.outbox_repair import RepairableOutbox
from sla_pipeline.recovery.repair import diagnose, repair
from sla_pipeline.recovery.topic_contents import published_record
from sla_pipeline_tests.integration.kafka.breach_records import BreachRecords, sequence_of
from sla_pipeline_tests.integration.kafka.conftest import OutboxFactory, Publish
from sla_pipeline_tests.integration.kafka.publisher_process import run_until_killed
from sla_pipeline_tests.integration.kafka.topic_administration import create_topic, delete_topic, expire


def lose_progress(settings: KafkaSettings) -> None:
    """Delete the progress topic and create an empty one by hand."""
    delete_topic(settings, settings.progress_topic)
    create_topic(settings, settings.progress_topic, config={"cleanup.policy": "compact"})


def assert_repaired(settings: KafkaSettings, outbox: RepairableOutbox, expected: State) -> Diagnosis:
    """Diagnosis and repair find ``expected``; afterwards all agrees."""
    assert diagnose(settings, outbox).state is expected
    found = repair(settings, outbox, run_id="recover")
    assert found.state is expected
    assert diagnose(settings, outbox).state is State.AGREED
    return found


def test_a_healthy_installation_is_left_as_it_is(
    kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish, outbox: RepairableOutbox
) -> None:
    records.add(10)
    publish(kafka_settings)
    records.add(5)
    found = assert_repaired(kafka_settings, outbox, State.AGREED)
    assert (found.common_seq, found.position, found.last_seq, found.topic_count) == (10, 10, 15, 10)
    assert publish(kafka_settings) == CycleTotals(published_count=5, transaction_count=1)
    records.assert_each_published_once_in_order(kafka_settings)


def test_a_lost_progress_topic(
    kafka_settings: KafkaSettings,
    records: BreachRecords,
    publish: Publish,
    outbox: RepairableOutbox,
    worker_url: str,
) -> None:
    """The worst moment for it: Postgres does not know yet that the last transaction is out."""
    records.add(10)
    publish(kafka_settings)
    records.add(10)
    run_until_killed(kafka_settings, worker_url, at="committed")
    records.add(5)
    lose_progress(kafka_settings)
    assert records.positions() == (10, 25)
    found = assert_repaired(kafka_settings, outbox, State.PROGRESS_LOST)
    assert found.position == 20
    assert publish(kafka_settings) == CycleTotals(published_count=5, transaction_count=1)
    records.assert_each_published_once_in_order(kafka_settings)


def test_both_topics_lost_leave_the_position_in_postgres(
    kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish, outbox: RepairableOutbox
) -> None:
    """The position first; whether the events are published again is a decision of its own."""
    records.add(10)
    publish(kafka_settings)
    records.add(5)
    delete_topic(kafka_settings, kafka_settings.progress_topic)
    delete_topic(kafka_settings, kafka_settings.topic)
    create_topics(kafka_settings)
    found = repair(kafka_settings, outbox, run_id="recover")
    assert (found.state, found.position, found.missing) == (State.PROGRESS_LOST, 10, (range(1, 11),))
    assert publish(kafka_settings) == CycleTotals(published_count=5, transaction_count=1)
    assert sorted(int(event.headers["outbox-seq"]) for event in read_events(kafka_settings)) == [11, 12, 13, 14, 15]
    assert assert_repaired(kafka_settings, outbox, State.EVENTS_MISSING).missing == (range(1, 11),)
    assert sorted(int(event.headers["outbox-seq"]) for event in read_events(kafka_settings)) == list(range(1, 16))


def test_a_topic_that_another_program_filled_before(
    kafka_bootstrap: str,
    kafka_settings: KafkaSettings,
    records: BreachRecords,
    publish: Publish,
    outbox: RepairableOutbox,
) -> None:
    """A first installation beside an older publisher: creation refuses, the operator adopts the topic."""
    settings = KafkaSettings(kafka_bootstrap, f"{kafka_settings.topic}.adopted")
    create_topic(settings, settings.topic)
    create_topic(settings, settings.progress_topic, config={"cleanup.policy": "compact"})
    foreign = TransactionalProducer(KafkaSettings(kafka_bootstrap, kafka_settings.topic))
    foreign.fence(10)
    foreign.begin()
    foreign.produce(settings.topic, "something", b"key")
    foreign.deliver(10)
    foreign.commit(10)
    foreign.drop()
    with pytest.raises(FailClosed, match="another program published there before"):
        create_topics(settings)
    records.add(3)
    assert assert_repaired(settings, outbox, State.PROGRESS_LOST).foreign_count == 1
    assert publish(settings) == CycleTotals(published_count=3, transaction_count=1)


@pytest.mark.parametrize("progress_too", [False, True], ids=["progress intact", "progress lost too"])
def test_a_database_restored_from_a_backup_that_went_on(
    *,
    progress_too: bool,
    kafka_settings: KafkaSettings,
    records: BreachRecords,
    publish: Publish,
    outbox: RepairableOutbox,
) -> None:
    """Twenty are published, twelve in the backup; since then five lost tickets were marked again, amid seven new."""
    records.add(20)
    publish(kafka_settings)
    before = records.expected()
    records.rewind(12)
    records.add(3, run_id="after-restore")
    records.add(5, run_id="after-restore", ticket_ids=[ticket_id for _, ticket_id, _ in before[14:19]])
    records.add(4, run_id="after-restore")
    new_tickets = [ticket_id for seq, ticket_id, _ in records.expected() if seq in (13, 14, 15, 21, 22, 23, 24)]
    if progress_too:
        lose_progress(kafka_settings)
    with pytest.raises(FailClosed):
        publish(kafka_settings)

    found = assert_repaired(kafka_settings, outbox, State.DATABASE_REWOUND)

    assert (found.common_seq, found.position, found.lost_count) == (12, 20, 8)
    after = records.expected()
    assert after[:20] == before
    assert [ticket_id for _, ticket_id, _ in after[20:]] == new_tickets
    assert records.positions() == (20, 27)
    assert publish(kafka_settings) == CycleTotals(published_count=7, transaction_count=1)
    records.assert_each_published_once_in_order(kafka_settings)


def test_a_database_that_is_merely_behind(
    kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish, outbox: RepairableOutbox
) -> None:
    records.add(20)
    publish(kafka_settings)
    records.rewind(0)
    assert assert_repaired(kafka_settings, outbox, State.DATABASE_REWOUND).lost_count == 20
    records.add(1)
    assert publish(kafka_settings) == CycleTotals(published_count=1, transaction_count=1)
    records.assert_each_published_once_in_order(kafka_settings)


def test_events_that_are_gone_from_the_topic_are_not_guessed(
    kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish, outbox: RepairableOutbox
) -> None:
    records.add(20)
    publish(kafka_settings)
    records.rewind(12)
    expire(kafka_settings, {0: -1, 1: -1, 2: -1})
    before = records.expected()
    assert diagnose(kafka_settings, outbox).state is State.UNDECIDABLE
    with pytest.raises(FailClosed, match="nothing was changed: the progress record states that 20 is published"):
        repair(kafka_settings, outbox, run_id="recover")
    assert records.expected() == before
    assert records.positions() == (12, 12)


def test_events_that_expire_between_diagnosis_and_confirmation_change_nothing(
    kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish, outbox: RepairableOutbox
) -> None:
    records.add(20)
    publish(kafka_settings)
    records.rewind(12)
    confirmed = diagnose(kafka_settings, outbox)
    assert confirmed.state is State.DATABASE_REWOUND
    expire(kafka_settings, {first_partition_of(kafka_settings, above=12): -1})
    before = records.expected()
    with pytest.raises(FailClosed, match="nothing was changed"):
        repair(kafka_settings, outbox, run_id="recover", confirmed=confirmed)
    assert (records.expected(), records.positions()) == (before, (12, 12))


@pytest.mark.parametrize("how_many", ["all", "one partition"])
def test_events_that_expire_between_the_two_readings_of_a_repair_change_nothing(
    *,
    how_many: str,
    kafka_settings: KafkaSettings,
    records: BreachRecords,
    publish: Publish,
    outbox: RepairableOutbox,
) -> None:
    """The first reading saw them all, so the repair looks possible; the second is the one that writes."""
    records.add(20)
    publish(kafka_settings)
    records.rewind(12)
    confirmed = diagnose(kafka_settings, outbox)
    partition = first_partition_of(kafka_settings, above=12)
    going = [
        seq
        for seq, its in partitions_of(kafka_settings).items()
        if seq > 12 and (how_many == "all" or its == partition)
    ]
    before = records.expected()
    readings: list[int] = []

    def expire_behind_the_first_reading(read_count: int, total: int) -> None:
        if read_count == 20 and not readings:
            readings.append(read_count)
            expire(kafka_settings, dict.fromkeys(range(3) if how_many == "all" else [partition], -1))

    with pytest.raises(FailClosed, match=f"the event with sequence {min(going)} is gone since the first reading"):
        repair(
            kafka_settings, outbox, run_id="recover", confirmed=confirmed, on_progress=expire_behind_the_first_reading
        )
    assert readings == [20]
    assert (records.expected(), records.positions()) == (before, (12, 12))


@pytest.mark.parametrize(
    ("sequences", "reason"),
    [
        ([13, 14, 16, 17], "sequence 15 is missing"),
        ([14, 15, 16, 17], "sequence 13 is missing"),
        ([13, 14, 15, 16], "sequence 17 is missing"),
        ([], "sequence 13 is missing"),
        ([13, 14, 15, 16, 17, 18], "there are others"),
        ([13, 14, 15, 16, 17, 17], "cannot be written back: UniqueViolation"),
    ],
)
def test_postgres_takes_back_a_whole_run_of_sequences_only(
    sequences: list[int],
    reason: str,
    kafka_settings: KafkaSettings,
    records: BreachRecords,
    outbox: RepairableOutbox,
) -> None:
    records.add(20)
    lost = {record.seq: published_record(record, "") for record in outbox.records_from(13, 6)}
    records.rewind(12)
    records.add(2, run_id="after-restore")
    before, positions = records.expected(), records.positions()
    with pytest.raises(FailClosed, match=reason):
        outbox.write_back([lost[seq] for seq in sequences], common_seq=12, last_seq=17)
    assert (records.expected(), records.positions()) == (before, positions)
    # a later attempt of the same session finds no remains of it
    outbox.write_back([lost[seq] for seq in (17, 13, 15, 14, 16)], common_seq=12, last_seq=17)
    assert records.positions() == (17, 19)


def test_a_lost_record_whose_ticket_has_an_older_one_is_not_written_back(
    records: BreachRecords, outbox: RepairableOutbox
) -> None:
    records.add(3)
    first = outbox.records_from(1, 1)[0]
    before = records.expected()
    with pytest.raises(FailClosed, match="cannot be written back: UniqueViolation"):
        outbox.write_back([published_record(first._replace(seq=3), "")], common_seq=2, last_seq=3)
    assert records.expected() == before


def partitions_of(settings: KafkaSettings) -> dict[int, int]:
    """Return the partition of each sequence on the topic."""
    return {sequence_of(event): event.partition for event in read_events(settings)}


def first_partition_of(settings: KafkaSettings, *, above: int) -> int:
    """Return the partition of the first sequence after ``above``."""
    return partitions_of(settings)[above + 1]


def test_a_publisher_at_work_is_not_disturbed_by_a_diagnosis(
    kafka_settings: KafkaSettings, outbox: RepairableOutbox, outbox_factory: OutboxFactory
) -> None:
    with outbox_factory() as publisher:
        assert publisher.try_lock()
        with pytest.raises(PublisherBusy, match="a publisher holds the relay's lock"):
            diagnose(kafka_settings, outbox)
