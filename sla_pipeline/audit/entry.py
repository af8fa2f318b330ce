"""An event in 32 bytes: its ticket, its place on the topic, its sequence, in an order that sorts.

What belongs here: packing and unpacking. What does not: keeping them (``ledger.py``), comparing them
(``settlement.py``).
"""

from sla_pipeline.audit.contract import ticket_text
from sla_pipeline.audit.findings import Example

__all__ = [
    "ENTRY_BYTES",
    "NO_SEQUENCE",
    "SHARES",
    "TICKET_BYTES",
    "Place",
    "example_of",
    "pack",
    "partition_of",
    "place_of",
    "share_of",
    "unpack",
]

Place = int
"""Where an event stands: the partition in the upper 16 bits, the offset in the lower 48. It rises along a partition."""

TICKET_BYTES = 16
ENTRY_BYTES = 32
NO_SEQUENCE = 0
"""The sequence of an event whose headers tell none; real ones count from 1."""

SHARES = 4
"""Tickets are dealt into so many shares, each compared by itself: a quarter of the memory that sorting all of them
would take.
"""

_OFFSET_BITS = 48


def place_of(partition: int, offset: int) -> Place:
    """The place of an event."""
    return partition << _OFFSET_BITS | offset


def partition_of(place: Place) -> int:
    """The partition of a place."""
    return place >> _OFFSET_BITS


def pack(ticket: bytes, place: Place, seq: int) -> bytes:
    """An entry; entries sort by ticket, then by place."""
    return ticket + place.to_bytes(8) + seq.to_bytes(8)


def unpack(entry: bytes) -> tuple[bytes, Place, int]:
    """Ticket, place and sequence of an entry."""
    return entry[:16], int.from_bytes(entry[16:24]), int.from_bytes(entry[24:])


def share_of(ticket_or_entry: bytes) -> int:
    """The share of a ticket, or of an entry's.

    By the last byte: the first ones of ids made in the order of time are alike.
    """
    return ticket_or_entry[TICKET_BYTES - 1] % SHARES


def example_of(entry: bytes) -> Example:
    """The entry as an example; its number is not known here."""
    ticket, place, seq = unpack(entry)
    return Example(ticket_text(ticket), None, seq or None, partition_of(place), place & (1 << _OFFSET_BITS) - 1)
