"""Child processes that end with this process, however it ends. POSIX only.

Each service runs behind a small shell guard that holds a pipe from this process. A stop signals the service directly;
when this process dies, kill -9 included, the kernel closes the pipe and the guard stops the service. A service and all
its children hold an inherited file lock as well, so the next service on the same folder starts when the last of them
has ended, even after a run that left no other trace.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Self

import psutil

from sla_pipeline.embedded.errors import ServiceError
from sla_pipeline.embedded.locks import inheritable_lock
from sla_pipeline.embedded.process_tree import has_stopped, kill_tree, resume_tree, suspend_tree

__all__ = ["Service", "User"]

# The guard's reader waits in the background and the service replaces the shell. So the service has the pid that was
# started, and does not ignore SIGINT, as a shell's background job does. The reader is forked twice, so that it is no
# child of the service: a pause of the service and its children must not pause the guard.
_GUARD = """
exec 3<&0 </dev/null
( {
    read -r _ <&3
    kill -s "$1" $$
    for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 $$ || break; sleep 1; done
    kill -s KILL -- -$$
} >/dev/null 2>&1 & )
shift
exec 3<&-
exec "$@"
"""
# Bounds a stop, and the wait of a start for an earlier run's processes: longer than the guard's ten seconds, so that a
# start waits out the stop of a run that was killed a moment ago.
_STOP_TIMEOUT_SECONDS = 15.0
# Bounds a start: a broker needs 3 s, and forty times that on a machine that is busy with something else. A service that
# dies while it starts is noticed at once.
_START_TIMEOUT_SECONDS = 120.0
_POLL_SECONDS = 0.05
_PAUSE_POLL_SECONDS = 0.002
_LOG_TAIL_LINES = 15


class User(NamedTuple):
    """User that a service runs as, when not as this process's user."""

    uid: int
    gid: int


