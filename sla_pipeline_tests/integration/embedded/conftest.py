"""What the tests of the embedded services share: watching processes, and a parent that can be killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import psutil
import pytest

from sla_pipeline_tests.shared_servers import server_folder


@pytest.fixture
def state() -> Iterator[Path]:
    """A state folder whose path holds a space and letters beyond ASCII, as those of people's own folders do."""
    with server_folder() as folder:
        yield folder / "état of Ivan Ž"


@pytest.fixture
def poll_until() -> Callable[[Callable[[], bool], float], None]:
    """Waits for a condition; fails the test when it has not come true after so many seconds."""

    def poll(condition: Callable[[], bool], timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        while not condition():
            assert time.monotonic() < deadline, f"not so after {timeout_seconds} s"
            time.sleep(0.05)

    return poll


def is_gone(pid: int) -> bool:
    """Whether the process has ended; one that nobody has buried yet has."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class KilledParent(Protocol):
    """Runs Python code until it has printed a line, kills its process with SIGKILL, returns that line."""

    def __call__(self, code: str, *arguments: str | Path) -> str: ...


@pytest.fixture
def killed_parent() -> KilledParent:
    def run(code: str, *arguments: str | Path) -> str:
        with subprocess.Popen([sys.executable, "-c", code, *map(os.fspath, arguments)], stdout=subprocess.PIPE, text=True) as parent:
            assert parent.stdout is not None
            line = parent.stdout.readline()
            parent.send_signal(signal.SIGKILL)
        assert line, "the parent ended before it printed anything"
        return line.strip()

    return run
