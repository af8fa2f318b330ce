"""Publisher in a process of its own that receives a signal at a chosen step.

It prints one line, ``published N`` or the error that publishing ended with.
"""

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict

import psutil

from sla_pipeline.errors import SlaPipelineError
from sla_pipeline.kafka.relay import Relay
from sla_pipeline.kafka.settings import KafkaSettings
from sla_pipeline.postgres.outbox import PostgresOutbox
from sla_pipeline.postgres.session import PostgresSettings
from sla_pipeline_tests.waiting import wait_until

_RUN_ID = "run-of-the-other-process"


def start_publisher(
    settings: KafkaSettings, postgres_url: str, *, at: str, signal_name: str
) -> "subprocess.Popen[str]":
    """Start a publisher that sends itself ``signal_name`` at the end of step ``at``."""
    request = {"kafka": asdict(settings), "postgres_url": postgres_url, "at": at, "signal": signal_name}
    return subprocess.Popen([sys.executable, "-m", __name__, json.dumps(request)], stdout=subprocess.PIPE, text=True)


def run_until_killed(settings: KafkaSettings, postgres_url: str, *, at: str) -> None:
    """Run a publisher that dies by SIGKILL at the end of step ``at``."""
    with start_publisher(settings, postgres_url, at=at, signal_name="SIGKILL") as process:
        assert process.wait(timeout=60) == -signal.SIGKILL


def wait_until_stopped(process: "subprocess.Popen[str]") -> None:
    """Wait until SIGSTOP has stopped the process."""
    wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, what="the publisher to stop")


def main(argument: str) -> None:
    request = json.loads(argument)

    def on_step(name: str) -> None:
        if name == request["at"]:
            os.kill(os.getpid(), signal.Signals[request["signal"]])

    with (
        PostgresOutbox(PostgresSettings(request["postgres_url"])) as outbox,
        Relay(KafkaSettings(**request["kafka"]), on_step=on_step) as relay,
    ):
        try:
            outcome = f"published {relay.publish(outbox, run_id=_RUN_ID).published_count}"
        except SlaPipelineError as error:
            outcome = f"{type(error).__name__}: {error}"
    sys.stdout.write(f"{outcome}\n")


if __name__ == "__main__":
    main(sys.argv[1])
