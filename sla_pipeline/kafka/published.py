"""What really is on the event topic: every sequence with the fingerprint of its record, and the records themselves where asked.

The topic is the only witness that neither a lost progress topic nor a restored database can change. What belongs here: reading it for
recovery. What does not: what follows from it (``recovery.py``).
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from sla_pipeline.cycle import BreachRecord, PublishedRecord
from sla_pipeline.errors import FailClosed
from sla_pipeline.kafka.events import OnProgress, ReceivedEvent, read_events
from sla_pipeline.kafka.progress import record_digest
from sla_pipeline.kafka.settings import KafkaSettings

__all__ = ["TopicContents", "published_record", "read_records", "scan_topic"]

# how many of a kind of fault are kept to be shown
_EXAMPLES = 3


@dataclass(slots=True)
class TopicContents:
    """What the topic holds of ours: ``digests`` by sequence, 150 bytes of memory an event; ``foreign_count`` events of others.

    ``faults`` tells what can never be on the topic: a sequence or a ticket twice.
    """

    digests: dict[int, str] = field(default_factory=dict)
    foreign_count: int = 0
    faults: list[str] = field(default_factory=list)

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
        """The sequence from which on every one is there up to the last; each partition loses its oldest events by itself."""
        seq = self.last_seq
        while seq in self.digests:
            seq -= 1
        return seq + 1


def scan_topic(settings: KafkaSettings, *, on_progress: OnProgress | None = None) -> TopicContents:
    """Reads the topic from its beginning to its end. Raises what ``read_events`` raises."""
    contents = TopicContents()
    tickets: dict[bytes, int] = {}
    for event in read_events(settings, on_progress=on_progress):
        record = _record_of(event)
        if record is None:
            contents.foreign_count += 1
            continue
        if record.seq in contents.digests:
            _note(contents.faults, f"sequence {record.seq} is on the topic twice")
        elif (other := tickets.setdefault(event.key, record.seq)) != record.seq:
            _note(contents.faults, f"ticket {record.ticket_id} is on the topic twice, under sequences {other} and {record.seq}")
        contents.digests[record.seq] = record_digest(record)
    return contents


def read_records(settings: KafkaSettings, *, after_seq: int, on_progress: OnProgress | None = None) -> Iterator[PublishedRecord]:
    """The records with a sequence above ``after_seq``, in the topic's order. Raises ``FailClosed`` for a payload that is not ours."""
    for event in read_events(settings, on_progress=on_progress):
        record = _record_of(event)
        if record is not None and record.seq > after_seq:
            yield published_record(record)


def published_record(record: BreachRecord) -> PublishedRecord:
    """The record with the columns that its payload tells. Raises ``FailClosed`` when it does not."""
    try:
        payload = json.loads(record.payload)
        return PublishedRecord(
            record,
            number=str(payload["Number"]),
            kind=str(payload["BreachKind"]),
            due_at=datetime.fromisoformat(payload["DueAt"]),
            breached_at=datetime.fromisoformat(payload["BreachedAt"]),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise FailClosed(
            f"the event with sequence {record.seq} (ticket {record.ticket_id}) is not of this contract, so its record cannot be written "
            "back"
        ) from error


def _record_of(event: ReceivedEvent) -> BreachRecord | None:
    """The record that was published as this event; None for an event of somebody else."""
    seq = event.headers.get("outbox-seq", b"")
    if not seq.isdigit() or "correlation-id" not in event.headers:
        return None
    return BreachRecord(int(seq), event.key.decode(), event.headers["correlation-id"].decode(), event.value.decode())


def _note(faults: list[str], fault: str) -> None:
    if len(faults) < _EXAMPLES:
        faults.append(fault)
