"""Breach records and events put side by side while they stream past, in 49 bytes a record.

What belongs here: the compact memory, and what can be told at the moment a record or an event arrives. What does not:
reading either side, and what can be told only when both are complete (``settlement.py``).

Records come first, in rising sequence. Of each, its sequence, its ticket, a fingerprint of its payload and of its run,
some flags and, later, the place of its event are kept in flat arrays: a dictionary of a million records would be ten
times as large. Events come after, partitions interleaved, each partition in order. An event that fits its record leaves
only its place; any other one is a stray, kept in 32 bytes until the end.

Fingerprints are 64 bits of BLAKE2b: enough to tell an accident, and nobody forges them against himself.
"""

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator

from sla_pipeline.audit import contract
from sla_pipeline.audit.contract import RecordRow, TopicEvent, ticket_bytes, ticket_text
from sla_pipeline.audit.entry import ENTRY_BYTES, NO_SEQUENCE, SHARES, TICKET_BYTES, Place, pack, place_of, share_of
from sla_pipeline.audit.findings import Check, Example, Tally
from sla_pipeline.event import REPUBLISHED_HEADER

__all__ = ["Ledger"]

# a place that no event has: the number of a partition stays far below 65,535
_NOT_SEEN: Place = 2**64 - 1
# flags of a record: it was recorded long ago; its payload is not what its columns say; its event speaks of another
# ticket
_OLD, _UNSOUND, _OTHER_TICKET = 1, 2, 4


def _fingerprint(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest())


