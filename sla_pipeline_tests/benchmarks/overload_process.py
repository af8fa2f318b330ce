"""Worker process that runs one cycle per line on standard input and reports its memory.

It prints one JSON object per cycle and ends with its input.
"""

import gc
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

import psutil

from sla_pipeline.kafka.relay import Relay
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.monitor.runner import run_cycle
from sla_pipeline.postgres.database import Database
from sla_pipeline.postgres.session import PostgresSettings

__all__ = ["CycleOutcome", "Worker"]


@dataclass(frozen=True)
class CycleOutcome:
    """Outcome of one cycle, and the resident memory of the process after it."""

    marked: int
    published: int
    backlog: int
    has_more: bool
    seconds: float
    memory_mb: float
    errors: list[str]


class Worker:
    """A running worker process. As a context manager it is ended on exit."""

    def __init__(self, postgres_url: str, kafka: KafkaSettings) -> None:
        request = json.dumps({"postgres_url": postgres_url, "kafka": asdict(kafka)})
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, request], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> "Worker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def cycle(self) -> CycleOutcome:
        """Run one cycle with the default input and the system's clock."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("cycle\n")
        self._process.stdin.flush()
        return CycleOutcome(**json.loads(self._process.stdout.readline()))


def main(argument: str) -> None:
    request: dict[str, Any] = json.loads(argument)
    database = Database(PostgresSettings(request["postgres_url"]))
    with Relay(KafkaSettings(**request["kafka"])) as relay:
        for _ in sys.stdin:
            totals = run_cycle(database, relay)
            gc.collect()
            outcome = CycleOutcome(
                marked=totals.processed_count,
                published=totals.published_count,
                backlog=totals.backlog_count or 0,
                has_more=totals.has_more,
                seconds=(totals.duration_ms or 0) / 1000,
                memory_mb=psutil.Process().memory_info().rss / 2**20,
                errors=totals.errors,
            )
            sys.stdout.write(json.dumps(asdict(outcome)) + "\n")
            sys.stdout.flush()
    database.close()


if __name__ == "__main__":
    main(sys.argv[1])
