import signal
import sys
from pathlib import Path

import psutil
import pytest

from sla_pipeline.embedded import Service, ServiceError, supervision
from sla_pipeline_tests.integration.embedded.conftest import KillableParent, PollUntil, is_gone

# A service with a child that has left its process group, as PostgreSQL's backends do.
FAMILY = (
    "import subprocess, time; subprocess.Popen(['sleep', '300'], start_new_session=True); print('up', "
    "flush=True); time.sleep(300)"
)
PARENT = """
import sys, time
from pathlib import Path
from sla_pipeline.embedded import Service
service = Service("sleeper", ["sleep", "300"], Path(sys.argv[1]))
service.start()
if "pause" in sys.argv:
    service.pause()
print(service.pid, flush=True)
time.sleep(300)
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "a service.log"


def python_family(log: Path) -> Service:
    return Service("family", [sys.executable, "-c", FAMILY], log)


def test_a_service_that_ends_by_itself_is_an_error_that_shows_the_end_of_its_log(
    log: Path, poll_until: PollUntil
) -> None:
    with Service("short", ["sh", "-c", "seq 100; exit 3"], log) as service:
        pid = service.pid
        poll_until(lambda: is_gone(pid), 10)
        with pytest.raises(ServiceError, match="short ended with exit status 3") as raised:
            service.check()
    assert str(raised.value).splitlines()[1:] == [str(number) for number in range(86, 101)]


def test_a_service_that_is_not_ready_in_time_is_an_error_that_shows_the_end_of_its_log(log: Path) -> None:
    with Service("slow", ["sh", "-c", "echo still at it; exec sleep 300"], log) as service:
        service.wait_until(lambda: "still at it" in log.read_text(), 10)
        with pytest.raises(ServiceError, match=r"slow was not ready after 0 s; the end of .*:\nstill at it"):
            service.wait_until(lambda: False, 0.2)


def test_a_command_that_does_not_exist_is_an_error_that_names_it(log: Path) -> None:
    with (
        Service("absent", ["/no/such/program"], log) as service,
        pytest.raises(ServiceError, match=r"(?s)absent ended with exit status 127; .*/no/such/program"),
    ):
        service.wait_until(lambda: False, 10)


def test_a_running_service_is_not_started_twice(log: Path) -> None:
    with (
        Service("sleeper", ["sleep", "300"], log) as service,
        pytest.raises(ServiceError, match=f"sleeper is already running, as process {service.pid}"),
    ):
        service.start()


def test_a_stopped_service_can_be_started_again_and_stopping_twice_is_harmless(log: Path) -> None:
    service = Service("sleeper", ["sleep", "300"], log)
    service.start()
    first = service.pid
    service.stop()
    service.stop()
    service.start()
    second = service.pid
    service.stop()
    assert first != second
    assert is_gone(first)
    assert is_gone(second)
    with pytest.raises(ServiceError, match="sleeper is not running"):
        service.check()


def test_a_service_that_ended_by_itself_can_be_started_again(log: Path, poll_until: PollUntil) -> None:
    with Service("short", ["sh", "-c", "echo up"], log) as service:
        poll_until(lambda: is_gone(service.pid), 10)
        service.start()
        poll_until(lambda: log.read_text() == "up\nup\n", 10)


@pytest.mark.parametrize("stop_signal", [signal.SIGINT, signal.SIGQUIT, signal.SIGTERM])
def test_a_stop_sends_the_stop_signal_of_the_service(stop_signal: signal.Signals, log: Path) -> None:
    """The signal also arrives where this process ignores it, as a process that a script starts with & does.

    A shell cannot trap a signal that it ignores from its start.
    """
    script = f"trap 'echo got {stop_signal.name}; exit' {stop_signal.name[3:]}; echo up; while :; do sleep 0.05; done"
    service = Service("listener", ["sh", "-c", script], log, stop_signal=stop_signal)
    before = signal.signal(stop_signal, signal.SIG_IGN)
    try:
        service.start()
        assert signal.getsignal(stop_signal) is signal.SIG_IGN
    finally:
        signal.signal(stop_signal, before)
    service.wait_until(lambda: "up" in log.read_text(), 10)
    service.stop()
    assert log.read_text().splitlines() == ["up", f"got {stop_signal.name}"]


def test_a_service_that_ignores_its_stop_signal_is_killed(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "_STOP_TIMEOUT_SECONDS", 0.5)
    with Service("stubborn", ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done"], log) as service:
        service.wait_until(lambda: "up" in log.read_text(), 10)
        pid = service.pid
        service.stop()
    assert is_gone(pid)


def test_a_kill_ends_the_service_and_its_children_at_once(log: Path, poll_until: PollUntil) -> None:
    with python_family(log) as service:
        service.wait_until(lambda: log.exists() and "up" in log.read_text(), 10)
        family = [service.pid, *(child.pid for child in psutil.Process(service.pid).children(recursive=True))]
        assert len(family) == 2
        service.kill()
        # a busy kernel needs a moment to end a process that was killed
        poll_until(lambda: [is_gone(pid) for pid in family] == [True, True], 5)


def test_a_pause_stops_the_service_and_its_children_until_they_are_resumed(log: Path, poll_until: PollUntil) -> None:
    with python_family(log) as service:
        service.wait_until(lambda: log.exists() and "up" in log.read_text(), 10)
        leader = psutil.Process(service.pid)
        family = [leader, *leader.children(recursive=True)]
        service.pause()
        poll_until(lambda: [member.status() for member in family] == [psutil.STATUS_STOPPED] * 2, 5)
        service.resume()
        poll_until(lambda: psutil.STATUS_STOPPED not in [member.status() for member in family], 5)


def test_a_paused_service_can_be_stopped(log: Path) -> None:
    with Service("sleeper", ["sleep", "300"], log) as service:
        pid = service.pid
        service.pause()
        service.stop()
        assert is_gone(pid)


def test_a_killed_parent_leaves_no_service_and_the_next_start_waits_for_its_end(
    log: Path, killable_parent: KillableParent
) -> None:
    with killable_parent(PARENT, log) as (orphan,):
        pass
    with Service("sleeper", ["sleep", "300"], log) as service:
        assert is_gone(int(orphan))
        service.check()


def test_a_killed_parent_leaves_no_service_that_cannot_handle_its_stop_signal(
    log: Path, killable_parent: KillableParent, poll_until: PollUntil
) -> None:
    with killable_parent(PARENT, log, "pause") as (orphan,):
        pass
    # The guard sends SIGKILL after ten seconds; on a busy machine that takes longer.
    poll_until(lambda: is_gone(int(orphan)), 60)


def test_a_pause_stops_the_service_and_not_its_guard_before_it(log: Path) -> None:
    """A shell that is stopped before it has forked the guard's reader leaves a service that nobody ends."""
    for _ in range(20):
        with Service("sleeper", ["sleep", "300"], log) as service:
            service.pause()
            assert psutil.Process(service.pid).cmdline() == ["sleep", "300"]
            service.kill()


def test_a_start_is_refused_while_processes_of_an_earlier_run_stay(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "_STOP_TIMEOUT_SECONDS", 0.3)
    with (
        Service("first", ["sleep", "300"], log),
        pytest.raises(
            ServiceError, match=r"second of an earlier run is still there after 0 s: it holds .*a service\.running"
        ),
    ):
        Service("second", ["sleep", "300"], log).start()
