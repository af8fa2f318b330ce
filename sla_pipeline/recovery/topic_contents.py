"""Contents of the event topic, for recovery: each sequence with the fingerprint of its record, and the records themselves where asked.

The topic is the only witness that neither a lost progress topic nor a restored database can change. What belongs here:
reading it. What does not: conclusions (``recovery.py``), sending (``republish.py``).
"""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as Partition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from sla_pipeline.errors import FailClosed
from sla_pipeline.event import REPUBLISHED_HEADER, is_event_key
from sla_pipeline.kafka.clients import ClientReports, open_admin, translated
from sla_pipeline.kafka.deadline import Deadline
from sla_pipeline.kafka.events import OnProgress, ReceivedEvent, read_events
from sla_pipeline.kafka.foreign import place_of, shown
from sla_pipeline.kafka.headers import sequence_in
from sla_pipeline.kafka.progress import record_digest
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.outbox import BreachRecord

__all__ = ["PublishedRecord", "TopicContents", "published_record", "read_records", "scan_topic"]

# examples kept of each kind of fault
_EXAMPLES = 3
# bound of one look-up of offsets; a healthy broker answers in milliseconds
_LOOK_UP_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class PublishedRecord:
    """A breach record rebuilt from its event, with the columns that the outbox keeps beside the payload."""

    record: BreachRecord
    number: str
    kind: str
    due_at: datetime
    breached_at: datetime


@dataclass(slots=True)
class TopicContents:
    """Breach events on the topic: ``digests`` and ``tickets`` in 320 bytes of memory an event; ``foreign_count`` other records.

    ``foreign`` shows the first of those. ``tickets`` maps a message key to its sequence. ``faults`` lists
    contradictions of the topic with itself: a sequence or a ticket twice, an event that cannot be read.

    ``expired_below``: an event of this sequence or above that is not in ``digests`` is not on the topic and never was
    since the topic was created; one below it may have been removed by retention. 0 when nothing was ever removed. Why
    this holds: removal takes the oldest records of a partition, so whatever was removed stood before the first event
    still there. Sequences rise within a partition (one publisher, in order), so it had a lower sequence than that first
    event. Events that recovery published again do not count as first events, because they stand out of order; one that
    was removed has a lower sequence all the same, because every event sent after it in the ordinary way was above the
    position of that time. Which partition a missing event was in is unknown (the number of partitions may have grown),
    so the highest first event counts; a partition that lost all its events could have held any sequence.
    """

    digests: dict[int, str] = field(default_factory=dict)
    foreign_count: int = 0
    faults: list[str] = field(default_factory=list)
    tickets: dict[bytes, int] = field(default_factory=dict)
    expired_below: int = 0
    foreign: list[str] = field(default_factory=list)

    def add_foreign(self, shown_record: str) -> None:
        """Counts a record that is none of this package."""
        self.foreign_count += 1
        _note(self.foreign, shown_record)

    @property
    def lowest_seq(self) -> int:
        """The lowest sequence still there; 0 when there is none."""
        return min(self.digests, default=0)

    @property
    def last_seq(self) -> int:
        """The highest sequence; 0 when there is none."""
        return max(self.digests, default=0)

    @property
    def complete_from(self) -> int:
        """The sequence from which on every one is there up to the last; each partition loses its oldest events by
        itself.
        """
        seq = self.last_seq
        while seq in self.digests:
            seq -= 1
        return seq + 1


class _Unreadable(NamedTuple):
    """A record with our headers that cannot be read."""

    seq: int
    partition: int
    offset: int
    fault: str

    @property
    def place(self) -> str:
        return f"partition {self.partition}, offset {self.offset}"

    def explained(self, settings: KafkaSettings) -> str:
        return (
            f"the record at {self.place} of topic {settings.topic} has the headers of the event with sequence "
            f"{self.seq}, which is nowhere else on the topic, but {self.fault}: a damaged event of ours, or somebody "
            "else's record. `sla-pipeline recover` can go on once the record is gone, by retention, or by "
            f"kafka-delete-records.sh with offset {self.offset + 1} for its partition, which removes the events before "
            "it too"
        )


