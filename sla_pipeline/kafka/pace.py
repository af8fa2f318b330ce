"""Pace of a transaction: number of records queued before the relay waits for their delivery.

A link may carry less than a backlog needs, and a transaction is committed whole or not at all. So the first step is one
record, each further step is at most sixteen times the one before, and none is larger than the link would carry in half
of the time left, at the speed of the step before. The records still in flight when the time ends are therefore few
compared with those delivered.
"""

import time
from collections.abc import Callable, Sequence
from itertools import accumulate, takewhile

from sla_pipeline.outbox import BreachRecord

__all__ = ["Pace", "fitting_records", "size_bytes"]

# Growth from step to step: five steps reach 10,000 records. Each step costs the client's linger and a reply of the
# broker, 5 to 7 ms on a fast link.
_GROWTH = 16
# Share of the time left that a step may use: a link whose speed halves after a step still delivers the next in time.
_SHARE_OF_TIME = 0.5
# Generous estimate of one record's key, headers and bookkeeping in the client.
_RECORD_OVERHEAD_BYTES = 1_024


class Pace:
    """Step sizes of one transaction, from the speed of earlier steps; all steps must arrive within ``seconds``."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + seconds
        self._began = 0.0
        self._most_bytes = 0.0
        self._most_records = 1

    @property
    def most_records(self) -> int:
        """Most records of the next step."""
        return self._most_records

    @property
    def remaining_seconds(self) -> float:
        """Time left for delivering, never negative."""
        return max(0.0, self._end - self._clock())

    @property
    def is_first_step(self) -> bool:
        """True before the first step, which holds one record, whatever its size."""
        return not self._began

    def allows(self, size_bytes: int) -> bool:
        """Return whether the link, at its last speed, would carry ``size_bytes`` in the next step."""
        return self.is_first_step or size_bytes <= self._most_bytes

    def begin_step(self) -> None:
        """Start the clock of a step, before its records are queued."""
        self._began = self._clock()

    def end_step(self, count: int, size_bytes: int) -> None:
        """Record that all ``count`` records of the step, ``size_bytes`` in total, were delivered."""
        now = self._clock()
        bytes_per_second = size_bytes / max(now - self._began, 0.001)
        self._most_records = count * _GROWTH
        self._most_bytes = bytes_per_second * max(0.0, self._end - now) * _SHARE_OF_TIME


def size_bytes(record: BreachRecord) -> int:
    """Return the estimated size of a record, key, headers and overhead included."""
    return len(record.payload) + _RECORD_OVERHEAD_BYTES


def fitting_records(
    records: Sequence[BreachRecord], pace: Pace, *, queue_messages: int, queue_bytes: int
) -> list[BreachRecord]:
    """Return the first of ``records`` that ``pace`` and the client's queue allow in one step, beside a progress record.

    A full queue would end this takeover, and every later one too, so a step is never larger than the queue. A record
    that is larger than the queue is tried only as the first of a transaction, which then ends in an error. No record
    means that the transaction is complete.
    """
    within = records[: max(1, min(pace.most_records, queue_messages - 1))]
    sizes = accumulate(map(size_bytes, within))
    # Half of the queue's bytes, because librdkafka's byte accounting is not exactly known.
    fitting = takewhile(lambda size: pace.allows(size) and (size <= queue_bytes // 2 or pace.is_first_step), sizes)
    count = sum(1 for _ in fitting)
    return list(within[:count])
