"""One bound in time for a whole attempt, shared by all its calls.

What does not belong here: how long any attempt may take; its caller says so.
"""

import time
from collections.abc import Callable

from sla_pipeline.errors import KafkaUnavailable

__all__ = ["Deadline"]


class Deadline:
    """Counts down from ``seconds``. Calls that each limp below their own time-out still end together in time."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._end = clock() + seconds

    def remaining_seconds(self) -> float:
        """What is left, never negative."""
        return max(0.0, self._end - self._clock())

    def timeout_seconds(self, at_most: float) -> float:
        """The time-out of the next call: ``at_most``, or what is left. Raises ``KafkaUnavailable`` when nothing is."""
        remaining = self.remaining_seconds()
        if not remaining:
            raise KafkaUnavailable(
                f"Kafka was too slow: the time for this attempt, {self._seconds:g} s, is used up; the next cycle "
                "goes on"
            )
        return min(remaining, at_most)