def scan_topic(settings: KafkaSettings, *, on_progress: OnProgress | None = None) -> TopicContents:
    """Reads the topic from its beginning to its end. Raises what ``read_events`` raises.

    A record with our headers that cannot be read is a fault of the topic: it may be an event of ours that was damaged.
    Where another event has its sequence it is none, but a foreign record.
    """
    contents = TopicContents()
    first_seqs: dict[int, int] = {}
    unreadable: list[_Unreadable] = []
    for event in read_events(settings, on_progress=on_progress):
        if not _has_our_headers(event):
            contents.add_foreign(shown(event, "it has not the headers outbox-seq and correlation-id of one"))
            continue
        record = _record_of(event)
        if isinstance(record, str):
            unreadable.append(_Unreadable(sequence_in(event.headers) or 0, event.partition, event.offset, record))
            continue
        if record.seq in contents.digests:
            _note(contents.faults, f"sequence {record.seq} is on the topic twice")
        elif (other := contents.tickets.setdefault(event.key, record.seq)) != record.seq:
            _note(
                contents.faults,
                f"ticket {record.ticket_id} is on the topic twice, under sequences {other} and {record.seq}",
            )
        contents.digests[record.seq] = record_digest(record)
        if REPUBLISHED_HEADER not in event.headers:
            first_seqs.setdefault(event.partition, record.seq)
    for found in unreadable:
        if found.seq in contents.digests:
            contents.add_foreign(
                f"not a breach event: {found.place}: {found.fault}; the event of its sequence {found.seq} is elsewhere"
            )
        else:
            _note(contents.faults, found.explained(settings))
    # looked up after reading: what was removed meanwhile explains what was not read
    begin_offsets = _begin_offsets(settings)
    contents.expired_below = max(
        (first_seqs.get(partition, sys.maxsize) for partition, offset in begin_offsets.items() if offset > 0), default=0
    )
    return contents


def read_records(
    settings: KafkaSettings, expected: Mapping[int, str], *, on_progress: OnProgress | None = None
) -> Iterator[PublishedRecord]:
    """The records whose sequences are in ``expected``, in the topic's order: each exactly once, with the digest given there.

    ``expected`` is what an earlier reading found. Raises ``FailClosed``, at the end at the latest, when this reading
    finds anything else, or a payload that is not of this contract.
    """
    missing = dict(expected)
    first = min(missing, default=0)
    for event in read_events(settings, on_progress=on_progress):
        record = _record_of(event) if _has_our_headers(event) else ""
        if isinstance(record, str) or record.seq < first:
            continue
        if missing.pop(record.seq, None) != record_digest(record):
            raise FailClosed(
                f"the topic changed while it was read: the event with sequence {record.seq} is another one, or came "
                "twice, since the first reading. Nothing was changed; run `sla-pipeline recover` again"
            )
        yield published_record(record, place_of(event))
    if missing:
        raise FailClosed(
            f"the topic changed while it was read: the event with sequence {min(missing)} is gone since the first "
            f"reading{f', and {len(missing) - 1} others' if len(missing) > 1 else ''}; retention, or a deletion, "
            "removed it. Nothing was changed; run `sla-pipeline recover` again"
        )


def published_record(record: BreachRecord, place: str) -> PublishedRecord:
    """The record with the columns that its payload states.

    Raises ``FailClosed``, naming ``place``, when it does not state them.
    """
    try:
        payload = json.loads(record.payload)
        return PublishedRecord(
            record,
            number=str(payload["Number"]),
            kind=str(payload["BreachKind"]),
            due_at=datetime.fromisoformat(payload["DueAt"]),
            breached_at=datetime.fromisoformat(payload["BreachedAt"]),
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise FailClosed(
            f"the event with sequence {record.seq} at {place} (ticket {record.ticket_id}) is not of this contract, so "
            "its record cannot be written back: its value does not state Number, BreachKind, DueAt and BreachedAt. "
            "Nothing was changed; a person must decide by hand"
        ) from error


def _has_our_headers(event: ReceivedEvent) -> bool:
    return sequence_in(event.headers) is not None and "correlation-id" in event.headers


def _record_of(event: ReceivedEvent) -> BreachRecord | str:
    """The record that was published as this event, which has our headers; or what of it cannot be read."""
    if not is_event_key(event.key):
        return "its key is not the id of a ticket"
    if not event.value:
        return "its value is null or empty"
    try:
        correlation_id = event.headers["correlation-id"].decode()
    except UnicodeDecodeError:
        return "its header correlation-id is not UTF-8"
    try:
        return BreachRecord(sequence_in(event.headers) or 0, event.key.decode(), correlation_id, event.value.decode())
    except UnicodeDecodeError:
        return "its value is not UTF-8"


def _begin_offsets(settings: KafkaSettings) -> dict[int, int]:
    """The first offset of every partition that is still there."""
    reports, deadline = ClientReports(), Deadline(_LOOK_UP_SECONDS)
    admin = open_admin(settings, reports)
    with translated(settings, "looking up the beginning of the topic", reports, poll=admin.poll, topic=settings.topic):
        found = admin.list_topics(settings.topic, timeout=deadline.timeout_seconds(_LOOK_UP_SECONDS)).topics[
            settings.topic
        ]
        if found.error:
            raise KafkaException(found.error)
        earliest = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        asked = {Partition(settings.topic, partition): earliest for partition in found.partitions}
        answers = admin.list_offsets(asked, request_timeout=deadline.timeout_seconds(_LOOK_UP_SECONDS))
        return {partition.partition: future.result().offset for partition, future in answers.items()}


def _note(faults: list[str], fault: str) -> None:
    if len(faults) < _EXAMPLES:
        faults.append(fault)
