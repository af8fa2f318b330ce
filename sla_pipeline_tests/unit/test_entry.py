"""Ctrl-C at any time after the start of ``sla-pipeline``: no traceback."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

_REPOSITORY = Path(__file__).parents[2]
_MAIN = "from sla_pipeline.entry import main; main()"


def test_ctrl_c_while_the_command_line_is_loaded(tmp_path: Path) -> None:
    # This module stands for the first import that takes long.
    (tmp_path / "typer.py").write_text("import sys\nprint('loading', flush=True)\nsys.stdin.read()\n")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(_REPOSITORY)])}
    with subprocess.Popen(
        [sys.executable, "-c", _MAIN],
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as loading:
        assert loading.stdout is not None
        assert loading.stdout.readline() == "loading\n"
        loading.send_signal(signal.SIGINT)
        _, stderr = loading.communicate(timeout=60)
    assert (loading.returncode, stderr) == (-signal.SIGINT, "")


@pytest.mark.parametrize("handler", ["default_int_handler", "SIG_IGN"])
def test_the_command_itself_finds_the_handler_as_it_was(handler: str) -> None:
    code = (
        f"import signal; signal.signal(signal.SIGINT, signal.{handler}); from sla_pipeline import cli; "
        f"cli.main = lambda: print(signal.getsignal(signal.SIGINT) is signal.{handler}); {_MAIN}"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert ran.stdout == "True\n"
