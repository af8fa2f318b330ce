"""Prometheus exporter. A run is a short process, so each scrape reads the durable state: a few indexed statements.

Counters survive restarts, and never fall when old rows are deleted (``postgres/counters.py``).
"""

import logging
from collections.abc import Callable, Iterator
from importlib.metadata import version
from itertools import accumulate

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from sla_pipeline.alerting.rules import RULES, RuleState, evaluate
from sla_pipeline.breach import BreachKind
from sla_pipeline.errors import SlaPipelineError
from sla_pipeline.health import DELAY_BOUNDS_SECONDS, Health

__all__ = ["registry_of"]

log = logging.getLogger(__name__)

_PREFIX = "support_ticket_sla"


class _HealthCollector(Collector):
    def __init__(self, read: Callable[[], Health]) -> None:
        self._read = read

    def describe(self) -> Iterator[Metric]:
        """Return nothing, so that registering does not read the database."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of one reading; ``up 0`` alone when the database cannot be read."""
        build = GaugeMetricFamily(f"{_PREFIX}_build_info", "Version of the exporter; always 1.", labels=["version"])
        build.add_metric([version("sla-pipeline")], 1)
        yield build
        health = self._health()
        yield _gauge("up", "1 if the database was read for this scrape, 0 if not.", health is not None)
        if health is None:
            return
        yield from _of_last_cycle(health)
        yield from _of_counters(health)
        yield from _of_positions(health)
        firing = GaugeMetricFamily(
            f"{_PREFIX}_alert_firing",
            "1 while the monitor's own evaluation of the alert fires.",
            labels=["alert", "severity"],
        )
        for found in evaluate(RULES, health):
            firing.add_metric([found.rule.name, found.rule.severity], float(found.state is RuleState.FIRING))
        yield firing

    def _health(self) -> Health | None:
        try:
            return self._read()
        except SlaPipelineError as error:
            log.warning("scrape failed", extra={"error": str(error)})
            return None


def registry_of(read: Callable[[], Health]) -> CollectorRegistry:
    """Return a registry whose every scrape calls ``read`` once. An error of ours from it becomes ``up 0``."""
    registry = CollectorRegistry()
    registry.register(_HealthCollector(read))
    return registry


def _gauge(name: str, documentation: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{_PREFIX}_{name}", documentation, value)


def _of_last_cycle(health: Health) -> Iterator[Metric]:
    """Yield the numbers of the last cycle of the last hour; none when there was no cycle."""
    if health.last_cycle is None:
        return
    totals = health.last_cycle.totals
    if totals.backlog_count is not None:
        yield _gauge("backlog", "Tickets overdue and not marked at the end of the last cycle.", totals.backlog_count)
    if totals.duration_ms is not None:
        yield _gauge("cycle_duration_ms", "Duration of the last cycle, in milliseconds.", totals.duration_ms)
    yield _gauge("batches_per_cycle", "Batches of the last cycle.", totals.batch_count)
    yield _gauge("lock_skips", "Tickets that other transactions held in the last cycle.", totals.lock_skip_count)
    yield _gauge(
        "publishing_stopped",
        "1 if Postgres and Kafka contradicted each other in the last cycle, so that nothing is published.",
        totals.publishing_stopped,
    )


def _of_counters(health: Health) -> Iterator[Metric]:
    counters = health.counters
    breached = CounterMetricFamily(f"{_PREFIX}_breached", "Tickets marked, by kind of breach.", labels=["breach_kind"])
    breached.add_metric([BreachKind.FIRST_RESPONSE], counters.first_response_count)
    breached.add_metric([BreachKind.RESOLUTION], counters.resolution_count)
    yield breached
    yield CounterMetricFamily(f"{_PREFIX}_errors", "Errors of cycles; a killed cycle is one.", counters.error_count)
    yield CounterMetricFamily(f"{_PREFIX}_events_published", "Events published.", health.published_seq)
    bounds = [*map(str, map(float, DELAY_BOUNDS_SECONDS)), "+Inf"]
    yield HistogramMetricFamily(
        f"{_PREFIX}_detection_delay_seconds",
        "Delay from a ticket's deadline to its mark (SPEC 3.5).",
        buckets=list(zip(bounds, accumulate(counters.delay_bucket_counts), strict=True)),
        sum_value=counters.delay_seconds_sum,
    )


def _of_positions(health: Health) -> Iterator[Metric]:
    age = health.oldest_unpublished_at and (health.read_at - health.oldest_unpublished_at).total_seconds()
    yield _gauge("unpublished_records", "Breach records that wait to be published.", health.unpublished_count)
    yield _gauge("unpublished_age_seconds", "Age of the oldest of them; 0 without any.", max(age or 0.0, 0.0))
    yield _gauge("set_aside_tickets", "Overdue tickets that cannot be marked.", health.set_aside_count)
    yield _gauge(
        "created_timestamp_seconds",
        "Time of the first migration, as Unix time.",
        health.counters.created_at.timestamp(),
    )
    if health.last_success_at is not None:
        yield _gauge(
            "last_success_timestamp_seconds",
            "End of the last cycle that succeeded, as Unix time; absent before the first.",
            health.last_success_at.timestamp(),
        )
