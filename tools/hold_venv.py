"""``hold_venv.py install|use VENV COMMAND...``: run a command under a lock on the virtual environment VENV.

``use`` takes the lock shared, so that nobody installs into VENV meanwhile; ``install`` takes it exclusively. The
command replaces this process and inherits the lock on ``VENV.lock``, and so do the programs that an installation
starts. The system frees the lock when the last of them has ended, however it ended: after a kill there is nothing to
clean up. The Makefile runs this file before there is an environment, so it imports the standard library alone.
"""

import fcntl
import os
import sys
import time

# Bounds the wait for the lock: an installation takes one to five minutes. A demo or a chaos test may run longer; then
# whoever started it has to end it.
_WAIT_SECONDS = 1800.0
_POLL_SECONDS = 0.1


def main(mode: str, venv: str, *command: str) -> None:
    """Wait for the lock, with one line on standard error about the wait; then exec ``command``."""
    path = f"{venv}.lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        # A complete environment in a checkout that cannot be written can be used without a lock.
        if mode == "use":
            os.execvp(command[0], command)  # noqa: S606
        sys.exit(
            f"nothing can be installed into {venv}: {path}: {error.strerror}; use a checkout that you can write to"
        )
    os.set_inheritable(descriptor, True)
    wanted = fcntl.LOCK_EX if mode == "install" else fcntl.LOCK_SH
    holders = (
        "to be installed by another make"
        if mode == "use"
        else "to be free: another make is installing into it, or runs in it"
    )
    deadline = time.monotonic() + _WAIT_SECONDS
    waiting = False
    while not _try_lock(descriptor, wanted):
        if not waiting:
            sys.stderr.write(f"waiting for {venv} {holders}\n")
        waiting = True
        if time.monotonic() > deadline:
            sys.exit(
                f"{venv} is still in use after {_WAIT_SECONDS / 60:.0f} minutes; end the other make, and start again"
            )
        time.sleep(_POLL_SECONDS)
    os.execvp(command[0], command)  # noqa: S606


def _try_lock(descriptor: int, wanted: int) -> bool:
    try:
        fcntl.flock(descriptor, wanted | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        # Some network file systems have no locks.
        sys.stderr.write(f"no lock on the environment ({error.strerror}): run one make at a time\n")
    return True


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
