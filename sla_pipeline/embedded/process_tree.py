"""Signals to a process and all its descendants, those in other process groups included."""

import contextlib
from pathlib import Path

import psutil

__all__ = ["has_stopped", "kill_tree", "resume_tree", "suspend_tree"]


def kill_tree(pid: int) -> None:
    """Send SIGKILL to the process and its descendants."""
    # A suspended parent cannot start a child that the kill would miss.
    for member in suspend_tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()


def suspend_tree(pid: int) -> list[psutil.Process]:
    """Send SIGSTOP to the process and its descendants; return them, parents first."""
    suspended: list[psutil.Process] = []
    # The tree is read again until it has no new member: a child may have been started between reading and SIGSTOP.
    while new := [member for member in _tree(pid) if member not in suspended]:
        for member in new:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.suspend()
        suspended += new
    return suspended


def resume_tree(pid: int) -> None:
    """Send SIGCONT to the process and its descendants."""
    for member in _tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            member.resume()


def has_stopped(process: psutil.Process) -> bool:
    """Return whether no thread of the process runs any more; true of a process that has ended."""
    threads = list(Path(f"/proc/{process.pid}/task").glob("*/stat"))
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
        if not threads:
            # A system without /proc shows the state of the whole process only.
            return bool(process.status() == psutil.STATUS_STOPPED)
        # The state follows the command's name, which is in brackets and may hold any character.
        return all(thread.read_text().rpartition(")")[2].split()[0] in "TtZX" for thread in threads)
    return not process.is_running()


def _tree(pid: int) -> list[psutil.Process]:
    """Return the process and its descendants, parents first; an empty list when the process has ended."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
