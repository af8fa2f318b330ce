"""Comparison of breach records and events: two tables in a temporary SQLite file, joined when both are complete.

The file keeps the memory of an audit independent of the number of events. SQLite deletes it itself, also after a kill.
A payload and a run are stored as fingerprints, 64 bits of BLAKE2b: enough against accidents; there is no adversary.

**Missing, waiting or expired.** A record without an event is

- *waiting* when its sequence is beyond everything that was published before the topic's end was read;
- possibly *expired* when its sequence is below ``positions.expired_below``;
- *lost* otherwise.
"""

import contextlib
import hashlib
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sla_pipeline.audit import contract
from sla_pipeline.audit.contract import RecordRow, TopicEvent
from sla_pipeline.audit.findings import EXAMPLE_LIMIT, Check, Example, Tally
from sla_pipeline.errors import ConfigurationError
from sla_pipeline.event import REPUBLISHED_HEADER

__all__ = ["Reconciliation", "open_reconciliation"]

# Nothing must survive a crash, so nothing is journaled or flushed. The cache size, in KB, bounds the memory of the
# comparison.
_SETTINGS = ("pragma journal_mode = off", "pragma synchronous = off", "pragma cache_size = -16384")
# classes of errors that mean the temporary file and not a statement
_DISK_ERRORS = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)

_TABLES = """
create table records (
    seq integer primary key, ticket_id text, number text, payload blob, run blob, is_sound, was_due, is_old
);
-- seq and the ticket ids are null where a message has none that is valid
create table events (
    partition integer, offset integer, seq integer, ticket_id text, key_ticket_id text, payload blob, run blob,
    has_constant_headers, is_valid, is_republished
);
"""
_INSERT_RECORD = "insert into records values (?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_EVENT = "insert into events values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_SAME_RECORD = "select ticket_id, is_sound from records where seq = ? and payload = ?"

# Built after loading: one sort is faster than a million insertions in random order. Each covers the view that uses it.
_INDEXES = """
create index records_by_ticket on records (ticket_id);
create index events_by_seq on events (seq, partition, offset, ticket_id);
create index events_by_ticket on events (ticket_id, partition, offset, seq);
"""

# `not indexed` reads a table in the order of loading. The planner prefers an index on the ticket, whose random order
# costs ten times as much.
_VIEWS = """
create view records_without_event as
select *, exists (select * from events where events.ticket_id = records.ticket_id) as has_event_of_ticket
from records not indexed where not exists (select * from events where events.seq = records.seq);

create view compared_events as
select events.*, records.seq is not null as has_record, records.ticket_id as record_ticket_id,
    records.payload as record_payload, records.run as record_run,
    coalesce(events.seq < (select min(seq) from records), false) as is_older_than_records,
    -- SQLite evaluates both sides of `and`: only `case` saves the lookup for the events that have their record
    case when events.ticket_id is not records.ticket_id then events.ticket_id is not null
        and not exists (select * from records other where other.ticket_id = events.ticket_id) end
    as is_of_unrecorded_ticket
from events not indexed left join records on records.seq = events.seq;

-- recovery republishes an event behind higher sequences by design; a sequence that was never handed out has no order
create view ordered_events as
select partition, offset, seq, ticket_id from compared_events
where (has_record or is_older_than_records) and not is_republished;

create view events_in_partition as
select *, lag(seq) over (partition by partition order by offset) as previous_seq from ordered_events;

create view events_of_sequence as
select partition, offset, seq, ticket_id,
    lag(partition) over (partition by seq order by partition, offset) as previous_partition
from events where seq is not null;

create view events_of_ticket as
select partition, offset, seq, ticket_id,
    lag(partition) over place as previous_partition, lag(seq) over place as previous_seq
from events where ticket_id is not null window place as (partition by ticket_id order by partition, offset);
"""

