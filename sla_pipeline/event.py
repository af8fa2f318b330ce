"""The wire contract: ``TicketSlaBreachedKafkaEvent`` version 1, its key, headers and JSON Schema (SPEC 5.6, 4.4).

The model defines the fields and their forms and reads events; ``event_json`` writes them. ``docs/contract.md`` is the
page for consumers; they validate against ``event.schema.json`` beside this file, and a test compares that file with the
model.

Fields hold the text that is sent. An id or a timestamp has one spelling only, so equal events are equal bytes, and a
backlog of ten thousand is not parsed into objects only to be printed again.
"""

import hashlib
import re
import uuid
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, WithJsonSchema
from pydantic.alias_generators import to_pascal
from pydantic_core import PydanticCustomError, to_json

from sla_pipeline.breach import Breach, BreachKind, Priority

__all__ = [
    "CONTRACT_VERSION",
    "EVENT_TOPIC",
    "EVENT_TYPE",
    "REPUBLISHED_HEADER",
    "TicketSlaBreachedKafkaEvent",
    "event_headers",
    "event_id",
    "event_json",
    "event_key",
    "is_event_key",
    "wire_timestamp",
]

EVENT_TOPIC = "pin.support.ticket-sla-breached.v1"
EVENT_TYPE = "TicketSlaBreachedKafkaEvent"
CONTRACT_VERSION = 1
REPUBLISHED_HEADER = "republished-by"
"""Header of events that `sla-pipeline recover` published again, and of no others; its value is the repair's run."""

# Namespace of the contract: in a later version the same ticket has another EventId.
_EVENT_ID_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, f"urn:{EVENT_TOPIC}").bytes
# Maps a hexadecimal digit to the same digit with its two upper bits set to 10, as RFC 9562 requires.
_UUID_VARIANT = {digit: f"{int(digit, 16) & 0b0011 | 0b1000:x}" for digit in "0123456789abcdef"}
# Bounds a ticket's number, which pagers display. Real numbers have a dozen characters; a corrupt one may be long.
_NUMBER_MAX_LENGTH = 64
# Bounds a priority. The support service's names are words; the bound keeps a text in that column off the topic.
_PRIORITY_MAX_LENGTH = 32
# Bounds a text that is written without validation: the smaller of the two bounds above.
_ORDINARY_MAX_LENGTH = min(_NUMBER_MAX_LENGTH, _PRIORITY_MAX_LENGTH)
# Unicode's category Cc, in a spelling that the regular expressions of all languages have.
_CONTROL_CHARACTERS = r"[\x00-\x1f\x7f-\x9f]"
_CONTROL_CHARACTER = re.compile(_CONTROL_CHARACTERS)

# The only spelling of an id, in the event and in its key.
_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_UUID_BYTES = re.compile(_UUID.encode())
_UUID_PATTERN = f"^{_UUID}$"
_TIMESTAMP_PATTERN = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{6}Z$"
WireUuid = Annotated[
    str,
    StringConstraints(pattern=_UUID_PATTERN),
    WithJsonSchema({"type": "string", "format": "uuid", "pattern": _UUID_PATTERN}),
]
WireTimestamp = Annotated[
    str,
    StringConstraints(pattern=_TIMESTAMP_PATTERN),
    WithJsonSchema({"type": "string", "format": "date-time", "pattern": _TIMESTAMP_PATTERN}),
]


def _without_control_characters(text: str) -> str:
    if _CONTROL_CHARACTER.search(text):
        raise PydanticCustomError("control_character", "String should have no control characters")
    return text


WirePriority = Annotated[
    str,
    StringConstraints(min_length=1, max_length=_PRIORITY_MAX_LENGTH),
    AfterValidator(_without_control_characters),
    # The schema excludes by `not`: in some validators `$` at the end of a pattern allows a line break.
    WithJsonSchema(
        {
            "type": "string",
            "minLength": 1,
            "maxLength": _PRIORITY_MAX_LENGTH,
            "not": {"pattern": _CONTROL_CHARACTERS},
            "examples": [priority.value for priority in Priority],
        }
    ),
]


