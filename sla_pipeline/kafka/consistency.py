"""Consistency of Postgres and the progress record, checked before every transaction; pure.

A contradiction is never resolved by taking the larger or the smaller number: either choice doubles or loses events.
``sla_pipeline/recovery`` repairs it.
"""

from collections.abc import Sequence

from sla_pipeline.errors import FailClosed
from sla_pipeline.kafka.progress import RECOVERY, Progress, record_digest
from sla_pipeline.outbox import BreachRecord

__all__ = ["require_agreement", "require_progress", "waiting_records"]


def require_progress(progress: Progress | None, topic: str) -> Progress:
    """Return the progress record. Raise ``FailClosed`` when there is none.

    An empty topic is a lost one, never a new one: a new topic holds a record with sequence 0 from its creation on.
    """
    if progress is None:
        raise FailClosed(
            f"topic {topic} holds no progress record, so it was emptied, or deleted and re-created, and what was "
            f"published before is not known. Nothing is published. {RECOVERY}"
        )
    return progress


def require_agreement(progress: Progress, *, published_before: int, last_seq: int) -> None:
    """Raise ``FailClosed`` when the three positions contradict each other.

    ``published_before`` was read from Postgres before the progress record, ``last_seq`` after it. All three only grow,
    so in this order a contradiction is never a race with another publisher.
    """
    if progress.seq > last_seq:
        raise FailClosed(
            f"Kafka's progress is at sequence {progress.seq}, but Postgres has handed out only {last_seq}: Postgres "
            f"was probably restored from a backup, or this is another database. Nothing is published. {RECOVERY}"
        )
    if progress.seq < published_before:
        raise FailClosed(
            f"Postgres knows that sequence {published_before} is published, but Kafka's progress is at {progress.seq}: "
            "the progress topic was probably deleted and re-created, or this is another Kafka. Nothing is published. "
            f"{RECOVERY}"
        )


def waiting_records(progress: Progress, records: Sequence[BreachRecord], *, last_seq: int) -> list[BreachRecord]:
    """Return the records to publish: those after ``progress``, in order, without a gap.

    ``records`` start at row ``progress.seq``. Raise ``FailClosed`` when that row is missing or is not the one that was
    published, or when the sequence has a gap.
    """
    waiting = list(records)
    if progress.seq:
        if not waiting or waiting[0].seq != progress.seq:
            raise FailClosed(
                f"breach record {progress.seq}, the last one published, is gone from Postgres: housekeeping must never "
                f"delete it, so the table was emptied or restored. Nothing is published. {RECOVERY}"
            )
        in_postgres, published = record_digest(waiting[0]), progress.digest
        if in_postgres != published:
            raise FailClosed(
                f"breach record {progress.seq} (ticket {waiting[0].ticket_id}, digest {in_postgres}) is not the one "
                f"that was published under this sequence (digest {published}, run {progress.run} at {progress.at}): "
                f"Postgres was restored from a backup and went on with other records. Nothing is published. {RECOVERY}"
            )
        del waiting[0]
    for expected, record in enumerate(waiting, start=progress.seq + 1):
        if record.seq != expected:
            raise FailClosed(
                f"breach record {expected} is missing from Postgres; the next one there is {record.seq}. Records are "
                f"written without a gap, so one was deleted. Nothing is published. {RECOVERY}"
            )
    if not waiting and progress.seq < last_seq:
        raise FailClosed(
            f"breach records {progress.seq + 1} to {last_seq} are missing from Postgres, which has handed them out. "
            f"Nothing is published. {RECOVERY}"
        )
    return waiting
