"""One audit in a process of its own, and what it took. Imports nothing else, since that would be measured too."""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from sla_pipeline.audit.verify import verify
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.postgres.session import PostgresSettings


@dataclass(frozen=True, slots=True)
class Measured:
    """One audit. Sizes in MB of 2**20 bytes."""

    record_count: int
    event_count: int
    proven_count: int
    clean: bool
    seconds: float
    cpu_seconds: float
    """Of the auditor's own process: on a busy machine the one to compare."""
    idle_mb: float
    """The process before the audit: Python, the drivers, the contract's model."""
    peak_mb: float


def measured(postgres_url: str, kafka: KafkaSettings) -> Measured:
    """One audit in a new process; the URL travels in its environment, where no list of processes shows it."""
    environment = {
        **os.environ,
        "SLA_POSTGRES_URL": postgres_url,
        "SLA_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "SLA_KAFKA_TOPIC": kafka.topic,
    }
    told = subprocess.run(
        [sys.executable, "-m", __name__], env=environment, capture_output=True, text=True, check=False
    )
    if told.returncode:
        raise RuntimeError(told.stderr)
    return Measured(**json.loads(told.stdout))


def main() -> None:
    """Audit what the environment names, and print a ``Measured`` as JSON."""
    idle_mb, began, cpu_began = _peak_mb(), time.monotonic(), time.process_time()
    report = verify(PostgresSettings.from_environment(), KafkaSettings.from_environment(), now_utc=datetime.now(UTC))
    done = Measured(
        report.record_count,
        report.event_count,
        report.proven_count,
        report.clean,
        time.monotonic() - began,
        time.process_time() - cpu_began,
        idle_mb,
        _peak_mb(),
    )
    json.dump(asdict(done), sys.stdout)


def _peak_mb() -> float:
    """The largest resident set of this program so far. Not getrusage: what it tells includes the parent, before
    exec.
    """
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    main()
