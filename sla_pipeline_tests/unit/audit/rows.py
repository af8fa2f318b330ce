"""Records and events that match, for tests that alter them."""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from sla_pipeline.audit.contract import RecordRow, TopicEvent
from sla_pipeline.breach import Breach, BreachKind
from sla_pipeline.event import event_headers, event_json, wire_timestamp

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
DUE_AT = NOW - timedelta(minutes=1)


def record(seq: int, *, ticket_id: str | None = None, run: str = "run-1", is_old: bool = False) -> RecordRow:
    """A sound record; the default ticket id is derived from ``seq``."""
    ticket_id = ticket_id or str(uuid.UUID(int=0xABCDEF << 104 | seq << 64 | seq, version=4))
    event = event_json(
        Breach(BreachKind.RESOLUTION, DUE_AT),
        ticket_id=ticket_id,
        number=f"TCK-{seq}",
        tenant_id=ticket_id,
        queue_id=ticket_id,
        requester_user_id=ticket_id,
        assignee_user_id=None,
        priority="High",
        now_utc=NOW,
    )
    return RecordRow(
        seq,
        ticket_id,
        f"TCK-{seq}",
        "Resolution",
        wire_timestamp(DUE_AT),
        wire_timestamp(NOW),
        run,
        event,
        True,
        is_old,
    )


def event_of(row: RecordRow, *, partition: int = 0, offset: int | None = None, **changes: Any) -> TopicEvent:
    """The event of a record, with ``changes``; the default offset is the sequence."""
    event = TopicEvent(
        partition,
        row.seq if offset is None else offset,
        row.ticket_id.encode(),
        dict(event_headers(correlation_id=row.correlation_id, outbox_seq=row.seq)),
        row.payload.encode(),
    )
    return event._replace(**changes)


def with_headers(event: TopicEvent, **changes: bytes | None) -> TopicEvent:
    """The event with other headers; underscores stand for dashes."""
    return event._replace(
        headers={**event.headers, **{name.replace("_", "-"): value for name, value in changes.items()}}
    )


def without_header(event: TopicEvent, name: str) -> TopicEvent:
    """The event without one of its headers."""
    return event._replace(headers={key: value for key, value in event.headers.items() if key != name})
