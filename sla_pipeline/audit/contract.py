"""Checks of one message or one record against the wire contract: pure functions.

A payload that breaks the contract is read as far as possible: its ticket may still be known.
"""

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from pydantic import ValidationError

from sla_pipeline.event import TicketSlaBreachedKafkaEvent, event_headers, event_id

__all__ = [
    "CORRELATION_ID",
    "RecordRow",
    "TopicEvent",
    "claimed_ticket_id",
    "has_constant_headers",
    "is_record_sound",
    "sequence_of",
    "ticket_id_in",
    "valid_event",
]

CORRELATION_ID = "correlation-id"
_OUTBOX_SEQ = "outbox-seq"
_CONSTANT_HEADERS = {
    name: value
    for name, value in event_headers(correlation_id="", outbox_seq=0)
    if name not in (CORRELATION_ID, _OUTBOX_SEQ)
}

# the only valid spelling of an id; `\Z`, because `$` also matches before a line break
_TICKET_ID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\Z")
# a positive integer without leading zeros; 18 digits fit into Postgres' and SQLite's 64 bits
_SEQUENCE = re.compile(rb"[1-9][0-9]{0,17}\Z")


class RecordRow(NamedTuple):
    """A breach record. Times are text as on the wire: one that Python cannot hold then differs instead of failing."""

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
    """A committed message as received."""

    partition: int
    offset: int
    key: bytes | None
    headers: Mapping[str, bytes | None]
    value: bytes | None


def ticket_id_in(text: bytes | None) -> str | None:
    """Return the ticket id that ``text`` is, in the only valid spelling; None for anything else."""
    return text.decode() if text is not None and _TICKET_ID.match(text) else None


def sequence_of(headers: Mapping[str, bytes | None]) -> int | None:
    """Return the sequence in the headers; None without one that the outbox could have handed out."""
    text = headers.get(_OUTBOX_SEQ)
    return int(text) if text is not None and _SEQUENCE.match(text) else None


def valid_event(value: bytes | str | None) -> TicketSlaBreachedKafkaEvent | None:
    """Return the event when the payload keeps to the contract and its ids agree with each other; else None."""
    try:
        # aliases only: the model's own field names are not part of the contract
        event = TicketSlaBreachedKafkaEvent.model_validate_json(value or b"", by_alias=True, by_name=False)
    except ValidationError:
        return None
    return event if event.aggregate_id == event.ticket_id and event.event_id == event_id(event.ticket_id) else None


def has_constant_headers(event: TopicEvent) -> bool:
    """Return whether the headers that are equal on every event are there; consumers ignore further ones."""
    return _CONSTANT_HEADERS.items() <= event.headers.items()


def is_record_sound(record: RecordRow) -> bool:
    """Return whether the payload is a valid event with the values of the record's columns."""
    event = valid_event(record.payload)
    return event is not None and (
        record.ticket_id,
        record.number,
        record.kind,
        record.due_at,
        record.breached_at,
    ) == (event.ticket_id, event.number, event.breach_kind.value, event.due_at, event.breached_at)


def claimed_ticket_id(event: TopicEvent) -> str | None:
    """Return the ticket id in the payload, valid or not, else the one in the key; None without either."""
    try:
        parsed = json.loads(event.value or b"null")
    except (ValueError, RecursionError):
        parsed = None
    named = parsed.get("TicketId") if isinstance(parsed, dict) else None
    in_payload = ticket_id_in(named.encode(errors="replace")) if isinstance(named, str) else None
    return in_payload or ticket_id_in(event.key)