class Service:
    """A guarded process and its children. As a context manager it starts on entry and stops on exit.

    Standard output and error are appended to ``log``; a lock file with the same name, suffix ``.running``, lies beside
    it. ``stop_signal`` asks the service for an orderly stop. A fork of this process that outlives it holds the guard's
    pipe open: start services from a process that execs its children.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        log: Path,
        *,
        stop_signal: signal.Signals = signal.SIGTERM,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        user: User | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self._command = [os.fspath(part) for part in command]
        self._stop_signal = stop_signal
        self._env = env
        self._cwd = cwd
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Process id of the service and of its process group. Raises ``ServiceError`` when it is not running."""
        return self._running().pid

    def start(self) -> None:
        """Start the process, once the processes of an earlier run have ended; do not wait until it is ready.

        Raises ``ServiceError`` when processes of an earlier run stay, when the service is running already, or when the
        command cannot be run.
        """
        if self._process is not None:
            if self._process.poll() is None:
                raise ServiceError(f"{self.name} is already running, as process {self._process.pid}")
            self._reap(self._process)
        with self._lock() as lock, self.log.open("ab") as out, _stop_signals_enabled():
            self._log_start = out.tell()
            try:
                self._process = subprocess.Popen(
                    ["/bin/sh", "-c", _GUARD, "guard", self._stop_signal.name.removeprefix("SIG"), *self._command],
                    stdin=subprocess.PIPE,
                    stdout=out,
                    stderr=out,
                    env=self._env,
                    cwd=self._cwd,
                    start_new_session=True,
                    pass_fds=[lock],
                    user=self._user.uid if self._user else None,
                    group=self._user.gid if self._user else None,
                    extra_groups=[] if self._user else None,
                )
            except OSError as error:
                raise ServiceError(f"{self.name} cannot be started: {error}") from error

    def check(self) -> None:
        """Raise ``ServiceError`` with the end of the log when the process has ended, or was not started."""
        process = self._running()
        if (status := process.poll()) is not None:
            raise ServiceError(f"{self.name} ended with exit status {status}; {self._log_tail()}")

    def ended(self) -> bool:
        """Return whether the process was started and has ended by itself."""
        return self._process is not None and self._process.poll() is not None

    def log_since_start(self) -> list[str]:
        """Return the lines that the service has logged since its last start."""
        with self.log.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace").splitlines()

    def wait_until(self, ready: Callable[[], bool], timeout_seconds: float = _START_TIMEOUT_SECONDS) -> None:
        """Poll ``ready`` until it returns true.

        Raises ``ServiceError`` when the process ends first, or when ``timeout_seconds`` have passed.
        """
        deadline = time.monotonic() + timeout_seconds
        while not ready():
            self.check()
            if time.monotonic() > deadline:
                raise ServiceError(f"{self.name} was not ready after {timeout_seconds:.0f} s; {self._log_tail()}")
            time.sleep(_POLL_SECONDS)

    def stop(self, stop_signal: signal.Signals | None = None, timeout_seconds: float | None = None) -> None:
        """End the service by ``stop_signal`` or its own one, and by SIGKILL after ``timeout_seconds`` or 15 s.

        Does nothing when it is stopped already. Raises ``ServiceError`` when processes of it are left.
        """
        process = self._process
        if process is None:
            return
        self.resume()
        process.send_signal(stop_signal or self._stop_signal)
        try:
            process.wait(timeout_seconds or _STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        else:
            self._reap(process)

    def kill(self) -> None:
        """Send SIGKILL to the service and its descendants, as a crash; return when they have ended.

        Raises ``ServiceError`` when one of them stays.
        """
        process = self._running()
        kill_tree(process.pid)
        self._reap(process)

    def pause(self) -> None:
        """Send SIGSTOP to the service and its descendants; return when every thread has stopped.

        To the other side of a connection a paused service looks like a dead host. kill(2) returns 50 to 200 ms earlier
        on a busy machine, and in that time a server still answers. Raises ``ServiceError`` when a thread does not stop.
        """
        deadline = time.monotonic() + _STOP_TIMEOUT_SECONDS
        # A guard that is paused before it has forked its reader would never end the service.
        self._wait_for_pause(deadline, lambda: not self._is_still_the_guard())
        members = suspend_tree(self._running().pid)
        self._wait_for_pause(deadline, lambda: all(map(has_stopped, members)))

    def resume(self) -> None:
        """Send SIGCONT to the service and its descendants."""
        resume_tree(self._running().pid)

    def _wait_for_pause(self, deadline: float, is_done: Callable[[], bool]) -> None:
        while not is_done():
            self.check()
            if time.monotonic() > deadline:
                raise ServiceError(f"{self.name} did not pause within {_STOP_TIMEOUT_SECONDS:.0f} s")
            time.sleep(_PAUSE_POLL_SECONDS)

    def _is_still_the_guard(self) -> bool:
        """Return whether the service has not replaced the shell yet; false when it has ended."""
        self.check()
        with contextlib.suppress(psutil.NoSuchProcess):
            command = psutil.Process(self._running().pid).cmdline()
            # The command line is empty for a moment while one program replaces another.
            return not command or _GUARD in command
        return False

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServiceError(f"{self.name} is not running")
        return self._process

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        """Kill the rest of the process group, the guard's reader at least; return when nobody holds the lock."""
        # The reader keeps the group's number in use while the pipe is open: SIGKILL cannot hit an unrelated group.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
        self._process = None
        with self._lock():
            pass

    def _lock(self) -> AbstractContextManager[int]:
        return inheritable_lock(self.log.with_suffix(".running"), self.name, _STOP_TIMEOUT_SECONDS)

    def _log_tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return f"the end of {self.log}:\n" + "\n".join(lines[-_LOG_TAIL_LINES:] or ["(empty)"])


@contextlib.contextmanager
def _stop_signals_enabled() -> Iterator[None]:
    """Let a child that is started inside receive its stop signal even where this process ignores it.

    A process that a script starts with & ignores SIGINT and SIGQUIT, and its children inherit that; in such a process
    Dagster ignores SIGTERM as well.
    """
    ignored = [
        number
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
        if signal.getsignal(number) is signal.SIG_IGN
    ]
    if threading.current_thread() is not threading.main_thread():
        ignored = []
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
