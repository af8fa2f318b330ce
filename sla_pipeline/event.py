"""The wire contract: ``TicketSlaBreachedKafkaEvent`` version 1, its key, its headers, its JSON Schema (SPEC 5.6, 4.4).

What belongs here: the shape of the message and how it becomes bytes. What does not: when it is sent
(``kafka/relay.py``) and from which row (``postgres/marking.py``). ``docs/contract.md`` is the page for consumers;
``event.schema.json`` beside this file is the schema that they validate against, and a test holds it equal to the model.

Fields hold what travels, as text: an id or a timestamp has one spelling only, so that equal events are equal bytes, and
a backlog of ten thousand is not parsed into objects only to be printed again.
"""

import hashlib
import re
import uuid
from datetime import UTC, datetime
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, WithJsonSchema
from pydantic.alias_generators import to_pascal
from pydantic_core import PydanticCustomError

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
    "wire_timestamp",
]

EVENT_TOPIC = "pin.support.ticket-sla-breached.v1"
EVENT_TYPE = "TicketSlaBreachedKafkaEvent"
CONTRACT_VERSION = 1
REPUBLISHED_HEADER = "republished-by"
"""Header of an event that `sla-pipeline recover` published again, and of no other; its value is the run that did it."""
# the hexadecimal digit with its two upper bits set to 10
_UUID_VARIANT = {digit: f"{int(digit, 16) & 0b0011 | 0b1000:x}" for digit in "0123456789abcdef"}
# names the contract, so that the same ticket has another EventId in a later version of it
_EVENT_ID_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, f"urn:{EVENT_TOPIC}").bytes
# support's numbers are a dozen characters; a bound keeps a corrupt one out of a message that pagers display
_NUMBER_MAX_LENGTH = 64
# the support service's names of priorities are words; a bound keeps a text that got into the column out of the topic
_PRIORITY_MAX_LENGTH = 32
# Unicode's category Cc, in a spelling that the regular expressions of all languages know
_CONTROL_CHARACTERS = r"[\x00-\x1f\x7f-\x9f]"
_CONTROL_CHARACTER = re.compile(_CONTROL_CHARACTERS)

_UUID_PATTERN = r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
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
    # `not`, since `$` at the end of a pattern lets a line break through in some validators
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
    """An aware datetime as it travels: UTC, to the microsecond, with ``Z``."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")[:-6] + "Z"


@lru_cache(maxsize=1)
def _breached_at(now_utc: datetime) -> str:
    """The same for all events of a cycle, so written once."""
    return wire_timestamp(now_utc)


def event_id(ticket_id: str) -> str:
    """The event's identity: a UUIDv5 of contract and ticket, the same however often it is built (one breach per
    ticket, SPEC 2.4).
    """
    # what uuid.uuid5 does, without its intermediate objects, which cost more than all the rest of an event
    text = hashlib.sha1(_EVENT_ID_NAMESPACE + ticket_id.encode(), usedforsecurity=False).hexdigest()
    return f"{text[:8]}-{text[8:12]}-5{text[13:16]}-{_UUID_VARIANT[text[16]]}{text[17:20]}-{text[20:32]}"


class TicketSlaBreachedKafkaEvent(BaseModel):
    """One breach of one ticket, as consumers see it (SPEC 5.6): ids, enums, timestamps, and two short texts, number and priority.

    Raises ``pydantic.ValidationError`` for a field that is missing, of another form, or not in the contract; its text
    does not repeat the value.
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

    @classmethod
    def of(
        cls,
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
    ) -> "TicketSlaBreachedKafkaEvent":
        """The event of a breach found at ``now_utc``.

        Raises ``pydantic.ValidationError`` for a ticket that the contract cannot tell.
        """
        return cls.model_validate(
            {
                "event_id": event_id(ticket_id),
                "event_type": EVENT_TYPE,
                "contract_version": CONTRACT_VERSION,
                "aggregate_type": "Ticket",
                "aggregate_id": ticket_id,
                "ticket_id": ticket_id,
                "number": number,
                "tenant_id": tenant_id,
                "queue_id": queue_id,
                "requester_user_id": requester_user_id,
                "assignee_user_id": assignee_user_id,
                "priority": priority,
                "breach_kind": breach.kind,
                "due_at": wire_timestamp(breach.due_at),
                "breached_at": _breached_at(now_utc),
            }
        )

    def to_json(self) -> str:
        """The message's value: compact JSON, PascalCase names, the fields in the order of the contract."""
        return self.model_dump_json()


