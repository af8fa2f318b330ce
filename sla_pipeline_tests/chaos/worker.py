"""One worker of the harness: real cycles, one after the other, in a process that may be killed at any moment.

What belongs here: what runs inside the process. What does not: who starts, halts and kills it (``seats.py``). It talks
to its seat over a pipe: it announces each step and each end of a cycle and waits to be told to go on. A pipe that is
closed, or silent for too long, ends it.
"""

import contextlib
import faulthandler
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

import psycopg

from sla_pipeline.cycle import CycleInput, CycleTotals
from sla_pipeline.errors import SlaPipelineError
from sla_pipeline.kafka.relay import PUBLISH_SECONDS, Relay
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.monitor.runner import run_cycle
from sla_pipeline.outbox import Outbox
from sla_pipeline.postgres.database import Database
from sla_pipeline.postgres.outbox import PostgresOutbox
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline_tests.chaos.broken import Build, install
from sla_pipeline_tests.chaos.disruptions import seeded

__all__ = ["Answer", "Contract", "Report", "work"]

# longer than the longest freeze; a seat answers within seconds
_SILENCE_SECONDS = 120.0
_PAUSE_SECONDS = (0.1, 0.4)
# few: with the default of 20 a cycle among kills and a backlog hardly ever lives until it publishes, and the relay goes
# untried
_MAX_BATCHES = 4

Answer = Literal["go", "end"]


@dataclass(frozen=True, slots=True)
class Contract:
    """What a worker works with."""

    worker_url: str = field(repr=False)
    kafka: KafkaSettings
    build: Build
    batch_size: int
    transaction_limit: int
    log: Path
    seed: str


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker announces: the name of a step, or how a cycle ended."""

    step: str | None = None
    outcome: str = ""
    """``ok``, or the class of the first error."""
    told: str = ""


class _Seat:
    """The other end of the pipe."""

    def __init__(self, pipe: "Connection[Report, Answer]") -> None:
        self._pipe = pipe

    def ask(self, report: Report) -> Answer:
        """Announces, and waits for the answer."""
        try:
            self._pipe.send(report)
            if self._pipe.poll(_SILENCE_SECONDS):
                return self._pipe.recv()
        except (EOFError, OSError):
            pass
        os._exit(1)

    def on_step(self, name: str) -> None:
        """The hook of a cycle."""
        self.ask(Report(step=name))


class _Classes:
    """Remembers the class of the last error that the publishing raised: a cycle's report holds its text only."""

    def __init__(self) -> None:
        self.last = ""

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Notes what the block raises."""
        try:
            yield
        except Exception as error:
            self.last = type(error).__name__
            raise


class _WatchedRelay(Relay):
    classes: _Classes

    def publish(
        self, outbox: Outbox, *, run_id: str, totals: CycleTotals | None = None, seconds: float = PUBLISH_SECONDS
    ) -> CycleTotals:
        with self.classes.noted():
            return super().publish(outbox, run_id=run_id, totals=totals, seconds=seconds)


class _WatchedDatabase(Database):
    classes: _Classes

    def outbox(self) -> PostgresOutbox:
        with self.classes.noted():
            return super().outbox()


def work(pipe: "Connection[Report, Answer]", contract: Contract) -> None:
    """Run cycles until told to end. The process's whole life."""
    # a group of its own: should the harness die while this process is stopped, the kernel wakes and ends it
    os.setpgid(0, 0)
    logging.basicConfig(
        filename=contract.log,
        level=logging.WARNING,
        format="%(asctime)s %(process)d %(name)s %(levelname)s %(message)s",
    )
    # a crash inside a driver's C code would otherwise end the process without a word
    with contract.log.open("a") as crashes:
        faulthandler.enable(crashes)
        _cycles(pipe, contract)


def _cycles(pipe: "Connection[Report, Answer]", contract: Contract) -> None:
    install(contract.build)
    seat, classes, rng = _Seat(pipe), _Classes(), seeded(contract.seed)
    database = _WatchedDatabase(PostgresSettings(contract.worker_url))
    relay = _WatchedRelay(contract.kafka, on_step=seat.on_step, transaction_limit=contract.transaction_limit)
    database.classes = relay.classes = classes
    given = CycleInput(batch_size=contract.batch_size, max_batches_per_cycle=_MAX_BATCHES)
    answer: Answer = "go"
    while answer == "go":
        try:
            report = _reported(run_cycle(database, relay, given, on_step=seat.on_step), classes)
        except (SlaPipelineError, psycopg.Error) as error:
            report = Report(outcome=type(error).__name__, told=str(error))
        answer = seat.ask(report)
        time.sleep(rng.uniform(*_PAUSE_SECONDS))
    database.close()
    relay.close()


def _reported(report: CycleTotals, classes: _Classes) -> Report:
    if not report.errors:
        return Report(
            outcome="ok",
            told=f"{report.processed_count} marked, {report.published_count} published, {report.lock_skip_count} skipped",
        )
    told = "; ".join(report.errors)
    if report.fault is not None:
        return Report(outcome=type(report.fault).__name__, told=told)
    first = report.errors[0]
    if first.startswith("publishing failed"):
        return Report(outcome=classes.last, told=told)
    # "batch 3 failed: LockNotAvailable (55P03)", or a ticket set aside, which must not happen here
    return Report(outcome=first.partition("failed: ")[2].partition(" ")[0] or "set aside", told=told)
