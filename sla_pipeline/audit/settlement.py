"""What can be told when all records and all events are in: what is missing, what came twice, whether the positions agree.

What belongs here: pure functions over the ledger and the positions. What does not: what an event tells by itself
(``ledger.py``).

**Missing, waiting or expired.** A record without an event is

- *waiting*, when its sequence is beyond what was published before the topic's end was looked up;
- possibly *expired*, when the topic has lost records at its beginning, by retention or by deletion. Exactly once holds
  within the topic's retention, and no loss may be reported that was none. Within a partition sequences rise, so what a
  partition has lost lies below the first sequence that it still has. Which partition a missing event was in is not
  known (their number may have grown since), so every sequence below the highest of these first ones may have expired. A
  partition that has lost all it had could have held any sequence: then no missing event can be told from an expired
  one, and the report shows their number as information;
- *lost* otherwise.
"""

import sys
from bisect import bisect_left
from collections.abc import Mapping

from sla_pipeline.audit.contract import ticket_text
from sla_pipeline.audit.entry import NO_SEQUENCE, SHARES, example_of, partition_of, share_of, unpack
from sla_pipeline.audit.findings import Check, Example, Positions, Tally
from sla_pipeline.audit.ledger import Ledger

__all__ = ["expired_below", "judge_positions", "settle"]


def expired_below(low_watermarks: Mapping[int, int], first_seqs: Mapping[int, int]) -> int:
    """The sequence below which an event may have left the topic; 0 when the topic still has all that it ever had.

    ``low_watermarks``: the first offset of each partition, looked up after the topic was read. ``first_seqs``: the
    first sequence that was read from a partition.
    """
    return max(
        (first_seqs.get(partition, sys.maxsize) for partition, low in low_watermarks.items() if low > 0), default=0
    )


def settle(ledger: Ledger, tally: Tally, *, claimed_published: int, expired_below: int) -> None:
    """Tell ``tally`` what is missing and what came twice. Takes 73 bytes for each event of a share while it runs."""
    lost_count = _records_without_event(ledger, tally, claimed_published=claimed_published, expired_below=expired_below)
    for share in range(SHARES):
        entries = sorted(ledger.entries(share))
        _repeated_tickets(entries, tally)
        if lost_count:
            lost = (
                (seq, ticket)
                for seq, ticket, place, _ in ledger.rows()
                if place is None and expired_below <= seq <= claimed_published and share_of(ticket) == share
            )
            for seq, ticket in lost:
                if not _is_among(ticket, entries):
                    tally.add(Check.RECORD_TICKET_WITHOUT_EVENT, Example(ticket_text(ticket), None, seq))
        del entries
        _strays_without_record(ledger, share, tally)
        _repeated_strays(ledger, share, tally)


def judge_positions(positions: Positions, tally: Tally) -> None:
    """Tell ``tally`` where Postgres' and Kafka's positions contradict each other, and by how much."""
    known, told, told_after = positions.published_seq, positions.progress_seq, positions.progress_seq_after
    if told is None or told_after is None:
        tally.add(Check.PROGRESS_UNREADABLE, Example())
        return
    for check, ahead, behind in (
        (Check.PROGRESS_BEHIND_POSTGRES, known, told),
        (Check.POSTGRES_BEHIND_PROGRESS, told, known),
        (Check.PROGRESS_AHEAD_OF_SEQUENCE, told, positions.last_seq),
        (Check.EVENT_AHEAD_OF_PROGRESS, positions.highest_event_seq or 0, told_after),
    ):
        if ahead > behind:
            tally.add(check, Example(seq=ahead), ahead - behind)


def _repeated_tickets(entries: list[bytes], tally: Tally) -> None:
    previous_ticket, previous_place, previous_seq = b"", 0, NO_SEQUENCE
    for entry in entries:
        ticket, place, seq = unpack(entry)
        if ticket == previous_ticket:
            tally.add(Check.EVENT_TICKET_TWICE, example_of(entry))
            falls = NO_SEQUENCE < seq < previous_seq
            if falls or partition_of(place) != partition_of(previous_place):
                tally.add(Check.ORDER_OF_TICKET, example_of(entry))
        previous_ticket, previous_place, previous_seq = ticket, place, seq


def _records_without_event(ledger: Ledger, tally: Tally, *, claimed_published: int, expired_below: int) -> int:
    """Tells the waiting, the expired and the lost apart; returns the number of the lost."""
    lost_count = 0
    for seq, ticket, place, is_old in ledger.rows():
        if place is not None:
            continue
        example = Example(ticket_text(ticket), None, seq)
        if seq > claimed_published:
            tally.add(Check.RECORD_WAITING, example)
            if is_old:
                tally.add(Check.RECORD_STUCK, example)
        elif seq < expired_below:
            tally.add(Check.EVENT_EXPIRED, example)
        else:
            tally.add(Check.RECORD_WITHOUT_EVENT, example)
            lost_count += 1
    return lost_count


def _repeated_strays(ledger: Ledger, share: int, tally: Tally) -> None:
    """Sequences that came twice and have no record beside which that would have shown; dealt into shares by
    sequence.
    """
    without_record = [
        (seq, stray)
        for stray in ledger.strays()
        if (seq := unpack(stray)[2]) != NO_SEQUENCE and seq % SHARES == share and not ledger.has_record(seq)
    ]
    without_record.sort()
    previous_seq = NO_SEQUENCE
    for seq, stray in without_record:
        if seq == previous_seq:
            tally.add(Check.EVENT_SEQUENCE_TWICE, example_of(stray))
        previous_seq = seq


def _strays_without_record(ledger: Ledger, share: int, tally: Tally) -> None:
    # the ticket of a removed record is not known any more
    strays = [
        stray
        for stray in ledger.strays()
        if share_of(stray) == share and not ledger.is_before_records(unpack(stray)[2])
    ]
    if not strays:
        return
    recorded = sorted(ticket for _, ticket, _, _ in ledger.rows() if share_of(ticket) == share)
    for stray in strays:
        if not _is_among(unpack(stray)[0], recorded):
            tally.add(Check.EVENT_TICKET_WITHOUT_RECORD, example_of(stray))


def _is_among(ticket: bytes, sorted_tickets: list[bytes]) -> bool:
    """Whether an item begins with this ticket."""
    position = bisect_left(sorted_tickets, ticket)
    return position < len(sorted_tickets) and sorted_tickets[position].startswith(ticket)
