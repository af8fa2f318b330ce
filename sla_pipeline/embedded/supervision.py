"""Child processes that end with us, however we end.

What belongs here: starting one guarded process, watching it, stopping, killing and freezing it. What does not: what the
process is.

Every service runs behind a small shell guard that holds a pipe from us. When we stop it we signal it ourselves; when we
die, kill -9 included, the kernel closes the pipe and the guard does it. Two processes that were never told of each
other agree by the same means: a service and all its children hold an inherited file lock, so the next one on the same
folder starts when the last of them is really gone. POSIX only.
"""

import contextlib
import fcntl
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import filelock
import psutil

from sla_pipeline.errors import PermanentError

__all__ = ["Service", "ServiceError", "UnusableState", "User", "exclusive"]

# The reader waits in the background and the service replaces the shell, so its pid is ours, and its SIGINT is not
# ignored as that of a background job would be. The reader is forked twice, so that it is no child of the service: what
# freezes those must not freeze the guard.
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
# longer than the guard's ten seconds, so that a start waits out the stop of a run that was killed a moment ago
_STOP_TIMEOUT_SECONDS = 15.0
# a broker needs 3 s, and forty times that on a machine which is busy with something else; a death is noticed at once
# all the same
_START_TIMEOUT_SECONDS = 120.0
_POLL_SECONDS = 0.05
_FREEZE_POLL_SECONDS = 0.002
_LOG_TAIL_LINES = 15
# the shell uses descriptors below 10 for itself
_FIRST_SAFE_DESCRIPTOR = 10


class ServiceError(PermanentError):
    """A service did not start, or ended by itself; the message holds the end of its log."""


class UnusableState(ServiceError):
    """A server cannot use the data kept in ``folder``; ``cause`` is one line and names the file or folder at fault."""

    def __init__(self, folder: Path, cause: str) -> None:
        super().__init__(f"{cause}; remove {folder} to start with an empty server")
        self.cause = cause


class User(NamedTuple):
    """Whom a process runs as, when not as ourselves."""

    uid: int
    gid: int


