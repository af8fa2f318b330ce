"""Contents of the event topic, for recovery: each sequence with the digest of its record, or the records themselves.

The topic is the only evidence that neither a lost progress topic nor a restored database can change.
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

# Bounds the examples kept of each kind of fault.
_EXAMPLES = 3
# Bounds the look-up of offsets; a healthy broker answers in milliseconds.
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
    """Breach events and other records on the topic; ``digests`` and ``tickets`` use 320 bytes of memory an event.

    ``digests`` maps a sequence to the digest of its record, ``tickets`` a message key to its sequence. ``foreign``
    shows the first of the ``foreign_count`` other records. ``faults`` lists contradictions within the topic: a sequence
    or a ticket twice, an event that cannot be read.

    ``expired_below``: an event with this sequence or above that is not in ``digests`` was never on the topic since its
    creation; one below it may have been removed by retention. 0 when nothing was ever removed. The proof: retention
    removes the oldest records of a partition, so a removed event preceded the first remaining one. Sequences rise
    within a partition (one publisher, in order), so the removed event had a lower sequence. Events that recovery
    published again do not count as first events, because they are out of order. A removed one of these has a lower
    sequence too, because every later ordinary event was above the position of that time. The partition of a missing
    event is unknown (the number of partitions may have grown), so the highest first event counts; a partition that lost
    all its events could have held any sequence.
    """

    digests: dict[int, str] = field(default_factory=dict)
    foreign_count: int = 0
    faults: list[str] = field(default_factory=list)
    tickets: dict[bytes, int] = field(default_factory=dict)
    expired_below: int = 0
    foreign: list[str] = field(default_factory=list)

    def add_foreign(self, shown_record: str) -> None:
        """Count a record of another program, and keep the first ones."""
        self.foreign_count += 1
        _note(self.foreign, shown_record)

    @property
    def lowest_seq(self) -> int:
        """Lowest remaining sequence; 0 without events."""
        return min(self.digests, default=0)

    @property
    def last_seq(self) -> int:
        """Highest sequence; 0 without events."""
        return max(self.digests, default=0)

    @property
    def complete_from(self) -> int:
        """First sequence of the gap-free run that ends with the last one.

        Retention works on each partition separately, so gaps may precede it.
        """
        seq = self.last_seq
        while seq in self.digests:
            seq -= 1
        return seq + 1


class _Unreadable(NamedTuple):
    """A record with a breach event's headers that cannot be read."""

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
            f"{self.seq}, which is nowhere else on the topic, but {self.fault}: a damaged event, or another "
            "program's record. `sla-pipeline recover` can go on once the record is gone, by retention, or by "
            f"kafka-delete-records.sh with offset {self.offset + 1} for its partition, which removes the events before "
            "it too"
        )


def scan_topic(settings: KafkaSettings, *, on_progress: OnProgress | None = None) -> TopicContents:
    """Read the topic from its beginning to its end. Raise what ``read_events`` raises.

    An unreadable record with a breach event's headers is a fault of the topic, because it may be a damaged event. Where
    another event has its sequence, it counts as a foreign record.
    """
    contents = TopicContents()
    first_seqs: dict[int, int] = {}
    unreadable: list[_Unreadable] = []
    for event in read_events(settings, on_progress=on_progress):
        if not _has_event_headers(event):
            contents.add_foreign(shown(event, "it lacks the headers outbox-seq and correlation-id of one"))
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
    # Looked up after reading, so that records removed meanwhile count as removed.
    begin_offsets = _begin_offsets(settings)
    contents.expired_below = max(
        (first_seqs.get(partition, sys.maxsize) for partition, offset in begin_offsets.items() if offset > 0), default=0
    )
    return contents


def read_records(
    settings: KafkaSettings, expected: Mapping[int, str], *, on_progress: OnProgress | None = None
) -> Iterator[PublishedRecord]:
    """Yield the records whose sequences are in ``expected``, in the topic's order, each once, with the expected digest.

    ``expected`` is the result of an earlier reading. Raise ``FailClosed``, at the end at the latest, when this reading
    differs, or finds a payload that is not of this contract.
    """
    missing = dict(expected)
    first = min(missing, default=0)
    for event in read_events(settings, on_progress=on_progress):
        record = _record_of(event) if _has_event_headers(event) else ""
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
    """Return the record with the columns from its payload.

    Raise ``FailClosed``, naming ``place``, when the payload lacks one.
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
            "its record cannot be written back: its value lacks Number, BreachKind, DueAt or BreachedAt. "
            "Nothing was changed; a person must decide by hand"
        ) from error


def _has_event_headers(event: ReceivedEvent) -> bool:
    return sequence_in(event.headers) is not None and "correlation-id" in event.headers


def _record_of(event: ReceivedEvent) -> BreachRecord | str:
    """Return the record that was published as this event, or the part of the event that cannot be read."""
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
    """Return the first remaining offset of every partition."""
    reports, deadline = ClientReports(), Deadline(_LOOK_UP_SECONDS)
    admin = open_admin(settings, reports)
    with translated(settings, "looking up the beginning of the topic", reports, poll=admin.poll, topic=settings.topic):
        found = admin.list_topics(settings.topic, timeout=deadline.timeout_seconds(_LOOK_UP_SECONDS)).topics[
            settings.topic
        ]
        if found.error:
            raise KafkaException(found.error)
        earliest = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        requests = {Partition(settings.topic, partition): earliest for partition in found.partitions}
        answers = admin.list_offsets(requests, request_timeout=deadline.timeout_seconds(_LOOK_UP_SECONDS))
        return {partition.partition: future.result().offset for partition, future in answers.items()}


def _note(faults: list[str], fault: str) -> None:
    if len(faults) < _EXAMPLES:
        faults.append(fault)
