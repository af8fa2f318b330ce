"""Fixtures of tests that run whole cycles: sessions of the support service and the worker, a clock, a consumer."""

import logging
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import psycopg
import pytest

from sla_pipeline.cycle import Clock, CycleInput, CycleTotals, OnStep, SimulatedClock, no_step
from sla_pipeline.event import TicketSlaBreachedKafkaEvent
from sla_pipeline.kafka.events import read_events
from sla_pipeline.kafka.relay import Relay
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.monitor.batches import ShouldStop
from sla_pipeline.monitor.runner import run_cycle
from sla_pipeline.postgres.database import Database
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline_tests.tickets import NOW

Events = Callable[[], list[TicketSlaBreachedKafkaEvent]]


class Cycle(Protocol):
    """Function that runs one cycle with the worker's login at the time of ``clock`` and returns its totals."""

    def __call__(
        self,
        cycle_input: CycleInput | None = None,
        *,
        clock: Clock = ...,
        run_id: str | None = None,
        should_stop: ShouldStop = ...,
        on_step: OnStep = ...,
    ) -> CycleTotals: ...


@pytest.fixture
def support(owner_url: str) -> Iterator[psycopg.Connection[Any]]:
    """Session of the support service with all rights on tickets, in autocommit mode."""
    with psycopg.connect(owner_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def operator(owner_url: str) -> Iterator[psycopg.Connection[Any]]:
    """Second session of the support service, whose transaction may stay open."""
    with psycopg.connect(owner_url) as connection:
        yield connection


@pytest.fixture
def database(worker_url: str) -> Iterator[Database]:
    """Database of the cycle, with the worker's login."""
    worker = Database(PostgresSettings(worker_url))
    yield worker
    worker.close()


@pytest.fixture
def relay(kafka_settings: KafkaSettings) -> Iterator[Relay]:
    """Relay of the cycle."""
    with Relay(kafka_settings) as relay:
        yield relay


@pytest.fixture
def clock() -> SimulatedClock:
    """Clock that shows ``NOW`` until the test sets it."""
    return SimulatedClock(NOW)


@pytest.fixture
def cycle(database: Database, relay: Relay, clock: SimulatedClock) -> Cycle:
    """Cycle of one pod."""
    return _cycle_of(database, relay, clock)


@pytest.fixture
def other_pod(worker_url: str, kafka_settings: KafkaSettings, clock: SimulatedClock) -> Iterator[Cycle]:
    """Cycle of a second pod, with sessions of its own."""
    database = Database(PostgresSettings(worker_url))
    with Relay(kafka_settings) as relay:
        yield _cycle_of(database, relay, clock)
    database.close()


def _cycle_of(database: Database, relay: Relay, default_clock: Clock) -> Cycle:
    def run(
        cycle_input: CycleInput | None = None,
        *,
        clock: Clock = default_clock,
        run_id: str | None = None,
        should_stop: ShouldStop = lambda: False,
        on_step: OnStep = no_step,
    ) -> CycleTotals:
        return run_cycle(
            database, relay, cycle_input, clock=clock, run_id=run_id, should_stop=should_stop, on_step=on_step
        )

    return run


@pytest.fixture
def logged() -> Iterator[list[logging.LogRecord]]:
    """Records that the package has logged.

    ``caplog`` does not work: it reads the root logger, which a configured package logger does not reach.
    """
    records: list[logging.LogRecord] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    logger, collector = logging.getLogger("sla_pipeline"), Collector()
    level = logger.level
    logger.addHandler(collector)
    logger.setLevel(logging.INFO)
    yield records
    logger.setLevel(level)
    logger.removeHandler(collector)


@pytest.fixture
def events(kafka_settings: KafkaSettings) -> Events:
    """Function that reads all events of the topic in the order of the outbox and checks that each key is its ticket."""

    def read() -> list[TicketSlaBreachedKafkaEvent]:
        received = sorted(read_events(kafka_settings), key=lambda event: int(event.headers["outbox-seq"]))
        parsed = [TicketSlaBreachedKafkaEvent.model_validate_json(event.value) for event in received]
        assert [event.key.decode() for event in received] == [event.ticket_id for event in parsed]
        return parsed

    return read
