"""What a payload says: read by the contract's model, or, where it does not keep to the contract, as far as it can be read.

What belongs here: pure functions on one message or one record. What does not: comparing two of them (``ledger.py``).
"""

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from pydantic import ValidationError

from sla_pipeline.event import TicketSlaBreachedKafkaEvent, event_headers, event_id, event_key

__all__ = [
    "RecordRow",
    "TopicEvent",
    "claimed_ticket",
    "has_constant_headers",
    "is_record_sound",
    "keeps_to_contract",
    "sequence_of",
    "ticket_bytes",
    "ticket_text",
    "valid_event",
]

_CORRELATION_ID, _OUTBOX_SEQ = "correlation-id", "outbox-seq"
_CONSTANT_HEADERS = {
    name: value
    for name, value in event_headers(correlation_id="", outbox_seq=0)
    if name not in (_CORRELATION_ID, _OUTBOX_SEQ)
}

# the one spelling of an id; `\Z`, since `$` would let a line break through
_TICKET_ID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\Z")
# a whole number of Postgres' bigint, counted from 1, without leading zeros
_SEQUENCE = re.compile(rb"[1-9][0-9]{0,17}\Z")


class RecordRow(NamedTuple):
    """One breach record. Times are text as on the wire, so that what Python cannot hold differs instead of failing."""

    seq: int
    ticket_id: str
    number: str
    kind: str
    due_at: str | None
    breached_at: str | None
    correlation_id: str
    payload: str
    was_due: bool
    """The deadline lies before ``breached_at``, strictly (SPEC 4.1)."""
    is_old: bool
    """It was recorded so long ago that it must have been published (SPEC 3.5)."""


class TopicEvent(NamedTuple):
    """One committed message, as it came."""

    partition: int
    offset: int
    key: bytes | None
    headers: Mapping[str, bytes | None]
    value: bytes | None


def ticket_bytes(text: bytes | None) -> bytes | None:
    """The 16 bytes of an id in its one spelling; None for anything else."""
    if text is None or not _TICKET_ID.match(text):
        return None
    return bytes.fromhex(text.replace(b"-", b"").decode())


def ticket_text(ticket: bytes) -> str:
    """The id that 16 bytes stand for, in its one spelling."""
    text = ticket.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def sequence_of(headers: Mapping[str, bytes | None]) -> int | None:
    """The sequence that the headers tell; None when there is none, or none that could have been handed out."""
    text = headers.get(_OUTBOX_SEQ)
    return int(text) if text is not None and _SEQUENCE.match(text) else None


def valid_event(value: bytes | str | None) -> TicketSlaBreachedKafkaEvent | None:
    """The event when the payload keeps to the contract, its own ids agreeing with each other; else None."""
    try:
        # by the names that travel only: the model's own field names are none of the contract
        event = TicketSlaBreachedKafkaEvent.model_validate_json(value or b"", by_alias=True, by_name=False)
    except ValidationError:
        return None
    return event if event.aggregate_id == event.ticket_id and event.event_id == event_id(event.ticket_id) else None


def has_constant_headers(event: TopicEvent) -> bool:
    """Whether the headers that are the same on every event are there; further ones are a consumer's to ignore."""
    return _CONSTANT_HEADERS.items() <= event.headers.items()


def keeps_to_contract(event: TopicEvent) -> bool:
    """Whether payload, key and constant headers are what the contract says, whatever any record says."""
    valid = valid_event(event.value)
    return valid is not None and event.key == event_key(valid.ticket_id) and has_constant_headers(event)


def is_record_sound(record: RecordRow) -> bool:
    """Whether the payload is a valid event and says what the record's columns say."""
    event = valid_event(record.payload)
    return event is not None and (
        record.ticket_id,
        record.number,
        record.kind,
        record.due_at,
        record.breached_at,
    ) == (event.ticket_id, event.number, event.breach_kind.value, event.due_at, event.breached_at)


def claimed_ticket(event: TopicEvent) -> bytes | None:
    """The ticket that a message speaks of, valid or not: by its payload, else by its key; None when neither tells
    one.
    """
    try:
        parsed = json.loads(event.value or b"null")
    except (ValueError, RecursionError):
        parsed = None
    named = parsed.get("TicketId") if isinstance(parsed, dict) else None
    by_payload = ticket_bytes(named.encode(errors="replace")) if isinstance(named, str) else None
    return by_payload or ticket_bytes(event.key)