def wire_timestamp(moment: datetime) -> str:
    """Return an aware datetime in the event's form: UTC, to the microsecond, with ``Z``."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")[:-6] + "Z"


@lru_cache(maxsize=1)
def _breached_at(now_utc: datetime) -> str:
    """Cached: all events of a cycle share it."""
    return wire_timestamp(now_utc)


def event_id(ticket_id: str) -> str:
    """Return the event's identity: a UUIDv5 of contract and ticket.

    It is the same however often the event is built, since a ticket has one breach (SPEC 2.4).
    """
    # The same bytes as uuid.uuid5, without its intermediate objects, which cost more than the rest of an event.
    text = hashlib.sha1(_EVENT_ID_NAMESPACE + ticket_id.encode(), usedforsecurity=False).hexdigest()
    return f"{text[:8]}-{text[8:12]}-5{text[13:16]}-{_UUID_VARIANT[text[16]]}{text[17:20]}-{text[20:32]}"


class TicketSlaBreachedKafkaEvent(BaseModel):
    """One breach of one ticket, as consumers receive it (SPEC 5.6).

    Fields are ids, enums and timestamps, and two short texts, number and priority. Raises ``pydantic.ValidationError``
    for a field that is missing, of another form, or not in the contract; its text does not repeat the value.
    """

    model_config = ConfigDict(
        alias_generator=to_pascal,
        extra="forbid",
        field_title_generator=lambda name, _: to_pascal(name),
        frozen=True,
        hide_input_in_errors=True,
        json_schema_extra={
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "description": "One breach of one ticket: ids, enums, timestamps; Number and Priority are short texts of "
            "the support service.",
        },
        serialize_by_alias=True,
        title=EVENT_TYPE,
        validate_by_name=True,
    )

    event_id: WireUuid = Field(
        description="UUIDv5 of contract and ticket: equal for equal breaches, fit for deduplication."
    )
    event_type: Literal["TicketSlaBreachedKafkaEvent"]
    contract_version: Literal[1]
    aggregate_type: Literal["Ticket"]
    aggregate_id: WireUuid = Field(description="Equal to TicketId.")
    ticket_id: WireUuid
    number: str = Field(
        min_length=1, max_length=_NUMBER_MAX_LENGTH, description="The ticket's number, as people quote it."
    )
    tenant_id: WireUuid
    queue_id: WireUuid
    requester_user_id: WireUuid
    assignee_user_id: WireUuid | None = Field(description="Null when nobody is assigned.")
    priority: WirePriority = Field(
        description="As the support service names it: Critical, High, Normal, Low, or a value of its own. No control "
        "characters (Cc)."
    )
    breach_kind: BreachKind
    due_at: WireTimestamp = Field(description="The deadline that passed, UTC.")
    breached_at: WireTimestamp = Field(description="now_utc of the cycle that found the breach, UTC.")


# The model's names of the fields, which are the names of the ticket's columns.
_COLUMNS = {field.alias: name for name, field in TicketSlaBreachedKafkaEvent.model_fields.items()}


def event_json(
    breach: Breach,
    *,
    ticket_id: str,
    number: str,
    tenant_id: str | None,
    queue_id: str | None,
    requester_user_id: str | None,
    assignee_user_id: str | None,
    priority: str | None,
    now_utc: datetime,
) -> str:
    """Return the message's value, compact JSON, for a breach found at ``now_utc``.

    Ids must be as Postgres prints its uuid type. Raises ``pydantic.ValidationError``, by the names of the ticket's
    columns, for a ticket that the contract cannot express.
    """
    values = {
        "EventId": event_id(ticket_id),
        "EventType": EVENT_TYPE,
        "ContractVersion": CONTRACT_VERSION,
        "AggregateType": "Ticket",
        "AggregateId": ticket_id,
        "TicketId": ticket_id,
        "Number": number,
        "TenantId": tenant_id,
        "QueueId": queue_id,
        "RequesterUserId": requester_user_id,
        "AssigneeUserId": assignee_user_id,
        "Priority": priority,
        "BreachKind": breach.kind.value,
        "DueAt": wire_timestamp(breach.due_at),
        "BreachedAt": _breached_at(now_utc),
    }
    # Ordinary values fit the model by construction; only others are validated. Validation of every event, and its
    # serialization by the model, cost 7 us an event: 15 % of the marking of 10,000 tickets.
    if not (tenant_id and queue_id and requester_user_id and _is_ordinary(number) and _is_ordinary(priority)):
        TicketSlaBreachedKafkaEvent.model_validate({_COLUMNS[name]: value for name, value in values.items()})
    return to_json(values).decode()


def _is_ordinary(text: object) -> bool:
    """Return whether the model accepts the text as number and as priority: short, and no control or surrogate in it."""
    return isinstance(text, str) and 0 < len(text) <= _ORDINARY_MAX_LENGTH and text.isprintable()


def event_key(ticket_id: str) -> bytes:
    """Return the message's key, the ticket's id: all events about a ticket are in one partition, in order."""
    return ticket_id.encode()


def is_event_key(key: bytes) -> bool:
    """Return whether a message's key is a ticket's id in its only spelling."""
    return _UUID_BYTES.fullmatch(key) is not None


# These headers are the same on every message, so they are encoded once, and not ten thousand times for a backlog.
_TYPE_HEADER = ("event-type", EVENT_TYPE.encode())
_VERSION_HEADER = ("contract-version", str(CONTRACT_VERSION).encode())
_CONTENT_HEADER = ("content-type", b"application/json")


def event_headers(*, correlation_id: str, outbox_seq: int) -> list[tuple[str, bytes]]:
    """Return the message's headers.

    ``correlation_id`` is the run that marked the ticket (SPEC 5.1); ``outbox_seq`` counts from 1, gap-free.
    """
    return [
        _TYPE_HEADER,
        _VERSION_HEADER,
        ("correlation-id", correlation_id.encode()),
        ("outbox-seq", b"%d" % outbox_seq),
        _CONTENT_HEADER,
    ]
