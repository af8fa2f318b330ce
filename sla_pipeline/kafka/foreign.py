"""Distinguishes breach events from records that somebody else wrote to the same topic, and describes those.

A record is ours by its headers for recovery, which must know a damaged event again, and by its headers and its payload
for whoever only reads. What does not belong here: what a foreign record means to its finder.
"""

from pydantic import ValidationError

from sla_pipeline.event import TicketSlaBreachedKafkaEvent, event_id, event_key
from sla_pipeline.kafka.events import ReceivedEvent
from sla_pipeline.kafka.headers import sequence_in
from sla_pipeline.quoting import quoted

__all__ = ["event_or_fault", "place_of", "shown"]

# fields of a payload, or headers, that one line lists
_LISTED = 3


def event_or_fault(received: ReceivedEvent) -> TicketSlaBreachedKafkaEvent | str:
    """The breach event, or why the record is none of this package: the first thing that is wrong with it."""
    if not received.value:
        return "its value is null or empty"
    try:
        # by the names that travel only: the model's own field names are none of the contract
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
    """A record's place, in the numbers that Kafka's tools take."""
    return f"partition {received.partition}, offset {received.offset}"


def shown(received: ReceivedEvent, fault: str) -> str:
    """One bounded line on a foreign record: place, fault, and hints at its writer. Of its value, only the size."""
    names = ", ".join(quoted(name) for name in list(received.headers)[:_LISTED]) or "none"
    more = f" and {len(received.headers) - _LISTED} more" if len(received.headers) > _LISTED else ""
    found = f"key {quoted(received.key)}, {len(received.value)} bytes, headers {names}{more}"
    return f"not a breach event: {place_of(received)}: {fault} ({found})"
