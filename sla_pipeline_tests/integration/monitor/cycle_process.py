"""One cycle in a process of its own: ``python -m ... '{"postgres_url": ..., "kafka": ..., ...}'``.

The process prints ``ready`` after its imports, waits for a line on standard input, runs the cycle, and prints its
totals as JSON. With ``dies_at`` it sends itself SIGKILL at that step.
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sla_pipeline.cycle import CycleInput, SimulatedClock
from sla_pipeline.kafka.relay import Relay
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.monitor.runner import run_cycle
from sla_pipeline.postgres.database import Database
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline_tests.tickets import NOW


class Pod:
    """The started process; the context manager kills it on exit."""

    def __init__(
        self,
        postgres_url: str,
        kafka: KafkaSettings,
        cycle_input: CycleInput | None = None,
        *,
        now_utc: datetime = NOW,
        run_id: str | None = None,
        dies_at: str | None = None,
        dies_at_nth: int = 1,
    ) -> None:
        request = {
            "postgres_url": postgres_url,
            "kafka": asdict(kafka),
            "cycle_input": asdict(cycle_input or CycleInput()),
            "now_utc": now_utc.isoformat(),
            "run_id": run_id,
            "dies_at": dies_at,
            "dies_at_nth": dies_at_nth,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps(request)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "Pod":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def wait_until_ready(self) -> None:
        """Wait until the process has finished its imports."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def go(self) -> None:
        """Start the cycle."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def report(self) -> dict[str, Any]:
        """Wait for the end of the cycle; return its totals, decoded from JSON."""
        printed, _ = self._process.communicate(timeout=120)
        assert self._process.returncode == 0
        report: dict[str, Any] = json.loads(printed)
        return report

    def die(self) -> None:
        """Run the cycle up to the step at which the process sends itself SIGKILL."""
        self.wait_until_ready()
        self.go()
        assert self._process.wait(timeout=120) == -signal.SIGKILL


def main(argument: str) -> None:
    request = json.loads(argument)
    seen: Counter[str] = Counter()

    def on_step(name: str) -> None:
        seen[name] += 1
        if name == request["dies_at"] and seen[name] == request["dies_at_nth"]:
            os.kill(os.getpid(), signal.SIGKILL)

    database = Database(PostgresSettings(request["postgres_url"]))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    with Relay(KafkaSettings(**request["kafka"]), on_step=on_step) as relay:
        totals = run_cycle(
            database,
            relay,
            CycleInput(**request["cycle_input"]),
            clock=SimulatedClock(datetime.fromisoformat(request["now_utc"])),
            run_id=request["run_id"],
            on_step=on_step,
        )
    database.close()
    sys.stdout.write(json.dumps(totals.as_dict(), default=str))


if __name__ == "__main__":
    main(sys.argv[1])
