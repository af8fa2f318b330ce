"""Checks of the positions: contradictions between Postgres and Kafka, and the reach of the topic's retention."""

import sys
from collections.abc import Mapping

from sla_pipeline.audit.findings import Check, Example, Positions, Tally

__all__ = ["check_positions", "expired_below"]


def expired_below(low_watermarks: Mapping[int, int], first_seqs: Mapping[int, int]) -> int:
    """Return the sequence below which an event may have left the topic; 0 when the topic still has its beginning.

    ``low_watermarks`` holds the first offset of each partition, looked up after the topic was read; ``first_seqs`` the
    first sequence read from each partition.

    A topic loses records at its beginning by retention or by deletion. Exactly once holds within the topic's retention,
    and the audit must not report a loss that is none. Within a partition sequences rise, so what a partition has lost
    lies below the first sequence that it still has. The partition of a missing event is unknown (their number may have
    grown since), so every sequence below the highest of these first ones may have expired. A partition that has lost
    everything could have held any sequence: then no missing event can be distinguished from an expired one, and the
    report shows their number as information.
    """
    return max(
        (first_seqs.get(partition, sys.maxsize) for partition, low in low_watermarks.items() if low > 0), default=0
    )


def check_positions(positions: Positions, tally: Tally) -> None:
    """Add to ``tally`` by how much the positions of Postgres and Kafka contradict each other."""
    published, progress, progress_after = positions.published_seq, positions.progress_seq, positions.progress_seq_after
    if progress is None or progress_after is None:
        tally.add(Check.PROGRESS_UNREADABLE, Example())
        return
    for check, ahead, behind in (
        (Check.PROGRESS_BEHIND_POSTGRES, published, progress),
        (Check.POSTGRES_BEHIND_PROGRESS, progress, published),
        (Check.PROGRESS_AHEAD_OF_SEQUENCE, progress, positions.last_seq),
        (Check.EVENT_AHEAD_OF_PROGRESS, positions.highest_event_seq or 0, progress_after),
    ):
        if ahead > behind:
            tally.add(check, Example(seq=ahead), ahead - behind)
