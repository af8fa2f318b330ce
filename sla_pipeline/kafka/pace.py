"""Pace of a transaction: how many records are handed to the client before all of them must have arrived.

A link may carry less than a backlog needs, and a transaction is committed whole or not at all. So the first step is one
record, each further step is at most sixteen times the one before, and none is larger than what the link would carry in
half of the time that is left, at the speed of the step before. What is still under way when the time ends is therefore
small against what has arrived.
"""

import time
from collections.abc import Callable

__all__ = ["Pace"]

# Five steps to 10,000 records: each costs the client's linger and a reply of the broker, 5 to 7 ms on a fast link.
_GROWTH = 16
# a link whose speed falls by half from one step to the next still delivers the next in time
_SHARE_OF_TIME = 0.5


class Pace:
    """Sizes the steps of one transaction from the speed of the steps before; all must arrive within ``seconds``."""

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
        """Whether nothing has been handed over yet: the first step holds one record, whatever its size."""
        return not self._began

    def allows(self, size_bytes: int) -> bool:
        """Whether the link would carry ``size_bytes`` in the next step, by all that is known."""
        return self.is_first_step or size_bytes <= self._most_bytes

    def begin_step(self) -> None:
        """Notes that the records of a step are being handed over."""
        self._began = self._clock()

    def end_step(self, count: int, size_bytes: int) -> None:
        """Notes that all records of the step have arrived, ``size_bytes`` of them."""
        now = self._clock()
        bytes_per_second = size_bytes / max(now - self._began, 0.001)
        self._most_records = count * _GROWTH
        self._most_bytes = bytes_per_second * max(0.0, self._end - now) * _SHARE_OF_TIME
