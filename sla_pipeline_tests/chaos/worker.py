"""Worker process of the harness: real cycles, one after the other, until it is killed.

It sends a message for each step and each end of a cycle over a pipe to its supervisor (``worker_supervisor.py``) and
waits for the reply. It exits when the pipe is closed or silent for too long.
"""

import faulthandler
import logging
import os
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

import psycopg

from sla_pipeline.cycle import CycleInput, CycleTotals
from sla_pipeline.errors import SlaPipelineError
from sla_pipeline.kafka.relay import Relay
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.monitor.runner import run_cycle
from sla_pipeline.postgres.database import Database
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline_tests.chaos.broken import Build, install
from sla_pipeline_tests.chaos.disruptions import seeded
from sla_pipeline_tests.chaos.event_log import EXPECTED_ERRORS

__all__ = ["Reply", "WorkerMessage", "WorkerSettings", "work"]

# longer than the longest pause; a supervisor replies within seconds
_REPLY_SECONDS = 120.0
_CYCLE_DELAY_SECONDS = (0.1, 0.4)
# few: with the default of 20, a cycle with a backlog is almost always killed before it publishes, which would leave the
# relay untested
_MAX_BATCHES = 4

Reply = Literal["go", "end"]


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Settings of a worker."""

    worker_url: str = field(repr=False)
    kafka: KafkaSettings
    build: Build
    batch_size: int
    transaction_limit: int
    log: Path
    seed: str


@dataclass(frozen=True, slots=True)
class WorkerMessage:
    """Message of a worker: the name of a step, or the outcome of a cycle."""

    step: str | None = None
    outcome: str = ""
    """``ok``, or the class of an error; an unexpected one takes precedence."""
    detail: str = ""


class _SupervisorPipe:
    """Pipe to the supervisor."""

    def __init__(self, pipe: "Connection[WorkerMessage, Reply]") -> None:
        self._pipe = pipe

    def exchange(self, message: WorkerMessage) -> Reply:
        """Send ``message`` and return the reply. Ends the process when there is none."""
        try:
            self._pipe.send(message)
            if self._pipe.poll(_REPLY_SECONDS):
                return self._pipe.recv()
        except (EOFError, OSError):
            pass
        os._exit(1)

    def on_step(self, name: str) -> None:
        """Report a step of the cycle."""
        self.exchange(WorkerMessage(step=name))


def work(pipe: "Connection[WorkerMessage, Reply]", settings: WorkerSettings) -> None:
    """Run cycles until the supervisor replies "end". Entry point of the process."""
    # a process group of its own: if the harness dies while this process is stopped, the kernel resumes and ends it
    os.setpgid(0, 0)
    logging.basicConfig(
        filename=settings.log,
        level=logging.WARNING,
        format="%(asctime)s %(process)d %(name)s %(levelname)s %(message)s",
    )
    # otherwise a crash inside a driver's C code would leave no trace
    with settings.log.open("a") as crashes:
        faulthandler.enable(crashes)
        _cycles(pipe, settings)


def _cycles(pipe: "Connection[WorkerMessage, Reply]", settings: WorkerSettings) -> None:
    install(settings.build)
    supervisor, rng = _SupervisorPipe(pipe), seeded(settings.seed)
    database = Database(PostgresSettings(settings.worker_url))
    relay = Relay(settings.kafka, on_step=supervisor.on_step, transaction_limit=settings.transaction_limit)
    cycle_input = CycleInput(batch_size=settings.batch_size, max_batches_per_cycle=_MAX_BATCHES)
    reply: Reply = "go"
    while reply == "go":
        try:
            message = _message(run_cycle(database, relay, cycle_input, on_step=supervisor.on_step))
        except (SlaPipelineError, psycopg.Error) as error:
            message = WorkerMessage(outcome=type(error).__name__, detail=str(error))
        reply = supervisor.exchange(message)
        time.sleep(rng.uniform(*_CYCLE_DELAY_SECONDS))
    database.close()
    relay.close()


def _message(totals: CycleTotals) -> WorkerMessage:
    """Return the message for a cycle that ran to its end; an unexpected class of error takes precedence."""
    if not totals.errors:
        return WorkerMessage(
            outcome="ok",
            detail=(
                f"{totals.processed_count} marked, {totals.published_count} published, {totals.lock_skip_count} skipped"
            ),
        )
    first, faults = totals.errors[0], totals.error_list.faults
    names = [type(fault).__name__ for fault in faults]
    if not any(first.endswith(str(fault)) for fault in faults):
        # "... failed: LockNotAvailable (55P03)"; otherwise a ticket was set aside, which is an error here
        names.insert(0, first.partition("failed: ")[2].partition(" ")[0] or "set aside")
    unexpected = [name for name in names if name not in EXPECTED_ERRORS]
    return WorkerMessage(outcome=(unexpected or names)[0], detail="; ".join(totals.errors))
