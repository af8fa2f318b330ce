"""Conditions of the alert rules: pure functions of the monitor's durable state and a threshold."""

import itertools
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, TypeVar

from sla_pipeline.health import Health

__all__ = [
    "Condition",
    "backlog",
    "cycle_slow",
    "detection_late",
    "errors",
    "not_running",
    "publishing_behind",
    "publishing_stopped",
    "tickets_set_aside",
]

_T = TypeVar("_T")

# Longest pause between two errors of one trouble: every second cycle may succeed meanwhile.
_ERROR_GAP = timedelta(minutes=3)

# Bounds a cause in a message; our errors with fault, value and remedy are shorter.
_CAUSE_LENGTH = 400

# SPEC 3.5: the p99 is above the limit when more than one of a hundred is.
_LATE_SHARE = 0.01


class Condition(NamedTuple):
    """A condition that holds: since when there is trouble (``since``), and since when it is beyond the limit."""

    since: datetime
    holds_since: datetime
    text: str


def backlog(health: Health, threshold: float) -> Condition | None:
    """Too many tickets are overdue and not marked, by the count at the end of each cycle."""
    counted = [cycle for cycle in health.cycles if cycle.totals.backlog_count is not None]
    above = _trailing(counted, lambda cycle: (cycle.totals.backlog_count or 0) > threshold)
    if not above:
        return None
    count, since = above[-1].totals.backlog_count or 0, above[0].finished_at
    trend = "and growing" if count > (above[0].totals.backlog_count or 0) else "not growing"
    return Condition(since, since, f"{count} tickets are overdue and not marked, {trend}; the limit is {threshold:g}.")


def not_running(health: Health, threshold: float) -> Condition | None:
    """No cycle has succeeded for too long."""
    since = health.last_success_at or health.counters.created_at
    holds_since = since + timedelta(seconds=threshold)
    if health.read_at <= holds_since:
        return None
    last = health.last_cycle
    if last is None or last.finished_at <= since:
        cause = "No cycle has ended since then: the schedule, the daemon or the code server is down"
    else:
        cause = f"The last cycle {last.state}: {_first_line(last.error)}"
    never = "" if health.last_success_at else "ever, "
    return Condition(
        since, holds_since, f"No cycle has succeeded {never}since {_clock(since)} ({_ago(health, since)}). {cause}."
    )


def cycle_slow(health: Health, threshold: float) -> Condition | None:
    """The last cycle took too long."""
    slow = _trailing(health.cycles, lambda cycle: (cycle.totals.duration_ms or 0) > threshold)
    if not slow:
        return None
    totals = slow[-1].totals
    parts = (("claim", totals.claim_ms), ("mark", totals.mark_ms), ("publish", totals.publish_ms))
    listed = ", ".join(f"{name} {(ms or 0) / 1000:.1f} s" for name, ms in parts)
    since = slow[0].finished_at
    text = (
        f"The last cycle took {(totals.duration_ms or 0) / 1000:.1f} s ({listed}); the limit is {threshold / 1000:g} s."
    )
    return Condition(since, since, text)


def errors(health: Health, threshold: float) -> Condition | None:
    """Errors go on: each came within ``_ERROR_GAP`` of the one before, and the last within it of now."""
    failed = [cycle for cycle in health.cycles if cycle.totals.error_count > threshold]
    if not failed or health.read_at - failed[-1].finished_at > _ERROR_GAP:
        return None
    first = len(failed) - 1
    while first and failed[first].finished_at - failed[first - 1].finished_at <= _ERROR_GAP:
        first -= 1
    streak = failed[first:]
    since, count = streak[0].finished_at, sum(cycle.totals.error_count for cycle in streak)
    text = f"{count} errors in {len(streak)} cycles since {_clock(since)}. The last: {_first_line(streak[-1].error)}."
    return Condition(since, since, text)


def detection_late(health: Health, threshold: float) -> Condition | None:
    """More than one of a hundred breaches of the last hour were marked too late."""
    detected = sum(cycle.totals.detected_count for cycle in health.cycles)
    late = [cycle for cycle in health.cycles if cycle.totals.late_count]
    late_count = sum(cycle.totals.late_count for cycle in late)
    if late_count <= _LATE_SHARE * detected:
        return None
    since = late[0].finished_at
    text = (
        f"{late_count} of {detected} breaches of the last hour were marked more than {threshold:g} s after their "
        "deadline."
    )
    return Condition(since, since, text)


def publishing_behind(health: Health, threshold: float) -> Condition | None:
    """The oldest committed breach record has waited too long to be published."""
    since = health.oldest_unpublished_at
    if since is None or health.read_at <= since + timedelta(seconds=threshold):
        return None
    last = health.last_cycle
    cause = f" The last cycle {last.state}: {_first_line(last.error)}." if last and last.error else ""
    text = (
        f"{health.unpublished_count} breaches are marked and their events are not published, the oldest for "
        f"{_ago(health, since)}.{cause}"
    )
    return Condition(since, since + timedelta(seconds=threshold), text)


def publishing_stopped(health: Health, threshold: float) -> Condition | None:
    """The last cycles found that Postgres and Kafka contradict each other."""
    stopped = _trailing(health.cycles, lambda cycle: cycle.totals.publishing_stopped > threshold)
    if not stopped:
        return None
    since = stopped[0].finished_at
    text = f"Publishing has stopped; {health.unpublished_count} events wait. {_first_line(stopped[-1].error)}."
    return Condition(since, since, text)


def tickets_set_aside(health: Health, threshold: float) -> Condition | None:
    """Overdue tickets cannot be marked."""
    since = health.set_aside_since
    if since is None or health.set_aside_count <= threshold:
        return None
    text = (
        f"{health.set_aside_count} overdue tickets cannot be marked, and nobody is called for them; the check "
        "tickets_set_aside lists them with the reason."
    )
    return Condition(since, since, text)


def _trailing(items: Sequence[_T], holds: Callable[[_T], bool]) -> list[_T]:
    """Return the longest run at the end of ``items`` for which ``holds`` is true."""
    return list(itertools.takewhile(holds, reversed(items)))[::-1]


def _first_line(text: str | None) -> str:
    lines = (text or "").splitlines()
    return lines[0][:_CAUSE_LENGTH].rstrip(".") if lines else "no cause was recorded"


def _clock(moment: datetime) -> str:
    return f"{moment:%H:%M} UTC"


def _ago(health: Health, moment: datetime) -> str:
    return f"{(health.read_at - moment).total_seconds() / 60:.0f} min"
