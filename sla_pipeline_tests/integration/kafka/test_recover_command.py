"""``sla-pipeline recover``: says what it would do, does it on confirmation only."""

import pytest
from typer.testing import CliRunner

from sla_pipeline.cli import app
from sla_pipeline.errors import FailClosed
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline_tests.integration.kafka.breach_records import BreachRecords
from sla_pipeline_tests.integration.kafka.conftest import Publish
from sla_pipeline_tests.integration.kafka.topic_administration import create_topic, delete_topic


def test_it_repairs_on_confirmation_only(
    monkeypatch: pytest.MonkeyPatch, kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish, owner_url: str
) -> None:
    monkeypatch.setenv("SLA_POSTGRES_OWNER_URL", owner_url)
    monkeypatch.setenv("SLA_KAFKA_BOOTSTRAP_SERVERS", kafka_settings.bootstrap_servers)
    monkeypatch.setenv("SLA_KAFKA_TOPIC", kafka_settings.topic)
    records.add(3)
    assert publish(kafka_settings).published == 3
    delete_topic(kafka_settings, kafka_settings.progress_topic)
    create_topic(kafka_settings, kafka_settings.progress_topic, config={"cleanup.policy": "compact"})
    records.add(2)

    refused = CliRunner().invoke(app, ["recover"], input="n\n")
    assert refused.exit_code == 1
    assert "repair: write a progress record with sequence 3" in refused.output
    with pytest.raises(FailClosed):
        publish(kafka_settings)

    assert CliRunner().invoke(app, ["recover"], input="y\n").exit_code == 0
    assert publish(kafka_settings).published == 2
    assert "Postgres and Kafka agree" in CliRunner().invoke(app, ["recover"]).output
