"""Do tickets, breach records and events tell the same story? The comparison at the end of a demo or a replay.

What belongs here: three sets, put next to each other. What does not: whether each mark was right by the rule. Call it when no cycle is
under way: a mark that is not published yet counts as a difference.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import psycopg
from rich.table import Table

from sla_pipeline.breach import BreachKind
from sla_pipeline.kafka.events import ReceivedEvent, read_events
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.postgres.session import PostgresSettings, translated_errors

__all__ = ["Comparison", "compare"]

_MARKED = "select id::text, number from support.tickets where sla_breached"
_RECORDS = "select ticket_id::text, number, kind, payload from support.ticket_sla_breaches"
# how many tickets of a difference are named in the table
_NAMED_TICKETS = 5


@dataclass(frozen=True, slots=True)
class _Record:
    number: str
    kind: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Comparison:
    """Counts of the three sets, and for each way to differ the tickets concerned: their numbers, sorted."""

    marked_count: int
    records_by_kind: Mapping[BreachKind, int]
    events_by_kind: Mapping[BreachKind, int]
    """Events that say, byte for byte, what their record says."""
    event_count: int
    differences: Mapping[str, tuple[str, ...]]

    @property
    def agree(self) -> bool:
        """Every marked ticket has one record and one event that says the same, and nothing else is there."""
        return not any(self.differences.values())

    def as_table(self) -> Table:
        """The same for people."""
        table = Table("", "tickets", *(kind.value for kind in BreachKind), title="tickets, breach records and events")
        table.add_row("marked (sla_breached)", str(self.marked_count), *("" for _ in BreachKind))
        table.add_row("breach records", str(sum(self.records_by_kind.values())), *(str(self.records_by_kind[kind]) for kind in BreachKind))
        table.add_row("events on the topic", str(self.event_count), *(str(self.events_by_kind[kind]) for kind in BreachKind))
        table.add_section()
        for difference, numbers in self.differences.items():
            named = ", ".join(numbers[:_NAMED_TICKETS]) + (", ..." if len(numbers) > _NAMED_TICKETS else "")
            table.add_row(difference, str(len(numbers)), named, "", style="bold red" if numbers else None)
        table.caption = "they agree" if self.agree else "they DO NOT agree"
        return table


def compare(owner_url: str, kafka: KafkaSettings) -> Comparison:
    """Read marks, records and the whole topic (read_committed), and compare them. Changes nothing.

    Raises ``DatabaseError``, ``DatabaseUnavailable``, ``KafkaError`` or ``KafkaUnavailable``.
    """
    settings = PostgresSettings(owner_url)
    with settings.connect(purpose="comparison") as connection, translated_errors(settings), connection.transaction():
        # both tables as of one moment
        connection.execute("set transaction isolation level repeatable read, read only")
        marked, records = _marked(connection), _records(connection)
    return _compared(marked, records, list(read_events(kafka)))


def _marked(connection: psycopg.Connection) -> dict[str, str]:
    return dict(connection.execute(_MARKED))


def _records(connection: psycopg.Connection) -> dict[str, _Record]:
    return {ticket_id: _Record(number, kind, payload.encode()) for ticket_id, number, kind, payload in connection.execute(_RECORDS)}


def _compared(marked: Mapping[str, str], records: Mapping[str, _Record], events: list[ReceivedEvent]) -> Comparison:
    counts = Counter(event.key.decode(errors="replace") for event in events)
    # an event's ticket is known by its key, whatever its value says
    unlike = {
        ticket_id
        for event in events
        if (ticket_id := event.key.decode(errors="replace")) in records and event.value != records[ticket_id].payload
    }
    numbers = {**{ticket_id: record.number for ticket_id, record in records.items()}, **marked}

    def named(ticket_ids: set[str]) -> tuple[str, ...]:
        return tuple(sorted(numbers.get(ticket_id, ticket_id) for ticket_id in ticket_ids))

    alike = Counter(records[ticket_id].kind for ticket_id in counts if ticket_id in records and ticket_id not in unlike)
    recorded = Counter(record.kind for record in records.values())
    return Comparison(
        marked_count=len(marked),
        records_by_kind={kind: recorded[kind] for kind in BreachKind},
        events_by_kind={kind: alike[kind] for kind in BreachKind},
        event_count=len(events),
        differences={
            "marked, no breach record": named(marked.keys() - records.keys()),
            "breach record, not marked": named(records.keys() - marked.keys()),
            "breach record, no event": named(records.keys() - counts.keys()),
            "event, no breach record": named(counts.keys() - records.keys()),
            "event published more than once": named({ticket_id for ticket_id, count in counts.items() if count > 1}),
            "event unlike its record": named(unlike),
        },
    )
