"""Fixtures of the relay's tests: an outbox with real records, relays that are closed at the end."""

import contextlib
from collections.abc import Callable, Iterator

import pytest

from sla_pipeline.cycle import CycleTotals, OnStep, no_step
from sla_pipeline.kafka.deadline import Deadline
from sla_pipeline.kafka.progress import ProgressReader
from sla_pipeline.kafka.relay import PUBLISH_SECONDS, TRANSACTION_LIMIT, Relay
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.outbox import Outbox
from sla_pipeline.postgres.outbox import PostgresOutbox
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline.recovery.outbox_repair import RepairableOutbox
from sla_pipeline_tests.integration.kafka.breach_records import BreachRecords

OutboxFactory = Callable[[], contextlib.AbstractContextManager[Outbox]]
Publish = Callable[..., CycleTotals]


@pytest.fixture
def records(owner_url: str) -> BreachRecords:
    """Return the outbox's rows."""
    return BreachRecords(owner_url)


@pytest.fixture
def outbox_factory(worker_url: str) -> OutboxFactory:
    """Return a factory that opens the outbox, each time over a session of its own."""
    return lambda: PostgresOutbox(PostgresSettings(worker_url))


@pytest.fixture
def publish(outbox_factory: OutboxFactory) -> Publish:
    """Return a function that publishes as one cycle does: new outbox, new relay, both closed at its end."""

    def publish_once(
        settings: KafkaSettings,
        *,
        run_id: str = "run-that-published",
        on_step: OnStep = no_step,
        transaction_limit: int = TRANSACTION_LIMIT,
        seconds: float = PUBLISH_SECONDS,
    ) -> CycleTotals:
        with (
            outbox_factory() as outbox,
            Relay(settings, on_step=on_step, transaction_limit=transaction_limit) as relay,
        ):
            totals = relay.publish(outbox, run_id=run_id, seconds=seconds)
        # a test that acts in a step may have stopped the broker there
        if totals.transaction_count and on_step is no_step:
            _wait_until_visible(settings)
        return totals

    return publish_once


def _wait_until_visible(settings: KafkaSettings) -> None:
    """Wait until readers see the commit: a busy broker writes its markers some time after it has confirmed it."""
    with contextlib.closing(ProgressReader(settings)) as reader:
        reader.read(Deadline(20))


@pytest.fixture
def outbox(owner_url: str) -> Iterator[RepairableOutbox]:
    """Yield the outbox with the owner's login, for repairs."""
    with contextlib.closing(RepairableOutbox(PostgresSettings(owner_url))) as outbox:
        yield outbox


@pytest.fixture
def environment_of_commands(monkeypatch: pytest.MonkeyPatch, kafka_settings: KafkaSettings, owner_url: str) -> None:
    """Set the environment of `sla-pipeline`, with the owner's login."""
    monkeypatch.setenv("SLA_POSTGRES_URL", owner_url)
    monkeypatch.setenv("SLA_POSTGRES_OWNER_URL", owner_url)
    monkeypatch.setenv("SLA_KAFKA_BOOTSTRAP_SERVERS", kafka_settings.bootstrap_servers)
    monkeypatch.setenv("SLA_KAFKA_TOPIC", kafka_settings.topic)
