"""What must be true after every step, whatever was done, crashed or cut off in between (SPEC 1.3, 5.4, 5.6, 6, 7).

What belongs here: the model's copy of the tickets and the comparison with what is there. What does not: doing anything.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sla_pipeline.breach import Breach, judge
from sla_pipeline.event import event_id, wire_timestamp
from sla_pipeline_tests.integration.state_machine.model import State, Ticket
from sla_pipeline_tests.integration.state_machine.witness import SeenEvent

__all__ = ["Oracle"]


class Oracle:
    """The tickets as the support service has written them, and the marks that the rule has allowed."""

    def __init__(self) -> None:
        self.tickets: dict[str, Ticket] = {}
        self.state = State({}, (), (), 0, 0)
        """The last state that was found sound."""
        self._event_count = 0

    def inserted(self, tickets: Iterable[Ticket]) -> None:
        """The support service has made tickets."""
        self.tickets |= {ticket.id: ticket for ticket in tickets}

    def changed(self, ticket_id: str, values: dict[str, Any]) -> None:
        """The support service has committed a change."""
        self.tickets[ticket_id] = replace(self.tickets[ticket_id], **values)

    def deleted(self, ticket_id: str) -> None:
        """The support service has deleted a ticket."""
        del self.tickets[ticket_id]

    def judge_database(self, found: State) -> list[str]:
        """Compares the database with the model, takes over its new marks, and returns their tickets' ids.

        Raises ``AssertionError`` for a mark that the rule forbids, a mark without a record or the reverse, any other
        change of a ticket, a gap in the sequence.
        """
        recorded_before = {record.ticket_id for record in self.state.records}
        assert [record.seq for record in found.records] == list(range(1, found.last_seq + 1)), "the sequence has a gap"
        assert found.records[: len(self.state.records)] == self.state.records, "a record was changed or lost"
        fresh = {record.ticket_id: record for record in found.records[len(self.state.records) :]}
        assert len(recorded_before | fresh.keys()) == len(found.records), "a ticket has two records"
        assert 0 <= found.published_seq <= found.last_seq
        assert self.state.published_seq <= found.published_seq, "the copy of the position went back"

        assert found.tickets.keys() == self.tickets.keys()
        marked = []
        for ticket_id, now in found.tickets.items():
            before = self.tickets[ticket_id]
            if now == before:
                continue
            # the monitor writes these two and no others (SPEC 5.4)
            assert now == replace(before, sla_breached=True, updated_at=now.updated_at), (
                f"more than the mark was changed: {before} {now}"
            )
            breach = judge(before, now.updated_at)
            assert breach is not None, f"marked against the rule: {before} at {now.updated_at}"
            assert not before.is_bad, f"a ticket whose event cannot be told was marked: {before}"
            if ticket_id in recorded_before:
                assert ticket_id not in fresh, "an event for each mark, instead of one for each ticket"
            else:
                record = fresh.pop(ticket_id)
                assert (record.kind, record.due_at, record.breached_at) == (breach.kind, breach.due_at, now.updated_at)
                assert json.loads(record.payload) == _told_of(before, breach, now.updated_at)
            marked.append(ticket_id)
        assert not fresh, f"records without a mark: {fresh}"
        assert not found.breached_ids & {row.ticket_id for row in found.set_aside}, (
            "a ticket is both marked and set aside"
        )

        self.tickets = dict(found.tickets)
        self.state = found
        return marked

    def judge_topic(self, events: Sequence[SeenEvent]) -> None:
        """Compares what a consumer has received with the records.

        Raises ``AssertionError`` unless it is the records 1 to p, each once, in order within its partition, p at or
        beyond Postgres's copy.
        """
        # first of all, since the rest would tell it in other words
        twice = [ticket_id for ticket_id, count in Counter(event.ticket_id for event in events).items() if count > 1]
        assert not twice, f"tickets with two events: {twice}"
        assert len(events) >= self._event_count
        for partition in {event.partition for event in events}:
            sequence = [event.seq for event in events if event.partition == partition]
            assert sequence == sorted(sequence), "out of order"
        told = sorted((event.seq, event.ticket_id, event.payload) for event in events)
        assert told == [(record.seq, record.ticket_id, record.payload) for record in self.state.records[: len(events)]]
        assert len(events) >= self.state.published_seq, "Postgres believes more to be published than is"
        self._event_count = len(events)


def _told_of(ticket: Ticket, breach: Breach, breached_at: datetime) -> dict[str, Any]:
    """What the event must say (SPEC 5.6)."""
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
