"""One time limit for a whole attempt, shared by all its calls."""

import time
from collections.abc import Callable

from sla_pipeline.errors import KafkaUnavailable

__all__ = ["Deadline"]


class Deadline:
    """Countdown from ``seconds``: calls that each stay just below their own timeout still end together in time."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._end = clock() + seconds

    def remaining_seconds(self) -> float:
        """Return the time left, never negative."""
        return max(0.0, self._end - self._clock())

    def timeout_seconds(self, at_most: float) -> float:
        """Return the timeout of the next call: ``at_most``, or the time left.

        Raise ``KafkaUnavailable`` when no time is left.
        """
        remaining = self.remaining_seconds()
        if not remaining:
            raise KafkaUnavailable(
                f"Kafka was too slow: the time for this attempt, {self._seconds:g} s, is used up; the next cycle "
                "goes on"
            )
        return min(remaining, at_most)
