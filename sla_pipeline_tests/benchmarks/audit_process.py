"""Memory and time of one audit in a process of its own. Every import here counts in the measured memory."""

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
    """Measured values of one audit; sizes in MB of 2**20 bytes."""

    record_count: int
    event_count: int
    proven_count: int
    clean: bool
    seconds: float
    cpu_seconds: float
    """CPU time of the auditor's process: the value to compare on a busy machine."""
    idle_mb: float
    """Memory before the audit: Python, the drivers, the contract's model."""
    peak_mb: float


def measured(postgres_url: str, kafka: KafkaSettings) -> Measured:
    """Run one audit in a new process. The environment holds the URL: the command line would show it to every user."""
    environment = {
        **os.environ,
        "SLA_POSTGRES_URL": postgres_url,
        "SLA_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "SLA_KAFKA_TOPIC": kafka.topic,
    }
    completed = subprocess.run(
        [sys.executable, "-m", __name__], env=environment, capture_output=True, text=True, check=False
    )
    if completed.returncode:
        raise RuntimeError(completed.stderr)
    return Measured(**json.loads(completed.stdout))


def main() -> None:
    """Audit the servers that the environment names, and print a ``Measured`` as JSON."""
    idle_mb, began, cpu_began = _peak_mb(), time.monotonic(), time.process_time()
    report = verify(PostgresSettings.from_environment(), KafkaSettings.from_environment(), now_utc=datetime.now(UTC))
    values = Measured(
        report.record_count,
        report.event_count,
        report.proven_count,
        report.clean,
        time.monotonic() - began,
        time.process_time() - cpu_began,
        idle_mb,
        _peak_mb(),
    )
    json.dump(asdict(values), sys.stdout)


def _peak_mb() -> float:
    """Return the largest resident set of this program so far; getrusage would include the parent's before exec."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    main()