_IS_LOST = "seq <= :claimed_published and seq >= :expired_below"
# Conditions by view, each view read once for all of its counts. Cost: O(records + events); a view's order and its
# lookups come from the primary keys and the indexes above.
_CONDITIONS = {
    "records": {
        Check.RECORD_BEYOND_SEQUENCE: "seq > :last_seq",
        Check.RECORD_MALFORMED: "not is_sound",
        Check.RECORD_NOT_DUE: "not was_due",
    },
    "records_without_event": {
        Check.RECORD_WAITING: "seq > :claimed_published",
        Check.RECORD_STUCK: "seq > :claimed_published and is_old",
        Check.EVENT_EXPIRED: "seq <= :claimed_published and seq < :expired_below",
        Check.RECORD_WITHOUT_EVENT: _IS_LOST,
        Check.RECORD_TICKET_WITHOUT_EVENT: f"{_IS_LOST} and not has_event_of_ticket",
    },
    "compared_events": {
        Check.EVENT_WITHOUT_SEQUENCE: "seq is null",
        Check.EVENT_WITHOUT_RECORD: "seq is not null and not has_record and not is_older_than_records",
        # the ticket of a record that housekeeping removed is unknown
        Check.EVENT_TICKET_WITHOUT_RECORD: "is_of_unrecorded_ticket and not is_older_than_records",
        Check.EVENT_PAYLOAD_DIFFERS: "has_record and payload is not record_payload",
        Check.EVENT_KEY_DIFFERS: "has_record and key_ticket_id is not record_ticket_id",
        Check.EVENT_HEADERS_DIFFER: "has_record and (run is not record_run or not has_constant_headers)",
        # with a record, key and headers are compared with the record's
        Check.EVENT_INVALID: "not is_valid "
        "or not has_record and (key_ticket_id is not ticket_id or not has_constant_headers)",
        Check.EVENT_REPUBLISHED: "is_republished and (has_record or is_older_than_records)",
        Check.RECORD_EXPIRED: "is_older_than_records",
    },
    "events_in_partition": {Check.ORDER_IN_PARTITION: "seq < previous_seq"},
    "events_of_sequence": {Check.EVENT_SEQUENCE_TWICE: "previous_partition is not null"},
    "events_of_ticket": {
        Check.EVENT_TICKET_TWICE: "previous_partition is not null",
        Check.ORDER_OF_TICKET: "seq < previous_seq or partition <> previous_partition",
    },
}

# Every sequence from the oldest one needed to the last one handed out has a record. Housekeeping may have removed
# records before the published one, which it keeps for the publisher.
_GAPS = """
with present (seq) as (
    select min(max(:published_seq, 1), coalesce((select min(seq) from records), :last_seq + 1)) - 1
    union all select seq from records where seq <= :last_seq
    union all select :last_seq + 1
)
select seq + 1, next_seq - seq - 1 from (select seq, lead(seq) over (order by seq) as next_seq from present)
where next_seq > seq + 1 order by seq
"""


def _fingerprint(content: bytes | None) -> bytes | None:
    return None if content is None else hashlib.blake2b(content, digest_size=8).digest()


@contextlib.contextmanager
def open_reconciliation() -> Iterator["Reconciliation"]:
    """Open an empty comparison. Raises ``ConfigurationError`` when its temporary file cannot be written."""
    try:
        # the empty name is SQLite's for a temporary file that it deletes itself
        with contextlib.closing(sqlite3.connect("")) as database:
            for setting in _SETTINGS:
                database.execute(setting)
            database.executescript(_TABLES)
            yield Reconciliation(database)
    except sqlite3.OperationalError as error:
        # the lower byte of SQLite's code is its class
        if error.sqlite_errorcode & 0xFF not in _DISK_ERRORS:
            raise
        raise ConfigurationError(
            f"the audit's temporary file cannot be written ({error}); it needs 400 MB for a million events. Let "
            "SQLITE_TMPDIR name a folder with enough space"
        ) from error


