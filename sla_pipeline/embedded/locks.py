"""File locks: one process per folder, and one service per log file."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

import filelock

from sla_pipeline.embedded.errors import ServiceError

__all__ = ["exclusive", "inheritable_lock"]

_POLL_SECONDS = 0.05
# The shell of a service's guard uses descriptors below 10 for itself.
_FIRST_SAFE_DESCRIPTOR = 10


@contextlib.contextmanager
def exclusive(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file ``path`` for this process.

    Raises ``ServiceError`` at once, naming ``what``, when another process holds it.
    """
    try:
        lock = filelock.FileLock(path).acquire(timeout=0)
    except filelock.Timeout:
        raise ServiceError(
            f"{what} is in use by another process (it holds {path}); end that one, or use another folder"
        ) from None
    with lock:
        yield


@contextlib.contextmanager
def inheritable_lock(path: Path, what: str, timeout_seconds: float) -> Iterator[int]:
    """Hold the lock file ``path`` and return its descriptor, for a child process to inherit.

    The lock stays taken until the last process that inherited the descriptor has ended. Raises ``ServiceError``, naming
    ``what``, when another process still holds it after ``timeout_seconds``.
    """
    first = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        lock = fcntl.fcntl(first, fcntl.F_DUPFD_CLOEXEC, _FIRST_SAFE_DESCRIPTOR)
    finally:
        os.close(first)
    try:
        deadline = time.monotonic() + timeout_seconds
        while not _try_lock(lock):
            if time.monotonic() > deadline:
                raise ServiceError(
                    f"{what} of an earlier run is still there after {timeout_seconds:.0f} s: it holds {path}"
                )
            time.sleep(_POLL_SECONDS)
        yield lock
    finally:
        os.close(lock)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
