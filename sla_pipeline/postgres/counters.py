"""Statements on ``support.ticket_sla_counters``: numbers of breach records that survive the records' deletion.

Each cycle adds the records that are not counted yet, whichever cycle wrote them: a cycle that was killed after its
marks is counted by the next one, and none is counted twice.
"""

import time
from typing import NamedTuple

import psycopg

from sla_pipeline.breach import BreachKind
from sla_pipeline.health import DELAY_BOUNDS_SECONDS, late_count

__all__ = ["TABLE", "Detected", "count_new_records"]

TABLE = "support.ticket_sla_counters"

# Bounds one transaction, so that a slow database makes progress too; ten thousand are the default ceiling of a cycle.
_RECORD_LIMIT = 10_000
# Bounds the start of a further transaction in a cycle; what is left is counted by later cycles.
_SECONDS = 2.0

_COUNTED_SEQ = """
select counted_seq, delay_bucket_counts, delay_seconds_sum
from support.ticket_sla_counters counters, support.ticket_sla_relay relay
where counters.id = 1 and relay.id = 1 and counted_seq < last_seq
"""
# Another cycle that counts meanwhile counts these records too.
_LOCK = "for no key update of counters skip locked"
# Index: the primary key. A bound belongs to the bucket below it, hence the negative numbers.
_NEW = """
select %(bucket_count)s - 1 - width_bucket(-delay_seconds, %(negative_bounds)s::double precision[]), kind, count(*),
    sum(delay_seconds), max(seq)
from (
    select seq, kind, greatest(extract(epoch from recorded_at - due_at), 0)::double precision as delay_seconds
    from support.ticket_sla_breaches where seq > %(counted_seq)s order by seq limit %(limit)s
) records
group by 1, 2
"""
_ADD = """
update support.ticket_sla_counters
set counted_seq = %(counted_seq)s, first_response_count = first_response_count + %(first_response_count)s,
    resolution_count = resolution_count + %(resolution_count)s, delay_bucket_counts = %(delay_bucket_counts)s,
    delay_seconds_sum = %(delay_seconds_sum)s
where id = 1
"""


class Detected(NamedTuple):
    """Breach records that were counted, and those of them that were marked late (SPEC 3.5)."""

    detected_count: int = 0
    late_count: int = 0


def count_new_records(connection: psycopg.Connection) -> Detected:
    """Add the breach records that are not counted yet, in pieces, for about ``_SECONDS``."""
    end_seconds = time.monotonic() + _SECONDS
    detected, late = 0, 0
    while (piece := _count_piece(connection)).detected_count:
        detected += piece.detected_count
        late += piece.late_count
        if time.monotonic() > end_seconds:
            break
    return Detected(detected, late)


def _count_piece(connection: psycopg.Connection) -> Detected:
    """Add at most ``_RECORD_LIMIT`` records in one transaction."""
    if connection.execute(_COUNTED_SEQ).fetchone() is None:
        # Nearly every cycle ends here.
        return Detected()
    with connection.transaction():
        row = connection.execute(f"{_COUNTED_SEQ} {_LOCK}").fetchone()
        if row is None:
            return Detected()
        counted_seq, bucket_counts, delay_seconds_sum = row
        values: dict[str, object] = {
            "counted_seq": counted_seq,
            "limit": _RECORD_LIMIT,
            "bucket_count": len(DELAY_BOUNDS_SECONDS) + 1,
            "negative_bounds": sorted(-bound for bound in DELAY_BOUNDS_SECONDS),
        }
        new_counts = [0] * (len(DELAY_BOUNDS_SECONDS) + 1)
        by_kind = dict.fromkeys(BreachKind, 0)
        for bucket, kind, count, seconds, seq in connection.execute(_NEW, values).fetchall():
            new_counts[bucket] += count
            by_kind[BreachKind(kind)] += count
            delay_seconds_sum += seconds
            counted_seq = max(counted_seq, seq)
        connection.execute(
            _ADD,
            {
                "counted_seq": counted_seq,
                "first_response_count": by_kind[BreachKind.FIRST_RESPONSE],
                "resolution_count": by_kind[BreachKind.RESOLUTION],
                "delay_bucket_counts": [old + new for old, new in zip(bucket_counts, new_counts, strict=True)],
                "delay_seconds_sum": delay_seconds_sum,
            },
        )
    return Detected(sum(new_counts), late_count(new_counts))
