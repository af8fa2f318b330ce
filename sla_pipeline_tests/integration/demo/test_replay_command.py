"""Replay on its own servers, as the command line runs it: it needs nothing and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sla_pipeline import cli
from sla_pipeline.demo.replay import replay_on_embedded_servers
from sla_pipeline.errors import InputError
from sla_pipeline_tests.integration.dagster.conftest import REPOSITORY
from sla_pipeline_tests.shared_servers import server_folder
from sla_pipeline_tests.waiting import wait_until

LOG = """number,at,opened_at,status,priority,queue,assignee,requester
ONE,2016-03-01T08:00Z,2016-03-01T08:00Z,New,Critical,,,1
TWO,2016-03-01T08:01Z,2016-03-01T08:01Z,InWork,Critical,7,8,1
"""


# each test starts two servers
@pytest.mark.timeout(400)
def test_a_log_is_replayed_on_servers_of_its_own_which_are_removed_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log.csv"
    log.write_text(LOG)
    steps: list[tuple[int, int]] = []
    # not below tmp_path: started by root, PostgreSQL runs as nobody, who may not enter it
    with server_folder() as temporary:
        monkeypatch.setattr(tempfile, "tempdir", str(temporary))
        result = replay_on_embedded_servers(log, on_progress=lambda done, total: steps.append((done, total)))
        assert list(temporary.iterdir()) == []
    assert result.as_csv() == (
        "2016-03-01T08:16Z,ONE,FirstResponse,2016-03-01T08:15Z\n2016-03-01T12:02Z,TWO,Resolution,2016-03-01T12:01Z\n"
    )
    assert result.agree
    # two changes and the four minutes after a deadline
    assert steps == [(done, 6) for done in range(1, 7)]


def test_a_malformed_log_is_refused_before_any_server_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log.csv"
    log.write_text(LOG.replace("InWork", "Working"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(
        InputError,
        match=r"log\.csv, line 3, column status: 'Working'; write one of New, InWork, OnHold, Resolved, Closed",
    ):
        replay_on_embedded_servers(log)


@pytest.mark.parametrize(
    ("out", "fault"), [("missing/out.csv", "No such file or directory"), ("log.csv/out.csv", "Not a directory")]
)
def test_a_result_that_cannot_be_written_is_refused_before_any_server_is_started(
    out: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.csv"
    log.write_text(LOG)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    monkeypatch.setattr("sys.argv", ["sla-pipeline", "replay", str(log), "--out", str(tmp_path / out)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    error_output = capsys.readouterr().err
    assert error_output.startswith("sla-pipeline: --out: '")
    assert error_output.endswith(f" cannot be written: {fault}; name another file\n")


# each test starts two servers
@pytest.mark.timeout(400)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_replay_that_is_stopped_leaves_nothing_behind_and_prints_nothing(number: signal.Signals) -> None:
    """The log of its cycles is not printed either."""
    log = REPOSITORY / "sla_pipeline" / "demo" / "data" / "incident_log_2016.csv"
    command = [sys.executable, "-c", "from sla_pipeline.entry import main; main()", "replay", str(log)]
    with server_folder() as temporary:
        with subprocess.Popen(
            command,
            env=os.environ | {"TMPDIR": str(temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as replay:
            wait_until(
                lambda: bool(list(temporary.glob("sla-replay-*/kafka/kafka.log"))),
                what="the servers to start",
                seconds=120,
            )
            replay.send_signal(number)
            printed, error_output = replay.communicate(timeout=120)
        assert (replay.returncode, printed, error_output) == (130, "", "")
        assert list(temporary.iterdir()) == []