class Service:
    """One guarded process, and what it starts. As a context manager it starts on entry and stops on exit.

    ``log`` takes standard output and error, and is appended to. ``stop_signal`` is what the service's orderly stop
    listens to. Beside the log lies a lock file, named like it. A fork of ours that outlives us holds the guard's pipe
    open: start services from a process that execs what it starts.
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
        """The service's process id, which is its process group too. Raises ``ServiceError`` when it is not running."""
        return self._running().pid

    def start(self) -> None:
        """Starts the process; does not wait until it is ready. Waits for the processes of an earlier run that are still ending.

        Raises ``ServiceError`` when they stay, when the service is running already, or when the command cannot be run.
        """
        if self._process is not None:
            if self._process.poll() is None:
                raise ServiceError(f"{self.name} is already running, as process {self._process.pid}")
            self._bury(self._process)
        with self._inheritable_lock() as lock, self.log.open("ab") as out, _signals_heard():
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
        """Raises ``ServiceError`` with the end of the log when the process has ended, or was not started."""
        process = self._running()
        if (status := process.poll()) is not None:
            raise ServiceError(f"{self.name} ended with exit status {status}; {self._log_tail()}")

    def ended(self) -> bool:
        """Whether the process was started and has ended by itself."""
        return self._process is not None and self._process.poll() is not None

    def log_since_start(self) -> list[str]:
        """Lines that the service has logged since its last start."""
        with self.log.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace").splitlines()

    def wait_until(self, ready: Callable[[], bool], timeout_seconds: float = _START_TIMEOUT_SECONDS) -> None:
        """Polls ``ready``.

        Raises ``ServiceError`` when the process ends first, or when ``timeout_seconds`` have passed.
        """
        deadline = time.monotonic() + timeout_seconds
        while not ready():
            self.check()
            if time.monotonic() > deadline:
                raise ServiceError(f"{self.name} was not ready after {timeout_seconds:.0f} s; {self._log_tail()}")
            time.sleep(_POLL_SECONDS)

    def stop(self, stop_signal: signal.Signals | None = None, timeout_seconds: float | None = None) -> None:
        """Ends the service in order, by ``stop_signal`` or its own one; by SIGKILL when it takes longer than ``timeout_seconds``, or 15 s.

        Does nothing when it is stopped already. Raises ``ServiceError`` when processes of it are left.
        """
        process = self._process
        if process is None:
            return
        self.thaw()
        process.send_signal(stop_signal or self._stop_signal)
        try:
            process.wait(timeout_seconds or _STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        else:
            self._bury(process)

    def kill(self) -> None:
        """A crash: SIGKILL to the service and to all that it started.

        Returns when they are gone; raises ``ServiceError`` when not.
        """
        process = self._running()
        # a frozen parent cannot start a child that this would miss
        for member in self._freeze_family():
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        self._bury(process)

    def freeze(self) -> None:
        """SIGSTOP to the service and to all that it started: a pause that the other side of a connection cannot tell from a dead host.

        Returns when every thread has stopped: kill(2) returns before that, 50 to 200 ms on a busy machine, in which a
        server still answers. Raises ``ServiceError`` when one does not stop.
        """
        deadline = time.monotonic() + _STOP_TIMEOUT_SECONDS
        # a guard that is frozen while it is still setting itself up would never end the service
        self._freeze_step(deadline, lambda: not self._is_still_the_guard())
        frozen = self._freeze_family()
        self._freeze_step(deadline, lambda: all(map(_has_stopped, frozen)))

    def _freeze_step(self, deadline: float, is_done: Callable[[], bool]) -> None:
        while not is_done():
            self.check()
            if time.monotonic() > deadline:
                raise ServiceError(f"{self.name} did not freeze within {_STOP_TIMEOUT_SECONDS:.0f} s")
            time.sleep(_FREEZE_POLL_SECONDS)

    def _is_still_the_guard(self) -> bool:
        """Whether the shell has not been replaced by the service yet; false when it has ended."""
        self.check()
        with contextlib.suppress(psutil.NoSuchProcess):
            command = psutil.Process(self._running().pid).cmdline()
            # empty for a moment in which a program replaces another one
            return not command or _GUARD in command
        return False

    def thaw(self) -> None:
        """SIGCONT to the service and to all that it started."""
        for member in self._family():
            with contextlib.suppress(psutil.NoSuchProcess):
                member.resume()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServiceError(f"{self.name} is not running")
        return self._process

    def _family(self) -> list[psutil.Process]:
        """The service and its descendants, parents first; empty when the service has ended."""
        try:
            leader = psutil.Process(self._running().pid)
            return [leader, *leader.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _freeze_family(self) -> list[psutil.Process]:
        frozen: list[psutil.Process] = []
        # again until nothing new is seen: a child may have been started between the look and the stop
        while new := [member for member in self._family() if member not in frozen]:
            for member in new:
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.suspend()
            frozen += new
        return frozen

    def _bury(self, process: subprocess.Popen[bytes]) -> None:
        """Ends what is left of the process group, the guard's reader at least, and waits until nobody holds the
        lock.
        """
        # the reader holds the group's number as long as the pipe is open, so this cannot hit a stranger
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
        self._process = None
        with self._inheritable_lock():
            pass

    @contextlib.contextmanager
    def _inheritable_lock(self) -> Iterator[int]:
        """A descriptor that holds the lock for as long as any process has it, inherited copies included.

        Raises ``ServiceError``.
        """
        path = self.log.with_suffix(".running")
        first = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            lock = fcntl.fcntl(first, fcntl.F_DUPFD_CLOEXEC, _FIRST_SAFE_DESCRIPTOR)
        finally:
            os.close(first)
        try:
            deadline = time.monotonic() + _STOP_TIMEOUT_SECONDS
            while not _try_lock(lock):
                if time.monotonic() > deadline:
                    raise ServiceError(
                        f"{self.name} of an earlier run is still there after {_STOP_TIMEOUT_SECONDS:.0f} s: it holds "
                        f"{path}"
                    )
                time.sleep(_POLL_SECONDS)
            yield lock
        finally:
            os.close(lock)

    def _log_tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return f"the end of {self.log}:\n" + "\n".join(lines[-_LOG_TAIL_LINES:] or ["(empty)"])


@contextlib.contextmanager
def _signals_heard() -> Iterator[None]:
    """Let a child made inside receive its stop signal even where we ignore it.

    What a script starts with & ignores SIGINT and SIGQUIT and hands that down; in such a process Dagster ignores
    SIGTERM as well.
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


def _has_stopped(process: psutil.Process) -> bool:
    """Whether no thread of the process runs any more; true of one that has ended."""
    threads = list(Path(f"/proc/{process.pid}/task").glob("*/stat"))
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
        if not threads:
            # no /proc here: the process as a whole has to do
            return bool(process.status() == psutil.STATUS_STOPPED)
        # the state follows the command's name, which is in brackets and may hold anything
        return all(thread.read_text().rpartition(")")[2].split()[0] in "TtZX" for thread in threads)
    return not process.is_running()


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def exclusive(path: Path, what: str) -> Iterator[None]:
    """Holds the lock file ``path`` for this process.

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
