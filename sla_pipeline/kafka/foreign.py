"""Distinguish breach events from records that another program wrote to the same topic, and describe those.

Recovery identifies an event by its headers alone, because it must recognize a damaged one; readers require a valid
payload as well.
"""

from pydantic import ValidationError

from sla_pipeline.event import TicketSlaBreachedKafkaEvent, event_id, event_key
from sla_pipeline.kafka.events import ReceivedEvent
from sla_pipeline.kafka.headers import sequence_in
from sla_pipeline.quoting import quoted

__all__ = ["event_or_fault", "place_of", "shown"]

# Bounds the fields of a payload, or headers, that one line lists.
_LISTED = 3


def event_or_fault(received: ReceivedEvent) -> TicketSlaBreachedKafkaEvent | str:
    """Return the breach event, or the first reason why the record is not one of this package."""
    if not received.value:
        return "its value is null or empty"
    try:
        # By alias only: the model's own field names are not part of the contract.
        event = TicketSlaBreachedKafkaEvent.model_validate_json(received.value, by_alias=True, by_name=False)
    except ValidationError as error:
        return _fault_of_payload(error)
    if event.aggregate_id != event.ticket_id or event.event_id != event_id(event.ticket_id):
        return "its EventId or AggregateId is not that of its TicketId"
    if received.key != event_key(event.ticket_id):
        return "its key is not its TicketId"
    if sequence_in(received.headers) is None:
        return "it has no header outbox-seq with a sequence"
    return event


def _fault_of_payload(error: ValidationError) -> str:
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    if any(fault["type"] == "json_invalid" for fault in faults):
        return "its value is not JSON in UTF-8"
    fields = list(dict.fromkeys(quoted(fault["loc"][0]) for fault in faults if fault["loc"]))
    if not fields:
        return "its value is not a JSON object"
    more = f" and {len(fields) - _LISTED} more" if len(fields) > _LISTED else ""
    return f"its value does not keep to the contract in {', '.join(fields[:_LISTED])}{more}"


def place_of(received: ReceivedEvent) -> str:
    """Return a record's partition and offset, as Kafka's tools take them."""
    return f"partition {received.partition}, offset {received.offset}"


def shown(received: ReceivedEvent, fault: str) -> str:
    """Return one bounded line on a foreign record: place, fault, size, and hints at its writer; never its value."""
    names = ", ".join(quoted(name) for name in list(received.headers)[:_LISTED]) or "none"
    more = f" and {len(received.headers) - _LISTED} more" if len(received.headers) > _LISTED else ""
    found = f"key {quoted(received.key)}, {len(received.value)} bytes, headers {names}{more}"
    return f"not a breach event: {place_of(received)}: {fault} ({found})"
