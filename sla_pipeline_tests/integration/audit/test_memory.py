"""The auditor's memory does not grow with the number of events. The benchmark ``audit_memory`` measures a million."""

import pytest

from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline_tests.benchmarks.audit_memory import fill
from sla_pipeline_tests.benchmarks.audit_process import measured

# 300 MB for a million, less 60 of Python and drivers, are 24 for 100,000; a million took 127 MB, 48 before reading
_GROWTH_LIMIT_MB_PER_100_000 = 24


# most of the time goes into writing the records and events
@pytest.mark.timeout(600)
def test_memory_grows_by_a_bounded_amount_with_each_hundred_thousand_events(
    owner_url: str, kafka_settings: KafkaSettings
) -> None:
    # the Kafka client's read-ahead and SQLite's page cache are full with so many
    fill(owner_url, kafka_settings, 110_000)
    few = measured(owner_url, kafka_settings)
    fill(owner_url, kafka_settings, 50_000)
    many = measured(owner_url, kafka_settings)
    assert (few.record_count, few.event_count, few.proven_count, few.clean) == (110_000, 110_000, 110_000, True)
    assert (many.record_count, many.event_count, many.proven_count, many.clean) == (160_000, 160_000, 160_000, True)
    assert (many.peak_mb - few.peak_mb) * 2 < _GROWTH_LIMIT_MB_PER_100_000