# the fields' names and order, from the model; these are put in as JSON, all others as the text between the quotes
_AS_JSON = frozenset({"contract_version", "number", "assignee_user_id", "priority"})
_TEMPLATE = (
    "{"
    + ",".join(
        f'"{field.alias}":' + ("%s" if name in _AS_JSON else '"%s"')
        for name, field in TicketSlaBreachedKafkaEvent.model_fields.items()
    )
    + "}"
)


def _is_unicode(text: str) -> bool:
    """Whether UTF-8 can carry the text: half of a surrogate pair is no character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# a support service has a handful of priorities; the bound is for one that writes a text of its own into each ticket
@lru_cache(maxsize=256)
def _priority_json(priority: object) -> str | None:
    """The priority as JSON; None where the contract refuses it."""
    if not isinstance(priority, str) or not 1 <= len(priority) <= _PRIORITY_MAX_LENGTH:
        return None
    return encode_basestring(priority) if _is_unicode(priority) and not _CONTROL_CHARACTER.search(priority) else None


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
    """``TicketSlaBreachedKafkaEvent.of(...).to_json()``, a fifth of its cost: the marking of a backlog is bound by it.

    Ids are as Postgres prints its uuid type. What may be wrong with a ticket is looked at here; where something is, the
    model is asked, and raises its ``pydantic.ValidationError``. A property test holds the two equal.
    """
    priority_json = _priority_json(priority)
    number_fits = number and len(number) <= _NUMBER_MAX_LENGTH and (number.isascii() or _is_unicode(number))
    if not (tenant_id and queue_id and requester_user_id and priority_json and number_fits):
        event = TicketSlaBreachedKafkaEvent.of(
            breach,
            ticket_id=ticket_id,
            number=number,
            tenant_id=tenant_id,
            queue_id=queue_id,
            requester_user_id=requester_user_id,
            assignee_user_id=assignee_user_id,
            priority=priority,
            now_utc=now_utc,
        )
        return event.to_json()
    return _TEMPLATE % (
        event_id(ticket_id),
        EVENT_TYPE,
        CONTRACT_VERSION,
        "Ticket",
        ticket_id,
        ticket_id,
        encode_basestring(number),
        tenant_id,
        queue_id,
        requester_user_id,
        f'"{assignee_user_id}"' if assignee_user_id else "null",
        priority_json,
        breach.kind.value,
        wire_timestamp(breach.due_at),
        _breached_at(now_utc),
    )


def event_key(ticket_id: str) -> bytes:
    """The message's key: the ticket's id, so that all that is ever said of a ticket stays in one partition, in
    order.
    """
    return ticket_id.encode()


# what is the same on every message, encoded once: a backlog has ten thousand of them
_TYPE_HEADER = ("event-type", EVENT_TYPE.encode())
_VERSION_HEADER = ("contract-version", str(CONTRACT_VERSION).encode())
_CONTENT_HEADER = ("content-type", b"application/json")


def event_headers(*, correlation_id: str, outbox_seq: int) -> list[tuple[str, bytes]]:
    """The message's headers.

    ``correlation_id`` is the run that marked the ticket (SPEC 5.1); ``outbox_seq`` counts from 1, gap-free.
    """
    return [
        _TYPE_HEADER,
        _VERSION_HEADER,
        ("correlation-id", correlation_id.encode()),
        ("outbox-seq", b"%d" % outbox_seq),
        _CONTENT_HEADER,
    ]
