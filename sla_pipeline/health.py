"""State of the monitor as its durable tables show it: the facts behind alert rules, metrics and status.

A run is a short process, so nothing of this is in anybody's memory. Pure: ``postgres/health.py`` reads it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from sla_pipeline.cycle import CycleTotals

__all__ = [
    "DELAY_BOUNDS_SECONDS",
    "DETECTION_SLO_SECONDS",
    "WINDOW",
    "Counters",
    "FinishedCycle",
    "Health",
    "late_count",
]

WINDOW = timedelta(hours=1)
"""Age of the oldest cycle in ``Health.cycles``: the longest period that a rule looks at."""

DETECTION_SLO_SECONDS = 120
"""Delay from deadline to mark that 99 of 100 breaches keep to (SPEC 3.5)."""

DELAY_BOUNDS_SECONDS = (15, 30, 45, 60, 90, DETECTION_SLO_SECONDS, 180, 300, 600, 1_800, 3_600, 21_600, 86_400)
"""Upper bounds of the buckets of the detection delay. The counts are durable: a change needs a revision."""


class FinishedCycle(NamedTuple):
    """One ended row of the journal. ``error`` is None, or the texts of the errors, one per line."""

    cycle_id: int
    run_id: str
    state: str
    finished_at: datetime
    totals: CycleTotals
    error: str | None


class Counters(NamedTuple):
    """Numbers that only grow, whatever rows are deleted. ``created_at`` is the time of the first migration."""

    created_at: datetime
    first_response_count: int
    resolution_count: int
    delay_bucket_counts: Sequence[int]
    """Breaches by delay, one count for each of ``DELAY_BOUNDS_SECONDS`` and one for all above; not cumulative."""
    delay_seconds_sum: float
    error_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Facts read in one snapshot. All times are of the database's clock."""

    read_at: datetime
    cycles: Sequence[FinishedCycle]
    """Ended cycles of all tenants, of the last ``WINDOW``, oldest first. Cycles of one tenant are left out."""
    last_success_at: datetime | None
    last_seq: int
    published_seq: int
    oldest_unpublished_at: datetime | None
    set_aside_count: int
    set_aside_since: datetime | None
    counters: Counters

    @property
    def last_cycle(self) -> FinishedCycle | None:
        """The cycle that ended last, of those in ``cycles``."""
        return self.cycles[-1] if self.cycles else None

    @property
    def unpublished_count(self) -> int:
        """Committed breach records that wait to be published."""
        return max(self.last_seq - self.published_seq, 0)


def late_count(delay_bucket_counts: Sequence[int]) -> int:
    """Return the breaches of these buckets that were marked later than ``DETECTION_SLO_SECONDS``."""
    return sum(delay_bucket_counts[DELAY_BOUNDS_SECONDS.index(DETECTION_SLO_SECONDS) + 1 :])
