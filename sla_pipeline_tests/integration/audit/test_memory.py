"""The auditor's memory grows by little with what it audits. The benchmark ``audit_memory`` shows the same for a million events."""

from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline_tests.benchmarks.audit_memory import fill
from sla_pipeline_tests.benchmarks.audit_process import measured

# what the arrays and the one sort take for 100,000 records is 13 MB; 300 MB for a million, less 60 of Python and drivers, would allow 24
_GROWTH_LIMIT_MB = 20


def test_a_hundred_thousand_events_more_take_a_bounded_amount_of_memory(owner_url: str, kafka_settings: KafkaSettings) -> None:
    fill(owner_url, kafka_settings, 20_000)
    few = measured(owner_url, kafka_settings)
    fill(owner_url, kafka_settings, 100_000)
    many = measured(owner_url, kafka_settings)
    assert (few.record_count, few.event_count, few.proven_count, few.clean) == (20_000, 20_000, 20_000, True)
    assert (many.record_count, many.event_count, many.proven_count, many.clean) == (120_000, 120_000, 120_000, True)
    assert many.peak_mb - few.peak_mb < _GROWTH_LIMIT_MB
