"""``sla-pipeline recover``: prints the repair, and carries it out on confirmation only."""

import json

import pytest
from typer.testing import CliRunner

from sla_pipeline.cli import app
from sla_pipeline.errors import FailClosed
from sla_pipeline.kafka.events import read_events
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.kafka.topics import create_topics
from sla_pipeline_tests.integration.kafka.breach_records import BreachRecords, sequence_of
from sla_pipeline_tests.integration.kafka.conftest import Publish
from sla_pipeline_tests.integration.kafka.topic_administration import create_topic, delete_topic, recreate_event_topic

pytestmark = pytest.mark.usefixtures("environment_of_commands")


def run(*arguments: str, answers: str = "") -> tuple[int, str]:
    """Exit code and output of a command."""
    result = CliRunner().invoke(app, list(arguments), input=answers)
    return result.exit_code, result.output


def faults() -> dict[str, int]:
    """Return the counts of `sla-pipeline verify`; check its exit code."""
    exit_code, output = run("verify", "--json")
    report = json.loads(output[output.index("{") :])
    assert exit_code == (0 if report["clean"] else 1)
    return {
        finding["check"]: finding["count"]
        for finding in report["findings"]
        if finding["count"] and finding["severity"] == "fault"
    }


def sequences(settings: KafkaSettings) -> list[int]:
    """Return the events on the topic."""
    return sorted(map(sequence_of, read_events(settings)))


def test_it_repairs_on_confirmation_only(
    kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish
) -> None:
    records.add(3)
    assert publish(kafka_settings).published_count == 3
    delete_topic(kafka_settings, kafka_settings.progress_topic)
    create_topic(kafka_settings, kafka_settings.progress_topic, config={"cleanup.policy": "compact"})
    records.add(2)

    refused = CliRunner().invoke(app, ["recover"], input="n\n")
    assert refused.exit_code == 1
    assert "repair: write a progress record with sequence 3" in refused.output
    with pytest.raises(FailClosed):
        publish(kafka_settings)

    assert CliRunner().invoke(app, ["recover"], input="y\n").exit_code == 0
    assert publish(kafka_settings).published_count == 2
    assert "Postgres and Kafka agree" in CliRunner().invoke(app, ["recover"]).output


def test_it_publishes_missing_events_again_on_confirmation_only(
    kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish
) -> None:
    """The event topic is re-created between produce and commit: `verify` and `recover` count the same."""
    records.add(20)
    publish(kafka_settings, on_step=lambda name: recreate_event_topic(kafka_settings) if name == "flushed" else None)
    assert faults() == {"record_without_event": 20, "record_ticket_without_event": 20}

    exit_code, output = run("recover", answers="n\n")
    assert exit_code == 1
    assert "finding: published records have no event on the topic" in output
    assert "missing: 20 published records have no event on the topic (sequences 1 to 20)" in output
    assert "not that nobody has read them" in output
    assert "Publish 20 events again now?" in output
    assert sequences(kafka_settings) == []

    exit_code, output = run("recover", answers="y\n")
    assert (exit_code, output.splitlines()[-1]) == (0, "repaired; the next cycle publishes what waits")
    assert sequences(kafka_settings) == list(range(1, 21))
    assert faults() == {}
    exit_code, output = run("recover")
    assert exit_code == 0
    assert "finding: Postgres and Kafka agree" in output


@pytest.mark.parametrize(
    ("answers", "code", "published"), [("y\nn\n", 1, 0), ("y\ny\n", 0, 10), (None, 0, 10)], ids=["no", "yes", "--yes"]
)
def test_the_lost_position_and_the_missing_events_are_two_questions(
    answers: str | None,
    code: int,
    published: int,
    kafka_settings: KafkaSettings,
    records: BreachRecords,
    publish: Publish,
) -> None:
    """Both topics are gone. Whoever moved to a new Kafka on purpose wants the position, and none of the old events."""
    records.add(10)
    publish(kafka_settings)
    delete_topic(kafka_settings, kafka_settings.progress_topic)
    delete_topic(kafka_settings, kafka_settings.topic)
    create_topics(kafka_settings)
    exit_code, output = run("recover", *(["--yes"] if answers is None else []), answers=answers or "")
    assert exit_code == code
    assert "repair: write a progress record with sequence 10" in output
    assert "repaired; now the missing events" in output
    assert sequences(kafka_settings) == list(range(1, published + 1))
    records.add(1)
    assert publish(kafka_settings).published_count == 1


def test_what_cannot_be_decided_has_an_exit_code_of_its_own(
    kafka_settings: KafkaSettings, records: BreachRecords, publish: Publish
) -> None:
    records.add(10)
    publish(kafka_settings)
    recreate_event_topic(kafka_settings)
    records.rewind(5)
    exit_code, output = run("recover", "--yes")
    assert exit_code == 3
    assert "reason: the progress record states that 10 is published" in output
    assert sequences(kafka_settings) == []