class Ledger:
    """One audit's records and events. What is found on the way goes to ``tally``."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._seqs = array("q")
        self._tickets = bytearray()
        self._payloads = array("Q")
        self._runs = array("Q")
        self._places = array("Q")
        self._flags = bytearray()
        self._strays = bytearray()
        self._previous_seqs: dict[int, int] = {}
        self.event_count = 0
        self.highest_event_seq: int | None = None
        self.first_seqs: dict[int, int] = {}
        """The first sequence seen in each partition, republished ones aside: what stood before it has expired, or never
        was.
        """

    @property
    def record_count(self) -> int:
        """Records taken in."""
        return len(self._seqs)

    def add_record(self, record: RecordRow) -> None:
        """Take in one record; they must come in rising sequence."""
        example = Example(record.ticket_id, record.number, record.seq)
        if self._seqs and record.seq > self._seqs[-1] + 1:
            self._tally.add(Check.RECORD_GAP, Example(seq=self._seqs[-1] + 1), record.seq - self._seqs[-1] - 1)
        flags = _OLD if record.is_old else 0
        if not contract.is_record_sound(record):
            self._tally.add(Check.RECORD_MALFORMED, example)
            flags |= _UNSOUND
        if not record.was_due:
            self._tally.add(Check.RECORD_NOT_DUE, example)
        self._seqs.append(record.seq)
        self._tickets += bytes.fromhex(record.ticket_id.replace("-", ""))
        self._payloads.append(_fingerprint(record.payload.encode()))
        self._runs.append(_fingerprint(record.correlation_id.encode()))
        self._places.append(_NOT_SEEN)
        self._flags.append(flags)

    def close_records(self, *, published_seq: int, last_seq: int) -> None:
        """All records are in. Their sequence must reach exactly to ``last_seq``, and back at least to ``published_seq``.

        Both as of the records' own snapshot. Older ones may have been removed by housekeeping, which keeps the
        published one for the publisher to know again.
        """
        first, last = (self._seqs[0], self._seqs[-1]) if self._seqs else (last_seq + 1, last_seq)
        oldest_needed = max(1, published_seq)
        missing_count = min(first, last_seq + 1) - oldest_needed
        if missing_count > 0:
            self._tally.add(Check.RECORD_GAP, Example(seq=oldest_needed), missing_count)
        if last < last_seq:
            self._tally.add(Check.RECORD_GAP, Example(seq=last + 1), last_seq - last)
        for row in range(bisect_left(self._seqs, last_seq + 1), len(self._seqs)):
            self._tally.add(
                Check.RECORD_BEYOND_SEQUENCE, Example(ticket_text(self._ticket(row)), None, self._seqs[row])
            )

    def add_event(self, event: TopicEvent) -> None:
        """Take in one event, after all records; those of a partition must come in the order of their offsets."""
        self.event_count += 1
        seq = contract.sequence_of(event.headers)
        if seq is not None:
            self.highest_event_seq = max(self.highest_event_seq or 0, seq)
        row = None if seq is None else self._row(seq)
        if seq is None or row is None:
            ticket = contract.claimed_ticket(event)
            checks = self._alone(event, seq)
            is_stray = True
        else:
            ticket = self._ticket(row)
            checks = [*self._out_of_order(event, seq), *self._beside(event, row)]
            if Check.EVENT_PAYLOAD_DIFFERS in checks:
                ticket = contract.claimed_ticket(event)
            is_stray = self._take_place(event, row, ticket, checks)
        if checks:
            example = Example(None if ticket is None else ticket_text(ticket), None, seq, event.partition, event.offset)
            for check in checks:
                self._tally.add(check, example)
        if is_stray and ticket is not None:
            self._strays += pack(ticket, place_of(event.partition, event.offset), seq or NO_SEQUENCE)

    def rows(self) -> Iterator[tuple[int, bytes, Place | None, bool]]:
        """Of every record, in order: its sequence, its ticket, the place of its event or None, and whether it is
        old.
        """
        for row, (seq, place) in enumerate(zip(self._seqs, self._places, strict=True)):
            yield seq, self._ticket(row), None if place == _NOT_SEEN else place, bool(self._flags[row] & _OLD)

    def entries(self, share: int) -> Iterator[bytes]:
        """Every event that speaks of a ticket of this share, as an entry."""
        for row, place in enumerate(self._places):
            if (
                place != _NOT_SEEN
                and self._tickets[row * TICKET_BYTES + TICKET_BYTES - 1] % SHARES == share
                and not self._flags[row] & _OTHER_TICKET
            ):
                yield pack(self._ticket(row), place, self._seqs[row])
        yield from (stray for stray in self.strays() if share_of(stray) == share)

    def strays(self) -> Iterator[bytes]:
        """Of these, those that did not simply fit their record: repeated, of another ticket, or without a record."""
        for start in range(0, len(self._strays), ENTRY_BYTES):
            yield bytes(self._strays[start : start + ENTRY_BYTES])

    def has_record(self, seq: int) -> bool:
        """Whether there is a record of this sequence."""
        return self._row(seq) is not None

    def is_before_records(self, seq: int) -> bool:
        """Whether this sequence is older than the oldest record kept."""
        return bool(self._seqs) and NO_SEQUENCE < seq < self._seqs[0]

    def _row(self, seq: int) -> int | None:
        row = bisect_left(self._seqs, seq)
        return row if row < len(self._seqs) and self._seqs[row] == seq else None

    def _ticket(self, row: int) -> bytes:
        return bytes(self._tickets[row * TICKET_BYTES : (row + 1) * TICKET_BYTES])

    def _alone(self, event: TopicEvent, seq: int | None) -> list[Check]:
        """What is wrong with an event that has no record to be compared with."""
        if seq is None:
            checks = [Check.EVENT_WITHOUT_SEQUENCE]
        elif self.is_before_records(seq):
            checks = [Check.RECORD_EXPIRED, *self._out_of_order(event, seq)]
        else:
            checks = [Check.EVENT_WITHOUT_RECORD]
        return checks if contract.keeps_to_contract(event) else [*checks, Check.EVENT_INVALID]

    def _beside(self, event: TopicEvent, row: int) -> list[Check]:
        """Where an event and its record differ."""
        checks = []
        if ticket_bytes(event.key) != self._ticket(row):
            checks.append(Check.EVENT_KEY_DIFFERS)
        run = event.headers.get("correlation-id")
        if run is None or _fingerprint(run) != self._runs[row] or not contract.has_constant_headers(event):
            checks.append(Check.EVENT_HEADERS_DIFFER)
        is_same = event.value is not None and _fingerprint(event.value) == self._payloads[row]
        if not is_same:
            checks.append(Check.EVENT_PAYLOAD_DIFFERS)
        if (not is_same or self._flags[row] & _UNSOUND) and contract.valid_event(event.value) is None:
            checks.append(Check.EVENT_INVALID)
        return checks

    def _take_place(self, event: TopicEvent, row: int, ticket: bytes | None, checks: list[Check]) -> bool:
        """Put the event beside its record; true when it does not fit there."""
        if self._places[row] != _NOT_SEEN:
            checks.append(Check.EVENT_SEQUENCE_TWICE)
            return True
        self._places[row] = place_of(event.partition, event.offset)
        if ticket == self._ticket(row):
            return False
        self._flags[row] |= _OTHER_TICKET
        return True

    def _out_of_order(self, event: TopicEvent, seq: int) -> list[Check]:
        """Compare with the event before in its partition: so one that stands too high counts once, and not with all that follow it.

        An event that recovery published again stands behind higher ones by design, and is left out of the comparison.
        """
        if REPUBLISHED_HEADER in event.headers:
            return [Check.EVENT_REPUBLISHED]
        self.first_seqs.setdefault(event.partition, seq)
        previous, self._previous_seqs[event.partition] = self._previous_seqs.get(event.partition, 0), seq
        return [Check.ORDER_IN_PARTITION] if seq < previous else []
