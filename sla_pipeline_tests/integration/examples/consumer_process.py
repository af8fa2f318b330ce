"""The example consumer in a process of its own, as a reader starts it: by its file, with environment variables."""

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from sla_pipeline_tests.waiting import wait_until

_PROXY = re.compile("(http|https|all|no)_proxy", re.IGNORECASE)


class ConsumerProcess:
    """Started consumer; the context manager kills it on exit. Its output goes to a file."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], output: Path) -> None:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("SLA_") and not _PROXY.fullmatch(name)
        }
        self._output = output
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                command, env={**inherited, **variables}, cwd=output.parent, stdout=file, stderr=subprocess.STDOUT
            )

    def __enter__(self) -> "ConsumerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()
        self._process.wait(timeout=30)

    def pause(self) -> None:
        """Send SIGSTOP, and wait until the process has stopped."""
        self._process.send_signal(signal.SIGSTOP)
        process = psutil.Process(self._process.pid)
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED, what="the consumer to stop")

    def resume(self) -> None:
        """Send SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def end(self, number: signal.Signals = signal.SIGTERM, *, seconds: float = 20.0) -> int:
        """Send a signal that requests the end; return the exit code."""
        self._process.send_signal(number)
        return self._process.wait(timeout=seconds)

    def exit_code(self, *, seconds: float = 30.0) -> int:
        """Wait until the process has ended by itself; return its exit code."""
        return self._process.wait(timeout=seconds)

    def output(self) -> str:
        """Return what the process has printed so far."""
        return self._output.read_text()

    def wait_until_printed(self, text: str, *, count: int = 1) -> None:
        """Wait until the output holds ``text`` that often."""
        wait_until(
            lambda: self.output().count(text) >= count or self._process.poll() is not None,
            what=f"{text!r} in the consumer's output",
            seconds=60,
        )
        assert self.output().count(text) >= count, self.output()
