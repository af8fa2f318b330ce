"""All books put next to each other at the end: tickets, breach records, events, and what the operators wrote down.

What belongs here: reading them, and the counts by which a run is clean or not. What does not: how a run is made. It
shares only the rule (``breach.py``) with the product.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

import psycopg
from psycopg.rows import args_row

from sla_pipeline.breach import Breach, BreachKind
from sla_pipeline.kafka.events import ReceivedEvent, read_events
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline_tests.chaos.ledger import Ledger, Version

__all__ = ["Findings", "Record", "Row", "compare", "examine"]

_ROWS = """
select id::text, status, first_response_due_at, first_response_at, resolution_due_at, resolved_at, sla_breached from support.tickets
"""
_RECORDS = (
    "select seq, ticket_id::text, kind, due_at, breached_at, payload from support.ticket_sla_breaches order by seq"
)
# how many tickets of each finding are named
_NAMED_TICKETS = 10


class Row(NamedTuple):
    """A ticket as it stands."""

    ticket_id: str
    version: Version


class Record(NamedTuple):
    """A breach record."""

    seq: int
    ticket_id: str
    kind: str
    due_at: datetime
    breached_at: datetime
    payload: str


@dataclass(slots=True)
class Findings:
    """Counts of what there is, and of what must not be; for the latter some tickets by name."""

    breaches: int = 0
    events: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    named: dict[str, list[str]] = field(default_factory=dict)

    def fault(self, kind: str, told: object) -> None:
        """One more of a kind."""
        self.faults[kind] += 1
        named = self.named.setdefault(kind, [])
        if len(named) < _NAMED_TICKETS:
            named.append(str(told))


def examine(owner_url: str, kafka: KafkaSettings, ledger: Ledger, cutoff: datetime) -> Findings:
    """Read everything and compare it. ``cutoff``: what was due then and is not marked was missed. Nothing may be under
    way.
    """
    with psycopg.connect(owner_url) as connection:
        connection.execute("set time zone 'UTC'")
        rows = [Row(str(row[0]), Version(*row[1:])) for row in connection.execute(_ROWS)]
        records = connection.cursor(row_factory=args_row(Record)).execute(_RECORDS).fetchall()
    return compare(rows, records, read_events(kafka), ledger, cutoff)


def compare(
    rows: Iterable[Row], records: list[Record], events: Iterable[ReceivedEvent], ledger: Ledger, cutoff: datetime
) -> Findings:
    """The comparison itself."""
    findings = Findings(breaches=len(records))
    by_ticket = {record.ticket_id: record for record in records}
    if [record.seq for record in records] != list(range(1, len(records) + 1)):
        findings.fault("sequence_gaps", f"{len(records)} records, the last is {records[-1].seq}")
    for row in rows:
        _compare_ticket(row, by_ticket.get(row.ticket_id), ledger, cutoff, findings)
    _compare_events({record.seq: record for record in records}, events, findings)
    return findings


def _compare_ticket(row: Row, record: Record | None, ledger: Ledger, cutoff: datetime, findings: Findings) -> None:
    book = ledger[row.ticket_id]
    if not row.version.says_the_same(book.last):
        findings.fault("altered", f"{row.ticket_id}: {row.version}, the operators left it as {book.last}")
    if book.flag_went_back:
        findings.fault("altered", f"{row.ticket_id}: the flag went back")
    if row.version.sla_breached != (record is not None):
        findings.fault("unrecorded", f"{row.ticket_id}: marked {row.version.sla_breached}, record {record}")
    if record is None:
        if book.is_missed(cutoff):
            findings.fault("missed", f"{row.ticket_id}: {book.unmarked}")
    elif book.is_false_breach(Breach(BreachKind(record.kind), record.due_at), record.breached_at):
        findings.fault("false_breaches", f"{record} on {book.unmarked}, afterwards {book.versions[-1]}")


def _compare_events(records: Mapping[int, Record], events: Iterable[ReceivedEvent], findings: Findings) -> None:
    seen: Counter[int] = Counter()
    last_seq: dict[int, int] = {}
    for event in events:
        findings.events += 1
        seq = int(event.headers["outbox-seq"])
        seen[seq] += 1
        where = f"sequence {seq}, partition {event.partition}, offset {event.offset}"
        if seen[seq] > 1:
            findings.fault("duplicates", where)
        if seq < last_seq.get(event.partition, 0):
            findings.fault("order_inversions", where)
        last_seq[event.partition] = max(seq, last_seq.get(event.partition, 0))
        record = records.get(seq)
        if record is None or record.payload.encode() != event.value or record.ticket_id.encode() != event.key:
            findings.fault("strays", f"{where}: {json.loads(event.value).get('Number')}, record {record}")
    for seq in records.keys() - seen.keys():
        findings.fault("losses", f"sequence {seq}, ticket {records[seq].ticket_id}")