class Reconciliation:
    """Records and events of one audit, and the checks that compare them. Load each side once, then call ``compare``."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def load_records(self, records: Iterable[RecordRow]) -> None:
        """Store the breach records."""
        self._database.executemany(_INSERT_RECORD, map(_record_values, records))

    def load_events(self, events: Iterable[TopicEvent]) -> None:
        """Store the events, then index and join both sides."""
        self._database.executemany(_INSERT_EVENT, map(self._event_values, events))
        self._database.executescript(_INDEXES + _VIEWS)

    @property
    def record_count(self) -> int:
        """Number of records."""
        return int(self._row("select count(*) from records")[0])

    @property
    def event_count(self) -> int:
        """Number of events."""
        return int(self._row("select count(*) from events")[0])

    @property
    def highest_event_seq(self) -> int | None:
        """Highest sequence of an event; None without one."""
        seq: int | None = self._row("select max(seq) from events")[0]
        return seq

    def first_seqs(self) -> dict[int, int]:
        """Return the first sequence in each partition; republished events and foreign sequences do not count."""
        # beside min(), SQLite returns the columns of the row that holds the minimum
        rows = self._database.execute("select partition, seq, min(offset) from ordered_events group by partition")
        return {partition: seq for partition, seq, _ in rows}

    def compare(
        self, tally: Tally, *, published_seq: int, last_seq: int, claimed_published: int, expired_below: int
    ) -> None:
        """Add everything in which records and events differ to ``tally``.

        ``published_seq`` and ``last_seq`` are as of the records' snapshot.
        """
        values = {
            "published_seq": published_seq,
            "last_seq": last_seq,
            "claimed_published": claimed_published,
            "expired_below": expired_below,
        }
        for first_missing, missing_count in self._database.execute(_GAPS, values):
            tally.add(Check.RECORD_GAP, Example(seq=first_missing), missing_count)
        for view, conditions in _CONDITIONS.items():
            sums = ", ".join(f"sum({condition})" for condition in conditions.values())
            counts = self._row(f"select {sums} from {view}", values)  # noqa: S608  made of constants of this module
            for (check, condition), count in zip(conditions.items(), counts, strict=True):
                if count:
                    tally.add_all(check, self._examples(view, condition, values), count)

    def _event_values(self, event: TopicEvent) -> tuple[object, ...]:
        seq, payload = contract.sequence_of(event.headers), _fingerprint(event.value)
        # an event with the payload of its record belongs to the record's ticket, and is valid if the record is sound
        ticket_id, is_valid = self._database.execute(_SAME_RECORD, (seq, payload)).fetchone() or (None, False)
        if not is_valid:
            ticket_id = ticket_id or contract.claimed_ticket_id(event)
            is_valid = contract.valid_event(event.value) is not None
        return (
            event.partition,
            event.offset,
            seq,
            ticket_id,
            contract.ticket_id_in(event.key),
            payload,
            _fingerprint(event.headers.get(contract.CORRELATION_ID)),
            contract.has_constant_headers(event),
            is_valid,
            REPUBLISHED_HEADER in event.headers,
        )

    def _examples(self, view: str, condition: str, values: Mapping[str, int]) -> list[Example]:
        is_record = view in ("records", "records_without_event")
        columns = "ticket_id, number, seq" if is_record else "ticket_id, null, seq, partition, offset"
        order = "seq" if is_record else "partition, offset"
        rows = self._database.execute(
            f"select {columns} from {view} where {condition} order by {order} limit {EXAMPLE_LIMIT}",  # noqa: S608
            values,
        )
        return [Example(*row) for row in rows]

    def _row(self, statement: str, values: Mapping[str, int] | None = None) -> tuple[Any, ...]:
        row: tuple[Any, ...] = self._database.execute(statement, values or {}).fetchone()
        return row


def _record_values(record: RecordRow) -> tuple[object, ...]:
    return (
        record.seq,
        record.ticket_id,
        record.number,
        _fingerprint(record.payload.encode()),
        _fingerprint(record.correlation_id.encode()),
        contract.is_record_sound(record),
        record.was_due,
        record.is_old,
    )
