"""Several makes at once in one fresh clone: one installs, the others wait for it; a kill leaves no lock behind.

A stub replaces Python's venv and pip; the Makefile, make and the lock are real.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
# The stub's pip waits for the file `gate`, so that a test decides when an installation ends. It fails when the test has
# ended.
STUB = f"""#!/bin/sh
case "$1 $2" in
"-c "*) ;;
"-m venv") echo venv >>log; rm -rf "$4"; mkdir -p "$4/bin"; cp "$0" "$4/bin/python" ;;
"-m pip")
    echo pip >>log
    until [ -e gate ]; do [ -e log ] || exit 1; sleep 0.02; done
    echo done >>log ;;
*) exec {sys.executable} "$@" ;;
esac
"""
WAITING = "waiting for .venv to be free: another make is installing into it, or runs in it\n"
ONE_INSTALLATION = ["venv", "pip", "done", "pip", "done"]
_DEADLINE_SECONDS = 60.0


class Clone:
    """A checkout with a Makefile and nothing installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: list[subprocess.Popen[str]] = []
        (folder / "tools").mkdir(parents=True)
        for name in ("Makefile", "tools/hold_venv.py"):
            shutil.copyfile(REPOSITORY / name, folder / name)
        for name in ("requirements.lock", "pyproject.toml", "log"):
            (folder / name).touch()
        stub = folder / "python"
        stub.write_text(STUB)
        stub.chmod(0o755)

    def run(self, *command: str) -> "subprocess.Popen[str]":
        # The options of the make that runs the tests must not reach this make.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        started = subprocess.Popen(
            command, cwd=self.folder, env=environment, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._running.append(started)
        return started

    def make(self) -> "subprocess.Popen[str]":
        return self.run("make", "install", "PYTHON=./python")

    def steps(self) -> list[str]:
        return (self.folder / "log").read_text().split()

    def wait_for_step(self, count: int) -> None:
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while len(self.steps()) < count:
            assert time.monotonic() < deadline, self.steps()
            time.sleep(0.02)

    def open_gate(self) -> None:
        (self.folder / "gate").touch()

    def end(self) -> None:
        (self.folder / "log").unlink()
        for process in self._running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            # This call closes the pipes.
            process.__exit__(None, None, None)


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Clone]:
    clone = Clone(tmp_path / "a clone")
    yield clone
    clone.end()


def ended_well(process: "subprocess.Popen[str]") -> str:
    """Return what it printed on standard error after the lines that were read."""
    _, stderr = process.communicate(timeout=_DEADLINE_SECONDS)
    assert process.returncode == 0, stderr
    return stderr


def first_line(process: "subprocess.Popen[str]") -> str:
    assert process.stderr is not None
    return process.stderr.readline()


def test_makes_at_once_install_once_and_each_reports_its_wait(clone: Clone) -> None:
    first = clone.make()
    clone.wait_for_step(2)
    others = [clone.make(), clone.make()]
    assert [first_line(other) for other in others] == [WAITING] * 2
    clone.open_gate()
    assert [ended_well(make) for make in (first, *others)] == [""] * 3
    assert clone.steps() == ONE_INSTALLATION
    assert ended_well(clone.make()) == ""
    assert clone.steps() == ONE_INSTALLATION


def test_an_installation_that_was_killed_is_repeated_and_its_lock_is_free(clone: Clone) -> None:
    first = clone.make()
    clone.wait_for_step(2)
    os.killpg(first.pid, signal.SIGKILL)
    clone.open_gate()
    ended_well(clone.make())
    assert clone.steps() == ["venv", "pip", *ONE_INSTALLATION]


def test_an_installation_that_outlives_its_make_is_waited_for(clone: Clone) -> None:
    first = clone.make()
    clone.wait_for_step(2)
    first.kill()
    second = clone.make()
    assert first_line(second) == WAITING
    clone.open_gate()
    ended_well(second)
    assert clone.steps() == ONE_INSTALLATION


def test_a_changed_lock_is_not_installed_under_a_running_demo(clone: Clone) -> None:
    clone.open_gate()
    ended_well(clone.make())
    demo = clone.run("./python", "tools/hold_venv.py", "use", ".venv", "cat")
    assert demo.stdin is not None
    assert demo.stdout is not None
    demo.stdin.write("it runs\n")
    demo.stdin.flush()
    assert demo.stdout.readline() == "it runs\n"
    # Any number of processes may use an environment that is current.
    assert ended_well(clone.run("./python", "tools/hold_venv.py", "use", ".venv", "true")) == ""
    os.utime(clone.folder / ".venv" / "installed", (0, 0))
    second = clone.make()
    assert first_line(second) == WAITING
    assert clone.steps() == ONE_INSTALLATION
    demo.stdin.close()
    ended_well(second)
    assert clone.steps() == ONE_INSTALLATION * 2


def test_a_lock_that_cannot_be_made(clone: Clone) -> None:
    """An existing environment is used without the lock; an installation fails with one line."""
    (clone.folder / ".venv.lock").mkdir()
    assert ended_well(clone.run("./python", "tools/hold_venv.py", "use", ".venv", "true")) == ""
    make = clone.make()
    _, stderr = make.communicate(timeout=_DEADLINE_SECONDS)
    assert make.returncode == 2
    assert stderr.splitlines()[0] == (
        "nothing can be installed into .venv: .venv.lock: Is a directory; use a checkout that you can write to"
    )


def test_ctrl_c_while_waiting_is_no_traceback(clone: Clone) -> None:
    first = clone.make()
    clone.wait_for_step(2)
    second = clone.make()
    assert first_line(second) == WAITING
    os.killpg(second.pid, signal.SIGINT)
    _, stderr = second.communicate(timeout=_DEADLINE_SECONDS)
    assert "Traceback" not in stderr
    assert clone.steps() == ["venv", "pip"]
    clone.open_gate()
    ended_well(first)
