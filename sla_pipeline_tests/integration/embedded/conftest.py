"""Fixtures for the embedded services: polling, and a parent process that can be killed."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
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


PollUntil = Callable[[Callable[[], bool], float], None]


@pytest.fixture
def poll_until() -> PollUntil:
    """Wait for a condition; fail the test when it is not true after so many seconds."""

    def poll(condition: Callable[[], bool], timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        while not condition():
            assert time.monotonic() < deadline, f"not true after {timeout_seconds} s"
            time.sleep(0.05)

    return poll


def is_gone(pid: int) -> bool:
    """Return whether the process has ended; true of a zombie, which nobody has reaped yet."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


class KillableParent(Protocol):
    """Run Python code until it has printed a line; return that line's words; on exit, kill the process with SIGKILL."""

    def __call__(self, code: str, *arguments: str | Path) -> AbstractContextManager[list[str]]: ...


@pytest.fixture
def killable_parent() -> KillableParent:
    @contextlib.contextmanager
    def run(code: str, *arguments: str | Path) -> Iterator[list[str]]:
        with subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True) as parent:
            try:
                assert parent.stdout is not None
                line = parent.stdout.readline()
                assert line, "the parent ended before it printed anything"
                yield line.split()
            finally:
                parent.kill()

    return run
