"""Expected state: what must be true after every step, amid any crashes and cuts (SPEC 1.3, 5.4, 5.6, 6, 7).

It holds a copy of the tickets and compares it with the database and the topic. It changes neither.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sla_pipeline.breach import Breach, judge
from sla_pipeline.event import event_id, wire_timestamp
from sla_pipeline_tests.integration.state_machine.database_state import DatabaseState, TicketRow
from sla_pipeline_tests.integration.state_machine.topic_consumer import ConsumedEvent

__all__ = ["ExpectedState"]


class ExpectedState:
    """Tickets as the support service wrote them, with the monitor's marks.

    A mark is copied from the database once the rule has allowed it.
    """

    def __init__(self) -> None:
        self.tickets: dict[str, TicketRow] = {}
        self.checked = DatabaseState({}, (), (), 0, 0)
        """Last state of the database that passed the check."""
        self._event_count = 0

    def inserted(self, tickets: Iterable[TicketRow]) -> None:
        """Record new tickets of the support service."""
        self.tickets |= {ticket.id: ticket for ticket in tickets}

    def changed(self, ticket_id: str, values: dict[str, Any]) -> None:
        """Record a committed change of the support service."""
        self.tickets[ticket_id] = replace(self.tickets[ticket_id], **values)

    def deleted(self, ticket_id: str) -> None:
        """Record a deletion by the support service."""
        del self.tickets[ticket_id]

    def check_database(self, found: DatabaseState) -> list[str]:
        """Compare the database with the expected tickets, copy its new marks and return their tickets' ids.

        Raises ``AssertionError`` for a mark that the rule forbids, a mark without a record or the reverse, any other
        change of a ticket, a gap in the sequence.
        """
        recorded_before = {record.ticket_id for record in self.checked.records}
        assert [record.seq for record in found.records] == list(range(1, found.last_seq + 1)), "the sequence has a gap"
        assert found.records[: len(self.checked.records)] == self.checked.records, "a record was changed or lost"
        added = {record.ticket_id: record for record in found.records[len(self.checked.records) :]}
        assert len(recorded_before | added.keys()) == len(found.records), "a ticket has two records"
        assert 0 <= found.published_seq <= found.last_seq
        assert self.checked.published_seq <= found.published_seq, "the copy of the position went back"

        assert found.tickets.keys() == self.tickets.keys()
        marked = []
        for ticket_id, now in found.tickets.items():
            before = self.tickets[ticket_id]
            if now == before:
                continue
            # the monitor writes these two columns only (SPEC 5.4)
            assert now == replace(before, sla_breached=True, updated_at=now.updated_at), (
                f"more than the mark was changed: {before} {now}"
            )
            breach = judge(before, now.updated_at)
            assert breach is not None, f"marked against the rule: {before} at {now.updated_at}"
            assert not before.is_bad, f"a ticket whose event cannot be built was marked: {before}"
            if ticket_id in recorded_before:
                assert ticket_id not in added, "an event for each mark, instead of one for each ticket"
            else:
                record = added.pop(ticket_id)
                assert (record.kind, record.due_at, record.breached_at) == (breach.kind, breach.due_at, now.updated_at)
                assert json.loads(record.payload) == _expected_event(before, breach, now.updated_at)
            marked.append(ticket_id)
        assert not added, f"records without a mark: {added}"
        assert not found.breached_ids & {row.ticket_id for row in found.set_aside}, (
            "a ticket is both marked and set aside"
        )

        self.tickets = dict(found.tickets)
        self.checked = found
        return marked

    def check_topic(self, events: Sequence[ConsumedEvent]) -> None:
        """Compare the events that a consumer received with the records.

        Raises ``AssertionError`` unless they are the records 1 to p, each once, in order within each partition, and p
        is at least Postgres's copy of the position.
        """
        # first, because the later checks would report duplicates less clearly
        twice = [ticket_id for ticket_id, count in Counter(event.ticket_id for event in events).items() if count > 1]
        assert not twice, f"tickets with two events: {twice}"
        assert len(events) >= self._event_count
        for partition in {event.partition for event in events}:
            sequence = [event.seq for event in events if event.partition == partition]
            assert sequence == sorted(sequence), "out of order"
        consumed = sorted((event.seq, event.ticket_id, event.payload) for event in events)
        assert consumed == [
            (record.seq, record.ticket_id, record.payload) for record in self.checked.records[: len(events)]
        ]
        assert len(events) >= self.checked.published_seq, "Postgres's position is beyond the topic's end"
        self._event_count = len(events)


def _expected_event(ticket: TicketRow, breach: Breach, breached_at: datetime) -> dict[str, Any]:
    """Return the expected content of the event (SPEC 5.6)."""
    return {
        "EventId": event_id(ticket.id),
        "EventType": "TicketSlaBreachedKafkaEvent",
        "ContractVersion": 1,
        "AggregateType": "Ticket",
        "AggregateId": ticket.id,
        "TicketId": ticket.id,
        "Number": ticket.number,
        "TenantId": ticket.tenant_id,
        "QueueId": ticket.queue_id,
        "RequesterUserId": ticket.requester_user_id,
        "AssigneeUserId": ticket.assignee_user_id,
        "Priority": ticket.priority,
        "BreachKind": breach.kind,
        "DueAt": wire_timestamp(breach.due_at),
        "BreachedAt": wire_timestamp(breached_at),
    }
