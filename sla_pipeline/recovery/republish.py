"""Publish breach records again whose events are provably not on the topic, each once, despite any interruption.

The events are sent in transactions of a bounded size under the publisher's own ``transactional.id``, one producer each.
Every transaction also holds a progress record that states the same position as before. So two recoveries, or a recovery
and a publisher, exclude each other even where the lock in Postgres was lost unnoticed: every committed transaction
writes a progress record, and one begins only while the newest record, read behind the fence, is still the one that was
newest when the topic was read, or the one that the previous transaction wrote. From the fence on, no other process can
commit. After a crash the next recovery reads the topic and finds fewer missing events.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, islice

from sla_pipeline.errors import FailClosed, PublisherFenced
from sla_pipeline.event import REPUBLISHED_HEADER, event_headers, event_key
from sla_pipeline.kafka.clients import ANY_PARTITION, TransactionalProducer, translated
from sla_pipeline.kafka.deadline import Deadline
from sla_pipeline.kafka.events import OnProgress
from sla_pipeline.kafka.progress import PROGRESS_KEY, PROGRESS_PARTITION, Progress, ProgressReader
from sla_pipeline.kafka.refusals import fence
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.kafka.topics import check_topics
from sla_pipeline.outbox import BreachRecord, Outbox

__all__ = ["TRANSACTION_RECORDS", "missing_records", "republish"]

TRANSACTION_RECORDS = 500
"""Most events of one transaction: some 350 kB, which even a link of 30 kB/s carries within the time for delivery."""

# Bounds each call; a healthy broker answers in milliseconds.
_CALL_SECONDS = 8.0
# Bounds one delivery: together with the commit it stays below the transaction's timeout of 30 s.
_DELIVERY_SECONDS = 20.0


def republish(
    settings: KafkaSettings,
    outbox: Outbox,
    missing: Sequence[range],
    *,
    last_progress: Progress,
    run_id: str,
    deadline: Deadline,
    on_progress: OnProgress | None = None,
) -> None:
    """Publish the records with the sequences ``missing``, in order, unchanged, with the header ``republished-by``.

    ``last_progress`` is the progress record that was the newest, behind a fence, when the topic was read. Raise
    ``PublisherFenced`` when another one follows it; events committed until then stay, and are not missing any more.
    """
    largest_batch_bytes = check_topics(settings).max_message_bytes
    records = missing_records(outbox, missing)
    done, total = 0, sum(map(len, missing))
    while batch := list(islice(records, TRANSACTION_RECORDS)):
        producer = TransactionalProducer(settings, largest_batch_bytes=largest_batch_bytes)
        try:
            with translated(settings, "publishing missing events again", producer.reports, topic=settings.topic):
                last_progress = _transact(
                    settings, outbox, producer, batch, last_progress=last_progress, run_id=run_id, deadline=deadline
                )
        finally:
            producer.drop()
        done += len(batch)
        if on_progress is not None:
            on_progress(done, total)


def missing_records(outbox: Outbox, missing: Sequence[range]) -> Iterator[BreachRecord]:
    """Yield the records with these sequences, in order, with one page in memory.

    Raise ``FailClosed`` when a record was deleted.
    """
    sequences = chain.from_iterable(missing)
    seq = next(sequences, None)
    while seq is not None:
        page = {record.seq: record for record in outbox.records_from(seq, TRANSACTION_RECORDS)}
        last = max(page, default=seq)
        while seq is not None and seq <= last:
            if seq not in page:
                raise FailClosed(
                    f"breach record {seq} was deleted meanwhile, so its event cannot be published again; run it again"
                )
            yield page[seq]
            seq = next(sequences, None)


def _transact(
    settings: KafkaSettings,
    outbox: Outbox,
    producer: TransactionalProducer,
    records: Sequence[BreachRecord],
    *,
    last_progress: Progress,
    run_id: str,
    deadline: Deadline,
) -> Progress:
    """Publish the records in one transaction; return the progress record that it wrote."""
    producer.connect(deadline.timeout_seconds(_CALL_SECONDS))
    fence(settings, producer, deadline.timeout_seconds(_CALL_SECONDS))
    reader = ProgressReader(settings)
    try:
        newest = reader.read(deadline)
    finally:
        reader.close()
    if not outbox.holds_lock() or newest != last_progress:
        raise PublisherFenced(
            f"another publisher, or another `sla-pipeline recover`, has taken over meanwhile; records {records[0].seq} "
            f"to {records[-1].seq} and what follows were not published by this one, run it again"
        )
    producer.begin()
    for record in records:
        headers = [
            *event_headers(correlation_id=record.correlation_id, outbox_seq=record.seq),
            (REPUBLISHED_HEADER, run_id.encode()),
        ]
        _produce(producer, deadline, settings.topic, record.payload, event_key(record.ticket_id), headers=headers)
    written = Progress.without_events(last_progress.seq, last_progress.digest, run_id)
    _produce(producer, deadline, settings.progress_topic, written.to_json(), PROGRESS_KEY, partition=PROGRESS_PARTITION)
    producer.deliver(deadline.timeout_seconds(_DELIVERY_SECONDS))
    producer.commit(deadline.timeout_seconds(_CALL_SECONDS))
    return written


def _produce(
    producer: TransactionalProducer,
    deadline: Deadline,
    topic: str,
    value: str | bytes,
    key: bytes,
    *,
    headers: Sequence[tuple[str, bytes]] = (),
    partition: int = ANY_PARTITION,
) -> None:
    """Queue a record; if the queue is full, deliver it first.

    The client may be configured with a queue smaller than a transaction.
    """
    try:
        producer.produce(topic, value, key, headers=headers, partition=partition)
    except BufferError:
        producer.deliver(deadline.timeout_seconds(_DELIVERY_SECONDS))
        producer.produce(topic, value, key, headers=headers, partition=partition)
