"""Comparison of tickets, breach records, events and the operators' commits at the end of a run.

Of the product it uses the rule (``breach.py``) and the readers of the topic only.
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
from sla_pipeline_tests.chaos.committed_versions import CommittedVersions, Version

__all__ = ["BreachRow", "Findings", "TicketRow", "compare", "reconcile"]

_ROWS = """
select id::text, status, first_response_due_at, first_response_at, resolution_due_at, resolved_at, sla_breached
from support.tickets
"""
_RECORDS = (
    "select seq, ticket_id::text, kind, due_at, breached_at, payload from support.ticket_sla_breaches order by seq"
)
# bound of the output: a wrong build has thousands
_EXAMPLES_PER_FAULT = 10


class TicketRow(NamedTuple):
    """Row of ``support.tickets``."""

    ticket_id: str
    version: Version


class BreachRow(NamedTuple):
    """Row of ``support.ticket_sla_breaches``."""

    seq: int
    ticket_id: str
    kind: str
    due_at: datetime
    breached_at: datetime
    payload: str


@dataclass(slots=True)
class Findings:
    """Counts of breaches, events and faults, with some examples of each kind of fault."""

    breaches: int = 0
    events: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def fault(self, kind: str, detail: object) -> None:
        """Count one fault of ``kind``."""
        self.faults[kind] += 1
        examples = self.examples.setdefault(kind, [])
        if len(examples) < _EXAMPLES_PER_FAULT:
            examples.append(str(detail))


def reconcile(owner_url: str, kafka: KafkaSettings, committed: CommittedVersions, cutoff: datetime) -> Findings:
    """Read the tables and the topic, and compare them with ``committed``.

    An unmarked ticket that was overdue at ``cutoff`` counts as missed. No worker or operator may run any more.
    """
    with psycopg.connect(owner_url) as connection:
        connection.execute("set time zone 'UTC'")
        rows = [TicketRow(str(row[0]), Version(*row[1:])) for row in connection.execute(_ROWS)]
        records = connection.cursor(row_factory=args_row(BreachRow)).execute(_RECORDS).fetchall()
    return compare(rows, records, read_events(kafka), committed, cutoff)


def compare(
    rows: Iterable[TicketRow],
    records: list[BreachRow],
    events: Iterable[ReceivedEvent],
    committed: CommittedVersions,
    cutoff: datetime,
) -> Findings:
    """Compare rows, records and events with the committed versions."""
    findings = Findings(breaches=len(records))
    by_ticket = {record.ticket_id: record for record in records}
    if [record.seq for record in records] != list(range(1, len(records) + 1)):
        findings.fault("sequence_gaps", f"{len(records)} records, the last is {records[-1].seq}")
    for row in rows:
        _compare_ticket(row, by_ticket.get(row.ticket_id), committed, cutoff, findings)
    _compare_events({record.seq: record for record in records}, events, findings)
    return findings


def _compare_ticket(
    row: TicketRow, record: BreachRow | None, committed: CommittedVersions, cutoff: datetime, findings: Findings
) -> None:
    versions = committed[row.ticket_id]
    if not row.version.has_same_values(versions.last):
        findings.fault("altered", f"{row.ticket_id}: {row.version}, last committed by an operator: {versions.last}")
    if versions.flag_was_reset:
        findings.fault("altered", f"{row.ticket_id}: the flag was reset")
    if row.version.sla_breached != (record is not None):
        findings.fault("unrecorded", f"{row.ticket_id}: marked {row.version.sla_breached}, record {record}")
    if record is None:
        if versions.is_missed(cutoff):
            findings.fault("missed", f"{row.ticket_id}: {versions.unmarked}")
    elif versions.is_false_breach(Breach(BreachKind(record.kind), record.due_at), record.breached_at):
        findings.fault("false_breaches", f"{record} on {versions.unmarked}, last version {versions.last}")


def _compare_events(records: Mapping[int, BreachRow], events: Iterable[ReceivedEvent], findings: Findings) -> None:
    counts: Counter[int] = Counter()
    last_seq: dict[int, int] = {}
    for event in events:
        findings.events += 1
        seq = int(event.headers["outbox-seq"])
        counts[seq] += 1
        where = f"sequence {seq}, partition {event.partition}, offset {event.offset}"
        if counts[seq] > 1:
            findings.fault("duplicates", where)
        if seq < last_seq.get(event.partition, 0):
            findings.fault("order_inversions", where)
        last_seq[event.partition] = max(seq, last_seq.get(event.partition, 0))
        record = records.get(seq)
        if record is None or record.payload.encode() != event.value or record.ticket_id.encode() != event.key:
            findings.fault("strays", f"{where}: {json.loads(event.value).get('Number')}, record {record}")
    for seq in records.keys() - counts.keys():
        findings.fault("losses", f"sequence {seq}, ticket {records[seq].ticket_id}")
