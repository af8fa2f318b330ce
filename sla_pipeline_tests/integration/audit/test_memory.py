"""The auditor's memory does not grow with the number of events. The benchmark ``audit_memory`` measures a million."""

import pytest

from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline_tests.benchmarks.audit_memory import fill
from sla_pipeline_tests.benchmarks.audit_process import measured

# Limit of growth while SQLite's page cache (16 MB) still fills, up to some 100,000 events: 24 MB were measured. Events
# kept in Python would add 32 MB more. Beyond, memory is constant: a million took 128 MB, 48 before reading.
_GROWTH_LIMIT_MB_PER_100_000 = 40


# most of the time goes into writing the records and events
@pytest.mark.timeout(600)
def test_memory_grows_by_a_bounded_amount_with_each_hundred_thousand_events(
    owner_url: str, kafka_settings: KafkaSettings
) -> None:
    # the Kafka client's read-ahead, about 40 MB, is full with so many
    fill(owner_url, kafka_settings, 60_000)
    few = measured(owner_url, kafka_settings)
    fill(owner_url, kafka_settings, 50_000)
    many = measured(owner_url, kafka_settings)
    assert (few.record_count, few.event_count, few.proven_count, few.clean) == (60_000, 60_000, 60_000, True)
    assert (many.record_count, many.event_count, many.proven_count, many.clean) == (110_000, 110_000, 110_000, True)
    assert (many.peak_mb - few.peak_mb) * 2 < _GROWTH_LIMIT_MB_PER_100_000
